"""Live curves: what the terminal shows of an epoch, and what TensorBoard and Weights & Biases are given."""

import json
import re
import sys

import numpy as np
import pytest
import tiny

from jaxbed import config, main
from jaxbed.evaluation import metrics
from jaxbed.training import curves

EVALUATED = config.Eval(batch_size=48, sets=("val",))
RATIOS = (0.75, 0.25)
NO_DISK = config.Save(resume_every_minutes=10)


def epochs(workdir) -> list[dict]:
    lines = map(json.loads, (workdir / "log.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines if line["kind"] == "epoch"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(workdir, what the terminal showed) of two seeds at two ratios, with all curves."""
    workdir = tmp_path_factory.mktemp("run")
    data = tiny.shapes.Config(train_images=64, val_images=80, test_images=16)
    grid, everything = ("data.texture_correlation=0.75,0.25",), curves.Config(tensorboard=True, wandb="tried")
    cfg = tiny.mlp_config(data=data, grid=grid, eval=EVALUATED, save=NO_DISK, curves=everything)
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setattr("rich.console.Console.print", lambda self, text: shown.append(text))
        assert main.run(cfg, workdir) == 0
    return workdir, shown


def test_validation_accuracy_while_training_is_that_of_the_stored_answers(run):
    workdir, shown = run
    scores = {}
    for ratio in RATIOS:
        scores[ratio] = metrics.scores(workdir / f"texture_correlation={ratio}").set_index(["metric", "epoch", "run"])["value"]
    for number, logged in enumerate(epochs(workdir), start=1):
        for name, metric in (("val", "accuracy"), ("val/conflicting", "conflicting")):
            stored = [scores[ratio][metric, number, seed] for ratio in RATIOS for seed in (0, 1)]
            np.testing.assert_allclose(logged[name], stored, atol=1e-6)
    line = next(line for line in shown if line.startswith("epoch   1/2"))
    assert re.fullmatch(r"epoch   1/2  val 0\.\d{3}  val/conflicting 0\.\d{3}  accuracy .* img/s  \d:\d\d:\d\d left", line)
    assert "left" not in next(line for line in shown if line.startswith("epoch   2/2"))


def test_tensorboard_has_a_curve_per_seed_and_their_mean(run):
    from tensorboardX.proto.event_pb2 import Event

    workdir, _ = run
    names = {f"seed {seed} of texture_correlation={ratio}" for seed in (0, 1) for ratio in RATIOS} | {"mean"}
    assert {path.name for path in (workdir / "tensorboard").iterdir()} == names
    found = {}
    for name in names:
        (path,) = (workdir / "tensorboard" / name).iterdir()
        content, values = path.read_bytes(), {}
        while content:  # length, its checksum, event, its checksum
            size = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + size])
            values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            content = content[16 + size :]
        found[name] = values
    for number, logged in enumerate(epochs(workdir), start=1):
        for metric, values in logged.items():
            assert found["seed 0 of texture_correlation=0.75"][metric, number] == pytest.approx(values[0])
            assert found["seed 1 of texture_correlation=0.25"][metric, number] == pytest.approx(values[3])
            assert found["mean"][metric, number] == pytest.approx(np.mean(values))


def test_weights_and_biases_keeps_one_run_offline(run):
    workdir, _ = run
    identity = (workdir / "wandb-run.txt").read_text().strip()
    (folder,) = (workdir / "wandb").glob(f"offline-run-*-{identity}")
    content = (folder / f"run-{identity}.wandb").read_bytes()
    for text in (b"val/mean", b"loss/seed 1 of texture_correlation=0.25", b"tried"):
        assert text in content


@pytest.mark.parametrize(("field", "package", "value"), [("tensorboard", "tensorboardX", True), ("wandb", "wandb", "project")])
def test_a_package_that_is_missing_is_named_before_anything_is_written(tmp_path, monkeypatch, field, package, value):
    monkeypatch.setattr(curves.importlib.util, "find_spec", lambda name: None if name == package else sys)
    cfg = tiny.mlp_config(curves=curves.Config(**{field: value}))
    with pytest.raises(ValueError, match=rf"curves\.{field} needs the package {package}: pip install 'jaxbed\[{field}\]'"):
        main.run(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_and_biases_without_a_key_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    import wandb

    def login(verify):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "login", login)
    with pytest.raises(
        ValueError, match=r"curves\.wandb = 'mine': No API key configured\. Or set WANDB_MODE=offline, or leave curves\.wandb out"
    ):
        main.run(tiny.mlp_config(curves=curves.Config(wandb="mine")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_members_that_died_are_left_out_of_the_mean():
    assert curves.mean([0.5, None, 0.25]) == 0.375 and np.isnan(curves.mean([None, None]))
