"""Pairs of algorithms adjusted with their logic in mind: if a = b and b = c hold, a = c does too, so not every set of pairs can be equal.

More pairs are found than with Holm's adjustment, at the same error of the family. p are those of all pairs before adjustment, in the order
of itertools.combinations, of whatever test.

shaffer           static: after i - 1 rejections at most t_i of the pairs can still be equal, whichever were rejected
bergmann_hommel   the most powerful of these: a pair is rejected if every exhaustive set that holds it is; an exhaustive set is one of pairs
                  that can all be equal while all others differ, the pairs within the groups of a division of the algorithms

Sources: Shaffer, "Modified sequentially rejective multiple test procedures", 1986; Bergmann and Hommel 1988; García and Herrera, JMLR 2008.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np

LARGEST = 9  # algorithms: they have 21,147 divisions, 10 have 115,975


def shaffer(p: Sequence[float]) -> np.ndarray:
    """Adjusted p, in their order: the running maximum of t_i p_(i)."""

    p = np.asarray(p, dtype=float)
    order = np.argsort(p, kind="stable")
    possible = np.array(sorted(_possible(_algorithms(len(p)))))  # how many pairs can be equal
    left = np.arange(len(p), 0, -1)  # of the pairs, when the i-th is tested
    most = possible[np.searchsorted(possible, left, side="right") - 1]
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * most), 1)
    return adjusted


def bergmann_hommel(p: Sequence[float]) -> np.ndarray:
    """Adjusted p, in their order: the largest |I| min p over the exhaustive sets I that hold the pair. Raises ValueError beyond LARGEST."""

    p = np.asarray(p, dtype=float)
    n = _algorithms(len(p))
    if n > LARGEST:
        raise ValueError(
            f"Bergmann-Hommel for {n} algorithms: there are too many divisions of more than {LARGEST}; use Shaffer's procedure"
        )
    sets = _exhaustive(n)
    bounds = np.where(sets, p, np.inf).min(axis=1) * sets.sum(axis=1)
    return np.minimum(np.where(sets, bounds[:, None], 0).max(axis=0), 1)


def _algorithms(pairs: int) -> int:
    n = round((1 + (1 + 8 * pairs) ** 0.5) / 2)
    if n * (n - 1) // 2 != pairs:
        raise ValueError(f"{pairs} p-values are not those of all pairs of some algorithms")
    return n


@cache
def _possible(n: int) -> frozenset[int]:
    """How many pairs of n algorithms can be equal: those within groups, for all divisions into groups."""
    if n < 2:
        return frozenset([0])
    return frozenset(size * (size - 1) // 2 + rest for size in range(1, n + 1) for rest in _possible(n - size))


@cache
def _exhaustive(n: int) -> np.ndarray:
    """[divisions - 1, pairs]: which pairs lie within a group; without the division in which none does."""

    first, second = np.transpose(list(combinations(range(n), 2)))
    groups = np.array(list(_divisions(n)))
    sets = groups[:, first] == groups[:, second]
    return sets[sets.any(axis=1)]


def _divisions(n: int) -> Iterator[tuple[int, ...]]:
    """Every division of n algorithms into groups, as the number of the group of each."""
    if n == 1:
        yield (0,)
        return
    for groups in _divisions(n - 1):
        for group in range(max(groups) + 2):
            yield (*groups, group)
