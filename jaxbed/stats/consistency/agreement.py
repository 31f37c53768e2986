"""How alike two decision makers are in what they get right: error consistency, and the difference of their accuracies.

Two of accuracies p and q agree on p q + (1 - p)(1 - q) of the trials by chance. Error consistency is what they agree beyond that, as a
share of what is possible: Cohen's kappa (1960) of correctness, not of answers. Source: Geirhos, Meding and Wichmann, "Beyond accuracy:
quantifying trial-by-trial behaviour of CNNs and humans by measuring error consistency" (2020).
"""

from typing import NamedTuple

import numpy as np


class Agreement(NamedTuple):
    """Of one pair, or arrays of one shape for many. All NaN where they share no trial."""

    squared_difference: np.ndarray  # of the accuracies
    observed: np.ndarray  # share of trials on which both are right, or both wrong
    expected: np.ndarray  # the same share by chance
    kappa: np.ndarray  # in [-1, 1]; 1 where they always agree, also where chance would have it so


def error_consistency(a_correct: np.ndarray, b_correct: np.ndarray) -> Agreement:
    """Of two decision makers on the same trials: bool [n] each. Raises ValueError for other shapes and for no trial."""
    a, b = np.asarray(a_correct, bool), np.asarray(b_correct, bool)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise ValueError(f"shapes {a.shape} and {b.shape}: both must be [n] with n at least 1, in the same order of trials")
    return of_counts(*(np.array(count, float) for count in (len(a), a.sum(), b.sum(), (a & b).sum())))


def of_pairs(correct: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, Agreement]:
    """Shared trials [R, M, M], and agreement of every pair of M decision makers, for each of R weightings of the n trials.

    correct [n, M]: 1 or 0, NaN where there is no trial. weights [R, n]: how often each trial counts. A pair counts its shared trials only.
    """
    n, m = correct.shape
    shown, right = (~np.isnan(correct)).astype(float), np.nan_to_num(correct)

    def count(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return (weights @ (first[:, :, None] * second[:, None, :]).reshape(n, m * m)).reshape(-1, m, m)

    trials, first = count(shown, shown), count(right, shown)
    return trials, of_counts(trials, first, first.swapaxes(1, 2), count(right, right))


def of_counts(trials: np.ndarray, first: np.ndarray, second: np.ndarray, both: np.ndarray) -> Agreement:
    """From the trials that two share, those that the first, the second, and both got right; arrays of one shape."""
    p, q, agreed = (ratio(count, trials) for count in (first, second, trials - first - second + 2 * both))
    expected = p * q + (1 - p) * (1 - q)
    kappa = np.where(agreed == 1, 1.0, ratio(agreed - expected, 1 - expected))
    return Agreement((p - q) ** 2, agreed, expected, kappa)


def mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """The mean of what is defined; NaN where nothing is."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0).sum(axis), known.sum(axis))


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=whole > 0)
