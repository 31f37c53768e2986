"""Images that stay on disk until a batch needs them, read and decoded in threads while the device computes.

Which rows make up a batch is a pure function of seed and step (`source.order`), so there is no stream position to save: a run that resumes
at any step reads the same images. The threads are grain's; threads suffice because reading, decoding and copying release the GIL.
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

GROUP = 16  # images per task of a thread: fewer cost time in Python, more wait for the slowest
AHEAD = 2  # batches in memory besides the one in use
Corrupt = Literal["fail", "skip"]


class Unreadable(ValueError):
    """An image that cannot be decoded."""


def readers(threads: int, most: int = 16) -> int:
    """Number of reading threads; 0: one per core, at most `most`."""
    return threads or min(os.cpu_count() or 1, most)


@dataclasses.dataclass
class Images:
    """Behaves like an array of images [n, H, W, C] uint8, but reads them on demand.

    read(row) -> one image [H, W, C] uint8, called from many threads; it raises OSError or ValueError if it cannot read it. names are
    used in messages. corrupt: "fail", or "skip": the next readable row replaces it, the same in every epoch, and `skipped` records the
    reason by name.
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
        """Images [n, H, W, C] of rows [n], and the rows actually read, which differ if one was skipped. Raises Unreadable."""
        images, taken = self.empty(len(rows))
        self.fill(rows, images, taken)
        return images, taken

    def empty(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Empty arrays for `count` images and their rows."""
        return np.empty((count, *self.shape[1:]), np.uint8), np.empty(count, np.int32)

    def fill(self, rows: np.ndarray, images: np.ndarray, taken: np.ndarray) -> None:
        """`take` into existing arrays or slices of them."""
        for index, row in enumerate(rows):
            images[index], taken[index] = self._one(int(row))

    def _one(self, row: int) -> tuple[np.ndarray, int]:
        for tried in range(len(self)):
            candidate = (row + tried) % len(self)
            try:
                image = self.read(candidate)
                if image.shape != self.shape[1:] or image.dtype != np.uint8:
                    raise ValueError(f"it is {image.dtype} {list(image.shape)}, but must be uint8 {list(self.shape[1:])}")
                return image, candidate
            except (OSError, ValueError) as error:
                name = str(self.names[candidate])
                if self.corrupt == "fail":
                    cure = "restore or remove it, or set data.corrupt=skip to leave out such images"
                    raise Unreadable(f"image {name} cannot be read ({error}): {cure}") from error
                self.skipped[name] = str(error)
        raise Unreadable(f"none of {len(self)} images can be read, the last one was {name} ({self.skipped[name]}): restore them")

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Reads all into memory: images [n, H, W, C] and the rows actually read."""
        images, taken = self.empty(len(self))
        for cut, group in self._each():
            images[cut], taken[cut] = group
        return images, taken

    def readable(self) -> np.ndarray:
        """Rows of all images that can be read; reads every image."""
        taken = np.concatenate([rows for _, (_, rows) in self._each()])
        return np.flatnonzero(taken == np.arange(len(self)))

    def _each(self) -> Iterator[tuple[slice, tuple[np.ndarray, np.ndarray]]]:
        """Reads all images group by group: (slice of the rows, result of `take`)."""
        cuts = [slice(first, first + GROUP) for first in range(0, len(self), GROUP)]
        with ThreadPoolExecutor(readers(self.threads)) as threads:
            yield from zip(cuts, threads.map(lambda cut: self.take(np.arange(len(self))[cut]), cuts), strict=True)


def join(sets: list[Images]) -> Images:
    """Concatenates images of one size; unreadable ones are handled as in the first set."""
    first = sets[0]
    if len({one.shape[1:] for one in sets}) > 1:
        raise ValueError(f"images of different sizes cannot be mixed: {', '.join(str(list(one.shape[1:])) for one in sets)}")
    ends = np.cumsum([len(one) for one in sets])

    def read(row: int) -> np.ndarray:
        index = int(np.searchsorted(ends, row, side="right"))
        return sets[index].read(row - int(ends[index] - len(sets[index])))

    names = np.concatenate([one.names for one in sets])
    return dataclasses.replace(first, read=read, names=names, skipped={})


def batches(
    images: Images, rows_of: Callable[[int], np.ndarray], first: int, count: int = 2**32
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(images [n, H, W, C], rows [n]) for `count` steps from `first` on, read ahead; rows_of(step) -> [n] with constant n."""
    import grain

    size = len(rows_of(first))
    groups = -(-size // GROUP)
    lock, begun = threading.Lock(), {}
    free: list[bytearray] = []

    def room() -> tuple[np.ndarray, np.ndarray]:
        """An empty batch, in the memory of an earlier one that is no longer referenced: fresh memory is slow to write."""
        memory = free.pop() if free else bytearray(size * int(np.prod(images.shape[1:])))
        batch = np.ndarray((size, *images.shape[1:]), np.uint8, memory)
        weakref.finalize(batch, free.append, memory)
        return batch, np.empty(size, np.int32)

    class Groups:
        """Each group is read directly into its slice of the batch, which avoids a copy."""

        def __len__(self) -> int:
            return count * groups

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            step, group = divmod(index, groups)
            with lock:  # the groups of a batch are read by several threads
                if step not in begun:
                    begun[step] = rows_of(first + step), room()
                rows, (batch, taken) = begun[step]
            cut = slice(group * GROUP, (group + 1) * GROUP)
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
    """The same items, with up to `count` of them computed ahead in a thread."""
    with ThreadPoolExecutor(1) as thread:
        try:
            waiting = collections.deque(thread.submit(next, items, None) for _ in range(count))
            while (item := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, items, None))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
