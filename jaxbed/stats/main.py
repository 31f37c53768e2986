"""`jaxbed stats`: score table, Friedman, Iman-Davenport and Nemenyi from workdirs or from a CSV of scores.

    jaxbed stats WORKDIR... [--select best_val] [--datasets all] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv --exclude pAdaIN:2,5

Steps, each a function on frames: load -> exclude -> diverged runs -> select -> average over runs -> rank tests -> words and files.
Exit code 0, also with warnings; 2 when refused, with the reason on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxbed.stats import ranks, records, report, select, tables

if TYPE_CHECKING:
    import pandas as pd


class Analysis(NamedTuple):
    """Everything found. `results` holds all numbers by name, as stats.json does."""

    results: dict
    scores: "pd.DataFrame"  # tables.summary
    pairs: "pd.DataFrame | None"  # ranks.pairs; None where no test was made
    p: "pd.DataFrame | None"  # ranks.nemenyi [n, n]


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed stats` with the given arguments; returns the exit code."""
    arguments = _parser().parse_args(list(argv))
    try:
        _check_output(arguments)
        frame = records.load(arguments.paths)
        analysis = analyse(
            frame,
            select_rule=arguments.select,
            metric=arguments.metric,
            datasets=arguments.datasets,
            exclude=arguments.exclude,
            missing=arguments.missing,
            baseline=arguments.baseline,
            alpha=arguments.alpha,
        )
        written = []
        if arguments.out:
            results = {"input": [str(path) for path in arguments.paths], **analysis.results}
            written = report.write(results, analysis.scores, analysis.pairs, analysis.p, arguments.out)
    except (ValueError, OSError) as error:
        print(f"jaxbed stats: {error}", file=sys.stderr)
        return 2
    print(report.to_text(analysis.results, analysis.scores, analysis.p))
    if written:
        print("\nwrote " + ", ".join(map(str, written)))
    return 0


def analyse(
    frame: "pd.DataFrame",
    *,
    select_rule: str = "best_val",
    metric: str = "accuracy",
    datasets: str = "all",
    exclude: Sequence[str] = (),
    missing: str = "fail",
    baseline: str | None = None,
    alpha: float = 0.05,
) -> Analysis:
    """Records -> table and tests. `datasets` is 'all' (those whose role is not 'val') or names joined by commas.

    No rank test is made with one algorithm, one dataset, or epochs picked on the test scores. Raises ValueError as the steps do, and for
    an unknown metric, dataset or baseline, an alpha outside (0, 1), or an algorithm without any run on one of the datasets.
    """
    warnings = []
    unused = frame.attrs.get("unused_columns", [])
    if unused:
        warnings.append(_warning("UNUSED_COLUMNS", f"columns not used: {', '.join(unused)}"))
    if not 0 < alpha < 1:
        raise ValueError(f"--alpha {alpha:g} is no error rate; give a number between 0 and 1, e.g. 0.05")
    select.parse(select_rule)
    frame, excluded = records.exclude(frame, exclude)
    dropped = []
    if missing == "drop":
        frame, dropped = select.without_diverged(frame)
    elif missing != "fail":
        raise ValueError(f"--missing {missing}: allowed are fail, drop")
    if dropped:
        names = ", ".join(f"{run['algorithm']} run {run['run']}" for run in dropped)
        warnings.append(_warning("DIVERGED", f"left out because they diverged: {names}. The means flatter these algorithms"))

    wanted = _datasets(frame, metric, datasets)
    selected = select.apply(frame, select_rule, metric=metric, datasets=wanted)
    if datasets == "all":
        selected = selected[selected["role"] != "val"]  # one dataset may be the validation split of one algorithm and a test set of another
    selected = selected.reset_index(drop=True)
    selection, found = _selection(frame[frame["metric"] == metric] if select_rule.startswith("last_n") else frame, select_rule)
    warnings += found
    _refuse_missing(frame, selected, wanted, metric)

    scores = tables.summary(selected)
    warnings += _run_warnings(scores)
    matrix = tables.matrix(scores)
    n, m = matrix.shape
    if baseline is not None and baseline not in matrix.index:
        raise ValueError(f"--baseline {baseline}: no such algorithm; there are {', '.join(matrix.index)}")
    baseline = baseline or next((name for name in ("erm", "ERM") if name in matrix.index), None)

    friedman = nemenyi = pairs = p = None
    if select_rule in select.CHERRY_PICKED and selection["rule"]:
        verdict = [
            f"No test: epochs were cherry-picked on the test scores ({select_rule}); the table shows what cannot be reached honestly."
        ]
    elif n < 2:
        verdict = ["No test: there is one algorithm; give the scores of another to compare with."]
    else:
        friedman = ranks.friedman(matrix)
        warnings += friedman.pop("warnings")
        if m < 2:
            verdict = [
                "No conclusion: one dataset is one block, and no rank test over datasets is possible. Add datasets; more runs do not help."
            ]
        else:
            p, pairs = ranks.nemenyi(matrix), ranks.pairs(matrix)
            nemenyi = {
                "test": "Nemenyi, all pairs, studentized range with infinite degrees of freedom",
                "critical_difference": ranks.critical_difference(n, m, alpha),
                "smallest_possible_p": ranks.smallest_p(n, m),
                "pairs": pairs.to_dict("records"),
            }
            if nemenyi["smallest_possible_p"] >= alpha:
                warnings.append(_warning("FLOOR", f"Nemenyi cannot give p < {alpha:g} with {m} datasets and {n} algorithms"))
            verdict = report.verdict(pairs, baseline, alpha, friedman)

    results = {
        "question": "would the algorithms differ on another dataset of this kind? blocks = datasets, one mean over runs in each cell",
        "metric": metric,
        "algorithms": list(matrix.index),
        "datasets": list(matrix.columns),
        "baseline": baseline,
        "alpha": alpha,
        "selection": selection,
        "missing": missing,
        "excluded": excluded,
        "dropped": dropped,
        "scores": {"statistic": "mean and std (ddof 1) over runs", "cells": scores.to_dict("records")},
        "friedman": friedman,
        "nemenyi": nemenyi,
        "verdict": verdict,
        "warnings": warnings,
        "versions": report.versions(),
    }
    return Analysis(results, scores, pairs, p)


def _datasets(frame: "pd.DataFrame", metric: str, text: str) -> list[str]:
    rows = frame[frame["metric"] == metric]
    if rows.empty:
        raise ValueError(f"--metric {metric}: not recorded; there are {', '.join(sorted(frame['metric'].unique()))}")
    if text == "all":
        names = rows.loc[rows["role"] != "val", "dataset"].unique().tolist()
        if not names:
            raise ValueError(f"{metric} was recorded on validation splits only; evaluate a test set, or name the split with --datasets")
        return names
    known = rows["dataset"].unique().tolist()
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    strange = [name for name in names if name not in known]
    if strange or not names:
        raise ValueError(f"--datasets {text}: no {metric} on {', '.join(map(repr, strange)) or 'nothing'}; there are {', '.join(known)}")
    return names


def _refuse_missing(frame: "pd.DataFrame", selected: "pd.DataFrame", wanted: list[str], metric: str) -> None:
    """A cell without any run cannot be ranked, and leaving it out in silence would compare algorithms on different datasets."""
    algorithms = frame["algorithm"].unique()
    have = set(zip(selected["algorithm"], selected["dataset"], strict=True))
    lost = [(name, dataset) for name in algorithms for dataset in wanted if (name, dataset) not in have]
    if not lost:
        return
    complete = [dataset for dataset in wanted if all((name, dataset) in have for name in algorithms)]
    cure = f"--datasets {','.join(complete)} keeps those that all have" if complete else "no dataset is common to all algorithms"
    listed = "; ".join(f"{name} on {dataset}" for name, dataset in lost[:8]) + (f"; and {len(lost) - 8} more" if len(lost) > 8 else "")
    raise ValueError(f"no run has {metric} for {listed}. Evaluate it; or {cure}; or leave the algorithm out with --exclude {lost[0][0]}")


def _selection(frame: "pd.DataFrame", rule: str) -> tuple[dict, list[dict]]:
    """What stats.json tells about the chosen epochs, and warnings."""
    with_epochs = frame[frame["epoch"].notna()]
    if with_epochs.empty:
        return {"rule": None, "text": "none, the scores came without epochs and are used as they stand", "runs": []}, []
    chosen = select.choose(frame, rule)
    tied, total = int((chosen["tied_epochs"] > 1).sum()), len(chosen)
    warnings = []
    if rule in select.CHERRY_PICKED:
        warnings.append(_warning("CHERRY_PICKED", f"{rule} looks the epoch up in the test scores: a bound, not a result"))
    if tied:
        warnings.append(
            _warning("TIED_SELECTION", f"{tied} of {total} choices had several epochs with the best score; the first was taken")
        )
    ends = with_epochs.groupby(["algorithm", "run"])["epoch"].max()
    if ends.nunique() > 1:
        spans = ends.groupby("algorithm").agg(["min", "max"])
        listed = ", ".join(f"{name} {row['min']:g} to {row['max']:g}" for name, row in spans.iterrows())
        warnings.append(_warning("UNEQUAL_EPOCHS", f"the runs end at different epochs: {listed}"))
    text = f"{rule}, {total} choices, {tied} of them tied" + (" (CHERRY-PICKED on the test scores)" if rule in select.CHERRY_PICKED else "")
    return {"rule": rule, "text": text, "tied_choices": tied, "runs": chosen.to_dict("records")}, warnings


def _run_warnings(scores: "pd.DataFrame") -> list[dict]:
    found = []
    counts = scores.groupby("algorithm", sort=False)["n"].agg(["min", "max"])
    if scores["n"].nunique() > 1:
        listed = ", ".join(f"{name} {low}" + (f" to {high}" if high > low else "") for name, low, high in counts.itertuples())
        found.append(_warning("UNEQUAL_RUNS", f"runs per cell: {listed}"))
    if (scores["n"] == 1).any():
        found.append(_warning("ONE_RUN", f"one run only, so no std: {', '.join(counts.index[counts['min'] == 1])}"))
    return found


def _warning(code: str, text: str) -> dict:
    return {"code": code, "text": text}


def _check_output(arguments: argparse.Namespace) -> None:
    """Refused before hours of reading, and before an input file is overwritten."""
    if not arguments.out:
        return
    out = Path(arguments.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a directory")
    outputs = {(out / name).resolve() for name in ("scores.csv", "pairs.csv", "stats.json")}
    for path in map(Path, arguments.paths):
        if path.resolve() in outputs:
            raise ValueError(f"--out {out} would overwrite the input {path}; name another directory")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxbed stats", description="Which algorithm is really better? Score table and rank tests over datasets."
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="workdirs, or CSV/Parquet files with the columns algorithm,run,dataset,accuracy"
    )
    parser.add_argument(
        "--select", default="best_val", metavar="RULE", help=f"epoch selection: {', '.join(select.ALLOWED)} (default best_val)"
    )
    parser.add_argument("--metric", default="accuracy", help="the measure to compare; higher is better (default accuracy)")
    parser.add_argument(
        "--datasets", default="all", metavar="A,B,C", help="datasets to compare on (default all: those whose role is not 'val')"
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="ALGORITHM:RUN,RUN", help="runs to leave out; repeatable; without :RUN all"
    )
    parser.add_argument(
        "--missing", choices=("fail", "drop"), default="fail", help="diverged runs: refuse, or leave out and say so (default fail)"
    )
    parser.add_argument("--baseline", metavar="NAME", help="named first in the verdict (default erm or ERM, where present)")
    parser.add_argument("--alpha", type=float, default=0.05, help="error rate of the verdict (default 0.05)")
    parser.add_argument("--out", metavar="DIR", help="write stats.json, scores.csv, pairs.csv, tables/*.tex there (default: print only)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
