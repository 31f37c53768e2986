"""Arrays of a PyTorch file (torch.save) or of a safetensors file, without PyTorch and without running what the file says.

A pickle may name any function to call. This one may name only what rebuilds tensors; anything else is an error. Both of PyTorch's formats:
the zip archive (since 1.6) and the stream of pickles before it.
"""

import collections
import io
import itertools
import pathlib
import pickle
import re
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

TYPES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
HOLDERS = ("state_dict", "model_state_dict", "model", "net")
WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|model|backbone)\.)+")  # DataParallel, torch.compile, Lightning and other programs
COUNTS = ("n_averaged",)  # of AveragedModel's updates: no array of the network
LEGACY = 0x1950A86A20F9469CFC6C  # the number such a file begins with


def read(path: pathlib.Path | str) -> dict[str, np.ndarray]:
    """{name: array} of the state dict in a file; entries that are no tensors are left out.

    A state dict may lie under one of HOLDERS, and names may begin with WRAPPERS or all with the same other words, as training programs
    save it. Raises ValueError for anything else, also for several networks.
    """
    return _unwrapped(path, _read(pathlib.Path(path)))


def _unwrapped(path: pathlib.Path | str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, str] = {}
    for name in state:
        own = WRAPPERS.sub("", name)
        if own in found:
            raise ValueError(f"{path} holds {own} twice, as {found[own]} and as {name}: save the one network that is meant")
        if own not in COUNTS:
            found[own] = name
    words = zip(*(own.split(".")[:-1] for own in found), strict=False)
    shared = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, words))) if len(found) > 1 else 0
    return {own.split(".", shared)[-1]: state[name] for own, name in found.items()}


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        import safetensors
        from safetensors.numpy import load_file

        try:
            return load_file(path)
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file, or is damaged: {error}") from error
    try:
        content = _zip(path) if zipfile.is_zipfile(path) else _legacy(path)
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} holds no weights that can be read safely: {error}") from error
    for name in HOLDERS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            whole, content = content, content[name]
            if others := [key for key, other in whole.items() if key != name and isinstance(other, dict) and {*other} & {*content}]:
                raise ValueError(f"{path} holds several networks, {name} and {', '.join(map(str, others))}: save the one that is meant")
    arrays = {name: value for name, value in content.items() if isinstance(value, np.ndarray)} if isinstance(content, dict) else {}
    if not arrays:
        raise ValueError(f"{path} holds no state dict with tensors")
    return arrays


class _Kind(NamedTuple):
    """A class of storage."""

    name: str


class _View(NamedTuple):
    """A tensor whose storage is still to be read."""

    storage: np.ndarray
    offset: int
    size: tuple
    stride: tuple


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BufferedIOBase, storage: Callable[[tuple], np.ndarray], tensor: Callable | None = None):
        super().__init__(file)
        self._storage, self._tensor = storage, tensor or _tensor

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *rest: tensor
        if module in ("torch", "torch.storage") and name in TYPES:
            return _Kind(name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only tensors are allowed")

    def persistent_load(self, identity: tuple) -> np.ndarray:
        return self._storage(identity)


def _tensor(storage: np.ndarray, offset: int, size: tuple, stride: tuple, *rest: Any) -> np.ndarray:
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if min((offset, *size, *stride), default=0) < 0 or (0 not in size and last >= len(storage)):
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    strides = [step * storage.itemsize for step in stride]
    return np.array(np.lib.stride_tricks.as_strided(storage[offset:], size, strides))


def _zip(path: pathlib.Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        (entry,) = [name for name in archive.namelist() if name.endswith("/data.pkl")] or [""]
        if not entry:
            raise pickle.UnpicklingError("it is a zip archive without data.pkl")
        folder = entry.removesuffix("data.pkl")

        def storage(identity: tuple) -> np.ndarray:
            _, kind, key, *_ = identity
            return np.frombuffer(archive.read(f"{folder}data/{key}"), TYPES[kind.name])

        with archive.open(entry) as file:
            return _Reader(io.BytesIO(file.read()), storage).load()


def _legacy(path: pathlib.Path) -> Any:
    waiting: dict[str, np.ndarray] = {}

    def storage(identity: tuple) -> np.ndarray:
        _, kind, key, _, size, *_ = identity
        return waiting.setdefault(key, np.empty(size, TYPES[kind.name]))  # filled below, once the file tells

    def refuse(identity: tuple) -> np.ndarray:
        raise pickle.UnpicklingError("a storage where none belongs")

    with path.open("rb") as file:
        if _Reader(file, refuse).load() != LEGACY:
            raise pickle.UnpicklingError("it does not begin as torch.save begins")
        _Reader(file, refuse).load()  # protocol
        _Reader(file, refuse).load()  # sizes of C types
        content = _Reader(file, storage, lambda *args: _View(*args[:4])).load()
        for key in _Reader(file, refuse).load():
            size = int.from_bytes(file.read(8), "little")
            target = waiting[key]
            if size != len(target):
                raise pickle.UnpicklingError(f"a storage has {size} numbers and should have {len(target)}")
            data = file.read(target.nbytes)
            if len(data) != target.nbytes:
                raise pickle.UnpicklingError("it is cut short")
            target[:] = np.frombuffer(data, target.dtype)
    return _filled(content)


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner) for key, inner in value.items()}
    return _tensor(*value) if isinstance(value, _View) else value
