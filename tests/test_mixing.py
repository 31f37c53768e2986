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
from jaxbed.models import mlp, resnet, style
from jaxbed.models.norm import BatchNorm

SWAP = jnp.array([1, 0])


def maps(*rows):
    """2x2 single-channel maps [N, 2, 2, 1]."""
    return jnp.asarray(rows, jnp.float32).reshape(len(rows), 2, 2, 1)


def flat(x):
    return np.asarray(x).reshape(len(x), -1)


BATCH = maps((1, 2, 3, 4), (10, 20, 30, 40))
WEIGHT = jnp.array([0.9, 0.2])


def mix(x):
    return style.restyle(x, lambda mean, var: style.mixed(mean, var, SWAP, WEIGHT), detach=True)


def perturb(x):
    noise = jnp.array([[1.0, 0.0], [0.0, -0.5]]).reshape(2, 2, 1, 1, 1)
    return style.restyle(x, lambda mean, var: style.perturbed(mean, var, noise))


def jacobian(function, x):
    """[N, pixels, N, pixels]"""
    return np.asarray(jax.jacobian(function)(x)).reshape(2, 4, 2, 4)


# Statistics


def test_golden_mixstyle():
    expected = [(1.90000045, 3.80000015, 5.69999985, 7.59999955), (2.79999964, 5.59999988, 8.40000012, 11.20000036)]
    np.testing.assert_allclose(flat(mix(BATCH)), expected, rtol=1e-6)


def test_golden_gradient_of_mixstyle_is_the_factor_alone():
    expected = np.diag([1.8999997030] * 4 + [0.2800000238] * 4)
    found = jacobian(mix, BATCH).reshape(8, 8)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not found[expected == 0].any()


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
    x = (3 + jax.random.normal(jax.random.key(0), (4, 5, 6, 3))).astype(dtype)
    weight = jax.random.normal(jax.random.key(1), x.shape).astype(dtype)

    def value(x):
        out = style.restyle(x, lambda mean, var: (jnp.ones_like(mean), mean), detach)
        return (out * weight).astype(jnp.float32).sum(), out

    gradient, out = jax.grad(value, has_aux=True)(x)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(gradient, weight)


def test_statistics_of_bfloat16_maps_are_float32():
    x = jax.random.normal(jax.random.key(0), (4, 16, 16, 3)).astype(jnp.bfloat16)
    order, weight = jnp.array([2, 0, 3, 1]), jnp.array([0.1, 0.4, 0.6, 0.9])
    half, whole = (style.restyle(a, lambda m, v: style.mixed(m, v, order, weight)) for a in (x, x.astype(jnp.float32)))
    np.testing.assert_array_equal(half, whole.astype(jnp.bfloat16))


def test_maps_of_one_pixel_and_constant_maps():
    single = jnp.ones((3, 1, 1, 2))
    assert style.restyle(single, None) is single
    constant = maps((5, 5, 5, 5), (10, 20, 30, 40))
    for function in (mix, perturb):
        assert np.isfinite(function(constant)).all() and np.isfinite(jacobian(function, constant)).all()


# Sorted values


def transfer(x, weight, order=SWAP):
    return efdmix.mixed(x, order, jnp.asarray(weight, jnp.float32))


UNSORTED = maps((3, 1, 2, 4), (10, 40, 20, 30))


def test_golden_efdmix():
    np.testing.assert_allclose(flat(transfer(UNSORTED, [0.0, 1.0]))[0], (30, 10, 20, 40), rtol=1e-6)
    np.testing.assert_allclose(flat(transfer(UNSORTED, [0.25, 1.0]))[0], (23.25, 7.75, 15.5, 31), rtol=1e-6)


def test_gradient_of_efdmix_is_one_to_the_content_and_the_matched_value_to_the_style():
    found = jacobian(lambda x: transfer(x, [0.25, 1.0]), UNSORTED)
    np.testing.assert_array_equal(found[0, :, 0], np.eye(4))
    place = np.argsort([10, 40, 20, 30])[np.argsort(np.argsort([3, 1, 2, 4]))]
    np.testing.assert_array_equal(found[0, :, 1], 0.75 * np.eye(4)[place])
    assert not found[1, :, 0].any()  # its weight is 1


def test_efdmix_and_its_gradient_equal_loops_of_float64():
    rng = np.random.default_rng(0)
    x = np.round(2 * rng.normal(size=(4, 3, 5, 2))).astype(np.float32)  # with ties
    order, weight, pull = np.array([2, 3, 1, 0]), rng.uniform(size=4), rng.normal(size=x.shape)
    expected, gradient = x.astype(np.float64), pull.copy()
    for n in range(4):
        for c in range(2):
            own, other = (np.argsort(x[i, :, :, c].ravel(), kind="stable") for i in (n, order[n]))
            for a, b in zip(own, other, strict=True):
                at, of = np.unravel_index(a, (3, 5)), np.unravel_index(b, (3, 5))
                expected[(n, *at, c)] += (1 - weight[n]) * (x[(order[n], *of, c)] - x[(n, *at, c)])
                gradient[(order[n], *of, c)] += (1 - weight[n]) * pull[(n, *at, c)]
    found, pull_back = jax.vjp(lambda x: transfer(x, weight, jnp.array(order)), jnp.array(x))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pull_back(jnp.array(pull, jnp.float32))[0], gradient, rtol=1e-5, atol=1e-6)


def test_efdmix_with_weight_one_is_the_identity_and_keeps_bfloat16():
    x = jax.random.normal(jax.random.key(0), (2, 4, 4, 3)).astype(jnp.bfloat16)
    out = transfer(x, [1.0, 0.0])
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out[0], x[0])
    np.testing.assert_array_equal(jnp.sort(out[1].reshape(-1, 3), 0), jnp.sort(x[0].reshape(-1, 3), 0))


# Draws


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 5.0])
def test_weights_have_the_beta_distribution(alpha):
    drawn = np.asarray(pairs.weights(jax.random.key(0), alpha, (20_000,)))
    assert ((0 <= drawn) & (drawn <= 1)).all()
    inner = np.clip(drawn, 1e-6, 1 - 1e-6)  # float32 near 1
    expected = scipy.stats.beta(alpha, alpha)
    points = np.linspace(0.001, 0.999, 50)
    share = (inner[:, None] <= points).mean(0)
    probability = expected.cdf(points)
    assert (np.abs(share - probability) < 4.5 * np.sqrt(probability * (1 - probability) / drawn.size) + 1e-4).all()


def test_partners():
    orders = np.stack([pairs.partners(jax.random.key(s), 6) for s in range(200)])
    assert (np.sort(orders, 1) == np.arange(6)).all()
    assert np.abs((orders == np.arange(6)).mean() - 1 / 6) < 4.5 * np.sqrt(5 / 36 / orders.size)  # fixed points included
    crossed = np.stack([pairs.partners(jax.random.key(s), 6, "crossdomain") for s in range(50)])
    assert (np.sort(crossed, 1) == np.arange(6)).all()
    assert ((crossed < 3) == (np.arange(6) >= 3)).all() and len(np.unique(crossed, axis=0)) > 20


LAYERS = {
    "mixstyle": lambda p: style.Restyle(mixstyle.MixStyle(p, 0.1, "random"), detach=True),
    "dsu": lambda p: style.Restyle(dsu.Perturb(p)),
    "efdmix": lambda p: efdmix.EFDMix(p, 0.1, "random"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_coins_show_heads_as_often_as_p_says_and_tails_is_the_identity(name):
    x, trials = jax.random.normal(jax.random.key(0), (4, 3, 3, 2)), 600
    draw = jax.jit(jax.vmap(lambda key: LAYERS[name](0.3).apply({}, x, x, True, rngs={"noise": key})))
    out = draw(jax.random.split(jax.random.key(1), trials))
    heads = (out != x).any((1, 2, 3, 4))
    assert abs(heads.mean() - 0.3) < 4.5 * np.sqrt(0.21 / trials)
    assert not np.allclose(out[heads][0], out[heads][1])
    assert LAYERS[name](1.0).apply({}, x, x, False) is x


@pytest.mark.parametrize("name", LAYERS)
def test_one_image_is_refused(name):
    with pytest.raises(ValueError, match=r"batch_size = 1 .*take 2 or more"):
        LAYERS[name](0.5).apply({}, jnp.ones((1, 2, 2, 1)), None, True, rngs={"noise": jax.random.key(0)})


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_one_image_is_refused_before_training(name):
    with pytest.raises(ValueError, match=r"batch_size = 1 .*take 2 or more"):
        tiny.program(tiny.mlp_config(name, batch_size=1))


def test_odd_batches_have_no_halves():
    with pytest.raises(ValueError, match="batch_size = 5 is odd"):
        pairs.partners(jax.random.key(0), 5, "crossdomain")


@pytest.mark.parametrize("name", LAYERS)
def test_devices_that_share_a_batch_mix_it_whole(name):
    x = jax.random.normal(jax.random.key(0), (8, 4, 4, 2))
    place = jax.NamedSharding(jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,)), jax.P("data"))
    apply = jax.jit(lambda x: LAYERS[name](1.0).apply({}, x, x, True, rngs={"noise": jax.random.key(2)}))
    np.testing.assert_allclose(apply(jax.device_put(x, place)), apply(x), rtol=1e-5, atol=1e-5)


# Places


class Spy(resnet.Config):
    """Keeps the network that a method asks for."""

    def make(self, *args, **changes):
        self.made = super().make(*args, **changes)
        return self.made


def net_of(method):
    spy = Spy(depth=10, width=4)
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
    network, plain = net_of(method), resnet.Config(depth=10, width=4).make(7)
    image = jax.random.normal(jax.random.key(0), (4, 64, 64, 3))
    params, stats = jax.jit(functools.partial(init_net, plain))(jax.random.key(0), image)

    def logits(net, train, rngs=None):
        return jax.jit(lambda: apply_net(net, params, stats, image, train, rngs)[0])()

    np.testing.assert_array_equal(logits(network, False), logits(plain, False))
    seen, draws = {}, []

    def watch(call, args, kwargs, context):
        if isinstance(context.module, style.Restyle | efdmix.EFDMix):
            shape = args[0].shape[1:]
            seen[shape] = seen.get(shape, 0) + 1
        if isinstance(context.module, mixstyle.MixStyle | dsu.Perturb | efdmix.EFDMix):
            draws.append(context.module.scope.path)  # keys follow from it
        return call(*args, **kwargs)

    with nn.intercept_methods(watch):
        changed = logits(network, True, {"noise": jax.random.key(1)})
    assert seen == expected
    assert len(set(draws)) == len(draws) == (6 if isinstance(method, dsu.Config) else len(expected))
    assert not np.allclose(changed, logits(plain, True), atol=1e-3)


def test_dsu_before_the_stems_norm_is_the_layer_and_then_batchnorm():
    network = net_of(dsu.Config(p=1.0))
    norms = [network.norm(name=name) for name in ("stem_norm", "norm1", "shortcut_norm")]
    assert [isinstance(norm.restyle, dsu.Perturb) for norm in norms] == [True, False, False]
    x = 3 * jax.random.normal(jax.random.key(0), (6, 4, 5, 3)) + 1
    variables = BatchNorm().init(jax.random.key(0), x, train=False)

    class Fixed(dsu.Perturb):
        def make_rng(self, name):
            return jax.random.key(4)

    def norm(x, restyle=None):
        return BatchNorm(restyle).apply(variables, x, True, mutable=["batch_stats"])

    (found, stats), (expected, stats_apart) = norm(x, Fixed(1.0)), norm(style.restyle(x, lambda *s: Fixed(1.0).apply({}, *s)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), stats, stats_apart)


def two_steps(method):
    made = method.make(Info(16, 64, 4, 2), resnet.Config(depth=10, width=4, stem="half"), tiny.Optim(momentum=0.9))
    batch = {"image": jax.random.uniform(jax.random.key(1), (8, 32, 32, 3)), "label": jnp.arange(8)}
    state, step = jax.jit(made.init)(jax.random.key(0), batch), jax.jit(made.step)
    for seed in range(2):
        state, metrics = step(state, batch, jax.random.key(seed))
    return state, metrics


@pytest.fixture(scope="module")
def erms():
    return two_steps(erm.Config())


@pytest.mark.parametrize("method", [mixstyle.Config(p=0), dsu.Config(p=0), efdmix.Config(p=0), mixing.Mixup(alpha=0), mixing.CutMix(p=0)])
def test_without_mixing_it_is_erm_to_the_last_bit(erms, method):
    jax.tree.map(np.testing.assert_array_equal, two_steps(method), erms)


# Images


IMAGE = jax.random.uniform(jax.random.key(3), (4, 8, 10, 3))
ORDER = jnp.array([2, 0, 3, 1])


def test_mixup():
    image, order, weight = mixing.blend(IMAGE, ORDER, jnp.float32(0.3))
    np.testing.assert_allclose(image, 0.3 * IMAGE + 0.7 * np.asarray(IMAGE)[np.asarray(ORDER)], rtol=1e-6)
    assert (order == ORDER).all() and weight == jnp.float32(0.3)
    assert mixing.blend(IMAGE.astype(jnp.bfloat16), ORDER, jnp.float32(0.3))[0].dtype == jnp.bfloat16


def test_cutmix_pastes_the_box_of_the_authors_and_weighs_by_its_area():
    rng = np.random.default_rng(0)
    labels = jnp.broadcast_to(jnp.arange(4.0)[:, None, None, None], IMAGE.shape)
    paste, areas = jax.jit(mixing.paste), set()
    for weight, down, right in rng.uniform(size=(60, 3)):
        inside = np.zeros((8, 10), bool)
        half = [int(side * np.sqrt(1 - weight)) // 2 for side in (8, 10)]
        y, x = int(8 * down), int(10 * right)
        inside[max(y - half[0], 0) : y + half[0], max(x - half[1], 0) : x + half[1]] = True
        image, _, kept = paste(labels, ORDER, jnp.float32(weight), jnp.array([down, right], jnp.float32))
        np.testing.assert_array_equal(image[..., 0], np.where(inside, np.asarray(ORDER)[:, None, None], np.arange(4)[:, None, None]))
        np.testing.assert_allclose(kept, 1 - inside.mean(), rtol=1e-6)
        areas.add(int(inside.sum()))
    assert len(areas) > 15 and max(areas) > 40


@pytest.mark.parametrize("mix", [mixing.blend, lambda *args: mixing.paste(*args, jnp.array([0.5, 0.5]))])
def test_with_weight_one_images_and_loss_are_erms(mix):
    image, _, weight = mix(IMAGE, ORDER, jnp.float32(1))
    np.testing.assert_array_equal(image, IMAGE)
    assert weight == 1


METHODS = [mixing.Mixup(alpha=1.0), mixing.CutMix()]


@pytest.mark.parametrize("method", METHODS)
def test_labels_weigh_as_the_images_do_that_were_mixed(monkeypatch, method):
    calls = []
    for name in ("blend", "paste"):
        mix = getattr(mixing, name)
        monkeypatch.setattr(mixing, name, lambda *args, mix=mix: calls.append(mix(*args)) or calls[-1])
    batch, net = {"image": IMAGE, "label": jnp.arange(4)}, mlp.Config((5,))
    made = method.make(Info(4, 64, 4, 2), net, tiny.Optim(lr=1.0, momentum=0.0))
    before = jax.jit(made.init)(jax.random.key(0), batch)
    (after, metrics), (image, order, weight) = jax.jit(lambda key: (made.step(before, batch, key), calls[-1]))(jax.random.key(6))

    def loss(params):
        log_probability = jax.nn.log_softmax(net.make(4).apply({"params": params}, image, train=True))
        target = weight * jnp.eye(4) + (1 - weight) * jnp.eye(4)[order]
        return -(target * log_probability).sum(1).mean()

    assert 0.05 < weight < 0.95 and (order != jnp.arange(4)).any() and (image != IMAGE).any()
    value, gradient = jax.jit(jax.value_and_grad(loss))(before.params["net"])
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    step = jax.tree.map(jnp.subtract, before.params["net"], after.params["net"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), step, gradient)


def test_cutmix_pastes_as_often_as_p_says(monkeypatch):
    weights = []
    monkeypatch.setattr(mixing, "paste", lambda image, order, weight, centre: weights.append(weight) or (image, order, weight))
    made = mixing.CutMix(p=0.4).make(Info(4, 64, 4, 2), mlp.Config(()), tiny.Optim())
    batch = {"image": IMAGE, "label": jnp.arange(4)}
    state = made.init(jax.random.key(0), batch)
    drawn = jax.jit(jax.vmap(lambda key: made.step(state, batch, key) and weights[-1]))(jax.random.split(jax.random.key(1), 1000))
    assert abs((drawn != 1).mean() - 0.4) < 4.5 * np.sqrt(0.24 / 1000)
    assert abs(drawn[drawn != 1].mean() - 0.5) < 4.5 * np.sqrt(1 / 12 / 400)  # uniform


# RSC


@pytest.mark.parametrize(("size", "share"), [(4, 1 / 3), (10, 0.25), (12, 1 / 3), (33, 0.2), (5, 0.0), (5, 1.0)])
def test_quantile_is_numpys(size, share):
    x = np.random.default_rng(0).normal(size=(6, size)).astype(np.float32)
    expected = x >= np.quantile(x, 1 - share, axis=1, keepdims=True).astype(np.float32)
    np.testing.assert_array_equal(rsc.above_quantile(jnp.array(x), share), expected)
    assert expected.any(1).all()


def test_ranks_leave_ties_out():
    x = jnp.array([[5.0, 1.0, 3.0, 3.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert rsc.above_rank(x, 1).tolist() == [[True, False, False, False, False], [False] * 5]
    assert rsc.above_rank(x, 2).sum(1).tolist() == [1, 0]
    assert rsc.above_rank(x, jnp.array(3)).sum(1).tolist() == [3, 0]


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
    loss = jax.random.permutation(jax.random.key(0), jnp.arange(size) + 1.0)
    for epoch, count in zip(epochs, counts, strict=True):
        found = rsc.challenged(loss, jnp.array(epoch), variant)
        np.testing.assert_array_equal(found, loss > size - count)
    assert rsc.challenged(jnp.array([0.3, 9e-5, -1.0, 2e-4, 0.0, 0.0]), jnp.array(99), "spatial_channel").tolist() == [1, 0, 0, 1, 0, 0]


MAPS = jax.random.uniform(jax.random.key(8), (5, 4, 3, 7))
GRADIENT = jax.random.normal(jax.random.key(9), (5, 7))
RELEVANCE = np.einsum("nhwc,nc->nhw", np.asarray(MAPS, np.float64), np.asarray(GRADIENT, np.float64)).reshape(5, 12)


def largest(x, count):
    return np.argsort(np.argsort(-x, 1), 1) < count


def test_pixels_or_channels_by_a_fair_coin():
    keys = jax.random.split(jax.random.key(0), 400)
    masked = np.asarray(jax.vmap(lambda key: rsc.mask_pixels_or_channels(key, MAPS, GRADIENT))(keys))
    pixels = np.broadcast_to(largest(RELEVANCE, 4).reshape(5, 4, 3, 1), MAPS.shape)
    channels = np.broadcast_to(largest(np.asarray(GRADIENT), 3)[:, None, None], MAPS.shape)  # ceil(7 / 3.2)
    of_pixels, of_channels = ((masked == expected).all((1, 2, 3, 4)) for expected in (pixels, channels))
    assert (of_pixels ^ of_channels).all()
    assert abs(of_pixels.mean() - 0.5) < 4.5 * np.sqrt(0.25 / 400)


def test_a_random_third_of_all_pixels_from_the_upper_half():
    keys = jax.random.split(jax.random.key(0), 400)
    masked = np.asarray(jax.vmap(lambda key: rsc.mask_some_pixels(key, MAPS, GRADIENT))(keys)).reshape(400, 5, 12)
    upper = largest(RELEVANCE, 6)
    assert (masked.sum(2) == 4).all() and not masked[:, ~upper].any()
    assert (np.abs(masked[:, upper].mean(0) - 4 / 6) < 4.5 * np.sqrt(2 / 9 / 400)).all()
    flat_maps = np.asarray(rsc.mask_some_pixels(keys[0], jnp.zeros_like(MAPS), GRADIENT))  # no half is larger: any third
    assert (flat_maps.reshape(5, 12).sum(1) == 4).all()


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
        return ~(gradient < np.percentile(gradient, 100 * (1 - features), axis=1, keepdims=True))[:, None, None]

    return mask, lambda change: ~(change < np.percentile(change, 100 * (1 - samples)))


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


@pytest.mark.parametrize("method", [rsc.Config(), rsc.Config(features=0.6, samples=0.5), rsc.Config(variant="spatial_channel")])
def test_a_step_of_rsc_is_the_published_codes(method):
    """Loss and gradient of the last layer, from the maps that it is given, in float32: in bfloat16, rounding may move a mask's edge."""
    net = resnet.Config(depth=10, width=4, stem="half")
    batch = {"image": jax.random.normal(jax.random.key(1), (12, 32, 32, 3)), "label": jnp.arange(12) % 5}
    made = method.make(Info(5, 64, 4, 40), net, tiny.Optim(lr=1.0, momentum=0.0))
    state = jax.jit(made.init)(jax.random.key(0), batch)
    state.params["head"]["head"]["kernel"] *= 5  # so that probabilities differ
    state = state.replace(step=jnp.array(4 * 10))  # epoch 10
    step = jax.jit(made.step)
    maps, _ = jax.jit(lambda p, s, x: apply_net(net.make(5, last=5), p, s, x, True))(
        state.params["trunk"], state.stats["trunk"], batch["image"]
    )
    of_hand = [domainbed(method.features, method.samples)]
    if method.variant != "domainbed":
        of_hand = [authors(of_channels, 0.5) for of_channels in (False, True)]
    maps, label, head = np.asarray(maps, np.float64), np.asarray(batch["label"]), state.params["head"]["head"]
    if method.variant == "domainbed":
        maps = maps.mean((1, 2), keepdims=True)
    expected, seen = [rsc_by_hand(maps, head, label, *functions) for functions in of_hand], set()
    assert all(0 < (~keep).any((1, 2, 3)).sum() < 12 for *_, keep in expected)
    for seed in range(1 if len(expected) == 1 else 8):
        after, metrics = step(state, batch, jax.random.key(seed))
        chosen = int(np.argmin([abs(loss - metrics["loss"]) for loss, *_ in expected]))
        seen.add(chosen)
        loss, gradient, _ = expected[chosen]
        np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(head["kernel"] - after.params["head"]["head"]["kernel"], gradient, atol=2e-6)
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
