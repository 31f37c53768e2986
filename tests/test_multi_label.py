"""Images with several classes, or none: targets, losses, measures, the whole command, and what refuses them."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pandas as pd
import pytest
import tiny
from PIL import Image

from jaxbed import main
from jaxbed.data import folder, held_out, remarks
from jaxbed.data import source as sources
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split
from jaxbed.evaluation import answers, label_lists, measures, metrics, multi_label, pools
from jaxbed.measures import main as measuring
from jaxbed.methods import augmix, noise2net
from jaxbed.methods.parts import losses
from jaxbed.stats import main as statistics
from jaxbed.stats.figures import drawing
from jaxbed.stats.selection import rules
from jaxbed.system import ending
from jaxbed.training import program, train
from jaxbed.tuning import sweep

A, SCORES_A = (1, 0, 1, 1, 0), (0.9, 0.8, 0.7, 0.4, 0.1)
B, SCORES_B = (0, 1, 0, 0, 1), (0.6, 0.5, 0.4, 0.3, 0.2)


def given(targets, scores) -> measures.Answers:
    """The answers of one seed, or of several, where scores are [S, n, classes]."""
    scores = np.array(scores, np.float16)
    scores = scores if scores.ndim == 3 else scores[None]
    none = np.full(len(targets), -1)
    return measures.Answers(scores.argmax(-1), none, none, scores=scores, targets=np.array(targets, np.uint8))


def split_of(targets, first: int = 0) -> Split:
    targets = np.array(targets, np.uint8)
    image = np.arange(first, first + len(targets), dtype=np.uint8)[:, None, None, None].repeat(48, 3).reshape(-1, 4, 4, 3)
    return Split(image, targets, np.full(len(targets), -1, np.int32), np.arange(len(targets)).astype(str))


def source_of(split: Split, **options) -> Source:
    sets = {"val": EvaluationSet(split, "val", **options)}
    return Source("clothes", ("vest", "shorts", "skirt"), split, sets, scale=lambda image: image / 255, facts={})


TARGETS = [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]]


# Measures


def test_areas_by_hand():
    for score, positive, area, precision in (
        (SCORES_A, A, 0.7638889, 0.8055556),
        (SCORES_B, B, 0.2875, 0.45),
        ((0.5, 0.5, 0.5, 0.2), (1, 0, 1, 0), 0.8333333, 0.6666667),  # equal scores share a point
    ):
        score, positive = np.array(score), np.array(positive) == 1
        assert multi_label.pr_auc(score, positive) == pytest.approx(area, abs=1e-7)
        assert multi_label.average_precision(score, positive) == pytest.approx(precision, abs=1e-7)


def test_means_over_classes_by_hand_and_a_class_without_positives_has_no_weight():
    both = np.stack([A, B], 1), np.stack([SCORES_A, SCORES_B], 1)
    expected = {"pr_auc_weighted": 0.5733333, "ap_weighted": 0.6633333, "ap_macro": 0.6277778}
    for extra in (np.zeros((5, 0)), np.zeros((5, 1))):
        found = measures.measure(given(*(np.hstack([array, extra]) for array in both)))
        assert {name: value.value[0] for name, value in found.items()} == pytest.approx(expected, abs=1e-7)
    assert measures.measure(given(np.zeros((5, 2)), both[1])) == {}
    macro = multi_label.over_classes(both[1][None], both[0], multi_label.pr_auc, weighted=False)
    assert macro == pytest.approx([0.5256944], abs=1e-7)


def test_each_seed_is_measured_alone_and_one_that_did_not_answer_has_no_score():
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(3, 20, 4)), rng.integers(0, 2, (20, 4))
    scores[1, 3] = np.nan
    together = measures.measure(given(targets, scores))
    for name, counts in together.items():
        assert np.isnan(counts.value).tolist() == [False, True, False]
        assert counts.value[2] == measures.measure(given(targets, scores[2]))[name].value[0]


# Targets


def test_binary_cross_entropy_and_right_decisions():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(5, 3)).astype(np.float32) * 4, rng.integers(0, 2, (5, 3)).astype(np.float32)
    p = 1 / (1 + np.exp(-logits.astype(float)))
    expected = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean(1)
    np.testing.assert_allclose(losses.cross_entropy(logits, targets), expected, rtol=1e-4)
    np.testing.assert_allclose(losses.accuracy(logits, targets), ((logits > 0) == targets).mean(), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": np.array(TARGETS, np.uint8)[:, :2]}, r"\[n, 3\] of zeros and ones, but are uint8 \[4, 2\] up to 1"),
        ({"label": np.array(TARGETS, np.uint8) * 2}, "up to 2"),
        ({"label": np.array(TARGETS, float)}, "but are float64"),
        ({"bias": np.zeros(4, np.int32)}, "set train: images with several classes have no bias"),
    ],
)
def test_targets_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        source_of(split_of(TARGETS)._replace(**change))


def test_sets_are_all_multi_label_or_none_is_and_have_no_other_question():
    plain = split_of(TARGETS)._replace(label=np.zeros(4, np.int32))
    with pytest.raises(ValueError, match=r"set val has targets \[n, classes\], and the training set labels \[n\]: give all sets the same"):
        dataclasses.replace(source_of(split_of(TARGETS)), train=plain)
    with pytest.raises(ValueError, match="set val: a multi-label set has the decision argmax"):
        source_of(split_of(TARGETS), anomaly=np.array([True, False, False, False]))


def test_such_sets_are_described_and_divided():
    source = source_of(split_of(TARGETS))
    expected = "train: 4 images, 1 of several classes, 1 of none; images with each class 2 2 0"
    assert sources.describe("train", source.train) == expected and sources.cells(source.train) == {}
    assert remarks.odd_classes(source.train, "val", source) == "no image has the class skirt: it has weight 0 in this set's scores"
    assert remarks.few_conflicting(source.train, source.class_names) == ""
    assert folder.card({"train": source.train}, source.class_names).splitlines()[1:] == [
        "  class    train",
        "  vest         2",
        "  shorts       2",
        "  skirt        0",
        "  all          4",
    ]
    assert held_out.divide(source.train, 0.5, 0).sum() == 2
    assert sweep.check_criterion("best_val", tiny.mlp_config(), source) == "val"
    with pytest.raises(ValueError, match="clothes has 0 and 0: take --criterion best_val"):
        sweep.check_criterion("ac_score", tiny.mlp_config(), source)


def test_lists_are_targets_and_back():
    lists = label_lists.of_targets(np.array(TARGETS, np.uint8))
    assert label_lists.cells(lists) == ["0", "0|1", "", "1"]
    np.testing.assert_array_equal(label_lists.targets(lists, 3), TARGETS)
    with pytest.raises(ValueError, match="a list names class 1, and there are 1, from 0 on"):
        label_lists.targets(lists, 1)


# Methods


def test_methods_take_several_classes_where_they_say_so():
    source = source_of(split_of(TARGETS))
    taken = {name for name, method in tiny.METHODS.items() if getattr(method, "multi_label", False)}
    assert taken == {"erm", "noise2net"} and augmix.Config(consistency=False).multi_label
    for name in sorted(tiny.METHODS.keys() - taken):
        message = f"{name} learns one class per image, and clothes is multi-label .*: take ERM, .*consistency=False"
        with pytest.raises(ValueError, match=message):
            program.make_method(tiny.mlp_config(name, batch_size=2), source)
    with pytest.raises(ValueError, match="all 2 training images of clothes are of class 'vest' and 'shorts'"):
        program.make_method(tiny.mlp_config(batch_size=2), source_of(split_of(TARGETS[1:2] * 2)))


@pytest.mark.parametrize("method", [augmix.Config(consistency=False), noise2net.Config()], ids=["augmix", "noise2net"])
def test_a_step_takes_targets(method):
    made, batch = tiny._method_and_batch(method)
    batch = {**batch, "label": np.zeros((8, 16), np.float32)}
    state = jax.eval_shape(made.init, jax.random.key(0), batch)
    metrics = jax.eval_shape(made.step, state, batch, jax.random.key(0))[1]
    assert {name: value.shape for name, value in metrics.items()} == {"loss": (), "accuracy": ()}


def test_seeds_that_train_and_answer_at_once_are_each_alone():
    rng = np.random.default_rng(0)
    source = source_of(split_of(rng.integers(0, 2, (16, 3)))._replace(image=rng.integers(0, 256, (16, 4, 4, 3), np.uint8)))

    def scores(seeds: int, first: int) -> np.ndarray:
        cfg = tiny.mlp_config(batch_size=8, seeds=seeds, first_seed=first, optim=tiny.Optim(lr=0.1))
        ready = tiny.program(cfg, source)
        run, batches = train.start(cfg, ready), train.feeds_from(cfg, ready, 0)
        for _ in range(2):
            run = ready.advance(run, ready.arrays, next(batches), ready.seeds.array)
        (pool,) = pools.pool(ready.method.predict, ready.seeds, source, source.sets, 16)
        (block,) = pool.blocks()
        return np.asarray(pool.answers(run.state.params, run.state.stats, block)["scores"])[:, 0]

    together = scores(2, 0)
    assert together.shape == (2, 16, 3) and np.abs(together[0] - together[1]).max() > 0.01
    for seed in (0, 1):
        np.testing.assert_allclose(together[seed], scores(1, seed)[0], rtol=1e-3, atol=1e-4)


# The whole command

CONFIG = """
import dataclasses
from jaxbed.methods import erm, mixing
from jaxbed.models import mlp
from jaxbed.presets import datasets

def get_config(method="erm"):
    method = {"erm": erm.Config(), "mixup": mixing.Mixup()}[method]
    cfg = datasets.build(method.__module__, method, "folder")
    data = dataclasses.replace(cfg.data, size_px=4, threads=1, multi_label=True)
    data = dataclasses.replace(data, augment=dataclasses.replace(data.augment, crop="none"))
    optim = dataclasses.replace(cfg.optim, lr=0.02)
    return dataclasses.replace(cfg, net=mlp.Config((8,)), data=data, optim=optim, epochs=6, batch_size=16, seeds=2)
"""
COLOURS = ("red", "green", "blue")
SIZES = {"train": 96, "val": 12, "test": 24, "dark": 12}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    """Images that show any of three colours, in which all are in the table."""
    home, rng, lines = tmp_path_factory.mktemp("home"), np.random.default_rng(0), []
    (home / "images").mkdir()
    for name, size in SIZES.items():
        for number in range(size):
            shown = rng.random(3) < 0.4
            pixels = rng.integers(0, 60, (4, 4, 3)) + shown * (80 if name == "dark" else 180)
            Image.fromarray(pixels.astype(np.uint8)).save(home / "images" / f"{name}{number}.png")
            lines.append(f"{name}{number}.png,{'|'.join(np.array(COLOURS)[shown])},{name}\n")
    (home / "table.csv").write_text("file,label,split\n" + "".join(lines))
    (home / "own.py").write_text(CONFIG)
    return home


WORDS = ("--config.data.train=images", "--config.data.table=table.csv")


def jaxbed(*words) -> int:
    return ending.of(lambda: main.main([*map(str, words)]))


@pytest.fixture(scope="module")
def trained(home) -> pathlib.Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert jaxbed("--config=own.py:erm", *WORDS, "--workdir=run") == 0
    return home / "run"


def messages(workdir: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines()]


def test_training_learns_several_classes_and_stats_compare_them(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    assert statistics.main([str(trained), "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["metric"] == "pr_auc_weighted"
    assert not (tmp_path / "out" / "confusions.csv").exists()
    text = capsys.readouterr().out
    assert "pr_auc_weighted" in text and "best_val" in text
    frame = metrics.scores(trained)
    assert set(frame["metric"]) == {"pr_auc_weighted", "ap_weighted", "ap_macro"} and set(frame["epoch"]) == set(range(1, 7))
    last = frame[(frame["epoch"] == 6) & (frame["metric"] == "pr_auc_weighted")].set_index(["dataset", "run"])["value"]
    assert last.loc["test"].min() > 0.9
    val = frame[(frame["role"] == "val") & (frame["metric"] == "pr_auc_weighted")].pivot(index="epoch", columns="run", values="value")
    chosen = rules.choose(frame, "best_val").set_index("run")
    assert chosen["score"].to_dict() == pytest.approx(val.max().to_dict(), abs=1e-8)
    assert rules.choose(frame, "last")["score"].tolist() == pytest.approx(val.loc[6].tolist())
    assert metrics.validation(trained).startswith("after epoch 6: val pr_auc_weighted ")


def test_the_log_shows_the_validation_images_and_the_share_of_right_decisions(trained):
    epochs = [line for line in messages(trained) if line["kind"] == "epoch"]
    frame = metrics.scores(trained)
    val = frame[(frame["dataset"] == "val") & (frame["metric"] == "pr_auc_weighted")]
    for line in epochs:
        stored = val[val["epoch"] == line["epoch"]]["value"].tolist()
        assert line["metrics"]["val/pr_auc_weighted"] == pytest.approx(stored, abs=0.05)  # rounding may change the order of equals
    first, last = (epochs[i]["metrics"]["accuracy"] for i in (0, -1))
    assert 1 >= min(last) > max(first) > 0.3
    text = "\n".join(line["text"] for line in messages(trained) if line["kind"] == "message")
    assert "images per class and set, several classes per image:" in text and "of several classes" in text


def test_answers_hold_scores_and_lists(trained, home):
    about = answers.read_sets(trained / "responses" / "sets.json")
    assert about["data"]["multi_label"] is True and about["classes"] == sorted(COLOURS) and "training_cells" not in about
    images = pd.read_csv(trained / "responses" / "test" / "images.csv", dtype=str, keep_default_na=False)
    table = pd.read_csv(home / "table.csv", keep_default_na=False).set_index("file")["label"]
    for row in images.itertuples():
        assert row.label == "-1" and {about["classes"][int(y)] for y in row.targets.split("|") if y} == set(table[row.name].split("|")) - {
            ""
        }
    stored = answers.read_answers(trained / "responses" / "test" / "6.npz", SIZES["test"])
    assert stored["scores"].dtype == np.float16 and stored["scores"].shape == (2, SIZES["test"], 3) and "confidence" not in stored
    scores = stored["scores"].astype(float)
    assert (np.take_along_axis(scores, stored["response"][..., None].astype(int), -1)[..., 0] == scores.max(-1)).all()


def test_scores_that_were_changed_or_do_not_fit_are_noticed(trained, tmp_path):
    with np.load(trained / "responses" / "test" / "6.npz") as stored:
        content = dict(stored)
    more, fewer = content["scores"] + np.float16(1), content["scores"][:, 1:]
    for scores, message in ((more, "not those that were written"), (fewer, "expected is float16")):
        np.savez(tmp_path / "6.npz", **{**content, "scores": scores})
        with pytest.raises(ValueError, match=message):
            answers.read_answers(tmp_path / "6.npz", SIZES["test"])


def test_a_table_of_images_that_a_spreadsheet_saved_is_the_same(trained, tmp_path):
    path = trained / "responses" / "test" / "images.csv"
    facts = answers.read_sets(trained / "responses" / "sets.json")["sets"]["test"]
    (tmp_path / "responses" / "test").mkdir(parents=True)
    saved = pd.read_csv(path, dtype=str, keep_default_na=False)
    saved[["cue", "targets", "label", "name"]].to_csv(tmp_path / "responses" / "test" / "images.csv", sep=";", index=False)
    for one, other in zip(metrics._images(trained, "test", facts), metrics._images(tmp_path, "test", facts), strict=True):
        np.testing.assert_array_equal(one, other)
    saved.assign(targets="1").to_csv(tmp_path / "responses" / "test" / "images.csv", index=False)
    with pytest.raises(ValueError, match="other lists of classes in its column 'targets'"):
        metrics._images(tmp_path, "test", facts)


def test_what_asks_for_one_class_refuses(trained, home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    assert jaxbed("--config=own.py:mixup", *WORDS, "--workdir=other") == 2 and not (home / "other").exists()
    assert "learns one class per image" in capsys.readouterr().err
    assert ending.of(lambda: measuring.main([str(trained), "--measures", "spectral"])) == 2
    assert "multi-label" in capsys.readouterr().err
    with pytest.raises(ValueError, match="leave test out"):
        metrics.trials(trained, "test", 6)
    chosen = pd.DataFrame({"algorithm": [messages(trained)[0]["config"]["name"]], "run": [0], "dataset": ["test"], "epoch": [6]})
    assert metrics.confusions(trained, chosen).empty


# Tables


def opened(home, tmp_path, text: str, **fields) -> Source:
    (tmp_path / "own.csv").write_text(text)
    fields = {"multi_label": True, **fields}
    return folder.Config(train=str(home / "images"), table=str(tmp_path / "own.csv"), size_px=4, threads=1, **fields).open()


ROWS = "file,label,split\ntrain0.png,red | blue,train\ntrain1.png,blue,train\ntrain2.png,,train\nval0.png,red,val\n"


def test_labels_are_lists_of_classes_in_the_order_that_is_given(home, tmp_path):
    source = opened(home, tmp_path, ROWS)
    assert source.class_names == ("blue", "red") and source.train.label.tolist() == [[1, 1], [1, 0], [0, 0]]
    ordered = opened(home, tmp_path, ROWS, classes=("red", "green", "blue"))
    assert ordered.train.label.tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 0]] and ordered.class_names == ("red", "green", "blue")
    assert any("no training image has, so that they cannot be learned: green" in note for note in ordered.notes)
    divided = opened(home, tmp_path, ROWS.replace(",val\n", ",train\n"), val_share=0.5)
    assert [len(divided.train.label), len(divided.sets["val"].split.label)] == [2, 2] and any("at random" in note for note in divided.notes)


def test_a_name_may_hold_the_separator_in_other_tables(home, tmp_path):
    text = "file,label\n" + "".join(f"train{i}.png,{name}\n" for i, name in enumerate(["red|blue", "red", "blue"] * 2))
    source = opened(home, tmp_path, text, multi_label=False)
    assert source.class_names == ("blue", "red", "red|blue") and not source.multi_label
    assert any("'red|blue' reads like a list of classes: if it is one, set --config.data.multi_label=True" in note for note in source.notes)


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        (ROWS.replace("red |", "red | red |"), {}, r"line 2: label = 'red \| red \| blue' is no list of classes"),
        (ROWS.replace("red |", "red | |"), {}, "line 2: .* is no list of classes: name each of its classes once"),
        (ROWS.replace("red,val", "pink,val"), {}, "line 5: label = 'pink' is not a class of the training set"),
        (ROWS, {"classes": ("red",)}, "line 2: label = 'blue' is not one of data.classes"),
        (ROWS.replace(",train\n", ",night\n"), {}, "no row for the training set"),
        ("file,label\ntrain0.png,\ntrain1.png,\n", {}, "no label in its rows for the training set"),
        (
            ROWS.replace("split", "split,bias").replace("val\n", "val,red\n").replace("train\n", "train,\n"),
            {},
            "have none, leave the column out",
        ),
        (ROWS, {"test": "elsewhere"}, "sub-folders give one class per image, so list all sets in data.table"),
        (ROWS, {"table": ""}, "data.multi_label = True is for images that a table lists"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(home, tmp_path, text, fields, message):
    (tmp_path / "own.csv").write_text(text)
    given = {"train": str(home / "images"), "table": str(tmp_path / "own.csv"), "multi_label": True, "size_px": 4, "threads": 1, **fields}
    with pytest.raises(ValueError, match=message):
        folder.Config(**given).open()
