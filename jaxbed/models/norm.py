"""BatchNorm as PyTorch's: eps 1e-5, running statistics moved by 0.1 towards the batch's, running variance from the *unbiased* one.

Flax's own stores the biased variance, which shows at small batches. The batch is the global one: devices are not seen here.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

EPSILON, MOMENTUM = 1e-5, 0.9


class BatchNorm(nn.Module):
    """Normalises over all axes but the last. Moments in float32 in one pass, output in the input's type.

    restyle, a module, may change every image's statistics before the normalisation, in training: (mean, unbiased variance), each
    [N, 1, 1, C] over the map, -> (factor, mean) of the maps (x - old mean) · factor + mean, which are then normalised. They are never
    formed: the batch's moments follow from the images', and both maps are affine, so that it costs what BatchNorm alone costs.
    """

    restyle: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]] | None = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        features = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        bias = self.param("bias", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))
        wide = x.astype(jnp.float32)
        if not train:
            return _affine(wide, running_mean.value, running_var.value, scale, bias).astype(x.dtype)
        pixels = x[0].size // features
        restyled = self.restyle is not None and pixels > 1  # a single pixel has no variance
        if restyled:
            centre = wide.mean((1, 2), keepdims=True)
            spread = jnp.maximum((wide * wide).mean((1, 2), keepdims=True) - centre * centre, 0.0)
            factor, new_centre = self.restyle(centre, spread * (pixels / (pixels - 1)))
            mean = new_centre.mean((0, 1, 2))
            square = (factor * factor * spread + new_centre * new_centre).mean((0, 1, 2))
        else:
            axes = tuple(range(x.ndim - 1))
            mean, square = wide.mean(axes), (wide * wide).mean(axes)
        var = jnp.maximum(square - mean * mean, 0.0)
        if not self.is_initializing():
            count = x.size // features
            unbiased = var * (count / max(count - 1, 1))
            running_mean.value = MOMENTUM * running_mean.value + (1 - MOMENTUM) * mean
            running_var.value = MOMENTUM * running_var.value + (1 - MOMENTUM) * unbiased
        if restyled:
            out = (wide - centre) * (factor * _inverse(var, scale)) + _affine(new_centre, mean, var, scale, bias)
        else:
            out = _affine(wide, mean, var, scale, bias)
        return out.astype(x.dtype)


def _inverse(var: jax.Array, scale: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(var + EPSILON) * scale


def _affine(x: jax.Array, mean: jax.Array, var: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return (x - mean) * _inverse(var, scale) + bias
