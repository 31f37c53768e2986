"""Low- and high-frequency bias: the accuracy that is left when an image loses its high or its low spatial frequencies.

A filter keeps or removes a square of the shifted Fourier spectrum. The square is half open, [-r, r) in rows and columns, so that it is not
quite symmetric, and the real part of what comes back is taken, as published. Filters act on pixels in [0, 1] before they are scaled for
the network. As matrix products, low_pass(X) = Re(P X Q') with projections P and Q on the frequencies that are kept. Their imaginary parts
come from the frequency -r alone, whose partner r is missing, and have rank two: what is left are two real products for each channel, and no
Fourier transform.

Source: Gavrikov and Keuper, "Can Biases in ImageNet Models Explain Generalization?" (CVPR 2024), and their code: a high-pass filter
"at f" removes the lowest 1 - f, which the paper's listing does not show.
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

CUTOFFS = (0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)  # as shares of the highest frequency
SCORED = (0.1, 0.2, 0.3, 0.4, 0.5)  # those whose mean is the bias


class Projection(NamedTuple):
    """On the lowest frequencies of n pixels: its real part, and c and s of its imaginary part c s' - s c'."""

    real: np.ndarray | jax.Array  # [n, n]
    unpaired: np.ndarray | jax.Array  # [2, n]


class Square(NamedTuple):
    """The lowest frequencies along each axis."""

    rows: Projection  # H pixels
    columns: Projection  # W pixels


def radius(side_px: int, cutoff: float) -> int:
    """r of the frequencies -r to r - 1 that are below the cutoff, in cycles per image. Raises ValueError for a cutoff outside [0, 1]."""
    if not 0 <= cutoff <= 1:
        raise ValueError(f"cutoff = {cutoff}: a share of the highest frequency is from 0 to 1")
    return math.floor(round(cutoff * (side_px // 2), 6))  # 0.3 · 10 is 3, whatever binary fractions make of it


def lowest(height: int, width: int, cutoff: float) -> Square:
    """The frequencies below a cutoff. A high-pass filter at f takes away those below 1 - f."""
    return Square(*(_projection(side, radius(side, cutoff)) for side in (height, width)))


def low_pass(image: jax.Array, square: Square) -> jax.Array:
    """What the lowest frequencies hold of images [B, H, W, C] in [0, 1], clipped to [0, 1]."""
    return jnp.clip(_kept(image, square), 0, 1)


def high_pass(image: jax.Array, square: Square) -> jax.Array:
    """Images [B, H, W, C] in [0, 1] without the lowest frequencies, clipped to [0, 1]: half of what is left is negative, and lost."""
    return jnp.clip(image - _kept(image, square), 0, 1)


def bias(accuracy: Mapping[float, float | np.ndarray], clean: float | np.ndarray) -> np.ndarray:
    """The mean share of the clean accuracy that is left at the cutoffs SCORED; NaN where nothing was right before.

    accuracy {cutoff: accuracy} of one filter, in the unit of `clean`; arrays of one shape for several networks. Raises ValueError for
    cutoffs that are missing.
    """
    if missing := [cutoff for cutoff in SCORED if cutoff not in accuracy]:
        raise ValueError(f"accuracies at the cutoffs {missing} are missing: the bias is a mean over {SCORED}")
    mean, clean = np.stack([np.asarray(accuracy[cutoff], float) for cutoff in SCORED]).mean(0), np.asarray(clean, float)
    return np.divide(mean, clean, out=np.full(clean.shape, np.nan), where=clean > 0)


def _kept(image: jax.Array, square: Square) -> jax.Array:
    rows, columns = square
    channels = jnp.moveaxis(image, -1, 1)  # [B, C, H, W]
    paired = _product(_product(rows.real, channels), columns.real)
    (cc, cs), (sc, ss) = jnp.moveaxis(_product(_product(rows.unpaired, channels), columns.unpaired.T), (-2, -1), (0, 1))
    turned = jnp.moveaxis(jnp.array([[ss, -sc], [-cs, cc]]), (0, 1), (-2, -1))  # [B, C, 2, 2]
    imaginary = _product(_product(rows.unpaired.T, turned), columns.unpaired)
    return jnp.moveaxis(paired - imaginary, 1, -1)


_product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)  # in float32, not in less


@functools.cache
def _projection(side_px: int, kept: int) -> Projection:
    """Of n pixels on the frequencies -kept to kept - 1."""
    pixel = np.arange(side_px)
    phase = 2 * np.pi * (pixel[:, None] - pixel) / side_px
    real = sum((np.cos(frequency * phase) for frequency in range(-kept, kept)), np.zeros_like(phase)) / side_px
    turn = 2 * np.pi * kept * pixel / side_px
    return Projection(real.astype(np.float32), (np.stack([np.cos(turn), np.sin(turn)]) / np.sqrt(side_px)).astype(np.float32))
