"""Files that try to do harm: nothing of them is executed or written elsewhere, memory stays small, and refusals are ours."""

import copy
import csv
import io
import json
import pathlib
import pickle
import re
import tarfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attacks import weights
from attacks.processes import GIB, JAXBED, TRAIN, Fresh, rude, unrefused
from attacks.runs import World

PAYLOAD = "import dataclasses, pathlib\npathlib.Path({!r}).touch()\n\n\n@dataclasses.dataclass\nclass Config:\n    x: int = 0\n"
MOST_BYTES = GIB  # of memory beyond what a process began with
SPARE_BYTES = 4 * GIB  # of address space: what asks for more would be the machine's end
CELLS = ("=1+1", "@SUM(1)", "+1+cmd|' /C calc'!A0", "-2+3", "\t=1+1", "<script>alert(1)</script>", "\\input{/etc/passwd}")  # allowed names
FORMULA = re.compile(r"[=+@-](?!\d*\.?\d+(e-?\d+)?%?$)")


class Offer(NamedTuple):
    """Where the hostile file is, the command that meets it, and what that may write."""

    path: pathlib.Path
    module: str  # "" for the installed command in a new process
    words: tuple[str, ...]
    writes: tuple[str, ...] = ()


def offer(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one file."""
    name = list(FILES)[number % len(FILES)]
    kind, make = FILES[name]
    folder = world.case(*(("training",) if kind in (CONFIGURATIONS, ANSWERS) else ()))
    marker = folder / "executed"
    path, module, words, writes = make(world, folder, marker)
    before = _listed(folder, writes)
    at = path.parent if kind == CONFIGURATIONS else folder
    done = world.server.call(at, module, *words, spare_bytes=SPARE_BYTES) if module else Fresh(at, world.folder, JAXBED, *words).wait()
    faults = [rude(done) if done.code == 0 else unrefused(done, path.name)]
    faults += ["what it holds was executed"] if marker.exists() else []
    faults += [f"took {done.spent_bytes / GIB:.1f} GiB of memory"] if done.spent_bytes > MOST_BYTES else []
    new = sorted(_listed(folder, writes) - before - {"executed"})
    faults += [f"wrote {new[0]}"] if new else []
    faults += [_unsafe_cells(folder / "out")]
    if kind == ARCHIVES and (left := [path.name for path in (folder / "deep" / "target").glob("*")]):
        faults += [f"left {', '.join(left)} in its target"]
    return kind, (text := "; ".join(filter(None, faults))) and f"{name}: {text}"


def _listed(folder: pathlib.Path, but: tuple[str, ...]) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in names if not name.startswith((*but, "__pycache__"))}


def _unsafe_cells(out: pathlib.Path) -> str:
    """The first cell of the tables in a folder that a spreadsheet would compute; empty if there is none."""
    for path in sorted(out.glob("*.csv")):
        for row in csv.reader(path.read_text().splitlines()):
            if found := [cell for cell in row if FORMULA.match(cell)]:
                return f"{path.name} holds the cell {found[0][:40]!r}"
    return ""


WEIGHTS, ARCHIVES, CONFIGURATIONS, ANSWERS, TABLES = (
    f"hostile {kind}" for kind in ("weights", "archives", "configurations", "answers", "tables")
)


def _weights(name: str, content: Callable) -> Callable:
    def make(world: World, folder: pathlib.Path, marker: pathlib.Path) -> Offer:
        path = folder / name.replace(" ", "_")
        path.write_bytes(content(marker))
        if world.quick:
            return Offer(path, "attacks.reading", (path.name,))
        words = ("--config=tiny.py", "--workdir=run", "--config.epochs=0", f"--config.init_from={path.name}")
        return Offer(path, TRAIN, words, ("run",))

    return make


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, size
    return found


def _archive(*members: tarfile.TarInfo, content: bytes | None = None) -> Callable:
    def make(world: World, folder: pathlib.Path, marker: pathlib.Path) -> Offer:
        path = folder / "archives" / "edge.tar.gz"
        path.parent.mkdir()
        (folder / "deep").mkdir()
        if content is None:
            with tarfile.open(path, "w:gz") as tar:
                for member in map(copy.copy, members):
                    member.name = member.name.replace("CASE", str(folder))
                    tar.addfile(member, io.BytesIO(bytes(member.size)))
        else:
            path.write_bytes(content)
        return Offer(path, "data_prep.stimuli", ("deep/target", "--sets", "edge", "--from", "archives"), ("deep/target",))

    return make


def _configuration(change: Callable[[dict], object] | str, **files: str) -> Callable:
    """`jaxbed eval .` in a folder that someone else made."""

    def make(world: World, folder: pathlib.Path, marker: pathlib.Path) -> Offer:
        workdir = folder / "erm"
        for name in files:
            (workdir / f"{name}.py").write_text(PAYLOAD.format(str(marker)))
        path = workdir / "config.json"
        if isinstance(change, str):
            path.write_text(change)
        else:
            tree = json.loads(path.read_text())
            change(tree)
            path.write_text(json.dumps(tree))
        if {"numpy", "jax", "jaxbed"} & {*files}:  # what is imported first: of a server it would be too late
            return Offer(path, "", ("eval", "."), ("erm",))
        (workdir / "payload.py").write_text(PAYLOAD.format(str(marker)))
        return Offer(path, JAXBED, ("eval", "."), ("erm",))

    return make


def _class(name: object) -> Callable:
    return _configuration(lambda tree: tree["method"].update({"is": name}))


def _answers(content: Callable[[pathlib.Path], bytes], file: str = "responses/val/2.npz", command: str = "stats") -> Callable:
    def make(world: World, folder: pathlib.Path, marker: pathlib.Path) -> Offer:
        path = folder / "erm" / file
        path.write_bytes(content(marker))
        return Offer(path, JAXBED, (command, "erm"), ("erm",) if command == "eval" else ())

    return make


def _of_shape(shape: str) -> Callable:
    """Answers whose header has this text as the shape."""
    return _answers(lambda marker: weights.odd_zip(weights.Entry("response.npy", _npy(shape))))


def _npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(shape: str, data: bytes = b"", kind: str = "'<i2'") -> bytes:
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + data


def _with_pickle(marker: pathlib.Path) -> bytes:
    code = weights.pickled(weights.Call(weights.Global("os", "system"), (f"touch {marker}",)))
    return weights.odd_zip(weights.Entry("response.npy", _npy("(1,)", code, "'|O'")))


def _table(content: bytes, *words: str) -> Callable:
    def make(world: World, folder: pathlib.Path, marker: pathlib.Path) -> Offer:
        path = folder / "table.csv"
        path.write_bytes(content)
        return Offer(path, JAXBED, ("stats", "table.csv", "--permutations", "100", *words), ("out",))

    return make


def _named(name: str, dataset: str = "d") -> bytes:
    """Scores of an algorithm with this name and another, on datasets whose names begin with `dataset`."""
    scores = [
        (own, run, f"{dataset}{data}", 60 + run + 5 * data + (own == "b")) for own in (name, "b") for run in range(3) for data in range(4)
    ]
    text = io.StringIO()
    csv.writer(text).writerows([("algorithm", "run", "dataset", "accuracy"), *scores])
    return text.getvalue().encode()


FILES: dict[str, tuple[str, Callable]] = {
    **{name: (WEIGHTS, _weights(name, content)) for name, content in weights.FILES.items()},
    **{
        f"archive with {name}": (ARCHIVES, _archive(*members))
        for name, members in {
            "a path upwards": [_member("../../outside", size=4)],
            "a path that goes up within": [_member("edge/../../../outside", size=4)],
            "an absolute path": [_member("CASE/outside", size=4)],
            "a link to the root": [_member("edge", tarfile.SYMTYPE, "/")],
            "a link and a file through it": [_member("edge/up", tarfile.SYMTYPE, "../../.."), _member("edge/up/outside", size=4)],
            "a hard link": [_member("edge/passwd", tarfile.LNKTYPE, "/etc/passwd")],
            "a device": [_member("edge/null", tarfile.CHRTYPE)],
            "a pipe": [_member("edge/pipe", tarfile.FIFOTYPE)],
            "a long name": [_member("edge/" + "x" * 3000 + ".png", size=4)],
            "control characters": [_member("edge/\x1b[31m\n.png", size=4)],
            "a large file": [_member("edge/large.png", size=2**25)],
        }.items()
    },
    "archive that is none": (ARCHIVES, _archive(content=b"PK\3\4" + bytes(100))),
    "archive that is empty": (ARCHIVES, _archive(content=b"")),
    "configuration of a module in the folder": (CONFIGURATIONS, _class("payload:Config")),
    "configuration of a module of Python": (CONFIGURATIONS, _class("this:s")),
    "configuration of a function": (CONFIGURATIONS, _class("os:system")),
    "configuration of a relative module": (CONFIGURATIONS, _class(".payload:Config")),
    "configuration of a number": (CONFIGURATIONS, _class(3)),
    "configuration of nothing": (CONFIGURATIONS, _class("")),
    "configuration of a list": (CONFIGURATIONS, _class(["payload:Config"])),
    "configuration of another class of ours": (CONFIGURATIONS, _class("jaxbed.optim:Optim")),
    "configuration with huge numbers": (CONFIGURATIONS, _configuration(lambda tree: tree.update(seeds=10**30, epochs=10**400))),
    "configuration that is deep": (CONFIGURATIONS, _configuration("[" * 100_000 + "]" * 100_000)),
    "configuration beside numpy.py and jax.py": (CONFIGURATIONS, _configuration(lambda tree: None, numpy="", jax="")),
    "answers with a pickle": (ANSWERS, _answers(_with_pickle)),
    "answers that are a pickle": (ANSWERS, _answers(weights.inherited)),
    "answers with objects": (
        ANSWERS,
        _answers(lambda marker: _npz(response=np.array([None, 1]), seeds=np.arange(2), alive=np.ones(2, bool))),
    ),
    "answers of an absurd shape": (ANSWERS, _of_shape("(2, 10**0 << 40)")),
    "answers of a huge shape": (ANSWERS, _of_shape("(2, 1099511627776)")),
    "answers that unpack to 3 GiB": (
        ANSWERS,
        _answers(lambda marker: weights.odd_zip(weights.bomb("response.npy", _npy("(2, 805306368)")))),
    ),
    "answers with a code for a header": (ANSWERS, _of_shape("__import__('os')")),
    "answers that are encrypted": (ANSWERS, _answers(lambda marker: weights.odd_zip(weights.Entry("response.npy", bytes(99), flags=1)))),
    "answers of a complex type": (
        ANSWERS,
        _answers(lambda marker: _npz(response=np.ones((2, 16), complex), seeds=np.arange(2), alive=np.ones(2, bool))),
    ),
    "sets that are deep": (ANSWERS, _answers(lambda marker: b"[" * 100_000, "responses/sets.json")),
    "sets elsewhere": (
        ANSWERS,
        _answers(lambda marker: b'{"data": {"cue": "x"}, "classes": [], "sets": {"../../../x": {"role": "val"}}}', "responses/sets.json"),
    ),
    "sets with control characters": (
        ANSWERS,
        _answers(lambda marker: b'{"data": {"cue": "x"}, "classes": [], "sets": {"\\u001b[31m": {"role": "val"}}}', "responses/sets.json"),
    ),
    "images of 100 MB in a line": (ANSWERS, _answers(lambda marker: b"name,label,cue\n" + b"x" * 10**8, "responses/val/images.csv")),
    **{f"table with {name!r}": (TABLES, _table(_named(name), "--out", "out")) for name in CELLS[:2]},
    **{
        f"table with {name!r}": (TABLES, _table(_named(name)))
        for name in (*CELLS[2:], "\x1b[31mred", "a\x07b", "a\x00b", "a\nb", "\u202eabc")
    },
    "table with a name of 3,000 letters": (TABLES, _table(_named("x" * 3000))),
    "table with datasets of 3,000 letters": (TABLES, _table(_named("a", "x" * 3000))),
    "table of 20,000 columns": (TABLES, _table(b",".join(b"c%d" % i for i in range(20_000)) + b"\n" + b"1," * 19_999 + b"1\n")),
    "table with an open quote": (TABLES, _table(b'algorithm,run,dataset,accuracy\n"a,0,d,1\n' + b"a,0,d,1\n" * 10_000)),
    "table of one long line": (TABLES, _table(b"a" * 10**7)),
    "table of numbers beyond all": (TABLES, _table(b"algorithm,run,dataset,accuracy\na,0,d,1e999\na,1,d,-1e999\nb,0,d,1\n")),
    "table that is a pickle": (TABLES, _table(pickle.dumps([1, 2]))),
}
