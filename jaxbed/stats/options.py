"""The options of `jaxbed stats`, and its command line."""

import argparse
import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxbed.stats.selection import failures, rules

QUESTIONS = ("new-datasets", "these-datasets")
ERRORS = re.compile(r"error|gap|fpr95_\w+|(rms|mad)_calibration_error\w*")  # metrics of jaxbed of which lower is better


class Options(NamedTuple):
    """Settings of one analysis; the command line has one option for each."""

    question: str = "new-datasets"
    metric: str = "accuracy"
    lower: bool | None = None  # whether lower is better; None: whether it is of this metric of jaxbed, else not
    select: str = "best_val"
    ties: str = "mean"
    datasets: str = "all"
    exclude: tuple[str, ...] = ()
    missing: str = "fail"
    paired: bool = False  # run k starts from the same seed or weights for all algorithms
    baseline: str | None = None
    alpha: float = 0.05
    rope: float | None = None  # in the unit of the metric; None: one percentage point, or 0 for a metric that is no share
    permutations: int = 100_000
    seed: int = 0
    paper_mode: str | None = None


def parse(argv: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    """The options of the analysis, and those of inputs and outputs: paths, columns, rename, roles, table, last_scores, out."""
    arguments = _parser().parse_args(list(argv))
    values = {name: getattr(arguments, name) for name in Options._fields}
    return Options(**values | {"exclude": tuple(arguments.exclude)}), arguments


def check(options: Options) -> None:
    """Raises ValueError for a value that is out of range."""
    rules.parse(options.select)
    for name, allowed in (
        ("question", QUESTIONS),
        ("ties", rules.TIES),
        ("missing", failures.POLICIES),
        ("paper_mode", (None, "biasbed")),
    ):
        if getattr(options, name) not in allowed:
            listed = ", ".join(map(str, allowed))
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: allowed are {listed}")
    if not 0 < options.alpha < 1:
        raise ValueError(f"--alpha {options.alpha:g}: must be between 0 and 1, e.g. 0.05")
    if options.rope is not None and not 0 <= options.rope < float("inf"):
        raise ValueError(f"--rope {options.rope:g}: must be 0 or more, in the unit of the metric")
    if options.permutations < 100:
        raise ValueError(f"--permutations {options.permutations}: p could not fall below 1/{options.permutations + 1}; give at least 100")
    if options.seed < 0:
        raise ValueError(f"--seed {options.seed}: must be 0 or more")
    if options.lower and options.missing == "floor":
        raise ValueError("--missing floor needs scores where higher is better; use --missing drop with --lower")


def for_metric(options: Options, metric: str) -> Options:
    """The options with the recorded metric, and with its direction where none was asked for. Raises ValueError as `check` does."""
    lower = ERRORS.fullmatch(metric) is not None if options.lower is None else options.lower
    options = options._replace(metric=metric, lower=lower)
    check(options)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxbed stats",
        description="Which algorithm is really better? Prints the scores, an audit of the runs, tests, and how firm the answer is.",
    )
    add, default = parser.add_argument, Options()
    layout = "the columns algorithm,run,dataset,accuracy, or one row per data set and one column per algorithm"
    add("paths", nargs="+", metavar="PATH", help=f"workdirs, or CSV/Parquet files with {layout}")
    add(
        "--columns", action="append", default=[], metavar="COLUMN=NAME,...",
        help="which columns of the files are algorithm, run, dataset, accuracy, ...; repeatable (default: by name and synonym)",
    )  # fmt: skip
    add(
        "--rename", action="append", default=[], metavar="OLD=NEW",
        help="rename an algorithm, a data set, or the algorithm of a workdir (OLD is then its path); repeatable",
    )  # fmt: skip
    add("--out", metavar="DIR", help="folder for report.html, stats.json, CSV files, LaTeX tables and figures (default: print only)")
    ask = parser.add_argument_group("the question")
    ask.add_argument(
        "--question", default=default.question, choices=QUESTIONS,
        help="new-datasets: would the algorithms differ on another data set? these-datasets: do they differ on these, with other seeds?",
    )  # fmt: skip
    ask.add_argument("--baseline", metavar="NAME", help="compare all others with this algorithm only; choose it before you see the scores")
    ask.add_argument(
        "--metric", default=default.metric,
        help="measure to compare (default accuracy, or pr_auc_weighted of multi-label sets); MODULE:FUNCTION: one of your own",
    )  # fmt: skip
    side = ask.add_mutually_exclusive_group()
    usual = "the default, but for jaxbed's own errors: error, gap, fpr95_..., rms_ and mad_calibration_error..."
    side.add_argument("--higher-is-better", dest="lower", action="store_false", default=None, help=usual)
    side.add_argument("--lower", dest="lower", action="store_true", help="lower values of the metric are better")
    ask.add_argument(
        "--datasets", default=default.datasets, metavar="A,B|all|strict",
        help="all: those whose role is not 'val' (default); strict: those that are shifted and used for neither training nor selection",
    )  # fmt: skip
    ask.add_argument("--roles", metavar="CSV", help="describes the data sets: dataset,role,family,size,trained_on,chance")
    runs = parser.add_argument_group("epochs and runs")
    runs.add_argument(
        "--select", default=default.select, metavar="RULE", help=f"how epochs are chosen: {rules.allowed()} (default best_val)"
    )
    runs.add_argument(
        "--ties", default=default.ties, choices=rules.TIES, help="among tied epochs: mean of their scores (default), the first or the last"
    )
    runs.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="ALGORITHM:RUN,RUN",
        help="runs to leave out; without :RUN all runs of the algorithm; repeatable",
    )
    runs.add_argument(
        "--missing",
        default=default.missing,
        choices=failures.POLICIES,
        help="failed runs: drop them, count them as chance (floor), or stop with an error (fail, the default)",
    )
    runs.add_argument(
        "--paired", action="store_true",
        help="run k starts from the same seed or weights for all algorithms: "
        "on each data set, Friedman's test with runs as blocks; all other tests stay conservative",
    )  # fmt: skip
    runs.add_argument("--table", metavar="CSV", help="a printed table algorithm,dataset,mean,std to check against the runs")
    runs.add_argument("--last-scores", metavar="CSV", help="scores of the same runs averaged over their last epochs; used by the audit")
    test = parser.add_argument_group("the tests")
    test.add_argument("--alpha", type=float, default=default.alpha, help="significance level (default 0.05)")
    test.add_argument(
        "--rope",
        type=float,
        metavar="X",
        help="largest difference that does not matter, in the unit of the metric; "
        "default 1 percentage point, and 0 for a metric that is no share",
    )
    test.add_argument(
        "--permutations", type=int, default=default.permutations, metavar="N", help="number of random permutations (default 100000)"
    )
    test.add_argument("--seed", type=int, default=default.seed, help="seed of permutations and resamples (default 0)")
    test.add_argument(
        "--paper-mode", choices=("biasbed",), help="compute the tests as a paper did, to check its tables; not for new results"
    )
    return parser
