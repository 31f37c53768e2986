"""Parameters to start from: another run's checkpoint, or weights of another framework."""

import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from jaxbed import config, parallel
from jaxbed.models import bit, convert, convnext, dpn, efficientnet, torch_files, vit
from jaxbed.training.checkpoint import Store
from jaxbed.training.program import Program, Run

PyTree = Any
BODY = ("stem", "stage", "top")  # how names of layers begin that a file must have; others belong to heads, or are a method's own


class Family(NamedTuple):
    """Networks whose weights can be read, told by the name of an array in their files."""

    mark: str
    from_torch: Callable[[dict[str, np.ndarray]], tuple[PyTree, PyTree]]
    config: str
    head: str  # the file's name of the last layer
    fields: Mapping[str, str] = MappingProxyType({})  # of the configuration, that the file's shapes do not tell and its names do


TORCHVISION = {"layout": "torchvision", "shortcut": "conv"}
POOLED = {"layout": "torchvision", "shortcut": "mean"}
CAFFE = {"layout": "caffe", "shortcut": "conv"}
RESNETS = Family("conv1.weight", convert.from_torch, "resnet.Config()", "fc", TORCHVISION)
FAMILIES = (
    Family("_conv_stem.weight", efficientnet.from_torch, "efficientnet.Config()", "_fc"),
    Family("stem.0.weight", convnext.from_torch, "convnext.Config()", "head.fc"),
    Family("cls_token", vit.from_torch, "vit.Config()", "head"),
    Family("class_token", vit.from_torch, "vit.Config()", "heads.head"),
    Family("0.0.weight", convert.from_simclr, "resnet.Config()", "fc", TORCHVISION),
    Family("layer0.conv1.weight", convert.from_cadene, 'resnet.Config(gate="se", layout="caffe")', "last_linear", CAFFE),
    Family("resnet/root_block/standardized_conv2d/kernel", bit.from_npz, "bit.Config()", "head"),
    Family("classifier.weight", dpn.from_torch, "dpn.Config()", "classifier"),
    Family("features.conv1_1.conv.weight", dpn.from_torch, "dpn.Config()", "last_linear", {"last_activation": "relu"}),
    Family("layer2.0.downsample.2.weight", convert.from_torch, 'resnet.Config(shortcut="mean")', "fc", POOLED),
    RESNETS,
)


def load(
    source: str,
    program: Program,
    run: Run,
    say: Callable[[str], None],
    members: np.ndarray | None = None,
    net: Any = None,
    trains: bool = True,
) -> Run:
    """`run` with the parameters and statistics of `source`; optimizer, tables and steps stay those of a new run.

    source is WORKDIR or WORKDIR:EPOCH, of a run with the same members, seed by seed, all of whose networks this one has too; or a file of
    weights of a network of FAMILIES, for all seeds. Networks that are not there are newly initialised. BACKBONE+HEAD are two such files,
    the second with the last layer alone. net, the run's, is compared with what the names in a file say of a network and its shapes do not.
    members [S] says which member of WORKDIR each one here starts from, all of them occurring; None: its own. trains: False for a run of 0
    epochs, in which nothing may be newly initialised.
    Raises ValueError or FileNotFoundError, with the cure, for what does not fit.
    """
    if config.is_weights(source):
        return _from_file(source, program, run, say, net, trains)
    workdir, origin, epochs, epoch = _epoch_of(source, program.seeds.size, say)
    abstract = program.saved
    if members is None and (there := epochs.members(epoch)) != program.seeds.size:
        points = program.seeds.size // len(np.unique(program.seeds.numbers))
        of_points = " of all grid points" if points > 1 or origin.get("grid") else ""
        cure = f"give --config.seeds={there // points}" if there % points == 0 else "take a run with as many"
        raise ValueError(f"init_from = {source} has {there} seeds{of_points} and this run {program.seeds.size}: {cure}")
    if members is not None:
        count, copied = max(members) + 1, program.seeds.sharding()
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype, sharding=copied), abstract)
    wanted, other = set(abstract["params"]), epochs.networks(epoch)
    fresh = sorted(wanted - other) if wanted & other else []
    if fresh and not trains:
        cure = "take a run of this method, or give --config.epochs=1 or more"
        raise ValueError(f"init_from = {source} has no network {', '.join(fresh)}, and epochs = 0 trains nothing: {cure}")
    for kind in ("params", "stats"):
        abstract[kind] = {name: tree for name, tree in abstract[kind].items() if name not in fresh}
    if difference := epochs.difference(epoch, abstract):
        run_there = f"{origin.get('name')}, {origin.get('seeds')} seeds"
        raise ValueError(f"init_from = {source} ({run_there}) has other networks than this run: {difference}. Give both the same net")
    saved = epochs.load(epoch, abstract)
    if not parallel.gather(saved["alive"]).all():
        raise ValueError(f"init_from = {source}: a seed had become non-finite there; take an earlier epoch")
    if members is not None:
        saved = program.seeds.place(jax.tree.map(lambda x: x[members], parallel.gather(saved)), "seed")
    say(f"starting from epoch {epoch} of {workdir}" + (f"; newly initialised: {', '.join(fresh)}" if fresh else ""))
    params, stats = ({**getattr(run.state, kind), **saved[kind]} for kind in ("params", "stats"))
    return run.replace(state=run.state.replace(params=params, stats=stats))


def check_there(source: str) -> None:
    """Raises ValueError or FileNotFoundError, with the cure, where `load` would find no such file, workdir or epoch."""
    if config.is_weights(source):
        _files(source)
    elif source:
        _epoch_of(source, 1, print)


def _epoch_of(source: str, seeds: int, say: Callable[[str], None]) -> tuple[pathlib.Path, dict, Store, int]:
    """The workdir of WORKDIR or WORKDIR:EPOCH, its configuration, its checkpoints and which of them is meant."""
    folder, colon, number = source.rpartition(":")
    workdir = pathlib.Path(folder if colon and number.isdigit() else source)
    if not (workdir / "config.json").is_file():
        known = f"WORKDIR, WORKDIR:EPOCH or a file of weights ({', '.join(config.WEIGHTS)})"
        raise FileNotFoundError(f"init_from = {source}: {workdir} is not the workdir of a run (config.json is missing); name {known}")
    origin = config.read(workdir / "config.json")  # of classes that need not be imported
    epochs = Store(workdir / "checkpoints" / "epochs", seeds, say)
    finished = epochs.numbers()
    epoch = int(number) if workdir == pathlib.Path(folder) and number.isdigit() else max(finished, default=0)
    if epoch not in finished:
        raise ValueError(f"init_from = {source}: {workdir} has finished epochs {_range(finished)}; write {workdir}:EPOCH")
    return workdir, origin, epochs, epoch


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"


def _files(source: str) -> list[pathlib.Path]:
    """[file], or [backbone, head] where `source` names two, joined by "+"; names of files may have one too."""
    if pathlib.Path(source).is_file():
        return [pathlib.Path(source)]
    words = source.split("+")
    pairs = [[pathlib.Path("+".join(part)) for part in (words[:i], words[i:])] for i in range(1, len(words))]
    pairs = [pair for pair in pairs if all(config.is_weights(path.name) for path in pair)]
    for pair in pairs:
        if all(path.is_file() for path in pair):
            return pair
    missing = " and no file ".join(str(path) for path in pairs[0] if not path.is_file()) if pairs else ""
    raise FileNotFoundError(f"init_from = {source}: there is no {f'file {missing}' if missing else 'such file'}")


def _from_file(source: str, program: Program, run: Run, say: Callable[[str], None], net: Any, trains: bool) -> Run:
    file, *heads = _files(source)
    state = torch_files.read(file, say)
    family = next((family for family in FAMILIES if family.mark in state), RESNETS)
    for head in heads:
        layer = torch_files.read_head(head, say)
        if (own := f"{family.head}.weight") in state:
            raise ValueError(f"init_from = {source}: there are two heads, {own} of {file} and that of {head}: name the first file alone")
        state |= {f"{family.head}.{leaf}": array for leaf, array in layer.items()}
    try:
        params, stats = family.from_torch(state)
    except ValueError as error:
        names = "named as torchvision and timm name ResNets and ViTs, timm ConvNeXts and DPNs, or PyTorch's EfficientNet-Lite0"
        raise ValueError(f"init_from = {source}: {error}. Save the network's own state_dict, {names}") from None
    for field, value in family.fields.items():
        if (has := getattr(net, field, value)) != value:
            cure = f"give --config.net.{field}={value}"
            raise ValueError(f"init_from = {source}: its network has net.{field} = {value}, and this run's has {has}: {cure}")
    fresh: dict[str, str] = {}  # {array: how the file's differs}

    def fill(kind: str, nets: PyTree, given: PyTree) -> PyTree:
        flat, used = traverse_util.flatten_dict(given), set()
        filled = {}
        for path_of_leaf, leaf in traverse_util.flatten_dict(nets).items():
            name = path_of_leaf[1:]  # without the network's
            given_leaf = flat.get(name)
            has = "lacks it" if given_leaf is None else f"has {list(given_leaf.shape)}"
            if given_leaf is not None and given_leaf.shape == leaf.shape[1:]:
                used.add(name)
                leaf = program.seeds.place(np.broadcast_to(given_leaf, leaf.shape), "seed")
            elif not name[0].startswith(BODY):
                fresh["/".join(path_of_leaf)] = f"{list(leaf.shape[1:])} here and the file {has}"
            else:
                raise ValueError(f"init_from = {source}: {'/'.join(name)} is {list(leaf.shape[1:])} here and the file {has}: another net?")
            filled[path_of_leaf] = leaf
        if unknown := {"/".join(name) for name in set(flat) - used if name[0].startswith(BODY)}:
            raise ValueError(f"init_from = {source}: no network here has {kind} {', '.join(sorted(unknown)[:3])}: another net?")
        return traverse_util.unflatten_dict(filled)

    filled = run.state.replace(params=fill("parameters", run.state.params, params), stats=fill("statistics", run.state.stats, stats))
    if len(fresh) == len(jax.tree.leaves((filled.params, filled.stats))):
        raise ValueError(
            f"init_from = {source}: nothing of it fits the networks of this run: in the config file, give it a {family.config}"
        )
    if fresh and not trains:
        array = min(fresh)
        cure = "name a file that fits (BACKBONE+HEAD where the head has a file of its own), or give --config.epochs=1 or more"
        raise ValueError(f"init_from = {source}: {array} is {fresh[array]}, and epochs = 0 trains nothing: {cure}")
    say(f"starting from {source}" + (f"; newly initialised: {', '.join(sorted(fresh))}" if fresh else ""))
    return run.replace(state=filled)
