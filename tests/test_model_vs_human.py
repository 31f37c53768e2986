"""The 17 sets of model-vs-human: their table, names of images, and how they become evaluation sets; made-up images."""

import json

import numpy as np
import pandas as pd
import pytest
from commands import command
from PIL import Image

from jaxbed.data import image_files, imagenet, model_vs_human
from jaxbed.data.model_vs_human import DATASETS
from jaxbed.evaluation import decision_rules, measures, metrics

SIXTEEN = tuple(decision_rules.SIXTEEN)


def image(path, colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(path)


def opened(folder, **options):
    return imagenet.Config(train="none", val_from_train=0, side_px=8, model_vs_human=str(folder), **options).open()


@pytest.fixture(autouse=True)
def everything_is_told():
    image_files.tell_once.cache_clear()


def test_the_table_is_the_published_one(shared_data):
    """Sets as in the table of human decisions; 18,080 images, equally many for each condition."""
    known = pd.read_csv(shared_data / "reference_tables" / "human_human.csv")["dataset"]
    assert list(DATASETS) == [name for name in known if name != "mean"]
    assert sum(dataset.images for dataset in DATASETS.values()) == 18_080
    assert sum(bool(dataset.conditions) for dataset in DATASETS.values()) == 12
    for name, dataset in DATASETS.items():
        assert dataset.kept and set(dataset.excluded) <= set(dataset.conditions), name
        assert dataset.images % 16 == 0 and (not dataset.conditions or dataset.images % len(dataset.conditions) == 0), name
    assert DATASETS["eidolonII"].kept == ("2-3-10", "4-3-10", "8-3-10", "16-3-10")
    assert DATASETS["uniform-noise"].kept == (0.03, 0.05, 0.1, 0.2, 0.35)
    assert DATASETS["edge"].kept == (model_vs_human.NO_CONDITION,)


@pytest.mark.parametrize(
    ("dataset", "texts", "value"),
    [
        ("false-colour", ("True", "true", "TRUE", " true "), True),
        ("false-colour", ("False", "false"), False),
        ("uniform-noise", ("0.90", "0.9", ".9"), 0.9),
        ("uniform-noise", ("0", "0.0"), 0.0),
        ("high-pass", ("inf", "Inf"), float("inf")),
        ("high-pass", ("3", "3.0", "3.00"), 3.0),
        ("rotation", ("90", "90.0"), 90.0),
        ("contrast", ("c05", "C05"), "c05"),
        ("sketch", ("NaN", "0", "nan", ""), "NaN"),
    ],
)
def test_a_condition_has_one_value_however_it_is_spelled(dataset, texts, value):
    for text in texts:
        found = model_vs_human.canonical(dataset, text)
        assert found == value and type(found) is type(value), text


@pytest.mark.parametrize(("dataset", "text"), [("false-colour", "0"), ("uniform-noise", "0.91"), ("rotation", "left"), ("contrast", "c5")])
def test_unknown_conditions_are_an_error_that_lists_them(dataset, text):
    with pytest.raises(ValueError, match=f"condition '{text}' is not one of {dataset}'s: "):
        model_vs_human.canonical(dataset, text)


def test_names_are_parsed():
    name = "dnn/session-1/0001_cop_dnn_c30_cat_40_n02123597_15508.png"
    assert model_vs_human.condition_text("contrast", name) == "c30"
    assert model_vs_human.image_id(name) == "n02123597_15508.png"
    assert model_vs_human.image_id("0002_s5n_s01_0_bird_00_bird2-clock3.png") == "bird2-clock3.png"
    assert model_vs_human.image_id("bird/bird2-clock3.png") == "bird2-clock3.png"
    assert model_vs_human.condition_text("cue-conflict", "bird/bird2-clock3.png") == "NaN"
    with pytest.raises(ValueError, match=r"contrast: image 'a_b\.png' names no condition; names are <trial>"):
        model_vs_human.condition_text("contrast", "a_b.png")


def test_sets_that_are_there_are_evaluated_and_never_resized(tmp_path, capsys):
    for i, category in enumerate(SIXTEEN):
        condition = ("true", "False")[i % 2]
        image(tmp_path / "false-colour" / "dnn" / "session-1" / f"{i:04d}_fc_dnn_{condition}_{category}_00_n01_{i}.png", i)
        image(tmp_path / "cue-conflict" / category / f"{category}1-{SIXTEEN[i - 1]}2.png", i)
    for i in (3, 1):
        image(tmp_path / "sketch" / f"{i:04d}_ske_dnn_0_{SIXTEEN[i]}_00_x-{i}.png", i)
    (tmp_path / "unknown").mkdir()
    source = opened(tmp_path, decision="sixteen_mean_logit", zoom=True)
    assert list(source.sets) == ["mvh_cue_conflict", "mvh_false_colour", "mvh_sketch"]
    for split, role, decision, *_ in source.sets.values():
        assert role == "ood" and decision == "sixteen_mean_logit" and split.image.shape[1:] == (8, 8, 3)
        np.testing.assert_array_equal(split.image[:, 0, 0, 0], split.label)
    assert source.sets["mvh_sketch"].split.label.tolist() == [1, 3]
    np.testing.assert_array_equal(source.sets["mvh_cue_conflict"].split.bias, np.roll(np.arange(16), 1))
    names = source.sets["mvh_false_colour"].split.name
    np.testing.assert_array_equal(model_vs_human.kept("mvh_false_colour", names), np.arange(16) % 2 == 1)
    told = capsys.readouterr().err
    assert "false-colour has 16 images, and the published set 1120" in told and "sketch has 2 images, and the published set 800" in told


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other/x.png", "has none of these sub-folders: colour, contrast"),
        ("contrast/0001_cop_dnn_c31_cat_40_1.png", "condition 'c31' is not one of contrast's: c100"),
        ("contrast/0001_cop_dnn_c30_cow_40_1.png", "the file name must contain one of the classes airplane"),
        ("sketch/cat/1.png", "mvh_sketch has the wrong classes: it lacks airplane"),
        ("edge/readme.txt", "edge contains no image"),
    ],
)
def test_folders_that_cannot_be_used_are_an_error(tmp_path, name, message):
    image(tmp_path / name) if name.endswith(".png") else (tmp_path / name).parent.mkdir(parents=True)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        opened(tmp_path)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone is not a folder with any of these sub-folders: colour"):
        opened(tmp_path / "gone")


def test_the_accuracy_over_kept_conditions_is_of_these_sets_alone(tmp_path):
    """Of four images the two whose condition counts; a set of the same images under another name has none."""
    names = [f"000{i}_cop_dnn_{condition}_cat_00_{i}.png" for i, condition in enumerate(("c100", "c30", "c10", "c01"))]
    (tmp_path / "config.json").write_text(json.dumps({"name": "erm"}))
    sets = {name: {"role": "ood", "decision": "argmax"} for name in ("mvh_contrast", "mvh_edge", "contrast")}
    (tmp_path / "responses").mkdir()
    (tmp_path / "responses" / "sets.json").write_text(
        json.dumps({"data": {"name": "imagenet", "cue": "texture"}, "classes": ["a", "b"], "sets": sets})
    )
    for name in sets:
        folder = tmp_path / "responses" / name
        folder.mkdir()
        pd.DataFrame({"name": names, "label": 1, "cue": -1}).to_csv(folder / "images.csv", index=False)
        np.savez(folder / "1.npz", response=[[0, 1, 0, 0], [1, 1, 1, 0]], seeds=[0, 1], alive=[True, True])
    found = metrics.scores(tmp_path).set_index(["dataset", "metric", "run"]).sort_index()[["value", "n_total"]]
    assert found.loc[("mvh_contrast", "kept_accuracy")].to_numpy().tolist() == [[0.5, 2], [1, 2]]
    assert found.loc[("mvh_edge", "kept_accuracy")].equals(found.loc[("mvh_edge", "accuracy")])
    assert ("contrast", "kept_accuracy", 0) not in found.index
    assert "kept_accuracy" not in measures.measure(measures.Answers(np.ones((1, 2), int), np.ones(2, int), np.full(2, -1)))


def test_the_table_needs_no_jax(tmp_path):
    code = "import sys, jaxbed.data.model_vs_human, jaxbed.stats.consistency.main; sys.exit('jax' in sys.modules)"
    assert command(tmp_path, "-c", code).returncode == 0
