"""The data sets of DeepAugment: files that depend on seed, network, class and name alone, whatever is interrupted, and bad input."""

import csv
import io
import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from data_prep import deepaugment as script
from data_prep import deepaugment_images as making
from jaxbed.data import image_files
from jaxbed.data.deepaugment import cae_weights, edsr_weights, runs
from jaxbed.data.deepaugment.networks import NETWORKS, Drawn
from jaxbed.models import cae, edsr

NETS = ("edsr", "cae")
ENDINGS = (".JPEG", ".JPEG", ".jpg", ".JPEG", ".png")
NAMES = [f"{folder}/{number}{ending}" for folder in ("n01", "n02") for number, ending in enumerate(ENDINGS)]
SIDE = {"edsr": 8, "cae": 16}
OPTIONS = ("--refresh=0.3", "--batch=2", "--threads=2")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Images of a few colours, one of them upright, and tiny networks."""
    folder, rng = tmp_path_factory.mktemp("source"), np.random.default_rng(0)
    for place, name in enumerate(NAMES):
        path = folder / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)).resize((30, 34) if place == 3 else (33, 24 + place % 3))
        image.save(path, "PNG" if path.suffix == ".png" else "JPEG")
    drawn = {"edsr": edsr.draw(rng, 4, 2), "cae": {name: 2 * array for name, array in cae.draw(rng, 4).items()}}
    for name, weights in drawn.items():
        safetensors.numpy.save_file(weights, folder / f"{name}.safetensors")
    return folder


def run(source, target, net, *options):
    given = [str(target), f"--train={source / 'train'}", f"--net={net}", f"--weights={source / net}.safetensors", f"--side-px={SIDE[net]}"]
    return script.main([*given, *OPTIONS, *options])


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Finished targets by network."""
    targets = {net: tmp_path_factory.mktemp(net) for net in NETS}
    for net, target in targets.items():
        assert run(source, target, net) == 0
    return targets


def contents(target):
    return {str(path.relative_to(target)): path.read_bytes() for path in sorted(target.rglob("*")) if path.suffix in ENDINGS}


def rows(target):
    with (target / "drawn-1-of-1.csv").open() as file:
        return list(csv.DictReader(file))


# The images


@pytest.mark.parametrize("net", NETS)
def test_every_image_is_the_distorted_network_of_its_run(net, source, whole):
    """Second route: one image at a time from what the table says, without threads."""
    network, table = NETWORKS[net], {row["file"]: row for row in rows(whole[net])}
    found = contents(whole[net])
    assert sorted(found) == sorted(table) == sorted(NAMES)
    weights, spans, apart = network.load(source / f"{net}.safetensors"), [], {}
    options = {"edsr": edsr_weights.OPTIONS, "cae": cae_weights.OPTIONS}[net]
    for name, row in table.items():
        first = row["distorted_at"]
        assert first.split("/")[0] == name.split("/")[0] and (first == name) == (table[first]["distorted_at"] == name)
        distorted, drawn = network.distort(runs.generator(0, net, first, "weights"), weights, "faithful")
        assert " ".join(drawn) == row["weights"] and set(drawn) <= set(options)
        with Image.open(source / "train" / name) as opened:
            scale = SIDE[net] / min(opened.size)
            small = np.asarray(opened.convert("RGB").resize([int(scale * side) for side in opened.size], Image.Resampling.BILINEAR))
        pass_of, names = network.draw(runs.generator(0, net, name, "signal"), "faithful", weights)
        assert " ".join(names) == row["signal"]
        sizes = np.array([small.shape[:2]], np.int32)
        canvas = np.zeros((1, *runs.canvas_px(*small.shape[:2]), 3), np.uint8)  # whose program is compiled already
        canvas[0, : small.shape[0], : small.shape[1]] = small
        passed = Drawn(*jax.tree.map(lambda field: np.asarray(field)[None], tuple(pass_of)))

        def through(weights, canvas=canvas, sizes=sizes, passed=passed):
            height, width = network.output_sizes(sizes[0])
            return np.asarray(network.outputs(network.prepare(weights), canvas, sizes, passed, "tensorfloat32"))[0, :height, :width]

        expected = making.decoded(making.encoded(through(distorted), "jpeg"))
        image = making.decoded(found[name])
        assert image.shape == expected.shape and (image != expected).mean() < 0.02
        apart[name] = (through(distorted) != through(weights)).any()
        spans.append(np.ptp(image))
    firsts = [name for name in apart if table[name]["distorted_at"] == name]
    assert {name.split("/")[0] for name in firsts} == {"n01", "n02"} and len(firsts) > 2
    assert sum(apart[name] for name in firsts) > len(firsts) / 2  # not every option reaches every image
    assert max(spans) > 20


@pytest.mark.parametrize("net", NETS)
def test_stored_as_published(net, source, whole):
    plain = io.BytesIO()
    Image.new("RGB", (8, 8)).save(plain, "JPEG")  # Pillow's default
    for name, content in contents(whole[net]).items():
        with Image.open(io.BytesIO(content)) as image, Image.open(plain) as default, Image.open(source / "train" / name) as before:
            assert image.format == "JPEG" and image.quantization == default.quantization
            small = [int(SIDE[net] * side / min(before.size)) for side in before.size]
            assert list(image.size) == [4 * side if net == "edsr" else side // 4 * 4 for side in small]
    names, labels, classes = image_files.list_folder(whole[net])
    assert names.tolist() == sorted(NAMES) and classes == ("n01", "n02") and labels.tolist() == [0] * 5 + [1] * 5


def test_neither_shards_nor_interruptions_nor_batches_change_an_image(source, whole, tmp_path, capsys, monkeypatch):
    expected = contents(whole["cae"])
    for k in (2, 1, 3):
        assert run(source, tmp_path / "shards", "cae", f"--shard={k}/3") == 0
    assert contents(tmp_path / "shards") == expected
    facts = [json.loads((tmp_path / "shards" / f"shard-{k}-of-3.json").read_text()) for k in (1, 2, 3)]
    assert sum(fact["images"] for fact in facts) == sum(fact["written"] for fact in facts) == 10
    lines = [line for k in (1, 2, 3) for line in (tmp_path / "shards" / f"drawn-{k}-of-3.csv").read_text().splitlines()[1:]]
    assert sorted(lines) == sorted((whole["cae"] / "drawn-1-of-1.csv").read_text().splitlines()[1:])

    def interrupted(path, *rest, real=making.write, written=[]):  # noqa: B006
        written.append(path)
        if len(written) == 4:
            raise KeyboardInterrupt
        real(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(making, "write", interrupted)
        assert run(source, tmp_path / "two", "cae") == 130 and "run the same command again to resume" in capsys.readouterr().err
    kept = contents(tmp_path / "two")
    assert 0 < len(kept) < 10
    times = {name: (tmp_path / "two" / name).stat().st_mtime_ns for name in kept}
    assert run(source, tmp_path / "two", "cae") == 0 and f"{len(kept)} already existed, 0 left out" in capsys.readouterr().out
    assert contents(tmp_path / "two") == expected
    assert times == {name: (tmp_path / "two" / name).stat().st_mtime_ns for name in kept}
    assert run(source, tmp_path / "one", "cae", "--batch=1") == 0
    differs = [name for name, content in contents(tmp_path / "one").items() if content != expected[name]]
    assert len(differs) <= 1  # sums may round differently


def test_other_settings_make_other_images(source, whole, tmp_path):
    expected = contents(whole["edsr"])
    for options, most in ((["--seed=1"], 3), (["--refresh=0"], 9)):
        assert run(source, tmp_path / options[0], "edsr", *options) == 0
        assert sum(contents(tmp_path / options[0])[name] == content for name, content in expected.items()) <= most


# Formats and sources


def test_png_without_classes(source, tmp_path):
    shutil.copytree(source / "train" / "n01", tmp_path / "flat")
    assert run(source, tmp_path / "out", "cae", f"--train={tmp_path / 'flat'}", "--format=png", "--mode=intended") == 0
    found = contents(tmp_path / "out")
    assert sorted(found) == [f"{number}.png" for number in range(5)] and all(content[1:4] == b"PNG" for content in found.values())
    assert "mode is intended, published faithful" in json.loads((tmp_path / "out" / "recipe.json").read_text())["differs"]
    assert run(source, tmp_path / "out", "cae", f"--train={tmp_path / 'flat'}", "--format=png", "--mode=intended", "--verify") == 0


def test_names_of_records_get_a_class_and_an_extension():
    assert making._in_class("n01/a.JPEG", "n01") == "n01/a.JPEG" and making._in_class("a.jpg", "n01") == "n01/a.jpg"
    assert making._in_class("train-0000001", "n01") == "n01/train-0000001.JPEG"


# Bad input


def test_verify_finds_what_is_missing_damaged_or_another_image(source, whole, tmp_path, capsys):
    target = shutil.copytree(whole["cae"], tmp_path / "target")
    assert run(source, target, "cae", "--verify") == 0
    assert "10 images can be read, 10 were recomputed and match, 0 were left out" in capsys.readouterr().out
    one, other = target / "n01/0.JPEG", target / "n01/3.JPEG"
    content = one.read_bytes()
    blank, wide = io.BytesIO(), io.BytesIO()
    Image.new("RGB", making.decoded(content).shape[1::-1], "red").save(blank, "JPEG")
    Image.open(io.BytesIO(content)).save(wide, "PNG")
    for damaged, reason in (
        (content[:-200], "n01/0.JPEG ("),
        (other.read_bytes(), "pixels, and must have 16 x"),
        (blank.getvalue(), "it differs from the recomputed image by"),
        (wide.getvalue(), "it is PNG, and must be JPEG"),
        (None, "No such file"),
    ):
        one.unlink() if damaged is None else one.write_bytes(damaged)
        assert run(source, target, "cae", "--verify") == 2
        error = capsys.readouterr().err
        assert "is incomplete or damaged: n01/0.JPEG" in error and reason in error
    assert run(source, target, "cae") == 0 and one.read_bytes() == content


@pytest.mark.parametrize("net", NETS)
def test_convolutions_are_as_precise_as_asked(net):
    network, rng = NETWORKS[net], np.random.default_rng(0)
    weights = edsr.draw(rng, 4, 2) if net == "edsr" else cae.draw(rng, 4)
    drawn = jax.tree.map(lambda field: np.asarray(field)[None], network.draw(rng, "faithful", weights)[0])
    given = network.prepare(weights), np.zeros((1, 64, 64, 3), np.uint8), np.full((1, 2), 64), drawn
    for dtype, of_maps, precision in (
        ("float32", "f32", "HIGHEST"),
        ("tensorfloat32", "f32", "HIGH"),  # less than all digits, which a GPU takes from TF32
        ("bfloat16", "bf16", "DEFAULT"),
    ):
        text = jax.jit(network.outputs, static_argnames="dtype").lower(*given, dtype=dtype).as_text()
        lines = [line for line in text.splitlines() if "stablehlo.convolution" in line]
        assert len(lines) > 4 and all(f"precision {precision}>" in line and f"x{of_maps}>" in line for line in lines)


def test_recipe_is_kept(source, whole, tmp_path, capsys):
    recipe = json.loads((whole["edsr"] / "recipe.json").read_text())
    assert recipe["net"] == "edsr" and recipe["images"] == 10 and len(recipe["weights_sha256"]) == 64
    assert recipe["differs"] == ["refresh is 0.3, published 0.05", "images is 10, published 1281167", "side_px is 8, published 128"]
    before = contents(whole["edsr"])
    for options, words in (
        (["--seed=1"], "seed 0, not 1"),
        (["--mode=intended"], "mode faithful, not intended"),
        (["--format=png"], "format jpeg, not png"),
        (["--side-px=9"], "side_px 8, not 9"),
        (["--dtype=bfloat16"], "dtype tensorfloat32, not bfloat16"),
    ):
        assert run(source, whole["edsr"], "edsr", *options) == 2 and f"recipe.json has {words}" in capsys.readouterr().err
    assert run(source, whole["edsr"], "cae") == 2 and "recipe.json has net edsr, not cae" in capsys.readouterr().err
    assert contents(whole["edsr"]) == before


def test_unreadable_images_are_an_error_or_left_out_by_name(source, whole, tmp_path, capsys):
    shutil.copytree(source, broken := tmp_path / "source")
    (broken / "train" / "n01" / "2.jpg").write_bytes(b"nothing")
    assert run(broken, tmp_path / "a", "cae") == 2
    assert "image n01/2.jpg cannot be read" in (error := capsys.readouterr().err) and "--corrupt=skip" in error
    assert run(broken, tmp_path / "a", "cae", "--corrupt=skip") == 0 and "left out: n01/2.jpg" in capsys.readouterr().out
    assert sorted(contents(tmp_path / "a")) == [name for name in NAMES if name != "n01/2.jpg"]
    assert len((tmp_path / "a" / "drawn-1-of-1.csv").read_text().splitlines()) == 10
    assert run(broken, tmp_path / "a", "cae", "--verify") == 0 and "9 images can be read" in capsys.readouterr().out


@pytest.mark.parametrize("net", NETS)
def test_images_that_become_too_long_for_jpeg_are_left_out_by_name_and_png_takes_them(source, tmp_path, capsys, monkeypatch, net):
    monkeypatch.setattr(making, "LONGEST_PX", {"jpeg": 200})
    shutil.copytree(source, thin := tmp_path / "source")
    Image.new("RGB", {"edsr": (2, 14), "cae": (2, 28)}[net]).save(thin / "train" / "n01" / "2.jpg", "PNG")
    assert run(thin, tmp_path / "a", net) == 2
    words = "image n01/2.jpg cannot be read (a result 224 px long does not fit in JPEG, which ends at 200 px)"
    assert words in (error := capsys.readouterr().err) and "--corrupt=skip" in error
    assert run(thin, tmp_path / "a", net, "--corrupt=skip") == 0 and "left out: n01/2.jpg" in capsys.readouterr().out
    assert run(thin, tmp_path / "a", net, "--verify") == 0 and "9 images can be read" in capsys.readouterr().out
    (thin / "train" / "n01" / "2.jpg").rename(thin / "train" / "n01" / "thin.png")
    assert run(thin, tmp_path / "b", net, "--format=png") == 0 and len(contents(tmp_path / "b")) == len(NAMES)


def test_jpeg_ends_where_it_is_said_to():
    longest = making.LONGEST_PX["jpeg"]
    assert making.decoded(making.encoded(np.zeros((1, longest, 3), np.uint8), "jpeg")).shape == (1, longest, 3)
    with pytest.raises(OSError):
        making.encoded(np.zeros((1, longest + 1, 3), np.uint8), "jpeg")


def test_names_that_collide_in_png(source, tmp_path, capsys):
    shutil.copytree(source / "train", tmp_path / "train")
    shutil.copy(tmp_path / "train/n01/0.JPEG", tmp_path / "train/n01/0.jpg")
    assert run(source, tmp_path / "out", "cae", f"--train={tmp_path / 'train'}", "--format=png") == 2
    assert "n01/0.JPEG and n01/0.jpg" in (error := capsys.readouterr().err) and "with --format jpeg" in error
    assert not (tmp_path / "out").exists()


def test_bad_input(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    damaged, train = tmp_path / "damaged.safetensors", source / "train"
    cae_file, edsr_file = (source / f"{net}.safetensors" for net in ("cae", "edsr"))
    damaged.write_bytes(cae_file.read_bytes()[:-9])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    one_block = tmp_path / "one.safetensors"
    safetensors.numpy.save_file(edsr.draw(np.random.default_rng(0), 4, 1), one_block)
    for net, options, message in (
        ("cae", [f"--weights={damaged}"], "cannot be read as weights"),
        ("cae", [f"--weights={edsr_file}"], "lacks e_conv_1.1.weight"),
        ("edsr", [f"--weights={cae_file}"], "does not hold EDSR baseline x4"),
        ("edsr", [f"--weights={one_block}"], "holds EDSR with one block, and distortions need two"),
        ("cae", ["--weights=nothing"], "nothing"),
        ("cae", ["--train=nowhere"], "nowhere is not a folder"),
        ("cae", [f"--train={tmp_path / 'empty'}"], "contains no image"),
        ("cae", ["--side-px=11"], "--side-px 11 is too small for cae: at least 12"),
        ("cae", ["--shard=0/3"], "--shard 0/3 must be k/n"),
        ("cae", ["--shard=4/3"], "--shard 4/3 must be k/n"),
        ("cae", ["--batch=6"], "--batch 6 must be a power of two"),
        ("cae", ["--refresh=2"], "--refresh from 0 to 1"),
        ("cae", ["--seed=-1"], "--seed at least 0"),
    ):
        try:
            assert run(source, tmp_path / "out", net, *options) == 2
        except SystemExit as end:
            assert end.code == 2
        assert message in capsys.readouterr().err
    for target, message in (
        (train, "are in one another"),
        (train / "n03", "are in one another"),
        (source, "are in one another"),
        (tmp_path / "used", "has files, but no recipe.json"),
        (damaged, "is a file: name a folder"),
    ):
        assert run(source, target, "cae") == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not (train / "n03").exists()
