"""Every test of an analysis as one row, for tests.csv. Nothing is computed here."""

from collections.abc import Iterator

import pandas as pd

from jaxbed.stats import new_datasets
from jaxbed.stats.comparisons import pairwise

COLUMNS = (
    "question", "test", "scope", "dataset", "algorithm_i", "algorithm_j", "statistic", "p", "p_least", "adjustment", "n", "unit", "method",
    "draws", "claimed",
)  # fmt: skip
ADJUSTMENTS = {"": "none", "_holm": "Holm", "_shaffer": "Shaffer", "_bergmann_hommel": "Bergmann-Hommel"}  # endings of columns


def tests(results: dict) -> pd.DataFrame:
    """One row per test or comparison: the COLUMNS. Empty where they do not apply; columns.csv explains each.

    n counts the blocks or runs that `unit` names; `claimed`: the verdict claims this difference.
    """
    table = pd.DataFrame([*_other_datasets(results), *_these_datasets(results)], columns=COLUMNS)
    return table.astype({"n": "Int64"})


def of_pairs() -> dict[str, tuple[str, str]]:
    """Column of a table of pairs -> test, adjustment."""
    names = {
        "p_permutation": ("permutation test of rank sums", "single step"),
        "p_nemenyi": ("Nemenyi", "studentized range"),
    }
    return names | {f"p_{test.name}{end}": (test.title, adjustment) for test in pairwise.TESTS for end, adjustment in ADJUSTMENTS.items()}


def _other_datasets(results: dict) -> Iterator[dict]:
    friedman, skillings_mack = results["friedman"], results["missing_cells"]
    if skillings_mack:
        facts = {name: skillings_mack[name] for name in ("statistic", "p", "p_least", "method", "draws")}
        yield _row("new-datasets", "Skillings-Mack", "overall", **facts, n=skillings_mack["n_datasets"], unit="datasets")
    if friedman is None:
        return
    claimed, asked = results["claims"], results["question"] == "new-datasets"
    drawn = {"method": "monte carlo" if friedman["draws"] else "exact", "draws": friedman["draws"]}
    closed = {"method": "approximation", "draws": 0, "p_least": 0.0}
    m, n = friedman["m_datasets"], friedman["blocks"]
    overall = bool(claimed and asked and claimed["overall"] and claimed["overall"]["differ"])
    exact = friedman["p_method"] == "exact"
    headline = {
        "p": friedman["p"],
        "p_least": friedman["p_least"],
        "method": friedman["p_method"],
        "draws": 0 if exact else friedman["draws"],
    }
    unit = "families of datasets" if friedman["families"] else "datasets"
    yield _row("new-datasets", "Friedman", "overall", statistic=friedman["chi2"], **headline, n=n, unit=unit, claimed=overall)
    for test, statistic, p in (
        ("Friedman, F with moment degrees of freedom", "f", "p_f_moment"),
        ("Friedman, F of Iman-Davenport", "f", "p_f_iman_davenport"),
        ("Friedman, chi2", "chi2", "p_chi2"),
    ):
        yield _row("new-datasets", test, "overall", statistic=friedman[statistic], p=friedman[p], **closed, n=m, unit="datasets")
    for further in new_datasets.OVERALL:
        result = results[further.name]
        facts = {"statistic": result[further.statistic], "p": result["p"], **closed}
        yield _row("new-datasets", result["test"], "overall", **facts, n=m, unit="datasets")
    tests_of_pairs, exact = of_pairs(), [test.title for test in pairwise.TESTS if test.exact]
    for family, scope in (("pairs", "pairs"), ("baseline_comparisons", "baseline")):
        table = results[family]
        claimed_pairs = _claimed_pairs(claimed) if claimed and asked and claimed["family"] == family else set()
        for pair in table.to_dict("records") if table is not None else ():
            for column, (test, adjustment) in tests_of_pairs.items():
                if column not in pair:
                    continue
                how = closed | {"method": "exact"} if test in exact else closed
                how = drawn | {"p_least": pair["p_permutation_least"]} if column == "p_permutation" else how
                facts = {"statistic": pair["rank_difference"], "p": pair[column], "adjustment": adjustment, **how}
                both = {"algorithm_i": pair["algorithm_i"], "algorithm_j": pair["algorithm_j"]}
                is_claimed = column == "p_permutation" and frozenset(both.values()) in claimed_pairs
                blocks = {"n": n, "unit": unit} if column == "p_permutation" else {"n": m, "unit": "datasets"}
                yield _row("new-datasets", test, scope, **both, **facts, **blocks, claimed=is_claimed)


def _these_datasets(results: dict) -> Iterator[dict]:
    these, claimed = results["these_datasets"], results["claims"]
    if these is None:
        return
    asked = claimed is not None and (results["question"] == "these-datasets" or results["friedman"] is None)
    differ = claimed["overall"]["datasets"] if asked and claimed["overall"] else ()
    for row in these["datasets"].to_dict("records"):
        for column, adjustment in (("p", "none"), ("p_holm", "Holm over datasets")):
            facts = {name: row[name] for name in ("dataset", "statistic", "p_least", "method", "draws")} | {"p": row[column]}
            is_claimed = column == "p_holm" and row["dataset"] in differ
            yield _row(
                "these-datasets", row["test"], "overall", **facts, adjustment=adjustment, n=row["n_runs"], unit="runs", claimed=is_claimed
            )
    on_dataset = these["datasets"].set_index("dataset")["n_runs"]
    runs = results["scores"]["cells"].groupby("algorithm")["n"].max()
    for row in these["dunn"].to_dict("records"):
        both = {name: row[name] for name in ("dataset", "algorithm_i", "algorithm_j")} | {
            "statistic": row["mean_rank_i"] - row["mean_rank_j"]
        }
        for column, adjustment in (("p", "none"), ("p_holm", "Holm over pairs"), ("p_holm_all", "Holm over pairs and datasets")):
            how = {"p": row[column], "p_least": 0.0, "method": "approximation", "draws": 0}
            yield _row("these-datasets", "Dunn", "pairs", **both, **how, adjustment=adjustment, n=on_dataset[row["dataset"]], unit="runs")
    for family, scope in (("pairs", "pairs"), ("baseline_comparisons", "baseline")):
        claimed_pairs = _claimed_pairs(claimed) if asked and claimed["family"] == family else set()
        for row in these[family].to_dict("records") if these[family] is not None else ():
            both = {name: row[name] for name in ("algorithm_i", "algorithm_j", "p_least", "method", "draws")} | {
                "statistic": row["difference"]
            }
            for column, adjustment in (("p", "none"), ("p_holm", "Holm")):
                is_claimed = column == "p_holm" and frozenset((row["algorithm_i"], row["algorithm_j"])) in claimed_pairs
                facts = {"p": row[column], "adjustment": adjustment, "unit": "runs", "claimed": is_claimed}
                facts["n"] = runs[row["algorithm_i"]] + runs[row["algorithm_j"]]
                yield _row("these-datasets", "permutation of runs over all datasets", scope, **both, **facts)


def _row(question: str, test: str, scope: str, **facts: object) -> dict:
    return {"question": question, "test": test, "scope": scope, "adjustment": "none", "claimed": False, **facts}


def _claimed_pairs(claimed: dict) -> set[frozenset]:
    return {frozenset((claim["better"], claim["worse"])) for claim in claimed["found"]}
