"""Signed-rank posterior, bootstrap, power, sensitivity, the paper's own numbers: golden values, second routes, enumeration, invariances."""

import itertools
import math

import numpy as np
import pandas as pd
import published as published_numbers
import pytest
from scipy import stats

from jaxbed.stats import tables
from jaxbed.stats.comparisons import bayes, published_tables, ranks
from jaxbed.stats.reading import records
from jaxbed.stats.sensitivity import bootstrap, leave_one_out, multiverse, power

OWN = ["ImageNetStylized", "DeepAugCAE", "DeepAugEDSR"]  # not in the paper's strict set


def golden(letter: str) -> list[dict]:
    return [case for case in published_numbers.cases() if case["name"].startswith(letter)]


def matrix_of(x, names=None) -> pd.DataFrame:
    x = np.array(x, dtype=float)
    return pd.DataFrame(x, index=names or [f"a{i}" for i in range(len(x))], columns=[f"d{j}" for j in range(x.shape[1])])


def random_matrix(seed: int, n: int, m: int, levels: int = 1000) -> pd.DataFrame:
    return matrix_of(np.random.default_rng(seed).integers(0, levels, (n, m)) / 10)


def selected_scores(values: np.ndarray, runs: dict[int, int] | None = None) -> pd.DataFrame:
    """values [n, r, m]; `runs`: place of an algorithm -> how many of its runs to keep."""
    rows = [
        (f"a{i}", run, f"d{j}", "accuracy", value)
        for (i, run, j), value in np.ndenumerate(values)
        if run < (runs or {}).get(i, values.shape[1])
    ]
    return records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "metric", "value"]), "hand")


def by_pair(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index(["algorithm_i", "algorithm_j"])


@pytest.fixture(scope="module")
def runs():
    return records.load([published_numbers.biasbed() / "best_validation.csv"])


@pytest.fixture(scope="module")
def published(runs):
    """The matrix behind BiasBed's tests: its run sets, and one order that rounding has turned round (statistics.md 1.1)."""
    matrix = tables.matrix(tables.summary(records.exclude(runs, ["pAdaIN:2,5"])[0]))
    two = ["ERM", "InfoDrop"]
    matrix.loc[two, "ImageNetStylized"] = matrix.loc[two[::-1], "ImageNetStylized"].to_numpy()
    return matrix


# ---- Bayesian signed-rank


def test_signed_rank_of_golden_cases():
    cases = golden("W")
    assert len(cases) == 3
    for case, rope in itertools.product(cases, (0.0, 0.01)):
        matrix = matrix_of([case["input"]["y"], case["input"]["x"]])
        (row,) = bayes.signed_rank(matrix, rope, draws=2000).to_dict("records")
        theta = [row["theta_i"], row["theta_rope"], row["theta_j"]]
        assert theta == pytest.approx(case["expected"][f"bayes_signed_rank_mean_theta_rope{rope}"], abs=1e-6)


def slow_signed_rank(difference, rope, draws, rng):
    """By the definition, one draw after the other, the first atom being 0."""
    atoms = [0.0, *difference]
    shares, mean = np.zeros(3), np.zeros(3)
    for w in rng.dirichlet([0.5] + [1.0] * len(difference), draws):
        theta = np.zeros(3)
        for (x, wx), (y, wy) in itertools.product(zip(atoms, w, strict=True), repeat=2):
            theta[0 if x + y > 2 * rope else 2 if x + y < -2 * rope else 1] += wx * wy
        shares[theta.argmax()] += 1 / draws
        mean += theta / draws
    return shares, mean


def test_signed_rank_by_loops():
    rng = np.random.default_rng(0)
    x, y = np.array([0.9, 0.4, 0.8, 0.7, 0.1, 0.6]), np.array([1.43, 0.31, 0.42, 0.23, 0.28, 0.19])
    shares, mean = slow_signed_rank(x - y, 0.15, 4000, rng)
    row = bayes.signed_rank(matrix_of([x, y]), 0.15).iloc[0]
    np.testing.assert_allclose(row[["p_i", "p_rope", "p_j"]].astype(float), shares, atol=0.03)  # 4 standard errors of 4000 draws
    np.testing.assert_allclose(row[["theta_i", "theta_rope", "theta_j"]].astype(float), mean, atol=0.01)
    assert shares.min() > 0.01 and 0.05 < shares[1] < 0.95


def test_signed_rank_is_even_handed():
    matrix = random_matrix(1, 4, 7, levels=8)
    found = by_pair(bayes.signed_rank(matrix, 0.1, draws=5000))
    np.testing.assert_allclose(found[["p_i", "p_rope", "p_j"]].sum(axis=1), 1)
    turned = by_pair(bayes.signed_rank(matrix.iloc[::-1, ::-1], 0.1, draws=5000))
    for (i, j), row in found.iterrows():
        np.testing.assert_allclose(turned.loc[(j, i), ["p_j", "p_rope", "p_i", "theta_j", "theta_rope", "theta_i"]], row, atol=1e-9)
    percent = by_pair(bayes.signed_rank(100 * matrix, 10, draws=5000))
    np.testing.assert_allclose(percent, found, atol=1e-9)
    same = bayes.signed_rank(random_matrix(2, 1, 7).iloc[[0] * 6].set_axis(list("abcdef")), 0.0, draws=1000)
    assert (same[["p_i", "p_rope", "p_j"]] == [0.5, 0, 0.5]).all(axis=None)  # no coin tossed by rounding errors
    with pytest.raises(ValueError, match=r"rope -1: must be 0 or more"):
        bayes.signed_rank(matrix, -1)


def test_chunks_of_draws_add_up(monkeypatch):
    matrix = random_matrix(1, 3, 7)
    whole = bayes.signed_rank(matrix, 1.0, draws=5000)
    monkeypatch.setattr(bayes, "CHUNK", 36 * 1700)  # 36 products for 7 data sets
    pd.testing.assert_frame_equal(bayes.signed_rank(matrix, 1.0, draws=5000), whole)


# ---- bootstrap of runs


def test_bootstrap_of_the_golden_case():
    (case,) = golden("R1")
    scores = np.array(case["input"]["runs"]).reshape(1, 3, 1)
    (row,) = bootstrap.cells(selected_scores(scores)).to_dict("records")
    expected = case["expected"]
    for name, key in (("mean", "mean"), ("se", "se"), ("resamples", "distinct"), ("smallest_p", "p_min"),
                      ("percentile_low", "percentile_2_5"), ("percentile_high", "percentile_97_5")):  # fmt: skip
        assert row[name] == pytest.approx(expected[key], abs=1e-6), name
    assert [row["t_low"], row["t_high"]] == pytest.approx(expected["t_interval_95"], abs=1e-6)
    interval = stats.ttest_1samp(scores.ravel(), 0).confidence_interval()
    assert [row["t_low"], row["t_high"]] == pytest.approx(list(interval))
    one = bootstrap.cells(selected_scores(scores[:, :1])).iloc[0]
    assert math.isnan(one["t_low"]) and one["percentile_low"] == one["percentile_high"] == 0.6


def test_resamples_are_those_of_an_enumeration():
    values = np.random.default_rng(0).random((2, 3, 2))
    means = bootstrap.resample(selected_scores(values), draws=27_000).means[:, 1]
    listed = [values[1, list(pick)].mean(axis=0).round(9) for pick in itertools.product(range(3), repeat=3)]
    possible, expected = np.unique(listed, axis=0, return_counts=True)
    found, counts = np.unique(means, axis=0, return_counts=True)
    np.testing.assert_allclose(found, possible, atol=2e-9)  # 10 pairs: a run is drawn with both of its scores
    assert stats.chisquare(counts, 1000 * expected).pvalue > 1e-3


def test_runs_and_datasets_are_resampled_by_label():
    values = np.random.default_rng(0).random((3, 5, 4))
    selected = selected_scores(values, {1: 2})
    for datasets in (False, True):
        one = bootstrap.resample(selected, 50, seed=3, datasets=datasets)
        other = bootstrap.resample(selected.iloc[::-1], 50, seed=3, datasets=datasets)
        assert other.algorithms == one.algorithms[::-1]
        np.testing.assert_array_equal(one.means, other.means[:, ::-1])
        np.testing.assert_array_equal(one.iqm, other.iqm[:, ::-1])
        assert not np.array_equal(one.means, bootstrap.resample(selected, 50, seed=4, datasets=datasets).means)
    assert len(np.unique(bootstrap.resample(selected, 500).means[:, 1, 0])) == 3  # two runs: 2 of 2
    constant = selected_scores(np.broadcast_to(np.arange(4.0), (2, 3, 4)))  # a score of j on data set j
    drawn = bootstrap.resample(constant, 200, datasets=True)
    assert (drawn.means[:, 0] == drawn.means[:, 1]).all() and len(np.unique(drawn.means[:, 0], axis=0)) > 100


def test_a_run_without_all_datasets_is_refused():
    selected = selected_scores(np.zeros((2, 3, 2))).drop(3)
    with pytest.raises(ValueError, match=r"'a0' run 1 has no score on 'd1'.*or --exclude a0:1"):
        bootstrap.resample(selected)


@pytest.mark.parametrize(("n", "m", "levels"), [(2, 3, 3), (4, 7, 4), (6, 5, 1000)])
def test_ranks_and_f_of_many_matrices_at_once(n, m, levels):
    many = [random_matrix(seed, n, m, levels) for seed in range(20)]
    ranked = bootstrap.rank(np.stack([matrix.to_numpy() for matrix in many]))
    np.testing.assert_array_equal(ranked, [ranks.rank(matrix) for matrix in many])
    np.testing.assert_allclose(bootstrap.friedman_f(ranked), [ranks.friedman(matrix)["f"] for matrix in many], rtol=1e-9)


def test_intervals_and_differences():
    values = np.random.default_rng(1).normal(size=(3, 8, 5)) + np.arange(3)[:, None, None]
    selected = selected_scores(values)
    drawn = bootstrap.resample(selected)
    found = bootstrap.intervals(selected, drawn).set_index(["quantity", "name"])
    matrix = tables.matrix(tables.summary(selected))
    assert found.loc[("f", "all"), "value"] == pytest.approx(ranks.friedman(matrix)["f"])
    np.testing.assert_allclose(found.loc["mean_rank"]["value"], ranks.mean_ranks(matrix))
    np.testing.assert_allclose(found.loc["mean"]["value"], values.mean(axis=(1, 2)))
    np.testing.assert_allclose(found.loc["iqm"]["value"], [stats.trim_mean(v.ravel(), 0.25) for v in values])
    assert found.loc["best_share"]["value"].sum() == pytest.approx(1) and found.loc[("best_share", "a2"), "value"] > 0.9
    bounded = found[found["low"].notna()]
    assert bounded["value"].between(bounded["low"], bounded["high"]).all()
    width = found.loc[("mean", "a0"), "high"] - found.loc[("mean", "a0"), "low"]
    assert width == pytest.approx(2 * 1.96 * values[0].mean(axis=1).std() / math.sqrt(8), rel=0.1)  # runs are drawn whole
    pair = by_pair(bootstrap.differences(selected, drawn)).loc[("a0", "a2")]
    assert pair["mean_difference"] == pytest.approx(values[0].mean() - values[2].mean())
    assert pair["rank_difference"] == pytest.approx(ranks.mean_ranks(matrix)["a0"] - ranks.mean_ranks(matrix)["a2"])
    assert pair["rank_difference_low"] > 0 > pair["mean_difference_high"]


def test_stability_with_a_given_test_and_in_one_stroke(runs):
    drawn = bootstrap.resample(runs, draws=60)
    fast, slow = bootstrap.stability(drawn), bootstrap.stability(drawn, ranks.nemenyi)
    pd.testing.assert_frame_equal(fast, slow)
    assert fast["significant"].nunique() > 4
    first = bootstrap.stability(drawn, ranks.nemenyi, draws=10)["significant"]
    assert set((first * 10).round(6)) <= set(range(11))


def test_stability_of_the_published_conclusion(runs):
    draws = 4000
    drawn = bootstrap.resample(runs, draws)
    found = by_pair(bootstrap.stability(drawn))
    error = 4 * math.sqrt(0.25 / draws) + 0.005  # Monte Carlo, and figures printed in whole percent
    assert found.loc[("ERM", "DeepAugCAE_ERM"), "significant"] == pytest.approx(0.36, abs=error)
    assert found.loc[("Debiased", "SagNet"), "significant"] == pytest.approx(0.87, abs=error)
    texts = [finding["text"] for finding in bootstrap.findings(found.reset_index())]
    assert any(text.startswith("ERM - DeepAugCAE_ERM is significant in 3") for text in texts) and len(texts) == found["fragile"].sum()
    assert (found["fragile"] == found["significant"].between(0.05, 0.95)).all()
    assert found["significant"].between(0.0001, 0.05).any() and found["significant"].max() == 1
    f = bootstrap.intervals(runs, drawn).iloc[-1]
    assert [f["low"], f["high"]] == pytest.approx([6.6, 8.2], abs=0.1)
    strict = runs[~runs["dataset"].isin(OWN)]
    f = bootstrap.intervals(strict, bootstrap.resample(strict, draws)).iloc[-1]
    assert [f["low"], f["high"]] == pytest.approx([4.1, 5.8], abs=0.15)
    wide = bootstrap.intervals(runs, bootstrap.resample(runs, draws, datasets=True)).iloc[-1]
    assert wide["low"] < 5 and wide["high"] > 10  # other data sets move it far more than other seeds


# ---- power


def test_detectable_differences():
    from statsmodels.stats.power import TTestIndPower

    for count, expected in ((3, 3.07), (5, 2.02), (10, 1.33), (20, 0.91)):
        assert power.detectable(count) == pytest.approx(expected, abs=0.0075)
        assert power.detectable(count) == pytest.approx(TTestIndPower().solve_power(nobs1=count, alpha=0.05, power=0.8), rel=1e-4)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20_000, 4)), rng.normal(power.detectable(4, 0.9, 0.01), 1, (20_000, 4))
    assert (stats.ttest_ind(x, y, axis=1).pvalue < 0.01).mean() == pytest.approx(0.9, abs=0.01)
    with pytest.raises(ValueError, match="runs 1: the std of runs is unknown"):
        power.detectable(1)
    one_by_one = [power.detectable(count) for count in range(2, power.LARGEST_RUNS + 1)]
    np.testing.assert_allclose(power._detectable_up_to(power.LARGEST_RUNS, 0.8, 0.05), one_by_one, rtol=1e-11)


def test_smallest_differences_of_biasbed(runs):
    table = power.per_dataset(runs).set_index("dataset")
    for dataset, expected in (("Silhouette", (7.4, 4.9, 3.2, 2.2)), ("Edge", (12.1, 8.0, 5.2, 3.6)), ("ImageNetR", (1.3, 0.9, 0.6, 0.4))):
        np.testing.assert_allclose(table.loc[dataset, [f"detectable_{r}" for r in (3, 5, 10, 20)]], expected, atol=0.06)
    needed = power.runs_needed(runs).set_index(["algorithm_i", "algorithm_j", "dataset"])
    assert len(needed) == 280
    row = needed.loc[("ERM", "DeepAugCAE_ERM", "Silhouette")]
    std = table.loc["Silhouette", "run_std"]
    assert power.detectable(int(row["runs"])) * std <= abs(row["difference"]) < power.detectable(int(row["runs"]) - 1) * std
    assert math.isnan(needed.loc[("ERM", "InfoDrop", "ImageNetStylized"), "runs"])  # 0.01 apart


def test_model_is_found_again():
    rng = np.random.default_rng(0)
    effects = np.linspace(-1, 1, 40)
    values = effects[:, None, None] + rng.normal(0, 0.6, (40, 1, 50)) + rng.normal(0, 0.4, (40, 2, 50))
    scale, shift = rng.uniform(1, 20, 50), rng.uniform(0, 50, 50)
    found, whole = (power.fit(selected_scores(x, {2: 1})) for x in (values, values * scale + shift))
    np.testing.assert_allclose(found.effects, whole.effects)
    assert found[1:] == pytest.approx(whole[1:])  # the scale of a data set does not matter
    unit = np.std(effects, ddof=1) / found.effects.std()  # of a dataset's standard deviation
    assert [found.interaction * unit, found.run * unit] == pytest.approx([0.6, 0.4], rel=0.05)
    np.testing.assert_allclose(found.effects * unit, effects, atol=0.3)
    single = power.fit(selected_scores(values[:, :1]))
    assert math.isnan(single.run) and single.interaction > found.interaction
    with pytest.raises(ValueError, match="at least 2 data sets on which the algorithms differ, got 0"):
        power.fit(selected_scores(np.ones((3, 2, 4))))


def test_power_against_single_tests():
    """The same simulation written down again, a matrix at a time; small effects and a large alpha, so that wrong directions occur."""
    model = power.Model(pd.Series({"b": 0.25, "a": -0.2, "c": -0.05}), 0.5, 0.4)
    draws, largest, alpha = 80, 7, 0.4
    table = power.curves(model, 4, "a", largest, draws, alpha, seed=5).set_index(["test", "algorithm_i", "algorithm_j", "datasets"])[
        "power"
    ]
    normal = np.random.default_rng(5).standard_normal((draws, 3, largest))
    matrices = [matrix_of([[-0.2], [0.25], [-0.05]] + math.hypot(0.5, 0.2) * x, ["a", "b", "c"]) for x in normal]
    wrong = 0
    for m in (2, 3, 5, 7):
        parts = [matrix.iloc[:, :m] for matrix in matrices]
        assert table["friedman", "", "", m] == pytest.approx(np.mean([ranks.friedman(part)["p_f_moment"] < alpha for part in parts]))
        means = [ranks.mean_ranks(part) for part in parts]
        differ = np.array([ranks.nemenyi(part).loc["b", "c"] < alpha for part in parts])
        right = np.array([mean["b"] < mean["c"] for mean in means])
        assert table["nemenyi", "b", "c", m] == pytest.approx((differ & right).mean())
        wrong += (differ & ~right).sum()
        for name in "bc":
            found = [holm(mean, "a", m)[name] < alpha and mean[name] < mean["a"] for mean in means]
            assert table["control_holm", name, "a", m] == pytest.approx(np.mean(found))
    assert wrong > 0


def holm(mean: pd.Series, control: str, m: int) -> dict:
    n = len(mean)
    p = (mean - mean[control]).drop(control).abs() / math.sqrt(n * (n + 1) / (6 * m))
    p = pd.Series(2 * stats.norm.sf(p), index=p.index).sort_values()
    return (p * np.arange(n - 1, 0, -1)).cummax().clip(upper=1).to_dict()


TABLE = {  # statistics.md 4: power to find DeepAug-CAE better than ERM; r = 10, 1, 10, 100, 1, 10
    5: (0.55, 0.03, 0.03, 0.03, 0.10, 0.10), 7: (0.76, 0.07, 0.10, 0.09, 0.16, 0.20), 10: (0.92, 0.16, 0.19, 0.18, 0.29, 0.34),
    15: (0.99, 0.36, 0.40, 0.41, 0.50, 0.55), 20: (1, 0.55, 0.60, 0.62, 0.70, 0.76), 30: (1, 0.81, 0.86, 0.86, 0.90, 0.93),
    40: (1, 0.93, 0.96, 0.96, 0.98, 0.99),
}  # fmt: skip


def test_power_table(runs):
    model = power.fit(runs[~runs["dataset"].isin(OWN)])
    assert model.effects[["DeepAugCAE_ERM", "ERM"]].tolist() == pytest.approx([0.80, -0.34], abs=0.01)
    assert [model.interaction, model.run] == pytest.approx([0.91, 0.32], abs=0.05)
    model = model._replace(interaction=0.91, run=0.32)  # as the table was made
    curves = {
        count: power.curves(model, count, "ERM", 40, 4000).set_index(["test", "algorithm_i", "algorithm_j"]) for count in (1, 10, 100)
    }
    pair = ("ERM", "DeepAugCAE_ERM")
    columns = [
        (10, ("friedman", "", "")),
        *((r, ("nemenyi", *pair)) for r in curves),
        *((r, ("control_holm", *pair[::-1])) for r in (1, 10)),
    ]
    for place, (count, key) in enumerate(columns):
        found = curves[count].loc[key].set_index("datasets")["power"][list(TABLE)]
        # two simulations of 4000 with at most 0.008 standard error each, and two digits
        np.testing.assert_allclose(found, [row[place] for row in TABLE.values()], atol=0.035, err_msg=str((count, key)))
    needed = power.datasets_needed(curves[10].reset_index()).set_index(["test", "algorithm_i", "algorithm_j"])["datasets"]
    assert 25 <= needed["nemenyi", *pair] <= 31 and 20 <= needed["control_holm", *pair[::-1]] <= 24
    assert math.isnan(needed["nemenyi", "ERM", "InfoDrop"])


def test_power_does_not_depend_on_the_order_of_algorithms():
    model = power.fit(selected_scores(np.random.default_rng(0).normal(size=(4, 3, 6))))
    one = power.curves(model, 3, "a1", 12, 300)
    other = power.curves(model._replace(effects=model.effects[::-1]), 3, "a1", 12, 300)
    powers = [
        {(row.test, *sorted((row.algorithm_i, row.algorithm_j)), row.datasets): row.power for row in table.itertuples()}
        for table in (one, other)
    ]
    assert powers[0] == powers[1] and len(powers[0]) == (1 + 6 + 3) * 11


# ---- sensitivity


def test_pools_and_left_out_datasets_of_biasbed(published):
    pools = leave_one_out.pools(published, ranks.nemenyi, "ERM", "DeepAugCAE_ERM")
    assert len(pools) == 63 and pools["size"].iloc[-1] == 6 and pools["p"].iloc[-1] == pytest.approx(0.052759, abs=1e-6)
    assert [pools["p"].min(), pools["p"].max(), (pools["p"] < 0.05).mean()] == pytest.approx([0.0013, 0.276, 0.65], abs=5e-3)
    assert pools["p"].min() == pytest.approx(0.0013, abs=5e-5)
    omnibus = leave_one_out.omnibus_without_each_dataset(published)
    assert omnibus["f"][0] == pytest.approx(7.463415, abs=1e-6) and omnibus["without"][0] == ""
    assert [omnibus["f"][1:].min(), omnibus["f"][1:].max()] == pytest.approx([5.54, 10.10], abs=0.005)
    left_out = leave_one_out.without_each_dataset(published, ranks.nemenyi)
    significant = left_out[left_out["without"] != ""].groupby("without")["significant"].sum()
    assert (significant.min(), significant.max()) == (3, 7)

    strict = published.drop(columns=OWN)
    p = leave_one_out.pools(strict, ranks.nemenyi, "ERM", "DeepAugCAE_ERM")["p"]
    assert [p.min(), p.max()] == pytest.approx([0.020, 0.549], abs=5e-4)
    f = leave_one_out.omnibus_without_each_dataset(strict).set_index("without")["f"]
    assert [f["ImageNetR"], f["ImageNet1k"]] == pytest.approx([3.15, 7.95], abs=0.005)
    assert [f.idxmin(), f.idxmax()] == ["ImageNetR", "ImageNet1k"]


def test_findings_of_biasbed(published):
    found = leave_one_out.findings(
        leave_one_out.without_each_algorithm(published, ranks.nemenyi), leave_one_out.without_each_dataset(published, ranks.nemenyi)
    )
    named = {(finding["code"], finding["algorithm_i"], finding["algorithm_j"]): finding for finding in found}
    pool = named["POOL", "ERM", "DeepAugCAE_ERM"]
    assert pool["without"] == ["Stylized_ERM", "SagNet", "pAdaIN"]
    for name in published.index.drop(["ERM", "DeepAugCAE_ERM"]):
        assert (ranks.nemenyi(published.drop(index=name)).loc["ERM", "DeepAugCAE_ERM"] < 0.05) == (name in pool["without"])
    fragile = named["FRAGILE", "ERM", "DeepAugCAE_ERM"]
    assert fragile["without"] == ["ImageNet1k"]
    assert fragile["text"] == "ERM - DeepAugCAE_ERM is not significant with all data sets and significant without ImageNet1k"
    others = [("Debiased", "SagNet"), ("DeepAugEDSR_ERM", "SagNet"), ("DeepAugEDSR_ERM", "pAdaIN")]
    assert {key[1:] for key in named if key[0] == "FRAGILE"} == {("ERM", "DeepAugCAE_ERM"), *others}


def test_multiverse_of_biasbed():
    """36 of the 180 specifications of statistics.md 1.5, those of Nemenyi."""
    specifications = []
    for selection, runs_of, table_of in (
        ("best_val", "best_validation", "table2_best_validation_mean_std"),
        ("last_n:30", "last_30_epochs", "table3_last_30_epochs_mean_std"),
    ):
        frame = records.load([published_numbers.biasbed() / f"{runs_of}.csv"])
        table = pd.read_csv(published_numbers.biasbed() / f"{table_of}.csv").set_index(["algorithm", "dataset"])["mean"]
        for exclude, tenth in itertools.product(([], ["pAdaIN:4"], ["pAdaIN:2,5"]), (False, True)):
            matrix = tables.matrix(tables.summary(records.exclude(frame, exclude)[0]))
            if tenth:  # with the run that is in the table alone, the mean is the printed one
                matrix.loc["DeepAugCAE_ERM"] = table["DeepAugCAE_ERM"]
            strict = matrix.drop(columns=OWN)
            for datasets, part in (("all", matrix), ("strict", strict), ("shifted", strict.drop(columns="ImageNet1k"))):
                specifications.append(({"selection": selection, "tenth": tenth, "datasets": datasets}, part))
    table = multiverse.table_of(specifications, {"nemenyi": ranks.nemenyi, "one": lambda matrix: ranks.nemenyi(matrix) * 0 + 1})
    assert len(table) == 36 * 28 * 2 and list(table.columns[:4]) == ["selection", "tenth", "datasets", "test"]
    assert not table.loc[table["test"] == "one", "significant"].any()
    by = multiverse.agreement(table[table["test"] == "nemenyi"], ["datasets"]).set_index(["datasets", "algorithm_i", "algorithm_j"])
    for datasets, better in (("all", 6), ("strict", 0), ("shifted", 3)):
        row = by.loc[(datasets, "ERM", "DeepAugCAE_ERM")]
        assert (row["specifications"], row["i_better"], row["j_better"]) == (12, 0, better)
    assert by.loc[("all", "ERM", "DeepAugCAE_ERM"), "p_low"] == pytest.approx(0.0227, abs=5e-5)
    total = multiverse.agreement(table)
    assert len(total) == 28 and (total["specifications"] == 72).all()
    best = by_pair(total)
    assert best.loc[("DeepAugCAE_ERM", "pAdaIN"), ["i_better", "j_better"]].tolist() == [36, 0]
    assert (total["i_better"] + total["j_better"]).sum() == table["significant"].sum()


def test_pools_are_all_tables_with_the_pair():
    matrix = random_matrix(0, 5, 6)
    found = leave_one_out.pools(matrix, ranks.nemenyi, "a3", "a1")
    assert set(found["others"]) == {"a0", "a2", "a4", "a0 a2", "a0 a4", "a2 a4", "a0 a2 a4"}
    some = found.set_index("others")["p"]["a0 a4"]
    assert some == pytest.approx(ranks.nemenyi(matrix.loc[["a0", "a1", "a3", "a4"]]).loc["a1", "a3"])
    with pytest.raises(ValueError, match="no algorithm 'b'; available: a0, a1"):
        leave_one_out.pools(matrix, ranks.nemenyi, "a0", "b")
    with pytest.raises(ValueError, match="pools of 13 other algorithms"):
        leave_one_out.pools(random_matrix(0, 15, 6), ranks.nemenyi, "a0", "a1")


def test_leaving_out_from_the_smallest_tables():
    two = random_matrix(0, 2, 2)
    assert leave_one_out.without_each_algorithm(two, ranks.nemenyi)["without"].tolist() == [""]
    assert leave_one_out.without_each_dataset(two, ranks.nemenyi)["without"].tolist() == [""]


# ---- the paper's own numbers


def test_published_f_and_p(published):
    found = published_tables.friedman(published)
    assert [found["f"], found["p"]] == pytest.approx([7.463415, 2.173586e-6], rel=1e-6)
    assert found["degrees_of_freedom"] == pytest.approx([6.8, 61.2])
    assert [warning["code"] for warning in found["warnings"]] == ["PAPER_DF"] and "not the 7, 63 that" in found["warnings"][0]["text"]
    strict = published_tables.friedman(published.drop(columns=OWN))
    assert [strict["f"], strict["p"]] == pytest.approx([4.985765, 4.566540e-4], rel=1e-6)


def test_tables_4_and_5(published):
    entries = 0
    for name, matrix in (("table4_nemenyi_all", published), ("table5_nemenyi_strict", published.drop(columns=OWN))):
        p = published_tables.nemenyi(matrix)
        for row in pd.read_csv(published_numbers.biasbed() / f"{name}.csv").itertuples():
            assert round(float(p.loc[row.algorithm_i, row.algorithm_j]), 3) == row.p, row
            entries += row.algorithm_i != row.algorithm_j
    assert entries == 56


def test_old_nemenyi_ends_at_its_tables():
    matrix = matrix_of(np.arange(8.0)[:, None] + np.zeros((1, 40)))
    p = published_tables.nemenyi(matrix)
    assert p.to_numpy().min() == 0.001 and (np.diag(p) == 1).all() and (p.to_numpy() == p.to_numpy().T).all()
    assert (published_tables.nemenyi(matrix_of(np.zeros((3, 4)))).to_numpy()[0, 1:] == 0.9).all()


def test_table_3():
    folder = published_numbers.biasbed()
    last = pd.read_csv(folder / "last_30_epochs.csv").rename(columns={"accuracy": "value"})
    last = last[~((last["algorithm"] == "pAdaIN") & last["run"].isin([2, 5]))]
    table = pd.read_csv(folder / "table3_last_30_epochs_mean_std.csv")
    both = published_tables.pooled(last).merge(table, on=["algorithm", "dataset"], suffixes=("", "_printed"))
    both = both[both["algorithm"] != "DeepAugCAE_ERM"]  # a tenth run of it is in the table alone
    assert len(both) == 70
    np.testing.assert_allclose(both["mean"], both["mean_printed"], atol=0.1)
    np.testing.assert_allclose(both["std"], both["std_printed"], atol=0.1)


def test_pooled_spread_is_that_of_all_epochs_of_all_runs():
    values = np.random.default_rng(0).random((3, 9))  # runs, epochs
    rows = [("erm", run, "A", epoch, "accuracy", value) for (run, epoch), value in np.ndenumerate(values)]
    frame = records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "epoch", "metric", "value"]), "hand")
    (row,) = published_tables.pooled(published_tables.run_spread(frame.sample(frac=1, random_state=0), 4)).to_dict("records")
    assert [row["mean"], row["std"]] == pytest.approx([values[:, -4:].mean(), values[:, -4:].std()])
