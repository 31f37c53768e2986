"""Adjustment for all pairs that uses their logical relations: if a = b and b = c, then a = c, so not every set of pairs can be equal.

More powerful than Holm's adjustment at the same family-wise error. `p` holds the p-values of all pairs before adjustment, in the order of
itertools.combinations, from any test.

shaffer           static: after i - 1 rejections at most t_i of the pairs can still be equal, whichever were rejected
bergmann_hommel   the most powerful of these: a pair is rejected if every exhaustive set that contains it is; an exhaustive set
                  holds pairs that can all be equal while all others differ: the pairs within the groups of a partition

Sources: Shaffer, "Modified sequentially rejective multiple test procedures", 1986; Bergmann and Hommel 1988; García and Herrera, JMLR 2008.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np

LARGEST = 9  # most algorithms: 9 have 21,147 partitions, 10 have 115,975


def shaffer(p: Sequence[float]) -> np.ndarray:
    """Adjusted p, in their order: the running maximum of t_i p_(i)."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")
    possible = np.array(sorted(_possible(_algorithms(len(values)))))  # how many pairs can be equal
    left = np.arange(len(values), 0, -1)  # number of pairs not yet rejected when the i-th is tested
    most = possible[np.searchsorted(possible, left, side="right") - 1]
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * most), 1)
    return adjusted


def bergmann_hommel(p: Sequence[float]) -> np.ndarray:
    """Adjusted p, in their order: the largest |I| min p over the exhaustive sets I with the pair. Raises ValueError beyond LARGEST."""
    values = np.asarray(p, dtype=float)
    n = _algorithms(len(values))
    if n > LARGEST:
        raise ValueError(
            f"Bergmann-Hommel for {n} algorithms: at most {LARGEST} are feasible, more have too many partitions; use Shaffer's procedure"
        )
    sets = _exhaustive(n)
    bounds = np.where(sets, values, np.inf).min(axis=1) * sets.sum(axis=1)
    return np.minimum(np.where(sets, bounds[:, None], 0).max(axis=0), 1)


def _algorithms(pairs: int) -> int:
    n = round((1 + (1 + 8 * pairs) ** 0.5) / 2)
    if n * (n - 1) // 2 != pairs:
        raise ValueError(f"{pairs} p-values cannot be those of all pairs of some number of algorithms")
    return n


@cache
def _possible(n: int) -> frozenset[int]:
    """How many pairs of n algorithms can be equal: those within groups, for all partitions into groups."""
    if n < 2:
        return frozenset([0])
    return frozenset(size * (size - 1) // 2 + rest for size in range(1, n + 1) for rest in _possible(n - size))


@cache
def _exhaustive(n: int) -> np.ndarray:
    """[partitions - 1, pairs]: which pairs lie within a group; without the partition in which none does."""
    first, second = np.transpose(list(combinations(range(n), 2)))
    groups = np.array(list(_partitions(n)))
    sets = groups[:, first] == groups[:, second]
    return sets[sets.any(axis=1)]


def _partitions(n: int) -> Iterator[tuple[int, ...]]:
    """Every partition of n algorithms, as the group number of each."""
    if n == 1:
        yield (0,)
        return
    for groups in _partitions(n - 1):
        for group in range(max(groups) + 2):
            yield (*groups, group)
