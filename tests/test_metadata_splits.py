"""Sets that differ from the training images in one attribute, from the command to the table that training reads."""

import collections
import csv
import itertools

import pytest
from PIL import Image

from data_prep import metadata_splits
from jaxbed.data import folder

OOD = ("country_FR", "year_2018", "camera_old")
TRAIN, VARY = "country=US|MX,year=2019,camera=new", "country,year,camera"


def rows():
    """Three images of each label, country, year and camera."""
    product = itertools.product(("shop", "bank"), ("US", "MX", "FR"), ("2018", "2019"), ("new", "old"), range(3))
    return [(f"{n}.png", *row[:4], f"site{n // 2}") for n, row in enumerate(product)]


def write(path, content):
    path.write_text("\n".join([",".join(("file", "label", "country", "year", "camera", "site")), *map(",".join, content)]) + "\n")
    return path


def run(tmp_path, *words, content=None, train=TRAIN, vary=VARY):
    table = write(tmp_path / "table.csv", rows() if content is None else content)
    return metadata_splits.main([str(table), str(tmp_path / "out.csv"), "--train", train, "--vary", vary, *words])


def read(tmp_path):
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_set_differs_in_one_attribute_and_training_reads_the_table(tmp_path, capsys):
    assert run(tmp_path, "--test-share", "0.25") == 0
    written = read(tmp_path)
    sizes = collections.Counter(row["split"] for row in written)
    assert sizes == {"train": 9, "test": 3, "country_FR": 6, "year_2018": 12, "camera_old": 12}
    assert len({row["file"] for row in written}) == len(written) == 42 and "in no set 30 of 72 images" in capsys.readouterr().out
    for row in written:
        differs = [row["country"] == "FR", row["year"] != "2019", row["camera"] != "new"]
        expected = {"country_FR": [1, 0, 0], "year_2018": [0, 1, 0], "camera_old": [0, 0, 1]}.get(row["split"], [0, 0, 0])
        assert differs == expected
    for row in written:
        Image.new("RGB", (8, 8), (int(row["file"].split(".")[0]) * 3, 0, 0)).save(tmp_path / row["file"])
    source = folder.Config(train=str(tmp_path), table=str(tmp_path / "out.csv"), size_px=8).open()
    assert set(source.sets) == {"val", "test", "country_FR", "year_2018", "camera_old"}
    assert {name: each.role for name, each in source.sets.items() if name != "val"} == {"test": "test"} | dict.fromkeys(OOD, "ood")


def test_a_group_is_in_training_or_elsewhere(tmp_path):
    assert run(tmp_path, "--test-share", "0.3", "--group", "site") == 0
    sites = collections.defaultdict(set)
    for row in read(tmp_path):
        sites[row["split"]].add(row["site"])
    assert all(not sites["train"] & of_set for name, of_set in sites.items() if name != "train") and sites["test"]


def test_the_draw_depends_on_the_seed_alone(tmp_path):
    texts = []
    for seed in ("1", "1", "2"):
        assert run(tmp_path, "--test-share", "0.5", "--seed", seed) == 0
        texts.append((tmp_path / "out.csv").read_text())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"train": "country"}, "'country' must be ATTRIBUTE=VALUE"),
        ({"train": "country=US,country=MX"}, "each attribute once"),
        (
            {"train": "country=BR,year=2019", "vary": "year"},
            "no image has all that --train names (country=BR: 0, year=2019: 36 of 72 images)",
        ),
        ({"train": "year=2019", "vary": "country"}, "--train must say which value training images have, country=VALUE"),
        ({"train": "country=US|MX|FR", "vary": "country"}, "no image differs from the training images in it alone: leave it out"),
        ({"train": "colour=red", "vary": "colour"}, "has no column colour"),
        (
            {"content": [("a.png", "shop", "US", "2019", "new", ""), ("a.png", "shop", "FR", "2019", "new", "")]},
            "lists one image as a.png in line 2 and as a.png in line 3: delete one of these rows",
        ),
        *(
            (
                {"content": [("a/b.png", "shop", "US", "2019", "new", ""), (form, "shop", "FR", "2019", "new", "")]},
                f"lists one image as a/b.png in line 2 and as {form} in line 3",
            )
            for form in ("./a/b.png", "a//b.png", "a/../a/b.png", "a\\b.png")
        ),
        ({"content": [("a.png", "shop", "", "2019", "new", "")]}, "line 2: country is empty"),
        ({"content": []}, "has no rows"),
        (
            {"content": [*rows(), ("z.png", "shop", "us", "2019", "new", "")]},
            "country is 'US' in some rows and 'us' in others: write it in one way",
        ),
        ({"content": [*rows(), ("z.png", "shop", "US|MX", "2019", "new", "")]}, "country is 'US|MX', and | stands between values"),
        ({"content": [*rows(), ("z.png", "shop", "US", "nan", "new", "")]}, "line 74: year is empty"),
        ({"train": "country=US,split=x", "vary": "country"}, "no attribute can be called split"),
        (
            {"content": [*rows(), ("z.png", "zoo", "FR", "2019", "new", "x")]},
            "set country_FR has images of zoo, of which there are no training",
        ),
    ],
)
def test_bad_input_is_named_with_the_cure(tmp_path, capsys, words, message):
    assert run(tmp_path, "--test-share", "0.25", **words) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("share", ["-0.5", "0", "1", "nan"])
def test_shares_are_between_0_and_1(tmp_path, capsys, share):
    assert run(tmp_path, "--test-share", share) == 2
    assert f"--test-share {float(share)} must be above 0 and below 1" in capsys.readouterr().err


def test_a_whole_number_has_one_value_however_it_is_written(tmp_path):
    """As pandas writes a column of numbers in which one is missing."""
    assert run(tmp_path, "--test-share", "0.25") == 0
    plain = read(tmp_path)
    content = [(*row[:3], f"{row[3]}.0" if number % 2 else row[3], *row[4:]) for number, row in enumerate(rows())]
    assert run(tmp_path, "--test-share", "0.25", content=content) == 0 and read(tmp_path) == plain
    assert run(tmp_path, "--test-share", "0.25", content=content, train=TRAIN.replace("2019", "2019.0")) == 0 and read(tmp_path) == plain


@pytest.mark.parametrize("written", ["1,000", "1.000", "-1,000"])
def test_what_may_be_one_or_a_thousand_is_neither(tmp_path, capsys, written):
    def asked(one):
        content = [(*row[:3], one if row[3] == "2019" else f'"{written}"', *row[4:]) for row in rows()]
        return run(tmp_path, "--test-share", "0.25", content=content, train=f"year={one}", vary="year")

    assert asked("7") == 0
    assert {row["year"]: row["split"] for row in read(tmp_path) if row["split"] not in ("train", "test")} == {
        written: metadata_splits.set_name("year", written)
    }
    one = written[:-4]
    for other in (one, f"{one}000"):
        assert asked(other) == 2
        assert f"year is {written!r} in some rows and {other!r} in others: write the former as {one} or as" in capsys.readouterr().err


def test_a_table_that_is_not_there_is_named_with_the_cure(tmp_path, capsys):
    for path in (tmp_path / "no.csv", tmp_path):
        assert metadata_splits.main([str(path), "--train", TRAIN, "--vary", VARY]) == 2
        assert f"{path} is not a file: name a CSV file with the columns file, label" in capsys.readouterr().err


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["Unix", "Windows", "classic Mac OS"])
def test_a_quoted_field_keeps_its_line_breaks_and_no_other_character_ends_a_line(tmp_path, capsys, ends):
    names = ["two\r\nlines.png", *(f"a{mark}b.png" for mark in "\x0b\x0c\x1c\x85\u2028\u2029")]
    content = [*([f'"{name}"', "shop", "US", "2019", "new", "x"] for name in names), *rows()]
    table, words = tmp_path / "table.csv", ["--train", TRAIN, "--vary", VARY, "--test-share", "0.25"]
    lines = ["file,label,country,year,camera,site", *map(",".join, content)]
    table.write_bytes(ends.join([*lines, ""]).encode())
    assert metadata_splits.main([str(table), str(tmp_path / "out.csv"), *words]) == 0
    assert set(names) < {row["file"] for row in read(tmp_path)}
    for faulty, line in ((3, 6), (0, 2)):  # the first name has two lines
        table.write_bytes(ends.join([*lines[: faulty + 1], lines[faulty + 1] + ",y", *lines[faulty + 2 :], ""]).encode())
        assert metadata_splits.main([str(table), *words]) == 2 and f"line {line}: it has 7 fields" in capsys.readouterr().err


def test_the_table_is_written_next_to_the_given_one_under_a_name_of_its_own(tmp_path, capsys):
    table, out = write(tmp_path / "TABLE.csv", [(f"./{file}", *row) for file, *row in rows()]), tmp_path / "TABLE_splits.csv"
    words = [str(table), "--train", "country=US,year=2019", "--vary", "country,year"]
    for seed in ("0", "1"):  # a former result is replaced
        assert metadata_splits.main([*words, "--test-share", "0.25", "--seed", seed]) == 0
        assert f"written: {out}\n" in capsys.readouterr().out
    assert out.read_text().startswith("file,label,split,country,year,camera,site\n") and "./" not in out.read_text()
    out.write_text("my notes\n")
    assert metadata_splits.main([*words, "--test-share", "0.25"]) == 2
    assert f"{out} exists, and is no table of sets" in capsys.readouterr().err and out.read_text() == "my notes\n"


@pytest.mark.parametrize("share", ["0.01", "0.99"])
def test_no_set_is_empty(tmp_path, capsys, share):
    assert run(tmp_path, "--test-share", share) == 2
    assert "leaves the training or the test set empty" in capsys.readouterr().err
