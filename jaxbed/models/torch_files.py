"""Arrays of a PyTorch file (torch.save) or of a safetensors file, without PyTorch and without running what the file says.

A pickle may name any function to call. This one may name only what rebuilds tensors; anything else is an error. Nor may it ask for more
memory than the size of the file makes plausible. Both of PyTorch's formats are read: the zip archive (since 1.6) and the stream of pickles
before it.
"""

import collections
import io
import itertools
import math
import pathlib
import re
import zipfile
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxbed.stats import names
from jaxbed.system import files, pickles

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
SAFE_TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")  # of safetensors
READ = "read are float64, float32, float16, bfloat16, whole numbers and bools"
HOLDERS = ("state_dict", "model_state_dict", "model", "net")
WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|model|backbone)\.)+")  # DataParallel, torch.compile, Lightning and other programs
COUNTS = ("n_averaged",)  # of AveragedModel's updates: no array of the network
LEGACY = 0x1950A86A20F9469CFC6C  # the number such a file begins with
SHARED = 4  # times that the tensors may be as large as the file: several may have one storage
CURE = "save the network's own state_dict again, with torch.save or as safetensors"


def read(path: pathlib.Path | str) -> dict[str, np.ndarray]:
    """{name: array} of the state dict in a file; entries that are no tensors are left out.

    A state dict may lie under one of HOLDERS, and names may begin with WRAPPERS or all with the same other words, as training programs
    save it. Raises ValueError, which names the file and the cure, for anything else, also for several networks.
    """
    return _unwrapped(path, _read(pathlib.Path(path)))


def _unwrapped(path: pathlib.Path | str, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    sources: dict[str, str] = {}
    for name in state:
        bare = WRAPPERS.sub("", name)
        if bare in sources:
            raise ValueError(f"{path} holds {bare} twice, as {sources[bare]} and as {name}: save the one network that is meant")
        if bare not in COUNTS:
            sources[bare] = name
    words = zip(*(bare.split(".")[:-1] for bare in sources), strict=False)
    shared = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, words))) if len(sources) > 1 else 0
    return {bare.split(".", shared)[-1]: state[name] for bare, name in sources.items()}


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    with files.guarded(path, CURE, "cannot be read as weights", "it is damaged, or another kind of file"):
        if path.suffix == ".safetensors":
            return _safetensors(path)
        content = _zip(path) if zipfile.is_zipfile(path) else _legacy(path)
        for name in HOLDERS:
            if isinstance(content, dict) and isinstance(content.get(name), dict):
                whole, content = content, content[name]
                if others := [key for key, other in whole.items() if key != name and isinstance(other, dict) and {*other} & {*content}]:
                    raise files.Fault(f"it holds several networks, {name} and {', '.join(map(str, others))}; save the one that is meant")
        return _arrays(content, path.stat().st_size)


def _arrays(content: Any, size: int) -> dict[str, np.ndarray]:
    """The tensors of a state dict, read from a file of `size` bytes."""
    views = {name: value for name, value in content.items() if isinstance(value, _View)} if isinstance(content, dict) else {}
    if not views:
        raise files.Fault("it has no state dict with tensors")
    if strange := [name for name in views if not isinstance(name, str)]:
        raise files.Fault(f"the name of a tensor is {strange[0]!r}, and no text")
    for name, (storage, offset, sizes, strides) in views.items():
        last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        if min((offset, *sizes, *strides), default=0) < 0 or (0 not in sizes and last >= len(storage)):
            raise files.Fault(f"a tensor reaches beyond its storage, {names.cut(name)}")
    total = sum(math.prod(view.size) * view.storage.itemsize for view in views.values())
    if total > SHARED * size:
        raise files.Fault(f"its tensors would take {total:,} bytes, and it has {size:,}")
    return {
        name: np.lib.stride_tricks.as_strided(storage[offset:], sizes, [step * storage.itemsize for step in strides], writeable=False)
        for name, (storage, offset, sizes, strides) in views.items()
    }


def _safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    import safetensors

    with safetensors.safe_open(path, "np") as file:
        for name in file.keys():
            if (arrays := file.get_slice(name).get_dtype()) not in SAFE_TYPES:
                raise files.Fault(f"its tensors are of type {arrays}; {READ}")
        return file.get_tensors()


class _Kind(NamedTuple):
    """A class of storage."""

    name: str


class _View(NamedTuple):
    """A tensor: which numbers of a storage it has, offset and strides counted in numbers."""

    storage: np.ndarray
    offset: int
    size: tuple
    stride: tuple


def _allowed(module: str, name: str) -> Any:
    """What a pickle may call: only what makes tensors."""
    if (module, name) == ("collections", "OrderedDict"):
        return lambda *pairs: _ordered(*pairs)
    if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
        return lambda *args: _View(*args[:4])
    if (module, name) == ("torch._utils", "_rebuild_parameter"):
        return lambda tensor, *rest: tensor
    if module in ("torch", "torch.storage") and name in TYPES:
        return _Kind(name)
    asked = names.cut(f"{module}.{name}")
    if module in ("torch", "torch.storage", "torch._utils"):
        raise files.Fault(f"it asks for {asked}, as sparse tensors or float8 do; {READ}")
    raise files.Fault(f"it asks for {asked}, and only tensors are allowed")


def _ordered(pairs: Any = ()) -> collections.OrderedDict:
    if not all(isinstance(key, str | int) for key, _ in pairs):
        raise files.Fault(pickles.KEYS)
    return collections.OrderedDict(pairs)


def _zip(path: pathlib.Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        files.check_members(archive, path.stat().st_size, [zipfile.ZIP_STORED])  # torch.save compresses nothing
        entries = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(entries) != 1:
            raise files.Fault(f"it is a zip archive with {len(entries)} members data.pkl, and has to have one")
        folder, read = entries[0].removesuffix("data.pkl"), {}

        def storage(identity: tuple) -> np.ndarray:
            _, kind, key, *_ = identity
            if key not in read:
                read[key] = np.frombuffer(archive.read(f"{folder}data/{key}"), TYPES[kind.name])
            return read[key]

        return pickles.load(io.BytesIO(archive.read(entries[0])), _allowed, storage)


def _legacy(path: pathlib.Path) -> Any:
    content = path.read_bytes()
    file, waiting, left = io.BytesIO(content), {}, len(content)

    def storage(identity: tuple) -> np.ndarray:
        nonlocal left
        _, kind, key, _, size, *_ = identity
        if key not in waiting:
            left -= size * np.dtype(TYPES[kind.name]).itemsize
            if left < 0:
                raise files.Fault("it is cut short, or asks for more numbers than it has")
            waiting[key] = np.empty(size, TYPES[kind.name])  # filled below, once the file tells
        return waiting[key]

    if pickles.load(file, _allowed) != LEGACY:
        raise files.Fault("it does not begin as torch.save begins")
    pickles.load(file, _allowed)  # protocol
    pickles.load(file, _allowed)  # sizes of C types
    tensors = pickles.load(file, _allowed, storage)
    for key in pickles.load(file, _allowed):
        size, target = int.from_bytes(file.read(8), "little"), waiting[key]
        if size != len(target):
            raise files.Fault(f"a storage has {size:,} numbers and should have {len(target):,}")
        data = file.read(target.nbytes)
        if len(data) != target.nbytes:
            raise files.Fault("it is cut short")
        target[:] = np.frombuffer(data, target.dtype)
    return tensors
