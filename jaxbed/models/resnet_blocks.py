"""Residual blocks: He et al. (2016), grouped (ResNeXt, Xie et al., 2017), gated (`gates`), and hierarchical (Res2Net, Gao et al., 2019).

A block's 3 x 3 convolution may be split into `scales` parts of the channels. Each part but the last has its own convolution, which sees
its part and the output of the part before; the last is passed on. The first block of a stage leaves the outputs out, and takes the means
of 3 x 3 windows of the last part. Written from the paper, and from the shapes of its published weights.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.models.conv import Conv
from jaxbed.models.gates import GATES
from jaxbed.models.pool import mean_pool

GROUP_WIDTH = 64  # channels per group at which a bottleneck is as wide as its block, if it has one group


@dataclasses.dataclass(frozen=True)
class Kind:
    """What all blocks of a network have in common."""

    conv: Callable
    norm: Callable
    groups: int = 1
    group_width: int = GROUP_WIDTH
    scales: int = 1
    gate: str = "none"
    early_stride: bool = False  # in the first 1 x 1 convolution of a bottleneck, not in its 3 x 3
    mean_shortcut: bool = False  # pools before the convolution of a shortcut, which then has no stride

    def part_width(self, features: int) -> int:
        """Channels of one scale between the 1 x 1 convolutions of a bottleneck."""
        return features * self.group_width // GROUP_WIDTH * self.groups


class Basic(nn.Module):
    features: int
    stride: int
    kind: Kind

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        conv, norm = self.kind.conv, self.kind.norm
        y = conv(self.features, 3, self.stride, name="conv1")(x)
        y = nn.relu(norm(name="norm1")(y, train))
        y = conv(self.features, 3, 1, name="conv2")(y)
        y = norm(name="norm2")(y, train)
        return _add(self.kind, x, y, self.stride, train)


class Bottleneck(nn.Module):
    features: int
    stride: int
    kind: Kind
    first: bool  # of its stage

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        kind = self.kind
        strides = (self.stride, 1) if kind.early_stride else (1, self.stride)
        width = kind.part_width(self.features)
        y = kind.conv(width * kind.scales, 1, strides[0], name="conv1")(x)
        y = nn.relu(kind.norm(name="norm1")(y, train))
        y = self.middle(y, width, strides[1], train)
        y = kind.conv(4 * self.features, 1, 1, name="conv3")(y)
        y = kind.norm(name="norm3")(y, train)
        return _add(kind, x, y, self.stride, train)

    def middle(self, x: jax.Array, width: int, stride: int, train: bool) -> jax.Array:
        kind = self.kind
        conv = functools.partial(kind.conv, groups=kind.groups) if kind.groups > 1 else kind.conv
        if kind.scales == 1:
            return nn.relu(kind.norm(name="norm2")(conv(width, 3, stride, name="conv2")(x), train))
        *parts, last = jnp.split(x, kind.scales, axis=-1)
        outputs: list[jax.Array] = []
        for i, part in enumerate(parts):
            seen = part if self.first or not outputs else part + outputs[-1]
            y = conv(width, 3, stride, name=f"conv2_{i}")(seen)
            outputs.append(nn.relu(kind.norm(name=f"norm2_{i}")(y, train)))
        return jnp.concatenate([*outputs, mean_pool(last, 3, stride) if self.first else last], axis=-1)


def _add(kind: Kind, x: jax.Array, y: jax.Array, stride: int, train: bool) -> jax.Array:
    """ReLU of the gated branch y plus the shortcut from x."""
    if kind.gate in GATES:
        gate: Any = GATES[kind.gate](kind.norm, name="gate")
        y = gate(y, train)
    if stride > 1 or x.shape[-1] != y.shape[-1]:
        if kind.mean_shortcut:
            x, stride = mean_pool(x, stride, stride), 1
        x = Conv(y.shape[-1], 1, stride, name="shortcut_conv")(x)
        x = kind.norm(name="shortcut_norm")(x, train)
    return nn.relu(y + x)
