"""Uniform random numbers for images on a shared canvas: each is a hash of its image's seed and its position in the image.

An image then gets the same numbers whatever the canvas and whichever other images are in the batch, whereas an array drawn from a key
depends on its whole shape. The hash is the 32-bit mixer "lowbias32" of Wellons' Hash Function Prospector (2018), in its later version,
applied once to the seed and once per axis.
"""

import jax
import jax.numpy as jnp
import numpy as np

STEP = 0x9E3779B9  # 2^32 / golden ratio: keeps the state off 0, which the mixer maps to itself
BITS = 24  # all that a float32 below 1 holds


def uniform(seeds: jax.Array | np.ndarray, stream: int, shape: tuple[int, ...]) -> jax.Array:
    """float32 multiples of 2^-24 in [0, 1), of shape [N, H, W, C]. seeds [N] uint32; streams are independent draws from one seed."""
    state = _mixed(jnp.asarray(seeds, jnp.uint32) + jnp.uint32(STEP * (stream + 1) % 2**32)).reshape(-1, 1, 1, 1)
    for axis, side in enumerate(shape[1:], 1):
        position = jnp.arange(side, dtype=jnp.uint32).reshape([side if axis == other else 1 for other in range(4)])
        state = _mixed(state + jnp.uint32(STEP) + position)
    return (state >> (32 - BITS)).astype(jnp.float32) * jnp.float32(2**-BITS)


def _mixed(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)
