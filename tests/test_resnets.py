"""ResNets with other blocks: ResNeXt, squeeze-and-excitation, CBAM, Res2Net: published files against NumPy, and methods."""

import functools

import jax
import numpy as np
import published_resnets as made_up
import pytest

from jaxbed import method
from jaxbed.methods import rebias
from jaxbed.models import convert, gates, pool, resnet, style

IMAGE = np.random.default_rng(1).standard_normal((2, made_up.SIDE_PX, made_up.SIDE_PX, 3), np.float32)
# How each is made: fields of the configuration, and of made_up.state. At a width of 8, 64 of group_width are 8 channels
KINDS = {
    "resnext": ({"groups": 2, "group_width": 32}, {"middle": 8, "groups": 2}),
    "se_caffe": ({"gate": "se", "layout": "caffe"}, {"middle": 8, "gate": "se"}),
    "se_resnext_caffe": (
        {"gate": "se", "layout": "caffe", "groups": 2, "group_width": 32},
        {"middle": 8, "groups": 2, "gate": "se"},
    ),
    "se": ({"gate": "se"}, {"middle": 8, "gate": "se"}),
    "cbam": ({"gate": "cbam"}, {"middle": 8, "gate": "cbam"}),
    "res2net": (
        {"scales": 4, "group_width": 26, "stem": "deep", "shortcut": "mean"},
        {"middle": 3, "scales": 4, "deep": True},
    ),
}


@pytest.fixture
def shallow(monkeypatch):
    """Three blocks: with a shortcut, with a shortcut that halves, without."""
    monkeypatch.setitem(resnet.BLOCKS, 50, made_up.BLOCKS)


def shapes_of(net, classes=1000):
    image = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    return jax.eval_shape(functools.partial(method.init_net, net.make(classes)), jax.random.key(0), image)


def stacked(*trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def made(kind):
    """(configuration, two states under torchvision's names)."""
    fields, shape = KINDS[kind]
    state = made_up.state(**shape)
    return resnet.Config(50, made_up.WIDTH, **fields), [state, {name: 1.1 * array for name, array in state.items()}]


@pytest.mark.parametrize("kind", KINDS)
def test_published_weights_give_the_logits_of_another_implementation(shallow, kind):
    """Two seeds in an array, in two parts."""
    cfg, states = made(kind)
    convert_file = convert.from_cadene if cfg.layout == "caffe" else convert.from_torch
    trees = [convert_file(made_up.cadene(state) if cfg.layout == "caffe" else state) for state in states]
    assert jax.tree.map(np.shape, trees[0]) == jax.tree.map(lambda x: x.shape, shapes_of(cfg, made_up.CLASSES))
    parts = cfg.make(made_up.CLASSES, last=2), cfg.make(made_up.CLASSES, first=2)

    @jax.jit
    @jax.vmap
    def logits(params, stats):
        x = IMAGE
        for part in parts:
            names = jax.eval_shape(functools.partial(method.init_net, part), jax.random.key(0), x)[0]
            x = method.apply_net(part, {name: params[name] for name in names}, {n: stats[n] for n in names if n in stats}, x, False)[0]
        return x

    shape = KINDS[kind][1]
    expected = [made_up.answer(s, IMAGE, shape.get("groups", 1), shape.get("scales", 1), cfg.layout == "caffe") for s in states]
    np.testing.assert_allclose(logits(*stacked(*trees)), expected, rtol=1e-3, atol=1e-3)
    if cfg.layout == "torchvision":
        again = convert.to_torch(*trees[0], cfg.shortcut)
        assert {name for name in again if not name.endswith("num_batches_tracked")} == {*states[0]}
        for name, array in states[0].items():
            np.testing.assert_array_equal(again[name], array)


def test_layouts_differ_where_shapes_do_not(shallow):
    """So that the layout of a file has to be told by its names."""
    (caffe, states), (torchvision, _) = made("se_caffe"), made("se")
    assert shapes_of(caffe, 7) == shapes_of(torchvision, 7)
    one, other = (made_up.answer(states[0], IMAGE, caffe=caffe) for caffe in (True, False))
    assert not np.allclose(one, other, atol=1e-2)


@pytest.mark.parametrize(("channels", "expected"), [(256, 16), (512, 32), (1024, 64), (2048, 128), (32, 8), (16, 8), (192, 16), (320, 24)])
def test_gates_squeeze_to_a_multiple_of_eight(channels, expected):
    assert gates.squeezed(channels) == expected


@pytest.mark.parametrize("gate", gates.GATES)
def test_open_gates_change_nothing_and_half_open_ones_halve(gate):
    """With zeros for all kernels, biases are what opens a gate."""
    module, x = gates.GATES[gate](), IMAGE[..., :1] * np.arange(1, 17, dtype=np.float32)
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, train=False))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    stages = 2 if gate == "cbam" else 1  # CBAM has one for channels and one for pixels
    opened = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf + 100 * (path[-1].key == "bias" and path[-2].key != "squeeze"), zeros)
    np.testing.assert_allclose(module.apply(zeros, x, train=False), x * 0.5**stages, rtol=1e-6)
    np.testing.assert_allclose(module.apply(opened, x, train=False), x, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 18, "groups": 32}, r"net\.groups = 32: net\.depth = 18 has no bottlenecks: take 50, 101, 152"),
        ({"depth": 34, "scales": 4}, r"net\.scales = 4: net\.depth = 34 has no bottlenecks"),
        ({"width": 8, "group_width": 4}, r"net\.group_width = 4: at net\.width = 8 it must be at least 8"),
    ],
)
def test_blocks_that_cannot_be_made_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        resnet.Config(**fields).make(7)


@pytest.mark.parametrize("kind", KINDS)
def test_methods_get_the_pieces_that_they_ask_for(shallow, kind):
    """pAdaIN's norms on the main path alone, ReBias' 1 x 1 convolutions, what a method puts after parts, and SagNet's cut."""
    cfg, _ = made(kind)
    image = jax.ShapeDtypeStruct((2, 32, 32, 3), np.float32)
    swaps = jax.eval_shape(lambda image: style.draw_swaps(cfg.make(7, norm=style.permuted_norm), 0.5, image, jax.random.key(1)), image)
    names = {jax.tree_util.keystr(path[:-1]) for path, _ in jax.tree_util.tree_leaves_with_path(swaps)}
    middle, stem = (cfg.scales - 1 if cfg.scales > 1 else 1), 3 if cfg.stem == "deep" else 1
    assert len(names) == sum(made_up.BLOCKS) * (2 + middle) + stem
    pointwise = jax.eval_shape(functools.partial(method.init_net, cfg.make(7, conv=rebias.pointwise)), jax.random.key(0), image)[0]
    blocks = [tree for name, tree in pointwise.items() if name.startswith("stage")]
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(blocks) if leaf.ndim == 4}
    assert sizes == ({1, 7} if kind == "cbam" else {1})
    seen = []

    def after(part):
        return lambda x, entered, train: (seen.append((part, x.shape[1:3])), x)[1]

    jax.eval_shape(functools.partial(method.init_net, cfg.make(7, after=after)), jax.random.key(0), image)
    assert [part for part, _ in seen] == [0, 1, 2, 3, 4] and seen[0][1] == (8, 8)
    if cfg.stem == "deep":
        with pytest.raises(ValueError, match=r"net\.stem = deep: this method needs a stem of one convolution"):
            _ = cfg.first_conv
    else:
        assert cfg.first_conv.inside == (cfg.layout == "caffe")


@pytest.mark.parametrize("side", [6, 7])
def test_pooling_in_other_windows(side):
    """Caffe's maxima, BiT's with zeros, and means, against NumPy."""
    x = np.random.default_rng(0).standard_normal((2, side, side, 3), np.float32) - 2  # negative: zeros win
    maps, odd = x.transpose(0, 3, 1, 2), side % 2
    inside, zeros, three, two = jax.jit(
        lambda x: (pool.max_pool_inside(x), pool.max_pool_zeros(x), pool.mean_pool(x, 3, 2), pool.mean_pool(x, 2, 2))
    )(x)
    for found, expected in (
        (inside, made_up.windows(made_up.padded(maps, 0, 1 - odd, -np.inf), 3, 2).max((4, 5))),
        (zeros, made_up.windows(made_up.padded(maps, 1, 1), 3, 2).max((4, 5))),
        (three, made_up.windows(made_up.padded(maps, 1, 1), 3, 2).mean((4, 5))),
        (two, np.nanmean(made_up.windows(made_up.padded(maps, 0, odd, np.nan), 2, 2), (4, 5))),
    ):
        np.testing.assert_allclose(found, expected.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="size = 4: must be 3, or the stride, 2"):
        pool.mean_pool(x, 4, 2)


@pytest.mark.parametrize("name", ["layer1.0.se.fc3.weight", "layer1.0.se.fc1.running_mean", "layer1.0.cbam.ChannelGate.mlp.2.weight"])
def test_foreign_names_are_an_error(name):
    with pytest.raises(ValueError, match=f"weights: '{name}' is no (layer|array) of a torchvision ResNet"):
        convert.from_torch({name: np.zeros(3, np.float32)})
