"""What a report claims: one family of comparisons, tests by name, p as fine as its draws, intervals with their coverage."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxbed.stats import main
from jaxbed.stats.figures import drawing
from jaxbed.stats.sensitivity import bootstrap


def write(path, matrix: np.ndarray, names: list[str], runs: int = 3, noise: float = 0.05) -> str:
    """A score table of these means, with runs around them."""
    rng = np.random.default_rng(0)
    rows = [
        (name, run, f"d{column}", matrix[row, column] + noise * rng.normal())
        for row, name in enumerate(names) for column in range(matrix.shape[1]) for run in range(1, runs + 1)
    ]  # fmt: skip
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"]).to_csv(path, index=False)
    return str(path)


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    """They take longer than the rest of a report, and test_stats_figures looks at them."""
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])


def report(tmp_path, capsys, *call: str) -> tuple[dict, str, str]:
    """stats.json, the printed text in one line, and the page of one call."""
    assert main.main([*call, "--out", str(tmp_path / "out")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    return json.loads((tmp_path / "out" / "stats.json").read_text()), text, (tmp_path / "out" / "report.html").read_text()


def apart(algorithms: int, datasets: int, gap: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 50 + gap * np.arange(algorithms)[:, None] + 5 * np.arange(datasets) + rng.normal(size=(algorithms, datasets))


def test_specifications_that_cannot_reject_are_not_counted(tmp_path, capsys):
    """Wilcoxon with Holm over 28 pairs of 8 algorithms needs 11 data sets."""
    path = write(tmp_path / "scores.csv", apart(8, 10, 2.0), [f"a{place}" for place in range(8)])
    results, text, page = report(tmp_path, capsys, path, "--permutations", "2000")
    found = results["multiverse"]
    assert found["left_out"] == [{"test": "Wilcoxon + Holm", "datasets": 10, "smallest_p": 28 / 2**9, "specifications": 1}]
    assert "Wilcoxon + Holm" not in found["varied"]["test"] and {row["specifications"] for row in found["pairs"]} == {4}
    assert "in 4 of 4 specifications" in text and "1 specifications are not counted" not in text
    assert "1 specification is not counted because it cannot reject whatever the scores (Wilcoxon + Holm on 10 data sets)" in text
    assert "cannot reject, whatever the scores" in page.split("<h2>How firm")[1]


@pytest.mark.parametrize("question", ["new-datasets", "these-datasets"])
def test_draws_are_not_resolved_beyond_one(tmp_path, capsys, question):
    path = write(tmp_path / "scores.csv", apart(8, 12, 9.0), [f"a{place}" for place in range(8)], runs=15)
    _, text, page = report(tmp_path, capsys, path, "--question", question, "--permutations", "2000")
    out = tmp_path / "out"
    assert "p ≤0.0005" in text or question == "these-datasets"
    assert "≤" in text and "≤" in page and "$\\leq$" in (out / "tables" / "pairs.tex").read_text()
    assert "&lt;2e-05" in page and "&gt;0.99998" in page and "&lt;1e-12" not in page.split("Bayesian signed-rank")[1].split("</table>")[0]
    pairs = pd.read_csv(out / "pairs.csv")
    name = "p_permutation" if question == "new-datasets" else "p"
    assert (pairs[name] >= pairs[f"{name}_least"]).all() and pairs[f"{name}_least"].max() == pytest.approx(1 / 2001)
    if question == "new-datasets":
        assert pairs["bayes_least"].unique() == pytest.approx([2e-5]) and pairs["bayes_p_i"].min() == 0
        assert "all 2000 resamples of the runs" in text


def test_one_family_all_pairs_without_a_baseline_and_comparisons_with_it_where_asked(tmp_path, capsys):
    path = write(tmp_path / "scores.csv", apart(4, 12, 3.0), ["ERM", "b", "c", "d"])
    results, text, _ = report(tmp_path, capsys, path)
    assert results["baseline"] is None and results["claims"]["family"] == "pairs" and "than ERM (3 comparisons" not in text
    assert "Of all 6 pairs, adjusted for all" in text
    procedure = "Procedure: first the exact Friedman test; if it finds a difference, 6 pairs (permutation test, single step)."
    assert procedure in text
    results, text, page = report(tmp_path, capsys, path, "--baseline", "ERM")
    assert results["claims"]["family"] == "baseline_comparisons" and "Of all 6 pairs" not in text
    assert "the 3 comparisons with the baseline (permutation test, single step). Nothing else is claimed" in text
    shares = {row["algorithm_i"]: row["significant"] for row in results["stability"]["baseline_comparisons"]}
    for claim in results["claims"]["found"][:3]:
        share = shares[claim["better"]]
        counted = "all 2000" if share == 1 else f"{min(max(round(100 * share), 1), 99)} % of 2000"
        by = "z test against the baseline with Holm's adjustment"
        assert f"{claim['better']} over ERM is significant in {counted} resamples of the runs ({by})" in text
    assert "z test against the baseline with Holm&#x27;s adjustment</span></caption>" in page  # its table


def test_a_comparison_without_a_difference_in_the_overall_test_is_no_claim(tmp_path, capsys):
    matrix = 50 + np.random.default_rng(81).normal(size=(4, 8))
    path = write(tmp_path / "scores.csv", matrix, list("abcd"), runs=2, noise=0)
    results, text, _ = report(tmp_path, capsys, path, "--baseline", "a")
    assert min(row["p_permutation"] for row in results["baseline_comparisons"]) < 0.05 < results["friedman"]["p"]
    assert results["claims"]["found"] == [] and "No algorithm differs from a (3 comparisons" in text
    assert "Comparisons with p below alpha do not count" in text


def test_claims_on_these_datasets_need_a_dataset_that_differs(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for seed in range(3):
        path = write(tmp_path / "scores.csv", 50 + np.zeros((3, 4)) + rng.normal(size=4), list("abc"), runs=5, noise=1.0 + seed / 100)
        results, _, _ = report(tmp_path, capsys, path, "--question", "these-datasets", "--permutations", "500")
        claims = results["claims"]
        assert claims["overall"]["differ"] or not claims["found"]


def test_means_have_a_t_interval_beside_the_percentiles_and_the_page_says_what_those_cover(tmp_path, capsys):
    path = write(tmp_path / "scores.csv", apart(3, 6, 3.0), list("abc"), noise=1.0)
    results, _, page = report(tmp_path, capsys, path)
    frame = pd.read_csv(path)
    for row in results["stability"]["runs_resampled"]:
        if row["quantity"] != "mean":
            assert row["t_low"] == "NaN"
            continue
        runs = frame[frame["algorithm"] == row["name"]].groupby("run")["accuracy"].mean()
        low, high = stats.t.interval(0.95, 2, runs.mean(), stats.sem(runs))
        assert row["t_low"] == pytest.approx(low) and row["t_high"] == pytest.approx(high)
        assert row["t_low"] < row["low"] and row["high"] < row["t_high"]
    assert "t interval from" in page and "75% with 3" in page and bootstrap.COVERAGE["IQM"][3] == 0.75


def test_heads_are_words(tmp_path, capsys):
    path = write(tmp_path / "scores.csv", apart(4, 8, 3.0), list("abcd"))
    _, _, page = report(tmp_path, capsys, path, "--baseline", "a")
    heads = [re.sub("<wbr>", "", head) for head in re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page)]
    assert {"p, z test of mean ranks, Holm", "P(the first is better)", "pair"} <= set(heads)
    assert not [head for head in heads if re.search(r"\b(p (z|i|j|rope|holm|chi2|f moment)|bayes|i|j|a12)\b", head)]


@pytest.mark.parametrize("algorithms", [2, 3])
def test_no_p_is_quoted_that_takes_datasets_of_one_family_for_separate_evidence(tmp_path, capsys, algorithms):
    path = write(tmp_path / "scores.csv", apart(algorithms, 7, 9.0), list("xyz")[:algorithms])
    (tmp_path / "roles.csv").write_text("dataset,family\n" + "".join(f"d{column},shared\n" for column in range(7)))
    assert main.main([path, "--permutations", "200", "--roles", str(tmp_path / "roles.csv")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Friedman over 1 block: p = 1.000 (exact)" in text and "7 data sets form 1 family (shared: d0, " in text
    assert "FEW_BLOCKS: only 1 family of data sets" in text and "with 1 block and" in text
    assert "PERFECT_AGREEMENT" not in text and "TWO_ALGORITHMS" not in text


def test_a_dataset_on_which_all_tie_has_no_statistic(tmp_path, capsys):
    matrix = apart(2, 3, 5.0)
    matrix[:, 1] = 50
    path = write(tmp_path / "scores.csv", matrix, ["x", "y"], noise=0)
    assert main.main([path, "--question", "these-datasets", "--permutations", "200"]) == 0
    text = capsys.readouterr().out
    assert "d1 all tied (1.000)" in text and "nan" not in text
