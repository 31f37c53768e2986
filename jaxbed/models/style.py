"""Style as the spatial mean and variance of each channel, and the operations that exchange it between images.

All work on x [N, H, W, C] at once. Variances are unbiased (divided by H·W - 1), as PyTorch's default and so as all published
code of this family; with jnp's default the golden vectors differ. Statistics are float32 whatever x is.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.models.norm import BatchNorm

PyTree = Any
EPSILON = 1e-5  # added to variances
SMALL_EPSILON = 1e-6  # the same in MixStyle and DSU


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
    """pAdaIN's swap: image i gets the statistics of image order[i], which carry no gradient."""
    mean, var = moments(x)
    factor, new_mean = swapped(mean, var, order)
    return (factor * (x - mean) + new_mean).astype(x.dtype)


def swapped(mean: jax.Array, var: jax.Array, order: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(factor, new mean) of pAdaIN's swap, from the images' statistics, all [N, 1, 1, C]: the maps themselves are not permuted.

    The content's deviation has epsilon twice, inside the root and outside, as in the authors' code.
    """
    deviation = jnp.sqrt(var + EPSILON)
    style_mean, style_deviation = jax.lax.stop_gradient((mean[order], deviation[order]))
    return style_deviation / (deviation + EPSILON), style_mean


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
    content = jax.lax.stop_gradient((x[order] - mean[order]) / jnp.sqrt(var[order] + EPSILON))  # gathered in x's own type
    return (jnp.sqrt(var + EPSILON) * content + mean).astype(x.dtype)


def mixed(mean: jax.Array, var: jax.Array, order: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """MixStyle's (factor, new mean): mean and deviation weight·own + (1 - weight)·those of image order[i]; weight [N].

    Written so that weight 1 gives (1, mean) to the last bit.
    """
    foreign, deviation = 1 - weight[:, None, None, None], jnp.sqrt(var + SMALL_EPSILON)
    return 1 + foreign * (deviation[order] - deviation) / deviation, mean + foreign * (mean[order] - mean)


def perturbed(mean: jax.Array, var: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """DSU's (factor, new mean): to mean and deviation is added noise [2, N, 1, 1, C] times their own spread over the batch.

    Noise 0 gives (1, mean) to the last bit.
    """
    deviation = jnp.sqrt(var + SMALL_EPSILON)
    spread_of_mean, spread = (jnp.sqrt(a.var(0, keepdims=True, ddof=1) + SMALL_EPSILON) for a in (mean, deviation))
    return 1 + noise[1] * spread / deviation, mean + noise[0] * spread_of_mean


def restyle(x: jax.Array, change: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]], detach: bool = False) -> jax.Array:
    """The maps (x - mean)·factor + new mean, where change(mean, unbiased variance) -> (factor, new mean), all [N, 1, 1, C].

    In two passes over x, one for its moments and one that is affine; (1, mean) is the identity to the last bit, gradient included.
    detach: statistics carry no gradient. Maps of one pixel, which have no variance, stay as they are.
    """
    pixels = x.shape[1] * x.shape[2]
    if pixels == 1:
        return x
    wide = x.astype(jnp.float32)
    source = jax.lax.stop_gradient(wide) if detach else wide
    mean = source.mean((1, 2), keepdims=True)
    spread = jnp.maximum((source * source).mean((1, 2), keepdims=True) - mean * mean, 0.0)
    factor, new_mean = change(mean, spread * (pixels / (pixels - 1)))
    slope, offset = jax.lax.optimization_barrier((factor, new_mean - factor * mean))  # or every pixel would compute them again
    return (wide * slope + offset).astype(x.dtype)


class Restyle(nn.Module):
    """`restyle` in training as a layer between parts, for make(after=...) of a network."""

    change: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    detach: bool = False

    def __call__(self, x: jax.Array, entered: jax.Array, train: bool) -> jax.Array:
        return restyle(x, self.change, self.detach) if train else x


class PermutedAdaIN(nn.Module):
    """Every image gets the statistics of another, or nothing happens, as the variable `draw` of collection `swaps` says.

    That variable is (permutation [N], whether to swap), see `draw_swaps`; where it is absent this is the identity.
    For `norm.BatchNorm(restyle=...)`: (mean, variance) -> (factor, new mean), all [N, 1, 1, C].
    """

    @nn.compact
    def __call__(self, mean: jax.Array, var: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.is_initializing():
            self.variable("swaps", "draw", lambda: (jnp.arange(mean.shape[0]), jnp.array(False)))
        if not self.has_variable("swaps", "draw"):
            return jnp.ones_like(mean), mean
        draw: tuple[jax.Array, jax.Array] = self.get_variable("swaps", "draw")
        order, swap = draw
        factor, new_mean = swapped(mean, var, order)
        return jnp.where(swap, factor, 1.0), jnp.where(swap, new_mean, mean)


def draw_swaps(net: nn.Module, p: float, image: jax.Array, key: jax.Array) -> PyTree:
    """Collection `swaps` of a network for one batch: at every site a permutation of its own and a coin that shows heads with probability p.

    All sites at once: dozens of small draws, one after another, show in the time of a step.
    """
    sites = jax.eval_shape(lambda: net.init(key, image, train=True)).get("swaps", {})
    pairs, structure = jax.tree.flatten(sites, is_leaf=lambda x: isinstance(x, tuple))
    if not pairs:  # no map has more than one pixel
        return {}
    order_key, coin_key = jax.random.split(key)
    orders = jax.vmap(lambda k: jax.random.permutation(k, image.shape[0]))(jax.random.split(order_key, len(pairs)))
    return jax.tree.unflatten(structure, zip(orders, jax.random.bernoulli(coin_key, p, (len(pairs),)), strict=True))


def permuted_norm(name: str) -> nn.Module:
    """A BatchNorm that is preceded by PermutedAdaIN, but for those of shortcuts and gates: for make(norm=...) of a network."""
    return BatchNorm(None if name.startswith(("shortcut", "spatial")) else PermutedAdaIN(), name=name)
