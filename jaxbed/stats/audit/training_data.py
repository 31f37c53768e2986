"""Were the runs that are compared trained on the same data, and tested on the same images? Findings as in `checks`."""

import json
from collections.abc import Iterable, Mapping

import pandas as pd

from jaxbed.stats import names

# Facts of a data set that tell nothing of training, or nothing that another fact does not tell: how answers are read and test pictures
# cut; which pictures were damaged, and the counts that are left; words about the labels; the name of the file that has table_sha256.
NOT_TRAINING = ("cue", "decision", "zoom", "unreadable", "counts", "held_out_of_more", "bias_label", "table")


def mixed(selected: pd.DataFrame, sources: Iterable[Mapping]) -> list[dict]:
    """MIXED_TRAINING_DATA: runs that are compared on a dataset and were trained on other data, one finding for each fact that differs.

    `sources` as `read` gives them; nothing is known of runs in no source. Of data with different names only the names are compared.
    """
    known = {tuple(run): source["data"] for source in sources for run in source["runs"]}
    differ: dict[tuple, list[str]] = {}
    for dataset, rows in selected.groupby("dataset", sort=False):
        runs = [run for run in zip(rows["algorithm"], rows["run"], strict=True) if known.get(run)]
        called = {known[run].get("name") for run in runs}
        facts = ["name"] if len(called) > 1 else dict.fromkeys(fact for run in runs for fact in known[run] if fact not in NOT_TRAINING)
        for fact in facts:
            values = _by_value(runs, {run: json.dumps(known[run][fact]) if fact in known[run] else "not told" for run in runs})
            if len(values) > 1:
                differ.setdefault((fact, tuple((value, tuple(own)) for value, own in values.items())), []).append(dataset)
    found = []
    for (fact, values), datasets in differ.items():
        parts = [f"{names.cut(value)} for {_runs(own)}" for value, own in values]
        text = f"runs compared on {names.first_few(datasets)} were trained on other data: {fact} is {'; '.join(parts)}"
        facts = {"fact": fact, "values": {value: [list(map(_plain, run)) for run in own] for value, own in values}}
        found.append({"code": "MIXED_TRAINING_DATA", "text": text, "datasets": datasets, **facts})
    return found


def other_images(selected: pd.DataFrame, sources: Iterable[Mapping]) -> list[dict]:
    """MIXED_TEST_IMAGES: datasets on which the runs of two workdirs answered other images, or with other labels or cues."""
    known = {(*run, name): facts.get("images") for source in sources for run in source["runs"] for name, facts in source["sets"].items()}
    found = []
    for dataset, rows in selected.groupby("dataset", sort=False):
        runs = [run for run in zip(rows["algorithm"], rows["run"], strict=True) if known.get((*run, dataset))]
        values = _by_value(runs, {run: known[*run, dataset] for run in runs})
        if len(values) > 1:
            text = f"{dataset} has other images, or other labels, for {' than for '.join(map(_runs, values.values()))}"
            found.append({"code": "MIXED_TEST_IMAGES", "text": text, "dataset": dataset})
    return found


def _by_value(runs: Iterable[tuple], value: Mapping[tuple, str]) -> dict[str, list[tuple]]:
    found: dict[str, list[tuple]] = {}
    for run in runs:
        found.setdefault(value[run], []).append(run)
    return found


def _plain(name: object) -> object:
    return name if isinstance(name, str) else int(name)


def _runs(runs: Iterable[tuple]) -> str:
    """'erm run 0, 1; lff run 0'."""
    by_algorithm: dict[str, list[int]] = {}
    for algorithm, run in runs:
        by_algorithm.setdefault(algorithm, []).append(run)
    return ", ".join(f"{algorithm} run {names.first_few(own)}" for algorithm, own in by_algorithm.items())
