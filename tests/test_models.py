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
from flax import errors
from jax import lax

from jaxbed import method, parallel
from jaxbed.methods import erm, padain, sagnet
from jaxbed.models import conv as conv_module
from jaxbed.models import mlp, resnet, simple_conv, style
from jaxbed.models.conv import LAYOUT, conv
from jaxbed.models.norm import BatchNorm
from jaxbed.models.pool import max_pool
from jaxbed.training import train

init_net = jax.jit(method.init_net, static_argnums=0)
apply_net = jax.jit(method.apply_net, static_argnums=(0, 4))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def shapes_of(net, side_px=64, channels=3):
    image = jax.ShapeDtypeStruct((2, side_px, side_px, channels), jnp.float32)
    return jax.eval_shape(functools.partial(method.init_net, net), jax.random.key(0), image)


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
    net, image = tiny.RESNET_6, normal(2, 16, 16, 3)
    whole = net.make(7)
    params, stats = init_net(whole, jax.random.key(0), image)

    def in_a_row(params, stats, x):
        for first, last in ((0, 1), (1, 3), (3, 6)):
            part = net.make(7, first=first, last=last)
            names = jax.eval_shape(functools.partial(method.init_net, part), jax.random.key(0), x)[0].keys()
            x, _ = method.apply_net(part, {n: params[n] for n in names}, {n: stats[n] for n in names if n in stats}, x, False)
        return x

    logits = jax.jit(in_a_row)(params, stats, image)
    np.testing.assert_allclose(logits, apply_net(whole, params, stats, image, False)[0], rtol=1e-6)


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 8), ("half", 16), ("small", 32)])
def test_stems_halve_as_they_say(stem, side):
    net = resnet.Config(depth=10, width=4, stem=stem).make(7, last=2)
    maps, _ = jax.eval_shape(lambda: net.init_with_output(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False))
    assert maps.shape == (1, side, side, 4)


def test_stride_of_a_bottleneck_is_in_its_3x3():
    net = resnet.Config(depth=50, width=4).make(7, first=2, last=3)

    def convolutions():
        def is_one(module, _):
            return module.name in ("conv1", "conv2")

        x = jnp.zeros((1, 8, 8, 16))
        return net.init_with_output(jax.random.key(0), x, train=False, capture_intermediates=is_one, mutable=True)[1]

    variables = jax.eval_shape(convolutions)
    assert variables["params"]["stage2_block0"]["conv1"]["kernel"].shape == (1, 1, 16, 8)
    maps = variables["intermediates"]["stage2_block0"]
    assert maps["conv1"]["__call__"][0].shape[1] == 8 and maps["conv2"]["__call__"][0].shape[1] == 4


def test_initialisation_is_torchvisions():
    net = dataclasses.replace(tiny.RESNET_4, width=64).make(100)
    params, stats = jax.device_get(init_net(net, jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32)))
    kernel = params["stage2_block0"]["conv1"]["kernel"]
    assert kernel.shape == (3, 3, 64, 128)
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 128)), rtol=0.02)  # Kaiming normal, fan out
    assert abs(kernel).max() > 3 * kernel.std()  # not truncated
    assert (params["stage2_block0"]["norm2"]["scale"] == 1).all() and (stats["stem_norm"]["var"] == 1).all()
    for leaf in params["head"].values():
        assert abs(leaf).max() <= 128**-0.5 and abs(leaf).max() > 0.9 * 128**-0.5


def test_mlp_is_pytorchs():
    params, stats = jax.device_get(init_net(mlp.Config((100, 100, 16)).make(10), jax.random.key(0), np.zeros((1, 28, 28, 3))))
    assert [params[n]["kernel"].shape for n in ("hidden0", "hidden1", "hidden2", "head")] == [(2352, 100), (100, 100), (100, 16), (16, 10)]
    assert stats == {}
    for name, inputs in (("hidden0", 2352), ("hidden2", 100), ("head", 16)):
        for leaf in params[name].values():
            assert 0.5 * inputs**-0.5 < abs(leaf).max() <= inputs**-0.5
    np.testing.assert_allclose(params["hidden0"]["kernel"].std(), 2352**-0.5 / np.sqrt(3), rtol=0.01)


@pytest.mark.parametrize("kernel", [7, 1])
def test_simple_conv_sees_as_far_as_its_kernel(kernel):
    net = simple_conv.Config(kernel).make(10)
    image = normal(1, 12, 12, 3)
    params, stats = init_net(net, jax.random.key(0), image)
    widths = [3, 16, 32, 64, 128]
    assert [params[f"conv{i}"]["kernel"].shape for i in range(4)] == [(kernel, kernel, widths[i], widths[i + 1]) for i in range(4)]
    shuffled = np.random.default_rng(2).permutation(image.reshape(-1, 3)).reshape(image.shape)
    same = np.allclose(*(apply_net(net, params, stats, x, False)[0] for x in (image, shuffled)), atol=1e-5)
    assert same == (kernel == 1)  # single pixels carry no shape
    with pytest.raises(ValueError, match=r"net\.kernel = 4"):
        simple_conv.Config(4).make(10)


def test_parameters_of_another_shape_are_refused():
    """As by flax's own `param`."""
    params, _ = shapes_of(mlp.Config((5,)).make(7), side_px=2)
    with pytest.raises(errors.ScopeParamShapeError, match=r'"kernel" in "/hidden0".*\(12, 6\).*\(12, 5\)'):
        jax.eval_shape(lambda params: method.apply_net(mlp.Config((6,)).make(7), params, {}, np.zeros((1, 2, 2, 3)), False), params)


@functools.partial(jax.jit, static_argnums=(0, 3))
def normalised(norm, variables, x, train=True):
    """Output and new batch statistics."""
    out, updated = norm.apply(variables, x, train=train, mutable=["batch_stats"])
    return out, updated["batch_stats"]


def fresh(features):
    """The variables of a new BatchNorm."""
    ones, zeros = np.ones(features, np.float32), np.zeros(features, np.float32)
    return {"params": {"scale": ones, "bias": zeros}, "batch_stats": {"mean": zeros, "var": ones}}


def test_batch_norm_is_pytorchs():
    norm, x = BatchNorm(), normal(4, 2, 2, 3) * 3 + 1
    variables = jax.jit(functools.partial(norm.init, train=False))(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, variables, fresh(3))
    out, stats = normalised(norm, variables, x)
    flat = np.asarray(x, np.float64).reshape(-1, 3)
    np.testing.assert_allclose(np.asarray(out).reshape(-1, 3), (flat - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5), atol=1e-5)
    np.testing.assert_allclose(stats["mean"], 0.1 * flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * flat.var(0, ddof=1), rtol=1e-5)  # unbiased
    running = {"mean": np.ones(3, np.float32), "var": np.full(3, 4, np.float32)}
    shown, _ = normalised(norm, {**variables, "batch_stats": running}, x, False)
    np.testing.assert_allclose(shown, (x - 1) / np.sqrt(4 + 1e-5), rtol=1e-5, atol=1e-6)


def test_groups_of_batch_norm_are_batches_of_their_own():
    x = normal(6, 2, 2, 3) * np.arange(1, 7, dtype=np.float32)[:, None, None, None]
    out, stats = normalised(BatchNorm(groups=3), fresh(3), x)
    alone = [normalised(BatchNorm(), fresh(3), x[i : i + 2]) for i in (0, 2, 4)]
    np.testing.assert_allclose(out, np.concatenate([out for out, _ in alone]), rtol=1e-5, atol=1e-6)
    for name in ("mean", "var"):
        np.testing.assert_allclose(stats[name], np.mean([stats[name] for _, stats in alone], axis=0), rtol=1e-5)
    np.testing.assert_array_equal(*(normalised(BatchNorm(groups=n), fresh(3), x, False)[0] for n in (1, 3)))
    with pytest.raises(ValueError, match=r"net\.norm_groups = 4: a batch of 6 cannot be cut into so many equal groups"):
        normalised(BatchNorm(groups=4), fresh(3), x)
    with pytest.raises(ValueError, match=r"net\.norm_groups = 2: this method's BatchNorms are of its own"):
        resnet.Config(10, norm_groups=2).make(3, norm=style.permuted_norm)


@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_devices_wait_for_each_other_once_a_step_where_each_has_its_groups(groups):
    cfg = tiny.train_config(net=dataclasses.replace(tiny.RESNET_4, norm_groups=groups), seeds=1, mesh=parallel.Mesh(seed=1, data=2))
    made = tiny.program(cfg)
    feed = next(train.feeds_from(cfg, made, 0))
    text = made.advance.lower(made.abstract, made.arrays, feed, made.seeds.array).compile().as_text()
    waits = len(re.findall(r" all-reduce(?:-start)?\(", text))
    assert waits > 5 if groups == 1 else waits == 1


@pytest.mark.parametrize("cfg", [tiny.RESNET_4, mlp.Config((20, 10)), simple_conv.Config(3, (4, 8))])
def test_bfloat16_keeps_parameters_statistics_and_logits_in_float32(cfg):
    half = dataclasses.replace(cfg, dtype="bfloat16").make(7)
    image = normal(4, 16, 16, 3)
    params, stats = init_net(half, jax.random.key(0), image)
    logits, new_stats = apply_net(half, params, stats, image, True)
    assert logits.dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves((params, new_stats))} == {jnp.dtype("float32")}
    exact = apply_net(cfg.make(7), params, stats, image, True)[0]
    np.testing.assert_allclose(logits, exact, atol=0.1)
    assert (np.asarray(logits) != np.asarray(exact)).any()  # bfloat16 was used


def equal(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "side"), [(3, 1, 6), (3, 2, 7), (1, 1, 6), (1, 2, 6), (7, 2, 9), (3, 1, 2), (3, 2, 4), (7, 1, 1)]
)
def test_convolution_and_its_gradients_equal_xlas_when_mapped(kernel, stride, side):
    """Over images and kernels, over kernels alone, over images alone."""
    padding = (kernel - 1) // 2
    x, w = normal(3, 2, side, side, 4), normal(3, kernel, kernel, 4, 5, seed=1)

    def plain(x, w):
        return lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=LAYOUT)

    def jaxbeds(x, w):
        return conv(x, w, stride, padding)

    def mapped(function, x, w):
        loss = jax.value_and_grad(lambda x, w: jnp.sin(function(x, w)).sum(), (0, 1))
        return [jax.vmap(loss)(x, w), jax.vmap(loss, (None, 0))(x[0], w), jax.vmap(loss, (0, None))(x, w[0])]

    equal(*jax.jit(lambda x, w: [mapped(function, x, w) for function in (jaxbeds, plain)])(x, w))


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
def test_products_are_the_same_convolutions(products, size, stride, side):
    """Outputs and gradients of three seeds, mapped, against XLA's own convolution, seed by seed; they share nothing, images, or kernels."""
    padding = size // 2
    x, kernel = normal(3, 2, side, side, 4), normal(3, size, size, 4, 5, seed=1)
    weight = normal(3, 2, (side - 1) // stride + 1, (side - 1) // stride + 1, 5, seed=2)

    def plain(x, kernel):
        return lax.conv_general_dilated(x, kernel, (stride,) * 2, [(padding,) * 2] * 2, dimension_numbers=LAYOUT)

    def of_all(x, kernel):
        return jax.vmap(lambda x, kernel: conv(x, kernel, stride, padding), (0 if x.ndim > 4 else None, 0 if kernel.ndim > 4 else None))(
            x, kernel
        )

    def one_by_one(x, kernel):
        return jnp.stack([plain(x[s] if x.ndim > 4 else x, kernel[s] if kernel.ndim > 4 else kernel) for s in range(3)])

    def whole(function, x, kernel):
        def value(x, kernel):
            out = function(x, kernel)
            return (out * weight).sum(), out

        grad = jax.grad(value, (0, 1), has_aux=True)
        return [grad(x, kernel), grad(x[0], kernel), grad(x, kernel[0])]

    equal(*jax.jit(lambda x, kernel: [whole(function, x, kernel) for function in (of_all, one_by_one)])(x, kernel))


@pytest.mark.parametrize(
    ("form", "size", "side"), [("dense", 7, 12), ("product", 3, 8), pytest.param("product", 7, 12, marks=pytest.mark.slow)]
)
def test_strided_convolutions_over_blocks_of_pixels_are_the_same(monkeypatch, form, size, side):
    """As on a GPU, for images of few channels."""
    monkeypatch.setattr(conv_module, "product_pays", lambda *_: form == "product")
    conv_module._rules.cache_clear()
    x, kernel, weight = normal(2, side, side, 3), normal(size, size, 3, 5, seed=1), normal(2, side // 2, side // 2, 5, seed=2)

    def whole(backend):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        return jax.jit(jax.value_and_grad(lambda x, kernel: (weight * conv(x, kernel, 2, size // 2)).sum(), (0, 1)))(x, kernel)

    assert conv_module.blocks_pay(x.shape, 2, size // 2, "gpu")
    equal(whole("gpu"), whole("cpu"))
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
    x = jnp.asarray(np.round(2 * normal(2, *shape)), dtype)

    def plain(x):
        return nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))

    weight = normal(*jax.eval_shape(jax.vmap(plain), x).shape, seed=1)

    def whole(function, x):
        def value(x):
            out = jax.vmap(function)(x)
            return (out * weight).sum(), out

        return jax.grad(value, has_aux=True)(x)

    def gradient_of_each(x):
        return jax.vmap(jax.grad(lambda x, w: (max_pool(x) * w).sum()))(x, weight)

    of_jaxbed, of_xla, each = jax.jit(lambda x: (whole(max_pool, x), whole(plain, x), gradient_of_each(x)))(x)
    for a, b in zip(of_jaxbed, of_xla, strict=True):
        np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=1e-2 if dtype == "bfloat16" else 1e-6, atol=1e-2)
    np.testing.assert_array_equal(np.float32(each), np.float32(of_jaxbed[0]))


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


def test_padain_that_never_swaps_is_erm_to_the_last_bit():
    assert tiny.programs(padain.Config(p=0.0)) == tiny.programs(erm.Config()) != tiny.programs(padain.Config(p=0.5))


def test_padain_sits_before_every_main_norm_and_on_no_shortcut():
    net = resnet.Config(50).make(1000, norm=style.permuted_norm)
    image = jax.ShapeDtypeStruct((2, 64, 64, 3), np.float32)
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
    x = normal(6, 4, 5, 3) * np.float32([0.5, 1.0, 3.0]) + np.float32([2.0, -1.0, 0.0])
    weight, order = normal(*x.shape, seed=1), np.array([3, 1, 0, 5, 2, 4])
    params = {"scale": np.float32([0.7, 1.3, -1.0]), "bias": np.float32([0.1, 0.2, 0.3])}

    def outcome(norm, before, extra):
        def value(params, x):
            out, state = norm.apply({**fresh(3), **extra, "params": params}, before(x), train=True, mutable=["batch_stats"])
            return (out * weight).sum(), (out, state)

        return jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))(params, x)

    folded = outcome(BatchNorm(style.PermutedAdaIN()), lambda x: x, {"swaps": {"restyle": {"draw": (jnp.array(order), jnp.array(swap))}}})
    expected = outcome(BatchNorm(), (lambda x: style.swap_statistics(x, order)) if swap else lambda x: x, {})
    for a, b in zip(jax.tree.leaves(folded), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def test_padain_always_swapping_changes_training_but_not_prediction():
    net, image = tiny.RESNET_4, normal(4, 16, 16, 3)
    swapped, plain = net.make(7, norm=style.permuted_norm), net.make(7)
    params, stats = init_net(plain, jax.random.key(0), image)
    assert jax.tree.structure(params) == jax.tree.structure(shapes_of(swapped, side_px=16)[0])
    np.testing.assert_array_equal(apply_net(swapped, params, stats, image, False)[0], apply_net(plain, params, stats, image, False)[0])
    drawn = {"swaps": jax.jit(functools.partial(style.draw_swaps, swapped, 1.0))(image, jax.random.key(2))}
    logits = apply_net(swapped, params, stats, image, True, drawn=drawn)[0]
    assert not np.allclose(logits, apply_net(plain, params, stats, image, True)[0], atol=1e-3)
