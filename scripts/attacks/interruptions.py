"""SIGKILL, SIGTERM and Ctrl-C at random moments; then run the same command again to resume, and ends as if nothing had been."""

import itertools
import pathlib
import shutil
import signal
import time
from collections.abc import Callable

import numpy as np

from attacks.processes import STAGE, Done, Fresh, Running, last_line, rude
from attacks.runs import COMMANDS, World, finished

STOPPING = (signal.SIGTERM, signal.SIGINT)
IMPORTING_SECONDS = 0.3, 2.0  # after the interpreter's own start, and until all is imported
PAUSE_SECONDS = 0.001  # between two looks
MOST = 0.9  # of the time that a command takes: a blow should not come after its end
TOO_LATE_SECONDS = 3.0  # from a signal to an end that it did not cause
FEW = 3  # lines that a stopped command may show
LOOKS_AT_THE_END = 2.0  # seconds that a killed sweep's runs get to end


def _writes_a_checkpoint(folder: pathlib.Path) -> bool:
    return any(not path.with_suffix(".json").is_file() for path in folder.glob("*/checkpoints/*/*") if path.is_dir())


def _evaluates(folder: pathlib.Path) -> bool:
    return any(folder.glob("*/responses/sets.json"))


# attack: (command, what must be seen before the blow falls, seconds after that; None: as long as the command takes)
KILLS: dict[str, tuple[str, Callable[[pathlib.Path], bool] | None, float | None]] = {
    "training": ("training", None, None),
    "a checkpoint": ("training", _writes_a_checkpoint, 0.05),
    "evaluation": ("training", _evaluates, 0.3),
    "the first stage": ("first stage", None, None),
    "an array's sweep": ("array", None, None),
    "jaxbed eval": ("jaxbed eval", None, None),
    "jaxbed stats --out": ("statistics", None, None),
    "jaxbed sweep": ("sweep", None, None),
    "jaxbed sweep alone": ("sweep", None, None),  # its runs are not killed with it
}
STARTING = "the start of "  # a new process that still imports; of the server's, that is over
SIGNALS = tuple(
    itertools.product((*COMMANDS, *(f"{STARTING}{name}" for name in ("training", "jaxbed eval", "statistics"))), STOPPING, (1, 2))
)


def kill(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one SIGKILL, sometimes of two."""
    place = list(KILLS)[number % len(KILLS)]
    name, seen, span = KILLS[place]
    folder = world.case(*COMMANDS[name].needs)
    if name == "jaxbed eval":
        shutil.rmtree(folder / COMMANDS[name].writes)
    fault = ""
    for _ in range(1 if place.endswith("alone") else rng.integers(1, 3)):
        running = _struck(world, name, folder, seen, rng.uniform(0, span or MOST * world.seconds(name)))
        running.send(signal.SIGKILL, group=not place.endswith("alone"))
        running.wait()
        fault = fault or _survivors(running)
    return f"SIGKILL in {place}", fault or finished(world, name, folder)


def _struck(world: World, name: str, folder: pathlib.Path, seen: Callable | None, seconds: float) -> Running:
    """A command of which enough has been seen, and then so many seconds have passed."""
    running = world.server.begin(folder, COMMANDS[name].module, *COMMANDS[name].arguments)
    while seen and running.goes_on() and not seen(folder):
        time.sleep(PAUSE_SECONDS)
    time.sleep(seconds)
    return running


def _survivors(running: Running) -> str:
    """Whether processes that a killed one had begun go on without it; they are ended."""
    until = time.monotonic() + LOOKS_AT_THE_END
    while running.has_group() and time.monotonic() < until:
        time.sleep(0.02)
    if not running.has_group():
        return ""
    running.send(signal.SIGKILL, group=True)
    return "a process that it had begun goes on without it"


def interrupt(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one signal, or of two in quick succession; also before there is anything to save."""
    place, kind, times = SIGNALS[number % len(SIGNALS)]
    name = place.removeprefix(STARTING)
    command, seconds = COMMANDS[name], MOST * world.seconds(name)
    folder = world.case(*command.needs)
    if name == "jaxbed eval":
        shutil.rmtree(folder / command.writes)
    attack = f"{kind.name}{' twice' * (times - 1)} in {place}"
    if place == name:
        cold = rng.random() < 0.3  # half of the time goes into compiling
        more = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")} if cold else {}
        running = world.server.begin(folder, command.module, *command.arguments, **more)
        time.sleep(rng.uniform(0, seconds))
    else:
        running = Fresh(folder, world.folder, command.module, *command.arguments)
        time.sleep(rng.uniform(*IMPORTING_SECONDS))
    for _ in range(times):
        running.send(kind)
        time.sleep(rng.uniform(0.01, 0.3))
    struck = time.monotonic()
    done = running.wait()
    fault = _unclean(done, kind, time.monotonic() - struck) or _survivors(running)
    left = sorted(path.name for path in world.temporary.iterdir())
    for path in world.temporary.iterdir():
        shutil.rmtree(path)
    return attack, fault or (f"left {', '.join(left)} among temporary files" if left else finished(world, name, folder))


def _unclean(done: Done, kind: signal.Signals, seconds: float) -> str:
    """What is wrong with how a command ended, so many seconds after a signal.

    A shell sees 128 + signal also where the signal itself ended the process.
    """
    if done.code == 0:  # the signal came too late, unless there was time enough
        return f"went on for {seconds:.0f} s to code 0" if seconds > TOO_LATE_SECONDS else ""
    if done.code not in (128 + kind, -kind):
        return f"ended with code {done.code} instead of {128 + kind}: {last_line(done.err)} {done.late}"
    lines = len(STAGE.sub("", done.err).splitlines())
    return rude(done) or (f"{lines} lines on stderr" if lines > FEW else "")
