"""Files that are read again: written whole or not at all, and read without trust in what they say. Knows nothing of JAX."""

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import pathlib
import platform
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, Any

import numpy as np

LONGEST_NAME = 255  # bytes, on usual file systems
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
DEFLATED = 1032  # bytes that one byte of deflated data can become, and one more of those for its beginning
ENCRYPTED = 0x1  # bit of a member's flags
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Fault(Exception):
    """What is wrong with the content of a file, in words for its owner."""


@contextlib.contextmanager
def guarded(path: pathlib.Path, cure: str = "", fault: str = "is damaged", reason: str = "its content cannot be read") -> Iterator[None]:
    """Within it, whatever the content of a damaged or hostile file raises becomes ValueError "PATH FAULT (REASON): CURE".

    The reason is that of a Fault. Other errors are words of a library, and `reason` takes their place. Errors of the disk pass.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a place before the file's beginning
            raise
        if isinstance(error, Fault):
            reason = str(error)
        elif isinstance(error, MemoryError):
            reason = "it asks for more memory than there is"
        raise ValueError(f"{path} {fault} ({reason})" + (f": {cure}" if cure else "")) from error


@contextlib.contextmanager
def replacing(path: pathlib.Path, lasting: bool = True) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` once it is whole. Nothing changes where writing fails.

    Until then it is a hidden file next to `path`, named with the machine and the number of the process, since two processes may write the
    same file; a digest stands for a name with which that would be too long. lasting: the content is on the disk before, so that it survives
    a power cut, and what killed processes of this machine left there is removed; both take too long for many thousand images.
    """
    name, node = path.name, platform.node().replace("/", "")
    if len(os.fsencode(f".{name}.{node}-{2**22}.partial")) > LONGEST_NAME:  # whatever the number of the process, so that others find it
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    begin = f".{name}.{node}-"
    for left in path.parent.glob(f"{glob.escape(begin)}*.partial") if lasting else ():
        if not _runs(left.stem.rpartition("-")[2]):
            left.unlink(missing_ok=True)
    partial = path.with_name(f"{begin}{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _runs(number: str) -> bool:
    """Whether there is a process of that number, and it has not ended."""
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    with contextlib.suppress(OSError):  # of other systems than Linux
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # ended, and its parent does not ask
    return True


def write(path: pathlib.Path, text: str) -> None:
    """Replaces the content of a file, in UTF-8. A file that has this content already is not touched."""
    content = text.encode()
    if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
        return
    with replacing(path) as file:
        file.write(content)


def write_arrays(path: pathlib.Path, arrays: Mapping[str, Any], compressed: bool = True) -> None:
    """Writes {name: array} as an npz file."""
    with replacing(path) as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)


def read_json(path: pathlib.Path, cure: str = "") -> Any:
    """The content of a JSON file. Raises ValueError, with the cure, for a damaged one."""
    with guarded(path, cure, reason="it is not JSON"):
        try:
            return json.loads(path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise Fault("it is not text in UTF-8") from error
        except json.JSONDecodeError as error:
            reason = f"it is not JSON from line {error.lineno}, column {error.colno} on"
            raise Fault(reason if error.doc.strip() else "it is empty") from error


def read_object(path: pathlib.Path, cure: str = "") -> dict:
    """The object in a JSON file. Raises ValueError, with the cure, for a damaged file and for other content."""
    content = read_json(path, cure)
    with guarded(path, cure):
        if not isinstance(content, dict):
            raise Fault("it does not hold a JSON object")
    return content


def read_arrays(
    path: pathlib.Path, cure: str = "", most_bytes: Callable[[str, dict[str, np.ndarray]], int] | None = None
) -> dict[str, np.ndarray]:
    """{name: array} of an npz file. Raises ValueError, with the cure, for a damaged one and for arrays of Python objects.

    No array takes more memory than its member declares, nor the member more than the file's own size allows, nor more than
    most_bytes(its name, the smaller arrays).
    """
    with path.open("rb") as file, guarded(path, cure, reason="its arrays cannot be read"):
        with zipfile.ZipFile(file) as archive:
            check_members(archive, os.fstat(file.fileno()).st_size)
            arrays: dict[str, np.ndarray] = {}
            for member in sorted(archive.infolist(), key=lambda member: member.file_size):
                name = member.filename.removesuffix(".npy")
                if most_bytes and member.file_size > (most := most_bytes(name, arrays)):
                    raise Fault(f"its array {name} declares {member.file_size:,} bytes, more than the {most:,} that make sense")
                with archive.open(member) as inner:
                    arrays[name] = _array(inner, member.file_size)
            return arrays


def check_members(archive: zipfile.ZipFile, size: int, methods: Collection[int] = METHODS) -> None:
    """Raises Fault for a member that cannot be read, and for more data than an archive of `size` bytes can hold."""
    members = archive.infolist()
    if len({member.filename for member in members}) < len(members):
        raise Fault("two of its members have the same name")
    for member in members:
        if member.flag_bits & ENCRYPTED:
            raise Fault("it is encrypted")
        if member.compress_type not in methods:
            raise Fault("it is compressed in an unexpected way")
        most = member.compress_size if member.compress_type == zipfile.ZIP_STORED else DEFLATED * (member.compress_size + 1)
        if member.file_size > most:
            raise Fault(f"it declares {member.file_size:,} bytes where {most:,} are possible")
    if (declared := sum(member.compress_size for member in members)) > size:
        raise Fault(f"it has {size:,} bytes and declares {declared:,}")


def read_array(path: pathlib.Path, cure: str = "") -> np.ndarray:
    """The array of an npy file. Raises ValueError, with the cure, for a damaged one and for an array of Python objects."""
    with path.open("rb") as file, guarded(path, cure, reason="its array cannot be read"):
        return _array(file, os.fstat(file.fileno()).st_size)


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """The array in a file of `size` bytes, with which its own size is compared before memory is taken for it."""
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    if dtype.hasobject:
        raise Fault("it holds Python objects")
    if min(shape, default=0) < 0 or math.prod(shape) * max(dtype.itemsize, 1) != size - file.tell():
        raise Fault(f"an array does not have the size that it declares, {dtype} {list(shape)}")
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    file.read(1)  # to the end, where an archive has its checksum
    return array
