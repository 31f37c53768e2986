"""Do the algorithms differ, if scores are missing? Skillings-Mack on all cells, and Friedman on the complete data sets.

Nothing is imputed. If runs failed, the missing scores might have been low: neither test can account for that.

Source: Skillings and Mack, "On the use of a Friedman-type statistic in balanced and unbalanced block designs", Technometrics 1981.
"""

import math
from itertools import permutations

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

from jaxbed.stats.comparisons import permutation, ranks

ARRANGEMENTS = 1_000_000  # most arrangements listed for the exact p


def test(matrix: pd.DataFrame, *, draws: int = permutation.DRAWS, seed: int = 0) -> dict:
    """The test on a matrix with NaN where there is no score; equals Friedman's chi2 on a complete one without ties.

    On a data set with k of the n algorithms, A_j += sqrt(12 / (k+1)) (r_j - (k+1)/2) for those present, covariance S_jj += k-1, S_jl -= 1;
    T = A' S⁻ A. p_chi2 is from chi2 with n-1 degrees of freedom; p from all orders of the ranks within the data sets (at most
    ARRANGEMENTS) or from `draws` random ones: prefer it, chi2 is rough. A data set with one algorithm is left out.

    `listwise`: Friedman's test on the complete data sets, with its permutation p; None if no data set is complete. Returns numbers by name.
    Raises ValueError if no chain of data sets links all algorithms, which then cannot be compared, and what ranks.rank raises.
    """
    ranks.rank(matrix.fillna(0.0))  # raises an error for repeated names and infinite scores
    n = len(matrix)
    ordered = matrix.sort_index().sort_index(axis=1)  # the same draws whatever the order of rows and columns
    scores, present = _scores(ordered)
    counts = present.sum(axis=1)
    covariance = np.diag(present.T @ counts) - present.T.astype(int) @ present
    if np.linalg.matrix_rank(covariance) < n - 1:
        raise ValueError("no chain of data sets links all algorithms; measure the missing cells, or compare fewer algorithms")
    inverse = np.linalg.pinv(covariance.astype(float))

    def statistic(sums: np.ndarray) -> np.ndarray:  # [K, n] -> [K]
        return np.einsum("ki,ij,kj->k", sums, inverse, sums)

    observed = float(statistic(scores.sum(axis=0)[None])[0])
    arrangements = math.prod(math.factorial(int(count)) for count in counts)
    exact = arrangements <= ARRANGEMENTS
    sums = _every_order(scores, present) if exact else _random_orders(scores, present, draws, seed)
    hits = int((statistic(sums) >= observed - 1e-9).sum())
    complete = matrix.dropna(axis=1)
    return {
        "test": "Skillings-Mack",
        "statistic": observed,
        "degrees_of_freedom": n - 1,
        "p_chi2": float(scipy.stats.chi2.sf(observed, n - 1)),
        **permutation.p_value(hits, arrangements, draws, exact),
        "seed": None if exact else seed,
        "n_datasets": len(scores),
        "listwise": _listwise(complete, draws, seed) if complete.shape[1] else None,
    }


def _listwise(complete: pd.DataFrame, draws: int, seed: int) -> dict:
    permuted = permutation.test(complete, draws=draws, seed=seed)
    more = {"p_permutation": permuted.p, "method": permuted.method, "draws": permuted.draws, "standard_error": permuted.standard_error}
    return {**ranks.friedman(complete), **more}


def _scores(matrix: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Weighted centred ranks [datasets, n], 0 where missing, and a mask of the scores; data sets with fewer than 2 scores are left out."""
    table = matrix.astype(float).round(ranks.DECIMALS).T
    table = table[table.notna().sum(axis=1) > 1]
    count = table.notna().sum(axis=1).to_numpy()[:, None]
    centred = table.rank(axis=1, ascending=False).to_numpy() - (count + 1) / 2
    return np.nan_to_num(centred * np.sqrt(12 / (count + 1))), table.notna().to_numpy()


def _every_order(scores: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Sums of the scores [arrangements, n]."""
    sums = np.zeros((1, scores.shape[1]))
    for score, measured in zip(scores, present, strict=True):
        orders = np.zeros((math.factorial(int(measured.sum())), len(score)))
        orders[:, measured] = list(permutations(score[measured]))
        sums = (sums[:, None] + orders).reshape(-1, len(score))
    return sums


def _random_orders(scores: np.ndarray, present: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Sums of the scores [draws, n]."""
    rng = np.random.default_rng(seed)
    sums = np.zeros((draws, scores.shape[1]))
    for score, measured in zip(scores, present, strict=True):
        sums[:, measured] += rng.permuted(np.broadcast_to(score[measured], (draws, int(measured.sum()))), axis=1)
    return sums
