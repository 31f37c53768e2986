"""`jaxbed stats`: which algorithm is really better, and how firm is the answer? From workdirs or any CSV of scores.

    jaxbed stats WORKDIR... [--select best_val] [--datasets strict --roles roles.csv] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv --exclude pAdaIN:2,5 --question these-datasets

Exit code 0, also if there are warnings; 2 for invalid input, with the reason on stderr.
"""

import sys
from collections.abc import Sequence

import pandas as pd

from jaxbed.stats import analysis, names, options, progress
from jaxbed.stats.figures import style
from jaxbed.stats.output import destination, files, report
from jaxbed.stats.reading import inputs
from jaxbed.system import ending


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed stats` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed stats")


@pd.option_context("mode.string_storage", "python")  # tables are small: Arrow's strings take longer to make than they save
def run(argv: Sequence[str]) -> int:
    """Runs the command. Raises ValueError or OSError for input that cannot be used."""
    asked, paths = options.parse(argv)
    options.check(asked)
    if paths.out is not None:
        destination.check(
            paths.out, [*paths.paths, *filter(None, (paths.roles, paths.table, paths.last_scores))], files.NAMES, command="jaxbed stats"
        )
    from jaxbed.evaluation import measures  # NumPy alone

    if measures.is_extra(asked.metric):
        measures.add(asked.metric)
    with progress.shown():
        given = inputs.read(paths)
        result = analysis.analyse(given.frame, asked, roles=given.roles, table=given.table, last=given.last)
    text = report.to_text(result)
    facts = {"input": [str(path) for path in paths.paths]}
    facts |= {name: value for name in ("roles", "table", "last_scores", "rename", "columns") if (value := getattr(paths, name))}
    with progress.shown():
        written = files.write(result, paths.out, {**facts, "files": given.files}) if paths.out else []
    if written:
        if letters := style.lacking([*result.results["algorithms"], *result.results["datasets"]]):
            text += f"\n\nwarning LETTERS: figures show boxes for {names.listed(letters)}, since their font lacks them. Use --rename."
        text += f"\n\nwrote {len(written)} files: {paths.out}/report.html, stats.json, tables, figures"
    destination.show(text)
    return 0


if __name__ == "__main__":
    ending.process(lambda: main(sys.argv[1:]))
