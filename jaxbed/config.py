"""What a run is made of: plain dataclasses, built by a Python file of `configs/`, overridden by flags, kept as JSON.

Defaults live here and in the dataclasses of the parts, once; nothing reads a missing key deep in the code.
"""

import contextlib
import dataclasses
import importlib
import json
import pathlib
import re
import shlex
from collections.abc import Collection, Iterator
from typing import Annotated, Any, ClassVar, Protocol

from jaxbed import values
from jaxbed.data.source import Source
from jaxbed.measures import overlaps
from jaxbed.method import Info, Method
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.parallel import Mesh
from jaxbed.settings import MAY_CHANGE, OVERLAPS, current, differences, free
from jaxbed.stats import names
from jaxbed.system import files
from jaxbed.training import contract
from jaxbed.training.curves import Config as Curves
from jaxbed.values import Count, NotNegative, Range, Whole

CURE = "restore it, or take another workdir"
WEIGHTS = (".pth", ".pt", ".bin", ".safetensors", ".pth.tar", ".ckpt", ".npz")
PARTS = ("method", "net", "data", "optim", "mesh", "eval", "save", "curves")  # of a configuration, that are dataclasses


class MethodConfig(Protocol):
    """The Config of a method, a dataclass of its settings: see `jaxbed.method` for what it makes and what `reads_bias` promises."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def reads_bias(self) -> bool | str: ...

    def make(self, info: Info, net: Any, optim: Optim) -> Method: ...


class DataConfig(Protocol):
    """The Config of a data set, a dataclass of its settings. `open` raises ValueError or FileNotFoundError, with the cure."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def open(self) -> Source: ...


@dataclasses.dataclass
class Eval:
    batch_size: Count = 256
    sets: tuple[str, ...] = ()  # names of evaluation sets; empty: all that the data set has
    while_training: bool = True  # also shows the accuracy on the validation images after every epoch
    # Answers also hold the logits of every image: 2 bytes for each seed, epoch, image and class. Multi-label sets always have them
    keep_scores: bool = False


@dataclasses.dataclass
class Save:
    resume_every_minutes: NotNegative = 10.0  # the whole state, between epochs and within them; 0: after every epoch


@dataclasses.dataclass
class Train:
    """One algorithm on one data set, with all its seeds.

    MAY_CHANGE names fields that a run may be continued with other values of, since nothing that was trained depends on them; so it does
    in any dataclass of a configuration. That the images are still those trained on, `train.same_images` sees to.
    """

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("mesh", "eval", "save", "curves", "published")

    name: str  # of the algorithm, in every table
    method: MethodConfig  # Config of a module in jaxbed.methods, or of your own
    net: Network  # Config of a module in jaxbed.models
    data: DataConfig  # Config of a module in jaxbed.data
    optim: Optim = dataclasses.field(default_factory=Optim)
    epochs: Whole = 10  # 0: nothing is trained, and what init_from gives is evaluated as epoch 0
    batch_size: Count = 64
    seeds: Annotated[int, Range(1, 2**20)] = 3  # how many
    first_seed: Whole = 0  # they are first_seed, first_seed + 1, ...
    grid: tuple[str, ...] = ()  # e.g. ("optim.lr=0.1,0.01",): all seeds at every value, in one array; see `members`
    init_from: str = ""  # WORKDIR:EPOCH of a run with the same networks and seeds, or a file of weights, see `pretrained`
    shared_order: bool = False  # all seeds see the batches of the first: dependent runs, error bars too small
    mesh: Mesh = dataclasses.field(default_factory=Mesh)
    eval: Eval = dataclasses.field(default_factory=Eval)
    save: Save = dataclasses.field(default_factory=Save)
    curves: Curves = dataclasses.field(default_factory=Curves)
    published: str = ""  # where the method's settings for this data set are from, in words


def check(cfg: Train) -> None:
    """Raises ValueError for values that no run can have."""
    values.check(cfg)
    if cfg.epochs == 0 and not cfg.init_from:
        raise ValueError(
            "epochs = 0: nothing is trained, so init_from must name weights, --config.init_from=FILE. docs/methods/published.md lists "
            "published ones; those of EfficientNet-Lite0 come with the extra lite0. Or train for at least 1 epoch"
        )
    if cfg.first_seed > values.LARGEST - cfg.seeds:
        raise ValueError(f"first_seed = {cfg.first_seed}: must be from 0 to {values.LARGEST - cfg.seeds}, for {cfg.seeds} seeds")
    contract.check_parts(cfg.method, cfg.net, cfg.data)
    if fault := names.fault(cfg.name):
        raise ValueError(f"name = {names.quoted(cfg.name)} {fault}. It is the algorithm's name in every table")


def is_weights(source: str) -> bool:
    """Whether `init_from` names a file of weights, and no workdir."""
    return source.lower().endswith(WEIGHTS)


def from_word(cfg: Any, field: str, word: str, asked: str) -> Any:
    """The value that a word of the command line gives a field.

    Raises ValueError, which begins with `asked`, where there is no such field, where it is no single value, or is of another kind.
    """
    now = values.look_up(cfg, field, asked)
    if dataclasses.is_dataclass(now):
        inner = ", ".join(f"{field}.{each.name}" for each in dataclasses.fields(now)) or "of which it has none"
        raise ValueError(f"{asked}: name one of its fields, {inner}; what {field} is, the file says")
    return values.from_word(asked, field, word, values.hint(cfg, field), now)


def overridden(cfg: Train) -> list[str]:
    """Fields with other values than `published` gives them, as "method.q = 0.5": it was written before the command line was read."""
    changed = []
    for field, value in re.findall(r"(\w+(?:\.\w+)+) = (\([^)]*\)|[^,)]+)", cfg.published):
        with contextlib.suppress(ValueError):  # a method that took the place of the one that was built
            if str(now := values.look_up(cfg, field, field)) != value:
                changed.append(f"{field} = {now}")
    return changed


def to_dict(cfg: Any) -> Any:
    """Nested dictionaries, lists and scalars; each dataclass carries its qualified name under "is"."""
    if dataclasses.is_dataclass(cfg):
        fields = {f.name: to_dict(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}
        return {"is": f"{type(cfg).__module__}:{type(cfg).__qualname__}", **fields}
    if isinstance(cfg, (list, tuple)):
        return [to_dict(x) for x in cfg]
    if cfg is None or isinstance(cfg, (bool, int, float, str)):
        return cfg
    raise ValueError(f"{cfg!r} of type {type(cfg).__name__} cannot be kept as JSON: a config holds dataclasses, tuples and scalars")


def from_dict(tree: Any) -> Any:
    """The inverse of to_dict. Lists come back as tuples. Fields that the class does not have (any more) are an error.

    The modules of all classes are imported, which runs them: see `load`.
    """
    if isinstance(tree, list):
        return tuple(from_dict(x) for x in tree)
    if not isinstance(tree, dict):
        return tree
    if "is" not in tree:
        raise ValueError(f'not a saved config: no "is" among {sorted(tree)}')
    kind = _class(tree)
    if kind is None:
        raise ValueError(f"{names.cut(tree['is'])} is not a dataclass of this version of the code")
    given = {key: from_dict(value) for key, value in tree.items() if key != "is"}
    unknown = sorted(set(given) - {f.name for f in dataclasses.fields(kind)})
    if unknown:
        raise ValueError(f"{tree['is']} has no field {', '.join(unknown)}: the run was made by another version of the code")
    missing = [f.name for f in dataclasses.fields(kind) if f.name not in given and f.default is f.default_factory]
    if missing:
        raise ValueError(f"{tree['is']} lacks {', '.join(missing)}: the run was made by another version of the code")
    return kind(**given)


def _class(tree: dict) -> type | None:
    module, name = _module(tree["is"]), str(tree["is"]).partition(":")[2]
    try:
        kind = getattr(importlib.import_module(module), name, None) if module else None
    except ModuleNotFoundError:
        return None
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def _module(name: Any) -> str:
    """The module of a class MODULE:NAME; empty for what names none."""
    module, _, kind = str(name).partition(":")
    return module if kind and all(part.isidentifier() for part in module.split(".")) else ""


def saved(cfg: Train) -> dict:
    """The content of config.json: the configuration, and for readers without its classes what MAY_CHANGE and what it OVERLAPS with."""
    tree = to_dict(cfg)
    return {**tree, MAY_CHANGE: _may_change(cfg), OVERLAPS: overlaps.of_settings(tree)}


def _may_change(cfg: Any, path: str = "") -> list[str]:
    """Dotted names of the fields that the dataclasses of a configuration name in MAY_CHANGE."""
    if not dataclasses.is_dataclass(cfg):
        return []
    listed = [f"{path}{name}" for name in getattr(cfg, "MAY_CHANGE", ())]
    return listed + [name for f in dataclasses.fields(cfg) for name in _may_change(getattr(cfg, f.name), f"{path}{f.name}.")]


def save(cfg: Train, path: pathlib.Path) -> None:
    """Keeps a configuration as JSON."""
    files.write(path, json.dumps(saved(cfg), indent=2) + "\n")


def claim(cfg: Train, workdir: pathlib.Path) -> None:
    """Makes the workdir and keeps the configuration there; ValueError where something was trained with another one."""
    check(cfg)
    path = workdir / "config.json"
    if path.is_file():
        given = json.loads(json.dumps(saved(cfg)))
        kept = _completed(read(path), cfg)
        if kept == given:
            return
        differing = differences(kept, given, free(kept, given))
        if differing and (workdir / "checkpoints").is_dir():
            cure = "Take another --workdir, or delete it"
            if [line.partition(":")[0] for line in differing] == ["epochs"]:
                cure += f". To train on from its last epoch, with a new optimizer: --config.init_from={workdir} --workdir=ANOTHER"
            raise ValueError(f"{workdir} holds a run with other settings (there / now): {'; '.join(differing)}. {cure}")
    workdir.mkdir(parents=True, exist_ok=True)
    save(cfg, path)


def _completed(tree: Any, cfg: Any) -> Any:
    """A saved configuration with the fields that its version did not have yet, at their defaults; cfg is the one it is compared with."""
    if not isinstance(tree, dict) or not dataclasses.is_dataclass(cfg):
        return tree
    completed = dict(tree)
    for field in dataclasses.fields(cfg):
        if field.name in tree:
            completed[field.name] = _completed(tree[field.name], getattr(cfg, field.name))
        elif field.default is not dataclasses.MISSING:
            completed[field.name] = to_dict(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            completed[field.name] = to_dict(field.default_factory())
    return completed


def load(workdir: pathlib.Path, modules: Collection[str] = ()) -> Train:
    """The configuration of a run's workdir, whose classes are of jaxbed or of `modules`: no file may say which code to run.

    Raises ValueError for all other classes, before anything is imported, and for a configuration that this version cannot use.
    """
    path = pathlib.Path(workdir) / "config.json"
    tree = read(path)
    for beside in (MAY_CHANGE, OVERLAPS):
        tree.pop(beside, None)
    with files.guarded(path, CURE, "cannot be used"):
        foreign = [name for name in _named(tree) if _module(name) and not _is_within(_module(name), ("jaxbed", *modules))]
    wanted = dict.fromkeys([*modules, *map(_module, foreign)])
    cure = f"PYTHONPATH=FOLDER jaxbed eval {shlex.quote(str(workdir))} {' '.join(f'--allow-module {name}' for name in wanted)}"
    if foreign:
        shown = names.cut(foreign[0])
        raise ValueError(f"{path} names {shown}, and importing a module runs it. If it is yours, and lies in FOLDER: {cure}")
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not _is_within(name, [error.name or ""]):  # it is there, and lacks one that it needs
                raise
            raise ValueError(f"--allow-module {name}: the Python path has no such module. If it lies in FOLDER: {cure}") from error
    with files.guarded(path, CURE, "cannot be used"):
        try:
            cfg = from_dict(tree)
            if not isinstance(cfg, Train):
                raise ValueError(f"it describes a {type(cfg).__name__}, not a run")
            if single := [name for name in PARTS if not dataclasses.is_dataclass(getattr(cfg, name))]:
                raise ValueError(f'{single[0]} is {getattr(cfg, single[0])!r} and must be an object with "is"')
            check(cfg)
        except ValueError as error:
            raise files.Fault(str(error)) from error
    return cfg


def _named(tree: Any) -> Iterator[str]:
    """The classes that a saved configuration names."""
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _named(inner)
    if isinstance(tree, dict) and "is" in tree:
        yield str(tree["is"])


def _is_within(module: str, others: Collection[str]) -> bool:
    """Whether a module is one of the others, or lies below one of them."""
    return any(f"{module}.".startswith(f"{other}.") for other in others)


def read(path: pathlib.Path) -> dict:
    """A saved configuration as nested dictionaries. Raises FileNotFoundError or ValueError where there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {path.parent} is not the workdir of a run (python -m jaxbed.main makes one)")
    return current(files.read_object(path, CURE))
