"""ConvNeXt: Liu, Mao, Wu, Feichtenhofer, Darrell, Xie, "A ConvNet for the 2020s" (2022), in the sizes of the paper and of timm.

Six parts, as a ResNet has: 0 the stem, which cuts the image into patches, 1 to 4 the stages, each but the first with its downsampling
layer in front, 5 the head (mean, LayerNorm, linear). There are no BatchNorms and no convolutions between channels: those of patches are
matrix products, and the others are depthwise, with a layer norm after them.
"""

import dataclasses
import re
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.models.capabilities import AFTER, CUT, MAPS, After
from jaxbed.models.conv import depthwise_conv
from jaxbed.models.features import pooled
from jaxbed.models.parameter import Dense, LayerNorm, parameter
from jaxbed.models.staged import PARTS, Staged
from jaxbed.values import Dtype, ShareBelowOne

PyTree = Any
SIZES = {  # blocks of each stage, channels of the first, which double from stage to stage; the first four are timm's
    "atto": ((2, 2, 6, 2), 40),
    "femto": ((2, 2, 6, 2), 48),
    "pico": ((2, 2, 6, 2), 64),
    "nano": ((2, 2, 8, 2), 80),
    "tiny": ((3, 3, 9, 3), 96),
    "small": ((3, 3, 27, 3), 96),
    "base": ((3, 3, 27, 3), 128),
}
KERNEL = 7  # of the depthwise convolutions
EPSILON = 1e-6  # of LayerNorm, added to variances
LAYER_SCALE = 1e-6  # at the start
normal = nn.initializers.normal(0.02)


@dataclasses.dataclass
class Config:
    size: Literal["atto", "femto", "pico", "nano", "tiny", "small", "base"] = "tiny"
    patch_px: Literal[1, 2, 4] = 4  # side of the stem's patches; 4 is published, 2 or 1 are for images of fewer than 64 px
    stochastic_depth: ShareBelowOne = 0.0  # rate of the last block, 0 for the first; published: tiny 0.1, small 0.4, base 0.5
    dtype: Dtype = "float32"  # of activations; parameters stay float32
    parts: ClassVar[int] = PARTS
    offers: ClassVar[frozenset[str]] = frozenset({CUT, MAPS, AFTER})

    def make(self, classes: int, after: After = lambda part: None, first: int = 0, last: int = PARTS) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        return ConvNeXt(classes, self.dtype, after, first, last, *SIZES[self.size], self.patch_px, self.stochastic_depth)


class ConvNeXt(Staged):
    blocks: tuple[int, ...]
    width: int
    patch_px: int
    stochastic_depth: float

    def part(self, number: int, x: jax.Array, train: bool) -> jax.Array:
        if number > 0:
            return self.stage(number, x, train)
        return layer_norm("stem_norm", x.dtype)(Patches(self.width, self.patch_px, name="stem_conv")(x))

    def head(self, x: jax.Array, train: bool) -> jax.Array:
        x = layer_norm("head_norm", jnp.float32)(pooled(x))
        return dense(self.classes, "head", jnp.float32)(x)

    def stage(self, stage: int, x: jax.Array, train: bool) -> jax.Array:
        features = self.width * 2 ** (stage - 1)
        if stage > 1:
            if min(x.shape[1:3]) < 2:
                cure = "take 2 or 1, or larger images" if self.patch_px > 1 else "take larger images"
                raise ValueError(f"net.patch_px = {self.patch_px}: a map before stage {stage} has one pixel and cannot be halved: {cure}")
            x = Patches(features, 2, name=f"stage{stage}_conv")(layer_norm(f"stage{stage}_norm", x.dtype)(x))
        before, last = sum(self.blocks[: stage - 1]), max(sum(self.blocks) - 1, 1)
        for i in range(self.blocks[stage - 1]):
            x = Block(self.stochastic_depth * (before + i) / last, name=f"stage{stage}_block{i}")(x, train)
        return x


class Block(nn.Module):
    """x + γ · narrow(GELU(widen(norm(depthwise(x))))); in training the sum is left out for an image with probability drop_rate."""

    drop_rate: float

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        features = x.shape[-1]
        y = layer_norm("norm", x.dtype)(Depthwise(name="depthwise")(x))
        y = nn.gelu(dense(4 * features, "widen", x.dtype)(y), approximate=False)
        gamma = parameter(self, "gamma", nn.initializers.constant(LAYER_SCALE), (features,))
        y = dense(features, "narrow", x.dtype)(y) * gamma.astype(x.dtype)
        if self.drop_rate:
            y = nn.Dropout(self.drop_rate, broadcast_dims=(1, 2, 3), deterministic=not train)(y)
        return x + y


class Patches(nn.Module):
    """Convolution of size x size patches that do not overlap, as a product: [B, H, W, C] -> [B, ⌊H/size⌋, ⌊W/size⌋, features]."""

    features: int
    size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size, (images, *sides, channels) = self.size, x.shape
        kernel = parameter(self, "kernel", normal, (size, size, channels, self.features)).astype(x.dtype)
        bias = parameter(self, "bias", nn.initializers.zeros, (self.features,)).astype(x.dtype)
        height, width = (side // size for side in sides)
        x = x[:, : height * size, : width * size].reshape(images, height, size, width, size, channels).swapaxes(2, 3)
        x = x.reshape(images, height, width, size * size * channels)
        return jnp.dot(x, kernel.reshape(-1, self.features), precision=jax.lax.Precision.HIGHEST) + bias


class Depthwise(nn.Module):
    """Every channel with a 7 x 7 filter and a bias of its own; the map keeps its size."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = parameter(self, "kernel", normal, (KERNEL, KERNEL, 1, x.shape[-1])).astype(x.dtype)
        bias = parameter(self, "bias", nn.initializers.zeros, (x.shape[-1],)).astype(x.dtype)
        around = (KERNEL // 2, KERNEL // 2)
        return depthwise_conv(jnp.pad(x, ((0, 0), around, around, (0, 0))), kernel) + bias


def layer_norm(name: str, dtype: Any) -> LayerNorm:
    return LayerNorm(EPSILON, dtype, use_fast_variance=False, name=name)


def dense(features: int, name: str, dtype: Any) -> Dense:
    """True float32, as `linear.Linear` is, with ConvNeXt's initialisation."""
    return Dense(features, dtype=dtype, precision=jax.lax.Precision.HIGHEST, kernel_init=normal, name=name)


LAYERS = {"stem.0": "stem_conv", "stem.1": "stem_norm", "head.norm": "head_norm", "head.fc": "head"}
WITHIN = {"conv_dw": "depthwise", "norm": "norm", "mlp.fc1": "widen", "mlp.fc2": "narrow"}
DOWNSAMPLING = ("norm", "conv")


def from_torch(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, {}), float32, of the names that timm's ConvNeXts have: stem.0, stages.<s>.downsample.0, stages.<s>.blocks.<i>.conv_dw, ...

    Linear layers may be 1 x 1 convolutions, as in timm's small sizes. Raises ValueError for a name that no such network has.
    """
    params: PyTree = {}
    for name, array in state.items():
        *layers, leaf = _ours(name)
        tree = params
        for layer in layers:
            tree = tree.setdefault(layer, {})
        array = np.asarray(array, np.float32)
        if layers[-1] in ("widen", "narrow", "head") and array.shape[2:] == (1, 1):
            array = array[:, :, 0, 0]
        tree[leaf] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return params, {}


def _ours(name: str) -> tuple[str, ...]:
    """timm's name -> layers and leaf."""
    layer, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"stages\.([0-3])\.blocks\.(\d+)(?:\.(.+))?", layer)
    between = re.fullmatch(r"stages\.([1-3])\.downsample\.([01])", layer)
    path: tuple[str, ...] = ()
    if block:
        path = (f"stage{int(block[1]) + 1}_block{int(block[2])}",)
        if block[3] is None and leaf == "gamma":
            return *path, "gamma"
        path = (*path, WITHIN[block[3]]) if block[3] in WITHIN else ()
    elif between:
        path = (f"stage{int(between[1]) + 1}_{DOWNSAMPLING[int(between[2])]}",)
    elif layer in LAYERS:
        path = (LAYERS[layer],)
    if not path or leaf not in ("weight", "bias"):
        raise ValueError(f"weights: {name!r} is no array of a ConvNeXt as timm names them")
    return *path, "bias" if leaf == "bias" else "scale" if path[-1].endswith("norm") else "kernel"
