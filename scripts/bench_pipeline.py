"""How many images per second does the host read and decode? Synthetic images, in the ways that jaxbed stores them; no device is used.

    python scripts/bench_pipeline.py [--images 2048] [--threads 16] [--json FILE]

Each line is the median of BLOCKS blocks of batches of 256 from `stream.batches`, in random order, with the least and the largest.
Files are in the page cache: a disk may be slower.
"""

import argparse
import io
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.data import decode, image_files, records, stream

BATCH, BLOCKS, BATCHES = 256, 5, 4
WIDTH, HEIGHT = 500, 375  # ImageNet's most frequent size
STORED, SIDE = 256, 224


def make(folder: pathlib.Path, count: int) -> None:
    """A folder of JPEG images, smooth with some noise, of about 50 kB each; the same in records, and as squares."""
    rng = np.random.default_rng(0)
    names, contents = [], []
    for i in range(count):
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        noisy = np.clip(np.asarray(small).astype(int) + rng.integers(-6, 7, (HEIGHT, WIDTH, 1)), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=92)
        names.append(f"class{i % 8}/{i}.jpeg")
        contents.append(buffer.getvalue())
        path = folder / "images" / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[-1])
    labels, classes = np.arange(count) % 8, tuple(f"class{i}" for i in range(8))
    for form in records.FORMATS:
        target = folder / form
        target.mkdir()
        stored = contents if form == "jpeg" else [decode.square(content, STORED, STORED, "fast").tobytes() for content in contents]
        part = target / "part-00000-of-00001.array_record"
        sums = {part.name: records.write_part(part, stored)}
        records.finish(target, form, STORED if form == "uint8" else 0, np.array(names), labels, classes, sums, {})
    print(f"{count} images of {WIDTH} x {HEIGHT}, {np.mean([len(content) for content in contents]) / 1000:.0f} kB each", flush=True)


def measure(images: stream.Images) -> list[float]:
    """Images per second, of each block."""

    def rows_of(step: int) -> np.ndarray:
        return np.random.default_rng(step).integers(0, len(images), BATCH)

    read, rates = stream.batches(images, rows_of, 0), []
    for _ in range(BLOCKS + 1):
        before = time.perf_counter()
        for _ in range(BATCHES):
            next(read)
        rates.append(BATCH * BATCHES / (time.perf_counter() - before))
    return rates[1:]  # in the first, threads and buffers are set up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as `stream.readers` takes")
    parser.add_argument("--json", type=pathlib.Path)
    asked = parser.parse_args()
    exact, fast = image_files.Size(SIDE, STORED, "exact"), image_files.Size(STORED, STORED, "fast")
    results = {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder), asked.images)
        print(f"{results['cores']} cores; images per second", flush=True)
        for name, subfolder, size in (
            ("folder, exact (evaluation)", "images", exact),
            ("folder, fast (training)", "images", fast),
            ("JPEG records, fast", "jpeg", fast),
            ("uint8 records", "uint8", fast),
        ):
            images = image_files.open_location(str(pathlib.Path(folder) / subfolder), size, threads=asked.threads).images
            threads, rates = stream.readers(images.threads), measure(images)
            results[name] = {"threads": threads, "rates": rates}
            described = f"{name}, {threads} threads"
            print(f"{described:40s} {statistics.median(rates):8,.0f} ({min(rates):,.0f}-{max(rates):,.0f})", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
