"""What the verdict may claim: one family of comparisons, by a test that is fixed before the scores are seen.

The overall test comes first: Friedman's for other data sets; for these data sets, the test of each with Holm's adjustment. Comparisons are
claimed only if it rejects: those with the baseline if there is one, else all pairs, adjusted for their number. If no algorithm differs, a
false claim requires that the overall test rejects by mistake: its probability is at most alpha. The overall test, all pairs and
comparisons with a baseline, each at alpha, would exceed it (`python scripts/stats_calibration.py claims` has both rates). All other tests
are exploratory.

Source: Demšar, JMLR 2006, section 3.2: post-hoc tests after the null hypothesis is rejected.
"""

import pandas as pd

from jaxbed.stats import tables


def of(results: dict) -> dict | None:
    """The claims for the question, from the results of its tests; None if there is no such test.

    overall      test, its p or the data sets that differ, `differ`; None if it is not needed (two algorithms) or cannot reject
    family       'baseline_comparisons' or 'pairs', which table of the results; None if there is none
    comparisons  their number; test: its name; smallest_p: the smallest p it can give, whatever the scores
    found        better, worse, p, p_text of the claimed comparisons, smallest p first
    """
    if results["no_test"] or results["paper"]:
        return None
    only_these = results["question"] == "these-datasets" or results["friedman"] is None  # nothing follows from one data set for others
    return _these_datasets(results) if only_these else _new_datasets(results)


def _new_datasets(results: dict) -> dict:
    friedman, alpha, baseline = results["friedman"], results["alpha"], results["baseline"]
    two = len(results["algorithms"]) == 2
    family = "pairs" if baseline is None or two else "baseline_comparisons"
    overall = None
    if not two:
        kind = "exact" if friedman["p_method"] == "exact" else "permutation"
        overall = {"test": f"{kind} Friedman test", "p": friedman["p"], "differ": friedman["p"] < alpha}
    floor = results["floors"]["permutation_pairs" if family == "pairs" else "permutation_baseline"]
    return {
        "overall": overall,
        "family": family,
        "comparisons": len(results[family]),
        "test": "exact sign test" if two and not friedman["families"] else "permutation test, single step",
        "smallest_p": max(floor, friedman["p_least"]),
        "found": comparisons(results[family], "p_permutation", alpha) if overall is None or overall["differ"] else [],
    }


def _these_datasets(results: dict) -> dict | None:
    these, alpha = results["these_datasets"], results["alpha"]
    if these is None:
        return None
    overall, floors = None, these["floors"]
    if floors["datasets"] < alpha:
        differ = these["datasets"].loc[these["datasets"]["p_holm"] < alpha, "dataset"].tolist()
        test = f"{these['datasets']['test'].iloc[0]} by permutation, Holm over data sets"
        overall = {"test": test, "datasets": differ, "differ": bool(differ)}
    family = "pairs" if results["baseline"] is None else "baseline_comparisons"
    if these[family] is None:
        return {"overall": overall, "family": None, "comparisons": 0, "test": "", "smallest_p": 1.0, "found": []}
    return {
        "overall": overall,
        "family": family,
        "comparisons": len(these[family]),
        "test": "permutation of runs with Holm's adjustment",
        "smallest_p": floors[family],
        "found": comparisons(these[family], "p_holm", alpha) if overall is None or overall["differ"] else [],
    }


def comparisons(table: pd.DataFrame, column: str, alpha: float) -> list[dict]:
    """better, worse, p and p_text of the rows of a table of pairs with p < alpha in the column, smallest p first."""
    rows = table.assign(least=tables.least(table, column))
    rows = rows[rows[column] < alpha].sort_values(column, kind="stable")
    i_better = rows["rank_difference"] < 0 if "rank_difference" in rows else rows["difference"] > 0
    claims = []
    for i, j, p, least, first in zip(rows["algorithm_i"], rows["algorithm_j"], rows[column], rows["least"], i_better, strict=True):
        better, worse = (i, j) if first else (j, i)
        claims.append({"better": better, "worse": worse, "p": p, "p_text": tables.p_equals(p, least)})
    return claims
