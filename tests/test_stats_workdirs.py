"""Workdirs as `jaxbed stats` meets them: trained on other data, damaged, swept."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats import main, records, trained_on

FACTS = {"name": "colored_mnist", "cue": "colour", "conflicting_percent": 1.0, "data_seed": 0}


def write(path: Path, algorithm: str, data: dict | None = None, sets: tuple[str, ...] = ("test",), sweep: tuple[str, ...] = ()) -> Path:
    """A workdir of two seeds and ten images."""
    (path / "responses").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"name": algorithm, "sweep": sweep}))
    about = {"data": data or FACTS, "classes": ["a", "b"], "sets": {name: {"role": "ood", "decision": "argmax"} for name in sets}}
    (path / "responses" / "sets.json").write_text(json.dumps(about))
    for name in sets:
        (path / "responses" / name).mkdir()
        label = np.arange(10) % 2
        pd.DataFrame({"name": label, "label": label, "cue": label}).to_csv(path / "responses" / name / "images.csv", index=False)
        right = np.random.default_rng(len(algorithm)).random((2, 10)) < 0.7
        np.savez(path / "responses" / name / "1.npz", response=np.where(right, label, 1 - label), seeds=[0, 1], alive=[True, True])
    return path


def warned(capsys, *arguments: object) -> list[str]:
    """The warnings MIXED_TRAINING_DATA of `jaxbed stats`."""
    assert main.main([*map(str, arguments), "--select", "last", "--permutations", "100"]) == 0
    text = " ".join(capsys.readouterr().out.split())  # without line breaks
    return [part for part in text.split("warning ") if part.startswith("MIXED_TRAINING_DATA")]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"conflicting_percent": 5.0}, "conflicting_percent is 1.0 for erm run 0, 1; 5.0 for lff run 0, 1"),
        ({"data_seed": 3}, "data_seed is 0 for erm run 0, 1; 3 for lff run 0, 1"),
        ({"table_sha256": "ab"}, 'table_sha256 is not told for erm run 0, 1; "ab" for lff run 0, 1'),
        ({"corruptions": ["fog", "snow"]}, 'corruptions is not told for erm run 0, 1; ["fog", "snow"] for lff run 0, 1'),
        ({"name": "shapes", "data_seed": 3}, 'name is "colored_mnist" for erm run 0, 1; "shapes" for lff run 0, 1'),
    ],
)
def test_runs_trained_on_other_data_are_told(tmp_path, capsys, other, words):
    paths = [write(tmp_path / "one", "erm"), write(tmp_path / "two", "lff", FACTS | other), write(tmp_path / "three", "lnl")]
    (text,) = warned(capsys, *paths)
    assert "runs compared on test were trained on other data" in text and words.partition(" for ")[0] in text
    (text,) = warned(capsys, *paths[:2])
    assert words in text
    assert warned(capsys, *paths, "--exclude", "lff") == []
    assert warned(capsys, paths[0], paths[2]) == []


@pytest.mark.parametrize("fact", trained_on.NOT_TRAINING)
def test_facts_that_tell_nothing_of_training_are_not_compared(tmp_path, capsys, fact):
    paths = [write(tmp_path / "one", "erm", FACTS | {fact: "x"}), write(tmp_path / "two", "lff", FACTS | {fact: "y"})]
    assert warned(capsys, *paths) == []


def test_only_runs_that_share_a_dataset_are_compared():
    data = [("erm", "A", 1.0), ("lff", "B", 5.0)]
    sources = [{"runs": [[name, 1]], "data": FACTS | {"conflicting_percent": percent}} for name, _, percent in data]
    selected = pd.DataFrame([(name, 1, dataset) for name, dataset, _ in data], columns=["algorithm", "run", "dataset"])
    assert trained_on.mixed(selected, sources) == []
    assert len(trained_on.mixed(selected.assign(dataset="A"), sources)) == 1
    assert trained_on.mixed(selected.assign(dataset="A"), sources[:1]) == []  # nothing is known of the other, as of scores in a CSV


def test_runs_of_one_algorithm_on_other_data_are_told():
    sources = [{"runs": [["erm", run]], "data": FACTS | {"conflicting_percent": run}} for run in (1, 5)]
    (finding,) = trained_on.mixed(pd.DataFrame({"algorithm": "erm", "run": [1, 5], "dataset": "A"}), sources)
    assert finding["values"] == {"1": [["erm", 1]], "5": [["erm", 5]]} and finding["datasets"] == ["A"]
    json.dumps(finding)


@pytest.mark.parametrize("name", ["config.json", "responses/sets.json"])
@pytest.mark.parametrize("text", ["", '{\n "name": "erm",\n}', "[1]", "\xff"])
def test_damaged_files_are_named_with_the_cure(tmp_path, capsys, name, text):
    workdir = write(tmp_path / "run", "erm")
    (workdir / name).write_bytes(text.encode("latin-1"))
    assert main.main([str(workdir)]) == 2
    message = capsys.readouterr().err
    assert f"{workdir / name} is damaged (" in message
    assert ("jaxbed eval" if "sets" in name else "put back the configuration") in message


def test_the_variants_of_a_sweep_are_named(tmp_path, capsys):
    top = tmp_path / "swept"
    names = [f"conflicting_percent={percent}" for percent in (1, 5)]
    for name in names:
        write(top / name, "erm")
    (top / "config.json").write_text(json.dumps({"name": "erm", "sweep": ["data.conflicting_percent=1,5"]}))
    assert main.main([str(top)]) == 2
    assert f"give the folders of its variants: {top / names[0]} {top / names[1]}" in capsys.readouterr().err
    assert len(records.load([top / names[0]])) > 0


def test_a_sweep_without_responses_is_to_be_evaluated(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"name": "erm", "sweep": ["data.conflicting_percent=1,5"]}))
    with pytest.raises(FileNotFoundError, match="no responses of its own: run: jaxbed eval"):
        records.load([tmp_path])
