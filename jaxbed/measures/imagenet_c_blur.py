"""Blurs and coarser pixels of ImageNet-C: see `imagenet_c`. For each change, `of_CHANGE` gives the arrays that a severity sets."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures.corruption import ROUNDING, Axes, constants, filter_matrix, gaussian, mirrored, product, smooth


def gaussian_blur(image: jax.Array, drawn: None, kernel: Axes) -> jax.Array:
    """Convolution with a Gaussian; beyond its border an image continues with its outermost pixels."""
    return kernel.of(image)


def of_gaussian_blur(severity: int, height: int, width: int) -> tuple[Axes]:
    return (smooth(height, width, constants((1, 2, 3, 4, 6), severity)),)


def defocus_blur(image: jax.Array, drawn: None, reach: jax.Array, kernels: jax.Array) -> jax.Array:
    """Correlation with a kernel that is symmetric about its middle row; beyond its border an image continues mirrored.

    kernels [11, W, W] hold, for each distance up to `reach` px, the kernel's row as a matrix. Rows that far above and below are added
    first: at most 11 matrix products instead of 441 shifts.
    """
    row = jnp.arange(image.shape[1])

    def add(distance: jax.Array, total: jax.Array) -> jax.Array:
        above, below = (jnp.take(image, mirrored(index, len(row)), 1, mode="clip") for index in (row - distance, row + distance))
        return total + product("jw,bhwc->bhjc", kernels[distance], above + below)

    return jax.lax.fori_loop(0, reach + 1, add, jnp.zeros_like(image))


def of_defocus_blur(severity: int, height: int, width: int) -> tuple[np.int32, np.ndarray]:
    kernel = disc(*constants(((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)), severity))
    reach = len(kernel) // 2
    kernel[reach] /= 2  # the middle row is above and below itself
    kernels = np.zeros((11, width, width), np.float32)
    for distance in range(reach + 1):
        kernels[distance] = filter_matrix(kernel[reach + distance], width, mirrored)
    return np.int32(reach), kernels


def disc(radius: int, sigma: float) -> np.ndarray:
    """A disc with a smooth border: [17, 17] for radii up to 8 px, else [21, 21].

    Discs of 8 and 10 px touch the edge of their grid, where smoothing mirrors them, as published: their kernels sum to 1.013 and 1.011, and
    images become brighter.
    """
    reach, window = (8, 1) if radius <= 8 else (10, 2)
    axis = np.arange(-reach, reach + 1)
    sharp = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(float)
    soften = filter_matrix(gaussian(window, sigma), len(axis), mirrored).astype(float)
    return soften @ (sharp / sharp.sum()) @ soften.T


class Streak(NamedTuple):
    """A one-sided Gaussian along a line, one tap for each pixel of length."""

    taps: np.int32 | jax.Array  # of the weights that count
    weights: np.ndarray | jax.Array  # [most taps of any severity], 0 after those


def streak(radius: int, sigma_px: float, most: int) -> Streak:
    """2 · radius + 1 of `most` taps count."""
    tap = np.arange(most)
    weights = np.exp(-(tap**2) / (2 * sigma_px**2)) * (tap <= 2 * radius)
    return Streak(np.int32(2 * radius + 1), (weights / weights.sum()).astype(np.float32))


def streaked(image: jax.Array, angle: jax.Array, along: Streak) -> jax.Array:
    """Images [B, H, W, C] blurred along lines at angles [B] (radians, from right to down), by whole pixels.

    Beyond its border an image continues with its outermost pixels.
    """
    height, width = image.shape[1:3]
    weights, reach = jnp.asarray(along.weights), len(along.weights) - 1
    padded = jnp.pad(image, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")

    def add(tap: jax.Array, total: jax.Array) -> jax.Array:
        down, right = (jnp.ceil(tap * part(angle) - 0.5).astype(jnp.int32) + reach for part in (jnp.sin, jnp.cos))
        cut = jax.vmap(lambda one, row, column: jax.lax.dynamic_slice(one, (row, column, 0), (height, width, one.shape[-1])))
        return total + weights[tap] * cut(padded, down, right)

    return jax.lax.fori_loop(0, along.taps, add, jnp.zeros_like(image))


def motion_blur(image: jax.Array, uniform: jax.Array, along: Streak) -> jax.Array:
    """A streak at an angle from -45 to 45 degrees."""
    return streaked(image, jnp.deg2rad(90 * uniform - 45), along)


def draw_angle(key: jax.Array, height: int, width: int) -> jax.Array:
    """A uniform number from 0 to 1, which stands for -45 to 45 degrees."""
    return jax.random.uniform(key)


def of_motion_blur(severity: int, height: int, width: int) -> tuple[Streak]:
    return (streak(*constants(((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)), severity), most=41),)


class Zooms(NamedTuple):
    """One axis of enlarged images, each pixel between two of the original. A row for each factor."""

    lower: np.ndarray | jax.Array  # [16, side] indices
    upper: np.ndarray | jax.Array
    share: np.ndarray | jax.Array  # of the upper one


def zoom_blur(image: jax.Array, drawn: None, number: jax.Array, rows: Zooms, columns: Zooms) -> jax.Array:
    """The mean of an image and its enlargements by a number of factors. The first factor is 1: the image counts twice, as published."""

    def between(image: jax.Array, zooms: Zooms, factor: jax.Array, axis: int) -> jax.Array:
        lower, upper = (jnp.take(image, index[factor], axis, mode="clip") for index in (zooms.lower, zooms.upper))
        return lower + (upper - lower) * jnp.expand_dims(zooms.share[factor], tuple(range(1, 4 - axis)))

    def add(factor: jax.Array, total: jax.Array) -> jax.Array:
        return total + between(between(image, rows, factor, 1), columns, factor, 2)

    return jax.lax.fori_loop(0, number, add, image) / (number + 1)


def of_zoom_blur(severity: int, height: int, width: int) -> tuple[np.int32, Zooms, Zooms]:
    # floating point decides whether the end is included: 1.11 is one of severity 1, and 1.16 is not one of severity 2
    factors = np.arange(1, *constants(((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)), severity))

    def axis(side: int) -> Zooms:
        lower, upper, share = np.zeros((16, side), np.int32), np.zeros((16, side), np.int32), np.zeros((16, side), np.float32)
        for i, factor in enumerate(factors):
            cropped = math.ceil(side / factor)
            enlarged = round(cropped * factor)
            pixel = np.arange(side) + (enlarged - side) // 2
            coordinate = pixel * ((cropped - 1) / max(enlarged - 1, 1))
            below = np.minimum(coordinate.astype(int), max(cropped - 2, 0))
            lower[i] = (side - cropped) // 2 + below
            upper[i] = np.minimum(lower[i] + 1, side - 1)
            share[i] = coordinate - below
        return Zooms(lower, upper, share)

    return np.int32(len(factors)), axis(height), axis(width)


def pixelate(image: jax.Array, drawn: None, boxes: Axes) -> jax.Array:
    """Means over boxes, rounded to 8 bits after each axis, as Pillow does."""
    return _rounded(boxes.down(_rounded(boxes.across(image))))


def _rounded(image: jax.Array) -> jax.Array:
    return jnp.floor(image * 255 + 0.5 + ROUNDING) / 255


def of_pixelate(severity: int, height: int, width: int) -> tuple[Axes]:
    share = constants((0.6, 0.5, 0.4, 0.3, 0.25), severity)

    def matrix(side: int) -> np.ndarray:
        number, pixel = max(int(share * side), 1), np.arange(side)
        # a box averages the pixels whose centres lie in it, and covers the same; a centre between two is averaged by the first, covered by
        # the second
        averaged_by, covered_by = ((2 * pixel + 1) * number - 1) // (2 * side), (2 * pixel + 1) * number // (2 * side)
        members = (covered_by[:, None] == averaged_by).astype(np.float32)
        return members / members.sum(1, keepdims=True)

    return (Axes(matrix(height), matrix(width)),)
