"""The "Simple Conv" of ReBias: four blocks of convolution (16, 32, 64, 128), BatchNorm, ReLU; mean over the map; one linear layer.

kernel 7 is the main network, kernel 1 the one that sees single pixels and so is biased towards colour by design.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax

from jaxbed.models.capabilities import CUT, MAPS
from jaxbed.models.conv import Conv
from jaxbed.models.features import pooled
from jaxbed.models.linear import Linear
from jaxbed.models.norm import BatchNorm
from jaxbed.values import Count, Dtype


@dataclasses.dataclass
class Config:
    kernel: Count = 7  # odd
    widths: tuple[Count, ...] = (16, 32, 64, 128)
    stride: Count = 1  # of the first block: with 2 and kernel 1 it sees every second row and column
    dtype: Dtype = "float32"  # of activations; parameters and statistics stay float32
    offers: ClassVar[frozenset[str]] = frozenset({CUT, MAPS})

    @property
    def parts(self) -> int:
        """The blocks, and the head."""
        return len(self.widths) + 1

    def make(self, classes: int, first: int = 0, last: int | None = None) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        if self.kernel % 2 == 0:
            raise ValueError(f"net.kernel = {self.kernel} has no centre: take an odd one, 7 (main network) or 1 (biased by design)")
        last = self.parts if last is None else last
        return SimpleConv(self.kernel, tuple(self.widths), self.stride, self.dtype, classes, first, last)


class SimpleConv(nn.Module):
    kernel: int
    widths: tuple[int, ...]
    stride: int
    dtype: str
    classes: int
    first: int
    last: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # [B, H, W, C] -> maps, or [B, classes] with the head
        x = x.astype(self.dtype)
        for i, width in enumerate(self.widths):
            if self.first <= i < self.last:
                x = Conv(width, self.kernel, 1 if i else self.stride, name=f"conv{i}")(x)
                x = nn.relu(BatchNorm(name=f"norm{i}")(x, train))
        if self.last <= len(self.widths):
            return x
        return Linear(self.classes, name="head")(pooled(x))
