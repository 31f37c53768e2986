"""From records to all results. Pure: nothing is read, printed or written here.

records -> roles -> exclude -> failed runs -> select -> audit -> means -> tests of both questions -> sensitivity -> words
"""

import platform
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

import jaxbed
from jaxbed.stats import claims, missing_cells, names, new_datasets, tables, these_datasets
from jaxbed.stats import verdict as words
from jaxbed.stats.audit import checks
from jaxbed.stats.comparisons import published_tables, ranks, skillings_mack
from jaxbed.stats.options import Options, check, for_metric
from jaxbed.stats.reading import records
from jaxbed.stats.reading import roles as role_file
from jaxbed.stats.selection import failures, rules
from jaxbed.stats.sensitivity import bootstrap, multiverse


class Analysis(NamedTuple):
    """All results. `results` holds all numbers by name, and tables as frames; it becomes stats.json."""

    results: dict
    scores: pd.DataFrame  # tables.summary
    selected: pd.DataFrame  # records, one row per algorithm, run, dataset
    frame: pd.DataFrame  # all records of the metric
    pairs: pd.DataFrame | None  # of the question asked; None without a test
    p: pd.DataFrame | None  # [n, n] of the main test of pairs
    p_least: pd.DataFrame | None  # [n, n], the smallest possible value of each, see tables.format_p
    p_name: str  # name of that test
    mean_ranks: pd.Series | None
    alpha: float
    chosen: pd.DataFrame | None  # rules.choose
    stability: pd.DataFrame | None  # bootstrap.intervals, runs resampled


def analyse(
    frame: pd.DataFrame,
    options: Options = Options(),  # noqa: B008, a tuple
    *,
    roles: pd.DataFrame | None = None,
    table: pd.DataFrame | None = None,
    last: pd.DataFrame | None = None,
) -> Analysis:
    """Records -> table, audit, tests, words. `roles`: from roles.read; `table`: printed means and std; `last`: scores of the last epochs.

    Nothing is tested with one algorithm, or if epochs were picked by test scores. Raises ValueError as the steps do, and for an unknown
    metric, dataset or baseline, or, unless missing runs are dropped, an algorithm without any run on one of the data sets.
    """
    check(options)
    unused = [*frame.attrs.get("unused_columns", []), *(roles.attrs.get("unused_columns", []) if roles is not None else [])]
    warnings = [_warning("UNUSED_COLUMNS", f"columns that are not used: {names.listed(unused, most=400)}")] if unused else []
    warnings += [_warning("READ_AS", note) for note in frame.attrs.get("notes", [])]
    sources = frame.attrs.get("sources", [])
    warnings += [_warning("NOT_READ", note) for source in sources for note in source["notes"]]
    frame, excluded = records.exclude(frame.copy(deep=False), options.exclude)
    frame.attrs = {}  # pandas would deep-copy them into every frame derived from this one
    trained = {}
    if roles is not None:
        if strange := role_file.unknown(roles, frame):
            warnings.append(_warning("UNKNOWN_ROLES", f"names in the roles that do not occur in the scores: {names.listed(strange)}"))
        frame, trained = role_file.apply(frame, roles), role_file.training_data(roles, frame["algorithm"].unique())
    chance = {} if roles is None else roles.set_index("dataset")["chance"].dropna().to_dict()
    frame, failed = failures.apply(frame, options.missing, chance)
    warnings += [_warning("DIVERGED", failures.words(failed, options.missing))] if failed else []

    options = for_metric(options, records.metric(frame, options.metric))
    if any(options.metric in source["measured"] for source in sources):  # of one epoch of each run, which was chosen then
        frame = frame[frame["metric"] == options.metric].assign(epoch=np.nan)
    wanted = _datasets(frame, options)
    selected = rules.apply(frame, options.select, options.metric, wanted, options.ties)
    if options.datasets in ("all", "strict"):
        selected = selected[selected["role"] != "val"]  # a data set may be the validation split of one algorithm and a test set of another
    selected = selected.reset_index(drop=True)
    families = role_file.families(frame, wanted)
    findings = checks.audit(frame, selected, last=last, table=table, training_data=trained, families=families, sources=sources)
    strict = _strict(selected, trained, findings)
    if options.datasets == "strict":
        if not strict or (roles is None and not (selected["role"] == "ood").any()):
            raise ValueError(
                "--datasets strict: no data set is known to be shifted and unused in training; describe the data sets with --roles"
            )
        wanted, selected = strict, selected[selected["dataset"].isin(strict)].reset_index(drop=True)
        families = role_file.families(frame, wanted)
        findings = [finding for finding in findings if finding["code"] not in checks.OF_DATASETS]
        findings += checks.of_datasets(selected, trained, families)
    selection, chosen, more = _selection(frame if not options.select.startswith("last_n") else _of(frame, options), options)
    warnings += more

    scores = tables.summary(selected)
    scores.attrs["metric"] = options.metric
    warnings += _run_warnings(scores)
    full = tables.matrix(scores).reindex(frame["algorithm"].unique())[[name for name in wanted if name in set(scores["dataset"])]]
    whole, lost = missing_cells.complete(full, wanted, options)
    warnings += lost
    n, m = full.shape[0], len(whole)
    baseline = None if options.baseline is None else names.find(options.baseline, full.index)
    if options.baseline is not None and baseline is None:
        raise ValueError(f"--baseline {options.baseline}: no such algorithm; {names.choice(options.baseline, full.index)}")
    options = options._replace(baseline=baseline)
    warnings += _relevant(findings, n, m, options.select)

    overall = [test.name for test in new_datasets.OVERALL]
    results = {
        "question": options.question,
        "metric": options.metric,
        "lower_is_better": options.lower,
        "algorithms": full.index.tolist(),
        "datasets": whole,
        "datasets_strict": strict,
        "baseline": options.baseline,
        "alpha": options.alpha,
        "rope": options.rope if options.rope is not None else tables.is_share(scores) / tables.scale(scores),
        "seed": options.seed,
        "options": options._asdict(),
        "selection": selection,
        "excluded": excluded,
        "failed": failed,
        "in_distribution": [[name, dataset] for name, datasets in trained.items() for dataset in datasets if dataset in wanted],
        "families": families or None,
        "scores": {"statistic": "mean and std (ddof 1) over runs", "cells": scores},
        "no_test": None,
        **dict.fromkeys(("friedman", *overall, "floors", "nemenyi", "pairs", "bradley_terry", "baseline_comparisons")),
        **dict.fromkeys(("missing_cells", "these_datasets", "sensitivity", "stability", "power", "multiverse", "paper")),
    }
    parts: dict[str, Any] = {"pairs": None, "p": None, "p_least": None, "p_name": "", "mean_ranks": None, "stability": None}
    if rules.is_cherry_picked(selection["rule"]):
        results["no_test"] = (
            f"epochs were cherry-picked on the test scores ({options.select}); no valid selection can reach the scores in the table."
        )
    elif n < 2:
        results["no_test"] = "only one algorithm was given; add at least one more to compare."
    else:
        compared = selected[selected["dataset"].isin(whole)]
        compared = compared.assign(value=-compared["value"]) if options.lower else compared
        sets = {"as asked": whole} | ({"strict": strict} if strict and strict != whole and set(strict) <= set(whole) else {})
        spread = {"frame": frame, "selected": selected, "sets": sets, "suspects": _suspects(findings), "last": last}
        parts |= _compare(results, full * (-1 if options.lower else 1), compared, options, families, spread, warnings)
        if options.lower:
            _as_measured(results)
    results["claims"] = claims.of(results)
    results["verdict"] = words.sentences(results)
    results["warnings"] = words.with_cures(warnings)
    results["versions"] = _versions()
    return Analysis(results, scores, selected, _of(frame, options), alpha=options.alpha, chosen=chosen, **parts)


def _compare(
    results: dict, full: pd.DataFrame, compared: pd.DataFrame, options: Options, families: dict, spread: dict, warnings: list
) -> dict:
    """Adds the tests of both questions to `results` and `warnings`; returns the fields of an Analysis about pairs. Higher is better."""
    matrix = full[results["datasets"]]
    m, names = matrix.shape[1], list(matrix.index)
    complete = m > 0 and not compared.pivot(index=["algorithm", "run"], columns="dataset", values="value").isna().any(axis=None)
    parts = {"mean_ranks": ranks.mean_ranks(matrix) if m else None}
    if full.isna().any(axis=None):
        results["missing_cells"] = skillings_mack.test(full, draws=options.permutations, seed=options.seed)
    if m:
        results["these_datasets"] = these_datasets.tests(compared, options, complete)
        warnings += these_datasets.findings(results["these_datasets"]["floors"], options.alpha) if results["these_datasets"] else []
    if m and not complete:
        text = "runs are neither resampled nor compared over all data sets at once: this needs every run on every data set"
        warnings.append(_warning("INCOMPLETE", text))
    if m == 1:
        warnings.append(_warning("ONE_BLOCK", "one data set is one block: no test over data sets is possible"))
    if m > 1:
        related = {name: families[name] for name in matrix} if families else {}
        results_of_tests, _, more = new_datasets.tests(matrix, options, related, results["rope"], compared)
        results |= results_of_tests
        firm, fragile, intervals = new_datasets.firmness(matrix, compared, options, complete, related)
        results |= firm
        warnings += more + fragile
        results["multiverse"] = multiverse.analyse(options=options, families=related, **spread)
        results["pairs"] = new_datasets.with_firmness(results)
        parts |= {"stability": intervals}
        parts |= these_datasets.headline(results["pairs"], names, "p_permutation", "permutation test, single step over all pairs")
    these = results["these_datasets"]
    if options.question == "these-datasets" and these and these["pairs"] is not None:
        parts |= these_datasets.headline(these["pairs"], names, "p_holm", "permutation of runs over all data sets, Holm over all pairs")
    if options.paper_mode and m > 1:
        p, friedman = published_tables.nemenyi(matrix), published_tables.friedman(matrix)
        warnings += friedman.pop("warnings")
        results["paper"] = {"mode": options.paper_mode, **friedman, "nemenyi": {name: p[name].to_dict() for name in p}}
        parts |= {"p": p, "p_least": p * 0, "p_name": "Nemenyi as published: interpolated, within [0.001, 0.9]"}
    return parts


def _as_measured(results: dict) -> None:
    """Restores the sign of scores that were negated for the tests because lower is better; differences stay positive if i is better."""
    if results["these_datasets"]:
        cells = results["these_datasets"]["intervals"]
        results["these_datasets"]["intervals"] = cells.assign(mean=-cells["mean"], low=-cells["high"], high=-cells["low"])
    for name in ("runs_resampled", "runs_and_datasets_resampled") if results["stability"] else ():
        results["stability"][name] = bootstrap.negated(results["stability"][name])


def _of(frame: pd.DataFrame, options: Options) -> pd.DataFrame:
    return frame[frame["metric"] == options.metric]


def _datasets(frame: pd.DataFrame, options: Options) -> list[str]:
    metric, text = options.metric, options.datasets
    rows = _of(frame, options)
    if text in ("all", "strict"):
        tested = rows.loc[rows["role"] != "val", "dataset"].unique().tolist()
        if not tested:
            raise ValueError(f"{metric} was recorded only on validation splits; evaluate a test set, or name the split with --datasets")
        return tested
    known = rows["dataset"].unique().tolist()
    asked = [text] if names.find(text, known) else text.split(",")  # a name may hold a comma
    return names.find_each(asked, known, f"--datasets {text}: no {metric} on")


def _strict(selected: pd.DataFrame, trained: dict, findings: list[dict]) -> list[str]:
    """Data sets that are shifted (if roles are known), and on which no algorithm was trained and no epoch selected."""
    shifted = selected["role"] == "ood"
    known = (selected[shifted] if shifted.any() else selected)["dataset"].unique().tolist()
    excluded = {dataset for datasets in trained.values() for dataset in datasets}
    excluded |= {finding["dataset"] for finding in findings if finding["code"] == "VAL_IS_TEST"}
    return [name for name in known if name not in excluded]


def _selection(frame: pd.DataFrame, options: Options) -> tuple[dict, pd.DataFrame | None, list[dict]]:
    """The facts about chosen epochs for stats.json, their table, and warnings."""
    rule, with_epochs = options.select, frame[frame["epoch"].notna()]
    if with_epochs.empty:
        return {"rule": None, "text": "none; the scores have no epochs and are used as they are", "runs": []}, None, []
    chosen = rules.choose(frame, rule, options.ties)
    tied, total = int((chosen["tied_epochs"] > 1).sum()), len(chosen)
    warnings = []
    if rules.is_cherry_picked(rule):
        warnings.append(_warning("CHERRY_PICKED", f"{rule} chooses epochs by test scores: an upper bound, not a result"))
    if tied:
        used = "their mean is used" if options.ties == "mean" else f"the {options.ties} is used"
        warnings.append(_warning("TIED_SELECTION", f"{tied} of {total} choices had several epochs with the best score; {used}"))
    ends = with_epochs.groupby(["algorithm", "run"])["epoch"].max()
    if ends.nunique() > 1:
        spans = ends.groupby("algorithm").agg(["min", "max"])
        listed = ", ".join(f"{name} {row['min']:g} to {row['max']:g}" for name, row in spans.iterrows())
        warnings.append(_warning("UNEQUAL_EPOCHS", f"runs end at different epochs: {listed}"))
    text = f"{rule}, {total} choices, {tied} of them tied" + (" (CHERRY-PICKED on the test scores)" if rules.is_cherry_picked(rule) else "")
    return {"rule": rule, "text": text, "ties": options.ties, "tied_choices": tied, "runs": chosen}, chosen, warnings


def _run_warnings(scores: pd.DataFrame) -> list[dict]:
    single = scores.loc[scores["n"] == 1, "algorithm"].unique()
    return [_warning("ONE_RUN", f"only one run, so no std: {', '.join(single)}")] if len(single) else []


def _relevant(findings: list[dict], n: int, m: int, rule: str) -> list[dict]:
    """The findings without those about tests that are not made, and about groups if the rule does not use groups."""
    blocks = {"FEW_BLOCKS", "DEPENDENT_BLOCKS"} if n < 2 or m < 2 else set()
    groups = set() if rules.rule_of(rule).by_groups else {"SMALL_GROUP"}
    return [finding for finding in findings if finding["code"] not in blocks | groups]


def _suspects(findings: list[dict]) -> list[tuple[str, int]]:
    """Outliers, and all but the first of equal runs."""
    outliers = [(finding["algorithm"], finding["run"]) for finding in findings if finding["code"] == "OUTLIER_RUN"]
    copies = [(run["algorithm"], run["run"]) for finding in findings if finding["code"] == "DUPLICATE_RUN" for run in finding["runs"][1:]]
    return outliers + copies


def _warning(code: str, text: str) -> dict:
    return {"code": code, "text": text}


def _versions() -> dict[str, str]:
    """Versions of the software that the numbers depend on."""
    libraries = {"numpy": np.__version__, "scipy": scipy.__version__, "pandas": pd.__version__}
    return {"jaxbed": jaxbed.__version__, "python": platform.python_version(), **libraries}
