"""Commands as a user types them, each in a process of its own, or in that of the test."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

from jaxbed.system import ending

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN, JAXBED = ("-m", "jaxbed.main"), ("-m", "jaxbed.cli")


def flags() -> str:
    """Those by which the tests themselves are compiled, but for the number of devices."""
    return " ".join(word for word in os.environ["XLA_FLAGS"].split() if "device_count" not in word)


def options(folder: pathlib.Path, *arguments: object, **environment: str) -> dict:
    kept = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    kept |= {
        "XLA_FLAGS": flags(),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "xla"),
        "PYTHONPATH": str(ROOT),
    }
    kept |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "COLUMNS": "200"}
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


def in_process(folder: pathlib.Path, function: Callable[[list[str]], int], *words: object) -> subprocess.CompletedProcess:
    """What a command prints and how it ends, called in this process within `folder`; modules that it imports from there are forgotten."""
    path, modules = sys.path.copy(), set(sys.modules)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = ending.of(lambda: function([str(word) for word in words]))
        except SystemExit as end:
            code = end.code
        finally:
            sys.path[:] = path
            for name in sys.modules.keys() - modules:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                    del sys.modules[name]
    return subprocess.CompletedProcess(list(words), code, out.getvalue(), err.getvalue())


def assert_refused(done: subprocess.CompletedProcess, *words: str, code: int = 2, traceback: bool = False) -> None:
    """Exit code, a reason of one line that has all the words, no traceback unless another package's is beyond us."""
    assert done.returncode == code, done.stdout + done.stderr
    assert traceback or "Traceback" not in done.stderr, done.stderr
    reasons = [line for line in done.stderr.splitlines() if all(word in line for word in words)]
    assert reasons, done.stderr
