"""How often do runs that are divided anew among the algorithms come out as far apart as they did? Exact where cheap, else at random.

Drawing the random divisions takes longer than what is done with each: they are drawn once for all questions about equally many runs.
Every question meets those that it would meet alone, so its p does not depend on the others.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from jaxbed.stats.comparisons import permutation

EXACT = 1_000_000  # ways to divide the runs, up to which all are tried
CHUNK = 1_000_000  # numbers of runs held at once


class Question(NamedTuple):
    values: np.ndarray  # [N] of all runs, sorted: the same draws for any order of rows; whole numbers >= 0 unless there are two groups
    sizes: np.ndarray  # [n] runs of each group, sorted
    reached: Callable[[np.ndarray], np.ndarray]  # sums of the values within the groups [K, n] -> as far apart as observed? [K]

    @property
    def divisions(self) -> int:
        return math.factorial(len(self.values)) // math.prod(math.factorial(int(size)) for size in self.sizes)


def p_values(questions: Sequence[Question], draws: int, seed: int) -> list[dict]:
    """permutation.p_value of each question: exact with up to EXACT divisions, else by `draws` random ones."""
    drawn = [question for question in questions if question.divisions > EXACT]
    hits = iter(_random_hits(drawn, draws, seed))
    found = []
    for question in questions:
        exact = question.divisions <= EXACT
        found.append(permutation.p_value(_all_hits(question) if exact else next(hits), question.divisions, draws, exact))
    return found


def _all_hits(question: Question) -> float:

    if len(question.sizes) > 2:
        sums, weight = _every_division(question.values, question.sizes)
        return float(weight[question.reached(sums)].sum())
    first = question.values[_subsets(len(question.values), int(question.sizes[0]))].sum(axis=1)
    return int(question.reached(np.column_stack([first, question.values.sum() - first])).sum())


def _random_hits(questions: Sequence[Question], draws: int, seed: int) -> list[int]:

    hits = [0] * len(questions)
    for total in {len(question.values) for question in questions}:
        alike = [place for place, question in enumerate(questions) if len(question.values) == total]
        rng, most = np.random.default_rng(seed), max(1, CHUNK // total)
        for begin in range(0, draws, most):
            order = rng.permuted(np.broadcast_to(np.arange(total), (min(most, draws - begin), total)), axis=1)
            for place in alike:
                hits[place] += int(questions[place].reached(_sums(questions[place], order)).sum())
    return hits


def _sums(question: Question, order: np.ndarray) -> np.ndarray:
    """Sums within the groups [K, n], the runs put in these orders [K, N]."""

    starts = np.cumsum(question.sizes) - question.sizes
    all_but_last = np.add.reduceat(question.values[order[:, : starts[-1]]], starts[:-1], axis=1)
    return np.column_stack([all_but_last, question.values.sum() - all_but_last.sum(axis=1)])


def _every_division(values: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums [K, n] and how many divisions of the runs give them [K]: run by run to any algorithm that has a place left."""

    n = len(sizes)
    states, weight = np.zeros((1, 2 * n), int), np.ones(1)  # runs placed, then their sums
    for value in values:
        grown, weights = [], []
        for place in range(n):
            free = states[:, place] < sizes[place]
            child = states[free]
            child[:, [place, n + place]] += [1, value]
            grown.append(child)
            weights.append(weight[free])
        states, weight = permutation.merge(np.concatenate(grown), np.concatenate(weights))
    return states[:, n:], weight


@lru_cache(maxsize=8)
def _subsets(total: int, size: int) -> np.ndarray:
    """All subsets of range(total) [K, size]."""

    return np.array(list(combinations(range(total), size)), np.min_scalar_type(total))
