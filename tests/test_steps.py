"""One step of the methods with a training rule of their own, against the same step written down a second time, term by term."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxbed.method import Info, apply_net
from jaxbed.methods import lff, sagnet
from jaxbed.methods.parts import losses
from jaxbed.models import mlp, simple_conv, style

INFO = Info(classes=5, train_size=12, steps_per_epoch=1, epochs=1)
LR, CLIP = 0.1, 1e-4  # the latter so small that the clipping shows
PLAIN = tiny.Optim(lr=LR, momentum=0.0)
ORDER, WEIGHT = jnp.array([2, 0, 3, 1]), jnp.array([0.3, 0.9, 0.5, 0.1])


def batch(size=4):
    image, number = np.random.default_rng(3).standard_normal((size, 32, 32, 3), np.float32), np.arange(size, dtype=np.int32)
    return {"image": image, "label": number % 3, "index": number * 2}


def difference(after, before):
    return jax.tree.map(lambda a, b: np.asarray(a - b), after, before)


def assert_close(found, expected):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-6, err_msg=jax.tree_util.keystr(path))


def norm(tree):
    return np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for leaf in jax.tree.leaves(tree)))


@pytest.fixture
def fixed_draws(monkeypatch):
    """SagNet with known permutations and weights."""
    mix, put = style.randomize_style, style.randomize_content
    monkeypatch.setattr(style, "randomize_style", lambda maps, *_: mix(maps, ORDER, WEIGHT))
    monkeypatch.setattr(style, "randomize_content", lambda maps, _: put(maps, ORDER[::-1]))
    return mix, put


@pytest.mark.parametrize("variant", ["paper", pytest.param("biasbed", marks=pytest.mark.slow)])
def test_sagnet_updates_what_its_equations_say(variant, fixed_draws):
    net = tiny.RESNET_6
    config = sagnet.Config(variant=variant, clip_adv=CLIP)
    method, data = config.make(INFO, net, PLAIN), batch()
    before = jax.device_get(jax.jit(method.init)(jax.random.key(0), data))
    after, metrics = jax.device_get(jax.jit(method.step)(before, data, jax.random.key(1)))
    trunk, head = net.make(INFO.classes, last=3), net.make(INFO.classes, first=3)
    mix, put = style.randomize_style, style.randomize_content  # the fixed ones

    def run(params):
        maps = apply_net(trunk, params["trunk"], before.stats["trunk"], data["image"], True)[0]
        content = apply_net(head, params["content"], before.stats["content"], mix(maps), True)[0]
        styled = apply_net(head, params["style"], before.stats["style"], put(maps, None) if variant == "paper" else maps, True)[0]
        label = jax.nn.one_hot(data["label"], INFO.classes)
        loss_content, loss_style = (-(label * jax.nn.log_softmax(z)).sum(-1).mean() for z in (content, styled))
        loss_adversary = 0.1 * -jnp.log(jax.nn.softmax(styled) + 1e-5).mean()
        return jnp.stack([loss_content, loss_style, loss_adversary])

    values, jacobian = jax.device_get(jax.jit(lambda params: (run(params), jax.jacrev(run)(params)))(before.params))
    np.testing.assert_allclose([metrics[k] for k in ("loss", "loss/style", "loss/adversary")], values, rtol=1e-5)
    gradient = [jax.tree.map(lambda leaf, i=i: leaf[i], jacobian) for i in range(3)]  # of each loss, for all parameters

    def norms(tree):  # the trunk's BatchNorm parameters, 0 elsewhere
        def pick(path, leaf):
            return leaf if sagnet.in_trunk_norm(jax.tree_util.keystr(path, simple=True, separator="/")) else np.zeros_like(leaf)

        return jax.tree_util.tree_map_with_path(pick, tree)

    def clip(tree):
        scale = np.minimum(1.0, CLIP / norm(tree))
        return jax.tree.map(lambda leaf: leaf * scale, tree)

    def add(*trees):
        return jax.tree.map(lambda *leaves: sum(leaves), *trees)

    nothing = jax.tree.map(np.zeros_like, before.params)
    assert norm(norms(gradient[2])) > CLIP
    if variant == "paper":
        both = add(gradient[0], clip(norms(gradient[2])))
        total = {"trunk": both["trunk"], "content": gradient[0]["content"], "style": gradient[1]["style"]}
    else:
        shared = add(gradient[1], gradient[2])
        inner = norms(shared)
        shared = add(shared, jax.tree.map(np.negative, inner), clip(inner), gradient[0])
        total = add(shared, norms(shared), {**nothing, "style": shared["style"]})  # the two smaller optimizers step once more
    assert_close(difference(after.params, before.params), jax.tree.map(lambda g: -LR * g, total))


def test_sagnet_draws_anew_in_every_step():
    method, data = sagnet.Config(style_stage=1).make(INFO, simple_conv.Config(3, (4, 8)), PLAIN), batch()
    state = jax.jit(method.init)(jax.random.key(0), data)
    step = jax.jit(method.step)
    first, second = (float(step(state, data, jax.random.key(k))[1]["loss"]) for k in (1, 2))
    assert first != second and first == float(step(state, data, jax.random.key(1))[1]["loss"])


def test_lff_fills_its_tables_and_weighs_by_them():
    net, data = mlp.Config((8,)), batch()
    method = lff.Config().make(INFO, net, PLAIN)
    before, step = jax.device_get(jax.jit(method.init)(jax.random.key(0), data)), jax.jit(method.step)
    after, metrics = jax.device_get(step(before, data, jax.random.key(1)))

    @jax.jit
    def cross_entropy(params):
        logits = {name: net.make(5).apply({"params": params[name]}, data["image"], train=True) for name in lff.NETS}
        return {name: losses.cross_entropy(z, data["label"]) for name, z in logits.items()}

    loss = jax.device_get(cross_entropy(before.params))
    relative = {}
    for name in lff.NETS:
        table = np.zeros(12)
        table[data["index"]] = loss[name]  # a first visit stores the loss itself
        np.testing.assert_allclose(after.memory[name]["average"], table, rtol=1e-5)
        assert after.memory[name]["seen"].tolist() == [1, 0] * 4 + [0] * 4
        largest = np.array([max(loss[name][data["label"] == c]) for c in range(3)])
        relative[name] = loss[name] / largest[data["label"]]
    assert after.memory["class_of"][data["index"]].tolist() == data["label"].tolist()
    weight = relative["biased"] / (relative["biased"] + relative["debiased"])
    np.testing.assert_allclose(metrics["weight"], weight.mean(), rtol=1e-5)

    def total(params):
        ce = cross_entropy(params)
        p = np.exp(-loss["biased"])  # constants: neither p^q nor the weight is differentiated
        return (0.7 * p**0.7 * ce["biased"]).mean() + (weight * ce["debiased"]).mean()

    assert_close(difference(after.params, before.params), jax.tree.map(lambda g: -LR * g, jax.jit(jax.grad(total))(before.params)))
    second, _ = step(after, data, jax.random.key(2))
    expected = 0.7 * loss["biased"] + 0.3 * cross_entropy(after.params)["biased"]
    np.testing.assert_allclose(second.memory["biased"]["average"][data["index"]], expected, rtol=1e-5)


def test_lff_predicts_with_the_debiased_network():
    net, data = mlp.Config((8,)), batch()
    method = lff.Config().make(INFO, net, PLAIN)
    state = jax.jit(method.init)(jax.random.key(0), data)
    expected = jax.jit(lambda params: net.make(5).apply({"params": params}, data["image"], train=False))(state.params["debiased"])
    np.testing.assert_array_equal(jax.jit(method.predict)(state.params, state.stats, data["image"]), expected)
