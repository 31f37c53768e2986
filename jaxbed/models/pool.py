"""Pooling in 3 x 3 windows: maxima with stride 2 as ResNets with torchvision's, Caffe's or BiT's stem have them, and means.

XLA's own gradient (select-and-scatter) looks at every window again; this one of maxima remembers where each was.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

WINDOW = [(i, j) for i in range(3) for j in range(3)]


def max_pool(x: jax.Array) -> jax.Array:
    """[N, H, W, C] -> [N, ceil(H/2), ceil(W/2), C]. Of equal maxima the first, row by row, gets the gradient, as in PyTorch."""
    return _max_pool(x.shape[1:3], x)


def max_pool_inside(x: jax.Array) -> jax.Array:
    """[N, H, W, C] -> [N, ⌊H/2⌋, ⌊W/2⌋, C]: windows that begin at pixels 0, 2, ...; the last is cut off at the edge, as in Caffe."""
    beyond = jnp.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)), constant_values=-jnp.inf)
    return max_pool(beyond)[:, 1:, 1:]


def max_pool_zeros(x: jax.Array) -> jax.Array:
    """[N, H, W, C] -> [N, ceil(H/2), ceil(W/2), C]: `max_pool` with zeros around the map, which may be the maxima, as in BiT."""
    height, width = (-(-side // 2) for side in x.shape[1:3])
    return max_pool_inside(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))))[:, :height, :width]


def mean_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Means over size x size windows: [N, H, W, C] -> [N, ceil(H/stride), ceil(W/stride), C].

    size 3 counts the zeros around the map, as PyTorch does. size = stride cuts the last window off at the edge, and counts what is left.
    Raises ValueError for other sizes.
    """
    if size not in (3, stride):
        raise ValueError(f"size = {size}: must be 3, or the stride, {stride}")
    if size == 1:
        return x
    before = (size - 1) // 2 if size == 3 else 0
    after = [(-(-side // stride) - 1) * stride + size - side - before for side in x.shape[1:3]]
    pads = ((0, 0), *((before, max(beyond, 0)) for beyond in after), (0, 0))

    def sums(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, 0.0, lax.add, (1, size, size, 1), (1, stride, stride, 1), pads)

    count = size * size if size == 3 else sums(jnp.ones((1, *x.shape[1:3], 1), jnp.float32))
    return (sums(x.astype(jnp.float32)) / count).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _max_pool(sides: tuple[int, int], x: jax.Array) -> jax.Array:
    return _forward(sides, x)[0]


def _forward(sides: tuple[int, int], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    down, right = (2 * ((side - 1) // 2) + 1 for side in sides)
    best = padded[:, :down:2, :right:2]
    position = jnp.zeros(best.shape, jnp.int8)
    for k, (i, j) in enumerate(WINDOW[1:], start=1):
        seen = padded[:, i : i + down : 2, j : j + right : 2]
        position = jnp.where(seen > best, jnp.int8(k), position)
        best = jnp.maximum(best, seen)
    return best, position


def _backward(sides: tuple[int, int], position: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    """Even rows lie in the middle of one window, odd ones at the end of one and the start of the next; columns too."""

    def seen(i: int, j: int) -> jax.Array:
        """What comes from the windows in which a pixel has row i and column j: [N, h, w, C], for the pixels of one parity."""
        chosen = jnp.where(position == 3 * i + j, g, 0).astype(jnp.float32)
        later = [(0, 0), (-1, 1) if i == 0 else (0, 0), (-1, 1) if j == 0 else (0, 0), (0, 0)]
        return lax.pad(chosen, jnp.float32(0), [(*pads, 0) for pads in later])

    positions = ((1,), (0, 2))  # of even and of odd ones
    rows = [jnp.stack([sum(seen(i, j) for i in down for j in right) for right in positions], axis=3) for down in positions]
    whole = jnp.stack(rows, axis=2).astype(g.dtype)  # [N, h, 2, w, 2, C]
    whole = whole.reshape(g.shape[0], 2 * g.shape[1], 2 * g.shape[2], -1)[:, : sides[0], : sides[1]]
    return (lax.optimization_barrier(whole),)  # or the reductions that follow would compute it again


_max_pool.defvjp(_forward, _backward)
