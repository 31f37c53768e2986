"""From draws of a difference to a decision: intervals, several pairs as one effect, and what is evidence for or against.

Sources: Schuirmann (1987) for two one-sided tests; DerSimonian and Laird (1986) for the mean of several pairs and tau; Satterthwaite (1946)
for the degrees of freedom of errors. Differs from DerSimonian and Laird: pairs that share a control, or images, are not independent, so
tau and the error come from the covariance of the draws; with a diagonal one they are as published. And the interval is of a t distribution,
since few pairs do not tell tau well. It has at least as many degrees of freedom as there are pairs, less one: the approximation gives fewer
where the errors of pairs are very different. For equal errors without covariance that is the interval of Hartung and Knapp (2001), never
narrower than with tau = 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

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


class Mean(NamedTuple):
    """Of the effects of several pairs, in points."""

    value: float
    error: float  # standard error
    tau: float  # standard deviation of the true effects
    freedom: float  # degrees of freedom of `error`


UNKNOWN = Effect(*[float("nan")] * 4)


class Seeds(NamedTuple):
    """How the seeds of each algorithm enter the errors of some pairs: a few seeds do not tell well how much they differ."""

    sign: np.ndarray  # [pairs, algorithms]: 1 where it is treated, -1 where it is the control, else 0
    variance: np.ndarray  # [algorithms]: what its seeds add to the variance of its score
    freedom: np.ndarray  # [algorithms]: degrees of freedom of that, at least 1

    def varies(self, weight: np.ndarray) -> float:
        """Variance of the seeds' part of the squared error of a mean of the pairs, with weights [pairs]."""
        return float((2 * ((weight @ self.sign) ** 2 * self.variance) ** 2 / self.freedom).sum())


def of_draws(draws: np.ndarray, normal: bool = False, seeds: Seeds | None = None) -> Effect:
    """Of draws [1 + R], the first as measured. NaN for the interval and p where the others are NaN.

    normal: the interval of a normal distribution with the draws' variance; else the middle 95 % of the draws, of which few seeds make more.
    """
    sampled = draws[1:][~np.isnan(draws[1:])]
    if np.isnan(draws[0]) or not len(sampled):
        return UNKNOWN._replace(value=float(draws[0]))
    if normal:
        return _of_error(float(draws[0]), float(sampled.std()))
    wider = _quantile(_freedom(float(sampled.var()), seeds.varies(np.ones(1)) if seeds else 0)) / _quantile(np.inf)
    sampled = draws[0] + wider * (sampled - draws[0])
    low, high = np.quantile(sampled, [0.025, 0.975])
    return Effect(float(draws[0]), float(low), float(high), (1 + np.count_nonzero(sampled <= 0)) / (1 + len(sampled)))


def pool(draws: np.ndarray, seeds: Seeds | None = None) -> Pooled:
    """Of draws [pairs, 1 + R]: the random-effects mean, with the interval of a t distribution."""
    if np.isnan(draws).all(1).any() or np.isnan(draws[:, 1:]).all(1).any():
        return Pooled(UNKNOWN._replace(value=float(draws[:, 0].mean())), float("nan"))
    complete = draws[:, 1:][:, ~np.isnan(draws[:, 1:]).any(0)]
    mean = random_effects(draws[:, 0], np.cov(complete, ddof=0).reshape(len(draws), -1), seeds)
    return Pooled(_of_error(mean.value, mean.error, mean.freedom), mean.tau)


def random_effects(effects: np.ndarray, covariance: np.ndarray, seeds: Seeds | None = None) -> Mean:
    """Of effects [k] whose errors have a covariance [k, k], of which seeds are a part."""
    variance = np.maximum(np.diag(covariance), LEAST_VARIANCE)
    weight = 1 / variance
    spread = np.diag(weight) - np.outer(weight, weight) / weight.sum()  # effects @ spread @ effects is Cochran's Q
    scale = np.trace(spread) or 1.0  # of a single effect, whose spread is 0
    tau_squared = max(0.0, float(effects @ spread @ effects - np.trace(spread @ covariance)) / scale)
    whole = covariance + tau_squared * np.eye(len(effects))
    weight = 1 / (variance + tau_squared)
    weight /= weight.sum()
    squared = float(weight @ whole @ weight)
    varies = 2 * np.trace(spread @ whole @ spread @ whole) * (weight @ weight / scale) ** 2  # variance of tau's part of `squared`
    freedom = max(_freedom(squared, varies + (seeds.varies(weight) if seeds else 0)), len(effects) - 1)
    return Mean(float(weight @ effects), float(np.sqrt(squared)), float(np.sqrt(tau_squared)), freedom)


def decide(effect: Effect, margin: float) -> str:
    """One of SYMBOLS. margin: the smallest effect of interest, at least 0."""
    if np.isnan(effect.low):
        return "?"
    if effect.low > margin:
        return "+"
    if effect.high < -margin:
        return "-"
    return "o" if -margin < effect.low and effect.high < margin else "?"


def decide_together(mean: Effect, of_pairs: Sequence[str], margin: float) -> str:
    """Of several pairs: what is decided about their mean or, where that is open, what is decided about every single pair."""
    decided = decide(mean, margin)
    return of_pairs[0] if decided == "?" and len(set(of_pairs)) == 1 else decided


def published_view(symbol: str) -> str:
    """The paper has + and -, where - is absence of evidence as well as evidence against."""
    return "-" if symbol in ("o", "-", "?") else symbol


def _freedom(squared: float, varies: float) -> float:
    """Degrees of freedom of a squared error with this variance."""
    return float(2 * squared**2 / varies) if varies > 0 else np.inf


def _quantile(freedom: float) -> float:
    return float(scipy.stats.t.ppf(0.975, freedom))


def _of_error(value: float, error: float, freedom: float = np.inf) -> Effect:
    """freedom: degrees of freedom of the error; a normal distribution without."""
    if error == 0:
        return Effect(value, value, value, 0.5 if value == 0 else float(value < 0))
    reach = error * _quantile(freedom)
    return Effect(value, value - reach, value + reach, float(scipy.stats.t.sf(value / error, freedom)))
