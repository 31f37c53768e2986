"""Files of weights that try to run something, to fill the memory, or to be read as what they are not."""

import io
import json
import os
import pathlib
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

MIB = 2**20
LEGACY = (0x1950A86A20F9469CFC6C, 1001, {})  # what files of torch.save began with before 1.6


class Global(NamedTuple):
    module: str
    name: str


class Call(NamedTuple):
    function: Any
    arguments: tuple


class Stored(NamedTuple):
    """A reference to a storage, by torch's words for it."""

    identity: Any


def pickled(value: Any) -> bytes:
    """A pickle that names what it likes: pickle itself would have to import it."""
    return _coded(value) + b"."


def _coded(value: Any) -> bytes:
    match value:
        case bytes():
            return value  # operations as they are
        case Global(module, name):
            return f"c{module}\n{name}\n".encode()
        case Call(function, arguments):
            return _coded(function) + _coded(tuple(arguments)) + b"R"
        case Stored(identity):
            return _coded(identity) + b"Q"
        case bool():
            return b"I01\n" if value else b"I00\n"
        case int():
            return f"L{value}L\n".encode()
        case str():
            return b"V" + value.encode("raw_unicode_escape") + b"\n"
        case tuple():
            return b"(" + b"".join(map(_coded, value)) + b"t"
        case list():
            return b"(" + b"".join(map(_coded, value)) + b"l"
        case dict():
            return b"}(" + b"".join(_coded(key) + _coded(inner) for key, inner in value.items()) + b"u"
    raise TypeError(type(value))


def tensor(size: tuple = (2,), stride: tuple = (1,), offset: int = 0, numbers: Any = 2, kind: str = "FloatStorage", key: Any = "0") -> Call:
    storage = Stored(("storage", Global("torch", kind), key, "cpu", numbers))
    return Call(Global("torch._utils", "_rebuild_tensor_v2"), (storage, offset, size, stride, False, {}))


def torch_zip(content: Any, data: bytes = bytes(8)) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content if isinstance(content, bytes) else pickled(content))
        archive.writestr("archive/data/0", data)
    return file.getvalue()


def torch_stream(content: Any, keys: Any = ("0",), sizes: tuple = (2,), data: bytes = bytes(8)) -> bytes:
    begin = b"".join(map(pickled, LEGACY))
    return begin + pickled(content) + pickled(list(keys)) + b"".join(size.to_bytes(8, "little") for size in sizes) + data


class Entry(NamedTuple):
    """A member of a zip archive, whose header says what it likes."""

    name: str
    content: bytes
    method: int = 0
    size: int = -1  # as the header tells; default: the truth
    flags: int = 0


def odd_zip(*entries: Entry) -> bytes:
    found, directory = b"", b""
    for name, content, method, size, flags in entries:
        size, encoded = len(content) if size < 0 else size, name.encode()
        fields = struct.pack("<HHHHIIIHH", flags, method, 0, 0, zlib.crc32(content), len(content), size, len(encoded), 0)
        directory += b"PK\1\2" + struct.pack("<HH", 20, 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(found)) + encoded
        found += b"PK\3\4" + struct.pack("<H", 20) + fields + encoded + content
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), len(found), 0)
    return found + directory + b"PK\5\6" + end


def deflated(mib: int, begin: bytes = b"") -> bytes:
    """A deflate stream of zeros, a thousandth of what it unpacks to."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (mib // 16) + b"\x03\x00"


def bomb(name: str, begin: bytes = b"", mib: int = 3072) -> Entry:
    """3 GiB in 3 MiB."""
    return Entry(name, deflated(mib, begin), 8, mib * MIB + len(begin))


def safetensors(header: Any, data: bytes = bytes(8), length: int = -1) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length < 0 else length) + text + data


def of_type(kind: str, shape: list, offsets: list) -> dict:
    return {"conv1.weight": {"dtype": kind, "shape": shape, "data_offsets": offsets}}


NAMED = (
    "os.system",
    "posix.system",
    "nt.system",
    "builtins.exec",
    "builtins.eval",
    "subprocess.call",
    "builtins.getattr",
    "pickle.loads",
    "torch.load",
)
NAMED += (
    "importlib.import_module",
    "shutil.rmtree",
    "runpy.run_path",
    "torch.storage._load_from_bytes",
    "torch.FloatStorage.os",
    "collections.os",
)


def _arguments(name: str, marker: pathlib.Path) -> tuple:
    return {"exec": (f"open({str(marker)!r}, 'w')",), "eval": (f"open({str(marker)!r}, 'w')",), "call": (["touch", str(marker)],)}.get(
        name, (f"touch {marker}",)
    )


def calling(path: str, pack: Callable) -> Callable[[pathlib.Path], bytes]:
    module, _, name = path.rpartition(".")
    return lambda marker: pack({"conv1.weight": Call(Global(module, name), _arguments(name, marker))})


def inherited(marker: pathlib.Path) -> bytes:
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    return pickle.dumps(Payload())


FILES: dict[str, Callable[[pathlib.Path], bytes]] = {  # name with its ending: bytes of the file; marker: what a payload would make
    **{f"calls {path}.pth": calling(path, torch_zip) for path in NAMED},
    **{f"stream calls {path}.pt": calling(path, torch_stream) for path in NAMED[:6]},
    "plain pickle.pth": inherited,
    "plain pickle in zip.pth": lambda marker: torch_zip(inherited(marker)),
    "instance of os.system.pth": lambda marker: torch_zip(b"(V" + f"touch {marker}".encode() + b"\nios\nsystem\n."),
    "state of a dictionary.pth": lambda marker: torch_zip(
        _coded(Call(Global("collections", "OrderedDict"), ())) + _coded({"x": 1}) + b"b."
    ),
    "registered extension.pth": lambda marker: torch_zip(b"\x82\x01."),
    "storage bomb.pth": lambda marker: odd_zip(Entry("a/data.pkl", pickled({"conv1.weight": tensor()})), bomb("a/data/0")),
    "pickle bomb.pth": lambda marker: odd_zip(bomb("a/data.pkl", b"B\0\0\0\xc0"), Entry("a/data/0", bytes(8))),
    "truthless size.pth": lambda marker: odd_zip(
        Entry("a/data.pkl", pickled({"conv1.weight": tensor()})), Entry("a/data/0", deflated(3072), 8, 8)
    ),
    "encrypted.pth": lambda marker: odd_zip(Entry("a/data.pkl", pickled({"w": tensor()})), Entry("a/data/0", bytes(20), flags=1)),
    "encrypted pickle.pth": lambda marker: odd_zip(Entry("a/data.pkl", bytes(20), flags=1), Entry("a/data/0", bytes(8))),
    "unknown compression.pth": lambda marker: odd_zip(Entry("a/data.pkl", pickled({"w": tensor()})), Entry("a/data/0", bytes(8), 99)),
    "no storage.pth": lambda marker: odd_zip(Entry("a/data.pkl", pickled({"w": tensor()}))),
    "two pickles.pth": lambda marker: odd_zip(Entry("a/data.pkl", pickled({})), Entry("b/data.pkl", pickled({}))),
    "storage elsewhere.pth": lambda marker: torch_zip({"conv1.weight": tensor(key="../../../../etc/passwd")}),
    "absurd shape.pth": lambda marker: torch_zip({"conv1.weight": tensor((2**40,), (1,))}),
    "one number many times.pth": lambda marker: torch_zip({"conv1.weight": tensor((2**40,), (0,))}),
    "many empty sides.pth": lambda marker: torch_zip({"conv1.weight": tensor((2**62, 2**62, 0), (1, 1, 1))}),
    "hundred sides.pth": lambda marker: torch_zip({"conv1.weight": tensor((1,) * 100, (1,) * 100)}),
    "negative stride.pth": lambda marker: torch_zip({"conv1.weight": tensor((2,), (-1,), 1)}),
    "words for a shape.pth": lambda marker: torch_zip({"conv1.weight": tensor(("a",), ("b",))}),
    "half a number.pth": lambda marker: torch_zip({"conv1.weight": tensor()}, bytes(7)),
    "unknown kind of storage.pth": lambda marker: torch_zip({"conv1.weight": tensor(kind="Float8_e4m3fnStorage")}),
    "identity of one word.pth": lambda marker: torch_zip({"conv1.weight": Stored("x")}),
    "names that are numbers.pth": lambda marker: torch_zip({1: tensor(), 2: tensor()}),
    "names that are tuples.pth": lambda marker: torch_zip({("a", 1): tensor(), None or "b": tensor()}),
    "unhashable name.pth": lambda marker: torch_zip(b"}(](K\x01eK\x01u."),
    "tensor for a function.pth": lambda marker: torch_zip({"conv1.weight": Call(tensor(), ())}),
    "control characters.pth": lambda marker: torch_zip({"conv1\x1b[31m.weight": tensor(), "fc\x07.weight": tensor()}),
    "deep.pth": lambda marker: torch_zip(b"(" * 100_000 + b"t" * 100_000 + b"."),
    "doubling.pth": lambda marker: torch_zip(b"(lp0\n" + b"".join(b"(lp%d\n" % (i + 1) + b"g%d\na" % i * 10 for i in range(40)) + b"."),
    "endless number.pth": lambda marker: torch_zip(b"\x8b\xff\xff\xff\x7f" + bytes(100) + b"."),
    "endless word.pth": lambda marker: torch_zip(b"\x8d" + struct.pack("<Q", 2**62) + b"x."),
    "endless bytes.pth": lambda marker: torch_zip(b"\x8e" + struct.pack("<Q", 2**40) + b"x."),
    "endless frame.pth": lambda marker: torch_zip(b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"x."),
    "far memory.pth": lambda marker: torch_zip(b"Nr\xff\xff\xff\x7f."),
    "stream of absurd storage.pt": lambda marker: torch_stream({"conv1.weight": tensor(numbers=2**45)}),
    "stream of negative storage.pt": lambda marker: torch_stream({"conv1.weight": tensor(numbers=-2)}),
    "stream of words for storage.pt": lambda marker: torch_stream({"conv1.weight": tensor(numbers="x")}),
    "stream of other size.pt": lambda marker: torch_stream({"conv1.weight": tensor()}, sizes=(2**60,)),
    "stream of unknown key.pt": lambda marker: torch_stream({"conv1.weight": tensor()}, keys=("9",)),
    "stream of keys that are none.pt": lambda marker: torch_stream({"conv1.weight": tensor()}, keys=(1, ())),
    "stream cut.pt": lambda marker: torch_stream({"conv1.weight": tensor()})[:-9],
    "empty.pth": lambda marker: b"",
    "zip cut.pth": lambda marker: torch_zip({"conv1.weight": tensor()})[:-30],
    "no pickle.ckpt": lambda marker: b"GGUF" + bytes(100),
    "long header.safetensors": lambda marker: safetensors({}, length=2**63),
    "short file.safetensors": lambda marker: b"\x01\0\0",
    "header of lists.safetensors": lambda marker: safetensors(b"[" * 100_000),
    "data beyond the end.safetensors": lambda marker: safetensors(of_type("F32", [2**40], [0, 2**42])),
    "data that overlap.safetensors": lambda marker: safetensors(
        {**of_type("F32", [2], [0, 8]), "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    ),
    "shape of other size.safetensors": lambda marker: safetensors(of_type("F32", [3], [0, 8])),
    "shape that overflows.safetensors": lambda marker: safetensors(of_type("F32", [2**32, 2**32], [0, 8])),
    "negative shape.safetensors": lambda marker: safetensors(of_type("F32", [-2], [0, 8])),
    "float8.safetensors": lambda marker: safetensors(of_type("F8_E4M3", [8], [0, 8])),
    "unknown type.safetensors": lambda marker: safetensors(of_type("F7", [8], [0, 8])),
    "no text.safetensors": lambda marker: safetensors(b"\xff\xfe{}"),
}
