"""BiT's ResNet (Kolesnikov et al., 2020): pre-activation blocks, standardised weights, and GroupNorm; no batch statistics.

GroupNorm has 32 groups and eps 1e-5, standardisation eps 1e-10, and the max-pool of the stem has zeros around the map, as in the authors'
code. Parts: 0 the stem, 1 to 4 the stages, the last with the network's last normalisation, 5 the head. New heads are zero there, and
PyTorch's here.
"""

import dataclasses
import re
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.models.capabilities import AFTER, CUT, MAPS, After
from jaxbed.models.conv import conv, kaiming_normal
from jaxbed.models.features import pooled
from jaxbed.models.linear import Linear
from jaxbed.models.parameter import parameter
from jaxbed.models.pool import max_pool_zeros
from jaxbed.models.staged import PARTS, Staged
from jaxbed.values import Count, Dtype

PyTree = Any
BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
GROUPS, EPSILON = 32, 1e-5  # of GroupNorm
LEAST_VARIANCE = 1e-10  # added to the variances of kernels


@dataclasses.dataclass
class Config:
    depth: Literal[50, 101, 152] = 50
    width: Count = 64  # channels of the stem, a multiple of 32; 64 is R50x1, 192 R50x3
    dtype: Dtype = "float32"  # of activations; parameters stay float32
    parts: ClassVar[int] = PARTS
    offers: ClassVar[frozenset[str]] = frozenset({CUT, MAPS, AFTER})

    def make(self, classes: int, after: After = lambda part: None, first: int = 0, last: int = PARTS) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        if self.width % GROUPS:
            raise ValueError(f"net.width = {self.width}: must be a multiple of {GROUPS}, the groups of GroupNorm")
        return BiT(classes, self.dtype, after, first, last, BLOCKS[self.depth], self.width)


class BiT(Staged):
    blocks: tuple[int, ...]
    width: int

    def part(self, number: int, x: jax.Array, train: bool) -> jax.Array:
        if number == 0:
            return max_pool_zeros(StandardisedConv(self.width, 7, 2, name="stem_conv")(x))
        for i in range(self.blocks[number - 1]):
            stride = 2 if number > 1 and i == 0 else 1
            x = Block(self.width * 2 ** (number - 1), stride, name=f"stage{number}_block{i}")(x)
        return nn.relu(GroupNorm(name=f"stage{number}_norm")(x)) if number == PARTS - 2 else x

    def head(self, x: jax.Array, train: bool) -> jax.Array:
        return Linear(self.classes, name="head")(pooled(x))


class Block(nn.Module):
    """x, or the shortcut from its normalised maps, plus three convolutions, each after GroupNorm and ReLU."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.relu(GroupNorm(name="norm1")(x))
        if self.stride > 1 or x.shape[-1] != 4 * self.features:
            x = StandardisedConv(4 * self.features, 1, self.stride, name="shortcut_conv")(y)
        y = StandardisedConv(self.features, 1, name="conv1")(y)
        y = nn.relu(GroupNorm(name="norm2")(y))
        y = StandardisedConv(self.features, 3, self.stride, name="conv2")(y)
        y = nn.relu(GroupNorm(name="norm3")(y))
        return x + StandardisedConv(4 * self.features, 1, name="conv3")(y)


class GroupNorm(nn.Module):
    """Normalises each image's groups of channels over the map, in float32; output in the input's type."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        features = x.shape[-1]
        scale = parameter(self, "scale", nn.initializers.ones, (features,))
        bias = parameter(self, "bias", nn.initializers.zeros, (features,))
        wide = x.astype(jnp.float32).reshape(len(x), -1, GROUPS, features // GROUPS)
        mean, var = wide.mean((1, 3), keepdims=True), wide.var((1, 3), keepdims=True)
        normalised = ((wide - mean) * jax.lax.rsqrt(var + EPSILON)).reshape(x.shape)
        return (normalised * scale + bias).astype(x.dtype)


class StandardisedConv(nn.Module):
    """Convolution whose kernel has, for each feature, mean 0 and variance 1 (Qiao et al., 2019)."""

    features: int
    kernel: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [N, H, W, C] -> [N, ceil(H/stride), ceil(W/stride), features]
        kernel = parameter(self, "kernel", kaiming_normal, (self.kernel, self.kernel, x.shape[-1], self.features))
        return conv(x, standardised(kernel).astype(x.dtype), self.stride, (self.kernel - 1) // 2)


def standardised(kernel: jax.Array) -> jax.Array:
    """[k, k, C, F] with mean 0 and variance 1 over all but the last axis."""
    return (kernel - kernel.mean((0, 1, 2))) * jax.lax.rsqrt(kernel.var((0, 1, 2)) + LEAST_VARIANCE)


PREFIX, KERNEL = "resnet/", "standardized_conv2d/kernel"
LAYERS = {
    f"root_block/{KERNEL}": "stem_conv/kernel",
    **{"group_norm/gamma": "stage4_norm/scale", "group_norm/beta": "stage4_norm/bias"},
    **{"head/conv2d/kernel": "head/kernel", "head/conv2d/bias": "head/bias"},
}
WITHIN = {f"a/proj/{KERNEL}": "shortcut_conv/kernel"}
for number, letter in enumerate("abc", start=1):
    WITHIN |= {f"{letter}/{KERNEL}": f"conv{number}/kernel"}
    WITHIN |= {f"{letter}/group_norm/gamma": f"norm{number}/scale", f"{letter}/group_norm/beta": f"norm{number}/bias"}


def from_npz(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, {}), float32, of the authors' files: resnet/root_block/standardized_conv2d/kernel, resnet/block1/unit01/a/group_norm/gamma.

    Raises ValueError for a name that no such network has.
    """
    params: PyTree = {}
    for name, array in state.items():
        bare = name.removeprefix(PREFIX)
        unit = re.fullmatch(r"block([1-4])/unit(\d+)/(.+)", bare)
        path = WITHIN.get(unit[3]) if unit else LAYERS.get(bare)
        if path is None or not name.startswith(PREFIX):
            raise ValueError(f"weights: {name!r} is no array of a BiT")
        *layers, leaf = ([f"stage{unit[1]}_block{int(unit[2]) - 1}"] if unit else []) + path.split("/")
        tree = params
        for layer in layers:
            tree = tree.setdefault(layer, {})
        array = np.asarray(array, np.float32)
        tree[leaf] = array[0, 0] if layers == ["head"] and array.ndim == 4 else array
    return params, {}
