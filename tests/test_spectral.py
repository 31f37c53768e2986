"""Filters against the Fourier transform that they stand for, and against values computed by hand."""

import numpy as np
import pytest

from jaxbed.measures import spectral

LOW, HIGH = spectral.low_pass, spectral.high_pass
COLUMN = np.arange(8)
GRATING = np.tile(0.5 + 0.5 * np.cos(2 * np.pi * 2 * COLUMN / 8), (8, 1))
CHECKERS = (np.indices((8, 8)).sum(0) % 2).astype(float)


def change(function, image, cutoff):
    return np.asarray(function(image, spectral.lowest(*image.shape[1:3], cutoff if function is LOW else 1 - cutoff)))


def filtered(function, image, cutoff):
    return change(function, image[None, :, :, None], cutoff)[0, :, :, 0]


def mask(height, width, cutoff):
    rows, columns = spectral.radius(height, cutoff), spectral.radius(width, cutoff)
    kept = np.zeros((height, width))
    kept[height // 2 - rows : height // 2 + rows, width // 2 - columns : width // 2 + columns] = 1
    return kept


def by_fourier(image, cutoff, high):
    spectrum = np.fft.fftshift(np.fft.fft2(image))
    kept = 1 - mask(*image.shape, 1 - cutoff) if high else mask(*image.shape, cutoff)
    return np.clip(np.fft.ifft2(np.fft.ifftshift(spectrum * kept)).real, 0, 1)


@pytest.mark.parametrize(("cutoff", "ones"), [(0, 0), (0.1, 0), (0.25, 4), (0.5, 16), (0.75, 36), (0.9, 36), (1, 64)])
def test_the_kept_square_of_eight_pixels(cutoff, ones):
    assert mask(8, 8, cutoff).sum() == ones


def test_radii_at_224_pixels_are_the_published_ones():
    assert [spectral.radius(224, f) for f in spectral.CUTOFFS] == [1, 11, 22, 33, 44, 56, 67, 78, 89, 100, 110]
    assert [spectral.radius(224, 1 - f) for f in spectral.CUTOFFS] == [110, 100, 89, 78, 67, 56, 44, 33, 22, 11, 1]
    assert spectral.radius(20, 1 - 0.9) == 1  # 1 - 0.9 is a little less than a tenth


@pytest.mark.parametrize(
    ("function", "image", "cutoff", "expected"),
    [
        (LOW, np.full((8, 8), 0.5), 0.25, 0.5),
        (LOW, np.full((8, 8), 0.5), 0, 0),
        (HIGH, np.full((8, 8), 0.5), 0.25, 0),
        (LOW, CHECKERS, 0.5, 0.5),
        (LOW, CHECKERS, 0.9, 0.5),
        (LOW, CHECKERS, 1, CHECKERS),
        (HIGH, CHECKERS, 0.5, np.where(CHECKERS > 0, 0.5, 0)),
        (HIGH, CHECKERS, 0.9, CHECKERS),
        (LOW, GRATING, 0.5, np.array([0.75, 0.5, 0.25, 0.5] * 2)),
        (LOW, GRATING, 0.75, GRATING),
        (HIGH, GRATING, 0.5, np.array([0.25, 0, 0, 0] * 2)),
        (HIGH, GRATING, 0.25, 0),
    ],
)
def test_images_whose_spectrum_is_known(function, image, cutoff, expected):
    np.testing.assert_allclose(filtered(function, image, cutoff), np.broadcast_to(expected, (8, 8)), atol=2e-6)


def test_a_single_pixel_shows_where_the_square_lies():
    impulse = np.zeros((8, 8))
    impulse[0, 0] = 1
    spread = filtered(LOW, impulse, 0.25)
    for place, value in {(0, 0): 0.0625, (0, 1): 0.053347, (1, 1): 0.037722, (1, 3): 0, (3, 3): 0, (1, 7): 0.053347, (4, 2): 0}.items():
        assert spread[place] == pytest.approx(value, abs=1e-6)  # at (3, 3) it is -0.006472 before it is clipped


@pytest.mark.parametrize("shape", [(24, 24), (15, 20)])
@pytest.mark.parametrize("cutoff", [0.01, 0.3, 0.99])
def test_filters_are_those_of_the_fourier_transform(shape, cutoff):
    image = np.random.default_rng(0).random((2, *shape, 3))
    for function, high in ((LOW, False), (HIGH, True)):
        expected = np.stack([[by_fourier(one[:, :, c], cutoff, high) for c in range(3)] for one in image])
        np.testing.assert_allclose(change(function, image, cutoff), expected.transpose(0, 2, 3, 1), atol=3e-6)


def test_the_bias_is_the_mean_share_at_five_cutoffs():
    published = dict(
        zip(spectral.CUTOFFS, (0.0049, 0.1776, 0.5303, 0.7269, 0.8298, 0.9, 0.939, 0.969, 0.9875, 0.9967, 0.9992), strict=True)
    )
    assert spectral.bias(published, 1.0) == pytest.approx(0.63293, abs=1e-4)  # ResNet-50 of torchvision
    assert spectral.bias(dict.fromkeys(spectral.SCORED, 0.3), 0.6) == pytest.approx(0.5)
    assert np.isnan(spectral.bias(dict.fromkeys(spectral.SCORED, 0.0), 0.0))
    with pytest.raises(ValueError, match=r"cutoffs \[0\.4\] are missing"):
        spectral.bias(dict.fromkeys((0.1, 0.2, 0.3, 0.5), 1.0), 1.0)


@pytest.mark.parametrize("cutoff", [-0.1, 1.1, float("nan")])
def test_a_cutoff_outside_zero_to_one_is_refused(cutoff):
    with pytest.raises(ValueError, match="from 0 to 1"):
        spectral.lowest(8, 8, cutoff)
