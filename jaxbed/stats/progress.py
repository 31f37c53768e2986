"""Shows on stderr what `jaxbed stats` and others are doing: a status line on a terminal, elsewhere one line per stage.

Stages are log records of a package, as `jaxbed.stats` (info: a stage; debug: a step of one): the functions that compute only log.
"""

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown(command: str = "jaxbed stats", package: str = "jaxbed.stats") -> Iterator[None]:
    """Shows the log records of a package while the context is active, as what `command` does."""
    if sys.stderr is None:  # closed
        yield
        return
    log = logging.getLogger(package)
    level, propagate, on_terminal = log.level, log.propagate, sys.stderr.isatty()
    with _status() if on_terminal else contextlib.nullcontext(functools.partial(_line, command)) as show:
        handler = _Handler(show)
        log.addHandler(handler)
        log.setLevel(logging.DEBUG if on_terminal else logging.INFO)
        log.propagate = False  # packages that measuring imports show records too
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.propagate = propagate
            log.setLevel(level)


class _Handler(logging.Handler):
    """Passes the text of each record on."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


def _line(command: str, stage: str) -> None:
    print(f"{command}: {stage} ...", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A spinner with the stage and the elapsed time, which is erased at the end."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda stage: bar.update(task, description=stage)
