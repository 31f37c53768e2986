"""ImageNet-C-bar: ten procedural corruptions chosen to be unlike those of ImageNet-C, each with five severities.

A corruption draws what is random for each image, and changes a whole batch on the device. Severities are arguments of a change: one
compiled function serves all five. Lengths that are shares of the published side of 224 px are the same shares of the shorter side here.
Images have up to three channels.

Source: Mintun, Kirillov and Xie, "On Interaction Between Augmentations and Corruptions in Natural Corruption Robustness" (NeurIPS 2021).

Differences from the published code: it has other random numbers and float64, this has float32. A Perlin gradient of length zero stays zero
instead of becoming NaN. The published files were also stored as JPEG, so that accuracies on them differ.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures.corruption import Corruption, constants

PyTree = Any
CELL_PX = 32  # of the coarsest Perlin lattice, whatever the side of the image
OCTAVES = (1, 2, 4, 8, 16)  # of the Perlin turbulence: cells of 32 to 2 px
PERIOD = 256  # of the Perlin lattice
MOST_ITERATIONS = 6  # of the plasma
FEWEST_RAYS, MOST_RAYS = 50, 199  # of a sparkle
SPARKLES = 5  # in an image
CELLS = 40  # entries of the checkerboard's table along each axis; a square image has at most 15 cells on each side of 0
GREY = 128 / 255
BEND = 4  # refractive index of the caustics
FLAT = 0.999  # cosine of the slope from which light passes straight


def _set_by(levels: Sequence[float], *settings: Callable[[float, int], float]) -> Callable[[int, int, int], tuple]:
    """What severities set: functions of the published level of a severity and of the shorter side in pixels."""

    def arrays(severity: int, height: int, width: int) -> tuple:
        level = constants(levels, severity)
        return tuple(np.float32(setting(level, min(height, width))) for setting in settings)

    return arrays


def _each(change: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The change of a batch, from that of an image [H, W, C]; settings are the same for all images."""

    @functools.wraps(change)
    def of_batch(image: jax.Array, drawn: PyTree, *settings: Any) -> jax.Array:
        return jax.vmap(lambda one, random: change(one, random, *settings))(image, drawn)

    return of_batch


def _pixels(image: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows [H, 1] and columns [1, W] of an image [H, W, C]."""
    height, width, _ = image.shape
    return jnp.arange(height, dtype=jnp.float32)[:, None], jnp.arange(width, dtype=jnp.float32)[None]


def _uniform(key: jax.Array, *ranges: tuple[float, float]) -> jax.Array:
    """A number from each range."""
    low, high = np.array(ranges, np.float32).T
    return jax.random.uniform(key, low.shape, minval=low, maxval=high)


class Wave(NamedTuple):
    row: jax.Array  # radians per pixel
    column: jax.Array
    phase: jax.Array


def _draw_wave(key: jax.Array, height: int, width: int) -> Wave:
    high, ratio, phase, order = _uniform(key, (-math.pi, math.pi), (-1, 1), (0, 2 * math.pi), (0, 1))
    along_rows = order < 0.5
    return Wave(jnp.where(along_rows, high, high * ratio), jnp.where(along_rows, high * ratio, high), phase)


@_each
def _single_frequency(image: jax.Array, wave: Wave, intensity: jax.Array) -> jax.Array:
    row, column = _pixels(image)
    return image + intensity * jnp.sin(column * wave.column + row * wave.row + wave.phase)[..., None]


class Rings(NamedTuple):
    row: jax.Array  # of the centre
    column: jax.Array
    lobes: jax.Array  # periods around the centre
    amplitude: jax.Array  # of the lobes, in pixels
    width: jax.Array  # of a ring, in pixels


def _draw_rings(key: jax.Array, height: int, width: int) -> Rings:
    longest = 0.1 * min(height, width)
    # `1 - ring` is not 0, as `ring` may be: rings of width 0 would give NaN
    row, column, lobes, amplitude, ring = _uniform(key, (0, height), (0, width), (0, 10), (0, longest), (0, 1))
    return Rings(row, column, lobes, amplitude, longest * (1 - ring))


@_each
def _cocentric_waves(image: jax.Array, rings: Rings, intensity: jax.Array) -> jax.Array:
    row, column = _pixels(image)
    row, column = row - rings.row, column - rings.column
    distance = jnp.hypot(row, column) + rings.amplitude * jnp.sin(rings.lobes * jnp.arctan2(column, row))
    phase = distance / rings.width
    return image + intensity * (phase - jnp.floor(phase) - 0.5)[..., None]  # a sawtooth in spite of the name, as published


class Plasma(NamedTuple):
    scale: jax.Array  # pixels
    time: jax.Array
    iterations: jax.Array
    sharpness: jax.Array


def _draw_plasma(key: jax.Array, height: int, width: int) -> Plasma:
    scale, time, iterations, sharpness = _uniform(key, (0.075, 0.2), (0, 6 * math.pi), (4, MOST_ITERATIONS + 1), (0.5, 1))
    return Plasma(scale * min(height, width), time, iterations.astype(int), sharpness)


@_each
def _plasma_noise(image: jax.Array, plasma: Plasma, intensity: jax.Array) -> jax.Array:
    row, column = _pixels(image)
    x, y = column / plasma.scale, row / plasma.scale
    frequency, slowness, damping = 1.0, 1.0, jnp.float32(1)
    for iteration in range(MOST_ITERATIONS):
        time = plasma.time / slowness
        across, down = jnp.cos(y * frequency + time) / damping, jnp.sin(x * frequency + time) / damping
        more = iteration < plasma.iterations
        x, y = x + more * (across - 0.3 * down), y + more * (down + 0.3 * across)
        frequency, slowness, damping = frequency * 1.93, slowness * 1.15, damping * (2.25 - plasma.sharpness)
    noise = jnp.stack([jnp.sin(x - plasma.time), jnp.sin((x + y + jnp.sin(plasma.time)) / 2), jnp.sin(y + plasma.time)], -1)
    return (1 - intensity) * image + intensity * noise[..., : image.shape[-1]]


class Perlin(NamedTuple):
    permutation: jax.Array  # [256]
    gradients: jax.Array  # [256, 2] integers from -256 to 255: along columns and rows, before they are scaled to length 1


def _draw_perlin(key: jax.Array, height: int, width: int) -> Perlin:
    permutation, gradients = jax.random.split(key)
    return Perlin(jax.random.permutation(permutation, PERIOD), jax.random.randint(gradients, (PERIOD, 2), -256, 256))


@functools.cache
def _lattice(side_px: int, octave: int) -> tuple[np.ndarray, np.ndarray]:
    """[side, points] twice: the weights of lattice points at pixels, 0 but for two, and these times the distance from the point."""
    position = np.arange(side_px) * octave / CELL_PX
    distance = position[:, None] - np.arange(int(position[-1]) + 2)
    share = np.maximum(1 - np.abs(distance), 0)
    weight = share**2 * (3 - 2 * share)  # the s-curve 3t² - 2t³, which is 1 minus itself at 1 - t
    return weight.astype(np.float32), (weight * distance).astype(np.float32)


@_each
def _perlin_noise(image: jax.Array, perlin: Perlin, share: jax.Array) -> jax.Array:
    height, width, _ = image.shape
    length = jnp.sqrt((perlin.gradients**2).sum(-1, keepdims=True).astype(jnp.float32))
    gradients = perlin.gradients / jnp.maximum(length, 1)
    exact = functools.partial(jnp.einsum, "hi,ijk,wj->hwk", precision=jax.lax.Precision.HIGHEST)
    turbulence = jnp.zeros((height, width))
    for octave in OCTAVES:  # each as products of small matrices, as lattice and pixels have the same axes
        (rows, along_rows), (columns, along_columns) = _lattice(height, octave), _lattice(width, octave)
        point = [np.arange(weights.shape[1]) % PERIOD for weights in (rows, columns)]
        gradient = gradients[perlin.permutation[(perlin.permutation[point[1]] + point[0][:, None]) % PERIOD]]
        noise = exact(rows, gradient[..., :1], along_columns) + exact(along_rows, gradient[..., 1:], columns)
        turbulence += jnp.abs(1.5 * noise[..., 0]) / octave
    return (1 - share) * image + share * jnp.clip(0.5 * turbulence + 0.5, 0, 1)[..., None]


def spectral_noise(left: jax.Array, amplitude: np.ndarray) -> jax.Array:
    """Noise [H, W] of standard deviation 1, from amplitudes [H, W] of its shifted spectrum and phases [H, ceil(W / 2)] of the left half.

    The right half has the phases of the left one turned by 180 degrees. Signs are kept, as published: the spectrum is not Hermitian, and
    the noise is the real part of its transform.
    """
    phases = jnp.concatenate([left, left[::-1, : amplitude.shape[1] // 2][:, ::-1]], 1)
    spectrum = jax.lax.complex(amplitude * jnp.cos(phases), amplitude * jnp.sin(phases))
    noise = jnp.fft.ifft2(jnp.fft.ifftshift(spectrum)).real
    return noise / noise.std()


def _frequencies(height: int, width: int) -> np.ndarray:
    """[H, W]: cycles per image of a shifted spectrum."""
    return np.hypot(np.arange(height)[:, None] - height // 2, np.arange(width) - width // 2).astype(np.float32)


def _draw_phases(key: jax.Array, height: int, width: int) -> jax.Array:
    """[H, ceil(W / 2)]"""
    return jax.random.uniform(key, (height, (width + 1) // 2), maxval=2 * math.pi)


@_each
def _blue_noise(image: jax.Array, phases: jax.Array, threshold: jax.Array) -> jax.Array:
    noise = spectral_noise(phases, _frequencies(*image.shape[:2]))
    return jnp.where(noise[..., None] > threshold, image, 0)


def _draw_colour_phases(key: jax.Array, height: int, width: int) -> jax.Array:
    """[3, H, ceil(W / 2)]"""
    return jax.random.uniform(key, (3, height, (width + 1) // 2), maxval=2 * math.pi)


@_each
def _brownish_noise(image: jax.Array, phases: jax.Array, intensity: jax.Array) -> jax.Array:
    amplitude = 1 / (_frequencies(*image.shape[:2]) ** 2 + 1)
    noise = [spectral_noise(phases[channel], amplitude) for channel in range(image.shape[-1])]
    return image + intensity * jnp.stack(noise, -1)


class Checkerboard(NamedTuple):
    angle: jax.Array  # radians
    cell: jax.Array  # side in pixels
    chances: jax.Array  # [CELLS, CELLS]


def _draw_checkerboard(key: jax.Array, height: int, width: int) -> Checkerboard:
    shape, chances = jax.random.split(key)
    angle, cell = _uniform(shape, (0, 2 * math.pi), (0.1, 0.25))
    return Checkerboard(angle, cell * min(height, width), jax.random.uniform(chances, (CELLS, CELLS)))


@_each
def _checkerboard_cutout(image: jax.Array, board: Checkerboard, share: jax.Array) -> jax.Array:
    row, column = _pixels(image)
    cosine, sine = jnp.cos(board.angle), jnp.sin(board.angle)
    position = jnp.stack([row * cosine + column * sine, column * cosine - row * sine]) / board.cell
    across, down = jnp.floor(position).astype(int)
    # The published table has int(4 · 224 / cell) entries along each axis, at most CELLS. Its size does not matter: negative indices wrap
    # around, and never meet positive ones. Truncation gives the cells on both sides of an axis the same entry.
    entry = jnp.trunc(position).astype(int) % CELLS
    cut = ((across - down) % 2 == 0) & (board.chances[entry[0], entry[1]] < share)
    return jnp.where(cut[..., None], GREY, image)


class Rays(NamedTuple):
    """A sparkle."""

    row: jax.Array  # of its centre
    column: jax.Array
    number: jax.Array  # 50 to 199
    lengths: jax.Array  # [199] standard normals, of which `number` count


def _draw_rays(key: jax.Array, height: int, width: int, margin: float = 0.0) -> Rays:
    """A sparkle whose centre keeps a distance from the border: a share of the side."""
    shape, lengths = jax.random.split(key)
    row, column, number = _uniform(shape, (margin, 1 - margin), (margin, 1 - margin), (FEWEST_RAYS, MOST_RAYS + 1))
    return Rays(row * height, column * width, number.astype(int), jax.random.normal(lengths, (MOST_RAYS,)))


def _draw_sparkles(key: jax.Array, height: int, width: int) -> Rays:
    return jax.vmap(lambda each: _draw_rays(each, height, width))(jax.random.split(key, SPARKLES))


def _draw_inverse_sparkle(key: jax.Array, height: int, width: int) -> Rays:
    return _draw_rays(key, height, width, margin=0.25)


def glow(image: jax.Array, rays: Rays, lengths: jax.Array, exponent: jax.Array | int) -> jax.Array:
    """[H, W, 1] in [0, 1]: how bright a sparkle is, with rays of `lengths` [199] in pixels."""
    row, column = _pixels(image)
    row, column = row - rays.row, column - rays.column
    turn = jnp.arctan2(column, row) * (rays.number / (2 * math.pi)) + rays.number / 2
    before = jnp.floor(turn)
    share, ray = turn - before, before.astype(int)
    length = (1 - share) * lengths[ray % rays.number] + share * lengths[(ray + 1) % rays.number]
    strength = (length**2 / (row**2 + column**2 + 1e-4)) ** exponent
    return jnp.clip((1 - (share - 0.5) ** 2) * strength, 0, 1)[..., None]


@_each
def _sparkles(image: jax.Array, sparkles: Rays, radius: jax.Array) -> jax.Array:
    lengths = jnp.maximum(radius * (1 + 0.25 * sparkles.lengths), 1)
    weight = jax.vmap(lambda rays, length: glow(image, rays, length, 1))(sparkles, lengths)
    return image + (1 - (1 - weight).prod(0)) * (1 - image)  # each is blended to white in turn


@_each
def _inverse_sparkles(image: jax.Array, rays: Rays, radius: jax.Array, exponent: jax.Array) -> jax.Array:
    weight = 1 - glow(image, rays, radius * (1 + 0.25 * rays.lengths), exponent)
    return image + weight * (1 - image)  # exact where the weight is 0: truncation would turn a rounding error into a level


class Caustics(NamedTuple):
    size: jax.Array  # of a tile, in pixels
    time: jax.Array


def _draw_caustics(key: jax.Array, height: int, width: int) -> Caustics:
    size, time = _uniform(key, (0.75, 1.25), (0.5, 2))
    return Caustics(size * min(height, width), time)


def caustic_height(caustics: Caustics, height: int, width: int) -> jax.Array:
    """[H, W] in [0, 1]: the surface of the water, of one image."""
    row, column = (jnp.arange(side, dtype=jnp.float32) / caustics.size % 1 * (2 * math.pi) for side in (height, width))
    row, column = row[:, None], column[None]
    # The published angles are these less 250. Inside sines, 40 turns more change nothing but the rounding errors, which become smaller.
    start = 80 * math.pi - 250
    down, across = row + start, column + start
    summed = jnp.ones((height, width))
    for step in range(1, 6):
        time = caustics.time * (1 - 3.5 / step)
        moved_down, moved_across = jnp.cos(time - down) + jnp.sin(time + across), jnp.sin(time - across) + jnp.cos(time + down)
        down, across = row + start + moved_down, column + start + moved_across
        summed += 1 / (0.005 * jnp.hypot((row - 250) / jnp.sin(down + time), (column - 250) / jnp.cos(across + time)))
    surface = jnp.minimum(jnp.abs(1.17 - (summed / 5) ** 1.4) ** 8, 1)
    return _blurred(_blurred(surface).T).T


def _blurred(field: jax.Array) -> jax.Array:
    """A field [H, W] blurred along its first axis by a Gaussian of 1 px, cut off at 4 px, with mirrored borders as in SciPy."""
    weights = np.exp(-(np.arange(-4, 5) ** 2) / 2)
    padded = jnp.pad(field, ((4, 4), (0, 0)), mode="symmetric")
    return sum(weight * padded[k : k + len(field)] for k, weight in enumerate((weights / weights.sum()).tolist()))


def slopes(surface: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Twice the slope of a surface [H, W] along rows and columns; it is 0 outside."""
    padded = jnp.pad(surface, 1)
    return padded[2:, 1:-1] - padded[:-2, 1:-1], padded[1:-1, 2:] - padded[1:-1, :-2]


def refraction(down: jax.Array, across: jax.Array, lens: jax.Array | float) -> jax.Array:
    """[2, H, W] pixels along rows and columns by which a surface of these slopes moves what is seen, in steps of 0.001 as published."""
    cosine = 1 / jnp.sqrt(down**2 + across**2 + 1)
    bent = jnp.sqrt(1 - (1 - cosine**2) / BEND**2) - cosine / BEND
    moved = jnp.round(1000 * lens * cosine * bent * jnp.stack([down, across])) / 1000
    return jnp.where(cosine < FLAT, moved, 0)


def sampled(image: jax.Array, row: jax.Array, column: jax.Array) -> jax.Array:
    """An image [H, W, C] between its pixels, at rows and columns [H, W]: bilinear, and black outside."""
    height, width, channels = image.shape
    padded = jnp.pad(image, ((1, 2), (1, 2), (0, 0)))
    row, column = jnp.clip(row, -1, height) + 1, jnp.clip(column, -1, width) + 1
    top, left = jnp.floor(row), jnp.floor(column)
    lower, right = (row - top)[..., None], (column - left)[..., None]
    corner = top.astype(int) * (width + 3) + left.astype(int)
    pixels = padded.reshape(-1, channels)
    above = (1 - right) * pixels[corner] + right * pixels[corner + 1]
    below = (1 - right) * pixels[corner + width + 3] + right * pixels[corner + width + 4]
    return (1 - lower) * above + lower * below


@_each
def _caustic_refraction(image: jax.Array, caustics: Caustics, lens: jax.Array, light: jax.Array) -> jax.Array:
    height, width, _ = image.shape
    down, across = slopes(caustic_height(caustics, height, width))
    row, column = _pixels(image)
    moved = refraction(down, across, lens)
    return sampled(image, row + moved[0], column + moved[1]) + light * (down - across)[..., None]


CORRUPTIONS: dict[str, Corruption] = {
    "single_frequency_greyscale": Corruption(
        _single_frequency, _set_by((1, 1.5, 2, 4.5, 5), lambda level, side: 19.6 * level / 255), _draw_wave
    ),
    "cocentric_sine_waves": Corruption(_cocentric_waves, _set_by((3, 5, 8, 9, 10), lambda level, side: 12.8 * level / 255), _draw_rings),
    "plasma_noise": Corruption(_plasma_noise, _set_by((4.75, 7, 8.5, 9.25, 10), lambda level, side: 6.4 * level / 255), _draw_plasma),
    "perlin_noise": Corruption(_perlin_noise, _set_by((4.6, 5.2, 5.8, 7.6, 8.8), lambda level, side: 0.05 * level), _draw_perlin),
    "blue_noise_sample": Corruption(_blue_noise, _set_by((0.8, 1.6, 2.4, 4, 5.6), lambda level, side: 0.3 * level - 2.5), _draw_phases),
    "brownish_noise": Corruption(_brownish_noise, _set_by((1, 2, 3, 4, 5), lambda level, side: 6.4 * level / 255), _draw_colour_phases),
    "checkerboard_cutout": Corruption(_checkerboard_cutout, _set_by((2, 3, 4, 5, 6), lambda level, side: 0.1 * level), _draw_checkerboard),
    "sparkles": Corruption(_sparkles, _set_by((1, 2, 3, 5, 6), lambda level, side: 0.01 * level * side), _draw_sparkles),
    "inverse_sparkles": Corruption(
        _inverse_sparkles,
        _set_by((1, 2, 4, 9, 10), lambda level, side: 0.25 * side, lambda level, side: 0.13 * level),
        _draw_inverse_sparkle,
    ),
    "caustic_refraction": Corruption(
        _caustic_refraction,
        _set_by((2.35, 3.2, 4.9, 6.6, 9.15), lambda level, side: 0.05 * level * side, lambda level, side: 0.2 * level),
        _draw_caustics,
    ),
}
