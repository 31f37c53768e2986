"""Where results go: a folder that is not touched before all is ready, and stdout."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

PAGE = "report.html"
OF_RUNS = "config.json"  # of a workdir


def check(name: str, inputs: Iterable[str], outputs: Sequence[str], option: str = "--out", command: str = "") -> None:
    """Checks before anything is read that the folder can be written and that no input file would be overwritten.

    command: what writes the outputs, with a page that tells so; then files of these names that it did not write are not overwritten either.
    Raises ValueError, which names the option that the folder is from.
    """
    if not name.strip():
        raise ValueError(f"{option} is empty; name a directory")
    out = Path(name)
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{option} {out}: {existing} is a file; name a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {out}: {existing} is not writable for this user; name another directory")
    written = {(out / output).resolve() for output in outputs}
    for path in map(Path, inputs):
        if path.resolve() in written:
            raise ValueError(f"{option} {out} would overwrite the input {path}; name another directory")
    if command and (out / OF_RUNS).is_file():
        raise ValueError(f"{option} {out} is the workdir of a run; name another directory")
    there = [output for output in outputs if (out / output).exists()] if command else []
    page = out / PAGE
    if there and not (page.is_file() and f"<dd>{command} " in page.read_text(encoding="utf-8", errors="replace")):
        raise ValueError(f"{option} {out} has a {there[0]} that is not of `{command}`; name another directory")


def fill(out: str | Path, make: Callable[[Path], list[Path]], option: str = "--out") -> list[Path]:
    """Copies the files that `make` writes into an empty folder to `out`, once all are there; returns where they lie now.

    Raises ValueError where the folder cannot be written.
    """
    out = Path(out)
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = [path.relative_to(folder) for path in make(Path(folder))]
            for path in made:
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(folder) / path, out / path)
    except OSError as error:
        raise ValueError(f"{option} {out} cannot be written ({error}); name another directory") from error
    return [out / path for path in made]


def show(text: str) -> None:
    """Prints to stdout; characters that its encoding lacks become question marks. A reader that stops early, as head does, is no error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python does not write the rest again at exit
        if not isinstance(error, BrokenPipeError):
            raise ValueError(f"stdout cannot be written ({error}); free disk space, or redirect the output elsewhere") from error
