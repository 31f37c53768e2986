"""What a run reports: JSON lines in WORKDIR/log.jsonl for programs, plain lines or a progress bar for people."""

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import jaxbed
from jaxbed import config, parallel
from jaxbed.data import remarks
from jaxbed.data.source import EvaluationSet, cells, describe
from jaxbed.system import processes
from jaxbed.training import curves, rng
from jaxbed.training.members import GridPoint
from jaxbed.training.program import Program

PACKAGES = ("jaxbed", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Log:
    """Appends to WORKDIR/log.jsonl, one object a line with its `kind` and time; `say` shows a line and keeps it too, `show` shows it.

    Of several processes the first alone does so.
    """

    def __init__(self, workdir: pathlib.Path):
        logging.set_verbosity(logging.FATAL)  # orbax logs a page per checkpoint; it also raises what fails
        self._path = pathlib.Path(workdir) / "log.jsonl"
        self._console = Console(highlight=False, soft_wrap=True, markup=False, quiet=not processes.is_first())
        if not processes.is_first():
            return
        pathlib.Path(workdir).mkdir(parents=True, exist_ok=True)
        if self._path.is_file() and not self._path.read_bytes().endswith(b"\n"):  # a process was killed while it wrote
            with self._path.open("a") as file:
                file.write("\n")

    def write(self, kind: str, **fields: Any) -> None:
        if not processes.is_first():
            return
        self.check()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": now, **fields}) + "\n")

    def check(self) -> None:
        """Raises ValueError where the workdir is gone: what else is written there would be half a run."""
        if processes.is_first() and not self._path.parent.is_dir():
            raise ValueError(f"{self._path.parent} was deleted while this command worked in it: give the command again to start over")

    def show(self, text: str) -> None:
        self._console.print(text)

    def say(self, text: str) -> None:
        self.show(text)
        self.write("message", text=text)

    def header(self, cfg: config.Train, points: list[GridPoint]) -> None:
        """What one must know to repeat the run: command, folder, versions, devices, source, commit, configuration, facts of the data."""
        devices = [f"{d.platform} {d.device_kind}" for d in jax.devices()]
        self.write(
            "header",
            command=sys.argv,
            folder=str(pathlib.Path.cwd()),
            python=platform.python_version(),
            versions={name: version(name) for name in PACKAGES},
            devices=devices,
            source=source_hash(),
            commit=commit(pathlib.Path.cwd()),
            config=config.to_dict(cfg),
            data=[{"name": v.source.name, **v.source.facts} for v in points],
        )
        runs = f"seeds {cfg.first_seed}-{cfg.first_seed + cfg.seeds - 1}" + (f" of {len(points)} grid points" if len(points) > 1 else "")
        several_processes = f" of {processes.count()} processes" if processes.count() > 1 else ""
        self.say(f"{cfg.name} on {points[0].source.name}, {runs}, {len(devices)} x {devices[0]}{several_processes}")
        if cfg.published:
            self.say(f"settings of {cfg.published}")
        if changed := sorted({line for point in points for line in config.overridden(point.cfg)}):
            self.say(f"overridden: {', '.join(changed)}")

    def data(self, points: list[GridPoint]) -> None:
        """Images per (label, bias) cell: the training sets' shown, all sets' kept."""
        logged = set()
        for point, source in ((v.name, v.source) for v in points):
            if id(source) in logged:
                continue
            logged.add(id(source))
            self.say(describe(f"{point} train".strip(), source.train))
            for remark in remarks.of_set(source.train, "train", source):
                self.say(f"train: {remark}")
            if lost := source.facts.get("unreadable"):
                others = f" and {len(lost) - 3} others, which log.jsonl names" if len(lost) > 3 else ""
                self.say(f"images that cannot be read and are left out: {', '.join(lost[:3])}{others}")
            for note in source.notes:
                self.say(note)
            for name, (split, role, *_) in source.sets.items():
                counts = [[*cell, n] for cell, n in cells(split).items()]
                self.write("set", variant=point, name=name, role=role, images=len(split.label), cells=counts)
                for remark in remarks.of_set(split, role, source):
                    self.say(f"{name}: {remark}")

    def sets(self, chosen: Mapping[str, EvaluationSet]) -> None:
        """Those that will be evaluated."""
        listed = (f"{name} ({role}, {len(split.label)})" for name, (split, role, *_) in chosen.items())
        self.say(f"evaluation sets: {', '.join(listed)}")

    def resumed(self, step: int, steps: int) -> None:
        self.say(f"resuming after step {step}: {step // steps} epochs are done, {step % steps} of {steps} steps of the next")

    def parameters(self, params: Any) -> None:
        """The table of one seed's parameters."""
        from clu import parameter_overview  # imports pandas' weight in seconds: only where a run starts

        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), params)
        self.write("parameters", table=parameter_overview.get_parameter_overview(one, include_stats=False))
        self.say(f"{sum(x.size for x in jax.tree.leaves(one)):,} parameters per seed (table in {self._path})")

    @contextlib.contextmanager
    def training(self, cfg: config.Train, points: list[GridPoint], program: Program, step: int) -> Iterator["Record"]:
        total = cfg.epochs * program.info.steps_per_epoch
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        with contextlib.ExitStack() as stack:
            if self._console.is_terminal:
                stack.enter_context(bar)
            task = bar.add_task(f"{cfg.name} steps", total=total, completed=step)
            record = Record(self, cfg, points, program, step, lambda step: bar.update(task, completed=step))
            names = [record.member(i) for i in range(program.seeds.size)]
            if processes.is_first():
                record.sinks = curves.open_all(cfg.curves, self._path.parent, config.to_dict(cfg), names)
            for sink in record.sinks:
                stack.callback(sink.close)
            yield record


class Record:
    """Times and metrics of the epochs of one training."""

    def __init__(self, log: Log, cfg: config.Train, points: list[GridPoint], program: Program, step: int, progress: Callable[[int], None]):
        self.progress, self.sinks = progress, list[curves.Sink]()
        self._log, self._cfg, self._points, self._program = log, cfg, points, program
        self._compiling = True
        self._unreadable: set[str] = set()
        self._begin(step, time.monotonic())

    def _begin(self, step: int, now: float) -> None:
        self._step, self._started, self._waited = step, now, 0.0

    def waiting(self, function: Callable, *args: Any) -> Any:
        """function(*args), its time counted as lost waiting for data."""
        before = time.monotonic()
        result = function(*args)
        self._waited += time.monotonic() - before
        return result

    def epoch(
        self,
        step: int,
        alive: jax.Array,
        sums: dict[str, jax.Array],
        seed_steps: jax.Array,
        accuracies: Callable[[], dict[str, np.ndarray]],
    ) -> np.ndarray:
        """Writes the epoch that ended at `step`; returns `alive` [S] bool.

        seed_steps [S]: where a dead seed stopped. accuracies() gives {name: [S]} of the validation images, which may take a moment.
        """
        steps, numbers = self._program.info.steps_per_epoch, self._program.seeds.numbers
        totals, lives, died = parallel.gather((sums, alive, seed_steps))
        seconds, ended = time.monotonic() - self._started, time.monotonic()
        images = (step - self._step) * self._cfg.batch_size * len(numbers)
        of_members: dict[str, np.ndarray] = {**accuracies(), **{name: total / steps for name, total in totals.items()}}
        metrics = {name: [float(v) if ok else None for v, ok in zip(value, lives, strict=True)] for name, value in of_members.items()}
        self._log.write(
            "epoch",
            epoch=step // steps,
            seeds=numbers.tolist(),
            alive=lives.tolist(),
            metrics=metrics,
            seconds=seconds,
            compiles=self._compiling,  # the first epoch of a process
            images_per_second=images / seconds,
            waited_for_data_seconds=self._waited,
            peak_memory_bytes=peak_memory_bytes(),
        )
        shown = "  ".join(f"{name} {curves.mean(values):.3f}" for name, values in metrics.items())
        left = (self._cfg.epochs - step // steps) * seconds * steps / (step - self._step)
        remaining = f"  {datetime.timedelta(seconds=round(left))} left" if left else ""
        self._log._console.print(f"epoch {step // steps:3d}/{self._cfg.epochs}  {shown}  {images / seconds:,.0f} img/s{remaining}")
        for sink in self.sinks:
            sink.write(step // steps, metrics)
        for i in np.flatnonzero(~lives & (died >= step - steps)):  # in this epoch
            self._log.write("diverged", seed=int(numbers[i]), step=int(died[i]))
            self._log.say(f"{self.member(int(i))} became non-finite after step {died[i]}: frozen and marked; the others go on")
        if self._program.images is not None:
            of_processes = processes.gather(dict(self._program.images.skipped), "skipped")
            for name, reason in sorted({name: reason for skipped in of_processes for name, reason in skipped.items()}.items()):
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    self._log.write("unreadable", image=name, reason=reason)
                    self._log.say(f"image {name} cannot be read ({reason}) and is skipped: {len(self._unreadable)} so far")
        self._compiling = False
        self._begin(step, ended)
        return lives

    def member(self, i: int) -> str:
        """What a member of the array is called: seed 3 of lr=0.1; network 3 of LfF: bias models."""
        number, point = self._program.seeds.numbers[i], self._points[i // self._cfg.seeds].name
        first = number >= rng.FIRST_OF_STAGES
        of = ", ".join(filter(None, [self._cfg.name if first else "", point]))
        return (f"network {i % self._cfg.seeds}" if first else f"seed {number}") + (f" of {of}" if of else "")


@functools.cache  # what this process imported does not change
def source_hash() -> str:
    """Digest of the package's Python files: which code ran."""
    root = pathlib.Path(jaxbed.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def commit(folder: pathlib.Path) -> str | None:
    """The commit of the git checkout that holds `folder`, ending in -dirty where files differ from it; None without checkout or git."""
    command = ["git", "--no-optional-locks", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def peak_memory_bytes() -> int:
    """Of the fullest device; of the whole process where the backend does not count (CPU)."""
    counts = [(d.memory_stats() or {}).get("peak_bytes_in_use", 0) for d in jax.local_devices()]
    return max(counts) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@functools.cache
def version(package: str) -> str:
    """Installed version of a package, in words."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
