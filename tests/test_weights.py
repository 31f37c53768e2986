"""Weights of other frameworks: read without running what the file says, converted to our networks and back."""

import collections
import io
import json
import pathlib
import pickle
import re
import struct
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from data_prep import deepaugment, image_network, style_network, stylized_imagenet
from jaxbed.method import apply_net, init_net
from jaxbed.models import convert, resnet, torch_files

RNG = np.random.default_rng(0)
KINDS = {np.dtype(np.float32): "FloatStorage", np.dtype(np.int64): "LongStorage", np.dtype(np.float16): "HalfStorage"}


class Named:
    """Pickles as the global `module.name`, without there being one."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Writer(pickle._Pickler):
    """Writes what torch.save writes; storages go aside."""

    def __init__(self, file, legacy):
        super().__init__(file, protocol=2)
        self.legacy, self.storages = legacy, {}

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        key = self.storages.setdefault(id(value), (str(len(self.storages)), value))[0]
        kind = Named("torch", KINDS[value.array.dtype])
        return ("storage", kind, key, "cpu", value.array.size, *((None,) if self.legacy else ()))

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Named):
            return self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        if isinstance(value, Tensor):
            self.save(Named("torch._utils", "_rebuild_tensor_v2"))
            step = [s // value.view.itemsize for s in value.view.strides]
            self.save((value.storage, value.offset, value.view.shape, tuple(step), False, collections.OrderedDict()))
            return self.write(pickle.REDUCE)
        return super().save(value, save_persistent_id)


class Storage:
    def __init__(self, array):
        self.array = array


class Tensor:
    def __init__(self, array, storage=None, offset=0):
        self.view, self.offset = array, offset
        self.storage = storage or Storage(np.ascontiguousarray(array).ravel())


STORAGE = Storage(np.zeros(1, np.float32))


def save(path, content, legacy=False):
    buffer = io.BytesIO()
    writer = Writer(buffer, legacy)
    writer.dump(content)
    if legacy:
        keys = [key for key, _ in writer.storages.values()]
        with path.open("wb") as file:
            for part in (torch_files.LEGACY, 1001, {"little_endian": True}):
                pickle.dump(part, file, protocol=2)
            file.write(buffer.getvalue())
            pickle.dump(keys, file, protocol=2)
            for _, storage in writer.storages.values():
                file.write(struct.pack("<q", storage.array.size) + storage.array.tobytes())
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", buffer.getvalue())
            for key, storage in writer.storages.values():
                archive.writestr(f"archive/data/{key}", storage.array.tobytes())
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("under", [None, *torch_files.HOLDERS])
def test_state_dicts_are_read(tmp_path, legacy, under):
    whole = RNG.normal(size=24).astype(np.float32)
    shared = Storage(whole)
    arrays = {"a": RNG.normal(size=(3, 4)).astype(np.float32), "n": np.array(7), "h": np.arange(5, dtype=np.float16)}
    state = collections.OrderedDict({name: Tensor(array) for name, array in arrays.items()})
    state["part"] = Tensor(whole[4:16].reshape(3, 4).T, shared, 4)  # a view, transposed
    state["other"] = Tensor(whole[:2], shared, 0)
    content = {under: state, "epoch": 3} if under else state
    found = torch_files.read(save(tmp_path / "weights.pth", content, legacy))
    assert set(found) == {*arrays, "part", "other"}
    for name, array in {**arrays, "part": whole[4:16].reshape(3, 4).T, "other": whole[:2]}.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


PREFIXES = ("module.", "_orig_mod.", "module._orig_mod.", "model.", "model.backbone.", "net.encoder.", "net.", "backbone.")


@pytest.mark.parametrize("prefix", [*PREFIXES, "module.model.", "module.encoder_q.", "teacher.backbone."])
def test_names_are_those_of_the_network_however_it_was_wrapped(tmp_path, prefix):
    arrays = {"conv1.weight": RNG.normal(size=(2, 3)).astype(np.float32), "layer1.0.model.bias": np.zeros(2, np.float32)}
    content = {prefix + name: Tensor(array) for name, array in arrays.items()}
    assert set(torch_files.read(save(tmp_path / "weights.pth", content))) == set(arrays)
    safetensors.numpy.save_file({prefix + name: array for name, array in arrays.items()}, tmp_path / "weights.safetensors")
    assert set(torch_files.read(tmp_path / "weights.safetensors")) == set(arrays)
    averaged = {"module." + name: array for name, array in content.items()} | {"n_averaged": Tensor(np.array(3))}
    assert set(torch_files.read(save(tmp_path / "weights.pth", averaged))) == set(arrays)


def test_a_file_of_several_networks_is_refused(tmp_path):
    state = {"conv1.weight": Tensor(np.zeros((2, 3), np.float32)), "fc.bias": Tensor(np.zeros(2, np.float32))}
    twice = {**{"module." + name: array for name, array in state.items()}, "conv1.weight": Tensor(np.ones((2, 3), np.float32))}
    with pytest.raises(ValueError, match=r"weights.pth holds conv1\.weight twice, as module\.conv1\.weight and as conv1\.weight"):
        torch_files.read(save(tmp_path / "weights.pth", twice))
    for holder in ("model", "state_dict"):
        with pytest.raises(ValueError, match=f"weights.pth .*several networks, {holder} and {holder}_ema; save the one that is meant"):
            torch_files.read(save(tmp_path / "weights.pth", {holder: state, f"{holder}_ema": state, "optimizer": {"state": {}}}))

    for one, other in (("student", "teacher"), ("encoder_q", "encoder_k")):
        both = {f"module.{one}.conv1.weight": state["conv1.weight"], f"module.{other}.conv1.weight": twice["conv1.weight"]}
        message = rf"weights.pth holds conv1\.weight twice, as module\.{one}\.conv1\.weight and as module\.{other}\.conv1\.weight"
        with pytest.raises(ValueError, match=message):
            torch_files.read(save(tmp_path / "weights.pth", both))
    dino = {
        "student": {f"module.backbone.{name}": array for name, array in state.items()},
        "teacher": {**state, "head.bias": state["fc.bias"]},
    }
    with pytest.raises(ValueError, match=r"weights.pth .*several networks, teacher and student; save the one that is meant"):
        torch_files.read(save(tmp_path / "weights.pth", dino))
    with pytest.raises(ValueError, match=r"several networks, model\.state_dict and the outermost one, best\.state_dict; save"):
        torch_files.read(
            save(
                tmp_path / "weights.pth", {"model": {"state_dict": state}, "best": {"state_dict": dict(state)}, "fc.bias": state["fc.bias"]}
            )
        )


def test_state_dicts_are_found_among_what_training_needs(tmp_path):
    """Within one another, next to numbers that are tensors, and to an optimizer's; a dictionary that holds itself ends the search."""
    state = {"conv1.weight": Tensor(np.zeros((2, 3), np.float32)), "fc.bias": Tensor(np.zeros(2, np.float32))}
    optimizer = {"state": {0: {"momentum_buffer": Tensor(np.zeros(9, np.float32))}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    content = {"epoch": 3, "best_acc1": Tensor(np.array(0.5, np.float32)), "optimizer": optimizer}
    content["model"] = {"online_backbone": {f"module.{name}": array for name, array in state.items()}, "step": 3}
    assert {*torch_files.read(save(tmp_path / "weights.pth", content))} == {*state}
    assert {*torch_files.read(save(tmp_path / "weights.pth", {"resnet": state, "head": {"layers.0.weight": state["fc.bias"]}}))} == {*state}
    content["model"]["model"] = content["model"]["self"] = content["model"]
    assert {*torch_files.read(save(tmp_path / "weights.pth", content))} == {*state}
    loop = {"epoch": 3}
    loop["model"] = loop
    with pytest.raises(ValueError, match="it has no state dict with tensors"):
        torch_files.read(save(tmp_path / "weights.pth", loop))


def test_many_references_to_one_dictionary_take_no_time(tmp_path):
    """It is looked into once: pairs of references and names would be nine million."""
    spare = {f"a{i}": Tensor(np.zeros(1, np.float32), STORAGE) for i in range(3_000)}
    content = {"net": {"conv1.weight": Tensor(np.zeros(20_000, np.float32))}, **{f"b{i}": spare for i in range(3_000)}}
    assert {*torch_files.read(save(tmp_path / "weights.pth", content))} == {"conv1.weight"}


def test_what_a_robust_network_holds_next_to_its_weights_is_left_out_and_said(tmp_path):
    """The attacker's copy of the same arrays, and the scaling of images; a copy that differs is another network."""
    weight, said = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), []
    mean, std = (Tensor(np.array(values, np.float32).reshape(3, 1, 1)) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    state = {"module.normalizer.new_mean": mean, "module.normalizer.new_std": std, "module.model.conv1.weight": weight}
    state |= {"module.attacker.normalize.new_mean": mean, "module.attacker.normalize.new_std": std}
    state |= {"module.attacker.model.conv1.weight": weight, "module.model.bn1.num_batches_tracked": Tensor(np.array(7))}
    path = save(tmp_path / "robust.pt", {"model": state, "epoch": 89, "nat_prec1": Tensor(np.array(0.5, np.float32))})
    assert {*torch_files.read(path, said.append)} == {"conv1.weight", "bn1.num_batches_tracked"}
    scaled = "by mean [0.485, 0.456, 0.406] and std [0.229, 0.224, 0.225]: this is left out; give data.augment.mean and std these values"
    assert said == [f"{path} scales images within the model, {scaled}"]
    state["module.attacker.model.conv1.weight"] = Tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(
        ValueError, match=r"holds conv1\.weight twice, as module\.model\.conv1\.weight and as module\.attacker\.model\.conv1"
    ):
        torch_files.read(save(path, {"model": state}))


SPARE = (
    "projection_head.0.weight",
    "prototypes.weight",
    "queue",
    "queue_ptr",
    "encoder_q.fc.2.bias",
    "head.mlp.0.weight",
    "layer1.0.bn1.aux_bn.running_mean",
)


@pytest.mark.parametrize("name", SPARE)
def test_what_only_training_needs_is_left_out_and_said(tmp_path, name):
    state, said = {name: Tensor(np.zeros(3, np.float32)) for name in ("conv1.weight", "fc.weight", name)}, []
    path = save(tmp_path / "weights.pth", {f"module.{name}": array for name, array in state.items()})
    assert {*torch_files.read(path, said.append)} == {"conv1.weight", "fc.weight"}
    assert said == [f"{path}: left out, as of training alone: {name.removeprefix('encoder_q.')}"]


@pytest.mark.parametrize("name", ["fc", "module.fc", "linear", "module.linear", "head", "module.head"])
def test_heads_are_read_from_a_file_of_their_own(tmp_path, name):
    arrays = {"weight": RNG.normal(size=(3, 4)).astype(np.float32), "bias": np.zeros(3, np.float32)}
    content = {"state_dict": {f"{name}.{leaf}": Tensor(array) for leaf, array in arrays.items()}, "epoch": 3}
    found = torch_files.read_head(save(tmp_path / "head.pth.tar", content))
    for leaf, array in arrays.items():
        np.testing.assert_array_equal(found[leaf], array)


@pytest.mark.parametrize(
    "held", [["fc.weight"], ["fc.weight", "fc.bias", "conv1.weight"], ["norm.weight", "norm.bias"], ["weight", "bias"]]
)
def test_files_of_more_than_a_head_are_refused(tmp_path, held):
    path = save(tmp_path / "head.pth", {name: Tensor(np.zeros(3, np.float32)) for name in held})
    with pytest.raises(
        ValueError, match=rf"{path} holds .*{held[0]}.*, and a file of a head has weight and bias of one layer, fc, linear or head"
    ):
        torch_files.read_head(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_files_that_call_something_are_refused(tmp_path, legacy):
    class Call:
        def __reduce__(self):
            return (print, ("ran",))

    path = save(tmp_path / "evil.pth", {"a": Call()}, legacy)
    with pytest.raises(ValueError, match=r"it asks for __builtin__\.print, and only tensors are allowed"):
        torch_files.read(path)
    path = save(tmp_path / "large.pth", {"a": Tensor(np.zeros(9, np.float32), Storage(np.zeros(4, np.float32)))}, legacy)
    with pytest.raises(ValueError, match="a tensor reaches beyond its storage"):
        torch_files.read(path)


def pickled(opcodes: bytes) -> bytes:
    return b"\x80\x02" + opcodes + b"."


def again(count: int) -> bytes:
    """A tuple of two times one of two times one of ...: as many as 2 to that power."""
    return b")" + b"".join(bytes([0x71, i, 0x68, i, 0x86]) for i in range(count))


HOSTILE = {
    "bytes of a size beyond the file": (pickled(b"\x8e" + struct.pack("<Q", 2**40) + b"x"), "it is damaged"),
    "an array of bytes of such a size": (pickled(b"\x96" + struct.pack("<Q", 2**40) + b"x"), "it is damaged"),
    "a number of such a size": (pickled(b"\x8b" + struct.pack("<i", 2**31 - 1) + b"x"), "it is damaged"),
    "text of such a size": (pickled(b"X" + struct.pack("<I", 2**32 - 1) + b"x"), "it is damaged"),
    "a number of 100,000 digits": (pickled(b"L" + b"9" * 100_000 + b"L\n"), "it is damaged"),
    "an absurd place in the memo": (pickled(b"}r" + struct.pack("<I", 2**32 - 2)), "it asks for memory for 4,294,967,294 values"),
    "deep nesting": (pickled(b")" + b"\x85" * 1_000_000), "its values are nested more than 100 deep"),
    "a key that takes for ever to hash": (pickled(b"}" + again(90) + b"Ns"), "a dictionary has keys that are neither text nor numbers"),
    "such a key of an OrderedDict": (
        pickled(b"ccollections\nOrderedDict\n" + again(30) + b"N\x86\x85\x85R"),
        "a dictionary has keys that are neither text nor numbers",
    ),
    "an extension": (pickled(b"\x82\x01"), "it is damaged"),
    "a name that a terminal would obey": (pickled(b"cos\x1b[31m\nsystem\n"), r"it asks for os\\x1b\[31m\.system"),
    "nothing on the stack": (b"\x80\x02ss.", "it is damaged"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("legacy", [False, True])
def test_hostile_pickles_are_refused_before_they_take_memory_or_time(tmp_path, legacy, kind):
    content, reason = HOSTILE[kind]
    path = tmp_path / "hostile.pth"
    if legacy:
        path.write_bytes(b"".join(pickle.dumps(part, protocol=2) for part in (torch_files.LEGACY, 1001, {})) + content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)
    with pytest.raises(ValueError, match=rf"{path} cannot be read as weights \({reason}.*\): save the network's own state_dict again"):
        torch_files.read(path)


class Faked:
    """A tensor of one number in a file that tells another size."""

    def __init__(self, size, stride, offset=0, kind="FloatStorage", rebuild="_rebuild_tensor_v2", numbers=1):
        self.parts = size, stride, offset, kind, rebuild, numbers


class Faker(Writer):
    def persistent_id(self, value):
        return value if isinstance(value, tuple) and value[:1] == ("storage",) else None

    def save(self, value, save_persistent_id=True):
        if not isinstance(value, Faked):
            return super().save(value, save_persistent_id)
        size, stride, offset, kind, rebuild, numbers = value.parts
        self.save(Named("torch._utils", rebuild))
        storage = ("storage", Named("torch", kind), "0", "cpu", numbers, *((None,) if self.legacy else ()))
        self.save((storage, offset, size, stride, False, {}))
        return self.write(pickle.REDUCE)


IMPOSSIBLE = {
    "a view of one number, 2 to the power of 40 times": ({"a": Faked((2**40,), (0,))}, "its tensors would take 4,398,046,511,104 bytes"),
    "a view beyond all numbers": ({"a": Faked((2**62, 2**62), (0, 0))}, "its tensors would take"),
    "many views of one storage": ({f"a{i}": Faked((500,), (0,)) for i in range(999)}, "its tensors would take"),
    "a negative stride": ({"a": Faked((2,), (-1,))}, "a tensor reaches beyond its storage"),
    "a negative offset": ({"a": Faked((1,), (1,), -1)}, "a tensor reaches beyond its storage"),
    "a stride beyond 64 bits": ({"a": Faked((1, 1), (2**70, 2**63))}, "it is damaged"),
    "no numbers, of a shape beyond 64 bits": ({"a": Faked((0, 2**62), (1, 1))}, "it is damaged"),
    "a size that is no number": ({"a": Faked(("1",), (1,))}, "it is damaged"),
    "100 axes": ({"a": Faked((1,) * 100, (1,) * 100)}, "it is damaged"),
    "another number of strides": ({"a": Faked((1, 1), (1,))}, "it is damaged"),
    "a whole number for a name": ({7: Faked((1,), (1,))}, "the name of a tensor is 7, and no text"),
    "float8": ({"a": Faked((1,), (1,), rebuild="_rebuild_tensor_v3")}, "it asks for .*, as sparse tensors or float8 do; read are float64"),
    "complex numbers": ({"a": Faked((1,), (1,), kind="ComplexFloatStorage")}, "it asks for torch.ComplexFloatStorage"),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_that_cannot_be_are_refused(tmp_path, legacy, kind):
    content, reason = IMPOSSIBLE[kind]
    file, path = io.BytesIO(), tmp_path / "hostile.pth"
    Faker(file, legacy).dump(content)
    if legacy:
        start = b"".join(pickle.dumps(part, protocol=2) for part in (torch_files.LEGACY, 1001, {}))
        path.write_bytes(start + file.getvalue() + pickle.dumps(["0"], protocol=2) + struct.pack("<q", 1) + bytes(4))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", file.getvalue())
            archive.writestr("archive/data/0", bytes(4))
    with pytest.raises(ValueError, match=rf"{path} cannot be read as weights \({reason}"):
        torch_files.read(path)


def test_archives_that_promise_more_than_they_hold_are_refused(tmp_path):
    content = save(tmp_path / "weights.pth", {"a": Tensor(np.zeros(9, np.float32))}).read_bytes()
    entry = content.index(b"PK\x01\x02")
    for offset, new, reason in (
        (8, b"\x01", "it is encrypted"),
        (10, b"\x08", "it is compressed in an unexpected way"),
        (24, b"\xff\xff\xff\x7f", "it declares 2,147,483,647 bytes where"),
        (20, b"\xff\xff\xff\x7f\xff\xff\xff\x7f", "bytes and declares 2,147,483"),
    ):
        (tmp_path / "hostile.pth").write_bytes(content[: entry + offset] + new + content[entry + offset + len(new) :])
        with pytest.raises(ValueError, match=reason):
            torch_files.read(tmp_path / "hostile.pth")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "its tensors are of type F8_E4M3; read are"),
        ({"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}, "its tensors are of type C64"),
        ({"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}, "it is damaged"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "it is damaged"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 2**60]}, "it is damaged"),
        (3, "it is damaged"),
    ],
)
def test_hostile_safetensors_are_refused(tmp_path, entry, reason):
    path, header = tmp_path / "hostile.safetensors", json.dumps({"a": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ValueError, match=rf"{path} cannot be read as weights \({reason}"):
        torch_files.read(path)
    path.write_bytes(struct.pack("<Q", 2**60) + header)
    with pytest.raises(ValueError, match="it is damaged"):
        torch_files.read(path)


def test_files_without_weights_are_an_error(tmp_path):
    (tmp_path / "text.pth").write_bytes(b"hello")
    save(tmp_path / "numbers.pth", {"a": 1})
    with zipfile.ZipFile(tmp_path / "empty.pth", "w") as archive:
        archive.writestr("readme", "")
    (tmp_path / "text.safetensors").write_bytes(b"hello there, this is none")
    for name in ("text.pth", "numbers.pth", "empty.pth", "text.safetensors"):
        with pytest.raises(ValueError, match=name):
            torch_files.read(tmp_path / name)
    content = save(tmp_path / "whole.pth", {"a": Tensor(np.zeros(9, np.float32))}, legacy=True).read_bytes()
    (tmp_path / "cut.pth").write_bytes(content[:-4])
    with pytest.raises(ValueError, match="it is cut short"):
        torch_files.read(tmp_path / "cut.pth")


def test_safetensors_are_read(tmp_path):
    from safetensors.numpy import save_file

    arrays = {"a": RNG.normal(size=(3, 4)).astype(np.float32), "n": np.arange(4)}
    save_file(arrays, tmp_path / "weights.safetensors")
    found = torch_files.read(tmp_path / "weights.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


# ResNets


@pytest.mark.parametrize("depth", [18, 50])
def test_there_and_back(depth):
    net = resnet.Config(depth=depth, width=4).make(7)
    shapes, rng = jax.eval_shape(lambda: init_net(net, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))), np.random.default_rng(0)
    params, stats = jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), shapes)
    state = convert.to_torch(params, stats)
    again = convert.from_torch(state)
    convert.check(again[0], params)
    for a, b in zip(*map(jax.tree.leaves, (again, (params, stats))), strict=True):
        np.testing.assert_array_equal(a, b)
    assert state["layer2.0.downsample.0.weight"].shape[2:] == (1, 1) and state["conv1.weight"].shape[1:] == (3, 7, 7)
    assert {name for name in state if name.startswith("fc")} == {"fc.weight", "fc.bias"}
    assert len([name for name in state if name.endswith("num_batches_tracked")]) == {18: 20, 50: 53}[depth]


def test_names_are_torchvisions():
    """Of ResNet-18: 11,689,512 parameters in 62 arrays, 20 BatchNorms."""
    net = resnet.Config(depth=18).make(1000)
    shapes = jax.eval_shape(lambda: init_net(net, jax.random.key(0), jnp.zeros((1, 64, 64, 3))))
    state = convert.to_torch(*jax.tree.map(lambda x: np.broadcast_to(np.float32(0), x.shape), shapes))
    learned = {name: array for name, array in state.items() if name.endswith(("weight", "bias"))}
    assert sum(array.size for array in learned.values()) == 11_689_512 and len(learned) == 62
    expected = {"conv1.weight": (64, 3, 7, 7), "layer1.0.bn2.running_var": (64,), "layer3.1.conv2.weight": (256, 256, 3, 3)}
    expected |= {"layer4.0.downsample.1.weight": (512,), "fc.weight": (1000, 512)}
    assert {name: state[name].shape for name in expected} == expected


def test_names_of_simclrv2_are_read():
    """Of a bottleneck and a stem, as its PyTorch files name them without the first word."""
    names = {
        "0.0.weight": "conv1.weight",
        "0.1.0.bias": "bn1.bias",
        "fc.bias": "fc.bias",
        "3.blocks.5.net.4.weight": "layer3.5.conv3.weight",
    }
    names |= {"1.blocks.0.projection.shortcut.weight": "layer1.0.downsample.0.weight", "4.blocks.2.net.3.0.weight": "layer4.2.bn2.weight"}
    names |= {
        "1.blocks.0.projection.bn.0.running_var": "layer1.0.downsample.1.running_var",
        "1.blocks.0.net.0.weight": "layer1.0.conv1.weight",
    }
    arrays = [np.full((1, 1, 1, 1) if name.startswith("conv") or ".conv" in name else 3, i) for i, name in enumerate(names.values())]
    ours = (convert.from_simclr(dict(zip(names, arrays, strict=True))), convert.from_torch(dict(zip(names.values(), arrays, strict=True))))
    jax.tree.map(np.testing.assert_array_equal, *ours)
    for name in ("0.2.weight", "5.blocks.0.net.0.weight", "1.blocks.0.net.6.weight"):
        with pytest.raises(ValueError, match=f"weights: '{name}' is no layer of a ResNet of SimCLRv2"):
            convert.from_simclr({name: np.zeros(3)})


@pytest.mark.parametrize(
    ("name", "message"),
    [("layer5.0.conv1.weight", "no layer"), ("conv1.bias", "no array"), ("bn1.kernel", "no array"), ("features.0.weight", "no layer")],
)
def test_foreign_names_are_an_error(name, message):
    with pytest.raises(ValueError, match=f"weights: '{name}' is {message} of a torchvision ResNet"):
        convert.from_torch({name: np.zeros((1, 1, 1, 1))})


def test_weights_of_another_network_are_an_error():
    def params(**options):
        classes = options.pop("classes", 7)
        net = resnet.Config(**{"depth": 18, "width": 4, **options}).make(classes)
        return jax.eval_shape(lambda: init_net(net, jax.random.key(0), jnp.zeros((1, 32, 32, 3))))[0]

    for other, message in (
        ({"classes": 9}, r"head/bias is \[7\], and the network has \[9\]"),
        ({"depth": 34}, "stage1_block2/conv1/kernel is missing"),
        ({"stem": "small"}, "stem_conv/kernel is"),
    ):
        with pytest.raises(ValueError, match=message):
            convert.check(params(), params(**other))


def test_pytorch_gives_the_same_logits():
    """By the peers' network, whose parameters come in torchvision's order within a block."""
    torch = pytest.importorskip("torch")
    sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "scripts")]
    from peers import networks

    theirs = networks.resnet(18, 8, "imagenet", 5).eval()
    net = resnet.Config(depth=18, width=8).make(5)
    image = RNG.normal(size=(2, 64, 64, 3)).astype(np.float32)
    params, stats = init_net(net, jax.random.key(1), image)
    state = convert.to_torch(params, jax.tree.map(lambda x: x + 0.3, stats))
    order = ["conv1", "bn1"] + [
        f"layer{s}.{i}.{layer}"
        for s in (1, 2, 3, 4)
        for i in (0, 1)
        for layer in ("conv1", "bn1", "conv2", "bn2", *(("downsample.0", "downsample.1") if s > 1 and i == 0 else ()))
    ]
    names = [name for layer in [*order, "fc"] for name in state if name.rpartition(".")[0] == layer and name.endswith(("weight", "bias"))]
    names.sort(key=lambda name: ([*order, "fc"].index(name.rpartition(".")[0]), name.endswith("bias")))
    with torch.no_grad():
        for parameter, name in zip(theirs.parameters(), names, strict=True):
            parameter.copy_(torch.tensor(state[name]))
        norms = [module for module in theirs.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        for norm, layer in zip(norms, [layer for layer in order if "bn" in layer or layer.endswith("downsample.1")], strict=True):
            norm.running_mean.copy_(torch.tensor(state[f"{layer}.running_mean"]))
            norm.running_var.copy_(torch.tensor(state[f"{layer}.running_var"]))
        expected = theirs(torch.from_numpy(image).permute(0, 3, 1, 2)).numpy()
    ours = apply_net(net, params, jax.tree.map(lambda x: x + 0.3, stats), image, False)[0]
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torchvision.models", "timm"])
@pytest.mark.parametrize("depth", [18, 34, 50])
def test_libraries_give_the_same_logits(library, depth):
    """There and back: what a library's network answers, ours answers with its weights, and it does with ours."""
    torch = pytest.importorskip("torch")
    library = pytest.importorskip(library)
    make = getattr(library, f"resnet{depth}") if hasattr(library, f"resnet{depth}") else lambda: library.create_model(f"resnet{depth}")
    torch.manual_seed(0)
    theirs, image = make().eval(), RNG.normal(size=(2, 224, 224, 3)).astype(np.float32)
    for name, array in theirs.state_dict().items():
        if name.endswith(("running_mean", "running_var", "bn3.weight", "bn2.weight")):  # as after training
            array.copy_(torch.rand_like(array) / 2 + 0.75)

    def answer(network):
        with torch.no_grad():
            return network(torch.tensor(image.transpose(0, 3, 1, 2))).numpy()

    params, stats = convert.from_torch({name: array.numpy() for name, array in theirs.state_dict().items()})
    net, expected = resnet.Config(depth=depth).make(1000), answer(theirs)
    found = jax.jit(lambda params, stats: apply_net(net, params, stats, image, False)[0])(params, stats)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    again = make().eval()
    again.load_state_dict({name: torch.tensor(array) for name, array in convert.to_torch(params, stats).items()})
    np.testing.assert_array_equal(answer(again), expected)


DEEPAUGMENT = ("target", "--train=images")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (deepaugment, (*DEEPAUGMENT, "--net=edsr", "--weights=nofile")),
        (deepaugment, (*DEEPAUGMENT, "--net=cae", "--weights=nofile.npz")),
        (stylized_imagenet, ("target", "--styles=images", "--val=images", "--weights=nofile")),
        (style_network, ("convert", "nofile", "decoder.pth", "out.safetensors")),
        (image_network, ("edsr", "nofile", "out.safetensors")),
    ],
)
def test_a_file_that_is_not_there_is_named_with_a_cure(script, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a" / "0.png")
    assert script.main([*words]) == 2
    said = capsys.readouterr().err
    assert "nofile" in said and re.search("correct the path|makes one|name a folder", said), said
