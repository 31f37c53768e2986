"""A thread in each process of a run that tells the others how it is, hears how they are, and ends its process where one of them ended.

All is kept by the service of `coordinator`, under these keys:
  now/beat/I   a number that rises while process I lives, how many places it has passed where all come by, and 1 while others may have to
               wait for it
  now/end/I    [exit code, reason], once it ended of itself
  now/wish/R   the R-th thing that one of them wishes all to do in the same place: the number of a signal to stop for, or another number
  heard/R/I    how often process I had been asked for wishes when it heard of that
"""

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from jaxbed.system import ending

BEAT_SECONDS = 0.5
LOST = 2  # exit code of those whose run another process took with it
# how errors of the runtime begin and what those of its connections name: also of a process that only lost another one
OF_RUNTIME = re.compile(r"^(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION)\b|Gloo|NCCL")


class Beat(NamedTuple):
    """A sign of life of one process."""

    number: int
    passed: int  # places where all processes come by
    alone: int  # not 0 where it works and the others may wait for it


def silent(patience: float) -> str:
    return f"has given no sign of life for {patience:g} s"


class Judge:
    """Which process is lost, by the signs of life that one process hears."""

    def __init__(self, patience: float):
        self._patience = patience
        self._heard: dict[int, tuple[int, float]] = {}  # the last number, and when it was new
        self._behind: dict[int, tuple[int, float]] = {}  # where it stands, and since when others are further
        self._looked = 0.0

    def lost(self, beats: dict[int, Beat], now: float) -> tuple[int, str] | None:
        """(process, what is the matter with it), or None; now: seconds of any clock."""
        if now - self._looked > self._patience / 2:  # this process itself was suspended, and heard nothing
            self._heard, self._behind = {}, {}
        self._looked = now
        farthest = max((beat.passed for beat in beats.values()), default=0)
        for index, beat in sorted(beats.items()):
            if self._heard.get(index, (-1, 0.0))[0] != beat.number:
                self._heard[index] = beat.number, now
            if beat.passed == farthest or beat.alone:
                self._behind.pop(index, None)
            elif self._behind.get(index, (-1, 0.0))[0] != beat.passed:
                self._behind[index] = beat.passed, now
            if now - self._heard[index][1] > self._patience:
                return index, silent(self._patience)
            if now - self._behind.get(index, (0, now))[1] > self._patience:
                return index, f"has hung for {self._patience:g} s while others wait for it"
        return None


class Watch:
    """Of one process among several, from now until it ends."""

    def __init__(self, index: int, names: list[str], client: Any, patience: float):
        self._index, self._names, self._client, self._patience = index, names, client, patience
        self._gate = threading.Lock()  # closed while the processes agree on a place
        self._places = 0  # where all come by, and that this process has passed
        self._passed, self._round = 0, 0  # those of them where it asked for wishes; wishes that were fulfilled
        self._wish, self._agreed, self._last = 0, 0, 0  # its own; that of all; of the times that it asks, the last that goes without
        self._alone, self._compiling = 0, False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch of process {index}", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within, the others may have to wait for this process, and do not take it for one that hangs."""
        self._alone += 1
        try:
            yield
        finally:
            self._alone -= 1

    def compiles(self, begins: bool) -> None:
        """That a compilation begins or ends. One process may take minutes where another finds its program in a cache."""
        self._compiling = begins

    def passes(self) -> None:
        """A place where all come by: who is further may have to wait there. Only main threads count, for they alone keep an order."""
        self._places += threading.current_thread() is threading.main_thread()

    def agreed(self, wish: int) -> int:
        """See `processes.agreed`."""
        self.passes()
        with self._gate:
            self._passed += 1
            self._wish = wish or self._wish
            if not self._agreed or self._passed <= self._last:
                return 0
            agreed, self._agreed = self._agreed, 0
            self._round += 1
            if agreed == self._wish:
                self._wish = 0
            return agreed

    def tell(self, code: int, reason: str) -> None:
        """Says how this process ends."""
        with contextlib.suppress(Exception):  # of several kinds: the service is gone
            self._client.key_value_set(f"now/end/{self._index}", json.dumps([code, reason]), allow_overwrite=True)

    def finish(self) -> None:
        """Says that this process is done, and returns when all are: a thread that called the service while Python ends would abort it."""
        self.tell(0, "")
        self._done.set()
        self._thread.join()

    def end_all(self, code: int, reason: str) -> NoReturn:
        """Ends this process at once, and with it all others."""
        self.tell(code, reason)
        _end(code, reason)

    def await_end(self) -> None:
        """Gives the thread time to notice that another process is lost, and to end this one; returns if it does not."""
        time.sleep(self._patience + 4 * BEAT_SECONDS)

    def _run(self) -> None:
        judge, number = Judge(self._patience), 0
        while True:
            try:
                number += 1
                beat = f"{number} {self._places} {self._alone + self._compiling}"
                self._client.key_value_set(f"now/beat/{self._index}", beat, allow_overwrite=True)
                now = {key.removeprefix("now/"): value for key, value in self._client.key_value_dir_get("now/")}
                ends = {int(key.removeprefix("end/")): json.loads(value) for key, value in now.items() if key.startswith("end/")}
                for index, (code, reason) in ends.items():
                    if code and index != self._index:
                        _end(code, reason)
                if len(ends) == len(self._names):
                    return
                self._agree(now, ends)
            except Exception as error:  # of several kinds
                _end(LOST, f"{self._names[0]} is lost, and with it the service at which all meet ({str(error).splitlines()[0]})")
            beats = {
                int(key.removeprefix("beat/")): Beat(*map(int, value.split())) for key, value in now.items() if key.startswith("beat/")
            }
            lost = judge.lost({i: beat for i, beat in beats.items() if i not in ends}, time.monotonic())
            if lost:
                self._lost(*lost)
            if not self._done.is_set():
                self._done.wait(BEAT_SECONDS)
            else:  # nothing but the end of the others is left to wait for
                time.sleep(BEAT_SECONDS / 10)

    def _agree(self, now: dict[str, str], ends: dict[int, Any]) -> None:
        """Agrees with the others where all fulfil a wish: after the last place that any of them has passed."""
        with self._gate:  # the round goes on where what was agreed comes true: looked at apart, the two might not fit
            number, pending = self._round, self._agreed
        if pending or self._index in ends:
            return
        wish = int(now.get(f"wish/{number}", 0))
        if self._wish and not wish:
            with contextlib.suppress(Exception):  # another process was faster
                self._client.key_value_set(f"now/wish/{number}", str(self._wish))
        if not wish:
            return
        with self._gate:
            self._client.key_value_set(f"heard/{self._round}/{self._index}", str(self._passed))
            self._last = max(self._heard_at(i) for i in range(len(self._names)) if i not in ends)
            self._agreed = wish

    def _heard_at(self, index: int) -> int:
        """How often a process had been asked when it heard of the present wish. Where it is lost, this process ends."""
        try:
            return int(self._client.blocking_key_value_get(f"heard/{self._round}/{index}", int(1000 * self._patience)))
        except Exception as error:  # of several kinds
            if "DEADLINE_EXCEEDED" in str(error):
                self._lost(index, silent(self._patience))
            raise

    def _lost(self, index: int, fault: str) -> NoReturn:
        _end(LOST, f"{self._names[index]} {fault}: all end; run the same command again to resume")


def may_be_of_another(reason: str) -> bool:
    """Whether an error may be what this process notices of the end of another one."""
    return bool(OF_RUNTIME.search(reason))


def _end(code: int, reason: str) -> NoReturn:
    """Ends this process whatever it does: what it was writing counts as unfinished."""
    sys.stdout.flush()
    ending.tell("jaxbed", reason)
    os._exit(code)
