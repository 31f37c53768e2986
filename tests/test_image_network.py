"""Training of DeepAugment's networks on any images: it lowers the loss, resumes where it stopped, and leaves files that are read back."""

import functools
import re
import signal
import subprocess
import time

import jax
import numpy as np
import pytest
from commands import ROOT, options
from PIL import Image

from data_prep import image_network as script
from data_prep import style_network, training
from data_prep.squares import squares
from jaxbed.data import shapes
from jaxbed.models import cae, edsr
from jaxbed.system import files

SMALL = {"edsr": ("--width=4", "--blocks=2", "--lr=1e-2"), "cae": ("--width=4", "--lr=1e-2")}
SIZES = {"edsr": edsr.shapes(4, 2), "cae": cae.shapes(4)}
NETWORKS = {"edsr": edsr, "cae": cae}
BATCHES = script.batches
COMMANDS = [(script, "edsr", "shapes"), (style_network, "train", "shapes", "shapes"), (style_network, "convert", "a", "b")]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    (folder / "all").mkdir()
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)).resize((40, 30), Image.Resampling.BICUBIC).save(
            folder / "all" / f"{number}.png"
        )
    return folder


def train(network, source, out, *options, steps=40):
    usual = ("--batch=2", "--side-px=16", "--resize-px=24", f"--steps={steps}")
    return script.main([network, str(source), str(out), *usual, *SMALL[network], *options])


@pytest.mark.parametrize("network", ["edsr", "cae"])
def test_training_lowers_the_loss_and_resumes_where_it_stopped(network, source, tmp_path, monkeypatch, capsys):
    whole, halves = tmp_path / "deep" / "whole.safetensors", tmp_path / "halves.safetensors"
    assert train(network, source, whole) == 0
    said = capsys.readouterr().out
    losses, decibels = np.array(re.findall(r"loss (\S+), PSNR (\S+) dB", said), float).T
    assert len(losses) == 20 and losses[-3:].mean() < 0.8 * losses[0] and decibels[-3:].mean() > decibels[0] + 1
    assert f"written: {whole}" in said and list(tmp_path.rglob("*.npz")) == []
    weights = NETWORKS[network].load(whole)
    assert {name: array.shape for name, array in weights.items()} == SIZES[network]
    assert train(network, source, whole) == 2 and "exists, and no training of it is unfinished: delete it" in capsys.readouterr().err

    with monkeypatch.context() as patch:
        patch.setattr(script, "batches", killed_at(15, KeyboardInterrupt))
        assert train(network, source, halves) == 130 and "run the same command again to resume" in capsys.readouterr().err
    assert set(NETWORKS[network].load(halves)) == set(weights)
    assert train(network, source, halves, "--seed=1") == 2 and "with seed = 0, not 1: use the same settings" in capsys.readouterr().err
    state = halves.with_name("halves.safetensors.state.npz")
    kept = state.read_bytes()
    state.write_bytes(kept[:-50])
    assert train(network, source, halves) == 2 and f"{state} is damaged" in capsys.readouterr().err
    state.write_bytes(kept)
    assert train(network, source, halves) == 0 and "resumed after step 15" in capsys.readouterr().out
    for name, array in NETWORKS[network].load(halves).items():
        np.testing.assert_array_equal(array, weights[name])


def killed_at(number, error):
    """Batches that end with an error after so many of them."""

    def batches(asked, first):
        for count, batch in enumerate(BATCHES(asked, first)):
            if count == number:
                raise error
            yield batch

    return batches


def done(out):
    return int(files.read_arrays(out.with_name(f"{out.name}.state.npz"))["done"])


def test_a_killed_training_has_saved_its_state_a_while_ago_and_a_stopped_one_now(source, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.safetensors"
    for seconds, error, kept in ((600, RuntimeError, 6), (0, RuntimeError, 13), (600, SystemExit, 20), (600, KeyboardInterrupt, 27)):
        monkeypatch.setattr(training, "SAVE_S", seconds)
        monkeypatch.setattr(script, "batches", killed_at(7, error))
        try:
            assert train("edsr", source, out, steps=120) == 130 and error is KeyboardInterrupt
        except (RuntimeError, SystemExit) as end:
            assert type(end) is error
        assert done(out) == kept, error


def test_few_losses_wait_on_the_device_and_all_count(source, tmp_path, monkeypatch, capsys):
    said = []
    for most in (1_000, 3):
        monkeypatch.setattr(training, "WAITING", most)
        assert train("edsr", source, tmp_path / f"{most}.safetensors", steps=160) == 0
        said.append(np.array(re.findall(r"loss (\S+), PSNR (\S+) dB", capsys.readouterr().out), float))
    np.testing.assert_allclose(*said, rtol=1e-5)
    assert train("edsr", source, tmp_path / "nan.safetensors", "--lr=1e38", steps=1000) == 2  # before the first report
    said = capsys.readouterr()
    assert "the loss is no longer finite: lower --lr (now 1e+38)" in said.err and "step" not in said.out
    assert not (tmp_path / "nan.safetensors").exists()


def test_sigterm_saves_the_state(source, tmp_path):
    out, state = tmp_path / "out.safetensors", tmp_path / "out.safetensors.state.npz"
    words = ["edsr", source, out, "--batch=1", "--side-px=16", "--resize-px=24", *SMALL["edsr"], "--steps=20000"]
    process = subprocess.Popen(**options(tmp_path, ROOT / "data_prep" / "image_network.py", *words))
    process.stdout.readline()  # a report, then its state is saved
    while process.poll() is None and not state.is_file():
        time.sleep(0.01)
    state.unlink()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in error, error
    assert done(out) >= 1_000


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("out", ["out", "out.npz", "out.pth", "out.safetensors.bak"])
def test_weights_that_could_not_be_read_back_are_refused_at_once(tmp_path, capsys, words, out):
    with pytest.raises(SystemExit) as end:
        words[0].main([*words[1:], str(tmp_path / out)])
    message = capsys.readouterr().err
    assert end.value.code == 2 and f"{out}' must end in .safetensors" in message and f"name {tmp_path / out}.safetensors" in message


def test_the_rate_of_edsr_is_halved_and_the_decay_of_cae_joins_the_gradient():
    asked = script.argparse.Namespace(task="edsr", steps=3, lr=0.1, decay=0.0)
    rule, params, moves = script.optimizer(asked), {"a": np.float32([1.0, -2.0])}, []
    state = rule.init(params)
    for _ in range(3):
        move, state = rule.update({"a": np.float32([3.0, -4.0])}, state, params)
        moves.append(move["a"])
    np.testing.assert_allclose(moves, np.float32([[-0.1, 0.1]] * 2 + [[-0.05, 0.05]]), rtol=1e-3)
    asked = script.argparse.Namespace(task="cae", steps=3, lr=0.1, decay=0.5)
    rule = script.optimizer(asked)
    move, _ = rule.update({"a": np.zeros(2, np.float32)}, rule.init(params), params)
    np.testing.assert_allclose(move["a"], [-0.1, 0.1], rtol=1e-4)  # Adam's first step has the sign of what is decayed


def test_squares_depend_on_seed_and_step_alone(source, monkeypatch, capsys):
    few = functools.partial(shapes.Config, train_images=16, val_images=16, test_images=16)
    monkeypatch.setattr(shapes, "Config", few)
    for location, side in ((str(source), 16), ("shapes", 32)):
        begun, later = (squares(location, side, 24, 3, seed=5, first=first) for first in (0, 2))
        one = [next(begun) for _ in range(4)]
        assert one[0].shape == (3, side, side, 3) and one[0].dtype == np.uint8 and (one[0] != one[1]).any()
        for expected in one[2:]:
            np.testing.assert_array_equal(next(later), expected)
        begun.close()
        later.close()
    (source / "all" / "9.png").write_bytes(b"nothing")
    try:
        read = squares(str(source), 16, 24, 8, seed=0)
        [next(read) for _ in range(2)]
        read.close()
        assert "left out: all/9.png" in capsys.readouterr().out
    finally:
        (source / "all" / "9.png").unlink()
    with pytest.raises(ValueError, match="squares of 30 px cannot be cut out of images of 24 px: lower --side-px"):
        next(squares(str(source), 30, 24, 3, seed=0))


def test_squares_are_turned_into_all_orientations():
    square = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    orientations = {np.rot90(each, quarters).tobytes() for each in (square, square[:, ::-1]) for quarters in range(4)}
    turned = script.turned(np.stack([square] * 80), 0, 0)
    assert len(orientations) == 8 and {each.tobytes() for each in turned} == orientations


def test_losses():
    levels = np.random.default_rng(0).uniform(0, 255, (2, 16, 16, 3)).astype(np.float32)
    params = edsr.prepare(edsr.draw(np.random.default_rng(0), 4, 2))
    loss, squared = script.edsr_loss(params, levels, np.zeros(2, np.uint32))
    quarter = np.asarray(jax.image.resize(levels, (2, 4, 4, 3), "bicubic")).round().clip(0, 255)
    error = np.asarray(edsr.apply(params, quarter, np.full((2, 2), 4))) - levels
    np.testing.assert_allclose([loss, squared], [np.abs(error).mean(), ((error / 255) ** 2).mean()], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["edsr", "nowhere", "out.safetensors"], "nowhere is not a folder"),
        (["edsr", "shapes", "out.safetensors", "--side-px=30"], "--side-px 30 must be a multiple of 4 and at least 12"),
        (["cae", "shapes", "out.safetensors", "--width=6"], "a width of 6 does not fit: it must be a multiple of 4"),
        (["cae", "shapes", "out.safetensors", "--steps=0"], "must be at least 1"),
        (["cae", "shapes", "out.safetensors", "--lr=nan"], "--lr above 0"),
    ],
)
def test_bad_input(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    try:
        assert script.main(options) == 2
    except SystemExit as end:
        assert end.code == 2
    assert message in capsys.readouterr().err
