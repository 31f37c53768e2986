"""Checkpoints: the only file that imports orbax.

Each is a folder `<number>` that orbax writes in the background, beside `<number>.json`, written last, with the size and digest of
every file in it. A folder without its list is half-written; one that differs from its list is damaged; neither is ever loaded.
Leaves are stacked over seeds and stored as one chunk per seed, uncompressed, so that one seed of ten reads in a tenth of the time.
"""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from jaxbed.system import files, processes

PyTree = Any
SMALL_BYTES = 2**20
FULL, LOCKED = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES, errno.EPERM)
_shown = threading.excepthook


def _show(arguments: threading.ExceptHookArgs) -> None:
    """What ends a thread is shown, but for orbax's: what they meet is raised where the checkpoint is awaited."""
    if type(arguments.thread).__name__ != "_SignalingThread":
        _shown(arguments)


threading.excepthook = _show


class Store:
    """Numbered checkpoints in one folder, of which the latest `keep` are kept (0: all). `say` gets messages for the user."""

    def __init__(self, folder: pathlib.Path, seeds: int, say: Callable[[str], None], keep: int = 0):
        self.folder, self.keep, self._say = pathlib.Path(folder).absolute(), keep, say
        self._seeds = seeds
        self._worker = ThreadPoolExecutor(1)
        self._pending: dict[int, Future] = {}  # in the order of saving

    def save(self, number: int, tree: PyTree) -> None:
        """Starts writing `tree`; returns once it is safe to overwrite its arrays.

        At most two are on their way: the files of one are listed while the next is written. Raises what went wrong with earlier ones.
        """
        self._settle(0 if number in self._pending else 1)
        processes.first(lambda: self._discard(number), f"discard {self.folder}")
        with self._writing(number), self._context():
            response = ocp.save_async(self.folder / str(number), tree, overwrite=True)
        self._pending[number] = self._worker.submit(self._finish, number, response)

    def _discard(self, number: int) -> None:
        """From here on the old checkpoint of that number, if any, does not count."""
        self._list(number).unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _finish(self, number: int, response: Any) -> None:
        with self._writing(number):
            response.result()
        processes.first(lambda: self._finish_first(number), f"finish {self.folder}")

    def _finish_first(self, number: int) -> None:
        files.write(self._list(number), json.dumps(_digests(self.folder / str(number))))
        if self.keep:
            # what lies ahead belongs to a past that was abandoned as damaged: it must not push out what is sound
            ahead = [n for n in self._numbers() if n > number]
            behind = [n for n in self._numbers() if n < number]
            for old in ahead + behind[: max(len(behind) - self.keep + 1, 0)]:
                self._list(old).unlink()
                shutil.rmtree(self.folder / str(old), ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self, number: int) -> Iterator[None]:
        """Within it, whatever keeps orbax from writing becomes a ValueError with the reason in few words."""
        try:
            yield
        except Exception as error:  # of many kinds, from several packages
            known = next((code for code in (*FULL, *LOCKED) if os.strerror(code) in str(error)), 0)
            reason = os.strerror(known).lower() if known else str(error).splitlines()[0]
            cure = "free space there" if known in FULL else "see that the folder can be written"
            raise ValueError(
                f"checkpoint {self.folder / str(number)} cannot be written: {reason}. Please {cure}; run the same command again to resume"
            ) from error

    def wait(self) -> None:
        """Returns when everything saved is on disk; raises what went wrong while writing."""
        self._settle(0)

    def _settle(self, left: int) -> None:
        for number, pending in list(self._pending.items()):
            if len(self._pending) > left or pending.done():
                del self._pending[number]
                pending.result()

    def numbers(self) -> list[int]:
        """Finished checkpoints in rising order."""
        return processes.first(self._numbers, f"numbers {self.folder}")

    def _numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal() and path.is_file())

    def fault(self, number: int) -> str:
        """What is wrong with a checkpoint; empty if nothing."""
        return processes.first(lambda: self._fault(number), f"fault {self.folder} {number}")

    def _fault(self, number: int) -> str:
        if not self._list(number).is_file():
            return "it was never finished"
        try:
            expected = files.read_object(self._list(number))
        except ValueError:
            expected = {}
        if not expected:
            return f"its list {self._list(number)} cannot be read"
        digests = _digests(self.folder / str(number))
        wrong = sorted(name for name in expected if expected[name] != digests.get(name))  # what else lies there is not read
        return f"{len(wrong)} of its files are missing or changed, {wrong[0]} among them" if wrong else ""

    def identity(self, number: int) -> str:
        """A digest of the whole content: equal where two checkpoints are."""
        path = self._list(number)
        return processes.first(lambda: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(), f"identity {self.folder} {number}")

    def load(self, number: int, abstract: PyTree) -> PyTree:
        """The tree saved under `number`, in the shapes and placement of `abstract`; ValueError where it is not intact."""
        fault = self.fault(number)
        if fault:
            raise ValueError(f"checkpoint {self.folder / str(number)} cannot be used: {fault}")
        return self._load(number, abstract)

    def _load(self, number: int, abstract: PyTree) -> PyTree:
        with self._context():
            return ocp.load(self.folder / str(number), abstract)

    def difference(self, number: int, abstract: PyTree) -> str:
        """Where the arrays saved under `number` are not those of `abstract`; empty if they fit."""
        saved, wanted = (
            {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in jax.tree.leaves_with_path(tree)}
            for tree in (self._metadata(number), abstract)
        )
        for name in sorted(saved | wanted):
            if saved.get(name) != wanted.get(name):
                saved_shape, wanted_shape = (str(list(shapes[name])) if name in shapes else "absent" for shapes in (saved, wanted))
                return f"{name} is {saved_shape} there and {wanted_shape} here"
        return ""

    def abstract(self, number: int) -> PyTree:
        """Shapes and types of what is saved under `number`, to be loaded to one device of this process."""
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), self._metadata(number))

    def members(self, number: int) -> int:
        """How many members are saved under `number`."""
        return self._metadata(number)["alive"].shape[0]

    def networks(self, number: int) -> set[str]:
        """Names of the networks whose parameters are saved under `number`."""
        return set(self._metadata(number)["params"])

    def _metadata(self, number: int) -> PyTree:
        with self._context():
            return ocp.metadata(self.folder / str(number)).metadata

    def latest(self, abstract: PyTree) -> tuple[int, PyTree] | None:
        """The newest intact checkpoint and its number, or None. Says which newer ones it had to pass over, and why."""
        started = processes.first(self._started, f"started {self.folder}")
        for number in started:
            fault = self.fault(number)
            if not fault:
                return number, self._load(number, abstract)
            self._say(f"checkpoint {self.folder / str(number)} is passed over: {fault}")
        if started:
            self._say(f"no checkpoint in {self.folder} is intact: starting from the beginning")
        return None

    def _started(self) -> list[int]:
        """Numbers of all checkpoints, finished or not, in falling order."""
        folders = {int(path.name) for path in self.folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit()}
        return sorted(folders.union(self._numbers()), reverse=True)

    def _context(self) -> ocp.Context:
        """A new one each time: two threads must not share it."""
        context = ocp.Context()
        context.array.saving.use_compression = False
        context.array.saving.scoped_storage_options_creator = lambda _path, value: _chunks(value.nbytes // self._seeds)
        return context

    def _list(self, number: int) -> pathlib.Path:
        return self.folder / f"{number}.json"


def _chunks(seed_bytes: int) -> ocp.options.ArrayOptions.Saving.StorageOptions:
    """One chunk per seed; small arrays in one piece, for which orbax would warn and nothing is gained."""
    small = seed_bytes < SMALL_BYTES
    return ocp.options.ArrayOptions.Saving.StorageOptions(chunk_byte_size=None if small else seed_bytes, shard_axes=() if small else (0,))


def _digests(folder: pathlib.Path) -> dict[str, list]:
    """{relative path: [bytes, digest]} of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): [path.stat().st_size, _digest(path)] for path in files}


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
