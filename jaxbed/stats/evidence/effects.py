"""From draws of a difference to a decision: intervals, several pairs as one effect, and what is evidence for or against.

Sources: Schuirmann (1987) for two one-sided tests; DerSimonian and Laird (1986). Differs from the latter: pairs that share a control, or
images, are not independent, so the error of their mean comes from the covariance of the draws; with a diagonal one it is as published.
"""

from typing import NamedTuple

import numpy as np
import scipy

Z = float(scipy.stats.norm.ppf(0.975))
LEAST_VARIANCE = 1e-9  # of a pair, in points: where nothing varies, all pairs weigh the same
SYMBOLS = {
    "+": "for (the interval lies above the margin)",
    "o": "no effect that matters (within the margin on both sides)",
    "-": "against (below minus the margin)",
    "?": "undecided",
    "": "not tested",
}


class Effect(NamedTuple):
    """In points; positive is better."""

    value: float
    low: float  # 95 % interval
    high: float
    p: float  # of an effect that is not positive, one-sided


class Pooled(NamedTuple):
    """Of several pairs."""

    effect: Effect
    tau: float  # standard deviation of the true effects of pairs


UNKNOWN = Effect(*[float("nan")] * 4)


def of_draws(draws: np.ndarray, normal: bool = False) -> Effect:
    """Of draws [1 + R], the first as measured. NaN for the interval and p where the others are NaN.

    normal: the interval of a normal distribution with the draws' variance; else the middle 95 % of the draws.
    """
    sampled = draws[1:][~np.isnan(draws[1:])]
    if np.isnan(draws[0]) or not len(sampled):
        return UNKNOWN._replace(value=float(draws[0]))
    if normal:
        return _of_normal(float(draws[0]), float(sampled.std()))
    low, high = np.quantile(sampled, [0.025, 0.975])
    return Effect(float(draws[0]), float(low), float(high), (1 + np.count_nonzero(sampled <= 0)) / (1 + len(sampled)))


def pool(draws: np.ndarray) -> Pooled:
    """Of draws [pairs, 1 + R]: the random-effects mean, with the interval of a normal distribution."""
    if np.isnan(draws).all(1).any() or np.isnan(draws[:, 1:]).all(1).any():
        return Pooled(UNKNOWN._replace(value=float(draws[:, 0].mean())), float("nan"))
    complete = draws[:, 1:][:, ~np.isnan(draws[:, 1:]).any(0)]
    value, error, tau = random_effects(draws[:, 0], np.cov(complete, ddof=0).reshape(len(draws), -1))
    return Pooled(_of_normal(value, error), tau)


def random_effects(effects: np.ndarray, covariance: np.ndarray) -> tuple[float, float, float]:
    """(mean, its standard error, tau) of effects [k] whose errors have a covariance [k, k]."""
    variance = np.maximum(np.diag(covariance), LEAST_VARIANCE)
    weight = 1 / variance
    heterogeneity = (weight * (effects - np.average(effects, weights=weight)) ** 2).sum()  # Cochran's Q
    scale = weight.sum() - (weight**2).sum() / weight.sum()
    tau_squared = max(0.0, (heterogeneity - (len(effects) - 1)) / scale) if len(effects) > 1 else 0.0
    weight = 1 / (variance + tau_squared)
    weight /= weight.sum()
    error = np.sqrt(weight @ (covariance + tau_squared * np.eye(len(effects))) @ weight)
    return float(weight @ effects), float(error), float(np.sqrt(tau_squared))


def decide(effect: Effect, margin: float) -> str:
    """One of SYMBOLS. margin: the smallest effect of interest, at least 0."""
    if np.isnan(effect.low):
        return "?"
    if effect.low > margin:
        return "+"
    if effect.high < -margin:
        return "-"
    return "o" if -margin < effect.low and effect.high < margin else "?"


def published_view(symbol: str) -> str:
    """The paper has + and -, where - is absence of evidence as well as evidence against."""
    return "-" if symbol in ("o", "-", "?") else symbol


def _of_normal(value: float, error: float) -> Effect:
    if error == 0:
        return Effect(value, value, value, 0.5 if value == 0 else float(value < 0))
    return Effect(value, value - Z * error, value + Z * error, float(scipy.stats.norm.sf(value / error)))
