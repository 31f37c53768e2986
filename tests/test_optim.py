"""Optimizers against PyTorch's arithmetic, schedules against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxbed import optim
from jaxbed.method import Info, scalars

INFO = Info(classes=2, train_size=40, steps_per_epoch=4, epochs=10)


def descend(settings, grads, start=1.0):
    """Parameters after each gradient."""
    build, hparams = settings.transform(INFO), scalars(settings.hparams())
    param, state = jnp.float32(start), build(hparams).init(jnp.float32(start))
    seen = []
    for grad in grads:
        update, state = build(hparams).update(jnp.float32(grad), state, param)
        param = optax.apply_updates(param, update)
        seen.append(float(param))
    return seen


def rates(settings, steps):
    """The learning rate of each step, read off unit gradients."""
    seen = descend(settings, [1.0] * steps, start=0.0)
    return -np.diff([0.0, *seen])


def test_sgd_as_pytorch():
    settings = optim.Optim(lr=0.1, momentum=0.9, weight_decay=1e-4)
    np.testing.assert_allclose(descend(settings, [0.5, -0.2]), [0.94999, 0.9249715001], rtol=1e-7)


def test_nesterov_as_pytorch():
    theta, buffer, expected = 1.0, None, []
    for grad in (0.5, -0.2, 0.3):
        grad += 0.01 * theta
        buffer = grad if buffer is None else 0.9 * buffer + grad
        theta -= 0.1 * (grad + 0.9 * buffer)
        expected.append(theta)
    np.testing.assert_allclose(descend(optim.Optim(lr=0.1, weight_decay=0.01, nesterov=True), [0.5, -0.2, 0.3]), expected, rtol=1e-6)


def test_adam_as_pytorch_with_decay_in_the_gradient():
    theta, m, v, expected = 1.0, 0.0, 0.0, []
    for t, grad in enumerate((0.5, -0.2, 0.3), start=1):
        grad += 0.1 * theta
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad
        theta -= 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        expected.append(theta)
    np.testing.assert_allclose(descend(optim.Optim(rule="adam", lr=0.01, weight_decay=0.1), [0.5, -0.2, 0.3]), expected, rtol=1e-5)


def test_hyper_parameters_may_differ_along_an_axis():
    build = optim.Optim(lr=0.1, momentum=0.0).transform(INFO)

    def one(lr):
        tx = build({"lr": lr, "weight_decay": jnp.float32(0)})
        return tx.update(jnp.float32(1.0), tx.init(jnp.float32(0.0)), jnp.float32(0.0))[0]

    np.testing.assert_allclose(jax.vmap(one)(jnp.array([0.1, 0.5])), [-0.1, -0.5], rtol=1e-6)


def test_step_schedule_drops_at_epochs():
    settings = optim.Optim(lr=1.0, momentum=0.0, schedule="step", milestones_epochs=(2, 3), gamma=0.1)
    np.testing.assert_allclose(rates(settings, 14), [1.0] * 8 + [0.1] * 4 + [0.01] * 2, rtol=1e-4)


def test_milestones_on_one_step_each_count():
    settings = optim.Optim(lr=1.0, momentum=0.0, schedule="step", milestones_epochs=(1, 1, 1.01, 2), gamma=0.5)
    np.testing.assert_allclose(rates(settings, 10), [1] * 4 + [0.125] * 4 + [0.0625] * 2, rtol=1e-6)


def test_cosine_with_warmup_rises_from_zero_and_ends_at_zero():
    settings = optim.Optim(lr=1.0, momentum=0.0, schedule="cosine", warmup_epochs=1)
    expected = [t / 4 if t < 4 else 0.5 * (1 + np.cos(np.pi * (t - 4) / 36)) for t in range(40)]
    np.testing.assert_allclose(rates(settings, 40), expected, atol=2e-6)


def test_warmup_does_not_shift_milestones():
    settings = optim.Optim(lr=1.0, momentum=0.0, schedule="step", milestones_epochs=(2,), warmup_epochs=1)
    np.testing.assert_allclose(rates(settings, 10), [0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 0.1, 0.1], atol=1e-6)


def test_only_updates_what_is_picked_and_nothing_else():
    params = {"trunk": {"norm": {"scale": jnp.ones(2)}, "conv": jnp.ones(3)}, "head": jnp.ones(1)}
    tx = optim.only(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), lambda path: path == "trunk/norm/scale")
    updates, _ = tx.update(jax.tree.map(lambda x: 100 * x, params), tx.init(params), params)
    np.testing.assert_allclose(updates["trunk"]["norm"]["scale"], -0.1 / np.sqrt(2) * np.ones(2), rtol=1e-6)  # the norm is of its own part
    assert not updates["trunk"]["conv"].any() and not updates["head"].any()


def test_a_warm_up_of_the_whole_run_is_refused():
    with pytest.raises(ValueError, match=r"optim.warmup_epochs = 10\.0 leaves nothing of"):
        optim.Optim(warmup_epochs=10.0).transform(INFO)
