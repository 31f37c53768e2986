"""Bradley-Terry: golden case, the posterior against quadrature and by simulation, predictive check, ties, invariances, the report."""

import itertools
import math

import numpy as np
import pandas as pd
import published
import pytest
from scipy import optimize, stats

from jaxbed.stats import new_datasets
from jaxbed.stats.analysis import analyse
from jaxbed.stats.comparisons import bradley_terry
from jaxbed.stats.options import Options
from jaxbed.stats.output import document
from jaxbed.stats.reading import records


def matrix_of(x) -> pd.DataFrame:
    x = np.array(x, dtype=float)
    return pd.DataFrame(x, index=[f"a{i}" for i in range(len(x))], columns=[f"d{j}" for j in range(x.shape[1])])


def random_matrix(seed: int, n: int, m: int, levels: int = 1000) -> pd.DataFrame:
    return matrix_of(np.random.default_rng(seed).integers(0, levels, (n, m)) / 10)


def table_of(wins) -> pd.DataFrame:
    names = [f"a{i}" for i in range(len(wins))]
    return pd.DataFrame(np.array(wins, float), index=names, columns=names)


def by_pair(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index(["algorithm_i", "algorithm_j"])


def draw(won, **sizes) -> bradley_terry.Posterior:
    return bradley_terry.posterior(table_of(won), **sizes)


ROCK_PAPER_SCISSORS = [[0, 10, 0], [0, 0, 10], [10, 0, 0]]


# ---- maximum likelihood


def test_bradley_terry_of_the_golden_case():
    (case,) = [case for case in published.cases() if case["name"].startswith("T1")]
    matrix = matrix_of(np.transpose(case["input"]["X"]))
    won = bradley_terry.wins(matrix)
    np.testing.assert_array_equal(won, case["expected"]["wins"])
    np.testing.assert_allclose(bradley_terry.abilities(won), case["expected"]["log_ability"], atol=1e-6)
    found = by_pair(bradley_terry.win_probabilities(matrix, draws=200))
    assert found.loc[("a0", "a1"), "p"] == pytest.approx(case["expected"]["p_win_1_over_2"], abs=1e-6)
    assert found.loc[("a0", "a2"), "p"] == pytest.approx(case["expected"]["p_win_1_over_3"], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_bradley_terry_maximises_the_likelihood(seed):
    won = pd.DataFrame(np.random.default_rng(seed).integers(1, 9, (5, 5)) * (1 - np.eye(5)))

    def loss(b):
        return (won.to_numpy() * np.log1p(np.exp(b[None, :] - b[:, None]))).sum()

    best = optimize.minimize(loss, np.zeros(5), tol=1e-12).x
    np.testing.assert_allclose(bradley_terry.abilities(won), best - best.mean(), atol=1e-5)


def test_wins_and_ties_within_the_rope():
    won = bradley_terry.wins(matrix_of([[0.80, 0.62, 0.5, 0.9], [0.78, 0.60, 0.6, 0.9]]), rope=0.02)
    assert won.to_numpy().tolist() == [[0, 1.5], [2.5, 0]]  # differences of exactly the rope tie, whatever their rounding
    with pytest.raises(ValueError, match="rope"):
        bradley_terry.wins(random_matrix(0, 2, 2), rope=math.nan)


def test_an_algorithm_that_always_wins_has_a_finite_ability():
    always = matrix_of([[3, 3, 3], [2, 1, 2], [1, 2, 1]])
    won = bradley_terry.wins(always)
    np.testing.assert_allclose(bradley_terry.abilities(won), bradley_terry.abilities(won + 0.5 * (1 - np.eye(3))))
    assert 0.8 < by_pair(bradley_terry.win_probabilities(always, draws=50)).loc[("a0", "a1"), "p"] < 1
    # one chain of wins is connected, though in four steps: nothing is added
    ring = np.roll(np.diag([1.0, 2, 3, 4, 5]), 1, axis=1)
    p = np.exp(bradley_terry.abilities(pd.DataFrame(ring)).to_numpy())
    expected = ((ring + ring.T) * p[:, None] / (p[:, None] + p)).sum(axis=1)
    np.testing.assert_allclose(expected, ring.sum(axis=1), atol=1e-8)  # as many wins as the model expects
    one_way = pd.DataFrame(np.triu(np.ones((5, 5)), 1))
    assert np.isfinite(bradley_terry.abilities(one_way)).all() and bradley_terry.abilities(one_way).is_monotonic_decreasing


def test_win_probabilities_do_not_depend_on_order():
    matrix = random_matrix(3, 5, 9)
    found = by_pair(bradley_terry.win_probabilities(matrix, draws=300))
    assert found["p"].between(found["p_low"], found["p_high"]).all() and (found["p_low"] < found["p_high"]).all()
    turned = by_pair(bradley_terry.win_probabilities(matrix.iloc[::-1, ::-1], draws=300))
    for (i, j), row in found.iterrows():
        np.testing.assert_allclose(1 - turned.loc[(j, i), ["p", "p_high", "p_low"]], row, atol=1e-6)
    monotone = by_pair(bradley_terry.win_probabilities(np.exp(matrix / 10), draws=300))
    np.testing.assert_allclose(monotone, found, atol=1e-9)


# ---- ties


def test_ties_within_the_std_of_the_runs():
    matrix = matrix_of([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0.8, 0.79, 0.0, 1.05, 1.0, 0.7]])
    std = matrix_of([[0.3, 0.3, 0.0, math.nan, 0.0, 0.4], [math.sqrt(0.41), math.sqrt(0.41), 0.0, 9.0, 0.0, 1.0]])
    # 0.4 sqrt((0.09 + 0.41) / 2) = 0.2: a tie, a win; std 0: a win; one run: within the rope of 0.1; equal; within 0.305
    assert bradley_terry.wins(matrix, 0.1, std).to_numpy().tolist() == [[0, 4], [2, 0]]
    assert bradley_terry.wins(matrix, 0.1).to_numpy().tolist() == [[0, 5], [1, 0]]
    turned = bradley_terry.wins(matrix.iloc[::-1, ::-1], 0.1, std).loc[matrix.index, matrix.index]  # std is found by name
    assert turned.to_numpy().tolist() == [[0, 4], [2, 0]]
    one = by_pair(bradley_terry.win_probabilities(matrix, 0.1, std, draws=50))
    assert one.loc[("a0", "a1"), "p"] == pytest.approx(4 / 6)


def test_half_wins_are_rounded_up():
    assert draw([[0, 3.5, 1], [1.5, 0, 2], [4, 3, 0]], length=4).wins.to_numpy().tolist() == [[0, 4, 1], [2, 0, 2], [4, 3, 0]]


# ---- posterior


def quadrature(won) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Weights on a grid of log sigma and of differences to the last algorithm; log-abilities; log sigma. Not by contrasts."""
    won = np.array(won, float)
    n = len(won)
    reach = 240 if n == 2 else 90
    steps = np.log(0.55 / 0.45) / 2.5 * np.arange(-reach, reach + 1)  # 0.45 and 0.55 lie midway between points
    log_sigma, *differences = np.meshgrid(np.linspace(-2, 2.5, 61), *[steps] * (n - 1), indexing="ij")
    inverse = np.linalg.inv(np.eye(n - 1) + 1)  # of the covariance of differences to one of n abilities
    squares = sum(inverse[a, b] * differences[a] * differences[b] for a, b in itertools.product(range(n - 1), repeat=2))
    value = -2 * log_sigma**2 - (n - 1) * log_sigma - squares / np.exp(2 * log_sigma) / 2
    abilities = [*differences, np.zeros_like(log_sigma)]
    for i, j in itertools.permutations(range(n), 2):
        value += won[i, j] * np.log(stats.logistic.cdf(abilities[i] - abilities[j]))
    weights = np.exp(value - value.max())
    return weights / weights.sum(), abilities, log_sigma


@pytest.mark.parametrize("won", [[[0, 7], [3, 0]], [[0, 10], [0, 0]], [[0, 5, 8], [5, 0, 6], [2, 5, 0]], ROCK_PAPER_SCISSORS])
def test_posterior_by_quadrature(won):
    weights, abilities, log_sigma = quadrature(won)
    posterior = draw(won)
    assert posterior.r_hat < 1.05 and posterior.effective_draws > 3000
    assert np.log(posterior.sigma).mean() == pytest.approx((weights * log_sigma).sum(), abs=0.02)
    found = by_pair(bradley_terry.pairs(posterior))
    for i, j in itertools.combinations(range(len(won)), 2):
        row, difference = found.loc[(f"a{i}", f"a{j}")], abilities[i] - abilities[j]
        p = 1 / (1 + np.exp(-difference))
        assert row["p"] == pytest.approx((weights * p).sum(), abs=5e-3)
        better = weights[difference > 1e-9].sum() + weights[abs(difference) <= 1e-9].sum() / 2  # the grid meets 0
        assert row["p_better"] == pytest.approx(better, abs=0.01)
        assert row["p_equivalent"] == pytest.approx(weights[(p > 0.45) & (p < 0.55)].sum(), abs=0.01)
        assert [weights[p < row[edge]].sum() for edge in ("low", "high")] == pytest.approx([0.025, 0.975], abs=0.01)  # a cell of the grid


def test_without_games_the_prior_comes_back():
    posterior = draw(np.zeros((4, 4)), length=600)
    log_sigma, difference = np.log(posterior.sigma), posterior.log_abilities["a0"] - posterior.log_abilities["a3"]
    assert [log_sigma.mean(), log_sigma.std()] == pytest.approx([0, 0.5], abs=0.03)
    assert difference.var() == pytest.approx(2 * math.exp(0.5), rel=0.1)
    row = bradley_terry.pairs(posterior).iloc[0]
    assert [row["p"], row["p_better"]] == pytest.approx([0.5, 0.5], abs=0.02)
    for share in (0.05, 0.3, 0.8):
        assert (log_sigma < stats.norm.ppf(share, scale=0.5)).mean() == pytest.approx(share, abs=0.02)


def test_calibration_by_simulation():
    """Abilities from the prior, wins from the abilities: the place of the truth in the posterior is uniform."""
    rng = np.random.default_rng(0)
    places = []
    for seed in range(150):
        sigma = rng.lognormal(0, 0.5)
        abilities = rng.normal(0, sigma, 4)
        won = np.triu(rng.binomial(6, 1 / (1 + np.exp(abilities - abilities[:, None]))), 1)
        won += np.tril(6 - won.T, -1)
        posterior = draw(won, chains=128, warm_up=30, length=15, seed=seed)
        difference = posterior.log_abilities["a0"] - posterior.log_abilities["a1"]
        places.append([(difference < abilities[0] - abilities[1]).mean(), (posterior.sigma < sigma).mean()])
    for column in np.transpose(places):
        assert stats.kstest(column, "uniform").pvalue > 0.01
        assert ((column > 0.25) & (column < 0.75)).mean() == pytest.approx(0.5, abs=0.12)


def test_equal_algorithms_are_even():
    found = bradley_terry.pairs(draw(5 * (1 - np.eye(5))))
    np.testing.assert_allclose(found[["p", "p_better"]], 0.5, atol=0.02)
    np.testing.assert_allclose(found["low"], 1 - found["high"], atol=0.02)


def test_posterior_does_not_depend_on_order():
    matrix = random_matrix(0, 5, 8, levels=6)
    won = bradley_terry.wins(matrix)
    posterior = bradley_terry.posterior(won, seed=3)
    pd.testing.assert_frame_equal(bradley_terry.pairs(posterior), bradley_terry.pairs(bradley_terry.posterior(won, seed=3)))
    turned = bradley_terry.posterior(bradley_terry.wins(matrix.iloc[[3, 0, 4, 2, 1], ::-1]), seed=3)
    pd.testing.assert_frame_equal(turned.log_abilities[matrix.index], posterior.log_abilities)
    found, other = by_pair(bradley_terry.pairs(posterior)), by_pair(bradley_terry.pairs(turned))
    found_wins, other_wins = by_pair(bradley_terry.predictive(posterior)), by_pair(bradley_terry.predictive(turned))
    flipped = 0
    for pair in found.index:
        same = pair in other.index
        flipped += not same
        row, wins = (other.loc[pair], other_wins.loc[pair]) if same else (1 - other.loc[pair[::-1]], other_wins.loc[pair[::-1]])
        edges = ["low", "high"] if same else ["high", "low"]
        np.testing.assert_allclose(found.loc[pair, ["p", "low", "high", "p_better"]], row[["p", *edges, "p_better"]], atol=1e-12)
        numbers = np.array(wins[["wins", "predicted", *edges]], float)
        expected = numbers if same else wins["games"] - numbers
        np.testing.assert_allclose(np.array(found_wins.loc[pair, ["wins", "predicted", "low", "high"]], float), expected, atol=1e-9)
    assert 0 < flipped < len(found)
    renamed = bradley_terry.posterior(won.set_axis(list("vyxzw")).set_axis(list("vyxzw"), axis=1), seed=3)  # other draws
    np.testing.assert_allclose(bradley_terry.pairs(renamed)["p"], found["p"], atol=0.01)
    other_seed = bradley_terry.pairs(bradley_terry.posterior(won, seed=4))
    assert 0 < np.abs(other_seed["p"].to_numpy() - found["p"].to_numpy()).max() < 0.01


def test_many_games_are_maximum_likelihood():
    won = np.random.default_rng(0).integers(500, 1500, (6, 6)) * (1 - np.eye(6))
    np.testing.assert_allclose(draw(won).log_abilities.mean(), bradley_terry.abilities(table_of(won)), atol=0.01)


def test_convergence_is_seen():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(200, 400, 2))
    r_hat, effective = bradley_terry._convergence(noise)
    assert r_hat == pytest.approx(1, abs=0.01) and effective == pytest.approx(80_000, rel=0.2)
    slow = noise.copy()
    for turn in range(1, len(slow)):
        slow[turn, :, 1] = 0.8 * slow[turn - 1, :, 1] + 0.6 * noise[turn, :, 1]  # autocorrelation time (1 + 0.8) / (1 - 0.8) = 9
    assert bradley_terry._convergence(slow)[1] == pytest.approx(80_000 / 9, rel=0.2)
    assert bradley_terry._convergence(slow + 2 * rng.normal(size=(400, 1)))[0] > 1.5
    short = draw(ROCK_PAPER_SCISSORS, warm_up=0, length=6)
    assert {finding["code"] for finding in bradley_terry.findings(short, bradley_terry.predictive(short))} == {"NOT_CONVERGED", "MISFIT"}
    good = draw([[0, 7], [3, 0]])
    assert bradley_terry.findings(good, bradley_terry.predictive(good)) == []
    assert bradley_terry.findings(good._replace(r_hat=math.nan), bradley_terry.predictive(good))[0]["code"] == "NOT_CONVERGED"


# ---- predictive check


def test_predicted_wins_by_quadrature():
    weights, abilities, _ = quadrature([[0, 8], [2, 0]])
    chances = [(weights * stats.binom.pmf(k, 10, stats.logistic.cdf(abilities[0]))).sum() for k in range(11)]
    (row,) = bradley_terry.predictive(draw([[0, 8], [2, 0]])).to_dict("records")
    assert row["predicted"] == pytest.approx(np.dot(chances, range(11)), abs=0.1)
    edges = np.searchsorted(np.cumsum(chances), [0.05, 0.95])
    assert [row["low"], row["high"]] == edges.tolist() and sum(chances[row["low"] : row["high"] + 1]) >= 0.9
    assert (row["wins"], row["games"], row["inside_50"], row["inside_90"]) == (8, 10, True, True)


def test_what_no_ability_explains_lies_outside():
    table = bradley_terry.predictive(draw(ROCK_PAPER_SCISSORS))
    assert not table["inside_90"].any() and (table["predicted"] - 5).abs().max() < 0.3 and (table["games"] == 10).all()


def test_alike_algorithms_vary_more_than_the_model_believes():
    """Rank sums of random orders of 8 algorithms, against what independent comparisons would give."""
    n, m = 8, 12
    won = [bradley_terry.wins(random_matrix(seed, n, m, 10**6)).to_numpy().sum(axis=1) for seed in range(600)]
    difference = np.array(won)[:, 0] - np.array(won)[:, 1]
    believed = math.sqrt(m * (1 + 2 * (n - 2) / 4))  # of the pair's own games, and of those of both with all others
    assert difference.std() / believed == pytest.approx(bradley_terry.too_narrow(n), rel=0.1)


# ---- in the analysis


def runs_of(values: np.ndarray) -> pd.DataFrame:
    """values [n, r, m] as records."""
    rows = [(f"a{i}", run, f"d{j}", "accuracy", value) for (i, run, j), value in np.ndenumerate(values)]
    return records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "metric", "value"]), "hand")


def test_results_of_the_analysis():
    values = np.random.default_rng(0).normal(50, 3, (4, 1, 9)) + np.random.default_rng(1).normal(0, 2, (4, 5, 9))
    frame = runs_of(values)
    matrix = matrix_of(values.mean(axis=1))
    std = matrix_of(values.std(axis=1, ddof=1))
    options = Options(permutations=1000, seed=7)
    for compared, won in ((frame, bradley_terry.wins(matrix, 1.0, std)), (None, bradley_terry.wins(matrix, 1.0))):
        results, _, warnings = new_datasets.tests(matrix, options, {}, 1.0, compared)
        posterior = bradley_terry.posterior(won, seed=7)
        expected = bradley_terry.pairs(posterior).add_prefix("bt_").iloc[:, 2:]
        pd.testing.assert_frame_equal(results["pairs"][list(expected)], expected)
        model = results["bradley_terry"]
        assert model["inside_90"] == model["predictive"]["inside_90"].mean() and model["r_hat"] == posterior.r_hat
        assert model["tie"] == ("1" if compared is None else "0.4 std of the runs of the pair on the data set")
        assert results["quade"]["f"] > 0 and not {"MISFIT", "NOT_CONVERGED"} & {warning["code"] for warning in warnings}
    assert not bradley_terry.wins(matrix, 1.0, std).equals(bradley_terry.wins(matrix, 1.0))


def test_a_model_that_does_not_fit_is_called_so():
    cycle = np.array([[3.0, 2, 1], [1, 3, 2], [2, 1, 3]])  # a0 beats a1 beats a2 beats a0 on two of three data sets
    found = {}
    for times in (2, 14):
        matrix = 10 * np.tile(cycle.T, times)
        found[times] = analyse(runs_of(matrix[:, None] + [[0], [0.1]]), Options(permutations=1000))
        page = document.build(found[times], [], {"input": ["scores.csv"]})
        section = next(section for section in page.sections if "win on another" in section.title)
        assert ("do not use it" in section.text[1]) == (times == 14) and "too narrow" in section.text[2]
        assert [len(table) for _, table in section.tables] == [3, 3]
        assert section.tables[0][1]["P(the first wins)"].between(0.4, 0.6).all()
    codes = {times: {warning["code"] for warning in found[times].results["warnings"]} for times in found}
    assert "MISFIT" in codes[14] and "MISFIT" not in codes[2]
