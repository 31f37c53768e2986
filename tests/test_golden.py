"""Equations of the papers against numbers computed by hand in float64, independent of this code."""

import jax
import numpy as np
import pytest

from jaxbed.methods.parts import losses, relative_difficulty
from jaxbed.models import style


def maps(*rows):
    """2x2 single-channel maps [N, 2, 2, 1]."""
    return np.array(rows, np.float32).reshape(len(rows), 2, 2, 1)


def flat(x):
    return np.asarray(x).reshape(len(x), -1)


adain, swap_statistics, randomize_style, randomize_content = map(
    jax.jit, (style.adain, style.swap_statistics, style.randomize_style, style.randomize_content)
)
update_average, difficulty = jax.jit(relative_difficulty.update_average), jax.jit(relative_difficulty.difficulty)
relative_loss = jax.jit(relative_difficulty.relative_loss, static_argnums=4)
SWAP = np.array([1, 0])
CONTENT, STYLE = (1, 2, 3, 4), (10, 20, 30, 40)
FAINT = (0, 0.001, 0.002, 0.003)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CONTENT, (10.00004455, 20.00001485, 29.99998515, 39.99995545)),
        (FAINT, (19.33053273, 23.11017758, 26.88982242, 30.66946727)),  # with the biased variance it would be 20, 23.3, 26.7, 30
        ((5, 5, 5, 5), (25, 25, 25, 25)),
    ],
)
def test_adain(content, expected):
    np.testing.assert_allclose(flat(adain(maps(content), maps(STYLE)))[0], expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CONTENT, (10.00016074, 20.00005358, 29.99994642, 39.99983926)),
        (FAINT, (19.34708278, 23.11569426, 26.88430574, 30.65291722)),
    ],
)
def test_padain_swap_adds_epsilon_twice(content, expected):
    swapped = swap_statistics(maps(content, STYLE), SWAP)
    np.testing.assert_allclose(flat(swapped)[0], expected, rtol=2e-6)


def test_padain_swap_passes_no_gradient_to_the_style_and_keeps_the_mean():
    def output(x):
        return style.swap_statistics(x, SWAP)[0].ravel()

    jacobian = np.asarray(jax.jit(jax.jacobian(output))(maps(CONTENT, STYLE))).reshape(4, 2, 4)
    assert not jacobian[:, 1].any()
    np.testing.assert_allclose(jacobian[:, 0].sum(0), 0, atol=1e-4)
    assert np.abs(jacobian[:, 0]).max() > 1


def test_gradient_of_a_constant_map_is_finite():
    grad = jax.jit(jax.grad(lambda x: style.swap_statistics(x, SWAP).sum()))(maps((5, 5, 5, 5), STYLE))
    assert np.isfinite(grad).all()


def test_style_randomisation_interpolates_variances():
    out = randomize_style(maps(CONTENT, STYLE), SWAP, np.float32([0.25, 0.75]))
    expected = [(6.36302484, 15.03767495, 23.71232505, 32.38697516), (6.36298619, 15.03766206, 23.71233794, 32.38701381)]
    np.testing.assert_allclose(flat(out), expected, rtol=2e-6)


def test_style_randomisation_with_weight_one_is_the_identity():
    x = maps(CONTENT, STYLE)
    np.testing.assert_allclose(randomize_style(x, SWAP, np.ones(2, np.float32)), x, rtol=1e-6)


def test_style_randomisation_differentiates_both_images():
    grad = jax.jit(jax.grad(lambda x: (style.randomize_style(x, SWAP, np.float32([0.25, 0.75]))[0] ** 2).sum()))(maps(CONTENT, STYLE))
    assert np.abs(np.asarray(grad)[1]).max() > 0.1


def test_content_randomisation():
    x = maps(CONTENT, (40, 10, 30, 20))
    out = randomize_content(x, SWAP)
    expected = [(4.00000445, 0.99999555, 3.00000148, 1.99999852), (10.00004455, 20.00001485, 29.99998515, 39.99995545)]
    np.testing.assert_allclose(flat(out), expected, rtol=2e-6)


def test_content_randomisation_detaches_the_content():
    def first(x):
        return style.randomize_content(x, SWAP)[0].ravel()

    jacobian = np.asarray(jax.jit(jax.jacobian(first))(maps(CONTENT, (40, 10, 30, 20)))).reshape(4, 2, 4)
    assert not jacobian[:, 1].any() and np.abs(jacobian[:, 0]).max() > 0.1


@pytest.mark.parametrize(
    ("logits", "expected"),
    [((0, 0), 0.6931271807599), ((np.log(3), 0), 0.8369615505636), (np.zeros(1000), 6.8978049481290)],
)
def test_adversarial_loss_has_its_epsilon(logits, expected):
    np.testing.assert_allclose(jax.jit(losses.adversarial_uniform)(np.float32(logits)[None])[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("logits", "label", "value", "gradient"),
    [
        ((0, 0), 0, 0.298677, (-0.215450, 0.215450)),
        ((2, 0, 0), 0, 0.141795, (-0.126091, 0.063045, 0.063045)),
        ((2, 0, 0), 1, 0.326906, (0.114876, -0.130423, 0.015547)),
    ],
)
def test_surrogate_of_generalized_cross_entropy(logits, label, value, gradient):
    def loss(logits):
        return losses.generalized_cross_entropy(logits[None], np.array([label]), 0.7)[0]

    surrogate, grad = jax.jit(jax.value_and_grad(loss))(np.float32(logits))
    np.testing.assert_allclose(surrogate, value, atol=1e-6)
    np.testing.assert_allclose(grad, gradient, atol=1e-6)


def test_averages_store_the_first_visit_and_then_move():
    table = {"average": np.zeros(3, np.float32), "seen": np.zeros(3, np.float32)}
    for value, expected in ((2.0, 2.0), (1.0, 1.7), (0.5, 1.34)):
        table = update_average(table, np.array([1]), np.float32([value]), 0.7)
        np.testing.assert_allclose(table["average"], [0, expected, 0], rtol=1e-6)
    assert table["seen"].tolist() == [0, 1, 0]


def test_relative_difficulty():
    index, label, class_of = np.array([0]), np.array([0]), np.array([0, 0, 1])
    biased = relative_loss(np.float32([2.0, 4.0, 9.0]), class_of, index, label, 2)
    debiased = relative_loss(np.float32([1.0, 0.5, 9.0]), class_of, index, label, 2)
    np.testing.assert_allclose([biased[0], debiased[0]], [0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(difficulty(biased, debiased), [1 / 3], rtol=1e-6)


def test_relative_difficulty_of_two_samples_of_a_class():
    index, label, class_of = np.array([0, 1]), np.array([0, 0]), np.array([0, 0])
    biased = relative_loss(np.float32([4.0, 2.0]), class_of, index, label, 1)
    debiased = relative_loss(np.float32([1.0, 1.0]), class_of, index, label, 1)
    np.testing.assert_allclose(difficulty(biased, debiased), [0.5, 1 / 3], rtol=1e-6)


def test_difficulty_of_losses_that_are_all_zero_is_zero_not_nan():
    zero = relative_loss(np.zeros(2, np.float32), np.array([0, 0]), np.array([0]), np.array([0]), 1)
    assert difficulty(zero, zero).tolist() == [0.0]
