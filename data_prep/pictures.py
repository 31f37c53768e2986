"""Converts an image folder with one sub-folder per class (such as unpacked ImageNet) or a TFDS data set to ArrayRecord files.

    python data_prep/pictures.py SOURCE TARGET [--format uint8 --side-px 256] [--parts 64] [--workers 8] [--corrupt skip]

Format jpeg keeps the bytes of the files; uint8 stores squares (shorter side resized, centre cut), which need no decoding in training and
196 kB per image at 256 px. Each part is written by one process and verified by SHA-256. If interrupted, rerun the same command to resume;
it rebuilds parts whose images have changed (names, sizes, modification times). Images that cannot be decoded raise an error, or with
--corrupt=skip are left out and listed in the manifest.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import pathlib
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.data import decode, image_files, records
from jaxbed.system import ending, files

opened = functools.cache(image_files.open_bytes)  # once per process


class Job(NamedTuple):
    """One part."""

    source: str
    path: pathlib.Path
    rows: np.ndarray
    names: np.ndarray  # of the rows
    form: str
    side_px: int
    corrupt: str


def digest(job: Job) -> str:
    """Hash of the names of a part's images, and of the sizes and modification times of those that are files."""
    images = [[int(row), str(name)] for row, name in zip(job.rows, job.names, strict=True)]
    if not job.source.startswith("tfds:"):
        for row in images:
            try:
                facts = (pathlib.Path(job.source) / row[1]).stat()
                row += [facts.st_size, facts.st_mtime_ns]
            except OSError:  # an image that cannot be read
                pass
    return hashlib.sha256(json.dumps(images).encode()).hexdigest()


def reader(job: Job) -> Callable[[int], bytes]:
    """index in the part -> bytes. Files are read by the names stored in the index, even if the folder has changed since."""
    if not job.source.startswith("tfds:"):
        return image_files.files(pathlib.Path(job.source), job.names)
    read = opened(job.source)[3]
    return lambda index: read(int(job.rows[index]))


def write(job: Job) -> dict:
    """Writes one part, unless it already exists with the same images, and returns {sha256, rows, skipped, wanted}."""
    facts_path, wanted = job.path.with_suffix(".json"), digest(job)
    if job.path.is_file() and facts_path.is_file():
        with contextlib.suppress(ValueError):  # damaged: rebuild it
            facts = files.read_object(facts_path)
            if facts.get("wanted") == wanted and records.checksum(job.path) == facts.get("sha256"):
                return facts
    read, kept, skipped = reader(job), [], {}

    def encoded():
        for index, (row, name) in enumerate(zip(job.rows, job.names, strict=True)):
            try:
                content = read(index)
                square = decode.square(
                    content, *((job.side_px, job.side_px) if job.form == "uint8" else (1, 0))
                )  # jpeg: only checks that it is readable
            except (OSError, ValueError) as error:
                if job.corrupt == "fail":
                    raise ValueError(f"{name} cannot be read ({error}): restore it, or leave it out with --corrupt=skip") from error
                skipped[str(name)] = str(error)
                continue
            kept.append(int(row))
            yield square.tobytes() if job.form == "uint8" else content

    facts = {"sha256": records.write_part(job.path, encoded()), "rows": kept, "skipped": skipped, "wanted": wanted}
    files.write(facts_path, json.dumps(facts))
    return facts


def prepare(source: str, target: pathlib.Path, form: str, side_px: int, parts: int, workers: int, corrupt: str) -> None:
    names, labels, classes, _ = image_files.open_bytes(source)
    target.mkdir(parents=True, exist_ok=True)
    made = target / "settings.json"
    settings = {"source": source, "format": form, "side_px": side_px, "parts": parts, "images": len(names), "corrupt": corrupt}
    if made.is_file() and (former := files.read_object(made, f"delete {target} and run again")) != settings:
        raise ValueError(f"{target} was started with other settings ({json.dumps(former)}): use another folder, or delete it")
    files.write(made, json.dumps(settings) + "\n")
    (target / "manifest.json").unlink(missing_ok=True)  # unfinished until all parts are verified
    pieces = np.array_split(np.arange(len(names)), min(parts, len(names)))
    jobs = [
        Job(source, target / f"part-{i:05d}-of-{len(pieces):05d}.array_record", rows, names[rows], form, side_px, corrupt)
        for i, rows in enumerate(pieces)
    ]
    facts, done = {}, 0
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(write, job): job for job in jobs}
        try:
            for future in as_completed(running):
                job = running[future]
                facts[job.path.name] = future.result()
                done += len(job.rows)
                print(f"{done:,} of {len(names):,} images, {len(facts)} of {len(jobs)} parts", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    facts = {job.path.name: facts[job.path.name] for job in jobs}
    rows = np.concatenate([np.array(f["rows"], int) for f in facts.values()])
    skipped = {name: reason for f in facts.values() for name, reason in f["skipped"].items()}
    sums = {name: f["sha256"] for name, f in facts.items()}
    records.finish(target, form, side_px if form == "uint8" else 0, names[rows], labels[rows], classes, sums, skipped)
    for name, reason in skipped.items():
        print(f"left out: {name} ({reason})")
    print(f"{target}: {len(rows):,} images of {len(classes)} classes in {len(jobs)} files, {len(skipped)} left out")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folder with one sub-folder per class, or tfds:NAME:SPLIT[@DATA_DIR]")
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--format", choices=records.FORMATS, default="jpeg")
    parser.add_argument("--side-px", type=int, default=256, help="of uint8 squares")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--corrupt", choices=("fail", "skip"), default="fail")
    asked = parser.parse_args(argv)
    if min(asked.side_px, asked.parts, asked.workers) < 1:
        parser.error("--side-px, --parts and --workers must be at least 1")
    try:
        prepare(asked.source, asked.target, asked.format, asked.side_px, asked.parts, asked.workers, asked.corrupt)
    except (ValueError, OSError) as error:
        ending.tell("images", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
