"""ConvNeXt: published sizes and numbers, timm's weights, and the methods that run on any network that offers what they need."""

import dataclasses
import functools
import itertools
import math
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from safetensors.numpy import save_file

from jaxbed.data import shapes
from jaxbed.method import Info, apply_net, init_net
from jaxbed.models import capabilities, conv, convnext, efficientnet, mlp, resnet, simple_conv
from jaxbed.models.capabilities import offers
from jaxbed.optim import Optim
from jaxbed.training import pretrained, train
from jaxbed.training.program import Run

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "extending" / "network.md"
SMALL = shapes.Config(train_images=32, val_images=16, test_images=16)


@pytest.fixture
def short(monkeypatch):
    """Atto with a block of 3 x 3, of few channels: what methods do with a network does not depend on its size."""
    monkeypatch.setitem(convnext.SIZES, "atto", ((1, 0, 0, 0), 4))
    monkeypatch.setattr(convnext, "KERNEL", 3)
    return convnext.Config("atto", patch_px=2)


@pytest.fixture
def pointwise(short, monkeypatch):
    """Its convolutions see one pixel each, and are traced and compiled as one map, not as nine."""
    monkeypatch.setattr(convnext, "KERNEL", 1)
    return short


def shapes_of(net, image=(1, 64, 64, 3)):
    return jax.eval_shape(functools.partial(init_net, net), jax.random.key(0), jax.ShapeDtypeStruct(image, np.float32))


def formula(blocks, width, classes, channels=3):
    """Parameters: a block has 49 C + C, 2 C, 4 C² + 4 C, 4 C² + C and C of them, a downsampling layer 2 C and 4 C · 2 C + 2 C."""
    sides = [width * 2**stage for stage in range(4)]
    total = 16 * channels * width + width + 2 * width
    total += sum(count * (8 * c * c + 58 * c) for count, c in zip(blocks, sides, strict=True))
    total += sum(2 * c + 8 * c * c + 2 * c for c in sides[:3])
    return total + 2 * sides[3] + (sides[3] + 1) * classes


# counted by timm 1.0.29, and for tiny, small and base published
COUNTS = {
    "atto": 3_695_520,
    "femto": 5_217_784,
    "pico": 9_045_672,
    "nano": 15_593_560,
    "tiny": 28_589_128,
    "small": 50_223_688,
    "base": 88_591_464,
}


@pytest.mark.parametrize("size", COUNTS)
def test_sizes_have_the_published_number_of_parameters(size):
    assert COUNTS[size] == formula(*convnext.SIZES[size], 1000)


@pytest.mark.parametrize("size", ["atto", "tiny"])
def test_the_network_has_the_parameters_of_its_size(size):
    params, stats = shapes_of(convnext.Config(size).make(1000))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == COUNTS[size]
    assert not stats


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def timm_state(size="atto", classes=7, convolutions=True):
    """Random arrays with the names and shapes of a timm file, written down from its description."""
    blocks, width = convnext.SIZES[size]
    state, sides = {}, [width * 2**stage for stage in range(4)]

    def layer(name, *shape):
        state.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    layer("stem.0", width, 3, 4, 4)
    layer("stem.1", width)
    for stage, side in enumerate(sides):
        if stage:
            layer(f"stages.{stage}.downsample.0", side // 2)
            layer(f"stages.{stage}.downsample.1", side, side // 2, 2, 2)
        for i in range(blocks[stage]):
            block, ones = f"stages.{stage}.blocks.{i}", (1, 1) if convolutions else ()
            state[f"{block}.gamma"] = (side,)
            layer(f"{block}.conv_dw", side, 1, 7, 7)
            layer(f"{block}.norm", side)
            layer(f"{block}.mlp.fc1", 4 * side, side, *ones)
            layer(f"{block}.mlp.fc2", side, 4 * side, *ones)
    layer("head.norm", sides[3])
    layer("head.fc", classes, sides[3])
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=shape) * 0.1 + (len(shape) == 1)).astype(np.float32) for name, shape in state.items()}


def reference(state, image, blocks):
    """The network from timm's arrays in float64 NumPy, channels first: image [N, 3, H, W] -> logits."""
    state = {name: np.asarray(array, np.float64) for name, array in state.items()}

    def norm(x, name):
        scale, bias = (state[f"{name}.{leaf}"].reshape(-1, *[1] * (x.ndim - 2)) for leaf in ("weight", "bias"))
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6) * scale + bias

    def patches(x, name):
        kernel = state[f"{name}.weight"]
        size = kernel.shape[2]
        height, width = x.shape[2] // size, x.shape[3] // size
        cut = x[:, :, : height * size, : width * size].reshape(*x.shape[:2], height, size, width, size)
        return np.einsum("nchawb,fcab->nfhw", cut, kernel) + state[f"{name}.bias"][:, None, None]

    def linear(x, name):
        kernel = state[f"{name}.weight"].reshape(len(state[f"{name}.weight"]), -1)
        return np.einsum("nc...,fc->nf...", x, kernel) + state[f"{name}.bias"].reshape(-1, *[1] * (x.ndim - 2))

    def depthwise(x, name):
        padded = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), (2, 3))
        return np.einsum("nchwab,cab->nchw", windows, state[f"{name}.weight"][:, 0]) + state[f"{name}.bias"][:, None, None]

    x = norm(patches(image, "stem.0"), "stem.1")
    for stage, count in enumerate(blocks):
        if stage:
            x = patches(norm(x, f"stages.{stage}.downsample.0"), f"stages.{stage}.downsample.1")
        for block in (f"stages.{stage}.blocks.{i}" for i in range(count)):
            y = linear(norm(depthwise(x, f"{block}.conv_dw"), f"{block}.norm"), f"{block}.mlp.fc1")
            y = y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
            x = x + state[f"{block}.gamma"][:, None, None] * linear(y, f"{block}.mlp.fc2")
    return linear(norm(x.mean((2, 3)), "head.norm"), "head.fc")


def test_timms_weights_give_timms_logits(monkeypatch):
    """As Atto, whose linear layers are 1 x 1 convolutions in timm, against another implementation; of odd sides the last pixels are cut."""
    monkeypatch.setitem(convnext.SIZES, "atto", ((0, 1, 2, 0), 10))
    state, image = timm_state(), normal(2, 34, 33, 3, seed=1)
    params, _ = convnext.from_torch(state)
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda x: x.shape, shapes_of(convnext.Config("atto").make(7))[0])
    logits = jax.jit(lambda params, image: apply_net(convnext.Config("atto").make(7), params, {}, image, False)[0])(params, image)
    np.testing.assert_allclose(logits, reference(state, image.transpose(0, 3, 1, 2), convnext.SIZES["atto"][0]), rtol=1e-4, atol=1e-4)


def test_linear_layers_of_both_kinds_are_the_same():
    state = timm_state(convolutions=False)
    as_convolutions = {name: array[..., None, None] if ".mlp." in name and array.ndim == 2 else array for name, array in state.items()}
    jax.tree.map(np.testing.assert_array_equal, *(convnext.from_torch(each)[0] for each in (state, as_convolutions)))


FOREIGN = ("stem.2.weight", "stages.0.downsample.0.weight", "stages.4.blocks.0.gamma", "stages.0.blocks.0.mlp.grn.weight", "fc.weight")


@pytest.mark.parametrize("name", [*FOREIGN, "stages.1.blocks.0.conv_dw.running_mean", "stages.0.blocks.1.weight", "head.fc.gamma"])
def test_other_names_are_an_error(name):
    with pytest.raises(ValueError, match=f"weights: '{name}' is no array of a ConvNeXt"):
        convnext.from_torch({name: np.zeros(3, np.float32)})


def loaded(cfg, said):
    """The state with the file's parameters; of all others only the shapes, since it takes seconds to compile their initialization."""
    program = tiny.program(cfg, trains=False)
    return pretrained.load(cfg.init_from, program, Run(program.state, alive=None, sums={}), said.append).state


@pytest.mark.parametrize("method", ["erm", "disent"])
def test_networks_start_from_a_file(short, method, tmp_path):
    """A head of other classes is newly initialised, its norm is not; DisEnt has no such head."""
    state = {name: array for name, array in timm_state(classes=3).items() if name != "stem.0.weight"}
    state = {name: array[..., 2:5, 2:5] if "conv_dw.weight" in name else array for name, array in state.items()}
    state["stem.0.weight"] = normal(4, 3, 2, 2, seed=1)
    path, said = tmp_path / "convnext.safetensors", []
    save_file({name: np.ascontiguousarray(array) for name, array in state.items()}, path)
    params = loaded(tiny.train_config(method, net=short, data=SMALL, init_from=str(path)), said).params
    nets = [net for name, net in params.items() if not name.endswith("_head")]
    for net in nets:
        for name, expected in ((n, e) for n, e in convnext.from_torch(state)[0].items() if n in net and n != "head"):
            jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.stack([b, b])), net[name], expected)
    assert {"head_norm" in net for net in nets} == {"/head/kernel" in said[0]} == {method == "erm"}


def test_files_of_another_size_are_refused(short, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(timm_state(), path)
    with pytest.raises(ValueError, match=r"/kernel is \[.*\] here and the file has \[.*\]: another net"):
        loaded(tiny.train_config(net=short, data=SMALL, init_from=str(path)), [])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("grouped", [False, True])
def test_depthwise_convolutions_equal_xlas_when_mapped(monkeypatch, grouped, dtype):
    """Values and gradients of 5 seeds, as a sum of shifted maps and, as on a GPU in bfloat16, as XLA's."""
    monkeypatch.setattr(conv, "depthwise_is_grouped", lambda *_: grouped)
    x, kernel = (jnp.asarray(normal(*shape), dtype) for shape in ((5, 2, 9, 8, 6), (5, 3, 3, 1, 6)))

    def value(function, x, kernel):
        return jnp.sin(function(x, kernel).astype(jnp.float32)).sum()

    def plain(x, kernel):
        wide = (a.astype(jnp.float32) for a in (x, kernel))
        return jax.lax.conv_general_dilated(*wide, (1, 1), "VALID", dimension_numbers=conv.LAYOUT, feature_group_count=6)

    @jax.jit
    def both(x, kernel):
        mapped = (jax.vmap(jax.value_and_grad(functools.partial(value, function), (0, 1))) for function in (conv.depthwise_conv, plain))
        return [function(x, kernel) for function in mapped]

    for ours, reference in zip(*map(jax.tree.leaves, both(x, kernel)), strict=True):
        difference = np.linalg.norm(np.float32(ours) - np.float32(reference)) / np.linalg.norm(np.float32(reference))
        assert difference < (1e-5 if dtype == "float32" else 0.04)  # of bfloat16, 0.018 were seen over eight seeds


def test_xlas_depthwise_convolution_is_for_large_kernels_on_gpus_in_bfloat16():
    chosen = itertools.product((3, 5, 7), (jnp.float32, jnp.bfloat16), ("cpu", "gpu", "tpu"))
    assert [each for each in chosen if conv.depthwise_is_grouped(*each)] == [(5, jnp.bfloat16, "gpu"), (7, jnp.bfloat16, "gpu")]


def test_parts_in_a_row_are_the_network(short):
    """With layers between them, which see what enters and leaves each part."""
    seen = []

    class Note(nn.Module):
        part: int

        def __call__(self, x, entered, train):
            seen.append((self.part, entered.shape[1], x.shape[1]))
            return x

    image = normal(2, 32, 32, 3)
    whole = short.make(7, after=lambda part: Note(part))
    params = jax.tree.map(lambda leaf: 0.2 * normal(*leaf.shape) + (leaf.ndim == 1), shapes_of(whole, image.shape)[0])
    assert seen == [(0, 32, 16), (1, 16, 16), (2, 16, 8), (3, 8, 4), (4, 4, 2)]

    @jax.jit
    def both(params, image):
        x = image
        for first, last in ((0, 1), (1, 3), (3, 5), (5, 6)):
            part = short.make(7, first=first, last=last)
            x = apply_net(part, {name: params[name] for name in shapes_of(part, x.shape)[0]}, {}, x, False)[0]
        return x, apply_net(whole, params, {}, image, False)[0]

    np.testing.assert_allclose(*both(params, image), rtol=1e-5, atol=1e-6)


def test_stochastic_depth_leaves_out_whole_images():
    """As often as the rate says, and the mean stays what it was."""
    x = np.ones((512, 1, 1, 4), np.float32)
    block = convnext.Block(0.25)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes_of(block, (1, 1, 1, 4))[0])
    params = {**params, "gamma": np.full(4, 3, np.float32), "narrow": {**params["narrow"], "bias": np.ones(4, np.float32)}}
    apply = jax.jit(lambda x, train: apply_net(block, params, {}, x, train, {"dropout": jax.random.key(1)})[0], static_argnums=1)
    added = np.asarray(apply(x, True) - x)[:, 0, 0]
    assert set(added.ravel()) == {0.0, 4.0} and (added == added[:, :1]).all()
    assert 0.18 < (added[:, 0] == 0).mean() < 0.32
    np.testing.assert_array_equal(apply(x, False), x + 3)


def test_images_that_are_too_small_are_an_error(short):
    with pytest.raises(ValueError, match=r"net.patch_px = 4: a map before stage 4 has one pixel and cannot be halved: take 2 or 1"):
        shapes_of(convnext.Config("atto").make(3), (1, 28, 28, 3))
    assert shapes_of(convnext.Config("atto", patch_px=2).make(3), (1, 28, 28, 3))


def test_bfloat16_keeps_parameters_and_logits_in_float32(short):
    half = convnext.Config("atto", patch_px=2, dtype="bfloat16")
    params, _ = shapes_of(half.make(7))
    logits = jax.eval_shape(
        lambda p, x: apply_net(half.make(7), p, {}, x, True)[0], params, jax.ShapeDtypeStruct((2, 32, 32, 3), np.float32)
    )
    maps = jax.eval_shape(
        lambda p, x: apply_net(half.make(7, last=5), p, {}, x, True)[0], params, jax.ShapeDtypeStruct((2, 32, 32, 3), np.float32)
    )
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}
    assert (logits.dtype.name, maps.dtype.name) == ("float32", "bfloat16")


BATCH, INFO = 16, Info(classes=7, train_size=64, steps_per_epoch=4, epochs=2)
RUN = (
    "sagnet",
    "sagnet_biasbed",
    "mixstyle",
    "efdmix",
    "rsc",
    "debiased",
    "lff",
    "disent",
    "dfr",
    "end",
    "lnl",
    "rebias",
    "hex",
    "softcon",
)


def made_up_batch():
    number = jax.ShapeDtypeStruct((BATCH,), np.int32)
    batch = {name: number for name in ("label", "index", "bias")} | {"image": jax.ShapeDtypeStruct((BATCH, 32, 32, 3), np.float32)}
    return batch | {"biased_direction": jax.ShapeDtypeStruct((BATCH, 8), np.float32)}


@pytest.mark.parametrize("method", RUN)
def test_methods_that_need_no_batch_norms_run(pointwise, monkeypatch, method):
    """With stochastic depth too, which needs two blocks: the first one is never left out."""
    monkeypatch.setitem(convnext.SIZES, "atto", ((1, 0, 1, 0), 4))
    take_a_step(method, convnext.Config("atto", patch_px=2, stochastic_depth=0.3))


@pytest.mark.parametrize("method", ["sagnet", "rsc", "debiased"])
def test_methods_that_need_maps_run_on_other_networks_that_have_some(method):
    take_a_step(method, simple_conv.Config(3, (4, 4, 4, 4)))


def take_a_step(method, net):
    """One step keeps the shapes of the whole state: traced, not compiled."""
    of_method = tiny.METHODS[method]
    if method == "debiased":  # other grids hold this step several times
        of_method = dataclasses.replace(of_method, grid="full")
    made = of_method.make(INFO, net, Optim())
    batch, key = made_up_batch(), jax.eval_shape(jax.random.key, 0)
    state = jax.eval_shape(made.init, key, batch)
    after, metrics = jax.eval_shape(made.step, state, batch, key)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert "loss" in metrics
    assert jax.eval_shape(made.predict, state.params, state.stats, batch["image"]).shape == (BATCH, 7)


def test_it_starts_with_the_published_distributions(monkeypatch):
    """Kernels are normal with a deviation of 0.02, biases 0, layer scales 1e-6."""
    monkeypatch.setitem(convnext.SIZES, "atto", ((1, 0, 0, 0), 16))
    image = np.zeros((1, 32, 32, 3), np.float32)
    params, _ = jax.jit(functools.partial(init_net, convnext.Config("atto").make(7)))(jax.random.key(0), image)
    paths = jax.tree_util.tree_leaves_with_path(params)
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in paths}
    kernels = np.concatenate([leaf.ravel() for name, leaf in leaves.items() if name.endswith("kernel")])
    assert kernels.std() == pytest.approx(0.02, rel=0.03) and abs(kernels.mean()) < 1e-3
    assert all(not leaf.any() for name, leaf in leaves.items() if name.endswith("bias"))
    assert [float(leaf[0]) for name, leaf in leaves.items() if name.endswith("gamma")] == [pytest.approx(1e-6)]


@pytest.mark.parametrize("method", ["sagnet", "mixstyle"])
def test_methods_learn_on_it(pointwise, method):
    """Every layer moves, in an array of two seeds that differ in their batches: both start from the same made-up parameters."""
    cfg = tiny.train_config(method, net=pointwise, data=SMALL, epochs=1)
    made, rng = tiny.program(cfg), np.random.default_rng(0)
    before = jax.tree.map(lambda x: np.tile(rng.normal(x.ndim == 2, 0.2, (1, *x.shape[1:])), (2,) + (1,) * (x.ndim - 1)), made.state.params)
    before = jax.tree.map(np.float32, before)
    run = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), made.abstract)
    state = run.state.replace(params=before, hparams={name: np.float32([0.05, 0.05]) for name in run.state.hparams})
    run = made.seeds.place(Run(state, np.ones(2, bool), run.sums), "seed")
    for feed, _ in zip(train.feeds_from(cfg, made, 0), range(2), strict=False):
        run = made.advance(run, made.arrays, feed, made.seeds.array)
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).reshape(2, -1).max(1), run.state.params, before)
    assert all((leaf > 0).all() for leaf in jax.tree.leaves(moved)) and np.asarray(run.alive).all()
    assert any(leaf[0] != leaf[1] for leaf in jax.tree.leaves(moved))


@pytest.mark.parametrize(
    ("method", "missing"),
    [("padain", "BatchNorms that can be replaced"), ("dsu", "BatchNorms that can be replaced"), ("infodrop", "first convolution")],
)
def test_methods_that_need_more_say_what_is_missing_and_where_it_is(method, missing):
    with pytest.raises(ValueError, match=rf"cannot run on jaxbed.models.convnext, which has no {missing}.*give it a resnet.Config\(\)$"):
        tiny.METHODS[method].make(INFO, convnext.Config(), Optim())


def test_networks_are_named_by_what_they_offer():
    nets = (resnet.Config, convnext.Config, simple_conv.Config, mlp.Config, efficientnet.Config)
    for what, expected in (("cut", nets[:4]), ("maps", nets[:3]), ("after", nets[:2]), ("norm", nets[:1]), ("conv", nets[:1])):
        assert [net for net in nets if offers(net, what)] == list(expected)
        named = capabilities._offering(what)
        assert [named.find(net.__module__.rpartition(".")[2]) >= 0 for net in nets] == [net in expected for net in nets]


def test_a_network_is_asked_for_stages_that_it_has():
    for method, field in (("sagnet", "method.style_stage"), ("mixstyle", "method.stages")):
        net = type("Two", (simple_conv.Config,), {"offers": frozenset(capabilities.WORDS)})(widths=(4,))
        with pytest.raises(ValueError, match=rf"{field}: this .* has no stage \d before its head; its stages are none"):
            tiny.METHODS[method].make(INFO, net, Optim())


class Bare(nn.Module):
    """Linear maps, without a layer of normalization."""

    @nn.compact
    def __call__(self, x, train):
        return nn.Conv(4, (1, 1))(x)


class Unnormalized(simple_conv.Config):
    def make(self, classes, first=0, last=None):
        return Bare() if first == 0 else super().make(classes, first, last)


@pytest.mark.parametrize("method", ["sagnet", "debiased"])
def test_methods_that_train_normalization_layers_need_some(method):
    made = tiny.METHODS[method].make(INFO, Unnormalized(), Optim())
    with pytest.raises(ValueError, match=r"normalization layers.*whose names contain norm, and this network has none"):
        jax.eval_shape(made.init, jax.eval_shape(jax.random.key, 0), made_up_batch())


def test_the_page_on_networks_of_ones_own_is_true():
    """Its network runs in parts and whole, on methods that need what it offers, and is refused by those that need more."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    module = {"__name__": "own_network"}
    exec(compile(example, str(PAGE), "exec"), module)
    net = module["Config"](width=4)
    batch, key = made_up_batch(), jax.eval_shape(jax.random.key, 0)
    for method in ("erm", "sagnet", "mixstyle", "dfr"):
        made = tiny.METHODS[method].make(INFO, net, Optim())
        state = jax.eval_shape(made.init, key, batch)
        assert jax.tree.structure(jax.eval_shape(made.step, state, batch, key)[0]) == jax.tree.structure(state)
    words = (
        r"cannot run on own_network, which has no first convolution.* or add what it has to its Config.offers \(it has \['after', 'cut', "
    )
    with pytest.raises(ValueError, match=words):
        tiny.METHODS["infodrop"].make(INFO, net, Optim())
