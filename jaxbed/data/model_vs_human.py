"""The 17 test sets of model-vs-human: their conditions, the names of their images, and how they are opened.

Source: Geirhos et al., "Partial success in closing the gap between human and machine vision" (2021). Conditions are compared by value, for
the published files spell one condition in several ways (true and True, 0.90 and 0.9). Knows nothing of JAX.

An image of a set with conditions is named <trial>_<a>_<b>_<condition>_<category>_..._<image>. Sets without conditions have such names too,
or a folder for each category.
"""

import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxbed.data import image_files
from jaxbed.data.image_files import ImageFiles, Size

Condition = str | float | bool

PREFIX = "mvh_"  # of the evaluation sets
NO_CONDITION = "NaN"  # as the published files say it
CONDITION, CATEGORY = 3, 4  # fields of a file name


class Dataset(NamedTuple):
    """A published set. Scores leave out conditions that are like the training images, or in which humans are right on less than 20 %."""

    images: int
    conditions: tuple[Condition, ...] = ()  # in the order of their strength; all of one type
    excluded: tuple[Condition, ...] = ()

    @property
    def kept(self) -> tuple[Condition, ...]:
        """The conditions that count."""
        return tuple(condition for condition in self.conditions or (NO_CONDITION,) if condition not in self.excluded)


def _eidolon(coherence: int, excluded: tuple[int, ...]) -> Dataset:
    conditions = {reach: f"{reach}-{coherence}-10" for reach in (1, 2, 4, 8, 16, 32, 64, 128)}
    return Dataset(1280, tuple(conditions.values()), tuple(conditions[reach] for reach in excluded))


DATASETS = {
    "colour": Dataset(1280, ("cr", "bw"), ("cr",)),
    "contrast": Dataset(1280, ("c100", "c50", "c30", "c15", "c10", "c05", "c03", "c01"), ("c100", "c03", "c01")),
    "cue-conflict": Dataset(1280),
    "edge": Dataset(160),
    "eidolonI": _eidolon(10, (1, 64, 128)),
    "eidolonII": _eidolon(3, (1, 32, 64, 128)),
    "eidolonIII": _eidolon(0, (1, 16, 32, 64, 128)),
    "false-colour": Dataset(1120, (True, False), (True,)),
    "high-pass": Dataset(1280, (float("inf"), 3.0, 1.5, 1.0, 0.7, 0.55, 0.45, 0.4), (float("inf"), 0.55, 0.45, 0.4)),
    "low-pass": Dataset(1280, (0.0, 1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 40.0), (0.0, 15.0, 40.0)),
    "phase-scrambling": Dataset(1120, (0.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0), (0.0, 150.0, 180.0)),
    "power-equalisation": Dataset(1120, ("0", "pow"), ("0",)),
    "rotation": Dataset(1280, (0.0, 90.0, 180.0, 270.0), (0.0,)),
    "silhouette": Dataset(160),
    "sketch": Dataset(800),
    "stylized": Dataset(800),
    "uniform-noise": Dataset(1280, (0.0, 0.03, 0.05, 0.1, 0.2, 0.35, 0.6, 0.9), (0.0, 0.6, 0.9)),
}


def canonical(dataset: str, text: str) -> Condition:
    """The condition that a text means. Sets without conditions have one, whatever the text. Raises ValueError for an unknown condition."""
    conditions = DATASETS[dataset].conditions
    if not conditions:
        return NO_CONDITION
    spelled = text.strip().lower()
    condition: Condition | None = spelled
    if isinstance(conditions[0], bool):
        condition = {"true": True, "false": False}.get(spelled)
    elif isinstance(conditions[0], float):
        try:
            condition = float(spelled)
        except ValueError:
            condition = None
    if condition is None or condition not in conditions:
        raise ValueError(f"condition {text!r} is not one of {dataset}'s: {', '.join(map(spell, conditions))}")
    return condition


def spell(condition: Condition) -> str:
    """A condition as text: 0.9, 90, inf, True."""
    return f"{condition:g}" if isinstance(condition, float) else str(condition)


def condition_text(dataset: str, name: str) -> str:
    """The condition as an image's name spells it. Raises ValueError for a name without one, in a set with conditions."""
    if not DATASETS[dataset].conditions:
        return NO_CONDITION
    fields = pathlib.PurePath(name).name.split("_")
    if len(fields) <= CATEGORY:
        raise ValueError(f"{dataset}: image {name!r} names no condition; names are <trial>_<a>_<b>_<condition>_<category>_..._<image>")
    return fields[CONDITION]


def image_id(name: str) -> str:
    """What trials of several observers with one image have in common: the last field of its name, or the last two of ImageNet's."""
    fields = pathlib.PurePath(name).name.split("_")
    return "_".join(fields[-2:] if len(fields) > 1 and fields[-2].startswith("n0") else fields[-1:])


def set_name(dataset: str) -> str:
    """The name of the evaluation set."""
    return PREFIX + dataset.replace("-", "_")


SETS = {set_name(dataset): dataset for dataset in DATASETS}  # by the names of evaluation sets


def kept(evaluation_set: str, names: Iterable[str]) -> np.ndarray | None:
    """Which images [n] have a condition that counts; None for other sets than these 17. Raises ValueError for names without conditions."""
    if (dataset := SETS.get(evaluation_set)) is None:
        return None
    texts = _texts(dataset, names)
    counting = {text: canonical(dataset, text) in DATASETS[dataset].kept for text in set(texts)}
    return np.array([counting[text] for text in texts], bool)


def _texts(dataset: str, names: Iterable[str]) -> list[str]:
    return [condition_text(dataset, str(name)) for name in names]


def open_sets(location: str, side_px: int, categories: tuple[str, ...], threads: int = 0) -> dict[str, ImageFiles]:
    """{name of the evaluation set: images, which are never resized} of the sets in a folder that holds a sub-folder for each.

    Raises FileNotFoundError or ValueError for a folder without any of them, and for names without a known condition or category. Another
    number of images than was published is reported.
    """
    root = pathlib.Path(location)
    there = [dataset for dataset in DATASETS if (root / dataset).is_dir()]
    if not there:
        problem = "has none of these sub-folders" if root.is_dir() else "is not a folder with any of these sub-folders"
        raise FileNotFoundError(f"data.model_vs_human = {location} {problem}: {', '.join(DATASETS)}")
    opened = {}
    for dataset in there:
        one = _open(root / dataset, Size(side_px, 0, "unchanged"), categories, threads)
        try:
            for text in set(_texts(dataset, one.images.names)):
                canonical(dataset, text)
        except ValueError as error:
            raise ValueError(f"{root / dataset}: {error}") from error
        if (count := len(one.labels)) != (published := DATASETS[dataset].images):
            image_files.tell_once(f"{root / dataset} has {count} images, and the published set {published}")
        opened[set_name(dataset)] = one
    return opened


def _open(folder: pathlib.Path, size: Size, categories: tuple[str, ...], threads: int) -> ImageFiles:
    if (folder / "manifest.json").is_file() or any((folder / category).is_dir() for category in categories):
        return image_files.open_location(str(folder), size, threads=threads)
    return image_files.open_flat(folder, size, lambda file: file.split("_")[CATEGORY], categories, threads)
