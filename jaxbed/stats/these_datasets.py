"""Question 2: would the algorithms differ on these data sets with other runs? Runs are random, data sets fixed.

Applies the tests of `per_dataset`. Nothing follows for other data sets.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.comparisons import pairwise, per_dataset, permutation
from jaxbed.stats.options import Options


def tests(compared: pd.DataFrame, options: Options, complete: bool) -> dict | None:
    """Results by name from the selected scores, higher is better; None if every algorithm has one run.

    datasets       per_dataset.test: Kruskal-Wallis on each data set, or Friedman for paired runs; p by permutation, Holm over data sets
    dunn           which pairs differ on which data set
    improvement    Cliff's delta and probability of improvement on each data set
    pairs          all data sets at once, runs reassigned; None unless every run has all data sets
    baseline_comparisons  the same against the baseline alone
    floors         the smallest adjusted p that so few runs can give: data sets, pairs, baseline_comparisons
    intervals      t interval of every cell
    """
    if compared.groupby("algorithm")["run"].nunique().max() < 2:
        return None
    logging.getLogger(__name__).info("tests on these data sets")
    draws, seed = options.permutations, options.seed
    pairs = per_dataset.pairs(compared, draws=draws, seed=seed) if complete else None
    against = None
    if complete and options.baseline is not None:
        against = per_dataset.pairs(compared, options.baseline, draws=draws, seed=seed)
    return {
        "question": "would the algorithms differ on these data sets with other runs?",
        "seed": options.seed,
        "datasets": per_dataset.test(compared, paired=options.paired, draws=draws, seed=seed),
        "dunn": per_dataset.dunn(compared),
        "improvement": per_dataset.improvement(compared),
        "pairs": pairs,
        "baseline_comparisons": against,
        "floors": _floors(compared, options),
        "intervals": per_dataset.intervals(compared, 1 - options.alpha),
    }


def smallest_p(sizes: Sequence[int]) -> float:
    """The smallest p of per_dataset.test or pairs for these numbers of runs; algorithms with equal numbers may be exchanged.

    0.1 for 3 and 3 runs, 0.0079 for 5 and 5. Multiplied by the number of comparisons, it is the smallest p after Holm.
    """
    alike = math.prod(math.factorial(count) for count in Counter(sizes).values())
    return alike * math.prod(math.factorial(size) for size in sizes) / math.factorial(sum(sizes))


def findings(floors: dict, alpha: float) -> list[dict]:
    """FEW_RUNS: tests that cannot reject, whatever the scores."""
    words = {"datasets": "each data set", "pairs": "all pairs", "baseline_comparisons": "all against the baseline"}
    high = [f"{words[name]} ({p:.3g})" for name, p in floors.items() if p >= alpha]
    text = f"so few runs cannot give p < {alpha:g} for other runs on these data sets, whatever the scores: {'; '.join(high)}"
    return [{"code": "FEW_RUNS", "text": text}] if high else []


def _floors(compared: pd.DataFrame, options: Options) -> dict[str, float]:
    runs = compared.groupby("algorithm")["run"].nunique()
    on_datasets = [tuple(counts) for _, counts in compared.groupby(["dataset", "algorithm"])["run"].nunique().groupby("dataset")]
    families = {"datasets": on_datasets, "pairs": list(combinations(runs, 2))}
    if options.baseline is not None:
        families["baseline_comparisons"] = [(count, runs[options.baseline]) for count in runs.drop(options.baseline)]
    floors = {name: min(1.0, len(sizes) * min(map(smallest_p, sizes))) for name, sizes in families.items()}
    if options.paired:
        paired = [permutation.smallest_p(len(counts), counts[0])["friedman_exact"] for counts in on_datasets]
        floors["datasets"] = min(1.0, len(paired) * min(paired))
    return floors


def headline(pairs: pd.DataFrame, algorithms: list[str], column: str, name: str) -> dict:
    """The fields of an Analysis about the test of all pairs: the table, p and the smallest possible p [n, n], the name of the test."""
    least = pairwise.p_matrix(pairs.assign(least=tables.least(pairs, column)), algorithms, "least")
    return {"pairs": pairs, "p": pairwise.p_matrix(pairs, algorithms, column), "p_least": least, "p_name": name}
