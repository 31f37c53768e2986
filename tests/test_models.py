"""Networks: published sizes, initialisation and constants; the convolution's own batching rule; layers of methods."""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax import lax

from jaxbed import parallel
from jaxbed.method import apply_net, init_net
from jaxbed.methods import erm, padain, sagnet
from jaxbed.models import conv as conv_module
from jaxbed.models import mlp, resnet, simple_conv, style
from jaxbed.models.conv import LAYOUT, conv
from jaxbed.models.norm import BatchNorm
from jaxbed.models.pool import max_pool
from jaxbed.training import train


def shapes_of(net, side_px=64, channels=3):
    image = jax.ShapeDtypeStruct((2, side_px, side_px, channels), jnp.float32)
    return jax.eval_shape(functools.partial(init_net, net), jax.random.key(0), image)


def count(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(("depth", "expected"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_resnets_have_the_published_number_of_parameters(depth, expected):
    assert count(shapes_of(resnet.Config(depth).make(1000))[0]) == expected


def test_sagnet_50_has_the_published_parts():
    net = resnet.Config(50)
    trunk = shapes_of(net.make(1000, last=3))[0]
    head = shapes_of(net.make(1000, first=3), side_px=8, channels=512)[0]
    assert count(head) == 24_112_104 and count(trunk) + 2 * count(head) == 49_669_136
    paths = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree_util.tree_leaves_with_path({"trunk": trunk})]
    adversary = [p for p in paths if sagnet.in_trunk_norm(p)]
    assert len(adversary) == 2 * 24
    assert sum(x.size for p, x in zip(paths, jax.tree.leaves(trunk), strict=True) if sagnet.in_trunk_norm(p)) == 10_112
    assert not any(sagnet.in_style(p) or sagnet.in_trunk_norm(p) for p in ("content/stage3_block0/norm1/scale", "trunk/stem_conv/kernel"))


def test_parts_of_a_resnet_in_a_row_are_the_resnet():
    net, image = resnet.Config(depth=10, width=4), jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    whole = net.make(7)
    params, stats = init_net(whole, jax.random.key(0), image)
    x = image
    for first, last in ((0, 2), (2, 3), (3, 6)):
        part = net.make(7, first=first, last=last)
        names = init_net(part, jax.random.key(0), x)[0].keys()
        x, _ = apply_net(part, {n: params[n] for n in names}, {n: stats[n] for n in names if n in stats}, x, False)
    np.testing.assert_allclose(x, apply_net(whole, params, stats, image, False)[0], rtol=1e-6)


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("half", 16), ("small", 32)])
def test_stems_halve_as_they_say(stem, side):
    net = resnet.Config(depth=10, width=4, stem=stem).make(7, last=2)
    variables = net.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)
    assert net.apply(variables, jnp.zeros((1, 32, 32, 3)), train=False).shape == (1, side, side, 4)


def test_stride_of_a_bottleneck_is_in_its_3x3():
    net = resnet.Config(depth=50, width=4).make(7, first=2, last=3)
    params, stats = init_net(net, jax.random.key(0), jnp.zeros((1, 8, 8, 16)))
    assert params["stage2_block0"]["conv1"]["kernel"].shape == (1, 1, 16, 8)
    middle = net.apply(
        {"params": params, "batch_stats": stats},
        jnp.zeros((1, 8, 8, 16)),
        train=False,
        capture_intermediates=lambda module, _: module.name in ("conv1", "conv2"),
        mutable=["intermediates"],
    )[1]["intermediates"]["stage2_block0"]
    assert middle["conv1"]["__call__"][0].shape[1] == 8 and middle["conv2"]["__call__"][0].shape[1] == 4


def test_initialisation_is_torchvisions():
    params, stats = init_net(resnet.Config(depth=18, width=64).make(100), jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    kernel = params["stage2_block0"]["conv1"]["kernel"]
    assert kernel.shape == (3, 3, 64, 128)
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 128)), rtol=0.02)  # Kaiming normal, fan out
    assert abs(kernel).max() > 3 * kernel.std()  # not truncated
    assert (params["stage1_block0"]["norm2"]["scale"] == 1).all() and (stats["stem_norm"]["var"] == 1).all()
    for leaf in params["head"].values():
        assert abs(leaf).max() <= 512**-0.5 and abs(leaf).max() > 0.9 * 512**-0.5


def test_mlp_is_pytorchs():
    params, stats = init_net(mlp.Config((100, 100, 16)).make(10), jax.random.key(0), jnp.zeros((1, 28, 28, 3)))
    assert [params[n]["kernel"].shape for n in ("hidden0", "hidden1", "hidden2", "head")] == [(2352, 100), (100, 100), (100, 16), (16, 10)]
    assert stats == {}
    for name, inputs in (("hidden0", 2352), ("hidden2", 100), ("head", 16)):
        for leaf in params[name].values():
            assert 0.5 * inputs**-0.5 < abs(leaf).max() <= inputs**-0.5
    np.testing.assert_allclose(params["hidden0"]["kernel"].std(), 2352**-0.5 / np.sqrt(3), rtol=0.01)


@pytest.mark.parametrize("kernel", [7, 1])
def test_simple_conv_sees_as_far_as_its_kernel(kernel):
    net = simple_conv.Config(kernel).make(10)
    image = jax.random.normal(jax.random.key(1), (1, 28, 28, 3))
    params, stats = init_net(net, jax.random.key(0), image)
    widths = [3, 16, 32, 64, 128]
    assert [params[f"conv{i}"]["kernel"].shape for i in range(4)] == [(kernel, kernel, widths[i], widths[i + 1]) for i in range(4)]
    shuffled = jax.random.permutation(jax.random.key(2), image.reshape(-1, 3)).reshape(image.shape)
    same = np.allclose(*(apply_net(net, params, stats, x, False)[0] for x in (image, shuffled)), atol=1e-5)
    assert same == (kernel == 1)  # single pixels carry no shape
    with pytest.raises(ValueError, match=r"net\.kernel = 4"):
        simple_conv.Config(4).make(10)


def test_batch_norm_is_pytorchs():
    norm, x = BatchNorm(), jax.random.normal(jax.random.key(0), (4, 2, 2, 3)) * 3 + 1
    variables = norm.init(jax.random.key(0), x, train=False)
    out, updated = norm.apply(variables, x, train=True, mutable=["batch_stats"])
    flat = np.asarray(x, np.float64).reshape(-1, 3)
    np.testing.assert_allclose(np.asarray(out).reshape(-1, 3), (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5), atol=1e-5)
    np.testing.assert_allclose(updated["batch_stats"]["mean"], 0.1 * flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(updated["batch_stats"]["var"], 0.9 + 0.1 * flat.var(0, ddof=1), rtol=1e-5)  # unbiased
    shown = norm.apply({**variables, "batch_stats": {"mean": jnp.ones(3), "var": jnp.full(3, 4.0)}}, x, train=False)
    np.testing.assert_allclose(shown, (x - 1) / np.sqrt(4 + 1e-5), rtol=1e-5, atol=1e-6)


def test_groups_of_batch_norm_are_batches_of_their_own():
    x = jax.random.normal(jax.random.key(0), (6, 2, 2, 3), jnp.float32) * jnp.arange(1, 7)[:, None, None, None]
    variables = BatchNorm().init(jax.random.key(0), x, train=False)
    found, stats = BatchNorm(groups=3).apply(variables, x, train=True, mutable=["batch_stats"])
    alone = [BatchNorm().apply(variables, x[i : i + 2], train=True, mutable=["batch_stats"]) for i in (0, 2, 4)]
    np.testing.assert_allclose(found, np.concatenate([out for out, _ in alone]), rtol=1e-5, atol=1e-6)
    mean = jax.tree.map(lambda *each: sum(each) / 3, *[stats for _, stats in alone])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), dict(stats), dict(mean))
    np.testing.assert_array_equal(*(BatchNorm(groups=n).apply(variables, x, train=False) for n in (1, 3)))
    with pytest.raises(ValueError, match=r"net\.norm_groups = 4: a batch of 6 cannot be cut into so many equal groups"):
        BatchNorm(groups=4).apply(variables, x, train=True, mutable=["batch_stats"])
    with pytest.raises(ValueError, match=r"net\.norm_groups = 2: this method's BatchNorms are of its own"):
        resnet.Config(10, norm_groups=2).make(3, norm=style.permuted_norm)


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_devices_wait_for_each_other_once_a_step_where_each_has_its_groups(groups):
    cfg = tiny.train_config(net=resnet.Config(10, 4, "half", norm_groups=groups), seeds=1, mesh=parallel.Mesh(seed=1, data=2))
    made = tiny.program(cfg)
    run, feed = train.start(cfg, made), next(train.feeds_from(cfg, made, 0))
    text = made.advance.lower(run, made.arrays, feed, made.seeds.array).compile().as_text()
    waits = len(re.findall(r" all-reduce(?:-start)?\(", text))
    assert waits > 15 if groups == 1 else waits == 1


@pytest.mark.parametrize("cfg", [resnet.Config(depth=10, width=4), mlp.Config((20, 10)), simple_conv.Config(3, (4, 8))])
def test_bfloat16_keeps_parameters_statistics_and_logits_in_float32(cfg):
    half = dataclasses.replace(cfg, dtype="bfloat16").make(7)
    image = jax.random.normal(jax.random.key(1), (4, 16, 16, 3))
    params, stats = init_net(half, jax.random.key(0), image)
    logits, new_stats = apply_net(half, params, stats, image, True)
    assert logits.dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves((params, new_stats))} == {jnp.dtype("float32")}
    exact = apply_net(cfg.make(7), params, stats, image, True)[0]
    np.testing.assert_allclose(logits, exact, atol=0.1)
    assert (logits != exact).any()  # bfloat16 was used


@pytest.mark.parametrize(
    ("kernel", "stride", "side"), [(3, 1, 6), (3, 2, 7), (1, 1, 6), (1, 2, 6), (7, 2, 9), (3, 1, 2), (3, 2, 4), (7, 1, 1)]
)
@pytest.mark.parametrize("batched", [(True, True), (False, True), (True, False)])
def test_convolution_and_its_gradients_equal_xlas_when_mapped(kernel, stride, side, batched):
    padding = (kernel - 1) // 2
    x = jax.random.normal(jax.random.key(0), (3, 2, side, side, 4))
    w = jax.random.normal(jax.random.key(1), (3, kernel, kernel, 4, 5))

    def plain(x, w):
        return lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=LAYOUT)

    def own(x, w):
        return conv(x, w, stride, padding)

    axes = tuple(0 if b else None for b in batched)
    args = tuple(a if b else a[0] for a, b in zip((x, w), batched, strict=True))
    for function in (plain, own):
        loss = jax.value_and_grad(lambda x, w, f=function: jnp.sin(f(x, w)).sum(), (0, 1))
        result = jax.vmap(loss, axes)(*args)
        if function is plain:
            expected = result
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(result), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


@pytest.fixture
def products(monkeypatch):
    """Every convolution of several seeds as a product, as on a GPU where they are small."""
    monkeypatch.setattr(conv_module, "product_pays", lambda seeds, *_: seeds > 1)
    conv_module._rules.cache_clear()
    yield
    conv_module._rules.cache_clear()


@pytest.mark.parametrize(
    ("size", "stride", "side"),
    [(1, 1, 5), (1, 2, 6), (1, 2, 5), (3, 1, 6), (3, 2, 6), (3, 2, 7), pytest.param(7, 2, 9, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("shared", ["nothing", "images", "kernels"])
def test_products_are_the_same_convolutions(products, size, stride, side, shared):
    """Outputs and gradients of three seeds, mapped, against XLA's own convolution, seed by seed."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (3, 2, side, side, 4)), jax.random.normal(keys[1], (3, size, size, 4, 5))
    padding, axes = size // 2, (None if shared == "images" else 0, None if shared == "kernels" else 0)
    weight = jax.random.normal(keys[2], (3, 2, (side - 1) // stride + 1, (side - 1) // stride + 1, 5))

    def plain(x, kernel, stride, padding):
        return lax.conv_general_dilated(x, kernel, (stride,) * 2, [(padding,) * 2] * 2, dimension_numbers=LAYOUT)

    def whole(function):
        args = (x[0] if axes[0] is None else x, kernel[0] if axes[1] is None else kernel)

        def value(args):
            each = [a if axis == 0 else [a] * 3 for a, axis in zip(args, axes, strict=True)]
            out = jax.vmap(lambda *a: conv(*a, stride, padding), axes)(*args) if function is conv else None
            out = jnp.stack([plain(*a, stride, padding) for a in zip(*each, strict=True)]) if out is None else out
            return (out * weight).sum(), out

        return jax.grad(value, has_aux=True)(args)

    for found, expected in zip(jax.tree.leaves(whole(conv)), jax.tree.leaves(whole(plain)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("form", "size", "side"), [("dense", 7, 12), ("product", 3, 8), pytest.param("product", 7, 12, marks=pytest.mark.slow)]
)
def test_strided_convolutions_over_blocks_of_pixels_are_the_same(monkeypatch, form, size, side):
    """As on a GPU, for images of few channels."""
    monkeypatch.setattr(conv_module, "product_pays", lambda *_: form == "product")
    conv_module._rules.cache_clear()
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (2, side, side, 3)), jax.random.normal(keys[1], (size, size, 3, 5))
    weight = jax.random.normal(keys[2], (2, side // 2, side // 2, 5))

    def whole(backend):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        return jax.value_and_grad(lambda x, kernel: (weight * conv(x, kernel, 2, size // 2)).sum(), (0, 1))(x, kernel)

    assert conv_module.blocks_pay(x.shape, 2, size // 2, "gpu")
    for found, expected in zip(jax.tree.leaves(whole("gpu")), jax.tree.leaves(whole("cpu")), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    conv_module._rules.cache_clear()


@pytest.mark.parametrize(
    ("shape", "stride", "padding", "backend"),
    [
        ((2, 8, 8, 3), 2, 3, "cpu"),
        ((2, 8, 8, 3), 1, 3, "gpu"),
        ((2, 8, 8, 64), 2, 3, "gpu"),
        ((2, 7, 8, 3), 2, 3, "gpu"),
        ((2, 8, 8, 3), 2, 0, "gpu"),
        ((2, 8, 8, 3), 2, 2, "gpu"),
    ],
)
def test_other_convolutions_stay_as_they_are(shape, stride, padding, backend):
    assert not conv_module.blocks_pay(shape, stride, padding, backend)


@pytest.mark.parametrize("shape", [(3, 8, 8, 4), (3, 7, 9, 2), (3, 2, 3, 5), (2, 1, 1, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_max_pooling_and_its_gradient_equal_xlas(shape, dtype):
    """Of integers, so that windows have several maxima; mapped over seeds."""
    x = jnp.round(2 * jax.random.normal(jax.random.key(0), (2, *shape))).astype(dtype)

    def plain(x):
        return nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))

    weight = jax.random.normal(jax.random.key(1), jax.eval_shape(jax.vmap(plain), x).shape)

    def whole(function):
        def value(x):
            out = jax.vmap(function)(x)
            return (out * weight).sum(), out

        return jax.jit(jax.grad(value, has_aux=True))(x)

    for found, expected in zip(whole(max_pool), whole(plain), strict=True):
        np.testing.assert_allclose(np.float32(found), np.float32(expected), rtol=1e-2 if dtype == "bfloat16" else 1e-6, atol=1e-2)
    mapped = jax.vmap(jax.grad(lambda x, w: (max_pool(x) * w).sum()))(x, weight)
    np.testing.assert_array_equal(np.float32(mapped), np.float32(whole(max_pool)[0]))


@pytest.mark.parametrize(
    ("seeds", "kernel", "stride", "output", "backend", "pays"),
    [
        (10, (3, 3, 256, 512), 2, (64, 2, 2, 512), "gpu", True),
        (10, (3, 3, 128, 128), 1, (64, 8, 8, 128), "gpu", True),
        (1, (3, 3, 128, 128), 1, (64, 8, 8, 128), "gpu", False),
        (10, (3, 3, 128, 128), 1, (64, 8, 8, 128), "cpu", False),
        (10, (3, 3, 64, 64), 1, (128, 32, 32, 64), "gpu", False),
        (10, (3, 3, 64, 64), 1, (64, 16, 16, 64), "gpu", False),
        (10, (4, 4, 12, 64), 1, (64, 32, 32, 64), "gpu", False),
        (10, (4, 4, 12, 64), 1, (64, 112, 112, 64), "gpu", False),
        (10, (1, 1, 64, 256), 1, (64, 56, 56, 256), "cpu", True),
        (10, (1, 1, 64, 128), 2, (64, 8, 8, 128), "cpu", False),
        (10, (1, 1, 64, 128), 2, (64, 8, 8, 128), "gpu", True),
        (1, (3, 3, 64, 128), 2, (64, 2, 2, 128), "cpu", True),
    ],
)
def test_which_convolutions_become_products(seeds, kernel, stride, output, backend, pays):
    assert conv_module.product_pays(seeds, kernel, stride, output, backend) is pays


def steps(method, count=3):
    cfg = tiny.train_config()
    cfg.method = method
    program = tiny.program(cfg)
    run, batches = train.start(cfg, program), train.feeds_from(cfg, program, 0)
    for _ in range(count):
        run = program.advance(run, program.arrays, next(batches), program.seeds.array)
    return jax.device_get(run)


def test_padain_that_never_swaps_is_erm_to_the_last_bit():
    for a, b in zip(jax.tree.leaves(steps(erm.Config())), jax.tree.leaves(steps(padain.Config(p=0.0))), strict=True):
        np.testing.assert_array_equal(a, b)


def test_padain_sits_before_every_main_norm_and_on_no_shortcut():
    net = resnet.Config(50).make(1000, norm=style.permuted_norm)
    image = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    swaps = jax.eval_shape(lambda image: style.draw_swaps(net, 0.5, image, jax.random.key(1)), image)
    names = {jax.tree_util.keystr(path[:-1]) for path, _ in jax.tree_util.tree_leaves_with_path(swaps)}
    assert len(names) == 49 and not any("shortcut" in n for n in names)
    assert count(shapes_of(net)[0]) == 25_557_032


def test_every_site_draws_its_own_permutation_and_coin():
    net, image = resnet.Config(depth=10, width=4, stem="half").make(7, norm=style.permuted_norm), jnp.zeros((16, 32, 32, 3))
    draws = jax.jit(lambda key: style.draw_swaps(net, 0.5, image, key))
    orders, coins = [], []
    for seed in range(40):
        leaves = jax.tree.leaves(draws(jax.random.key(seed)))
        orders += [np.asarray(x) for x in leaves if x.ndim]
        coins += [bool(x) for x in leaves if not x.ndim]
    assert all((np.sort(order) == np.arange(16)).all() for order in orders)
    assert len({order.tobytes() for order in orders}) == len(orders) == 40 * 9
    assert abs(np.mean(coins) - 0.5) < 4 * np.sqrt(0.25 / len(coins))


@pytest.mark.parametrize("swap", [False, True])
def test_padain_folded_into_batchnorm_is_the_swap_and_then_batchnorm(swap):
    x = jax.random.normal(jax.random.key(0), (6, 4, 5, 3)) * jnp.array([0.5, 1.0, 3.0]) + jnp.array([2.0, -1.0, 0.0])
    weight, order = jax.random.normal(jax.random.key(1), x.shape), jnp.array([3, 1, 0, 5, 2, 4])
    plain, folded = BatchNorm(), BatchNorm(style.PermutedAdaIN())
    variables = plain.init(jax.random.key(0), x, train=False)
    params = {"scale": jnp.array([0.7, 1.3, -1.0]), "bias": jnp.array([0.1, 0.2, 0.3])}

    def outcome(net, before, extra):
        def value(params, x):
            out, state = net.apply({**variables, **extra, "params": params}, before(x), train=True, mutable=["batch_stats"])
            return (out * weight).sum(), (out, state)

        return jax.grad(value, argnums=(0, 1), has_aux=True)(params, x)

    found = outcome(folded, lambda x: x, {"swaps": {"restyle": {"draw": (order, jnp.array(swap))}}})
    expected = outcome(plain, (lambda x: style.swap_statistics(x, order)) if swap else lambda x: x, {})
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def test_padain_always_swapping_changes_training_but_not_prediction():
    net, image = resnet.Config(depth=10, width=4), jax.random.normal(jax.random.key(0), (4, 32, 32, 3))
    swapped, plain = net.make(7, norm=style.permuted_norm), net.make(7)
    params, stats = init_net(plain, jax.random.key(0), image)
    assert jax.tree.structure(params) == jax.tree.structure(init_net(swapped, jax.random.key(0), image)[0])
    np.testing.assert_array_equal(apply_net(swapped, params, stats, image, False)[0], apply_net(plain, params, stats, image, False)[0])
    drawn = {"swaps": style.draw_swaps(swapped, 1.0, image, jax.random.key(2))}
    trained = apply_net(swapped, params, stats, image, True, drawn=drawn)[0]
    assert not np.allclose(trained, apply_net(plain, params, stats, image, True)[0], atol=1e-3)
