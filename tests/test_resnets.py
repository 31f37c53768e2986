"""ResNets with other blocks, ResNeXt: published files against NumPy, and methods."""

import functools

import jax
import numpy as np
import published_resnets as made_up
import pytest

from jaxbed import method
from jaxbed.methods import rebias
from jaxbed.models import convert, resnet, style

IMAGE = np.random.default_rng(1).standard_normal((2, made_up.SIDE_PX, made_up.SIDE_PX, 3), np.float32)
# How each is made: fields of the configuration, and of made_up.state. At a width of 8, 64 of group_width are 8 channels
KINDS = {
    "resnext": ({"groups": 2, "group_width": 32}, {"middle": 8, "groups": 2}),
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
    trees = [convert.from_torch(state) for state in states]
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
    expected = [made_up.answer(s, IMAGE, shape.get("groups", 1)) for s in states]
    np.testing.assert_allclose(logits(*stacked(*trees)), expected, rtol=1e-3, atol=1e-3)
    again = convert.to_torch(*trees[0])
    assert {name for name in again if not name.endswith("num_batches_tracked")} == {*states[0]}
    for name, array in states[0].items():
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 18, "groups": 32}, r"net\.groups = 32: net\.depth = 18 has no bottlenecks: take 50, 101, 152"),
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
    assert len(names) == 3 * sum(made_up.BLOCKS) + 1
    pointwise = jax.eval_shape(functools.partial(method.init_net, cfg.make(7, conv=rebias.pointwise)), jax.random.key(0), image)[0]
    blocks = [tree for name, tree in pointwise.items() if name.startswith("stage")]
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(blocks) if leaf.ndim == 4}
    assert sizes == {1}
    seen = []

    def after(part):
        return lambda x, entered, train: (seen.append((part, x.shape[1:3])), x)[1]

    jax.eval_shape(functools.partial(method.init_net, cfg.make(7, after=after)), jax.random.key(0), image)
    assert [part for part, _ in seen] == [0, 1, 2, 3, 4] and seen[0][1] == (8, 8)
