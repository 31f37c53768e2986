"""Images of different sizes in one batch: each lies in the top left corner of a canvas, and what lies outside it is kept at 0.

A convolution that pads with zeros then sees at an image's border what it would see if the image were alone, provided that `cut` follows
whatever may write outside it: a bias, an upsampling, noise. Flips and reflections need the true border too. All sizes are in pixels of the
map at hand, so a layer that halves or doubles a map halves or doubles the sizes with it.
"""

import jax
import jax.numpy as jnp

HEIGHT, WIDTH = 1, 2  # axes of a map [N, H, W, C], and columns 0 and 1 of sizes


def cut(x: jax.Array, sizes_px: jax.Array) -> jax.Array:
    """x [N, H, W, C] with zeros outside each image; sizes_px [N, 2]: heights and widths."""
    rows = jnp.arange(x.shape[HEIGHT])[None, :, None, None] < sizes_px[:, 0, None, None, None]
    columns = jnp.arange(x.shape[WIDTH])[None, None, :, None] < sizes_px[:, 1, None, None, None]
    return jnp.where(rows & columns, x, 0)


def flip(x: jax.Array, sizes_px: jax.Array, axis: int) -> jax.Array:
    """Each image of x [N, H, W, C] mirrored along HEIGHT or WIDTH about its own middle; outside an image, x as it is."""
    position = jnp.arange(x.shape[axis])[None]
    side = sizes_px[:, axis - 1, None]
    return _taken(x, jnp.where(position < side, side - 1 - position, position), axis)


def reflect(x: jax.Array, sizes_px: jax.Array, pad_px: int) -> jax.Array:
    """[N, H + 2·pad, W + 2·pad, C]: each image padded by reflection at its outermost pixels, which are not repeated; zeros outside.

    An image of n pixels can be padded by n - 1; the canvas holds it at [pad, pad + n).
    """
    for axis in (HEIGHT, WIDTH):
        side = sizes_px[:, axis - 1, None]
        position = jnp.abs(jnp.arange(x.shape[axis] + 2 * pad_px)[None] - pad_px)
        x = _taken(x, jnp.clip(jnp.minimum(position, 2 * (side - 1) - position), 0), axis)
    return cut(x, sizes_px + 2 * pad_px)


def _taken(x: jax.Array, positions: jax.Array, axis: int) -> jax.Array:
    shape = [len(x), 1, 1, 1]
    shape[axis] = positions.shape[1]
    return jnp.take_along_axis(x, positions.reshape(shape), axis, mode="clip")
