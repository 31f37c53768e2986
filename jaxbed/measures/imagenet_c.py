"""ImageNet-C: corruptions of images at five severities, for a whole batch on the device.

`CORRUPTIONS` maps published names to what is drawn at random, what a severity sets, and how both change an image. The draw does not depend
on the severity, and all severities of a corruption share one compiled function. Constants in pixels are meant for 224 px.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (ICLR 2019), and their
code. Differences from the published code: random numbers come from another generator, floats have 32 bits, and no image is stored as JPEG;
motion blur shifts by whole pixels as in the package imagecorruptions, where the published files used ImageMagick; the affine map of the
elastic transform interpolates at exact coordinates, where OpenCV rounds them to 1/32 px.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures import imagenet_c_blur as blur
from jaxbed.measures import imagenet_c_warp as warp
from jaxbed.measures import imagenet_c_weather as weather
from jaxbed.measures.corruption import Corruption, constants


def _numbers(*tables: Sequence[float]) -> Callable[[int, int, int], tuple]:
    """The `arrays` of a corruption that needs only numbers, one of each table."""
    return lambda severity, height, width: tuple(np.float32(constants(table, severity)) for table in tables)


def _normals(key: jax.Array, height: int, width: int) -> jax.Array:
    return jax.random.normal(key, (height, width, 3))


def _uniforms(key: jax.Array, height: int, width: int) -> jax.Array:
    return jax.random.uniform(key, (height, width, 3))


# Noise


def gaussian_noise(image: jax.Array, normal: jax.Array, sigma: jax.Array) -> jax.Array:
    """Adds normal noise of one standard deviation to each value."""
    return image + sigma * normal


def speckle_noise(image: jax.Array, normal: jax.Array, sigma: jax.Array) -> jax.Array:
    """Adds normal noise in proportion to each value."""
    return image + image * sigma * normal


def impulse_noise(image: jax.Array, uniform: jax.Array, share: jax.Array) -> jax.Array:
    """Turns a share of all values, channel by channel, to 1 or 0 with equal probability."""
    return jnp.where(uniform < share / 2, 1.0, jnp.where(uniform >= 1 - share / 2, 0.0, image))


PHOTONS = (60, 25, 12, 5, 3)  # that white stands for
COUNTS = 64  # a power of two above all photons, for a binary search


def shot_noise(image: jax.Array, uniform: jax.Array, table: jax.Array, photons: jax.Array) -> jax.Array:
    """Counts of photons, Poisson distributed around each 8-bit value: quantiles at uniform [B, H, W, 3], by binary search in a table."""
    level, count = jnp.round(image * 255).astype(jnp.int32), jnp.zeros(image.shape, jnp.int32)
    step = COUNTS // 2
    while step:
        count += jnp.where(uniform >= table[level, count + step - 1], step, 0)
        step //= 2
    return count / photons


def _shot_noise(severity: int, height: int, width: int) -> tuple[np.ndarray, np.float32]:
    """The probabilities [256, 64] of at most n photons at each 8-bit level, and the photons of white. Larger counts would be clipped."""
    photons = constants(PHOTONS, severity)
    mean = photons * np.arange(256)[:, None] / 255
    factors = np.concatenate([np.exp(-mean), mean / np.arange(1, COUNTS)], axis=1)
    at_most = np.minimum(np.cumsum(np.cumprod(factors, axis=1), axis=1), 1)
    at_most[:, photons:] = 1
    return at_most.astype(np.float32), np.float32(photons)


# Colour


def brightness(image: jax.Array, drawn: None, more: jax.Array) -> jax.Array:
    """Adds to the value V of HSV, up to 1. Hue and saturation stay: all channels grow by one factor. Black becomes grey."""
    value = image.max(-1, keepdims=True)
    brighter = jnp.clip(value + more, 0, 1)
    return jnp.where(value > 0, image * brighter / jnp.where(value > 0, value, 1), brighter)


def saturate(image: jax.Array, drawn: None, factor: jax.Array, more: jax.Array) -> jax.Array:
    """Sets the saturation S of HSV to factor · S + more, clipped to [0, 1]. Grey has hue 0: added saturation makes it red, as published."""
    value, least = image.max(-1, keepdims=True), image.min(-1, keepdims=True)
    spread = value - least
    red = jnp.array([0.0, 1.0, 1.0])
    below = jnp.where(spread > 0, (value - image) / jnp.where(spread > 0, spread, 1), red)  # 0 in the brightest channel, 1 in the darkest
    saturation = jnp.clip(spread / jnp.where(value > 0, value, 1) * factor + more, 0, 1)
    return value * (1 - saturation * below)


def contrast(image: jax.Array, drawn: None, factor: jax.Array) -> jax.Array:
    """Scales the distance of each value from its channel's mean over the image."""
    mean = image.mean(1, keepdims=True).mean(2, keepdims=True)  # one sum over all pixels would lose digits of float32
    return (image - mean) * factor + mean


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(gaussian_noise, _numbers((0.08, 0.12, 0.18, 0.26, 0.38)), _normals),
    "shot_noise": Corruption(shot_noise, _shot_noise, _uniforms),
    "impulse_noise": Corruption(impulse_noise, _numbers((0.03, 0.06, 0.09, 0.17, 0.27)), _uniforms),
    "speckle_noise": Corruption(speckle_noise, _numbers((0.15, 0.2, 0.35, 0.45, 0.6)), _normals),
    "gaussian_blur": Corruption(blur.gaussian_blur, blur.of_gaussian_blur),
    "defocus_blur": Corruption(blur.defocus_blur, blur.of_defocus_blur),
    "glass_blur": Corruption(warp.glass_blur, warp.of_glass_blur, warp.draw_offsets),
    "motion_blur": Corruption(blur.motion_blur, blur.of_motion_blur, blur.draw_angle),
    "zoom_blur": Corruption(blur.zoom_blur, blur.of_zoom_blur),
    "elastic_transform": Corruption(warp.elastic_transform, warp.of_elastic_transform, warp.draw_elastic),
    "pixelate": Corruption(blur.pixelate, blur.of_pixelate),
    "brightness": Corruption(brightness, _numbers((0.1, 0.2, 0.3, 0.4, 0.5))),
    "contrast": Corruption(contrast, _numbers((0.4, 0.3, 0.2, 0.1, 0.05))),
    "saturate": Corruption(saturate, _numbers((0.3, 0.1, 2, 5, 20), (0, 0, 0, 0.1, 0.2))),
    **weather.CORRUPTIONS,
}
