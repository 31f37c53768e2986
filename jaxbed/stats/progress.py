"""What `jaxbed stats` is doing, on stderr: a moving line on a terminal, elsewhere one line per stage.

Stages are log records of `jaxbed.stats` (info: a stage; debug: a step of one), so that the functions that work need not know who listens.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Shows the records of `jaxbed.stats` within."""
    if sys.stderr is None:  # closed
        yield
        return
    log = logging.getLogger("jaxbed.stats")
    before, on_terminal = log.level, sys.stderr.isatty()
    with _status() if on_terminal else contextlib.nullcontext(_line) as show:
        handler = logging.Handler()
        handler.emit = lambda record: show(record.getMessage())
        log.addHandler(handler)
        log.setLevel(logging.DEBUG if on_terminal else logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before)


def _line(stage: str) -> None:
    print(f"jaxbed stats: {stage} ...", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """A spinner with the stage and the time since the start, which leaves nothing behind."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda stage: bar.update(task, description=stage)
