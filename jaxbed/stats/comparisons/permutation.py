"""Permutation tests over data sets: would the algorithms differ on another data set of this kind? The p-values need no large sample.

If the algorithms were alike, every order of the ranks within a data set would be equally likely, ties kept. The rank sums of all such
orders, or of random ones, give three kinds of p-values in one pass: Friedman's; one for each pair; one for each algorithm against a
baseline. The last two are adjusted for all comparisons by the distribution of the largest difference (single step). They depend on which
algorithms are compared, and control the family-wise error if no algorithm differs from another.

Data sets made from the same images are not independent evidence. Given their families, the algorithms are permuted once for all data sets
of a family: their ranks are added up, and the sum is one block.

Sources: Friedman 1937; Eisinga et al., "Exact p-values for pairwise comparison of Friedman rank sums", BMC Bioinformatics 2017 (without
ties); Phipson and Smyth, "Permutation p-values should never be zero", 2010.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.stats.comparisons import ranks

DRAWS = 100_000
WORK = 4_000_000  # most rows of rank sums in an exact test, 1 s: without ties n = 3 to m = 158, n = 4 to 31, n = 5 to 10, n = 6 to 5
LONGEST = 9  # most algorithms whose n! orders are listed


class Permutation(NamedTuple):
    """p-values of `test`; those by Monte Carlo have the standard error sqrt(p (1-p) / draws)."""

    p: float  # Friedman's
    method: str  # 'exact' or 'monte carlo'
    draws: int  # 0 where exact
    standard_error: float  # of p
    p_least: float  # no p of these is below; 0 where exact
    seed: int | None
    blocks: int  # data sets, or families of data sets
    pairs: pd.DataFrame  # [n, n], diagonal 1
    baseline: pd.Series | None  # [n - 1]


def test(
    matrix: pd.DataFrame,
    *,
    baseline: str | None = None,
    families: Mapping[str, str] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Permutation:
    """Friedman's test, all pairs, and all against `baseline`: exact where cheap (WORK), else by `draws` random orders.

    R are rank sums, P is over orders within the blocks, k and l over algorithms:
    p = P(sum of R² >= observed); pairs[i, j] = P(max |R_k - R_l| >= |R_i - R_j| observed);
    baseline[i] = P(max |R_k - R_baseline| >= |R_i - R_baseline| observed). By Monte Carlo (hits + 1) / (draws + 1).

    `families`: dataset -> family. One block gives p = 1. If all data sets agree, Monte Carlo cannot go below 1 / (draws + 1), but
    p_exact of ranks.friedman is known. Raises what ranks.rank raises, and ValueError for an unknown baseline or a data set without a
    family.
    """
    if baseline is not None and baseline not in matrix.index:
        raise ValueError(f"baseline {baseline!r}: no such algorithm; available: {', '.join(map(str, matrix.index))}")
    blocks = _blocks(matrix, families)
    observed = blocks.sum(axis=0)
    blocks = np.sort(blocks, axis=1)
    blocks = blocks[np.lexsort(blocks.T)]  # the same draws whatever the order of rows and columns
    listed = _every_order(tuple(map(tuple, blocks.tolist())), WORK)
    exact = listed is not None
    sums, weight = listed if listed is not None else (_random_orders(blocks, draws, seed), np.ones(draws))

    def p_values(hits: np.ndarray) -> np.ndarray:
        return np.minimum(hits, 1) if exact else (hits + 1) / (draws + 1)  # probabilities may add up to 1 + 1e-15

    def reach(column: int) -> np.ndarray:
        return np.abs(sums - sums[:, [column]]).max(axis=1)

    friedman = float(at_least((sums**2).sum(axis=1), weight, (observed**2).sum()))
    against = None
    if baseline is not None:
        distance = pd.Series(np.abs(observed - observed[matrix.index.get_loc(baseline)]), matrix.index).drop(baseline)
        columns = range(len(observed)) if exact else [0]  # sums are sorted: each is equally likely to be the baseline's
        hits = np.mean([at_least(reach(column), weight, distance.to_numpy()) for column in columns], axis=0)
        against = pd.Series(p_values(hits), distance.index)
    pairs = p_values(at_least(np.ptp(sums, axis=1), weight, np.abs(observed[:, None] - observed)))
    return Permutation(
        **p_value(min(friedman, 1.0) if exact else friedman, 1, draws, exact),
        seed=None if exact else seed,
        blocks=len(blocks),
        pairs=pd.DataFrame(pairs, matrix.index, matrix.index),
        baseline=against,
    )


def smallest_p(n: int, m: int) -> dict[str, float]:
    """The smallest p that each test can give for n algorithms on m data sets without ties. If it is above alpha, the test cannot reject.

    By Monte Carlo no p is below 1 / (draws + 1) either. Sign tests have the same smallest p as Wilcoxon's.
    """
    one_pair = 2.0 ** (1 - m)
    best_and_worst = float(n * (n - 1)) ** -m  # chance that one given algorithm is best everywhere and another worst
    return {
        "friedman_exact": math.exp((1 - m) * math.lgamma(n + 1)),
        "nemenyi": ranks.smallest_p(n, m),
        "permutation_pairs": n * (n - 1) * best_and_worst,
        "permutation_baseline": 2 * (n - 1) * best_and_worst,
        "wilcoxon": one_pair,
        "wilcoxon_holm_pairs": min(1.0, n * (n - 1) / 2 * one_pair),
        "wilcoxon_holm_baseline": min(1.0, (n - 1) * one_pair),
    }


def p_value(hits: float, arrangements: float, draws: int, exact: bool) -> dict:
    """p, method, draws, standard_error, p_least from the hits among all arrangements (exact) or the draws: (hits + 1) / (draws + 1).

    p_least = 1 / (draws + 1) is the smallest p possible: a p that equals it means "at most this". 0 if exact.
    """
    if exact:
        return {"p": hits / arrangements, "method": "exact", "draws": 0, "standard_error": 0.0, "p_least": 0.0}
    p = (hits + 1) / (draws + 1)
    error = math.sqrt(p * (1 - p) / draws)
    return {"p": p, "method": "monte carlo", "draws": draws, "standard_error": error, "p_least": 1 / (draws + 1)}


def merge(states: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of whole numbers >= 0 [K, n], and the sums of the weights [K] of equal ones."""
    keys = np.ravel_multi_index(tuple(states.T), tuple(states.max(axis=0) + 1))
    _, first, where = np.unique(keys, return_index=True, return_inverse=True)
    return states[first], np.bincount(where, weight)


def at_least(values: np.ndarray, weight: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """For each observed number the total weight of the values [K] that reach it."""
    order = np.argsort(values)
    above = np.append(weight[order][::-1].cumsum()[::-1], 0.0)
    return above[np.searchsorted(values[order], observed)]


def _blocks(matrix: pd.DataFrame, families: Mapping[str, str] | None) -> np.ndarray:
    """Doubled ranks, so that midranks are whole, added up within families [blocks, n]."""
    doubled = np.rint(2 * ranks.rank(matrix).to_numpy()).astype(np.int64).T
    if families is None:
        return doubled
    lost = [name for name in matrix.columns if name not in families]
    if lost:
        raise ValueError(
            f"no family is given for {', '.join(map(str, lost))}; name one for each data set, or the data set's own name if it stands alone"
        )
    return pd.DataFrame(doubled).groupby([families[name] for name in matrix.columns]).sum().to_numpy()


@lru_cache(maxsize=32)  # resamples of the runs, and the choices of a multiverse, mostly lead to the same ranks in another order
def _every_order(blocks: tuple[tuple[int, ...], ...], most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Sorted rank sums [K, n] over all orders and their probabilities [K]; None if that takes more than `most` rows.

    Block by block: which algorithm holds which sum does not matter, so sorted sums that are equal are one state.
    """
    n = len(blocks[0])
    states, weight, work = np.array(blocks[:1]), np.ones(1), 0
    for block in blocks[1:]:
        distinct = math.factorial(n) // math.prod(math.factorial(count) for count in Counter(block).values())
        work += len(states) * distinct
        if n > LONGEST or work > most:
            return None
        orders = np.array(sorted(set(permutations(block))))
        rows = np.sort((states[:, None] + orders).reshape(-1, n), axis=1)
        states, weight = merge(rows, np.repeat(weight / distinct, distinct))
    return states, weight


def _random_orders(blocks: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Rank sums [draws, n] over random orders."""
    rng = np.random.default_rng(seed)
    sums = np.zeros((draws, blocks.shape[1]), np.int64)
    for block in blocks:
        sums += rng.permuted(np.broadcast_to(block, sums.shape), axis=1)
    return sums
