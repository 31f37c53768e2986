"""mCE against published numbers."""

import numpy as np
import pandas as pd
import pytest

from jaxbed.measures import corruption_error as ce

FLAT = dict.fromkeys(ce.MAIN, 0.6)


def test_corruption_errors_by_hand():
    """Errors .6 on Gaussian noise, .3 on fog, .24 on unchanged images: of these two alone mCE is 52.1515 and relative mCE 47.6794."""
    whole = ce.corruption_error({**FLAT, "fog": 0.3}, 0.24)
    pair = [whole.of_corruption[name] for name in ("gaussian_noise", "fog")]
    np.testing.assert_allclose(pair, [67.6874, 36.6156], rtol=1e-5)
    assert np.mean(pair) == pytest.approx(52.1515, abs=1e-4)
    two = {name: (0.6 if name == "gaussian_noise" else 0.3) for name in ce.MAIN}
    baseline = {name: ce.ALEXNET["gaussian_noise" if name == "gaussian_noise" else "fog"] for name in ce.MAIN}
    noise, fog = 0.36 / (0.886428 - 0.435), 0.06 / (0.819324 - 0.435)
    assert (noise + fog) / 2 == pytest.approx(0.476794, abs=1e-6)
    assert ce.corruption_error(two, 0.24, baseline).relative_mce == pytest.approx(100 * (noise + 14 * fog) / 15)


def test_the_published_mce_of_three_networks(shared_data):
    accuracy = pd.read_csv(shared_data / "reference_tables" / "game_of_noise_accuracy.csv")
    expected = [76.6977, 68.3262, 64.5004]
    for (model, rows), mce in zip(accuracy.groupby("model", sort=False), expected, strict=True):
        errors = dict(zip(rows["corruption"], 1 - rows["accuracy_mean_over_severities"] / 100, strict=True))
        assert ce.corruption_error(errors, 0.24).mce == pytest.approx(mce, abs=1e-3), model


def test_the_constants_are_means_of_the_published_severities(shared_data):
    errors = pd.read_csv(shared_data / "reference_tables" / "alexnet_errors.csv").groupby("corruption")["error"].mean()
    for name, value in ce.ALEXNET.items():
        assert errors[name] == pytest.approx(value, abs=1e-6), name
    assert set(ce.ALEXNET) == {*ce.MAIN, *ce.EXTRA} and len(ce.MAIN) == 15


@pytest.mark.parametrize(
    ("errors", "clean", "reason"),
    [
        ({name: 0.5 for name in ce.MAIN if name != "frost"}, 0.2, "of the network there is no frost"),
        ({**FLAT, "fog": 60.0}, 0.2, "error on fog of the network = 60: errors are fractions"),
        (FLAT, float("nan"), "error on clean of the network = nan"),
    ],
)
def test_incomplete_or_impossible_errors_are_refused(errors, clean, reason):
    with pytest.raises(ValueError, match=reason):
        ce.corruption_error(errors, clean)


def test_another_baseline_is_measured_like_the_network():
    assert ce.corruption_error(FLAT, 0.1, FLAT, 0.1) == (pytest.approx(100), pytest.approx(100), dict.fromkeys(ce.MAIN, 100.0))
    with pytest.raises(ValueError, match="of the baseline there is no"):
        ce.corruption_error(FLAT, 0.1, {})
