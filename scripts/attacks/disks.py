"""Full disks: a file system of a given size, in a mount namespace of its own; with more space run the same command again to resume."""

import contextlib
import functools
import pathlib
import re
import subprocess
from collections.abc import Iterator

import numpy as np

from attacks import several
from attacks.processes import Done, Server, last_line, server, unrefused
from attacks.runs import COMMANDS, World, difference, kept, leftovers

NAMESPACES = (("unshare", "--user", "--map-root-user", "--mount"), ("unshare", "--mount"))
ENOUGH = "64m"
ATTACKED = ("training", "first stage", "array", "training", "statistics", *several.NAMES)
LEAST, MOST = 0.02, 0.9  # of the space that the command needs


@functools.cache
def namespace() -> tuple[str, ...]:
    """Words before a command that let it mount a file system that nobody else sees; empty where this is not allowed."""
    for words in NAMESPACES:
        with contextlib.suppress(OSError):
            if not subprocess.run([*words, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode:
                return words
    return ()


def why_not() -> str:
    return "" if namespace() else "no file system can be mounted here: neither root nor user namespaces"


def fill(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one disk that is too small for what a command writes."""
    name = ATTACKED[number % len(ATTACKED)]
    command, expected = COMMANDS[name], world.undisturbed(name)
    needed = sum(path.stat().st_blocks * 512 for path in (expected.folder / command.writes).rglob("*"))
    size = int(needed * (LEAST + (MOST - LEAST) * rng.random()))
    folder = world.case(*command.needs)
    arguments = [re.sub(f"^(--workdir=)?{command.writes}$", rf"\1disk/{command.writes}", word) for word in command.arguments]
    with _disk(world, folder / "disk", size) as serving:
        done = _call(serving, folder, name, arguments)
        faults = [unrefused(done)] if done.code else []
        serving.run("mount", "-o", f"remount,size={ENOUGH}", folder / "disk")
        done = _call(serving, folder, name, arguments)
        faults += [f"with more space it ends with code {done.code}: {last_line(done.err)}"] if done.code else []
        serving.run("cp", "-r", folder / "disk" / command.writes, folder)
    if not done.code:
        faults += [difference(kept(folder / command.writes), expected.kept), leftovers(folder)]
    return f"disk full in {name}", "; ".join(filter(None, faults))


def _call(serving: Server, folder: pathlib.Path, name: str, arguments: list[str]) -> Done:
    return several.said_once(serving.call(folder, *several.launched(name, arguments)))


@contextlib.contextmanager
def _disk(world: World, folder: pathlib.Path, size: int) -> Iterator[Server]:
    """A server of processes that see a file system of `size` bytes at `folder`."""
    folder.mkdir()
    with server(world.folder / "namespace", namespace()) as serving:
        serving.run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
        yield serving
