"""Vision Transformer: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), in the sizes of DeiT (Touvron et al., 2021) and timm.

Two parts: 0 the trunk, which gives one vector per image, and 1 the linear head. Tokens between blocks are no maps, so the trunk is not cut.
Differs from the paper: no dropout, and weights are drawn as timm draws them, normal with standard deviation 0.02.
"""

import dataclasses
import re
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.models.capabilities import CUT
from jaxbed.models.convnext import Patches, dense, layer_norm, normal
from jaxbed.models.parameter import parameter
from jaxbed.values import Count, Dtype

PyTree = Any
SIZES = {"tiny": (12, 192, 3), "small": (12, 384, 6), "base": (12, 768, 12)}  # blocks, width, heads of attention
PARTS = 2
POOLED_NORM = {"token": "top_norm", "mean": "top_fc_norm"}  # two names, so that weights for one are not taken for the other
HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass
class Config:
    size: Literal["tiny", "small", "base"] = "base"
    side_px: Count = 224  # of the images: every patch has a learned position
    patch_px: Count = 16  # side of the patches; 16 is published
    pool: Literal["token", "mean"] = "token"  # what the head reads: the class token, or the mean of the other tokens (MAE's fine-tuned)
    dtype: Dtype = "float32"  # of activations; parameters stay float32
    parts: ClassVar[int] = PARTS
    offers: ClassVar[frozenset[str]] = frozenset({CUT})

    def make(self, classes: int, first: int = 0, last: int = PARTS) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        if self.side_px % self.patch_px:
            raise ValueError(f"net.side_px = {self.side_px}: must be a multiple of net.patch_px = {self.patch_px}")
        return ViT(*SIZES[self.size], self.side_px, self.patch_px, self.pool, self.dtype, classes, first, last)


class ViT(nn.Module):
    blocks: int
    width: int
    heads: int
    side_px: int
    patch_px: int
    pool: str
    dtype: str
    classes: int
    first: int
    last: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # [B, H, W, C] -> [B, width], or [B, classes] with the head
        if self.first == 0:
            x = self.trunk(x.astype(self.dtype))
        return dense(self.classes, "head", jnp.float32)(x.astype(jnp.float32)) if self.last == PARTS else x

    def trunk(self, x: jax.Array) -> jax.Array:
        if x.shape[1:3] != (self.side_px, self.side_px):
            height, width = x.shape[1:3]
            raise ValueError(f"net.side_px = {self.side_px}: images have {height} x {width} px; set it to the side of square images")
        x = Patches(self.width, self.patch_px, name="stem_conv")(x)
        x = x.reshape(len(x), -1, self.width)
        token = parameter(self, "stem_token", normal, (self.width,)).astype(x.dtype)
        position = parameter(self, "stem_position", normal, (1 + x.shape[1], self.width)).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), x], axis=1) + position
        for i in range(self.blocks):
            x = Block(self.heads, name=f"stage1_block{i}")(x)
        x = x[:, 0] if self.pool == "token" else x[:, 1:].astype(jnp.float32).mean(1)
        return layer_norm(POOLED_NORM[self.pool], jnp.float32)(x)


class Block(nn.Module):
    """x + attention(norm(x)), then x + narrow(GELU(widen(norm(x))))."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, T, width] -> the same
        images, tokens, width = x.shape
        size = width // self.heads
        triple = dense(3 * width, "qkv", x.dtype)(layer_norm("norm1", x.dtype)(x)).reshape(images, tokens, 3, self.heads, size)
        query, key, value = triple.transpose(2, 0, 3, 1, 4)  # heads before tokens: a quarter of the time on a CPU
        scores = jnp.einsum("bhqd,bhkd->bhqk", query * size**-0.5, key, precision=HIGHEST, preferred_element_type=jnp.float32)
        attended = jnp.einsum("bhqk,bhkd->bhqd", nn.softmax(scores).astype(x.dtype), value, precision=HIGHEST)
        attended = attended.swapaxes(1, 2).reshape(images, tokens, width)
        x = x + dense(width, "project", x.dtype)(attended)
        y = nn.gelu(dense(4 * width, "widen", x.dtype)(layer_norm("norm2", x.dtype)(x)), approximate=False)
        return x + dense(width, "narrow", x.dtype)(y)


# timm's names, then torchvision's
OUTSIDE = {
    **{"patch_embed.proj": "stem_conv", "norm": "top_norm", "fc_norm": "top_fc_norm", "head": "head"},
    **{"conv_proj": "stem_conv", "encoder.ln": "top_norm", "heads.head": "head"},
}
TOKENS = {"cls_token": "stem_token", "class_token": "stem_token", "pos_embed": "stem_position", "encoder.pos_embedding": "stem_position"}
WITHIN = {
    **{"norm1": "norm1", "attn.qkv": "qkv", "attn.proj": "project", "norm2": "norm2", "mlp.fc1": "widen", "mlp.fc2": "narrow"},
    **{"ln_1": "norm1", "self_attention.in_proj": "qkv", "self_attention.out_proj": "project", "ln_2": "norm2"},
    **{"mlp.0": "widen", "mlp.3": "narrow", "mlp.linear_1": "widen", "mlp.linear_2": "narrow"},
}
LEAVES = {"weight": "kernel", "bias": "bias"}


def from_torch(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, {}), float32, of the names that timm's (cls_token, blocks.<i>.attn.qkv, ...) or torchvision's ViTs have (class_token, ...).

    Raises ValueError for a name that no such network has.
    """
    params: PyTree = {}
    for name, array in state.items():
        *layers, leaf = _ours(name)
        tree = params
        for layer in layers:
            tree = tree.setdefault(layer, {})
        if leaf in tree:
            raise ValueError(f"weights: {name!r} is there under another name too, so that the file holds two networks")
        array = np.asarray(array, np.float32)
        if layers:
            tree[leaf] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
        else:  # [1, 1, width] or [1, T, width]
            tree[leaf] = array.reshape(-1) if leaf == "stem_token" else array.reshape(array.shape[1:])
    return params, {}


def _ours(name: str) -> tuple[str, ...]:
    """timm's or torchvision's name -> layers and leaf."""
    if name in TOKENS:
        return (TOKENS[name],)
    layer, _, leaf = name.rpartition(".")
    if leaf.startswith("in_proj_"):  # torchvision's joint layer is no module of its own
        layer, leaf = f"{layer}.in_proj", leaf.removeprefix("in_proj_")
    block = re.fullmatch(r"(?:blocks\.|encoder\.layers\.encoder_layer_)(\d+)\.(.+)", layer)
    inner = WITHIN.get(block[2]) if block else OUTSIDE.get(layer)
    if inner is None or leaf not in LEAVES:
        raise ValueError(f"weights: {name!r} is no array of a ViT as timm or torchvision name them")
    scale = leaf == "weight" and "norm" in inner
    return *((f"stage1_block{int(block[1])}",) if block else ()), inner, "scale" if scale else LEAVES[leaf]
