"""BFFHQ, Waterbirds, BAR and Corrupted CIFAR-10 in their published layouts and as they are drawn: small made-up folders."""

import colorsys
import csv
import dataclasses
import io
import itertools
import pathlib
import pickle
import re
import struct

import cv2
import jax
import numpy as np
import pytest
import tiny
from commands import ROOT, assert_refused, in_process
from PIL import Image
from scipy import ndimage

from data_prep import debias_sets
from data_prep import waterbirds as synthesis
from jaxbed import main
from jaxbed.data import bar, bffhq, biased_images, corrupted_cifar10, corruptions, remarks, shapes, waterbirds, weather
from jaxbed.data.held_out import pick
from jaxbed.data.source import cells
from jaxbed.data.split import Split
from jaxbed.training import log, members

PERCENTS = biased_images.PERCENTS
SMALL = {"side_px": 8, "threads": 1}


def image(path: pathlib.Path, number: int, size=(6, 5)) -> None:
    """One colour, which tells the number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (number % 256, number // 256, 0)).save(path)


def number_of(image: np.ndarray) -> np.ndarray:
    return image[:, 0, 0, 0].astype(int) + 256 * image[:, 0, 0, 1].astype(int)


def counts(split) -> tuple[int, int]:
    return int((split.label == split.bias).sum()), int((split.label != split.bias).sum())


def splits(source) -> list:
    return [source.train, source.sets["val"].split, source.sets["unbiased"].split]


def rows_of(path: pathlib.Path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# BFFHQ


def write_bffhq(root: pathlib.Path, conflict: str = "conflict", valid: str = "valid", share: str = "1pct") -> pathlib.Path:
    for i, (place, y, b) in enumerate(
        [
            (f"{share}/align/0", 0, 0),
            (f"{share}/align/1", 1, 1),
            (f"{share}/align/1", 1, 1),
            (f"{share}/{conflict}/0", 0, 1),
            (valid, 0, 0),
            (valid, 1, 0),
            ("test", 0, 0),
            ("test", 1, 1),
            ("test", 0, 1),
        ]
    ):
        image(root / place / f"{100 - i}_{y}_{b}.png", i)
    return root


@pytest.mark.parametrize("conflict", ["conflict", "conlict"])
@pytest.mark.parametrize("valid", ["valid", "val", "1pct/valid", "1pct/val", "valid/0"])
def test_bffhq_archive_however_its_folders_are_spelled(tmp_path, conflict, valid):
    source = bffhq.Config(dir=str(write_bffhq(tmp_path, conflict, valid)), **SMALL).open()
    assert source.name == "bffhq" and source.class_names == ("young", "old") and source.bias_name == "gender"
    assert {name: s.role for name, s in source.sets.items()} == {"val": "val", "unbiased": "test"}
    assert [counts(split) for split in splits(source)] == [(3, 1), (1, 1), (2, 1)]  # aligned test images are kept
    assert source.facts["counts"]["test"] == {"aligned": 2, "conflicting": 1}
    for split in splits(source):
        assert split.image.shape[1:] == (8, 8, 3) and split.label.dtype == split.bias.dtype == np.int32
        for i, name, y, b in zip(number_of(split.image), split.name, split.label, split.bias, strict=True):
            assert pathlib.PurePath(name).name == f"{100 - i}_{y}_{b}.png"
        assert list(split.name) == sorted(split.name)


def test_a_ratio_has_its_own_validation_set_before_the_shared_one(tmp_path):
    write_bffhq(tmp_path)
    image(tmp_path / "1pct" / "valid" / "7_1_1.png", 50)
    image(tmp_path / "1pct" / "valid" / "._7_1_1.png", 51)  # as macOS adds
    split = bffhq.Config(dir=str(tmp_path), **SMALL).open().sets["val"].split
    assert split.name.tolist() == ["1pct/valid/7_1_1.png"]


@pytest.mark.parametrize("name", ["7_1_2.png", "7.png", "7_1_.png", "7_a_1.png", "7_1_01.png"])
def test_names_that_tell_no_label_are_refused(tmp_path, name):
    image(write_bffhq(tmp_path) / "test" / name, 0)
    with pytest.raises(ValueError, match=rf"test/{name}: the name must end in _<label>_<bias>, each from 0 to 1\. Move other"):
        bffhq.Config(dir=str(tmp_path), **SMALL).open()


def test_what_is_missing_is_named_with_the_cure(tmp_path):
    write_bffhq(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no images under .*/5pct/align: needed are .*Unpack the archive of DisEnt"):
        bffhq.Config(dir=str(tmp_path), conflicting_percent=5, **SMALL).open()
    with pytest.raises(FileNotFoundError, match=r"data\.dir = '.*nowhere' is not a folder: name the folder"):
        bffhq.Config(dir=str(tmp_path / "nowhere")).open()


@pytest.mark.parametrize(
    ("module", "change", "message"),
    [
        (bffhq, {"conflicting_percent": 3}, "data.conflicting_percent = 3 is not one of 0.5, 1, 2, 5, 20"),
        (waterbirds, {"conflicting_percent": 0}, "data.conflicting_percent = 0 is not one of 0.5, 1, 2, 5, 20"),
        (bar, {"conflicting_percent": 2}, "data.conflicting_percent = 2 is not one of 1, 5, 20"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, module, change, message):
    with pytest.raises(ValueError, match=message):
        module.Config(**{"dir": str(write_bffhq(tmp_path)), **change}).open()


def test_unreadable_images_are_an_error_or_left_out_with_their_labels(tmp_path):
    write_bffhq(tmp_path)
    (tmp_path / "1pct" / "align" / "1" / "99_1_1.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"99_1_1\.png cannot be read .*data\.corrupt=skip"):
        bffhq.Config(dir=str(tmp_path), **SMALL).open()
    source = bffhq.Config(dir=str(tmp_path), corrupt="skip", **SMALL).open()
    assert counts(source.train) == (2, 1) and source.facts["unreadable"] == ["1pct/align/1/99_1_1.png"]
    assert [int(name.split("_")[-2]) for name in (pathlib.PurePath(n).stem for n in source.train.name)] == source.train.label.tolist()


def test_large_sets_are_streamed(tmp_path):
    source = bffhq.Config(dir=str(write_bffhq(tmp_path)), resident_gib=0.0, **SMALL).open()
    resident = bffhq.Config(dir=str(tmp_path), **SMALL).open()
    assert not isinstance(source.train.image, np.ndarray)
    np.testing.assert_array_equal(source.train.image.take(np.arange(4))[0], resident.train.image)


# Pixels


def test_images_become_squares_whole():
    """Not cut: the right edge of a wide image is still there. As torchvision's Resize of a Pillow image."""
    wide = Image.fromarray(np.repeat(np.repeat(np.uint8([[[255, 0, 0], [0, 0, 0], [0, 0, 255]]]), 10, 0), 10, 1))
    file = io.BytesIO()
    wide.convert("RGB").save(file, "PNG")
    square = biased_images.stretch(file.getvalue(), 9)
    assert square.shape == (9, 9, 3) and square[4, 0].tolist() == [255, 0, 0] and square[4, 8].tolist() == [0, 0, 255]
    np.testing.assert_array_equal(square, np.asarray(wide.resize((9, 9), Image.Resampling.BILINEAR)))


def test_training_sees_shifted_and_flipped_squares_and_evaluation_the_whole(tmp_path):
    source = bffhq.Config(dir=str(write_bffhq(tmp_path)), **SMALL).open()
    image = np.full((64, 8, 8, 3), 255, np.uint8)
    image[:, :, 0] = 128
    whole = np.asarray(source.scale(image))
    np.testing.assert_allclose(whole[0, 0, 7], (1 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225]), rtol=1e-5)
    assert whole.shape == image.shape and (whole == whole[0]).all()
    seen = np.asarray(jax.jit(source.augment)(jax.random.key(0), image))
    black = -np.array([0.485, 0.456, 0.406]) / np.array([0.229, 0.224, 0.225])
    padding = np.isclose(seen, black, atol=1e-5).all(-1)
    assert seen.shape == image.shape and padding.any() and 0 <= padding.all(2).sum(1).min() <= padding.all(2).sum(1).max() <= 4
    grey = np.isclose(seen[..., 0], (128 / 255 - 0.485) / 0.229, atol=1e-4).any(1)  # where the marked column went
    assert grey[:, :4].any(1).sum() > 10 and grey[:, 4:].any(1).sum() > 10


# Waterbirds


PUBLISHED = {
    (0, 0, 0): 3498,
    (0, 0, 1): 184,
    (0, 1, 0): 56,
    (0, 1, 1): 1057,
    (1, 0, 0): 467,
    (1, 0, 1): 466,
    (1, 1, 0): 133,
    (1, 1, 1): 133,
}
PUBLISHED |= {(2, 0, 0): 2255, (2, 0, 1): 2255, (2, 1, 0): 642, (2, 1, 1): 642}
HEADER = "img_id,img_filename,y,split,place,place_filename\n"


def write_waterbirds(root: pathlib.Path, sizes: dict[tuple[int, int, int], int]) -> pathlib.Path:
    """A published archive with so many images of each (split, label, place); all the same file."""
    image(root / "one.jpg", 3)
    lines = [f"a/{s}{y}{b}_{i:04d}.jpg,{y},{s},{b},/o/ocean/1.jpg" for (s, y, b), size in sizes.items() for i in range(size)]
    (root / "a").mkdir()
    for line in lines:
        (root / line.split(",")[0]).hardlink_to(root / "one.jpg")
    (root / "metadata.csv").write_text(HEADER + "".join(f"{i},{line}\n" for i, line in enumerate(reversed(lines), 1)))
    return root


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = write_waterbirds(tmp_path_factory.mktemp("waterbirds"), PUBLISHED)
    assert debias_sets.main(["waterbirds", str(root)]) == 0
    return root


def cells_of(rows: list[dict], split: int) -> list[int]:
    """Of (0,0), (0,1), (1,0), (1,1)."""
    return [sum((row["split"], row["y"], row["place"]) == (str(split), y, b) for row in rows) for y in "01" for b in "01"]


def test_waterbirds_ratios_from_the_published_archive(published):
    train = {0.5: [3498, 18, 5, 1057], 1: [3498, 35, 11, 1057], 2: [3498, 71, 22, 1057], 5: [3498, 184, 56, 1057], 20: [736, 184, 56, 224]}
    val = {0.5: 3, 1: 6, 2: 12, 5: 32, 20: 150}  # conflicting beside 600 aligned
    tables = {percent: rows_of(biased_images.table_path(published, percent)) for percent in PERCENTS}
    for percent, rows in tables.items():
        assert cells_of(rows, 0) == train[percent]
        a, b, c, d = cells_of(rows, 1)
        assert (a, d) == (467, 133) and b + c == val[percent]
        assert cells_of(rows, 2) == [2255, 2255, 642, 642]
    for split in "01":
        names = [{r["img_filename"] for r in rows if r["split"] == split and r["y"] != r["place"]} for rows in tables.values()]
        assert all(one <= other for one, other in itertools.pairwise(names))
    published_rows = rows_of(published / "metadata.csv")
    assert {r["img_filename"] for r in tables[5] if r["split"] == "0"} == {r["img_filename"] for r in published_rows if r["split"] == "0"}


def test_waterbirds_conflicting_images_are_drawn_at_random(published):
    names = [
        r["img_filename"] for r in rows_of(biased_images.table_path(published, 2)) if r["split"] == "0" and r["y"] == "0" != r["place"]
    ]
    numbers = np.array([int(name[-8:-4]) for name in names])
    assert len(numbers) == 71 and 60 < numbers.mean() < 124  # of 0 to 183


def test_waterbirds_tables_are_read_and_the_published_one_too(tmp_path):
    sizes = {cell: 5 + sum(cell) for cell in PUBLISHED}
    root = write_waterbirds(tmp_path, sizes)
    with pytest.raises(FileNotFoundError, match=r"metadata_1pct\.csv is missing: python data_prep/debias_sets\.py .*table=metadata\.csv"):
        waterbirds.Config(dir=str(root), **SMALL).open()
    source = waterbirds.Config(dir=str(root), table="metadata.csv", **SMALL).open()
    for s, split in enumerate(splits(source)):
        assert cells(split) == {(y, b): n for (k, y, b), n in sizes.items() if k == s}
        assert list(split.name) == sorted(split.name)  # whatever the order of the table
    assert source.facts["conflicting_percent"] is None and source.facts["table"] == "metadata.csv" and source.bias_name == "background"
    assert debias_sets.main(["waterbirds", str(root), "--percents", "20"]) == 0
    source = waterbirds.Config(dir=str(root), conflicting_percent=20, **SMALL).open()
    assert source.facts["conflicting_percent"] == 20 and len(source.facts["table_sha256"]) == 64
    assert counts(source.train) == (5 + 7, 1 + 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "img_id,img_filename,y,split\n1,one.jpg,0,0\n",
            "has no column place in its header 'img_id,img_filename,y,split': it is another table",
        ),
        (HEADER + "1,one.jpg,2,0,0,x\n", r"metadata\.csv, line 2: y = '2' is not a whole number from 0 to 1"),
        *((HEADER + f'1,one.jpg,"{number}",0,0,x\n', rf"y = '{number}' is not a whole number") for number in ("1,000", "1.000", "0,000")),
        (HEADER + "1,one.jpg,0,0,0.5,x\n", r"line 2: place = '0\.5' is not a whole number from 0 to 1"),
        (HEADER + "1,one.jpg,0,0,0,x\n2,./one.jpg,0,2,0,x\n", r"lists 1 images twice: \./one\.jpg \(train, then test\)"),
        (HEADER + "1,one.jpg,0,0,0,x\n2,one.jpg,0,3,0,x\n", r"line 3: split = '3' is not a whole number from 0 to 2"),
        (HEADER + "1,one.jpg,0,0\n", "line 2: it has 4 fields, but the header has 6"),
        (HEADER + '1,"one\ntwo.jpg",0,0,0,x\n2,,0,0,0,x\n', "line 4: img_filename is empty"),
        (HEADER + '1,"one\ntwo.jpg",0,0\n', "line 2: it has 4 fields"),
        (HEADER + "1,,0,0,0,x\n", "line 2: img_filename is empty"),
        (HEADER + "1,one\0.jpg,0,0,0,x\n", "line 2: it contains a NUL byte"),
        (HEADER.replace("\n", ",y\n") + "1,one.jpg,0,0,0,x,1\n", "has column y more than once in its header"),
        (HEADER + '1,"one.jpg,0,0,0,x\n' + 10000 * "2,two.jpg,1,0,0,x\n", "line .*: field larger than field limit"),
        ('"' + HEADER + 10000 * "2,two.jpg,1,0,0,x\n", "line 1: .*not closed"),
        ('"' + 200_000 * "x" + '"\n', "line 1: .*not closed"),
        (HEADER + "1,one.jpg,0,0,0,x\n", "has no row for the val set"),
        (HEADER + "1,gone.jpg,0,0,0,x\n2,also.jpg,0,0,0,x\n", r"csv names 2 images that do not exist, e\.g\. .*gone\.jpg: unpack"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, content, message):
    image(tmp_path / "one.jpg", 3)
    (tmp_path / "metadata.csv").write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        waterbirds.Config(dir=str(tmp_path), table="metadata.csv", **SMALL).open()


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: re.sub(r",(\d)(?=,)", r",\1.0", text),
        lambda text: re.sub(r",(\d)(?=,)", r",\1.0", text).replace(",", ";").replace(".0", ",0"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(",", ", "),
        lambda text: text.replace("a/", "a\\"),
        lambda text: "sep=;\n" + text.replace(",", ";"),
        lambda text: text.replace("\n", ",,\n") + ",,,,,,,\n\n",
        lambda text: re.sub("[^,\n]+", r'"\g<0>"', text).rstrip("\n"),
    ],
    ids=[
        *("byte-order mark", "semicolons", "tabs", "0.0", "decimal commas", "Windows", "spaces", "backslashes", "separator line"),
        *("empty columns and rows", "quoted, no last newline"),
    ],
)
def test_tables_are_read_as_spreadsheets_save_them(tmp_path, changed):
    root = write_waterbirds(tmp_path, {cell: 2 for cell in PUBLISHED})
    whole = waterbirds.Config(dir=str(root), table="metadata.csv", **SMALL).open()
    table = root / "metadata.csv"
    before = table.read_text()
    table.write_bytes(changed(before).encode())
    assert table.read_bytes() != before.encode()
    again = waterbirds.Config(dir=str(root), table="metadata.csv", **SMALL).open()
    for one, other in zip(splits(whole), splits(again), strict=True):
        assert all((a == b).all() for a, b in zip(one, other, strict=True))
    table.write_bytes(before.encode("utf-16"))
    with pytest.raises(ValueError, match=r"metadata\.csv is not text in UTF-8 .*: save it as CSV in UTF-8"):
        waterbirds.Config(dir=str(root), table="metadata.csv", **SMALL).open()


TINY = ("--config.data.side_px=32", "--config.net.depth=10", "--config.net.width=4", "--config.seeds=1", "--config.epochs=1")
TINY += ("--config.batch_size=8", "--config.mesh.seed=1", "--config.mesh.data=1", "--config.data.table=metadata.csv")


def run(root):
    words = (f"--config={ROOT}/configs/erm.py:waterbirds", f"--config.data.dir={root}", f"--workdir={root}/run", *TINY)
    return in_process(root, main.main, *words)


def test_tables_that_would_give_wrong_scores_end_the_command(tmp_path):
    root = write_waterbirds(tmp_path, {cell: 2 for cell in PUBLISHED})
    table = root / "metadata.csv"
    whole = table.read_text()
    rows = [line.split(",") for line in whole.splitlines()[1:]]
    again = [",".join([*row[:3], "2", *row[4:]]) for row in rows if row[3] == "0"][:5]
    table.write_text(whole + "\n".join(again) + "\n")
    done = run(root)
    assert_refused(done, "metadata.csv lists 5 images twice", "(train, then test)", again[0].split(",")[1])
    table.write_text(HEADER + "\n".join(",".join([*row[:2], "1", *row[3:]]) for row in rows) + "\n")
    assert_refused(run(root), "all 8 training images of waterbirds are of class 'waterbird'")
    assert not (root / "run" / "checkpoints").exists()


def test_images_of_one_colour_are_reported(tmp_path):
    root = write_waterbirds(tmp_path, {cell: 2 for cell in PUBLISHED})
    source = waterbirds.Config(dir=str(root), table="metadata.csv", **SMALL).open()
    log.Log(tmp_path / "run").data(members.one(tiny.mlp_config(), source))
    reported = (tmp_path / "run" / "log.jsonl").read_text()
    for name in ("train", "val", "unbiased"):
        assert f"{name}: 8 of 8 images are of one colour, a/" in reported


# Waterbirds from CUB and Places


WATER_SPECIES = ("001.Black_footed_Albatross", "142.Black_Tern", "025.Pelagic_Cormorant", "087.Pacific_Loon")
LAND_SPECIES = ("009.Brewer_Blackbird", "047.American_Goldfinch")
TERNS = ("021.Eastern_Towhee", "088.Western_Meadowlark", "102.Western_Wood_Pewee")


def test_species_are_recognised_by_parts_of_their_names_or_by_words():
    for species in (*WATER_SPECIES, *LAND_SPECIES):
        assert synthesis.is_water(f"{species}/x.jpg", False) == synthesis.is_water(f"{species}/x.jpg", True) == (species in WATER_SPECIES)
    assert all(synthesis.is_water(f"{species}/x.jpg", False) and not synthesis.is_water(f"{species}/x.jpg", True) for species in TERNS)


def write_cub(root: pathlib.Path, birds: int = 60) -> pathlib.Path:
    names = [f"{species}/{i:03d}.jpg" for i in range(birds // 3) for species in ("001.Black_footed_Albatross", *LAND_SPECIES)]
    for i, name in enumerate(names):
        image(root / "CUB" / "images" / name, i, (12, 9))
        mask = np.zeros((9, 12), np.uint8)
        mask[:, :6] = 255
        path = (root / "CUB" / "segmentations" / name).with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)
    (root / "CUB" / "images.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    (root / "CUB" / "train_test_split.txt").write_text("".join(f"{i} {i % 2}\n" for i in range(1, len(names) + 1)))
    for kind, folders in enumerate(synthesis.PLACES):
        for folder in folders:
            for i in range(birds):
                path = root / "places" / folder / f"{i}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (20, 8), (0, 0, 100 + 100 * kind)).save(path)
    return root


def synthesise(root: pathlib.Path, *options: str) -> int:
    return synthesis.main([str(root / "out"), "--cub", str(root / "CUB"), "--places", str(root / "places"), "--workers", "2", *options])


def test_synthesis_makes_each_image_once_and_resumes(tmp_path, capsys):
    write_cub(tmp_path)
    assert synthesise(tmp_path) == 0
    made = sorted((tmp_path / "out").rglob("*.jpg"))
    assert f"{len(made)} images made, 0 already existed" in capsys.readouterr().out and 60 < len(made) < 90
    source = waterbirds.Config(dir=str(tmp_path / "out"), conflicting_percent=20, **SMALL).open()
    assert [sum(counts(split)) for split in splits(source)] == [24, 6, 30]
    # of 8 or so water birds and 16 land birds, a fifth of each class, and half of the test set's 20 and 10
    assert cells(source.sets["unbiased"].split) == {(0, 0): 10, (0, 1): 10, (1, 0): 5, (1, 1): 5}
    for split in splits(source):
        for name, y, b, image in zip(split.name, split.label, split.bias, split.image, strict=True):
            assert name.startswith(("land", "water")[b]) and ("Albatross" in name) == y
            assert abs(int(image[4, 7, 2]) - (100 + 100 * b)) < 8 and int(image[4, 0, 2]) < 8  # place right, bird left
    before = {path: path.stat().st_mtime_ns for path in made}
    made[3].unlink()
    assert synthesise(tmp_path) == 0
    assert [path for path in made if path.stat().st_mtime_ns != before[path]] == [made[3]]
    assert synthesise(tmp_path, "--seed", "1") == 2 and "was written with another --seed" in capsys.readouterr().err


def test_synthesis_says_what_it_lacks(tmp_path, capsys):
    write_cub(tmp_path, 12)
    (tmp_path / "CUB" / "segmentations" / "009.Brewer_Blackbird" / "001.png").unlink()
    assert synthesise(tmp_path) == 2 and "009.Brewer_Blackbird/001.jpg cannot be made from" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.csv"))
    for path in (tmp_path / "places" / "o" / "ocean").glob("*"):
        path.unlink()
    for path in sorted((tmp_path / "places" / "l" / "lake" / "natural").glob("*"))[1:]:
        path.unlink()
    assert synthesise(tmp_path) == 2 and "have 1 images (*.jpg), but" in capsys.readouterr().err
    (tmp_path / "CUB" / "images.txt").unlink()
    assert synthesise(tmp_path) == 2 and "images.txt is missing: --cub must name" in capsys.readouterr().err


def test_synthesis_has_the_papers_counts():
    """Table 8: 24, 48, 96, 240 and 959 of 4,795 conflict in training, 6, 12, 24, 60 and 240 of 1,199 in validation."""
    sizes = {(0, 0): 3682, (0, 1): 1113, (1, 0): 933, (1, 1): 266, (2, 0): 4510, (2, 1): 1284}
    birds = [synthesis.Bird(f"{s}{y}{i}", y, s, i, size) for (s, y), size in sizes.items() for i in range(size)]
    for percent, train, val in zip(PERCENTS, (24, 48, 96, 240, 959), (6, 12, 24, 60, 240), strict=True):
        found = [sum(synthesis.conflicts(bird, percent) for bird in birds if bird.split == split) for split in range(3)]
        assert found == [train, val, 2255 + 642]


def test_composition_takes_the_bird_where_the_mask_is_white():
    rng = np.random.default_rng(0)
    bird, background = (rng.integers(0, 256, (5, 4, 3), np.uint8) for _ in range(2))
    mask = rng.integers(0, 256, (5, 4), np.uint8)
    mask[0] = 0, 255, 128, 1
    bird[0, 2:], background[0, 2:] = 255, 255  # two parts of 127.5 sum to 255, not to 256
    found = synthesis.compose(Image.fromarray(bird), Image.fromarray(mask), Image.fromarray(background))
    share = mask[..., None] / 255
    np.testing.assert_allclose(found, bird * share + background * (1 - share), atol=0.5 + 1e-4)
    assert (found[0, 0] == background[0, 0]).all() and (found[0, 1] == bird[0, 1]).all() and (found[0, 2:] == 255).all()
    with pytest.raises(ValueError, match="its segmentation has 5 x 4 pixels, not 4 x 5"):
        synthesis.compose(Image.fromarray(bird), Image.fromarray(mask.T), Image.fromarray(background))


# BAR


ACTIONS = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")


def write_original_bar(root: pathlib.Path) -> pathlib.Path:
    """As many files as the original has of each class, all the same one."""
    image(root / "one.jpg", 3)
    for name, sizes in (("train", (326, 520, 163, 279, 336, 317)), ("test", (105, 159, 42, 131, 132, 85))):
        (root / name).mkdir()
        for action, size in zip(ACTIONS, sizes, strict=True):
            for i in range(1, size + 1):
                (root / name / f"{action}_{i}.jpg").hardlink_to(root / "one.jpg")
    return root


def test_bar_from_the_original_has_the_papers_counts(tmp_path, capsys):
    root = write_original_bar(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no images under .*train/align.*debias_sets\.py bar .* writes the table"):
        bar.Config(dir=str(root), **SMALL).open()
    assert debias_sets.main(["bar", str(root)]) == 0
    assert "train 1,493 aligned + 13 conflicting, val 168 aligned + 6 conflicting, test 280 aligned + 280" in capsys.readouterr().out
    train_conflicting = []
    for percent, train, val in ((1, 13, 6), (5, 76, 7), (20, 333, 41)):
        source = bar.Config(dir=str(root), conflicting_percent=percent, **SMALL).open()
        assert [counts(split) for split in splits(source)] == [(1493, train), (168, val), (280, 280)]
        names = np.concatenate([split.name for split in splits(source)])
        assert len(set(names)) == len(names)
        for split in splits(source):
            conflicting = split.bias != split.label
            assert (split.bias[conflicting] == (split.label[conflicting] + 1) % 6).all()
            assert [name.split("/")[0] == "test" for name in split.name] == conflicting.tolist()
            assert [ACTIONS.index(name.split("/")[1].rpartition("_")[0]) for name in split.name] == split.label.tolist()
        spread = np.bincount(source.sets["val"].split.label[source.sets["val"].split.bias == source.sets["val"].split.label], minlength=6)
        assert np.abs(spread - 168 * np.array([326, 520, 163, 279, 336, 317]) / 1941).max() < 1.01
        train_conflicting.append(set(source.train.name[source.train.bias != source.train.label]))
    assert train_conflicting[0] < train_conflicting[1] < train_conflicting[2]
    assert source.facts["bias_label"].startswith("none")
    image(root / "train" / "polevaulting_1.jpg", 0)
    (root / "metadata_1pct.csv").unlink()
    assert debias_sets.main(["bar", str(root)]) == 2
    assert "polevaulting_1.jpg: the name must be <class>_<number>, with a class of climbing" in capsys.readouterr().err
    (root / "train" / "polevaulting_1.jpg").unlink()
    (root / "test" / "racing_1.jpg").unlink()
    assert debias_sets.main(["bar", str(root)]) == 2 and "test has 653 images, but 654 are needed" in capsys.readouterr().err
    assert debias_sets.main(["bar", str(root / "train")]) == 2 and "name the folder of the original BAR" in capsys.readouterr().err


@pytest.mark.parametrize("valid", ["valid", "val"])
def test_bar_archive_with_its_dummy_bias(tmp_path, valid):
    for i, (place, y, b) in enumerate(
        [
            ("train/align/pole vaulting", 3, 0),  # the folder tells, not the name
            ("train/align/throwing", 5, 5),
            ("train/conflict/1pct/throwing", 5, 5),
            ("train/conflict/5pct/diving", 1, 0),
            (f"{valid}/pole vaulting", 3, 3),
            (f"{valid}/climbing", 0, 4),
            ("test/racing", 4, 2),
        ]
    ):
        image(tmp_path / place / f"pole vaulting_{i}_{y}_{b}.jpg", i)
    train, val, test = splits(bar.Config(dir=str(tmp_path), **SMALL).open())
    assert cells(train) == {(3, 3): 1, (5, 5): 1, (5, 0): 1} and cells(val) == {(3, 3): 1, (0, 1): 1} and cells(test) == {(4, 5): 1}
    with pytest.raises(FileNotFoundError, match=r"no images under .*train/conflict/20pct"):
        bar.Config(dir=str(tmp_path), conflicting_percent=20, **SMALL).open()


# BFFHQ, drawn


def test_a_method_that_reads_the_bias_is_refused_where_there_is_none(tmp_path):
    write_original_bar(tmp_path)
    assert debias_sets.main(["bar", str(tmp_path)]) == 0
    source = bar.Config(dir=str(tmp_path), side_px=8).open()
    with pytest.raises(ValueError, match=r"end needs the class of every image's bias, and bar has none: aligned or conflicting is all"):
        tiny.program(tiny.train_config("end"), source)


def test_few_conflicting_validation_images_are_reported():
    def said(label, bias):
        split = Split(np.zeros((len(label), 2, 2, 3), np.uint8), np.int32(label), np.int32(bias), np.arange(len(label)).astype(str))
        return remarks.few_conflicting(split, ("land", "water"))

    assert said([0, 0, 1, 1], [-1] * 4) == said([0, 1], [0, 1]) == ""
    assert said([0, 0, 0, 1], [0, 1, 1, 1]).startswith("2 conflicting images, none of water: one is 50.0 points")
    assert said([0] * 30 + [1] * 30, [1] * 30 + [0] * 30) == ""
    assert said([0] * 20 + [1] * 9, [1] * 20 + [0] * 9).startswith("29 conflicting images: one is 3.4 points")


def test_sets_of_other_classes_than_the_training_set_are_reported(tmp_path, capsys):
    source = shapes.Config(train_images=64, val_images=32, test_images=16).open()
    few = {"train": source.train.label != 3, "val": source.sets["val"].split.label == 2}
    train, val = (pick(split, np.flatnonzero(few[name])) for name, split in (("train", source.train), ("val", source.sets["val"].split)))
    sets = {**source.sets, "val": source.sets["val"]._replace(split=val)}
    log.Log(tmp_path).data(members.one(tiny.mlp_config(), dataclasses.replace(source, train=train, sets=sets)))
    said = capsys.readouterr().out
    assert f"val: all images are of class {source.class_names[2]}" in said
    assert f"edge: 1 images are of classes that no training image has ({source.class_names[3]})" in said


def test_bffhq_drawn_from_the_archive(tmp_path, monkeypatch, capsys):
    """Twelve of each cell to test in place of 500, 360 to train and 40 to validate."""
    monkeypatch.setattr(debias_sets, "BFFHQ_TEST", 12)
    number = 0
    for y in (0, 1):
        for b in (0, 1):
            for i in range(250 if y == b else 60):
                place = f"{(1, 2)[i % 2]}pct/{'align' if y == b else 'conflict'}/{y}" if i > 20 else ("valid", "test")[i % 2]
                image(tmp_path / place / f"{i}_{y}_{b}.png", number)
                number += 1
                if i > 50:  # the same image in two ratios under other numbers
                    image(tmp_path / f"5pct/{y}" / f"{1000 + i}_{y}_{b}.png", number - 1)
    assert debias_sets.main(["bffhq", str(tmp_path), "--train", "360", "--percents", "1,5,20"]) == 0
    assert "train 288 aligned + 72 conflicting, val 32 aligned + 8 conflicting, test 24 aligned + 24" in capsys.readouterr().out
    sources = {p: bffhq.Config(dir=str(tmp_path), conflicting_percent=p, **SMALL).open() for p in (1, 5, 20)}
    for percent, source in sources.items():
        train, val, test = splits(source)
        conflicting = 2 * round(1.8 * percent)
        assert counts(train) == (360 - conflicting, conflicting) and sum(counts(val)) == 40
        assert np.bincount(train.label).tolist() == [180, 180] and set(cells(test).values()) == {12}
        seen = np.concatenate([number_of(split.image) for split in (train, val, test)])
        assert len(set(seen)) == len(seen)  # no image twice, under whatever name
    one, *others = (set(source.sets["unbiased"].split.name) for source in sources.values())
    assert one == others[0] == others[1]
    conflicts = [{n for n, y, b in zip(s.train.name, s.train.label, s.train.bias, strict=True) if y != b} for s in sources.values()]
    assert conflicts[0] < conflicts[1] < conflicts[2]
    before = biased_images.table_path(tmp_path, 5).read_bytes()
    assert debias_sets.main(["bffhq", str(tmp_path), "--train", "360", "--percents", "5", "--seed", "3"]) == 2
    assert "already exists with other content" in capsys.readouterr().err and biased_images.table_path(tmp_path, 5).read_bytes() == before
    assert debias_sets.main(["bffhq", str(tmp_path)]) == 2
    assert "images of label 0 and bias 0, but 0.5 % conflicting in 18000 needs" in capsys.readouterr().err
    assert debias_sets.main(["bffhq", str(tmp_path / "5pct")]) == 2 and "contains no images in folders" in capsys.readouterr().err


def test_bffhq_counts_are_those_of_table_8():
    table = {0.5: (17_910, 90, 1_990, 10), 1: (17_820, 180, 1_980, 20), 2: (17_640, 360, 1_960, 40), 5: (17_100, 900, 1_900, 100)}
    for percent, found in {**table, 20: (14_400, 3_600, 1_600, 400)}.items():
        sizes = debias_sets._bffhq_sizes(percent, debias_sets.BFFHQ_TRAIN)
        assert found == tuple(2 * sizes[aligned, split] for split in (0, 1) for aligned in (True, False))


def test_an_unknown_ratio_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        debias_sets.main(["bar", str(tmp_path), "--percents", "0.5"])
    assert "--percents 0.5: bar allows 1, 5, 20" in capsys.readouterr().err


# Corrupted CIFAR-10: files


def fake_cifar(each: int = 40, seed: int = 0) -> list[np.ndarray]:
    """Training and test images, so many of each class in a random order; smooth, as photographs are."""
    rng, arrays = np.random.default_rng(seed), []
    for size in (10 * each, 10 * each):
        image = ndimage.zoom(rng.random((size, 5, 5, 3)), (1, 6.4, 6.4, 1), order=1)
        arrays += [np.uint8(255 * image), rng.permutation(np.arange(size) % 10)]
    return arrays


def rows_by_file(arrays: list[np.ndarray]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(file, planes [n, 3072], labels) as CIFAR-10 has them."""
    train_image, train_label, test_image, test_label = arrays
    names = [*corrupted_cifar10.TRAIN_FILES, corrupted_cifar10.TEST_FILE]
    images, labels = [*np.split(train_image, 5), test_image], [*np.split(train_label, 5), test_label]
    return [(n, i.transpose(0, 3, 1, 2).reshape(len(i), -1), y) for n, i, y in zip(names, images, labels, strict=True)]


def old_pickle(planes: np.ndarray, labels: np.ndarray) -> bytes:
    """As Python 2 wrote them: strings without encoding, NumPy's old module."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR("
    array += b"K\x01(M" + struct.pack("<H", len(planes)) + b"M" + struct.pack("<H", planes.shape[1])
    array += b"tcnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbI00\n"
    array += b"T" + struct.pack("<i", planes.size) + planes.tobytes() + b"tb"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + b"".join(b"K" + bytes([y]) for y in labels) + b"eu."


def write_cifar(root: pathlib.Path, version: str, arrays: list[np.ndarray]) -> pathlib.Path:
    folder = root / ("cifar-10-batches-bin" if version == "binary" else "cifar-10-batches-py")
    folder.mkdir()
    for name, planes, labels in rows_by_file(arrays):
        if version == "binary":
            (folder / f"{name}.bin").write_bytes(np.column_stack([labels.astype(np.uint8), planes]).tobytes())
        elif version == "old":
            (folder / name).write_bytes(old_pickle(planes, labels))
        else:
            (folder / name).write_bytes(pickle.dumps({b"data": planes, b"labels": labels.tolist()}))
    return folder


@pytest.mark.parametrize("version", ["binary", "old", "new"])
@pytest.mark.parametrize("inside", [True, False])
def test_cifar_is_read_in_each_version(tmp_path, version, inside):
    arrays = fake_cifar(5)
    folder = write_cifar(tmp_path, version, arrays)
    for found, expected in zip(corrupted_cifar10.read_cifar(folder if inside else tmp_path), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2", pickle.dumps(Evil()), "damaged .it asks for builtins.print, but only arrays are allowed"),
        ("data_batch_2", b"<html>404</html>", "data_batch_2 is not a file of CIFAR-10's python version"),
        ("data_batch_2", b"\x80\x02}r\xfe\xff\xff\xff.", "it asks for memory for 4,294,967,294 values"),
        ("data_batch_2", pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}), "is not a file of CIFAR-10's python version"),
        ("data_batch_2", pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}), r"holds uint8 \[2, 3072\] and 1 labels"),
        ("data_batch_2", pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}), "not images of CIFAR-10"),
        ("data_batch_3", None, "has test_batch but lacks data_batch_3: unpack CIFAR-10 again"),
        ("test_batch", None, "contains neither cifar-10-batches-py nor cifar-10-batches-bin"),
    ],
)
def test_damaged_cifar_files_are_refused_and_nothing_is_run(tmp_path, capsys, name, content, message):
    path = write_cifar(tmp_path, "new", fake_cifar(5)) / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        corrupted_cifar10.read_cifar(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_binary_file_that_was_cut_is_refused(tmp_path):
    path = write_cifar(tmp_path, "binary", fake_cifar(5)) / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"test_batch\.bin has \d+ bytes, not a multiple of the 3073"):
        corrupted_cifar10.read_cifar(tmp_path)


def write_lff(root: pathlib.Path) -> pathlib.Path:
    folder = root / "CorruptedCIFAR10-Type1-Skewed0.05-Severity4"
    for part, size in (("train", 400), ("valid", 100)):
        (folder / part).mkdir(parents=True)
        image = np.zeros((size, 32, 32, 3), np.uint8) + np.arange(size, dtype=np.uint8)[:, None, None, None]
        label = np.arange(size) % 10
        bias = np.where(np.arange(size) % 4 == 0, (label + 1) % 10, label)  # a quarter conflicts, all in even classes
        np.save(folder / part / "images.npy", image)
        np.save(folder / part / "attrs.npy", np.stack([label, bias], 1).astype(np.uint8))
    return folder


@pytest.mark.parametrize("inside", [True, False])
def test_lff_arrays_are_read_and_a_tenth_is_held_out(tmp_path, inside):
    folder = write_lff(tmp_path)
    cfg = corrupted_cifar10.Config(dir=str(folder if inside else tmp_path), layout="lff", type=1, conflicting_percent=5)
    train, val, test = splits(cfg.open())
    assert [counts(split) for split in (train, val, test)] == [(270, 90), (30, 10), (75, 25)]
    rows = [np.array([int(name[-5:]) for name in split.name]) for split in (train, val, test)]
    assert sorted([*rows[0], *rows[1]]) == list(range(400))
    for split, row in zip((train, val, test), rows, strict=True):
        np.testing.assert_array_equal(split.image[:, 0, 0, 0], row % 256)
        np.testing.assert_array_equal(split.label, row % 10)
        assert split.label.dtype == split.bias.dtype == np.int32
    assert np.bincount(val.label, minlength=10).tolist() == [4] * 10
    with pytest.raises(FileNotFoundError, match=r"is missing: LfF's folder CorruptedCIFAR10-Type1-Skewed0\.02-Severity4"):
        corrupted_cifar10.Config(dir=str(tmp_path), layout="lff", type=1, conflicting_percent=2).open()
    np.save(folder / "valid" / "images.npy", np.zeros((4, 32, 32), np.uint8))
    with pytest.raises(ValueError, match=r"valid: images.npy is uint8 \[4, 32, 32\] and attrs.npy \[100, 2\], not uint8"):
        cfg.open()
    path, whole = folder / "valid" / "images.npy", (folder / "valid" / "images.npy").read_bytes()
    for content in (
        b"",
        b"no array",
        whole[:-1],
        whole.replace(b"(4, 32, 32)", b"(4, 3**9, )"),
        whole.replace(b"(4, 32, 32)", b"(999999999,)"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path} is damaged \(.+\): generate it again"):
            cfg.open()


def test_the_archive_has_nested_validation_folders(tmp_path):
    for i, place in enumerate(("1pct/align/3", "1pct/conflict/3", "1pct/valid/3", "test/3")):
        image(tmp_path / "cifar10c" / place / f"{i}_3_{3 + i % 2}.png", i, (32, 32))
    source = corrupted_cifar10.Config(dir=str(tmp_path), layout="archive").open()
    assert [cells(split) for split in splits(source)] == [{(3, 3): 1, (3, 4): 1}, {(3, 3): 1}, {(3, 4): 1}]
    assert source.train.image.shape == (2, 32, 32, 3) and "corruptions" not in source.facts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "zip"}, "data.layout = 'zip': must be one of cifar, lff, archive"),
        ({"type": 2}, "data.type = 2: must be one of 0, 1"),
        ({"seed": -1}, "data.seed = -1"),
        ({"conflicting_percent": 10}, "data.conflicting_percent = 10 is not one of 0.5, 1, 2, 5, 20"),
        ({"type": 1, "frost": "x"}, "data.frost = 'x' has no effect with layout = 'cifar' and type = 1"),
        ({"frost": "nowhere"}, "nowhere has no frost images: name the folder"),
    ],
)
def test_cifar_settings_that_cannot_be_are_refused(tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(corrupted_cifar10, "read_cifar", lambda folder: fake_cifar(5))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        corrupted_cifar10.Config(**{"dir": str(tmp_path), **change}).open()


# Corrupted CIFAR-10: which images conflict


def marked(function_number: int):
    """A corruption that leaves its number in the image's first channel, and noise in the second."""

    def function(image, rng):
        spoilt = image.copy()
        spoilt[..., 0] = (function_number + 0.5) / 255
        spoilt[..., 1] = rng.random(image.shape[:3])
        return spoilt

    return function


MARKED = [marked(number) for number in range(10)]


def test_each_class_conflicts_alike_and_the_test_set_is_balanced():
    train_image, train_label, test_image, test_label = fake_cifar(100)
    of_row = {"train": train_label, "val": train_label, "test": test_label}
    drawn = {p: corrupted_cifar10.construct(train_image, train_label, test_image, test_label, p, MARKED, 3) for p in PERCENTS}
    for percent, parts in drawn.items():
        for name, split, size in zip(biased_images.SPLITS, parts, (90, 10, 100), strict=True):
            rows = np.array([int(n.rpartition("-")[2]) for n in split.name])
            assert all(n.startswith(f"{name}-") for n in split.name) and (of_row[name][rows] == split.label).all()
            np.testing.assert_array_equal(split.image[:, 0, 0, 0], split.bias)  # spoilt by the corruption that the bias names
            conflicting = np.bincount(split.label[split.bias != split.label], minlength=10)
            assert (conflicting == (90 if name == "test" else round(size * percent / 100))).all()
        assert set(cells(parts[2]).values()) == {10} and len(cells(parts[2])) == 100
        assert not {n.rpartition("-")[2] for n in parts[0].name} & {n.rpartition("-")[2] for n in parts[1].name}
    for one, other in itertools.pairwise(drawn.values()):
        for a, b in zip(one, other, strict=True):
            assert (a.name == b.name).all()
            same = a.bias == b.bias
            np.testing.assert_array_equal(a.image[same], b.image[same])
            assert (a.bias == a.label)[~same].all() and (b.bias != b.label)[~same].all()
    again, other = (corrupted_cifar10.construct(train_image, train_label, test_image, test_label, 20, MARKED, seed) for seed in (3, 4))
    for a, b, c in zip(drawn[20], again, other, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True)) and not np.array_equal(a.image, c.image)
    shift = (drawn[20][0].bias - drawn[20][0].label)[drawn[20][0].bias != drawn[20][0].label] % 10
    assert np.bincount(shift, minlength=10)[1:].min() > 8  # of 180, over nine


@pytest.mark.parametrize("kind", [0, 1])
def test_corrupted_cifar_opens_from_its_files(tmp_path, kind):
    write_cifar(tmp_path, "binary", fake_cifar(20))
    source = corrupted_cifar10.Config(dir=str(tmp_path), type=kind, conflicting_percent=20).open()
    assert source.name == "corrupted_cifar10" and source.bias_name == "corruption" and source.class_names[3] == "cat"
    assert [counts(split) for split in splits(source)] == [(140, 40), (20, 0), (20, 180)]
    assert source.facts["corruptions"][0] == ("snow", "gaussian_noise")[kind] and source.facts.get("frost") == ("made up", None)[kind]
    assert source.scale(source.train.image[:2]).shape == (2, 32, 32, 3)


# Corruptions, each by a second route


@pytest.fixture(scope="module")
def photographs():
    return fake_cifar(2)[0]


def spoil(function, image, seed: int = 0) -> np.ndarray:
    return corruptions.corrupt(function, image, np.random.default_rng(seed))


ALL = [function for functions in corrupted_cifar10.TYPES.values() for function in functions]


@pytest.mark.parametrize("function", ALL, ids=lambda function: function.__name__)
def test_corruptions_change_images_and_follow_their_seed(photographs, function):
    one, again, other = (spoil(function, photographs, seed) for seed in (0, 0, 1))
    assert one.dtype == np.uint8 and one.shape == photographs.shape
    np.testing.assert_array_equal(one, again)
    fixed = {"brightness", "contrast", "jpeg", "pixelate", "saturate", "gaussian_blur", "defocus_blur", "zoom_blur", "original"}
    assert np.array_equal(one, other) == (function.__name__ in fixed)
    assert np.array_equal(one, photographs) == (function.__name__ == "original")
    assert np.abs(one.astype(int) - photographs).mean() < 110  # still the same image


def test_the_lists_are_lffs():
    words = (
        "snow frost fog brightness contrast spatter elastic jpeg pixelate saturate gaussian_noise shot_noise impulse_noise speckle_noise"
    )
    assert [function.__name__ for function in ALL] == [*words.split(), *(f"{k}_blur" for k in BLURS), "original"]


BLURS = ("gaussian", "defocus", "glass", "motion", "zoom")


def test_noises_have_their_sizes():
    grey = np.full((40, 32, 32, 3), 0.5)
    rng = np.random.default_rng(0)
    assert (corruptions.gaussian_noise(grey, rng) - grey).std() == pytest.approx(0.10, rel=0.02)
    assert (corruptions.shot_noise(grey, rng) - grey).std() == pytest.approx((0.5 / 50) ** 0.5, rel=0.02)
    assert (corruptions.speckle_noise(grey, rng) - grey).std() == pytest.approx(0.5 * 0.2, rel=0.02)
    salted = corruptions.impulse_noise(grey, rng)
    assert [(salted == value).mean() for value in (0, 0.5, 1)] == pytest.approx([0.035, 0.93, 0.035], abs=0.003)
    assert ((salted[..., 0] != 0.5) & (salted[..., 1] != 0.5)).mean() == pytest.approx(0.07**2, abs=0.002)  # channel by channel


def test_brightness_and_saturation_are_those_of_hsv(photographs):
    image = photographs[:3].copy()
    image[0, :4] = [0, 0, 0], *([[90, 90, 90]] * 15), *([[0, 7, 0]] * 15), [255, 255, 255]
    for function, change in (
        (corruptions.brightness, lambda h, s, v: (h, s, min(v + 0.3, 1))),
        (corruptions.saturate, lambda h, s, v: (h, min(max(2.5 * s + 0.2, 0), 1), v)),
    ):
        expected = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in image.reshape(-1, 3) / 255]
        np.testing.assert_allclose(function(image / 255, None).reshape(-1, 3), expected, atol=1e-12)


def test_blurs_are_those_of_scipy_and_opencv(photographs):
    image = photographs[:4] / 255
    disk = np.float64(np.hypot(*np.mgrid[-8:9, -8:9]) <= 1.5)
    disk = cv2.GaussianBlur(disk / disk.sum(), (3, 3), sigmaX=0.1)
    for found, one in zip(corruptions.defocus_blur(image, None), image, strict=True):
        np.testing.assert_allclose(found, cv2.filter2D(one, -1, disk), atol=1e-12)
    for found, one in zip(corruptions.gaussian_blur(image, None), image, strict=True):
        np.testing.assert_allclose(found, ndimage.gaussian_filter(one, (1, 1, 0), mode="nearest"), atol=1e-12)
    for found, one in zip(corruptions.zoom_blur(image, None), image, strict=True):
        total = one.copy()
        for factor in np.arange(1, 1.26, 0.01):
            kept = int(np.ceil(32 / factor))
            top = (32 - kept) // 2
            large = ndimage.zoom(one[top : top + kept, top : top + kept], (factor, factor, 1), order=1)
            trim = (len(large) - 32) // 2
            total += large[trim : trim + 32, trim : trim + 32]
        np.testing.assert_allclose(found, total / 27, atol=1e-9)


def test_glass_copies_as_the_published_loop_does(photographs):
    """From the last pixel to the first, x[h, w], x[h', w'] = x[h', w'], x[h, w] with views of x, whose second half does nothing."""
    image = photographs[:2] / 255
    draws = np.random.default_rng(5)
    found = corruptions.glass_blur(image, np.random.default_rng(5))
    turned = np.stack([np.uint8(ndimage.gaussian_filter(one, (0.4, 0.4, 0), mode="nearest") * 255) for one in image])
    for _ in range(2):
        down, across = draws.integers(-1, 1, (2, len(image), 30, 30))
        for i, pixels in enumerate(turned):
            for h in range(31, 1, -1):
                for w in range(31, 1, -1):
                    other = h + down[i, h - 2, w - 2], w + across[i, h - 2, w - 2]
                    pixels[h, w], pixels[other] = pixels[other], pixels[h, w]
    expected = [ndimage.gaussian_filter(one / 255, (0.4, 0.4, 0), mode="nearest") for one in turned]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_motion_blurs_along_a_line():
    image = np.zeros((3, 32, 32, 1))
    image[:, 16, 20] = 1
    level, upright, slanted = corruptions.move(image, 9, 2.5, np.array([0.0, -90.0, 45.0]))[..., 0]
    weight = np.exp(-(np.arange(19) ** 2) / 12.5)
    weight /= weight.sum()
    np.testing.assert_allclose(level[16, 20:1:-1], weight, atol=1e-12)  # each pixel takes what lies to its right
    np.testing.assert_allclose(upright[16:32, 20], weight[:16], atol=1e-12)
    assert np.count_nonzero(slanted) == np.count_nonzero(np.diag(slanted, 4)) and slanted.sum() == pytest.approx(1)
    np.testing.assert_allclose(corruptions.move(np.full((1, 32, 32, 1), 0.3), 14, 12, np.array([33.0])), 0.3)


def test_elastic_is_opencvs_warp_and_scipys_map(photographs):
    image = photographs[:3] / 255
    rng, draws = np.random.default_rng(2), np.random.default_rng(2)
    found = corruptions.elastic(image, rng)
    corners = np.float32([[26, 26], [26, 6], [6, 6]])
    moved = corners + draws.uniform(-0.96, 0.96, (3, 3, 2))
    noise = draws.uniform(-1, 1, (6, 32, 32)).reshape(2, 3, 32, 32)
    y, x = np.mgrid[:32, :32]
    for i, one in enumerate(image):
        warp = cv2.getAffineTransform(corners, np.float32(moved[i]))
        warped = cv2.warpAffine(one, warp, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        down, across = (3.2 * ndimage.gaussian_filter(plane[i], 0.96, mode="reflect", truncate=3) for plane in noise)
        expected = [ndimage.map_coordinates(warped[..., c], [y + down, x + across], order=1, mode="reflect") for c in range(3)]
        np.testing.assert_allclose(found[i], np.moveaxis(expected, 0, -1), atol=0.015)


def test_plasma_is_the_diamond_square_rule_point_by_point():
    found = weather.plasma(2, 1.75, np.random.default_rng(0))[0]
    rng, height, noise = np.random.default_rng(0), np.zeros((32, 32)), 1.0
    for step in (32, 16, 8, 4, 2):
        half, count = step // 2, 32 // step
        square = [(half, half), (half, -half), (-half, half), (-half, -half)]
        cross = [(half, 0), (-half, 0), (0, half), (0, -half)]
        for down, across, around in ((half, half, square), (0, half, cross), (half, 0, cross)):
            draws = rng.uniform(-noise, noise, (2, count, count))[0]
            new = height.copy()
            for y, x in np.ndindex(count, count):
                place = y * step + down, x * step + across
                new[place] = np.mean([height[(place[0] + a) % 32, (place[1] + b) % 32] for a, b in around]) + draws[y, x]
            height = new
        noise /= 1.75**2
    np.testing.assert_allclose(found, (height - height.min()) / np.ptp(height), atol=1e-12)


def test_fog_has_no_seams_and_brightens_nothing_beyond_the_brightest(photographs):
    maps = weather.plasma(50, 1.75, np.random.default_rng(0))
    assert maps.shape == (50, 32, 32) and (maps.min((1, 2)) == 0).all() and (maps.max((1, 2)) == 1).all()
    steps = [np.abs(maps - np.roll(maps, 1, axis)).mean() for axis in (1, 2)]
    border = [np.abs(np.take(maps, 0, axis) - np.take(maps, -1, axis)).mean() for axis in (1, 2)]
    np.testing.assert_allclose(border, steps, rtol=0.3)  # no seam
    foggy = weather.fog(photographs / 255, np.random.default_rng(0))
    assert foggy.max() <= photographs.max() / 255 + 1e-12 and foggy.std() < (photographs / 255).std()


def test_contrast_mud_pixels_and_jpeg(photographs):
    image = photographs[:4] / 255
    low = corruptions.contrast(image, None)
    np.testing.assert_allclose(low.mean((1, 2)), image.mean((1, 2)))
    np.testing.assert_allclose(low.std((1, 2)), 0.15 * image.std((1, 2)))
    draws = np.random.default_rng(0).normal(0.65, 0.1, image.shape[:3])
    for found, one, liquid in zip(weather.spatter(image, np.random.default_rng(0)), image, draws, strict=True):
        mud = ndimage.gaussian_filter(np.float64(ndimage.gaussian_filter(liquid, 0.5, mode="nearest") > 0.68), 0.6, mode="nearest")
        mud = np.where(mud < 0.8, 0, mud)[..., None]
        assert 0.005 < (mud > 0).mean() < 0.3
        np.testing.assert_allclose(found, one * (1 - mud) + mud * np.array([63, 42, 20]) / 255, atol=1e-12)
    one = Image.fromarray(photographs[0])
    expected = one.resize((20, 20), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX)
    np.testing.assert_array_equal(spoil(corruptions.pixelate, photographs)[0], np.asarray(expected))
    file = io.BytesIO()
    one.save(file, "JPEG", quality=40)
    np.testing.assert_array_equal(spoil(corruptions.jpeg, photographs)[0], np.asarray(Image.open(file)))


def test_snow_falls_on_dark_and_bright(photographs):
    black = weather.snow(np.zeros((20, 32, 32, 3)), np.random.default_rng(0))
    assert black.min() == pytest.approx(0.2 * 0.5) and 0.15 < black.mean() < 0.6  # 0.2 of 1.5 grey + 0.5, and the flakes
    flakes = black[..., 0] - 0.1
    np.testing.assert_allclose(flakes, flakes[:, ::-1, ::-1], atol=1e-12)  # two layers, one upside down


def test_frost_takes_its_textures_from_a_folder(tmp_path):
    for i in range(6):
        Image.new("RGB", (200, 170), (40 * i, 0, 200)).save(tmp_path / f"frost{i + 1}.png")
    textures = weather.read_textures(tmp_path)
    assert [(t.shape, t[0, 0, 0]) for t in textures] == [((34, 40, 3), 40 * i) for i in range(5)]  # never the sixth
    (frost, *_) = (f for f in corrupted_cifar10.list_corruptions(0, str(tmp_path)) if getattr(f, "func", None))
    spoilt = spoil(frost, np.full((100, 32, 32, 3), 100, np.uint8))
    assert set(np.unique(spoilt[..., 0])) == {int(75 + 18 * i + 1e-9) for i in range(5)} and (spoilt[..., 2] == 165).all()
    gradient = np.broadcast_to(np.arange(40, dtype=np.uint8), (34, 40))
    layer = np.stack([gradient, gradient, np.broadcast_to(np.arange(34, dtype=np.uint8)[:, None], (34, 40))], -1)
    cut = weather.frost(np.zeros((50, 32, 32, 3)), np.random.default_rng(0), (layer,)) / 0.45 * 255
    assert len(np.unique(cut[:, 0, 0, 0].round())) > 4 and (np.diff(cut[..., 0], axis=2).round(6) == 1).all()
    Image.new("RGB", (150, 170)).save(tmp_path / "frost0.png")
    with pytest.raises(ValueError, match=r"frost0\.png has sides of \(34, 30\) px at a fifth"):
        weather.read_textures(tmp_path)
