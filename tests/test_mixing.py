"""MixStyle, DSU, EFDMix, RSC, Mixup and CutMix: golden vectors, gradients, draws, and loops in NumPy that do the same."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tiny

from jaxbed.method import Info, apply_net, init_net
from jaxbed.methods import dsu, efdmix, erm, mixing, mixstyle, rsc
from jaxbed.methods.parts import pairs
from jaxbed.models import mlp, resnet, simple_conv, style
from jaxbed.models.norm import BatchNorm

SWAP = np.array([1, 0])


def maps(*rows):
    """2x2 single-channel maps [N, 2, 2, 1]."""
    return np.array(rows, np.float32).reshape(len(rows), 2, 2, 1)


def flat(x):
    return np.asarray(x).reshape(len(x), -1)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


BATCH = maps((1, 2, 3, 4), (10, 20, 30, 40))
WEIGHT = np.float32([0.9, 0.2])


@jax.jit
def mix(x):
    return style.restyle(x, lambda mean, var: style.mixed(mean, var, SWAP, WEIGHT), detach=True)


@jax.jit
def perturb(x):
    noise = np.float32([[1.0, 0.0], [0.0, -0.5]]).reshape(2, 2, 1, 1, 1)
    return style.restyle(x, lambda mean, var: style.perturbed(mean, var, noise))


def jacobian(function, x):
    """[N, pixels, N, pixels]"""
    return np.asarray(jax.jit(jax.jacobian(function))(x)).reshape(2, 4, 2, 4)


# Statistics


def test_golden_mixstyle():
    expected = [(1.90000045, 3.80000015, 5.69999985, 7.59999955), (2.79999964, 5.59999988, 8.40000012, 11.20000036)]
    np.testing.assert_allclose(flat(mix(BATCH)), expected, rtol=1e-6)


def test_golden_gradient_of_mixstyle_is_the_factor_alone():
    expected = np.diag([1.8999997030] * 4 + [0.2800000238] * 4)
    gradient = jacobian(mix, BATCH).reshape(8, 8)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    assert not gradient[expected == 0].any()


def test_golden_dsu():
    expected = [(16.90990261, 17.90990261, 18.90990261, 19.90990261), (14.77297065, 21.59099022, 28.40900978, 35.22702935)]
    np.testing.assert_allclose(flat(perturb(BATCH)), expected, rtol=1e-6)


def test_gradient_of_dsu_passes_the_statistics_of_image_and_batch():
    def by_hand(x):
        mean, deviation = x.mean(1), np.sqrt(x.var(1, ddof=1) + 1e-6)
        spread_of_mean, spread = (np.sqrt(a.var(ddof=1) + 1e-6) for a in (mean, deviation))
        new_mean, new_deviation = mean + np.array([1, 0]) * spread_of_mean, deviation + np.array([0, -0.5]) * spread
        return (new_deviation / deviation)[:, None] * (x - mean[:, None]) + new_mean[:, None]

    x, step = flat(BATCH).astype(np.float64), 1e-5
    np.testing.assert_allclose(flat(perturb(BATCH)), by_hand(x), rtol=1e-6)
    moved = [by_hand(x + step * d) - by_hand(x - step * d) for d in np.eye(8).reshape(8, 2, 4)]
    expected = np.stack(moved, -1).reshape(2, 4, 2, 4) / (2 * step)
    np.testing.assert_allclose(jacobian(perturb, BATCH), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected[0, :, 1]).max() > 0.1  # the other image's statistics are among the batch's


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_restyling_with_an_images_own_statistics_is_the_exact_identity(detach, dtype):
    x, weight = (3 + normal(4, 5, 6, 3)).astype(jnp.dtype(dtype)), normal(4, 5, 6, 3, seed=1).astype(jnp.dtype(dtype))

    def value(x):
        out = style.restyle(x, lambda mean, var: (jnp.ones_like(mean), mean), detach)
        return (out * weight).astype(jnp.float32).sum(), out

    gradient, out = jax.jit(jax.grad(value, has_aux=True))(x)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(gradient, weight)


def test_statistics_of_bfloat16_maps_are_float32():
    x = normal(4, 16, 16, 3).astype(jnp.bfloat16)
    order, weight = np.array([2, 0, 3, 1]), np.float32([0.1, 0.4, 0.6, 0.9])
    restyle = jax.jit(lambda x: style.restyle(x, lambda m, v: style.mixed(m, v, order, weight)))
    np.testing.assert_array_equal(restyle(x), np.asarray(restyle(x.astype(np.float32))).astype(jnp.bfloat16))


def test_maps_of_one_pixel_and_constant_maps():
    single = jnp.ones((3, 1, 1, 2))
    assert style.restyle(single, None) is single
    constant = maps((5, 5, 5, 5), (10, 20, 30, 40))
    for function in (mix, perturb):
        assert np.isfinite(function(constant)).all() and np.isfinite(jacobian(function, constant)).all()


# Sorted values


mixed = jax.jit(efdmix.mixed)


def transfer(x, weight, order=SWAP):
    return mixed(x, order, np.float32(weight))


UNSORTED = maps((3, 1, 2, 4), (10, 40, 20, 30))


def test_golden_efdmix():
    np.testing.assert_allclose(flat(transfer(UNSORTED, [0.0, 1.0]))[0], (30, 10, 20, 40), rtol=1e-6)
    np.testing.assert_allclose(flat(transfer(UNSORTED, [0.25, 1.0]))[0], (23.25, 7.75, 15.5, 31), rtol=1e-6)


def test_gradient_of_efdmix_is_one_to_the_content_and_the_matched_value_to_the_style():
    gradient = jacobian(lambda x: transfer(x, [0.25, 1.0]), UNSORTED)
    np.testing.assert_array_equal(gradient[0, :, 0], np.eye(4))
    matched = np.argsort([10, 40, 20, 30])[np.argsort(np.argsort([3, 1, 2, 4]))]
    np.testing.assert_array_equal(gradient[0, :, 1], 0.75 * np.eye(4)[matched])
    assert not gradient[1, :, 0].any()  # its weight is 1


def test_efdmix_and_its_gradient_equal_loops_of_float64():
    rng = np.random.default_rng(0)
    x = np.round(2 * rng.normal(size=(4, 3, 5, 2))).astype(np.float32)  # with ties
    order, weight, pull = np.array([2, 3, 1, 0]), rng.uniform(size=4), rng.normal(size=x.shape)
    expected, gradient = x.astype(np.float64), pull.copy()
    for n in range(4):
        for c in range(2):
            content, its_style = (np.argsort(x[i, :, :, c].ravel(), kind="stable") for i in (n, order[n]))
            for a, b in zip(content, its_style, strict=True):
                at, of = np.unravel_index(a, (3, 5)), np.unravel_index(b, (3, 5))
                expected[(n, *at, c)] += (1 - weight[n]) * (x[(order[n], *of, c)] - x[(n, *at, c)])
                gradient[(order[n], *of, c)] += (1 - weight[n]) * pull[(n, *at, c)]

    @jax.jit
    def pulled(x, pull):
        out, pull_back = jax.vjp(lambda x: transfer(x, weight, order), x)
        return out, pull_back(pull)[0]

    out, pulled_back = pulled(x, pull.astype(np.float32))
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pulled_back, gradient, rtol=1e-5, atol=1e-6)


def test_efdmix_with_weight_one_is_the_identity_and_keeps_bfloat16():
    x = normal(2, 4, 4, 3).astype(jnp.bfloat16)
    out = np.asarray(transfer(x, [1.0, 0.0]))
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out[0], x[0])
    np.testing.assert_array_equal(*(np.sort(np.float32(image).reshape(-1, 3), 0) for image in (out[1], x[0])))


# Draws


weights = jax.jit(lambda key, alpha: pairs.weights(key, alpha, (20_000,)))


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 5.0])
def test_weights_have_the_beta_distribution(alpha):
    drawn = np.asarray(weights(jax.random.key(0), alpha))
    assert ((0 <= drawn) & (drawn <= 1)).all()
    inner = np.clip(drawn, 1e-6, 1 - 1e-6)  # float32 near 1
    expected = scipy.stats.beta(alpha, alpha)
    points = np.linspace(0.001, 0.999, 50)
    share = (inner[:, None] <= points).mean(0)
    probability = expected.cdf(points)
    assert (np.abs(share - probability) < 4.5 * np.sqrt(probability * (1 - probability) / drawn.size) + 1e-4).all()


def test_partners():
    draw = jax.jit(lambda keys, pairing: jax.vmap(lambda key: pairs.partners(key, 6, pairing))(keys), static_argnums=1)
    orders = np.asarray(draw(jax.random.split(jax.random.key(0), 200), "random"))
    assert (np.sort(orders, 1) == np.arange(6)).all()
    assert np.abs((orders == np.arange(6)).mean() - 1 / 6) < 4.5 * np.sqrt(5 / 36 / orders.size)  # fixed points included
    crossed = np.asarray(draw(jax.random.split(jax.random.key(0), 50), "crossdomain"))
    assert (np.sort(crossed, 1) == np.arange(6)).all()
    assert ((crossed < 3) == (np.arange(6) >= 3)).all() and len(np.unique(crossed, axis=0)) > 20


LAYERS = {
    "mixstyle": lambda p: style.Restyle(mixstyle.MixStyle(p, 0.1, "random"), detach=True),
    "dsu": lambda p: style.Restyle(dsu.Perturb(p)),
    "efdmix": lambda p: efdmix.EFDMix(p, 0.1, "random"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_coins_show_heads_as_often_as_p_says_and_tails_is_the_identity(name):
    x, trials = normal(4, 3, 3, 2), 600
    draw = jax.jit(jax.vmap(lambda key: LAYERS[name](0.3).apply({}, x, x, True, rngs={"noise": key})))
    out = np.asarray(draw(jax.random.split(jax.random.key(1), trials)))
    heads = (out != x).any((1, 2, 3, 4))
    assert abs(heads.mean() - 0.3) < 4.5 * np.sqrt(0.21 / trials)
    assert not np.allclose(out[heads][0], out[heads][1])
    assert LAYERS[name](1.0).apply({}, x, x, False) is x


@pytest.mark.parametrize("name", LAYERS)
def test_one_image_is_refused(name):
    with pytest.raises(ValueError, match=r"batch_size = 1 .*take 2 or more"):
        jax.eval_shape(lambda x: LAYERS[name](0.5).apply({}, x, None, True, rngs={"noise": jax.random.key(0)}), np.ones((1, 2, 2, 1)))


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_one_image_is_refused_before_training(name):
    with pytest.raises(ValueError, match=r"batch_size = 1 .*take 2 or more"):
        tiny.program(tiny.mlp_config(name, batch_size=1))


def test_odd_batches_have_no_halves():
    with pytest.raises(ValueError, match="batch_size = 5 is odd"):
        pairs.partners(jax.random.key(0), 5, "crossdomain")


@pytest.mark.parametrize("name", LAYERS)
def test_devices_that_share_a_batch_mix_it_whole(name):
    x = normal(8, 4, 4, 2)
    place = jax.NamedSharding(jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,)), jax.P("data"))
    apply = jax.jit(lambda x: LAYERS[name](1.0).apply({}, x, x, True, rngs={"noise": jax.random.key(2)}))
    np.testing.assert_allclose(apply(jax.device_put(x, place)), apply(x), rtol=1e-5, atol=1e-5)


# Places


class Spy(resnet.Config):
    """Keeps the network that a method asks for."""

    def make(self, *args, **changes):
        self.made = super().make(*args, **changes)
        return self.made


def net_of(method, depth=10, stem="imagenet"):
    spy = Spy(depth, width=4, stem=stem)
    method.make(Info(7, 64, 4, 2), spy, tiny.Optim())
    return spy.made


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (mixstyle.Config(p=1.0), {(16, 16, 4): 1, (8, 8, 8): 1}),
        (mixstyle.Config(p=1.0, stages=(3,)), {(4, 4, 16): 1}),
        (efdmix.Config(p=1.0), {(16, 16, 4): 1, (8, 8, 8): 1}),
        (dsu.Config(p=1.0), {(16, 16, 4): 2, (8, 8, 8): 1, (4, 4, 16): 1, (2, 2, 32): 1}),
    ],
)
def test_layers_sit_where_the_papers_put_them_and_draw_for_themselves(method, expected):
    """Of a 64-px image: 16 px after the stem and stage 1, then half each. DSU's sixth, in the stem's BatchNorm, only shows in its draws."""
    network, key = net_of(method), jax.eval_shape(jax.random.key, 0)
    image = jax.ShapeDtypeStruct((4, 64, 64, 3), np.float32)
    variables = jax.eval_shape(functools.partial(init_net, network), key, image)
    seen, draws = {}, []

    def watch(call, args, kwargs, context):
        if isinstance(context.module, style.Restyle | efdmix.EFDMix):
            shape = args[0].shape[1:]
            seen[shape] = seen.get(shape, 0) + 1
        if isinstance(context.module, mixstyle.MixStyle | dsu.Perturb | efdmix.EFDMix):
            draws.append(context.module.scope.path)  # keys follow from it
        return call(*args, **kwargs)

    with nn.intercept_methods(watch):
        jax.eval_shape(lambda key, image, variables: apply_net(network, *variables, image, True, {"noise": key}), key, image, variables)
    assert seen == expected
    assert len(set(draws)) == len(draws) == (6 if isinstance(method, dsu.Config) else len(expected))


@functools.cache
def without_layers():
    """(params, stats, images, {train: logits}) of the plain network."""
    plain, image = tiny.RESNET_4.make(7), normal(4, 16, 16, 3)
    params, stats = jax.jit(functools.partial(init_net, plain))(jax.random.key(0), image)
    apply = jax.jit(functools.partial(apply_net, plain), static_argnums=3)
    return params, stats, image, {train: apply(params, stats, image, train)[0] for train in (False, True)}


@pytest.mark.parametrize("method", [mixstyle.Config(p=1.0), mixstyle.Config(p=1.0, stages=(3,)), efdmix.Config(p=1.0), dsu.Config(p=1.0)])
def test_layers_change_training_and_not_prediction(method):
    network = net_of(method, tiny.RESNET_4.depth, tiny.RESNET_4.stem)
    params, stats, image, plain_logits = without_layers()

    def logits(train, rngs=None):
        return jax.jit(lambda *variables: apply_net(network, *variables, train, rngs)[0])(params, stats, image)

    np.testing.assert_array_equal(logits(False), plain_logits[False])
    assert not np.allclose(logits(True, {"noise": jax.random.key(1)}), plain_logits[True], atol=1e-3)


def test_dsu_before_the_stems_norm_is_the_layer_and_then_batchnorm():
    network = net_of(dsu.Config(p=1.0))
    norms = [network.kind.norm(name=name) for name in ("stem_norm", "norm1", "shortcut_norm")]
    assert [isinstance(norm.restyle, dsu.Perturb) for norm in norms] == [True, False, False]
    x = 3 * normal(6, 4, 5, 3) + 1
    variables = jax.jit(functools.partial(BatchNorm().init, train=False))(jax.random.key(0), x)

    class Fixed(dsu.Perturb):
        def make_rng(self, name):
            return jax.random.key(4)

    def norm(x, restyle=None):
        return BatchNorm(restyle).apply(variables, x, True, mutable=["batch_stats"])

    together, stats = jax.jit(lambda x: norm(x, Fixed(1.0)))(x)
    apart, stats_apart = jax.jit(lambda x: norm(style.restyle(x, lambda *s: Fixed(1.0).apply({}, *s))))(x)
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), stats, stats_apart)


@pytest.fixture(scope="module")
def erms():
    return tiny.programs(erm.Config())


@pytest.mark.parametrize("method", [mixstyle.Config(p=0), dsu.Config(p=0), efdmix.Config(p=0), mixing.Mixup(alpha=0), mixing.CutMix(p=0)])
def test_without_mixing_it_is_erm_to_the_last_bit(erms, method):
    assert tiny.programs(method) == erms


# Images


IMAGE = np.random.default_rng(3).random((4, 8, 10, 3), np.float32)
ORDER = np.array([2, 0, 3, 1])
blend, paste = jax.jit(mixing.blend), jax.jit(mixing.paste)


def test_mixup():
    image, order, weight = blend(IMAGE, ORDER, np.float32(0.3))
    np.testing.assert_allclose(image, 0.3 * IMAGE + 0.7 * IMAGE[ORDER], rtol=1e-6)
    np.testing.assert_array_equal(order, ORDER)
    assert weight == np.float32(0.3)
    assert jax.eval_shape(mixing.blend, IMAGE.astype(jnp.bfloat16), ORDER, np.float32(0.3))[0].dtype == jnp.bfloat16


def test_cutmix_pastes_the_box_of_the_authors_and_weighs_by_its_area():
    rng = np.random.default_rng(0)
    labels, areas = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None, None, None], IMAGE.shape), set()
    for weight, down, right in rng.uniform(size=(60, 3)):
        inside = np.zeros((8, 10), bool)
        half = [int(side * np.sqrt(1 - weight)) // 2 for side in (8, 10)]
        y, x = int(8 * down), int(10 * right)
        inside[max(y - half[0], 0) : y + half[0], max(x - half[1], 0) : x + half[1]] = True
        image, _, kept = paste(labels, ORDER, np.float32(weight), np.float32([down, right]))
        np.testing.assert_array_equal(np.asarray(image)[..., 0], np.where(inside, ORDER[:, None, None], np.arange(4)[:, None, None]))
        np.testing.assert_allclose(kept, 1 - inside.mean(), rtol=1e-6)
        areas.add(int(inside.sum()))
    assert len(areas) > 15 and max(areas) > 40


@pytest.mark.parametrize("mix", [blend, lambda *args: paste(*args, np.float32([0.5, 0.5]))])
def test_with_weight_one_images_and_loss_are_erms(mix):
    image, _, weight = mix(IMAGE, ORDER, np.float32(1))
    np.testing.assert_array_equal(image, IMAGE)
    assert weight == 1


METHODS = [mixing.Mixup(alpha=1.0), mixing.CutMix()]


@pytest.mark.parametrize("method", METHODS)
def test_labels_weigh_as_the_images_do_that_were_mixed(monkeypatch, method):
    calls = []
    for name in ("blend", "paste"):
        mix = getattr(mixing, name)
        monkeypatch.setattr(mixing, name, lambda *args, mix=mix: calls.append(mix(*args)) or calls[-1])
    batch, net = {"image": IMAGE, "label": np.arange(4)}, mlp.Config((5,))
    made = method.make(Info(4, 64, 4, 2), net, tiny.Optim(lr=1.0, momentum=0.0))
    before = jax.jit(made.init)(jax.random.key(0), batch)
    step = jax.jit(lambda batch, key: (made.step(before, batch, key), calls[-1]))
    (after, metrics), (image, order, weight) = step(batch, jax.random.key(6))

    def loss(params):
        log_probability = jax.nn.log_softmax(net.make(4).apply({"params": params}, image, train=True))
        target = weight * jnp.eye(4) + (1 - weight) * jnp.eye(4)[order]
        return -(target * log_probability).sum(1).mean()

    assert 0.05 < weight < 0.95 and (np.asarray(order) != np.arange(4)).any() and (np.asarray(image) != IMAGE).any()
    value, gradient = jax.jit(jax.value_and_grad(loss))(before.params["net"])
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    change = jax.tree.map(np.subtract, *jax.device_get((before.params["net"], after.params["net"])))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), change, gradient)


def test_cutmix_pastes_as_often_as_p_says(monkeypatch):
    weights = []
    monkeypatch.setattr(mixing, "paste", lambda image, order, weight, centre: weights.append(weight) or (image, order, weight))
    made = mixing.CutMix(p=0.4).make(Info(4, 64, 4, 2), mlp.Config(()), tiny.Optim())
    batch = {"image": IMAGE, "label": np.arange(4)}
    state, keys = jax.jit(made.init)(jax.random.key(0), batch), jax.random.split(jax.random.key(1), 1000)
    draw = jax.jit(lambda batch, keys: jax.vmap(lambda key: made.step(state, batch, key) and weights[-1])(keys))
    drawn = np.asarray(draw(batch, keys))
    assert abs((drawn != 1).mean() - 0.4) < 4.5 * np.sqrt(0.24 / 1000)
    assert abs(drawn[drawn != 1].mean() - 0.5) < 4.5 * np.sqrt(1 / 12 / 400)  # uniform


# RSC


@pytest.mark.parametrize(("size", "share"), [(4, 1 / 3), (10, 0.25), (12, 1 / 3), (33, 0.2), (5, 0.0), (5, 1.0)])
def test_quantile_is_numpys(size, share):
    x = np.random.default_rng(0).normal(size=(6, size)).astype(np.float32)
    expected = (x >= np.quantile(x, 1 - share, axis=1, keepdims=True).astype(np.float32)) & (share > 0)
    np.testing.assert_array_equal(jax.jit(rsc.above_quantile, static_argnums=1)(x, share), expected)
    assert (expected.any(1) == (share > 0)).all()


def test_ranks_leave_ties_out():
    x, above_rank = np.float32([[5, 1, 3, 3, 0], [1, 1, 1, 1, 1]]), jax.jit(rsc.above_rank)
    assert above_rank(x, 1).tolist() == [[True, False, False, False, False], [False] * 5]
    assert np.sum(above_rank(x, 2), 1).tolist() == [1, 0]
    assert np.sum(above_rank(x, 3), 1).tolist() == [3, 0]


challenged = jax.jit(rsc.challenged, static_argnums=2)


@pytest.mark.parametrize(
    ("variant", "epochs", "counts"),
    [
        ("spatial_channel", (0, 9, 10, 19, 20, 29, 30, 99), (3, 3, 5, 5, 7, 7, 9, 9)),
        ("imagenet", (0, 18, 19, 38, 39, 58, 59, 78, 79), (2, 2, 2, 2, 2, 2, 2, 2, 2)),
        ("imagenet", (18, 38, 58, 78, 79), (17, 18, 20, 22, 25)),
    ],
)
def test_share_of_challenged_images_grows_with_the_epoch(variant, epochs, counts):
    size = 100 if max(counts) > 10 else 10
    loss = np.random.default_rng(0).permutation(size).astype(np.float32) + 1
    for epoch, count in zip(epochs, counts, strict=True):
        np.testing.assert_array_equal(challenged(loss, np.array(epoch), variant), loss > size - count)
    assert challenged(np.float32([0.3, 9e-5, -1.0, 2e-4, 0.0, 0.0]), np.array(99), "spatial_channel").tolist() == [1, 0, 0, 1, 0, 0]


MAPS = np.random.default_rng(8).random((5, 4, 3, 7), np.float32)
GRADIENT = normal(5, 7, seed=9)
RELEVANCE = np.einsum("nhwc,nc->nhw", MAPS.astype(np.float64), GRADIENT.astype(np.float64)).reshape(5, 12)


def largest(x, count):
    return np.argsort(np.argsort(-x, 1), 1) < count


def test_pixels_or_channels_by_a_fair_coin():
    keys = jax.random.split(jax.random.key(0), 400)
    masked = np.asarray(jax.jit(jax.vmap(lambda key: rsc.mask_pixels_or_channels(key, MAPS, GRADIENT)))(keys))
    pixels = np.broadcast_to(largest(RELEVANCE, 4).reshape(5, 4, 3, 1), MAPS.shape)
    channels = np.broadcast_to(largest(GRADIENT, 3)[:, None, None], MAPS.shape)  # ceil(7 / 3.2)
    of_pixels, of_channels = ((masked == expected).all((1, 2, 3, 4)) for expected in (pixels, channels))
    assert (of_pixels ^ of_channels).all()
    assert abs(of_pixels.mean() - 0.5) < 4.5 * np.sqrt(0.25 / 400)


def test_a_random_third_of_all_pixels_from_the_upper_half():
    keys = jax.random.split(jax.random.key(0), 400)
    mask = jax.jit(jax.vmap(rsc.mask_some_pixels, (0, None, None)))
    masked = np.asarray(mask(keys, MAPS, GRADIENT)).reshape(400, 5, 12)
    upper = largest(RELEVANCE, 6)
    assert (masked.sum(2) == 4).all() and not masked[:, ~upper].any()
    assert (np.abs(masked[:, upper].mean(0) - 4 / 6) < 4.5 * np.sqrt(2 / 9 / 400)).all()
    flat_maps = np.asarray(mask(keys, np.zeros_like(MAPS), GRADIENT))  # no half is larger: any third
    assert (flat_maps.reshape(400, 5, 12).sum(2) == 4).all()


@pytest.mark.parametrize("variant", rsc.MASKS)
def test_maps_of_one_pixel_are_refused_where_pixels_are_masked(variant):
    with pytest.raises(ValueError, match=r"take method.variant = 'domainbed'"):
        rsc.MASKS[variant](jax.random.key(0), MAPS[:, :1, :1], GRADIENT)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def rsc_by_hand(maps, head, label, mask, kept):
    """(loss, gradient of the head's kernel, what is not masked), in float64, with the published mask(maps, gradient) and kept(change)."""
    kernel, bias = (np.asarray(head[name], np.float64) for name in ("kernel", "bias"))
    rows = np.arange(len(label))

    def forward(maps):
        h = maps.mean((1, 2))
        return h, h @ kernel + bias

    keep = ~mask(maps, kernel[:, label].T)
    change = (softmax(forward(maps)[1]) - softmax(forward(maps * keep)[1]))[rows, label]
    keep = keep | ~kept(change)[:, None, None, None]
    h, logits = forward(maps * keep)
    error = softmax(logits)
    loss = -np.log(error[rows, label]).mean()
    error[rows, label] -= 1
    return loss, h.T @ error / len(label), keep


def domainbed(features, samples):
    def mask(maps, gradient):
        return ~(gradient < np.percentile(gradient, 100 * (1 - features), axis=1, keepdims=True))[:, None, None] & (features > 0)

    return mask, lambda change: ~(change < np.percentile(change, 100 * (1 - samples))) & (samples > 0)


def authors(of_channels, share):
    def mask(maps, gradient):
        if of_channels:
            return largest(gradient, int(np.ceil(gradient.shape[1] / 3.2)))[:, None, None]
        pixels = np.einsum("nhwc,nc->nhw", maps, gradient).reshape(len(maps), -1)
        return largest(pixels, int(np.ceil(pixels.shape[1] / 3))).reshape(*maps.shape[:3], 1)

    def kept(change):
        change = np.maximum(change - 1e-4, 0)
        return change > np.sort(change)[::-1][round(len(change) * share)]

    return mask, kept


SHARES = [rsc.Config(), rsc.Config(features=0.6, samples=0.5), rsc.Config(features=0.0), rsc.Config(samples=0.0)]


@pytest.mark.parametrize("method", [*SHARES, rsc.Config(variant="spatial_channel")])
def test_a_step_of_rsc_is_the_published_codes(method):
    """Loss and gradient of the last layer, from the maps that it is given, in float32: in bfloat16, rounding may move a mask's edge."""
    net = simple_conv.Config(kernel=3, widths=(8, 20), stride=2)  # of its 20 features, none lies on a quantile
    batch = {"image": normal(12, 16, 16, 3, seed=1), "label": np.arange(12) % 5}
    made = method.make(Info(5, 64, 4, 40), net, tiny.Optim(lr=1.0, momentum=0.0))
    state = jax.device_get(jax.jit(made.init)(jax.random.key(0), batch))
    state.params["head"]["head"]["kernel"] = 5 * state.params["head"]["head"]["kernel"]  # so that probabilities differ
    state = state.replace(step=np.array(4 * 10, np.int32))  # epoch 10
    step = jax.jit(made.step)
    maps, _ = jax.jit(lambda p, s, x: apply_net(net.make(5, last=2), p, s, x, True))(
        state.params["trunk"], state.stats["trunk"], batch["image"]
    )
    of_hand = [domainbed(method.features, method.samples)]
    if method.variant != "domainbed":
        of_hand = [authors(of_channels, 0.5) for of_channels in (False, True)]
    maps, label, head = np.asarray(maps, np.float64), np.asarray(batch["label"]), state.params["head"]["head"]
    if method.variant == "domainbed":
        maps = maps.mean((1, 2), keepdims=True)
    expected, seen = [rsc_by_hand(maps, head, label, *functions) for functions in of_hand], set()
    masks = method.features > 0 and method.samples > 0
    assert all(0 < (~keep).any((1, 2, 3)).sum() < 12 if masks else keep.all() for *_, keep in expected)
    for seed in range(1 if len(expected) == 1 else 8):
        after, metrics = step(state, batch, jax.random.key(seed))
        chosen = int(np.argmin([abs(loss - metrics["loss"]) for loss, *_ in expected]))
        seen.add(chosen)
        loss, gradient, _ = expected[chosen]
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(head["kernel"] - np.asarray(after.params["head"]["head"]["kernel"]), gradient, atol=2e-6)
    assert len(seen) == len(expected)


@pytest.mark.parametrize(
    ("method", "net", "message"),
    [
        (mixstyle.Config(), mlp.Config(), "give it a resnet.Config"),
        (efdmix.Config(), mlp.Config(), "give it a resnet.Config"),
        (dsu.Config(), mlp.Config(), "give it a resnet.Config"),
        (rsc.Config(), mlp.Config(), "give it a resnet.Config"),
    ],
)
def test_bad_settings_are_refused_by_name(method, net, message):
    with pytest.raises(ValueError, match=message):
        method.make(Info(classes=16, train_size=64, steps_per_epoch=4, epochs=2), net or resnet.Config(10), tiny.Optim())
