"""Dual Path Networks (Chen et al., 2017): maps whose first channels are added to, as in a ResNet, and whose others grow, as in a DenseNet.

Blocks normalise before each convolution; BatchNorm has eps 1e-3. Parts: 0 the stem, 1 to 4 the stages, the last with the network's last
normalisation, 5 the head. The last normalisation is followed by a ReLU; timm before 0.9 had an ELU there.
"""

import dataclasses
import re
from typing import Any, ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.models.capabilities import AFTER, CUT, MAPS, After
from jaxbed.models.conv import Conv
from jaxbed.models.features import pooled
from jaxbed.models.linear import Linear
from jaxbed.models.norm import BatchNorm
from jaxbed.models.pool import max_pool
from jaxbed.models.staged import PARTS, Staged
from jaxbed.values import Dtype

PyTree = Any
EPSILON = 1e-3  # of BatchNorm


class Size(NamedTuple):
    stem: int  # channels
    kernel: int  # of the stem
    inner: int  # channels between the 1x1 convolutions of the first stage; each stage has twice those of the one before
    groups: int  # of the 3x3 convolution
    added: int  # channels of the first stage that are added to; twice as many in each next stage
    blocks: tuple[int, ...]
    growth: tuple[int, ...]  # channels that each block of a stage appends


SIZES = {
    68: Size(10, 3, 128, 32, 64, (3, 4, 12, 3), (16, 32, 32, 64)),
    98: Size(96, 7, 160, 40, 256, (3, 6, 20, 3), (16, 32, 32, 128)),
}


@dataclasses.dataclass
class Config:
    size: Literal[68, 98] = 68
    last_activation: Literal["relu", "elu"] = "relu"  # relu: pretrainedmodels, timm; elu: timm before 0.9
    dtype: Dtype = "float32"  # of activations; parameters and statistics stay float32
    parts: ClassVar[int] = PARTS
    offers: ClassVar[frozenset[str]] = frozenset({CUT, MAPS, AFTER})

    def make(self, classes: int, after: After = lambda part: None, first: int = 0, last: int = PARTS) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        return DualPathNetwork(classes, self.dtype, after, first, last, SIZES[self.size], self.last_activation)


class DualPathNetwork(Staged):
    size: Size
    last_activation: str

    def part(self, number: int, x: jax.Array, train: bool) -> jax.Array:
        if number > 0:
            return self.stage(number, x, train)
        x = Conv(self.size.stem, self.size.kernel, 2, name="stem_conv")(x)
        return max_pool(nn.relu(BatchNorm(epsilon=EPSILON, name="stem_norm")(x, train)))

    def head(self, x: jax.Array, train: bool) -> jax.Array:
        return Linear(self.classes, name="head")(pooled(x))

    def stage(self, stage: int, x: jax.Array, train: bool) -> jax.Array:
        wider = 2 ** (stage - 1)
        added, inner, growth = wider * self.size.added, wider * self.size.inner, self.size.growth[stage - 1]
        for i in range(self.size.blocks[stage - 1]):
            stride = 2 if stage > 1 and i == 0 else 1
            x = Block(added, inner, growth, self.size.groups, stride, i == 0, name=f"stage{stage}_block{i}")(x, train)
        if stage < PARTS - 2:
            return x
        x = BatchNorm(epsilon=EPSILON, name=f"stage{stage}_norm")(x, train)
        return nn.elu(x) if self.last_activation == "elu" else nn.relu(x)


class Block(nn.Module):
    """[N, H, W, C] -> [N, H/stride, W/stride, ...]: the first `added` channels are added to, and `growth` channels are appended.

    The first block of a stage brings its input to added + 2 · growth channels before; its input has any number.
    """

    added: int
    inner: int
    growth: int
    groups: int
    stride: int
    first: bool  # of its stage

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        def layer(name: str, x: jax.Array, features: int, kernel: int, stride: int = 1, groups: int = 1) -> jax.Array:
            x = nn.relu(BatchNorm(epsilon=EPSILON, name=f"norm{name}")(x, train))
            return Conv(features, kernel, stride, groups, name=f"conv{name}")(x)

        y = layer("1", x, self.inner, 1)
        y = layer("2", y, self.inner, 3, self.stride, self.groups)
        y = layer("3", y, self.added + self.growth, 1)
        if self.first:
            x = layer("_shortcut", x, self.added + 2 * self.growth, 1, self.stride)
        added = self.added
        return jnp.concatenate([x[..., :added] + y[..., :added], x[..., added:], y[..., added:]], axis=-1)


LAYERS = {"conv1_1.conv": "stem_conv", "conv1_1.bn": "stem_norm", "conv5_bn_ac.bn": "stage4_norm"}
HEADS = ("last_linear", "classifier")  # of pretrainedmodels, of timm
WITHIN = {"a": "1", "b": "2", "c": "3", "w_s1": "_shortcut", "w_s2": "_shortcut"}
NORM = {"weight": ("params", "scale"), "bias": ("params", "bias"), "running_mean": ("stats", "mean"), "running_var": ("stats", "var")}


def from_torch(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, batch statistics), float32, of pretrainedmodels' and timm's names: features.conv2_1.c1x1_a.conv, last_linear or classifier.

    Raises ValueError for a name that no such network has.
    """
    trees: dict[str, PyTree] = {"params": {}, "stats": {}}
    for name, array in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        kind, *layers, leaf = _place(name)
        tree = trees[kind]
        for layer in layers:
            tree = tree.setdefault(layer, {})
        array = np.asarray(array, np.float32)
        if layers == ["head"] and array.ndim == 4:
            array = array[:, :, 0, 0]
        tree[leaf] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return trees["params"], trees["stats"]


def _place(name: str) -> tuple[str, ...]:
    """params or stats, layers and leaf."""
    layer, _, leaf = name.rpartition(".")
    if layer in HEADS and leaf in ("weight", "bias"):
        return "params", "head", "kernel" if leaf == "weight" else "bias"
    bare = layer.removeprefix("features.")
    block = re.fullmatch(r"conv([2-5])_(\d+)\.c(?:1x1|3x3)_(a|b|c|w_s[12])\.(conv|bn)", bare)
    path: tuple[str, ...] = (LAYERS[bare],) if bare in LAYERS else ()
    if block:
        inner = ("norm" if block[4] == "bn" else "conv") + WITHIN[block[3]]
        path = (f"stage{int(block[1]) - 1}_block{int(block[2]) - 1}", inner)
    if path and bare != layer:
        if "norm" in path[-1] and leaf in NORM:
            kind, ours = NORM[leaf]
            return kind, *path, ours
        if "norm" not in path[-1] and leaf == "weight":
            return "params", *path, "kernel"
    raise ValueError(f"weights: {name!r} is no array of a Dual Path Network as pretrainedmodels and timm name them")
