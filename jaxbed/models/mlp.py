"""The multi-layer perceptron of the Colored MNIST experiments: flatten, then linear layers with ReLU between."""

import dataclasses

import flax.linen as nn
import jax

from jaxbed.models.linear import Linear, allowed


@dataclasses.dataclass
class Config:
    """widths: hidden layers. (100, 100, 16) is DisEnt's and BiasEnsemble's net, (100, 100, 100) LfF's."""

    widths: tuple[int, ...] = (100, 100, 16)
    dtype: str = "float32"  # of the hidden layers: float32 | bfloat16; parameters stay float32

    def make(self, classes: int) -> nn.Module:
        return MLP(tuple(self.widths), allowed(self.dtype), classes)


class MLP(nn.Module):
    widths: tuple[int, ...]
    dtype: str
    classes: int

    @nn.compact
    def __call__(self, image: jax.Array, train: bool) -> jax.Array:  # [B, H, W, C] -> [B, classes]
        x = image.reshape(image.shape[0], -1)
        for i, width in enumerate(self.widths):
            x = nn.relu(Linear(width, self.dtype, name=f"hidden{i}")(x))
        return Linear(self.classes, name="head")(x)
