"""Fog, snow, spatter and frost against transcriptions in NumPy, on the same drawn fields; hand-computed values."""

import functools
import math

import cv2
import jax
import numpy as np
import pytest
from scipy import ndimage

from jaxbed.measures import imagenet_c_blur as blur
from jaxbed.measures import imagenet_c_weather as weather

SEVERITIES = (1, 2, 3, 4, 5)
HEIGHT, WIDTH, BATCH = 20, 28, 2
PHOTOGRAPHS = np.random.default_rng(8).random((6, 40, 50, 3)).astype(np.float32)
TABLE = weather.CORRUPTIONS | {"frost": weather.frost(PHOTOGRAPHS)}
CLOSE = {"rtol": 0, "atol": 1e-5}
# Where a step of a corruption jumps, at a threshold or between 8-bit levels, float32 and float64 may fall on different sides. The drawn
# fields stay this far away from all jumps, which transcriptions check.
AWAY = 2e-6


@functools.cache
def jitted(function):
    return jax.jit(function)


def images(count=BATCH, height=HEIGHT, width=WIDTH):
    return np.random.default_rng(1).random((count, height, width, 3)).astype(np.float32)


@functools.cache
def drawn(name, count=BATCH, seed=0, height=HEIGHT, width=WIDTH):
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.jit(jax.vmap(lambda key: TABLE[name].draw(key, height, width)))(keys)


def changed(name, severity, image, fields):
    return np.asarray(jitted(TABLE[name].change)(image, fields, *TABLE[name].arrays(severity, *image.shape[1:3])))


def one(fields, number):
    """What is drawn for one image, float64."""
    return jax.tree.map(lambda array: np.asarray(array[number], np.float64), fields)


def away(values, jump):
    assert np.abs(np.asarray(values) - jump).min() > AWAY, "choose another seed: a value is too close to a jump"


def away_from_levels(values):
    away(values, np.round(255 * values) / 255)


def transcribed(function, severity, image, fields):
    return np.stack([function(severity, each.astype(np.float64), one(fields, number)) for number, each in enumerate(image)])


# --- transcriptions ---


def plasma_by_points(displacement, decay):
    """Diamond-square, point by point."""
    side = len(displacement)
    field = np.zeros((side, side))

    def new(row, column, neighbours, amplitude):
        total = sum(field[(row + down) % side, (column + right) % side] for down, right in neighbours)
        field[row, column] = total / 4 + amplitude * displacement[row, column]

    step, amplitude = side, 100.0**2
    while step > 1:
        half = step // 2
        for row in range(half, side, step):
            for column in range(half, side, step):
                new(row, column, [(-half, -half), (-half, half), (half, -half), (half, half)], amplitude)
        for row in range(0, side, half):
            for column in range(0 if row % step else half, side, step):
                new(row, column, [(-half, 0), (half, 0), (0, -half), (0, half)], amplitude)
        step, amplitude = half, amplitude / decay**2
    return (field - field.min()) / (field - field.min()).max()


def zoomed_by_scipy(layer, factor):
    height, width = layer.shape
    tall, wide = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - tall) // 2, (width - wide) // 2
    large = ndimage.zoom(layer[top : top + tall, left : left + wide], factor, order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return large[top : top + height, left : left + width]


def motion_blurred_by_taps(layer, radius, sigma, angle):
    height, width = layer.shape
    weight = [math.exp(-(tap**2) / (2 * sigma**2)) for tap in range(2 * radius + 1)]
    result = np.zeros_like(layer)
    for tap, each in enumerate(weight):
        down, right = tap * math.sin(angle) - 0.5, tap * math.cos(angle) - 0.5
        if tap:
            away([down - round(down), right - round(right)], 0)
        for row in range(height):
            for column in range(width):
                place = min(max(row + math.ceil(down), 0), height - 1), min(max(column + math.ceil(right), 0), width - 1)
                result[row, column] += each / sum(weight) * layer[place]
    return result


def snow_by_numpy(severity, image, fields):
    mean, scale, factor, threshold, radius, sigma, share = [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ][severity - 1]
    layer = zoomed_by_scipy(mean + scale * fields.noise, factor)
    away(layer, threshold)
    layer = np.clip(np.where(layer < threshold, 0, layer), 0, 1)
    away_from_levels(layer[(layer > 0) & (layer < 1)])
    layer = np.floor(255 * layer) / 255
    layer = motion_blurred_by_taps(layer, radius, sigma, math.radians(-135 + 90 * float(fields.turn)))
    grey = 0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]
    result = share * image + (1 - share) * np.maximum(image, 1.5 * grey[..., None] + 0.5)
    return result + layer[..., None] + np.rot90(layer, 2)[..., None]


def mud_by_scipy(severity, image, fields):
    mean, scale, sigma, threshold, mud_sigma = {4: (0.65, 0.3, 1, 0.65, 1.5), 5: (0.67, 0.4, 1, 0.65, 1.5)}[severity]
    level = ndimage.gaussian_filter(mean + scale * fields.noise, sigma, mode="nearest", truncate=4)
    away(level, threshold)
    layer = ndimage.gaussian_filter((level > threshold).astype(float), mud_sigma, mode="nearest", truncate=4)
    away(layer, 0.8)
    layer = np.where(layer < 0.8, 0, layer)[..., None]
    return image * (1 - layer) + layer * np.array([63, 42, 20]) / 255


def frost_by_numpy(severity, image, place):
    kept, added = [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)][severity - 1]
    number, top, left = int(place[0] * 5), int(place[1] * (40 - HEIGHT)), int(place[2] * (50 - WIDTH))
    return kept * image + added * PHOTOGRAPHS[number, top : top + HEIGHT, left : left + WIDTH]


def water_by_numpy(noise, sigma, threshold, strength):
    """A mask of water. Edges and distances are OpenCV's, and means of distances, as these may be whole numbers before they are cut."""
    level = ndimage.gaussian_filter(0.65 + 0.3 * noise.astype(np.float64), sigma, mode="nearest", truncate=4)
    away(level, threshold)
    away_from_levels(level[level > threshold])
    level = (255 * np.where(level < threshold, 0, np.minimum(level, 1))).astype(np.uint8)
    distance = np.minimum(cv2.distanceTransform(255 - cv2.Canny(level, 50, 150), cv2.DIST_L2, 5), 20)
    distance = cv2.blur(distance, (3, 3)).astype(np.uint8)
    counts = np.bincount(distance.ravel(), minlength=256)
    first = np.flatnonzero(counts)[0]
    share = (np.cumsum(counts) - counts[first]) / (distance.size - counts[first])
    equal = np.round(255 * share[distance])
    lit = np.clip(ndimage.correlate(equal, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]), mode="mirror"), 0, 255)
    mask = level * np.round(ndimage.uniform_filter(lit, 3, mode="mirror"))
    return mask / mask.max() * strength


# --- fog ---


@pytest.mark.parametrize("decay", [1.4, 2.0])
def test_a_plasma_is_diamond_square_on_a_torus(decay):
    displacement = np.random.default_rng(2).uniform(-1, 1, (2, 32, 32)).astype(np.float32)
    expected = [plasma_by_points(each, decay) for each in displacement.astype(np.float64)]
    np.testing.assert_allclose(jitted(weather.plasma)(displacement, decay), expected, **CLOSE)


def test_fog_is_cut_out_of_a_plasma_of_256_px():
    image, displacement = images(1), drawn("fog", 1)
    assert displacement.shape == (1, 256, 256)
    for severity, (density, decay) in {1: (1.5, 2.0), 5: (3.0, 1.4)}.items():
        field = plasma_by_points(np.asarray(displacement[0], np.float64), decay)[:HEIGHT, :WIDTH, None]
        expected = (image[0] + density * field) * image.max() / (image.max() + density)
        np.testing.assert_allclose(changed("fog", severity, image, displacement)[0], expected, **CLOSE)


@pytest.mark.parametrize(("sides", "expected"), [((224, 224), 256), ((256, 20), 256), ((257, 20), 512), ((20, 600), 1024)])
def test_larger_images_have_the_next_power_of_two(sides, expected):
    assert weather.torus(*sides) == expected
    assert jax.eval_shape(lambda key: weather.draw_fog(key, *sides), jax.random.key(0)).shape == (expected, expected)


def test_fog_on_half_grey_by_hand():
    image, field = np.full((1, 1, 2, 3), 0.5, np.float32), np.array([[[0.0, 1.0]]], np.float32)
    np.testing.assert_allclose(jitted(weather.in_fog)(image, field, 1.5)[0, 0], [[0.125] * 3, [0.5] * 3], **CLOSE)


# --- snow ---


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_agrees_with_its_transcription(severity):
    image, fields = images(), drawn("snow")
    np.testing.assert_allclose(changed("snow", severity, image, fields), transcribed(snow_by_numpy, severity, image, fields), **CLOSE)


def test_zooms_at_224_px_crop_as_published():
    for factor, cropped in {3: 75, 2: 112, 4: 56, 4.5: 50, 2.5: 90}.items():
        axis = weather.middle(224, factor)
        place = axis.lower + axis.fraction
        assert place[0] == (224 - cropped) // 2
        np.testing.assert_allclose(np.diff(place), (cropped - 1) / (round(cropped * factor) - 1), atol=1e-5)


def test_a_streak_goes_one_way():
    """At -90 degrees, what is above a pixel adds to it; all of a tap's weight stays on the image."""
    dot = np.zeros((1, 9, 9), np.float32)
    dot[0, 4, 4] = 1
    along = blur.streak(1, 1.0, 5)
    expected = np.exp([0, -0.5, -2]) / np.exp([0, -0.5, -2]).sum()
    np.testing.assert_allclose(along.weights, [*expected, 0, 0], **CLOSE)
    result = np.asarray(jitted(blur.streaked)(dot[..., None], np.float32([-1.6]), along))[0, ..., 0]
    np.testing.assert_allclose(result[4:7, 4], expected, **CLOSE)
    np.testing.assert_allclose(result.sum(), 1, **CLOSE)


def test_constants_are_fixed_points_of_snows_filters():
    constant = np.full((1, HEIGHT, WIDTH), 0.3, np.float32)
    axes = weather.middle(HEIGHT, 4.5), weather.middle(WIDTH, 4.5)
    np.testing.assert_allclose(jitted(weather.zoomed)(constant, *axes), constant, **CLOSE)
    blurred = jitted(blur.streaked)(constant[..., None], np.float32([-2.0]), blur.streak(12, 8, 25))
    np.testing.assert_allclose(blurred[..., 0], constant, **CLOSE)


def test_snow_falls_to_both_sides():
    turn = np.asarray(drawn("snow", 400, height=2, width=2).turn)
    assert 0 <= turn.min() < 0.05
    assert 0.95 < turn.max() < 1
    assert abs(turn.mean() - 0.5) < 0.05


# --- spatter ---


@pytest.mark.parametrize("severity", [4, 5])
def test_mud_agrees_with_its_transcription(severity):
    image, fields = images(), drawn("spatter", seed=3)
    result = changed("spatter", severity, image, fields)
    np.testing.assert_allclose(result, transcribed(mud_by_scipy, severity, image, fields), **CLOSE)
    assert 0.05 < np.isclose(result, image).mean() < 0.95


@pytest.mark.parametrize(("severity", "constants"), [(1, (4, 0.69, 0.6)), (2, (3, 0.68, 0.6)), (3, (2, 0.68, 0.5))])
def test_masks_of_water_agree_with_their_transcription(severity, constants):
    seed, shape = 3, (2, 24, 40)
    masks = weather.water_masks(seed, *shape, severity)
    noise = np.random.default_rng(seed).standard_normal(shape, np.float32)
    expected = np.stack([water_by_numpy(each, *constants) for each in noise])
    np.testing.assert_allclose(masks, expected, **CLOSE)
    np.testing.assert_allclose(masks.max((1, 2)), constants[-1], **CLOSE)
    assert (masks == 0).any((1, 2)).all()


def test_water_adds_one_of_its_masks():
    image, fields = np.zeros((6, HEIGHT, WIDTH, 3), np.float32), drawn("spatter", 6)
    masks = weather.water_masks(weather.WATER_SEED, weather.WATER_COUNT, HEIGHT, WIDTH, 2)
    expected = masks[(np.asarray(fields.which) * len(masks)).astype(int)][..., None] * np.array([175, 238, 238]) / 255
    np.testing.assert_allclose(changed("spatter", 2, image, fields), expected, **CLOSE)


def test_masks_do_not_depend_on_their_number_or_what_is_asked_before():
    np.testing.assert_array_equal(weather.water_masks(0, 2, 24, 24, 1), weather.water_masks(0, 5, 24, 24, 1)[:2])
    assert (weather.water_masks(0, 2, 24, 24, 1) != weather.water_masks(1, 2, 24, 24, 1)).any()


def test_mud_is_no_water():
    with pytest.raises(ValueError, match="severity = 4: spatter is water at the severities 1 to 3"):
        weather.water_masks(0, 1, 24, 24, 4)


# --- frost ---


@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_agrees_with_its_transcription(severity):
    image, place = images(), drawn("frost")
    np.testing.assert_allclose(changed("frost", severity, image, place), transcribed(frost_by_numpy, severity, image, place), **CLOSE)


def test_all_of_five_photographs_and_no_other_are_seen():
    numbered = np.broadcast_to(np.arange(6, dtype=np.float32).reshape(-1, 1, 1, 1) / 10, (6, 3, 3, 3))
    corruption = weather.frost(numbered)
    place = drawn("frost", 200, height=2, width=2)
    seen = jitted(corruption.change)(np.zeros((200, 2, 2, 3), np.float32), place, *corruption.arrays(2, 2, 2))
    counts = np.unique(np.round(np.asarray(seen)[:, 0, 0, 0] / 0.06), return_counts=True)
    np.testing.assert_array_equal(counts[0], np.arange(5))
    assert counts[1].min() > 20


def test_photographs_may_be_as_large_as_the_image():
    corruption = weather.frost(PHOTOGRAPHS[:1, :HEIGHT, :WIDTH])
    result = jitted(corruption.change)(images(), drawn("frost"), *corruption.arrays(1, HEIGHT, WIDTH))
    np.testing.assert_allclose(result, images() + 0.4 * PHOTOGRAPHS[0, :HEIGHT, :WIDTH], **CLOSE)


@pytest.mark.parametrize(
    ("photographs", "message"),
    [
        (PHOTOGRAPHS[0], r"shape \(50, 3\)"),
        (PHOTOGRAPHS[:0], "at least one"),
        (PHOTOGRAPHS * 255, r"in \[0, 1\]"),
    ],
    ids=["one", "none", "levels"],
)
def test_unfit_photographs_are_an_error(photographs, message):
    with pytest.raises(ValueError, match=message):
        weather.frost(photographs)


def test_photographs_of_different_sizes_are_cropped_each_within_itself():
    large, small = np.full((30, 40, 3), 0.4, np.float32), np.full((8, 50, 3), 0.8, np.float32)
    corruption = weather.frost([large, small])
    fields = drawn("frost", 300, height=8, width=10)
    seen = jitted(corruption.change)(np.zeros((300, 8, 10, 3), np.float32), fields, *corruption.arrays(1, 8, 10))
    flat = np.asarray(seen).reshape(300, -1) / 0.4
    assert (np.ptp(flat, 1) < 1e-6).all()  # of one photograph, and nothing of what fills up the smaller one
    assert set(flat[:, 0].round(3).tolist()) == {np.float32(0.4).round(3), np.float32(0.8).round(3)}


def test_photographs_smaller_than_images_are_an_error():
    with pytest.raises(ValueError, match="images of 20 x 51 px do not fit into a photograph of 40 x 50 px"):
        TABLE["frost"].arrays(1, 20, 51)


# --- all ---


@pytest.mark.parametrize("name", TABLE)
def test_each_image_is_changed_alone(name):
    corruption = TABLE[name]
    fields = drawn(name) if corruption.draw else None
    together = changed(name, 4, images(), fields)
    alone = changed(name, 4, images()[1:], jax.tree.map(lambda array: array[1:], fields))
    assert together.shape == images().shape
    assert together.dtype == np.float32
    np.testing.assert_allclose(alone[0], together[1], **CLOSE)


@pytest.mark.parametrize("name", ["fog", "snow", "spatter", "frost"])
def test_other_keys_give_other_images(name):
    first, second = changed(name, 4, np.repeat(images(1), 2, 0), drawn(name))
    assert np.abs(first - second).max() > 0.01


@pytest.mark.parametrize("name", ["fog", "snow", "frost", "jpeg_compression"])
def test_severities_share_a_function(name):
    shapes = {str(jax.tree.map(lambda array: (array.shape, array.dtype), TABLE[name].arrays(severity, 20, 28))) for severity in SEVERITIES}
    assert len(shapes) == 1


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("severity", [0, 6])
def test_other_severities_are_an_error(name, severity):
    with pytest.raises(ValueError, match=f"severity = {severity}: it must be 1, 2, 3, 4 or 5"):
        TABLE[name].arrays(severity, 20, 28)


def test_jpeg_has_the_published_qualities():
    steps = [int(TABLE["jpeg_compression"].arrays(severity, HEIGHT, WIDTH)[0][0, 0, 0]) for severity in SEVERITIES]
    assert steps == [(16 * (5000 // quality) + 50) // 100 for quality in (25, 18, 15, 10, 7)]


def test_results_are_cut_to_8_bits():
    levels = np.arange(256, dtype=np.float32)
    np.testing.assert_allclose(255 * np.asarray(jitted(weather.truncated)(levels / 255)), levels, rtol=0, atol=1e-4)  # those of 8 bits stay
    values = np.array([-0.5, 0.0, 0.99 / 255, 1.5 / 255, 0.9999, 1.0, 1.5], np.float32)
    np.testing.assert_allclose(255 * np.asarray(jitted(weather.truncated)(values)), [0, 0, 0, 1, 254, 255, 255], rtol=0, atol=1e-4)
