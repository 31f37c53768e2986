"""Recorded scores in one tidy layout: read, checked, joined.

One row is one number: what `metric` was measured for one `run` (seed) of one `algorithm` on one `dataset` after one `epoch`.

    algorithm  str
    run        int     number of the run, from 0 or 1
    dataset    str
    epoch      float   epochs trained; NaN where scores come without epochs
    metric     str     'accuracy', 'ac_score', ...
    value      float   as measured: fraction or percent, never rescaled here
    n_correct  float   images answered rightly, of n_total; NaN where unknown
    n_total    float
    role       str     'val' the split that epochs are selected on; 'test' in-distribution test; 'ood' shifted
    status     str     'ok'; 'diverged' from the epoch on at which the run went non-finite; 'truncated' a run that ended early;
                       'missing' a score that should be there
    family     str     datasets made from the same images share one; the dataset's own name where it stands alone
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbed.stats import trained_on

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("algorithm", "run", "dataset", "epoch", "metric", "value", "n_correct", "n_total", "role", "status", "family")
TEXTS = ("algorithm", "dataset", "metric", "role", "status", "family")
KEY = ["algorithm", "run", "dataset", "epoch", "metric"]
ROLES = ("val", "test", "ood")
STATUSES = ("ok", "diverged", "truncated", "missing")
GROUPS = ("aligned", "conflicting")
MOST_RUNS = 2**53  # above it float64 does not tell whole numbers apart
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}  # that other programs write
DEFAULTS = {"epoch": float("nan"), "n_correct": float("nan"), "n_total": float("nan"), "role": "test", "status": "ok"}


def load(paths: Sequence[str | Path]) -> "pd.DataFrame":
    """Reads workdirs and score files into one frame with the columns COLUMNS, in the order given.

    A directory is a jaxbed workdir. A file is CSV or Parquet with the columns algorithm, run, dataset and either `accuracy` or
    `metric, value`; epoch, n_correct, n_total, role (or split), status and family may be added, and group: the accuracy of group 'aligned'
    is metric 'aligned', of 'conflicting' likewise, of another group G 'accuracy:G'. Other columns are not used: they are listed in
    `frame.attrs["unused_columns"]` for the caller to report. `frame.attrs["sources"]` tells of each workdir what trained_on.read does.

    Raises FileNotFoundError for a path that is not there; ValueError, with the source, the value and the cure, for everything that
    `check` refuses, for one row found in two sources, and for two workdirs with the same run of the same algorithm.
    """
    import pandas as pd

    if not paths:
        raise ValueError("no scores given; name at least one workdir or one file with the columns algorithm,run,dataset,accuracy")
    frames, unused, owner, sources = [], [], {}, []
    for path in map(Path, paths):
        if path.is_dir():
            frame, source = trained_on.read(path)
            frame = check(frame, str(path))
            sources.append(source)
            for pair in sorted(set(zip(frame["algorithm"], frame["run"], strict=True))):
                if pair in owner:
                    raise ValueError(
                        f"{path}: run {pair[1]} of {pair[0]!r} is also in {owner[pair]}; a run may come from one workdir only. "
                        "Drop one of the two paths, or train with another name or other seeds"
                    )
                owner[pair] = path
        elif path.is_file():
            frame, extra = _read_file(path)
            frame = check(frame, str(path))
            unused += [f"{path}: {name}" for name in extra]
        else:
            raise FileNotFoundError(f"{path}: no such file or directory; give a jaxbed workdir or a CSV of scores")
        frames.append(frame)
    joined = pd.concat(frames, ignore_index=True)
    _refuse_duplicates(joined, ", ".join(map(str, paths)))
    _refuse_mixed_epochs(joined, ", ".join(map(str, paths)))
    joined.attrs |= {"unused_columns": unused, "sources": sources}
    return joined


def check(frame: "pd.DataFrame", source: str) -> "pd.DataFrame":
    """The frame with the columns COLUMNS and their types, optional columns filled in; `source` names it in messages.

    Raises ValueError for a missing column, an empty name, a run that is no whole number below 2^53, a dataset named algorithm, a value
    that is no number or not finite although its status is 'ok', an unknown role or status, a repeated row, one dataset in two roles or
    families, or a run with and without epochs. Messages name the line of a CSV file, the row of anything else.
    """
    import pandas as pd

    required = ["algorithm", "run", "dataset", "metric", "value"]
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise ValueError(
            f"{source}: column {', '.join(map(repr, missing))} is missing, found {', '.join(map(str, frame.columns))}; needed are "
            "algorithm,run,dataset,accuracy or algorithm,run,dataset,metric,value"
        )
    if frame.empty:
        raise ValueError(f"{source}: holds no scores; run `jaxbed eval` on the workdir, or check the file")
    frame = frame if frame.index.name == "line" else frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))
    out = pd.DataFrame(index=frame.index)
    for name in COLUMNS:
        if name in frame.columns:
            given = frame[name]
        else:
            given = out["dataset"] if name == "family" else pd.Series(DEFAULTS[name], index=frame.index)
        if name in TEXTS:
            text = given.astype(str).str.strip()
            empty = given.isna() | (text == "")
            if empty.any() and name != "family":
                raise ValueError(f"{source}: {name} is empty in {_first(empty)}; every row must name it")
            out[name] = text.where(~empty, out["dataset"]) if name == "family" else text
        else:
            out[name] = _numbers(given, name, source)
    for name, allowed in (("role", ROLES), ("status", STATUSES)):
        strange = ~out[name].isin(allowed)
        if strange.any():
            raise ValueError(f"{source}: {name} {out[name][strange].iloc[0]!r} in {_first(strange)} is not one of {', '.join(allowed)}")
    taken = out["dataset"] == "algorithm"
    if taken.any():
        raise ValueError(f"{source}: dataset 'algorithm' in {_first(taken)}: tables call a column of their own so; give it another name")
    whole = out["run"].notna() & (out["run"] % 1 == 0) & (out["run"].abs() < MOST_RUNS)
    if not whole.all():
        raise ValueError(
            f"{source}: run {str(frame['run'][~whole].iloc[0])!r} in {_first(~whole)} is not a whole number (below 2^53); number the runs "
            "from 1"
        )
    out["run"] = out["run"].astype("int64")
    bad = (out["status"] == "ok") & ~out["value"].abs().lt(float("inf"))
    if bad.any():
        row = out[bad].iloc[0]
        raise ValueError(
            f"{source}: {row['metric']} of {row['algorithm']!r} run {row['run']} on {row['dataset']!r} is {row['value']} "
            f"in {_first(bad)}; only finite numbers have status 'ok'. Mark a run that went non-finite with status 'diverged', "
            "or leave the row out"
        )
    _refuse_duplicates(out, source)
    _refuse_mixed_epochs(out, source)
    return out.reset_index(drop=True)


def _read_file(path: Path) -> "tuple[pd.DataFrame, list[str]]":
    """The tidy columns of a CSV or Parquet file as they stand, and the names of the columns that are not used."""
    import pandas as pd

    if path.suffix.lower() in (".parquet", ".pq"):
        try:
            frame = pd.read_parquet(path)
        except ImportError as error:
            raise ValueError(f"{path}: reading Parquet needs pyarrow; `pip install pyarrow`, or save the scores as CSV") from error
    else:
        frame = read_csv(path)
    if "accuracy" in frame.columns and not {"metric", "value"} & set(frame.columns):
        frame = frame.rename(columns={"accuracy": "value"}).assign(metric="accuracy")
    if "split" in frame.columns and "role" not in frame.columns:
        frame = frame.rename(columns={"split": "role"})
    if "group" in frame.columns and "metric" in frame.columns:
        group = frame.pop("group").fillna("").astype(str).str.strip()
        named = group.where(group.isin(GROUPS), "accuracy:" + group)
        frame["metric"] = frame["metric"].where((group == "") | (frame["metric"] != "accuracy"), named)
    return frame, [str(name) for name in frame.columns if name not in COLUMNS]


def read_csv(path: Path) -> "pd.DataFrame":
    """All cells as text, indexed by line; equal texts are kept once, so that a million rows take 0.4 GB.

    pandas would guess types, read an algorithm named 'NA' as missing, and shift rows that are too long.
    """
    import pandas as pd

    header, columns, lines, seen = None, [], [], {}
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        try:
            for row in reader:
                if not row:
                    continue
                if header is None:
                    header = [name.strip() for name in row]
                    _refuse_other_separators(header, path)
                    columns = [[] for _ in header]
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}: line {reader.line_num} has {len(row)} fields, the header {len(header)}: {','.join(row)!r}; "
                        "write 73.6, not 73,6"
                    )
                lines.append(reader.line_num)
                for column, text in zip(columns, row, strict=True):
                    column.append(seen.setdefault(text, text))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not readable as CSV in UTF-8 ({error})") from error
    if header is None:
        raise ValueError(f"{path}: the file is empty; the first line must name the columns, e.g. algorithm,run,dataset,accuracy")
    if len(set(header)) < len(header):
        raise ValueError(f"{path}: a column name is repeated in {','.join(header)}; every column needs its own name")
    return pd.DataFrame(dict(zip(header, columns, strict=True)), index=pd.Index(lines, name="line"))


def _refuse_other_separators(header: Sequence[str], path: Path) -> None:
    sign = next((sign for sign in SEPARATORS if sign in header[0]), None)
    if sign and len(header) == 1:
        raise ValueError(
            f"{path}: columns are separated by {SEPARATORS[sign]}; write commas, and points in numbers. To convert it: "
            f"pandas.read_csv({str(path)!r}, sep={sign!r}, decimal=',').to_csv('scores.csv', index=False)"
        )


def read_table(path: str | Path) -> "pd.DataFrame":
    """A printed table, CSV: algorithm, dataset, mean and, where known, std. Raises ValueError for a missing column or no number."""
    table = read_csv(Path(path))
    missing = [name for name in ("algorithm", "dataset", "mean") if name not in table.columns]
    if missing:
        raise ValueError(f"{path}: column {', '.join(missing)} is missing; a printed table has algorithm,dataset,mean,std")
    for name in {"mean", "std"} & set(table.columns):
        table[name] = _numbers(table[name], name, str(path))
    return table.reset_index(drop=True)


def _numbers(given: "pd.Series", name: str, source: str) -> "pd.Series":
    """float64; empty text is NaN."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(given.dtype):
        return given.astype("float64")
    text = given.astype(str).str.strip()
    empty = given.isna() | text.str.lower().isin(["", "nan", "none", "<na>"])
    numbers = pd.to_numeric(text.where(~empty), errors="coerce").astype("float64")
    bad = numbers.isna() & ~empty
    if bad.any():
        example = {"run": "1", "epoch": "90"}.get(name, "0.736")
        raise ValueError(f"{source}: {name} {text[bad].iloc[0]!r} in {_first(bad)} is not a number; write it like {example}")
    return numbers


def _refuse_duplicates(frame: "pd.DataFrame", source: str) -> None:
    again = frame.duplicated(KEY)
    if again.any():
        row = frame[again].iloc[0]
        epoch = f" at epoch {row['epoch']:g}" if row["epoch"] == row["epoch"] else ""
        raise ValueError(
            f"{source}: {int(again.sum())} repeated row(s), first {row['metric']} of {row['algorithm']!r} run {row['run']} on "
            f"{row['dataset']!r}{epoch}; one row is allowed for every algorithm, run, dataset, epoch and metric. "
            "Number the runs, or delete the copy"
        )
    roles = frame.groupby(["algorithm", "run", "dataset"], sort=False)["role"].nunique()
    if (roles > 1).any():
        algorithm, run, dataset = roles[roles > 1].index[0]
        raise ValueError(
            f"{source}: dataset {dataset!r} of {algorithm!r} run {run} has two roles; a dataset is either val, test or ood for a run"
        )
    families = frame.groupby("dataset", sort=False)["family"].nunique()
    if (families > 1).any():
        raise ValueError(f"{source}: dataset {families.idxmax()!r} is in {families.max()} families; a dataset belongs to one")


def _refuse_mixed_epochs(frame: "pd.DataFrame", source: str) -> None:
    kinds = frame["epoch"].isna().groupby([frame["algorithm"], frame["run"]], sort=False).nunique()
    if (kinds > 1).any():
        algorithm, run = kinds[kinds > 1].index[0]
        raise ValueError(
            f"{source}: {algorithm!r} run {run} has rows with and without epoch; give the epoch in all rows of a run or in none"
        )


def _first(mask: "pd.Series") -> str:
    """'line 3', or 'row 2', where the mask is first true."""
    return f"{mask.index.name} {mask.index[mask.to_numpy().argmax()]}"


def exclude(frame: "pd.DataFrame", texts: Sequence[str]) -> "tuple[pd.DataFrame, list[dict]]":
    """The records without some runs; each text is 'ALGORITHM:RUN,RUN', or 'ALGORITHM' for all of its runs.

    Returns the records and what was left out, [{algorithm, runs}]. Raises ValueError for an algorithm or a run that is not there.
    """
    left_out = []
    for text in texts:
        known = frame["algorithm"].unique()
        name, colon, numbers = (text, "", "") if text in known else text.rpartition(":")
        if name not in known:
            raise ValueError(
                f"--exclude {text}: no algorithm {(name or text)!r}; there are {', '.join(known)}. Write ALGORITHM:RUN,RUN or ALGORITHM"
            )
        have = sorted(frame.loc[frame["algorithm"] == name, "run"].unique().tolist())
        try:
            runs = sorted({int(number) for number in numbers.split(",")}) if colon else have
        except ValueError:
            raise ValueError(f"--exclude {text}: {numbers!r} is no list of run numbers; write e.g. {name}:{have[0]},{have[-1]}") from None
        absent = [run for run in runs if run not in have]
        if absent:
            raise ValueError(f"--exclude {text}: {name!r} has no run {absent[0]}; it has {', '.join(map(str, have))}")
        frame = frame[~((frame["algorithm"] == name) & frame["run"].isin(runs))]
        left_out.append({"algorithm": name, "runs": runs})
    if frame.empty:
        raise ValueError("--exclude leaves no scores; keep at least one algorithm")
    return frame, left_out
