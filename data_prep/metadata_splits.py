"""Divides a table of images into a training set and test sets that differ from it in one attribute at a time.

    python data_prep/metadata_splits.py TABLE.csv [OUT.csv] --train "country=US|MX|CA,year=2019,camera=new" --vary country,year

TABLE.csv has the columns file and label, and one for each attribute. Training images have the named value of every attribute of --train, or
one of several (`|`). Some of them are held out as `test`. For each attribute of --vary and each value that it has elsewhere, the set
`ATTRIBUTE_VALUE` takes the images that have this value and are like training images in all other attributes. So no image is in two sets;
images that differ in several attributes are in none. Values are texts, but 2019.0, as spreadsheets and pandas write it, is 2019. 1,000
remains a text, since it may be 1 or a thousand. OUT.csv, by default TABLE_splits.csv next to the table, is for training:

    python -m jaxbed.main --config=erm:folder --config.data.train=IMAGES --config.data.table=OUT.csv

This is the form of StreetView StoreFronts (Hendrycks et al., "The Many Faces of Robustness", 2021), whose images are not public: 20
classes, trained on images of the US, Mexico and Canada, taken in 2019 with a new camera; tested on other years, an old camera, and France.
"""

import argparse
import csv
import io
import pathlib
import random
import re
import sys
from collections.abc import Collection, Mapping, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.data import folder_table, tables
from jaxbed.stats import names
from jaxbed.system import ending, files

Rows = list[dict[str, str]]
EITHER = re.compile(r"(-?\d+)[.,]000")
MISSING = ("", "nan", "NaN")  # the latter as pandas and NumPy write it


def conditions(text: str) -> dict[str, tuple[str, ...]]:
    """{"country": ("US", "MX"), "year": ("2019",)} of "country=US|MX,year=2019". Raises ValueError for other forms."""
    found = {}
    for part in text.split(","):
        attribute, equals, values = (word.strip() for word in part.partition("="))
        wanted = tuple(one_value(value) for value in values.split("|"))
        if not (attribute and equals and all(wanted)) or attribute in found:
            raise ValueError(f"--train {text!r}: {part.strip()!r} must be ATTRIBUTE=VALUE or ATTRIBUTE=VALUE|VALUE, each attribute once")
        found[attribute] = wanted
    return found


def one_value(text: str) -> str:
    """The text without spaces around it, and a whole number without its decimals: "2019" for "2019.0" and "2019,0"."""
    found = tables.WHOLE.fullmatch(text.strip())
    return found[1] if found else text.strip()


def read(path: pathlib.Path, attributes: Collection[str]) -> Rows:
    """The rows of the table, without their former split, each file in one form of its path ("a.png", not "./a.png").

    Raises ValueError for columns or values that are missing, for values that look like two spellings of one, and for an image in two rows.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file: name a CSV file with the columns file, label and one for each attribute")
    if "split" in attributes:
        raise ValueError(f"{path}: no attribute can be called split, which is the column of the sets: rename the column")
    rows: Rows = []
    seen: dict[str, tuple[int, str]] = {}  # {file: its line, and its form there}
    for line, row in tables.rows(path, ("file", "label", *attributes), cure="name its attributes in --train and --vary"):
        if empty := [name for name in ("file", "label", *attributes) if row[name].strip() in MISSING]:
            raise ValueError(f"{path}, line {line}: {empty[0]} is empty: complete or delete the row")
        written = row["file"].strip()
        if (file := tables.one_form(written)) in seen:
            first, form = seen[file]
            raise ValueError(f"{path} lists one image as {form} in line {first} and as {written} in line {line}: delete one of these rows")
        seen[file] = line, written
        kept = {name: one_value(value) if name in attributes else value.strip() for name, value in row.items() if name != "split"}
        rows.append(kept | {"file": file})
    if not rows:
        raise ValueError(f"{path} has no rows: add a row for each image")
    for name in attributes:
        forms: dict[str, str] = {}  # {value in lower case: as first written}
        for row in rows:
            if (first := forms.setdefault(row[name].casefold(), row[name])) != row[name]:
                raise ValueError(f"{path}: {name} is {first!r} in some rows and {row[name]!r} in others: write it in one way")
            if "|" in row[name]:
                raise ValueError(f"{path}: {name} is {row[name]!r}, and | stands between values of --train: write it without |")
        for value in forms:
            if (found := EITHER.fullmatch(value)) and (other := forms.keys() & {found[1], f"{found[1]}000"}):
                clash = f"{value!r} in some rows and {min(other)!r} in others"
                raise ValueError(f"{path}: {name} is {clash}: write the former as {found[1]} or as {found[1]}000, whichever is meant")
    return rows


def split(
    rows: Rows, train: Mapping[str, Collection[str]], vary: Sequence[str], test_share: float, group: str, seed: int
) -> dict[str, Rows]:
    """{name of the set: its rows}, train and test first.

    Raises ValueError for an attribute that does not vary or is not one of the training images', and for sets that would be empty.
    """
    if unknown := [name for name in vary if name not in train]:
        raise ValueError(f"--vary {unknown[0]}: --train must say which value training images have, {unknown[0]}=VALUE")
    inside = [row for row in rows if _differing(row, train) == []]
    if not inside:
        counts = ", ".join(f"{name}={'|'.join(values)}: {sum(row[name] in values for row in rows)}" for name, values in train.items())
        raise ValueError(f"no image has all that --train names ({counts} of {len(rows)} images): name values that occur together")
    if not 0 < test_share < 1:
        raise ValueError(f"--test-share {test_share} must be above 0 and below 1")
    units = sorted({row[group] for row in inside}) if group else list(range(len(inside)))
    random.Random(seed).shuffle(units)
    held = set(units[: round(test_share * len(units))])
    if not 0 < len(held) < len(units):
        raise ValueError(
            f"--test-share {test_share} of {len(units)} {group or 'images'} leaves the training or the test set empty: choose another share"
        )
    is_held = [(row[group] if group else number) in held for number, row in enumerate(inside)]
    sets: dict[str, Rows] = {
        name: [row for row, out in zip(inside, is_held, strict=True) if out == (name == "test")] for name in ("train", "test")
    }
    trained = {row[group] for row in sets["train"]} if group else set()
    for attribute in vary:
        apart = [row for row in rows if _differing(row, train) == [attribute] and (not group or row[group] not in trained)]
        if not apart:
            raise ValueError(f"--vary {attribute}: no image differs from the training images in it alone: leave it out")
        for value in sorted({row[attribute] for row in apart}):
            name = set_name(attribute, value)
            if name in sets:
                raise ValueError(f"two sets would be called {name}: rename the value {value!r} of {attribute}")
            sets[name] = [row for row in apart if row[attribute] == value]
    classes = {row["label"] for row in sets["train"]}
    for name, of_set in sets.items():
        if strange := sorted({row["label"] for row in of_set} - classes):
            raise ValueError(f"set {name} has images of {names.listed(strange)}, of which there are no training images: remove them")
    return sets


def _differing(row: Mapping[str, str], train: Mapping[str, Collection[str]]) -> list[str]:
    """The attributes in which an image differs from training images."""
    return [name for name, values in train.items() if row[name] not in values]


def set_name(attribute: str, value: str) -> str:
    name = re.sub(r"[^\w.-]", "_", f"{attribute}_{value}")
    if fault := folder_table.split_fault(name):
        raise ValueError(f"set {name}, of {attribute} = {value!r}, {fault}: rename the column")
    return name


def check_target(path: pathlib.Path, header: Sequence[str]) -> None:
    """Raises ValueError where a file is there that is no former result with these columns."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        if next(csv.reader(file), []) != list(header):
            raise ValueError(f"{path} exists, and is no table of sets with the columns {','.join(header)}: name another file, or delete it")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, nargs="?", help="default: TABLE_splits.csv, next to the table")
    parser.add_argument("--train", required=True, help="values of training images: ATTRIBUTE=VALUE|VALUE,ATTRIBUTE=VALUE")
    parser.add_argument("--vary", required=True, help="attributes of which one at a time differs in each test set, separated by commas")
    parser.add_argument("--test-share", type=float, default=0.05, help="of the training images, held out as the set test")
    parser.add_argument(
        "--group", default="", help="column whose values must not be in the training set and another one: the same shop, say"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the images that are held out")
    asked = parser.parse_args(argv)
    out: pathlib.Path = asked.out or asked.table.with_name(f"{asked.table.stem}_splits.csv")
    try:
        train, vary = conditions(asked.train), [name.strip() for name in asked.vary.split(",")]
        rows = read(asked.table, dict.fromkeys([*train, *vary, *filter(None, [asked.group])]))
        if out.exists() and out.samefile(asked.table):
            raise ValueError(f"{out} is the table itself: name another file")
        header = ["file", "label", "split", *(name for name in rows[0] if name not in ("file", "label"))]
        check_target(out, header)
        sets = split(rows, train, vary, asked.test_share, asked.group, asked.seed)
        text = io.StringIO()
        writer = csv.DictWriter(text, header, lineterminator="\n")
        writer.writeheader()
        for name, of_set in sets.items():
            writer.writerows({**row, "split": name} for row in of_set)
            print(f"{name:24s} {len(of_set):8,} images of {len({row['label'] for row in of_set})} classes")
        files.write(out, text.getvalue())
    except (ValueError, OSError) as error:
        ending.tell("metadata_splits", error)
        return 2
    print(f"in no set {len(rows) - sum(map(len, sets.values())):,} of {len(rows):,} images; written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
