"""Maps the columns of a file to those of `records`: by name, by synonym, or as --columns says. Reshapes wide tables."""

import itertools
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.reading import delimited, numbers

SYNONYMS = {
    "algorithm": ("method", "model", "algo"),
    "run": ("seed", "trial", "repeat", "replicate"),
    "dataset": ("benchmark", "test set"),
    "accuracy": ("acc", "score"),
    "value": ("score",),
    "metric": ("measure",),
    "epoch": (),
    "n_correct": (),
    "n_total": (),
    "role": ("split",),
    "status": (),
    "family": (),
    "group": (),
}
EXPECTED = ("split",)  # usual names that need no note
GROUPS = ("aligned", "conflicting")
# what the name of a column of standard deviations adds to the name of its scores
SPREADS = re.compile(r"[\s_.(-]*(std|sd|stdev|stddev|std\.? ?(dev|err)|stderr|sem|95 ?% ?ci|ci95|±|\+/?-)[\s_.)-]*")
SUMMARIES = ("average", "avg", "avg.", "mean", "overall", "total", "rank", "average rank", "mean rank", "avg. rank")
OTHER_TABLES = ("size", "chance", "trained_on", "mean", "std")  # columns of roles files and of printed tables
NEEDED = "algorithm,run,dataset,accuracy or algorithm,run,dataset,metric,value"


def parse(texts: Sequence[str]) -> dict[str, str]:
    """{column of `records`, or accuracy: name in the file} from texts like 'algorithm=NAME,run=NAME'."""
    chosen: dict[str, str] = {}
    for text in texts:
        for part in re.split(rf",\s*(?=(?:{'|'.join(SYNONYMS)})\s*=)", text):
            column, equals, name = (word.strip() for word in part.partition("="))
            if column not in SYNONYMS or not equals or not name:
                raise ValueError(f"--columns {names.quoted(part)}: write COLUMN=NAME,COLUMN=NAME; columns are {', '.join(SYNONYMS)}")
            if column in chosen:
                raise ValueError(f"--columns: {column} is given twice, {names.quoted(chosen[column])} and {names.quoted(name)}")
            chosen[column] = name
    return chosen


def tidy(frame: pd.DataFrame, asked: Mapping[str, str], source: str) -> pd.DataFrame:
    """A file's columns by the names of `records`, wide tables reshaped; unused columns in `attrs["unused"]`.

    `attrs`: `headers` {name: name in the file}, `notes`, `separator`. Accuracies of group 'aligned' or 'conflicting' become metrics of
    that name, those of another group G 'accuracy:G'. Raises ValueError for missing columns and for ambiguous names.
    """
    header = [str(name) for name in frame.columns if name != delimited.UNNAMED]
    chosen = choose(header, asked, source)
    separator, notes = frame.attrs.get("separator", ","), []
    if comments := frame.attrs.get("comments"):
        notes.append(f"{len(comments)} comment line(s) skipped, the first is line {comments[0]}")
    if synonyms := [
        f"{header_name} as {name}"
        for name, header_name in chosen.items()
        if names.key(header_name) not in map(names.key, (name, *EXPECTED))
    ]:
        notes.append(f"read column {', '.join(synonyms)}")
    wide = _wide(chosen, header)
    if wide:
        out = _long(frame[header], chosen, wide, source, notes, separator)
    else:
        _refuse_missing(chosen, list(frame.columns), frame.attrs.get("comment", ""), source)
        out = frame[list(chosen.values())].set_axis(list(chosen), axis=1)
        if "value" not in chosen:
            out = out.rename(columns={"accuracy": "value"}).assign(metric="accuracy")
        if "group" in chosen:
            out["metric"] = _with_groups(out["metric"], out.pop("group"))
    headers = chosen | ({"value": chosen["accuracy"]} if "accuracy" in chosen else {})
    unused = [] if wide else [str(name) for name in frame.columns if name not in chosen.values()]
    out.attrs = {"headers": headers, "notes": notes, "separator": separator, "unused": unused}
    return out


def choose(header: Sequence[str], asked: Mapping[str, str], source: str) -> dict[str, str]:
    """{name in `records`, or accuracy: name in the file}, for the columns that the file has."""
    chosen: dict[str, str] = {}
    for name, header_name in asked.items():
        column = names.find(header_name, header)
        if column is None:
            raise ValueError(f"{source}: --columns {name}={names.cut(header_name)}: no such column; the file has {names.listed(header)}")
        chosen[name] = column
    free = [header_name for header_name in header if header_name not in chosen.values()]
    for name, synonyms in SYNONYMS.items():
        if name in chosen or (name == "accuracy" and {"metric", "value"} & _named(header)) or (name == "value" and "accuracy" in chosen):
            continue
        of_name = [header_name for header_name in free if names.key(header_name) == names.key(name)]
        candidates = of_name or [header_name for header_name in free if names.key(header_name) in map(names.key, synonyms)]
        if len(candidates) > 1:
            raise ValueError(
                f"{source}: columns {names.listed(map(names.quoted, candidates))} could all be the {name}; "
                f"choose one: --columns {name}={candidates[0]}"
            )
        if candidates:
            chosen[name] = candidates[0]
    return chosen


def _named(header: Sequence[str]) -> set[str]:
    keys = set(map(names.key, header))
    return {name for name in SYNONYMS if names.key(name) in keys}


def _refuse_missing(chosen: dict[str, str], given: Sequence[str], comment: str, source: str) -> None:
    needed = ["algorithm", "run", "dataset", *(["metric", "value"] if {"metric", "value"} & set(chosen) else ["accuracy"])]
    missing = [name for name in needed if name not in chosen]
    if missing:
        unnamed = delimited.UNNAMED in given and not {"algorithm", "dataset"} & set(chosen)
        first = "" if not unnamed else ". The first column has no name: in a wide table it must be called algorithm or dataset"
        hint = f". The comment {names.quoted(comment)} is skipped: delete its # if it holds the column names" if comment else ""
        raise ValueError(
            f"{source}: column {', '.join(map(repr, missing))} is missing, found {names.listed(given)}; needed are {NEEDED}. "
            f"If the file has it under another name: --columns {missing[0]}=NAME{first}{hint}"
        )


def _with_groups(metric: pd.Series, group: pd.Series) -> pd.Series:
    group = group.fillna("").astype(str).str.strip()
    named = group.where(group.isin(GROUPS), "accuracy:" + group)
    return metric.where((group == "") | (metric != "accuracy"), named)


def _wide(chosen: dict[str, str], header: Sequence[str]) -> str:
    """Whether the columns of a wide table are algorithms ('algorithm') or data sets ('dataset'); empty for any other table.

    The first column of a wide table names the data set of each row, or the algorithm; all columns that are not recognised hold scores.
    """
    others = {"algorithm": "dataset", "dataset": "algorithm"}
    first = next((name for name, header_name in chosen.items() if [header_name] == header[:1]), "")
    plain = not {"accuracy", "value", "metric", others.get(first)} & set(chosen)
    scores = [name for name in header if name not in chosen.values()]
    known = {names.key(name) for name in OTHER_TABLES} & set(map(names.key, scores))
    other_table = known and not (known == {"mean"} and len(scores) > 1)  # a mean next to scores is a summary of them
    return others[first] if first in others and plain and scores and not other_table else ""


def _long(frame: pd.DataFrame, chosen: dict[str, str], across: str, source: str, notes: list[str], separator: str) -> pd.DataFrame:
    """A wide table as one row per score; all are run 1 unless there is a column for the run. Empty cells are left out."""
    (down,) = {"algorithm", "dataset"} - {across}
    summaries, scores = {names.key(name) for name in SUMMARIES}, [name for name in frame.columns if name not in chosen.values()]
    for kind, given in ((across, scores), (down, frame[chosen[down]])):
        if summaries_found := [str(name) for name in given if names.key(names.clean(str(name))) in summaries]:
            raise ValueError(f"{source}: {kind} {names.quoted(summaries_found[0])} looks like a summary of the others; delete it")
    for score_name, name in itertools.permutations(scores, 2):
        if score_name in name and SPREADS.fullmatch(name.replace(score_name, "", 1).lower()):
            hint = "delete it, or write the spread after the score, as in 50.5 ± 0.3; if it holds scores, rename it"
            raise ValueError(
                f"{source}: column {names.quoted(name)} looks like the standard deviation of {names.quoted(score_name)}; {hint}"
            )
    same = frame[list(chosen.values())].set_axis(list(chosen), axis=1)
    out = pd.concat([same.assign(**{across: str(name), "metric": "accuracy", "value": frame[name]}) for name in scores])
    layout = f"a wide table, one row per {down}, one column per {across} ({names.listed(scores)})"
    try:
        out["value"] = numbers.read(out["value"], "value", source, notes, label="score", separator=separator)
    except ValueError as error:
        raise ValueError(f"{error}. Without the columns {NEEDED} the file is read as {layout}; use --columns to name columns") from error
    for kind, lines in ((across, "column"), (down, "row")):
        scored = out["value"].notna().groupby(out[kind], sort=False).any()
        if not scored.all():
            raise ValueError(f"{source}: {kind} {names.quoted(scored.idxmin())} has no score; delete its {lines}, or add the scores")
    notes.insert(0, f"read as {layout}" + ("" if "run" in chosen else "; all scores count as run 1"))
    return (out if "run" in chosen else out.assign(run=1))[out["value"].notna()]
