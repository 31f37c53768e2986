"""Corruptions against plain transcriptions with NumPy, SciPy and Pillow on the same random fields, and against values computed by hand."""

import colorsys
import functools
import math

import jax
import numpy as np
import PIL.Image
import pytest
from scipy import ndimage

from jaxbed.measures import imagenet_c
from jaxbed.measures.corruption import Axes, truncated

SEVERITIES = (1, 2, 3, 4, 5)
SHAPE = (24, 20, 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, *SHAPE))
IMAGES[0, :3, :3] = [[0], [128], [255]]  # grey, where hues are undefined
IMAGES = (IMAGES / 255).astype(np.float32)
GLASS = [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)]
ELASTIC = [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)]
compiled = functools.cache(jax.jit)


@functools.cache
def drawn(name, shape=SHAPE, seed=0):
    """What is random of two images, as arrays of NumPy."""
    draw = imagenet_c.CORRUPTIONS[name].draw
    if draw is None:
        return None
    each = jax.vmap(lambda key: draw(key, *shape[:2]))(jax.random.split(jax.random.key(seed), 2))
    return jax.tree.map(np.asarray, each)


def changed(name, severity, images=IMAGES, fields=None):
    corruption = imagenet_c.CORRUPTIONS[name]
    fields = drawn(name, images.shape[1:]) if fields is None else fields
    return np.asarray(compiled(corruption.change)(images, fields, *corruption.arrays(severity, *images.shape[1:3])))


def each_value(function, *arrays):
    return np.vectorize(function, otypes=[float])(*(array.astype(float) for array in arrays))


def gaussian_noise(image, normal, severity):
    return image + [0.08, 0.12, 0.18, 0.26, 0.38][severity - 1] * normal


def speckle_noise(image, normal, severity):
    return image + image * [0.15, 0.2, 0.35, 0.45, 0.6][severity - 1] * normal


def impulse_noise(image, uniform, severity):
    share = [0.03, 0.06, 0.09, 0.17, 0.27][severity - 1]
    return each_value(lambda value, u: 1 if u < share / 2 else 0 if u >= 1 - share / 2 else value, image, uniform)


def shot_noise(image, uniform, severity):
    photons = [60, 25, 12, 5, 3][severity - 1]

    def quantile(value, u):
        count, probability = 0, math.exp(-photons * value)
        at_most = probability
        while at_most <= u and count < 200:
            count += 1
            probability *= photons * value / count
            at_most += probability
        return min(count / photons, 1)

    return each_value(quantile, image, uniform)


def each_colour(function, image):
    colours = [function(*colorsys.rgb_to_hsv(*colour)) for colour in image.reshape(-1, 3).astype(float)]
    return np.array([colorsys.hsv_to_rgb(*colour) for colour in colours]).reshape(image.shape)


def brightness(image, _, severity):
    return each_colour(lambda hue, saturation, value: (hue, saturation, min(value + severity / 10, 1)), image)


def saturate(image, _, severity):
    factor, more = [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)][severity - 1]
    return each_colour(lambda hue, saturation, value: (hue, min(saturation * factor + more, 1), value), image)


def contrast(image, _, severity):
    mean = image.astype(float).reshape(-1, 3).mean(0)
    return (image - mean) * [0.4, 0.3, 0.2, 0.1, 0.05][severity - 1] + mean


def gaussian_blur(image, _, severity):
    return ndimage.gaussian_filter(image.astype(float), [1, 2, 3, 4, 6][severity - 1], mode="nearest", axes=(0, 1))


def defocus_blur(image, _, severity):
    radius, sigma = [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)][severity - 1]
    reach, window = (8, 1) if radius <= 8 else (10, 2)
    disc = np.array([[float(u * u + v * v <= radius * radius) for u in range(-reach, reach + 1)] for v in range(-reach, reach + 1)])
    assert disc.sum() == [29, 49, 113, 197, 317][severity - 1]
    kernel = ndimage.gaussian_filter(disc / disc.sum(), sigma, mode="mirror", radius=window)
    return ndimage.correlate(image.astype(float), kernel[:, :, None], mode="mirror")


def motion_blur(image, uniform, severity):
    radius, sigma = [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)][severity - 1]
    angle, (height, width, _) = math.radians(-45 + 90 * float(uniform)), image.shape
    weights = [math.exp(-(tap**2) / (2 * sigma**2)) for tap in range(2 * radius + 1)]
    blurred = np.zeros(image.shape)
    for tap, weight in enumerate(weights):
        right, down = -math.ceil(tap * math.cos(angle) - 0.5), -math.ceil(tap * math.sin(angle) - 0.5)
        for row, column in np.ndindex(height, width):
            source = image[min(max(row - down, 0), height - 1), min(max(column - right, 0), width - 1)]
            blurred[row, column] += weight / sum(weights) * source
    return blurred


def zoom_blur(image, _, severity):
    end, step, number = [(1.11, 0.01, 12), (1.16, 0.01, 16), (1.21, 0.02, 11), (1.26, 0.02, 13), (1.31, 0.03, 11)][severity - 1]
    factors, (height, width, _) = np.arange(1, end, step), image.shape
    assert len(factors) == number
    total = image.astype(float)
    for factor in factors:
        high, wide = math.ceil(height / factor), math.ceil(width / factor)
        top, left = (height - high) // 2, (width - wide) // 2
        cropped = image[top : top + high, left : left + wide].astype(float)
        enlarged = ndimage.zoom(cropped, (factor, factor, 1), order=1, mode="nearest")
        top, left = (enlarged.shape[0] - height) // 2, (enlarged.shape[1] - width) // 2
        total += enlarged[top : top + height, left : left + width]
    return total / (number + 1)


def pixelate(image, _, severity):
    (height, width, _), share = image.shape, [0.6, 0.5, 0.4, 0.3, 0.25][severity - 1]
    small = PIL.Image.fromarray(np.uint8(np.round(image * 255))).resize((int(width * share), int(height * share)), PIL.Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), PIL.Image.Resampling.BOX)) / 255


def swept(pixels, numbers, severity):
    """The published loops, of a copy of an image: rows and columns from the last to the first."""
    _, shift, sweeps = GLASS[severity - 1]
    pixels, (height, width, _) = pixels.copy(), pixels.shape
    for sweep in range(sweeps):
        for row in range(height - shift, shift, -1):
            for column in range(width - shift, shift, -1):
                right, down = (int(number) * 2 * shift // 24 - shift for number in numbers[sweep, row, column])
                pixels[row, column] = pixels[row + down, column + right]
    return pixels


def glass_blur(image, numbers, severity):
    def blurred(pixels):
        return ndimage.gaussian_filter(pixels, GLASS[severity - 1][0], mode="nearest", axes=(0, 1))

    pixels = 255 * blurred(image.astype(float)) + 0.001  # what float32 loses must not truncate to another step
    assert np.abs(pixels - np.round(pixels)).min() > 5e-5  # else other images are needed: of these no value is so near to a step
    return blurred(swept(np.floor(pixels) / 255, numbers, severity))


def elastic_transform(image, fields, severity):
    corners, field = (each.astype(float) for each in fields)
    strength, sigma, jitter = ELASTIC[severity - 1]
    height, width, _ = image.shape
    side, arm = min(height, width) * 244 / 224, min(height, width) // 3
    before = np.array([width // 2, height // 2]) + arm * np.array([[1, 1], [1, -1], [-1, -1]])
    after = np.concatenate([before + side * jitter * corners, np.ones((3, 1))], axis=1)
    back = np.linalg.solve(after, before)  # [3, 2]: from where a pixel is in the end, to where it comes from
    row, column = np.indices((height, width))
    x, y = np.moveaxis(np.stack([column, row, np.ones_like(row)], -1) @ back, -1, 0)
    sampled = functools.partial(ndimage.map_coordinates, order=1)
    mapped = np.stack([sampled(channel, (y, x), mode="mirror") for channel in np.moveaxis(image.astype(float), -1, 0)])
    dx, dy = side * strength * np.moveaxis(ndimage.gaussian_filter(field, side * sigma, mode="reflect", truncate=3, axes=(0, 1)), -1, 0)
    return np.stack([sampled(channel, (row + dy, column + dx), mode="reflect") for channel in mapped], -1)


TRANSCRIPTIONS = [
    *(gaussian_noise, shot_noise, impulse_noise, speckle_noise, brightness, contrast, saturate),
    *(gaussian_blur, defocus_blur, motion_blur, zoom_blur, pixelate, glass_blur, elastic_transform),
]


def largest_difference(transcription, severity):
    name = transcription.__name__
    fields = drawn(name)
    of_image = [jax.tree.map(lambda field, i=i: field[i], fields) for i in range(len(IMAGES))]
    expected = np.stack([transcription(image, field, severity) for image, field in zip(IMAGES, of_image, strict=True)])
    return np.abs(changed(name, severity) - expected).max()


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS)
def test_each_corruption_is_its_transcription(transcription, severity):
    assert largest_difference(transcription, severity) < 1e-5


@pytest.mark.parametrize(
    ("name", "severity", "colour", "expected"),
    [
        ("brightness", 1, (0.2, 0.4, 0.6), (0.7 / 3, 1.4 / 3, 0.7)),
        ("brightness", 5, (0, 0, 0), (0.5, 0.5, 0.5)),
        ("saturate", 3, (0.2, 0.4, 0.6), (0, 0.3, 0.6)),
        ("saturate", 4, (0.5, 0.5, 0.5), (0.5, 0.45, 0.45)),  # grey becomes reddish
        ("saturate", 5, (0, 0, 0), (0, 0, 0)),
        ("contrast", 1, (0.2, 0.4, 0.6), (0.2, 0.4, 0.6)),
        ("shot_noise", 5, (0, 0, 0), (0, 0, 0)),
        ("pixelate", 2, (0.2, 0.4, 0.6), (0.2, 0.4, 0.6)),
    ],
)
def test_colours_computed_by_hand(name, severity, colour, expected):
    image = np.broadcast_to(np.array(colour, np.float32), IMAGES.shape)
    np.testing.assert_allclose(changed(name, severity, image), np.broadcast_to(expected, image.shape), atol=1e-6)


def test_contrast_of_black_and_white_computed_by_hand():
    halves = np.broadcast_to(np.float32([[[0]], [[1]]] * (SHAPE[0] // 2)), IMAGES.shape)
    expected = np.broadcast_to([[[0.3]], [[0.7]]] * (SHAPE[0] // 2), IMAGES.shape)
    np.testing.assert_allclose(changed("contrast", 1, halves), expected, atol=1e-6)


@pytest.mark.parametrize("severity", [1, 3])
@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"])
def test_blurs_keep_images_of_one_colour(name, severity):
    """Disc kernels of severities 4 and 5 sum to more than 1, as published."""
    grey = np.full(IMAGES.shape, 51 / 255, np.float32)
    np.testing.assert_allclose(truncated(changed(name, severity, grey)), grey, atol=1e-7)


def test_truncation_keeps_the_steps_of_8_bits_and_loses_what_is_between():
    step = np.arange(256) / 255
    np.testing.assert_array_equal(np.round(255 * np.asarray(truncated(step.astype(np.float32)))), np.arange(256))
    np.testing.assert_allclose(truncated(np.float32([-0.1, 0.3, 1.2])), [0, 76 / 255, 1], atol=1e-7)


@pytest.mark.parametrize(("severity", "sides"), [(1, 134), (2, 112), (3, 89), (4, 67), (5, 56)])
def test_pixelated_images_of_224_pixels_have_the_published_sides(severity, sides):
    (boxes,) = imagenet_c.CORRUPTIONS["pixelate"].arrays(severity, 224, 224)
    assert len(np.unique(boxes.rows, axis=0)) == sides


def test_shot_noise_has_the_mean_and_the_variance_of_photons():
    image, uniform = np.full((1, 200, 200, 3), 51 / 255, np.float32), (np.arange(120_000).reshape(1, 200, 200, 3) + 0.5) / 120_000
    counts = changed("shot_noise", 1, image, uniform.astype(np.float32)) * 60
    assert counts.mean() == pytest.approx(12, abs=1e-3)
    assert counts.var() == pytest.approx(12, abs=0.01)


def test_impulses_are_drawn_for_each_channel():
    """As often black as white."""
    image = np.full((1, 100, 100, 3), 0.5, np.float32)
    noisy = changed("impulse_noise", 5, image, np.asarray(imagenet_c.CORRUPTIONS["impulse_noise"].draw(jax.random.key(0), 100, 100))[None])
    for value in (0, 1):
        assert (noisy == value).mean((0, 1, 2)) == pytest.approx(0.135, abs=0.015)
    assert ((noisy == 0.5).all(-1)).mean() == pytest.approx(0.73**3, abs=0.02)


@pytest.mark.parametrize("shift", [1, 2, 3, 4])
def test_glass_blur_looks_for_pixels_at_all_offsets_equally_often(shift):
    offset = np.arange(24) * 2 * shift // 24 - shift
    offsets, times = np.unique(offset, return_counts=True)
    assert (offsets == np.arange(-shift, shift)).all() and (times == 12 // shift).all()
    numbers = drawn("glass_blur")
    assert numbers.min() == 0 and numbers.max() == 23 and abs(numbers.mean() - 11.5) < 0.3


def numbered(height, width):
    """An 8-bit image that tells each pixel by its row and its column."""
    row, column = np.indices((height, width))
    return np.stack([row, column, 0 * row], -1)


def moved(numbers, severity):
    """What glass blur does to the places of pixels, without its blurs."""
    (change, arrays, _), (_, height, width, _) = imagenet_c.CORRUPTIONS["glass_blur"], numbers.shape
    _, *rest = arrays(severity, height, width)
    neither = Axes(np.eye(height, dtype=np.float32), np.eye(width, dtype=np.float32))
    image = numbered(height, width)[None].astype(np.float32) / 255
    return np.round(255 * np.asarray(compiled(change)(image, numbers[None], neither, *rest))[0])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_moves_pixels_as_the_published_loops_do(severity):
    numbers = drawn("glass_blur")[1]
    np.testing.assert_array_equal(moved(numbers, severity), swept(numbered(*SHAPE[:2]), numbers, severity))


@pytest.mark.parametrize("severity", [2, 3, 4, 5])
def test_glass_blur_follows_the_longest_chain_of_pixels(severity):
    """Each pixel looks at the one to its right, the last of a row as far left as it can in the row below."""
    (height, width, _), shift = SHAPE, GLASS[severity - 1][1]
    right, down, left, same_row = ((offset + shift) * 12 // shift for offset in (1, 1, -shift, 0))
    numbers = np.zeros((3, height, width, 2), np.uint8)
    numbers[...] = right, same_row
    numbers[:, :, width - shift] = left, down
    expected = swept(numbered(height, width), numbers, severity)
    assert (expected[shift + 1, shift + 1, :2] > [height - shift, 0]).all()  # the first pixel comes from the last row
    np.testing.assert_array_equal(moved(numbers, severity), expected)


@pytest.mark.parametrize("name", imagenet_c.CORRUPTIONS)
def test_an_image_alone_changes_as_within_a_batch(name):
    alone = changed(name, 3, IMAGES[1:], jax.tree.map(lambda field: field[1:], drawn(name)))
    np.testing.assert_allclose(alone[0], changed(name, 3)[1], atol=1e-5)


@pytest.mark.parametrize("name", imagenet_c.CORRUPTIONS)
def test_severities_share_a_compiled_function(name):
    kinds = {
        str(jax.tree.map(lambda array: (array.shape, array.dtype), imagenet_c.CORRUPTIONS[name].arrays(severity, 9, 7)))
        for severity in SEVERITIES
    }
    assert len(kinds) == (2 if name == "spatter" else 1)  # water and mud


@pytest.mark.parametrize("name", [name for name, corruption in imagenet_c.CORRUPTIONS.items() if corruption.draw])
def test_different_keys_give_different_images(name):
    first, second = (changed(name, 4, fields=drawn(name, seed=seed)) for seed in (0, 1))
    assert (np.abs(first - second).max((1, 2, 3)) > 0.01).all()


@pytest.mark.parametrize("severity", [0, 6, 2.5])
@pytest.mark.parametrize("name", imagenet_c.CORRUPTIONS)
def test_other_severities_are_refused(name, severity):
    with pytest.raises(ValueError, match="must be 1, 2, 3, 4 or 5"):
        imagenet_c.CORRUPTIONS[name].arrays(severity, 8, 8)


@pytest.mark.parametrize("name", imagenet_c.CORRUPTIONS)
def test_small_images_of_odd_sides_stay_images(name):
    image = IMAGES[:, :5, :3]
    for severity in (1, 5):
        assert np.isfinite(changed(name, severity, image)).all()
