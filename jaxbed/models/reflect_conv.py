"""3 x 3 convolutions of maps that are padded by reflection, after pooling and upsampling too, in few passes over memory.

On a GPU the passes between the products of a style network cost as much as the products. So maps are padded by reading pixels at reflected
places; a convolution of an upsampled map is one of 2 x 2 pixels of the small map for each of the four phases of the large one; one of three
channels, which fill no tensor core, is over blocks of 2 x 2 pixels; one to three channels is a product whose nine parts are added in place.
All of it is exact. weights are {"kernel": [3, 3, C, F], "bias": [F]}, arithmetic is in the maps' own type.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbed.models import conv

PyTree = Any
# [phase of the large map, pixel of the small one, pixel of the kernel]: where a kernel of 3 meets pixels that were doubled
DOUBLED = np.array([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], np.float32)
# [pixel of the block, of three blocks one, its pixel, pixel of the kernel]: a block's outputs from it and its neighbours
BLOCKS = np.stack([np.eye(6, 3, -1 - phase, dtype=np.float32).reshape(3, 2, 3) for phase in range(2)])
TENSOR_CORE = 8  # channels that it takes at once


class Map(NamedTuple):
    """A feature map in p x p phases: pixel (p·i + a, p·j + b) is at [i, j] of phase (a, b), or, `later`, at [i + a, j + b]."""

    values: jax.Array  # [N, h, w, p, p, C]
    sides: tuple[int, int]
    later: bool = False

    def at(self, rows: np.ndarray, columns: np.ndarray) -> jax.Array:
        """The pixels of these rows and columns, [N, rows, columns, C]."""
        phases = self.values.shape[3]
        (i, a), (j, b) = (np.divmod(wanted, phases) for wanted in (rows[:, None], columns[None]))
        return self.values.at[:, i + self.later * a, j + self.later * b, a, b].get(mode="promise_in_bounds")

    def pixels(self) -> jax.Array:
        """The whole map, [N, H, W, C]."""
        if self.values.shape[3] == 1:
            return self.values[:, :, :, 0, 0]
        return self.at(*map(np.arange, self.sides))


def whole(x: jax.Array) -> Map:
    """Of a map [N, H, W, C]: one phase."""
    return Map(x[:, :, :, None, None], (x.shape[1], x.shape[2]))


def _reflected(positions: np.ndarray, side: int) -> np.ndarray:
    """Places of pixels, where those outside the map are reflected at its outermost pixels; what is too far out becomes any."""
    positions = np.abs(positions)
    return np.clip(np.minimum(positions, 2 * (side - 1) - positions), 0, side - 1)


def _padded(x: Map, before: int = 1, after: tuple[int, int] = (1, 1)) -> jax.Array:
    return x.at(*(_reflected(np.arange(-before, side + more), side) for side, more in zip(x.sides, after, strict=True)))


def pool(x: Map) -> Map:
    """Maxima of 2 x 2 pixels, of fewer where a side is odd."""
    return whole(nn.max_pool(x.pixels(), (2, 2), (2, 2), [(0, side % 2) for side in x.sides]))


def convolve(weights: PyTree, x: Map) -> Map:
    """3 x 3 convolution and ReLU."""
    if x.values.shape[-1] <= conv.FEW_CHANNELS and jax.default_backend() == "gpu":
        return _over_blocks(weights, x)
    out = conv.conv(_padded(x), weights["kernel"].astype(x.values.dtype), 1, 0)
    return whole(nn.relu(out + weights["bias"].astype(out.dtype)))


def _four_phases(weights: PyTree, x: jax.Array, kernel: jax.Array, sides: tuple[int, int], later: bool) -> Map:
    """ReLU of a convolution of x with kernel [k, k, C, 2, 2, F], that gives the four phases of a map."""
    out = conv.conv(x, kernel.reshape(*kernel.shape[:3], -1).astype(x.dtype), 1, 0)
    out = nn.relu(out + jnp.tile(weights["bias"], 4).astype(out.dtype))
    return Map(out.reshape(*out.shape[:3], 2, 2, -1), sides, later)


def convolve_doubled(weights: PyTree, x: Map) -> Map:
    """`convolve` of the map with every pixel as 2 x 2. Reflection there repeats the outermost pixels here."""
    ends = (np.clip(np.arange(-1, side + 1), 0, side - 1) for side in x.sides)
    kernel = jnp.einsum("aik,bjl,klcf->ijcabf", DOUBLED, DOUBLED, weights["kernel"], precision="highest")
    return _four_phases(weights, x.at(*ends), kernel, (2 * x.sides[0], 2 * x.sides[1]), later=True)


def _over_blocks(weights: PyTree, x: Map) -> Map:
    """`convolve` over blocks of 2 x 2 pixels and their neighbours."""
    image = conv.blocks(_padded(x, 2, (2 + x.sides[0] % 2, 2 + x.sides[1] % 2)))
    kernel = jnp.einsum("aiuk,bjvl,klcf->ijuvcabf", BLOCKS, BLOCKS, weights["kernel"], precision="highest")
    kernel = kernel.reshape(3, 3, -1, *kernel.shape[5:])
    more = -image.shape[3] % TENSOR_CORE
    image = jnp.pad(image, ((0, 0), (0, 0), (0, 0), (0, more)))
    return _four_phases(weights, image, jnp.pad(kernel, ((0, 0), (0, 0), (0, more), (0, 0), (0, 0), (0, 0))), x.sides, later=False)


def to_few(weights: PyTree, x: Map) -> jax.Array:
    """3 x 3 convolution to [N, H, W, 3]: every pixel's nine contributions to its neighbours, then their sums."""
    size, _, channels, outputs = weights["kernel"].shape
    kernel = weights["kernel"].transpose(2, 0, 1, 3).reshape(channels, -1)
    kernel = jnp.pad(kernel, ((0, 0), (0, -kernel.shape[1] % TENSOR_CORE))).astype(x.values.dtype)
    exact = lax.Precision.HIGHEST if x.values.dtype == jnp.float32 else None
    parts = x._replace(values=lax.optimization_barrier(jnp.dot(x.values, kernel, precision=exact)))  # or sums are fused with products
    rows, columns = (_reflected(np.arange(-1, side + 1), side) for side in x.sides)
    total = weights["bias"]
    for i in range(size):
        for j in range(size):
            part = parts.at(rows[i : i + x.sides[0]], columns[j : j + x.sides[1]])
            total = total + part[..., outputs * (size * i + j) :][..., :outputs].astype(jnp.float32)
    return total.astype(x.values.dtype)
