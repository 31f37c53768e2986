"""DisEnt: one step against its losses written down one by one, whose gradient goes where, and when it begins to swap."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbed.method import Info
from jaxbed.methods import disent
from jaxbed.methods.parts import losses, pairs, relative_difficulty
from jaxbed.models import mlp
from jaxbed.optim import Optim

NET, PLAIN = mlp.Config((6, 5)), Optim(rule="sgd", lr=1.0, momentum=0.0)
INFO, KEY = Info(classes=3, train_size=12, steps_per_epoch=4, epochs=5), jax.random.key(3)
CONFIG = disent.Config(lambda_dis=2.0, lambda_swap=0.5, lambda_swap_biased=3.0)
RNG = np.random.default_rng(0)
BATCH = {
    "image": RNG.normal(size=(8, 2, 2, 3)).astype(np.float32),
    "label": jnp.asarray([0, 1, 2, 0, 1, 2, 0, 1]),
    "index": jnp.asarray(np.arange(8) + 2),
}


@functools.cache
def made():
    """(the method, its state before the first step); the method is compiled."""
    method = CONFIG.make(INFO, NET, PLAIN)
    method = method._replace(step=jax.jit(method.step), predict=jax.jit(method.predict))
    return method, jax.device_get(jax.jit(method.init)(KEY, BATCH))


def dense(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def encoded(params, image):
    x = image.reshape(len(image), -1)
    for name in ("hidden0", "hidden1"):
        x = jax.nn.relu(dense(params[name], x))
    return x


def by_the_book(params, weight, order, swaps):
    """The loss of each of the four networks as a function of that network's parameters alone."""
    label, fixed = BATCH["label"], params

    def of(name):
        head = f"{name}_head"

        def loss(own):
            mine = encoded(own[name], BATCH["image"])
            other = encoded(fixed["bias" if name == "intrinsic" else "intrinsic"], BATCH["image"])

            def part(z_bias, z_intrinsic, target):
                logits = dense(own[head], jnp.concatenate([z_intrinsic, z_bias], -1))
                if name == "intrinsic":
                    return (weight * losses.cross_entropy(logits, target)).mean()
                return losses.generalized_cross_entropy(logits, target, 0.7).mean()

            if name == "intrinsic":
                return part(other, mine, label) + swaps * 0.5 * part(other[order], mine, label)
            return 2.0 * part(mine, other, label) + swaps * 0.5 * 3.0 * part(mine[order], other, label[order])

        return jax.grad(loss)({name: params[name], head: params[head]})

    return {**of("intrinsic"), **of("bias")}


@jax.jit
def expected_of(state, swaps):
    """(gradients, memory) of a step."""
    z = [encoded(state.params[name], BATCH["image"]) for name in ("intrinsic", "bias")]
    each = {
        table: losses.cross_entropy(dense(state.params[f"{name}_head"], jnp.concatenate(z, -1)), BATCH["label"])
        for table, name in (("debiased", "intrinsic"), ("biased", "bias"))
    }
    weight, memory = relative_difficulty.weigh(state.memory, each, BATCH["index"], BATCH["label"], 3, 0.7)
    order = pairs.partners(jax.random.split(KEY)[0], 8)
    return by_the_book(state.params, weight, order, swaps), memory


@pytest.mark.parametrize("step", [0, 3, 4, 19])  # of 20; swapping begins at 4
def test_a_step_descends_the_losses_of_the_paper(step):
    method, state = made()
    after, _ = jax.device_get(method.step(state.replace(step=np.int32(step)), BATCH, KEY))
    grads, memory = expected_of(state, np.float32(step >= 4))
    moved = jax.tree.map(lambda a, b: a - b, state.params, after.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6), moved, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), after.memory, memory)
    assert float(after.memory["biased"]["seen"].sum()) == 8


def test_prediction_needs_both_encoders_and_the_intrinsic_head():
    method, state = made()
    expected = method.predict(state.params, state.stats, BATCH["image"])

    @jax.jit
    def by_hand(params):
        z = [encoded(params[name], BATCH["image"]) for name in ("intrinsic", "bias")]
        return dense(params["intrinsic_head"], jnp.concatenate(z, -1))

    np.testing.assert_allclose(expected, by_hand(state.params), rtol=1e-5, atol=1e-6)


def test_weights_of_losses_can_be_swept():
    _, state = made()
    assert {name: float(state.hparams[name]) for name in disent.LAMBDAS} == {
        "lambda_dis": 2.0,
        "lambda_swap": 0.5,
        "lambda_swap_biased": 3.0,
    }


@pytest.mark.parametrize(
    ("changes", "net", "message"),
    [
        ({}, mlp.Config(()), "leaves only its head"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, net, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes).make(INFO, net, PLAIN)
