"""The table of a user's own images: a CSV file with the columns `file`, `label` and, if known, `bias` and `split`.

    file,label,bias,split
    img/0001.png,cow,grass,train
    img/0002.png,cow,beach,test

file   path of an image, relative to the folder of the images
label  name of its class; the classes are those of the training images, sorted by name. With data.multi_label=True, names of all its
       classes, "shorts|vest", or nothing: without that setting, "|" is part of a name like any other sign
bias   what the shortcut shows in this image: either the name of the class that the shortcut votes for, or a value of an attribute (grass,
       beach). The votes of attribute values are derived from the training images: a value votes for the class in which it has the largest
       share. A value that is as frequent in another class, or that no training image has, votes for none. Empty: unknown
split  train, val, test or the name of an OOD set; without this column all images are training images. With data.multi_label=True, an image
       may be in several test and OOD sets, with a row and other classes in each

The column `pair_id`, if there is one, says which images show one item, or are otherwise not independent: those with the same text. It is
kept with the answers, for `jaxbed evidence`. Other columns are ignored and logged.
"""

import collections
import difflib
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxbed.data import image_files, tables
from jaxbed.evaluation.label_lists import BETWEEN

NEEDED, OPTIONAL, KEPT = ("file", "label"), ("bias", "split"), "pair_id"
COLUMNS = "its columns must be file,label and, if known, bias and split"
SETS = ("train", "val", "test")
OTHER_WORDS = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
SHOWN = 8  # number of votes in the log


class Row(NamedTuple):
    """A row of the table: file in POSIX form and relative to the folder, bias empty if unknown."""

    line: int
    file: str
    label: str
    bias: str
    split: str
    pair_id: str = ""  # the same for images that are not independent; empty if unknown


def read(path: pathlib.Path, folder: pathlib.Path, multi_label: bool = False) -> tuple[list[Row], list[str]]:
    """The rows, sorted by file, and notes for the log.

    multi_label: labels are lists of classes, which may be empty; a bias is not allowed.

    Raises ValueError, which names file and line, for an invalid table or row, and FileNotFoundError for missing images.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data.table = {str(path)!r} is not a file: name a CSV file with --config.data.table=TABLE.csv; {COLUMNS}")
    rows, notes, twice = [], [], []
    seen: dict[str, dict[str, int]] = {}  # {file: {split: line}}
    for line, fields in tables.rows(path, NEEDED, (*OPTIONAL, KEPT), COLUMNS):
        if not seen:
            notes += _unused(path, list(fields))
        bias, split, pair_id = (fields.get(name, default).strip() for name, default in (("bias", ""), ("split", "train"), (KEPT, "")))
        row = Row(line, fields["file"].strip(), fields["label"].strip(), bias, split, pair_id)
        if multi_label and row.bias:
            raise ValueError(f"{path}, line {line}: bias = {row.bias!r}: images with several classes have none, leave the column out")
        for name in ("file", "split") if multi_label else (*NEEDED, "split"):
            if not getattr(row, name):
                raise ValueError(f"{path}, line {line}: {name} is empty: every row needs a {name}")
        if fault := split_fault(row.split):
            raise ValueError(f"{path}, line {line}: split = {row.split!r} {fault}")
        name = tables.one_form(row.file)
        if os.path.isabs(name) or name.startswith(os.pardir):
            raise ValueError(f"{path}, line {line}: file = {row.file!r} is not in {folder}: give paths relative to data.train")
        file = os.path.realpath(folder / name)  # resolves links to the same image
        for split, other in seen.setdefault(file, {}).items():
            if not multi_label or row.split in (split, "train", "val") or split in ("train", "val"):
                twice.append(f"{row.file} (lines {other} and {line})")
        seen[file][row.split] = line
        rows.append(row._replace(file=name))
    if twice:
        cure = "Each image must have exactly one row: delete the others"
        if multi_label:
            cure = "Each image must have exactly one row, or one in each of several test sets: delete the others"
        raise ValueError(f"{path} lists {len(twice)} images twice: {shown(twice)}. {cure}")
    if not rows:
        raise ValueError(f"{path} has no rows: add a row for each image; {COLUMNS}")
    if absent := [row for row in rows if not (folder / row.file).is_file()]:
        first = f"{absent[0].file} of line {absent[0].line}"
        raise FileNotFoundError(
            f"{path} names {len(absent)} images that are not in {folder}, e.g. {first}: give paths relative to data.train"
        )
    return sorted(rows, key=lambda row: row.file), notes


def classes_of(path: pathlib.Path, rows: Sequence[Row], ordered: Sequence[str] = (), multi_label: bool = False) -> tuple[str, ...]:
    """The classes, in the order that is given or sorted by name.

    Raises ValueError for a table without training images, for a row with another class than these have, and for a faulty list of classes.
    """
    named = [names_of(row) if multi_label else [row.label] for row in rows]
    classes = tuple(ordered) or tuple(
        sorted({name for row, of_row in zip(rows, named, strict=True) if row.split == "train" for name in of_row})
    )
    if not classes or not any(row.split == "train" for row in rows):
        lacking = "label in its rows" if any(row.split == "train" for row in rows) else "row"
        raise ValueError(f"{path} has no {lacking} for the training set (split = train): add one for each training image")
    for row, of_row in zip(rows, named, strict=True):
        if multi_label and (len(set(of_row)) < len(of_row) or "" in of_row):
            cure = f"name each of its classes once, as in {BETWEEN.join(classes[:2])}, or none"
            raise ValueError(f"{path}, line {row.line}: label = {row.label!r} is no list of classes: {cure}")
        if strange := [name for name in of_row if name not in classes]:
            fault = "is not one of data.classes" if ordered else "is not a class of the training set"
            raise ValueError(f"{path}, line {row.line}: label = {strange[0]!r} {fault} ({shown(classes, 10)}): correct the label")
    return classes


def names_of(row: Row) -> list[str]:
    """The classes of a row of a multi-label table."""
    return [name.strip() for name in row.label.split(BETWEEN)] if row.label else []


def targets(rows: Sequence[Row], classes: Sequence[str]) -> np.ndarray:
    """[rows, classes] uint8: 1 for each class that a row of a multi-label table names."""
    return np.array([[name in of_row for name in classes] for of_row in map(names_of, rows)], np.uint8)


def _unused(path: pathlib.Path, columns: list[str]) -> list[str]:
    """A note on ignored columns. Raises ValueError for a column that is probably a misspelled `bias` or `split`."""
    others = [name for name in columns if name not in (*NEEDED, *OPTIONAL, KEPT)]
    for wanted in OPTIONAL:
        if wanted not in columns and (near := difflib.get_close_matches(wanted, [name.lower() for name in others], 1, 0.7)):
            wrong = next(name for name in others if name.lower() == near[0])
            raise ValueError(f"{path} has a column {wrong!r}: is it {wanted!r}? Rename it to that, or to something else; {COLUMNS}")
    return [f"{path}: ignored columns: {', '.join(others)}"] if others else []


def split_fault(name: str) -> str:
    """What is wrong with the name of a set, as the end of a sentence; empty if it is valid."""
    meant = OTHER_WORDS.get(name.lower(), name.lower())
    if meant in SETS and name not in SETS:
        return f"probably means {meant!r}: write {meant!r}, or another name for an OOD set"
    if not name[:1].isalpha() or not name.replace("-", "_").replace(".", "_").isidentifier() or name == "algorithm":
        return "must be train, val, test or the name of an OOD set, which is a letter followed by letters, digits, '_', '-' or '.'"
    return ""


def without_row(folder: pathlib.Path, rows: Sequence[Row], elsewhere: Sequence[str]) -> list[str]:
    """Images in the folder that the table does not list; `elsewhere`: folders of other sets, whose images need no row."""
    listed = {row.file for row in rows}
    others = [os.path.join(os.path.realpath(location), "") for location in elsewhere]
    unlisted = [name for name in image_files.list_below(folder) if name.replace(os.sep, "/") not in listed]
    return [name for name in unlisted if not os.path.realpath(folder / name).startswith(tuple(others))] if others else unlisted


def votes(path: pathlib.Path, rows: Sequence[Row], classes: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """{value of `bias`: the class it votes for}, and notes for the log; values that vote for no class are left out.

    Raises ValueError if only some values are class names: the others are probably misspelled.
    """
    values = sorted({row.bias for row in rows if row.bias})
    if strange := [value for value in values if value not in classes]:
        if len(strange) < len(values):
            line = next(row.line for row in rows if row.bias == strange[0])
            raise ValueError(
                f"{path}, line {line}: bias = {strange[0]!r} is not a class ({shown(list(classes))}), but other rows name classes: "
                "correct it, leave it empty if unknown, or use values of one attribute in all rows"
            )
        return _attribute_votes(rows, values, classes)
    return {value: value for value in values}, []


def _attribute_votes(rows: Sequence[Row], values: list[str], classes: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The votes of an attribute's values, from the training images."""
    train = [row for row in rows if row.split == "train"]
    pairs, sizes = collections.Counter((row.bias, row.label) for row in train), collections.Counter(row.label for row in train)
    shares = np.array([[pairs[value, name] / sizes[name] for name in classes] for value in values])
    result, texts, none = {}, [], []
    for value, share in zip(values, shares, strict=True):
        best = np.argsort(-share, kind="stable")
        if not share.any() or (len(best) > 1 and np.isclose(share[best[0]], share[best[1]])):
            none.append(value)
            continue
        result[value] = classes[best[0]]
        second = f", {100 * share[best[1]]:.0f} % of {classes[best[1]]}" if len(best) > 1 else ""
        texts.append(f"{value} for {classes[best[0]]} ({100 * share[best[0]]:.0f} % of its training images{second})")
    notes = [f"the values of bias vote: {'; '.join(texts[:SHOWN])}{'; ...' * (len(texts) > SHOWN)}"] if texts else []
    if none:
        notes.append(f"bias values that vote for no class, since several have them equally often or training has none: {shown(none)}")
    return result, notes


def shown(items: Sequence[str], most: int = 5) -> str:
    """The first items, for a message."""
    return ", ".join(items[:most]) + (", ..." if len(items) > most else "")
