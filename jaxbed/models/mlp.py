"""The multi-layer perceptron of the Colored MNIST experiments: flatten, then linear layers with ReLU between."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax

from jaxbed.models.capabilities import CUT
from jaxbed.models.linear import Linear
from jaxbed.values import Count, Dtype


@dataclasses.dataclass
class Config:
    """widths: hidden layers. (100, 100, 16) is DisEnt's and BiasEnsemble's net, (100, 100, 100) LfF's."""

    widths: tuple[Count, ...] = (100, 100, 16)
    dtype: Dtype = "float32"  # of the hidden layers; parameters stay float32
    offers: ClassVar[frozenset[str]] = frozenset({CUT})

    @property
    def parts(self) -> int:
        """The hidden layers, and the head."""
        return len(self.widths) + 1

    def make(self, classes: int, first: int = 0, last: int | None = None) -> nn.Module:
        """The parts [first, last) of the network; with the head among them its output is logits [B, classes]."""
        return MLP(tuple(self.widths), self.dtype, classes, first, self.parts if last is None else last)


class MLP(nn.Module):
    widths: tuple[int, ...]
    dtype: str
    classes: int
    first: int
    last: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # [B, H, W, C] or [B, F] -> [B, width], or [B, classes] with the head
        x = x.reshape(x.shape[0], -1)
        for i, width in enumerate(self.widths):
            if self.first <= i < self.last:
                x = nn.relu(Linear(width, self.dtype, name=f"hidden{i}")(x))
        if self.last <= len(self.widths):
            return x
        return Linear(self.classes, name="head")(x)
