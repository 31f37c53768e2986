"""SIGTERM and Ctrl-C as a request to finish the step in hand, not as an exception in the middle of it."""

import signal
import threading
from typing import Any, Self


class Interrupt:
    """While entered, `signal` is 0 until SIGINT or SIGTERM comes, then its number. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._former = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number
