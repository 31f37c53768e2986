"""Stylized-ImageNet: the published draw, and files that do not depend on shards, batches or interruptions. A tiny untrained network."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from data_prep import stylized_imagenet as script
from jaxbed.models import style, style_network

SIDE = script.SIDE
NETWORK = style_network.Config("random", width=4, stages=1)
OPTIONS = ("--weights=random", "--width=4", "--stages=1", "--threads=2", "--batch=3", "--expect-styles=4")
COUNTS = {"val": 5, "train": 6}


def image(path, rng, size):
    """A few large blocks of colour, so that images are told apart however they are resized."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)).resize(size, Image.Resampling.NEAREST).save(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("source"), np.random.default_rng(0)
    for split, count in COUNTS.items():
        for i in range(count):
            image(folder / split / f"n0{i % 2}" / f"{split}_{i}.JPEG", rng, (260 + i, 300))
    for name, size in (("10.jpg", (240, 300)), ("2.jpg", (500, 260)), ("1.png", (224, 224)), ("3.jpg", (400, 400)), ("4.jpg", (223, 900))):
        image(folder / "paintings" / name, rng, size)
    (folder / "paintings" / "5.jpg").write_bytes((folder / "paintings" / "3.jpg").read_bytes()[:500])
    (folder / "paintings" / "notes.txt").write_text("no painting")
    (folder / "paintings" / ".hidden.jpg").write_bytes(b"")
    return folder


def run(source, target, *options, train=True):
    places = [f"--styles={source / 'paintings'}", f"--val={source / 'val'}", *([f"--train={source / 'train'}"] if train else [])]
    return script.main([str(target), *places, *OPTIONS, *options])


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    target = tmp_path_factory.mktemp("whole")
    assert run(source, target) == 0
    return target


@pytest.fixture
def target(whole, tmp_path):
    """A finished copy to do harm to."""
    return shutil.copytree(whole, tmp_path / "target")


def images(target):
    return {str(path.relative_to(target)): np.asarray(Image.open(path)) for part in COUNTS for path in (target / part).rglob("*.png")}


def written(target):
    return {name: (target / name).stat().st_mtime_ns for name in images(target)}


# The draw


def test_draw_is_the_published_one():
    """Batches of 256 that end with each split, val first, one generator: the loop of the published code."""
    rng = np.random.RandomState(49809)
    loop = [
        np.concatenate([rng.randint(low=0, high=79395, size=min(256, count - first)) for first in range(0, count, 256)])
        for count in (50_000, 3000)
    ]
    val, train = script.draw(79395, 50_000, 3000)
    np.testing.assert_array_equal(val, loop[0])
    np.testing.assert_array_equal(train, loop[1])
    assert val[:5].tolist() == [75686, 79149, 64876, 10784, 49078] and train[:2].tolist() == [76130, 74946]  # as first computed
    assert script.draw(7, 2, 0)[1].shape == (0,) and set(script.draw(7, 500, 0)[0]) == set(range(7))
    assert script.draw(79395, 5, 0, seed=1)[0].tolist() != val[:5].tolist()


def test_images_get_paintings_in_the_order_of_folders_and_names(source):
    splits = script.open_splits({"val": str(source / "val"), "train": str(source / "train")})
    paintings = [source / f"{i}" for i in range(4)]
    work = script.assign(splits, paintings, script.SEED)
    assert work.outputs == [
        *(f"val/n00/val_{i}.png" for i in (0, 2, 4)),
        *(f"val/n01/val_{i}.png" for i in (1, 3)),
        *(f"train/n00/train_{i}.png" for i in (0, 2, 4)),
        *(f"train/n01/train_{i}.png" for i in (1, 3, 5)),
    ]
    expected = np.random.RandomState(49809).randint(0, 4, 11)
    assert work.styles == [paintings[i] for i in expected] and len(set(expected)) == 4
    only_val = script.assign({"val": splits["val"]}, paintings, script.SEED)
    assert only_val.styles == work.styles[:5]


# Paintings


def test_paintings_are_cut_to_the_central_square_and_averaged_down(tmp_path):
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (SIDE, 301, 3), np.uint8)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    np.testing.assert_array_equal(np.asarray(script.paintings.square(tmp_path / "wide.png")), wide[:, 38 : 38 + SIDE])
    fine = np.indices((2 * SIDE, 2 * SIDE)).sum(0) % 2 * np.uint8(255)  # every second pixel black: grey, unless pixels are dropped
    Image.fromarray(fine.astype(np.uint8)).save(tmp_path / "fine.png")
    grey = np.asarray(script.paintings.square(tmp_path / "fine.png"))
    assert grey.shape == (SIDE, SIDE, 3) and np.abs(grey[4:-4, 4:-4].astype(int) - 127.5).max() < 1


def test_paintings_that_cannot_be_used_are_named(source, tmp_path, capsys):
    folder = tmp_path / "paintings"
    names, excluded = script.paintings.prepare(source / "paintings", folder, threads=2)
    assert names == ["1.png", "10.jpg", "2.jpg", "3.jpg"] and list(excluded) == ["4.jpg", "5.jpg", "notes.txt"]
    assert excluded["4.jpg"] == "it has 900 x 223 pixels, but each side must have at least 224"
    assert sorted(path.name for path in folder.iterdir()) == names
    with Image.open(folder / "2.jpg") as prepared:
        assert prepared.size == (SIDE, SIDE) and prepared.format == "JPEG"
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "3.jpg").unlink()
    assert script.paintings.prepare(source / "paintings", folder, threads=2) == (names, excluded)
    assert [path.name for path, time in times.items() if path.stat().st_mtime_ns != time] == ["3.jpg"]
    assert script.paintings.prepare(folder, folder, threads=2) == (names, {})
    with pytest.raises(FileNotFoundError, match="is not a folder of paintings: unpack"):
        script.paintings.prepare(tmp_path / "nowhere", folder, threads=1)


def test_a_full_disk_is_no_fault_of_the_paintings(source, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(script.os, "replace", full)
    assert run(source, tmp_path, "--expect-styles=any") == 2 and "No space left on device" in capsys.readouterr().err


def test_the_number_of_paintings_is_the_published_one_or_what_is_said(source, tmp_path, capsys):
    assert run(source, tmp_path / "a", "--expect-styles=79395") == 2
    assert "has 4 usable paintings, but 79,395 are expected: complete it, or give --expect-styles 4 (or any)" in capsys.readouterr().err
    assert not list((tmp_path / "a").rglob("recipe.json"))
    assert run(source, tmp_path / "a", "--expect-styles=any") == 0 and "4 paintings, 3 left out" in capsys.readouterr().out


# Stylisation


class Pixels:
    """A stand-in for the network: features are pixels."""

    def encode(self, params, image):
        return image

    def decode(self, params, features):
        return features


def test_styles_mix_as_written_and_levels_are_rounded():
    rng = np.random.default_rng(0)
    content, painting = rng.integers(0, 256, (2, 2, 16, 16, 3), np.uint8)
    content[0, :, :, 0] = np.arange(256).reshape(16, 16)
    np.testing.assert_array_equal(script.make_stylize(Pixels(), {}, 0.0)(content, painting), content)  # all levels survive
    c, p = content / 255, painting / 255

    def moments(x):
        return x.mean((1, 2), keepdims=True), np.sqrt(x.var((1, 2), keepdims=True, ddof=1) + 1e-5)

    (mean, deviation), (new_mean, new_deviation) = moments(c), moments(p)
    mixed = 0.75 * ((c - mean) / deviation * new_deviation + new_mean) + 0.25 * c
    expected = np.floor(np.clip(mixed, 0, 1) * 255 + 0.5)
    made = np.asarray(script.make_stylize(Pixels(), {}, 0.75)(content, painting))
    assert made.dtype == np.uint8 and np.abs(made - expected).max() <= 1 and (made != expected).mean() < 0.01  # float32 at the half


def test_every_image_wears_the_painting_drawn_for_it(source, whole):
    """Second route: one image at a time, without padding, threads or files."""
    written, params = images(whole), NETWORK.load()
    styles = [whole / "paintings" / name for name in ("1.png", "10.jpg", "2.jpg", "3.jpg")]
    drawn, others = np.random.RandomState(49809).randint(0, 4, 11), []
    names = [f"{split}/n0{k}/{split}_{i}" for split, count in COUNTS.items() for k in (0, 1) for i in range(count) if i % 2 == k]
    assert sorted(written) == sorted(f"{name}.png" for name in names)

    @jax.jit
    def stylised(content, painting):
        maps = style.adain(*(NETWORK.encode(params, image[None] / 255) for image in (content, painting)))
        return 255 * jnp.clip(NETWORK.decode(params, maps)[0], 0, 1)

    for name, i in zip(names, drawn, strict=True):
        with Image.open(source / f"{name}.JPEG") as opened:
            width, height = opened.size
            content = opened.resize((256, int(256 * height / width)), Image.Resampling.BILINEAR)
            top = round((content.size[1] - SIDE) / 2)
            content = content.crop((16, top, 16 + SIDE, top + SIDE))

        def made(k, content=content):
            return np.asarray(stylised(np.asarray(content, np.float32), np.asarray(Image.open(styles[k]), np.float32)))

        image = written[f"{name}.png"]
        assert image.shape == (SIDE, SIDE, 3) and image.dtype == np.uint8 and np.abs(image - made(i)).max() < 0.51
        others.append(np.abs(image - made((i + 1) % 4)).mean())
    assert np.median(others) > 2  # another painting is another image


def test_shards_are_disjoint_and_together_the_whole(source, whole, tmp_path, capsys):
    counts = []
    for k in (3, 1, 2):
        before = set(images(tmp_path))
        assert run(source, tmp_path, f"--shard={k}/3", "--batch=2") == 0
        counts.append(len(set(images(tmp_path)) - before))
        facts = json.loads((tmp_path / f"shard-{k}-of-3.json").read_text())
        assert facts == {"images": counts[-1], "written": counts[-1], "there before": 0, "skipped": {}}
    assert counts == [3, 4, 4]
    expected = images(whole)
    for name, image in images(tmp_path).items():
        assert np.abs(image.astype(int) - expected.pop(name)).max() <= 1
    assert not expected


def test_what_is_there_is_not_made_again(source, target, capsys):
    times = written(target)
    for name in ("val/n00/val_2.png", "train/n01/train_5.png"):
        (target / name).unlink()
    (target / "val/n00/.val_2.1.partial").write_bytes(b"of a run that was killed")
    assert run(source, target) == 0
    assert "2 images written" in (out := capsys.readouterr().out) and "9 already existed, 0 left out" in out
    again = written(target)
    assert {name for name in times if again[name] != times[name]} == {"val/n00/val_2.png", "train/n01/train_5.png"}
    np.testing.assert_array_equal(*(images(target)[name] for name in ["val/n00/val_2.png"] * 2))


def test_unreadable_images_are_an_error_or_left_out_by_name(source, whole, tmp_path, capsys):
    broken = shutil.copytree(source, tmp_path / "source")
    (broken / "val" / "n00" / "val_2.JPEG").write_bytes(b"nothing")
    assert run(broken, tmp_path / "a") == 2
    assert "the image for val/n00/val_2.png cannot be read" in (error := capsys.readouterr().err) and "--corrupt=skip" in error
    assert run(broken, tmp_path / "a", "--corrupt=skip") == 0
    assert "left out: val/n00/val_2.png" in (out := capsys.readouterr().out) and "1 left out\n" in out
    assert list(json.loads((tmp_path / "a" / "shard-1-of-1.json").read_text())["skipped"]) == ["val/n00/val_2.png"]
    expected = images(whole)
    del expected["val/n00/val_2.png"]
    found = images(tmp_path / "a")
    assert set(found) == set(expected)
    for name, image in found.items():  # all others keep their paintings
        assert np.abs(image.astype(int) - expected[name]).max() <= 1
    assert run(broken, tmp_path / "a", "--verify") == 0 and "10 images can be read" in capsys.readouterr().out


def test_verify_finds_what_is_missing_damaged_or_another_image(source, target, capsys):
    times = written(target)
    assert run(source, target, "--verify", "--batch=4") == 0 and "11 were recomputed and match" in capsys.readouterr().out
    one, two = target / "val/n00/val_0.png", target / "val/n00/val_2.png"
    content = one.read_bytes()
    for damaged, reason in (
        (content[:-3000], "truncated"),
        (two.read_bytes(), "it differs from the recomputed image by"),
        (None, "No such file"),
    ):
        one.unlink() if damaged is None else one.write_bytes(damaged)
        assert run(source, target, "--verify") == 2
        error = capsys.readouterr().err
        assert "is incomplete or damaged: val/n00/val_0.png" in error and reason in error
    Image.new("RGB", (8, 8)).save(one)
    assert run(source, target, "--verify") == 2 and "it is [8, 8, 3], but must be [224, 224, 3]" in capsys.readouterr().err
    one.write_bytes(content)
    assert {name for name, time in written(target).items() if times[name] != time} == {"val/n00/val_0.png"}


def test_recipe_is_kept_and_says_what_is_not_published(source, target, tmp_path, capsys):
    recipe = json.loads((target / "recipe.json").read_text())
    assert {key: recipe[key] for key in ("styles", "val", "train", "seed", "alpha")} == {
        "styles": 4, "val": 5, "train": 6, "seed": 49809, "alpha": 1.0
    }  # fmt: skip
    assert recipe["styles_left_out"] == ["4.jpg", "5.jpg", "notes.txt"] and recipe["weights_sha256"] == "random"
    assert "styles is 4, published 79395" in recipe["differs"] and len(recipe["differs"]) == 5  # alpha and seed are the published ones
    for option, words in (("--alpha=0.5", "alpha 1.0, not 0.5"), ("--seed=1", "seed 49809, not 1"), ("--dtype=bfloat16", "dtype float32")):
        assert run(source, target, option) == 2
        assert f"recipe.json has {words}" in capsys.readouterr().err
    assert run(target, target) == 2  # its val has other names
    shutil.copytree(target / "paintings", tmp_path / "kept")
    again = ["--styles", str(target / "paintings"), "--val", str(source / "val"), "--train", str(source / "train")]
    assert script.main([str(target), *again, *OPTIONS, "--verify"]) == 0  # the paintings themselves are no longer needed


def test_a_training_set_may_come_later(source, whole, tmp_path):
    assert run(source, tmp_path, train=False) == 0
    assert len(images(tmp_path)) == 5 and "train is 0, published 1281167" in json.loads((tmp_path / "recipe.json").read_text())["differs"]
    assert run(source, tmp_path) == 0 and set(images(tmp_path)) == set(images(whole))
    assert json.loads((tmp_path / "recipe.json").read_text()) == json.loads((whole / "recipe.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights=nothing.safetensors"], "there is no such file"),
        (["--val=tfds:imagenet2012:validation"], "which TFDS does not keep"),
        (["--val=nowhere"], "nowhere is not a folder"),
        (["--shard=0/3"], "must be k/n"),
        (["--shard=4/3"], "must be k/n"),
        (["--shard=3"], "must be k/n"),
        (["--expect-styles=some"], "must be a number or any"),
        (["--alpha=1.5"], "--alpha from 0 to 1"),
        (["--batch=0"], "must be at least 1"),
    ],
)
def test_bad_options_are_named_before_anything_is_made(source, tmp_path, capsys, options, message):
    try:
        code = run(source, tmp_path / "target", *options)
    except SystemExit as error:
        code = error.code
    assert code == 2 and message in capsys.readouterr().err and not (tmp_path / "target").exists()


def test_images_that_differ_in_their_endings_only_are_an_error(tmp_path):
    for ending in ("png", "jpg"):
        image(tmp_path / "a" / f"x.{ending}", np.random.default_rng(0), (300, 300))
    with pytest.raises(ValueError, match=r"two images would be written to val/a/x\.png"):
        script.assign(script.open_splits({"val": str(tmp_path)}), [tmp_path], 0)
