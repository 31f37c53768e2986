"""Tiny runs, the commands that make them, and what these must keep however often they are disturbed."""

import hashlib
import pathlib
import re
import shutil
import time
from typing import NamedTuple

import jax
import numpy as np

from attacks.processes import JAXBED, TRAIN, Server, last_line
from jaxbed.training.checkpoint import Store

CONFIG = """from jaxbed import config, parallel
from jaxbed.data import shapes
from jaxbed.methods import erm, jtt
from jaxbed.models import mlp
from jaxbed.optim import Optim

METHODS = {"erm": erm.Config(), "jtt": jtt.Config(upweight=3.0, epochs_before=2)}
SETS = ("val", "in_distribution", "edge", "cue_conflict")  # one of each kind


def get_config(method: str = "erm") -> config.Train:
    data = shapes.Config(train_images=64, val_images=16, test_images=16)
    fixed = {"mesh": parallel.Mesh(1, 1), "eval": config.Eval(48, SETS), "save": config.Save(0)}
    return config.Train(method, METHODS[method], mlp.Config((8,)), data, Optim(rule="adam", lr=1e-2), 3, 16, 2, **fixed)
"""
TEMPORARY = re.compile(r"\.(partial|tmp|lock)$|orbax-checkpoint-tmp")


class Command(NamedTuple):
    """A command line, the folders or files that it writes, and those of other commands that it reads."""

    module: str
    arguments: tuple[str, ...]
    writes: str
    needs: tuple[str, ...] = ()


EACH = ("--config.mesh.seed=0", "--config.mesh.data=0")

COMMANDS = {
    "training": Command(TRAIN, ("--config=tiny.py", "--workdir=erm"), "erm"),
    "first stage": Command(TRAIN, ("--config=tiny.py:jtt", "--workdir=jtt"), "jtt"),
    "array": Command(TRAIN, ("--config=tiny.py", "--workdir=array", '--config.grid=("optim.lr=0.01,0.001",)'), "array"),
    # a device for each seed, in one process or in two
    "training, device each": Command(TRAIN, ("--config=tiny.py", "--workdir=erm", *EACH), "erm"),
    "first stage, device each": Command(TRAIN, ("--config=tiny.py:jtt", "--workdir=jtt", *EACH), "jtt"),
    "jaxbed eval": Command(JAXBED, ("eval", "erm"), "erm/responses", ("training",)),
    "statistics": Command(JAXBED, ("stats", "erm", "jtt", "--permutations", "1000", "--out", "out"), "out", ("training", "first stage")),
    "sweep": Command(
        JAXBED,
        (
            *("sweep", "--config=tiny.py", "--workdir=sweep", "--seeds", "1", "--trials", "1", "--criterion", "best_val"),
            *("--config.epochs=1", "--grid", "optim.lr=1e-2,1e-3", "--grid", "batch_size=16,32"),
        ),
        "sweep",
    ),
}


class World:
    """A folder with the server of processes and, for each command, what it leaves when nothing disturbs it."""

    def __init__(self, folder: pathlib.Path, serving: Server, quick: bool = False):
        self.folder, self.server, self.temporary = folder, serving, folder / "temporary"
        self.quick = quick  # hostile weights meet the function that reads them, and not a whole command
        self._cases, self._undisturbed, self._shown, self._seconds = 0, {}, {}, {}

    def case(self, *needs: str) -> pathlib.Path:
        """A new folder that holds the configuration, and what the commands of `needs` left."""
        self._cases += 1
        folder = self.folder / "cases" / str(self._cases)
        folder.mkdir(parents=True)
        (folder / "tiny.py").write_text(CONFIG)
        for name in needs:
            written = COMMANDS[name].writes
            shutil.copytree(self.undisturbed(name).folder / written, folder / written)
        return folder

    def undisturbed(self, name: str) -> "Undisturbed":
        """What the command of COMMANDS with this name leaves when nothing disturbs it; run once."""
        if name not in self._undisturbed:
            folder = self._run(name)
            self._undisturbed[name] = Undisturbed(folder, kept(folder / COMMANDS[name].writes))
        return self._undisturbed[name]

    def shown(self, *arguments: str) -> str:
        """What `jaxbed` prints for these arguments where nothing is damaged; run once."""
        if arguments not in self._shown:
            self._shown[arguments] = self.server.call(self.case("training", "first stage"), JAXBED, *arguments).out
        return self._shown[arguments]

    def seconds(self, name: str) -> float:
        """How long an undisturbed command takes where nothing is compiled; measured once."""
        if name not in self._seconds:
            self.undisturbed(name)
            began = time.monotonic()
            self._run(name)
            self._seconds[name] = time.monotonic() - began
        return self._seconds[name]

    def _run(self, name: str) -> pathlib.Path:
        command = COMMANDS[name]
        folder = self.case(*command.needs)
        if name == "jaxbed eval":
            shutil.rmtree(folder / command.writes)
        done = self.server.call(folder, command.module, *command.arguments)
        if done.code:
            raise RuntimeError(f"{name} fails without being disturbed:\n{done.out}{done.err}")
        return folder


class Undisturbed(NamedTuple):
    folder: pathlib.Path
    kept: dict[str, str]


def kept(folder: pathlib.Path, but: pathlib.Path | None = None) -> dict[str, str]:
    """{path: digest} of all that a command's results are made of, equal for two runs of the same command.

    Checkpoints count by their arrays, answers by theirs: orbax names its files at random, and logs hold times. Where `but` is given,
    neither that file nor checkpoints count.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or path == but or "checkpoints" in path.relative_to(folder).parts or path.name == "log.jsonl":
            continue
        if path.suffix == ".npz":
            with np.load(path) as stored:
                found |= {f"{name}:{key}": _digest(stored[key]) for key in stored.files if key not in ("checkpoint", "digest")}
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for checkpoints in () if but else sorted(folder.rglob("checkpoints")):
        for part in ("resume", "epochs"):
            store = Store(checkpoints / part, 1, print)
            for number in store.numbers()[-1:] if part == "resume" else store.numbers():
                tree = jax.tree.leaves_with_path(store.load(number, store.abstract(number)))
                name = f"{checkpoints.relative_to(folder)}/{part}/{number}"
                found |= {f"{name}{jax.tree_util.keystr(place)}": _digest(np.asarray(leaf)) for place, leaf in tree}
    return found


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()


def difference(found: dict[str, str], expected: dict[str, str]) -> str:
    """Where what was kept differs from what an undisturbed run keeps; empty if nowhere."""
    odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return f"differs from an undisturbed run in {len(odd)} places, {odd[0]} among them" if odd else ""


def leftovers(folder: pathlib.Path) -> str:
    """Temporary files that a finished command left; empty if there are none."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if TEMPORARY.search(path.name))
    return f"left {', '.join(found)}" if found else ""


def finished(world: World, name: str, folder: pathlib.Path) -> str:
    """Runs a command to its end in a folder where it was disturbed. What is wrong with what it leaves; empty if nothing."""
    command, expected = COMMANDS[name], world.undisturbed(name).kept
    done = world.server.call(folder, command.module, *command.arguments)
    if done.code or done.late or "Traceback" in done.out + done.err:
        return f"the same command then ends with code {done.code}: {last_line(done.err)} {done.late}"
    return "; ".join(filter(None, [difference(kept(folder / command.writes), expected), leftovers(folder)]))
