"""Dual Path Networks: published sizes, and files under the names of pretrainedmodels and timm against NumPy."""

import functools

import jax
import numpy as np
import published_resnets as made_up
import pytest
import tiny
from safetensors.numpy import save_file

from jaxbed import method
from jaxbed.models import dpn
from jaxbed.presets import published
from jaxbed.training import pretrained
from jaxbed.training.program import Run

CLASSES = 7
SMALL = dpn.Size(6, 3, 4, 2, 8, (1, 2, 0, 0), (2, 3, 0, 0))  # of a stage each: shortcut; shortcut that halves, none
IMAGE = np.random.default_rng(1).standard_normal((2, made_up.SIDE_PX, made_up.SIDE_PX, 3), np.float32)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(dpn.SIZES, 68, SMALL)


def shapes_of(net):
    image = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    return jax.eval_shape(functools.partial(method.init_net, net), jax.random.key(0), image)


@pytest.mark.parametrize(("size", "expected"), [(68, 12_611_602), pytest.param(98, 61_570_728, marks=pytest.mark.slow)])
def test_networks_have_the_published_number_of_parameters(size, expected):
    """timm's table of results has 12.61 and 61.57 million."""
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes_of(dpn.Config(size).make(1000))[0])) == expected


def state(head="last_linear"):
    """Random arrays with the published names."""
    stem = {"features.conv1_1.conv.weight": (SMALL.stem, 3, 3, 3), **made_up.norm_shapes("features.conv1_1.bn", SMALL.stem)}
    shapes, inputs = stem, SMALL.stem
    for stage, (count, growth) in enumerate(zip(SMALL.blocks, SMALL.growth, strict=True)):
        inner, added = SMALL.inner * 2**stage, SMALL.added * 2**stage
        for i in range(count):
            at = f"features.conv{stage + 2}_{i + 1}"
            layers = [("1x1_a", inputs, inner, 1, 1), ("3x3_b", inner, inner, 3, SMALL.groups), ("1x1_c", inner, added + growth, 1, 1)]
            if i == 0:
                layers.append((f"1x1_w_s{2 if stage else 1}", inputs, added + 2 * growth, 1, 1))
            for name, before, after, kernel, groups in layers:
                shapes[f"{at}.c{name}.conv.weight"] = (after, before // groups, kernel, kernel)
                shapes |= made_up.norm_shapes(f"{at}.c{name}.bn", before)
            inputs = added + 3 * growth if i == 0 else inputs + growth
    shapes |= made_up.norm_shapes("features.conv5_bn_ac.bn", inputs)
    return made_up.arrays({**shapes, f"{head}.weight": (CLASSES, inputs, 1, 1), f"{head}.bias": (CLASSES,)})


def answer(state, elu):
    """Logits of IMAGE in float64 NumPy: the two paths are two arrays."""
    state = {name: np.asarray(array, np.float64) for name, array in state.items()}

    def norm(x, name):
        return made_up.batch_norm(state, f"{name}.bn", x, 1e-3)

    def layer(x, name, stride=1, groups=1):
        return made_up.conv(made_up.relu(norm(x, name)), state[f"{name}.conv.weight"], stride, groups)

    x = made_up.conv(IMAGE.transpose(0, 3, 1, 2).astype(np.float64), state["features.conv1_1.conv.weight"], 2)
    x = made_up.windows(made_up.padded(made_up.relu(norm(x, "features.conv1_1")), 1, 1, -np.inf), 3, 2).max((4, 5))
    residual, dense = x, x[:, :0]
    for stage, count in enumerate(SMALL.blocks):
        added = SMALL.added * 2**stage
        for i in range(count):
            at, stride = f"features.conv{stage + 2}_{i + 1}", 2 if stage and i == 0 else 1
            whole = np.concatenate([residual, dense], axis=1)
            if i == 0:
                residual, dense = np.split(layer(whole, f"{at}.c1x1_w_s{stride}", stride), [added], axis=1)
            y = layer(layer(whole, f"{at}.c1x1_a"), f"{at}.c3x3_b", stride, SMALL.groups)
            y = layer(y, f"{at}.c1x1_c")
            residual, dense = residual + y[:, :added], np.concatenate([dense, y[:, added:]], axis=1)
    x = norm(np.concatenate([residual, dense], axis=1), "features.conv5_bn_ac")
    x = np.where(x > 0, x, np.expm1(np.minimum(x, 0))) if elu else made_up.relu(x)
    head = next(name for name in dpn.HEADS if f"{name}.weight" in state)
    return x.mean((2, 3)) @ state[f"{head}.weight"][:, :, 0, 0].T + state[f"{head}.bias"]


@pytest.mark.parametrize(("head", "activation"), [("last_linear", "relu"), ("classifier", "relu"), ("classifier", "elu")])
def test_published_weights_give_the_logits_of_another_implementation(small, head, activation):
    """Two seeds in an array, in two parts."""
    cfg = dpn.Config(68, activation)
    states = [state(head), {name: 1.1 * array for name, array in state(head).items()}]
    trees = [dpn.from_torch(each) for each in states]
    assert jax.tree.map(np.shape, trees[0]) == jax.tree.map(lambda x: x.shape, shapes_of(cfg.make(CLASSES)))
    trunk, end = cfg.make(CLASSES, last=5), cfg.make(CLASSES, first=5)

    @jax.jit
    @jax.vmap
    def logits(params, stats):
        maps = method.apply_net(trunk, {name: tree for name, tree in params.items() if name != "head"}, stats, IMAGE, False)[0]
        return method.apply_net(end, {"head": params["head"]}, {}, maps, False)[0]

    found = logits(*jax.tree.map(lambda *leaves: np.stack(leaves), *trees))
    np.testing.assert_allclose(found, [answer(each, activation == "elu") for each in states], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_files_of_timm_start_a_network_with_either_activation(small, tmp_path, activation):
    """Its names tell no version."""
    path, net = tmp_path / "dpn.safetensors", dpn.Config(68, activation)
    save_file(state("classifier"), path)
    program = tiny.program(tiny.train_config(net=net, init_from=str(path)), trains=False)
    params = pretrained.load(str(path), program, Run(program.state, alive=None, sums={}), print, net=net).state.params["net"]
    scale = state("classifier")["features.conv5_bn_ac.bn.weight"]
    np.testing.assert_array_equal(params["stage4_norm"]["scale"], np.stack([scale] * 2))


@pytest.mark.parametrize("name", ["conv1_1.conv", "features.conv6_1.c1x1_a.conv", "features.conv2_1.c1x1_d.conv"])
def test_foreign_names_are_an_error(name):
    with pytest.raises(ValueError, match=f"weights: '{name}.weight' is no array of a Dual Path Network as pretrained"):
        dpn.from_torch({f"{name}.weight": np.zeros(3, np.float32)})


@pytest.mark.parametrize("name", [name for name in published.NETWORKS if "dpn" in name])
def test_published_networks_end_in_a_relu(name):
    """As pretrainedmodels has them, and timm since 0.9."""
    assert published.NETWORKS[name].net.last_activation == "relu"


@pytest.mark.slow
@pytest.mark.parametrize("size", [68, 98])
def test_timm_gives_the_same_logits(size):
    """Since 0.9."""
    torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs = timm.create_model(f"dpn{size}").eval()
    for name, array in theirs.state_dict().items():  # as after training
        if name.endswith(("running_mean", "running_var", "bn.weight")):
            array.copy_(torch.rand_like(array) / 2 + 0.75)
    image = np.random.default_rng(0).standard_normal((2, 224, 224, 3), np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(image.transpose(0, 3, 1, 2))).numpy()
    params, stats = dpn.from_torch({name: array.numpy() for name, array in theirs.state_dict().items()})
    net = published.NETWORKS[f"timm_dpn{size}"].net.make(1000)
    found = jax.jit(lambda params: method.apply_net(net, params, stats, image, False)[0])(params)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
