"""Attention that scales a residual branch before it is added: squeeze-and-excitation (Hu et al., 2018) and CBAM (Woo et al., 2018).

Both squeeze C channels to C/16, rounded to a multiple of 8 as timm does; at published widths nothing is rounded. Differs from CBAM's
published code in training alone, where that moves the running statistics of the spatial gate by 0.01.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.models.conv import Conv
from jaxbed.models.linear import Linear
from jaxbed.models.norm import BatchNorm

REDUCTION, MULTIPLE = 16, 8
WINDOW = 7  # side of what CBAM's spatial gate sees


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


class ConvolutionalBlockAttention(nn.Module):
    """x [N, H, W, C] times a gate for each channel, then times one for each pixel.

    The channels' gates are the sigmoid of the sum of one MLP on the means and on the maxima of a map; the pixels' are that of a normalised
    7 x 7 convolution over the maximum and the mean of the channels.
    """

    norm: Callable = BatchNorm

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        wide = x.astype(jnp.float32)
        vectors = jnp.stack([wide.mean((1, 2)), wide.max((1, 2))])
        hidden = nn.relu(Linear(squeezed(x.shape[-1]), name="channel_squeeze")(vectors))
        gate = nn.sigmoid(Linear(x.shape[-1], name="channel_expand")(hidden).sum(0))
        x = x * gate.astype(x.dtype)[:, None, None]
        seen = jnp.concatenate([x.max(-1, keepdims=True), x.mean(-1, keepdims=True)], axis=-1)
        scale = self.norm(name="spatial_norm")(Conv(1, WINDOW, name="spatial_conv")(seen), train)
        return x * nn.sigmoid(scale)


GATES: dict[str, Callable] = {"se": SqueezeExcitation, "cbam": ConvolutionalBlockAttention}
