"""Rank tests over data sets: would the algorithms differ on another data set of this kind?

A matrix is a DataFrame, algorithms in rows, data sets in columns, one mean over runs in each cell, higher is better. n algorithms,
m data sets. Rank 1 is best; equal values (after rounding to 1e-9) share the average of their ranks.

Blocks are data sets, never runs. With BiasBed's own spread, Friedman on 70 runs as blocks rejects a true null in 98 % of cases instead
of 5 %: runs of one algorithm on one data set share the interaction of the two. So a data set may appear only once.

Sources: Friedman 1937; Iman and Davenport 1980; Nemenyi 1963; Quade 1979, as in Conover, "Practical nonparametric statistics", 1999;
Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006 (BiasBed's equation 6 has n and m swapped in the
standard error below).
"""

import math

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

DECIMALS = 9  # mean([.1, .2, .3]) != mean([.3, .2, .1]) in floating point, but they tie
FEW_BLOCKS = 6  # with fewer, no two-sided test of sign type can reach 0.05, and approximations of p are rough


def rank(matrix: pd.DataFrame) -> pd.DataFrame:
    """Ranks within each data set, [n, m], 1 = best, ties averaged.

    Raises ValueError for fewer than two algorithms, no data set, a repeated name, or a cell that is missing or not finite.
    """
    for axis, names in (("algorithm", matrix.index), ("dataset", matrix.columns)):
        if not names.is_unique:
            twice = names[names.duplicated()][0]
            raise ValueError(
                f"{axis} {twice!r} appears twice; blocks are data sets, never runs, which share what is specific to a data set: average "
                "the runs first, one column for each data set, or use --question these-datasets (RUNS_AS_BLOCKS)"
            )
    if matrix.shape[0] < 2 or matrix.shape[1] < 1:
        raise ValueError(f"rank tests compare at least 2 algorithms on at least 1 data set, got {matrix.shape[0]} x {matrix.shape[1]}")
    values = matrix.to_numpy(dtype=float)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"{matrix.index[row]!r} on {matrix.columns[column]!r} is {values[row, column]}; rank tests need every cell. "
            "Measure it, or leave out that data set or that algorithm"
        )
    return matrix.astype(float).round(DECIMALS).rank(axis=0, ascending=False, method="average")


def mean_ranks(matrix: pd.DataFrame) -> pd.Series:
    """Mean over data sets of the rank of each algorithm; 1 = best everywhere."""
    return rank(matrix).mean(axis=1).rename("mean_rank")


def friedman(matrix: pd.DataFrame) -> dict:
    """Do the algorithms differ at all? Tie-corrected Friedman test and its F form.

    W  = S / S_max, S = spread of the rank sums around their mean, S_max = m times the spread of all ranks given their ties
    chi2 = m (n-1) W, with n-1 degrees of freedom; too large a p for few data sets
    F  = (m-1) W / (1-W), equal to Iman and Davenport's (m-1) chi2 / (m (n-1) - chi2) and to a two-way analysis of variance on the ranks.
         Two p-values: with the d.o.f. that match the moments of W, n-1-2/m and (m-1) times that, the closest to the exact p and what
         pingouin and BiasBed use; and Iman-Davenport's n-1, (n-1)(m-1), a little too small.

    p_exact, from all orders within the data sets, is given if it has a closed form and the others fail; else NaN.

    Degenerate: everything tied -> statistics NaN, p = 1. Perfect agreement -> F infinite, p = 0, which is too small; use p_exact,
    (n!)^(1-m) without ties. Two algorithms -> values as defined; p_exact is the sign test. One dataset -> no test, all NaN.
    Returns numbers by name, and `warnings`, a list of {code, text}. Raises what `rank` raises.
    """
    ranks = rank(matrix)
    n, m = ranks.shape
    sums = ranks.sum(axis=1).to_numpy()
    # Ranks are multiples of 1/2: the sums below are exact, and degenerate cases are detected exactly, not within a tolerance.
    spread = float((sums**2).sum() - n * (m * (n + 1) / 2) ** 2)
    largest = float(m * ((ranks.to_numpy() ** 2).sum() - n * m * ((n + 1) / 2) ** 2))
    tie_correction = largest / (m * m * n * (n * n - 1) / 12)
    result = {
        "test": "Friedman, tie-corrected; F form after Iman and Davenport",
        "n_algorithms": n,
        "m_datasets": m,
        "mean_ranks": dict(zip(map(str, ranks.index), (sums / m).tolist(), strict=True)),
        "tie_correction": tie_correction,
        **_statistics(spread, largest, tie_correction, n, m),
        "p_exact": _exact(ranks, spread, largest),
    }
    result["warnings"] = _warnings(result, n, m)
    return result


def _statistics(spread: float, largest: float, tie_correction: float, n: int, m: int) -> dict:
    nan = float("nan")
    degrees = {"moment": (n - 1 - 2 / m, (m - 1) * (n - 1 - 2 / m)), "iman_davenport": (n - 1, (n - 1) * (m - 1))}
    if m == 1:
        concordance, chi2, f, p_chi2, p_f = nan, nan, nan, nan, dict.fromkeys(degrees, nan)
    elif largest == 0:
        concordance, chi2, f, p_chi2, p_f = nan, nan, nan, 1.0, dict.fromkeys(degrees, 1.0)
    else:
        concordance = spread / largest
        chi2 = m * (n - 1) * concordance
        f = (m - 1) * spread / (largest - spread) if spread < largest else float("inf")
        p_chi2 = float(scipy.stats.chi2.sf(chi2, n - 1))
        # n = m = 2 leaves 0 moment degrees of freedom: no F distribution
        p_f = {name: float(scipy.stats.f.sf(f, *pair)) if min(pair) > 0 else nan for name, pair in degrees.items()}
    return {
        "chi2": chi2,
        "chi2_uncorrected": chi2 * tie_correction,
        "chi2_degrees_of_freedom": n - 1,
        "p_chi2": p_chi2,
        "kendall_w": concordance,
        "f": f,
        "f_degrees_of_freedom_moment": list(degrees["moment"]),
        "p_f_moment": p_f["moment"],
        "f_degrees_of_freedom_iman_davenport": list(degrees["iman_davenport"]),
        "p_f_iman_davenport": p_f["iman_davenport"],
    }


def _exact(ranks: pd.DataFrame, spread: float, largest: float) -> float:
    """P of a spread of rank sums at least as large if every order within a data set is equally likely; NaN if there is no closed form."""
    n, m = ranks.shape
    if m == 1:
        return float("nan")
    if largest == 0:
        return 1.0
    if n == 2:
        wins, losses = int((ranks.iloc[0] == 1).sum()), int((ranks.iloc[0] == 2).sum())
        return float(scipy.stats.binomtest(wins, wins + losses).pvalue)
    if spread == largest:
        # all data sets have the same order and ties: each but the first must hit it, one of n! / (product of t!) arrangements
        ties = ranks.iloc[:, 0].value_counts()
        return math.exp((1 - m) * (math.lgamma(n + 1) - sum(math.lgamma(t + 1) for t in ties)))
    return float("nan")


def _warnings(result: dict, n: int, m: int) -> list[dict]:
    warnings: list[tuple[str, str]] = []
    if m == 1:
        warnings.append(("ONE_BLOCK", "one data set is one block: no rank test is possible; add data sets"))
    if result["tie_correction"] == 0:
        warnings.append(("ALL_TIED", "all algorithms tie on all data sets: the statistic is undefined, p = 1"))
    elif result["tie_correction"] < 0.95:
        warnings.append(
            ("TIES", f"many ties (correction {result['tie_correction']:.3f}); chi2 without correction is {result['chi2_uncorrected']:.4f}")
        )
    if result["f"] == float("inf"):
        warnings.append(
            (
                "PERFECT_AGREEMENT",
                f"all data sets rank the algorithms alike: F is infinite and its p of 0 too small; the exact p is {result['p_exact']:.3g}",
            )
        )
    if n == 2 and m > 1:
        warnings.append(
            ("TWO_ALGORITHMS", f"approximate p-values are poor for two algorithms; the exact sign test gives {result['p_exact']:.3g}")
        )
    return [{"code": code, "text": text} for code, text in warnings]


def quade(matrix: pd.DataFrame) -> dict:
    """Do the algorithms differ at all, with more weight for data sets on which they differ more? Quade's test, F form.

    Q = rank of a data set by the range of its scores, 1 = smallest, R = rank within the data set, S = Q (R - (n+1)/2):

    F = (m-1) B / (A - B), A = sum of all S², B = sum over algorithms of (sum over data sets of S)² / m; n-1 and (n-1)(m-1) d.o.f.

    Unlike Friedman's test it assumes that ranges on different data sets are comparable: a point means the same on each. For two
    algorithms F is the square of a t form of Wilcoxon's test. Degenerate as `friedman`: everything tied -> F NaN, p = 1; A = B -> F
    infinite, p = 0; one dataset -> all NaN. Raises what `rank` raises.
    """
    ranks = rank(matrix)
    n, m = ranks.shape
    rounded = matrix.astype(float).round(DECIMALS)
    weights = (rounded.max() - rounded.min()).round(DECIMALS).rank()
    weighted = ((4 * ranks - 2 * (n + 1)) * weights).to_numpy()  # 4 S: whole numbers, so degenerate cases are detected exactly
    between, total = float((weighted.sum(axis=1) ** 2).sum()), float(m * (weighted**2).sum())
    degrees = [n - 1, (n - 1) * (m - 1)]
    if m == 1:
        f = p = float("nan")
    elif total == 0:
        f, p = float("nan"), 1.0
    else:
        f = (m - 1) * between / (total - between) if between < total else float("inf")
        p = float(scipy.stats.f.sf(f, *degrees))
    return {"test": "Quade, ties averaged", "f": f, "f_degrees_of_freedom": degrees, "p": p}


def nemenyi(matrix: pd.DataFrame) -> pd.DataFrame:
    """Which pairs differ? p-values [n, n], adjusted for all pairs, diagonal 1.

    p = P(Q > sqrt(2) |R_i - R_j| / sqrt(n (n+1) / (6 m))), Q the studentized range of n normal variables with infinite degrees of
    freedom, R mean ranks. From the exact distribution; old tables cap p at 0.9. Depends on which other algorithms are in the matrix.
    """
    means = mean_ranks(matrix)
    n, m = matrix.shape
    # whole numbers: equal differences get equal p, whatever the order of the rows
    doubled = np.rint(2 * m * means.to_numpy()).astype(int)
    differences = np.abs(doubled[:, None] - doubled[None, :])
    distinct, where = np.unique(differences, return_inverse=True)
    p = _tail(distinct / (2 * m), n, m)
    return pd.DataFrame(p[where.reshape(differences.shape)], index=matrix.index, columns=matrix.index)


def critical_difference(n: int, m: int, alpha: float = 0.05) -> float:
    """The difference of mean ranks at which Nemenyi's p equals alpha: q / sqrt(2) * sqrt(n (n+1) / (6 m))."""
    return float(scipy.stats.studentized_range.ppf(1 - alpha, n, float("inf"))) / math.sqrt(2) * _standard_error(n, m)


def smallest_p(n: int, m: int) -> float:
    """The smallest p Nemenyi can give: one algorithm always best, another always worst. Above alpha, the test cannot find anything."""
    return float(_tail(float(n - 1), n, m))


def _standard_error(n: int, m: int) -> float:
    """Standard error of a difference of two mean ranks, m blocks of n."""
    return math.sqrt(n * (n + 1) / (6 * m))


def _tail(difference: float | np.ndarray, n: int, m: int) -> np.ndarray:
    """P(studentized range >= that of a difference of mean ranks)."""
    q = math.sqrt(2) * np.asarray(difference) / _standard_error(n, m)
    p = scipy.stats.studentized_range.sf(q, n, float("inf"))
    return np.clip(p, 0.0, 1.0)  # sf is 1 - cdf, which may leave [0, 1] by a rounding error
