"""Low- and high-frequency bias: the accuracy that is left when an image loses its high or its low spatial frequencies.

A filter keeps or removes a square of the shifted Fourier spectrum. The square is half open, [-r, r) in rows and columns, so that it is not
quite symmetric, and the real part of what comes back is taken, as published. Filters act on pixels in [0, 1] before they are scaled for
the network. As matrix products, low_pass(X) = Re(P X Q') with projections P and Q on the frequencies that are kept: four real products for
each channel, and no Fourier transform.

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


class Square(NamedTuple):
    """The lowest frequencies, as projections on them along each axis: real and imaginary parts."""

    rows: np.ndarray | jax.Array  # [2, H, H]
    columns: np.ndarray | jax.Array  # [2, W, W]


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
    sign = jnp.array([1.0, -1.0], jnp.float32)  # of real and imaginary parts in a real product
    exact = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    return exact("k,kih,bhwc,kjw->bijc", sign, square.rows, image, square.columns)


@functools.cache
def _projection(side_px: int, kept: int) -> np.ndarray:
    """[2, n, n]: real and imaginary parts of the projection of n pixels on the frequencies -kept to kept - 1."""
    pixel = np.arange(side_px)
    phase = 2j * np.pi * (pixel[:, None] - pixel) / side_px
    summed = sum((np.exp(frequency * phase) for frequency in range(-kept, kept)), np.zeros_like(phase)) / side_px
    return np.stack([summed.real, summed.imag]).astype(np.float32)
