"""Weights of torchvision's and timm's ResNets, to jaxbed's and back. Both name their layers alike; Cadene's and SimCLRv2's are read only.

conv1 bn1 | layer1..4.<i>.conv1..3 bn1..3 downsample.0 downsample.1 | fc
stem_conv stem_norm | stage1..4_block<i>: conv1..3 norm1..3 shortcut_conv shortcut_norm | head

A stem of three convolutions is conv1.0 conv1.1 conv1.3 conv1.4 conv1.6 bn1; a shortcut that pools counts its layers from 1; Res2Net's
middle is convs.<j> bns.<j>; gates are se.fc1 se.fc2, or CBAM's.
"""

import re
from typing import Any, Literal

import numpy as np

PyTree = Any
LAYERS = {"conv1": "stem_conv", "bn1": "stem_norm", "fc": "head"}
DEEP = {"conv1.0": "stem_conv", "conv1.1": "stem_norm", "conv1.3": "stem_conv2", "conv1.4": "stem_norm2", "conv1.6": "stem_conv3"}
DEEP |= {"bn1": "stem_norm3", "fc": "head"}
GATES = {
    **{"se.fc1": "gate/squeeze", "se.fc2": "gate/expand"},
    **{"cbam.ChannelGate.mlp.1": "gate/channel_squeeze", "cbam.ChannelGate.mlp.3": "gate/channel_expand"},
    **{"cbam.SpatialGate.spatial.conv": "gate/spatial_conv", "cbam.SpatialGate.spatial.bn": "gate/spatial_norm"},
}
WITHIN = {"downsample.0": "shortcut_conv", "downsample.1": "shortcut_norm", **GATES}
POOLED = {"downsample.1": "shortcut_conv", "downsample.2": "shortcut_norm", **GATES}
WITH_BIAS = ("head", "squeeze", "expand", "channel_squeeze", "channel_expand")
CADENE = {"layer0.conv1": "conv1", "layer0.bn1": "bn1", "last_linear": "fc"}
SIMCLR = {"0.0": "conv1", "0.1.0": "bn1", "fc": "fc"}
SIMCLR_WITHIN = {
    **{"net.0": "conv1", "net.1.0": "bn1", "net.2": "conv2", "net.3.0": "bn2", "net.4": "conv3", "net.5.0": "bn3"},
    **{"projection.shortcut": "downsample.0", "projection.bn.0": "downsample.1"},
}
NORM = {"weight": ("params", "scale"), "bias": ("params", "bias"), "running_mean": ("stats", "mean"), "running_var": ("stats", "var")}


def from_torch(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """(params, batch statistics) of one network, float32. Raises ValueError for a name that no such ResNet has."""
    trees: dict[str, PyTree] = {"params": {}, "stats": {}}
    layers = DEEP if "conv1.0.weight" in state else LAYERS
    within = POOLED if any(".downsample.2." in name for name in state) else WITHIN
    for name, array in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        path, kind, leaf = _ours(name, layers, within)
        array = np.asarray(array, np.float32)
        if path[-1] in WITH_BIAS and array.shape[2:] == (1, 1):  # linear layers that are convolutions there
            array = array[:, :, 0, 0]
        tree = trees[kind]
        for part in path:
            tree = tree.setdefault(part, {})
        tree[leaf] = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return trees["params"], trees["stats"]


def from_cadene(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """`from_torch` of SENet's ResNets (Hu et al., 2018) as the package pretrainedmodels has them: layer0.conv1, se_module, last_linear.

    Their layout is Caffe's. Raises ValueError for other names.
    """
    renamed = {}
    for name, array in state.items():
        layer, _, leaf = name.rpartition(".")
        renamed[f"{CADENE.get(layer, layer.replace('.se_module.', '.se.'))}.{leaf}"] = array
    return from_torch(renamed)


def from_simclr(state: dict[str, np.ndarray]) -> tuple[PyTree, PyTree]:
    """`from_torch` of SimCLRv2's ResNets (Chen et al., 2020) as they are published for PyTorch, without the "net." before each name.

    Raises ValueError for other names.
    """
    renamed = {}
    for name, array in state.items():
        layer, _, leaf = name.rpartition(".")
        block = re.fullmatch(r"([1-4])\.blocks\.(\d+)\.(.+)", layer)
        ours = SIMCLR_WITHIN.get(block[3]) if block else SIMCLR.get(layer)
        if ours is None:
            raise ValueError(f"weights: {name!r} is no layer of a ResNet of SimCLRv2")
        renamed[f"layer{block[1]}.{block[2]}.{ours}.{leaf}" if block else f"{ours}.{leaf}"] = array
    return from_torch(renamed)


def to_torch(params: PyTree, stats: PyTree, shortcut: Literal["conv", "mean"] = "conv") -> dict[str, np.ndarray]:
    """The state dict of one network's parameters and statistics, with the counters that PyTorch expects at 0.

    Layers of squeeze-and-excitation are 1 x 1 convolutions, as in timm. shortcut: the network's, which its layers are numbered by.
    """
    state = {}
    tables = DEEP if "stem_conv3" in params else LAYERS, POOLED if shortcut == "mean" else WITHIN
    names = {ours: name for table in tables for name, ours in table.items()}
    for kind, tree in (("params", params), ("stats", stats)):
        for path, leaf in _leaves(tree):
            array = np.asarray(leaf, np.float32)
            array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
            if path[-2] in ("squeeze", "expand") and array.ndim == 2:
                array = array[:, :, None, None]
            state[_theirs(path, kind, names)] = np.ascontiguousarray(array)
    for name in [name for name in state if name.endswith("running_var")]:
        state[name.replace("running_var", "num_batches_tracked")] = np.zeros((), np.int64)
    return state


def check(params: PyTree, expected: PyTree) -> None:
    """Raises ValueError, naming the layer, where converted parameters are not those of the network that will use them."""
    given, wanted = dict(_leaves(params)), dict(_leaves(expected))
    for path in sorted(set(given) | set(wanted)):
        if path not in given or path not in wanted:
            raise ValueError(f"weights: {'/'.join(path)} is {'missing' if path in wanted else 'unknown'}: another depth or stem?")
        if given[path].shape != wanted[path].shape:
            shapes = f"{list(given[path].shape)}, and the network has {list(wanted[path].shape)}"
            raise ValueError(f"weights: {'/'.join(path)} is {shapes}: another width or number of classes?")


def _ours(name: str, layers: dict[str, str], within: dict[str, str]) -> tuple[tuple[str, ...], str, str]:
    """torch name -> (layers, params or stats, leaf)."""
    layer, _, leaf = name.rpartition(".")
    block = re.fullmatch(r"layer([1-4])\.(\d+)\.(.+)", layer)
    inner = within.get(block[3], _plain(block[3])) if block else layers.get(layer)
    if not inner:
        raise ValueError(f"weights: {name!r} is no layer of a torchvision ResNet")
    path = (f"stage{block[1]}_block{block[2]}", *inner.split("/")) if block else (inner,)
    if "norm" in path[-1] and leaf in NORM:
        return path, *NORM[leaf]
    if "norm" not in path[-1] and (leaf == "weight" or (path[-1] in WITH_BIAS and leaf == "bias")):
        return path, "params", "kernel" if leaf == "weight" else "bias"
    raise ValueError(f"weights: {name!r} is no array of a torchvision ResNet")


def _plain(inner: str) -> str:
    """conv1 -> conv1, bn1 -> norm1, convs.0 -> conv2_0, bns.0 -> norm2_0; others -> empty."""
    if match := re.fullmatch(r"(conv|bn)([1-3])|(conv|bn)s\.(\d+)", inner):
        number = match[2] or f"2_{match[4]}"
        return f"{'conv' if 'conv' in inner else 'norm'}{number}"
    return ""


def _theirs(path: tuple[str, ...], kind: str, names: dict[str, str]) -> str:
    *layers, leaf = path
    block = re.fullmatch(r"stage(\d)_block(\d+)", layers[0])
    if block:
        inner = "/".join(layers[1:])
        plain = re.sub(r"2_(\d+)$", r"s.\1", inner.replace("norm", "bn"))
        layer = f"layer{block[1]}.{block[2]}.{names.get(inner, plain)}"
    else:
        layer = names[layers[0]]
    if "norm" in layers[-1]:
        return f"{layer}.{ {value: name for name, value in NORM.items()}[kind, leaf] }"
    return f"{layer}.{'weight' if leaf == 'kernel' else 'bias'}"


def _leaves(tree: PyTree, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], np.ndarray]]:
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [leaf for name, inner in tree.items() for leaf in _leaves(inner, (*path, name))]
