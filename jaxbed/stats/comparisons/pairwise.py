"""Which pairs of algorithms differ over data sets, by how much, and in which direction? All pairs, or all against a baseline.

Tests that need no resampling, each with Holm's adjustment over the whole family. The tables TESTS and EFFECTS list them: a statistic
that is added there appears in pairs.csv, tests.csv, columns.csv and the report.

 All pairs: n (n-1) / 2 comparisons; against a
baseline, the question "better than it?", only n-1, with far more power.

z         (R_i - R_j) / sqrt(n (n+1) / (6 m)) of mean ranks, normal. All pairs: Siegel; against a baseline: Demšar's recommendation.
conover   t of the rank sums with the residual variance of the ranks, (n-1)(m-1) d.o.f. Liberal after a strong overall result. With perfect
          agreement no variance is left and p is 0, too small, as that of Friedman's F.
wilcoxon  signed ranks of the differences of scores, exact with ties. Data sets without a difference are dropped, or kept while ranking
          (pratt), as a check. It takes differences on different data sets for comparable; the sign test does not.
sign      number of wins against number of losses, exact.

z and conover depend on which other algorithms are compared; wilcoxon and sign do not, but cannot give a small p on few data sets
(permutation.smallest_p).

Sources: Demšar, JMLR 2006; García and Herrera, JMLR 2008; Conover, Practical Nonparametric Statistics, 1999; Pratt 1959; Holm 1979.
Benavoli et al., "Should we really use post-hoc tests based on mean-ranks?", JMLR 2016, on the other algorithms.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

from jaxbed.stats.comparisons import ranks

DIFFERENCE_DECIMALS = 12  # .80 - .78 and .62 - .60 must tie


class Comparisons(NamedTuple):
    """What the statistics of pairs (i, j) are computed from: n algorithms on m data sets."""

    doubled_ranks: np.ndarray  # [n, m] whole numbers: equal differences get equal p
    i: np.ndarray  # [pairs] rows of the first algorithms
    j: np.ndarray
    differences: np.ndarray  # [pairs, m] scores of i minus j

    def rank_sums(self) -> np.ndarray:
        """Doubled rank sums of i minus j [pairs]."""
        sums = self.doubled_ranks.sum(axis=1)
        return sums[self.i] - sums[self.j]


class Test(NamedTuple):
    """A test of pairs: columns p_NAME and p_NAME_holm."""

    name: str
    title: str  # in tests.csv and in heads of columns
    p: Callable[[Comparisons], Sequence[float] | np.ndarray]  # [pairs], before adjustment
    exact: bool = False


class Effect(NamedTuple):
    """An effect size of pairs: column NAME."""

    name: str
    title: str
    value: Callable[[Comparisons], Sequence[float] | np.ndarray]  # [pairs], positive: i is better


def holm(p: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's step-down adjustment of a whole family of p-values, in their order. Adjust only once."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1)
    return adjusted


def wilcoxon(differences: Sequence[float], *, pratt: bool = False) -> tuple[float, float]:
    """Signed-rank statistic min(W+, W-) and its two-sided p over all 2^m signs, ties included; p = 1 if all differences are 0."""
    signed = _doubled_signed_ranks(differences, pratt)
    chances = _chances(tuple(sorted(np.abs(signed).tolist())))
    lower = int(min(signed[signed > 0].sum(), -signed[signed < 0].sum()))
    return lower / 2, min(1.0, 2 * float(chances[: lower + 1].sum()))


def rank_biserial(differences: Sequence[float]) -> float:
    """Matched rank-biserial correlation (W+ - W-) / (W+ + W-), zeros dropped; 0 if all differences are 0."""
    signed = _doubled_signed_ranks(differences, pratt=False)
    return float(signed.sum() / np.abs(signed).sum()) if len(signed) else 0.0


def hodges_lehmann(differences: Sequence[float]) -> float:
    """The shift: median of (d_i + d_j) / 2 over all i <= j."""
    d = np.round(np.asarray(differences, dtype=float), DIFFERENCE_DECIMALS)
    first, second = np.triu_indices(len(d))
    return float(np.median((d[first] + d[second]) / 2))


def shift_interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The shifts that Wilcoxon's exact test does not reject: an interval without a normal approximation.

    It covers the shift of symmetric differences in at least `level` of cases. NaN, NaN if there are too few differences for the level.
    Source: Hollander and Wolfe, Nonparametric Statistical Methods, 1999, section 3.3.
    """
    d = np.round(np.asarray(differences, dtype=float), DIFFERENCE_DECIMALS)
    first, second = np.triu_indices(len(d))
    means = np.sort((d[first] + d[second]) / 2)
    out = int((_chances(tuple(range(1, len(d) + 1))).cumsum() <= (1 - level) / 2 + 1e-12).sum())  # of the smallest and largest means
    return (float(means[out - 1]), float(means[-out])) if out else (float("nan"), float("nan"))


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p of the sign test, ties left out; 1 without wins and losses."""
    return min(1.0, 2 * float(scipy.stats.binom.cdf(min(wins, losses), wins + losses, 0.5)))


def cliffs_delta(x: Sequence[float], y: Sequence[float]) -> float:
    """P(x > y) - P(x < y) over all pairs of a run of x and a run of y; A12 = (delta + 1) / 2 = P(x > y) + P(x = y) / 2."""
    first, second = (np.asarray(values, dtype=float).round(ranks.DECIMALS) for values in (x, y))
    return float(np.sign(first[:, None] - second).mean())


@lru_cache(maxsize=100)
def _chances(sizes: tuple[int, ...]) -> np.ndarray:
    """P(sum = 0), P(sum = 1), ... for the sum of those whole numbers `sizes` that get a plus sign, if all signs are equally likely."""
    chances = np.ones(1)
    for size in sizes:
        gap = np.zeros(size)
        chances = (np.concatenate([chances, gap]) + np.concatenate([gap, chances])) / 2
    return chances


def _doubled_signed_ranks(differences: Sequence[float], pratt: bool) -> np.ndarray:
    d = np.round(np.asarray(differences, dtype=float), DIFFERENCE_DECIMALS)
    d = d if pratt else d[d != 0]
    signed = np.sign(d) * 2 * scipy.stats.rankdata(np.abs(d))
    return np.rint(signed[d != 0]).astype(int)


def _z(pairs: Comparisons) -> np.ndarray:
    n, m = pairs.doubled_ranks.shape
    return 2 * scipy.stats.norm.sf(np.abs(pairs.rank_sums() / (2 * m)) / np.sqrt(n * (n + 1) / (6 * m)))


def _conover(pairs: Comparisons) -> np.ndarray:
    doubled, differences = pairs.doubled_ranks, np.abs(pairs.rank_sums())
    n, m = doubled.shape
    degrees = (n - 1) * (m - 1)
    residual = int(m * (doubled**2).sum() - (doubled.sum(axis=1) ** 2).sum())  # m times the variance left, exact
    if residual == 0:
        return np.where(differences == 0, 1.0, 0.0)
    return 2 * scipy.stats.t.sf(differences / np.sqrt(2 * residual / degrees), degrees)


def _wilcoxon(pairs: Comparisons) -> list[float]:
    return [wilcoxon(row)[1] for row in pairs.differences]


def _pratt(pairs: Comparisons) -> list[float]:
    return [wilcoxon(row, pratt=True)[1] for row in pairs.differences]


def _sign(pairs: Comparisons) -> list[float]:
    return [sign_test(int((row > 0).sum()), int((row < 0).sum())) for row in pairs.differences]


def _rank_biserial(pairs: Comparisons) -> list[float]:
    return [rank_biserial(row) for row in pairs.differences]


TESTS = (
    Test("z", "z test of mean ranks", _z),
    Test("conover", "Conover", _conover),
    Test("wilcoxon", "Wilcoxon", _wilcoxon, exact=True),
    Test("pratt", "Wilcoxon with Pratt's zeros", _pratt, exact=True),
    Test("sign", "sign test", _sign, exact=True),
)
EFFECTS = (Effect("rank_biserial", "rank-biserial correlation", _rank_biserial),)


def pairs(matrix: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """One row for each pair, or for each algorithm i against the baseline j. Differences are i - j.

    algorithm_i, algorithm_j, mean_rank_i, mean_rank_j
    rank_difference   of mean ranks; negative = i better
    hodges_lehmann    median of the means of any two differences, in units of the scores; positive = i better
    hodges_lehmann_low, hodges_lehmann_high   its `shift_interval`, 95 %; NaN with fewer than 6 data sets
    NAME              for each of EFFECTS
    wins_i, ties, wins_j  numbers of data sets
    p_NAME, p_NAME_holm   for each of TESTS

    Raises what ranks.rank raises, and ValueError for fewer than two data sets or an unknown baseline.
    """
    compared = _compared(matrix, baseline)
    i, j, m = compared.i, compared.j, matrix.shape[1]
    sums = compared.doubled_ranks.sum(axis=1)
    frame = pd.DataFrame({"algorithm_i": matrix.index[i], "algorithm_j": matrix.index[j]})
    frame["mean_rank_i"], frame["mean_rank_j"] = sums[i] / (2 * m), sums[j] / (2 * m)
    frame["rank_difference"] = compared.rank_sums() / (2 * m)
    frame["hodges_lehmann"] = [hodges_lehmann(row) for row in compared.differences]
    frame[["hodges_lehmann_low", "hodges_lehmann_high"]] = [shift_interval(row) for row in compared.differences]
    frame = frame.assign(**{effect.name: effect.value(compared) for effect in EFFECTS})
    frame["wins_i"], frame["ties"], frame["wins_j"] = ((np.sign(compared.differences) == sign).sum(axis=1) for sign in (1, 0, -1))
    frame = frame.assign(**{f"p_{test.name}": test.p(compared) for test in TESTS})
    return frame.assign(**{f"p_{test.name}_holm": holm(frame[f"p_{test.name}"]) for test in TESTS})


def adjusted(matrix: pd.DataFrame, name: str) -> pd.DataFrame:
    """p [n, n] of all pairs by the test of that name in TESTS, with Holm's adjustment, diagonal 1. Raises what `pairs` raises."""
    compared = _compared(matrix, None)
    (test,) = (test for test in TESTS if test.name == name)
    p = np.ones((len(matrix), len(matrix)))
    p[compared.i, compared.j] = p[compared.j, compared.i] = holm(test.p(compared))
    return pd.DataFrame(p, index=matrix.index, columns=matrix.index)


def _compared(matrix: pd.DataFrame, baseline: str | None) -> Comparisons:
    doubled = np.rint(2 * ranks.rank(matrix).to_numpy()).astype(int)
    if matrix.shape[1] < 2:
        raise ValueError("one data set is one block, and no pair can be tested over data sets; add data sets")
    i, j = np.transpose(family(matrix.index, baseline))
    values = matrix.to_numpy(dtype=float).round(ranks.DECIMALS)
    return Comparisons(doubled, i, j, values[i] - values[j])


def family(names: pd.Index, baseline: str | None) -> list[tuple[int, int]]:
    """The comparisons as positions (i, j) in `names`: all pairs, or each i against the baseline j. Raises ValueError if it is unknown."""
    if baseline is None:
        return list(combinations(range(len(names)), 2))
    if baseline not in names:
        raise ValueError(f"baseline {baseline!r}: no such algorithm; available: {', '.join(map(str, names))}")
    control = names.get_loc(baseline)
    return [(index, control) for index in range(len(names)) if index != control]


def control(matrix: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """p [n, n] of the z test against the baseline with Holm's adjustment; NaN for all other pairs."""
    means = ranks.mean_ranks(matrix)
    n, m = matrix.shape
    others = [name for name in matrix.index if name != baseline]
    z = (means[others] - means[baseline]).abs() / np.sqrt(n * (n + 1) / (6 * m))
    adjusted = holm(2 * scipy.stats.norm.sf(z))
    p = pd.DataFrame(np.nan, index=matrix.index, columns=matrix.index)
    p.loc[others, baseline] = p.loc[baseline, others] = adjusted
    return p


def p_matrix(pairs: pd.DataFrame, algorithms: list[str], column: str = "p_holm") -> pd.DataFrame:
    """The p-values in a table of all pairs as [n, n], diagonal 1."""
    names, p = pd.Index(algorithms), np.ones((len(algorithms), len(algorithms)))
    i, j = (names.get_indexer(pairs[f"algorithm_{place}"]) for place in "ij")
    p[i, j] = p[j, i] = pairs[column]
    return pd.DataFrame(p, index=algorithms, columns=algorithms)
