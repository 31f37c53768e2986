"""EnD, LNL, ReBias and HEX: their terms against numbers computed by hand, one step of each written down a second time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxbed.method import Info, apply_net, init_net, scalars
from jaxbed.methods import end, erm, hex, lnl, rebias
from jaxbed.methods.parts import losses
from jaxbed.models import efficientnet, features, mlp, resnet, simple_conv
from jaxbed.optim import Optim

CLASSES, LR = 3, 0.1
INFO = Info(CLASSES, 64, 2, 4)
NET = mlp.Config((7, 6, 5))
NETS = {"mlp": NET, "simple_conv": simple_conv.Config(3, (4, 8)), "resnet": tiny.RESNET_4}
PLAIN = Optim(lr=LR, momentum=0.0)
TWO_STEPS = Optim(lr=LR, momentum=0.9, schedule="step", milestones_epochs=(1,), gamma=0.0)  # then none that changes anything
KEY = jax.random.key(1)
METHODS = {
    "erm": erm.Config(),
    "end": end.Config(2.0, 3.0),
    "end_published": end.Config(2.0, 3.0, "published"),
    "lnl": lnl.Config(0.5, 0.7),
    "lnl_paper": lnl.Config(0.5, 0.7, "paper"),
    "rebias": rebias.Config(2.0, 3.0, 0.5),
    "hex": hex.Config(levels=8, units=12),
}


@functools.cache
def batch(size=12, side=6):
    rng, number = np.random.default_rng(3), np.arange(size, dtype=np.int32)
    bias = rng.integers(0, CLASSES, size, np.int32)
    bias[0] = -1  # one is not known
    image = rng.random((size, side, side, 3)) ** np.linspace(0.2, 3, size)[:, None, None, None]
    return {"image": image.astype(np.float32), "label": number % CLASSES, "bias": bias, "index": number}


@functools.cache
def made(name):
    """(method, state before, state after one step, metrics), on the MLP; the method's step is compiled."""
    method = METHODS[name].make(INFO, NET, TWO_STEPS if name == "lnl" else PLAIN)
    method = method._replace(step=jax.jit(method.step))
    before = jax.device_get(jax.jit(method.init)(jax.random.key(0), batch()))
    return method, before, *jax.device_get(method.step(before, batch(), KEY))


def regularizers(u, label, bias, half=False):
    """Compiled, as (R⊥, R∥) of three classes."""
    return _regularizers(u, np.asarray(label), np.asarray(bias), half)


@functools.partial(jax.jit, static_argnums=3)
def _regularizers(u, label, bias, half):
    return jnp.stack(end.regularizers(u, label, bias, 3, half))


def run(net, params, image=None):
    return apply_net(net, params, {}, batch()["image"] if image is None else image, True)[0]


def cross_entropy(logits, label):
    return -(jax.nn.one_hot(label, CLASSES) * jax.nn.log_softmax(logits)).sum(-1)


def moved(params, gradient):
    return jax.tree.map(lambda p, g: p - np.float32(LR) * np.asarray(g), params, gradient)


def assert_close(found, expected):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=jax.tree_util.keystr(path))


def assert_equal(found, expected):
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(a, b)


# Networks in parts


def test_parts_are_the_whole_network():
    net, image = NETS["simple_conv"], batch()["image"]
    params, stats = jax.jit(lambda: init_net(net.make(CLASSES), KEY, image))()
    whole = jax.jit(lambda: apply_net(net.make(CLASSES), params, stats, image, False)[0])()
    middle = {"lower": net.make(CLASSES, last=net.parts // 2), "upper": net.make(CLASSES, first=net.parts // 2)}
    for parts in (features.cut(net, CLASSES), middle):

        def chained(image, parts=parts):
            params, stats = features.init_parts(parts, KEY, image)
            x = image
            for part in parts:
                x, _ = apply_net(parts[part], params[part], stats[part], features.pooled(x) if part == "head" else x, False)
            return params, x

        params_of_parts, logits = jax.jit(chained)(image)
        np.testing.assert_allclose(logits, whole, rtol=1e-5, atol=1e-6)
        assert_equal({name: leaf for part in params_of_parts.values() for name, leaf in part.items()}, params)


def test_a_resnets_head_reads_features_as_it_reads_maps():
    parts, maps = features.cut(NETS["resnet"], CLASSES), np.random.default_rng(0).standard_normal((2, 2, 2, 32), np.float32)

    @jax.jit
    def both(maps):
        params, _ = init_net(parts["head"], KEY, maps)
        return [apply_net(parts["head"], params, {}, x, False)[0] for x in (maps, features.pooled(maps))]

    np.testing.assert_array_equal(*both(maps))


def test_the_middle_is_where_it_was_published():
    assert (mlp.Config().parts // 2, resnet.Config().parts // 2, simple_conv.Config().parts // 2) == (2, 3, 2)


def test_a_row_of_zeros_has_no_direction_and_passes_no_gradient():
    x, unit = np.float32([[3, 4], [0, 0]]), jax.jit(features.unit)
    np.testing.assert_allclose(unit(x), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(unit(np.float32(1e-5) * x), unit(x), rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: (features.unit(x) * np.float32([1, 0])).sum()))(x)
    np.testing.assert_allclose(gradient, [[0.128, -0.096], [0, 0]], atol=1e-6)


# What holds for all


@pytest.mark.parametrize(
    ("name", "net"),
    [
        *((name, "simple_conv") for name in ("end_published", "lnl", "rebias", "hex")),
        *(("end_published", "mlp"), ("hex", "mlp"), ("lnl", "resnet"), ("rebias", "resnet")),
    ],
)
def test_every_network_and_type(name, net):
    """In bfloat16; in float32 this file steps each method on an MLP, test_methods trains it, and test_config traces it on a ResNet."""
    method, data = METHODS[name].make(INFO, dataclasses.replace(NETS[net], dtype="bfloat16"), PLAIN), batch()
    state = jax.eval_shape(method.init, KEY, data)
    after, metrics = jax.eval_shape(method.step, state, data, KEY)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert {"loss", "accuracy"} <= set(metrics)
    logits = jax.eval_shape(method.predict, state.params, state.stats, data["image"])
    assert (logits.shape, logits.dtype) == ((12, CLASSES), np.float32)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("end", {"alpha": 2.0, "beta": 3.0}),
        ("lnl", {"entropy": 0.5, "reversal": 0.7}),
        ("rebias", {"weight": 2.0, "weight_biased": 3.0, "sigma": 0.5}),
    ],
)
def test_a_search_may_vary_the_weights(name, names):
    """They are read from the state alone: a method made with other ones computes the same from it."""
    config = METHODS[name]
    other = dataclasses.replace(config, **{name: 9.0 for name in names})
    found = []
    for method in (config.make(INFO, NET, PLAIN), other.make(INFO, NET, PLAIN)):
        state = jax.eval_shape(method.init, KEY, batch())
        found.append(str(jax.make_jaxpr(method.step)(state, batch(), KEY)))
    assert found[0] == found[1]
    _, before, _, _ = made(name)
    assert {name: float(value) for name, value in before.hparams.items()} == pytest.approx({"lr": LR, "weight_decay": 0, **names})


def test_results_do_not_depend_on_the_devices():
    """The batch is the global one, of which each device holds a part."""
    method, before, after, _ = made("hex")
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, parts = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("data",)))
    shared, _ = method.step(jax.device_put(before, whole), jax.device_put(batch(), parts), KEY)
    for one, four in zip(*map(jax.tree.leaves, (after.params, shared.params)), strict=True):
        np.testing.assert_allclose(one, four, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["end", "lnl_paper", "rebias"])
def test_without_weights_a_method_is_erm_to_the_last_bit(name):
    method, before, _, _ = made(name)
    none = dict.fromkeys(set(before.hparams) - {"lr", "weight_decay", "sigma"}, 0.0)
    after, _ = method.step(before.replace(hparams=before.hparams | scalars(none)), batch(), KEY)
    _, _, expected, _ = made("erm")
    parts = [part for part in after.params if part not in ("bias", "biased")]
    assert_equal({layer: leaf for part in parts for layer, leaf in after.params[part].items()}, expected.params["net"])


@pytest.mark.parametrize("name", [name for name in METHODS if name != "erm"])
def test_dead_features_leave_everything_finite(name):
    method, before, _, _ = made(name)

    def kill(path, leaf):
        dead = "hidden2" in jax.tree_util.keystr(path) or "superficial']['hidden" in jax.tree_util.keystr(path)
        return jnp.full_like(leaf, -1.0) if dead else leaf

    after, metrics = method.step(before.replace(params=jax.tree_util.tree_map_with_path(kill, before.params)), batch(), KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after.params, metrics)))


@pytest.mark.parametrize(
    ("config", "net", "message"),
    [
        (
            end.Config(),
            efficientnet.Config(),
            r"EnD compares features and cannot run on jaxbed.models.efficientnet.*a resnet.Config\(\), .*convnext.Config.*simple_conv",
        ),
        (end.Config(), mlp.Config(()), "take at least one hidden layer"),
        (lnl.Config(), mlp.Config(()), "take at least one hidden layer"),
    ],
)
def test_bad_settings_are_refused_by_name(config, net, message):
    with pytest.raises(ValueError, match=message):
        config.make(INFO, net, PLAIN)


@pytest.mark.parametrize(
    ("config", "message"),
    [(rebias.Config(), "batch_size = 3: the unbiased estimate .* needs 4"), (hex.Config(), "batch_size = 3: HEX projects 3 directions")],
)
def test_batches_that_are_too_small_are_refused(config, message):
    method, data = config.make(INFO, NET, PLAIN), batch(3)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(method.step, jax.eval_shape(method.init, KEY, data), data, KEY)


# EnD

DIRECTION = jnp.array([(1, 0), (0, 1), (0.6, 0.8), (0.8, 0.6)])


@pytest.mark.parametrize(("half", "expected"), [(False, (0.6, 0.3)), (True, (0.6, 0.1))])
def test_regularizers_of_end(half, expected):
    np.testing.assert_allclose(regularizers(DIRECTION, [0, 0, 0, 1], [0, 1, 0, 1], half), expected, atol=1e-6)


def test_regularizers_of_end_pair_by_pair():
    rng = np.random.default_rng(0)
    z, label, bias = rng.normal(size=(20, 4)), rng.integers(0, 3, 20), rng.integers(-1, 3, 20)
    u = z / np.linalg.norm(z, axis=1, keepdims=True)
    sums, pairs, others = np.zeros(3), 0, []
    for i in range(20):
        for j in range(i):
            if bias[i] >= 0 and bias[i] == bias[j]:
                sums[bias[i]] += u[i] @ u[j]
                pairs += 1
            elif min(bias[i], bias[j]) >= 0 and label[i] == label[j]:
                others.append((1 + u[i] @ u[j]) / 2)
    found = regularizers(jnp.asarray(u, jnp.float32), label, bias)
    np.testing.assert_allclose(found, (np.abs(sums).sum() / pairs, 1 - np.mean(others)), rtol=1e-5)


@pytest.mark.parametrize(
    ("label", "bias"), [((0, 1, 2, 0), (0, 1, 2, 2)), ((0, 0, 0, 0), (-1, -1, -1, -1))], ids=["but one", "no bias is known"]
)
def test_terms_without_pairs_are_zero(label, bias):
    found = regularizers(DIRECTION, label, bias)
    gradient = jax.jit(jax.jacrev(lambda u: regularizers(u, label, bias)))(DIRECTION)
    known = float(max(bias) >= 0)
    np.testing.assert_allclose(found, (known * 0.96, known * 0.1), atol=1e-6)  # of the last two images; of the first and the last
    assert np.isfinite(gradient).all() and gradient.any() == known


@pytest.mark.parametrize("name", ["end", "end_published"])
def test_a_step_of_end(name):
    method, before, after, metrics = made(name)
    parts, data = features.cut(NET, CLASSES), batch()
    published = name == "end_published"

    def total(params):
        z = run(parts["trunk"], params["trunk"])
        u = z / jnp.linalg.norm(z, axis=1, keepdims=True)
        logits = run(parts["head"], params["head"], u if published else z)
        terms = end.regularizers(u, data["label"], data["bias"], CLASSES, published)
        return cross_entropy(logits, data["label"]).mean() + 2 * terms[0] + 3 * terms[1], terms

    (_, terms), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(before.params)
    np.testing.assert_allclose([metrics["loss/disentangle"], metrics["loss/entangle"]], terms, rtol=1e-4)
    assert_close(after.params, moved(before.params, gradient))
    found = jax.jit(method.predict)(before.params, before.stats, data["image"])
    np.testing.assert_allclose(cross_entropy(found, data["label"]).mean(), metrics["loss"], rtol=1e-5)


# LNL


def test_the_reversed_gradient():

    @jax.jit
    def reversed_gradient(x, pull):
        value, pull_back = jax.vjp(lambda x: lnl.reverse(x, np.float32(0.1)), x)
        return value, pull_back(pull)[0]

    value, gradient = reversed_gradient(np.float32([1, -2]), np.float32([1, 3]))
    assert value.tolist() == [1.0, -2.0]
    np.testing.assert_allclose(gradient, [-0.1, -0.3], rtol=1e-6)


def test_entropy_of_certain_and_uncertain_predictions():
    logits = jnp.array([(0.0, 0.0, 0.0), (300.0, 0.0, -300.0), (np.log(2.0), 0.0, -300.0)])
    value, gradient = jax.jit(lambda x: (lnl.negative_entropy(x), jax.grad(lambda x: lnl.negative_entropy(x).sum())(x)))(logits)
    np.testing.assert_allclose(value, (-np.log(3), 0, -0.6365142), atol=1e-6)
    assert np.isfinite(gradient).all() and not np.abs(gradient[:2]).max() > 1e-6


@functools.partial(jax.jit, static_argnums=2)
def lnl_gradient(params, predictor, which):
    """(value, gradient) of L_y or L_b."""
    return jax.value_and_grad(lambda params: lnl_terms(params, predictor)[which])(params)


def lnl_terms(params, predictor):
    """(L_y with the predictor's parameters given apart, L_b)."""
    middle, data = NET.parts // 2, batch()
    x = run(NET.make(CLASSES, last=middle), params["lower"])
    logits = run(NET.make(CLASSES, first=middle), params["upper"], x)
    q = jax.nn.softmax(run(lnl.BiasPredictor(CLASSES), predictor, x))
    of_label = cross_entropy(logits, data["label"]).mean() + 0.5 * (q * jnp.log(q)).sum(-1).mean()
    of_bias = cross_entropy(run(lnl.BiasPredictor(CLASSES), params["bias"], x), data["bias"])[1:].mean()  # of the first it is not known
    return of_label, of_bias


def test_lnl_takes_two_steps():
    _, before, after, metrics = made("lnl")
    first = lnl_gradient(before.params, before.params["bias"], 0)[1]
    middle = {**moved(before.params, first), "bias": before.params["bias"]}
    value, second = lnl_gradient(middle, before.params["bias"], 1)
    turned = jax.tree.map(lambda g, old: -0.7 * g + 0.9 * old, second["lower"], first["lower"])  # one optimizer, two steps
    expected = {"lower": moved(middle["lower"], turned), "upper": middle["upper"], "bias": moved(middle["bias"], second["bias"])}
    assert_close(after.params, expected)
    np.testing.assert_allclose(metrics["loss/bias"], value, rtol=1e-5)


def test_lnl_of_the_paper_takes_one():
    _, before, after, _ = made("lnl_paper")
    first, second = (lnl_gradient(before.params, before.params["bias"], which)[1] for which in range(2))
    gradient = {**first, "lower": jax.tree.map(lambda a, b: a - 0.7 * b, first["lower"], second["lower"]), "bias": second["bias"]}
    assert_close(after.params, moved(before.params, gradient))


def test_a_schedule_counts_batches_where_an_optimizer_steps_twice():
    method, before, after, _ = made("lnl")
    states = [before, after]
    for _ in range(2):
        states.append(jax.device_get(method.step(states[-1], batch(), KEY)[0]))
    for old, new, moves in zip(states, states[1:], (True, True, False), strict=False):
        for part in ("lower", "upper", "bias"):
            changed = [(a != b).any() for a, b in zip(*map(jax.tree.leaves, (old.params[part], new.params[part])), strict=True)]
            assert changed == [moves] * len(changed)


# ReBias


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4), 0.1081209974),
        ((0, 1, 2, 3, 4), (0, 1, 0, 1, 0), -0.0464642371),
        ((0, 1, 2, 3, 4), (0, 2, 4, 6, 8), 0.0277115054),
        ((0, 1, 2, 4), (0, 1, 1, 0), 0.0213405980),
    ],
)
def test_dependence(x, y, expected):
    dependence = jax.jit(lambda *both: rebias.hsic(*(rebias.kernel(values[:, None], 1.0) for values in both)))
    np.testing.assert_allclose(dependence(jnp.array(x, jnp.float32), jnp.array(y, jnp.float32)), expected, atol=1e-6)


def test_dependence_with_linear_kernels():
    kernels = [np.outer(v, v) * (1 - np.eye(5)) for v in ((0, 1, 2, 3, 4), (0, 1, 0, 1, 0))]
    np.testing.assert_allclose(rebias.hsic(*kernels), -0.2333333, atol=1e-6)


def test_kernels_far_from_the_origin_keep_their_digits():
    x = np.random.default_rng(0).normal(size=(6, 3))
    expected = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 2) - np.eye(6)
    np.testing.assert_allclose(jax.jit(lambda x: rebias.kernel(x, 1.0))(np.float32(x + 100)), expected, atol=2e-4)


def test_median_width():
    x = np.arange(5, dtype=np.float32)[:, None]  # the median of the 25 squared distances is 1

    @functools.partial(jax.jit, static_argnums=2)
    def kernel(x, sigma, median=True):
        """(kernel, gradient of its sum)."""
        return rebias.kernel(x, sigma, median), jax.grad(lambda x: rebias.kernel(x, sigma, median).sum())(x)

    assert_close(kernel(x, 2.0), kernel(x, 2.0, False))  # the median is a constant
    assert_close(kernel(7 * x, 2.0)[0], kernel(x, 2.0)[0])
    for none in ([1, 1, 1, 1, 1], [3, 1, 1, 1, 1]):  # the median is 0
        assert all(np.isfinite(leaf).all() for leaf in kernel(np.float32(none)[:, None], 1.0))


def test_a_step_of_rebias_updates_the_biased_network_first():
    _, before, after, metrics = made("rebias")
    parts, biased, data = features.cut(NET, CLASSES), rebias.BiasedNet().make(NET, CLASSES), batch()

    def kernel(z):
        return jnp.exp(-((z[:, None] - z[None]) ** 2).sum(-1) / (2 * 0.5**2)) * (1 - jnp.eye(12))

    def main(params):
        z = run(parts["trunk"], params["trunk"])
        return kernel(z), cross_entropy(run(parts["head"], params["head"], z), data["label"]).mean()

    def of_biased(params):
        (z, logits), _ = apply_net(biased, params, before.stats["biased"], data["image"], True)
        return kernel(z), cross_entropy(logits, data["label"]).mean()

    def first(params):
        k, value = of_biased(params)
        return value - 3 * rebias.hsic(k, main(before.params)[0])

    def second(params):
        k, value = main(params)
        return value + 2 * rebias.hsic(k, of_biased(after.params["biased"])[0])

    gradient = jax.jit(jax.grad(first))(before.params["biased"])
    assert_close(after.params["biased"], moved(before.params["biased"], gradient))
    value, gradient = jax.jit(jax.value_and_grad(second))({name: before.params[name] for name in parts})
    assert_close({name: after.params[name] for name in parts}, moved({name: before.params[name] for name in parts}, gradient))
    np.testing.assert_allclose(metrics["loss"] + 2 * metrics["dependence"], value, rtol=1e-5)
    run_biased = jax.jit(lambda params, stats: apply_net(biased, params, stats, data["image"], True)[1])
    assert_close(after.stats["biased"], run_biased(after.params["biased"], run_biased(before.params["biased"], before.stats["biased"])))


def test_the_biased_network_sees_pixels_alone():
    image, net = batch()["image"], rebias.BiasedNet().make(NET, CLASSES)
    params, stats = jax.jit(lambda: init_net(net, KEY, image))()
    shuffled = np.asarray(image).reshape(12, 36, 3)[:, np.random.default_rng(0).permutation(36)].reshape(image.shape)
    forward = jax.jit(lambda x: apply_net(net, params, stats, x, False)[0])
    for one, other in zip(forward(image), forward(shuffled), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_with_a_stride_the_biased_network_skips_rows_and_columns():
    image, net = batch()["image"], rebias.BiasedNet(2).make(NET, CLASSES)
    params, stats = jax.jit(lambda: init_net(net, KEY, image))()
    seen = np.zeros(image.shape[1:3], bool)
    seen[::2, ::2] = True
    forward = jax.jit(lambda x: apply_net(net, params, stats, x, False)[0][0])
    np.testing.assert_array_equal(forward(image), forward(np.where(seen[None, ..., None], image, 9.0)))
    assert (np.asarray(forward(image)) != np.asarray(forward(np.where(seen[None, ..., None], 9.0, image)))).any()


@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_the_biased_network_may_have_another_dtype(kind):
    image, exact = batch()["image"], rebias.BiasedNet().make(NETS[kind], CLASSES)
    rounded = rebias.BiasedNet(dtype="bfloat16").make(NETS[kind], CLASSES)
    params, stats = jax.jit(lambda: init_net(exact, KEY, image))()
    one, other = (np.asarray(jax.jit(lambda net=net: apply_net(net, params, stats, image, False)[0][0])()) for net in (exact, rounded))
    assert one.dtype == other.dtype == np.float32
    assert 0 < np.abs(one - other).max() < 0.05 * np.abs(one).max()


def test_beside_a_resnet_only_the_stem_sees_neighbours():
    net = rebias.BiasedNet().make(NETS["resnet"], CLASSES)
    params, _ = jax.eval_shape(lambda: init_net(net, KEY, batch()["image"]))
    sizes = {jax.tree_util.keystr(path): leaf.shape[0] for path, leaf in jax.tree_util.tree_leaves_with_path(params) if leaf.ndim == 4}
    assert {name for name, size in sizes.items() if size > 1} == {"['trunk']['stem_conv']['kernel']"} and len(sizes) == 4


# HEX


def test_projection():
    f_all = jnp.array([(2, 0), (0, 1), (1, 1), (0, 0)], jnp.float32)
    superficial = jnp.array([(1, 0), (0, 1), (1, 0), (0, 1)], jnp.float32)
    expected = np.array([(0.5, -0.5), (0, 0.5), (-0.5, 0.5), (0, -0.5)])
    project = jax.jit(hex.project)
    np.testing.assert_allclose(project(f_all, superficial, 0.0), expected, atol=1e-6)
    np.testing.assert_allclose(project(f_all, superficial), expected, atol=1e-4)


@pytest.mark.parametrize("superficial", [np.zeros((8, 3)), np.ones((8, 1)) * (1, 2, 3), np.ones((8, 3)) * 1e-4, np.ones((8, 3)) * 1e4])
def test_projection_of_what_has_no_full_rank(superficial):
    f_all = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
    superficial = jnp.asarray(superficial, jnp.float32)
    found = jax.jit(hex.project)(f_all, superficial)
    expected = f_all - f_all.mean(0) if superficial.any() else f_all
    np.testing.assert_allclose(found, expected, atol=1e-3)
    gradient = jax.jit(jax.grad(lambda a, s: (hex.project(a, s) ** 3).sum(), (0, 1)))(f_all, superficial)
    assert all(np.isfinite(g).all() for g in gradient)


def test_shift_difference():
    np.testing.assert_array_equal(hex.shift_difference(jnp.array([[[0, 1, 2], [5, 3, 3]]])), [[[0, -1, -1], [0, 2, 0]]])


def test_grey_levels_are_of_the_brightest_pixel():
    grey, quantized = np.float32([[[0, 0.5, 1, 0.49]], [[0, 0, 0, -1e-9]]]), jax.jit(hex.quantized, static_argnums=1)
    np.testing.assert_array_equal(quantized(grey, 5), [[[0, 2, 4, 1]], [[0, 0, 0, 0]]])
    np.testing.assert_array_equal(quantized(grey / 255, 5), quantized(grey, 5))


@pytest.mark.parametrize("levels", [16, 128])
def test_grey_levels_do_not_depend_on_the_colour(levels):
    """A compiler may divide by multiplying with a reciprocal, after which the brightest pixel is below 1 in some colours."""
    level = np.random.default_rng(0).permutation(np.resize(np.arange(levels), 28 * 28)).reshape(1, 28, 28)
    colours = np.random.default_rng(1).uniform(0.01, 1, (200, 1, 1, 3))
    found = jax.jit(lambda x: hex.grey_levels(x, np.zeros(3), np.ones(3), levels))(
        (level[..., None] / (levels - 1) * colours).astype(np.float32)
    )
    np.testing.assert_array_equal(found, np.broadcast_to(level, found.shape))


def matrix_by_pixels(level, of_difference, of_level):
    """The differentiable co-occurrence matrix as it was published: every pixel with every threshold."""
    level = level.reshape(len(level), -1), hex.shift_difference(level).reshape(len(level), -1)
    values, differences = (x.astype(jnp.float32)[..., None] for x in level)
    left, right = jnp.clip(differences - of_difference, 1e-5, 1), jnp.clip(values - of_level, 1e-5, 1)
    return jnp.einsum("npa,npb->nab", left, right, precision="highest")


def hex_superficial(params, level):
    hidden = matrix_by_pixels(level, params["difference"], params["level"]).reshape(len(level), -1)
    hidden = jax.nn.relu(hidden @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden / jnp.sqrt((hidden**2).mean(-1, keepdims=True)) @ params["kernel"]


def test_a_step_of_hex():
    method, before, after, metrics = made("hex")
    parts, data = features.cut(NET, CLASSES), batch()
    level = jax.jit(lambda image: hex.quantized(image @ jnp.array(hex.GREY), 8))(data["image"])
    assert len(np.unique(level)) == 8

    def total(params):
        z = run(parts["trunk"], params["trunk"])
        h = z / jnp.sqrt((z**2).mean(-1, keepdims=True))
        head, own = params["head"]["head"], hex_superficial(params["superficial"], level)
        f_all, f_superficial = h @ head["kernel"] + own + head["bias"], own + head["bias"]
        gram = f_superficial.T @ f_superficial
        inverse = jnp.linalg.inv(gram + 1e-5 * jnp.trace(gram) * jnp.eye(CLASSES))
        return cross_entropy(f_all - f_superficial @ inverse @ f_superficial.T @ f_all, data["label"]).mean()

    value, gradient = jax.jit(jax.value_and_grad(total))(before.params)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-4)
    for (path, a), b, start in zip(
        jax.tree_util.tree_leaves_with_path(after.params), *map(jax.tree.leaves, (gradient, before.params)), strict=True
    ):
        np.testing.assert_allclose(start - a, LR * b, atol=2e-3 * LR * np.abs(b).max() + 1e-6, err_msg=jax.tree_util.keystr(path))
        assert np.abs(b).max() > 1e-6
    predict = jax.jit(method.predict)
    logits = predict(before.params, before.stats, data["image"])
    np.testing.assert_allclose(losses.accuracy(logits, data["label"]), metrics["accuracy"])
    other = {**before.params, "superficial": jax.tree.map(lambda x: x + 1, before.params["superficial"])}
    assert_equal(predict(other, before.stats, data["image"]), logits)


def test_normalised_pixels_have_the_same_levels_and_large_images_are_averaged():
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
    image = np.random.default_rng(0).random((2, 112, 113, 3))
    grey = (image @ hex.GREY)[:, :, :112].reshape(2, 56, 2, 56, 2).mean((2, 4))
    expected = np.floor(grey / grey.max((1, 2), keepdims=True) * 15)
    levels = jax.jit(lambda x, black, white: hex.grey_levels(x, black, white, 16))
    for pixels, black, white in ((image, np.zeros(1), np.ones(1)), ((image - mean) / std, -mean / std, (1 - mean) / std)):
        found = levels(*(np.float32(x) for x in (pixels, black, white)))
        assert found.shape == (2, 56, 56) and (found != expected).mean() < 1e-3
