"""Workdirs: their scores, and what is known of the data their runs were trained on. Runs on other data are no fair comparison."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbed.stats import printed

if TYPE_CHECKING:
    import pandas as pd

# Facts of a data set that tell nothing of training, or nothing that another fact does not tell: how answers are read and test pictures
# cut; which pictures were damaged, and the counts that are left; words about the labels; the name of the file that has table_sha256.
NOT_TRAINING = ("cue", "decision", "zoom", "unreadable", "counts", "held_out_of_more", "bias_label", "table")


def read(path: Path) -> "tuple[pd.DataFrame, dict]":
    """The scores of a workdir, and its source: {path, runs as [algorithm, run], data: the facts of responses/sets.json}.

    Raises FileNotFoundError or ValueError, with the cure, for a file that is missing or damaged and for a run that has only variants.
    """
    from jaxbed import metrics  # here, so that a table of scores needs nothing of the training side

    config, about = (_json(path / name) for name in ("config.json", "responses/sets.json"))
    if about is None and config and config.get("sweep"):
        variants = sorted(str(place.parent.parent) for place in path.glob("*/responses/sets.json"))
        cure = f"give the folders of its variants: {' '.join(variants)}" if variants else f"run: jaxbed eval {path}"
        raise FileNotFoundError(f"{path} holds the variants of a sweep, and no responses of its own: {cure}")
    frame = metrics.scores(path)
    runs = sorted(set(zip(frame["algorithm"], frame["run"].tolist(), strict=True)))
    return frame, {"path": str(path), "runs": [list(run) for run in runs], "data": (about or {}).get("data", {})}


def _json(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): {_cure(path)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged ({type(content).__name__} instead of an object): {_cure(path)}")
    return content


def _cure(path: Path) -> str:
    if path.name == "sets.json":
        return f"delete it, then: jaxbed eval {path.parent.parent}"
    return "put back the configuration that the run was started with"


def mixed(selected: "pd.DataFrame", sources: Iterable[Mapping]) -> list[dict]:
    """MIXED_TRAINING_DATA: runs that are compared on a dataset and were trained on other data, one finding for each fact that differs.

    `sources` as `read` gives them; nothing is known of runs in no source. Of data with different names only the names are compared.
    """
    known = {tuple(run): source["data"] for source in sources for run in source["runs"]}
    differ: dict[tuple, list[str]] = {}
    for dataset, rows in selected.groupby("dataset", sort=False):
        runs = [run for run in zip(rows["algorithm"], rows["run"], strict=True) if known.get(run)]
        names = {known[run].get("name") for run in runs}
        facts = ["name"] if len(names) > 1 else dict.fromkeys(fact for run in runs for fact in known[run] if fact not in NOT_TRAINING)
        for fact in facts:
            values: dict[str, list[tuple]] = {}
            for run in runs:
                values.setdefault(json.dumps(known[run][fact]) if fact in known[run] else "not told", []).append(run)
            if len(values) > 1:
                differ.setdefault((fact, tuple((value, tuple(own)) for value, own in values.items())), []).append(dataset)
    found = []
    for (fact, values), datasets in differ.items():
        parts = [f"{value} for {_runs(own)}" for value, own in values]
        text = f"runs compared on {printed.listed(datasets)} were trained on other data: {fact} is {'; '.join(parts)}"
        facts = {"fact": fact, "values": {value: [list(map(_plain, run)) for run in own] for value, own in values}}
        found.append({"code": "MIXED_TRAINING_DATA", "text": text, "datasets": datasets, **facts})
    return found


def _plain(name: object) -> object:
    return name if isinstance(name, str) else int(name)


def _runs(runs: Iterable[tuple]) -> str:
    """'erm run 0, 1; lff run 0'."""
    by_algorithm: dict[str, list[int]] = {}
    for algorithm, run in runs:
        by_algorithm.setdefault(algorithm, []).append(run)
    return ", ".join(f"{algorithm} run {printed.listed(own)}" for algorithm, own in by_algorithm.items())
