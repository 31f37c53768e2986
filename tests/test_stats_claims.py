"""What the statistics must not claim: floors of few runs, families of data sets, scales, two algorithms, words of the verdict."""

import html
import re
import shlex

import analyses
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxbed.stats import analysis, main, options, these_datasets
from jaxbed.stats.audit import scales
from jaxbed.stats.comparisons import per_dataset
from jaxbed.stats.figures import drawing
from jaxbed.stats.options import Options
from jaxbed.stats.output import report
from jaxbed.stats.reading import records, roles
from jaxbed.stats.selection import criteria
from jaxbed.stats.sensitivity import power


@pytest.fixture(autouse=True, scope="module")
def of_few_draws():
    with analyses.of_few_draws():
        yield


def gapped(algorithms, runs, datasets, gap=30.0):
    rng = np.random.default_rng(0)
    rows = [
        (f"a{i}", run, f"d{j}", 50 + gap * i + rng.normal())
        for i in range(algorithms) for run in range(1, runs + 1) for j in range(datasets)
    ]  # fmt: skip
    return records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]).assign(metric="accuracy"), "made")


@pytest.mark.parametrize("sizes", [(3, 3), (2, 3), (2, 2, 2), (3, 4, 1)])
def test_the_smallest_p_of_so_many_runs(sizes):
    rows = [(f"a{i}", run, "d", 100.0 * i + run) for i, size in enumerate(sizes) for run in range(size)]
    found = per_dataset.test(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]))["p"].iloc[0]
    assert found >= these_datasets.smallest_p(sizes) - 1e-12
    if len(set(sizes)) == 1:
        assert found == pytest.approx(these_datasets.smallest_p(sizes))


@pytest.mark.parametrize(("algorithms", "runs"), [(2, 3), (8, 5), (4, 4)])
def test_runs_too_few_to_show_anything_are_reported(algorithms, runs):
    found = analysis.analyse(gapped(algorithms, runs, 6), Options(question="these-datasets", permutations=500))
    assert "FEW_RUNS" in [warning["code"] for warning in found.results["warnings"]]
    verdict = " ".join(found.results["verdict"])
    assert "No conclusion on pairs" in verdict and "not shown to differ" not in verdict and "No pair differs" not in verdict


@pytest.fixture(scope="module")
def in_families():
    """Six data sets, three of them one family: A and B differ by Nemenyi, not by the test that counts families."""
    rng = np.random.default_rng(3)
    rows = [
        (f"a{i}", run, f"d{j}", 50 + 4 * i + 6 * rng.normal() * (run == 1), "f" if j < 5 else f"d{j}")
        for i in range(5) for j in range(8) for run in range(1, 4)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value", "family"]).assign(metric="accuracy")
    return analysis.analyse(records.check(frame, "made"), Options(permutations=5000))


def test_no_warning_contradicts_the_headline_of_families(in_families):
    results = in_families.results
    p = results["pairs"].set_index(["algorithm_i", "algorithm_j"])["p_permutation"]
    table = results["sensitivity"]["without_each_algorithm"]
    whole = table[table["without"] == ""].set_index(["algorithm_i", "algorithm_j"])
    assert ((p < 0.05) != (results["pairs"].set_index(["algorithm_i", "algorithm_j"])["p_nemenyi"] < 0.05)).any()  # made so
    np.testing.assert_array_equal(whole["significant"], p < 0.05)
    assert results["multiverse"]["varied"]["test"] == ["permutation"]


def test_floors_are_those_of_the_p_values_beside_them(in_families):
    assert in_families.results["pairs"]["p_wilcoxon"].min() >= in_families.results["floors"]["wilcoxon"] == 2.0**-7


def test_approximations_are_withheld_and_power_is_not_promised(in_families):
    assert "Iman" not in report.to_text(in_families)
    assert "would be needed" not in " ".join(in_families.results["verdict"])


def test_strict_is_warned_of_its_own_datasets(tmp_path):
    rows = [(f"a{i}", run, f"d{j}", 10.0 * i + j + 0.1 * run + (i * j) % 3) for i in range(3) for run in (1, 2, 3) for j in range(8)]
    frame = records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]).assign(metric="accuracy"), "made")
    text = "dataset,role,family,trained_on\n" + "".join(
        f"d{j},{'test' if j < 3 else 'ood'},{'f' if j in (3, 4) else ''},{'all' if j < 3 else ''}\n" for j in range(8)
    )
    (tmp_path / "roles.csv").write_text(text)
    found = analysis.analyse(frame, Options(datasets="strict", permutations=500), roles=roles.read(tmp_path / "roles.csv")).results
    warnings = {warning["code"]: warning for warning in found["warnings"]}
    assert warnings["FEW_BLOCKS"]["blocks"] == 4
    assert warnings["DEPENDENT_BLOCKS"]["text"].startswith("5 data sets form 4 families")
    assert "IN_DISTRIBUTION" not in warnings


def test_no_score_is_negative_where_lower_is_better():
    rng = np.random.default_rng(0)
    rows = [(f"a{i}", run, f"d{j}", 1 + i + rng.random()) for i in range(3) for run in (1, 2, 3) for j in range(6)]
    frame = records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]).assign(metric="loss"), "made")
    lower = analysis.analyse(frame, Options(metric="loss", lower=True, permutations=500)).results
    higher = analysis.analyse(frame, Options(metric="loss", permutations=500)).results
    pd.testing.assert_frame_equal(lower["these_datasets"]["intervals"], higher["these_datasets"]["intervals"])
    for name in ("runs_resampled", "runs_and_datasets_resampled"):
        found, other = (of["stability"][name].query("quantity == 'mean'") for of in (lower, higher))
        np.testing.assert_allclose(found["value"], other["value"])
        assert (found["low"] > 0).all() and (found["low"] <= found["value"]).all() and (found["value"] <= found["high"]).all()


def test_percent_is_percent_in_both_groups():
    """Less than one percent of the conflicting images right at all epochs: still percent."""
    percent = {("aligned", 1): 99.0, ("conflicting", 1): 0.5, ("aligned", 2): 90.0, ("conflicting", 2): 0.9}
    rows = [("x", 1, "v", epoch, metric, value, 1000, "val") for (metric, epoch), value in percent.items()]
    columns = ["algorithm", "run", "dataset", "epoch", "metric", "value", "n_total", "role"]
    frame = records.check(pd.DataFrame(rows, columns=columns), "made")
    fractions = records.check(frame.assign(value=frame["value"] / 100), "made")
    for rule in (criteria.ac_score, criteria.ac_lower, criteria.avg_acc):
        assert rule(frame)["score"].tolist() == pytest.approx(rule(fractions)["score"].tolist())


def test_power_of_two_algorithms_is_that_of_the_sign_test():
    """A sure win: nothing below 6 data sets, everything from there on."""
    model = power.Model(pd.Series({"a": 1.0, "b": -1.0}), 0.01, 0.01)
    curves = power.curves(model, 5, "b", largest=12, draws=50)
    for _, curve in curves.groupby("test"):
        assert curve.set_index("datasets")["power"].to_dict() == {m: float(m >= 6) for m in range(2, 13)}


def seven_wins(mean: float, std: float) -> pd.DataFrame:
    """Two algorithms on seven data sets whose differences have this mean and std, all of one sign."""
    spread = np.linspace(-1, 1, 7)
    differences = mean + std * spread / spread.std(ddof=1)
    rows = [
        (name, run, f"d{j}", 50 + 5 * j + (name == "new") * differences[j] + 0.01 * (run - 2))
        for name in ("old", "new") for j in range(7) for run in (1, 2, 3)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"])


def test_datasets_needed_by_two_algorithms_follow_from_mean_and_std_of_their_differences(tmp_path, capsys):
    seven_wins(1.115, 0.774).to_csv(tmp_path / "scores.csv", index=False)
    assert main.main([str(tmp_path / "scores.csv")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "They differ: new better than old (p = 0.016)" in text
    wins = stats.norm.cdf(1.115 / 0.774)  # on how large a share of data sets
    power_of = {m: sum(stats.binom.pmf(k, m, wins) for k in range(m + 1) if stats.binomtest(k, m).pvalue < 0.05) for m in range(6, 12)}
    needed = min(m for m, share in power_of.items() if share >= 0.8)
    assert needed == 9 and "about 9 data sets like these (2 more) would be needed" in text


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_lead_of_the_sign_test(alpha):
    datasets = np.arange(2, 30)
    for m, lead in zip(datasets, power._lead_of_sign_test(datasets, alpha), strict=True):
        for wins in range(m // 2 + 1, m + 1):
            assert (2 * wins - m > lead) == (stats.binomtest(wins, m).pvalue < alpha)


def test_two_algorithms_are_not_firm_where_the_exact_test_never_rejects():
    rows = [
        ("erm" if i == 0 else "b", run, f"d{j}", 50 + (3 * i if j < 7 else -3 * i) + 0.01 * run)
        for i in (0, 1) for run in (1, 2, 3, 4) for j in range(8)
    ]  # fmt: skip
    frame = records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]).assign(metric="accuracy"), "made")
    found = analysis.analyse(frame, Options(permutations=500)).results
    assert found["friedman"]["p"] > 0.05 and found["stability"]["baseline_comparisons"] is None


def plain():
    rows = [(f"a{i}", run, f"d{j}", 40.0 + 5 * i + 3 * j + run) for i in range(3) for run in (1, 2, 3) for j in range(4)]
    return pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"])


def test_fractions_on_one_dataset_and_in_one_cell():
    clean = plain()
    assert scales.mixed(clean) == [] and scales.mixed(clean.assign(value=clean["value"] / 100)) == []
    dataset = clean.assign(value=np.where(clean["dataset"] == "d1", clean["value"] / 100, clean["value"]))
    assert "d1" in scales.mixed(dataset)[0]["text"]
    cell = clean.copy()
    cell.loc[5, "value"] /= 100
    assert "a0 run 2 on d1" in scales.mixed(cell)[0]["text"]


def test_a_failed_run_at_zero_is_no_fraction():
    failed = plain()
    failed.loc[(failed["algorithm"] == "a1") & (failed["run"] == 2), "value"] = 0.0
    assert scales.mixed(failed) == []


def table_of(names, datasets, seed=0, gap=20.0):
    rng = np.random.default_rng(seed)
    rows = [(name, run, f"d{j}", 10 + gap * i + rng.normal()) for i, name in enumerate(names) for run in (1, 2, 3) for j in range(datasets)]
    return pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"])


def verdict(table, **asked):
    checked = records.check(table.rename(columns={"accuracy": "value"}).assign(metric="accuracy"), "made")
    return analysis.analyse(checked, Options(permutations=500, **asked)).results


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"]])
def test_nothing_is_said_of_equality_where_all_pairs_differ(names):
    found = verdict(table_of(names, 12))
    assert (found["pairs"]["p_permutation"] < 0.05).all()
    assert not any("not equality" in line for line in found["verdict"])


def test_a_comparison_with_the_baseline_counts_where_pairs_cannot():
    found = verdict(table_of(["erm", "b", "c", "d", "e"], 2), baseline="erm")
    assert found["floors"]["permutation_baseline"] < 0.05 <= found["floors"]["permutation_pairs"]
    assert found["baseline_comparisons"]["p_permutation"].min() < 0.05
    assert any("better than erm" in line for line in found["verdict"]) and not any("No conclusion" in line for line in found["verdict"])


def test_the_command_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    path = tmp_path / "my scores.csv"
    table_of(["A; rm", "$(b) c", "d"], 4).to_csv(path, index=False)
    asked = ["--baseline", "A; rm", "--exclude", "$(b) c:1", "--permutations", "500"]
    assert main.main([str(path), *asked, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    words = shlex.split(html.unescape(re.search(r"<dt>command</dt><dd>(.*?)</dd>", page)[1]))
    asked, paths = options.parse(words[2:])
    assert asked.baseline == "A; rm" and asked.exclude == ("$(b) c:1",) and paths.paths == [str(path)]
    pairs = re.search(r"p-values of all pairs.*?</thead>", page, re.DOTALL)[0]
    assert "nemenyi" not in pairs and "p z holm" not in pairs  # fewer than 6 blocks: exact only


def test_only_accuracies_are_percent_and_counts():
    rows = [(f"a{i}", run, f"d{j}", 0.3 + 0.1 * i + 0.013 * run + 0.001 * j, 100) for i in range(3) for run in (1, 2, 3) for j in range(6)]
    columns = ["algorithm", "run", "dataset", "value", "n_total"]
    results = {}
    for metric in ("accuracy", "loss"):
        frame = records.check(pd.DataFrame(rows, columns=columns).assign(metric=metric), "made")
        found = analysis.analyse(frame, Options(metric=metric, lower=metric == "loss", permutations=500))
        codes = [warning["code"] for warning in found.results["warnings"]]
        results[metric] = (found.results["rope"], "GRANULARITY" in codes, "in percent" in report.to_text(found))
    assert results == {"accuracy": (0.01, True, True), "loss": (0.0, False, False)}


def test_paired_runs_are_blocks_on_each_dataset():
    """Run 2 is a good start for everybody: unpaired, its spread hides a difference that every run shows."""
    rows = [(f"a{i}", run, f"d{j}", 50 + 10 * (run == 2) + i + 0.01 * j) for i in range(3) for run in (1, 2, 3, 4) for j in range(2)]
    frame = records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]).assign(metric="accuracy"), "made")
    paired, apart = (
        analysis.analyse(frame, Options(question="these-datasets", paired=paired, permutations=500)).results for paired in (True, False)
    )
    table = paired["these_datasets"]["datasets"]
    assert table["test"].tolist() == ["Friedman, runs as blocks"] * 2
    assert table["p"].tolist() == pytest.approx([6.0**-3] * 2) and (apart["these_datasets"]["datasets"]["p"] > table["p"]).all()
    assert paired["these_datasets"]["floors"]["datasets"] == pytest.approx(2 * 6.0**-3)
    assert any("Friedman, runs as blocks" in line for line in paired["verdict"])


def test_pairs_show_the_interval_of_their_rank_difference():
    table = analysis.analyse(gapped(3, 4, 6), Options(permutations=500)).results["pairs"]
    assert (table["rank_difference_low"] <= table["rank_difference"]).all() and (
        table["rank_difference"] <= table["rank_difference_high"]
    ).all()
    assert list(table).index("rank_difference_low") == list(table).index("rank_difference") + 1
