"""Commands as a user types them, each in a process of its own."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN, JAXBED = ("-m", "jaxbed.main"), ("-m", "jaxbed.cli")


def options(folder: pathlib.Path, *arguments: object, **environment: str) -> dict:
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    kept |= {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "xla"), "PYTHONPATH": str(ROOT)}
    kept |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2", "COLUMNS": "200"}
    return {
        "args": [sys.executable, *map(str, arguments)],
        "cwd": folder,
        "env": kept | environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def command(folder: pathlib.Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(**options(folder, *arguments, **environment))


def assert_refused(done: subprocess.CompletedProcess, *words: str, code: int = 2, traceback: bool = False) -> None:
    """Exit code, a reason of one line that has all the words, no traceback unless another package's is beyond us."""
    assert done.returncode == code, done.stdout + done.stderr
    assert traceback or "Traceback" not in done.stderr, done.stderr
    reasons = [line for line in done.stderr.splitlines() if all(word in line for word in words)]
    assert reasons, done.stderr
