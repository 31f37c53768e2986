"""`jaxbed evidence`: which hypotheses about distribution shift do the answers of runs support?

    jaxbed evidence RUN... --pairs PAIRS.csv [--line A,B,...] [--margins FILE.csv] [--sets A,B] [--iid SET,SET:SHIFTED,...]
                   [--real A,B] [--corruptions] [--select RULE] [--rename RUN=NAME] [--out DIR]
    jaxbed evidence --paper shift --tables DIR [--margins FILE.csv] [--out DIR]

Exit code 0; 2 for invalid input, with the reason on stderr. Source: Hendrycks et al., "The Many Faces of Robustness: A Critical Analysis of
Out-of-Distribution Generalization" (2021), whose tables 4 and 6 the second form shows next to what the paper's numbers support; it writes
all thirteen as LaTeX.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from jaxbed.stats import progress
from jaxbed.stats.evidence import abstract, printed, published, report, runs, study
from jaxbed.stats.evidence.report import Result
from jaxbed.stats.output import destination
from jaxbed.system import ending


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed evidence` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed evidence")


@pd.option_context("mode.string_storage", "python")
def run(argv: Sequence[str]) -> int:
    """Runs the command. Raises ValueError or OSError for input that cannot be used."""
    asked = parse(argv)
    if asked.out is not None:
        inputs = [str(path) for path in (asked.pairs, asked.margins) if path]
        destination.check(asked.out, inputs, report.NAMES, command="jaxbed evidence")
    with progress.shown("jaxbed evidence"):
        result = _published(asked) if asked.paper else _of_runs(asked)
        written = destination.fill(asked.out, lambda folder: report.write(folder, result, argv)) if asked.out else []
        for path in (Path(asked.out) / name for name in report.OPTIONAL if written):
            if path not in written:
                path.unlink(missing_ok=True)
    wrote = f"\n\nwrote {len(written)} files: {asked.out}/{', '.join(report.NAMES)}, tables, figures" if written else ""
    destination.show(report.text(result) + wrote)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options. Raises ValueError for options that do not go together."""
    parser = argparse.ArgumentParser(prog="jaxbed evidence", description="Which hypotheses about distribution shift do answers support?")
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="workdirs")
    columns = "hypothesis,treated,control (names of algorithms), and perhaps synthetic (yes or no), overlaps, differs; see docs/evidence.md"
    add("--pairs", type=Path, metavar="CSV", help=columns)
    add("--line", type=_names, default=(), metavar="A,B", help="controls, at least 5, whose scores say what an IID change predicts")
    add("--margins", type=Path, metavar="CSV", help="set,margin: smallest effects of interest in points (default 1; see docs)")
    add("--sets", type=_names, default=(), metavar="A,B", help="shifted sets that count; default: all, of several forms of one the first")
    described = "in-distribution set, needed if there are several of role test; SET:SHIFTED for a shifted set that has another"
    add("--iid", default="", metavar="SET,SET:SHIFTED", help=described)
    add("--real", type=_names, default=(), metavar="A,B", help="sets whose shift is natural, for the abstract hypotheses")
    add("--corruptions", action="store_true", help="also the families of ImageNet-C's corruptions: jaxbed measure --measures imagenet_c")
    add("--select", default="last", metavar="RULE", help="epoch of each seed: last (default), best_val, or a number")
    add("--rename", action="append", default=[], metavar="RUN=NAME", help="name of the algorithm of a workdir; repeatable")
    add("--paper", choices=("shift",), help="use the paper's printed tables in place of runs")
    add("--tables", type=Path, metavar="DIR", help="folder of the printed tables as CSV, for --paper")
    add("--out", metavar="DIR", help=f"folder for {', '.join(report.NAMES)}, LaTeX tables and figures")
    asked = parser.parse_args(list(argv))
    if asked.paper:
        given = {"RUN": asked.runs, "--pairs": asked.pairs, "--line": asked.line, "--iid": asked.iid, "--real": asked.real}
        given |= {"--corruptions": asked.corruptions, "--sets": asked.sets, "--rename": asked.rename}
        if extra := [name for name, value in given.items() if value]:
            raise ValueError(f"--paper {asked.paper} takes all from the printed tables: leave out {', '.join(extra)}")
        if asked.tables is None:
            raise ValueError(f"--paper {asked.paper} needs --tables DIR, the folder of the printed tables")
    elif not asked.runs or asked.pairs is None:
        raise ValueError("name workdirs and --pairs CSV, or --paper shift --tables DIR")
    elif asked.tables is not None:
        raise ValueError("--tables is for --paper shift: leave it out")
    return asked


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _of_runs(asked: argparse.Namespace) -> Result:
    options = (asked.line, asked.margins, asked.select, asked.iid, asked.real, asked.corruptions, asked.sets, asked.rename)
    given = runs.read(asked.runs, asked.pairs, *options)
    compared = study.compare(given)
    return Result(given, compared, abstract.test(given, compared))


def _published(asked: argparse.Namespace) -> Result:
    read = published.read(asked.tables, asked.margins)
    compared = study.compare(read.given)
    views = {title: published.beside(compared.cells, view) for title, view in read.views.items()}
    return Result(read.given, compared, abstract.test(read.given, compared), read.misprints, views, printed.tables(asked.tables))
