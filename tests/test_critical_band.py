"""The pyramid against matrices written by hand, thresholds and fits against published ones."""

import math

import jax
import numpy as np
import pytest
from PIL import Image

from jaxbed.measures import critical_band

# thresholds of published networks: octaves, cycles per image, peak noise sensitivity, squared error of the fit
PUBLISHED = """
0012443 3.7088 46.565 1 .28935
0012343 3.9182 53.432 .8649 .20995
0013443 3.9639 42.092 1 .52653
0013343 4.1387 47.016 .91 .91271
0023443 4.3344 39.674 1 .71465
0013333 4.4224 45.57 .6728 1.11598
0012444 4.4493 61.21 1 .75003
0013444 4.6655 54.894 1 1.18196
0122342 4.6683 38.282 .6312 1.54371
0123443 4.7385 38.854 1 .17206
0122343 5.5127 56.309 .7165 .88431
0123444 5.6663 54.677 1 .48213
0134444 5.9077 41.854 1 2.0648
1233443 6.3529 33.581 .9292 .44224
0234444 6.4489 40.645 1 1.88565
1234444 7.3432 42.822 1 .55062
1233343 7.3684 39.187 .7261 .80897
1233333 7.4677 32.633 .5978 .46003
1233444 7.8632 58.202 1 .37534
1223333 7.9169 45.715 .5498 .27529
1344444 8.216 33.661 1 1.84239
2344444 9.9455 34.696 1 .58675
1222333 10.4565 114.495 .5167 .44199
0000220 1 39.598 1 .000122
0022342 3.9879 39.422 .7098 1.66827
1124443 5.2055 34.375 1 .80639
1123411 3.4044 18.137 .6889 2.30525
0013332 3.6961 33.783 .6549 .64396
0012331 3.0486 32.669 .5832 .28559
""".split("\n")[1:-1]
BASELINE = (
    np.array([[48] * 7, [47, 44, 40, 30, 20, 15, 18], [46, 42, 34, 18, 8, 5, 9], [44, 36, 20, 7, 2, 1, 3], [40, 22, 8, 2, 0.5, 0.3, 1]])
    / 100
)


@jax.jit
def all_within(noise, bands):
    return [critical_band.within(band, noise) for band in bands]


def within(noise, *numbers):
    """The part of the noise in each of these bands."""
    return [np.asarray(part) for part in all_within(noise, [critical_band.band(*noise.shape[-2:], number) for number in numbers])]


compiled_stimulus = jax.jit(critical_band.stimulus)


def shown(image, noise, sigma, band):
    side = image.shape[1:3]
    pair = (critical_band.band(*side, number) for number in (band, critical_band.bands(min(side)) - 1))
    return np.asarray(compiled_stimulus(image, noise, sigma, *pair))


def steps(text):
    return tuple(int(digit) for digit in text)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.split()[0])
def test_published_thresholds_give_the_published_channels(row):
    text, *expected = row.split()
    fitted = critical_band.fit(steps(text))
    numbers = (fitted.bandwidth_octaves, fitted.centre_cycles, fitted.peak_noise_sensitivity, fitted.squared_error)
    np.testing.assert_allclose(numbers, [float(value) for value in expected], rtol=1e-4, atol=1e-6)
    assert ("height_at_bound" in fitted.status) == (fitted.peak_noise_sensitivity > 0.99999)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("0000000", ("flat", "empty")),
        ("4444444", ("flat",)),
        ("0004000", ("no_fit",)),
        ("0000004", ("no_fit",)),
        ("4424444", ("height_at_bound", "centre_out_of_range")),
        ("0000220", ("height_at_bound", "narrow")),
        ("0012343", ()),
    ],
)
def test_a_degenerate_fit_is_named_and_has_no_numbers(text, status):
    fitted = critical_band.fit(steps(text))
    assert fitted.status == status and fitted.thresholds == steps(text)
    degenerate = {"flat", "empty", "no_fit"} & set(status)
    assert all(math.isnan(number) == bool(degenerate) for number in fitted[1:8])


def test_thresholds_are_relative_to_the_best_cell_or_to_all_images():
    normalised, absolute = (critical_band.channel(BASELINE, 224, normalised) for normalised in (True, False))
    assert normalised.thresholds == steps("0123444") and normalised.bandwidth_octaves == pytest.approx(5.6663, rel=1e-4)
    assert normalised.status == ("height_at_bound",)
    assert absolute.thresholds == steps("4444444") and absolute.status == ("clean_below_threshold", "flat")
    exactly_half = np.full((5, 7), 0.5)
    assert critical_band.thresholds(exactly_half, normalised=False) == (4,) * 7


def test_the_first_pass_from_the_largest_sigma_counts():
    accuracy = np.full((5, 7), 0.1)
    accuracy[0], accuracy[2, 3], accuracy[1, 3] = 0.8, 0.7, 0.2
    assert critical_band.thresholds(accuracy, normalised=False) == steps("4442444")


def test_continuous_thresholds_lie_between_the_steps_that_they_round_up_to():
    whole, exact = critical_band.thresholds(BASELINE, True), critical_band.continuous_thresholds(BASELINE, True)
    np.testing.assert_array_equal(np.ceil(exact), whole)
    # 8 % at sigma 0.16, 20 % at 0.08, 34 % at 0.04: half of 48 % is crossed 4 of 14 parts beyond the first step
    assert exact[2] == pytest.approx(1 + 4 / 14)
    assert critical_band.continuous_thresholds(np.full((5, 7), 0.4), False).tolist() == [4] * 7


@pytest.mark.parametrize("accuracy", [np.full((5, 6), 0.5), 100 * BASELINE, np.full((5, 7), np.nan)])
def test_other_tables_than_fractions_for_each_cell_are_refused(accuracy):
    with pytest.raises(ValueError, match="must be fractions, a row for each"):
        critical_band.channel(accuracy, 224, True)


def test_levels_and_centres():
    assert critical_band.sizes(224) == (224, 112, 56, 28, 14, 7, 4)
    assert [critical_band.centre_cycles(224, band) for band in range(7)] == [1.75, 3.5, 7, 14, 28, 56, 112]
    assert critical_band.centre_cycles(64, critical_band.bands(64) - 1) == 32  # the most that 64 px can show
    with pytest.raises(ValueError, match="images of 4 px have no bands"):
        critical_band.bands(4)
    with pytest.raises(ValueError, match="224 x 300 px have bands 0 to 6"):
        critical_band.band(224, 300, 7)


def test_the_pyramid_by_hand():
    impulse = np.zeros((8, 8), np.float32)
    impulse[3, 3] = 1
    (finest,) = within(impulse, critical_band.bands(8) - 1)
    np.testing.assert_allclose(finest[3], [-1 / 64, -1 / 32, -0.0546875, 0.9375, -0.0546875, -1 / 32, -1 / 128, 0], atol=1e-6)
    blur = np.matmul(*critical_band._to_level(8, 1)) * 128
    np.testing.assert_allclose(blur[[0, 4]], [[38, 56, 24, 8, 2, 0, 0, 0], [1, 4, 12, 28, 38, 28, 13, 4]], atol=1e-12)


def test_the_bands_of_noise_add_up_to_it():
    noise = np.asarray(critical_band.draw(jax.random.key(0), 224, 224))
    np.testing.assert_allclose(sum(within(noise, *range(7))), noise, atol=1e-5)


def test_how_strong_the_bands_of_white_noise_are():
    """The published root mean squares, as expectations over noise."""
    expected = [0.007481, 0.008543, 0.016071, 0.030828, 0.062425, 0.146562, 0.942918]
    for number, strength in enumerate(expected):
        level = 6 - number
        own, coarser = (np.matmul(*critical_band._to_level(224, each)) for each in (level, level + 1))
        coarser = coarser if number else 0 * coarser
        variance = (own * own).sum() ** 2 - 2 * (own * coarser).sum() ** 2 + (coarser * coarser).sum() ** 2
        assert math.sqrt(variance) / 224 == pytest.approx(strength, abs=1e-6)


def test_a_stimulus_is_grey_faint_and_within_the_screen():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    noise = np.asarray(critical_band.draw(jax.random.key(1), 32, 32))[None].repeat(2, 0)
    clean, noisy = (shown(pixels / 255, noise, sigma, 2) for sigma in (0, 0.5))
    grey = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in pixels]) / 255
    expected = 0.2 * (grey - grey.mean((1, 2), keepdims=True)) + 0.449
    np.testing.assert_allclose(clean, np.broadcast_to(expected[..., None], clean.shape), atol=1e-6)
    inside, finest = within(noise, 2, 3)
    raw = expected + 0.5 * inside * np.sqrt((finest[0] ** 2).mean() / (inside[0] ** 2).mean())
    np.testing.assert_allclose(noisy[..., 0], np.where(raw < 0, 0.1, np.where(raw > 1, 0.9, raw)), atol=1e-5)
    assert (raw < 0).any() and (raw > 1).any()
    np.testing.assert_array_equal(noisy[..., 0], noisy[..., 2])
    halves = np.stack([np.zeros((16, 16, 3)), np.ones((16, 16, 3))], 1).reshape(1, 16, 32, 3)
    assert sorted(np.unique(shown(halves, noise[:1, :16], 0, 0)).round(6)) == [0.349, 0.549]
