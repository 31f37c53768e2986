"""Training images that are stored larger than evaluation shows them, as ImageNet's squares: networks answer crops everywhere."""

import jax
import numpy as np
import pytest
import tiny
from PIL import Image

from jaxbed.data import augment, held_out, imagenet
from jaxbed.evaluation import trained
from jaxbed.measures import conditions, imagenet_c
from jaxbed.measures import main as measuring
from jaxbed.training import staged

SIDE_PX, STORED_PX = 12, 16
CORRUPTION = "brightness"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir()
        for number in range(12):
            Image.fromarray(rng.integers(0, 256, (STORED_PX, STORED_PX, 3), np.uint8)).save(folder / name / f"{number}.png")
    crop = augment.Config(crop="resized", crop_px=SIDE_PX, flip=0.5, mean=(0.5,), std=(0.5,))
    return imagenet.Config(train=str(folder), val_from_train=8, side_px=SIDE_PX, stored_px=STORED_PX, resize_px=STORED_PX, augment=crop)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """An MLP knows images of one size alone, as a ViT does."""
    cfg = tiny.mlp_config(data=data, batch_size=8, epochs=1)
    return tiny.evaluated(cfg, tmp_path_factory.mktemp("run") / "run")


def test_training_images_are_shown_as_evaluation_shows_them(data):
    source = data.open()
    assert source.evaluated_shape == (SIDE_PX, SIDE_PX, 3) and source.train.image.shape[1:] == (STORED_PX, STORED_PX, 3)
    stored, border = np.asarray(source.train.image)[:4], (STORED_PX - SIDE_PX) // 2
    shown = np.asarray(source.shown(stored))
    assert shown.dtype == np.uint8
    np.testing.assert_array_equal(shown, stored[:, border:-border, border:-border])
    np.testing.assert_array_equal(source.as_evaluated(stored), source.scale(shown))
    smooth = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None, None], (1, 64, 64, 3))  # squares may be stored in any size
    larger = np.asarray(source.shown(smooth))[0, :, 0, 0].astype(float)
    np.testing.assert_allclose(larger, 8 + 4 * np.arange(SIDE_PX) + 1.5, atol=0.5)  # the middle of the crop's pixels


def test_held_out_images_are_cut_already(data):
    source = held_out.Config(data, 0.5).open()
    assert source.evaluated_shape == source.train.image.shape[1:] == (SIDE_PX, SIDE_PX, 3)
    given = np.asarray(source.train.image)
    np.testing.assert_array_equal(source.as_evaluated(given), source.scale(given))


def test_a_trained_network_takes_what_was_evaluated(run, data):
    network, split = trained.load(run), data.open().sets["val"].split
    assert network.image_shape == (SIDE_PX, SIDE_PX, 3)
    with np.load(run / "responses" / "val" / f"{network.epoch}.npz") as stored:
        np.testing.assert_array_equal(network.predict(np.asarray(split.image)).argmax(-1), stored["response"][0])


def test_published_files_have_the_size_of_evaluation(run, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(conditions.CORRUPTIONS, "imagenet_c", {CORRUPTION: imagenet_c.CORRUPTIONS[CORRUPTION]})
    monkeypatch.setitem(conditions.COMPLETE, "imagenet_c", (CORRUPTION,))
    for severity in range(1, 6):
        for name in ("a", "b"):
            place = tmp_path / CORRUPTION / str(severity) / name
            place.mkdir(parents=True)
            Image.new("RGB", (SIDE_PX, SIDE_PX), (40 * severity, 9, 9)).save(place / "0.png")
    assert measuring.main([str(run), "--measures", "shape_bias", "--imagenet-c", str(tmp_path)]) == 0, capsys.readouterr()
    assert f"{CORRUPTION}_5" in (run / "measures.csv").read_text()


def test_networks_of_an_earlier_stage_answer_crops(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(staged, "_outputs", lambda *given, real=staged._outputs: seen.append(given[1]) or real(*given))
    cfg = tiny.mlp_config("jtt", data=data, batch_size=8, epochs=1)
    tiny.evaluated(cfg, tmp_path / "run")
    (source,) = seen
    stored = jax.ShapeDtypeStruct((1, STORED_PX, STORED_PX, 3), np.uint8)
    assert jax.eval_shape(source.as_evaluated, stored).shape == (1, SIDE_PX, SIDE_PX, 3)
