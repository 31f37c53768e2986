"""Command lines in processes of their own, what they showed, and whether that is how a command may end."""

import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN, JAXBED = "jaxbed.main", "jaxbed.cli"
PATIENCE_SECONDS = 240  # a command that has not ended by then hangs
LATE = f"it had not ended after {PATIENCE_SECONDS} s"
GIB = 2**30
FOREIGN = (  # words of Python and of libraries that tell a user nothing
    *("Traceback", "Could not parse", "SyntaxError", "helpshort", "values allowed are", "invalid literal", "Expecting value"),
    *("allow_pickle", "unexpected keyword", "Fatal Python error"),
)
WARNING = re.compile(r"\b[A-Z]\w+Warning: .*")
OF_A_RUN = re.compile(r"^jaxbed: the run in .* ended with code .*\n", re.MULTILINE)  # a sweep's, after its run's own message
STAGE = re.compile(r"^jaxbed stats: .* \.\.\.\n", re.MULTILINE)  # what `jaxbed stats` is doing, on stderr
USAGE = re.compile(r"\Ausage: .*\n(?:(?:[ \t]+.*)?\n)*")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class Done(NamedTuple):
    """A process that ended."""

    code: int  # negative: the signal that killed it
    out: str
    err: str
    spent_bytes: int  # of memory, beyond what it began with
    late: str = ""  # that it hung and had to be ended


class Running:
    """A process of a server."""

    def __init__(self, server: "Server", process: int, out: pathlib.Path, err: pathlib.Path):
        self.process, self._server, self._out, self._err = process, server, out, err
        self._ended: dict = {}

    def goes_on(self) -> bool:
        if not self._ended and select.select([self._server.answers], [], [], 0)[0]:
            self._ended = self._server.read()
        return not self._ended

    def send(self, number: int, group: bool = False) -> None:
        send(self.process, number, group)

    def has_group(self) -> bool:
        return has_group(self.process)

    def wait(self) -> Done:
        """What came of it; a process that hangs is ended."""
        until, late = time.monotonic() + PATIENCE_SECONDS, ""
        while self.goes_on():
            if not late and time.monotonic() > until:
                late = LATE
                self.send(signal.SIGKILL, group=True)
            select.select([self._server.answers], [], [], 0.2)
        shown = (path.read_text(errors="replace") for path in (self._out, self._err))
        return Done(self._ended["code"], *shown, self._ended["spent_bytes"], late)


class Server:
    """Begins processes, one at a time; see `attacks.server`. `prefix`: words before its own command, such as unshare's."""

    def __init__(self, folder: pathlib.Path, prefix: tuple[str, ...] = ()):
        self._folder, self._number = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        command = [*prefix, sys.executable, str(ROOT / "scripts" / "attacks" / "server.py")]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(folder), cwd=folder, bufsize=0
        )
        self.answers = self._server.stdout
        self.run("true")  # imports are over

    def read(self) -> dict:
        line = self.answers.readline()
        if not line:
            raise RuntimeError(f"the server of processes ended with code {self._server.wait()}")
        return json.loads(line)

    def _ask(self, **content) -> dict:
        self._server.stdin.write((json.dumps(content) + "\n").encode())
        return self.read()

    def run(self, *words: object) -> int:
        return self._ask(run=list(map(str, words)))["code"]

    def begin(
        self, folder: pathlib.Path, module: str, *arguments: object, spare_bytes: int = 0, without_training: bool = False, **more: str
    ) -> Running:
        """A process that runs in `folder`.

        spare_bytes: address space beyond what it begins with (0: without limit); without_training: a command that is accepted ends
        before it trains, evaluates or starts runs; more: variables of its environment.
        """
        self._number += 1
        out, err = (self._folder / f"{self._number}.{kind}" for kind in ("out", "err"))
        asked = {"module": module, "arguments": list(map(str, arguments)), "folder": str(folder), "out": str(out), "err": str(err)}
        asked |= {"environment": more, "spare_bytes": spare_bytes, "without_training": without_training}
        return Running(self, self._ask(**asked)["process"], out, err)

    def call(self, folder: pathlib.Path, module: str, *arguments: object, **more) -> Done:
        return self.begin(folder, module, *arguments, **more).wait()

    def close(self) -> None:
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait()


@contextlib.contextmanager
def server(folder: pathlib.Path, prefix: tuple[str, ...] = ()) -> Iterator[Server]:
    """A server of processes that hear Ctrl-C: a shell's background processes ignore it, and so would all that they begin."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    serving = Server(folder, prefix)
    try:
        yield serving
    finally:
        serving.close()
        signal.signal(signal.SIGINT, former)


def environment(folder: pathlib.Path) -> dict[str, str]:
    """Of all processes: the CPU, one cache of compiled programs, an own folder for temporary files."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "PYTHONSAFEPATH")}
    flags = (word for word in os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0").split() if "device_count" not in word)
    kept |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    kept |= {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "TMPDIR": str(folder / "temporary"), "COLUMNS": "200"}
    kept |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # threads do not survive a fork
    kept |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    (folder / "temporary").mkdir(exist_ok=True)
    return kept


class Fresh:
    """A process with nothing imported before, of the installed command `jaxbed` or of another module."""

    def __init__(self, folder: pathlib.Path, home: pathlib.Path, module: str, *words: str):
        script = home / "jaxbed"
        script.write_text("import sys\nfrom jaxbed.cli import command\nsys.exit(command())\n")
        command = [sys.executable, *([str(script)] if module == JAXBED else ["-m", module]), *words]
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.process = self._process.pid

    def send(self, number: int, group: bool = False) -> None:
        send(self.process, number, group)

    def has_group(self) -> bool:
        return has_group(self.process)

    def wait(self) -> Done:
        late = ""
        try:
            out, err = self._process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            late = LATE
            self.send(signal.SIGKILL, group=True)
            out, err = self._process.communicate()
        return Done(self._process.returncode, out, err, 0, late)


def send(process: int, number: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended in this moment
        (os.killpg if group else os.kill)(process, number)


def has_group(process: int) -> bool:
    """Whether a process, or one that it began, lives; one that nobody has waited for does not."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended in this moment
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == process and state != "Z":
                return True
    return False


def rude(done: Done) -> str:
    """What a command showed that it must not; empty if nothing."""
    shown = done.out + done.err
    if done.late:
        return done.late
    if words := [word for word in FOREIGN if word in shown]:
        return f"shows {words[0]!r}: {last_line(done.err)}"
    if found := WARNING.search(shown):
        return f"shows a warning of Python's, {found[0]}"
    return f"shows control character {found[0]!r}" if (found := CONTROL.search(shown)) else ""


def unrefused(done: Done, *names: str) -> str:
    """What is wrong with a refusal: code 2 and one message of ours, after the lines of its usage, that has one of the names."""
    if fault := rude(done):
        return fault
    if done.code != 2:
        return f"ended with code {done.code}: {last_line(done.err)}"
    lines = OF_A_RUN.sub("", STAGE.sub("", USAGE.sub("", done.err))).splitlines()
    if len(lines) != 1 or not re.match(r"jaxbed( stats| eval| sweep)?: |stimuli: ", lines[0]):
        return f"{len(lines)} lines on stderr: {' / '.join(lines)[:300]}"
    return "" if not names or any(name in lines[0] for name in names) else f"its message names none of {', '.join(names)}: {lines[0]}"


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
