"""Images that benchmarks of corruptions and attacks share, whatever process they are in. Needs NumPy alone."""

import functools

import numpy as np


@functools.cache  # it takes seconds
def smooth(count: int, side_px: int) -> np.ndarray:
    """uint8 [count, side, side, 3]: smooth random fields, much like photographs to filters and to JPEG."""
    rng = np.random.default_rng(0)
    position = np.linspace(0, 1, side_px)
    total = np.zeros((count, side_px, side_px, 3))
    for octave in range(1, 33):
        down, across = (np.cos(2 * np.pi * (octave * position + rng.random((count, 3, 1)))) for _ in range(2))
        total += np.einsum("nch,ncw->nhwc", down, across) / octave
    low, high = (limit(total, axis=(1, 2, 3), keepdims=True) for limit in (np.min, np.max))
    return (255 * (total - low) / (high - low)).astype(np.uint8)
