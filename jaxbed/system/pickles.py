"""Pickles of strangers: read without running what they say, nor taking more memory than the size of the file makes plausible."""

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

from jaxbed.system.files import Fault

DEEPEST = 100  # values within values
KEYS = "a dictionary has keys that are neither text nor numbers"
FIRST_KEY = {"SETITEM": 1, "SETITEMS": 1, "DICT": 0}  # place of the first key among the values that an opcode takes
GROWING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")  # opcodes that add to the first value they take


def _refuse(identity: Any) -> Any:
    raise Fault("it asks for something outside of it where nothing belongs")


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find_class: Callable, persistent_load: Callable, encoding: str):
        super().__init__(file, encoding=encoding)
        self._find_class, self._persistent_load = find_class, persistent_load

    def find_class(self, module: str, name: str) -> Any:
        return self._find_class(module, name)

    def persistent_load(self, identity: Any) -> Any:
        return self._persistent_load(identity)


def load(
    file: io.BytesIO, find_class: Callable[[str, str], Any], persistent_load: Callable[[Any], Any] = _refuse, encoding: str = "ASCII"
) -> Any:
    """The value of the pickle at the file's position, which moves behind it.

    find_class gives what may be called by module and name, and refuses all else; the others are those of pickle.Unpickler. What it gives
    should be new each time, since a pickle may set attributes of it. Raises Fault, or what the unpickler raises for a damaged pickle.
    """
    start = file.tell()
    _check(file)
    file.seek(start)
    return _Reader(file, find_class, persistent_load, encoding).load()


def _check(file: io.BytesIO) -> None:
    """Goes through a pickle without making its values; lengths beyond the file are found on the way.

    Raises Fault for values that are nested deeply, which crashes Python, for keys that are tuples, which may take for ever to hash, and
    for memorised values whose numbers take more memory than is plausible.
    """
    size = file.getbuffer().nbytes
    depths: list[Any] = []  # of the values on the stack, int; None: a mark
    memo: dict[Any, Any] = {}
    for opcode, number, _ in pickletools.genops(file):
        name, before = opcode.name, opcode.stack_before
        popped: list[int] = []
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            key = len(memo) if name == "MEMOIZE" else int(number or 0)
            if key > size:
                raise Fault(f"it asks for memory for {key:,} values, and has {size:,} bytes")
            memo[key] = depths[-1]
            continue
        if name in ("GET", "BINGET", "LONG_BINGET"):
            depths.append(memo[number])
            continue
        if name in ("DUP", "MARK"):
            depths.append(depths[-1] if name == "DUP" else None)
            continue
        if pickletools.markobject in before:
            while (depth := depths.pop()) is not None:
                popped.append(depth)
            before = before[: before.index(pickletools.markobject)]
        popped = [*(depths.pop() for _ in before)][::-1] + popped[::-1]
        if name in ("EMPTY_SET", "FROZENSET") or (name in FIRST_KEY and any(popped[FIRST_KEY[name] :: 2])):
            raise Fault(KEYS)
        inner = popped.pop(0) if name in GROWING else 0
        depth = max([inner, *(1 + depth for depth in popped)])
        if depth > DEEPEST:
            raise Fault(f"its values are nested more than {DEEPEST} deep")
        depths += [depth] * len(opcode.stack_after)
