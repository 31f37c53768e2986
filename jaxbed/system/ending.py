"""How a command ends: with an exit code and, where something is wrong, with words for a person in place of a traceback."""

import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

STOPPED = 128 + signal.SIGINT
MESSAGE = "jaxbed: stopped; run the same command again to resume"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
CURE = "take fewer seeds, a smaller batch_size or a smaller network"
OBJECTS = 10_000  # new ones before Python looks for garbage in cycles: imports and tracing make many and leave little

CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "see that you may read and write there"),
}


def of(command: Callable[[], int], name: str = "jaxbed") -> int:
    """The exit code of a command: 2, with the reason on stderr, for bad input and for what the system refuses; 130 after Ctrl-C.

    An error that nobody foresaw keeps its traceback: it is a fault of the program.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print(MESSAGE, file=sys.stderr, flush=True)
        return STOPPED
    except Exception as error:
        if not (reason := reason_of(error)):
            raise
    tell(name, reason)
    return 2


def reason_of(error: Exception) -> str:
    """What a person is told of bad input and of what the system refuses; empty for an error that nobody foresaw."""
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, ValueError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {CURE}"
    if type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in str(error):
        return f"not enough memory on the device: {CURE}"
    return ""


def tell(name: str, reason: object) -> None:
    """Prints "NAME: REASON" on stderr. A name out of somebody's file may hold characters that control a terminal: they are spelled out."""
    print(f"{name}: {CONTROL.sub(lambda control: ascii(control[0])[1:-1], str(reason))}", file=sys.stderr, flush=True)


def _of_system(error: OSError) -> str:
    if error.errno is None or error.filename is None or error.strerror is None:
        return str(error)
    cure = CURES.get(error.errno)
    return f"{error.filename}: {error.strerror.lower()}" + (f"; {cure}, and run the same command again to resume" if cure else "")


def process(command: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its exit code; after Ctrl-C or SIGTERM with 128 + the signal, when all is cleaned up.

    A second signal ends it at once, and so does one that arrives where Python ignores exceptions, as in its garbage collector.
    """
    gc.set_threshold(OBJECTS)
    ignored, asked = sys.unraisablehook, 0

    def stop(number: int, _frame: Any) -> NoReturn:
        nonlocal asked
        if asked:
            os._exit(asked)
        asked = 128 + number
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(asked)

    def unraisable(unraised: Any) -> None:
        if asked and unraised.exc_type in (KeyboardInterrupt, SystemExit):
            print(MESSAGE, file=sys.stderr, flush=True)
            os._exit(asked)
        ignored(unraised)

    sys.unraisablehook = unraisable
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # Ctrl-C is to be ignored behind nohup
            signal.signal(number, stop)
    try:
        code = of(command)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    if asked:  # at once: Python would wait for threads first
        sys.stdout.flush()
        os._exit(asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
    sys.exit(code)
