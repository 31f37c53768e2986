"""Shared by BFFHQ, Waterbirds and BAR of Lee et al. (2022): images with a label and a bias, at one of five ratios of conflicting images.

Two layouts are read. A table DIR/metadata_<percent>pct.csv has one row per image and the columns img_filename, y, split (0 train, 1 val, 2
test) and the bias; data_prep writes it, with the paper's counts. Without a table, the published archive:

    DIR/<percent>pct/align/**/*_<y>_<b>.png     and conflict/ (also spelled "conlict")
    DIR/<percent>pct/valid/                     or val/; or DIR/valid, DIR/val, shared by all ratios
    DIR/test/

The last two parts of a file name, between underscores, are label and bias. Images are sorted by name: LfF's tables are indexed by row. A
set contains all images of its folder, including the aligned test images that published loaders drop.

Images are resized to a square without cropping, whatever their shape; training takes a random window of the square padded with 4 zeros and
flips it, as in the published code of the paper's first author.
"""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from jaxbed.data import augment, decode, image_files, records, tables
from jaxbed.data.augment import Config as Augment
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split, in_memory
from jaxbed.data.stream import Corrupt, Images
from jaxbed.values import Count, NotNegative, OneOf, Whole

PERCENTS = (0.5, 1, 2, 5, 20)
Percent = Annotated[float, OneOf(PERCENTS)]  # of conflicting training images
SPLITS = ("train", "val", "test")


class Listed(NamedTuple):
    """The images of one split, not yet read."""

    name: np.ndarray  # [n] str, relative to a folder
    label: np.ndarray  # [n] int32
    bias: np.ndarray  # [n] int32


@dataclasses.dataclass
class Config:
    varies: ClassVar[tuple[str, ...]] = ("conflicting_percent",)  # among training sets of equal size

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("dir", "resident_gib", "threads")

    dir: str = ""
    conflicting_percent: Percent = 1.0  # of the training set
    side_px: Count = 224
    corrupt: Corrupt = "fail"  # for unreadable images; skip: they are left out, in a stream the next image replaces them
    resident_gib: NotNegative = 4.0  # sets up to this size are read once and kept in memory, the training set on the device
    threads: Whole = 0  # to read and decode; 0: one per core, at most 16, or 4 for stored squares
    augment: Augment = dataclasses.field(default_factory=lambda: Augment(crop="padded", padding_px=4, flip=0.5))


def check(cfg: Config, percents: tuple[float, ...] = PERCENTS) -> None:
    """Raises ValueError for a ratio without a data set, and FileNotFoundError for a missing folder."""
    if cfg.conflicting_percent not in percents:
        raise ValueError(f"data.conflicting_percent = {cfg.conflicting_percent} is not one of {', '.join(map(str, percents))}")
    if not pathlib.Path(cfg.dir).is_dir():
        raise FileNotFoundError(f"data.dir = {cfg.dir!r} is not a folder: name the folder of the data set with --config.data.dir=FOLDER")


def table_path(folder: pathlib.Path, percent: float) -> pathlib.Path:
    return folder / f"metadata_{percent:g}pct.csv"


def read_table(path: pathlib.Path, bias: str, classes: int) -> list[Listed]:
    """[train, val, test] of a table whose column `bias` holds the bias; images are named relative to its folder.

    Raises ValueError for an invalid row or an image listed twice, and FileNotFoundError for a missing image.
    """
    allowed = {"y": classes, bias: classes, "split": len(SPLITS)}
    by_split: list[list[tuple]] = [[] for _ in SPLITS]
    split_of: dict[str, int] = {}
    twice = []
    for line, row in tables.rows(path, ("img_filename", *allowed)):
        numbers: dict[str, int] = {}
        for column, count in allowed.items():
            number = tables.whole(row[column])
            if number is None or number not in range(count):
                raise ValueError(f"{path}, line {line}: {column} = {row[column]!r} is not a whole number from 0 to {count - 1}")
            numbers[column] = number
        name, split = row["img_filename"].strip().replace("\\", "/"), numbers["split"]
        if not name:
            raise ValueError(f"{path}, line {line}: img_filename is empty: name the image, or delete the row")
        file = os.path.realpath(path.parent / name)  # one file can be spelled in several ways
        if file in split_of:
            twice.append(f"{name} ({SPLITS[split_of[file]]}, then {SPLITS[split]})")
        split_of[file] = split
        by_split[split].append((name, numbers["y"], numbers[bias]))
    if twice:
        raise ValueError(
            f"{path} lists {len(twice)} images twice: {', '.join(twice[:5])}{', ...' if len(twice) > 5 else ''}. "
            "Each image must have exactly one row: delete the others"
        )
    absent = [name for rows in by_split for name, *_ in rows if not (path.parent / name).is_file()]
    if absent:
        raise FileNotFoundError(f"{path} names {len(absent)} images that do not exist, e.g. {path.parent / absent[0]}: unpack them")
    for name, rows in zip(SPLITS, by_split, strict=True):
        if not rows:
            raise ValueError(f"{path} has no row for the {name} set (split = {SPLITS.index(name)}): add its images")
    return [_listed(sorted(rows)) for rows in by_split]


def read_archive(root: pathlib.Path, percent: float, classes: int, cure: str) -> list[Listed]:
    """[train, val, test] of a published archive; cure: what to do if it is missing."""
    share = root / f"{percent:g}pct"
    groups = (
        [share / "align", first_of(share / "conflict", share / "conlict")],
        [first_of(*(folder / name for folder in (share, root) for name in ("valid", "val")))],
        [root / "test"],
    )
    for folder in (folder for group in groups for folder in group):
        if not list_images(folder):
            raise FileNotFoundError(
                f"no images under {folder}: needed are {share}/align, {share}/conflict, {share}/valid (or {root}/valid) "
                f"and {root}/test. {cure}"
            )
    return [read_names(root, group, classes) for group in groups]


def first_of(*folders: pathlib.Path) -> pathlib.Path:
    """The first folder that exists, or else the first."""
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def list_images(folder: pathlib.Path) -> list[pathlib.Path]:
    """All images below a folder, if it exists, without those that macOS adds to archives (._x.png) or in system folders."""
    return [folder / name for name in image_files.list_below(folder)] if folder.is_dir() else []


def read_names(root: pathlib.Path, folders: list[pathlib.Path], classes: int) -> Listed:
    """The images below some folders, with the label and bias in their names."""
    rows = [(path.relative_to(root).as_posix(), *tokens(path, classes)) for folder in folders for path in list_images(folder)]
    return _listed(sorted(rows))


def tokens(path: pathlib.Path, classes: int) -> tuple[int, int]:
    """(label, bias) of a file named <anything>_<label>_<bias>.<ending>."""
    label, bias = path.stem.split("_")[-2:] if path.stem.count("_") else ("", "")
    numbers = [str(number) for number in range(classes)]
    if label not in numbers or bias not in numbers:
        raise ValueError(f"{path}: the name must end in _<label>_<bias>, each from 0 to {classes - 1}. Move other images out of the folder")
    return int(label), int(bias)


def _listed(rows: list[tuple]) -> Listed:
    names, labels, biases = zip(*rows, strict=True)
    return Listed(np.array(names), np.array(labels, np.int32), np.array(biases, np.int32))


def make_source(
    cfg: Any, name: str, class_names: tuple[str, ...], bias_name: str, splits: Sequence[Split], facts: dict[str, Any]
) -> Source:
    """The data set of [train, val, test], augmented by cfg.augment."""
    pairs = zip(SPLITS, splits, strict=True)
    counts = {split: {"aligned": int((s.label == s.bias).sum()), "conflicting": int((s.label != s.bias).sum())} for split, s in pairs}
    train, val, test = splits
    return Source(
        name=name,
        class_names=class_names,
        train=train,
        sets={"val": EvaluationSet(val, "val"), "unbiased": EvaluationSet(test, "test")},
        scale=lambda image: augment.make_evaluation(cfg.augment, image.shape[1:])(image),
        facts={"conflicting_percent": cfg.conflicting_percent, "counts": counts, "side_px": train.image.shape[1], **facts},
        bias_name=bias_name,
        augment=augment.make(cfg.augment, train.image.shape[1:]),
    )


def table_facts(path: pathlib.Path) -> dict:
    return {"table": path.name, "table_sha256": records.checksum(path)}


def read(cfg: Config, root: pathlib.Path, listed: Sequence[Listed]) -> tuple[list[Split], dict[str, Any]]:
    """The images of each split, in memory if small, and facts about them for the results."""
    splits = [_read(cfg, root, rows, i > 0) for i, rows in enumerate(listed)]
    lost = [set(rows.name) - set(split.name) for rows, split in zip(listed, splits, strict=True)]
    return splits, {"unreadable": sorted(map(str, set().union(*lost)))}  # in a stream, known only later


def _read(cfg: Config, root: pathlib.Path, rows: Listed, evaluated: bool) -> Split:
    images = Images(
        lambda row: stretch((root / str(rows.name[row])).read_bytes(), cfg.side_px),
        rows.name,
        (cfg.side_px, cfg.side_px),
        corrupt=cfg.corrupt,
        threads=cfg.threads,
    )
    return in_memory(Split(images, rows.label, rows.bias, rows.name), cfg.resident_gib, evaluated)


def stretch(content: bytes, side_px: int) -> np.ndarray:
    """uint8 [side_px, side_px, 3]: the whole image resized to a square like torchvision's Resize. Raises ValueError for bad content."""
    from PIL import Image

    return np.asarray(decode.image(content).resize((side_px, side_px), Image.Resampling.BILINEAR))
