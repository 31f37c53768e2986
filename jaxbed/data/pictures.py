"""Pictures where users have them: a folder with a folder a class, ArrayRecord files, a TFDS data set. All become (images, labels, classes).

A place is written as a path (image folder or folder of records) or as tfds:NAME:SPLIT[@DATA_DIR].
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxbed import cache
from jaxbed.data import decode, records, stream
from jaxbed.data.stream import Images

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
SQUARE_READERS = 4  # more threads get in each other's way, since a stored square is but copied: scripts/bench_pipeline.py


class Pictures(NamedTuple):
    images: Images
    labels: np.ndarray  # [n] int32: place of the class in `classes`
    classes: tuple[str, ...]  # sorted
    stored_px: int = 0  # side of the squares they are stored as; 0 for whole pictures


class Size(NamedTuple):
    """What becomes of a picture, see `decode.square`."""

    side_px: int
    resize_px: int
    way: str = "exact"


def open_place(place: str, size: Size, corrupt: str = "fail", threads: int = 0) -> Pictures:
    """Raises FileNotFoundError or ValueError, naming the place and the cure, for what is not there or cannot be used."""
    if (pathlib.Path(place) / "manifest.json").is_file():
        found = records.open_records(pathlib.Path(place))
        if found.format == "uint8":
            return Pictures(_squares(place, found, size, corrupt, threads), found.labels, found.classes, found.side_px)
        names, labels, classes, content = found.names, found.labels, found.classes, found.source.__getitem__
    else:
        names, labels, classes, content = open_bytes(place)
    return Pictures(_decoded(content, names, size, corrupt, threads), labels, classes)


def open_bytes(place: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], Callable[[int], bytes]]:
    """(names, labels, classes, row -> encoded picture) of an image folder or a TFDS data set."""
    if place.startswith("tfds:"):
        return _tfds(place)
    names, labels, classes = list_folder(pathlib.Path(place))
    return names, labels, classes, _files(pathlib.Path(place), names)


def open_flat(folder: pathlib.Path, size: Size, class_of: Callable[[str], str], classes: tuple[str, ...], threads: int = 0) -> Pictures:
    """Pictures anywhere below a folder whose class is in their file name. Raises ValueError for a name without one of `classes`."""
    names = np.array(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix.lower() in ENDINGS))
    if not len(names):
        raise ValueError(f"{folder} holds no picture ({', '.join(ENDINGS)})")
    labels = []
    for name in names:
        try:
            labels.append(classes.index(class_of(pathlib.PurePath(name).name)))
        except (IndexError, ValueError):
            raise ValueError(f"{folder / name}: its name tells none of the classes {', '.join(classes)}") from None
    return Pictures(_decoded(_files(folder, names), names, size, "fail", threads), np.array(labels, np.int32), classes)


def subset(whole: Pictures, rows: np.ndarray) -> Pictures:
    """Some of the pictures, in the order of `rows`."""
    images = dataclasses.replace(
        whole.images, read=lambda row: whole.images.read(int(rows[row])), names=whole.images.names[rows], skipped={}
    )
    return whole._replace(images=images, labels=whole.labels[rows])


def join(parts: list[Pictures]) -> Pictures:
    """All pictures of several sets with the same classes, one after another."""
    if len(parts) == 1:
        return parts[0]
    images = stream.join([part.images for part in parts])
    names = np.concatenate([[f"{i}/{name}" for name in part.images.names] for i, part in enumerate(parts)])  # often the same in all
    return Pictures(dataclasses.replace(images, names=names), np.concatenate([part.labels for part in parts]), parts[0].classes)


def _files(folder: pathlib.Path, names: np.ndarray) -> Callable[[int], bytes]:
    return lambda row: (folder / str(names[row])).read_bytes()


def _decoded(content: Callable[[int], bytes], names: np.ndarray, size: Size, corrupt: str, threads: int) -> Images:
    def read(row: int) -> np.ndarray:
        return decode.square(content(row), size.side_px, size.resize_px, size.way)

    return Images(read, names, (size.side_px,) * 2, corrupt=corrupt, threads=threads)


def list_folder(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """(names relative to the folder, labels, classes) of FOLDER/CLASS/**/PICTURE, all sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: name one with a folder of pictures for each class, or a folder of records")
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")))
    names, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(str(path.relative_to(folder)) for path in (folder / name).rglob("*") if path.suffix.lower() in ENDINGS)
        if not found:
            raise ValueError(f"{folder / name} holds no picture ({', '.join(ENDINGS)}): a class without pictures, or no folder of a class")
        names += found
        labels += [label] * len(found)
    if not names:
        raise ValueError(f"{folder} has no folders of classes: pictures must lie in {folder}/CLASS/")
    return np.array(names), np.array(labels, np.int32), classes


def _squares(place: str, found: records.Records, size: Size, corrupt: str, threads: int) -> Images:
    """Stored squares: nothing to decode. Only a central part may be cut out, since resizing twice would be other pixels."""
    stored = found.side_px
    if size.side_px > stored or size.resize_px not in (0, stored):
        raise ValueError(
            f"{place} holds squares of {stored} px, and resize {size.resize_px}, then {size.side_px} px are asked for: "
            f"take resize {stored} or 0, and at most {stored} px, or make records anew with data_prep"
        )
    start = (stored - size.side_px) // 2
    cut = slice(start, start + size.side_px)

    def read(row: int) -> np.ndarray:
        return np.frombuffer(found.source[row], np.uint8).reshape(stored, stored, 3)[cut, cut]

    return Images(read, found.names, (size.side_px,) * 2, corrupt=corrupt, threads=stream.readers(threads, SQUARE_READERS))


def _tfds(place: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], Callable[[int], bytes]]:
    spec, _, folder = place.partition("@")
    words = spec.split(":")
    if len(words) != 3 or not all(words):
        raise ValueError(f"{place!r}: a TFDS data set is written as tfds:NAME:SPLIT, e.g. tfds:imagenet2012:train")
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ValueError(f"{place} needs tensorflow-datasets: pip install jaxbed[tfds]") from error
    _, name, split = words
    try:
        builder = tfds.builder(name, data_dir=folder or None)
        source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
    except Exception as error:  # of many kinds
        cure = "download_and_prepare with file_format='array_record' makes it, which is read without TensorFlow"
        raise FileNotFoundError(f"{place}: TFDS has no such data set ready ({str(error).strip().splitlines()[0]}); {cure}") from error
    digest = hashlib.sha256(f"{builder.data_path}:{split}:{len(source)}".encode()).hexdigest()[:16]
    index = cache.folder() / "tfds" / f"{name}-{builder.version}-{split}-{digest}.npz"
    if not index.is_file():
        _index(source, index, split)
    with np.load(index) as found:
        names, labels = found["name"], found["label"]
    return names, labels, tuple(builder.info.features["label"].names), lambda row: source[row]["image"]


def _index(source: Any, path: pathlib.Path, split: str) -> None:
    """Names and labels of all examples, kept for the next time: TFDS has them in the records alone, beside the pictures."""

    def one(row: int) -> tuple[str, int]:
        example = source[row]
        name = example.get("file_name", b"")  # not the same in all data sets that have it
        return (name.decode() if name else f"{split}-{row:07d}"), int(example["label"])

    with ThreadPoolExecutor(stream.readers(0)) as threads:
        names, labels = zip(*threads.map(one, range(len(source))), strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, name=np.array(names), label=np.array(labels, np.int32))
    os.replace(partial, path)
