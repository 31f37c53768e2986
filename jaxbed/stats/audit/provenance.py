"""Were the runs that are compared trained on the same data, and tested on the same images? Findings as in `checks`."""

import json
from collections.abc import Iterable, Mapping

import pandas as pd

from jaxbed.stats import names

# Facts about a data set that do not affect training, or that repeat another fact: how responses are decided and test images cropped;
# damaged images and the counts without them; the label in words; the name of the file whose SHA-256 is table_sha256.
NOT_TRAINING = ("cue", "decision", "zoom", "unreadable", "counts", "held_out_of_more", "bias_label", "table")


def mixed_training_data(selected: pd.DataFrame, sources: Iterable[Mapping]) -> list[dict]:
    """MIXED_TRAINING_DATA: runs compared on a data set that were trained on different data, one finding for each fact that differs.

    `sources` as workdirs.read returns them; nothing is known of other runs. If the names of the data differ, only these are compared.
    """
    known = {tuple(run): source["data"] for source in sources for run in source["runs"]}
    differ: dict[tuple, list[str]] = {}
    for dataset, rows in selected.groupby("dataset", sort=False):
        runs = [run for run in zip(rows["algorithm"], rows["run"], strict=True) if known.get(run)]
        called = {known[run].get("name") for run in runs}
        facts = ["name"] if len(called) > 1 else dict.fromkeys(fact for run in runs for fact in known[run] if fact not in NOT_TRAINING)
        for fact in facts:
            values = _by_value(runs, {run: json.dumps(known[run][fact]) if fact in known[run] else "not recorded" for run in runs})
            if len(values) > 1:
                differ.setdefault((fact, tuple((value, tuple(group)) for value, group in values.items())), []).append(dataset)
    findings = []
    for (fact, values), datasets in differ.items():
        parts = [f"{names.cut(value)} for {_runs(group)}" for value, group in values]
        text = f"runs compared on {names.first_few(datasets)} were trained on different data: {fact} is {'; '.join(parts)}"
        facts = {"fact": fact, "values": {value: [list(map(_plain, run)) for run in group] for value, group in values}}
        findings.append({"code": "MIXED_TRAINING_DATA", "text": text, "datasets": datasets, **facts})
    return findings


def mixed_test_images(selected: pd.DataFrame, sources: Iterable[Mapping]) -> list[dict]:
    """MIXED_TEST_IMAGES: data sets on which the runs of two workdirs were tested on different images, labels or biases; if real_accuracy is
    compared, also on different lists of classes.
    """
    known = {(*run, name): facts for source in sources for run in source["runs"] for name, facts in source["sets"].items()}
    findings = []
    for dataset, rows in selected.groupby("dataset", sort=False):
        compared = {"images": "images or labels"}
        if (rows["metric"] == "real_accuracy").any():
            compared["real"] = "lists of correct classes"
        for fact, what in compared.items():
            runs = [run for run in zip(rows["algorithm"], rows["run"], strict=True) if known.get((*run, dataset), {}).get(fact)]
            values = _by_value(runs, {run: known[*run, dataset][fact] for run in runs})
            if len(values) > 1:
                text = f"{dataset} has different {what} for {' and for '.join(map(_runs, values.values()))}"
                findings.append({"code": "MIXED_TEST_IMAGES", "text": text, "dataset": dataset})
    return findings


def _by_value(runs: Iterable[tuple], value: Mapping[tuple, str]) -> dict[str, list[tuple]]:
    runs_of: dict[str, list[tuple]] = {}
    for run in runs:
        runs_of.setdefault(value[run], []).append(run)
    return runs_of


def _plain(name: str | int) -> str | int:
    """NumPy's integers as Python's, for JSON."""
    return name if isinstance(name, str) else int(name)


def _runs(runs: Iterable[tuple]) -> str:
    """'erm run 0, 1; lff run 0'."""
    by_algorithm: dict[str, list[int]] = {}
    for algorithm, run in runs:
        by_algorithm.setdefault(algorithm, []).append(run)
    return ", ".join(f"{algorithm} run {names.first_few(numbers)}" for algorithm, numbers in by_algorithm.items())
