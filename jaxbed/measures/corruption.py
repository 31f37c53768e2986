"""What image corruptions share: their interface, their last step, filters along the axes, and images beyond their border."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
T = TypeVar("T")
Index = Any  # integers, of NumPy or JAX
SEVERITIES = (1, 2, 3, 4, 5)
ROUNDING = 1e-3  # of an 8-bit step: more than float32 loses, so that truncation keeps whole steps


class Corruption(NamedTuple):
    """A change of images. What it returns may leave [0, 1]: see `truncated`."""

    change: Callable[..., jax.Array]  # (image [B, H, W, 3] float32 in [0, 1], drawn [B, ...], *arrays) -> images of the same shape
    arrays: Callable[[int, int, int], tuple]  # (severity 1 to 5, height, width) -> what the severity sets; raises ValueError
    draw: Callable[[jax.Array, int, int], PyTree] | None = None  # (key, height, width) -> what is random, of one image


def truncated(image: jax.Array) -> jax.Array:
    """Images clipped to [0, 1] and truncated to multiples of 1/255, as 8-bit images are stored."""
    return jnp.floor(jnp.clip(image, 0, 1) * 255 + ROUNDING) / 255


@functools.cache
def in_bytes(change: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A corruption's change as the published files store it: truncated. One function for each, so that it is compiled once."""

    @functools.wraps(change)
    def stored(image: jax.Array, drawn: PyTree, *arrays: PyTree) -> jax.Array:
        return truncated(change(image, drawn, *arrays))

    return stored


def constants(table: Sequence[T], severity: int) -> T:
    """The entry of a severity in a table of five. Raises ValueError for a severity outside 1 to 5."""
    if severity not in SEVERITIES:
        raise ValueError(f"severity = {severity}: it must be 1, 2, 3, 4 or 5")
    return table[severity - 1]


class Axes(NamedTuple):
    """A separable linear map of images, as a matrix for each axis."""

    rows: np.ndarray | jax.Array  # [H, H]
    columns: np.ndarray | jax.Array  # [W, W]

    def of(self, image: jax.Array) -> jax.Array:
        """Images [B, H, W, C], mapped."""
        return self.down(self.across(image))

    def across(self, image: jax.Array) -> jax.Array:
        """Images whose rows are mapped, by `columns`."""
        return product("jw,bhwc->bhjc", self.columns, image)

    def down(self, image: jax.Array) -> jax.Array:
        """Images whose columns are mapped, by `rows`."""
        return product("ih,bhwc->biwc", self.rows, image)


product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def nearest(index: Index, side: int) -> Index:
    """Beyond its border, an image continues with its outermost pixels: a a | a b c | c c."""
    return index.clip(0, side - 1)


def mirrored(index: Index, side: int) -> Index:
    """Beyond its border, an image continues mirrored at its outermost pixels: c b | a b c | b a."""
    return side - 1 - abs(side - 1 - index % max(2 * side - 2, 1))


def reflected(index: Index, side: int) -> Index:
    """Beyond its border, an image continues mirrored at the border itself: b a | a b c | c b."""
    return (2 * side - 1 - abs(2 * side - 1 - 2 * (index % (2 * side)))) // 2


def filter_matrix(weights: np.ndarray, side: int, beyond: Callable[[Index, int], Index]) -> np.ndarray:
    """[n, n] float32: correlation of n pixels with an odd number of weights, where images continue as `beyond` says."""
    matrix, pixel = np.zeros((side, side)), np.arange(side)
    for offset, weight in enumerate(weights, -(len(weights) // 2)):
        matrix[pixel, beyond(pixel + offset, side)] += weight
    return matrix.astype(np.float32)


def gaussian(radius: int, sigma_px: float) -> np.ndarray:
    """[2 radius + 1] weights that sum to 1."""
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma_px**2))
    return weights / weights.sum()


def smooth(height: int, width: int, sigma_px: float, truncate: float = 4, beyond: Callable[[Index, int], Index] = nearest) -> Axes:
    """Convolution with a Gaussian that ends after `truncate` standard deviations.

    As matrices it costs the same for any sigma: severities share a compiled function.
    """
    weights = gaussian(int(truncate * sigma_px + 0.5), sigma_px)
    return Axes(filter_matrix(weights, height, beyond), filter_matrix(weights, width, beyond))
