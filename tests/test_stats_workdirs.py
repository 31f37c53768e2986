"""Workdirs as `jaxbed stats` meets them: trained on other data, damaged, swept."""

import dataclasses
import functools
import hashlib
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny

from jaxbed import config, settings
from jaxbed.data import colored_mnist
from jaxbed.evaluation import metrics
from jaxbed.methods import erm, lff
from jaxbed.models import mlp
from jaxbed.presets import datasets
from jaxbed.stats import main
from jaxbed.stats.audit import provenance
from jaxbed.stats.figures import drawing
from jaxbed.stats.reading import records
from jaxbed.training import members

FACTS = {"name": "colored_mnist", "cue": "colour", "conflicting_percent": 1.0, "data_seed": 0}


def write(
    path: Path,
    algorithm: str,
    data: dict | None = None,
    sets: tuple[str, ...] = ("test",),
    grid: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0, 1),
    **settings: object,
) -> Path:
    """A workdir of some seeds and ten images; `settings` are further ones of its config.json."""
    (path / "responses").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"name": algorithm, "grid": grid, **settings}))
    about = {"data": data or FACTS, "classes": ["a", "b"], "sets": {name: {"role": "ood", "decision": "argmax"} for name in sets}}
    (path / "responses" / "sets.json").write_text(json.dumps(about))
    for name in sets:
        (path / "responses" / name).mkdir()
        label = np.arange(10) % 2
        pd.DataFrame({"name": label, "label": label, "cue": label}).to_csv(path / "responses" / name / "images.csv", index=False)
        right = np.random.default_rng(len(algorithm)).random((len(seeds), 10)) < 0.7
        alive = [True] * len(seeds)
        np.savez(path / "responses" / name / "1.npz", response=np.where(right, label, 1 - label), seeds=seeds, alive=alive)
    return path


def stats(capsys, *arguments: object) -> tuple[int, str]:
    """Exit code and text, without line breaks, of `jaxbed stats`."""
    code = main.main([*map(str, arguments), "--select", "last", "--permutations", "100"])
    out, err = capsys.readouterr()
    err = "".join(line for line in err.splitlines(keepends=True) if not line.endswith(" ...\n"))  # stages
    assert (code == 0) == bool(out) == (not err) and code in (0, 2)
    return code, " ".join((out + err).split())


def warned(capsys, *arguments: object) -> list[str]:
    """The warnings MIXED_TRAINING_DATA of `jaxbed stats`."""
    code, text = stats(capsys, *arguments)
    assert code == 0
    return [part for part in text.split("warning ") if part.startswith("MIXED_TRAINING_DATA")]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"conflicting_percent": 5.0}, "conflicting_percent is 1.0 for erm run 0, 1; 5.0 for lff run 0, 1"),
        ({"data_seed": 3}, "data_seed is 0 for erm run 0, 1; 3 for lff run 0, 1"),
        ({"table_sha256": "ab"}, 'table_sha256 is not recorded for erm run 0, 1; "ab" for lff run 0, 1'),
        ({"corruptions": ["fog", "snow"]}, 'corruptions is not recorded for erm run 0, 1; ["fog", "snow"] for lff run 0, 1'),
        ({"name": "shapes", "data_seed": 3}, 'name is "colored_mnist" for erm run 0, 1; "shapes" for lff run 0, 1'),
    ],
)
def test_runs_trained_on_other_data_are_reported(tmp_path, capsys, other, words):
    paths = [write(tmp_path / "one", "erm"), write(tmp_path / "two", "lff", FACTS | other), write(tmp_path / "three", "lnl")]
    (text,) = warned(capsys, *paths)
    assert "runs compared on test were trained on different data" in text and words.partition(" for ")[0] in text
    (text,) = warned(capsys, *paths[:2])
    assert words in text


def test_runs_trained_on_the_same_data_are_not_reported(tmp_path, capsys):
    other = FACTS | {"conflicting_percent": 5.0}
    paths = [write(tmp_path / "one", "erm"), write(tmp_path / "two", "lff", other), write(tmp_path / "three", "lnl")]
    assert warned(capsys, *paths, "--exclude", "lff") == []
    assert warned(capsys, paths[0], paths[2]) == []


@pytest.mark.parametrize("fact", provenance.NOT_TRAINING)
def test_facts_that_tell_nothing_of_training_are_not_compared(tmp_path, capsys, fact):
    paths = [write(tmp_path / "one", "erm", FACTS | {fact: "x"}), write(tmp_path / "two", "lff", FACTS | {fact: "y"})]
    assert warned(capsys, *paths) == []


def test_only_runs_that_share_a_dataset_are_compared():
    data = [("erm", "A", 1.0), ("lff", "B", 5.0)]
    sources = [{"runs": [[name, 1]], "data": FACTS | {"conflicting_percent": percent}} for name, _, percent in data]
    selected = pd.DataFrame([(name, 1, dataset) for name, dataset, _ in data], columns=["algorithm", "run", "dataset"])
    assert provenance.mixed_training_data(selected, sources) == []
    assert len(provenance.mixed_training_data(selected.assign(dataset="A"), sources)) == 1
    assert provenance.mixed_training_data(selected.assign(dataset="A"), sources[:1]) == []  # a CSV tells nothing of its data


def test_runs_of_one_algorithm_on_other_data_are_reported():
    sources = [{"runs": [["erm", run]], "data": FACTS | {"conflicting_percent": run}} for run in (1, 5)]
    (finding,) = provenance.mixed_training_data(pd.DataFrame({"algorithm": "erm", "run": [1, 5], "dataset": "A"}), sources)
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
    assert ("jaxbed eval" if "sets" in name else "restore the configuration") in message


def test_the_grid_points_of_a_run_are_named(tmp_path, capsys):
    top = tmp_path / "swept"
    names = [f"conflicting_percent={percent}" for percent in (1, 5)]
    for name in names:
        write(top / name, "erm")
    (top / "config.json").write_text(json.dumps({"name": "erm", "grid": ["data.conflicting_percent=1,5"]}))
    assert main.main([str(top)]) == 2
    assert f"pass the folders of its grid points: {top / names[0]} {top / names[1]}" in capsys.readouterr().err
    assert len(records.load([top / names[0]])) > 0


def test_a_grid_without_responses_is_to_be_evaluated(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"name": "erm", "sweep": ["data.conflicting_percent=1,5"]}))
    with pytest.raises(FileNotFoundError, match="no responses itself: run: jaxbed eval"):
        records.load([tmp_path])


# Runs of one algorithm


def saved(path: Path, seeds: tuple[int, ...], name: str = "erm", old: bool = False, **changed: object) -> Path:
    """The workdir of a real configuration with other fields, "optim__lr" for optim.lr; `old`: as versions before saved it."""
    cfg = dataclasses.replace(tiny.train_config(data=colored_mnist.Config()), name=name, seeds=len(seeds), first_seed=seeds[0])
    for field, value in changed.items():
        part, _, own = field.partition("__")
        cfg = dataclasses.replace(cfg, **{part: dataclasses.replace(getattr(cfg, part), **{own: value}) if own else value})
    write(path, name, seeds=seeds)
    config.save(cfg, path / "config.json")
    if old:
        tree = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({name: value for name, value in tree.items() if name != "may_change"}))
    return path


@pytest.mark.parametrize(
    ("old", "changed", "words"),
    [
        (False, {"optim__lr": 1e-4}, "optim.lr: 0.05 / 0.0001"),
        (True, {"epochs": 77}, "epochs: "),
        (False, {"net": mlp.Config((4,))}, "net.is: jaxbed.models.resnet:Config / jaxbed.models.mlp:Config"),
        (True, {"method": lff.Config()}, "method.is: "),
        (False, {"data__conflicting_percent": 5.0}, "data.conflicting_percent: 1.0 / 5.0"),
        (True, {"init_from": "weights.pth"}, "init_from: / weights.pth"),
    ],
)
def test_runs_of_one_name_with_other_settings_are_refused(tmp_path, capsys, old, changed, words):
    first, second = saved(tmp_path / "a", (0, 1), old=old), saved(tmp_path / "b", (2, 3), **changed)
    code, text = stats(capsys, first, second)
    assert code == 2 and f"{first} and {second} are runs of one algorithm, 'erm', with different settings" in text and words in text
    cure = shlex.split(text.partition("Rename one of them, ")[2].partition(", or train both with")[0])
    assert cure[0] == "--rename" and stats(capsys, first, second, *cure)[0] == 0
    third = saved(tmp_path / "c", (0, 1), name="lff", **changed)
    assert stats(capsys, first, third)[0] == 0  # algorithms may differ


@pytest.mark.parametrize("old", [False, True])
def test_runs_of_one_name_may_differ_in_what_no_training_depends_on(tmp_path, capsys, old):
    first = saved(tmp_path / "a", (0, 1), old=old)
    second = saved(
        tmp_path / "b", (2, 3, 4), old=old, data__dir="/elsewhere", eval__batch_size=7, mesh__within="map", save__resume_every_minutes=1.0
    )
    code, text = stats(capsys, first, second)
    assert code == 0 and "warning NOT_READ" not in text
    assert stats(capsys, first, saved(tmp_path / "new", (5,), data__dir="/elsewhere"))[0] == 0  # an old one and a new one


def test_runs_from_before_a_setting_existed_are_joined_with_those_that_do_as_before(tmp_path, capsys):
    tree = config.to_dict(datasets.build("erm", erm.Config(), "folder"))
    other, former = json.loads(json.dumps(tree)), json.loads(json.dumps(tree))
    other["optim"]["decay_norms"] = False
    for field in settings.ADDED:
        *parents, last = field.split(".")
        del functools.reduce(dict.__getitem__, parents, former)[last]
    first, second, third = (
        configured(write(tmp_path / str(seed), "erm", seeds=(seed, seed + 1)), **saved_tree)
        for seed, saved_tree in ((0, former), (2, tree), (4, other))
    )
    assert stats(capsys, first, second)[0] == 0
    code, text = stats(capsys, first, third)
    assert code == 2 and "optim.decay_norms: True / False" in text


def test_what_is_said_of_former_runs_is_the_default_of_today():
    folder = config.to_dict(datasets.build("ERM", erm.Config(), "folder"))
    for field, value in settings.ADDED.items():
        assert functools.reduce(dict.__getitem__, field.split("."), folder) == value


def configured(path: Path, **settings: object) -> Path:
    tree = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**tree, **settings}))
    return path


def test_what_is_free_in_a_users_own_class_is_free(tmp_path, capsys):
    first, second, third = (write(tmp_path / name, "erm", seeds=(place, place + 1)) for place, name in ((0, "a"), (2, "b"), (4, "c")))
    configured(first, data={"is": "own.data:Config", "folder": "a"}, may_change=["data.folder"])
    configured(second, data={"is": "own.data:Config", "folder": "b"}, may_change=["data.folder"])
    configured(third, data={"is": "own.data:Config", "folder": "b", "size": 3}, may_change=["data.folder"])
    assert stats(capsys, first, second)[0] == 0
    assert "data.size: None / 3" in stats(capsys, first, third)[1]


def test_one_algorithm_on_other_data_may_have_other_settings_where_no_test_set_is_shared(tmp_path, capsys):
    first = configured(write(tmp_path / "a", "erm", seeds=(0, 1), sets=("edge",)), data={"of": "one"}, optim={"lr": 0.1})
    second = configured(write(tmp_path / "b", "erm", seeds=(2, 3), sets=("sketch",)), data={"of": "two"}, optim={"lr": 0.01})
    third = configured(write(tmp_path / "c", "erm", seeds=(4, 5), sets=("edge",)), data={"of": "two"}, optim={"lr": 0.1})
    assert stats(capsys, first, second, "--missing", "drop")[0] == 0
    assert "data.of: one / two" in stats(capsys, first, third)[1]


def test_runs_of_one_name_that_were_decided_otherwise_are_refused(tmp_path, capsys):
    first, second = write(tmp_path / "a", "erm", seeds=(0, 1)), write(tmp_path / "b", "erm", seeds=(2, 3))
    about = json.loads((second / "responses" / "sets.json").read_text())
    about["sets"]["test"]["decision"] = "sixteen_mean_prob"
    (second / "responses" / "sets.json").write_text(json.dumps(about))
    assert "evaluated by.test: argmax / sixteen_mean_prob" in stats(capsys, first, second)[1]


def test_runs_that_start_from_runs_of_other_seeds_are_runs_of_one_algorithm(tmp_path, capsys):
    """As InfoDrop's fine-tuning with further seeds: what they start from must have been trained alike."""
    origins = [configured(write(tmp_path / name, "start"), optim={"lr": lr}) for name, lr in (("one", 0.1), ("two", 0.1), ("three", 0.2))]
    first, second, third = (
        configured(write(tmp_path / name, "erm", seeds=(place, place + 1)), init_from=f"{origins[place // 2]}:5")
        for place, name in ((0, "a"), (2, "b"), (4, "c"))
    )
    assert stats(capsys, first, second)[0] == 0
    assert "init_from: optim.lr: 0.1 / 0.2" in stats(capsys, first, third)[1]
    configured(second, init_from=f"{origins[1]}:6")
    assert "init_from: epoch: 5 / 6" in stats(capsys, first, second)[1]
    configured(second, init_from="weights.pth")
    assert re.search(r"init_from: \S+ / weights\.pth", stats(capsys, first, second)[1])  # of a long path, the beginning


def test_grid_points_are_algorithms_of_their_own(tmp_path, capsys):
    cfg = dataclasses.replace(tiny.train_config(seeds=2), name="erm", grid=("optim.lr=0.1,0.01",))
    paths = []
    for name, own, _ in members.combine(cfg):
        paths.append(write(tmp_path / name, own.name))
        config.save(own, paths[-1] / "config.json")
    assert stats(capsys, *paths)[0] == 0
    code, text = stats(capsys, *paths, *("--rename", "erm lr=0.01=erm lr=0.1"))
    assert code == 2 and "run 0 of 'erm lr=0.1' is also in" in text


def test_renamed_workdirs_keep_their_confusions(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    first = write(tmp_path / "a", "erm", seeds=(0, 1), optim={"lr": 1})
    second = write(tmp_path / "b", "erm", seeds=(2, 3), optim={"lr": 2})
    out = tmp_path / "out"
    assert stats(capsys, first, second, "--rename", f"{second}=slow", "--rename", "test=colours", "--out", out)[0] == 0
    counted = pd.read_csv(out / "confusions.csv")
    assert counted.groupby(["algorithm", "dataset", "run"])["images"].sum().to_dict() == {
        ("erm", "colours", 0): 10,
        ("erm", "colours", 1): 10,
        ("slow", "colours", 2): 10,
        ("slow", "colours", 3): 10,
    }


# Files in and about a workdir


def test_other_files_among_the_answers_are_reported_and_not_read(tmp_path, capsys):
    workdir = write(tmp_path / "run", "erm")
    answers = workdir / "responses" / "test" / "1.npz"
    before = stats(capsys, workdir)
    names = ["._1.npz", "1 (1).npz", "1.sync-conflict-2026.npz", "01.npz", "１.npz", ".DS_Store"]
    for name in names:
        (answers.parent / name).write_bytes(answers.read_bytes()[: 0 if name.startswith(".") else None])
    (answers.parent / "2.npz").mkdir()
    (answers.parent / "3.1234.partial").write_bytes(b"")  # an evaluation is under way
    (workdir / "responses" / "sets (1).json").write_text("{")
    code, text = stats(capsys, workdir)
    assert code == 0 and text.count("warning NOT_READ") == 1 and text.partition(" warning NOT_READ")[0] in before[1]
    assert "not read, since response files are named EPOCH.npz: responses/sets (1).json" in text
    assert "partial" not in text
    assert sorted(metrics.strays(workdir)) == sorted(["sets (1).json", "test/2.npz", *(f"test/{name}" for name in names)])


IMAGES = "name,label,cue\n" + "".join(f"i{place},{place % 2},{place % 3 - 1}\n" for place in range(10))


@pytest.mark.parametrize(
    "text",
    [
        IMAGES.replace(",", ";"),
        "\ufeff" + IMAGES.replace("\n", "\r\n"),
        IMAGES.replace(",0", ",0.0").replace(",1", ",1.0"),
        IMAGES.replace(",", ";").replace(";0", ";0,0").replace(";1", ";1,00"),
        "\n".join(",".join(reversed(line.split(","))) for line in IMAGES.splitlines()),
        "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in IMAGES.splitlines()),
        "\n".join(f"{line},," for line in IMAGES.splitlines()) + "\n,,,,\n",
        IMAGES.replace("name,label,cue", "Name,Label,Cue"),
    ],
)
def test_a_table_of_images_that_a_spreadsheet_saved_again_gives_the_same_scores(tmp_path, capsys, text):
    workdir = write(tmp_path / "run", "erm")
    path = workdir / "responses" / "test" / "images.csv"
    path.write_text(IMAGES, encoding="utf-8", newline="")
    plain = stats(capsys, workdir)
    path.write_text(text, encoding="utf-8", newline="")
    assert plain[0] == 0 and stats(capsys, workdir) == plain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IMAGES.replace("i3,1", "i3,1.5"), "label '1.5' in line 5 is not the number of a class"),
        (IMAGES.replace("i3,1", "i3,bird"), "label 'bird' in line 5 is not a number"),
        (IMAGES.replace("i3,1", "i3,"), "label '' in line 5 is not the number of a class"),
        (IMAGES.replace("i3,1", "i3,-1"), "label '-1' in line 5 is not the number of a class"),
        (IMAGES.replace("i3,1,-1", "i3,1,-2"), "cue '-2' in line 5 is not the number of a class"),
        (IMAGES.replace("label", "class"), "column 'label' is missing, found name, class, cue"),
        ("", "the file is empty"),
        (IMAGES.replace("i3,1,-1\n", ""), "answers 10 images, and images.csv lists 9"),
    ],
)
def test_a_table_of_images_with_other_labels_is_refused_with_the_cure(tmp_path, capsys, text, message):
    workdir = write(tmp_path / "run", "erm")
    path = workdir / "responses" / "test" / "images.csv"
    path.write_text(text)
    code, found = stats(capsys, workdir)
    assert code == 2 and message in found and f"jaxbed eval {workdir}" in found and str(path.parent) in found


def test_a_table_of_images_in_another_order_is_refused_where_the_order_is_known(tmp_path, capsys):
    workdir = write(tmp_path / "run", "erm")
    path, sets = workdir / "responses" / "test" / "images.csv", workdir / "responses" / "sets.json"
    about, images = json.loads(sets.read_text()), pd.read_csv(path)
    about["sets"]["test"]["images"] = metrics.digest(map(str, images["name"]), images["label"].to_numpy(), images["cue"].to_numpy())
    sets.write_text(json.dumps(about))
    assert stats(capsys, workdir)[0] == 0
    images.sort_values("label").to_csv(path, index=False)
    assert "lists other images, or in another order, than sets.json describes; to rewrite it: jaxbed eval" in stats(capsys, workdir)[1]


def test_workdirs_are_identified_by_configuration_and_code(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    first, second = write(tmp_path / "top" / "lr=1", "erm"), write(tmp_path / "two", "lff")
    code = {"commit": "ab" * 20, "source": "cd" * 8, "versions": {"jaxbed": "1", "jax": "2"}}
    lines = [json.dumps({"kind": "header", **code}), json.dumps({"kind": "header", **code, "source": "ef" * 8}), '{"kind": "header", "so']
    (tmp_path / "top" / "config.json").write_text(json.dumps({"name": "erm", "sweep": ["optim.lr=1"]}))
    (tmp_path / "top" / "log.jsonl").write_text("\n".join(lines))  # of all variants
    out = tmp_path / "out"
    assert stats(capsys, first, second, "--out", out)[0] == 0
    found, page = json.loads((out / "stats.json").read_text())["files"], (out / "report.html").read_text()
    assert [file["sha256"] for file in found] == [
        hashlib.sha256((path / "config.json").read_bytes()).hexdigest() for path in (first, second)
    ]
    assert found[0]["code"] == [code, {**code, "source": "ef" * 8}] and found[1]["code"] == []
    assert "ab" * 20 in page and "ef" * 8 in page and found[1]["sha256"] in page


def change(path: Path, file: str, **parts: object) -> Path:
    """The workdir with other parts of one of its JSON files."""
    place = path / file
    place.write_text(json.dumps(json.loads(place.read_text()) | parts))
    return path


def test_other_classes_and_other_images_of_one_set_are_reported(tmp_path, capsys):
    paths = [write(tmp_path / name, name) for name in ("erm", "lff")]
    assert "MIXED" not in stats(capsys, *paths)[1]
    change(paths[1], "responses/sets.json", classes=["b", "a"])
    assert "MIXED" not in stats(capsys, *paths)[1]
    change(paths[1], "responses/sets.json", classes=["a", "b", "c"])
    assert 'trained on different data: classes is ["a", "b"] for erm run 0, 1; ["a", "b", "c"] for lff run 0, 1' in stats(capsys, *paths)[1]
    paths = [write(tmp_path / f"{name} again", name) for name in ("erm", "lff")]
    for path, cue in zip(paths, (0, 1), strict=True):
        label = np.arange(10) % 2
        pd.DataFrame({"name": label, "label": label, "cue": cue}).to_csv(path / "responses" / "test" / "images.csv", index=False)
        images = metrics.digest(label.astype(str), label, np.full(10, cue))
        change(path, "responses/sets.json", sets={"test": {"role": "ood", "decision": "argmax", "images": images}})
    for renamed in ([], ["--rename", "test=tested"]):
        name = "tested" if renamed else "test"
        assert (
            f"MIXED_TEST_IMAGES: {name} has different images or labels for erm run 0, 1 and for lff run 0, 1"
            in stats(capsys, *paths, *renamed)[1]
        )


@pytest.mark.parametrize("parts", [{"data": None}, {"sets": {"test": []}}, {"sets": ["test"]}])
def test_a_damaged_description_of_sets_is_named_with_its_cure(tmp_path, capsys, parts):
    path = change(write(tmp_path / "one", "erm"), "responses/sets.json", **parts)
    code, text = stats(capsys, path)
    assert code == 2 and f"{path}/responses/sets.json is damaged" in text and f"delete it, then: jaxbed eval {path}" in text


@pytest.mark.parametrize(
    "arrays", [{"seeds": [0]}, {"alive": [True]}, {"response": np.zeros((2, 10))}, {"response": np.zeros(10, int)}, {"seeds": 0}]
)
def test_answers_of_another_form_are_named_with_their_cure(tmp_path, capsys, arrays):
    path = write(tmp_path / "one", "erm")
    place = path / "responses" / "test" / "1.npz"
    np.savez(place, **({"response": np.zeros((2, 10), int), "seeds": [0, 1], "alive": [True, True]} | arrays))
    code, text = stats(capsys, path)
    assert code == 2 and f"{place} is damaged (response " in text and f"delete it, then: jaxbed eval {path}" in text


@pytest.mark.parametrize(("field", "value"), [("may_change", None), ("may_change", "mesh"), ("init_from", 5)])
def test_settings_edited_by_hand_are_compared_all_the_same(tmp_path, capsys, field, value):
    paths = [write(tmp_path / "one", "erm", lr=0.1), write(tmp_path / "two", "erm", seeds=(2, 3), lr=0.2)]
    code, text = stats(capsys, *(change(path, "config.json", **{field: value}) for path in paths))
    assert code == 2 and "lr: 0.1 / 0.2" in text
