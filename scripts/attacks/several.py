"""A run in two processes, one of which is killed, hangs or is asked to stop at a random moment: the other one ends too and says why.

The same command then resumes, in one process or in two, and ends as if nothing had been.
"""

import pathlib
import re
import signal
import sys
import time
from collections.abc import Sequence

import numpy as np

from attacks.processes import JAXBED, Done, Fresh, last_line, rude
from attacks.runs import COMMANDS, World, finished
from jaxbed.system.starter import free_port

BLOWS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
NAMES = ("training, device each", "first stage, device each")  # of COMMANDS
SILENCE_SECONDS = 8  # --patience of the runs
LATE_SECONDS = 30  # after which a process hangs that should have noticed the end of the other one
SOONEST = 0.25  # of the time that a run takes: before, its processes import

_seconds: dict[str, float] = {}  # that a run takes in two processes


def strike(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one blow."""
    name, blow, struck = NAMES[number % len(NAMES)], BLOWS[number // len(NAMES) % len(BLOWS)], int(rng.integers(2))
    if name not in _seconds:
        began = time.monotonic()
        ended = [process.wait() for process in _begin(world, name, world.case())]
        if any(done.code for done in ended):
            raise RuntimeError(f"{name} fails in two processes without being disturbed:\n{ended}")
        _seconds[name] = time.monotonic() - began
    folder = world.case()
    running = _begin(world, name, folder)
    time.sleep(_seconds[name] * rng.uniform(SOONEST, 1))
    running[struck].send(blow)
    began = time.monotonic()
    other = running[1 - struck].wait()
    late = time.monotonic() - began > SILENCE_SECONDS + LATE_SECONDS
    if blow == signal.SIGSTOP:
        running[struck].send(signal.SIGKILL)
    this = running[struck].wait()
    attack = f"{blow.name} to process {struck} in {name.partition(',')[0]}"
    fault = "the other process did not end" if late or other.late else _unclean(blow, struck, this, other)
    if not fault and rng.random() < 0.5:
        ended = [process.wait() for process in _begin(world, name, folder)]
        fault = next((f"two processes then end with code {done.code}: {last_line(done.err)}" for done in ended if done.code), "")
    return attack, fault or finished(world, name, folder)


def launched(name: str, arguments: Sequence[str] = ()) -> list[object]:
    """Module and arguments of a command of COMMANDS, or of its other arguments; of those of NAMES in two processes."""
    module, arguments = COMMANDS[name].module, arguments or COMMANDS[name].arguments
    if name not in NAMES:
        return [module, *arguments]
    return [JAXBED, "launch", "--processes", 2, "--", sys.executable, "-m", module, *arguments]


def said_once(done: Done) -> Done:
    """What two processes both say is said once, also where each names itself: a full disk is full for both."""
    said = {re.sub(r"process \d of \d", "", line): line for line in reversed(done.err.splitlines())}
    return done._replace(err="\n".join(reversed(said.values())))


def _begin(world: World, name: str, folder: pathlib.Path) -> list[Fresh]:
    port, command = free_port(), COMMANDS[name]
    places = (f"--distributed=127.0.0.1:{port},2,{i}" for i in range(2))
    more = (f"--patience={SILENCE_SECONDS}",)
    return [Fresh(folder, world.folder, command.module, *command.arguments, place, *more) for place in places]


def _unclean(blow: int, struck: int, this: Done, other: Done) -> str:
    """What is wrong with how two processes ended after a blow to one of them; the other one may have been done already."""
    if other.code == 0:
        return ""
    if fault := rude(other):
        return fault
    expected = 128 + blow if blow == signal.SIGTERM else 2
    if other.code != expected or (blow == signal.SIGTERM and this.code not in (expected, -blow)):
        return f"they ended with codes {this.code} and {other.code} instead of {expected}: {last_line(other.err)}"
    if blow != signal.SIGTERM and f"process {struck} of 2" not in last_line(other.err):
        return f"the message does not name process {struck}: {last_line(other.err)}"
    return ""
