"""Scripts that prepare data: restartable, checked, and what they write is what the folder holds."""

import importlib
import json
import os

import numpy as np
import pytest
from commands import ROOT
from PIL import Image

from data_prep import pictures as script
from jaxbed.data import image_files, records
from jaxbed.data.image_files import Size


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "source" / f"class{i % 3}" / f"{i}.jpeg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(path)
    return tmp_path / "source"


def run(source, target, *options):
    return script.main([str(source), str(target), "--parts", "3", "--workers", "2", *options])


def test_jpeg_records_are_the_folder_and_go_on_where_they_stopped(source, tmp_path, capsys):
    target = tmp_path / "records"
    assert run(source, target) == 0 and "12 images of 3 classes in 3 files, 0 left out" in capsys.readouterr().out
    plain, found = (image_files.open_location(str(place), Size(16, 16)) for place in (source, target))
    np.testing.assert_array_equal(found.images.load()[0], plain.images.load()[0])
    np.testing.assert_array_equal(found.labels, plain.labels)
    times = {path.name: path.stat().st_mtime_ns for path in target.glob("*.array_record")}
    (target / "manifest.json").unlink()
    (target / "part-00001-of-00003.array_record").write_bytes(b"cut short")
    assert run(source, target) == 0
    again = {path.name: path.stat().st_mtime_ns for path in target.glob("*.array_record")}
    assert [name for name in times if times[name] != again[name]] == ["part-00001-of-00003.array_record"]
    np.testing.assert_array_equal(image_files.open_location(str(target), Size(16, 16)).images.load()[0], plain.images.load()[0])


def test_parts_whose_images_have_changed_are_made_again(source, tmp_path):
    target = tmp_path / "records"

    def made_again():
        """Parts that the same command writes anew; the records then are the folder."""
        before = {path.name: path.stat().st_mtime_ns for path in target.glob("*.array_record")}
        assert run(source, target) == 0
        found = records.open_records(target)
        names, labels, classes = image_files.list_folder(source)
        assert (found.names.tolist(), found.labels.tolist(), found.classes) == (names.tolist(), labels.tolist(), classes)
        assert [found.source[row] for row in range(12)] == [(source / name).read_bytes() for name in names]
        return [int(path.name[5:10]) for path in sorted(target.glob("*.array_record")) if path.stat().st_mtime_ns != before.get(path.name)]

    assert made_again() == [0, 1, 2] and made_again() == []
    (source / "class0" / "9.jpeg").rename(source / "class1" / "9.jpeg")  # the second of four in a part, which keeps its ends
    assert made_again() == [0, 1]
    (source / "class2" / "5.jpeg").write_bytes((source / "class2" / "8.jpeg").read_bytes())
    assert made_again() == [2]
    path = source / "class1" / "4.jpeg"
    facts = path.stat()
    Image.new("RGB", (20, 24)).save(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # another size at the same time
    assert made_again() == [1]


def test_records_that_are_made_again_are_unfinished_until_then(source, tmp_path):
    assert run(source, tmp_path / "records") == 0
    (source / "class1" / "4.jpeg").write_bytes(b"nothing")
    assert run(source, tmp_path / "records") == 2
    with pytest.raises(FileNotFoundError, match="the folder is unfinished"):
        records.open_records(tmp_path / "records")


def test_squares_and_unreadable_images(source, tmp_path, capsys):
    (source / "class1" / "4.jpeg").write_bytes(b"nothing")
    assert run(source, tmp_path / "strict", "--format", "uint8", "--side-px", "16") == 2
    assert "class1/4.jpeg cannot be read" in capsys.readouterr().err and not (tmp_path / "strict" / "manifest.json").exists()
    target = tmp_path / "squares"
    assert run(source, target, "--format", "uint8", "--side-px", "16", "--corrupt", "skip") == 0
    assert "left out: class1/4.jpeg" in capsys.readouterr().out
    found = records.open_records(target)
    assert len(found.names) == 11 and "class1/4.jpeg" not in found.names and found.side_px == 16
    assert list(json.loads((target / "manifest.json").read_text())["skipped"]) == ["class1/4.jpeg"]
    plain = image_files.open_location(str(source), Size(16, 16), corrupt="skip")
    rows = np.flatnonzero(plain.images.names != "class1/4.jpeg")
    np.testing.assert_array_equal(image_files.open_location(str(target), Size(16, 16)).images.load()[0], plain.images.take(rows)[0])


def test_a_folder_begun_with_other_settings_is_left_alone(source, tmp_path, capsys):
    assert run(source, tmp_path / "records") == 0
    assert run(source, tmp_path / "records", "--format", "uint8") == 2
    assert "was started with other settings" in capsys.readouterr().err
    assert run(tmp_path / "nowhere", tmp_path / "other") == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_refused_image_leaves_no_half_written_file(source, tmp_path, capsys):
    (source / "class1" / "4.jpeg").write_bytes(b"no image")
    target = tmp_path / "records"
    assert run(source, target) == 2 and "4.jpeg cannot be read" in capsys.readouterr().err
    assert not [path for path in target.rglob("*") if path.suffix == ".partial"]


def test_damaged_notes_of_a_preparation_are_named_or_rebuilt(source, tmp_path, capsys):
    target = tmp_path / "records"
    assert run(source, target) == 0
    before = (target / "manifest.json").read_bytes()
    next(target.glob("part-00000*.json")).write_bytes(b"[")
    assert run(source, target) == 0 and (target / "manifest.json").read_bytes() == before
    (target / "settings.json").write_bytes(b"")
    capsys.readouterr()
    assert run(source, target) == 2 and f"{target / 'settings.json'} is damaged (it is empty): delete" in capsys.readouterr().err


FILES = sorted(path.name for path in (ROOT / "data_prep").glob("*.py"))


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_a_command_with_help_or_called_a_module(name, capsys):
    making = (ROOT / "docs" / "datasets.md").read_text().partition("## Making data")[2].partition("\n## ")[0]
    table, _, prose = making.rpartition("|\n")
    if "__main__" not in (ROOT / "data_prep" / name).read_text():
        assert f"`{name}`" in prose and name not in table
        return
    assert f"| `python data_prep/{name} " in table or f"| `python data_prep/{name}`" in table
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"data_prep.{name[:-3]}").main(["--help"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith("usage: ")
