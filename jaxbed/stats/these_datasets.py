"""Question 2: do the algorithms differ on these datasets, had other runs been trained? Runs are random, datasets fixed.

Brings together the parts of `per_dataset` and the bootstrap of cells. Says nothing about other datasets.
"""

from typing import TYPE_CHECKING

from jaxbed.stats import per_dataset
from jaxbed.stats.options import Options

if TYPE_CHECKING:
    import pandas as pd


def tests(compared: "pd.DataFrame", options: Options, complete: bool) -> dict | None:
    """Results by name from the selected scores, higher is better; None where every algorithm has one run.

    datasets       per_dataset.test: Kruskal-Wallis on each dataset, p by permutation, Holm over datasets
    dunn           which pairs differ on which dataset
    improvement    Cliff's delta and probability of improvement on each dataset
    pairs          all datasets at once, runs re-divided; None unless every run has all datasets
    baseline_comparisons  the same against the baseline alone
    intervals      t interval of every cell
    """
    if compared.groupby("algorithm")["run"].nunique().max() < 2:
        return None
    draws = {"draws": options.permutations, "seed": options.seed}
    pairs = per_dataset.pairs(compared, **draws) if complete else None
    against = per_dataset.pairs(compared, options.baseline, **draws) if complete and options.baseline is not None else None
    return {
        "question": "do the algorithms differ on these datasets, had other runs been trained?",
        "seed": options.seed,
        "datasets": per_dataset.test(compared, **draws),
        "dunn": per_dataset.dunn(compared),
        "improvement": per_dataset.improvement(compared),
        "pairs": pairs,
        "baseline_comparisons": against,
        "intervals": per_dataset.intervals(compared, 1 - options.alpha),
    }


def p_matrix(pairs: "pd.DataFrame", algorithms: list[str], column: str = "p_holm") -> "pd.DataFrame":
    """The p-values of a table of all pairs as [n, n], diagonal 1."""
    import pandas as pd

    p = pd.DataFrame(1.0, index=algorithms, columns=algorithms)
    for i, j, value in pairs[["algorithm_i", "algorithm_j", column]].itertuples(index=False):
        p.loc[i, j] = p.loc[j, i] = value
    return p
