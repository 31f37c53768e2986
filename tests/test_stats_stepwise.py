"""Shaffer's and Bergmann-Hommel's procedures against their definitions by brute force, and in the report."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats import main
from jaxbed.stats.comparisons import pairwise, stepwise
from jaxbed.stats.figures import drawing


def exhaustive_sets(n: int) -> list[set[int]]:
    """All non-empty sets of pairs that are closed: if a = b and b = c, then a = c. Tried one by one."""
    pairs = list(itertools.combinations(range(n), 2))
    found = []
    for chosen in itertools.product([False, True], repeat=len(pairs)):
        equal = {pair for pair, taken in zip(pairs, chosen, strict=True) if taken}
        same = equal | {(j, i) for i, j in equal} | {(i, i) for i in range(n)}
        closed = all((i, k) in same for (i, j), (second, k) in itertools.product(same, same) if j == second)
        if equal and closed:
            found.append({pairs.index(pair) for pair in equal})
    return found


@pytest.mark.parametrize("n", [2, 3, 4])
def test_adjusted_p_by_their_definitions(n):
    sets, rng = exhaustive_sets(n), np.random.default_rng(n)
    for _ in range(25):
        p = rng.random(n * (n - 1) // 2) ** 3
        bound = [max(len(one) * min(p[list(one)]) for one in sets if pair in one) for pair in range(len(p))]
        np.testing.assert_allclose(stepwise.bergmann_hommel(p), np.minimum(bound, 1))
        order, largest, adjusted = np.argsort(p), 0.0, {}
        for step, pair in enumerate(order):
            most = max(len(one) for one in sets if len(one) <= len(p) - step)
            largest = max(largest, most * p[pair])
            adjusted[pair] = min(largest, 1)
        np.testing.assert_allclose(stepwise.shaffer(p), [adjusted[pair] for pair in range(len(p))])


@pytest.mark.parametrize("n", [3, 5, 8, 9])
def test_they_reject_no_less_than_holm(n):
    p = np.random.default_rng(n).random(n * (n - 1) // 2) ** 4
    shaffer, hommel, holm = stepwise.shaffer(p), stepwise.bergmann_hommel(p), pairwise.holm(p)
    assert (shaffer <= holm + 1e-12).all() and (p <= shaffer + 1e-12).all() and (p <= hommel + 1e-12).all()
    assert hommel.sum() <= shaffer.sum() + 1e-9


def test_how_many_pairs_can_be_equal():
    """All divisions of three and of five; the number of divisions is Bell's."""
    assert stepwise._possible(3) == {0, 1, 3} and stepwise._possible(5) == {0, 1, 2, 3, 4, 6, 10}
    assert len(stepwise._exhaustive(4)) == 14 and len(stepwise._exhaustive(8)) == 4139


def test_the_family_error_is_held_where_some_algorithms_are_alike():
    """Two groups of equal algorithms far apart: a false rejection is one within a group."""
    from scipy import stats

    rng, n = np.random.default_rng(0), 6
    first, second = np.transpose(list(itertools.combinations(range(n), 2)))
    effect = np.where(np.arange(n) < 3, 0, 8)
    within = (first < 3) == (second < 3)
    false = 0
    for _ in range(2000):
        x = effect + rng.normal(size=n)
        p = 2 * stats.norm.sf(np.abs(x[first] - x[second]) / np.sqrt(2))
        false += (stepwise.bergmann_hommel(p)[within] < 0.05).any()
    assert 0.01 < false / 2000 <= 0.065


def test_too_many_algorithms_and_incomplete_families_are_refused():
    with pytest.raises(ValueError, match=r"Bergmann-Hommel for 10 algorithms.*use Shaffer"):
        stepwise.bergmann_hommel([0.5] * 45)
    with pytest.raises(ValueError, match="4 p-values cannot be those of all pairs"):
        stepwise.shaffer([0.1] * 4)


@pytest.mark.parametrize("n", [4, 10])
def test_pairs_of_a_report_have_them(tmp_path, monkeypatch, n):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    rng = np.random.default_rng(0)
    rows = [(f"a{i}", run, f"d{j}", 50 + i + rng.normal()) for i in range(n) for j in range(8) for run in (1, 2)]
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"]).to_csv(tmp_path / "scores.csv", index=False)
    assert main.main([str(tmp_path / "scores.csv"), "--permutations", "500", "--out", str(tmp_path / "out")]) == 0
    found = pd.DataFrame(json.loads((tmp_path / "out" / "stats.json").read_text())["pairs"])
    np.testing.assert_allclose(found["p_z_shaffer"], stepwise.shaffer(found["p_z"]))
    assert ("p_z_bergmann_hommel" in found) == (n <= stepwise.LARGEST)
