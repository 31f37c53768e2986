"""Corruptions against transcriptions in NumPy that go through pixels one by one, on the same random fields."""

import colorsys
import functools
import math

import jax
import numpy as np
import pytest

from jaxbed.measures import imagenet_c

SEVERITIES = (1, 2, 3, 4, 5)
SHAPE = (24, 20, 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, *SHAPE))
IMAGES[0, :3, :3] = [[0], [128], [255]]  # grey, where hues are undefined
IMAGES = (IMAGES / 255).astype(np.float32)
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


TRANSCRIPTIONS = [gaussian_noise, shot_noise, impulse_noise, speckle_noise, brightness, contrast, saturate]


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
