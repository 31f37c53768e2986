"""The command line of a run: --config=METHOD:DATA, --config.NAME=VALUE, --workdir=DIR."""

import ast
import difflib
import functools
import importlib.util
import inspect
import io
import itertools
import pathlib
import re
import sys
import textwrap
import tokenize
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxbed import config, settings, values
from jaxbed.config import Train

USAGE = """usage: python -m jaxbed.main --config=METHOD[:DATA] [--workdir=DIR] [--config.NAME=VALUE ...]

Trains all seeds, evaluates every epoch on every set, prints the scores. If interrupted, rerun the same command to resume.

  --config=METHOD[:DATA]   a configuration that comes with jaxbed, as sagnet or sagnet:colored_mnist; or FILE.py[:DATA], a Python file of
                           your own with get_config(), which may take the name of a data set
  --config.NAME=VALUE      another value of a field, as --config.optim.lr=0.05; add --config=METHOD --help for a list of all
  --workdir=DIR            where the run is kept (default: runs/METHOD-DATA, and the fields that were given)
"""
EXAMPLE = "for example --config=erm or --config=sagnet:colored_mnist"
SHIPPED = pathlib.Path(__file__).parent / "configs"
HELP = ("--help", "-h")
WIDTH = 140  # characters of a line of help
LONGEST = 150  # characters of a default workdir's name


class Asked(NamedTuple):
    """What a command line asks for."""

    cfg: Train
    workdir: pathlib.Path


def parse(words: Sequence[str]) -> Asked | None:
    """What the words after the command ask for; None where they ask for help, which is then printed.

    Raises ValueError, which names the word and the cure, for what cannot be understood. Of a field that is given several times the last
    value counts; several of a tuple of texts, such as `grid`, are joined.
    """
    given, help = _pairs([word for word in words if word not in HELP]), any(word in HELP for word in words)
    source = next((value for name, value in reversed(given) if name == "--config"), None)
    if source is None and help:
        print(USAGE)
        return None
    if not source:
        raise ValueError(f"--config=METHOD is missing, {EXAMPLE}")
    cfg = load(source)
    fields: dict[str, Any] = {}
    former = {}
    for name, word in given:
        if name.startswith("--config."):
            field = name.removeprefix("--config.")
            if field in settings.RENAMED:
                print(f"jaxbed: {name} is now --config.{settings.RENAMED[field]}", file=sys.stderr)
                former[field := settings.RENAMED[field]] = name.removeprefix("--config.")
            value = config.from_word(cfg, field, word, f"{name}={word}")
            joined = field in fields and values.hint(cfg, field) == tuple[str, ...]
            fields[field] = fields[field] + value if joined else value
    for field, value in fields.items():
        cfg = values.with_field(cfg, field, value)
    if help:
        print(USAGE, *describe(cfg), sep="\n")
        return None
    folder = next((value for name, value in reversed(given) if name == "--workdir"), None)
    if folder is not None and not folder.strip():
        raise ValueError("--workdir= is empty: name a folder, or leave it out")
    if folder:
        return Asked(cfg, pathlib.Path(folder))
    return Asked(cfg, default_workdir(source, cfg, {former.get(field, field): value for field, value in fields.items()}))


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    """(name, value) of --name=value or --name value."""
    pairs, rest = [], iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--config(\.\w+)*|--workdir", name):
            close = difflib.get_close_matches(name, ("--config", "--workdir", "--help"), 1)
            known = f"did you mean {close[0]}?" if close else "a run is given --config=METHOD, --config.NAME=VALUE and --workdir=DIR"
            raise ValueError(f"{word} is unknown: {known}")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise ValueError(f"{word} lacks its value: write {word}=VALUE")
            value = following
        pairs.append((name, value))
    return pairs


def load(source: str) -> Train:
    """The configuration of FILE.py, FILE.py:DATA, METHOD or METHOD:DATA.

    A file can import modules from its folder and from the folder above, wherever the command is called. Raises ValueError, which names file
    and line, where there is no such file, where it fails, or where it does not return a configuration.
    """
    path, colon, data = _file(source)
    sys.path += [folder for folder in map(str, path.absolute().parents[:2]) if folder not in sys.path]
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    assert spec and spec.loader  # a file that is there has both
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        make = getattr(module, "get_config", None)
        if not callable(make):
            raise ValueError(f"{path} has no function get_config(), which returns the configuration")
        given = [data] if colon else []
        _check_call(make, given, source)
        cfg = make(*given)
    except Exception as error:  # whatever the file does
        raise ValueError(f"--config={source}: {_reason(error, path)}") from error
    if not isinstance(cfg, Train):
        raise ValueError(f"--config={source}: get_config() returns a {type(cfg).__name__}, and must return a jaxbed.config.Train")
    return cfg


def _file(source: str) -> tuple[pathlib.Path, str, str]:
    """(path, ":", DATA) of FILE.py:DATA, or of NAME:DATA of the configurations that come with jaxbed; without a colon, (path, "", "")."""
    file, colon, data = source.partition(".py:") if ".py:" in source else (source.removesuffix(".py"), "", "")
    path = pathlib.Path(f"{file}.py")
    if not colon and not source.endswith(".py"):
        file, colon, data = source.partition(":")
        path = SHIPPED / f"{file}.py"
        if not file.isidentifier():
            raise ValueError(f"--config={source}: a configuration is a Python file, or the name of one that jaxbed has, {EXAMPLE}")
        if not path.is_file():
            known = sorted(each.stem for each in SHIPPED.glob("*.py"))
            close = difflib.get_close_matches(file, known, 1)
            cure = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}; or name a file, --config=FILE.py"
            raise ValueError(f"--config={source}: jaxbed has no configuration {file}; {cure}")
    if not path.is_file():
        raise ValueError(f"--config={source}: there is no file {path}{_near(path)}")
    return path, colon and ":", data


def _module_name(path: pathlib.Path) -> str:
    """The file's own, under which `jaxbed eval` can find classes of it again, unless another module has that name."""
    known = sys.modules[path.stem].__spec__ if path.stem in sys.modules else importlib.util.find_spec(path.stem)
    unique = known is None or (known.origin and pathlib.Path(known.origin).resolve() == path.resolve())
    return path.stem if unique else f"{path.stem}_config"


def _near(path: pathlib.Path) -> str:
    close = difflib.get_close_matches(path.name, sorted(each.name for each in path.parent.glob("*.py")), 1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _check_call(make: Any, given: list[str], source: str) -> None:
    try:
        inspect.signature(make).bind(*given)
    except TypeError:
        without = source.removesuffix(f":{''.join(given)}")
        cure = (
            f"get_config() takes no data set: write --config={without}" if given else f"it needs a data set: write --config={source}:DATA"
        )
        raise ValueError(cure) from None


def _reason(error: Exception, path: pathlib.Path) -> str:
    """What went wrong in a configuration file, and in which of its lines."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}, line {error.lineno or 1}, is not Python ({error.msg})"
    if isinstance(error, ValueError):
        return str(error)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}: {type(error).__name__}: {error}" if lines else f"{type(error).__name__}: {error}"


def describe(cfg: Train) -> list[str]:
    """A line for each field that can be given: its name, its value, what is allowed; below, what it means, where its class says so."""
    rows = [(f"--config.{field}", str(value), values.allowed(hint), _meaning(cfg, field)) for field, value, hint, _ in values.fields(cfg)]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = []
    for name, value, allowed, meaning in rows:
        lines.append(f"{name:{widths[0]}}  {value:{min(widths[1], 40)}}  {allowed}")
        lines += textwrap.wrap(meaning, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines


def _meaning(cfg: Train, field: str) -> str:
    """The comment on a field in its class: behind it, or in the lines above."""
    holder, _, name = field.rpartition(".")
    kind = type(values.look_up(cfg, holder, field) if holder else cfg)
    return next((found for each in kind.__mro__ if (found := _comments(each).get(name))), "")


@functools.cache
def _comments(kind: type) -> dict[str, str]:
    """{field: comment} of the fields that a class itself declares; {} where its source is not at hand."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT]
    behind = {token.start[0]: token.string for token in tokens if token.line.strip() != token.string}
    alone = {token.start[0]: token.string for token in tokens if token.line.strip() == token.string}
    found = {}
    for field in ast.parse(source).body[0].body:  # type: ignore[attr-defined]  # it is a class
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            above = list(itertools.takewhile(alone.__contains__, range(field.lineno - 1, 0, -1)))[::-1]
            words = [alone[line] for line in above] + [behind[line] for line in (field.end_lineno or field.lineno,) if line in behind]
            found[field.target.id] = " ".join(word.lstrip("# ") for word in words)
    return found


def default_workdir(source: str, cfg: Train, fields: dict[str, Any]) -> pathlib.Path:
    """runs/METHOD-DATA, then the fields that were given, but for those that a run may be continued with other values of."""
    bound = {field: value for field, value in fields.items() if not _is_free(field, settings.free(config.saved(cfg)))}
    name = f"{pathlib.Path(source.split(':')[0]).stem}-{type(cfg.data).__module__.rpartition('.')[2]}"
    name += "".join(f",{field}={value}" for field, value in sorted(bound.items()))
    name = re.sub(r"[^\w.,=+()-]+", "_", name)
    if len(name) > LONGEST:
        raise ValueError("so many fields make no name for a workdir: give --workdir=DIR")
    return pathlib.Path("runs") / name


def _is_free(field: str, free: set[str]) -> bool:
    return any(field == each or field.startswith(f"{each}.") for each in free)
