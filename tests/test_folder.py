"""A user's own images: folders of classes, tables with label, bias and split, and what is wrong with either."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

from data_prep import pictures as to_records
from jaxbed import cli, main
from jaxbed.data import folder
from jaxbed.data.source import Source, cells
from jaxbed.data.stream import Images
from jaxbed.evaluation import metrics
from jaxbed.measures import main as measures
from jaxbed.stats import main as statistics
from jaxbed.system import ending

CONFIG = """
import dataclasses
from jaxbed.methods import {method}
from jaxbed.models import mlp
from jaxbed.presets import datasets

def get_config(dataset="folder"):
    cfg = datasets.build("{method}", {method}.{kind}(), dataset)
    data = dataclasses.replace(cfg.data, size_px=8, threads=1)
    return dataclasses.replace(cfg, net=mlp.Config((4,)), data=data, epochs=2, batch_size=8, seeds=2)
"""
COUNTS = {"train": 10, "test": 3}  # of each class


def image(path: pathlib.Path, seed: int, size=(12, 9), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)).convert(mode).save(path)


def make(root: pathlib.Path, classes=("cow", "camel")) -> pathlib.Path:
    """ROOT/train, ROOT/test and ROOT/night, one sub-folder per class, and ROOT/table.csv, which lists the first two."""
    rows, seed = [], 0
    for name, count in {**COUNTS, "night": 2}.items():
        for label in classes[: 1 if name == "night" else None]:
            for i in range(count):
                seed += 1
                image(root / name / label / f"{i}.png", seed)
                bias = ("grass", "sand")[(classes.index(label) + (i == 0)) % 2]
                rows += [f"{name}/{label}/{i}.png,{label},{bias},{name}\n"] if name in COUNTS else []
    (root / "table.csv").write_text("file,label,bias,split\n" + "".join(rows))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    return make(tmp_path_factory.mktemp("images"))


def opened(**fields) -> Source:
    fields = {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in fields.items()}
    return folder.Config(**{"size_px": 8, "threads": 1, **fields}).open()


def tabled(root: pathlib.Path, tmp_path: pathlib.Path, text: str, **fields) -> Source:
    """A data set whose table holds this text."""
    (tmp_path / "own.csv").write_text(text)
    return opened(train=root, table=tmp_path / "own.csv", **fields)


def jaxbed(*words: str) -> int:
    return ending.of(lambda: main.main(list(map(str, words))))


# The whole command


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    """A folder as a user has it: images, table, and a small configuration."""
    home = tmp_path_factory.mktemp("home")
    make(home / "photos")
    (home / "own_erm.py").write_text(CONFIG.format(method="erm", kind="Config"))
    return home


TABLED = ("--config=own_erm.py", "--config.data.train=photos", "--config.data.table=photos/table.csv", "--workdir=run")


@pytest.fixture(scope="module")
def trained(home) -> str:
    """What training on the table's images printed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert jaxbed(*TABLED, "--config.data.ood=night=photos/night") == 0
    messages = [json.loads(line) for line in (home / "run" / "log.jsonl").read_text().splitlines()]
    return "\n".join(line["text"] for line in messages if line["kind"] == "message")


def test_one_command_trains_and_evaluates_own_images(home, trained):
    frame = metrics.scores(home / "run")
    assert set(zip(frame["dataset"], frame["role"], strict=True)) == {("val", "val"), ("test", "test"), ("night", "ood")}
    assert set(frame["epoch"]) == {1, 2} and {"aligned", "conflicting"} <= set(frame[frame["dataset"] == "test"]["metric"])
    about = json.loads((home / "run" / "responses" / "sets.json").read_text())
    assert about["classes"] == ["camel", "cow"]
    assert about["training_cells"] == [[0, 0, 8], [0, 1, 1], [1, 0, 1], [1, 1, 8]]  # camels on sand, on grass; cows


def test_images_of_any_shape_are_scaled_alike(root):
    """Measures ask how all levels are scaled, in an image of one row."""
    source = opened(train=str(root / "train"))
    ramp = np.arange(256, dtype=np.uint8)[None, None, :, None] * np.ones(3, np.uint8)
    square = ramp.reshape(1, 16, 16, 3)
    np.testing.assert_array_equal(source.scale(ramp).reshape(1, 16, 16, 3), source.scale(square))


def test_the_log_has_a_data_card(trained):
    assert "train: 18 images, 16 aligned, 2 conflicting" in trained
    assert (
        "images per class and set:\n"
        "  class   train     val    test   night\n"
        "  camel       9       1       3       0\n"
        "  cow         9       1       3       2\n"
        "  all        18       2       6       2\n"
    ) in trained
    assert "bias vote: grass for cow (90 % of its training images, 10 % of camel); sand for camel (90 %" in trained
    assert "val: 2 images are held out, stratified by label and bias (data.val_share = 0.1 of 20 training images" in trained
    assert "evaluation sets: val (val, 2), test (test, 6), night (ood, 2)" in trained


def test_moved_images_and_further_sets_leave_a_run_as_it_is(home, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    shutil.move("photos", "moved")
    words = ("--config=own_erm.py", "--config.data.train=moved", "--config.data.table=moved/table.csv", "--workdir=run")
    assert jaxbed(*words, "--config.data.ood=night=moved/night", "--config.data.ood=again=moved/test") == 0
    assert "resuming after step" in capsys.readouterr().out
    frame = metrics.scores("run")
    assert set(frame["dataset"]) == {"val", "test", "night", "again"} and set(frame[frame["dataset"] == "again"]["epoch"]) == {1, 2}


def test_eval_says_what_it_answers_and_why(home, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")

    def told() -> str:
        assert cli.evaluate(["run"]) == 0
        return capsys.readouterr().out

    assert told() == "erm: nothing to do: val, test, night are answered: epochs 1-2\n"
    pathlib.Path("photos/night/cow/0.png").unlink()
    changed = "erm: night is answered again, since its images changed (2 before, 1 now): epochs 1-2, together with the other sets\n"
    assert told() == changed
    shutil.rmtree("run/responses/test")
    path = pathlib.Path("run/responses/val/2.npz")
    path.write_bytes(path.read_bytes()[:-1])
    lines = told().splitlines()
    assert lines[0] == "erm: test is answered: epochs 1-2, together with the other sets"
    assert lines[1].startswith("erm: val is answered again, since run/responses/val/2.npz is damaged (")
    assert "nothing to do" in told()


def test_answers_to_a_set_that_is_named_no_more_are_kept_and_said(home, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    assert jaxbed(*TABLED) == 0
    capsys.readouterr()
    assert statistics.main(["run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    why = "since data and eval.sets of the run's configuration name no such set any more"
    assert f"warning NOT_READ: run: answers to night are kept, but not read, {why}. To read a set, give the training command" in shown
    assert "EPOCH.npz" not in shown
    assert jaxbed(*TABLED, "--config.data.ood=night=photos/night") == 0
    assert "NOT_READ" not in capsys.readouterr().out and "night" in set(metrics.scores("run")["dataset"])


def test_a_run_whose_paths_are_relative_is_evaluated_where_it_was_started(home, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cure = "If the path is relative, run this command in the folder in which the run was started"
    for command in (cli.evaluate, measures.main):
        assert command([str(home / "run")]) == 2
        said = capsys.readouterr().err
        assert "is not a folder" in said and f"{cure} ({home})" in said
    shutil.copytree(home / "run", "old")
    pathlib.Path("old/log.jsonl").unlink()
    assert cli.evaluate(["old"]) == 2
    assert f"{cure} (its log does not name it)" in capsys.readouterr().err
    monkeypatch.chdir(home)
    assert cli.evaluate(["run"]) == 0


def test_other_labels_are_another_training_set(home, trained, tmp_path, monkeypatch, capsys):
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    table = pathlib.Path("photos/table.csv")
    table.write_text(table.read_text().replace("train/cow/5.png,cow", "train/cow/5.png,camel"))
    assert jaxbed(*TABLED) == 2
    assert "run was trained on other images than there are now" in capsys.readouterr().err


def test_without_other_sets_the_run_prints_its_validation_scores(home, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(home)
    assert jaxbed("--config=own_erm.py", "--config.data.train=photos/train", "--config.epochs=1", f"--workdir={tmp_path}") == 0
    shown = capsys.readouterr().out
    assert "after epoch 1: val accuracy " in shown and "2 seeds)" in shown
    assert "only validation images were evaluated, which also select epochs: no scores to compare. Name a test or OOD set" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "data.train is empty: name the folder of your training images, which has one sub-folder per class: python -m jaxbed.main"),
        (("--config.data.train=nowhere",), "data.train = nowhere is not a folder (working directory "),
        (("--config.data.train=photos/train", "--config.data.val_share=1"), "data.val_share = 1.0: must be a number, above 0 and below 1"),
        (("--config.data.train=photos/train", "--config.batch_size=64"), "batch_size = 64 is larger than the training set of folder (18"),
    ],
)
def test_a_refused_command_says_why_and_writes_nothing(home, monkeypatch, tmp_path, capsys, words, message):
    monkeypatch.chdir(home)
    assert jaxbed("--config=own_erm.py", *words, f"--workdir={tmp_path / 'run'}") == 2
    assert capsys.readouterr().err.startswith(f"jaxbed: {message}") and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "kind", "bias", "unknown"),
    [(method, kind, "", 18) for method, kind in (("balance", "Reweight"), ("balance", "Resample"), ("end", "Config"), ("dfr", "Config"))]
    + [("balance", "Reweight", "grass", 2), ("groupdro", "Config", "grass", 2)],
)
def test_methods_that_need_the_bias_say_so_before_training(home, monkeypatch, tmp_path, capsys, method, kind, bias, unknown):
    """Without any bias, and where that of a few images is unknown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(CONFIG.format(method=method, kind=kind))
    lines = (home / "photos" / "table.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    rows = [[file, label, bias and ("" if "cow" in file and file[-5] in "123" else b), split] for file, label, b, split in rows]
    (tmp_path / "own.csv").write_text("\n".join([lines[0], *map(",".join, rows)]))
    words = (f"--config.data.train={home / 'photos'}", "--config.data.table=own.csv", "--config.data.val_share=0.05", "--workdir=run")
    assert jaxbed("--config=own.py", *words) == 2
    counted = f"the training images, but folder lacks it for {unknown} of {18 if not bias else 17}: "
    cure = "use a method" if method == "end" else "set --config.method.groups=classes, use a method"
    assert f"{method} needs the bias of {counted}{cure} that does not read it, or provide it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# Folders


def test_folders_of_classes(root):
    source = opened(train=root / "train", test=root / "test", ood=(f"night={root / 'night'}",))
    assert source.class_names == ("camel", "cow") and source.facts["unreadable"] == []
    assert cells(source.train) == {(0, -1): 9, (1, -1): 9} and cells(source.sets["night"].split) == {(1, -1): 2}
    assert source.train.name[0].startswith("camel/") and source.train.image.shape[1:] == (8, 8, 3)
    held = set(source.sets["val"].split.name)
    assert len(held) == 2 and not held & set(source.train.name)
    assert held != set(opened(train=root / "train", split_seed=3).sets["val"].split.name)


def test_a_named_validation_set_is_taken_and_nothing_held_out(root):
    source = opened(train=root / "train", val=root / "test")
    assert len(source.train.label) == 20 and list(source.sets) == ["val"]
    assert not any("held out" in note for note in source.notes)


def test_formats_and_sizes_become_squares(tmp_path):
    for i in range(2):
        image(tmp_path / "a" / f"{i}.jpg", i, (40, 20))
        image(tmp_path / "b" / f"{i}.PNG", 9 + i, (5, 30), "L")
    image(tmp_path / "b" / "x.webp", 7, (8, 8))
    image(tmp_path / "b" / "y.bmp", 8, (8, 8))
    source = opened(train=tmp_path, val_share=0.5)
    assert len(source.train.label) + len(source.sets["val"].split.label) == 6 and source.train.image.shape[1:] == (8, 8, 3)


def test_the_only_image_of_a_kind_is_trained_on(tmp_path):
    for i in range(4):
        image(tmp_path / "a" / f"{i}.png", i)
    image(tmp_path / "b" / "0.png", 9)
    source = opened(train=tmp_path)
    assert cells(source.train) == {(0, -1): 3, (1, -1): 1} and cells(source.sets["val"].split) == {(0, -1): 1}


def test_large_sets_are_streamed_and_what_is_held_out_may_fit(root):
    source = opened(train=root / "train", test=root / "test", resident_gib=1e-6)
    resident = opened(train=root / "train", test=root / "test")
    assert isinstance(source.train.image, Images) and isinstance(source.sets["val"].split.image, np.ndarray)
    assert list(source.train.name) == list(resident.train.name)
    np.testing.assert_array_equal(source.train.image.take(np.arange(3))[0], resident.train.image[:3])
    assert any(
        "the training set is streamed (data.resident_gib), so duplicates of its images in other sets" in note for note in source.notes
    )


@pytest.mark.parametrize("resident_gib", [0.0, 1.0])
def test_unreadable_images_raise_an_error_or_are_left_out(root, tmp_path, resident_gib):
    shutil.copytree(root / "test", tmp_path / "test")
    (tmp_path / "test" / "cow" / "1.png").write_bytes(b"nothing")
    fields = {"train": root / "train", "test": tmp_path / "test", "resident_gib": resident_gib}
    if resident_gib:
        with pytest.raises(ValueError, match=r"data\.test = .*: image cow/1\.png cannot be read .*data\.corrupt=skip"):
            opened(**fields)
    source = opened(**fields, corrupt="skip")
    assert source.facts["unreadable"] == ["test/cow/1.png"]
    assert list(source.sets["test"].split.name) == ["camel/0.png", "camel/1.png", "camel/2.png", "cow/0.png", "cow/2.png"]


def test_a_class_without_a_readable_image_is_refused(tmp_path):
    for i in range(4):
        image(tmp_path / "a" / f"{i}.png", i)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "0.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no training image of class 'b' can be read"):
        opened(train=tmp_path, corrupt="skip")


def test_training_images_among_the_others_are_reported(root, tmp_path):
    shutil.copytree(root / "test", tmp_path / "test")
    shutil.copy(root / "train" / "cow" / "4.png", tmp_path / "test" / "cow" / "same.png")
    source = opened(train=root / "train", val=root / "test", test=tmp_path / "test")
    assert any(
        note == "test: 1 of 7 images are also training images (cow/same.png = cow/4.png): its scores are too high; remove them"
        for note in source.notes
    )
    assert not any("too high" in note for note in opened(train=root / "train", test=root / "test").notes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": "."}, r"data\.train = .* has the sub-folders test, train, which are sets, not classes: give each"),
        (
            {"train": "sets"},
            r"data\.train = .*sets has the sub-folders test, train, which are sets, not classes: .*data\.train=.*sets/train$",
        ),
        ({"train": "train/cow"}, r"data\.train = .*cow has no sub-folders: put the images of each class .* or list them in a table"),
        ({"test": "train/cow"}, r"data\.test = .*cow is inside data\.train = .*, whose sub-folders are classes: move it"),
        ({"test": "train"}, r"data\.test = .*train is also data\.train: its images are used for training"),
        ({"val": "test", "test": "test"}, r"data\.test = .*test is also data\.val: one set cannot have two purposes"),
        (
            {"test": "nowhere"},
            r"data\.test = .*nowhere is not a folder \(working directory .*\): name a folder with one sub-folder per class",
        ),
        ({"ood": "home=~/images"}, r"data\.ood: home = ~/images is not a folder .* per class, and write its full path instead of ~$"),
        (
            {"test": "night"},
            r"data\.test = .*night lacks the class 'camel', but must have all classes of the training set\. Only an OOD set",
        ),
        ({"ood": "other=others"}, r"data\.ood: other = .*others has the class 'goat', which is not in the training set \(camel, cow\)"),
        ({"ood": "empty=empty"}, r"data\.ood: empty: .*goat contains no image"),
        ({"ood": "night"}, r"data\.ood = 'night' must be NAME=DIR, as in --config\.data\.ood=sketches=DIR"),
        ({"ood": "val=night"}, r"data\.ood: the name 'val' is that of another set"),
        ({"ood": "Validation=night"}, r"data\.ood: the name 'Validation' probably means 'val': write 'val'"),
        ({"ood": "../x=night"}, r"data\.ood: the name '\.\./x' must be train, val, test or the name of an OOD set"),
        ({"ood": ("night=night", "Night=test")}, r"data\.ood names night and Night: give each set a different name"),
        ({"train": "single"}, r"data\.val_share = 0\.1 of 2 training images holds out none, since no class has two"),
    ],
)
def test_folders_that_cannot_be_used_are_refused(root, tmp_path, fields, message):
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    for file in ("sets/train/a/0.png", "sets/test/a/0.png", "others/cow/0.png", "others/goat/0.png"):
        image(tmp_path / file, 5)
    for file in ("single/a/0.png", "single/b/0.png"):
        image(tmp_path / file, 6)
    (tmp_path / "empty" / "goat").mkdir(parents=True)
    fields = {"train": "train", **fields}
    place = {name: str(tmp_path / value) for name, value in fields.items() if name != "ood"}
    if entries := fields.get("ood"):
        entries = (entries,) if isinstance(entries, str) else entries
        pairs = [entry.partition("=") for entry in entries]
        place["ood"] = tuple(f"{name}{equals}{file if file[:1] in ('', '~') else tmp_path / file}" for name, equals, file in pairs)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        opened(**place)


# Tables


def test_a_table_lists_sets_labels_and_biases(root):
    source = opened(train=root, table=root / "table.csv")
    assert source.class_names == ("camel", "cow") and source.bias_name == "bias"
    train, val = source.train, source.sets["val"].split
    assert {cell: cells(train).get(cell, 0) + cells(val).get(cell, 0) for cell in ((0, 0), (0, 1), (1, 0), (1, 1))} == {
        (0, 0): 9,  # camels on sand
        (0, 1): 1,
        (1, 0): 1,
        (1, 1): 9,
    }
    assert cells(train)[0, 1] == cells(train)[1, 0] == 1  # the only one of its kind
    assert cells(source.sets["test"].split) == {(0, 0): 2, (0, 1): 1, (1, 0): 1, (1, 1): 2}
    assert any(note.startswith("2 images in") and "night/cow/0.png" in note for note in source.notes)


def test_biases_may_be_classes_and_unknown(root, tmp_path):
    rows = [f"train/cow/{i}.png,cow,{('cow', 'camel', '')[i % 3]}\n" for i in range(9)]
    rows += [f"train\\camel\\{i}.png,camel,camel\n" for i in range(9)]
    source = tabled(root, tmp_path, "file,label,bias\n" + "".join(rows), val=str(root / "test"))
    assert cells(source.train) == {(0, 0): 9, (1, 1): 3, (1, 0): 3, (1, -1): 3}
    assert "train/camel/3.png" in source.train.name


def test_sets_of_a_table_have_names_and_other_folders_join_them(root, tmp_path):
    sets = (("train", "train"), ("test", "unseen-farms"))
    rows = [f"{name}/{label}/{i}.png,{label},{own}\n" for name, own in sets for label in ("cow", "camel") for i in range(3)]
    source = tabled(root, tmp_path, "file,label,split\n" + "".join(rows), ood=(f"night={root / 'night'}",))
    assert {name: one.role for name, one in source.sets.items()} == {"val": "val", "unseen-farms": "ood", "night": "ood"}
    assert not any("night/cow" in note for note in source.notes)  # named, so its images need no row


def test_bias_values_as_frequent_in_several_classes_vote_for_none(root, tmp_path):
    rows = [f"train/{label}/{i}.png,{label},{'grey' if i < 2 else label[:2]}\n" for label in ("cow", "camel") for i in range(8)]
    source = tabled(root, tmp_path, "file,label,bias\n" + "".join(rows), val=str(root / "test"))
    assert cells(source.train) == {(0, 0): 6, (0, -1): 2, (1, 1): 6, (1, -1): 2}
    assert any(
        "bias values that vote for no class, since several have them equally often or training has none: grey" in n for n in source.notes
    )


HEAD, COW, CAMEL = "file,label,bias,split\n", "train/cow/0.png,cow,,train\n", "train/camel/0.png,camel,,train\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "filename,label\n",
            r"own\.csv has no column file in its header 'filename,label': its columns must be file,label and, if known, bias",
        ),
        ("file,label,label\n", r"own\.csv has column label more than once"),
        ("file,label,bias,bias\n", r"own\.csv has column bias more than once"),
        ("file,label,Bias\n" + COW.replace(",,train", ",x"), r"own\.csv has a column 'Bias': is it 'bias'\? Rename it"),
        (HEAD, r"own\.csv has no rows: add a row for each image"),
        (HEAD + ",cow,,train\n", r"own\.csv, line 2: file is empty"),
        (HEAD + "train/cow/0.png,,,train\n", r"own\.csv, line 2: label is empty"),
        (HEAD + "train/cow/0.png,cow,,\n", r"own\.csv, line 2: split is empty"),
        (HEAD + COW + "train/cow/1.png,cow,,valid\n", r"own\.csv, line 3: split = 'valid' probably means 'val': write 'val'"),
        (HEAD + "train/cow/1.png,cow,,0\n", r"own\.csv, line 2: split = '0' must be train, val, test or the name of an OOD set"),
        (
            HEAD + COW + "train/cow/9999.png,cow,,train\n",
            r"own\.csv names 1 images that are not in .*, e\.g\. train/cow/9999\.png of line 3",
        ),
        (
            HEAD + "../cow.png,cow,,train\n",
            r"own\.csv, line 2: file = '\.\./cow\.png' is not in .*: give paths relative to data\.train",
        ),
        (HEAD + COW + CAMEL + "train/./cow/0.png,cow,,test\n", r"own\.csv lists 1 images twice: train/\./cow/0\.png \(lines 2 and 4\)"),
        (HEAD + COW + "test/cow/0.png,cwo,,test\n", r"own\.csv, line 3: label = 'cwo' is not a class of the training set \(cow\)"),
        (HEAD + COW.replace("train\n", "test\n"), r"own\.csv has no row for the training set \(split = train\)"),
        (HEAD + COW + CAMEL + "test/cow/0.png,cow,,test\n", r"own\.csv, split test lacks the class 'camel'"),
        (
            HEAD + COW.replace(",,", ",camel,") + CAMEL.replace(",,", ",sand,"),
            r"own\.csv, line 3: bias = 'sand' is not a class \(camel, cow\)",
        ),
        (
            HEAD + COW + "test/cow/0.png,cow,,farm\ntest/cow/1.png,cow,,Farm\n",
            r"own\.csv has the sets farm and Farm: give each set a different name",
        ),
    ],
)
def test_tables_that_cannot_be_used_are_refused(root, tmp_path, text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        tabled(root, tmp_path, text)


def test_tables_and_folders_that_contradict_each_other_are_refused(root, tmp_path):
    with pytest.raises(ValueError, match=r"data\.test = .*night: .*table\.csv also lists images of the set test: name it only once"):
        opened(train=root, table=root / "table.csv", test=root / "night")
    with pytest.raises(ValueError, match=r"data\.ood: Farm = .*night: .*own\.csv also lists images of the set farm"):
        tabled(root, tmp_path, HEAD + COW + CAMEL + "test/cow/0.png,cow,,farm\n", ood=(f"Farm={root / 'night'}",))
    with pytest.raises(FileNotFoundError, match=r"data\.table = '.*nowhere\.csv' is not a file: name a CSV file"):
        opened(train=root, table=tmp_path / "nowhere.csv")
    with pytest.raises(FileNotFoundError, match=r"data\.train = .*nowhere is not a folder"):
        opened(train=tmp_path / "nowhere", table=root / "table.csv")


def test_a_table_may_list_links(root, tmp_path):
    for label in ("cow", "camel"):
        for i in range(4):
            (tmp_path / f"{label}{i}.png").symlink_to(root / "train" / label / f"{i}.png")
    rows = "".join(f"{label}{i}.png,{label}\n" for label in ("cow", "camel") for i in range(4))
    source = tabled(tmp_path, tmp_path, "file,label\n" + rows)
    assert sorted([*source.train.name, *source.sets["val"].split.name])[0] == "camel0.png" and len(source.train.name) == 6
    (tmp_path / "again.png").symlink_to(root / "train" / "cow" / "2.png")
    with pytest.raises(ValueError, match=r"own\.csv lists 1 images twice: again\.png \(lines 4 and 10\)"):
        tabled(tmp_path, tmp_path, "file,label\n" + rows + "again.png,cow\n")


def test_classes_that_differ_only_in_spelling_are_reported(root, tmp_path):
    rows = "".join(f"train/{own}/{i}.png,{label}\n" for own, label in (("cow", "a"), ("camel", "A")) for i in range(4))
    source = tabled(root, tmp_path, "file,label\n" + rows)
    assert source.class_names == ("A", "a") and "the classes 'A' and 'a' differ only in spelling: are they the same class?" in source.notes


def test_columns_that_are_not_used_are_reported(root, tmp_path):
    rows = "".join(f"{i},train/{label}/{i}.png,{label}\n" for label in ("cow", "camel") for i in range(4))
    source = tabled(root, tmp_path, "id,file,label\n" + rows)
    assert any(note.endswith("own.csv: ignored columns: id") for note in source.notes)


# Records


def test_records_take_the_place_of_folders(root, tmp_path):
    options = ("--format", "uint8", "--side-px", "8", "--parts", "1", "--workers", "1")
    assert to_records.main([str(root / "test"), str(tmp_path / "test"), *options]) == 0
    source = opened(train=root / "train", test=tmp_path / "test")
    plain = opened(train=root / "train", test=root / "test").sets["test"].split
    for stored, expected in zip(source.sets["test"].split, plain, strict=True):
        np.testing.assert_array_equal(stored, expected)
