"""Arrays of a PyTorch file (torch.save), of a safetensors file or of an npz file, without PyTorch and without running what the file says.

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
from collections.abc import Callable, Iterator
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
# Where training programs keep a state dict, one within another; the last two are of published ResNets (NoisyMix, SimCLRv2)
HOLDERS = ("state_dict", "model_state_dict", "model", "net", "teacher", "student", "online_backbone", "resnet")
LEVELS = 3  # of dictionaries within dictionaries that are looked into
# How programs prefix names: DataParallel, torch.compile, Lightning, robustness (whose attacker holds the network again), MoCo, DINO
WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|model|backbone|net|attacker|encoder_[qk]|teacher|student)\.)+")
COUNTS = ("n_averaged",)  # of AveragedModel's updates: no array of the network
SCALING = re.compile(r"(?:normali[sz]er?\.)?(?:new_)?(mean|std)")  # of images, within the model
# Of training alone: what SwAV, MoCo and DINO have in place of a head, MoCo's queue, BatchNorms for other images (Li et al., 2021)
SPARE = re.compile(r"(?:projection_head|prototypes|fc\.\d+|head\.mlp|head\.last_layer)\..*|queue(?:_ptr)?|(?:.*\.)?aux_bn\..*")
HEADS = ("fc", "linear", "head")
LEGACY = 0x1950A86A20F9469CFC6C  # the number such a file begins with
SHARED = 4  # times that the tensors may be as large as the file: several may have one storage
CURE = "save the network's own state_dict again, with torch.save or as safetensors"


def read(path: pathlib.Path | str, say: Callable[[str], None] = lambda message: None) -> dict[str, np.ndarray]:
    """{name: array} of the state dict in a file; entries that are no tensors are left out.

    A state dict may lie under HOLDERS, and names may begin with WRAPPERS or all with the same other words, as training programs save it.
    Left out is also what training alone needs, and the scaling of images, which `say` reports. Raises ValueError, which names the file and
    the cure, for anything else, also for several networks, and FileNotFoundError where there is no such file; an array that is there twice
    with the same values is one.
    """
    state = _unwrapped(path, say)
    words = zip(*(name.split(".")[:-1] for name in state), strict=False)
    shared = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, words))) if len(state) > 1 else 0
    return {name.split(".", shared)[-1]: array for name, array in state.items()}


def read_head(path: pathlib.Path | str, say: Callable[[str], None] = lambda message: None) -> dict[str, np.ndarray]:
    """{"weight", "bias"} of a linear layer that a file holds alone, under one of HEADS. Raises ValueError as `read` does, or for more."""
    state = _unwrapped(path, say)
    for head in HEADS:
        if {*state} == {f"{head}.weight", f"{head}.bias"}:
            return {name.removeprefix(f"{head}."): array for name, array in state.items()}
    allowed = f"weight and bias of one layer, {', '.join(HEADS[:-1])} or {HEADS[-1]}"
    raise ValueError(f"{path} holds {names.listed(state)}, and a file of a head has {allowed}: name a file of a whole network alone")


def _unwrapped(path: pathlib.Path | str, say: Callable[[str], None]) -> dict[str, np.ndarray]:
    """The arrays of the network itself, without WRAPPERS."""
    state = _read(pathlib.Path(path))
    sources: dict[str, str] = {}
    for name in state:
        bare = WRAPPERS.sub("", name)
        if bare not in sources:
            sources[bare] = name
        elif not np.array_equal(state[sources[bare]], state[name]):
            raise ValueError(f"{path} holds {bare} twice, as {sources[bare]} and as {name}: save the one network that is meant")
    scaling: dict[str, list[float]] = {}
    for bare in sources:
        if match := SCALING.fullmatch(bare):
            scaling.setdefault(match[1], [round(float(x), 6) for x in state[sources[bare]].flat[:4]])
    if scaling:
        values = " and ".join(f"{name} {given}" for name, given in sorted(scaling.items()))
        say(f"{path} scales images within the model, by {values}: this is left out; give data.augment.mean and std these values")
    if spare := [bare for bare in sources if SPARE.fullmatch(bare)]:
        say(f"{path}: left out, as of training alone: {names.listed(spare)}")
    left = {*COUNTS, *spare, *filter(SCALING.fullmatch, sources)}
    return {bare: state[name] for bare, name in sources.items() if bare not in left}


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights {str(path)!r}: correct the path, or download or train the weights first")
    if path.suffix.lower() == ".npz":
        return files.read_arrays(path, "take the file as it was published")
    with files.guarded(path, CURE, "cannot be read as weights", "it is damaged, or another kind of file"):
        if path.suffix == ".safetensors":
            return _safetensors(path)
        content = _zip(path) if zipfile.is_zipfile(path) else _legacy(path)
        return _arrays(_state_dict(content), path.stat().st_size)


def _state_dict(content: Any) -> dict:
    """The largest dictionary of tensors under HOLDERS. Raises Fault where another one, anywhere, has some of the same names."""
    found = list(_with_tensors(content))
    fit = [(path, state) for path, state in found if {*path} <= {*HOLDERS}]
    if not fit:
        raise files.Fault("it has no state dict with tensors")
    bare = {key: _bare(state) for key, state in {id(state): state for _, state in found}.items()}  # once for many references
    chosen, state = max(fit, key=lambda each: len(bare[id(each[1])]))
    alike = {key for key, names_there in bare.items() if names_there & bare[id(state)]}
    if others := [path for path, other in found if path != chosen and id(other) in alike]:
        first, *more = (".".join(map(str, path)) or "the outermost one" for path in (chosen, *others))
        raise files.Fault(f"it holds several networks, {names.cut(first)} and {names.listed(more)}; save the one that is meant")
    return state


def _with_tensors(content: Any) -> Iterator[tuple[tuple, dict]]:
    """(keys that lead there, dictionary) of all that hold tensors. A dictionary may hold itself, and is looked into once."""
    entered: dict[int, bool] = {}
    waiting: list[tuple[tuple, Any]] = [((), content)]
    for path, value in waiting:
        if isinstance(value, dict):
            if id(value) not in entered:
                entered[id(value)] = any(isinstance(inner, _View) for inner in value.values())
                waiting += [((*path, key), inner) for key, inner in value.items() if len(path) < LEVELS]
            if entered[id(value)]:
                yield path, value


def _bare(state: dict) -> set[str]:
    return {WRAPPERS.sub("", str(name)) for name, value in state.items() if isinstance(value, _View)}


def _arrays(content: dict, size: int) -> dict[str, np.ndarray]:
    """The tensors of a state dict, read from a file of `size` bytes."""
    views = {name: value for name, value in content.items() if isinstance(value, _View)}
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
