"""Sixteen parametric shapes as signed distance fields, with random pose and deformation for each image.

A shape is a function (u, v, first, second) -> field that is negative inside, zero on the outline and positive outside. u points right and v
up, in units of the shape's nominal radius; `first` and `second` are numbers in [0, 1] that set its proportions. The fields need not be true
distances: `measure_distance` divides them by their slope, which gives distances in pixels near the outline, the only place where they
matter.
"""

from collections.abc import Callable

import numpy as np

Field = np.ndarray  # [n, H, W] float32

ROTATION_DEGREES = 180.0  # either way: upright shapes are so easy that a network would not use the texture
RADIUS_FRAC = (0.38, 0.47)  # nominal radius over the side of the image
# Deformations are as strong as shapes stay recognisable: shape becomes harder to learn than texture, so a network prefers the texture.
ASPECT_LOG = 0.25  # width over height lies between exp(-2 * this) and exp(2 * this)
SHEAR = 0.3  # of the width along the height, either way
WOBBLE = 0.1  # amplitude of the wavy displacement, in radii
MARGIN = 0.92  # least distance between centre and border, in nominal radii: corners of deformed shapes may be cut off
SLOPE_FLOOR = 0.45  # of the nominal slope: the field has a ridge where two sides meet, where dividing by the slope would diverge


def _box(u: Field, v: Field, left: Field | float, right: Field | float, bottom: Field | float, top: Field | float) -> Field:
    """Field of an upright rectangle; its sides are numbers or [n, 1, 1]."""
    return np.maximum(np.abs(u - (left + right) / 2) - (right - left) / 2, np.abs(v - (bottom + top) / 2) - (top - bottom) / 2)


def _arrow(u: Field, v: Field, first: Field, second: Field) -> Field:
    half_width = 0.24 + 0.1 * first
    shoulder = 0.05 + 0.2 * second
    shaft = _box(u, v, -half_width, half_width, -1.0, shoulder + 0.1)
    # The head's slanted sides run from the tip (0, 1) to (+-0.8, shoulder).
    head = np.maximum(shoulder - v, (np.abs(u) * (1 - shoulder) + (v - 1) * 0.8) / np.hypot(1 - shoulder, 0.8))
    return np.minimum(shaft, head)


def _bolt(u: Field, v: Field, first: Field, second: Field) -> Field:
    # A band whose middle swings left, right, left: the three strokes of a lightning bolt.
    middle = (0.36 + 0.12 * first) * (4 * np.abs(np.mod((v + 1.0) / 1.333, 1) - 0.5) - 1)
    return np.maximum(0.75 * (np.abs(u - middle) - (0.34 + 0.07 * second)), np.abs(v) - 0.98)


def _bowtie(u: Field, v: Field, first: Field, second: Field) -> Field:
    waist, flare = 0.05 + 0.1 * first, 0.75 + 0.15 * second
    return np.maximum(0.77 * (np.abs(v) - waist - flare * np.abs(u)), np.abs(u) - 0.9)


def _crescent(u: Field, v: Field, first: Field, second: Field) -> Field:
    bite = (0.6 + 0.1 * first) - np.hypot(u - 0.42 - 0.08 * second, v)
    return np.maximum(np.hypot(u, v) - 0.95, bite)


def _cross(u: Field, v: Field, first: Field, second: Field) -> Field:
    half_width, reach = 0.27 + 0.1 * first, 0.85 + 0.1 * second
    across, along = np.abs(u), np.abs(v)
    return np.minimum(np.maximum(across - half_width, along - reach), np.maximum(along - half_width, across - reach))


def _disc(u: Field, v: Field, first: Field, second: Field) -> Field:
    return np.hypot(u, v) - (0.78 + 0.08 * first)


def _ell(u: Field, v: Field, first: Field, second: Field) -> Field:
    width, foot = 0.5 + 0.12 * first, 0.5 + 0.2 * second
    return np.minimum(_box(u, v, -0.6, -0.6 + width, -0.9, 0.9), _box(u, v, -0.6, foot, -0.9, -0.9 + width))


def _flower(u: Field, v: Field, first: Field, second: Field) -> Field:
    petals = np.where(first < 0.5, 6, 7).astype(np.float32)
    return np.hypot(u, v) - 0.74 - (0.16 + 0.05 * second) * np.cos(petals * np.arctan2(u, v))


def _heart(u: Field, v: Field, first: Field, second: Field) -> Field:
    centre_u, centre_v, radius = 0.44 + 0.03 * first, 0.33, 0.5
    tip = -0.9 - 0.1 * second
    # The lower sides are the tangents from the tip to the two lobes; `half_angle` is measured from the upright.
    half_angle = np.arctan2(centre_u, centre_v - tip) + np.arcsin(radius / np.hypot(centre_u, centre_v - tip))
    sine, cosine = np.sin(half_angle), np.cos(half_angle)
    across = np.abs(u)
    lobes = np.hypot(across - centre_u, v - centre_v) - radius
    ends = (across - centre_u) * sine + (v - centre_v) * cosine  # the wedge stops where the tangent touches the lobe
    wedge = np.maximum(np.maximum(across * cosine - (v - tip) * sine, ends), v - centre_v)
    return np.minimum(lobes, wedge)


def _horseshoe(u: Field, v: Field, first: Field, second: Field) -> Field:
    inner, floor = 0.22 + 0.1 * first, -0.3 + 0.15 * second
    return np.maximum(_box(u, v, -0.75, 0.75, -0.85, 0.85), -_box(u, v, -inner, inner, floor, 3.0))


def _ring(u: Field, v: Field, first: Field, second: Field) -> Field:
    return np.abs(np.hypot(u, v) - (0.62 + 0.04 * first)) - (0.25 + 0.07 * second)


def _semicircle(u: Field, v: Field, first: Field, second: Field) -> Field:
    floor = -0.42 + 0.1 * first
    return np.maximum(np.hypot(u, v + 0.45) - (1.0 + 0.05 * second), floor - v)


def _square(u: Field, v: Field, first: Field, second: Field) -> Field:
    return np.maximum(np.abs(u), np.abs(v)) - (0.7 + 0.08 * first)


def _star(u: Field, v: Field, first: Field, second: Field) -> Field:
    sector = np.float32(2 * np.pi / 5)
    angle = np.abs(np.mod(np.arctan2(u, v) + sector / 2, sector) - sector / 2)
    radius = np.hypot(u, v)
    # One side: from the tip (1.05 along the axis) to the notch, half a sector away.
    notch = 0.4 + 0.08 * first
    notch_along, notch_across = notch * np.cos(sector / 2), notch * np.sin(sector / 2)
    along, across = radius * np.cos(angle) - 1.05, radius * np.sin(angle)
    return (along * notch_across + across * (1.05 - notch_along)) / np.hypot(notch_across, 1.05 - notch_along)


def _tee(u: Field, v: Field, first: Field, second: Field) -> Field:
    half_width, beam = 0.25 + 0.09 * first, 0.42 + 0.14 * second
    return np.minimum(_box(u, v, -0.85, 0.85, 0.85 - beam, 0.85), _box(u, v, -half_width, half_width, -0.95, 0.6))


def _triangle(u: Field, v: Field, first: Field, second: Field) -> Field:
    floor = 0.52 + 0.06 * first
    return np.maximum(-v - floor, 0.866 * np.abs(u) + 0.5 * v - 0.52)


OUTLINES: dict[str, Callable[[Field, Field, Field, Field], Field]] = {
    "arrow": _arrow,
    "bolt": _bolt,
    "bowtie": _bowtie,
    "crescent": _crescent,
    "cross": _cross,
    "disc": _disc,
    "ell": _ell,
    "flower": _flower,
    "heart": _heart,
    "horseshoe": _horseshoe,
    "ring": _ring,
    "semicircle": _semicircle,
    "square": _square,
    "star": _star,
    "tee": _tee,
    "triangle": _triangle,
}
SHAPES: tuple[str, ...] = tuple(OUTLINES)


def measure_distance(label: np.ndarray, side_px: int, rng: np.random.Generator, pose: float = 1.0) -> np.ndarray:
    """Signed distances to the outlines of freshly posed shapes.

    Args:
        label: [n] int, rows of `SHAPES`.
        side_px: side of the square image.
        rng: draws rotation, size, position, aspect, shear, wobble and proportions; the number of draws does not depend on the labels.
        pose: 1 for the full ranges, 0 for the upright, centred, undeformed shape of middle size and middle proportions.

    Returns:
        [n, side_px, side_px] float32 in pixels: negative inside, positive outside, accurate to a fraction of a pixel near the outline.
    """
    n = len(label)
    spread = pose * rng.uniform(-1, 1, (10, n, 1, 1)).astype(np.float32)  # every pose parameter, scaled to -1 to 1 in its range
    angle = np.deg2rad(ROTATION_DEGREES) * spread[0]
    radius = side_px * (np.mean(RADIUS_FRAC) + (RADIUS_FRAC[1] - RADIUS_FRAC[0]) / 2 * spread[1]).astype(np.float32)
    room = np.maximum(side_px / 2 - MARGIN * radius, 0)
    grid = np.arange(side_px, dtype=np.float32) + np.float32(0.5 - side_px / 2)
    right = (grid[None, None, :] - room * spread[2]) / radius  # [n, 1, W]
    up = -(grid[None, :, None] - room * spread[3]) / radius  # [n, H, 1]

    u, v = np.cos(angle) * right + np.sin(angle) * up, np.cos(angle) * up - np.sin(angle) * right
    u = (u + SHEAR * spread[5] * v) * np.exp(ASPECT_LOG * spread[4])
    v = v * np.exp(-ASPECT_LOG * spread[4])
    phase = np.float32(np.pi) * spread[6:8]
    u, v = u + WOBBLE * pose * np.sin(3 * v + phase[0]), v + WOBBLE * pose * np.sin(3 * u + phase[1])

    proportion = (spread[8:10] + 1) / 2
    field = np.empty((n, side_px, side_px), np.float32)
    for k in np.unique(label):
        rows = np.flatnonzero(label == k)
        field[rows] = OUTLINES[SHAPES[k]](u[rows], v[rows], proportion[0, rows], proportion[1, rows])

    slope = np.hypot(np.gradient(field, axis=1), np.gradient(field, axis=2))
    return field / np.maximum(slope, SLOPE_FLOOR / radius)
