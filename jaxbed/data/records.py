"""Pictures in ArrayRecord files, as `data_prep` writes them: one folder, with pictures, their names and labels, and a manifest.

FOLDER/part-00000-of-00016.array_record   one record a picture: its JPEG bytes, or uint8 [side, side, 3]
FOLDER/index.npz                          name [n], label [n], classes [k]; in the order of the records
FOLDER/manifest.json                      format, side_px, count, SHA-256 of each file; written last, so that a folder without is unfinished
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

FORMATS = ("jpeg", "uint8")
OPTIONS = "group_size:1"  # records are read one by one, in any order


class Records(NamedTuple):
    """An open folder of records."""

    format: str
    side_px: int  # of uint8 squares; 0 for JPEG
    names: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    source: object  # [row] -> bytes


def open_records(folder: pathlib.Path) -> Records:
    """Raises FileNotFoundError for a folder that is unfinished or incomplete, ValueError for one that contradicts itself."""
    import grain

    folder = pathlib.Path(folder)
    path = folder / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: the folder is unfinished, or holds no records. Run data_prep again, it goes on")
    manifest = json.loads(path.read_text())
    if manifest["format"] not in FORMATS:
        raise ValueError(f"{path}: format {manifest['format']!r} is not one of {', '.join(FORMATS)}")
    parts = [folder / name for name in manifest["sha256"] if name.endswith(".array_record")]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing[:3])}, which its manifest names: copy it again")
    with np.load(folder / "index.npz") as index:
        names, labels, classes = index["name"], index["label"], tuple(map(str, index["classes"]))
    source = grain.sources.ArrayRecordDataSource([str(part) for part in parts])
    if not len(source) == len(names) == len(labels) == manifest["count"]:
        counts = f"{len(source)} records, {len(names)} names, a manifest of {manifest['count']}"
        raise ValueError(f"{folder} contradicts itself: {counts}. Run data_prep again")
    return Records(manifest["format"], manifest["side_px"], names, labels.astype(np.int32), classes, source)


def write_part(path: pathlib.Path, records: Iterable[bytes]) -> str:
    """Writes one file and returns its SHA-256. A file that exists is whole: it gets its name last."""
    from array_record.python.array_record_module import ArrayRecordWriter

    partial = path.with_suffix(".partial")
    writer = ArrayRecordWriter(str(partial), OPTIONS)
    for record in records:
        writer.write(record)
    writer.close()
    os.replace(partial, path)
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
    """Writes index and manifest; sums: SHA-256 of each part by file name, in the order of the rows; skipped: reason by picture."""
    np.savez_compressed(folder / "index.npz", name=names, label=labels, classes=np.array(classes))
    sums = {**sums, "index.npz": checksum(folder / "index.npz")}
    content = {"format": form, "side_px": side_px, "count": len(names), "sha256": sums, "skipped": skipped}
    partial = folder / "manifest.partial"
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, folder / "manifest.json")


def checksum(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
