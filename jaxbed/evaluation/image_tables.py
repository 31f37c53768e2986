"""The tables of images that evaluation and `jaxbed measure` write next to answers, images.csv: names, labels and what else is known."""

import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.evaluation import label_lists
from jaxbed.stats import names
from jaxbed.stats.reading import delimited, numbers

ITEM = "pair_id"  # which images show one item
TEXTS = ("name", "real", "targets", ITEM)  # columns that are not numbers
LISTS = ("real", "targets")  # those that hold lists of classes
ADDED = (*LISTS, "anomaly")  # a set has one of these, or none
HEADS = {",".join(("name", "label", "cue", *one, *item)) for one in ((), *((name,) for name in ADDED)) for item in ((), (ITEM,))}


class Images(NamedTuple):
    """The content of images.csv."""

    name: np.ndarray  # [n]
    label: np.ndarray  # [n]
    bias: np.ndarray  # [n]
    real: np.ndarray | None = None  # [n, most]: see `label_lists`
    anomaly: np.ndarray | None = None  # [n] bool
    targets: np.ndarray | None = None  # [n, most]: see `label_lists`; labels are then -1
    item: np.ndarray | None = None  # [n] str, the same for images that show one item; "" if unknown


def read(path: pathlib.Path) -> Images:
    """The content, also where a spreadsheet saved the table again.

    Raises ValueError for a table that lacks a column or holds other numbers than classes.
    """
    return _as_written(path) or _as_saved_again(path)


def _as_written(path: pathlib.Path) -> Images | None:
    """The content of a table that is as `evaluate` writes it, 20 times as fast; None for any other."""
    with path.open("rb") as file:
        if file.readline() not in {f"{head}\n".encode() for head in HEADS}:
            return None
    try:
        images = pd.read_csv(path, dtype=dict.fromkeys(TEXTS, str), keep_default_na=False)
        real, targets = (label_lists.from_cells(images[column]) if column in images else None for column in LISTS)
    except ValueError:
        return None
    whole = isinstance(images.index, pd.RangeIndex) and all(images[column].dtype == np.int64 for column in images if column not in TEXTS)
    if not whole or (images["label"] < (0 if targets is None else -1)).any() or (images["cue"] < -1).any():
        return None
    anomaly = images["anomaly"].to_numpy() == 1 if "anomaly" in images else None
    image_names = images["name"].map(names.from_cell).to_numpy(str)
    return Images(image_names, images["label"].to_numpy(), images["cue"].to_numpy(), real, anomaly, targets, _items(images, ITEM))


def _as_saved_again(path: pathlib.Path) -> Images:
    """The same of a table that a spreadsheet saved: other separators, order of columns and ways to write numbers."""
    images = delimited.read(path)
    chosen = {name: names.find(name, images.columns) for name in ("name", "label", "cue")}
    if lost := [name for name, column in chosen.items() if column is None]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(images.columns)}")
    real, targets = (_lists(images, name, path) for name in LISTS)
    least_label = 0 if targets is None else -1
    label, bias = (_classes(images[chosen[name]], name, least, str(path)) for name, least in (("label", least_label), ("cue", -1)))
    anomaly = names.find("anomaly", images.columns)
    flags = None if anomaly is None else _classes(images[anomaly], "anomaly", 0, str(path)) == 1
    return Images(images[chosen["name"]].to_numpy(str), label, bias, real, flags, targets, _items(images, names.find(ITEM, images.columns)))


def _items(images: pd.DataFrame, column: str | None) -> np.ndarray | None:
    return images[column].map(names.from_cell).to_numpy(str) if column in images else None


def _lists(images: pd.DataFrame, name: str, path: pathlib.Path) -> np.ndarray | None:
    column = names.find(name, images.columns)
    try:
        return None if column is None else label_lists.from_cells(images[column])
    except ValueError as error:
        raise ValueError(f"{path}: {name} {error}") from error


def _classes(given: pd.Series, name: str, least: int, source: str) -> np.ndarray:
    values = numbers.read(given, "run", source, [], name)
    strange = ~((values >= least) & (values % 1 == 0))
    if strange.any():
        raise ValueError(f"{source}: {name} {names.quoted(given[strange].iloc[0])} in line {strange.idxmax()} is not the number of a class")
    return values.to_numpy(np.int64)
