"""The critical band: how much noise of one octave a network stands, and the channel that it sees through.

A grey image of low contrast gets noise of one standard deviation and one of seven bands, cut out of white noise by a Laplacian pyramid.
The thresholds of the bands are fitted by a bell over octaves: its width, its centre and its height are the three numbers of a network.

Sources: Subramanian et al., "Spatial-frequency channels, shape bias, and adversarial robustness" (2023), and its code; Gavrikov and
Keuper (CVPR 2024), who use all images for each cell, and divide accuracies by the best one (`normalised`). Their pyramid is pyrtools'
default, here as products with the matrices of its levels: a level is what is left of the noise after going down, less what is left of that
one level further down, brought up again. Where a fit is degenerate, its
numbers are NaN and `status` says why. (The published code prints whatever its optimiser stops at, such as 11295 octaves.)
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SIGMAS = (0.0, 0.02, 0.04, 0.08, 0.16)  # standard deviations of the white noise that bands are cut from
CONTRAST, GREY = 0.2, 0.449  # gain, and the mean of ImageNet's channels
KERNEL = np.array([1, 4, 6, 4, 1]) * math.sqrt(2) / 16  # of the pyramid, for each axis, both ways
DARKEST, BRIGHTEST = 0.1, 0.9  # what pixels become that would leave [0, 1]
LUMA = (19595, 38470, 7471)  # of 65536: how Pillow makes 8-bit grey
LARGEST = 4  # of the fit's height: the number of steps between SIGMAS


class Channel(NamedTuple):
    """The bell fitted to thresholds, and what follows from it. `status` is empty where all is well; all that applies is named.

    flat: all thresholds are equal. empty: they are all 0. clean_below_threshold: even without noise too few answers are right.
    height_at_bound: the bell is as high as it may be. narrow: at most two bands have a threshold above 0. centre_out_of_range: more than
    half an octave outside the bands. no_fit: the bell has no best width. With flat, empty or no_fit, numbers are NaN.
    """

    thresholds: tuple[int, ...]  # of each band: steps down from the largest sigma to the first that is passed
    height: float
    centre: float  # in bands
    sigma: float  # in octaves
    bandwidth_octaves: float  # full width at half of the height
    centre_cycles: float  # per image
    peak_noise_sensitivity: float  # 2^(height - 4): 1 is the most, 1/16 none
    squared_error: float
    status: tuple[str, ...]


def sizes(side_px: int) -> tuple[int, ...]:
    """Sides of the pyramid's levels, the finest first, as many as pyrtools takes (which treats the border of a level of 5 px otherwise).

    Raises ValueError for images too small for two of them.
    """
    levels, left = [side_px], side_px
    while left >= len(KERNEL):
        left //= 2
        levels.append((levels[-1] + 1) // 2)
    if len(levels) < 2:
        raise ValueError(f"images of {side_px} px have no bands: they need {len(KERNEL)} px at least")
    return tuple(levels)


def bands(side_px: int) -> int:
    """How many bands there are: 7 at 224 px. Band 0 is the lowest."""
    return len(sizes(side_px))


def centre_cycles(side_px: int, band: float) -> float:
    """The nominal centre of a band in cycles per image, 1.75 · 2^band at 224 px: the highest ends at what pixels can show."""
    return side_px * 2.0 ** (band - bands(side_px))


class Axis(NamedTuple):
    """A level of m pixels of one axis of n pixels. At the finest, m = n, there is nothing to go down or up."""

    down: np.ndarray | jax.Array | None  # [m, n]
    coarser: np.ndarray | jax.Array  # [m, m]: one level further down, and up again
    up: np.ndarray | jax.Array | None  # [n, m]


class Band(NamedTuple):
    """A level of the pyramid along each axis."""

    rows: Axis
    columns: Axis


def band(height: int, width: int, number: int) -> Band:
    """A band, 0 being the lowest. Raises ValueError for one that images of this size do not have."""
    highest = bands(min(height, width)) - 1
    if not 0 <= number <= highest:
        raise ValueError(f"band = {number}: images of {height} x {width} px have bands 0 to {highest}")

    def axis(side_px: int) -> Axis:
        up, down = _to_level(side_px, highest - number)
        coarser = np.matmul(*_up_down(len(down))) if number else np.zeros((len(down),) * 2)  # the lowest band keeps all that is left
        down, coarser, up = (matrix.astype(np.float32) for matrix in (down, coarser, up))
        return Axis(down, coarser, up) if number < highest else Axis(None, coarser, None)

    return Band(axis(height), axis(width))


def draw(key: jax.Array, height: int, width: int) -> jax.Array:
    """White noise [H, W] of standard deviation 1."""
    return jax.random.normal(key, (height, width))


def within(band: Band, noise: jax.Array) -> jax.Array:
    """What is in a band of white noise [..., H, W]."""
    rows, columns = band
    level = noise if rows.down is None or columns.down is None else _product(_product(rows.down, noise), columns.down.T)
    level = level - _product(_product(rows.coarser, level), columns.coarser.T)
    return level if rows.up is None or columns.up is None else _product(_product(rows.up, level), columns.up.T)


_product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)  # in float32, not in less


def stimulus(image: jax.Array, noise: jax.Array, sigma: jax.Array | float, band: Band, highest: Band) -> jax.Array:
    """Images [B, H, W, 3] in [0, 1] in grey, with low contrast and noise of a band.

    noise [B, H, W] is white, of standard deviation 1. What is in the band is made as strong (root mean square) as what is in the highest
    band of the same noise, times sigma; 0 leaves it away.
    """
    luma = jnp.round(image * 255).astype(jnp.int32) @ jnp.array(LUMA, jnp.int32)
    grey = ((luma + 32768) // 65536) / 255
    faint = CONTRAST * (grey - grey.mean((1, 2), keepdims=True)) + GREY
    inside, finest = within(band, noise), within(highest, noise)
    strength = jnp.sqrt((finest**2).mean((1, 2), keepdims=True) / (inside**2).mean((1, 2), keepdims=True))
    noisy = faint + sigma * strength * inside
    noisy = jnp.where(noisy < 0, DARKEST, jnp.where(noisy > 1, BRIGHTEST, noisy))
    return jnp.broadcast_to(noisy[..., None], image.shape)


def thresholds(accuracy: np.ndarray, normalised: bool) -> tuple[int, ...]:
    """For each band, steps down from the largest sigma to the first at which more than half is right; also where it never is, the most.

    accuracy [sigmas, bands], fractions, in the order of SIGMAS. normalised: half of the best cell, instead of half of all images.
    """
    passed = np.asarray(accuracy) > _half(accuracy, normalised)
    steps = np.argmax(passed[::-1], axis=0)
    return tuple(int(step) for step in np.where(passed.any(0), steps, len(SIGMAS) - 1))


def continuous_thresholds(accuracy: np.ndarray, normalised: bool) -> np.ndarray:
    """Thresholds [bands] between the steps: where accuracy, a straight line between sigmas in octaves, crosses the half. Not the papers'.

    The step from the smallest sigma to none counts as one octave, like the others. Few networks tie in them.
    """
    half, exact = _half(accuracy, normalised), []
    falling = np.asarray(accuracy, float)[::-1]  # from the largest sigma down
    for band, step in enumerate(thresholds(accuracy, normalised)):
        column = falling[:, band]
        share = 1.0 if step == 0 or column[step] <= half else (half - column[step - 1]) / (column[step] - column[step - 1])
        exact.append(step - 1 + share if step else 0.0)
    return np.array(exact)


def channel(accuracy: np.ndarray, side_px: int, normalised: bool) -> Channel:
    """The channel of a network, from its accuracies [sigmas, bands], fractions, in the order of SIGMAS.

    Raises ValueError for another shape, and for numbers outside [0, 1].
    """
    accuracy = np.asarray(accuracy, float)
    if accuracy.shape != (len(SIGMAS), bands(side_px)) or not ((accuracy >= 0) & (accuracy <= 1)).all():
        raise ValueError(
            f"accuracies of shape {accuracy.shape} from {accuracy.min():g} to {accuracy.max():g}: they must be fractions, a row for each "
            f"of the sigmas {SIGMAS}, a column for each of {bands(side_px)} bands"
        )
    clean_passes = (accuracy[0] > _half(accuracy, normalised)).any()
    return fit(thresholds(accuracy, normalised), side_px, () if clean_passes else ("clean_below_threshold",))


def fit(steps: tuple[int, ...], side_px: int = 224, known: tuple[str, ...] = ()) -> Channel:
    """The bell height · exp(-(b - centre)² / (2 sigma²)) over bands b = 0, 1, ... with the least squared error; 0 ≤ height ≤ 4.

    known: what is wrong already, for `status`.
    """
    wanted, status = np.array(steps, float), list(known)
    if flat := wanted.min() == wanted.max():
        status += ["flat"] if wanted.any() else ["flat", "empty"]
    best = None if flat else _best_bell(tuple(steps))
    if best is None:
        status += [] if flat else ["no_fit"]
        return Channel(tuple(steps), *(math.nan,) * 7, status=tuple(status))
    (height, centre, sigma), error = best
    status += ["height_at_bound"] if height > LARGEST - 1e-9 else []
    status += ["narrow"] if np.count_nonzero(wanted) <= 2 else []
    status += [] if -0.5 <= centre <= len(steps) - 0.5 else ["centre_out_of_range"]
    width = 2 * math.sqrt(2 * math.log(2)) * sigma
    cycles, sensitivity = centre_cycles(side_px, centre), 2.0 ** (height - LARGEST)
    return Channel(tuple(steps), height, centre, sigma, width, cycles, sensitivity, error, tuple(status))


def _half(accuracy: np.ndarray, normalised: bool) -> float:
    return 0.5 * float(np.max(accuracy)) if normalised else 0.5


@functools.cache
def _up_down(side_px: int) -> tuple[np.ndarray, np.ndarray]:
    """[n, ceil(n/2)] and [ceil(n/2), n]: one axis of a level from the coarser one, and back; at borders not each other's transpose."""
    padded = np.pad(np.eye(side_px), ((2, 2), (0, 0)), mode="reflect")
    blurred = sum(weight * padded[k : k + side_px] for k, weight in enumerate(KERNEL))
    spread = np.zeros((side_px, (side_px + 1) // 2))
    spread[::2] = np.eye(spread.shape[1])
    padded = np.pad(spread, ((2, 2), (0, 0)), mode="reflect")
    return sum(weight * padded[k : k + side_px] for k, weight in enumerate(KERNEL)), blurred[::2]


@functools.cache
def _to_level(side_px: int, level: int) -> tuple[np.ndarray, np.ndarray]:
    """[n, m] and [m, n]: one axis of an image from a level of the pyramid, and to it."""
    if level == 0:
        return np.eye(side_px), np.eye(side_px)
    (up, down), (further_up, further_down) = _up_down(side_px), _to_level((side_px + 1) // 2, level - 1)
    return up @ further_up, further_down @ down


class _Bell(NamedTuple):
    height: float
    centre: float
    sigma: float

    def over(self, band: np.ndarray) -> np.ndarray:
        return self.height * np.exp(-((band - self.centre) ** 2) / (2 * self.sigma**2))


@functools.cache  # seeds and sets often have the same thresholds
def _best_bell(steps: tuple[int, ...]) -> tuple[_Bell, float] | None:
    """The bell with the least squared error, and that error; None where a narrower one is as good.

    From several starts, as there are local optima. The published fit starts from one, and finds the same for all networks of the paper.
    """
    from scipy import optimize

    wanted, band = np.array(steps, float), np.arange(len(steps))

    def error(bell: _Bell) -> float:
        return float(((bell.over(band) - wanted) ** 2).sum())

    starts = []
    for centre in np.arange(-1.0, len(wanted) + 0.5, 0.5):
        for sigma in 2.0 ** np.arange(-2, 5):
            shape = _Bell(1.0, centre, sigma).over(band)
            starts.append(_Bell(float(np.clip(shape @ wanted / (shape @ shape), 0, LARGEST)), centre, sigma))
    bounds = ([0, -np.inf, 1e-3], [LARGEST, np.inf, np.inf])
    fits = []
    for start in sorted(starts, key=error)[:8]:
        solved = optimize.least_squares(lambda values: _Bell(*values).over(band) - wanted, start, bounds=bounds, xtol=1e-12, ftol=1e-12)
        fits.append(_Bell(*(float(value) for value in solved.x)))
    best = min(fits, key=error)
    return None if error(best._replace(sigma=best.sigma / 2)) <= error(best) + 1e-9 else (best, error(best))
