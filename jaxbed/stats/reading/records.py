"""Reads, checks and joins recorded scores in one tidy layout.

One row holds one number: the value of one `metric` for one `run` (seed) of one `algorithm` on one `dataset` after one `epoch`.

    algorithm  str
    run        int     number of the run, from 0 or 1
    dataset    str
    epoch      float   epochs trained; NaN where scores come without epochs
    metric     str     'accuracy', 'ac_score', ...
    value      float   as measured: fraction or percent, never rescaled here
    n_correct  float   correctly classified images of n_total; NaN where unknown
    n_total    float
    role       str     'val': the split that epochs are selected on; 'test': in-distribution test set; 'ood': shifted
    status     str     'ok'; 'diverged': from the epoch at which the run became non-finite; 'truncated': a run that ended early;
                       'missing': a score that should exist
    family     str     shared by data sets made from the same images; else the data set's own name
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.reading import columns, delimited, numbers, workdirs
from jaxbed.stats.selection.criteria import MULTI_LABEL

COLUMNS = ("algorithm", "run", "dataset", "epoch", "metric", "value", "n_correct", "n_total", "role", "status", "family")
TEXTS = ("algorithm", "dataset", "metric", "role", "status", "family")
KEY = ["algorithm", "run", "dataset", "epoch", "metric"]
ROLES = ("val", "test", "ood")
STATUSES = ("ok", "diverged", "truncated", "missing")
MOST_RUNS = 2**53  # above it float64 cannot represent all whole numbers
DEFAULTS = {"epoch": float("nan"), "n_correct": float("nan"), "n_total": float("nan"), "role": "test", "status": "ok"}


class Scores(NamedTuple):
    """The scores that were read from one path."""

    path: Path
    frame: pd.DataFrame  # checked; attrs: unused, notes
    source: dict | None  # of a workdir, as workdirs.read gives it


def load(paths: Sequence[str | Path]) -> pd.DataFrame:
    """Reads workdirs and score files into one frame with the columns COLUMNS, in the order given: `join` of `read` of each."""
    return join([read(path) for path in paths])


def read(path: str | Path, asked: Mapping[str, str] | None = None) -> Scores:
    """The scores of a path. A directory is a jaxbed workdir. A file is Parquet, or text as `delimited` reads it.

    Files have the columns algorithm, run, dataset and either `accuracy` or `metric, value`; epoch, n_correct, n_total, role (or split),
    status and family may be added, and group; or they are wide tables. `columns` says which column names are understood; `asked`: {column:
    name in the file} of --columns. Raises FileNotFoundError for a path that does not exist, ValueError as `check` and for other formats.
    """
    path = Path(path)
    if path.is_dir():
        try:
            frame, source = workdirs.read(path)
        except FileNotFoundError:
            _refuse_no_workdir(path)
            raise
        return Scores(path, check(frame, str(path)), source)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: a pipe or device can be read only once; save its content to a file and pass that file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file or directory; pass a jaxbed workdir or a CSV file of scores")
    if path.suffix.lower() in (".parquet", ".pq"):
        frame = _read_parquet(path)
    else:
        frame = delimited.read(path)
    return Scores(path, check(columns.tidy(frame, asked or {}, str(path)), str(path)), None)


def _refuse_no_workdir(path: Path) -> None:
    """A folder without any file of a run is not a damaged workdir: another path was meant."""
    if not any((path / name).exists() for name in ("config.json", "responses", "checkpoints", "log.jsonl")):
        inside = sorted({str(config.parent) for config in path.glob("*/config.json")}) or sorted(map(str, path.glob("*.csv*")))
        suggestion = f"pass what it contains: {' '.join(inside[:5])}{' ...' * (len(inside) > 5)}"  # whole paths, to be pasted
        cure = suggestion if inside else "pass the folder of a run, or a CSV file of scores"
        raise FileNotFoundError(f"{path} is not a workdir (config.json is missing): {cure}")


def join(parts: Sequence[Scores]) -> pd.DataFrame:
    """All scores in one frame. `attrs`: `unused_columns` and `notes` to report, `sources` of the workdirs, with their own.

    Raises ValueError, with the cure, for a row that occurs twice, two workdirs with the same run of an algorithm or with different
    settings of an algorithm, and names that differ only in case, spaces or the like.
    """
    if not parts:
        raise ValueError("no scores given; pass at least one workdir or one file with the columns algorithm,run,dataset,accuracy")
    owner: dict[tuple, str] = {}
    sources = [source for _, _, source in parts if source]
    for source in sources:
        for pair in map(tuple, source["runs"]):
            if pair in owner:
                raise ValueError(
                    f"{source['path']}: run {pair[1]} of {pair[0]!r} is also in {owner[pair]}; a run may come from one workdir only. "
                    f"Drop one of the two paths, rename the algorithm of this one with --rename, or train with another name or other seeds"
                )
            owner[pair] = source["path"]
    workdirs.refuse_other_settings(sources)
    for kind in ("algorithm", "dataset", "metric", "family"):
        names.refuse_alike(kind, ((name, str(part.path)) for part in parts for name in part.frame[kind].unique()))
    joined = pd.concat([part.frame for part in parts], ignore_index=True)
    together = ", ".join(str(part.path) for part in parts)
    _refuse_duplicates(joined, together)
    _refuse_mixed_epochs(joined, together)
    unused = [f"{part.path}: {name}" for part in parts for name in part.frame.attrs["unused"]]
    joined.attrs = {"unused_columns": unused, "notes": [note for part in parts for note in part.frame.attrs["notes"]], "sources": sources}
    return joined


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path).rename(columns=str)
    except ImportError as error:
        raise ValueError(f"{path}: reading Parquet needs pyarrow; `pip install pyarrow`, or save the scores as CSV") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as Parquet ({names.cut(error)}); copy it again, or save the scores as CSV") from error


def check(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """The frame with the columns COLUMNS and their types, optional columns filled in; `source` names it in messages.

    Raises ValueError for a missing column, an empty name, a run that is no whole number below 2^53, an invalid epoch or count, a data set
    named algorithm, a value that is not a number or not finite although its status is 'ok', an unknown role or status, a repeated row, one
    data set in two roles or families, or a run with and without epochs. Messages name the line of a CSV file, the row of anything else.
    """
    required = ["algorithm", "run", "dataset", "metric", "value"]
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise ValueError(
            f"{source}: column {', '.join(map(repr, missing))} is missing, found {names.listed(frame.columns)}; needed are {columns.NEEDED}"
        )
    if frame.empty:
        raise ValueError(f"{source}: contains no scores; run `jaxbed eval` on the workdir, or check the file")
    headers, separator = frame.attrs.get("headers", {}), frame.attrs.get("separator", ",")
    unused, notes = frame.attrs.get("unused", []), list(frame.attrs.get("notes", []))
    frame = frame if frame.index.name == "line" else frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))
    out = pd.DataFrame(index=frame.index)
    for name in COLUMNS:
        label = headers.get(name, name)
        if name in frame.columns:
            given = frame[name]
        else:
            given = out["dataset"] if name == "family" else pd.Series(DEFAULTS[name], index=frame.index)
        if name in TEXTS:
            text = _names(given, label, source)
            empty = text == ""
            if empty.any() and name != "family":
                raise ValueError(f"{source}: {label} is empty in {_first(empty)}; every row needs one")
            out[name] = text.where(~empty, out["dataset"]) if name == "family" else text
        else:
            out[name] = numbers.read(given, name, source, notes, label, separator)
    for name, choices in (("role", ROLES), ("status", STATUSES)):
        strange = ~out[name].isin(choices)
        if strange.any():
            given = f"{headers.get(name, name)} {out[name][strange].iloc[0]!r} in {_first(strange)}"
            raise ValueError(f"{source}: {given} is not one of {', '.join(choices)}")
    taken = out["dataset"] == "algorithm"
    if taken.any():
        raise ValueError(f"{source}: data set 'algorithm' in {_first(taken)}: output tables have a column of that name; rename it")
    whole = out["run"].notna() & (out["run"] % 1 == 0) & (out["run"].abs() < MOST_RUNS)
    if not whole.all():
        given = f"{headers.get('run', 'run')} {names.quoted(frame['run'][~whole].iloc[0])} in {_first(~whole)}"
        raise ValueError(f"{source}: {given} is not a whole number (below 2^53); number the runs from 1")
    out["run"] = out["run"].astype("int64")
    most = out["n_total"].fillna(MOST_RUNS)
    for name, least, largest, allowed in (
        ("epoch", 0, MOST_RUNS, "0 or more"), ("n_total", 1, MOST_RUNS, "1 or more"), ("n_correct", 0, most, "between 0 and n_total")
    ):  # fmt: skip
        strange = out[name].notna() & ~out[name].between(least, largest)
        if strange.any():
            given = f"{headers.get(name, name)} {out[name][strange].iloc[0]:g} in {_first(strange)}"
            raise ValueError(f"{source}: {given} must be {allowed}; correct it, or leave the cell empty if it is unknown")
    bad = (out["status"] == "ok") & ~out["value"].abs().lt(float("inf"))
    if bad.any():
        row = out[bad].iloc[0]
        raise ValueError(
            f"{source}: {row['metric']} of {row['algorithm']!r} run {row['run']} on {row['dataset']!r} is {row['value']} "
            f"in {_first(bad)}; only finite numbers have status 'ok'. Mark a run that became non-finite with status 'diverged', "
            "or leave the row out"
        )
    _refuse_duplicates(out, source)
    _refuse_mixed_epochs(out, source)
    out = out.reset_index(drop=True)
    out.attrs = {"unused": unused, "notes": [f"{source}: {'; '.join(notes)}"] if notes else []}
    return out


def read_table(path: str | Path) -> pd.DataFrame:
    """A printed table from a CSV file: algorithm, dataset, mean and, if given, std.

    Raises ValueError for a missing column or a value that is not a number.
    """
    table = delimited.read(Path(path))
    wanted = ("algorithm", "dataset", "mean", "std")
    table = table.rename(columns={header_name: name for name in wanted if (header_name := names.find(name, table.columns))})
    missing = [name for name in ("algorithm", "dataset", "mean") if name not in table.columns]
    if missing:
        present = f"found {names.listed(table.columns)}; a printed table has algorithm,dataset,mean,std"
        raise ValueError(f"{path}: column {', '.join(missing)} is missing; {present}")
    for name in ("algorithm", "dataset"):
        table[name] = _names(table[name], name, str(path))
    for name in {"mean", "std"} & set(table.columns):
        table[name] = numbers.read(table[name], name, str(path), [], separator=table.attrs["separator"])
    return table.reset_index(drop=True)


def _names(given: pd.Series, name: str, source: str) -> pd.Series:
    """Names after `names.clean`, empty where one is missing. Raises ValueError for a name that a table cannot show."""
    rows, texts = pd.factorize(given)
    cleaned = [names.clean(str(text)) for text in texts]
    for index, text in enumerate(cleaned):
        if text and (fault := names.fault(text)):
            raise ValueError(f"{source}: {name} {names.quoted(text)} in {_first(pd.Series(rows == index, index=given.index))} {fault}")
    return pd.Series([*cleaned, ""], dtype="str").take(rows).set_axis(given.index)


def _refuse_duplicates(frame: pd.DataFrame, source: str) -> None:
    again = frame.duplicated(KEY)
    if again.any():
        row = frame[again].iloc[0]
        epoch = f" at epoch {row['epoch']:g}" if row["epoch"] == row["epoch"] else ""
        raise ValueError(
            f"{source}: {int(again.sum())} repeated row(s), first {row['metric']} of {row['algorithm']!r} run {row['run']} on "
            f"{row['dataset']!r}{epoch}; only one row is allowed for each algorithm, run, dataset, epoch and metric. "
            "Number the runs, delete the copy, or choose another name where --rename merged two"
        )
    roles = frame.groupby(["algorithm", "run", "dataset"], sort=False)["role"].nunique()
    if (roles > 1).any():
        algorithm, run, dataset = roles[roles > 1].index[0]
        raise ValueError(
            f"{source}: data set {dataset!r} of {algorithm!r} run {run} has two roles; a data set must be val, test or ood for a run"
        )
    families = frame.groupby("dataset", sort=False)["family"].nunique()
    if (families > 1).any():
        raise ValueError(f"{source}: data set {families.idxmax()!r} is in {families.max()} families; it must belong to one")


def _refuse_mixed_epochs(frame: pd.DataFrame, source: str) -> None:
    kinds = frame["epoch"].isna().groupby([frame["algorithm"], frame["run"]], sort=False).nunique()
    if (kinds > 1).any():
        algorithm, run = kinds[kinds > 1].index[0]
        raise ValueError(
            f"{source}: {algorithm!r} run {run} has rows with and without epoch; give the epoch in all rows of a run or in none"
        )


def _first(mask: pd.Series) -> str:
    """'line 3', or 'row 2', where the mask is first true."""
    return f"{mask.index.name} {mask.index[mask.to_numpy().argmax()]}"


def exclude(frame: pd.DataFrame, texts: Sequence[str]) -> tuple[pd.DataFrame, list[dict]]:
    """The records without some runs; each text is 'ALGORITHM:RUN,RUN', or 'ALGORITHM' for all of its runs.

    Returns the records and what was left out, [{algorithm, runs}]. Raises ValueError for an unknown algorithm or run.
    """
    left_out = []
    for text in texts:
        known = frame["algorithm"].unique()
        whole = names.find(text, known)
        asked, colon, listed = (whole, "", "") if whole else text.rpartition(":")
        name = names.find(asked, known)
        if name is None:
            choice = names.choice(asked or text, known)
            raise ValueError(
                f"--exclude {names.cut(text)}: no algorithm {names.quoted(asked or text)}; {choice}. Write ALGORITHM:RUN,RUN or ALGORITHM"
            )
        have = sorted(frame.loc[frame["algorithm"] == name, "run"].unique().tolist())
        try:
            runs = sorted({int(number) for number in listed.split(",")}) if colon else have
        except ValueError:
            raise ValueError(f"--exclude {text}: {listed!r} is not a list of run numbers; write e.g. {name}:{have[0]},{have[-1]}") from None
        absent = [run for run in runs if run not in have]
        if absent:
            raise ValueError(f"--exclude {text}: {name!r} has no run {absent[0]}; it has {names.listed(have)}")
        frame = frame[~((frame["algorithm"] == name) & frame["run"].isin(runs))]
        left_out.append({"algorithm": name, "runs": runs})
    if frame.empty:
        raise ValueError("--exclude removes all scores; keep at least one algorithm")
    return frame, left_out


def metric(frame: pd.DataFrame, asked: str) -> str:
    """The recorded metric that `asked` refers to: for accuracy, MULTI_LABEL where only that was recorded. ValueError if there is none."""
    known = sorted(frame["metric"].unique())
    meant = names.find(asked, known) or (MULTI_LABEL if asked == "accuracy" and MULTI_LABEL in known else None)
    if meant is None:
        raise ValueError(f"--metric {names.cut(asked)}: not recorded; {names.choice(asked, known)}")
    return meant
