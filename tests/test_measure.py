"""`jaxbed measure`: the same answers in any batch, on any mesh and with any other conditions; kept, and given anew where they must be."""

import dataclasses
import os
import shutil
import signal

import jax
import numpy as np
import pandas as pd
import pytest
import tiny
from PIL import Image

from jaxbed import config, parallel
from jaxbed.data import shapes
from jaxbed.evaluation.answers import read_answers, write
from jaxbed.measures import answering, conditions, corruption_error, critical_band, imagenet_c, main, scores
from jaxbed.stats import analysis
from jaxbed.stats.options import Options
from jaxbed.stats.reading import records
from jaxbed.training import members, train

DATA = shapes.Config(train_images=64, val_images=16, test_images=48)
SET = "in_distribution"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tiny.evaluated(tiny.mlp_config(data=DATA, epochs=2), tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def measured(trained, tmp_path_factory):
    """(the workdir, the table for jaxbed correlate)."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(trained, folder / "run")
    words = ("--select", "last", "--measures", "shape_bias,spectral,critical_band", "--out", str(folder / "table.csv"))
    assert main.main([str(folder / "run"), *words]) == 0
    return folder / "run", folder / "table.csv"


def command(capsys, *words):
    code = main.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_what_is_measured_is_said_on_stderr_and_only_then(trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / "run")
    words, shown = (str(run), "--measures", "spectral", "--sets", f"{SET},edge"), []
    for said in ([f"measuring erm on {name}: spectral, 23 conditions" for name in (SET, "edge")], []):
        assert main.main(words) == 0
        captured = capsys.readouterr()
        assert captured.err.splitlines() == [f"jaxbed measure: {line} ..." for line in (f"reading {run}", *said)]
        shown.append(captured.out)
    assert shown[0] == shown[1] and " ..." not in shown[0]


def answers(workdir, condition, epoch=2):
    return read_answers(workdir / "measures" / SET / condition / f"{epoch}.npz", DATA.test_images)


def test_unchanged_images_get_the_answers_of_evaluation(measured):
    workdir, _ = measured
    with np.load(workdir / "responses" / SET / "2.npz") as evaluated:
        np.testing.assert_array_equal(answers(workdir, "clean")["response"], evaluated["response"])


def test_every_cell_is_answered_and_most_differ_from_clean(measured):
    workdir, _ = measured
    folders = {path.name for path in (workdir / "measures" / SET).iterdir() if path.is_dir()}
    assert folders == {condition.name for condition in conditions.of(("spectral", "critical_band"), (32, 32, 3))}
    assert len(folders) == 1 + 22 + 1 + 4 * 4
    clean = answers(workdir, "clean")["response"]
    np.testing.assert_array_equal(answers(workdir, "high_pass_0.99")["response"], clean)  # nothing is below a hundredth of 16 cycles
    assert (answers(workdir, "low_pass_0.1")["response"] != clean).any() and (answers(workdir, "grey")["response"] != clean).any()


def test_the_table_has_what_the_answers_say(measured):
    workdir, table = measured
    rows = pd.read_csv(workdir / "measures.csv")
    label = pd.read_csv(workdir / "responses" / SET / "images.csv")["label"].to_numpy()
    for condition in ("clean", "low_pass_0.3", "band_2_sigma_0.04"):
        right = (answers(workdir, condition)["response"] == label).sum(1)
        chosen = rows[(rows["metric"] == condition) & (rows["dataset"] == SET)]
        assert chosen["n_correct"].tolist() == right.tolist() and (chosen["epoch"] == 2).all() and (chosen["role"] == "test").all()
    value = rows.set_index(["metric", "run"])["value"]
    shares = [value[f"low_pass_{f}", 0] / value["clean", 0] for f in (0.1, 0.2, 0.3, 0.4, 0.5)]
    assert value["low_freq", 0] == pytest.approx(np.mean(shares))
    wide = pd.read_csv(table)
    assert wide["run"].tolist() == [0, 1] and wide["low_freq"].tolist() == value["low_freq"].tolist()
    assert {"shape_bias:cue_conflict", "shape_bias:stylised", "bandwidth_norm"} <= set(wide)
    channels = pd.read_csv(workdir / "measures" / SET / "critical_band.csv", dtype={"thresholds": str})
    assert len(channels) == 4 and channels["thresholds"].str.fullmatch("[0-4]{4}").all() and channels["status"].notna().all()


def test_jaxbed_stats_takes_the_epochs_that_were_measured(measured):
    """With the workdir or its table, whatever rule chooses epochs: only one was measured."""
    workdir, _ = measured
    expected = pd.read_csv(workdir / "measures.csv").query("metric == 'low_freq'")["value"].tolist()
    for path in (workdir, workdir / "measures.csv"):
        for rule in ("best_val", "last") if path == workdir else ("last",):
            selected = analysis.analyse(records.load([path]), Options(metric="low_freq", select=rule)).selected
            assert selected["value"].tolist() == expected
    assert "low_freq" not in set(analysis.analyse(records.load([workdir])).selected["metric"])


@pytest.mark.parametrize("mesh", [parallel.Mesh(seed=2, data=1), parallel.Mesh(seed=1, data=2)], ids=("rows of seeds", "shared batches"))
def test_the_same_answers_in_other_batches_and_on_other_devices(trained, measured, tmp_path, monkeypatch, mesh):
    load = config.load
    monkeypatch.setattr(config, "load", lambda *given: dataclasses.replace(load(*given), mesh=mesh, eval=config.Eval(batch_size=20)))
    shutil.copytree(trained, tmp_path / "run")
    assert main.main([str(tmp_path / "run"), "--select", "last", "--measures", "critical_band"]) == 0
    for condition in ("clean", "grey", "band_0_sigma_0.16", "band_3_sigma_0.02"):
        np.testing.assert_array_equal(answers(tmp_path / "run", condition)["response"], answers(measured[0], condition)["response"])


def test_what_is_drawn_depends_on_names_alone():
    image = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), np.uint8)
    condition = next(each for each in conditions.of(("critical_band",), (16, 16, 3)) if each.name == "band_1_sigma_0.16")
    words = conditions.words([f"image{i}" for i in range(6)])
    together = np.asarray(conditions.changed(condition, image, words))
    order = [4, 1, 5]
    np.testing.assert_allclose(np.asarray(conditions.changed(condition, image[order], words[order])), together[order], atol=1e-6)
    other = np.asarray(conditions.changed(condition._replace(name="another"), image, words))
    assert np.abs(other - together).max() > 0.1 and len(np.unique(words, axis=0)) == 6
    again = np.asarray(conditions.changed(condition, image[:1].repeat(2, 0), words[:2]))
    assert np.abs(again[0] - again[1]).max() > 0.1


def test_answers_are_kept_and_given_anew_where_a_condition_changed(measured, tmp_path, monkeypatch, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(measured[0], workdir)
    words = (workdir, "--select", "last", "--measures", "spectral")
    before = {path: path.stat().st_mtime_ns for path in (workdir / "measures").rglob("*.npz")}
    assert command(capsys, *words)[0] == 0
    assert before == {path: path.stat().st_mtime_ns for path in (workdir / "measures").rglob("*.npz")}
    monkeypatch.setattr(conditions, "VERSION", 2)
    path = workdir / "measures" / SET / "clean" / "2.npz"
    assert command(capsys, *words)[0] == 0 and path.stat().st_mtime_ns != before[path]
    path.write_bytes(path.read_bytes()[:-10])  # damaged
    assert command(capsys, *words)[0] == 0
    np.testing.assert_array_equal(answers(workdir, "clean")["response"], answers(measured[0], "clean")["response"])


def test_corruptions_are_answered_at_all_severities(trained, tmp_path, monkeypatch, capsys):
    """Of ImageNet-C here two and frost, for which photographs are given."""
    few = {name: imagenet_c.CORRUPTIONS[name] for name in ("brightness", "impulse_noise")}
    monkeypatch.setitem(conditions.CORRUPTIONS, "imagenet_c", few)
    monkeypatch.setitem(conditions.COMPLETE, "imagenet_c", (*few, "frost"))
    shutil.copytree(trained, tmp_path / "run")
    glass = tmp_path / "glass"
    glass.mkdir()
    for i, side in enumerate((40, 64)):
        Image.fromarray(np.full((side, 50, 3), 100 * (i + 1), np.uint8)).save(glass / f"frost{i}.png")
    words = (tmp_path / "run", "--select", "last", "--measures", "imagenet_c")
    code, said = command(capsys, *words)
    assert code == 0 and "without photographs of frozen glass (--frost DIR) there is no frost, and so no mCE" in said
    without = pd.read_csv(tmp_path / "run" / "measures.csv").set_index(["metric", "run"])["value"]
    code, said = command(capsys, *words, "--frost", glass)
    assert code == 0 and "no frost" not in said
    value = pd.read_csv(tmp_path / "run" / "measures.csv").set_index(["metric", "run"])["value"]
    for values, names, mean in ((without, few, "imagenet_c_jax_without_frost"), (value, [*few, "frost"], "imagenet_c_jax")):
        cells = [f"{name}_{severity}" for name in names for severity in (1, 2, 3, 4, 5)]
        assert values[mean, 1] == pytest.approx(np.mean([values[cell, 1] for cell in cells]))
    assert ("imagenet_c_jax", 1) not in without.index
    assert not any("mce" in metric for metric, _ in value.index)  # these are not ImageNet's classes


def test_programs_that_are_compiled_together_are_those_that_conditions_run():
    applied = conditions.of(("spectral",), (8, 8, 3))
    image, words = np.zeros((2, 8, 8, 3), np.uint8), conditions.words(["a", "b"])
    conditions._changed.clear_cache()
    conditions.compile_together(applied, image, words)
    compiled = conditions._changed._cache_size()
    for condition in applied:
        conditions.changed(condition, image, words)
    assert conditions._changed._cache_size() == compiled == 3 < len(applied)  # unchanged, low-pass, high-pass


def test_what_is_stored_of_a_corruption_is_bytes():
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    condition = next(each for each in conditions.of(("imagenet_c",), (32, 32, 3)) if each.name == "impulse_noise_3")
    changed = np.asarray(conditions.changed(condition, image, conditions.words(["a", "b"]))) * 255
    np.testing.assert_allclose(changed, changed.round(), atol=1e-4)
    assert 0.05 < (changed.round() != image).mean() < 0.15


def test_mce_needs_all_fifteen_corruptions_and_imagenets_classes(tmp_path):
    names = [*corruption_error.MAIN, *corruption_error.EXTRA]
    applied = ["clean", *(f"{name}_{severity}" for name in names for severity in (1, 2, 3, 4, 5))]
    label, right = np.arange(10), {"clean": 8}
    for condition in applied:
        response = np.where(label < right.get(condition, 4), label, -1)[None].astype(np.int16)
        (tmp_path / condition).mkdir()
        content = {"response": response, "seeds": np.array([0], np.int32), "alive": np.array([True]), "checkpoint": "a", "asked": "b"}
        write(tmp_path / condition / "1.npz", content)
    given = (tmp_path, label, (32, 32, 3), ("imagenet_c",), applied, {0: 1})
    value = scores.of_set(*given, baseline=scores.ALEXNET).table.set_index("metric")["value"]
    expected = corruption_error.corruption_error(dict.fromkeys(corruption_error.MAIN, 0.6), 0.2)
    assert (value["mce_jax"], value["relative_mce_jax"]) == (pytest.approx(expected.mce), pytest.approx(expected.relative_mce))
    assert value["imagenet_c_jax"] == pytest.approx(0.4) and value["imagenet_c_15_jax"] == pytest.approx(0.4)
    assert "mce_jax" not in set(scores.of_set(*given).table["metric"])


def test_what_was_answered_before_a_signal_is_not_answered_again(trained, tmp_path, monkeypatch):
    """Stopped after the first pass, the same command goes on with the second."""
    monkeypatch.setattr(answering, "TOGETHER", 12)
    shutil.copytree(trained, tmp_path / "run")
    words = [str(tmp_path / "run"), "--select", "last", "--measures", "spectral"]
    passes, real = [], answering._batches

    def stopped(*given):
        passes.append(len(passes))
        if len(passes) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from real(*given)

    monkeypatch.setattr(answering, "_batches", stopped)
    assert main.main(words) == 128 + signal.SIGTERM
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "measures").rglob("*.npz")}
    assert len(done) == 12
    assert main.main(words) == 0 and len(passes) == 3
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "measures").rglob("*.npz")}
    assert len(after) == 23 and after.items() >= done.items()


def test_each_seed_answers_with_its_own_epoch_in_one_pass(trained, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    words = [str(workdir), "--measures", "spectral"]
    with monkeypatch.context() as patch:
        patch.setattr(main, "_epochs", lambda *given: [(0, 1), (1, 2)])
        assert main.main(words) == 0
    assert answers(workdir, "clean", 1)["seeds"].tolist() == [0] and answers(workdir, "clean", 2)["seeds"].tolist() == [1]
    for seed, epoch in ((0, 1), (1, 2)):
        with np.load(workdir / "responses" / SET / f"{epoch}.npz") as evaluated:
            np.testing.assert_array_equal(answers(workdir, "clean", epoch)["response"][0], evaluated["response"][seed])
    assert main.main([*words, "--select", "2"]) == 0
    with np.load(workdir / "responses" / SET / "2.npz") as evaluated:
        both = answers(workdir, "clean", 2)
        np.testing.assert_array_equal(both["response"][np.argsort(both["seeds"])], evaluated["response"])
    assert answers(workdir, "clean", 1)["seeds"].tolist() == [0]  # those given before are kept


def test_no_image_is_shown_again_under_a_condition_that_is_answered(measured, tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    shutil.copytree(measured[0], workdir)
    for name in ("clean", "low_pass_0.5", "band_1_sigma_0.16"):
        shutil.rmtree(workdir / "measures" / SET / name)
    shown, real = [], conditions.changed
    monkeypatch.setattr(conditions, "changed", lambda condition, *given: shown.append(condition.name) or real(condition, *given))
    assert main.main([str(workdir), "--select", "last", "--measures", "spectral,critical_band"]) == 0
    assert shown == ["clean", "low_pass_0.5", "band_1_sigma_0.16"]  # one batch


def test_each_seed_counts_at_its_own_epoch(measured):
    workdir, _ = measured
    label = pd.read_csv(workdir / "responses" / SET / "images.csv")["label"].to_numpy()
    folder = workdir / "measures" / SET
    shutil.copyfile(folder / "clean" / "2.npz", folder / "clean" / "1.npz")
    found = scores.of_set(folder, label, (32, 32, 3), (), ("clean",), {0: 1, 1: 2}).table
    assert found["epoch"].tolist() == [1, 2] and found["metric"].tolist() == ["clean", "clean"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--measures", "spectrum"), "--measures: there is no measure 'spectrum'; did you mean spectral?"),
        (("--sets", "imagenet"), "--sets imagenet: shapes has"),
        (("--select", "best"), "--select best: it is best_val, last or the number of an epoch"),
        (("--frost", "nowhere"), "--frost nowhere: there are no photographs"),
        (("--select", "7"), "has no checkpoint of epoch 7; those of epochs 1 to 2 are there"),
    ],
)
def test_what_cannot_be_measured_is_refused(trained, capsys, words, reason):
    code, said = command(capsys, trained, *words)
    assert code == 2 and reason in said, said


def test_grey_images_have_no_critical_band():
    with pytest.raises(ValueError, match="these have 1 channel"):
        conditions.of(("critical_band",), (32, 32, 1))


def test_one_function_is_compiled_for_all_conditions_of_a_kind():
    image, words = np.zeros((2, 12, 12, 3), np.uint8), conditions.words(["a", "b"])
    before = conditions._changed._cache_size()
    for condition in conditions.of(("spectral", "critical_band"), (12, 12, 3)):
        conditions.changed(condition, image, words)
    bands = len({level.rows.coarser.shape for level in (critical_band.band(12, 12, number) for number in range(critical_band.bands(12)))})
    assert conditions._changed._cache_size() - before == 3 + bands  # unchanged, low-pass, high-pass, and bands of one size


def test_the_size_of_a_network_is_of_what_answers():
    """SagNet has a style head and LfF a biased network, which predictions do not read: all have the size of ERM's network."""
    sizes, whole = {}, {}
    for method in ("erm", "sagnet", "lff"):
        cfg = tiny.train_config(method, epochs=1)
        points = members.open_all(cfg)
        made = train.assembled(cfg, points)
        sizes[method] = answering.parameters_read(made, points[0].source)
        whole[method] = sum(leaf.size // 2 for leaf in jax.tree.leaves(made.state.params))
    assert whole["erm"] == sizes["erm"] == sizes["sagnet"] == sizes["lff"] < min(whole["sagnet"], whole["lff"])
