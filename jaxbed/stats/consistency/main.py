"""`jaxbed consistency`: do networks and humans err on the same images? From the 17 sets of model-vs-human.

    jaxbed consistency PATH... [--select last|best_val|EPOCH] [--per-condition] [--export DIR] [--out DIR]

A PATH is a workdir, or a file or folder of decisions in the published layout; decision makers named subject-... are humans. Exit code 0; 2
for invalid input, with the reason on stderr. Source: Geirhos et al., "Partial success in closing the gap between human and machine vision"
(2021).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from jaxbed.data.model_vs_human import DATASETS
from jaxbed.stats import progress, tables
from jaxbed.stats.consistency import decisions, figures, study
from jaxbed.stats.consistency.decisions import Table
from jaxbed.stats.consistency.study import HUMANS, MEAN, Study
from jaxbed.stats.figures import style
from jaxbed.stats.output import destination
from jaxbed.system import ending

NAMES = ("consistency.csv", "pairs.csv", "conditions.csv")
SHOWN = {"accuracy": "accuracy", **dict(zip(study.PAIRED, ("squared difference", "observed", "error consistency"), strict=True))}


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed consistency` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed consistency")


@pd.option_context("mode.string_storage", "python")
def run(argv: Sequence[str]) -> int:
    """Runs the command. Raises ValueError or OSError for input that cannot be used."""
    asked = parse(argv)
    if asked.out is not None:
        destination.check(asked.out, map(str, asked.paths), NAMES)
    if asked.export is not None:
        destination.check(asked.export, (), (), "--export")
    notes: list[str] = []
    with progress.shown("jaxbed consistency"):
        of_workdirs, of_files = decisions.read(asked.paths, asked.select, notes)
        given = study.compare(decisions.join([*of_workdirs, *of_files], notes))
        exported = _export(of_workdirs, asked.export) if asked.export else []
        written = destination.fill(asked.out, lambda folder: _write(folder, given)) if asked.out else []
    parts = _text(given, asked.per_condition)
    parts += ["\n".join(f"note: {note}" for note in notes)] if notes else []
    parts += [f"exported {len(exported)} files to {asked.export}"] if asked.export else []
    parts += [f"wrote {len(written)} files: {asked.out}/{', '.join(NAMES)}, figures"] if asked.out else []
    destination.show("\n\n".join(parts))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jaxbed consistency", description="Do networks and humans err on the same images?")
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="workdir, or file or folder of decisions in the layout of model-vs-human")
    add("--select", default="last", metavar="RULE", help="epoch of each seed: last (default), best_val, or a number")
    add("--per-condition", action="store_true", help="also show error consistency with humans in each condition")
    add("--export", metavar="DIR", help="folder for the workdirs' answers in the layout of model-vs-human")
    add("--out", metavar="DIR", help=f"folder for {', '.join(NAMES)} and figures")
    return parser.parse_args(list(argv))


def _export(given: list[Table], folder: str) -> list[Path]:
    """Writes a file for each set and seed. Raises ValueError without workdirs, and for two seeds whose files have one name."""
    if not given:
        raise ValueError("--export writes answers of workdirs, and no PATH is a workdir: leave it out, or name one")
    of_file: dict[str, Table] = {}
    for table in given:
        name = decisions.file_name(table)
        if name in of_file:
            raise ValueError(f"--export: {table.source} and {of_file[name].source} both make {name}: export them to two folders")
        of_file[name] = table

    def make(into: Path) -> list[Path]:
        for name, table in of_file.items():
            (into / name).parent.mkdir(exist_ok=True)
            tables.to_csv(table.rows, into / name)
        return [into / name for name in of_file]

    return destination.fill(folder, make, "--export")


def _write(folder: Path, given: Study) -> list[Path]:
    for name, table in zip(NAMES, (study.against_humans(given), given.pairs, given.conditions), strict=True):
        tables.to_csv(table, folder / name)
    (folder / "figures").mkdir()
    drawn = {"error_consistency": figures.matrix(given), "by_condition": figures.by_condition(given)}
    files = [path for name, figure in drawn.items() if figure for path in style.save(figure, folder / "figures", name)[0]]
    return [*(folder / name for name in NAMES), *files]


def _text(given: Study, per_condition: bool) -> list[str]:
    """What is shown in the terminal."""
    has_humans = HUMANS in given.parties
    shown = SHOWN if has_humans else {"accuracy": "accuracy"}
    parts = [f"95 % intervals: images resampled {study.RESAMPLES:,} times" + "; all but accuracy: with humans" * has_humans]
    rows = study.against_humans(given)
    sets = rows.loc[rows["dataset"] != MEAN, "dataset"].nunique()
    for dataset, of_set in rows.groupby("dataset", sort=False):
        if dataset == MEAN and sets == 1:
            continue
        head = f"mean over {sets} of {len(DATASETS)} sets" if dataset == MEAN else str(dataset)
        lines = [[str(row["model"]), *(_cell(row, name) for name in shown), str(row["trials"])] for _, row in of_set.iterrows()]
        parts.append(tables.align([[head, *shown.values(), "trials"], *lines]))
    if per_condition:
        parts += _by_condition(given)
    models = [party for party in given.parties if party != HUMANS]
    if len(models) > 1:
        ends = [study.matrix(given, end=end).loc[models, models].to_numpy() for end in ("", "_low", "_high")]
        cells = [[_interval(*(end[i, j] for end in ends)) if j > i else "" for j in range(1, len(models))] for i in range(len(models) - 1)]
        lines = [[model, *texts] for model, texts in zip(models, cells, strict=False)]
        parts.append(tables.align([["error consistency", *models[1:]], *lines]))
    return parts


def _by_condition(given: Study) -> list[str]:
    """Error consistency with humans in each condition, a table for each set with several."""
    parts = []
    rows = given.conditions[given.conditions["other"] == HUMANS]
    for dataset, of_set in rows.groupby("dataset", sort=False):
        wide = of_set.pivot(index="model", columns="condition", values="error_consistency")
        wide = wide.loc[of_set["model"].unique(), of_set["condition"].unique()]
        lines = [[str(model), *map(_number, values)] for model, values in zip(wide.index, wide.to_numpy(), strict=True)]
        parts.append(tables.align([[f"{dataset}: error consistency", *wide.columns], *lines]))
    return parts or ["there are no humans to compare with in each condition"]


def _cell(row: pd.Series, name: str) -> str:
    return _interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _interval(value: float, low: float, high: float) -> str:
    return "n/a" if value != value else f"{_number(value)} ({_number(low)} to {_number(high)})"


def _number(value: float) -> str:
    return "n/a" if value != value else f"{value:.3f}"
