"""How a command ends: with an exit code and, where something is wrong, with words for a person in place of a traceback."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

STOPPED = 128 + signal.SIGINT
CURE = "take fewer seeds, a smaller batch_size or a smaller network"


def of(command: Callable[[], int], name: str = "jaxbed") -> int:
    """The exit code of a command: 2, with the reason on stderr, for bad input and for what the system refuses; 130 after Ctrl-C.

    An error that nobody foresaw keeps its traceback: it is a fault of the program.
    """
    try:
        return command()
    except (ValueError, OSError) as error:
        reason = _of_system(error) if isinstance(error, OSError) else str(error)
    except MemoryError:
        reason = f"not enough memory: {CURE}"
    except RuntimeError as error:
        if type(error).__name__ not in ("JaxRuntimeError", "XlaRuntimeError") or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = f"not enough memory on the device: {CURE}"
    except KeyboardInterrupt:
        print(f"{name}: stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return STOPPED
    print(f"{name}: {reason}", file=sys.stderr)
    return 2


def _of_system(error: OSError) -> str:
    if error.errno is None or error.filename is None:
        return str(error)
    cure = "; free space, and the same command goes on from here" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.filename}: {error.strerror.lower()}{cure}"


def leave(code: int) -> NoReturn:
    """Ends the process. After Ctrl-C at once, or a second one would meet Python as it waits for threads, and show its traceback."""
    if code == STOPPED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
