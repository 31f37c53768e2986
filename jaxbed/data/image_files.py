"""Reads images from an image folder with one sub-folder per class, from ArrayRecord files or from a TFDS data set.

A location is a path (image folder or folder of records) or tfds:NAME:SPLIT[@DATA_DIR]. All kinds give (images, labels, classes).
"""

import collections
import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxbed.data import decode, records, stream
from jaxbed.data.stream import Corrupt, Images
from jaxbed.system import cache
from jaxbed.system.files import read_arrays, write_arrays

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
COMPANIONS = (".txt", ".md", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".html", ".yaml", ".npz", ".npy", ".mat", ".pdf", ".py", ".db")
# folders that storage systems and archive programs create among images, some with thumbnails; in lower case
SYSTEM = (
    *("@eadir", "@tmp", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "~snapshot", "__macosx", "__pycache__", "lost+found"),
    *("$recycle.bin", "recycler", "recycled", "system volume information", "found.000", "network trash folder", "temporary items"),
)
NOT_IMAGENET_C = "imagenet2012_corrupted"
SQUARE_READERS = 4  # a stored square is only copied, and more threads slow each other down: scripts/bench_pipeline.py


class ImageFiles(NamedTuple):
    images: Images
    labels: np.ndarray  # [n] int32: index into `classes`
    classes: tuple[str, ...]  # sorted
    stored_px: int = 0  # side length if they are stored as squares; 0 for whole images
    content: Callable[[int], bytes] | None = None  # row -> encoded image, of a whole location with whole images


class Size(NamedTuple):
    """How an image is resized and cropped, see `decode.square`."""

    side_px: int
    resize_px: int
    way: str = "exact"


def open_location(location: str, size: Size, corrupt: Corrupt = "fail", threads: int = 0) -> ImageFiles:
    """Raises FileNotFoundError or ValueError, which name the location and the cure, if it does not exist or cannot be used."""
    if (pathlib.Path(location) / "manifest.json").is_file():
        opened = records.open_records(pathlib.Path(location))
        if opened.format == "uint8":
            return ImageFiles(_squares(location, opened, size, corrupt, threads), opened.labels, opened.classes, opened.side_px)
        names, labels, classes, content = opened.names, opened.labels, opened.classes, opened.source.__getitem__
    else:
        names, labels, classes, content = open_bytes(location)
    return ImageFiles(decoded(content, names, size, corrupt, threads), labels, classes, content=content)


def in_size(opened: ImageFiles, size: Size, corrupt: Corrupt = "fail", threads: int = 0) -> ImageFiles:
    """The whole images of a location in another size; the location is not listed again."""
    assert opened.content is not None
    return opened._replace(images=decoded(opened.content, opened.images.names, size, corrupt, threads))


def open_bytes(location: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], Callable[[int], bytes]]:
    """(names, labels, classes, row -> encoded image) of an image folder or a TFDS data set."""
    if location.startswith("tfds:"):
        return _tfds(location)
    names, labels, classes = list_folder(pathlib.Path(location))
    return names, labels, classes, files(pathlib.Path(location), names)


def open_flat(folder: pathlib.Path, size: Size, class_of: Callable[[str], str], classes: tuple[str, ...], threads: int = 0) -> ImageFiles:
    """Images anywhere below a folder, with the class in the file name. Raises ValueError for a name without one of `classes`."""
    names = np.array(list_below(folder))
    if not len(names):
        raise ValueError(f"{folder} contains no image ({', '.join(ENDINGS)})")
    labels = []
    for name in names:
        try:
            labels.append(classes.index(class_of(pathlib.PurePath(name).name)))
        except (IndexError, ValueError):
            raise ValueError(f"{folder / name}: the file name must contain one of the classes {', '.join(classes)}") from None
    return ImageFiles(decoded(files(folder, names), names, size, "fail", threads), np.array(labels, np.int32), classes)


def subset(whole: ImageFiles, rows: np.ndarray) -> ImageFiles:
    """Some of the images, in the order of `rows`."""
    images = dataclasses.replace(
        whole.images, read=lambda row: whole.images.read(int(rows[row])), names=whole.images.names[rows], skipped={}
    )
    return whole._replace(images=images, labels=whole.labels[rows], content=None)


def join(sets: list[ImageFiles]) -> ImageFiles:
    """Concatenates sets with the same classes."""
    if len(sets) == 1:
        return sets[0]
    images = stream.join([one.images for one in sets])
    names = np.concatenate([[f"{i}/{name}" for name in one.images.names] for i, one in enumerate(sets)])  # often the same in all sets
    return ImageFiles(dataclasses.replace(images, names=names), np.concatenate([one.labels for one in sets]), sets[0].classes)


def files(folder: pathlib.Path, names: np.ndarray) -> Callable[[int], bytes]:
    """row -> the bytes of the file of that name."""
    return lambda row: (folder / str(names[row])).read_bytes()


def decoded(content: Callable[[int], bytes], names: np.ndarray, size: Size, corrupt: Corrupt, threads: int) -> Images:
    """Images decoded to squares; content maps a row to the bytes of a file or record."""

    def read(row: int) -> np.ndarray:
        return decode.square(content(row), size.side_px, size.resize_px, size.way)

    return Images(read, names, (size.side_px,) * 2, corrupt=corrupt, threads=threads)


def list_folder(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """(names relative to the folder, labels, classes) of FOLDER/CLASS/**/IMAGE, all sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: name a folder with one sub-folder of images per class, or a folder of records")
    names, labels, empty = [], [], []
    classes: list[str] = []
    passed: collections.Counter[str] = collections.Counter()
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if not (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()):
                _pass(entry.name, passed, " outside the class folders")
            elif not _is_system(entry.name, passed):
                images = sorted(os.path.join(entry.name, file) for file in _below(entry.path, passed, (str(folder),), entry.is_symlink()))
                names += images
                labels += [len(classes)] * len(images)
                empty += [] if images else [entry.name]
                classes.append(entry.name)
    _tell(folder, passed)
    _check_names(folder, names)
    if empty:
        raise ValueError(f"{folder / empty[0]} contains no image ({', '.join(ENDINGS)}): add images of that class, or move the folder away")
    if not names:
        raise ValueError(f"{folder} has no class folders: images must be in {folder}/CLASS/")
    return np.array(names), np.array(labels, np.int32), tuple(classes)


def list_below(folder: pathlib.Path) -> list[str]:
    """Sorted names, relative to the folder, of all images below it; ignored files are reported."""
    passed: collections.Counter = collections.Counter()
    names = sorted(_below(str(folder), passed))
    _tell(folder, passed)
    _check_names(folder, names)
    return names


def _below(folder: str, passed: collections.Counter, above: tuple[str, ...] = (), linked: bool = False) -> list[str]:
    """Names, relative to the folder, of all images below it, also behind links; hidden files are skipped.

    passed: see `_pass`. above: the folders that it is in, from the outermost. linked: whether it or one of these is a link.
    """
    names = []
    if linked and any(os.path.samefile(folder, each) for each in above):
        raise ValueError(f"{folder} is a link to {os.path.realpath(folder)}, which contains it: remove the link")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if not _is_system(entry.name, passed):
                    below = _below(entry.path, passed, (*above, folder), linked or entry.is_symlink())
                    names += [os.path.join(entry.name, name) for name in below]
            elif (
                os.path.splitext(entry.name)[1].lower() in ENDINGS
                and not entry.name.startswith(".")
                and (entry.is_file() or entry.is_symlink())  # a broken link is an image that cannot be read
            ):
                names.append(entry.name)
            else:
                _pass(entry.name, passed)
    return names


def is_system(folder: str) -> bool:
    """Whether a folder of this name belongs to the system and holds none of the user's images."""
    return folder.startswith(".") or folder.lower() in SYSTEM


def _is_system(folder: str, passed: collections.Counter) -> bool:
    """`is_system`, which also counts the folder in `passed`."""
    if is_system(folder):
        passed[f"{folder}/"] += 1
    return is_system(folder)


def _pass(name: str, passed: collections.Counter, where: str = "") -> None:
    """Counts an ignored file by its extension, unless its kind usually accompanies images."""
    ending = os.path.splitext(name)[1].lower()
    if not name.startswith(".") and ending not in COMPANIONS:
        passed[(ending or "without extension") + where] += 1


def _tell(folder: pathlib.Path, passed: collections.Counter) -> None:
    if passed:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(passed.items()))
        tell_once(f"{folder}: ignored {listed}; image files end in {', '.join(ENDINGS)}")


@functools.cache  # a folder may be opened several times
def tell_once(text: str) -> None:
    print(f"jaxbed: {text}", file=sys.stderr)


def _check_names(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Raises ValueError for a name that no result table could hold."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{folder}: the name {str(name)!r} is not UTF-8: rename the file or its folder") from None


def _squares(location: str, opened: records.Records, size: Size, corrupt: Corrupt, threads: int) -> Images:
    """Stored squares need no decoding. Only a central crop is allowed, since resizing twice would give different pixels."""
    stored = opened.side_px
    if size.way == "stretched":
        raise ValueError(f"{location} holds squares that were cut out, not whole images to stretch: rebuild them with --format jpeg")
    if size.way == "unchanged" and stored != size.side_px:
        raise ValueError(
            f"{location} holds squares of {stored} px: images of this set must have {size.side_px} x {size.side_px}, for they are not "
            "resized. Rebuild the records with data_prep, --format jpeg"
        )
    if size.side_px > stored or size.resize_px not in (0, stored):
        raise ValueError(
            f"{location} holds squares of {stored} px, which cannot be resized to {size.resize_px} and cropped to {size.side_px} px: "
            f"resize to {stored} or 0, crop to at most {stored} px, or rebuild the records with data_prep"
        )
    start = (stored - size.side_px) // 2
    cut = slice(start, start + size.side_px)

    def read(row: int) -> np.ndarray:
        if len(content := opened.source[row]) != 3 * stored**2:
            raise ValueError(f"its record has {len(content)} bytes, but a square of {stored} px has {3 * stored**2}")
        return np.frombuffer(content, np.uint8).reshape(stored, stored, 3)[cut, cut]

    return Images(read, opened.names, (size.side_px,) * 2, corrupt=corrupt, threads=stream.readers(threads, SQUARE_READERS))


def _tfds(location: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], Callable[[int], bytes]]:
    spec, _, folder = location.partition("@")
    words = spec.split(":")
    if len(words) != 3 or not all(words):
        raise ValueError(f"{location!r}: a TFDS data set is written as tfds:NAME:SPLIT, e.g. tfds:imagenet2012:train")
    _, name, split = words
    if name.partition("/")[0] == NOT_IMAGENET_C:
        tell_once(f"{location}: TFDS made {NOT_IMAGENET_C} with code and crops of its own, so scores on it are not ImageNet-C's")
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ValueError(f"{location} needs tensorflow-datasets: pip install jaxbed[tfds]") from error
    try:
        builder = tfds.builder(name, data_dir=folder or None)
        source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
    except Exception as error:  # many types are raised
        cure = "prepare it with download_and_prepare and file_format='array_record', which is read without TensorFlow"
        raise FileNotFoundError(f"{location}: TFDS has no such data set ready ({str(error).strip().splitlines()[0]}); {cure}") from error
    features = builder.info.features
    classes = getattr(features["label"], "names", None) if "label" in features else None
    if "image" not in features or not classes:
        needed = "an image and a label with class names are needed: choose another data set"
        raise ValueError(f"{location} has the features {', '.join(features)}: {needed}")
    digest = hashlib.sha256(f"{builder.data_path}:{split}:{len(source)}".encode()).hexdigest()[:16]
    index = cache.folder() / "tfds" / f"{name}-{builder.version}-{split}-{digest}.npz"
    try:
        kept = read_arrays(index)
        names, labels = kept["name"], kept["label"]
    except (FileNotFoundError, KeyError, ValueError):
        names, labels = _index(source, split)
        index.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(index, {"name": names, "label": labels})

    def read(row: int) -> bytes:
        try:
            return source[row]["image"]
        except Exception as error:  # usually RuntimeError
            raise OSError(f"record {row} of {location} is damaged ({type(error).__name__}: {error}): prepare the data set again") from error

    return names, *records.in_order(location, labels, tuple(classes)), read


def _index(source: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Names and labels of all examples, cached by the caller: TFDS stores them only in the records, next to the images."""

    def one(row: int) -> tuple[str, int]:
        example = source[row]
        name = example.get("file_name", b"")  # its form differs between data sets
        return (name.decode(errors="backslashreplace") if name else f"{split}-{row:07d}"), int(example["label"])

    with ThreadPoolExecutor(stream.readers(0)) as threads:
        names, labels = zip(*threads.map(one, range(len(source))), strict=True)
    return np.array(names), np.array(labels, np.int32)
