"""Reweighting, resampling, GroupDRO and LISA: counts and weights, numbers computed by hand, and steps written down a second time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tiny

from jaxbed.method import Info
from jaxbed.methods import balance, dfr, end, erm, groupdro, lisa, lnl
from jaxbed.methods.parts.groups import Groups
from jaxbed.models import mlp
from jaxbed.optim import Optim

CLASSES = 3
INFO = Info(CLASSES, 64, 2, 4)
NET = mlp.Config((5,))
PLAIN = Optim(lr=0.1, momentum=0.0)
SIZE = 12
LABEL = np.arange(SIZE, dtype=np.int32) % CLASSES
BIAS = np.array([0, 1, 2, 0, 1, 0, 0, 2, 1, 1, 1, 2], np.int32)
SOME_BIAS = np.where(np.arange(SIZE) % 4, BIAS, -1)  # not known of every fourth image
KEY = jax.random.key(1)


@functools.cache
def batch(label=tuple(LABEL), bias=tuple(BIAS), **tables):
    image, index = np.random.default_rng(0).random((len(label), 2, 2, 3), np.float32), np.arange(len(label), dtype=np.int32)
    columns = {name: np.full(len(label), value, np.float32) for name, value in tables.items()}
    return {"image": image, "label": np.int32(label), "bias": np.int32(bias), "index": index, **columns}


@functools.cache
def start():
    return jax.device_get(erm.Config().make(INFO, NET, PLAIN).init(jax.random.key(0), batch()))


def made(config):
    """The method, its step compiled, and its state before the first one, of ERM's parameters."""
    method = config.make(INFO, NET, PLAIN)
    state = jax.device_get(method.init(jax.random.key(0), batch()))
    return method._replace(step=jax.jit(method.step)), state.replace(params=start().params)


@functools.cache
def erm_step(label=tuple(LABEL), bias=tuple(BIAS)):
    method, state = made(erm.Config())
    return method.step(state, batch(label, bias), KEY)


@functools.cache
def sample_losses():
    """[B] in float64, and their gradients by the head's bias, [B, classes]."""
    logits = np.asarray(NET.make(CLASSES).apply({"params": start().params["net"]}, batch()["image"], train=True), np.float64)
    probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -np.log(probability[np.arange(SIZE), LABEL]), probability - np.eye(CLASSES)[LABEL]


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


# Groups


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [("aligned", 6, [0, 1, 4, 5, -1]), ("cells", 9, [0, 2, 8, 7, -1]), ("classes", 3, [0, 0, 2, 2, 1])],
)
def test_groups_by_hand(kind, number, expected):
    label, bias = np.array([0, 0, 2, 2, 1]), np.array([0, 2, 2, 1, -1])
    groups = Groups(kind, 3)
    assert groups.number == number
    assert groups.of(label, bias).tolist() == groups.of(jnp.array(label), jnp.array(bias)).tolist() == expected


def test_with_two_classes_cells_are_what_is_aligned_or_not():
    label, bias = np.random.default_rng(0).integers(0, 2, (2, 50))
    of_kinds = [Groups(kind, 2).of(label, bias) for kind in ("aligned", "cells")]
    assert len(set(zip(*of_kinds, strict=True))) == 4 == len(np.unique(of_kinds[0])) == len(np.unique(of_kinds[1]))


@pytest.mark.parametrize("kind", ["aligned", "cells", "classes"])
def test_weights_have_mean_one_and_equal_sums(kind):
    rng = np.random.default_rng(0)
    label = np.sort(rng.integers(0, 4, 500)).astype(np.int32)
    bias = np.where(rng.random(500) < 0.9, label, (label + 1) % 4).astype(np.int32)
    groups = Groups(kind, 4)  # of the 16 cells, 8 are empty
    group, sizes, weights = groups.of(label, bias), groups.sizes(label, bias), groups.weights(label, bias)
    assert sizes.dtype == weights.dtype == np.float32
    assert all((sizes[group == g] == (group == g).sum()).all() for g in np.unique(group))
    sums = np.bincount(group, weights, groups.number)
    occupied = len(np.unique(group))
    assert occupied == (4 if kind == "classes" else 8)
    np.testing.assert_allclose(sums[sums > 0], 500 / occupied, rtol=1e-6)
    np.testing.assert_allclose(weights.mean(), 1, rtol=1e-6)
    np.testing.assert_array_equal(weights, groups.sampling().weights(label, bias, {}))


def test_weights_of_balanced_groups_are_exactly_one():
    label, bias = (x.ravel() for x in np.mgrid[:3, :3])
    for kind, repeats in (("cells", 7), ("classes", 11)):
        assert (Groups(kind, 3).weights(np.tile(label, repeats), np.tile(bias, repeats)) == 1).all()


@pytest.mark.parametrize(
    ("config", "runs"),
    [
        (groupdro.Config(), True),
        (balance.Reweight("classes"), True),
        (balance.Resample("cells"), False),
        (dfr.Config(groups="aligned"), True),
        (lisa.Config(), False),
        (end.Config(), False),
    ],
)
def test_where_only_agreement_is_known_methods_that_read_no_more_run(config, runs):
    source = dataclasses.replace(tiny.DATA.open(), facts={"bias_label": "none: only agreement is known"})
    cfg = tiny.mlp_config(method="erm")
    cfg = dataclasses.replace(cfg, method=config)
    if runs:
        tiny.program(cfg, source)
    else:
        with pytest.raises(ValueError, match=r"has none: only agreement is known\. Take another method"):
            tiny.program(cfg, source)


@pytest.mark.parametrize("config", [lisa.Config(), end.Config(), lnl.Config(), balance.Resample("cells")])
def test_methods_that_read_the_bias_refuse_images_that_have_none(config):
    """They would be ERM under another name."""
    opened = tiny.DATA.open()
    blind = dataclasses.replace(opened, train=opened.train._replace(bias=np.full_like(opened.train.bias, -1)))
    with pytest.raises(ValueError, match="needs the bias of the training images, but shapes lacks it for 64 of 64"):
        tiny.program(dataclasses.replace(tiny.mlp_config(), method=config), blind)


def test_images_without_a_bias_label_are_refused():
    label, bias = np.array([0, 1, 1]), np.array([0, -1, 1])
    with pytest.raises(ValueError, match="1 of 3 have none"):
        Groups("aligned", 2).weights(label, bias)
    assert Groups("classes", 2).sizes(label, None).tolist() == [1, 2, 2]


# Reweighting and resampling


def test_with_weight_one_reweighting_is_erm_to_the_last_bit():
    method, state = made(balance.Reweight())
    (expected, of_erm), (after, metrics) = erm_step(), method.step(state, batch(group_weight=1), KEY)
    same(after.params, expected.params)
    same(metrics, of_erm)


def test_a_reweighted_step_by_hand():
    method, state = made(balance.Reweight("cells"))
    tables = method.rows(LABEL, BIAS)
    after, metrics = method.step(state, batch() | tables, KEY)
    sizes = np.array([((LABEL == y) & (BIAS == b)).sum() for y, b in zip(LABEL, BIAS, strict=True)])
    weights = SIZE / (len(set(zip(LABEL, BIAS, strict=True))) * sizes)
    assert len(set(sizes)) > 2
    np.testing.assert_allclose(tables["group_weight"], weights, rtol=1e-6)
    value, gradient = sample_losses()
    np.testing.assert_allclose(metrics["loss"], (weights * value).mean(), rtol=1e-6)
    moved = after.params["net"]["head"]["bias"] - state.params["net"]["head"]["bias"]
    np.testing.assert_allclose(moved, -0.1 * (weights[:, None] * gradient).mean(0), atol=1e-7)


def test_resampling_is_erm_on_other_batches():
    method, state = made(balance.Resample())
    assert method.rows is None and method.sampling.draws == 0
    expected, metrics = erm_step()
    after, found = method.step(state, batch(), KEY)
    same(after.params, expected.params)
    same(found, metrics)
    np.testing.assert_array_equal(method.sampling.weights(LABEL, BIAS, {}), Groups("aligned", 3).weights(LABEL, BIAS))


# GroupDRO


def test_weights_of_groups_follow_their_losses():
    loss = np.float32([1, 2])
    q = np.exp(jax.jit(groupdro.raised)(np.log(np.float32([0.5, 0.5])), loss, np.float32([7, 9]), 0.01, 0.0))
    np.testing.assert_allclose(q, [0.4975, 0.5025], atol=5e-8)
    np.testing.assert_allclose(q @ loss, 1.5025, atol=5e-7)


def dro_by_hand(q, size, eta, adjustment, label, bias, value, groups):
    """(q, L, weight of each image), as the paper writes it."""
    group = groups.of(label, bias)
    found = np.zeros((3, groups.number))
    for g in range(groups.number):
        if (group == g).any():
            found[0, g] = value[group == g].mean()
            found[1, g] = (group == g).sum()
        found[2, g] = q[g] * np.exp(eta * (found[0, g] + (adjustment / np.sqrt(size[g]) if size[g] else 0)))
    q = found[2] / found[2].sum()
    known = group >= 0
    return q, q @ found[0], np.where(known, q[group] / np.where(known, found[1][group], 1), 0)


@pytest.mark.parametrize(("kind", "bias"), [("aligned", BIAS), ("cells", BIAS), ("classes", None), ("aligned", SOME_BIAS)])
def test_steps_of_groupdro_by_hand(kind, bias):
    """Three of them, of batches with different groups; in the last case some images have no bias label."""
    groups, rng = Groups(kind, CLASSES), np.random.default_rng(2)
    method, state = made(groupdro.Config(eta=0.5, adjustment=2.0, groups=kind))
    of_group = rng.integers(1, 40, groups.number).astype(np.float32)
    q, size = np.full(groups.number, 1 / groups.number), np.zeros(groups.number)
    assert ("bias" in batch()) and bool(groupdro.Config(groups=kind).reads_bias) == (kind != "classes")
    for order in ([0, 1, 2, 3, 5, 7], [0, 3, 6, 9, 4, 10], [1, 2, 8, 11, 5, 6]):
        label, of_order = LABEL[order], None if bias is None else bias[order]
        group = groups.of(label, of_order)
        given = {"image": batch()["image"][order], "label": label, "group_size": of_group[group]}
        if of_order is not None:
            given["bias"] = of_order
        size[group[group >= 0]] = of_group[group[group >= 0]]
        value, gradient = (x[order] for x in sample_losses())
        q, loss, weight = dro_by_hand(q, size, 0.5, 2.0, label, of_order, value, groups)
        after, metrics = jax.device_get(method.step(state, given, KEY))
        np.testing.assert_allclose(np.exp(after.memory["log_q"]), q, rtol=1e-5)
        np.testing.assert_allclose([metrics["loss"], metrics["largest_q"]], [loss, q.max()], rtol=1e-5)
        moved = after.params["net"]["head"]["bias"] - start().params["net"]["head"]["bias"]
        np.testing.assert_allclose(moved, -0.1 * weight @ gradient, atol=1e-7)
        state = after.replace(params=start().params)
    assert (size > 0).sum() > 2 and len(np.unique(q.round(6))) > 2


def test_absent_groups_and_images_without_bias_give_numbers():
    method, state = made(groupdro.Config(adjustment=1.0))
    for bias in (-np.ones(SIZE, np.int32), BIAS):
        state, metrics = method.step(state, batch(bias=tuple(bias), group_size=3), KEY)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, state.memory, metrics)))
        assert (metrics["loss"] == 0) == (bias < 0).all()


def test_a_forgotten_group_comes_back():
    """Its weight falls far below the smallest float32, and rises again."""

    @jax.jit
    def after(log_q, loss):
        return jax.lax.fori_loop(0, 1000, lambda _, x: groupdro.raised(x, loss, jnp.ones(2), 0.5, 0.0), log_q)

    fallen = np.asarray(after(np.log(np.float32([0.5, 0.5])), np.float32([0, 2])))
    assert np.isfinite(fallen).all() and np.exp(fallen[0]) == 0
    np.testing.assert_allclose(np.exp(after(fallen, np.float32([2, 0]))), [0.5, 0.5], rtol=1e-3)


def test_groupdro_of_equal_groups_with_eta_zero_is_erm():
    label, bias = tuple(LABEL), tuple((LABEL + (np.arange(SIZE) >= 6)) % CLASSES)
    method, state = made(groupdro.Config(eta=0.0))
    (expected, of_erm), (after, metrics) = erm_step(label, bias), method.step(state, batch(label, bias, group_size=2), KEY)
    np.testing.assert_allclose(metrics["loss"], of_erm["loss"], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), after.params, expected.params)


def test_groupdro_draws_balanced_batches_unless_told_not_to():
    assert groupdro.Config(balanced=False).make(INFO, NET, PLAIN).sampling is None
    found = groupdro.Config().make(INFO, NET, PLAIN).sampling.weights(LABEL, BIAS, {})
    np.testing.assert_array_equal(found, Groups("aligned", CLASSES).weights(LABEL, BIAS))


# LISA


@pytest.mark.parametrize("within_label", [True, False])
def test_partners_share_what_they_should_and_nothing_else(within_label):
    rng = np.random.default_rng(0)
    label, bias = rng.integers(0, 4, (2, 24))
    label[:2], bias[:2], bias[5] = 4, 4, -1  # the first two have equals alone, the sixth no bias label
    same_label, same_bias = label[:, None] == label, bias[:, None] == bias
    fits = (same_label & ~same_bias if within_label else same_bias & ~same_label) & (bias[:, None] >= 0) & (bias >= 0)
    draw = jax.jit(jax.vmap(lambda key: lisa.partners(key, jnp.array(label), jnp.array(bias), within_label)))
    partner, found = (np.asarray(x) for x in draw(jax.random.split(KEY, 4000)))
    assert (found == fits.any(1)).all() and not found[0, [0, 1, 5]].any() and found[0].sum() > 15
    for i in np.flatnonzero(found[0]):
        counts = np.bincount(partner[:, i], minlength=24)
        assert not counts[~fits[i]].any()
        assert fits[i].sum() == 1 or scipy.stats.chisquare(counts[fits[i]]).pvalue > 1e-4  # each alike
        for j in range(i):
            if (fits[i] == fits[j]).all() and (n := fits[i].sum()) > 1:  # each falls into an arc, and these are of different lengths
                assert abs((partner[:, i] == partner[:, j]).mean() - 2 / (n + 1)) < 4.5 * np.sqrt(0.25 / 4000)


def test_a_step_of_lisa_is_soft_cross_entropy_of_mixed_images(monkeypatch):
    drawn = {}
    for module, name in ((lisa, "partners"), (lisa.pairs, "weights")):
        draw = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, draw=draw, name=name: drawn.setdefault(name, draw(*args)))
    method, given = lisa.Config().make(INFO, NET, PLAIN), batch(bias=tuple(SOME_BIAS))
    before = jax.device_get(jax.jit(method.init)(jax.random.key(0), given)).replace(params=start().params)
    step = jax.jit(lambda given, key: (method.step(before, given, key), tuple(drawn.values())))
    (after, metrics), ((partner, found), weight) = jax.device_get(step(given, KEY))
    weight = np.where(found, weight, np.float32(1))
    image = weight[:, None, None, None] * given["image"] + (1 - weight)[:, None, None, None] * given["image"][partner]
    target = weight[:, None] * np.eye(CLASSES)[LABEL] + (1 - weight)[:, None] * np.eye(CLASSES)[LABEL[partner]]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        logits = NET.make(CLASSES).apply({"params": params}, image, train=True)
        return -(target * jax.nn.log_softmax(logits)).sum(1).mean(), logits.argmax(1)

    (value, answer), gradient = jax.device_get(loss(before.params["net"]))
    assert not found[::4].any() and found.sum() > 4 and len(set(weight[found])) == found.sum()
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], target[np.arange(SIZE), answer].mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["mixed"], found.mean(), rtol=1e-6)
    moved = jax.tree.map(lambda a, b: (a - b) / 0.1, before.params["net"], after.params["net"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), moved, gradient)


def test_without_partners_lisa_is_erm_to_the_last_bit():
    label = bias = tuple(LABEL)  # all aligned
    method, state = made(lisa.Config())
    (expected, of_erm), (after, metrics) = erm_step(label, bias), method.step(state, batch(label, bias), KEY)
    same(after.params, expected.params)
    same(metrics, of_erm | {"mixed": 0})


def test_the_coin_falls_as_p_sel_says_and_weights_are_beta(monkeypatch):
    coins, weights = [], []
    partners, beta = lisa.partners, lisa.pairs.weights
    monkeypatch.setattr(lisa, "partners", lambda *args: coins.append(args[3]) or partners(*args))
    monkeypatch.setattr(lisa.pairs, "weights", lambda *args: weights.append(beta(*args)) or weights[-1])
    method = lisa.Config(p_sel=0.3).make(INFO, NET, PLAIN)
    state = jax.jit(method.init)(jax.random.key(0), batch())
    step = jax.jit(lambda given, keys: jax.vmap(lambda key: method.step(state, given, key) and (coins[-1], weights[-1]))(keys))
    coin, weight = step(batch(), jax.random.split(KEY, 1000))
    assert abs(coin.mean() - 0.3) < 4.5 * np.sqrt(0.21 / 1000)
    assert scipy.stats.kstest(np.ravel(weight), scipy.stats.beta(2, 2).cdf).pvalue > 1e-3


# All


@pytest.mark.parametrize("config", [groupdro.Config(adjustment=1.0), lisa.Config()])
def test_steps_of_many_seeds_are_the_steps_of_each(config):
    method = config.make(INFO, NET, PLAIN)
    given = batch(group_size=3)
    states = jax.jit(jax.vmap(lambda key: method.init(key, given)))(jax.random.split(KEY, 3))
    keys = jax.random.split(KEY, 3)
    together = jax.jit(jax.vmap(method.step, in_axes=(0, None, 0)))(states, given, keys)
    alone = jax.jit(method.step)
    for seed in range(3):
        one = alone(jax.tree.map(lambda x, s=seed: x[s], states), given, keys[seed])
        jax.tree.map(lambda a, b, s=seed: np.testing.assert_allclose(a[s], b, rtol=1e-5, atol=1e-6), together, one)


@pytest.mark.parametrize("config", [balance.Reweight(), balance.Resample(), groupdro.Config()])
def test_without_the_bias_a_config_does_not_read_it(config):
    assert config.reads_bias and not dataclasses.replace(config, groups="classes").reads_bias
