"""Reads workdirs: their scores, and the settings that their runs were trained with.

Two workdirs of one algorithm with different settings are refused: averaging them would mix two algorithms.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from jaxbed import settings
from jaxbed.evaluation import answers
from jaxbed.stats import names
from jaxbed.system import files

MEASURES = "measures.csv"  # what `jaxbed measure` writes


def read(path: Path) -> tuple[pd.DataFrame, dict]:
    """The scores of a workdir, and its source, a dictionary:

    path, algorithm  as given, and as in config.json
    runs, datasets   [algorithm, run] of each run; the data sets that are not validation splits
    data, sets       facts in responses/sets.json about the training data; about each test set
    measured         metrics that `jaxbed measure` alone gives, at the one epoch that it was told to measure
    settings         config.json
    notes            files that were not read

    Raises FileNotFoundError or ValueError, with the cure, for a missing or damaged file, and for the folder above the grid points of a run.
    """
    from jaxbed.evaluation import metrics  # imported here: a CSV file of scores needs nothing of the training side

    sets_path = path / "responses" / "sets.json"
    config, about = _configuration(path / "config.json"), answers.read_sets(sets_path) if sets_path.is_file() else None
    if about is None and config and config.get("grid"):
        points = sorted(str(sets_path.parent.parent) for sets_path in path.glob("*/responses/sets.json"))
        cure = f"pass the folders of its grid points: {' '.join(points)}" if points else f"run: jaxbed eval {path}"
        raise FileNotFoundError(f"{path} contains the grid points of a run and no responses itself: {cure}")
    evaluated = metrics.scores(path)
    frame = _with_measures(path, evaluated)
    config, about = config or {}, about or {}
    notes = []
    if about and (others := metrics.other_sets(path)):
        why = "since data and eval.sets of the run's configuration name no such set any more"
        notes.append(f"{path}: answers to {names.listed(others)} are kept, but not read, {why}")
    if about and (strays := metrics.strays(path)):
        files_there = names.listed(f"responses/{name}" for name in strays)
        notes.append(f"{path}: not read, since response files are named EPOCH.npz: {files_there}")
    runs = sorted(set(zip(frame["algorithm"], frame["run"].tolist(), strict=True)))
    return frame, {
        "path": str(path),
        "algorithm": frame["algorithm"].iloc[0] if len(frame) else "",
        "runs": [list(run) for run in runs],
        "datasets": frame.loc[frame["role"] != "val", "dataset"].unique().tolist(),
        "data": about.get("data", {}) | ({"classes": sorted(map(str, about["classes"]))} if about.get("classes") else {}),
        "sets": about.get("sets", {}),
        "measured": sorted(set(frame["metric"]) - set(evaluated["metric"])),
        "settings": config,
        "notes": notes,
    }


def _with_measures(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """The scores, and what `jaxbed measure` added to them: each at the epoch of a run that was measured."""
    if not (path / MEASURES).is_file():
        return frame
    with files.guarded(path / MEASURES, f"run jaxbed measure {path} again, or delete the file"):
        measured = pd.read_csv(path / MEASURES)[list(frame.columns)]
    return pd.concat([frame, measured]).drop_duplicates(["algorithm", "run", "dataset", "epoch", "metric"], ignore_index=True)


def forms(path: Path) -> tuple[str, ...]:
    """The ways to write a workdir in --rename; the last two cannot be names of algorithms."""
    return str(path), f"{path}/", f"./{path}"


def refuse_other_settings(sources: Sequence[Mapping]) -> None:
    """Raises ValueError for two workdirs of one algorithm that differ in more than seeds and settings that may differ.

    Workdirs that were trained on different data and share no test set may differ: their runs are never averaged.
    """
    for index, second in enumerate(sources):
        for first in sources[:index]:
            if second["algorithm"] != first["algorithm"] or not (second["settings"] and first["settings"]):
                continue
            shared = [name for name in first["datasets"] if name in second["datasets"]]
            differences = differing(first["settings"], second["settings"])
            if not shared and any(line.startswith("data") for line in differences):
                continue
            evaluated = [{"evaluated by": _decisions(source, shared)} for source in (first, second)]
            differences += settings.differences(evaluated[0], evaluated[1])
            if differences:
                path = second["path"] if "/" in second["path"] else f"./{second['path']}"
                other = names.word(path, f"{second['algorithm']} {_short(differences[0])}")
                more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
                raise ValueError(
                    f"{first['path']} and {second['path']} are runs of one algorithm, {second['algorithm']!r}, with different settings "
                    f"(first / second): {'; '.join(differences[:3])}{more}. Averaging them would mix two algorithms. Rename one of them, "
                    f"--rename {other}, or train both with the same settings"
                )


def differing(one: dict, other: dict) -> list[str]:
    """The settings that differ. Runs with other seeds start from other workdirs (init_from), whose settings are compared instead."""
    first, second, but = _origin(one), _origin(other), {"name", *settings.SEEDS, *settings.free(one, other)}
    if not first or not second:
        return settings.differences(one, other, but)
    differences = settings.differences(first, second, {"name", *settings.SEEDS, *settings.free(first, second)})
    return settings.differences(one, other, but | {"init_from"}) + [f"init_from: {line}" for line in differences]


def _origin(config: dict) -> dict | None:
    """The settings of the workdir that a run started from, with the epoch; None if there is none, or it no longer exists."""
    asked = str(config.get("init_from") or "")
    folder, _, epoch = asked.rpartition(":")
    workdir = Path(folder) if epoch.isdigit() else Path(asked)
    origin = _configuration(workdir / "config.json") if asked else None
    return origin and {**origin, "epoch": epoch if epoch.isdigit() else "last"}


def _decisions(source: Mapping, shared: Iterable[str]) -> dict:
    """How responses to the shared test sets became scores."""
    decisions = {name: source["sets"].get(name, {}).get("decision") for name in shared}
    return {**decisions, "zoom": source["data"].get("zoom")}


def _short(difference: str) -> str:
    """'lr=0.0001' of 'optim.lr: 0.1 / 0.0001'."""
    field, _, values = difference.partition(": ")
    return f"{field.rpartition('.')[2]}={values.rpartition(' / ')[2]}"[:40]


def _configuration(path: Path) -> dict | None:
    """The content of a config.json; None if it does not exist."""
    if not path.is_file():
        return None
    cure = "restore the configuration that the run was started with"
    content = settings.current(files.read_object(path, cure))
    if not content.get("name") or not isinstance(content["name"], str):
        raise ValueError(f"{path} is damaged ('name' is missing or not a text): {cure}")
    return content
