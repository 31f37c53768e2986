"""Weather of ImageNet-C, and JPEG compression: see `imagenet_c`.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (ICLR 2019). Constants
are those for 224 x 224 px; lengths in pixels stay the same at other sizes.

Differences from the published code: other random numbers; a motion blur by whole pixels, where ImageMagick made the official snow, with
no rounding after it (before it, flakes are 8-bit as published); water from a fixed set of masks (`water_masks`), not a new mask per image;
no JPEG compression of the results. They must therefore not be reported as ImageNet-C.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures import jpeg
from jaxbed.measures.corruption import Axes, Corruption, constants, smooth, truncated
from jaxbed.measures.imagenet_c_blur import Streak, streak, streaked

FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))  # density, decay per level
SNOW = (  # mean, standard deviation, zoom, threshold, radius and standard deviation of the blur in px, share of the image's own colours
    (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
FROST = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # weights of the image and of the photograph
SPATTER = (  # mean, standard deviation, blur in px, threshold, then: strength of the water, or blur of the mud in px
    (0.65, 0.3, 4, 0.69, 0.6),
    (0.65, 0.3, 3, 0.68, 0.6),
    (0.65, 0.3, 2, 0.68, 0.5),
    (0.65, 0.3, 1, 0.65, 1.5),
    (0.67, 0.4, 1, 0.65, 1.5),
)
QUALITY = (25, 18, 15, 10, 7)  # of JPEG
FIRST_MUD = 4  # the first severity of spatter that is mud
FEWEST_MUD = 0.8  # a thinner layer of mud is none
TAPS = 1 + 2 * max(row[4] for row in SNOW)  # of the blur of snow, for all severities
WATER_COLOUR, MUD_COLOUR = np.array([[175, 238, 238], [63, 42, 20]], np.float32) / 255
GREY = np.array([0.299, 0.587, 0.114], np.float32)  # weights of red, green and blue
WATER_SEED, WATER_COUNT = 0, 64  # of the masks in CORRUPTIONS
PHOTOGRAPHS = 5  # of frost that are used: the published code never draws its sixth


# --- fog ---


def torus(height: int, width: int) -> int:
    """The side of the field that fog is cut out of, in px: 256, or the next power of two for larger images."""
    return max(256, 1 << (max(height, width) - 1).bit_length())


def draw_fog(key: jax.Array, height: int, width: int) -> jax.Array:
    """The displacement [n, n] of each point of the torus, uniform in [-1, 1)."""
    side = torus(height, width)
    return jax.random.uniform(key, (side, side), minval=-1.0)


def plasma(displacement: jax.Array, decay: jax.Array | float) -> jax.Array:
    """Diamond-square fields [B, n, n] in [0, 1] on a torus, n a power of two, from displacements [B, n, n] in [-1, 1).

    Each new point is the mean of its four neighbours and a displacement, which gets smaller by the squared decay from level to level:
    the published code multiplies numbers drawn from (-w, w) by w once more. [:, 0, 0] of displacements is not used.
    """
    batch, side, _ = displacement.shape
    corner, amplitude = jnp.zeros((batch, 1, 1)), jnp.float32(1)
    for level in range(side.bit_length() - 1):
        step = side >> level
        half = step // 2
        right, below = jnp.roll(corner, -1, 2), jnp.roll(corner, -1, 1)
        centre = (corner + right + below + jnp.roll(right, -1, 1)) / 4 + amplitude * displacement[:, half::step, half::step]
        top = (corner + right + centre + jnp.roll(centre, 1, 1)) / 4 + amplitude * displacement[:, ::step, half::step]
        left = (corner + below + centre + jnp.roll(centre, 1, 2)) / 4 + amplitude * displacement[:, half::step, ::step]
        rows = jnp.stack([jnp.stack([corner, top], -1), jnp.stack([left, centre], -1)], 2)  # [B, m, 2, m, 2]
        corner, amplitude = rows.reshape(batch, 2 * side // step, 2 * side // step), amplitude / decay**2
    above = corner - corner.min((1, 2), keepdims=True)
    return above / above.max((1, 2), keepdims=True)


def in_fog(image: jax.Array, field: jax.Array, density: jax.Array | float) -> jax.Array:
    """Images [B, H, W, C] under a field [B, H, W] of fog in [0, 1], scaled so that no pixel exceeds the brightest one of its image."""
    brightest = image.max((1, 2, 3), keepdims=True)
    return (image + density * field[..., None]) * brightest / (brightest + density)


def fog(image: jax.Array, displacement: jax.Array, density: jax.Array, decay: jax.Array) -> jax.Array:
    """Images [B, H, W, C] in fog, of displacements [B, n, n] as `draw_fog` gives them."""
    height, width = image.shape[1:3]
    return in_fog(image, plasma(displacement, decay)[:, :height, :width], density)


def _fog_arrays(severity: int, height: int, width: int) -> tuple:
    return tuple(np.array(constants(FOG, severity), np.float32))


# --- snow ---


class Axis(NamedTuple):
    """One axis of a zoom: each pixel is taken from between pixel `lower` and the next one, at a fraction of the way."""

    lower: np.ndarray | jax.Array  # [n] int32
    fraction: np.ndarray | jax.Array  # [n] float32


class Snow(NamedTuple):
    mean: np.float32
    scale: np.float32
    rows: Axis
    columns: Axis
    threshold: np.float32
    along: Streak  # of the motion blur
    share: np.float32  # of the image's own colours


class SnowDraw(NamedTuple):
    noise: jax.Array  # [H, W], standard normal
    turn: jax.Array  # [], uniform in [0, 1)


def draw_snow(key: jax.Array, height: int, width: int) -> SnowDraw:
    noise, turn = jax.random.split(key)
    return SnowDraw(jax.random.normal(noise, (height, width)), jax.random.uniform(turn))


def middle(side_px: int, factor: float) -> Axis:
    """A zoom on the middle ceil(side / factor) pixels, by a factor of at least 1; corners are aligned, the excess is cut off evenly."""
    cropped = math.ceil(side_px / factor)
    zoomed = round(cropped * factor)
    position = np.arange(side_px) + (zoomed - side_px) // 2
    place = (side_px - cropped) // 2 + position * (cropped - 1) / max(zoomed - 1, 1)
    lower = np.floor(place)
    return Axis(lower.astype(np.int32), (place - lower).astype(np.float32))


def zoomed(field: jax.Array, rows: Axis, columns: Axis) -> jax.Array:
    """Fields [B, H, W], zoomed with bilinear interpolation."""
    _, height, width = field.shape
    down, right = jnp.asarray(rows.fraction)[:, None], jnp.asarray(columns.fraction)
    tall = (1 - down) * field[:, rows.lower] + down * field[:, jnp.minimum(rows.lower + 1, height - 1)]
    return (1 - right) * tall[..., columns.lower] + right * tall[..., jnp.minimum(columns.lower + 1, width - 1)]


def flakes(noise: jax.Array, severity: Snow) -> jax.Array:
    """Flakes [B, H, W] in [0, 1], neither rounded nor blurred yet, of standard normal noise [B, H, W]."""
    layer = zoomed(severity.mean + severity.scale * noise, severity.rows, severity.columns)
    return jnp.clip(jnp.where(layer < severity.threshold, 0, layer), 0, 1)


def in_snow(image: jax.Array, layer: jax.Array, share: jax.Array | np.float32) -> jax.Array:
    """Images [B, H, W, 3], whitened except for a share, plus a layer [B, H, W] of snow and the same layer turned by 180 degrees."""
    grey = (image * GREY).sum(-1, keepdims=True)
    paled = share * image + (1 - share) * jnp.maximum(image, 1.5 * grey + 0.5)
    return paled + (layer + layer[:, ::-1, ::-1])[..., None]


def snow(image: jax.Array, drawn: SnowDraw, severity: Snow) -> jax.Array:
    """Images [B, H, W, 3] in snow. Flakes leave streaks downwards, at most 45 degrees off the vertical."""
    angle = jnp.deg2rad(-135 + 90 * drawn.turn)
    layer = streaked(truncated(flakes(drawn.noise, severity))[..., None], angle, severity.along)[..., 0]
    return in_snow(image, layer, severity.share)


def _snow_arrays(severity: int, height: int, width: int) -> tuple:
    mean, scale, factor, threshold, radius, sigma, share = constants(SNOW, severity)
    axes = middle(height, factor), middle(width, factor)
    along = streak(int(radius), sigma, TAPS)
    return (Snow(np.float32(mean), np.float32(scale), *axes, np.float32(threshold), along, np.float32(share)),)


# --- spatter ---


class Mud(NamedTuple):
    mean: np.float32
    scale: np.float32
    threshold: np.float32
    of_liquid: Axes  # blurs
    of_mud: Axes


class SpatterDraw(NamedTuple):
    noise: jax.Array  # [H, W], standard normal: of mud
    which: jax.Array  # [], uniform in [0, 1): of water


def draw_spatter(key: jax.Array, height: int, width: int) -> SpatterDraw:
    noise, which = jax.random.split(key)
    return SpatterDraw(jax.random.normal(noise, (height, width)), jax.random.uniform(which))


def liquid(noise: jax.Array, severity: Mud) -> jax.Array:
    """The level [B, H, W] of the liquid, of standard normal noise [B, H, W]."""
    return severity.of_liquid.of((severity.mean + severity.scale * noise)[..., None])[..., 0]


def mud(level: jax.Array, severity: Mud) -> jax.Array:
    """Opacity [B, H, W] of mud: 1 well inside the areas where the liquid [B, H, W] is above the threshold, 0 outside."""
    layer = severity.of_mud.of((level > severity.threshold).astype(jnp.float32)[..., None])[..., 0]
    return jnp.where(layer < FEWEST_MUD, 0, layer)


def spatter(image: jax.Array, drawn: SpatterDraw, severity: Mud | jax.Array) -> jax.Array:
    """Images [B, H, W, 3] under mud, or under one of a number of masks of water [k, H, W] as `water_masks` makes them."""
    if isinstance(severity, Mud):
        layer = mud(liquid(drawn.noise, severity), severity)[..., None]
        return (1 - layer) * image + layer * MUD_COLOUR
    mask = severity[jnp.floor(drawn.which * len(severity)).astype(jnp.int32)]
    return image + mask[..., None] * WATER_COLOUR


@functools.cache
def water_masks(seed: int, count: int, height: int, width: int, severity: int) -> np.ndarray:
    """How much of its colour water adds to pixels: [count, height, width] float32 from 0 to the severity's strength, made by OpenCV.

    Masks do not depend on images: the host makes them once, and the corruption picks one per image by a drawn number. All severities
    start from the same noise. Raises ValueError for a severity that is not water, 1 to 3.
    """
    if severity not in range(1, FIRST_MUD):
        raise ValueError(f"severity = {severity}: spatter is water at the severities 1 to {FIRST_MUD - 1}")
    mean, scale, sigma, threshold, strength = constants(SPATTER, severity)
    noise = np.random.default_rng(seed).standard_normal((count, height, width), np.float32)
    masks = np.stack([_water(mean + scale * each, int(sigma), threshold, strength) for each in noise])
    masks.setflags(write=False)
    return masks


def _water(noise: np.ndarray, sigma: int, threshold: float, strength: float) -> np.ndarray:
    import cv2

    level = cv2.GaussianBlur(noise, (8 * sigma + 1, 8 * sigma + 1), sigma, borderType=cv2.BORDER_REPLICATE)
    level = (255 * np.where(level < threshold, 0, np.minimum(level, 1))).astype(np.uint8)  # in corners, it may be above 1
    distance = cv2.distanceTransform(255 - cv2.Canny(level, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
    lit = cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, relief)
    mask = level * cv2.blur(lit, (3, 3)).astype(np.float32)
    return mask * np.float32(strength / max(float(mask.max()), 1.0))  # of whole numbers: where there is no water, all are 0


def _spatter_arrays(severity: int, height: int, width: int) -> tuple:
    mean, scale, sigma, threshold, mud_sigma = constants(SPATTER, severity)
    if severity < FIRST_MUD:
        return (water_masks(WATER_SEED, WATER_COUNT, height, width, severity),)
    blurs = (smooth(height, width, px) for px in (sigma, mud_sigma))
    return (Mud(np.float32(mean), np.float32(scale), np.float32(threshold), *blurs),)


# --- frost ---


def draw_frost(key: jax.Array, height: int, width: int) -> jax.Array:
    """[3] uniform in [0, 1): which photograph, and the first row and column of the crop."""
    return jax.random.uniform(key, (3,))


class Photographs(NamedTuple):
    pixels: np.ndarray | jax.Array  # [k, h, w, 3] in [0, 1]: those that are smaller are filled up
    sides: np.ndarray | jax.Array  # [k, 2] px


def in_frost(image: jax.Array, place: jax.Array, photographs: Photographs, kept: jax.Array, frost: jax.Array) -> jax.Array:
    """Weighted sums of images [B, H, W, 3] and crops of photographs."""
    _, height, width, _ = image.shape
    which = jnp.floor(place[:, 0] * len(photographs.pixels)).astype(jnp.int32)
    free = jnp.asarray(photographs.sides)[which] - np.array([height, width])
    start = jnp.floor(place[:, 1:] * free).astype(jnp.int32)

    def crop(which: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(photographs.pixels, (which, *start, 0), (1, height, width, 3))[0]

    return kept * image + frost * jax.vmap(crop)(which, start)


def frost(photographs: Sequence[np.ndarray]) -> Corruption:
    """Frost from photographs [h, w, 3] of frozen glass in [0, 1], each of its own size.

    As published, only the first 5 are ever used, and a crop never starts at the last possible row or column. Raises ValueError for
    photographs of another shape or range; `arrays` raises it for images larger than one of the photographs.
    """
    used = [np.asarray(photograph, np.float32) for photograph in photographs[:PHOTOGRAPHS]]
    if not used:
        raise ValueError("frost needs at least one photograph")
    for photograph in used:
        if photograph.ndim != 3 or photograph.shape[-1] != 3:
            raise ValueError(f"a photograph of shape {photograph.shape}: it must be [h, w, 3]")
        if not (photograph.min() >= 0 and photograph.max() <= 1):
            raise ValueError(f"a photograph from {photograph.min():g} to {photograph.max():g}: it must be in [0, 1]")
    sides = np.array([photograph.shape[:2] for photograph in used], np.int32)
    filled = [np.pad(each, ((0, sides[:, 0].max() - len(each)), (0, sides[:, 1].max() - each.shape[1]), (0, 0))) for each in used]
    whole = Photographs(np.stack(filled), sides)

    def arrays(severity: int, height: int, width: int) -> tuple:
        for tall, wide in sides.tolist():
            if height > tall or width > wide:
                raise ValueError(f"images of {height} x {width} px do not fit into a photograph of {tall} x {wide} px")
        return whole, *np.array(constants(FROST, severity), np.float32)

    return Corruption(in_frost, arrays, draw_frost)


# --- JPEG ---


def compressed(image: jax.Array, drawn: None, steps: jax.Array) -> jax.Array:
    """As `jpeg.compressed`; nothing is drawn."""
    return jpeg.compressed(image, steps)


def _jpeg_arrays(severity: int, height: int, width: int) -> tuple:
    return (jpeg.tables(constants(QUALITY, severity)),)


CORRUPTIONS: dict[str, Corruption] = {  # frost is not among them: it needs photographs
    "snow": Corruption(snow, _snow_arrays, draw_snow),
    "fog": Corruption(fog, _fog_arrays, draw_fog),
    "spatter": Corruption(spatter, _spatter_arrays, draw_spatter),
    "jpeg_compression": Corruption(compressed, _jpeg_arrays, None),
}
