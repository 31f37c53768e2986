"""AugMix on the device: Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan, "AugMix: A Simple Data Processing Method to Improve
Robustness and Uncertainty" (2020).

An image x passes through `width` chains of one to three random operations of random strength, and becomes

    (1 - m)·x + m·Σ_i w_i·chain_i(x)      w ~ Dirichlet(alpha, ..., alpha), m ~ Beta(alpha, alpha)

`draw` makes what is random of one image, `mixed` applies it to a batch. A chain works on 8 bits, and each operation draws its level anew,
from 0.1 to the severity, as in the authors' code. A step of a chain is one affine warp and one look-up table, whichever operation each
image has drawn. Both read a pixel as one word of 32 bits, and only images that are to be equalised are counted, since histograms take most
of the time. Of thirteen operations, the last four blend the image with another one instead. They overlap the corruptions of
ImageNet-C: a network that has trained with them has seen some of that test.

Operations are Pillow's and differ by one level in a few pixels. Autocontrast is exact, whereas Pillow's may fall short of a whole number;
warps and blends are float32, so their truncation may fall on its other side. In images that are not square, each side has its own range of
translations.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbed import values
from jaxbed.values import Count, Positive, Range

# The first nine are the default; an operation is its place in this list
OPERATIONS: tuple[str, ...] = ("autocontrast", "equalize", "posterize", "rotate", "solarize")
OPERATIONS += ("shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS += ("colour", "contrast", "brightness", "sharpness")
NOTHING = -1  # the operation of steps after a chain's end
DEEPEST = 3  # operations in a chain of random depth
LEAST_LEVEL = 0.1
PARTS, TURNS = 16, 24  # of images whose values are counted, see histograms
GREY = np.array([19595, 38470, 7471], np.int32)  # Pillow's "L", in 65536ths


@dataclasses.dataclass
class Settings:
    """The authors' defaults for CIFAR; on ImageNet their severity is 1."""

    severity: Annotated[float, Range(LEAST_LEVEL, 10)] = 3.0  # levels are uniform from 0.1 to this
    width: Count = 3  # chains
    depth: Literal[0, 1, 2, 3] = 0  # operations in a chain; 0: 1 to 3, equally likely (-1 in the authors' code)
    alpha: Positive = 1.0  # of Dirichlet(alpha, ..., alpha) and Beta(alpha, alpha)
    operations: Literal[9, 13] = 9  # 13: also colour, contrast, brightness and sharpness, which overlap ImageNet-C
    fill: Literal["black", "dark_red"] = "black"  # outside the image; dark_red: 128 as Pillow reads it, (128, 0, 0), in grey images 128


class Drawn(NamedTuple):
    """What is random of one image; of a batch, with a leading axis."""

    weights: jax.Array  # [width], of the chains
    share: jax.Array  # scalar: m, of the chains together
    operation: jax.Array  # [width, depth] int32, in OPERATIONS, or NOTHING
    level: jax.Array  # [width, depth]
    sign: jax.Array  # [width, depth], -1 or 1: the direction of a warp


def draw(key: jax.Array, settings: Settings) -> Drawn:
    """What is random of one image. Raises ValueError for settings that are out of range."""
    values.check(settings, "augmix")
    weights, share, operation, level, sign, depth = jax.random.split(key, 6)
    shape = (settings.width, settings.depth or DEEPEST)
    drawn = jax.random.randint(operation, shape, 0, settings.operations)
    if not settings.depth:
        depths = jax.random.randint(depth, (settings.width, 1), 1, DEEPEST + 1)
        drawn = jnp.where(jnp.arange(DEEPEST) < depths, drawn, NOTHING)
    return Drawn(
        _draw_dirichlet(weights, settings.alpha, settings.width),
        _draw_dirichlet(share, settings.alpha, 2)[0],
        drawn,
        jax.random.uniform(level, shape, minval=LEAST_LEVEL, maxval=settings.severity),
        jax.random.rademacher(sign, shape, jnp.float32),
    )


def draw_batch(key: jax.Array, size: int, settings: Settings) -> Drawn:
    """`draw` of each of `size` images, of which each depends on the key and its index alone."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(size))
    return jax.vmap(lambda one: draw(one, settings))(keys)


def _draw_dirichlet(key: jax.Array, alpha: float, count: int) -> jax.Array:
    """[count], of sum 1; the first of two is Beta(alpha, alpha)."""
    if alpha != 1:
        return jax.random.dirichlet(key, jnp.full(count, alpha))
    # The same for alpha = 1, without a loop that draws until it accepts
    waits = -jnp.log(jax.random.uniform(key, (count,), minval=jnp.finfo(jnp.float32).tiny))
    return waits / waits.sum()


def mixed(image: jax.Array, drawn: Drawn, settings: Settings) -> jax.Array:
    """Images [B, H, W, C] in [0, 1], C being 1 or 3, each mixed with its chains: float32, the same shape and range."""
    image = image.astype(jnp.float32)
    channels = image.shape[-1]
    start = jnp.repeat(packed(jnp.round(255 * image).astype(jnp.uint8)), settings.width, 0)

    def step(state: jax.Array, drawn: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return _distorted(state, channels, *drawn, settings), None

    operation, level, sign = (x.reshape(-1, x.shape[-1]).T for x in (drawn.operation, drawn.level, drawn.sign))
    ends = lax.scan(step, start, (operation, level, sign))[0]
    chains = unpacked(ends, channels).astype(jnp.float32).reshape(len(image), settings.width, *image.shape[1:]) / 255
    return jax.vmap(blend)(image, chains, drawn.weights, drawn.share)


def blend(image: jax.Array, chains: jax.Array, weights: jax.Array, share: jax.Array) -> jax.Array:
    """(1 - share)·image + share·Σ_i weights_i·chains_i, for an image [...] and chains [width, ...]."""
    # Not a product of matrices, which accelerators round to fewer bits
    mixture = (weights.reshape(-1, *[1] * image.ndim) * chains).sum(0)
    return (1 - share) * image + share * mixture


def distorted(image: jax.Array, operation: jax.Array, level: jax.Array, sign: jax.Array, settings: Settings) -> jax.Array:
    """One operation on each of the images [N, H, W, C] uint8, with its level and sign [N]: the same shape and type."""
    channels = image.shape[-1]
    return unpacked(_distorted(packed(image), channels, operation, level, sign, settings), channels)


def _distorted(words: jax.Array, channels: int, operation: jax.Array, level: jax.Array, sign: jax.Array, settings: Settings) -> jax.Array:
    """As `distorted`, of packed images [N, H, W]."""
    tables = _tables(words, channels, operation, level)
    fill = {"black": 0, "dark_red": 128}[settings.fill]  # of the first channel

    def one(image: jax.Array, table: jax.Array, *drawn: jax.Array) -> jax.Array:
        # One of the two changes nothing, so their order is free: this one looks up each pixel once, the other each of its four neighbours
        return _looked_up(_warped(image, channels, _matrix(image.shape, *drawn), fill), table)

    results = jax.vmap(one)(words, tables, operation, level, sign)
    if settings.operations < len(OPERATIONS):
        return results
    enhanced = packed(jax.vmap(_enhanced)(unpacked(words, channels), operation, level))
    return jnp.where((operation >= OPERATIONS.index("colour"))[:, None, None], enhanced, results)


def packed(image: jax.Array) -> jax.Array:
    """Images [..., C] uint8 with a word for each pixel, [...] uint32: the first channel is its lowest byte."""
    return _joined([image[..., channel] for channel in range(image.shape[-1])])


def _joined(channels: Sequence[jax.Array]) -> jax.Array:
    """Words of the values of each channel."""
    parts = [values.astype(jnp.uint32) << (8 * channel) for channel, values in enumerate(channels)]
    return functools.reduce(jnp.bitwise_or, parts)


def _channel(words: jax.Array, channel: int) -> jax.Array:
    """Its values, int32."""
    return (words >> (8 * channel) & 255).astype(jnp.int32)


def unpacked(words: jax.Array, channels: int) -> jax.Array:
    """The images [..., C] uint8 of words [...]."""
    return jnp.stack([_channel(words, channel) for channel in range(channels)], -1).astype(jnp.uint8)


def _looked_up(channels: Sequence[jax.Array], table: jax.Array) -> jax.Array:
    """The packed image of what a table [C, 256] holds for the values of each channel."""
    return _joined([_take(of_channel, values) for of_channel, values in zip(table, channels, strict=True)])


def _take(array: jax.Array, index: jax.Array) -> jax.Array:
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _is(operation: jax.Array, *names: str) -> list[jax.Array]:
    return [operation == OPERATIONS.index(name) for name in names]


def _tables(words: jax.Array, channels: int, operation: jax.Array, level: jax.Array) -> jax.Array:
    """[N, C, 256] uint8: what becomes of each value of each channel of the packed images."""
    value, level = jnp.arange(256), level[:, None, None]
    drawn = _is(operation, "autocontrast", "equalize", "posterize", "solarize")
    autocontrast, equalize, posterize, solarize = (each[:, None, None] for each in drawn)
    planes = [_channel(words, channel) for channel in range(channels)]
    low, high = (jnp.stack([reduce(plane, (1, 2)) for plane in planes], 1)[..., None] for reduce in (jnp.min, jnp.max))
    counts = histograms(words, channels, equalize.ravel())
    below = jnp.cumsum(counts, 2) - counts
    step = jnp.take_along_axis(below, high, 2) // 255  # of equalize: a 255th of the pixels darker than the brightest
    bits = 4 - (0.4 * level).astype(jnp.int32)
    posterized = value >> (8 - bits) << (8 - bits)
    solarized = jnp.where(value < 256 - (25.6 * level).astype(jnp.int32), value, 255 - value)
    # One division for both operations that need it: a compiler may repeat it for each pixel, and then it takes most of the time
    results = [255 * (value - low), step // 2 + below, posterized, solarized]
    dividend = _select([autocontrast, equalize, posterize, solarize], results, value)
    divisor = _select([autocontrast, equalize], [high - low, step], 1)
    return jnp.clip(jnp.where(divisor > 0, dividend // jnp.maximum(divisor, 1), value), 0, 255).astype(jnp.uint8)


def _select(conditions: list[jax.Array], choices: list[jax.Array], default: jax.Array | int) -> jax.Array:
    """As jnp.select, of arrays that broadcast."""
    result = jnp.asarray(default)
    for condition, choice in zip(conditions, choices, strict=True):
        result = jnp.where(condition, choice, result)  # of conditions that exclude each other
    return result


def histograms(words: jax.Array, channels: int, wanted: jax.Array) -> jax.Array:
    """[N, C, 256] int32: how many pixels of each packed image [N, H, W] have each value; meaningless where they are not wanted, [N].

    A few images are counted at a time, until all that are wanted have been. Images are divided into parts, and each turn takes as many of
    every part, so that devices that share a batch need not exchange them.
    """
    parts = math.gcd(len(words), PARTS)
    parted, wanted = words.reshape(parts, -1, *words.shape[1:]), wanted.reshape(parts, -1)
    many = math.ceil(wanted.shape[1] / TURNS)
    order = jnp.argsort(~wanted, axis=1)

    def count(counts: jax.Array, images: jax.Array, rows: jax.Array) -> jax.Array:
        return counts.at[rows].set(jax.vmap(lambda image: _histogram(image, channels))(images[rows]))

    def turn(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, counts = state
        rows = lax.dynamic_slice_in_dim(order, many * number, many, 1)  # the last ones may overlap with those before
        return number + 1, jax.vmap(count)(counts, parted, rows)

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (many * state[0] < wanted.sum(1)).any()

    counts = jnp.zeros((*wanted.shape, channels, 256), jnp.int32)
    return lax.while_loop(unfinished, turn, (jnp.int32(0), counts))[1].reshape(-1, channels, 256)


def _histogram(words: jax.Array, channels: int) -> jax.Array:
    """[C, 256] int32, of one packed image [H, W]."""
    entries = jnp.stack([256 * channel + _channel(words, channel) for channel in range(channels)])
    return jnp.zeros(256 * channels, jnp.int32).at[entries].add(1, mode="promise_in_bounds").reshape(channels, 256)


def _enhanced(image: jax.Array, operation: jax.Array, level: jax.Array) -> jax.Array:
    """The image blended with its grey, its mean grey, black, or itself smoothed."""
    planes = image.astype(jnp.int32)
    grey = planes if planes.shape[-1] == 1 else ((planes * GREY).sum(-1, keepdims=True) + 2**15) >> 16
    mean = jnp.floor(grey.astype(jnp.float32).mean() + 0.5).astype(jnp.int32)
    others = [jnp.broadcast_to(other, planes.shape) for other in (grey, mean, 0, _smoothed(planes))]
    other = jnp.select(_is(operation, "colour", "contrast", "brightness", "sharpness"), others)
    blended = other + (0.18 * level + 0.1) * (planes - other)
    return jnp.clip(blended, 0, 255).astype(jnp.uint8)


def _smoothed(planes: jax.Array) -> jax.Array:
    """Pillow's SMOOTH: a mean over 3 x 3 pixels in which the middle one counts five times; the border stays."""
    height, width, _ = planes.shape
    if min(height, width) < 3:
        return planes
    total = sum(planes[y : y + height - 2, x : x + width - 2] for y in range(3) for x in range(3)) + 4 * planes[1:-1, 1:-1]
    return planes.at[1:-1, 1:-1].set((2 * total + 13) // 26)


def _matrix(shape: tuple[int, ...], operation: jax.Array, level: jax.Array, sign: jax.Array) -> tuple[jax.Array, ...]:
    """(a, b, c, d, e, f): the output at (x, y) is the input at (a·x + b·y + c, d·x + e·y + f), in pixels from the upper left corner."""
    height, width = shape
    rotate, shear_x, shear_y, translate_x, translate_y = (
        jnp.where(drawn, sign, 0.0) for drawn in _is(operation, "rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    )
    angle = jnp.deg2rad(rotate * jnp.floor(3 * level))
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    across, down = (translate * jnp.floor(side * level / 30) for translate, side in ((translate_x, width), (translate_y, height)))
    a, b, d, e = cosine, shear_x * 0.03 * level - sine, shear_y * 0.03 * level + sine, cosine
    # The centre turns about itself; shears keep the upper left corner
    c = across + (1 - cosine) * width / 2 + sine * height / 2
    f = down - sine * width / 2 + (1 - cosine) * height / 2
    return a, b, c, d, e, f


def _warped(words: jax.Array, channels: int, matrix: tuple[jax.Array, ...], fill: int) -> list[jax.Array]:
    """The channels of an affine map of a packed image [H, W], bilinear and truncated: each [H, W] int32.

    Where a pixel's centre comes from outside, the first channel is `fill`, the others are 0.
    """
    height, width = words.shape
    a, b, c, d, e, f = matrix
    x, y = jnp.arange(width) + 0.5, jnp.arange(height)[:, None] + 0.5
    across, down = a * x + b * y + c, d * x + e * y + f
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    left, top = jnp.floor(across - 0.5), jnp.floor(down - 0.5)
    right_share, lower_share = across - 0.5 - left, down - 0.5 - top

    def row(at: jax.Array) -> list[jax.Array]:
        first = jnp.clip(at, 0, height - 1).astype(jnp.int32) * width
        return [_take(words.ravel(), first + jnp.clip(column, 0, width - 1).astype(jnp.int32)) for column in (left, left + 1)]

    def between(first: jax.Array, second: jax.Array, share: jax.Array) -> jax.Array:
        return first + (second - first) * share

    corners = row(top) + row(top + 1)
    results = []
    for channel in range(channels):
        upper_left, upper_right, lower_left, lower_right = (_channel(corner, channel).astype(jnp.float32) for corner in corners)
        upper, lower = between(upper_left, upper_right, right_share), between(lower_left, lower_right, right_share)
        results.append(jnp.where(inside, between(upper, lower, lower_share).astype(jnp.int32), 0 if channel else fill))
    return results
