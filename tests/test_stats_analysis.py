"""The whole of `jaxbed stats`: published tables from the command, every warning, both questions, selection rules, files."""

import json
import math

import analyses
import numpy as np
import pandas as pd
import published
import pytest

from jaxbed.stats import main, new_datasets, tables
from jaxbed.stats.analysis import Analysis, analyse
from jaxbed.stats.audit import checks
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.figures import drawing
from jaxbed.stats.options import Options
from jaxbed.stats.output import files, report
from jaxbed.stats.reading import records, roles
from jaxbed.stats.selection import criteria, failures, rules
from jaxbed.stats.sensitivity import bootstrap

ROLES = """dataset,role,family,size,trained_on
ImageNet1k,test,,,all except Stylized_ERM
Silhouette,ood,,160,
Edge,ood,,160,
Sketch,ood,,800,
CueConflict,ood,,,
ImageNetA,ood,,,
ImageNetR,ood,,,
ImageNetStylized,ood,,,Stylized_ERM
DeepAugCAE,ood,,,DeepAugCAE_ERM
DeepAugEDSR,ood,,,DeepAugEDSR_ERM
"""
STRICT = "ImageNet1k,Silhouette,Edge,Sketch,CueConflict,ImageNetA,ImageNetR"


def scores(algorithms: int = 4, datasets: int = 8, runs: int = 4, lift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Random scores without epochs; the first algorithm is better by `lift`."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"a{a}", run, f"d{d}", "accuracy", round(30 + 5 * d + rng.normal() + (a == 0) * lift, 3))
        for a in range(algorithms)
        for run in range(runs)
        for d in range(datasets)
    ]
    return records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "metric", "value"]), "made")


def curves(
    rng: np.random.Generator, algorithms: int = 2, runs: int = 3, epochs: int = 12, n_conflicting: int = 20, datasets: int = 6
) -> pd.DataFrame:
    """Records with epochs: a validation split with groups, and test sets; nothing is tested over one of them."""
    rows = []
    for a in range(algorithms):
        for run in range(runs):
            for epoch in range(1, epochs + 1):
                key = (f"a{a}", run, epoch)
                aligned, conflicting = rng.integers(60, 95) / 95, rng.integers(2, n_conflicting) / n_conflicting
                rows += [(*key, "val", "val", "accuracy", rng.integers(3, 9) / 10, 115.0)]
                rows += [(*key, "val", "val", "aligned", aligned, 95.0), (*key, "val", "val", "conflicting", conflicting, n_conflicting)]
                rows += [(*key, f"s{d}", "ood", "accuracy", rng.random() + 0.3 * a, np.nan) for d in range(datasets)]
    columns = ["algorithm", "run", "epoch", "dataset", "role", "metric", "value", "n_total"]
    return records.check(pd.DataFrame(rows, columns=columns), "made")


def codes(found: Analysis) -> set[str]:
    return {warning["code"] for warning in found.results["warnings"]}


def write_roles(tmp_path, text: str):
    path = tmp_path / "roles.csv"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    """They take longer than the rest of a report, and test_stats_figures looks at them."""
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])


@pytest.fixture(autouse=True)
def of_few_draws():
    with analyses.of_few_draws():
        yield


@pytest.fixture(scope="module")
def biasbed():
    return published.biasbed()


@pytest.fixture(scope="module")
def known(biasbed, tmp_path_factory) -> Analysis:
    """The published runs with all that is known about them."""
    path = write_roles(tmp_path_factory.mktemp("roles"), ROLES)
    with analyses.of_few_draws():
        return analyse(
            records.load([biasbed / "best_validation.csv"]),
            Options(baseline="ERM", permutations=20_000),
            roles=roles.read(path),
            table=records.read_table(biasbed / "table2_best_validation_mean_std.csv"),
            last=records.load([biasbed / "last_30_epochs.csv"]),
        )


# ---- the published tables


def test_the_audit_finds_what_is_known_of_the_published_runs(known):
    found = {}
    for warning in known.results["warnings"]:
        found.setdefault(warning["code"], []).append(warning)
    assert [run["run"] for run in found["DUPLICATE_RUN"][0]["runs"]] == [1, 4] and "pAdaIN run 1" in found["DUPLICATE_RUN"][0]["text"]
    assert found["UNEQUAL_RUNS"][0]["runs"]["DeepAugCAE_ERM"] == 9
    assert {"ImageNet1k", "DeepAugCAE", "DeepAugEDSR"} == {warning["dataset"] for warning in found["VAL_IS_TEST"]}
    assert {warning["algorithm"] for warning in found["TABLE_MISMATCH"]} == {"DeepAugCAE_ERM", "pAdaIN"}
    (hidden,) = found["HIDDEN_RUN"]
    assert hidden["algorithm"] == "DeepAugCAE_ERM" and hidden["scores"]["DeepAugCAE"] == pytest.approx(45.2, abs=0.5)
    assert len(found["IN_DISTRIBUTION"]) == 4 and "GRANULARITY" not in found  # the sizes given are those of the images
    assert all(warning["cure"] for warning in known.results["warnings"])
    assert known.results["datasets_strict"] == ["Silhouette", "Edge", "Sketch", "CueConflict", "ImageNetA", "ImageNetR"]


def test_both_answers_of_the_published_runs(known):
    results = known.results
    against = results["baseline_comparisons"].set_index("algorithm_i")
    assert results["baseline"] == "ERM" and against.loc["DeepAugCAE_ERM", "p_z_holm"] == pytest.approx(0.024409, abs=1e-6)
    assert known.p.loc["ERM", "DeepAugCAE_ERM"] > 0.05 > against.loc["DeepAugCAE_ERM", "p_permutation"]
    assert (results["these_datasets"]["datasets"]["p_holm"] < 1e-3).all()
    fragile = [warning for warning in results["warnings"] if warning["code"] == "FRAGILE" and "resamples" in warning["text"]]
    assert any({"ERM", "DeepAugCAE_ERM"} == {warning["algorithm_i"], warning["algorithm_j"]} for warning in fragile)
    needed = results["power"]["datasets_needed"].set_index(["test", "algorithm_i", "algorithm_j"])["datasets"]
    assert 15 <= needed["control_holm", "DeepAugCAE_ERM", "ERM"] <= 25
    text = " ".join(results["verdict"])
    assert "One algorithm is better than ERM" in text and "Adjusted for all 28 pairs it is not" in text and "does not mean equality" in text
    assert "of the 28 pairs" not in text and "Of all 28 pairs" not in text  # a second family
    assert results["multiverse"]["varied"]["selection"] == ["as given", "last epochs"]
    assert results["multiverse"]["varied"]["runs"] == ["all", "without doubtful runs", "9 runs each"]


def test_in_distribution_cells_are_underlined_and_never_bold(known, biasbed, tmp_path):
    trained = {tuple(cell) for cell in known.results["in_distribution"]}
    latex = tables.to_latex(known.scores, in_distribution=trained)
    assert latex.count(r"\underline") == 10 and latex.count(r"$^\dagger$") == 4
    assert r"\underline{53.2 $\pm$ 0.2}" in latex and r"\textbf{16.1} $\pm$ 0.3" in latex  # best of those not trained on Stylized ImageNet
    paper = ROLES.replace("all except Stylized_ERM", "")
    frame = roles.training_data(roles.read(write_roles(tmp_path, paper)), known.results["algorithms"])
    daggers = {(name, dataset) for name, datasets in frame.items() for dataset in datasets}
    assert tables.to_latex(known.scores, in_distribution=daggers).count(r"\underline") == 3
    assert "53.2 ± 0.2_" in report.to_text(known)


@pytest.mark.parametrize(
    ("datasets", "f", "p", "table"),
    [("all", "7.46", "2.2e-06", "table4_nemenyi_all"), (STRICT, "4.99", "0.00046", "table5_nemenyi_strict")],
)
def test_paper_mode_prints_tables_4_and_5(biasbed, tmp_path, capsys, datasets, f, p, table):
    text = (biasbed / "best_validation.csv").read_text()
    rows = pd.read_csv(biasbed / "best_validation.csv")
    one = rows[(rows["algorithm"] == "InfoDrop") & (rows["dataset"] == "ImageNetStylized")].iloc[0]
    line = f"InfoDrop,{one['run']},ImageNetStylized,{one['accuracy']}"
    path = tmp_path / "scores.csv"
    path.write_text(text.replace(line, line.replace(str(one["accuracy"]), str(one["accuracy"] + 0.2))))  # the swap at rounding level
    call = [str(path), "--exclude", "pAdaIN:2,5", "--datasets", datasets, "--paper-mode", "biasbed", "--permutations", "1000"]
    assert main.main([*call, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert f"F = {f}, p = {p} (d.o.f." in printed and "PAPER_DF" in printed
    nemenyi = json.loads((tmp_path / "out" / "stats.json").read_text())["paper"]["nemenyi"]
    expected = pd.read_csv(biasbed / f"{table}.csv")
    assert len(expected) >= 28
    for row in expected.itertuples():
        assert round(nemenyi[row.algorithm_i][row.algorithm_j], 3) == row.p, row
    if datasets == "all":
        assert "  0.002*" in printed and "  0.900 " in printed


# ---- what does not change the answer


def rank_statistics(found: Analysis) -> dict:
    pair = found.pairs.set_index(["algorithm_i", "algorithm_j"])
    by_pair = {}
    for (i, j), row in pair.iterrows():
        by_pair[frozenset((i, j))] = (row["p_permutation"], row["p_nemenyi"], row["p_conover_holm"], abs(row["rank_difference"]))
    return {"p": found.results["friedman"]["p"], "f": found.results["friedman"]["f"], "pairs": by_pair, "p_name": found.p_name}


def test_order_labels_and_monotone_scale_do_not_matter():
    frame = scores(3, 6, 2, lift=1.0)
    # one run each, for a monotone map does not keep means
    single = frame[frame["run"] == 0]
    factor = single["dataset"].map({f"d{d}": d + 1.0 for d in range(6)})
    stretched = analyse(single.assign(value=np.exp(single["value"] / 20) * factor))
    assert rank_statistics(stretched) == rank_statistics(analyse(single))
    renamed = frame.assign(
        algorithm=frame["algorithm"].str.replace("a", "z"), dataset=frame["dataset"] + "!", family=frame["dataset"] + "!"
    )
    first = rank_statistics(analyse(frame, Options(baseline="a0")))
    other = rank_statistics(analyse(renamed.sample(frac=1, random_state=3), Options(baseline="z0")))
    assert other == {**first, "pairs": {frozenset(name.replace("a", "z") for name in pair): p for pair, p in first["pairs"].items()}}


@pytest.mark.parametrize("metric", ["error", "gap", "fpr95_softmax", "rms_calibration_error_at_temperature", "mad_calibration_error"])
def test_errors_of_jaxbed_are_better_where_they_are_lower(metric, tmp_path, capsys):
    rows = [f"{name},{run},d{number},{metric},{value + 0.01 * run + 0.001 * number}"
            for name, value in (("good", 0.1), ("bad", 0.5)) for run in range(3) for number in range(8)]  # fmt: skip
    (tmp_path / "scores.csv").write_text("\n".join(["algorithm,run,dataset,metric,value", *rows]))
    given = [str(tmp_path / "scores.csv"), "--metric", metric, "--select", "last"]
    assert main.main([*given, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "good better than bad" in said and "--lower" in (tmp_path / "out" / "report.html").read_text()
    assert main.main([*given, "--higher-is-better"]) == 0
    assert "bad better than good" in capsys.readouterr().out


def test_lower_is_better_is_the_mirror():
    frame = scores(3, 6, 2, lift=2.0)
    higher = analyse(frame)
    lower = analyse(frame.assign(value=-frame["value"]), Options(lower=True))
    assert lower.p.equals(higher.p) and lower.mean_ranks.equals(higher.mean_ranks)
    assert lower.scores["mean"].tolist() == (-higher.scores["mean"]).tolist()  # shown as they are
    assert lower.results["verdict"] == higher.results["verdict"]
    text = tables.to_text(lower.scores, lower=True)
    assert text.count("*") == tables.to_text(higher.scores).count("*") and "lower is better" in report.to_text(lower)


def test_files_of_the_command(tmp_path):
    path = tmp_path / "in.csv"
    scores(4, 6, 3, lift=2.0).rename(columns={"value": "accuracy"}).drop(columns=["metric", "epoch"]).to_csv(path, index=False)
    assert main.main([str(path), "--out", str(tmp_path / "one")]) == 0
    stored = json.loads((tmp_path / "one" / "stats.json").read_text())
    assert stored["input"] == [str(path)] and stored["seed"] == 0 and stored["versions"]["scipy"]
    frame = records.load([path])
    drawn = [bootstrap.differences(frame, bootstrap.resample(frame, new_datasets.RESAMPLES, seed, datasets=True)) for seed in (0, 1)]
    same, other = (json.loads(files.to_json({"rows": table}))["rows"] for table in drawn)
    assert stored["stability"]["differences"] == same != other
    assert len(pd.read_csv(tmp_path / "one" / "pairs.csv")) == 6
    page = (tmp_path / "one" / "report.html").read_text()
    assert "Would they differ on another data set?" in page and stored["verdict"][-1].split(".")[0] in page


# ---- questions


def test_question_these_datasets():
    frame = scores(3, 3, 5, lift=3.0)
    found = analyse(frame, Options(question="these-datasets", baseline="a1"))
    assert found.p_name.startswith("permutation of runs")
    pair = found.pairs.set_index(["algorithm_i", "algorithm_j"])
    assert pair.loc[("a0", "a1"), "p_holm"] == found.p.loc["a1", "a0"] < 0.05
    text = " ".join(found.results["verdict"])
    assert "On 3 of 3 data sets they differ" in text and "better than a1 over all data sets together" in text
    assert "Kruskal-Wallis on each data set" in report.to_text(found)
    alone = analyse(frame[frame["run"] == 0], Options(question="these-datasets"))
    assert "every algorithm has one run" in " ".join(alone.results["verdict"]) and alone.results["these_datasets"] is None


def test_one_dataset_is_answered_for_itself():
    found = analyse(scores(3, 1, 5, lift=5.0))
    text = " ".join(found.results["verdict"])
    assert "No conclusion: one data set is one block" in text and "On 1 of 1 data set they differ" in text and "ONE_BLOCK" in codes(found)
    assert found.p is None


def test_families_are_the_blocks(tmp_path):
    frame = scores(3, 8, 2, lift=3.0)
    path = write_roles(tmp_path, "dataset,family\n" + "".join(f"d{d},{'same' if d < 7 else ''}\n" for d in range(8)))
    alone, together = analyse(frame), analyse(frame, roles=roles.read(path))
    assert together.results["friedman"]["blocks"] == 2 and "8 data sets in 2 families" in together.results["verdict"][0]
    assert together.results["friedman"]["p"] > 3 * alone.results["friedman"]["p"]
    assert {"DEPENDENT_BLOCKS", "FEW_BLOCKS"} <= codes(together) and "p-values are withheld" in " ".join(report.to_text(together).split())
    column = frame.assign(family=["same" if int(name[1:]) < 7 else name for name in frame["dataset"]])
    assert analyse(column).results["friedman"]["p"] == together.results["friedman"]["p"]  # as a column of the scores


def test_missing_cells_listwise_and_skillings_mack():
    frame = scores(3, 7, 2, lift=3.0)
    hole = frame[~((frame["algorithm"] == "a1") & (frame["dataset"] == "d2"))]
    with pytest.raises(ValueError, match=r"no run has accuracy for a1 on d2.*--missing drop"):
        analyse(hole)
    found = analyse(hole, Options(missing="drop"))
    assert found.results["datasets"] == ["d0", "d1", "d3", "d4", "d5", "d6"] and "MISSING" in codes(found)
    assert found.results["missing_cells"]["listwise"]["m_datasets"] == 6 and "Skillings-Mack" in " ".join(found.results["verdict"])
    assert found.results["friedman"]["p"] == analyse(hole[hole["dataset"] != "d2"]).results["friedman"]["p"]
    one = frame[~((frame["algorithm"] == "a1") & (frame["dataset"] == "d2") & (frame["run"] == 0))]
    partly = analyse(one)
    assert {"MISSING", "INCOMPLETE"} <= codes(partly) and partly.results["stability"] is None and partly.p is not None


def test_floor_counts_failed_runs_as_guessing(tmp_path):
    frame = scores(3, 6, 3, lift=3.0)
    frame.loc[(frame["algorithm"] == "a0") & (frame["run"] == 1), "status"] = "diverged"
    path = write_roles(tmp_path, "dataset,chance\nd0,10\n")
    with pytest.raises(ValueError, match=r"diverged: 'a0' run 1\. .*--missing floor"):
        analyse(frame)
    found = analyse(frame, Options(missing="floor"), roles=roles.read(path))
    cells = found.scores.set_index(["algorithm", "dataset"])
    kept = frame[(frame["algorithm"] == "a0") & (frame["run"] != 1)].groupby("dataset")["value"].sum()
    assert cells.loc[("a0", "d0"), "mean"] == pytest.approx((kept["d0"] + 10) / 3)
    assert cells.loc[("a0", "d1"), "mean"] == pytest.approx(kept["d1"] / 3) and (cells["n"] == 3).all()
    assert "counted as guessing" in report.to_text(found) and "DIVERGED" in codes(found)
    frame.loc[frame["status"] == "diverged", "status"] = "truncated"
    dropped = analyse(frame[frame["dataset"] == "d0"], Options(missing="drop"))
    assert dropped.results["failed"][0]["status"] == "truncated" and dropped.scores["n"].min() == 2
    frame["status"] = "ok"
    frame.loc[frame.index[0], ["status", "value"]] = ["missing", math.nan]
    with pytest.raises(ValueError, match=r"1 missing score\(s\), first accuracy of 'a0' run 0 on 'd0'"):
        analyse(frame)
    assert analyse(frame[frame["dataset"] == "d0"], Options(missing="drop")).scores["n"].min() == 2
    assert len(failures.floor(frame, {})[0]) == len(frame)


# ---- warnings


def test_every_warning_fires_on_made_input():
    few = codes(analyse(scores(3, 4, runs=1), Options(paper_mode="biasbed")))
    assert {"FEW_BLOCKS", "FLOOR", "APPROX", "PAPER_DF", "ONE_RUN"} <= few
    flat = scores(3, 8, 2)
    flat["value"] = (flat["value"] / 2).round() * 2
    assert "TIES" in codes(analyse(flat))
    assert {"FRAGILE", "POOL"} <= codes(analyse(scores(3, 8, 2, lift=1.2, seed=1)))
    faulty = scores(3, 6, 6, lift=40.0)
    faulty.loc[(faulty["algorithm"] == "a0") & (faulty["run"] == 2), "value"] -= 40
    faulty.loc[faulty["algorithm"] == "a2", "value"] /= 100
    copy = faulty[(faulty["algorithm"] == "a1") & (faulty["run"] == 0)].assign(run=9)
    found = codes(analyse(pd.concat([faulty, copy], ignore_index=True)))
    assert {"UNEQUAL_RUNS", "DUPLICATE_RUN", "OUTLIER_RUN", "MIXED_SCALES"} <= found


def test_warnings_of_epochs_and_groups():
    one = curves(np.random.default_rng(0), datasets=1)
    found = analyse(one, Options(select="ac_score"))
    assert "SMALL_GROUP" in codes(found)
    best = analyse(one)  # validation accuracies are tenths: tied
    assert "TIED_SELECTION" in codes(best) and "SMALL_GROUP" not in codes(best)
    assert "SMALL_GROUP" not in codes(analyse(curves(np.random.default_rng(0), n_conflicting=40, datasets=1), Options(select="ac_score")))
    frame = curves(np.random.default_rng(0), datasets=3)
    test_is_val = frame[frame["metric"] == "accuracy"].copy()
    val = test_is_val[test_is_val["dataset"] == "val"].set_index(["algorithm", "run", "epoch"])["value"]
    on = test_is_val["dataset"] == "s0"
    test_is_val.loc[on, "value"] = [val[key] for key in zip(*(test_is_val.loc[on, name] for name in val.index.names), strict=True)]
    found = analyse(test_is_val)
    assert "VAL_IS_TEST" in codes(found) and "s0" not in found.results["datasets_strict"]
    assert analyse(test_is_val, Options(datasets="strict")).results["datasets"] == ["s1", "s2"]
    assert found.results["multiverse"]["varied"]["selection"] == ["best_val", "last", "last_n:6"]


def test_cherry_picked_epochs_are_never_tested():
    for rule in ("oracle", "oracle_per_dataset"):
        found = analyse(curves(np.random.default_rng(1)), Options(select=rule))
        assert found.p is None and found.pairs is None and found.results["friedman"] is None
        assert found.results["verdict"][0].startswith("No test: epochs were cherry-picked") and "CHERRY_PICKED" in codes(found)


# ---- selection rules


def golden_run() -> tuple[pd.DataFrame, dict]:
    (case,) = [case for case in published.cases() if case["name"].startswith("S1")]
    given, rows = case["input"], []
    for place, epoch in enumerate(given["epoch"]):
        for name, role, metric, key, total in (
            ("held_out", "val", "accuracy", "val", math.nan),
            ("held_out", "val", "aligned", "val_aligned", given["n_aligned"]),
            ("held_out", "val", "conflicting", "val_conflict", given["n_conflict"]),
            ("shifted", "ood", "accuracy", "test", math.nan),
        ):
            value = float(given[key][place])
            rows.append(("erm", 1, name, epoch, role, metric, value, total, "ok" if value == value else "missing"))
    columns = ["algorithm", "run", "dataset", "epoch", "role", "metric", "value", "n_total", "status"]
    return records.check(pd.DataFrame(rows, columns=columns), "golden"), case["expected"]


def test_rules_on_the_golden_run():
    frame, expected = golden_run()
    kept, _ = failures.drop(frame)

    def score(rule, ties):
        return rules.apply(kept, rule, "accuracy", ["shifted"], ties)["value"].item()

    assert score("best_val", "first") == expected["best_val_first_test"] and score("best_val", "mean") == expected["best_val_tie_mean_test"]
    for rule, name in (("ac_score", "ac"), ("avg_acc", "avg")):
        assert rules.choose(kept, rule)["epoch"].item() == expected[f"best_{name}_epoch"]
        assert score(rule, "mean") == expected[f"best_{name}_test"]
    worst = rules.choose(kept, "worst_group")
    assert worst[["epoch", "tied_epochs"]].to_numpy().tolist() == [[expected["best_worst_group_first_epoch"], 2.0]]
    assert rules.choose(kept, "worst_group", "last")["epoch"].item() == expected["best_worst_group_tied_epochs"][1]
    assert score("worst_group", "mean") == pytest.approx((0.62 + 0.64) / 2)
    assert score("oracle", "first") == expected["oracle_test"] and score("last", "mean") == expected["last_epoch_test"]
    for criterion, key in ((criteria.ac_score, "ac_scores"), (criteria.avg_acc, "avg_val_acc"), (criteria.worst_group, "worst_group_val")):
        known = [value for value in map(float, expected[key]) if value == value]
        assert criterion(kept).sort_values("epoch")["score"].tolist() == pytest.approx(known, abs=1e-9)


def test_smoothed_and_careful_ac_scores():
    frame = curves(np.random.default_rng(2), 1, 1, 30)
    plain = criteria.ac_score(frame)["score"].to_numpy()
    smooth = criteria.ac_smooth(frame, 5)["score"].to_numpy()
    assert smooth[10] == pytest.approx(plain[8:13].mean()) and smooth[0] == pytest.approx(plain[:3].mean())
    assert rules.choose(frame, "ac_smooth:5")["score"].item() == smooth.max()
    low = criteria.ac_lower(frame)["score"].to_numpy()
    assert (low < plain).all()
    from scipy import stats

    interval = stats.binomtest(7, 20).proportion_ci(method="wilson")
    assert criteria.wilson_lower(pd.Series([7 / 20]), pd.Series([20.0])).item() == pytest.approx(interval.low, abs=1e-6)
    with pytest.raises(ValueError, match="ac_lower needs n_total"):
        rules.choose(frame.assign(n_total=math.nan), "ac_lower")
    zero = frame.assign(value=frame["value"].where(~frame["metric"].isin(["aligned", "conflicting"]), 0.0))
    assert (criteria.ac_score(zero)["score"] == 0).all()


def test_groups_of_a_file(tmp_path):
    path = tmp_path / "groups.csv"
    lines = ["algorithm,run,dataset,epoch,split,accuracy,group,n_total,family"]
    for epoch, (a, c, test) in enumerate([(0.9, 0.2, 0.5), (0.8, 0.6, 0.7)], start=1):
        lines += [f"x,1,v,{epoch},val,{a},aligned,90,", f"x,1,v,{epoch},val,{c},conflicting,40,", f"x,1,v,{epoch},val,0.5,left,40,"]
        lines += [f"x,1,t,{epoch},test,{test},,,kin"]
    path.write_text("\n".join(lines))
    frame = records.load([path])
    assert set(frame["metric"]) == {"aligned", "conflicting", "accuracy:left", "accuracy"} and set(frame["family"]) == {"v", "kin"}
    assert rules.apply(frame, "ac_score", "accuracy", ["t"])["value"].tolist() == [0.7]
    assert rules.choose(frame, "worst_group")["score"].item() == 0.5


# ---- the command


def test_one_algorithm_prints_its_scores_and_nothing_of_comparisons(tmp_path, capsys):
    header, path = "algorithm,run,dataset,epoch,role,accuracy", tmp_path / "one.csv"
    cells = [(run, name, role, epoch) for run in (1, 2) for name, role in (("V", "val"), ("A", "test")) for epoch in (1, 2, 3)]
    values = [0.8 if name == "V" and epoch > 1 else (epoch + run) / 10 for run, name, _, epoch in cells]
    rows = [f"erm,{run},{name},{epoch},{role},{value}" for (run, name, role, epoch), value in zip(cells, values, strict=True)]
    path.write_text("\n".join([header, *rows]))
    assert main.main([str(path), "--missing", "drop", "--out", str(tmp_path / "out")]) == 0
    table, selection, *warnings = capsys.readouterr().out.split("\n\n")
    assert table.split("\n")[0] == "accuracy, mean ± std over runs (ddof 1), in percent"
    assert [line.split() for line in table.split("\n")[1:]] == [["algorithm", "A", "runs"], ["erm", "40.0", "±", "7.1", "2"]]
    assert selection == "Epoch selection: best_val, 2 choices, 2 of them tied"
    assert [text.split(":")[0] for text in warnings[:-1]] == ["warning TIED_SELECTION"] and warnings[-1].startswith("wrote ")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'class="verdict"' not in page and "algorithm was given" not in page and "bold" not in page


def test_strict_needs_to_know(tmp_path):
    with pytest.raises(ValueError, match="--datasets strict: no data set is known to be shifted"):
        analyse(scores(), Options(datasets="strict"))
    path = write_roles(tmp_path, "dataset,trained_on\nd0,a0;a1\nd1,all\nd9,other\n")
    found = analyse(scores(), Options(datasets="strict"), roles=roles.read(path))
    assert found.results["datasets"] == [f"d{d}" for d in range(2, 8)]
    unknown = next(warning for warning in found.results["warnings"] if warning["code"] == "UNKNOWN_ROLES")
    assert unknown["text"].endswith("d9, other")


def test_findings_of_the_audit_have_cures():
    from jaxbed.stats import verdict

    frame = scores(3, 6, 3)
    found = checks.audit(frame, frame, training_data={"a0": ["d0"]}, families={"d0": "x", "d1": "x"}, sizes={"d2": 7})
    assert {"GRANULARITY", "IN_DISTRIBUTION", "DEPENDENT_BLOCKS"} <= {finding["code"] for finding in found}
    assert all(finding["code"] in verdict.CURES for finding in found)


def test_baseline_comparisons_of_all_resamples_at_once():
    frame = scores(4, 6, 4, lift=1.0)
    found = analyse(frame, Options(baseline="a2")).results["stability"]["baseline_comparisons"].set_index("algorithm_i")["significant"]
    resamples = bootstrap.resample(frame, 2000, 0)
    few = resamples._replace(means=resamples.means[:200])
    slow = bootstrap.stability(few, lambda matrix: pairwise.control(matrix, "a2"))
    fast = new_datasets._control_stability(few, Options(baseline="a2")).set_index("algorithm_i")["significant"]
    for name in ("a0", "a1", "a3"):
        row = slow[(slow[["algorithm_i", "algorithm_j"]].isin([name, "a2"])).all(axis=1)]
        assert fast[name] == row["significant"].item()
    assert found["a0"] == pytest.approx(fast["a0"], abs=0.15) and 0 < found["a0"] < 1
