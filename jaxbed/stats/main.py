"""`jaxbed stats`: from workdirs, or any CSV of scores, to which algorithm is really better, and how firm that is.

    jaxbed stats WORKDIR... [--select best_val] [--datasets strict --roles roles.csv] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv --exclude pAdaIN:2,5 --question these-datasets

Exit code 0, also with warnings; 2 when refused, with the reason on stderr.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxbed.stats import analysis, names, options, progress
from jaxbed.stats.figures import style
from jaxbed.stats.output import files, report
from jaxbed.stats.reading import inputs
from jaxbed.system import ending


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed stats` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed stats")


def run(argv: Sequence[str]) -> int:
    """The same; raises what is wrong."""
    asked, paths = options.parse(argv)
    options.check(asked)
    if paths.out is not None:
        _check_output(paths.out, [*paths.paths, *filter(None, (paths.roles, paths.table, paths.last_scores))])
    with progress.shown():
        given = inputs.read(paths)
        found = analysis.analyse(given.frame, asked, roles=given.roles, table=given.table, last=given.last)
    text = report.to_text(found)
    facts = {"input": [str(path) for path in paths.paths]}
    facts |= {name: value for name in ("roles", "table", "last_scores", "rename", "columns") if (value := getattr(paths, name))}
    with progress.shown():
        written = _write(found, paths.out, {**facts, "files": given.files}) if paths.out else []
    if written:
        if letters := style.lacking([*found.results["algorithms"], *found.results["datasets"]]):
            text += f"\n\nwarning LETTERS: figures show boxes for {names.listed(letters)}, which their font lacks. Use --rename."
        text += f"\n\nwrote {len(written)} files: {paths.out}/report.html, stats.json, tables, figures"
    _print(text)
    return 0


def _print(text: str) -> None:
    """On stdout; letters that its encoding lacks become question marks. A reader that stops early, as head does, is no error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not tried again at exit
        if not isinstance(error, BrokenPipeError):
            raise ValueError(f"stdout cannot be written ({error}); free space, or print elsewhere") from error


def _write(found: analysis.Analysis, out: str, facts: dict) -> list[Path]:
    try:
        return files.write(found, out, facts)
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error}); name another directory") from error


def _check_output(name: str, inputs: list[str]) -> None:
    """Refused before hours of reading, and before an input file is overwritten."""
    if not name.strip():
        raise ValueError("--out is empty; name a directory")
    out = Path(name)
    place = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not place.is_dir():
        raise ValueError(f"--out {out}: {place} is a file; name a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"--out {out}: {place} is read-only for this user; name another directory")
    outputs = {(out / name).resolve() for name in files.NAMES}
    for path in map(Path, inputs):
        if path.resolve() in outputs:
            raise ValueError(f"--out {out} would overwrite the input {path}; name another directory")


if __name__ == "__main__":
    ending.process(lambda: main(sys.argv[1:]))
