"""BatchNorm as PyTorch's: eps 1e-5, running statistics moved by 0.1 towards the batch's, running variance from the *unbiased* one.

Flax's own stores the biased variance, which shows at small batches. The batch is the global one: devices are not seen here.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

EPSILON, MOMENTUM = 1e-5, 0.9


class BatchNorm(nn.Module):
    """Normalises over all axes but the last. Moments in float32 in one pass, output in the input's type."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        features = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        bias = self.param("bias", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))
        wide = x.astype(jnp.float32)
        if train:
            axes = tuple(range(x.ndim - 1))
            mean = wide.mean(axes)
            var = jnp.maximum((wide * wide).mean(axes) - mean * mean, 0.0)
            if not self.is_initializing():
                count = x.size // features
                unbiased = var * (count / max(count - 1, 1))
                running_mean.value = MOMENTUM * running_mean.value + (1 - MOMENTUM) * mean
                running_var.value = MOMENTUM * running_var.value + (1 - MOMENTUM) * unbiased
        else:
            mean, var = running_mean.value, running_var.value
        return ((wide - mean) * (jax.lax.rsqrt(var + EPSILON) * scale) + bias).astype(x.dtype)
