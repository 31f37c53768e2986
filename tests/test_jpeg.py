"""JPEG compression against Pillow, level by level."""

import io

import jax
import numpy as np
import pytest
from PIL import Image, features

from jaxbed.measures import jpeg

QUALITIES = (7, 10, 15, 18, 25, 85)

compressed = jax.jit(jpeg.compressed)


def images(height, width):
    """A smooth image and uniform noise, uint8 [2, H, W, 3]."""
    row, column = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(column / 9 + row / 13), 120 + 110 * np.cos(column / 7 - row / 11), 255 * column / width]
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3))
    return np.stack([np.stack(waves, -1), noise]).astype(np.uint8)


def by_pillow(levels, quality):
    stream = io.BytesIO()
    Image.fromarray(levels).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream))


def by_jax(levels, quality):
    """8-bit levels [B, H, W, 3] after compression."""
    result = np.asarray(compressed(levels.astype(np.float32) / 255, jpeg.tables(quality))) * 255
    np.testing.assert_allclose(result, np.round(result), rtol=0, atol=1e-4)
    return np.round(result)


@pytest.mark.skipif(not features.check("libjpeg_turbo"), reason="other libraries than libjpeg-turbo give other levels")
@pytest.mark.parametrize("sides", [(48, 64), (34, 50), (17, 21), (5, 6)], ids=lambda sides: f"{sides[0]}x{sides[1]}")
def test_levels_are_pillows(sides):
    """The largest difference is 0, at each quality, on the smooth image and on noise."""
    before = images(*sides)
    for quality in (*QUALITIES, 1, 50, 100):
        expected = np.stack([by_pillow(levels, quality) for levels in before])
        np.testing.assert_array_equal(by_jax(before, quality), expected, str(quality))


def test_each_image_is_compressed_alone():
    before = images(17, 21)
    np.testing.assert_array_equal(by_jax(before[1:], 10)[0], by_jax(before, 10)[1])


def test_quality_scales_the_standard_tables():
    np.testing.assert_array_equal(jpeg.tables(50), [jpeg.LUMA, jpeg.CHROMA])
    np.testing.assert_array_equal(jpeg.tables(25), np.minimum(2 * jpeg.tables(50), 255))
    assert (jpeg.tables(100) == 1).all()
    assert jpeg.tables(85)[0, 0, 0] == 5  # (16 · 30 + 50) // 100


def test_grey_of_one_level_stays_as_it_is():
    grey = np.full((1, 16, 16, 3), 128, np.uint8)
    np.testing.assert_array_equal(by_jax(grey, 7), grey)


def test_pixels_are_rounded_and_clipped_first():
    before = images(17, 21).astype(np.float32) / 255
    steps = jpeg.tables(25)
    np.testing.assert_array_equal(compressed(before + np.float32(0.4 / 255), steps), compressed(before, steps))
    np.testing.assert_array_equal(compressed(3 * before - 1, steps), compressed(np.clip(3 * before - 1, 0, 1), steps))


@pytest.mark.parametrize("quality", [0, 101])
def test_unknown_qualities_are_an_error(quality):
    with pytest.raises(ValueError, match=f"quality = {quality}: .* from 1 to 100"):
        jpeg.tables(quality)


def test_grey_images_are_an_error():
    with pytest.raises(ValueError, match="1 channel"):
        jpeg.compressed(np.zeros((1, 8, 8, 1), np.float32), jpeg.tables(25))
