"""`jaxbed stats`: from workdirs, or any CSV of scores, to which algorithm is really better, and how firm that is.

    jaxbed stats WORKDIR... [--select best_val] [--datasets strict --roles roles.csv] [--baseline erm] [--out DIR]
    jaxbed stats scores.csv --exclude pAdaIN:2,5 --question these-datasets

Exit code 0, also with warnings; 2 when refused, with the reason on stderr.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxbed.stats import analysis, files, inputs, options, progress, report


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed stats` with the given arguments; returns the exit code."""
    asked, paths = options.parse(argv)
    try:
        options.check(asked)
        if paths.out:
            _check_output(Path(paths.out), [*paths.paths, *filter(None, (paths.roles, paths.table, paths.last_scores))])
        with progress.shown():
            given = inputs.read(paths)
            found = analysis.analyse(given.frame, asked, roles=given.roles, table=given.table, last=given.last)
        text = report.to_text(found)
        facts = {"input": [str(path) for path in paths.paths]}
        facts |= {name: value for name in ("roles", "table", "last_scores", "rename", "columns") if (value := getattr(paths, name))}
        with progress.shown():
            written = files.write(found, paths.out, {**facts, "files": given.files}) if paths.out else []
    except (ValueError, OSError) as error:
        print(f"jaxbed stats: {error}", file=sys.stderr)
        return 2
    print(text)
    if written:
        print(f"\nwrote {len(written)} files: {paths.out}/report.html, stats.json, tables, figures")
    return 0


def _check_output(out: Path, inputs: list[str]) -> None:
    """Refused before hours of reading, and before an input file is overwritten."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a directory")
    outputs = {(out / name).resolve() for name in files.NAMES}
    for path in map(Path, inputs):
        if path.resolve() in outputs:
            raise ValueError(f"--out {out} would overwrite the input {path}; name another directory")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
