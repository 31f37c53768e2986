"""Folders that may no longer be written, from a random moment on: a clear refusal. Later run the same command again to resume."""

import functools
import os
import pathlib
import subprocess
import time

import numpy as np

from attacks import several
from attacks.processes import server, unrefused
from attacks.runs import COMMANDS, World, finished

ATTACKED = ("training", "first stage", "array", "jaxbed eval", "statistics", *several.NAMES)
MOST = 0.9  # of the time that a command takes
PREFIX = ("setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override")  # root may write everywhere


@functools.cache
def why_not() -> str:
    try:
        refused = os.geteuid() == 0 and subprocess.run([*PREFIX, "true"], capture_output=True).returncode
    except OSError as error:
        refused = error
    return f"root may write everywhere, and setpriv does not take that from it: {refused}" if refused else ""


def lock(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of folders that are locked while a command runs; at times before it begins to write."""
    name = ATTACKED[number % len(ATTACKED)]
    seconds, folder = world.seconds(name), world.case(*COMMANDS[name].needs)
    with server(world.folder / "unprivileged", PREFIX if os.geteuid() == 0 else ()) as serving:
        running = serving.begin(folder, *several.launched(name))
        time.sleep(rng.uniform(0, MOST * seconds))
        _allow(folder, 0o555)
        done = running.wait()
        _allow(folder, 0o755)
    fault = unrefused(several.said_once(done)) if done.code else ""
    return f"folders locked in {name}", fault or finished(world, name, folder)


def _allow(folder: pathlib.Path, mode: int) -> None:
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(mode)
