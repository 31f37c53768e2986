"""`jaxbed stats`: which algorithm is really better, and how firm is the answer? From workdirs or any CSV of scores.

    jaxbed stats WORKDIR... [--select best_val] [--datasets strict --roles roles.csv] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv --exclude pAdaIN:2,5 --question these-datasets

Exit code 0, also if there are warnings; 2 for invalid input, with the reason on stderr.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from jaxbed.stats import analysis, names, options, progress
from jaxbed.stats.figures import style
from jaxbed.stats.output import files, report
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
        _check_output(paths.out, [*paths.paths, *filter(None, (paths.roles, paths.table, paths.last_scores))])
    if ":" in asked.metric:
        from jaxbed.evaluation import measures  # imported here: a CSV file of scores needs nothing of the training side

        measures.add(asked.metric)
    with progress.shown():
        given = inputs.read(paths)
        result = analysis.analyse(given.frame, asked, roles=given.roles, table=given.table, last=given.last)
    text = report.to_text(result)
    facts = {"input": [str(path) for path in paths.paths]}
    facts |= {name: value for name in ("roles", "table", "last_scores", "rename", "columns") if (value := getattr(paths, name))}
    with progress.shown():
        written = _write(result, paths.out, {**facts, "files": given.files}) if paths.out else []
    if written:
        if letters := style.lacking([*result.results["algorithms"], *result.results["datasets"]]):
            text += f"\n\nwarning LETTERS: figures show boxes for {names.listed(letters)}, since their font lacks them. Use --rename."
        text += f"\n\nwrote {len(written)} files: {paths.out}/report.html, stats.json, tables, figures"
    _print(text)
    return 0


def _print(text: str) -> None:
    """Prints to stdout; characters that its encoding lacks become question marks. A reader that stops early, as head does, is no error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python does not write the rest again at exit
        if not isinstance(error, BrokenPipeError):
            raise ValueError(f"stdout cannot be written ({error}); free disk space, or redirect the output elsewhere") from error


def _write(result: analysis.Analysis, out: str, facts: dict) -> list[Path]:
    try:
        return files.write(result, out, facts)
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error}); name another directory") from error


def _check_output(name: str, inputs: list[str]) -> None:
    """Checks before anything is read that the folder can be written and that no input file would be overwritten."""
    if not name.strip():
        raise ValueError("--out is empty; name a directory")
    out = Path(name)
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"--out {out}: {existing} is a file; name a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"--out {out}: {existing} is not writable for this user; name another directory")
    outputs = {(out / name).resolve() for name in files.NAMES}
    for path in map(Path, inputs):
        if path.resolve() in outputs:
            raise ValueError(f"--out {out} would overwrite the input {path}; name another directory")


if __name__ == "__main__":
    ending.process(lambda: main(sys.argv[1:]))
