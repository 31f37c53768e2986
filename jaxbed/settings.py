"""Saved configurations, as dictionaries: in which settings do two runs differ? Knows neither JAX nor the classes they were made of."""

from collections.abc import Collection, Mapping
from typing import Any

MAY_CHANGE = "may_change"  # beside the fields of a run: dotted names of those on which nothing that was trained depends
OVERLAPS = "overlaps"  # beside them, too: the corruptions of ImageNet-C that the augmentation resembles, see jaxbed.measures.overlaps
SEEDS = ("seeds", "first_seed")
RENAMED = {"sweep": "grid"}  # former names of fields of a run
SHOWN = 80  # characters of a value
ADDED: dict[str, Any] = {  # fields that configurations of former versions lack, and what those did
    "data.augment.noise": "none",
    "data.augment.noise_share": 0.5,
    "data.augment.noise_std": [0.15, 0.2, 0.35, 0.45, 0.6],
    "data.augment.erase_form": "torchvision",
    "data.multi_label": False,
    "data.classes": [],
    "data.fit": "crop",
    "net.layout": "torchvision",
    "net.groups": 1,
    "net.group_width": 64,
    "net.scales": 1,
    "net.gate": "none",
    "net.shortcut": "conv",
    "optim.decay_norms": True,
    "optim.factors": [],
    "optim.head_rate": 1.0,
}
# The same of configurations that were saved without that list, on data sets of this package.
BEFORE = ("mesh", "eval", "save")
BEFORE_OF_DATA = (
    *("dir", "resident_gib", "threads", "train", "more", "val", "stylized", "imagenet_a", "imagenet_r", "edge", "silhouette"),
    *("cue_conflict", "sketch", "cae", "edsr", "decision", "zoom", "resize_px"),
)


def current(tree: dict) -> dict:
    """A saved configuration with its fields under their present names."""
    return {RENAMED.get(name, name): value for name, value in tree.items()}


def data_of(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a run's data set, also where another one wraps it, such as that of images held out for a method."""
    data = tree.get("data") or {}
    return data.get("of") or data


def differences(one: Any, other: Any, but: Collection[str] = (), path: str = "") -> list[str]:
    """Where two configurations differ, as "optim.lr: 0.1 / 0.2". `but`: dotted names that are not compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        fields = {key: f"{path}.{key}".lstrip(".") for key in {**one, **other}}
        kept = {key: field for key, field in fields.items() if field not in but}
        pairs = ((field, one.get(key, ADDED.get(field)), other.get(key, ADDED.get(field))) for key, field in kept.items())
        lists = [differences(first, second, but, field) for field, first, second in pairs]
        return [line for lines in lists for line in lines]
    return [] if one == other else [f"{path}: {_cut(one)} / {_cut(other)}"]


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def free(*trees: dict) -> set[str]:
    """Dotted names of all fields that do not bind the runs of these configurations."""
    return {MAY_CHANGE, OVERLAPS, *(name for tree in trees for name in _may_change(tree))}


def _may_change(tree: dict) -> list[str]:
    listed = tree.get(MAY_CHANGE)
    return listed if isinstance(listed, list) else _before(tree)


def _before(tree: dict) -> list[str]:
    data = tree.get("data")
    of_jaxbed = isinstance(data, dict) and str(data.get("is")).startswith("jaxbed.data.")
    return [*BEFORE, *(f"{path}.{name}" for path in ("data", "data.of") for name in BEFORE_OF_DATA if of_jaxbed)]
