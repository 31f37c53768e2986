"""Images on a shared canvas against the same images alone, in NumPy."""

import jax
import numpy as np

from jaxbed.models import canvas

SIZES_PX = np.array([[5, 7], [3, 4], [6, 2]])
MAPS = np.random.default_rng(0).normal(size=(3, 6, 7, 2)).astype(np.float32)


def alone(maps: np.ndarray, index: int) -> np.ndarray:
    height, width = SIZES_PX[index]
    return maps[index, :height, :width]


def test_what_lies_outside_an_image_is_cut_away():
    cut = np.asarray(canvas.cut(MAPS, SIZES_PX))
    for index in range(3):
        np.testing.assert_array_equal(alone(cut, index), alone(MAPS, index))
        assert np.count_nonzero(cut[index]) == alone(MAPS, index).size


def test_each_image_is_flipped_about_its_own_middle():
    for axis in (canvas.HEIGHT, canvas.WIDTH):
        flipped = np.asarray(canvas.flip(MAPS, SIZES_PX, axis))
        for index in range(3):
            np.testing.assert_array_equal(alone(flipped, index), np.flip(alone(MAPS, index), axis - 1))


def test_each_image_is_reflected_at_its_own_border():
    padded = np.asarray(jax.jit(canvas.reflect, static_argnums=2)(MAPS, SIZES_PX, 1))
    assert padded.shape == (3, 8, 9, 2)
    for index, (height, width) in enumerate(SIZES_PX):
        expected = np.pad(alone(MAPS, index), [(1, 1), (1, 1), (0, 0)], mode="reflect")
        np.testing.assert_array_equal(padded[index, : height + 2, : width + 2], expected)
        assert not padded[index, height + 2 :].any() and not padded[index, :, width + 2 :].any()
