"""`jaxbed measure` with attacks: each seed's network is attacked by itself, in any batch, on any mesh."""

import dataclasses
import shutil

import numpy as np
import pandas as pd
import pytest
import tiny
from PIL import Image

from jaxbed import config, parallel
from jaxbed.data import folder, shapes
from jaxbed.evaluation.answers import read_answers
from jaxbed.measures import attacking, attacks, conditions, main
from jaxbed.models import mlp

DATA = shapes.Config(train_images=128, val_images=16, test_images=48)
RULE = "sixteen_mean_prob"
SET = "in_distribution"
WORDS = ("--select", "last", "--measures", "pgd,pgd_l2,apgd", "--epsilons", "0,1,8", "--epsilons-l2", "0,1")


@pytest.fixture(scope="module", autouse=True)
def short_attacks():
    """Of as many steps as it takes to show which networks and images are attacked."""
    kinds = {
        "pgd_linf": lambda classes: attacks.pgd_linf(6),
        "pgd_l2": lambda classes: attacks.pgd_l2(6, 0.25),
        "apgd_ce": lambda classes: attacks.apgd_ce(steps=6),
        "apgd_dlr": lambda classes: attacks.apgd_targeted_dlr(classes, steps=6, targets=2),
    }
    with pytest.MonkeyPatch.context() as patch:
        for kind, made in kinds.items():
            patch.setitem(attacking.KINDS, kind, made)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    cfg = tiny.mlp_config(data=DATA, net=mlp.Config((32,), dtype="bfloat16"), epochs=4)
    return tiny.evaluated(cfg, tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def attacked(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked") / "run"
    shutil.copytree(trained, folder)
    assert main.main([str(folder), *WORDS]) == 0
    return folder


def response(workdir, condition):
    return read_answers(workdir / "measures" / SET / condition / "4.npz", DATA.test_images)["response"]


def right(workdir, condition):
    label = pd.read_csv(workdir / "responses" / SET / "images.csv")["label"].to_numpy()
    return response(workdir, condition) == label


def test_a_radius_of_zero_leaves_the_answers_of_the_network_in_float32(attacked, trained):
    """They need not be those that it gives in the type it was trained in; radius 0 of all attacks gives the same."""
    for condition in ("pgd_linf_0_best", "pgd_l2_0", "apgd_ce_0", "apgd_dlr_0"):
        np.testing.assert_array_equal(response(attacked, condition), response(attacked, "pgd_linf_0"))
    assert (response(attacked, "pgd_linf_0") == response(attacked, "clean")).mean() > 0.9


def test_accuracy_falls_with_the_radius_and_the_worst_iterate_is_not_better_than_the_last(attacked):
    for kind, radii in (("pgd_linf", (0, 1, 8)), ("pgd_l2", (0, 1))):
        accuracies = [right(attacked, f"{kind}_{radius}_best").mean() for radius in radii]
        assert accuracies == sorted(accuracies, reverse=True) and accuracies[-1] < accuracies[0]
        for radius in radii:
            assert not (right(attacked, f"{kind}_{radius}_best") & ~right(attacked, f"{kind}_{radius}")).any()


def test_an_image_must_survive_both_attacks_of_apgd(attacked):
    rows = pd.read_csv(attacked / "measures.csv").set_index(["metric", "run"])["n_correct"]
    survived = right(attacked, "clean") & right(attacked, "apgd_ce_1") & right(attacked, "apgd_dlr_1")
    assert [rows["apgd_1", 0], rows["apgd_1", 1]] == survived.sum(1).tolist()


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_with_fewer_classes_than_its_second_loss_compares_apgd_is_its_first_alone(tmp_path, capsys, classes):
    """And does not pass for both: nothing has the name of the whole."""
    for index in range(classes * 8):
        place = tmp_path / ("train", "test")[index % 2] / f"class{index // 8}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(index).integers(0, 256, (16, 16, 3), np.uint8)).save(place / f"{index}.png")
    data = folder.Config(train=str(tmp_path / "train"), test=str(tmp_path / "test"), val_share=0.25, size_px=16)
    run = tiny.evaluated(tiny.mlp_config(data=data, epochs=1, batch_size=classes), tmp_path / "run")
    assert main.main([str(run), "--measures", "apgd,pgd", "--report", str(tmp_path / "report")]) == 0
    found, said = set(pd.read_csv(run / "measures.csv")["metric"]), capsys.readouterr().out
    assert {"apgd_ce_0.5", "pgd_linf_0.5"} < found
    assert ({"apgd_0.5", "apgd_dlr_0.5"} & found == set()) == (classes < 4)
    note = f"note: folder has {classes} classes, and apgd's difference of logits needs 4: its other part, apgd_ce, is measured alone"
    assert (note in said) == (classes < 4), said


@pytest.mark.parametrize("mesh", [parallel.Mesh(seed=2, data=1), parallel.Mesh(seed=1, data=2)], ids=("rows of seeds", "shared batches"))
def test_the_same_answers_in_other_batches_and_on_other_devices(trained, attacked, tmp_path, monkeypatch, mesh):
    """But for an image whose logits are all but equal, which rounding may decide."""
    load = config.load
    monkeypatch.setattr(config, "load", lambda *given: dataclasses.replace(load(*given), mesh=mesh, eval=config.Eval(batch_size=20)))
    shutil.copytree(trained, tmp_path / "run")
    assert main.main([str(tmp_path / "run"), "--select", "last", "--measures", "pgd", "--epsilons", "8"]) == 0
    assert (response(tmp_path / "run", "pgd_linf_8") == response(attacked, "pgd_linf_8")).mean() > 0.97


def test_images_without_a_gradient_are_counted_and_said(attacked, capsys, tmp_path, monkeypatch):
    """Here because rounding to few levels hides it."""
    workdir = tmp_path / "run"
    shutil.copytree(attacked, workdir)
    stored = read_answers(workdir / "measures" / SET / "pgd_linf_1" / "4.npz", DATA.test_images)
    assert stored["without_gradient"].dtype == bool and stored["without_gradient"].shape == stored["response"].shape
    monkeypatch.setattr(attacks, "_is_zero", lambda gradient: np.arange(len(gradient)) % 2 == 0)
    shutil.rmtree(workdir / "measures" / SET / "pgd_linf_1")
    assert main.main([str(workdir), "--select", "last", "--measures", "pgd", "--epsilons", "1"]) == 0
    assert "50.0% of images have a gradient of exactly zero where an attack starts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--sets", "stylised"), f"pgd attacks the classes that a network has, and stylised is decided by {RULE}"),
        (("--epsilons=-1",), "radii are 0 to 255"),
        (("--epsilons", "half"), "radii are numbers, separated by commas"),
    ],
)
def test_what_cannot_be_attacked_is_refused(trained, capsys, monkeypatch, words, reason):
    if words[0] == "--sets":
        opened = shapes.Config.open

        def of_sixteen(cfg):
            source = opened(cfg)
            return dataclasses.replace(source, sets={name: each._replace(decision=RULE) for name, each in source.sets.items()})

        monkeypatch.setattr(shapes.Config, "open", of_sixteen)
    try:
        code = main.main([str(trained), "--measures", "pgd", *words])
    except SystemExit as error:  # of argparse
        code = error.code
    assert code == 2 and reason in capsys.readouterr().err


def test_other_constants_of_an_attack_are_another_question(monkeypatch):
    applied = conditions.of(["pgd", "apgd"], (32, 32, 3))
    before = [condition.identity for condition in applied]
    monkeypatch.setitem(attacks.CONSTANTS, "pgd_linf", {**attacks.CONSTANTS["pgd_linf"], "steps": 20})
    assert [one.identity == known for one, known in zip(applied, before, strict=True)] == [True, False, True, True]
