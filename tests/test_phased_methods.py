"""BiasEnsemble, JTT, DFR and SoftCon: numbers computed by hand, and losses written down a second time."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import dfr_exact

from jaxbed.method import Info
from jaxbed.methods import biasensemble, dfr, disent, erm, jtt, lff, rebias, softcon
from jaxbed.models import features, mlp, simple_conv
from jaxbed.optim import Optim

CLASSES, SIZE = 3, 12
INFO = Info(CLASSES, 20, 2, 4)
NET = mlp.Config((5,))
PLAIN = Optim(lr=0.1, momentum=0.0)
INDEX = np.random.default_rng(0).permutation(20)[:SIZE]
OF_ROW = np.arange(20, dtype=np.int32) % CLASSES
LABEL = OF_ROW[INDEX]
KEY = jax.random.key(1)
CFG = tiny.mlp_config(net=NET)


def batch(**tables):
    image = np.random.default_rng(0).random((SIZE, 2, 2, 3), np.float32)
    return {"image": image, "label": LABEL, "index": INDEX, **tables}


def directions(rng, *shape):
    found = rng.normal(size=shape)
    return (found / np.linalg.norm(found, axis=-1, keepdims=True)).astype(np.float32)


def made(config, given, optim=PLAIN, net=NET):
    """(method with its step compiled, state before the first one)."""
    method = config.make(INFO, net, optim)
    compiled = method._replace(step=jax.jit(method.step), predict=jax.jit(method.predict))
    return compiled, jax.device_get(jax.jit(method.init)(jax.random.key(0), given))


def log_probability(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def cross_entropy(logits, label=LABEL):
    return -log_probability(logits)[np.arange(len(label)), label]


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


# BiasEnsemble


def kept(probability, said=None, **settings):
    """What is kept of images of which each network says a probability, [nets, N]."""
    last = biasensemble.Config(networks=len(probability), **settings).training_stages(CFG)[-1]
    return last.columns({"probability": np.float32(probability)}, None, (said if said is not None else []).append)["kept"].tolist()


def test_images_are_kept_where_enough_networks_are_confident():
    columns = np.array([[0.995, 0.991, 0.992, 0.5, 0.2], [0.99] * 5, [0.995, 0.991, 0.99, 0.5, 0.2]]).T
    assert kept(columns) == [True, False, False]  # strictly above 0.99, three of five
    assert kept(columns, agreement=2) == [True, False, True] and kept(columns, agreement=5, confidence=0.15) == [True] * 3


def test_where_nothing_would_be_kept_all_is_and_that_is_said():
    said = []
    assert kept(np.full((5, 4), 0.99), said) == [True] * 4 and kept(np.full((5, 4), 0.995), []) == [True] * 4
    assert said == [
        "of no training image 3 of 5 networks are confident above 0.99, so all are kept: "
        "train them longer (method.epochs_before), or lower method.confidence"
    ]


def test_networks_are_asked_for_the_probability_of_the_label():
    first, _ = biasensemble.Config().training_stages(CFG)
    method, state = made(first.cfg.method, batch())
    outputs = jax.jit(first.outputs, static_argnums=0)(method, state.params, state.stats, batch()["image"], batch()["label"])
    said = outputs["probability"]
    np.testing.assert_allclose(said, np.exp(-cross_entropy(method.predict(state.params, {"biased": {}}, batch()["image"]))), rtol=1e-5)


def test_throw_away_networks_descend_the_surrogate_of_generalised_cross_entropy():
    method, state = made(biasensemble.Biased(0.7), batch())
    after, metrics = method.step(state, batch(), KEY)
    logits = method.predict(state.params, {"biased": {}}, batch()["image"])
    value, p = cross_entropy(logits), np.exp(log_probability(logits))
    np.testing.assert_allclose(metrics["loss"], (0.7 * np.exp(-0.7 * value) * value).mean(), rtol=1e-5)
    gradient = (0.7 * np.exp(-0.7 * value)[:, None] * (p - np.eye(CLASSES)[LABEL])).mean(0)
    moved = after.params["biased"]["head"]["bias"] - state.params["biased"]["head"]["bias"]
    np.testing.assert_allclose(moved, -0.1 * gradient, atol=1e-7)


def test_the_loss_of_kept_images_is_their_mean_cross_entropy():
    logits = 3 * np.random.default_rng(1).standard_normal((SIZE, CLASSES), np.float32)
    mark, loss = np.arange(SIZE) % 3 == 1, jax.jit(jax.value_and_grad(biasensemble.kept_loss))
    (some, gradient), (of_all, _), (none, no_gradient) = (
        jax.device_get(loss(logits, batch(kept=kept))) for kept in (mark, np.ones(SIZE, bool), np.zeros(SIZE, bool))
    )
    np.testing.assert_allclose(some, cross_entropy(logits)[mark].mean(), rtol=1e-6)
    np.testing.assert_allclose(of_all, cross_entropy(logits).mean(), rtol=1e-6)
    assert none == 0 and (no_gradient == 0).all()
    assert (gradient[~mark] == 0).all() and (gradient[mark] != 0).all()


def test_kept_images_alone_move_the_biased_network():
    none, some = np.zeros(SIZE, bool), np.arange(SIZE) < 5
    method, state = made(biasensemble.Config(), batch(kept=none))
    after, metrics = method.step(state, batch(kept=none), KEY)
    assert metrics["loss/biased"] == 0 and metrics["loss"] > 0
    same(after.params["biased"], state.params["biased"])
    _, metrics = method.step(state, batch(kept=some), KEY)
    logits = jax.jit(lambda params, image: NET.make(CLASSES).apply({"params": params}, image, train=False))(
        state.params["biased"], batch()["image"]
    )
    np.testing.assert_allclose(metrics["loss/biased"], cross_entropy(logits)[some].mean(), rtol=1e-5)
    plain = made(lff.Config(), batch())
    of_lff, others = plain[0].step(plain[1], batch(), KEY)
    same(after.params["debiased"], of_lff.params["debiased"])  # which the biased network reaches through its losses alone
    assert metrics["weight"] == others["weight"]


def test_disent_swaps_marks_with_their_images():
    """The biased head is asked twice: of the batch, and of features that belong to other images of it."""
    seen, of_row = [], np.arange(20) % 4 == 0

    def loss_biased(logits, given):
        seen.append({name: x for name, x in given.items() if name != "image"})
        return biasensemble.kept_loss(logits, given)

    method, given = disent.Config().make(INFO, NET, PLAIN, loss_biased), batch(kept=of_row[INDEX])
    asked = jax.jit(lambda given: method.step(method.init(jax.random.key(0), given), given, KEY) and seen)
    in_place, swapped = jax.device_get(asked(given))
    assert (in_place["index"] == INDEX).all() and sorted(swapped["index"]) == sorted(INDEX) and (swapped["index"] != INDEX).any()
    for name, table in (("label", OF_ROW), ("kept", of_row)):
        assert (swapped[name] == table[swapped["index"]]).all()
    none = batch(kept=np.zeros(SIZE, bool))
    method, state = made(biasensemble.Config(disent.Config(swap_after=0.0)), none)
    heads = [name for name in state.params if "head" in name and "bias" in name]
    after, _ = method.step(state, none, KEY)
    assert len(heads) == 1
    same(after.params[heads[0]], state.params[heads[0]])


# JTT


def test_errors_weigh_their_copies_more():
    wrong = np.arange(20) % 7 == 0
    for upweight in (0.0, 4.0):
        weights = jtt.Config(upweight=upweight).make(INFO, NET, PLAIN).sampling.weights(OF_ROW, None, {"wrong": wrong})
        np.testing.assert_array_equal(weights, np.where(wrong, 1 + upweight, 1))
    (method, state), (other, begun) = made(jtt.Config(), batch()), made(erm.Config(), batch())
    assert method.sampling.draws == 0
    same(method.step(state, batch(), KEY), other.step(begun, batch(), KEY))


def test_an_error_is_an_answer_that_is_not_the_label():
    first, last = jtt.Config().training_stages(CFG)
    method, state = made(first.cfg.method, batch())
    outputs = {"wrong": np.asarray(first.outputs(method, state.params, state.stats, batch()["image"], batch()["label"])["wrong"])[None]}
    wrong = np.asarray(method.predict(state.params, state.stats, batch()["image"])).argmax(1) != LABEL
    assert 0 < wrong.sum() < SIZE
    np.testing.assert_array_equal(last.columns(outputs, LABEL, print)["wrong"], wrong)


# DFR


def of_head(params, features):
    """Logits of a new head on standardised features, float64."""
    x = np.asarray(features, np.float64)
    own = jax.tree.map(np.float64, params["retrained"])
    standard = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    return standard, standard @ own["linear"]["kernel"] + own["linear"]["bias"]


NORMALISED = simple_conv.Config(kernel=1, widths=(6,))  # with moments of its own, which must stay as they are


forward = jax.jit(lambda net, variables, image: net.apply(variables, image, train=False), static_argnums=0)


@functools.cache
def dfr_step(normalised, l1, weight_decay=0.0):
    optim = Optim(lr=0.1, momentum=0.0, weight_decay=weight_decay)
    method, state = made(dfr.Config(l1=l1, groups="classes"), batch(), optim, NORMALISED if normalised else NET)
    return state, *jax.device_get(method.step(state, batch(), KEY))


@pytest.mark.parametrize("normalised", [False, True])
def test_a_step_of_dfr_by_hand(normalised):
    before, after, metrics = dfr_step(normalised, 0.01)
    variables = {"params": before.params["net"], "batch_stats": before.stats["net"]}
    trunk = np.asarray(forward((NORMALISED if normalised else NET).make(CLASSES, last=1), variables, batch()["image"]))
    standard, logits = of_head(before.params, trunk.mean((1, 2)) if normalised else trunk)
    kernel = np.asarray(before.params["retrained"]["linear"]["kernel"])
    np.testing.assert_allclose(metrics["loss"], cross_entropy(logits).mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["l1"], np.abs(kernel).sum(), rtol=1e-6)
    error = np.exp(log_probability(logits)) - np.eye(CLASSES)[LABEL]
    moved = jax.tree.map(lambda a, b: np.asarray(a - b), after.params, before.params)["retrained"]["linear"]
    np.testing.assert_allclose(moved["kernel"], -0.1 * (standard.T @ error / SIZE + 0.01 * np.sign(kernel)), atol=2e-5)
    np.testing.assert_allclose(moved["bias"], -0.1 * error.mean(0), atol=2e-6)  # which has no penalty


def test_the_exact_minimiser_of_dfrs_loss_cannot_be_improved():
    """Where a weight is 0 the gradient is at most l1, elsewhere it is l1 against its sign (Karush, Kuhn and Tucker)."""
    rng = np.random.default_rng(0)
    found, label, l1 = rng.normal(size=(60, 7)), rng.integers(0, 3, 60), 0.03
    weight = rng.uniform(size=60)
    weight /= weight.sum()
    kernel, bias = dfr_exact.minimise(found, label, weight, l1, 3)
    error = weight[:, None] * (np.exp(dfr_exact.log_probabilities((kernel, bias), found)) - np.eye(3)[label])
    gradient = found.T @ error
    np.testing.assert_allclose(error.sum(0), 0, atol=1e-8)
    zero = kernel == 0
    assert zero.any() and not zero.all() and (np.abs(gradient[zero]) <= l1 + 1e-8).all()
    np.testing.assert_allclose(gradient[~zero], -l1 * np.sign(kernel[~zero]), atol=1e-7)


def test_nothing_but_the_new_head_moves_even_where_weights_decay():
    before, after, _ = dfr_step(True, 0.0, 0.5)
    assert before.stats["net"]
    same((after.params["net"], after.stats["net"]), (before.params["net"], before.stats["net"]))
    same(after.params["retrained"]["standard"], before.params["retrained"]["standard"])
    assert (after.stats["retrained"]["standard"]["mean"] != before.stats["retrained"]["standard"]["mean"]).any()
    assert (after.params["retrained"]["linear"]["bias"] != before.params["retrained"]["linear"]["bias"]).all()


# SoftCon


def unlike_and_contrast(u, v, label, tau, views):
    """l_a of each image as the paper writes it for so many equal views of each, float64."""
    images, found = len(label), []
    u, v, label = (np.concatenate([x] * views) for x in (np.float64(u), np.float64(v), label))
    for a in range(len(label)):
        others = [p for p in range(len(label)) if p != a]
        weight = [(1 - v[a] @ v[p]) * (label[a] == label[p]) for p in others]
        share = np.log(sum(np.exp(u[a] @ u[q] / tau) for q in others))
        total = sum(weight)
        found.append(-sum(w * (u[a] @ u[p] / tau - share) for w, p in zip(weight, others, strict=True)) / (total or 1))
    return np.array(found[:images])


contrast = jax.jit(softcon.contrast, static_argnums=(3, 4))


def test_the_contrast_of_three_images_by_hand():
    u = v = np.eye(2, dtype=np.float32)[[0, 1, 0]]
    loss = np.asarray(contrast(u, v, np.array([0, 0, 1]), 1.0, 1))
    np.testing.assert_allclose(loss, [1.313262, 0.693147, 0], atol=1e-6)
    np.testing.assert_allclose(loss.mean(), 0.668803, atol=1e-6)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("tau", [0.07, 1.0])
def test_the_contrast_is_what_the_paper_writes(tau, views):
    rng = np.random.default_rng(3)
    u, v = directions(rng, SIZE, 6), directions(rng, SIZE, 4)
    np.testing.assert_allclose(contrast(u, v, LABEL, tau, views), unlike_and_contrast(u, v, LABEL, tau, views), rtol=2e-5)


def test_a_second_equal_view_leaves_the_gradient_of_the_published_loss():
    """An image's own view moves nothing by itself, but shares the denominator."""
    rng = np.random.default_rng(5)
    raw, v, label = rng.normal(size=(8, 5)).astype(np.float32), directions(rng, 8, 4), np.array([0, 0, 0, 0, 1, 1, 1, 1])

    def twice(raw):
        u = jnp.concatenate([features.unit(raw)] * 2)
        return softcon.contrast(u, np.concatenate([v] * 2), np.concatenate([label] * 2), 0.07, views=1).mean()

    def once(raw):
        return softcon.contrast(features.unit(raw), v, label, 0.07).mean()

    np.testing.assert_allclose(*jax.jit(lambda raw: (jax.grad(once)(raw), jax.grad(twice)(raw)))(raw), rtol=1e-3, atol=1e-5)


def test_images_without_positives_have_no_loss_and_no_gradient():
    """One alone in its class; and two that look the same to g but for rounding, from which the authors' code makes a full-size loss."""
    rng = np.random.default_rng(4)
    u, v = directions(rng, 6, 5), directions(rng, 6, 4)
    label, v[2] = np.array([0, 1, 1, 2, 2, 2]), v[1] * np.float32(1 - 4e-7)
    both = jax.jit(lambda *arrays: [f(*arrays, 0.07) for f in (softcon.contrast, jax.jacobian(softcon.contrast))])
    loss, gradient = jax.device_get(both(u, v, label))
    assert (loss[:3] == 0).all() and (loss[3:] > 0).all()
    assert (gradient[:3] == 0).all() and (gradient[3:] != 0).any((1, 2)).all()


def test_weights_of_drawing_by_hand():
    v, label = np.float32([[1, 0], [1, 0], [0, 1], [1, 0], [0, 1]]), np.array([0, 0, 0, 2, 2])  # no image of class 1
    np.testing.assert_allclose(softcon.drawing_weights(v, label, 10), [1 / 3, 1 / 3, 2 / 3, 1 / 2, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(softcon.drawing_weights(v, label, 1.2), [1 / 3, 1 / 3, 0.4, 0.4, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(softcon.drawing_weights(v, label, 0), 1)
    alike = softcon.drawing_weights(v[:2], label[:2], 10)
    assert (alike > 0).all() and alike[0] == alike[1]


def test_weights_of_drawing_are_means_over_the_class():
    v, label = directions(np.random.default_rng(5), 50, 6), np.random.default_rng(6).integers(0, 4, 50)
    unlike = np.array([np.mean([1 - np.float64(v[i]) @ v[j] for j in range(50) if label[j] == label[i]]) for i in range(50)])
    np.testing.assert_allclose(softcon.drawing_weights(v, label, 3), np.minimum(unlike, 3 * unlike.min()), rtol=1e-5)
    method = softcon.Config(contrastive=4, ratio=3).make(INFO, NET, PLAIN)
    assert method.sampling.draws == 4
    np.testing.assert_array_equal(method.sampling.weights(label, None, {"biased_direction": v}), softcon.drawing_weights(v, label, 3))


def test_a_step_of_softcon_is_both_losses_of_their_own_images():
    v = directions(np.random.default_rng(7), SIZE, 4)
    given = batch(biased_direction=v)
    method, state = made(softcon.Config(contrastive=8, weight=0.3, tau=0.5), given)
    after, metrics = method.step(state, given, KEY)
    trunk, head = state.params["trunk"], state.params["head"]["head"]
    features = np.asarray(forward(NET.make(CLASSES, last=1), {"params": trunk}, given["image"]), np.float64)
    logits = features @ np.float64(head["kernel"]) + np.float64(head["bias"])
    u = features[-8:] / np.linalg.norm(features[-8:], axis=1, keepdims=True)
    np.testing.assert_allclose(metrics["loss"], cross_entropy(logits[:-8], LABEL[:-8]).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss/contrast"], unlike_and_contrast(u, v[-8:], LABEL[-8:], 0.5, 2).mean(), rtol=1e-4)
    gradient = (np.exp(log_probability(logits)) - np.eye(CLASSES)[LABEL])[:-8].mean(0)
    np.testing.assert_allclose(after.params["head"]["head"]["bias"] - head["bias"], -0.1 * 0.3 * gradient, atol=1e-7)
    alone, numbers = jax.device_get(method.step(state.replace(hparams={**state.hparams, "weight": np.float32(0)}), given, KEY))
    same(alone.params["head"], state.params["head"])  # which the contrast does not see
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (alone.params["trunk"], trunk)), strict=True))
    assert numbers["loss"] == metrics["loss"]


def test_g_is_trained_by_cross_entropy_and_asked_for_directions():
    first, _ = softcon.Config().training_stages(CFG)
    method, state = made(first.cfg.method, batch())
    _, metrics = method.step(state, batch(), KEY)
    network = rebias.BiasedNet().make(NET, CLASSES)
    variables = {"params": state.params["biased"], "batch_stats": state.stats["biased"]}
    train = jax.jit(lambda variables, image: network.apply(variables, image, train=True, mutable=["batch_stats"])[0])
    _, logits = train(variables, batch()["image"])
    np.testing.assert_allclose(metrics["loss"], cross_entropy(logits).mean(), rtol=1e-5)
    outputs = jax.jit(first.outputs, static_argnums=0)(method, state.params, state.stats, batch()["image"], batch()["label"])
    direction = outputs["biased_direction"]
    features, answer = forward(network, variables, batch()["image"])
    np.testing.assert_allclose(direction * np.linalg.norm(features, axis=1, keepdims=True), features, atol=1e-6)
    np.testing.assert_allclose(method.predict(state.params, state.stats, batch()["image"]), answer, rtol=1e-5)


# Bad settings


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (biasensemble.Config(agreement=6), "method.agreement = 6 of method.networks = 5"),
    ],
)
def test_first_runs_that_cannot_be_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config.training_stages(CFG)


@pytest.mark.parametrize(
    ("config", "net", "message"),
    [
        (dfr.Config(), mlp.Config(()), "leaves only its head"),
        (softcon.Config(ratio=0.5), NET, "method.ratio = 0.5: take 1 or more, or 0"),
        (softcon.Config(), mlp.Config(()), "leaves only its head"),
    ],
)
def test_bad_settings_are_refused(config, net, message):
    with pytest.raises(ValueError, match=message):
        config.make(INFO, net, PLAIN)
