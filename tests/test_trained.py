"""Trained networks in Python: what they answer is what evaluation stored, and the page of the documentation runs as written."""

import re

import numpy as np
import pytest
import tiny
from commands import ROOT
from PIL import Image
from safetensors.numpy import load_file

from jaxbed import main
from jaxbed.data import folder
from jaxbed.evaluation import trained
from jaxbed.models import resnet

PAGE = (ROOT / "docs" / "trained.md").read_text()


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A run with two grid points, two seeds and two epochs."""
    cfg = tiny.mlp_config(grid=("optim.lr=0.01,0.1",), first_seed=5)
    return tiny.evaluated(cfg, tmp_path_factory.mktemp("swept") / "run"), cfg


@pytest.mark.parametrize(("point", "seed", "epoch"), [("lr=0.01", 5, 1), ("lr=0.1", 6, 2), ("lr=0.1", 5, "last"), ("lr=0.01", None, None)])
def test_predictions_are_the_stored_answers(swept, point, seed, epoch):
    workdir, cfg = swept
    network = trained.load(workdir, epoch, seed, point)
    assert network.seed == (seed or 5) and network.epoch == (
        trained.epoch_of_seed(workdir / point)[5] if epoch is None else int(epoch != 1) + 1
    )
    split = cfg.data.open().sets["in_distribution"].split
    logits = network.predict(split.image)
    assert logits.shape == (16, len(network.classes)) and network.classes[0] == cfg.data.open().class_names[0]
    with np.load(workdir / point / "responses" / "in_distribution" / f"{network.epoch}.npz") as stored:
        np.testing.assert_array_equal(logits.argmax(-1), stored["response"][network.seed - 5])


def test_what_a_run_does_not_have_is_named(swept, tmp_path):
    workdir, _ = swept
    for given, message in (
        ({"seed": 7}, f"seed = 7: {workdir} has the seeds 5, 6"),
        ({"epoch": 3, "point": "lr=0.1"}, f"epoch = 3: {workdir} has checkpoints of the epochs 1, 2"),
        ({"epoch": "best", "point": "lr=0.1"}, "epoch = 'best': "),
        ({}, f"point = '': {workdir} has the grid points lr=0.01, lr=0.1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            trained.load(workdir, **given)
    with pytest.raises(FileNotFoundError, match="is not the workdir of a run"):
        trained.load(tmp_path / "none")
    with pytest.raises(ValueError, match=re.escape("holds no finished epoch")):
        trained.load(workdir / "lr=0.1")
    network = trained.load(workdir, "last", point="lr=0.1")
    for wrong in (np.zeros((32, 32, 3), np.uint8), np.zeros((1, 32, 32, 3)), np.zeros((1, 8, 8, 3), np.uint8)):
        with pytest.raises(ValueError, match=re.escape(f"images are {wrong.dtype} {list(wrong.shape)}: they must be uint8 [N, 32, 32, 3]")):
            network.predict(wrong)


def test_the_page_runs_as_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, number in ((name, number) for name in ("horizontal", "vertical") for number in range(10)):
        for split in ("train", "test"):
            file = tmp_path / "images" / split / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(file)
    data = folder.Config(train="images/train", test="images/test", size_px=16, val_share=0.2, threads=1)
    monkeypatch.setitem(resnet.BLOCKS, 10, (0, 0, 0, 0))  # less to compile
    cfg = tiny.train_config(data=data, epochs=1, batch_size=8)
    assert main.run(cfg, tmp_path / "runs" / "erm") == 0
    capsys.readouterr()
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    variables: dict = {}
    exec(code, variables)
    network, weights = variables["network"], load_file("network.safetensors")
    image = cfg.data.open().sets["test"].split
    row = image.name.tolist().index("horizontal/0.png")
    np.testing.assert_array_equal(variables["image"], image.image[row])
    with np.load("runs/erm/responses/test/1.npz") as stored:
        answer = network.classes[stored["response"][0, row]]
    assert re.fullmatch(rf"images/test/horizontal/0.png: {answer}, \d+% \(seed 0, epoch 1\)\n", capsys.readouterr().out)
    np.testing.assert_array_equal(weights["params/net/head/kernel"], network.params["net"]["head"]["kernel"])
    assert any(name.startswith("stats/net/") for name in weights)
    (tmp_path / "images" / "train" / "vertical").rename(tmp_path / "images" / "train" / "a")
    (tmp_path / "images" / "test" / "vertical").rename(tmp_path / "images" / "test" / "a")
    with pytest.raises(ValueError, match="was trained on other images than there are now"):
        trained.load("runs/erm")
