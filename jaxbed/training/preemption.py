"""SIGTERM and Ctrl-C as a request to finish the step in hand, not as an exception in the middle of it.

All processes of a run stop after the same step.
"""

import signal
import threading
from typing import Any, Self

from jaxbed.system import processes

SAVE = 1000  # no signal: a wish to save and go on


class Interrupt:
    """While entered, `signal` is 0 until SIGINT or SIGTERM comes, then its number. A second Ctrl-C interrupts at once.

    Of several processes, all must ask for it equally often, in the same places.
    """

    def __init__(self) -> None:
        self._signal = 0
        self._agreed = 0
        self._former: dict[int, Any] = {}

    @property
    def signal(self) -> int:
        self.wish(0)
        return self._agreed

    def wish(self, wish: int) -> int:
        """What all processes do here: stop for the signal that it returns, or `SAVE` where one of them wishes it, or nothing (0)."""
        if self._agreed:
            return self._agreed
        agreed = processes.agreed(self._signal or wish)
        if agreed != SAVE:
            self._agreed = agreed
        return agreed

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._former = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        if self._signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self._signal = number
