"""One run, one process: two that trained in one workdir would do everything twice and mix their checkpoints."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def held(workdir: pathlib.Path) -> Iterator[None]:
    """Raises ValueError where another process is within; how that one ends does not matter."""
    folder = os.open(workdir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process trains in {workdir}: wait for it, stop it, or take another --workdir") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(folder)
