"""Runs of images that share distorted weights in DeepAugment (Hendrycks et al., 2021), and batches of images within one.

Images of a class come in an order that is drawn. Weights are distorted at the first image of a class, and at every other one with the
probability `refresh`, so that runs are geometric, with a mean of 20 images for the published 0.05, but end with their class.

Differences from the published code: there, the images of all classes of a worker are shuffled together, so that a run goes on through
several classes. Here, the draws of an image depend on seed, network and its name, which includes the class, and on nothing else: new
classes change no image of the others, and no draw depends on batches, shards or progress.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

CANVAS_PX = 16  # longer sides of canvases are multiples of it
THIRDS = 6  # of the shorter side; beyond it, one image per batch bounds the memory that long ones need


def runs(names: Sequence[str], labels: np.ndarray, seed: int, network: str, refresh: float) -> list[np.ndarray]:
    """Rows of every run, in their order; weights are distorted at the first one. names: CLASS/FILE; labels [n]: classes as numbers."""
    drawn = np.array([np.frombuffer(_digest(seed, network, name, "order")[:16], "<u8") for name in names]).reshape(-1, 2)
    rows = np.lexsort((drawn[:, 0], labels))
    begins = np.diff(labels[rows], prepend=-1) != 0
    begins |= drawn[rows, 1] * 2.0**-64 < refresh
    return np.split(rows, np.flatnonzero(begins)[1:]) if len(rows) else []


def generator(seed: int, network: str, name: str, purpose: str) -> np.random.Generator:
    """Of what is drawn for one image. purpose: weights, of the run that begins with it, or signal."""
    return np.random.default_rng(np.frombuffer(_digest(seed, network, name, purpose), "<u4"))


def _digest(seed: int, network: str, name: str, purpose: str) -> bytes:
    return hashlib.sha256("\0".join((str(seed), network, name, purpose)).encode()).digest()


def batches(sizes_px: np.ndarray, most: int) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """(canvas, indices of the images on it) of every batch; sizes_px [n, 2]: heights and widths.

    Few programs are compiled: batches have a power of two of images, up to `most`, so that none is filled up, and canvases are those of
    `canvas_px`.
    """
    fitting = [(canvas_px(*size), index) for index, size in enumerate(sizes_px.tolist())]
    for canvas, group in itertools.groupby(sorted(fitting), lambda each: each[0]):
        waiting = [index for _, index in group]
        largest = most if max(canvas) <= canvas_px(min(canvas), THIRDS * min(canvas) // 3)[1] else 1
        while waiting:
            count = min(largest, 2 ** (len(waiting).bit_length() - 1))
            yield canvas, waiting[:count]
            del waiting[:count]


def canvas_px(height: int, width: int) -> tuple[int, int]:
    """Height and width of the canvas of an image: its shorter side, and for the longer one a third more, two thirds more, and so on.

    Longer sides are rounded up to CANVAS_PX: images of 4:3 that lost a pixel still fit.
    """
    shorter, longer = sorted((height, width))
    thirds = 3
    while (side := shorter if thirds == 3 else -(-shorter * thirds // (3 * CANVAS_PX)) * CANVAS_PX) < longer:
        thirds += 1
    return (shorter, side) if height <= width else (side, shorter)
