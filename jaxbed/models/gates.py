"""Attention that scales a residual branch before it is added: squeeze-and-excitation (Hu et al., 2018).

It squeezes C channels to C/16, rounded to a multiple of 8 as timm does; at published widths nothing is rounded.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.models.linear import Linear
from jaxbed.models.norm import BatchNorm

REDUCTION, MULTIPLE = 16, 8


def squeezed(channels: int) -> int:
    """Channels between the two layers of a gate."""
    return max(MULTIPLE, (channels // REDUCTION + MULTIPLE // 2) // MULTIPLE * MULTIPLE)


class SqueezeExcitation(nn.Module):
    """x [N, H, W, C] times sigmoid(expand(ReLU(squeeze(mean over the map)))), channel by channel."""

    norm: Callable = BatchNorm  # not used: all gates are made alike

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        hidden = nn.relu(Linear(squeezed(x.shape[-1]), name="squeeze")(x.astype(jnp.float32).mean((1, 2))))
        gate = nn.sigmoid(Linear(x.shape[-1], name="expand")(hidden))
        return x * gate.astype(x.dtype)[:, None, None]


GATES: dict[str, Callable] = {"se": SqueezeExcitation}
