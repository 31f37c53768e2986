"""Spearman's rank correlation of two properties of models, and how firm it is.

Ties share their mean rank. Values are rounded before they are ranked, so that what differs by rounding alone is a tie: to DIGITS of the
largest, or to DECIMALS where these are more, so that one huge value makes no ties of the others.
p-values are those of the t distribution with n - 2 degrees of freedom, two-sided, as scipy's default and the bias paper have them, and
those of permutations, which need no such approximation. Sources: Spearman (1904); for permutation p-values that count the observed order,
Phipson and Smyth (2010).
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy

DIGITS, DECIMALS = 9, 6
SMALLEST = 1e-290  # what is smaller than that may tie: numpy rounds to no more decimals
LEAST = 4  # models; with fewer, no order is rare
PERMUTATIONS, RESAMPLES, SEED = 9_999, 2_000, 0


class Firmness(NamedTuple):
    """How a correlation of n models changes. All NaN where it is undefined: fewer than LEAST models, or a column of equal values."""

    rho: float
    p: float  # by the t distribution
    p_permutation: float
    low: float  # 95 % interval of the bootstrap over models
    high: float
    least_without_one: float  # the least and the largest rho with one model left out
    most_without_one: float
    least_without_category: float  # ... with a category left out
    most_without_category: float
    rho_within: float  # of ranks less the mean rank of their category
    p_within: float


UNDEFINED = Firmness(*[float("nan")] * len(Firmness._fields))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks along the last axis, of values of one property, less their mean; ties share the mean of theirs."""
    first_digit = int(np.floor(np.log10(np.abs(values).max(initial=SMALLEST))))  # 0 of 1 to 9.9
    ranked = scipy.stats.rankdata(np.round(values, max(DIGITS - 1 - first_digit, DECIMALS)), axis=-1)
    return ranked - ranked.mean(-1, keepdims=True)


def rho(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rho along the last axis; NaN where either has only equal values."""
    return _cosine(ranks(x), ranks(y))


def p_value(coefficient: float, freedom: int) -> float:
    """Two-sided p of a correlation by the t distribution; NaN without degrees of freedom."""
    if not freedom > 0 or np.isnan(coefficient):
        return float("nan")
    if abs(coefficient) >= 1:
        return 0.0
    return float(2 * scipy.stats.t.sf(abs(coefficient) * np.sqrt(freedom / (1 - coefficient**2)), freedom))


def firmness(x: np.ndarray, y: np.ndarray, category: np.ndarray) -> Firmness:
    """Of values x and y [n] of n models, none missing; category [n]: which models are of one kind."""
    n, kinds = len(x), np.unique(category)
    coefficient = float(rho(x, y)) if n >= LEAST else float("nan")
    if np.isnan(coefficient):
        return UNDEFINED
    ranked_x, ranked_y = ranks(x), ranks(y)
    permuted = _cosine(ranked_x, ranked_y[_orders(n)])
    larger = np.count_nonzero(np.abs(permuted) >= abs(coefficient) - 1e-12)
    resampled = _resamples(n)
    low, high = _quantiles(rho(x[resampled], y[resampled]))
    without_one = _range(rho(_without_each(x), _without_each(y)).tolist())
    several = len(kinds) > 1
    kept = [category != kind for kind in kinds] if several else []
    without_category = _range([float(rho(x[keep], y[keep])) for keep in kept if keep.sum() >= LEAST])
    within = float(_cosine(_centred(ranked_x, category), _centred(ranked_y, category))) if several else float("nan")
    by_t, by_permutation = p_value(coefficient, n - 2), (1 + larger) / (1 + len(permuted))
    p_within = p_value(within, n - 1 - len(kinds))
    return Firmness(coefficient, by_t, by_permutation, low, high, *without_one, *without_category, within, p_within)


def _cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    product, length = (x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.clip(np.divide(product, length, out=np.full(np.shape(product), np.nan), where=length > 1e-12), -1, 1)


def _centred(ranked: np.ndarray, category: np.ndarray) -> np.ndarray:
    means = {kind: ranked[category == kind].mean() for kind in np.unique(category)}
    return ranked - np.array([means[kind] for kind in category])


def _without_each(values: np.ndarray) -> np.ndarray:
    """[n, n - 1]: the values without the first, without the second, ..."""
    n = len(values)
    return np.broadcast_to(values, (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)


def _quantiles(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of what is defined: a resample may hold equal values alone."""
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def _range(values: list[float]) -> tuple[float, float]:
    """Least and largest of what is defined."""
    defined = [value for value in values if not np.isnan(value)]
    return (min(defined), max(defined)) if defined else (float("nan"), float("nan"))


@functools.cache
def _orders(n: int) -> np.ndarray:
    """[PERMUTATIONS, n]: random orders, the same for all pairs of n models."""
    return np.random.default_rng(SEED).permuted(np.tile(np.arange(n), (PERMUTATIONS, 1)), axis=1)


@functools.cache
def _resamples(n: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
