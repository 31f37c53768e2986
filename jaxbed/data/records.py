"""Images in ArrayRecord files, as `data_prep` writes them: one folder with images, their names and labels, and a manifest.

FOLDER/part-00000-of-00016.array_record   one record per image: its JPEG bytes, or uint8 [side, side, 3]
FOLDER/index.npz                          name [n], label [n], classes [k]; in the order of the records
FOLDER/manifest.json                      format, side_px, count, SHA-256 of each file; written last, so a folder without it is unfinished
"""

import bisect
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from jaxbed.system import files

FORMATS = ("jpeg", "uint8")
FIELDS = {"format": str, "side_px": int, "count": int, "sha256": dict}  # of a manifest
KINDS = {"name": "U", "label": "iu", "classes": "U"}  # of the lists of an index
OPENERS = 16  # files opened at a time
OPTIONS = "group_size:1"  # records are read one at a time, in any order


class Records(NamedTuple):
    """An open folder of records."""

    format: str
    side_px: int  # of uint8 squares; 0 for JPEG
    names: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]  # sorted
    source: "Parts"


class Parts:
    """The concatenated records of several files: [row] -> bytes. Raises OSError, which names the file, for a damaged record."""

    def __init__(self, paths: list[pathlib.Path]) -> None:
        self.paths = paths
        with ThreadPoolExecutor(OPENERS) as threads:
            self._files = list(threads.map(_open_part, paths))
        self._ends = list(itertools.accumulate(map(len, self._files)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> bytes:
        part = bisect.bisect_right(self._ends, row)
        record = row - (self._ends[part - 1] if part else 0)
        try:
            return self._files[part][record]
        except Exception as error:  # usually RuntimeError
            raise _damaged(self.paths[part], error, f"record {record} of ") from error


def _open_part(path: pathlib.Path) -> Any:
    import grain

    try:
        return grain.sources.ArrayRecordDataSource(str(path))
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(path: pathlib.Path, error: Exception, what: str = "") -> OSError:
    return OSError(f"{what}{path} is damaged ({type(error).__name__}: {error}): copy the file again, or run data_prep again")


def open_records(folder: pathlib.Path) -> Records:
    """Raises FileNotFoundError for an unfinished or incomplete folder, OSError for a damaged file of records, and ValueError for an
    inconsistent folder or an invalid manifest or index.
    """
    folder = pathlib.Path(folder)
    path = folder / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the folder is unfinished, or holds no records. Rerun data_prep to resume")
    manifest = _manifest(path)
    missing = [name for name in manifest["sha256"] if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing[:3])}, which its manifest lists: copy the folder again")
    names, labels, classes = _index(folder / "index.npz")
    source = Parts([folder / name for name in manifest["sha256"] if name.endswith(".array_record")])
    if not len(source) == len(names) == len(labels) == manifest["count"]:
        counts = f"{len(source)} records, {len(names)} names, {manifest['count']} in the manifest"
        raise ValueError(f"{folder} is inconsistent: {counts}. Run data_prep again")
    return Records(manifest["format"], manifest["side_px"], names, *in_order(str(folder), labels, classes), source)


def _manifest(path: pathlib.Path) -> dict:
    cure = "in a folder of records, copy it again or rerun data_prep; in a folder of images, move it away"
    with files.guarded(path, cure, "is not a manifest written by data_prep"):
        try:
            manifest = files.read_object(path)
        except ValueError as error:
            raise files.Fault("it is not a JSON object") from error
        if lacking := [key for key, kind in FIELDS.items() if not isinstance(manifest.get(key), kind)]:
            raise files.Fault(f"it has no {', '.join(lacking)}")
        if manifest["format"] not in FORMATS:
            raise files.Fault(f"format {manifest['format']!r} is not one of {', '.join(FORMATS)}")
        if strange := [name for name in manifest["sha256"] if pathlib.PurePath(name).name != name]:
            raise files.Fault(f"it names {strange[0]!r}, which is outside its folder")
    return manifest


def _index(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    cure = "copy it again, or run data_prep again"
    index = files.read_arrays(path, cure)
    with files.guarded(path, cure):
        for name, kinds in KINDS.items():
            if name not in index or index[name].dtype.kind not in kinds or index[name].ndim != 1:
                raise files.Fault(f"it has no valid array {name}")
    return index["name"], index["label"], tuple(map(str, index["classes"]))


def in_order(location: str, labels: np.ndarray, classes: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """(labels [n] int32, classes), both for sorted classes. Raises ValueError for a label without a class, as in unlabelled splits."""
    if strange := set(np.unique(labels).tolist()) - set(range(len(classes))):
        raise ValueError(f"{location} has label {min(strange)}, but its classes are 0 to {len(classes) - 1}: use a labelled set")
    ordered = tuple(sorted(classes))
    positions = {name: i for i, name in enumerate(ordered)}
    return np.array([positions[name] for name in classes], np.int32)[labels.astype(np.int32)], ordered


def write_part(path: pathlib.Path, records: Iterable[bytes]) -> str:
    """Writes one file and returns its SHA-256. An existing file is complete: it is renamed last."""
    from array_record.python.array_record_module import ArrayRecordWriter

    partial = path.with_suffix(".partial")
    writer = ArrayRecordWriter(str(partial), OPTIONS)
    try:
        with contextlib.closing(writer):
            for record in records:
                writer.write(record)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return checksum(path)


def finish(
    folder: pathlib.Path,
    form: str,
    side_px: int,
    names: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...],
    sums: dict[str, str],
    skipped: dict[str, str],
) -> None:
    """Writes index and manifest; sums: SHA-256 of each part by file name, in the order of the rows; skipped: reason by image."""
    files.write_arrays(folder / "index.npz", {"name": names, "label": labels, "classes": np.array(classes)})
    sums = {**sums, "index.npz": checksum(folder / "index.npz")}
    content = {"format": form, "side_px": side_px, "count": len(names), "sha256": sums, "skipped": skipped}
    files.write(folder / "manifest.json", json.dumps(content, indent=1) + "\n")


def checksum(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
