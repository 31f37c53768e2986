"""Calibration and detection of anomalies, against hand-computed values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbed.data import noise
from jaxbed.evaluation import calibration, decision_rules, measures, pools

CONFIDENCE, CORRECT = np.array([[0.2, 0.4, 0.5, 0.7, 0.8, 0.9]]), np.array([[0, 1, 0, 1, 1, 0]], bool)


def test_errors_of_calibration_by_hand_with_and_without_the_last_bin():
    def both(function):
        return [function(CONFIDENCE, CORRECT, 2, drop)[0] for drop in (False, True)]

    np.testing.assert_allclose(both(calibration.rms_error), [0.2397916, 0.1290994], rtol=1e-6)
    np.testing.assert_allclose(both(calibration.mad_error), [0.2166667, 0.1], rtol=1e-6)
    np.testing.assert_allclose(calibration.aurra(CONFIDENCE, CORRECT), [0.4611111], rtol=1e-6)
    np.testing.assert_allclose(calibration.soft_f1(np.array([[0.9, 0.6, 0.8]]), np.array([[1, 0, 1]], bool)), [0.4705882], rtol=1e-6)


def test_the_last_bin_takes_the_rest_and_no_order_matters():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random((3, 250)), rng.random((3, 250)) < 0.5
    order = rng.permutation(250)
    for function in (calibration.rms_error, calibration.mad_error, calibration.aurra, calibration.soft_f1):
        np.testing.assert_allclose(function(confidence, correct), function(confidence[:, order], correct[:, order]), rtol=1e-12)
    ranked = [(confidence[0][rows].mean() - correct[0][rows].mean(), len(rows)) for rows in np.split(np.argsort(confidence[0]), [100])]
    np.testing.assert_allclose(calibration.rms_error(confidence, correct)[0] ** 2, sum(n / 250 * gap**2 for gap, n in ranked), rtol=1e-12)
    assert calibration.rms_error(confidence[:, :150], correct[:, :150], drop_last_bin=True).tolist() == [0, 0, 0]  # its only bin


def test_a_seed_that_did_not_answer_has_no_calibration():
    confidence = np.array([[0.5, np.nan], [0.5, 0.6]])
    correct = np.array([[True, False], [True, False]])
    for function in (calibration.rms_error, calibration.mad_error, calibration.aurra, calibration.soft_f1):
        assert np.isnan(function(confidence, correct)).tolist() == [True, False]
    for function in (calibration.auroc, calibration.aupr, calibration.fpr95):
        assert np.isnan(function(confidence, np.array([True, False]))).tolist() == [True, False]


def test_a_seed_that_did_not_answer_has_no_error_whichever_bins_count():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random((4, 40)), rng.random((4, 40)) < 0.5
    for seed, place in ((0, 0), (2, 39)):
        confidence[seed, place] = np.nan
    for function in (calibration.rms_error, calibration.mad_error):
        for size, drop in ((10, False), (10, True), (100, False), (100, True), (15, True)):
            assert np.isnan(function(confidence, correct, size, drop)).tolist() == [True, False, True, False]


def test_anomalies_by_hand_with_ties():
    anomaly = np.array([1, 0, 1, 1, 0], bool)
    score = np.array([[0.9, 0.8, 0.7, 0.4, 0.1], [0.5, 0.5, 0.5, 0.5, 0.2]])
    np.testing.assert_allclose(calibration.auroc(score, anomaly), [4 / 6, (3 * 0.5 + 3) / 6])
    np.testing.assert_allclose(calibration.aupr(score, anomaly), [(1 + 2 / 3 + 3 / 4) / 3, 3 / 4])
    np.testing.assert_allclose(calibration.fpr95(score, anomaly), [0.5, 0.5])


def test_the_temperature_with_which_labels_were_drawn_is_found():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 5)) * 2
    label = (logits / 2.5 + rng.gumbel(size=logits.shape)).argmax(1)
    assert calibration.temperature(logits, label) == pytest.approx(2.5, rel=0.05)
    assert calibration.temperature(logits, logits.argmax(1)) == 0.2 and calibration.temperature(logits, logits.argmin(1)) == 5


def test_confidence_at_a_temperature():
    logits = np.array([[[2.0, 0.0], [0.0, 4.0]]] * 2, np.float16)
    expected = 1 / (1 + np.exp([[-1.0, -2.0], [np.nan, np.nan]]))
    np.testing.assert_allclose(calibration.confidence_at(np.array([2.0, np.nan]), logits), expected, rtol=1e-6)


def test_confidence_is_that_of_the_classes_among_which_the_rule_decides():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float32))
    for rule, classes in (("argmax", np.arange(1000)), ("imagenet_r", decision_rules.IMAGENET_R), ("among:2-4", np.array([2, 3, 4]))):
        answer = decision_rules.named(rule).decide(logits)
        among = np.asarray(logits, float)[:, classes]
        assert (classes[among.argmax(1)] == np.asarray(answer)).all()
        np.testing.assert_allclose(decision_rules.named(rule).among(logits), among)
    assert decision_rules.named("sixteen_mean_prob").among is None


def test_a_network_whose_logits_are_not_finite_has_no_confidence():
    logits = jnp.array([[1.0, 2.0, 0.0], [1.0, jnp.nan, 0.0]])
    source = noise.Config(classes=3, train_images=2, val_images=2, side_px=4).open()
    answers = pools._answers(lambda *_: logits, source, decision_rules.named("argmax"), True)
    given = jax.jit(answers)({}, {}, np.zeros((1, 2, 4, 4, 3), np.uint8))
    assert given["response"].tolist() == [[1, -1]]
    np.testing.assert_allclose(given["confidence"], [[1 / (1 + np.exp(-1) + np.exp(-2)), np.nan]], rtol=1e-6)
    np.testing.assert_allclose(given["energy"], [[-np.log(np.exp([1, 2, 0]).sum()), np.nan]], rtol=1e-6)


def test_calibration_is_measured_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(measures, "MEASURES", dict(measures.MEASURES))
    none = np.full(6, -1)
    given = measures.Answers(CORRECT.astype(int), np.ones(6, int), none, confidence=CONFIDENCE)
    assert "aurra" not in measures.measure(given)
    measures.add("aurra")
    assert measures.measure(given)["aurra"].value == pytest.approx(0.4611111)
    assert "aurra" not in measures.measure(measures.Answers(CORRECT.astype(int), np.ones(6, int), none))  # of an older evaluation
