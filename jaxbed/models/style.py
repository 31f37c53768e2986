"""Style as the spatial mean and variance of each channel, and the operations that exchange it between images.

All work on x [N, H, W, C] at once. Variances are unbiased (divided by H·W - 1), as PyTorch's default and so as all published
code of this family; with jnp's default the golden vectors differ. Statistics are float32 whatever x is.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.models.conv import Conv

EPSILON = 1e-5  # added to variances


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and unbiased variance over the map, each [N, 1, 1, C] float32."""
    wide = x.astype(jnp.float32)
    return wide.mean((1, 2), keepdims=True), wide.var((1, 2), keepdims=True, ddof=1)


def adain(content: jax.Array, style: jax.Array) -> jax.Array:
    """AdaIN (Huang and Belongie, 2017): the content's map with the style's mean and deviation."""
    mean, var = moments(content)
    style_mean, style_var = moments(style)
    out = jnp.sqrt(style_var + EPSILON) * (content - mean) / jnp.sqrt(var + EPSILON) + style_mean
    return out.astype(content.dtype)


def swap_statistics(x: jax.Array, order: jax.Array) -> jax.Array:
    """pAdaIN's swap: image i gets the statistics of image order[i], which carry no gradient.

    The content's deviation has epsilon twice, inside the root and outside, as in the authors' code. Only the [N, C] statistics
    are permuted, never the maps.
    """
    mean, var = moments(x)
    deviation = jnp.sqrt(var + EPSILON)
    style_mean, style_deviation = jax.lax.stop_gradient((mean[order], deviation[order]))
    return (style_deviation * (x - mean) / (deviation + EPSILON) + style_mean).astype(x.dtype)


def randomize_style(x: jax.Array, order: jax.Array, weight: jax.Array) -> jax.Array:
    """SagNet's style randomisation: statistics weight·own + (1 - weight)·those of image order[i]; weight [N].

    Variances are interpolated (code), not deviations (paper). Gradients reach the statistics of both images.
    """
    mean, var = moments(x)
    weight = weight[:, None, None, None]
    new_mean = weight * mean + (1 - weight) * mean[order]
    new_var = weight * var + (1 - weight) * var[order]
    return (jnp.sqrt(new_var + EPSILON) * (x - mean) / jnp.sqrt(var + EPSILON) + new_mean).astype(x.dtype)


def randomize_content(x: jax.Array, order: jax.Array) -> jax.Array:
    """SagNet's content randomisation: own statistics on the normalised map of image order[i], which carries no gradient."""
    mean, var = moments(x)
    content = jax.lax.stop_gradient(((x - mean) / jnp.sqrt(var + EPSILON))[order])
    return (jnp.sqrt(var + EPSILON) * content + mean).astype(x.dtype)


class PermutedAdaIN(nn.Module):
    """With probability p, one coin for the batch, gives every image the statistics of another; draws from stream `padain`.

    The identity where that stream is absent (evaluation) and on 1x1 maps, whose variance does not exist.
    """

    p: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.p == 0 or not self.has_rng("padain") or x.shape[1] * x.shape[2] == 1:
            return x
        coin, permutation = jax.random.split(self.make_rng("padain"))
        order = jax.random.permutation(permutation, x.shape[0])
        return jnp.where(jax.random.bernoulli(coin, self.p), swap_statistics(x, order), x)


def permuted_conv(p: float):
    """The factory of convolutions that are each followed by PermutedAdaIN(p): for `resnet.Config.make(conv=...)`."""

    def make(features: int, kernel: int, stride: int, name: str):
        layer, swap = Conv(features, kernel, stride, name=name), PermutedAdaIN(p, name=f"{name}_padain")
        return lambda x: swap(layer(x))

    return make
