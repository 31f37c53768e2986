"""PyTorch's side from the outside: the process that trains, and whether there can be one. Does not import torch."""

import contextlib
import json
import os
import pathlib
import subprocess

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]


class Peer:
    """A PyTorch training in a process of its own."""

    def __init__(self, python: str, settings: dict):
        self.settings = settings
        path = os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        command = [python, "-m", "peers.train", json.dumps(settings)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.answer = {}

    def arm(self) -> tuple:
        """As `bench.Arm`."""
        name = f"PyTorch {self.settings['form']} {self.settings['method']}"
        return (name, self.run, self.settings["batch"], 4, lambda: [self.answer["loss"]], lambda: self.answer["peak_memory_bytes"])

    def run(self, steps: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # said below
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("bench "):
                self.answer = json.loads(line.removeprefix("bench "))
                return
        raise RuntimeError(f"PyTorch's process ended with code {self.process.wait()}: its error is above; --peer none leaves it out")

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()  # the end of its input ends it
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def version(python: str) -> tuple[str, str]:
    """(version of PyTorch, "") or ("", why there is none)."""
    try:
        command = [python, "-c", "import torch; print(torch.__version__)"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "", f"{python} cannot import torch: name a Python that can with --peer-python"
    return found.stdout.strip(), ""
