"""One run, one process: two that trained in one workdir would do everything twice and mix their checkpoints."""

import contextlib
import fcntl
import os
import pathlib
import time
import uuid
from collections.abc import Iterator

from jaxbed.stats.output import destination
from jaxbed.system import processes

PAUSE_SECONDS = 0.2


def check_place(workdir: pathlib.Path) -> None:
    """Raises ValueError, before anything is read, where no workdir can be made or written."""
    processes.first(lambda: destination.check(str(workdir), (), (), "--workdir"))


@contextlib.contextmanager
def held(workdir: pathlib.Path) -> Iterator[None]:
    """Makes the workdir. Raises ValueError where another process is within; how that one ends does not matter.

    Of the processes of one run, the first holds it for all.
    """
    if not processes.is_first():
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    folder = os.open(workdir, os.O_RDONLY)
    try:
        try:
            if not _free(folder, fcntl.LOCK_EX):
                time.sleep(PAUSE_SECONDS)  # `is_free` of another process holds it for a moment
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process works in {workdir}: wait for it, stop it, or take another --workdir") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(folder)


def check_shared(workdir: pathlib.Path) -> None:
    """Raises ValueError where the processes of a run do not see one workdir."""
    if processes.count() == 1:
        return
    name = processes.first(lambda: f".shared-{uuid.uuid4().hex}")  # new, so that no file system remembers that it is absent
    probe = workdir / name
    processes.first(probe.touch)
    blind = [process for process, sees in zip(processes.names(), processes.gather(probe.is_file()), strict=True) if not sees]
    processes.first(probe.unlink)
    if blind:
        raise ValueError(f"{blind[0]} does not see {workdir.absolute()} as {processes.names()[0]} does: take a --workdir that all share")


def is_free(workdir: pathlib.Path) -> bool:
    """Whether no process is within; False where the file system cannot tell."""
    folder = os.open(workdir, os.O_RDONLY)
    try:
        return _free(folder, fcntl.LOCK_SH)
    except OSError:
        return False
    finally:
        os.close(folder)


def _free(folder: int, kind: int) -> bool:
    """Takes a lock of an open folder, if it can be had at once."""
    try:
        fcntl.flock(folder, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
