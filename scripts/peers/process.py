"""Processes that train for a benchmark, from the outside: PyTorch's, or several of jaxbed. Does not import torch."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Self

from jaxbed.system import starter

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]


class Workers:
    """Processes that train together. Each reads lines `STEPS` and answers `bench {"loss": ..., "peak_memory_bytes": ...}`."""

    what, cure = "a process", "its error is above"

    def __init__(self, commands: list[list[str]], environments: list[dict[str, str]]):
        path = os.pathsep.join(filter(None, (str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH"))))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes: list[Any] = [  # of Popen, with their pipes
            subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, **environment}, **pipes)
            for command, environment in zip(commands, environments, strict=True)
        ]
        self.answers: list[dict] = [{} for _ in commands]

    def loss(self) -> list[float]:
        return [self.answers[0]["loss"]]

    def memory(self) -> int:
        return max(answer["peak_memory_bytes"] for answer in self.answers)

    def run(self, steps: int, *words: str) -> None:
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):  # said below
                process.stdin.write(" ".join([str(steps), *words]) + "\n")
                process.stdin.flush()
        self.answers = [self._answer(process) for process in self.processes]

    def _answer(self, process: Any) -> dict:
        for line in process.stdout:
            if line.startswith("bench "):
                return json.loads(line.removeprefix("bench "))
        raise RuntimeError(f"{self.what} ended with code {process.wait()}: {self.cure}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # the end of its input ends it
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class Peer(Workers):
    """A PyTorch training in a process of its own."""

    what, cure = "PyTorch's process", "its error is above; --peer none leaves it out"

    def __init__(self, python: str, settings: dict):
        self.settings = settings
        super().__init__([[python, "-m", "peers.train", json.dumps(settings)]], [{}])

    def arm(self) -> tuple:
        """As `timing.Arm`."""
        form, workers = self.settings["form"], self.settings["workers"]
        of_loader = workers if form == "stock" else 0
        unit = max(4, of_loader)  # a batch of each worker
        ahead = 2 * of_loader  # a `DataLoader` has two batches of each worker made
        return f"PyTorch {form} {self.settings['method']}", self.run, self.settings["batch"], unit, self.loss, self.memory, ahead


class Other(Workers):
    """A package in another Python: a module of this folder that answers as `Workers` says."""

    def __init__(self, python: str, module: str, settings: dict, images: int, package: str):
        self.cure = f"its error is above; it needs {package}: name a Python that has it with --peer-python"
        self._name, self._images = package, images
        super().__init__([[python, "-m", module, json.dumps(settings)]], [{}])

    def arm(self, *words: str) -> tuple:
        """As `timing.Arm`; words follow the number of steps."""
        return self._name, lambda steps: self.run(steps, *words), self._images, 1, self.loss, self.memory


class Parts(Workers):
    """jaxbed in `count` processes of one device each, which share every batch."""

    def __init__(self, count: int, small: bool):
        port, devices = starter.free_port(), starter.shares(starter.gpus(), count)
        flags = " ".join(word for word in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in word)
        words = [[sys.executable, "-m", "peers.part", str(int(small)), f"--distributed=127.0.0.1:{port},{count},{i}"] for i in range(count)]
        super().__init__(words, [{"XLA_FLAGS": flags, **starter.environment(of_process)} for of_process in devices])


def version(python: str) -> tuple[str, str]:
    """(version of PyTorch, "") or ("", why there is none)."""
    try:
        command = [python, "-c", "import torch; print(torch.__version__)"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "", f"{python} cannot import torch: name a Python that can with --peer-python"
    return found.stdout.strip(), ""
