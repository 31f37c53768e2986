"""Random boxes of whole pixels, as augmentations crop and erase them. Each is drawn for one image."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

Size = tuple[int, int]  # height, width in pixels
Box = tuple[jax.Array | float, ...]  # top, left, height, width in pixels
TRIES = 10  # boxes to draw before giving up


class Erasing(NamedTuple):
    """A published form of random erasing."""

    scale_frac: tuple[float, float]  # area of the rectangle over the image's, uniform
    ratio: tuple[float, float]  # width over height
    by_height: bool  # height over width is uniform, not the logarithm
    tries: int
    fill: tuple[float, ...]  # of each channel, after normalisation


ERASING = {  # torchvision's, whose ratio is height over width (0.3 to 3.3), and that of Zhong et al. (2020), whose fill is CIFAR's mean
    "torchvision": Erasing((0.02, 0.33), (1 / 3.3, 1 / 0.3), False, TRIES, (0.0, 0.0, 0.0)),
    "zhong": Erasing((0.02, 0.4), (0.3, 1 / 0.3), True, 100, (0.4914, 0.4822, 0.4465)),
}


def draw_box(key: jax.Array, side_px: Size, scale_frac: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """A random box of whole (float32) pixels in an image of side_px = (H, W), as RandomResizedCrop draws it.

    Area is uniform in scale_frac of the image's, width over height log-uniform in ratio; the first of ten draws that fits. If
    none does, the largest central box with an allowed ratio.
    """
    box, fits = _draw_fitting(key, side_px, side_px, scale_frac, ratio)
    height, width = side_px
    h, w = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    central = ((height - h) // 2, (width - w) // 2, h, w)
    return tuple(jnp.where(fits, drawn, fallback) for drawn, fallback in zip(box, central, strict=True))


def draw_rectangle(key: jax.Array, side_px: Size, probability: float, form: Erasing = ERASING["torchvision"]) -> Box:
    """The box that random erasing fills, always shorter than each side; of size 0 if it erases nothing or none of its draws fits."""
    coin, key = jax.random.split(key)
    (top, left, h, w), fits = _draw_fitting(key, side_px, (side_px[0] - 1, side_px[1] - 1), *form[:4])
    hit = fits & jax.random.bernoulli(coin, probability)
    return top, left, jnp.where(hit, h, 0), jnp.where(hit, w, 0)


def _draw_fitting(
    key: jax.Array, side_px: Size, most_px: Size, scale_frac: tuple, ratio: tuple, by_height: bool = False, tries: int = TRIES
) -> tuple[jax.Array, jax.Array]:
    """The first of some random boxes with sides of 1 px to most_px = (H, W), [4], and whether there is one."""
    area, shape, down, right = jax.random.uniform(key, (4, tries))
    area = side_px[0] * side_px[1] * (scale_frac[0] + (scale_frac[1] - scale_frac[0]) * area)
    if by_height:  # height over width is uniform
        ratios = 1 / (1 / ratio[1] + (1 / ratio[0] - 1 / ratio[1]) * shape)
    else:
        ratios = jnp.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
    h, w = jnp.round(jnp.sqrt(area / ratios)), jnp.round(jnp.sqrt(area * ratios))
    fits = (h >= 1) & (h <= most_px[0]) & (w >= 1) & (w <= most_px[1])
    top, left = _draw_start(down, side_px[0] - h), _draw_start(right, side_px[1] - w)
    return jnp.stack([top, left, h, w])[:, jnp.argmax(fits)], fits.any()


def _draw_start(uniform: jax.Array, last: jax.Array | int) -> jax.Array:
    """Whole numbers 0 to last from numbers uniform in [0, 1). The product may round up to last + 1, hence the minimum."""
    return jnp.minimum(jnp.floor(uniform * (last + 1)), last)


def draw_window(key: jax.Array, side_px: Size, out_px: Size, padding_px: int) -> jax.Array:
    """[2] int32: top and left, in the padded image, of a random window of out_px = (h, w)."""
    last = jnp.array([side + 2 * padding_px - size for side, size in zip(side_px, out_px, strict=True)])
    return _draw_start(jax.random.uniform(key, (2,)), last).astype(jnp.int32)
