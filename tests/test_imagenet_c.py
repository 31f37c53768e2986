"""Corruptions against transcriptions in NumPy that go through pixels one by one, on the same random fields."""

import colorsys
import functools
import math

import jax
import numpy as np
import PIL.Image
import pytest
from scipy import ndimage

from jaxbed.measures import imagenet_c

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


def difference(transcription, severity):
    """The largest, of two images."""
    name = transcription.__name__
    fields = drawn(name)
    of_image = [jax.tree.map(lambda field, i=i: field[i], fields) for i in range(len(IMAGES))]
    expected = np.stack([transcription(image, field, severity) for image, field in zip(IMAGES, of_image, strict=True)])
    return np.abs(changed(name, severity) - expected).max()


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("transcription", TRANSCRIPTIONS)
def test_each_corruption_is_its_transcription(transcription, severity):
    assert difference(transcription, severity) < 1e-5
