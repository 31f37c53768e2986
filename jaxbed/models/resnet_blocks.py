"""Residual blocks: He et al. (2016), grouped (ResNeXt, Xie et al., 2017), and gated (`gates`)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from jaxbed.models.conv import Conv
from jaxbed.models.gates import GATES

GROUP_WIDTH = 64  # channels per group at which a bottleneck is as wide as its block, if it has one group


@dataclasses.dataclass(frozen=True)
class Kind:
    """What all blocks of a network have in common."""

    conv: Callable
    norm: Callable
    groups: int = 1
    group_width: int = GROUP_WIDTH
    gate: str = "none"
    early_stride: bool = False  # in the first 1 x 1 convolution of a bottleneck, not in its 3 x 3

    def part_width(self, features: int) -> int:
        """Channels between the 1 x 1 convolutions of a bottleneck."""
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

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        kind = self.kind
        strides = (self.stride, 1) if kind.early_stride else (1, self.stride)
        width = kind.part_width(self.features)
        y = kind.conv(width, 1, strides[0], name="conv1")(x)
        y = nn.relu(kind.norm(name="norm1")(y, train))
        conv = functools.partial(kind.conv, groups=kind.groups) if kind.groups > 1 else kind.conv
        y = conv(width, 3, strides[1], name="conv2")(y)
        y = nn.relu(kind.norm(name="norm2")(y, train))
        y = kind.conv(4 * self.features, 1, 1, name="conv3")(y)
        y = kind.norm(name="norm3")(y, train)
        return _add(kind, x, y, self.stride, train)


def _add(kind: Kind, x: jax.Array, y: jax.Array, stride: int, train: bool) -> jax.Array:
    """ReLU of the gated branch y plus the shortcut from x."""
    if kind.gate in GATES:
        gate: Any = GATES[kind.gate](kind.norm, name="gate")
        y = gate(y, train)
    if stride > 1 or x.shape[-1] != y.shape[-1]:
        x = Conv(y.shape[-1], 1, stride, name="shortcut_conv")(x)
        x = kind.norm(name="shortcut_norm")(x, train)
    return nn.relu(y + x)
