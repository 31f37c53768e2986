"""Images that stay on disk until a batch needs them: read and decoded in threads while the device computes.

Which rows make up a batch is a pure function of seed and step (`source.order`), so there is no position in a stream to save: a run that
goes on at any step reads the same images. Threads are grain's: they suffice because reading, decoding and copying release Python's lock.
"""

import collections
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

GROUP = 16  # images that a thread reads at a time: fewer cost time in Python, more wait for the slowest
AHEAD = 2  # batches in memory beyond the one that is used
Corrupt = Literal["fail", "skip"]


class Unreadable(ValueError):
    """An image that cannot be decoded."""


def readers(threads: int, most: int = 16) -> int:
    """How many threads read; 0: one for each core, `most` at most."""
    return threads or min(os.cpu_count() or 1, most)


@dataclasses.dataclass
class Images:
    """Looks like an array of images [n, H, W, C] uint8, but holds none.

    read(row) -> one image [H, W, C] uint8, called from many threads; it raises OSError or ValueError for what it cannot read. names are
    used in messages. corrupt: "fail", or "skip": the next row that can be read takes the place, in every epoch the same, and `skipped`
    counts it by name.
    """

    read: Callable[[int], np.ndarray]
    names: np.ndarray  # [n]
    side_px: tuple[int, int]  # height, width
    channels: int = 3
    corrupt: Corrupt = "fail"
    threads: int = 0  # see `readers`
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)  # name -> reason

    dtype = np.dtype(np.uint8)
    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.names), *self.side_px, self.channels)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images of rows [n], [n, H, W, C], and the rows they really are: others where one was skipped. Raises Unreadable."""
        images, taken = self.empty(len(rows))
        self.fill(rows, images, taken)
        return images, taken

    def empty(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Room for so many images and their rows."""
        return np.empty((count, *self.shape[1:]), np.uint8), np.empty(count, np.int32)

    def fill(self, rows: np.ndarray, images: np.ndarray, taken: np.ndarray) -> None:
        """`take` into arrays that are there, or parts of them."""
        for index, row in enumerate(rows):
            images[index], taken[index] = self._one(int(row))

    def _one(self, row: int) -> tuple[np.ndarray, int]:
        for tried in range(len(self)):
            candidate = (row + tried) % len(self)
            try:
                image = self.read(candidate)
                if image.shape != self.shape[1:] or image.dtype != np.uint8:
                    raise ValueError(f"it is {image.dtype} {list(image.shape)}, and must be uint8 {list(self.shape[1:])}")
                return image, candidate
            except (OSError, ValueError) as error:
                name = str(self.names[candidate])
                if self.corrupt == "fail":
                    cure = "restore or remove it; data.corrupt=skip leaves such images of a training set out"
                    raise Unreadable(f"image {name} cannot be read ({error}): {cure}") from error
                self.skipped[name] = str(error)
        raise Unreadable(f"none of {len(self)} images can be read; the last: {name} ({self.skipped[name]})")

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """All of them, in memory: images [n, H, W, C] and the rows they are."""
        images, taken = self.empty(len(self))
        for cut, part in self._each():
            images[cut], taken[cut] = part
        return images, taken

    def readable(self) -> np.ndarray:
        """Rows of those that can be read; all are tried."""
        taken = np.concatenate([rows for _, (_, rows) in self._each()])
        return np.flatnonzero(taken == np.arange(len(self)))

    def _each(self) -> Iterator[tuple[slice, tuple[np.ndarray, np.ndarray]]]:
        """All of them, a group after another: where it belongs, and what `take` gives."""
        cuts = [slice(first, first + GROUP) for first in range(0, len(self), GROUP)]
        with ThreadPoolExecutor(readers(self.threads)) as threads:
            yield from zip(cuts, threads.map(lambda cut: self.take(np.arange(len(self))[cut]), cuts), strict=True)


def join(parts: list[Images]) -> Images:
    """All images of several, one after another. They share one size; what cannot be read is handled as by the first."""
    first = parts[0]
    if len({part.shape[1:] for part in parts}) > 1:
        raise ValueError(f"images of different sizes cannot be mixed: {', '.join(str(list(part.shape[1:])) for part in parts)}")
    ends = np.cumsum([len(part) for part in parts])

    def read(row: int) -> np.ndarray:
        part = int(np.searchsorted(ends, row, side="right"))
        return parts[part].read(row - int(ends[part] - len(parts[part])))

    names = np.concatenate([part.names for part in parts])
    return dataclasses.replace(first, read=read, names=names, skipped={})


def batches(
    images: Images, rows_of: Callable[[int], np.ndarray], first: int, count: int = 2**32
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(images [n, H, W, C], rows [n]) of `count` steps from `first` on, read ahead; rows_of(step) -> [n], n always the same."""
    import grain

    size = len(rows_of(first))
    groups = -(-size // GROUP)
    lock, begun = threading.Lock(), {}
    free: list[bytearray] = []

    def room() -> tuple[np.ndarray, np.ndarray]:
        """A batch to be filled, in memory of an earlier one that nothing refers to any more: fresh memory is slow to write."""
        memory = free.pop() if free else bytearray(size * int(np.prod(images.shape[1:])))
        batch = np.ndarray((size, *images.shape[1:]), np.uint8, memory)
        weakref.finalize(batch, free.append, memory)
        return batch, np.empty(size, np.int32)

    class Groups:
        """A group is read straight into its place in the batch, so that nothing is copied once more."""

        def __len__(self) -> int:
            return count * groups

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            step, part = divmod(index, groups)
            with lock:  # the groups of a batch are read by several threads
                if step not in begun:
                    begun[step] = rows_of(first + step), room()
                rows, (batch, taken) = begun[step]
            cut = slice(part * GROUP, (part + 1) * GROUP)
            images.fill(rows[cut], batch[cut], taken[cut])
            return batch, taken

    options = grain.ReadOptions(num_threads=readers(images.threads), prefetch_buffer_size=AHEAD * groups)
    read = iter(grain.MapDataset.source(Groups()).to_iter_dataset(options))
    for step in range(count):
        for _ in range(groups):
            batch, taken = next(read)
        del begun[step]
        yield batch, taken


def ahead(items: Iterator[Any], count: int = AHEAD) -> Iterator[Any]:
    """The same items, `count` of them made in a thread before they are asked for."""
    with ThreadPoolExecutor(1) as thread:
        try:
            waiting = collections.deque(thread.submit(next, items, None) for _ in range(count))
            while (item := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, items, None))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
