"""Random numbers that belong to a seed and a position, so that neither the size of a canvas nor the rest of a batch changes them.

They are a hash of integers rather than draws of jax.random: one more axis is one more round of the hash, and no version or setting of JAX
changes them. The hash is a 32-bit mixer of multiplications and shifts, after Wellons' Hash Function Prospector (2018).
"""

import jax
import jax.numpy as jnp
import numpy as np

STEP = np.uint32(0x9E3779B9)  # 2^32 over the golden ratio: multiples of it lie far apart


def uniform(seeds: jax.Array | np.ndarray, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """[N, *shape] float32, uniform in [0, 1) in steps of 2^-24; seeds [N] uint32.

    The number at (n, i, j, ...) depends on seeds[n], stream, i, j, ... alone; streams are independent draws from one seed.
    """
    bits = _mixed(jnp.asarray(seeds, jnp.uint32) + jnp.uint32(int(STEP) * stream % 2**32))
    for side in shape:
        bits = _mixed(bits[..., None] + STEP * jnp.arange(1, side + 1, dtype=jnp.uint32))
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def _mixed(bits: jax.Array) -> jax.Array:
    """A bijection of uint32 after which every bit depends on every bit: multiplications carry up, shifts carry down."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> shift)) * np.uint32(factor)
    return bits ^ (bits >> 16)
