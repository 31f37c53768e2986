"""Permutation tests, Quade, pairs, missing cells, per-dataset tests: golden values, brute force, SciPy and scikit-posthocs, invariances."""

import math
from itertools import combinations, permutations, product

import numpy as np
import pandas as pd
import published
import pytest
from scipy import stats

from jaxbed.stats.comparisons import pairwise, per_dataset, permutation, ranks, run_permutations, skillings_mack

CASES = {case["name"]: case for case in published.cases()}

# BiasBed's ranks, one row a data set (all 10; rows 5, 8, 9 are not in its strict set), and the single-step p-value of each difference of
# rank sums from 4 million draws.
BIASBED = np.array(
    [list(map(int, row)) for row in "36258147 57846312 67581423 87561423 67851432 75861234 47638125 58764213 47658312 64758321".split()]
)
ALL = {1: 1.0, 3: 1.0, 5: 0.99991, 6: 0.99967, 7: 0.99908, 8: 0.99767, 9: 0.99492, 11: 0.98206, 12: 0.96977, 14: 0.92882, 16: 0.86017,
       19: 0.70616, 21: 0.58011, 22: 0.51487, 25: 0.32954, 26: 0.27534, 27: 0.22665, 30: 0.11539, 32: 0.06783, 33: 0.05081, 35: 0.02708,
       38: 0.00931, 41: 0.00271, 44: 0.00067}  # fmt: skip
STRICT = {0: 1.0, 4: 0.99995, 6: 0.99906, 8: 0.99338, 10: 0.97310, 12: 0.92447, 14: 0.83665, 16: 0.70980, 18: 0.55745, 20: 0.40191,
          22: 0.26420, 24: 0.15769, 26: 0.08488, 30: 0.01764, 34: 0.00220}  # fmt: skip


def golden(prefix: str) -> dict:
    return next(case for name, case in CASES.items() if name.startswith(prefix))


def matrix_of(x) -> pd.DataFrame:
    """Rows of x are data sets."""
    x = np.array(x, dtype=float)
    return pd.DataFrame(x.T, index=[f"a{i}" for i in range(x.shape[1])], columns=[f"d{i}" for i in range(x.shape[0])])


def tidy(groups: dict[str, list[list[float]]]) -> pd.DataFrame:
    """groups[algorithm][dataset][run]."""
    rows = [
        (name, run, f"d{dataset}", value)
        for name, datasets in groups.items()
        for dataset, runs in enumerate(datasets)
        for run, value in enumerate(runs, start=1)
    ]
    return pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"])


def one_dataset(groups: list[list[float]]) -> pd.DataFrame:
    return tidy({f"a{place}": [runs] for place, runs in enumerate(groups)})


def random_scores(seed: int, algorithms: int = 4, datasets: int = 3, runs: int = 4, levels: int = 12) -> pd.DataFrame:
    values = (np.random.default_rng(seed).integers(0, levels, (algorithms, datasets, runs)) + 3 * np.arange(algorithms)[:, None, None]) / 10
    return tidy({f"a{place}": block.tolist() for place, block in enumerate(values)})


def by_pair(frame: pd.DataFrame, column: str) -> dict:
    """The column by data set and pair, whichever comes first; a12 turns with the pair."""
    values = {}
    for row in frame.to_dict("records"):
        i, j = row["algorithm_i"], row["algorithm_j"]
        turned = 1 - row[column] if column == "a12" else row[column]
        values[row.get("dataset"), *sorted([i, j])] = row[column] if i < j else turned
    return values


def brute_force(blocks: np.ndarray):
    """Rank sums [K, n] of all label orders within blocks [m, n]."""
    return np.array([np.sum(orders, axis=0) for orders in product(*(list(permutations(block)) for block in blocks))])


# ---- permutation of ranks within data sets


def test_golden_exact_p():
    cases = [
        case for case in CASES.values() if "p_exact" in case["expected"] and "X" in case["input"] and "nemenyi_exact" in case["expected"]
    ]
    assert {case["name"][:2] for case in cases} == {"B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "D1", "D2"}
    for case in cases:
        found, expected = permutation.test(matrix_of(case["input"]["X"])), case["expected"]
        assert (found.method, found.draws, found.standard_error, found.seed) == ("exact", 0, 0, None)
        assert found.p == pytest.approx(expected["p_exact"], rel=1e-9), case["name"]
        np.testing.assert_allclose(found.pairs, expected["nemenyi_exact"], rtol=1e-9, err_msg=case["name"])
    tied = permutation.test(matrix_of(golden("B9")["input"]["X"]), baseline="a0")
    assert tied.p == 1 and (tied.pairs == 1).all(axis=None) and (tied.baseline == 1).all()


@pytest.mark.parametrize(("n", "m", "levels"), [(2, 5, 9), (3, 4, 9), (3, 4, 3), (4, 2, 4), (4, 3, 9)])
def test_exact_p_against_all_orders_listed(n, m, levels):
    matrix = matrix_of(np.random.default_rng(n + m + levels).integers(0, levels, (m, n)))
    blocks = ranks.rank(matrix).to_numpy().T
    sums, observed = brute_force(blocks), blocks.sum(axis=0)
    found = permutation.test(matrix, baseline="a1")
    assert found.method == "exact" and found.blocks == m
    assert found.p == pytest.approx(((sums**2).sum(axis=1) >= (observed**2).sum()).mean())
    for i, j in combinations(range(n), 2):
        assert found.pairs.iloc[i, j] == pytest.approx((np.ptp(sums, axis=1) >= abs(observed[i] - observed[j])).mean())
    reach = np.abs(sums - sums[:, [1]]).max(axis=1)
    expected = {f"a{i}": (reach >= abs(observed[i] - observed[1])).mean() for i in range(n) if i != 1}
    assert found.baseline.to_dict() == pytest.approx(expected)


def test_one_pass_of_random_orders_agrees_with_the_exact_p(monkeypatch):
    matrix = matrix_of(np.random.default_rng(3).integers(0, 5, (7, 4)) + 2 * np.eye(4)[0])
    exact = permutation.test(matrix, baseline="a2")
    monkeypatch.setattr(permutation, "WORK", 0)
    found = permutation.test(matrix, baseline="a2", draws=50_000, seed=5)
    assert (found.method, found.draws, found.seed) == ("monte carlo", 50_000, 5)
    assert found.standard_error == pytest.approx(math.sqrt(exact.p * (1 - exact.p) / 50_000), rel=0.05) and exact.p < 0.5
    for name in ("p", "pairs", "baseline"):
        p, near = np.asarray(getattr(exact, name)), np.asarray(getattr(found, name))
        assert (np.abs(near - p) <= 4 * np.sqrt(p * (1 - p) / 50_000) + 2e-5).all(), name
        assert (near >= 1 / 50_001).all()


@pytest.mark.parametrize(("rows", "p_friedman", "published"), [(range(10), 3.7e-6, ALL), ((0, 1, 2, 3, 4, 6, 7), 0.000602, STRICT)])
def test_single_step_p_of_biasbed(rows, p_friedman, published):
    ranked = BIASBED[list(rows)]
    found, sums = permutation.test(matrix_of(-ranked)), ranked.sum(axis=0)
    assert found.method == "monte carlo" and found.draws == 100_000
    assert abs(found.p - p_friedman) < 4 * math.sqrt(p_friedman / 100_000) + 2e-5
    seen = set()
    for i, j in combinations(range(8), 2):
        difference = abs(int(sums[i] - sums[j]))
        p = published[difference]
        seen.add(difference)
        assert abs(found.pairs.iloc[i, j] - p) < 4 * math.sqrt(p * (1 - p) / 100_000 + 0.25 / 4e6) + 2e-5, difference
    assert seen == set(published)


def test_a_family_is_relabelled_as_one():
    x = np.random.default_rng(11).integers(0, 6, (5, 3))
    matrix, families = matrix_of(x), {"d0": "photo", "d1": "photo", "d2": "sketch", "d3": "photo", "d4": "sketch"}
    ranked = ranks.rank(matrix).to_numpy().T
    orders = list(permutations(range(3)))
    sums = np.array([ranked[[0, 1, 3]][:, list(a)].sum(0) + ranked[[2, 4]][:, list(b)].sum(0) for a in orders for b in orders])
    found = permutation.test(matrix, families=families, baseline="a0")
    assert (found.method, found.blocks) == ("exact", 2)
    assert found.p == pytest.approx(((sums**2).sum(axis=1) >= (ranked.sum(0) ** 2).sum()).mean())
    reach = np.abs(sums - sums[:, [0]]).max(axis=1)
    assert found.baseline["a1"] == pytest.approx((reach >= abs(ranked.sum(0)[1] - ranked.sum(0)[0])).mean())
    alone = permutation.test(matrix, families={name: name for name in matrix.columns})
    assert alone.p == permutation.test(matrix).p and alone.blocks == 5
    together = permutation.test(matrix, families=dict.fromkeys(matrix.columns, "all"))
    assert together.p == 1 and (together.pairs.loc["a0", "a1"] <= 1) and together.blocks == 1
    with pytest.raises(ValueError, match="no family is given for d4"):
        permutation.test(matrix, families={name: name for name in matrix.columns[:4]})


def test_copies_of_a_dataset_are_no_evidence():
    """The same ranks three times: as data sets p is tiny, as one family it stays what one data set gives."""
    x = np.repeat([[4, 3, 2, 1], [4, 2, 3, 1]], 3, axis=0)
    matrix = matrix_of(x)
    families = {name: f"f{place // 3}" for place, name in enumerate(matrix.columns)}
    assert permutation.test(matrix).p < 2e-5
    assert permutation.test(matrix, families=families).p == pytest.approx(permutation.test(matrix_of(x[[0, 3]])).p)


@pytest.mark.parametrize(("n", "m"), [(3, 5), (8, 10)])
def test_order_and_monotone_scale_do_not_matter(n, m):
    matrix = matrix_of(np.random.default_rng(n).integers(0, 7, (m, n)) / 10)
    rows, columns = np.random.default_rng(1).permutation(n), np.random.default_rng(2).permutation(m)
    other = np.exp(3 * matrix).mul(np.arange(1, m + 1), axis=1).iloc[rows, columns]
    first, second = (permutation.test(each, baseline="a1", draws=5_000) for each in (matrix, other))
    assert first[:6] == second[:6]
    assert first.pairs.equals(second.pairs.loc[matrix.index, matrix.index])
    assert first.baseline.equals(second.baseline[first.baseline.index])
    assert (first.method == "monte carlo") == (n == 8)
    assert permutation.test(matrix, draws=5_000, seed=1).p != first.p or n == 3


def test_smallest_p_is_reached_by_perfect_agreement():
    for n, m in [(2, 4), (3, 3), (4, 2), (5, 3)]:
        matrix = matrix_of(np.tile(np.arange(n), (m, 1)))
        found, floor = permutation.test(matrix, baseline="a0"), permutation.smallest_p(n, m)
        assert found.p == pytest.approx(floor["friedman_exact"])
        assert found.pairs.iloc[0, -1] == pytest.approx(floor["permutation_pairs"])
        assert found.baseline.iloc[-1] == pytest.approx(floor["permutation_baseline"])
        assert ranks.nemenyi(matrix).iloc[0, -1] == pytest.approx(floor["nemenyi"])
        assert pairwise.pairs(matrix)["p_wilcoxon"].min() == pytest.approx(floor["wilcoxon"])
        assert pairwise.pairs(matrix, "a0")["p_wilcoxon"].min() == pytest.approx(floor["wilcoxon"])
        assert pairwise.pairs(matrix)["p_sign"].min() == pytest.approx(floor["wilcoxon"])
    unanimous = permutation.test(matrix_of(np.tile(np.arange(8), (10, 1))), baseline="a0", draws=999)
    assert unanimous.p == unanimous.pairs.iloc[0, 7] == unanimous.baseline["a7"] == 0.001  # never 0
    one_better = matrix_of([[9, *np.random.default_rng(row).permutation(7)] for row in range(10)])
    assert pairwise.pairs(one_better)["p_wilcoxon_holm"].min() == pytest.approx(permutation.smallest_p(8, 10)["wilcoxon_holm_pairs"])
    assert pairwise.pairs(one_better, "a0")["p_wilcoxon_holm"].min() == pytest.approx(
        permutation.smallest_p(8, 10)["wilcoxon_holm_baseline"]
    )
    assert permutation.smallest_p(8, 10)["wilcoxon_holm_pairs"] == pytest.approx(0.0547, abs=5e-5)


@pytest.mark.parametrize(
    ("n", "fewest"),
    [(2, (6, 4, 6, 6, 6)), (3, (3, 3, 6, 7, 7)), (5, (2, 3, 6, 8, 9)), (8, (2, 3, 6, 9, 11)), (15, (2, 3, 6, 10, 13))],
)
def test_fewest_datasets_at_which_anything_can_be_significant(n, fewest):
    names = ("friedman_exact", "nemenyi", "wilcoxon", "wilcoxon_holm_baseline", "wilcoxon_holm_pairs")
    floors = {m: permutation.smallest_p(n, m) for m in range(1, 14)}
    assert tuple(min(m for m in floors if floors[m][name] < 0.05) for name in names) == fewest


def test_refusals():
    with pytest.raises(ValueError, match="baseline 'erm': no such algorithm; available: a0, a1"):
        permutation.test(matrix_of([[1, 2]]), baseline="erm")
    with pytest.raises(ValueError, match="baseline 'erm': no such algorithm; available: a0, a1"):
        pairwise.pairs(matrix_of([[1, 2], [1, 2]]), "erm")
    with pytest.raises(ValueError, match="one data set is one block"):
        pairwise.pairs(matrix_of([[1, 2]]))
    with pytest.raises(ValueError, match="rank tests need every cell"):
        permutation.test(matrix_of([[1, math.nan]]))


# ---- Quade


def slow_quade(x: np.ndarray) -> tuple[float, np.ndarray]:
    """F by the definition, and the weighted ranks S; rows of x are data sets."""
    m, n = x.shape
    weights = stats.rankdata(np.ptp(x, axis=1).round(9))
    s = np.array([w * (stats.rankdata(row) - (n + 1) / 2) for w, row in zip(weights, x, strict=True)])
    between = (s.sum(axis=0) ** 2).sum() / m
    return (m - 1) * between / ((s**2).sum() - between), s


def test_quade_of_a_published_example():
    """Sales of 5 brands of hand lotion in 7 stores: Conover 1999, 5.8, and the example of R's quade.test."""
    x = [[5, 4, 7, 10, 12], [1, 3, 1, 0, 2], [16, 12, 22, 22, 35], [5, 4, 3, 5, 4], [10, 9, 7, 13, 10], [19, 18, 28, 37, 58],
         [10, 7, 6, 8, 7]]  # fmt: skip
    found = ranks.quade(matrix_of(x))
    assert found["f"] == pytest.approx(3.8293, abs=5e-5) and found["f_degrees_of_freedom"] == [4, 24]
    assert found["p"] == pytest.approx(0.01519, abs=5e-6)


@pytest.mark.parametrize(("n", "m", "levels"), [(2, 6, 50), (2, 9, 5), (4, 6, 50), (5, 8, 6)])
def test_quade_by_other_routes(n, m, levels):
    x = np.random.default_rng(n * m).integers(0, levels, (m, n)) / 10
    found, (f, s) = ranks.quade(matrix_of(x)), slow_quade(x)
    assert found["f"] == pytest.approx(f) and len(np.unique(np.ptp(x, axis=1).round(9))) < m  # with ties of the ranges
    if n == 2:
        import scikit_posthocs

        assert found["p"] == pytest.approx(scikit_posthocs.posthoc_quade((10 * x).round()).iloc[0, 1])  # .3 - .1 must tie with .2
    residuals = s - s.mean(axis=0)  # analysis of variance of S, whose mean in every block is 0
    variances = m * s.mean(axis=0).var() * n / (n - 1), (residuals**2).sum() / ((n - 1) * (m - 1))
    assert found["f"] == pytest.approx(variances[0] / variances[1])
    assert found["p"] == pytest.approx(stats.f.sf(f, n - 1, (n - 1) * (m - 1)))


def test_p_of_quade_against_all_orders_listed():
    x = np.array([[0.5, 0.2, 0.3], [0.1, 0.25, 0.35], [0.3, 0.35, 0.8], [0.2, 0.4, 0.9]])
    listed = np.array([slow_quade(np.array(orders))[0] for orders in product(*(list(permutations(row)) for row in x))])
    assert len(listed) == 6**4
    found = ranks.quade(matrix_of(x))
    assert found["p"] == pytest.approx((listed >= found["f"] - 1e-9).mean(), abs=0.03)
    rejects = stats.f.sf(listed, 2, 6)
    for alpha in (0.05, 0.1, 0.2):
        assert (rejects <= alpha).mean() == pytest.approx(alpha, abs=0.03)


def test_quade_order_and_scale():
    matrix = matrix_of(np.random.default_rng(1).integers(0, 9, (7, 4)) / 10)
    f = ranks.quade(matrix)["f"]
    assert ranks.quade(matrix.iloc[::-1, [3, 0, 6, 1, 2, 5, 4]])["f"] == f
    assert ranks.quade(100 * matrix - 3)["f"] == f  # one scale for all; a tie of ranges is one in percent too
    assert abs(ranks.quade(matrix * np.arange(1, 8))["f"] - f) > 0.01  # a scale for each data set is another question


def test_quade_where_there_is_little_to_test():
    tied = ranks.quade(matrix_of(np.ones((4, 3))))
    assert math.isnan(tied["f"]) and tied["p"] == 1
    single = ranks.quade(matrix_of([[1, 2, 3]]))
    assert math.isnan(single["f"]) and math.isnan(single["p"])
    alike = ranks.quade(matrix_of([[1, 2, 3]] * 4))
    assert alike["f"] == math.inf and alike["p"] == 0
    x = np.vstack([np.random.default_rng(0).random((6, 3)), np.ones((2, 3))])  # two data sets on which nothing differs
    assert ranks.quade(matrix_of(x))["f"] == pytest.approx(slow_quade(x)[0])
    with pytest.raises(ValueError, match="nan"):
        ranks.quade(matrix_of([[1, 2], [math.nan, 1]]))


# ---- missing cells


def test_golden_missing_cell():
    case = golden("B10")
    found, expected = skillings_mack.test(matrix_of(np.array(case["input"]["X"], dtype=float))), case["expected"]
    pairs = {
        "statistic": "skillings_mack",
        "degrees_of_freedom": "skillings_mack_df",
        "p_chi2": "skillings_mack_p_chi2",
        "p": "skillings_mack_p_exact",
    }
    for name, key in pairs.items():
        assert found[name] == pytest.approx(expected[key], rel=1e-9), name
    listwise = found["listwise"]
    pairs = {"m_datasets": "m", "chi2": "chi2", "p_chi2": "p_chi2", "f": "F", "p_f_iman_davenport": "p_F", "p_permutation": "p_exact"}
    for name, key in pairs.items():
        assert listwise[name] == pytest.approx(expected[f"listwise_{key}"], rel=1e-9), name
    assert found["method"] == listwise["method"] == "exact" and found["n_datasets"] == 5


def test_skillings_mack_on_complete_data_is_friedman():
    matrix = matrix_of(np.random.default_rng(4).random((4, 3)))
    found = skillings_mack.test(matrix)
    assert found["statistic"] == pytest.approx(ranks.friedman(matrix)["chi2"])
    assert found["p"] == pytest.approx(permutation.test(matrix).p) == pytest.approx(found["listwise"]["p_permutation"])


def test_skillings_mack_random_orders_order_and_scale(monkeypatch):
    x = np.random.default_rng(5).integers(0, 9, (5, 4)).astype(float)
    x[[0, 1, 3, 3], [1, 2, 0, 3]] = math.nan
    matrix = matrix_of(x)
    exact = skillings_mack.test(matrix)
    assert exact["method"] == "exact"
    moved = skillings_mack.test(np.exp(matrix).iloc[[2, 0, 3, 1], [4, 2, 0, 1, 3]])
    assert moved["p"] == exact["p"] and moved["statistic"] == pytest.approx(exact["statistic"])
    monkeypatch.setattr(skillings_mack, "ARRANGEMENTS", 0)
    found = skillings_mack.test(matrix, draws=40_000)
    assert found["method"] == "monte carlo"
    assert abs(found["p"] - exact["p"]) < 4 * found["standard_error"] + 3e-5
    assert skillings_mack.test(matrix.iloc[::-1, ::-1], draws=40_000)["p"] == found["p"]


def test_missing_cells_that_are_refused():
    nan = math.nan
    with pytest.raises(ValueError, match="no chain of data sets links all algorithms"):
        skillings_mack.test(matrix_of([[1, 2, nan, nan], [2, 1, nan, nan], [nan, nan, 1, 2]]))
    with pytest.raises(ValueError, match="is inf"):
        skillings_mack.test(matrix_of([[1, math.inf], [1, 2]]))
    linked = skillings_mack.test(matrix_of([[1, 2, nan], [nan, 1, 2], [nan, 3, nan]]))
    assert linked["listwise"] is None and linked["n_datasets"] == 2


# ---- pairs and control


def test_golden_pairs():
    cases = [case for case in CASES.values() if "conover" in case["expected"]]
    assert len(cases) == 16
    for case in cases:
        matrix, expected = matrix_of(case["input"]["X"]), case["expected"]
        upper = np.triu_indices(len(matrix), 1)
        found = pairwise.pairs(matrix)
        np.testing.assert_allclose(found["p_conover"], np.array(expected["conover"])[upper], rtol=1e-6, atol=1e-12, err_msg=case["name"])
        control = pairwise.pairs(matrix, "a0")
        np.testing.assert_allclose(control["p_z"], np.array(expected["z_to_first"][1:]), rtol=1e-6, err_msg=case["name"])
        np.testing.assert_allclose(control["p_z_holm"], expected["z_to_first_holm"], rtol=1e-6, err_msg=case["name"])
        assert control["algorithm_j"].eq("a0").all()
        np.testing.assert_allclose(control["rank_difference"], np.array(expected["mean_ranks"])[1:] - expected["mean_ranks"][0], atol=1e-12)
    tied = pairwise.pairs(matrix_of(golden("B9")["input"]["X"]))
    assert (tied.filter(like="p_") == 1).all(axis=None) and (tied["ties"] == 3).all()


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_golden_two_algorithms(name):
    case = golden(name)
    x, y, expected = case["input"]["x"], case["input"]["y"], case["expected"]
    matrix = pd.DataFrame([x, y], index=["x", "y"], columns=[f"d{i}" for i in range(len(x))])
    row = pairwise.pairs(matrix).iloc[0]
    difference = np.subtract(x, y)
    assert pairwise.wilcoxon(difference) == pytest.approx((expected["W_wilcox"], expected["p_exact_wilcox"]))
    assert pairwise.wilcoxon(difference, pratt=True) == pytest.approx((expected["W_pratt"], expected["p_exact_pratt"]))
    assert [row["p_wilcoxon"], row["p_pratt"], row["p_sign"]] == [
        expected[key] for key in ("p_exact_wilcox", "p_exact_pratt", "sign_test_p")
    ]
    assert row["rank_biserial"] == pytest.approx(expected["matched_rank_biserial"], abs=1e-9)
    assert row["hodges_lehmann"] == pytest.approx(expected["hodges_lehmann"], abs=1e-9)
    delta = pairwise.cliffs_delta(x, y)
    assert [delta, (delta + 1) / 2] == pytest.approx([expected["cliffs_delta"], expected["A12"]])
    runs = per_dataset.improvement(tidy({"x": [x], "y": [y]})).iloc[0]
    assert [runs["cliffs_delta"], runs["a12"]] == pytest.approx([expected["cliffs_delta"], expected["A12"]])


@pytest.mark.parametrize("pratt", [False, True])
def test_wilcoxon_against_all_signs_listed(pratt):
    for seed in range(8):
        d = np.random.default_rng(seed).integers(-4, 5, 9) / 10
        sizes = stats.rankdata(np.abs(d if pratt else d[d != 0]))
        sizes = sizes[d != 0] if pratt else sizes
        totals = np.array([np.dot(sizes, signs) for signs in product([0, 1], repeat=len(sizes))])
        w = min(np.dot(sizes, d[d != 0] > 0), np.dot(sizes, d[d != 0] < 0))
        expected = min(1, (np.minimum(totals, sizes.sum() - totals) <= w).mean())
        assert pairwise.wilcoxon(d, pratt=pratt) == pytest.approx((w, expected))


def test_pairs_against_scipy_scikit_posthocs_and_statsmodels():
    import scikit_posthocs
    from statsmodels.stats.multitest import multipletests

    matrix = matrix_of(np.random.default_rng(8).normal(size=(12, 5)) + np.arange(5) / 3)
    found, upper = pairwise.pairs(matrix), np.triu_indices(5, 1)
    x = matrix.to_numpy()
    theirs = {
        "p_conover_holm": scikit_posthocs.posthoc_conover_friedman(x.T, p_adjust="holm").to_numpy()[upper],
        "p_z_holm": scikit_posthocs.posthoc_siegel_friedman(x.T, p_adjust="holm").to_numpy()[upper],
        "p_wilcoxon": [stats.wilcoxon(x[i], x[j], method="exact").pvalue for i, j in combinations(range(5), 2)],
        "p_sign": [stats.binomtest(int((x[i] > x[j]).sum()), 12).pvalue for i, j in combinations(range(5), 2)],
    }
    for name, p in theirs.items():
        np.testing.assert_allclose(found[name], p, rtol=1e-9, err_msg=name)
    for name in (test.name for test in pairwise.TESTS):
        np.testing.assert_allclose(found[f"p_{name}_holm"], multipletests(found[f"p_{name}"], method="holm")[1], rtol=1e-12)
    control = pairwise.pairs(matrix, "a3").set_index("algorithm_i")
    demsar = scikit_posthocs.posthoc_demsar(-matrix.T, control="a3", p_adjust="holm")
    for name in control.index:
        assert control.loc[name, "p_z_holm"] == pytest.approx(demsar.loc[name, "a3"], rel=1e-9)
    scores = random_scores(3, runs=6)
    dunn = per_dataset.dunn(scores)
    for dataset, rows in scores.groupby("dataset"):
        p = scikit_posthocs.posthoc_dunn(rows, val_col="value", group_col="algorithm", p_adjust="holm").to_numpy()[np.triu_indices(4, 1)]
        np.testing.assert_allclose(dunn[dunn["dataset"] == dataset]["p_holm"], p, rtol=1e-9)


def test_effects_have_a_direction_and_do_not_depend_on_order():
    matrix = matrix_of([[3, 1, 2], [3, 2, 2], [5, 1, 4], [2, 3, 1], [9, 4, 3]])
    row = pairwise.pairs(matrix).iloc[0]  # a0 against a1: +2 +1 +4 -1 +5
    assert [row["wins_i"], row["ties"], row["wins_j"]] == [4, 0, 1]
    assert row["rank_difference"] < 0 < row["hodges_lehmann"] == 2
    assert row["rank_biserial"] == pytest.approx((13.5 - 1.5) / 15)
    turned = pairwise.pairs(matrix.iloc[::-1, [3, 1, 4, 0, 2]])
    turned = turned[(turned["algorithm_i"] == "a1") & (turned["algorithm_j"] == "a0")].iloc[0]
    for name in ("rank_difference", "hodges_lehmann", "rank_biserial"):
        assert turned[name] == -row[name], name
    for name in (test.name for test in pairwise.TESTS):
        assert turned[f"p_{name}"] == row[f"p_{name}"] and turned[f"p_{name}_holm"] == row[f"p_{name}_holm"], name
    scaled = pairwise.pairs(np.exp(matrix))  # other scales within a data set move the signed ranks, not the ranks
    for name in ("p_z", "p_conover", "p_sign", "rank_difference", "wins_i"):
        assert scaled[name].equals(pairwise.pairs(matrix)[name]), name


def test_differences_that_are_equal_but_for_rounding_tie():
    differences = np.array([0.2, 0.3, 0.9]) - np.array([0.1, 0.4, 0.4])
    assert abs(differences[0]) != abs(differences[1])
    assert pairwise.wilcoxon(differences)[0] == 1.5 and pairwise.rank_biserial(differences) == 0.5


def test_holm_by_hand():
    assert pairwise.holm([0.04, 0.01, 0.03, 0.9]).tolist() == pytest.approx([0.09, 0.04, 0.09, 0.9])
    assert pairwise.holm([0.5, 0.6]).tolist() == [1, 1]


# ---- per data set


@pytest.mark.parametrize("name", ["K1", "K2", "K3", "K4"])
def test_golden_kruskal_wallis_and_dunn(name):
    case = golden(name)
    expected, selected = case["expected"], one_dataset(case["input"]["groups"])
    found, dunn = per_dataset.test(selected, draws=2_000).iloc[0], per_dataset.dunn(selected)
    pairs = {"statistic": "H", "degrees_of_freedom": "df", "p_chi2": "p_chi2", "tie_correction": "tie_correction",
             "epsilon_squared": "epsilon_squared", "eta_squared_h": "eta_squared_H"}  # fmt: skip
    for column, key in pairs.items():
        assert found[column] == pytest.approx(expected[key], rel=1e-6), column
    if "p_exact" in expected:
        assert found["method"] == "exact" and found["p"] == pytest.approx(expected["p_exact"], rel=1e-9)
    else:
        assert found["method"] == "monte carlo" and found["p"] == pytest.approx(1 / 2_001)
    upper = np.triu_indices(len(expected["mean_ranks"]), 1)
    np.testing.assert_allclose(dunn["p"], np.array(expected["dunn"])[upper], rtol=1e-6)
    np.testing.assert_allclose(dunn["p_holm"], expected["dunn_holm_upper"], rtol=1e-6)
    from_below = len(selected) + 1 - np.array(expected["mean_ranks"])  # golden ranks the smallest first
    np.testing.assert_allclose(dunn["mean_rank_j"].iloc[: len(from_below) - 1], from_below[1:])


def test_p_values_of_a_published_table():
    printed = [pair for pairs in published.KRUSKAL_WALLIS.values() for pair in pairs]
    assert len(printed) == 10
    for h, p in printed:  # H is printed to 0.01, p to three digits
        assert per_dataset.kruskal_p(h + 0.005, 8) / 1.005 < p < per_dataset.kruskal_p(h - 0.005, 8) * 1.005


@pytest.mark.parametrize("groups", [[[1, 2, 2], [3, 5], [2, 4]], [[1, 5], [2, 6], [3, 4]], [[1, 1, 2], [1, 3, 4]]])
def test_kruskal_wallis_against_all_divisions_listed(groups, monkeypatch):
    values, sizes = np.concatenate(groups), [len(group) for group in groups]
    h = {
        order: stats.kruskal(*np.split(values[list(order)], np.cumsum(sizes)[:-1])).statistic
        for order in permutations(range(len(values)))
        if all(list(part) == sorted(part) for part in np.split(np.array(order), np.cumsum(sizes)[:-1]))
    }
    observed = h[tuple(range(len(values)))]
    found = per_dataset.test(one_dataset(groups)).iloc[0]
    assert found["statistic"] == pytest.approx(observed)
    assert found["p"] == pytest.approx(np.mean([other >= observed - 1e-9 for other in h.values()]))
    monkeypatch.setattr(run_permutations, "EXACT", 0)
    drawn = per_dataset.test(one_dataset(groups), draws=20_500).iloc[0]
    assert drawn["method"] == "monte carlo" and abs(drawn["p"] - found["p"]) < 4 * drawn["standard_error"] + 5e-5


def test_random_divisions_are_those_of_each_question_alone(monkeypatch):
    monkeypatch.setattr(run_permutations, "EXACT", 0)
    monkeypatch.setattr(run_permutations, "CHUNK", 5_000)
    selected = random_scores(4, runs=6)
    selected = selected[(selected["dataset"] != "d1") | (selected["algorithm"] != "a1") | (selected["run"] > 2)]  # another layout
    found = per_dataset.test(selected, draws=3_000, seed=2)
    for row in found.itertuples():
        rows = selected[selected["dataset"] == row.dataset]
        assert per_dataset.test(rows, draws=3_000, seed=2)["p"].iloc[0] == row.p
        doubled = (2 * rows["value"].round(9).rank(ascending=False)).sort_values().to_numpy()
        sizes = np.sort(rows.groupby("algorithm").size())
        rng, hits = np.random.default_rng(2), 0
        between = row.statistic * np.var(doubled / 2, ddof=1)
        for _ in range(3_000):  # one after the other
            sums = [part.sum() / 2 for part in np.split(rng.permuted(doubled), np.cumsum(sizes)[:-1])]
            hits += (
                sum((total - size * (len(doubled) + 1) / 2) ** 2 / size for total, size in zip(sums, sizes, strict=True)) >= between - 1e-6
            )
        assert row.p == (hits + 1) / 3_001


def test_random_divisions_are_drawn_once_for_all_datasets_and_pairs(monkeypatch):
    monkeypatch.setattr(run_permutations, "EXACT", 0)
    drawn, real = [], np.random.default_rng

    def counted(seed):
        drawn.append(seed)
        return real(seed)

    monkeypatch.setattr(np.random, "default_rng", counted)
    values = np.arange(24.0).reshape(6, 4) % 7
    rows = [(f"a{i}", run, f"d{d}", values[i, run] + d * i) for i in range(6) for run in range(4) for d in range(5)]
    selected = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"])
    per_dataset.test(selected, draws=200)
    per_dataset.pairs(selected, draws=200)
    assert len(drawn) == 2


def test_per_dataset_frames_and_invariance():
    selected = random_scores(1)
    selected = selected[(selected["algorithm"] != "a1") | (selected["run"] > 1)]
    found = per_dataset.test(selected)
    for row in found.itertuples():
        theirs = stats.kruskal(*(rows["value"] for _, rows in selected[selected["dataset"] == row.dataset].groupby("algorithm")))
        assert [row.statistic, row.p_chi2] == pytest.approx([theirs.statistic, theirs.pvalue])
    np.testing.assert_allclose(found["p_holm"], pairwise.holm(found["p"]))
    dunn = per_dataset.dunn(selected)
    assert len(dunn) == 18 and dunn["p_holm_all"].min() < 0.5 and dunn["p_holm_all"].tolist() == pairwise.holm(dunn["p"]).tolist()
    shuffled = selected.sample(frac=1, random_state=0)
    scaled = shuffled.assign(value=np.exp(shuffled["value"]) * shuffled["dataset"].map({"d0": 1, "d1": 5, "d2": 9}))
    again = per_dataset.test(scaled).set_index("dataset").loc[found["dataset"]].reset_index()
    pd.testing.assert_frame_equal(again, found, check_exact=True)
    for ask, column in (
        (per_dataset.dunn, "p_holm"),
        (per_dataset.improvement, "a12"),
        (per_dataset.pairs, "p"),
        (per_dataset.pairs, "a12"),
    ):
        assert by_pair(ask(shuffled), column) == pytest.approx(by_pair(ask(selected), column), abs=1e-12)
    tied = per_dataset.test(one_dataset([[1, 1], [1, 1], [1, 1]])).iloc[0]
    assert math.isnan(tied["statistic"]) and tied["p"] == tied["p_chi2"] == 1
    assert (per_dataset.dunn(one_dataset([[1, 1], [1, 1]]))["p"] == 1).all()


def test_paired_runs_are_blocks():
    selected = random_scores(2, algorithms=3, datasets=2, runs=6)
    found = per_dataset.test(selected, paired=True)
    for row in found.itertuples():
        matrix = selected[selected["dataset"] == row.dataset].pivot(index="algorithm", columns="run", values="value")
        assert (row.p, row.statistic) == (permutation.test(matrix).p, ranks.friedman(matrix)["chi2"])
    assert found["n_runs"].tolist() == [6, 6] and "kendall_w" in found and "epsilon_squared" not in found
    with pytest.raises(ValueError, match="paired runs: 'a0' has no run 1 on 'd0'"):
        per_dataset.test(selected.iloc[1:], paired=True)


def test_pairs_over_datasets_move_a_run_as_a_whole():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(4, 3)), rng.normal(0.7, 1, size=(5, 3)) * [1, 10, 100]  # [runs, datasets]
    x = x * [1, 10, 100]
    selected = tidy({"x": x.T.tolist(), "y": y.T.tolist()})

    def statistic(first, second):
        scale = np.concatenate([first, second]).std(axis=0, ddof=1)
        return ((first.mean(axis=0) - second.mean(axis=0)) / scale).mean()

    both, observed = np.concatenate([x, y]), statistic(x, y)
    chance = [statistic(both[list(part)], np.delete(both, list(part), axis=0)) for part in combinations(range(9), 4)]
    row = per_dataset.pairs(selected).iloc[0]
    assert row["difference"] == pytest.approx(observed)
    assert row["method"] == "exact" and row["p"] == pytest.approx(np.mean(np.abs(chance) >= abs(observed) - 1e-9))
    assert row["a12"] == pytest.approx(per_dataset.improvement(selected)["a12"].mean())
    turned = per_dataset.pairs(selected, "x").iloc[0]
    assert (turned["algorithm_i"], turned["p"]) == ("y", row["p"]) and turned["difference"] == pytest.approx(-observed)


def test_pairs_over_datasets_by_random_divisions(monkeypatch):
    selected = random_scores(9, runs=5)
    selected = selected[(selected["algorithm"] != "a1") | (selected["run"] > 2)]
    exact = per_dataset.pairs(selected)
    monkeypatch.setattr(run_permutations, "EXACT", 0)
    found = per_dataset.pairs(selected, draws=30_000, seed=1)
    assert (found["method"] == "monte carlo").all() and (exact["method"] == "exact").all()
    assert (np.abs(found["p"] - exact["p"]) < 4 * found["standard_error"] + 4e-5).all()
    np.testing.assert_allclose(exact["p_holm"], pairwise.holm(exact["p"]))
    against = per_dataset.pairs(selected, "a0", draws=30_000, seed=1)
    assert against["p"].tolist() == found["p"].iloc[:3].tolist()  # whichever of a pair comes first


def test_a_dataset_without_differences_adds_nothing():
    runs = np.random.default_rng(12).random((2, 9))
    one, two = ({name: [values.tolist(), [0.1] * 9][:datasets] for name, values in zip("xy", runs, strict=True)} for datasets in (1, 2))
    first, second = per_dataset.pairs(tidy(one)).iloc[0], per_dataset.pairs(tidy(two)).iloc[0]
    assert second["p"] == first["p"] and second["difference"] == pytest.approx(first["difference"] / 2)


def test_three_runs_each_cannot_give_less_than_a_tenth():
    selected = tidy({"x": [[1, 2, 3]] * 4, "y": [[7, 8, 9]] * 4})
    assert per_dataset.pairs(selected)["p"].iloc[0] == pytest.approx(0.1)
    found = per_dataset.test(selected)
    assert found["p"].tolist() == pytest.approx([0.1] * 4) and found["p_chi2"].iloc[0] == pytest.approx(0.0495, abs=5e-5)


def test_intervals():
    runs = [0.6, 0.66, 0.75]
    found = per_dataset.intervals(tidy({"x": [runs, [0.5]], "y": [runs[::-1], [0.7]]}))
    row = found[(found["algorithm"] == "x") & (found["dataset"] == "d0")].iloc[0]
    assert [row["mean"], row["low"], row["high"]] == pytest.approx([0.67, 0.482452, 0.857548], abs=1e-6)  # golden R1
    single = found[found["n"] == 1]
    assert len(single) == 2 and single[["std", "low", "high"]].isna().all(axis=None) and single["mean"].tolist() == [0.5, 0.7]


def test_scores_that_are_refused():
    selected = random_scores(0)
    with pytest.raises(ValueError, match="'a0' run 1 on 'd0' has several values"):
        per_dataset.test(pd.concat([selected, selected.iloc[:1]]))
    with pytest.raises(ValueError, match="'a0' is the only algorithm on 'd1'"):
        per_dataset.dunn(selected[(selected["algorithm"] == "a0") | (selected["dataset"] != "d1")])
    with pytest.raises(ValueError, match="'a0' run 1 has no value on 'd0'"):
        per_dataset.pairs(selected.iloc[1:])
    with pytest.raises(ValueError, match="baseline 'erm': no such algorithm"):
        per_dataset.pairs(selected, "erm")
