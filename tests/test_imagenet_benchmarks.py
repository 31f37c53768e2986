"""ImageNetV2, ImageNet-Sketch, the 16-class stylized images and ReaL, from the configuration to scores."""

import dataclasses
import hashlib
import json
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from jaxbed.data import image_files, imagenet, imagenet_classes, imagenet_real, imagenet_sets, records
from jaxbed.evaluation import answers, decision_rules, evaluate, label_lists, metrics
from jaxbed.stats import main as stats

WNIDS, SIXTEEN = imagenet_classes.WNIDS, decision_rules.NAMES
SMALL = {"train": "none", "val_from_train": 0, "side_px": 8, "resize_px": 8, "resident_gib": 0.0}
LISTS = [[], [970, 795], [230, 231], [809], [516, 850]]  # the first five of real.json
FIRST = {65: 1, 970: 2, 230: 3, 809: 4, 516: 5}  # their images: class -> file number
ANSWERS = {65: 0, 970: 795, 230: 5, 809: 809, 516: 850}


def square(path, side_px):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side_px, side_px)).save(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """val: an image of each class, of which five are the first of ImageNet-val. v2: the same in folders 0 to 999."""
    folder = tmp_path_factory.mktemp("benchmarks")
    square(folder / "image.png", 8)
    for label, wnid in enumerate(WNIDS):
        for place, name in (
            (folder / "val" / wnid, f"ILSVRC2012_val_{FIRST.get(label, 1000 + label):08d}.JPEG"),
            (folder / "v2" / str(label), f"{label}.jpeg"),
        ):
            place.mkdir(parents=True)
            (place / name).symlink_to(folder / "image.png")
    for shape in SIXTEEN:
        name = f"0001_sty_dnn_0_{shape}_00_{shape}-0001.png"
        square(folder / "flat" / "dnn" / "session-1" / name, 8)
        square(folder / "classes" / shape / name, 8)
    write_lists(folder / "real.json", LISTS)
    return folder


def write_lists(path, first):
    path.write_text(json.dumps([*first, *[[]] * (50_000 - len(first))]))
    return path


def opened(**options):
    places = {name: str(value) for name, value in options.items() if isinstance(value, pathlib.Path)}
    return imagenet.Config(**{**SMALL, **options, **places}).open()


# Sets


def test_sets_of_1000_classes_are_labelled_by_the_number_or_wnid_of_their_folder(root):
    v2 = ("imagenet_v2", "imagenet_v2_threshold", "imagenet_v2_top")
    found = opened(**dict.fromkeys(v2, root / "v2"), imagenet_sketch=root / "val").sets
    assert set(found) == {*v2, "imagenet_sketch"} and {(each.role, each.decision) for each in found.values()} == {("ood", "argmax")}
    for name in v2:
        names, labels = found[name].split.name, found[name].split.label
        assert [int(name.partition("/")[0]) for name in names] == labels.tolist() and sorted(labels) == list(range(1000))
    sketch = found["imagenet_sketch"].split
    assert [WNIDS.index(name.partition("/")[0]) for name in sketch.name] == sketch.label.tolist()


def test_images_of_the_16_groups_are_a_set_of_their_own(root):
    of_groups = opened(val=root / "val", sixteen_of_val=True).sets["imagenet_16"]
    assert len(of_groups.split.label) == 207 and of_groups.decision == "sixteen_mean_prob"
    shown = {pathlib.PurePath(name).parts[0]: label for name, label in zip(of_groups.split.name, of_groups.split.label, strict=True)}
    assert shown[WNIDS[404]] == SIXTEEN.index("airplane") and shown[WNIDS[268]] == SIXTEEN.index("dog") and WNIDS[0] not in shown
    with pytest.raises(ValueError, match="sixteen_of_val takes images of ImageNet-val: name it with"):
        opened(imagenet_v2=root / "v2", sixteen_of_val=True)


@pytest.mark.parametrize(("place", "zoom"), [("flat", False), ("classes", True)])
def test_stylized_images_of_16_classes_may_lie_in_a_flat_folder_and_are_never_resized(root, place, zoom):
    asked = opened(stylized_16=root / place, zoom=zoom, decision="sixteen_mean_logit").sets["stylized_16"]
    assert (asked.role, asked.decision, asked.split.label.tolist()) == ("ood", "sixteen_mean_logit", list(range(16)))
    assert asked.split.image.take(np.arange(16))[0].shape == (16, 8, 8, 3)


@pytest.mark.parametrize("name", imagenet_sets.SIXTEEN)
def test_images_that_are_not_resized_must_have_the_size_of_the_network_images(tmp_path, name):
    for shape in SIXTEEN:
        square(tmp_path / shape / f"{shape}1-cat1.png", 8 if shape != "oven" else 9)
    message = r"oven/oven1-cat1\.png cannot be read \(it has 9 x 9 pixels: images of this set must have 8 x 8, for they are not resized\)"
    for zoom in (False, True):
        images = opened(**{name: tmp_path}, zoom=zoom).sets[name].split.image
        if zoom and name != "stylized_16":
            assert images.take(np.arange(16))[0].shape == (16, 8, 8, 3)
        else:
            with pytest.raises(ValueError, match=message):
                images.take(np.arange(16))


def test_stylized_imagenet_is_not_resized_either(root):
    images = opened(stylized=root / "val", side_px=9, resize_px=9).sets["stylized"].split.image
    with pytest.raises(ValueError, match="it has 8 x 8 pixels: images of this set must have 9 x 9"):
        images.take(np.zeros(1, int))


def test_stored_squares_of_another_size_are_not_cropped_either(tmp_path, monkeypatch):
    stored = records.Records("uint8", 10, np.array(["a"]), np.zeros(1, np.int32), ("cat",), [bytes(300)])
    (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setattr(records, "open_records", lambda folder: stored)
    with pytest.raises(ValueError, match=r"holds squares of 10 px: images of this set must have 8 x 8, .*--format jpeg"):
        image_files.open_location(str(tmp_path), image_files.Size(8, 0, "unchanged"))
    for size in (image_files.Size(10, 0, "unchanged"), image_files.Size(8, 0)):
        assert image_files.open_location(str(tmp_path), size).images.take(np.zeros(1, int))[0].shape == (1, size.side_px, size.side_px, 3)


def test_another_number_of_images_than_published_is_reported(root, capsys, monkeypatch):
    image_files.tell_once.cache_clear()
    opened(val=root / "val", imagenet_v2_top=root / "v2", stylized=root / "val")
    found = [line for line in capsys.readouterr().err.splitlines() if "are published" in line]
    assert found == [
        f"jaxbed: data.{name}: {root / place} has 1,000 images, but {count} are published: its scores are not those of the published set"
        for name, place, count in (("val", "val", "50,000"), ("imagenet_v2_top", "v2", "10,000"))
    ]
    monkeypatch.setitem(imagenet_sets.PUBLISHED, "imagenet_sketch", 1000)
    opened(imagenet_sketch=root / "val")
    assert "are published" not in capsys.readouterr().err


def test_corruptions_of_tfds_are_not_imagenet_c(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    for field, location in (("val", "tfds:imagenet2012_corrupted/fog_3:validation"), ("cae", "tfds:imagenet2012:validation")):
        with pytest.raises(ValueError, match="needs tensorflow-datasets"):
            opened(**{field: location})
        assert ("so scores on it are not ImageNet-C's" in capsys.readouterr().err) == (field == "val")


def test_of_200_classes_the_best_of_the_listed_ones_is_the_answer():
    logits = jnp.zeros((1, 1000)).at[0, jnp.array([0, 6, 11])].set(jnp.array([5.0, 1.0, 2.0]))
    answer = decision_rules.named("imagenet_a").decide(logits)
    assert answer.tolist() == [11] and decision_rules.IMAGENET_A.tolist().index(11) == 1


# Distribution shift


@pytest.fixture(scope="module")
def shifted(root):
    """Images of each class of R and O, and of two classes that are blurry."""
    for number, label in enumerate(decision_rules.IMAGENET_R):
        square(root / "r" / WNIDS[label] / f"{('art', 'video_game')[number % 2]}_{number}.jpg", 8)
    for label in decision_rules.IMAGENET_O:
        square(root / "o" / WNIDS[label] / f"anomaly{label}.JPEG", 8)
    (root / "r" / "README.txt").write_text("not a class")
    for label in (3, 7):
        square(root / "blurry" / WNIDS[label] / "0.jpg", 8)
    return root


def test_classes_of_r_and_o_are_the_published_ones():
    for classes, total in ((decision_rules.IMAGENET_R, 86135), (decision_rules.IMAGENET_A, 102178), (decision_rules.IMAGENET_O, 134542)):
        assert len(classes) == len(set(classes)) == 200 and classes.sum() == total
    for classes, digest in (
        (decision_rules.IMAGENET_R, "98ce4fd873b9b46b5761d21549c019aa8ce0047775b0e4ff3822336b2762b476"),
        (decision_rules.IMAGENET_A, "b42e81c12a300300b184e87ddfbb7ea60d94501d0403fe80727f25839866db80"),
    ):
        assert hashlib.sha256(",".join(WNIDS[label] for label in classes).encode()).hexdigest() == digest


def test_images_of_val_answer_among_the_classes_of_r(shifted):
    sets = opened(val=shifted / "val", imagenet_r=shifted / "r", two_hundred_of_val=True).sets
    plain = sets["imagenet_200"]
    assert (plain.role, plain.decision) == ("test", "imagenet_r") == ("test", sets["imagenet_r"].decision)
    assert plain.split.label.tolist() == decision_rules.IMAGENET_R.tolist() and len(plain.split.image) == 200
    with pytest.raises(ValueError, match="two_hundred_of_val takes images of ImageNet-val: name it with"):
        opened(imagenet_r=shifted / "r", two_hundred_of_val=True)


def test_anomalies_are_told_from_images_of_val_of_the_same_classes(shifted):
    for gib in (0.0, 1.0):  # streamed, and in memory
        asked = opened(val=shifted / "val", imagenet_o=shifted / "o", resident_gib=gib).sets["imagenet_o"]
        assert asked.anomaly.tolist() == [True] * 200 + [False] * 200 and asked.decision == "imagenet_o"
        assert asked.split.name[0].startswith("imagenet_o/") and asked.split.name[-1].startswith("val/")
        assert isinstance(asked.split.image, np.ndarray) == bool(gib)
        assert (asked.split.image if gib else asked.split.image.take(np.arange(400))[0]).shape == (400, 8, 8, 3)
    with pytest.raises(ValueError, match="imagenet_o takes images of ImageNet-val"):
        opened(imagenet_o=shifted / "o")


def test_blurry_images_answer_among_all_classes_and_among_theirs(shifted, tmp_path):
    sets = opened(blurry=shifted / "blurry").sets
    assert sets["blurry"].decision == "argmax" and sets["blurry_present"].decision == "among:3,7"
    assert sets["blurry"].split.label.tolist() == sets["blurry_present"].split.label.tolist() == [3, 7]
    logits = jnp.zeros((1, 1000)).at[0, jnp.array([0, 3, 7])].set(jnp.array([5.0, 1.0, 2.0]))
    assert decision_rules.named("among:3,7").decide(logits).tolist() == [7]
    assert decision_rules.among(np.array([5, 3, 4, 9, 3])) == "among:3-5,9"
    square(tmp_path / "dog" / "0.jpg", 8)
    with pytest.raises(ValueError, match="has classes such as 'dog', whose ImageNet classes are unknown"):
        opened(blurry=tmp_path)


def test_scores_of_shifted_sets_from_evaluation_to_tables(shifted, tmp_path, capsys):
    """A network that answers the class of its image where the image is clean, with confidence, and 1 without where it is an anomaly."""
    source = opened(val=shifted / "val", imagenet_r=shifted / "r", imagenet_o=shifted / "o", two_hundred_of_val=True)
    asked = {name: evaluate.identity(each) for name, each in source.sets.items()}
    (tmp_path / "config.json").write_text(json.dumps({"name": "net"}))
    evaluate.describe(tmp_path / "responses", source, source.sets, asked)
    for name, (split, *_, anomaly) in source.sets.items():
        response = split.label.copy()
        response[:50] = 1
        clean = np.ones(len(response)) if anomaly is None else ~anomaly
        scores = {"confidence": np.where(clean, 0.9, 0.2)[None].astype(np.float32)}
        if anomaly is not None:
            scores["energy"] = np.where(clean, 3.0, -3.0)[None].astype(np.float32)
        content = {"response": response[None].astype(np.int16), "seeds": np.array([0]), "alive": np.ones(1, bool), **scores}
        answers.write(tmp_path / "responses" / name / "1.npz", {**content, "checkpoint": "c", "asked": asked[name]})
    frame = metrics.scores(tmp_path).set_index(["dataset", "metric"])["value"]
    assert frame["imagenet_200", "accuracy"] == frame["imagenet_r", "accuracy"] == 151 / 200 and frame["imagenet_r", "gap"] == 0
    assert frame["imagenet_r", "accuracy_art"] == (1 + 75) / 100 and frame["imagenet_r_unmasked", "accuracy_video_game"] == 75 / 100
    of_o = frame["imagenet_o"].to_dict()
    assert [of_o[f"{name}_softmax"] for name in ("aupr", "auroc", "fpr95")] == [1, 1, 0]
    assert [of_o[f"{name}_energy"] for name in ("auroc", "fpr95")] == [0, 1] and len(of_o) == 6
    for metric, shown in (("accuracy_art", "76.0"), ("rms_calibration_error_as_released", "27.6")):  # in percent: √.5 · (.9 - .51)
        assert stats.main([str(tmp_path), "--select", "last", "--metric", metric]) == 0
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("net "))
        assert shown in line
    with np.load(tmp_path / "responses" / "imagenet_r" / "1.npz") as stored:
        changed = {name: stored[name] for name in stored} | {"confidence": np.zeros((1, 200), np.float32)}
    np.savez(tmp_path / "responses" / "imagenet_r" / "1.npz", **changed)
    with pytest.raises(ValueError, match="its answers or seeds are not those that were written"):
        metrics.scores(tmp_path)


# ReaL


def answer(workdir, data):
    """Writes what an evaluation leaves, of two seeds: one with ANSWERS, and 1 to all other images; one without any answer."""
    sets = {"imagenet": data.sets["imagenet"]}
    asked = {"imagenet": evaluate.identity(sets["imagenet"])}
    evaluate.describe(workdir / "responses", data, sets, asked)
    path = workdir / "responses" / "imagenet" / "1.npz"
    if not path.is_file():
        (workdir / "config.json").write_text(json.dumps({"name": workdir.name}))
        given = [ANSWERS.get(label, 1) for label in sets["imagenet"].split.label.tolist()]
        content = {"response": np.array([given, [-1] * len(given)], np.int16), "seeds": np.array([0, 1]), "alive": np.ones(2, bool)}
        answers.write(path, {**content, "checkpoint": "c", "asked": asked["imagenet"]})
    return path


def counted(workdir, metric="real_accuracy"):
    """[(value, n_correct, n_total) of each seed]"""
    rows = metrics.scores(workdir)
    return list(rows[rows["metric"] == metric][["value", "n_correct", "n_total"]].itertuples(index=False, name=None))


@pytest.fixture(scope="module")
def data(root):
    return opened(val=root / "val", real=root / "real.json")


@pytest.fixture
def workdir(data, tmp_path):
    answer(tmp_path, data)
    return tmp_path


def test_any_class_of_the_list_is_correct_and_images_without_a_list_do_not_count(workdir, data):
    assert counted(workdir) == [(0.75, 3, 4), (0, 0, 4)]
    assert counted(workdir, "accuracy") == [(2 / 1000, 2, 1000), (0, 0, 1000)]  # of the five 809, and class 1
    images = pd.read_csv(workdir / "responses" / "imagenet" / "images.csv", dtype=str, keep_default_na=False)
    assert list(images) == ["name", "label", "cue", "real"]
    assert {int(row.label): row.real for row in images.itertuples() if row.real} == {
        970: "970|795",
        230: "230|231",
        809: "809",
        516: "516|850",
    }


def test_scores_without_lists_are_as_before(tmp_path, root):
    answer(tmp_path, opened(val=root / "val"))
    assert counted(tmp_path) == [] and len(counted(tmp_path, "accuracy")) == 2
    assert list(pd.read_csv(tmp_path / "responses" / "imagenet" / "images.csv")) == ["name", "label", "cue"]


def test_other_lists_change_scores_and_no_answers_and_are_reported(workdir, root, tmp_path, capsys):
    lists, table = tmp_path / "other.json", tmp_path / "responses" / "imagenet"
    before = (table / "1.npz").stat().st_mtime_ns
    for real, value, said in (
        (write_lists(lists, [[0], [795], [5], [809], [516, 850]]), 1.0, "have changed: real_accuracy changes with them; the answers stay"),
        ("", None, "are gone, and real_accuracy with them; the answers stay"),
        (lists, 1.0, ""),
    ):
        again = opened(val=root / "val", real=real)
        path = answer(tmp_path, again)
        printed = capsys.readouterr().err
        assert f"{table}: the lists of correct classes {said}" in printed if said else "lists" not in printed
        assert [row[0] for row in counted(tmp_path)] == ([value, 0] if value else [])
        with np.load(path) as stored:
            assert stored["asked"] == evaluate.identity(again.sets["imagenet"]) and path.stat().st_mtime_ns == before


def test_runs_with_different_lists_are_not_compared_silently(data, root, tmp_path, capsys):
    others = opened(val=root / "val", real=write_lists(tmp_path / "other.json", LISTS[:4]))
    for name, lists in (("erm", data), ("lff", others)):
        answer(tmp_path / name, lists)
    paths = [str(tmp_path / name) for name in ("erm", "lff")]
    for metric, warned in (("real_accuracy", True), ("accuracy", False)):
        stats.main([*paths, "--metric", metric, "--select", "last"])
        printed = capsys.readouterr()
        assert ("different lists of correct classes" in printed.out + printed.err) == warned


def test_a_table_with_lists_survives_a_spreadsheet_and_no_other_change(workdir):
    path, expected = workdir / "responses" / "imagenet" / "images.csv", counted(workdir)
    text = path.read_text()
    path.write_text(text.replace(",", ";").replace(";809\n", ";809,0\n"))
    assert counted(workdir) == expected
    for changed, message in (
        (text.replace("970|795", "970|796"), "has other lists of classes in its column 'real' than sets.json describes; .*jaxbed eval"),
        (text.replace(",real\n", ",\n", 1).replace("970|795", ""), "jaxbed eval"),
        (text.replace("970|795", "970/795"), r"images\.csv: real '970/795' is not a list of classes, such as 970\|795; .*jaxbed eval"),
    ):
        path.write_text(changed)
        with pytest.raises(ValueError, match=message):
            metrics.scores(workdir)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[]] * 49_999, "it holds 49,999 entries and must hold 50,000 lists of classes"),
        ({}, "it holds a dict and must hold 50,000 lists"),
        ([[1], [1000], *[[]] * 49_998], r"list 2 is \[1000\] and must hold whole numbers from 0 to 999"),
        ([[1], 5, *[[]] * 49_998], "list 2 is 5 and must hold"),
        ([[True], *[[]] * 49_999], r"list 1 is \[True\] and must hold"),
    ],
)
def test_other_files_than_real_json_are_refused_with_the_cure(tmp_path, content, message):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"real\.json cannot be data\.real \({message}.*fetch real\.json from"):
        imagenet_real.read(path)


def test_lists_need_file_numbers_and_the_images_they_are_of(root, capsys):
    with pytest.raises(
        ValueError, match=r"image 0/0\.jpeg of data\.val has no file number from 1 to 50000 in its name: keep the published"
    ):
        opened(val=root / "v2", real=root / "real.json")
    with pytest.raises(ValueError, match=r"data\.real = .* further labels of ImageNet-val's images: .*--config\.data\.val=FOLDER"):
        opened(real=root / "real.json")
    with pytest.raises(FileNotFoundError, match=r"data\.real = nowhere is not a file: fetch real\.json"):
        opened(val=root / "val", real="nowhere")
    names = np.array(["a/ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000004_n01440764.JPEG"])
    found = imagenet_real.of_images(root / "real.json", names, np.array([795, 0]))
    assert found.tolist() == [[970, 795], [809, -1]] and "does not list" not in capsys.readouterr().err
    imagenet_real.of_images(root / "real.json", names, np.array([0, 0]))
    assert "does not list the label of 2 of 2 images: are its lists in the order of file numbers" in capsys.readouterr().err
    for name in ("ILSVRC2012_val_00050001.JPEG", "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_000000011.JPEG"):
        with pytest.raises(ValueError, match="no file number"):
            imagenet_real.of_images(root / "real.json", np.array([name]), np.zeros(1, int))


def test_a_set_has_one_list_for_each_image(data):
    sets = {"imagenet": data.sets["imagenet"]._replace(real=label_lists.padded([[1]]))}
    with pytest.raises(ValueError, match="set imagenet: real has 1 lists of classes, but must have one for each of 1000 images"):
        dataclasses.replace(data, sets=sets)


def test_lists_come_back_from_a_table():
    for lists in ([[], [5, 3], [999]], [[], []]):
        array = label_lists.padded(lists)
        np.testing.assert_array_equal(label_lists.from_cells(label_lists.cells(array)), array)
    assert label_lists.from_cells(["1.0", "1,0", "1,00"]).tolist() == [[1]] * 3
    for cell in ("1,000", "5|1.000"):  # one or a thousand
        with pytest.raises(ValueError, match=f"{cell!r} is not a list of classes".replace("|", r"\|")):
            label_lists.from_cells([cell])
