"""Decisions of humans and networks on the sets of model-vs-human: read from workdirs and from files of the published layout.

A published file, <dataset>_<subject>_<session>.csv, has a line for each trial: subj, session, trial, rt, object_response, category,
condition, imagename. Answers in workdirs are brought into the same form, so both are compared, and exported, in one way. Trials of several
decision makers are matched by the image's id, category and condition. The published code needs all of them to have the same trials; here
those that are missing are reported.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import model_vs_human
from jaxbed.data.model_vs_human import DATASETS
from jaxbed.evaluation import metrics
from jaxbed.stats import names
from jaxbed.stats.reading import delimited, workdirs
from jaxbed.stats.selection import rules

COLUMNS = ("subj", "session", "trial", "rt", "object_response", "category", "condition", "imagename")
NEEDED = ("subj", "category", "condition", "imagename")  # and object_response, which may be empty
TRIAL = ["condition", "category", "image"]
HUMAN = "subject-"
SESSION = "session-1"
NO_ANSWER = "na"


class Table(NamedTuple):
    """Trials of a set in the published layout, all cells text."""

    dataset: str  # of DATASETS
    source: str  # file or workdir
    rows: pd.DataFrame  # COLUMNS, indexed by line


class Decisions(NamedTuple):
    """correct[dataset] [trials, decision makers]: 1.0, 0.0 or NaN for a missing trial, indexed by TRIAL; conditions that count only."""

    correct: dict[str, pd.DataFrame]
    models: list[str]


def is_human(subject: str) -> bool:
    return subject.startswith(HUMAN)


def read(paths: Sequence[Path], rule: str, notes: list[str]) -> tuple[list[Table], list[Table]]:
    """(tables of workdirs, tables of files). rule: which epoch of each seed counts: last, best_val or its number.

    What is left out is appended to `notes`. Raises ValueError or FileNotFoundError, with the cure, for what cannot be used.
    """
    if not rule.isdecimal() and rule not in ("last", "best_val"):
        raise ValueError(f"--select {rule}: it must be last, best_val or the number of an epoch")
    of_workdirs: list[Table] = []
    of_files: list[Table] = []
    for path in paths:
        if (path / "config.json").is_file() or (path / "responses").is_dir():
            of_workdirs += _of_workdir(path, rule, notes)
        elif path.is_dir():
            of_files += _of_folder(path, notes)
        else:
            of_files.append(_of_file(path, _dataset_or_raise(path)))
    runs: dict[str, str] = {}
    for table in of_workdirs:
        subject = table.rows["subj"].iloc[0]
        if (other := runs.setdefault(subject, table.source)) != table.source:
            cure = "give one of the runs another name in its config.json, or pass them one by one"
            raise ValueError(f"{subject} is in both {other} and {table.source}, and would be one decision maker: {cure}")
    return of_workdirs, of_files


def join(tables: Iterable[Table], notes: list[str]) -> Decisions:
    """Matches the trials of all decision makers. Appends to `notes` which trials are missing, of whom, and which were repeated."""
    given: dict[str, dict[str, list[pd.Series]]] = {dataset: {} for dataset in DATASETS}
    sources: dict[str, str] = {}
    for table in tables:
        for subject, correct in _correct(table).groupby(level="subj", sort=False):
            given[table.dataset].setdefault(str(subject), []).append(correct.droplevel("subj"))
            sources.setdefault(str(subject), table.source)
    names.refuse_alike("decision maker", sources.items())
    joined = {}
    for dataset, of_subjects in given.items():
        if of_subjects:
            columns = {subject: _once(pd.concat(parts), dataset, subject, notes) for subject, parts in of_subjects.items()}
            joined[dataset] = pd.concat(columns, axis=1).sort_index()  # the same draws of images in any order of paths
            notes += _missing(joined[dataset], dataset)
    models = [subject for subject in sources if not is_human(subject)]
    for model in models:
        if absent := [dataset for dataset, correct in joined.items() if model not in correct]:
            notes.append(f"{model} has no trials of {names.listed(absent)}: its means are over the other sets")
    return Decisions(joined, models)


def file_name(table: Table) -> str:
    """<dataset>/<dataset>_<subject>_<session>.csv; underscores, which separate these, are hyphens within the subject's name."""
    subject = re.sub(r"[^\w.+=-]|_", "-", table.rows["subj"].iloc[0])
    return f"{table.dataset}/{table.dataset}_{subject}_{SESSION}.csv"


def _of_workdir(path: Path, rule: str, notes: list[str]) -> list[Table]:
    """A table for each set and seed."""
    frame, source = workdirs.read(path)
    sets = [name for name in source["sets"] if name in model_vs_human.SETS]
    if not sets:
        cure = "evaluate them with --config.data.model_vs_human=DIR"
        raise ValueError(f"{path} has answers to no set of model-vs-human, only to {names.listed(source['sets'])}: {cure}")
    algorithm = source["algorithm"]
    if is_human(algorithm):
        raise ValueError(f"{path}: the algorithm is named {algorithm!r}, and names that begin with {HUMAN} are humans': rename it")
    found = []
    epochs = _epochs(frame, rule)
    if lost := sorted({*frame["run"].astype(int)} - {seed for seed, _ in epochs}):
        notes.append(f"{path}: seeds {names.listed(lost)} have no epoch that --select {rule} can choose and are left out")
    for seed, epoch in epochs:
        for name in sets:
            trials = metrics.trials(path, name, epoch)
            if seed not in trials.seeds:
                raise ValueError(f"{path}: epoch {epoch} of {name} has no answers of seed {seed}: run: jaxbed eval {path}")
            row = trials.seeds.tolist().index(seed)
            if not trials.alive[row] and name == sets[0]:
                notes.append(f"{algorithm}-{seed} diverged before epoch {epoch}: its answers are those of its last finite state")
            dataset = model_vs_human.SETS[name]
            found.append(Table(dataset, str(path), _published(dataset, f"{algorithm}-{seed}", trials, row)))
    return found


def _published(dataset: str, subject: str, trials: metrics.Trials, row: int) -> pd.DataFrame:
    """Answers of one seed in the published layout."""
    classes = np.array([*trials.classes, NO_ANSWER])
    rows = pd.DataFrame(
        {
            "subj": subject,
            "session": "1",
            "trial": [str(number) for number in range(1, len(trials.name) + 1)],
            "rt": "NaN",
            "object_response": classes[trials.response[row]],
            "category": classes[trials.label],
            "condition": [model_vs_human.condition_text(dataset, name) for name in trials.name],
            "imagename": [Path(name).name for name in trials.name],
        }
    )
    return rows.rename_axis(index="line")


def _epochs(frame: pd.DataFrame, rule: str) -> list[tuple[int, int]]:
    """[(seed, epoch), ...]."""
    if rule.isdecimal():
        return [(int(seed), int(rule)) for seed in frame["run"].unique()]
    if rule == "last":  # also of a seed that diverged
        return [(int(seed), int(epoch)) for seed, epoch in frame.groupby("run", sort=False)["epoch"].max().items()]
    chosen = rules.choose(frame, rule)
    return [(int(seed), int(epoch)) for seed, epoch in zip(chosen["run"], chosen["epoch"], strict=True)]


def _of_folder(folder: Path, notes: list[str]) -> list[Table]:
    """All files of the 17 sets below a folder; others are reported."""
    paths = sorted(path for path in folder.rglob("*.csv") if path.is_file())
    known = {path: dataset for path in paths if (dataset := _dataset(path))}
    if not known:
        what = f"none of its {len(paths)} CSV files is of a set of model-vs-human" if paths else "it holds no CSV file"
        raise ValueError(f"{folder} is neither a workdir nor a folder of decisions: {what}; {_naming()}")
    if others := [str(path.relative_to(folder)) for path in paths if path not in known]:
        notes.append(f"{folder}: not read, since they are of none of the 17 sets: {names.listed(others)}")
    return [_of_file(path, dataset) for path, dataset in known.items()]


def _dataset(path: Path) -> str | None:
    """The set that a file's name begins with, or that its folder is named after."""
    return names.find(path.stem.partition("_")[0], DATASETS) or names.find(path.parent.name, DATASETS)


def _dataset_or_raise(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: name workdirs, and files or folders of decisions")
    if dataset := _dataset(path):
        return dataset
    raise ValueError(f"{path}: its name begins with no set of model-vs-human; {_naming()}")


def _naming() -> str:
    return f"files are named <dataset>_<subject>_<session>.csv, with a data set of {', '.join(DATASETS)}"


def _of_file(path: Path, dataset: str) -> Table:
    rows = delimited.read(path)
    rows.columns = [name.lower() for name in rows.columns]
    if lost := [name for name in (*NEEDED, "object_response") if name not in rows.columns]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(rows.columns)}")
    if not rows.columns.is_unique:
        raise ValueError(f"{path}: two columns have one name in lower case: {names.listed(rows.columns)}; keep one")
    if rows.empty:
        raise ValueError(f"{path} has no trials: leave it out")
    for name in NEEDED:
        if (blank := rows[name].str.strip() == "").any() and (name != "condition" or DATASETS[dataset].conditions):
            raise ValueError(f"{path}: line {blank.idxmax()} has no {name}; write it, or delete the line")
    return Table(dataset, str(path), rows)


def _correct(table: Table) -> pd.Series:
    """1.0 or 0.0 of each trial whose condition counts, indexed by subj and TRIAL."""
    dataset, source, rows = table
    text = rows["condition"]
    try:
        condition = text.map({spelled: model_vs_human.canonical(dataset, spelled) for spelled in text.unique()})
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    category, answer = (rows[name].str.strip().str.lower() for name in ("category", "object_response"))
    image = rows["imagename"].str.strip().map(model_vs_human.image_id)
    index = pd.MultiIndex.from_arrays([rows["subj"].str.strip(), condition, category, image], names=["subj", *TRIAL])
    correct = pd.Series((category == answer).to_numpy(float), index)
    return correct[condition.isin(DATASETS[dataset].kept).to_numpy()]


def _once(correct: pd.Series, dataset: str, subject: str, notes: list[str]) -> pd.Series:
    """The first of repeated trials."""
    repeated = correct.index.duplicated()
    if repeated.any():
        first = correct.index[repeated][0][-1]
        notes.append(f"{dataset}: {subject} has {repeated.sum()} repeated trials, e.g. of {names.cut(first)}: the first of each counts")
    return correct[~repeated]


def _missing(correct: pd.DataFrame, dataset: str) -> list[str]:
    found = []
    for subject, count in correct.isna().sum().items():
        if count:
            image = correct.index[correct[subject].isna()][0][-1]
            found.append(
                f"{dataset}: {subject} lacks {count} of {len(correct)} trials, e.g. {names.cut(image)}: pairs count those they share"
            )
    return found
