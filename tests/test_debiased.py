"""Shape-texture debiased training: its loss, its two sets of BatchNorms, its sizes, and that seeds side by side share a branch."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import traverse_util
from jax.extend.core import jaxprs_in_params

from jaxbed import method, parallel
from jaxbed.method import Info, apply_net
from jaxbed.methods import debiased, erm
from jaxbed.methods.parts import losses, pairs
from jaxbed.models import convert, resnet, simple_conv, style, style_network
from jaxbed.optim import Optim
from jaxbed.training import pretrained, program, train

STYLE = style_network.Config("random", width=4, stages=2)
PAPER = debiased.Config(style=STYLE, grid="full")
NET = simple_conv.Config(3, (4, 8))
MEAN, STD = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
INFO = Info(3, 64, 4, 100, lambda: np.stack([-MEAN / STD, (1 - MEAN) / STD]).astype(np.float32))
PLAIN = Optim(lr=1.0, momentum=0.0)  # the change of a parameter is its gradient
KEY = jax.random.key(5)


def batch(size=6, side=16, dtype=np.float32):
    rng = np.random.default_rng(0)
    image = ((rng.random((size, side, side, 3)) - MEAN) / STD).astype(dtype)
    return {"image": image, "label": np.arange(size, dtype=np.int32) % 3, "index": np.arange(size, dtype=np.int32)}


@functools.cache
def made(variant="paper", grid="full"):
    """(method, state before, state after one step, metrics); the method's step is compiled."""
    ready = dataclasses.replace(PAPER, variant=variant, grid=grid).make(INFO, NET, PLAIN)
    ready = ready._replace(step=jax.jit(ready.step))
    state = jax.device_get(jax.jit(ready.init)(jax.random.key(0), batch()))
    return ready, state, *jax.device_get(ready.step(state, batch(), KEY))


def equal(one, other, **tolerance):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, **tolerance) if tolerance else np.testing.assert_array_equal(a, b)


# The equations


class Identity:
    """A style network that changes nothing, for the statistics alone."""

    encode = decode = staticmethod(lambda params, x: x)


stylise = jax.jit(debiased.stylise, static_argnums=0)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (1.0, (10.00004455, 20.00001485, 29.99998515, 39.99995545)),
        (0.5, (5.50002227, 11.00000742, 16.49999258, 21.99997773)),
        (0.0, (1, 2, 3, 4)),
    ],
)
def test_interpolated_adain(alpha, expected):
    maps = np.array([(1, 2, 3, 4), (10, 20, 30, 40)], np.float32).reshape(2, 2, 2, 1)
    stylised = stylise(Identity, {}, maps, np.array([1, 0]), alpha)
    np.testing.assert_allclose(np.ravel(stylised[0]), expected, rtol=2e-6)


def test_one_encoding_gives_what_two_give():
    params, image, order = STYLE.load(), np.random.default_rng(1).random((5, 15, 16, 3)).astype(np.float32), np.array([3, 1, 4, 0, 2])

    def encoded_twice(params, image):
        content, styles = STYLE.encode(params, image), STYLE.encode(params, image[order])
        return STYLE.decode(params, 0.3 * style.adain(content, styles) + 0.7 * content)

    stylised = jax.jit(lambda params, image: debiased.stylise(STYLE, params, image, order, 0.3))(params, image)
    expected = jax.jit(encoded_twice)(params, image)
    assert expected.shape == (5, 16, 16, 3) and stylised.shape == image.shape
    np.testing.assert_allclose(stylised, expected[:, :15], rtol=1e-4, atol=1e-5)


mixed_cross_entropy = jax.jit(debiased.mixed_cross_entropy)


@pytest.mark.parametrize(("weight", "expected"), [((0, 0, 0.2, 0.2), 0.5277325890), (0.1, 0.5527325890)])
def test_mixed_labels(weight, expected):
    """Two clean images and two stylised ones, weighted as in the paper, and as in BiasBed's code."""
    logits = np.array([(2, 0, 0), (0, 2, 0), (1, 1, 0), (0, 3, 1)], np.float32)
    loss = mixed_cross_entropy(logits, np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0]), np.float32(weight))
    np.testing.assert_allclose(np.mean(loss), expected, atol=1e-6)


def expected_loss(params, state, variant):
    """By the book: whole networks, two encodings, one-hot targets."""
    alpha, gamma, paper = state.hparams["alpha"], state.hparams["gamma"], variant == "paper"
    seen, size = jax.tree.map(jnp.asarray, batch()), 6
    order = pairs.partners(jax.random.split(KEY, 3)[0], size)
    black, white = INFO.pixel_range() if paper else (0, 1)
    image = (seen["image"] - black) / (white - black)
    content, styles = (STYLE.encode(state.memory, x) for x in (image, image[order]))
    stylised = STYLE.decode(state.memory, alpha * style.adain(content, styles) + (1 - alpha) * content)
    stylised = stylised * (white - black) + black
    target = jax.nn.one_hot(seen["label"], 3)
    mixed = gamma * target + (1 - gamma) * target[order]
    blended = (mixed + target) / 2
    targets = (target, mixed) if paper else (blended, blended)
    flat = traverse_util.flatten_dict(params["net"]) | traverse_util.flatten_dict(params["aux"])
    nets, total = (params["net"], traverse_util.unflatten_dict(flat)), 0
    for net, name, x, wanted in zip(nets, ("net", "aux"), (seen["image"], stylised), targets, strict=True):
        logits, _ = apply_net(NET.make(3), net, state.stats[name], x, True)
        total -= (wanted * jax.nn.log_softmax(logits)).sum(-1).mean() / 2
    return total


by_the_book = jax.jit(jax.value_and_grad(expected_loss), static_argnums=2)


@pytest.mark.parametrize(
    ("variant", "alpha", "gamma"), [("paper", 0.5, 0.8), ("biasbed", 0.5, 0.8), ("paper", 0.9, 0.3), ("paper", 0.9, 1.0)]
)
def test_a_step_descends_the_loss_of_the_paper(variant, alpha, gamma):
    ready, before, _, _ = made(variant)
    assert {name: float(before.hparams[name]) for name in ("alpha", "gamma")} == pytest.approx({"alpha": 0.5, "gamma": 0.8})
    before = before.replace(hparams={**before.hparams, "alpha": np.float32(alpha), "gamma": np.float32(gamma)})
    after, metrics = ready.step(before, batch(), KEY)
    value, grads = jax.device_get(by_the_book(before.params, before, variant))
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    change = jax.tree.map(np.subtract, before.params, jax.device_get(after.params))
    largest = max(np.abs(x).max() for x in jax.tree.leaves(grads))
    equal(change, grads, atol=1e-4 * largest)
    assert all(np.abs(x).max() > 1e-4 * largest for x in jax.tree.leaves(grads))


def test_with_gamma_one_only_the_shape_has_a_label():
    logits, label = np.random.default_rng(2).standard_normal((4, 3), np.float32), np.array([0, 1, 2, 0])
    loss = mixed_cross_entropy(logits, label, label[::-1], np.float32(0))
    np.testing.assert_array_equal(loss, jax.jit(losses.cross_entropy)(logits, label))


# Two sets of BatchNorms, one set of convolutions


def test_clean_images_train_one_set_of_statistics_and_stylised_ones_the_other():
    _, before, after, _ = made()
    _, expected = jax.jit(lambda: apply_net(NET.make(3), before.params["net"], before.stats["net"], batch()["image"], True))()
    equal(after.stats["net"], expected, rtol=1e-5, atol=1e-6)
    assert all((a != b).any() for a, b in zip(*map(jax.tree.leaves, (after.stats["net"], after.stats["aux"])), strict=True))


def test_prediction_knows_nothing_of_the_second_set():
    ready, _, after, _ = made()
    image = batch()["image"]
    strange = jax.tree.map(lambda x: x + 1, (after.params["aux"], after.stats["aux"]))
    other = {**after.params, "aux": strange[0]}, {**after.stats, "aux": strange[1]}
    predict = jax.jit(ready.predict)
    equal(predict(after.params, after.stats, image), predict(*other, image))


def test_the_network_is_a_plain_resnet_whose_weights_start_it_too(tmp_path):
    state, plain = (jax.jit(each.make(INFO, tiny.RESNET_4, PLAIN).init)(jax.random.key(0), batch()) for each in (PAPER, erm.Config()))
    equal((state.params["net"], state.stats["net"]), (plain.params["net"], plain.stats["net"]))
    assert set(traverse_util.flatten_dict(state.params["aux"], sep="/")) == {
        name for name in traverse_util.flatten_dict(plain.params["net"], sep="/") if re.search(r"norm\d?/(scale|bias)$", name)
    }
    from safetensors.numpy import save_file

    weights = convert.to_torch(*jax.tree.map(lambda x: np.asarray(x) + np.float32(0.5), (plain.params["net"], plain.stats["net"])))
    save_file(weights, tmp_path / "resnet.safetensors")
    ready = tiny.program(tiny.train_config("debiased", net=tiny.RESNET_4), trains=False)
    shapes_alone = program.Run(ready.state, alive=None, sums={})  # all that is asked of what the file replaces
    started = pretrained.load(str(tmp_path / "resnet.safetensors"), ready, shapes_alone, print).state
    for name in ("net", "aux"):
        scale, mean = started.params[name]["stem_norm"]["scale"], started.stats[name]["stem_norm"]["mean"]
        assert (np.asarray(scale) == 1.5).all() and (np.asarray(mean) == 0.5).all()


def test_resnet_50_has_53120_parameters_more():
    params, _ = jax.eval_shape(lambda: method.init_net(resnet.Config(50).make(1000), KEY, jnp.zeros((1, 64, 64, 3))))
    assert sum(x.size for x in jax.tree.leaves(debiased.norms(params))) == 53_120


def test_the_style_network_stays_what_it_was():
    _, before, after, _ = made()
    equal(before.memory, STYLE.load())
    equal(after.memory, before.memory)
    assert set(before.params) == {"net", "aux"}


# Sizes


def sides_in(epoch, grid="multi", optim=None):
    """(in odd, in even steps) of an epoch of four, of 224 px."""
    ends = debiased.half_ends(INFO, optim or Optim(schedule="step"))
    found = []
    for step in (4 * epoch + 1, 4 * epoch + 2, 4 * epoch + 3, 4 * epoch):
        power = int(debiased.power_at(jnp.int32(step), grid, ends))
        found.append(
            jax.eval_shape(lambda x, power=power: debiased.shrink(x, power), jax.ShapeDtypeStruct((1, 224, 224, 3), np.uint8)).shape[1]
        )
    assert found[0] == found[2] and found[1] == found[3]
    return tuple(found[:2])


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 14, (158, 112)),
        (15, 29, (224, 158)),
        (30, 44, (158, 112)),
        (45, 59, (224, 158)),
        (60, 74, (158, 112)),
        (75, 89, (224, 158)),
        (90, 94, (158, 112)),
        (95, 99, (224, 158)),
    ],
)
def test_published_sizes(first, last, expected):
    for epoch in (first, last):
        assert sides_in(epoch) == expected == sides_in(epoch, optim=Optim(schedule="cosine"))


def test_other_grids_keep_one_half_of_it():
    assert [sides_in(epoch, "coarse") for epoch in (0, 20)] == [(158, 112)] * 2
    assert [sides_in(epoch, "fine") for epoch in (0, 20)] == [(224, 158)] * 2
    assert [sides_in(epoch, "full") for epoch in (0, 20)] == [(224, 224)] * 2


def test_stages_follow_the_milestones_within_the_run():
    optim = Optim(schedule="step", milestones_epochs=(10, 40, 200))
    assert debiased.half_ends(INFO, optim).tolist() == [20, 40, 100, 160, 280, 400]
    short = INFO._replace(epochs=5, steps_per_epoch=10)
    assert debiased.half_ends(short, Optim(schedule="cosine")).tolist() == [8, 15, 22, 30, 38, 45, 48, 50]


def test_smaller_images_are_of_the_nearest_pixels():
    image = np.arange(11 * 14, dtype=np.float32).reshape(1, 11, 14, 1)
    for power, (height, width) in ((1, (8, 10)), (2, (6, 7))):
        rows, columns = ([i * side // wanted for i in range(wanted)] for side, wanted in ((11, height), (14, width)))
        np.testing.assert_array_equal(debiased.shrink(image, power)[0, :, :, 0], image[0, :, :, 0][np.ix_(rows, columns)])


@pytest.mark.parametrize(("step", "power"), [pytest.param(4, 2, marks=pytest.mark.slow), (7, 1)])
def test_each_step_shows_the_size_of_its_turn(step, power):
    """Told by the running statistics that it leaves."""
    ready, state, _, _ = made(grid="coarse")
    after, _ = ready.step(state.replace(step=np.int32(step)), batch(), KEY)
    black, white = INFO.pixel_range()
    small = (debiased.shrink(batch()["image"], power) - black) / (white - black)

    def expected():
        order = pairs.partners(jax.random.split(KEY, 3)[0], 6)
        image = debiased.stylise(STYLE, state.memory, small, order, 0.5) * (white - black) + black
        return apply_net(NET.make(3), state.params["net"], state.stats["aux"], image, True)[1]  # all BatchNorms are still alike

    equal(after.stats["aux"], jax.jit(expected)(), rtol=1e-4, atol=1e-6)


# Seeds side by side


def stacked(states):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def conditionals(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "cond":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from conditionals(inner)


def test_seeds_side_by_side_compute_one_branch():
    ready = dataclasses.replace(PAPER, grid="multi").make(INFO, NET, PLAIN)
    many, seen = stacked([made()[1]] * 3), stacked([batch()] * 3)
    jaxpr = jax.make_jaxpr(jax.vmap(ready.step, (0, 0, None)))(many, seen, KEY).jaxpr
    (switch,) = [c for c in conditionals(jaxpr) if len(c.params["branches"]) == 3]
    assert switch.invars[0].aval.shape == ()
    # what leaves a branch is gradients, statistics and numbers: nothing is kept for a differentiation outside
    expected = jax.tree.leaves((many.params, many.stats["aux"], [0.0] * 2))
    assert len(switch.outvars) == len(expected)


@functools.cache
def side_by_side():
    """A step of two seeds, lowered."""
    ready, state, _, _ = made(grid="coarse")
    return jax.jit(jax.vmap(ready.step, (0, 0, None))).lower(stacked([state] * 2), stacked([batch()] * 2), KEY)


def test_a_seed_that_stayed_behind_does_not_disturb_the_others():
    ready, state, _, _ = made(grid="coarse")
    frozen, live = state.replace(step=np.int32(2)), state.replace(step=np.int32(5))
    alone, metrics = ready.step(live, batch(), KEY)
    together = side_by_side().compile()
    for member, states in enumerate(([live, frozen], [frozen, live])):
        both = jax.device_get(together(stacked(states), stacked([batch()] * 2), KEY))
        one, its_metrics = jax.tree.map(lambda x, member=member: x[member], both)
        equal((one.stats, its_metrics, one.step), (alone.stats, metrics, alone.step), rtol=1e-4, atol=1e-5)


def test_seeds_may_run_one_after_another():
    ready, state, _, _ = made(grid="coarse")
    many = stacked([state] * 2)
    after = jax.eval_shape(lambda: jax.lax.map(lambda one: ready.step(one, batch(), KEY)[0], many))
    assert jax.tree.map(np.shape, after) == jax.tree.map(np.shape, many)


@functools.cache
def on_mesh(seed, data):
    cfg = tiny.train_config("debiased", net=tiny.RESNET_4, mesh=parallel.Mesh(seed=seed, data=data))
    return cfg, tiny.program(cfg)


def run_steps(seed, data, dead=None):
    """Two steps of two seeds; `dead` one is made non-finite before them."""
    cfg, ready = on_mesh(seed, data)
    run, batches = train.start(cfg, ready), train.feeds_from(cfg, ready, 0)
    if dead is not None:
        run = run.replace(state=run.state.replace(params=jax.tree.map(lambda x: x.at[dead].multiply(jnp.nan), run.state.params)))
    for _ in range(2):
        run = ready.advance(run, ready.arrays, next(batches), ready.seeds.array)
    return jax.device_get(run)


@pytest.mark.slow
def test_a_whole_row_of_devices_may_stay_behind():
    whole, half = run_steps(2, 2), run_steps(2, 2, dead=0)
    assert half.alive.tolist() == [False, True] and half.state.step.tolist() == [0, 2]
    equal(*(jax.tree.map(lambda x: x[1], run.state.params) for run in (half, whole)))


def test_seeds_do_not_become_groups():
    text = side_by_side().as_text()
    assert text.count("stablehlo.convolution") > 20 and set(re.findall(r"(?:feature|batch)_group_count = (\d+)", text)) == {"1"}


# The rest


def test_the_data_set_says_what_black_and_white_are():
    data = dataclasses.replace(tiny.DATA, augment=tiny.shapes.Augment(mean=tuple(MEAN), std=tuple(STD), crop="padded", flip=0.5))
    np.testing.assert_allclose(program.find_pixel_range(data.open()), INFO.pixel_range(), rtol=1e-6)
    padded = dataclasses.replace(data, augment=dataclasses.replace(data.augment, crop_px=data.side_px + 4))  # evaluation shows a border
    np.testing.assert_allclose(program.find_pixel_range(padded.open()), INFO.pixel_range(), rtol=1e-6)
    np.testing.assert_array_equal(Info(2, 8, 1, 1).pixel_range(), [[0.0], [1.0]])


def test_bfloat16_keeps_parameters_and_statistics_wide():
    config = dataclasses.replace(PAPER, grid="multi", style=dataclasses.replace(STYLE, dtype="bfloat16"))
    ready = config.make(INFO, dataclasses.replace(NET, dtype="bfloat16"), PLAIN)
    state = jax.eval_shape(ready.init, KEY, batch(dtype=jnp.bfloat16))
    after, metrics = jax.eval_shape(ready.step, state, batch(dtype=jnp.bfloat16), KEY)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert {x.dtype for x in jax.tree.leaves((after.params, after.stats, metrics))} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("changes", "net", "message"),
    [
        ({"style": style_network.Config()}, NET, "style.weights is empty"),
        ({}, tiny.mlp.Config((8,)), "give it a resnet.Config"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, net, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PAPER, **changes).make(INFO, net, PLAIN)
