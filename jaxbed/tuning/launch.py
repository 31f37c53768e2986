"""Where separate runs are executed: here, one after another, or by a scheduler through the package submitit."""

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxbed.system import ending

Runs = dict[pathlib.Path, list[str]]  # workdir -> arguments of `jaxbed train`, the workdir's own among them
Launch = Callable[[Runs], None]  # comes back when all are done; ends the program where one failed, see `check`

LAUNCHERS = ("local", "submitit")
PAUSE_SECONDS = 0.05
PARENT = "JAXBED_PARENT"  # number of the process that launched this one
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def follow() -> None:
    """Where `side_by_side` started this process: it is asked to stop when that one ends, however that happens (on Linux)."""
    parent = os.environ.pop(PARENT, "")
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if parent != str(os.getppid()):  # it ended before this was asked for
            os.kill(os.getpid(), signal.SIGTERM)


def choose(launcher: str, parameters: list[str], folder: pathlib.Path, processes: int = 1) -> Launch:
    """The function that executes runs, each in so many processes. `parameters` are NAME=VALUE for submitit, whose files go to `folder`."""
    if processes < 1:
        raise ValueError(f"--processes {processes}: must be at least 1")
    if launcher == "submitit":
        if processes > 1:
            raise ValueError(f"--processes {processes} are of this machine: for a scheduler, add --slurm nodes=N --slurm tasks_per_node=M")
        return functools.partial(submit, _executor(dict(map(_parameter, parameters)), folder))
    if parameters:
        raise ValueError(f"--slurm {parameters[0]} is for a scheduler: add --launcher submitit")
    return one_by_one if processes == 1 else functools.partial(one_by_one, execute=functools.partial(run_spread, processes))


def one_by_one(runs: Runs, execute: Callable[[list[str]], int] | None = None) -> None:
    for folder, arguments in runs.items():
        check(folder, (execute or run)(arguments))


def submit(executor: Any, runs: Runs) -> None:
    """All at once, as one array of jobs, and waits for them. Whatever ends the waiting cancels them."""
    with executor.batch():
        jobs = [executor.submit(run, arguments) for arguments in runs.values()]
    try:
        for folder, job in zip(runs, jobs, strict=True):
            if error := job.exception():
                ending.tell(f"jaxbed: {folder}", error)
            check(folder, 1 if error else job.results()[0])  # one of each process, which all end alike
    finally:
        for job in jobs:
            if not job.done():
                job.cancel(check=False)


def run(arguments: list[str]) -> int:
    """The exit code of one run, in a process of its own. Whatever ends this call early lets the run save its state first."""
    return next(side_by_side({"": ["-m", "jaxbed.main", *arguments]}, 1))[1]


def run_spread(processes: int, arguments: list[str]) -> int:
    """The same, in several processes."""
    command = ("-m", "jaxbed.cli", "launch", "--processes", str(processes), "--", sys.executable, "-m", "jaxbed.main")
    return next(side_by_side({"": [*command, *arguments]}, 1))[1]


def side_by_side(
    commands: dict[str, list[str]],
    jobs: int,
    cwd: pathlib.Path | None = None,
    program: Sequence[str] | None = None,
    environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    logs: pathlib.Path | None = None,
) -> Iterator[tuple[str, int, float]]:
    """(name, exit code, seconds) of processes {name: arguments} of a program, by default Python, as each ends; `jobs` of them at a time.

    environments {name: variables} are added to this process's own. What each process prints is added to NAME.log in the folder `logs`, if
    there is one.

    Whatever ends this early asks those that run to stop and waits until they have saved their state; subprocess.run would kill them.
    """
    waiting, environment = list(commands), os.environ | {PARENT: str(os.getpid())}
    running: dict[str, tuple[subprocess.Popen, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                variables = {**environment, **environments.get(name, {})}
                words = [*(program if program is not None else [sys.executable]), *commands[name]]
                with (logs / f"{name}.log").open("ab") if logs else contextlib.nullcontext() as log:
                    process = subprocess.Popen(words, cwd=cwd, env=variables, stdout=log, stderr=log)
                running[name] = process, time.monotonic()
            ended = [name for name, (process, _) in running.items() if process.poll() is not None]
            for name in ended:
                process, begun = running.pop(name)
                yield name, process.returncode, time.monotonic() - begun
            if not ended:
                time.sleep(PAUSE_SECONDS)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait()


def _requeue(arguments: list[str]) -> Any:
    import submitit

    return submitit.helpers.DelayedSubmission(run, arguments)


run.checkpoint = _requeue  # type: ignore[attr-defined]  # where submitit looks when a job's time is over, or another takes its place


def check(folder: pathlib.Path, code: int) -> None:
    """Ends the program where a run failed, but for one all of whose seeds became non-finite: that is a result."""
    if code and not died(folder):
        ending.tell("jaxbed", f"the run in {folder} ended with code {code}; run the same command again to resume")
        sys.exit(code if code > 0 else 128 - code)


def died(folder: pathlib.Path) -> bool:
    """Whether all seeds of a run became non-finite, by its log."""
    members = alive(folder)
    return bool(members) and not any(members)


def alive(folder: pathlib.Path) -> list[bool]:
    """Of each member of a run, whether it was finite at the end of the last epoch, by its log; [] where that tells of none."""
    return (logged(folder, "epoch", "alive") or [[]])[-1]


def logged(folder: pathlib.Path, kind: str, field: str) -> list[Any]:
    """What a field holds in each line of a kind of a run's log, in their order; [] without a log."""
    path, found = folder / "log.jsonl", []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):  # a process was killed while it wrote
            if (record := json.loads(line))["kind"] == kind:
                found.append(record[field])
    return found


def _executor(parameters: dict[str, Any], folder: pathlib.Path) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ValueError("--launcher submitit needs the package submitit: pip install 'jaxbed[slurm]'") from error
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=parameters.pop("cluster", None))
        executor.update_parameters(**parameters)
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:  # how submitit refuses a parameter
        raise ValueError(f"--slurm: {error}") from error
    print(f"submitit runs on cluster {executor.cluster!r}; its files are in {folder}", flush=True)  # local where it finds no Slurm
    return executor


def _parameter(text: str) -> tuple[str, Any]:
    """'timeout_min=60' -> ('timeout_min', 60)."""
    from jaxbed.tuning.grid import value  # imports JAX, which `jaxbed launch` does without

    name, equals, word = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--slurm {text}: write NAME=VALUE, e.g. --slurm timeout_min=60 --slurm slurm_partition=gpu")
    return name, value(word)
