"""Corruptions of ImageNet-C that move pixels: see `imagenet_c`. For each change, `of_CHANGE` gives the arrays that a severity sets."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures.corruption import Axes, Index, constants, mirrored, reflected, smooth, truncated

SWEEPS = 3  # at most
SHARES = 24  # equally likely numbers, which all shifts divide into 2, 4, 6 or 8 offsets


def draw_offsets(key: jax.Array, height: int, width: int) -> jax.Array:
    """Integers [3, H, W, 2] from 0 to 23: where each pixel of each sweep of glass blur looks, to the right and down."""
    return jax.random.randint(key, (SWEEPS, height, width, 2), 0, SHARES, jnp.uint8)


def glass_blur(image: jax.Array, drawn: jax.Array, kernel: Axes, shift: jax.Array, sweeps: jax.Array, doublings: jax.Array) -> jax.Array:
    """Blurs, truncates to 8 bits, copies pixels from nearby in sweeps, and blurs again.

    The published sweep visits pixels row by row from the last to the first, without a border of `shift` px. It is meant to exchange each
    with a random pixel nearby, but only copies that pixel, its source. A source before the pixel is still as it was before the sweep. A
    source after the pixel already shows a source of its own, and so on: such pointers, followed twice as far in each doubling, lead to
    the origins of all pixels at once.
    """
    batch, height, width, _ = image.shape
    pixel = jnp.arange(height * width).reshape(height, width)
    row, column = pixel // width, pixel % width
    changes = (row > shift) & (row <= height - shift) & (column > shift) & (column <= width - shift)
    offset = drawn.astype(jnp.int32) * 2 * shift // SHARES - shift  # from -shift to shift - 1
    source = jnp.where(changes, pixel + offset[..., 1] * width + offset[..., 0], pixel).reshape(batch, -1, height * width)

    def sweep(number: jax.Array, origin: jax.Array) -> jax.Array:
        to = jax.lax.dynamic_index_in_dim(source, number, 1, keepdims=False)
        last = jax.lax.fori_loop(0, doublings, lambda _, last: _taken(last, last), jnp.maximum(to, pixel.ravel()))
        return _taken(origin, _taken(to, last))

    unmoved = jnp.broadcast_to(pixel.ravel(), (batch, height * width))
    origin = jax.lax.fori_loop(0, sweeps, sweep, unmoved)
    flat = truncated(kernel.of(image)).reshape(batch, height * width, -1)
    return kernel.of(_taken(flat, origin).reshape(image.shape))


def _taken(of: jax.Array, index: jax.Array) -> jax.Array:
    """Each of a batch [B, n, ...], at its indices [B, m]."""
    return jax.vmap(lambda one, index: one.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False))(of, index)


def of_glass_blur(severity: int, height: int, width: int) -> tuple[Axes, np.int32, np.int32, np.int32]:
    sigma, shift, sweeps = constants(((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)), severity)
    return smooth(height, width, sigma), np.int32(shift), np.int32(sweeps), np.int32(_doublings(shift, height, width))


def _doublings(shift: int, height: int, width: int) -> int:
    """How many doublings the longest possible chain of pointers needs.

    A pointer leads to the right in its row, or down and at most `shift` px to the left. In n rows of m pixels there are at most n - 1 steps
    down, which leave room for (n - 1) · shift steps to the right in addition to m - 1.
    """
    if shift == 1:  # all sources are before their pixel, or the pixel itself
        return 0
    rows, columns = (max(side - 2 * shift, 1) for side in (height, width))
    return math.ceil(math.log2(max((rows - 1) * (1 + shift) + columns - 1, 1)))


def draw_elastic(key: jax.Array, height: int, width: int) -> tuple[jax.Array, jax.Array]:
    """Uniform numbers from -1 to 1, of the corners [3, 2] of a triangle and of the pixels [H, W, 2], for columns and rows."""
    corners, pixels = jax.random.split(key)
    return jax.random.uniform(corners, (3, 2), minval=-1, maxval=1), jax.random.uniform(pixels, (height, width, 2), minval=-1, maxval=1)


def elastic_transform(
    image: jax.Array, drawn: tuple[jax.Array, jax.Array], jitter: jax.Array, strength: jax.Array, kernel: Axes
) -> jax.Array:
    """An affine map that moves each corner of a triangle by up to `jitter` px, and then smooth displacements of all pixels."""
    corners, pixels = drawn
    height, width = image.shape[1:3]
    row, column = jnp.indices((height, width), jnp.float32)
    arm = max(min(height, width) // 3, 1)
    across, down = (jitter * corners[..., i, None, None] for i in (0, 1))  # [B, 3, 1, 1]
    # a pixel, seen from the triangle's second corner, is a sum of multiples of its two sides, and its source the same sum of the sides
    # before they moved: those were (0, 2 arm) and (2 arm, 0), as (x, y)
    from_second = column - (width // 2 + arm) - across[:, 1], row - (height // 2 - arm) - down[:, 1]
    upright = across[:, 0] - across[:, 1], 2 * arm + down[:, 0] - down[:, 1]
    level = 2 * arm + across[:, 1] - across[:, 2], down[:, 1] - down[:, 2]
    area = _cross(upright, level)
    source_row = height // 2 - arm + 2 * arm * _cross(from_second, level) / area
    source_column = width // 2 + arm + 2 * arm * _cross(upright, from_second) / area
    mapped = _sampled(image, source_row, source_column, mirrored)
    displaced = strength * kernel.of(pixels)
    return _sampled(mapped, row + displaced[..., 1], column + displaced[..., 0], reflected)


def _cross(one: tuple[jax.Array, jax.Array], other: tuple[jax.Array, jax.Array]) -> jax.Array:
    return one[0] * other[1] - one[1] * other[0]


def _sampled(image: jax.Array, row: jax.Array, column: jax.Array, beyond: Callable[[Index, int], Index]) -> jax.Array:
    """Images [B, H, W, C] at coordinates [B, H, W], by bilinear interpolation."""
    batch, height, width, _ = image.shape
    top, left = jnp.floor(row), jnp.floor(column)
    lower, right = (row - top)[..., None], (column - left)[..., None]  # shares of the lower row and the right column
    flat = image.reshape(batch, height * width, -1)

    def pixel(down: int, across: int) -> jax.Array:
        index = beyond(top.astype(jnp.int32) + down, height) * width + beyond(left.astype(jnp.int32) + across, width)
        return _taken(flat, index.reshape(batch, -1)).reshape(image.shape)

    upper_row, lower_row = ((1 - right) * pixel(down, 0) + right * pixel(down, 1) for down in (0, 1))
    return (1 - lower) * upper_row + lower * lower_row


def of_elastic_transform(severity: int, height: int, width: int) -> tuple[np.float32, np.float32, Axes]:
    """The published constants are multiples of 244, meant as the side of 224 px: here shares of the shorter side, times 244 / 224."""
    side = min(height, width) * 244 / 224
    table = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    strength, sigma, jitter = constants(table, severity)
    return np.float32(side * jitter), np.float32(side * strength), smooth(height, width, side * sigma, truncate=3, beyond=reflected)
