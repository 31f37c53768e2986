"""BatchNorm as PyTorch's: eps 1e-5, running statistics moved by 0.1 towards the batch's, running variance from the *unbiased* one.

Flax's own stores the biased variance, which shows at small batches. The batch is the global one: devices are not seen here.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

EPSILON, MOMENTUM = 1e-5, 0.9

PyTree = Any


def apart(stats: PyTree, groups: int) -> PyTree:
    """Running statistics [C] of a network for each group of a batch: [groups, C]. They move apart until they come `together`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (groups, *x.shape)), stats) if groups > 1 else stats


def together(stats: PyTree, groups: int) -> PyTree:
    """The means [C] of what `apart` made: moving and averaging commute."""
    return jax.tree.map(lambda x: x.mean(0), stats) if groups > 1 else stats


def _joined(moment: jax.Array, axes: int) -> jax.Array:
    """[C] or [groups, C] with at most so many axes."""
    return moment.mean(0) if moment.ndim > axes else moment


class BatchNorm(nn.Module):
    """Normalises over all axes but the last. Moments in float32 in one pass, output in the input's type.

    restyle, a module, may change every image's statistics before the normalisation, in training: (mean, unbiased variance), each
    [N, 1, 1, C] over the map, -> (factor, mean) of the maps (x - old mean) · factor + mean, which are then normalised. They are never
    formed: the batch's moments follow from the images', and both maps are affine, so that it costs what BatchNorm alone costs.

    groups > 1 cuts the batch into so many parts, each normalised with its own moments (ghost batch normalisation, Hoffer et al., 2017);
    running statistics take the mean of theirs. Devices that share a batch need not wait for each other where each holds whole groups:
    not even for running statistics while each group has its own (`apart`).
    """

    restyle: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]] | None = None
    epsilon: float = EPSILON  # added to variances
    groups: int = 1

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        features = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        bias = self.param("bias", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))
        wide, restyled = x.astype(jnp.float32), False
        if train:
            pixels, axes = x[0].size // features, tuple(range(x.ndim - 1))
            if self.groups > 1:
                if len(x) % self.groups:
                    raise ValueError(f"net.norm_groups = {self.groups}: a batch of {len(x)} cannot be cut into so many equal groups")
                wide = wide.reshape(self.groups, len(x) // self.groups, *x.shape[1:])
                axes = tuple(range(1, x.ndim))
            if self.restyle is not None and pixels > 1:  # a single pixel has no variance
                restyled = True
                centre = wide.mean((1, 2), keepdims=True)
                spread = jnp.maximum((wide * wide).mean((1, 2), keepdims=True) - centre * centre, 0.0)
                factor, new_centre = self.restyle(centre, spread * (pixels / (pixels - 1)))
                mean, square = new_centre.mean(axes), (factor * factor * spread + new_centre * new_centre).mean(axes)
            else:
                mean, square = wide.mean(axes, keepdims=self.groups > 1), (wide * wide).mean(axes, keepdims=self.groups > 1)
            var = jnp.maximum(square - mean * mean, 0.0)
            if not self.is_initializing():
                count = x.size // features // self.groups
                unbiased = var * (count / max(count - 1, 1))
                for running, moment in ((running_mean, mean), (running_var, unbiased)):
                    if self.groups > 1:
                        moment = moment.reshape(-1, features)
                    running.value = MOMENTUM * running.value + (1 - MOMENTUM) * _joined(moment, running.value.ndim)
        else:
            mean, var = (_joined(running.value, 1) for running in (running_mean, running_var))
        # As slope and offset, and not as (x - mean) · slope + bias: its gradient takes two sums over the map, not three
        slope = jax.lax.rsqrt(var + self.epsilon) * scale
        offset = bias - mean * slope
        if restyled:
            slope, offset = factor * slope, (new_centre - centre * factor) * slope + offset
            slope, offset = jax.lax.optimization_barrier((slope, offset))  # or every pixel would compute them again
        return (wide * slope + offset).astype(x.dtype).reshape(x.shape)
