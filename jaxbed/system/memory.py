"""How much memory there is, so that what cannot fit is refused before it is allocated."""

import os
import pathlib

CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # limits of a container, of both versions


def check(needed: int, available: int, what: str) -> None:
    """Raises ValueError where `what`, a name for the message, needs more bytes than are available."""
    if needed > available:
        raise ValueError(
            f"{what}: {needed / 2**30:,.1f} GiB, and there are {available / 2**30:,.1f} GiB of memory. Take fewer or smaller ones"
        )


def total() -> int:
    """Bytes of this machine's memory, or of what a container may use of it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in map(pathlib.Path, CGROUPS):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # another system, or no limit
            pass
    return min(limits)
