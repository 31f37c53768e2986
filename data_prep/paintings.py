"""The paintings of Stylized-ImageNet: which are used, how they are stored, and which image gets which."""

import os
import pathlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxbed.data import decode

SIDE = 224
SEED = 49809
REPORT_S = 10.0
UNREADABLE = (OSError, ValueError, SyntaxError)  # the last: Pillow's for a broken PNG


def draw(styles: int, val: int, train: int, seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """The painting of every image of val [val] and train [train], as indices into the sorted list of paintings.

    This reproduces the published code, which drew in batches of 256: RandomState gives the same numbers one at a time, in batches, or all
    at once.
    """
    drawn = np.random.RandomState(seed).randint(0, styles, size=val + train)
    return drawn[:val], drawn[val:]


def prepare(source: pathlib.Path, folder: pathlib.Path, threads: int) -> tuple[list[str], dict[str, str]]:
    """(sorted names of the usable paintings, {name: reason} of the others). Writes the prepared ones to `folder`.

    Existing files are kept. Several processes may run at once. If `source` is `folder`, nothing is left to do.
    """
    if not source.is_dir():
        raise FileNotFoundError(f"{source} is not a folder of paintings: unpack train.zip of Kaggle's painter-by-numbers there")
    names = sorted(entry.name for entry in os.scandir(source) if entry.is_file() and not entry.name.startswith("."))
    if source.resolve() == folder.resolve():
        return names, {}
    folder.mkdir(parents=True, exist_ok=True)
    excluded, begun = {}, time.monotonic()

    def one(name: str) -> None:
        from PIL import Image

        if (folder / name).is_file():
            return
        partial = folder / f".{os.getpid()}.{name}"
        try:
            square(source / name).save(partial)
            os.replace(partial, folder / name)
        except (*UNREADABLE, Image.DecompressionBombError) as error:
            if getattr(error, "errno", None):  # the disk's fault, e.g. a full one, not the painting's
                raise
            excluded[name] = str(error)
        finally:
            partial.unlink(missing_ok=True)

    with ThreadPoolExecutor(threads) as pool:
        reported = begun
        for done, _ in enumerate(pool.map(one, names), 1):
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                print(f"paintings: {done:,} of {len(names):,}, {done / (reported - begun):,.0f} per second", flush=True)
    return [name for name in names if name not in excluded], dict(sorted(excluded.items()))


def square(path: pathlib.Path) -> Any:
    """A painting as a Pillow image of 224 x 224 pixels. Raises ValueError or OSError."""
    from PIL import Image

    image = decode.image(path.read_bytes())
    width, height = image.size
    side = min(width, height)
    if side < SIDE:
        raise ValueError(f"it has {height} x {width} pixels, but each side must have at least {SIDE}")
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
