"""What a report claims: one family of comparisons, tests by name, p as fine as its draws, intervals with their coverage."""

import contextlib
import io
import json
import re

import analyses
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxbed.stats import main
from jaxbed.stats.analysis import analyse
from jaxbed.stats.figures import drawing
from jaxbed.stats.options import Options
from jaxbed.stats.reading import records
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


@pytest.fixture(autouse=True, scope="module")
def without_figures():
    """They take longer than the rest of a report, and test_stats_figures looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "draw", lambda folder, analysis: [])
        yield


@pytest.fixture
def of_few_draws():
    with analyses.of_few_draws():
        yield


def report(folder, *call: str) -> tuple[dict, str, str]:
    """stats.json, the printed text in one line, and the page of one call."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main.main([*call, "--out", str(folder / "out")]) == 0
    text = " ".join(printed.getvalue().split())
    return json.loads((folder / "out" / "stats.json").read_text()), text, (folder / "out" / "report.html").read_text()


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> str:
    """Scores of four algorithms that differ, ERM among them."""
    return write(tmp_path_factory.mktemp("four") / "scores.csv", apart(4, 8, 3.0), ["ERM", "b", "c", "d"])


@pytest.fixture(scope="module")
def against_erm(four, tmp_path_factory) -> tuple[dict, str, str]:
    """What `report` gives of the comparisons with ERM."""
    return report(tmp_path_factory.mktemp("against"), four, "--baseline", "ERM")


def apart(algorithms: int, datasets: int, gap: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 50 + gap * np.arange(algorithms)[:, None] + 5 * np.arange(datasets) + rng.normal(size=(algorithms, datasets))


def test_specifications_that_cannot_reject_are_not_counted(tmp_path, of_few_draws):
    """Wilcoxon with Holm over 6 pairs of 4 algorithms needs 8 data sets."""
    path = write(tmp_path / "scores.csv", apart(4, 7, 2.0), list("abcd"))
    results, text, page = report(tmp_path, path)
    multiverse = results["multiverse"]
    assert multiverse["left_out"] == [{"test": "Wilcoxon + Holm", "datasets": 7, "smallest_p": 6 / 2**6, "specifications": 1}]
    assert "Wilcoxon + Holm" not in multiverse["varied"]["test"] and {row["specifications"] for row in multiverse["pairs"]} == {4}
    assert "in 4 of 4 specifications" in text and "1 specifications are not counted" not in text
    assert "1 specification is not counted because it cannot reject whatever the scores (Wilcoxon + Holm on 7 data sets)" in text
    assert "cannot reject, whatever the scores" in page.split("<h2>How firm")[1]


@pytest.mark.parametrize("question", ["new-datasets", "these-datasets"])
def test_draws_are_not_resolved_beyond_one(tmp_path, question):
    path = write(tmp_path / "scores.csv", apart(5, 12, 9.0), list("abcde"), runs=15)
    _, text, page = report(tmp_path, path, "--question", question, "--permutations", "2000")
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


def test_one_family_all_pairs_without_a_baseline_and_comparisons_with_it_where_asked(four, against_erm, tmp_path, of_few_draws):
    results, text, _ = report(tmp_path, four)
    assert results["baseline"] is None and results["claims"]["family"] == "pairs" and "than ERM (3 comparisons" not in text
    assert "Of all 6 pairs, adjusted for all" in text
    procedure = "Procedure: first the exact Friedman test; if it finds a difference, 6 pairs (permutation test, single step)."
    assert procedure in text
    results, text, page = against_erm
    assert results["claims"]["family"] == "baseline_comparisons" and "Of all 6 pairs" not in text
    assert "the 3 comparisons with the baseline (permutation test, single step). Nothing else is claimed" in text
    shares = {row["algorithm_i"]: row["significant"] for row in results["stability"]["baseline_comparisons"]}
    for claim in results["claims"]["found"][:3]:
        share = shares[claim["better"]]
        counted = "all 2000" if share == 1 else f"{min(max(round(100 * share), 1), 99)} % of 2000"
        by = "z test against the baseline with Holm's adjustment"
        assert f"{claim['better']} over ERM is significant in {counted} resamples of the runs ({by})" in text
    assert "z test against the baseline with Holm&#x27;s adjustment</span></caption>" in page  # its table


def test_a_comparison_without_a_difference_in_the_overall_test_is_no_claim(tmp_path, of_few_draws):
    matrix = 50 + np.random.default_rng(81).normal(size=(4, 8))
    path = write(tmp_path / "scores.csv", matrix, list("abcd"), runs=2, noise=0)
    results, text, _ = report(tmp_path, path, "--baseline", "a")
    assert min(row["p_permutation"] for row in results["baseline_comparisons"]) < 0.05 < results["friedman"]["p"]
    assert results["claims"]["found"] == [] and "No algorithm differs from a (3 comparisons" in text
    assert "Comparisons with p below alpha do not count" in text


def test_claims_on_these_datasets_need_a_dataset_that_differs(tmp_path, of_few_draws):
    rng = np.random.default_rng(0)
    for seed in range(3):
        path = write(tmp_path / "scores.csv", 50 + np.zeros((3, 4)) + rng.normal(size=4), list("abc"), runs=5, noise=1.0 + seed / 100)
        claims = analyse(records.load([path]), Options(question="these-datasets", permutations=500)).results["claims"]
        assert claims["overall"]["differ"] or not claims["found"]


def test_means_have_a_t_interval_beside_the_percentiles_and_the_page_says_what_those_cover(tmp_path, of_few_draws):
    path = write(tmp_path / "scores.csv", apart(3, 6, 3.0), list("abc"), noise=1.0)
    results, _, page = report(tmp_path, path)
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


def test_heads_are_words(against_erm):
    _, _, page = against_erm
    heads = [re.sub("<wbr>", "", head) for head in re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page)]
    assert {"p, z test of mean ranks, Holm", "P(the first is better)", "pair"} <= set(heads)
    assert not [head for head in heads if re.search(r"\b(p (z|i|j|rope|holm|chi2|f moment)|bayes|i|j|a12)\b", head)]


@pytest.mark.parametrize("algorithms", [2, 3])
def test_no_p_is_quoted_that_takes_datasets_of_one_family_for_separate_evidence(tmp_path, capsys, of_few_draws, algorithms):
    path = write(tmp_path / "scores.csv", apart(algorithms, 7, 9.0), list("xyz")[:algorithms])
    (tmp_path / "roles.csv").write_text("dataset,family\n" + "".join(f"d{column},shared\n" for column in range(7)))
    assert main.main([path, "--permutations", "200", "--roles", str(tmp_path / "roles.csv")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Friedman over 1 block: p = 1.000 (exact)" in text and "7 data sets form 1 family (shared: d0, " in text
    assert "FEW_BLOCKS: only 1 family of data sets" in text and "with 1 block and" in text
    assert "PERFECT_AGREEMENT" not in text and "TWO_ALGORITHMS" not in text


def test_a_dataset_on_which_all_tie_has_no_statistic(tmp_path, capsys, of_few_draws):
    matrix = apart(2, 3, 5.0)
    matrix[:, 1] = 50
    path = write(tmp_path / "scores.csv", matrix, ["x", "y"], noise=0)
    assert main.main([path, "--question", "these-datasets", "--permutations", "200"]) == 0
    text = capsys.readouterr().out
    assert "d1 all tied (1.000)" in text and "nan" not in text
