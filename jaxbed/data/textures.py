"""Sixteen procedural two-tone textures, aligned with the image, with random phase, period and slight tilt.

A texture is a function (x, y, period, rng) -> field, positive where the second colour is. x points right and y down, in *texture units*,
1/32 of the image's side, so a texture looks the same at 32 and at 64 px. `period` is near 1 and stretches the texture. Fields approximate
the distance to the nearest colour change in those units, which makes anti-aliasing free.
"""

from collections.abc import Callable

import numpy as np

Field = np.ndarray  # [n, H, W] float32

UNITS = 32  # texture units along the side of an image
PERIOD_JITTER = 0.04  # relative, either way
TILT_DEGREES = 2.0  # either way: upright bars stay distinct from slanted ones


def draw_noise(n: int, side_px: int, cells: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth noise [n, side_px, side_px] float32, mean 0, variance about 0.5: normal values at cells x cells knots, interpolated."""
    position = (np.arange(side_px) + 0.5) / side_px * (cells - 1)
    lower = np.minimum(position.astype(int), cells - 2)
    share = position - lower
    share = share * share * (3 - 2 * share)
    weight = np.zeros((side_px, cells), np.float32)
    weight[np.arange(side_px), lower] = 1 - share
    weight[np.arange(side_px), lower + 1] = share
    return weight @ rng.standard_normal((n, cells, cells), np.float32) @ weight.T


def _fold(x: Field, period: Field) -> Field:
    """Distance to the nearest middle of a period: 0 at (k + 1/2) period, period / 2 at k period."""
    return np.abs(np.mod(x, period) - period / 2)


def _turn(x: Field, y: Field) -> tuple[Field, Field]:
    """The coordinates along the two diagonals."""
    half = np.float32(np.sqrt(0.5))
    return half * (x + y), half * (x - y)


def _check(x: Field, y: Field, period: Field) -> Field:
    across, along = _fold(x, period) - period / 4, _fold(y, period) - period / 4
    return np.sign(across * along) * np.minimum(np.abs(across), np.abs(along))


def _net(x: Field, y: Field, period: Field, half_width: float) -> Field:
    return half_width - np.minimum(_fold(x, period), _fold(y, period))


def _bars(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _fold(x, 5.5 * period) - 5.5 / 4 * period


def _slats(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _fold(y, 5.5 * period) - 5.5 / 4 * period


def _diagonal(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _fold(_turn(x, y)[0], 5.5 * period) - 5.5 / 4 * period


def _checkers(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _check(x, y, 7 * period)


def _diamonds(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _check(*_turn(x, y), 8.5 * period)


def _dots(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    period = 6 * period
    return 0.34 * period - np.hypot(_fold(x, period), _fold(y, period))


def _rings(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    # Around a point near the centre of the image: every part then shows the curvature. x and y have a random phase, hence the mean.
    centre = rng.uniform(-6, 6, (2, len(x), 1, 1)).astype(np.float32)
    radius = np.hypot(x - x.mean((1, 2), keepdims=True) - centre[0], y - y.mean((1, 2), keepdims=True) - centre[1])
    return _fold(radius, 5.5 * period) - 5.5 / 4 * period


def _waves(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _fold(x + 2.0 * np.sin(y * np.float32(2 * np.pi / 11) / period), 6 * period) - 1.5 * period


def _chevrons(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return 0.75 * (_fold(y + _fold(x, 9 * period), 6 * period) - 1.5 * period)


def _bricks(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    height, width = 5 * period, 10 * period
    course = np.mod(np.floor(y / height), 2)
    # _fold is 0 in the middle of a period, and `course` changes at its ends: half a height moves the mortar onto the change.
    return 0.75 - np.minimum(_fold(y + height / 2, height), _fold(x + course * width / 2, width))


def _grid(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _net(x, y, 6 * period, 0.8)


def _lattice(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return _net(*_turn(x, y), 5.5 * period, 0.8)


def _scales(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    # Rows of half circles that hang from their centres, every other row shifted by half a scale.
    height = 5 * period
    row = np.floor(y / height)
    radius = np.hypot(_fold(x + np.mod(row, 2) * height, 2 * height), y - row * height)
    return 1.1 - np.abs(radius - height + 0.9)


def _blobs(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return 4 * draw_noise(len(x), x.shape[-1], 8, rng)


def _grain(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    # One value per texture unit, not per pixel: at 64 px the grains are two pixels wide.
    grain = rng.standard_normal((len(x), UNITS, UNITS), np.float32)
    repeat = x.shape[-1] // UNITS
    return np.repeat(np.repeat(grain, repeat, axis=1), repeat, axis=2)


def _triangles(x: Field, y: Field, period: Field, rng: np.random.Generator) -> Field:
    return 0.7 * (_fold(x, 8 * period) * 1.9 - np.mod(y, 7.6 * period))


PAINTS: dict[str, Callable[[Field, Field, Field, np.random.Generator], Field]] = {
    "bars": _bars,
    "blobs": _blobs,
    "bricks": _bricks,
    "checkers": _checkers,
    "chevrons": _chevrons,
    "diagonal": _diagonal,
    "diamonds": _diamonds,
    "dots": _dots,
    "grain": _grain,
    "grid": _grid,
    "lattice": _lattice,
    "rings": _rings,
    "scales": _scales,
    "slats": _slats,
    "triangles": _triangles,
    "waves": _waves,
}
TEXTURES: tuple[str, ...] = tuple(PAINTS)


def weave(texture: np.ndarray, side_px: int, rng: np.random.Generator) -> np.ndarray:
    """Freshly drawn textures.

    Args:
        texture: [n] int, rows of `TEXTURES`.
        side_px: side of the square image, a multiple of 32.
        rng: draws phase, period, tilt and, for the irregular ones, the pattern.

    Returns:
        [n, side_px, side_px] float32 in [0, 1]: the share of the second colour in each pixel.
    """
    n = len(texture)
    unit_px = side_px / UNITS
    spread = rng.uniform(-1, 1, (4, n, 1, 1)).astype(np.float32)
    angle = np.deg2rad(TILT_DEGREES) * spread[0]
    period = 1 + PERIOD_JITTER * spread[1]
    grid = (np.arange(side_px, dtype=np.float32) + np.float32(0.5)) / np.float32(unit_px)
    right, down = grid[None, None, :], grid[None, :, None]
    x = np.cos(angle) * right - np.sin(angle) * down + 64 * (1 + spread[2])
    y = np.cos(angle) * down + np.sin(angle) * right + 64 * (1 + spread[3])
    field = np.empty((n, side_px, side_px), np.float32)
    for k in np.unique(texture):
        rows = np.flatnonzero(texture == k)
        field[rows] = PAINTS[TEXTURES[k]](x[rows], y[rows], period[rows], rng)
    return np.clip(field * np.float32(unit_px) + np.float32(0.5), 0, 1)
