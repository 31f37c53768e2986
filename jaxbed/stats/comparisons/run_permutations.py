"""p-values from runs reassigned among the algorithms: exact if cheap, else by random permutations.

Drawing permutations takes longer than using them: they are drawn once for all questions about the same number of runs. Every question
gets the draws that it would get alone, so its p does not depend on the others.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from jaxbed.stats.comparisons import permutation

EXACT = 1_000_000  # most divisions of the runs that are all tried
CHUNK = 1_000_000  # most run numbers in memory


class Question(NamedTuple):
    """How likely is it that reassigned runs are as far apart as the observed ones?"""

    values: np.ndarray  # [N] all runs, sorted: the same draws whatever the order of rows; whole numbers >= 0 unless there are two groups
    sizes: np.ndarray  # [n] runs of each group, sorted
    reached: Callable[[np.ndarray], np.ndarray]  # sums of the values within the groups [K, n] -> are they as far apart as observed? [K]

    @property
    def divisions(self) -> int:
        """The number of ways to divide the runs among the groups."""
        return math.factorial(len(self.values)) // math.prod(math.factorial(int(size)) for size in self.sizes)


def p_values(questions: Sequence[Question], draws: int, seed: int) -> list[dict]:
    """permutation.p_value of each question: exact with up to EXACT divisions, else by `draws` random ones."""
    drawn = [question for question in questions if question.divisions > EXACT]
    hits = iter(_random_hits(drawn, draws, seed))
    results = []
    for question in questions:
        exact = question.divisions <= EXACT
        results.append(permutation.p_value(_all_hits(question) if exact else next(hits), question.divisions, draws, exact))
    return results


def _all_hits(question: Question) -> float:
    if len(question.sizes) > 2:
        sums, weight = _every_division(question.values, question.sizes)
        return float(weight[question.reached(sums)].sum())
    first = question.values[_subsets(len(question.values), int(question.sizes[0]))].sum(axis=1)
    return int(question.reached(np.column_stack([first, question.values.sum() - first])).sum())


def _random_hits(questions: Sequence[Question], draws: int, seed: int) -> list[int]:
    hits = [0] * len(questions)
    for total in {len(question.values) for question in questions}:
        alike = [index for index, question in enumerate(questions) if len(question.values) == total]
        rng, most = np.random.default_rng(seed), max(1, CHUNK // total)
        for begin in range(0, draws, most):
            order = rng.permuted(np.broadcast_to(np.arange(total), (min(most, draws - begin), total)), axis=1)
            for index in alike:
                hits[index] += int(questions[index].reached(_sums(questions[index], order)).sum())
    return hits


def _sums(question: Question, order: np.ndarray) -> np.ndarray:
    """Sums within the groups [K, n] for the orders [K, N] of the runs."""
    starts = np.cumsum(question.sizes) - question.sizes
    all_but_last = np.add.reduceat(question.values[order[:, : starts[-1]]], starts[:-1], axis=1)
    return np.column_stack([all_but_last, question.values.sum() - all_but_last.sum(axis=1)])


def _every_division(values: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums [K, n] and the number of divisions of the runs that give them [K]: each run in turn goes to any group that is not full."""
    n = len(sizes)
    states, weight = np.zeros((1, 2 * n), int), np.ones(1)  # runs placed, then their sums
    for value in values:
        grown, weights = [], []
        for group in range(n):
            free = states[:, group] < sizes[group]
            child = states[free]
            child[:, [group, n + group]] += [1, value]
            grown.append(child)
            weights.append(weight[free])
        states, weight = permutation.merge(np.concatenate(grown), np.concatenate(weights))
    return states[:, n:], weight


@lru_cache(maxsize=8)
def _subsets(total: int, size: int) -> np.ndarray:
    """All subsets of range(total) [K, size]."""
    return np.array(list(combinations(range(total), size)), np.min_scalar_type(total))
