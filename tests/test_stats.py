"""Statistics: golden values of the papers, cross-checks with scipy and scikit-posthocs, selection rules, refusals, the command line."""

import functools
import json
import math
import subprocess
import sys
import types
from pathlib import Path

import analyses
import numpy as np
import pandas as pd
import published
import pytest

import jaxbed.evaluation
from jaxbed.stats import main, tables
from jaxbed.stats.analysis import Analysis, analyse
from jaxbed.stats.comparisons import ranks
from jaxbed.stats.figures import drawing, style
from jaxbed.stats.options import Options
from jaxbed.stats.output import report
from jaxbed.stats.reading import records
from jaxbed.stats.selection import criteria, failures, rules

C2 = published.biasbed() / "best_validation.csv"
STRICT = "ImageNet1k,Silhouette,Edge,Sketch,CueConflict,ImageNetA,ImageNetR"

# The ranks behind BiasBed's published tests (statistics.md 1.1), one row a data set; rows 5, 8, 9 are left out of its strict set.
NAMES = "ERM pAdaIN SagNet InfoDrop Stylized Debiased CAE EDSR".split()
BIASBED_RANKS = np.array(
    [list(map(int, row)) for row in "36258147 57846312 67581423 87561423 67851432 75861234 47638125 58764213 47658312 64758321".split()]
)


@pytest.fixture(autouse=True)
def of_few_draws():
    with analyses.of_few_draws():
        yield


def matrix_of(x, names=None) -> pd.DataFrame:
    """Rows of x are data sets, as in golden.json."""
    x = np.array(x, dtype=float)
    return pd.DataFrame(x.T, index=names or [f"a{i}" for i in range(x.shape[1])], columns=[f"d{i}" for i in range(x.shape[0])])


def random_matrix(seed: int, n: int, m: int, levels: int) -> pd.DataFrame:
    return matrix_of(np.random.default_rng(seed).integers(0, levels, (m, n)) / 10)


def tidy(rows: list[tuple], **same) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "epoch", "role", "metric", "value"])
    return records.check(frame.assign(**same), "hand")


def curves(run: int, val: list[float], test: list[float], algorithm: str = "erm", metric: str = "accuracy") -> list[tuple]:
    rows = []
    for epoch, (v, t) in enumerate(zip(val, test, strict=True), start=1):
        rows += [(algorithm, run, "held_out", epoch, "val", metric, v), (algorithm, run, "shifted", epoch, "ood", metric, t)]
    return rows


def write_csv(path: Path, scores: dict[str, list[list[float]]]) -> str:
    """scores[algorithm][run][dataset], datasets A, B, ..."""
    lines = ["algorithm,run,dataset,accuracy"]
    for name, runs in scores.items():
        for run, values in enumerate(runs, start=1):
            lines += [f"{name},{run},{chr(65 + place)},{value}" for place, value in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def three_algorithms(datasets: int = 8, runs: int = 3) -> dict[str, list[list[float]]]:
    """ERM, a twin that wins every other data set, and one that is best everywhere."""
    start = [[0.3 + 0.05 * d + 0.002 * run for d in range(datasets)] for run in range(runs)]
    twin = [[v + (0.01 if d % 2 else -0.01) for d, v in enumerate(row)] for row in start]
    return {"ERM": start, "tw_in": twin, "best": [[v + 0.1 for v in row] for row in start]}


# ---- rank tests


@pytest.mark.parametrize(
    ("rows", "chi2", "w", "f", "p_chi2", "p_moment", "p_classic", "pairs"),
    [
        pytest.param(
            range(10), 31.7333333, 0.4533333, 7.4634146, 4.551e-5, 2.1736e-6, 1.5942e-6,
            {"ERM Debiased": 0.210670, "ERM CAE": 0.052759, "pAdaIN Debiased": 0.012246, "pAdaIN CAE": 0.001522, "ERM pAdaIN": 0.973977},
            id="all",
        ),
        pytest.param(
            (0, 1, 2, 3, 4, 6, 7), 22.2380952, 0.4538387, 4.9857651, 0.002311, 4.5665e-4, 3.5996e-4,
            {"ERM InfoDrop": 1.0, "ERM CAE": 0.240944, "pAdaIN Debiased": 0.023652, "SagNet CAE": 0.086095, "ERM SagNet": 0.999865},
            id="strict",
        ),
    ],
)  # fmt: skip
def test_published_tests_from_typed_ranks(rows, chi2, w, f, p_chi2, p_moment, p_classic, pairs):
    matrix = matrix_of(-BIASBED_RANKS[list(rows)], NAMES)
    found, p = ranks.friedman(matrix), ranks.nemenyi(matrix)
    assert [found["chi2"], found["kendall_w"], found["f"]] == pytest.approx([chi2, w, f], abs=1e-6)
    assert [found["p_chi2"], found["p_f_moment"], found["p_f_iman_davenport"]] == pytest.approx([p_chi2, p_moment, p_classic], rel=2e-4)
    assert found["tie_correction"] == 1 and not found["warnings"]
    for names, value in pairs.items():
        assert p.loc[*names.split()] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "m", "expected"), [(2, 4, 0.979982), (3, 5, 1.482286), (4, 14, 1.253559), (8, 7, 3.968351), (8, 10, 3.320161), (9, 15, 3.101730)]
)
def test_critical_difference_has_the_root_of_two(n, m, expected):
    assert ranks.critical_difference(n, m) == pytest.approx(expected, abs=1e-6)


def number(value) -> float:
    return float(value)  # golden.json writes "NaN" and "Infinity"


def test_golden_cases():
    cases = published.cases()
    blocked = [case for case in cases if "X" in case["input"] and "ranks" in case["expected"]]
    assert len(blocked) >= 16
    keys = {"F": "f", "df1": 0, "df2": 1, "p_F": "p_f_iman_davenport", "p_F_moment": "p_f_moment", "kendall_W": "kendall_w"}
    for case in blocked:
        expected, matrix = case["expected"], matrix_of(case["input"]["X"])
        found = ranks.friedman(matrix)
        np.testing.assert_allclose(ranks.rank(matrix).to_numpy().T, expected["ranks"], err_msg=case["name"])
        np.testing.assert_allclose(list(found["mean_ranks"].values()), expected["mean_ranks"], atol=1e-9)
        np.testing.assert_allclose(ranks.nemenyi(matrix), expected["nemenyi"], atol=1e-6, err_msg=case["name"])
        closed = number(expected.get("p_exact", "NaN")) if matrix.shape[0] == 2 or found["f"] == math.inf else math.nan
        assert found["p_exact"] == pytest.approx(closed, nan_ok=True)
        degrees = {"df1": found["f_degrees_of_freedom_iman_davenport"], "df1_moment": found["f_degrees_of_freedom_moment"]}
        assert degrees["df1"] == [expected["df1"], expected["df2"]]
        assert degrees["df1_moment"] == pytest.approx([expected["df1_moment"], expected["df2_moment"]])
        for name in ("chi2", "chi2_uncorrected", "tie_correction", "p_chi2", "kendall_W", "F", "p_F", "p_F_moment"):
            assert found[keys.get(name, name)] == pytest.approx(number(expected[name]), abs=1e-6, rel=1e-6), (case["name"], name)
    (constants,) = [case["expected"] for case in cases if case["name"].startswith("C1")]
    for text, value in constants.items():
        n, m = (int(part.split("=")[1]) for part in text.split(","))
        assert ranks.critical_difference(n, m) == pytest.approx(value["CD"], abs=1e-6)


def test_degenerate_matrices():
    tied = ranks.friedman(matrix_of(np.full((3, 3), 0.5)))
    assert math.isnan(tied["chi2"]) and math.isnan(tied["f"]) and math.isnan(tied["kendall_w"])
    assert tied["p_chi2"] == tied["p_f_moment"] == 1
    assert (ranks.nemenyi(matrix_of(np.full((3, 3), 0.5))) == 1).all(axis=None)
    agree = ranks.friedman(matrix_of([[3, 2, 1], [30, 20, 10]]))
    assert agree["f"] == math.inf and agree["p_f_moment"] == 0 and agree["chi2"] == 4
    assert "the exact p is 0.167" in next(w["text"] for w in agree["warnings"] if w["code"] == "PERFECT_AGREEMENT")
    single = ranks.friedman(matrix_of([[3, 2, 1]]))
    assert math.isnan(single["chi2"]) and math.isnan(single["p_f_moment"]) and single["warnings"][0]["code"] == "ONE_BLOCK"
    two = ranks.friedman(matrix_of([[2, 1], [1, 2]]))  # no moment degree of freedom is left
    assert math.isnan(two["p_f_moment"]) and two["p_f_iman_davenport"] == 1
    assert ["TWO_ALGORITHMS"] == [w["code"] for w in two["warnings"]]
    assert ranks.friedman(matrix_of([[2, 2, 1]] * 3))["p_exact"] == pytest.approx(1 / 9)  # 3 orders with this tie
    same_column = ranks.nemenyi(matrix_of([[0.8, 0.8, 0.7], [0.6, 0.6, 0.9], [0.9, 0.9, 0.1], [0.5, 0.5, 0.4], [0.7, 0.7, 0.2]]))
    assert same_column.loc["a0", "a1"] == 1


def test_rounding_makes_ties_of_equal_means():
    first, second = np.mean([0.1, 0.2, 0.3]), np.mean([0.3, 0.2, 0.1])
    assert first != second  # in floating point
    assert ranks.rank(matrix_of([[first, second]])).to_numpy().tolist() == [[1.5], [1.5]]


@pytest.mark.parametrize(("n", "m", "levels"), [(3, 4, 3), (5, 9, 100), (8, 7, 4), (4, 20, 6)])
def test_agrees_with_scipy_and_scikit_posthocs(n, m, levels):
    import scikit_posthocs
    from scipy import stats

    matrix = random_matrix(n * m, n, m, levels)
    found = ranks.friedman(matrix)
    theirs = stats.friedmanchisquare(*matrix.to_numpy())
    assert [found["chi2"], found["p_chi2"]] == pytest.approx([theirs.statistic, theirs.pvalue], rel=1e-9)
    assert found["f"] == pytest.approx((m - 1) * found["chi2"] / (m * (n - 1) - found["chi2"]))
    np.testing.assert_allclose(ranks.nemenyi(matrix), scikit_posthocs.posthoc_nemenyi_friedman(matrix.to_numpy().T), atol=1e-9)


def test_order_and_monotone_scale_do_not_matter():
    matrix = random_matrix(0, 6, 8, 7)
    other = np.exp(3 * matrix).mul(np.arange(1, 9), axis=1).iloc[[3, 0, 5, 1, 4, 2], [7, 2, 0, 1, 6, 5, 4, 3]]
    first, second = ranks.friedman(matrix), ranks.friedman(other)
    for name in ("chi2", "f", "kendall_w", "p_chi2", "p_f_moment", "p_f_iman_davenport", "tie_correction", "mean_ranks"):
        assert first[name] == second[name]
    assert ranks.nemenyi(matrix).equals(ranks.nemenyi(other).loc[matrix.index, matrix.index])


def test_matrices_that_are_refused():
    with pytest.raises(ValueError, match="'d0' appears twice; blocks are data sets"):
        ranks.friedman(matrix_of(np.eye(3)).set_axis(["d0", "d0", "d1"], axis=1))
    with pytest.raises(ValueError, match="'a1' on 'd0' is nan; rank tests need every cell"):
        ranks.nemenyi(matrix_of([[1, math.nan, 2], [1, 2, 3]]))
    with pytest.raises(ValueError, match="at least 2 algorithms"):
        ranks.friedman(matrix_of([[1], [2]]))


def test_smallest_p_says_when_nothing_can_be_found():
    assert ranks.smallest_p(8, 2) > 0.05 > ranks.smallest_p(8, 3)  # statistics.md 4: three data sets at least
    assert ranks.smallest_p(2, 3) > 0.05 > ranks.smallest_p(2, 4)
    order = matrix_of(np.tile(np.arange(8.0), (3, 1)))
    assert ranks.smallest_p(8, 3) == pytest.approx(ranks.nemenyi(order).loc["a0", "a7"], rel=1e-12)


# ---- selection


def test_best_val_takes_the_first_tie_and_counts():
    # golden S1: epoch 5 diverges in a copy of the run that we are asked to choose from all the same
    rows = curves(1, [0.5, 0.7, 0.8, 0.8, 0.75], [0.4, 0.62, 0.55, 0.58, 0.64]) + curves(2, [0.1, 0.3, 0.2, 0.1, 0.0], [0, 1, 0, 0, 0])
    frame = tidy(rows)
    assert rules.choose(frame, "best_val").to_numpy().tolist() == [["erm", 1, 3, 0.8, 2, 5], ["erm", 2, 2, 0.3, 1, 5]]
    assert rules.choose(frame, "best_val", "last")["epoch"].tolist() == [4, 2]
    assert rules.apply(frame, "best_val", datasets=["shifted"], ties="last")["value"].tolist() == [0.58, 1]
    mean = rules.apply(frame.assign(n_total=100.0), "best_val", datasets=["shifted"])
    assert mean["value"].tolist() == [pytest.approx(0.565), 1] and mean["n_total"].isna().tolist() == [True, False]
    chosen = rules.apply(frame, "best_val", datasets=["shifted"], ties="first")
    assert chosen["value"].tolist() == [0.55, 1] and list(chosen.columns) == list(records.COLUMNS)
    assert rules.apply(frame, "last").query("role == 'ood'")["value"].tolist() == [0.64, 0]
    assert rules.choose(frame, "last")["score"].tolist() == [0.75, 0.0]
    averaged = rules.apply(frame, "last_n:3").query("role == 'ood'")
    assert averaged["value"].tolist() == pytest.approx([0.59, 0]) and averaged["epoch"].tolist() == [5, 5]


def test_shuffled_records_choose_the_same_epochs():
    frame = tidy(curves(1, [0.5, 0.8, 0.8], [0.1, 0.2, 0.3]) + curves(2, [0.4, 0.4, 0.3], [0.5, 0.6, 0.7]))
    for seed in range(3):
        assert rules.choose(frame.sample(frac=1, random_state=seed), "best_val").equals(rules.choose(frame, "best_val"))


def test_ac_score_breaks_ties_by_aligned_accuracy_then_by_epoch():
    scores = curves(1, [0.2, 0.6, 0.6, 0.6], [0.1, 0.2, 0.3, 0.4], metric="ac_score")
    accuracy = curves(1, [0.9, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4])
    aligned = [("erm", 1, "held_out", epoch, "val", "aligned", value) for epoch, value in enumerate([0.99, 0.7, 0.9, 0.9], start=1)]
    found = rules.choose(tidy(scores + accuracy + aligned), "ac_score")
    assert found[["epoch", "score", "tied_epochs", "valid_epochs"]].to_numpy().tolist() == [[3, 0.6, 2, 4]]
    assert rules.choose(tidy(scores + accuracy), "ac_score")["epoch"].tolist() == [2]
    assert rules.apply(tidy(scores + accuracy + aligned), "ac_score", metric="accuracy", datasets=["shifted"], ties="first")[
        "value"
    ].tolist() == [0.3]


def test_oracle_takes_one_epoch_per_run_by_mean_rank():
    rows = [("erm", 1, name, epoch, "ood", "accuracy", value) for name, values in
            {"A": [0.1, 0.5, 0.9], "B": [0.3, 0.9, 0.1], "C": [0.2, 0.8, 0.7]}.items() for epoch, value in enumerate(values)]  # fmt: skip
    found = rules.choose(tidy(rows), "oracle")
    assert found["epoch"].tolist() == [1] and found["score"].iloc[0] == pytest.approx(-4 / 3)
    assert rules.apply(tidy(rows), "oracle")["value"].tolist() == [0.5, 0.9, 0.8]
    assert rules.apply(tidy(rows), "oracle_per_dataset")["value"].tolist() == [0.9, 0.9, 0.8]
    assert "CHERRY-PICKED" in criteria.oracle.__doc__


def test_diverged_runs_are_never_averaged_in_silence():
    rows = curves(1, [0.5, 0.6], [0.1, 0.2]) + curves(2, [0.5, 0.9], [0.3, 0.4])
    frame = tidy([*rows, ("erm", 2, "held_out", 3, "val", "accuracy", math.nan)], status=["ok"] * 8 + ["diverged"])
    for rule in ("best_val", "last", "last_n:1"):
        with pytest.raises(ValueError, match=r"'erm' run 2 at epoch 3.*--missing drop"):
            rules.apply(frame, rule)
    kept, dropped = failures.drop(frame)
    assert dropped == [{"algorithm": "erm", "run": 2, "epoch": 3.0, "status": "diverged"}] and kept["run"].unique().tolist() == [1]
    assert rules.choose(frame, "best_val")["valid_epochs"].tolist() == [2, 2]  # the rule itself skips the bad epoch
    with pytest.raises(ValueError, match="all runs of 'erm' diverged"):
        failures.drop(frame[frame["run"] == 2])
    with pytest.raises(ValueError, match="'erm' run 2 at epoch 3"):
        analyse(frame)
    analysis = analyse(frame, Options(missing="drop"))
    text = report.to_text(analysis)
    assert "warning DIVERGED: left out because they failed: erm run 2 (diverged)" in text and "runs per cell" in text
    assert analysis.scores[["mean", "n", "runs"]].to_numpy().tolist() == [[0.2, 1, "1"]]


def test_selections_that_are_refused():
    frame = tidy(curves(1, [0.5, 0.6], [0.1, 0.2]))
    with pytest.raises(ValueError, match=r"unknown selection rule 'bset'; allowed are best_val, last, last_n:30, ac_score"):
        rules.apply(frame, "bset")
    for bad in ("last_n", "last_n:0", "last_n:x", "last:3"):
        with pytest.raises(ValueError, match="unknown selection rule"):
            rules.parse(bad)
    with pytest.raises(ValueError, match=r"last_n:3 needs 3 evaluated epochs, 'erm' run 1 has 2; use last_n:2"):
        rules.apply(frame, "last_n:3")
    with pytest.raises(ValueError, match=r"best_val needs 'accuracy' on a validation split .* use --select last"):
        rules.apply(frame[frame["role"] != "val"], "best_val")
    with pytest.raises(ValueError, match=r"on 'shifted' is missing at the chosen epoch, though measured at others"):
        rules.apply(frame[~((frame["role"] == "ood") & (frame["epoch"] == 2))], "best_val")
    with pytest.raises(ValueError, match=r"on 'shifted' was measured at only 0 of the last 1 epochs"):
        rules.apply(frame[~((frame["role"] == "ood") & (frame["epoch"] == 2))], "last_n:1")


def test_scores_without_epochs_pass_unchanged():
    frame = records.check(pd.DataFrame({"algorithm": ["x"], "run": [1], "dataset": ["A"], "metric": ["accuracy"], "value": [0.5]}), "hand")
    assert rules.apply(frame, "best_val").equals(frame)
    both = pd.concat([frame, tidy(curves(1, [0.5, 0.4], [0.1, 0.2]))], ignore_index=True)
    assert rules.apply(both, "best_val").query("role != 'val'")["value"].tolist() == [0.5, 0.1]


# ---- records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm,run,accuracy\nx,1,0.5\n", "column 'dataset' is missing, found algorithm, run, accuracy; needed are"),
        ("algorithm,run,dataset,accuracy\nx,1,A,0.5\nx,1,A,0.6\n", r"1 repeated row\(s\), first accuracy of 'x' run 1 on 'A'"),
        ("algorithm,run,dataset,accuracy\nx,1,A,high\n", "accuracy 'high' in line 2 is not a number"),
        (
            "algorithm,run,dataset,accuracy\nx,1,A,0.5\nx,2,A,inf\n",
            "accuracy of 'x' run 2 on 'A' is inf in line 3; only finite .* 'diverged'",
        ),
        ("algorithm,run,dataset,accuracy\nx,1,A,\n", "is nan in line 2"),
        ("algorithm,run,dataset,accuracy\nx,1,A,73,6\n", "line 2 has 5 fields, the header 4: 'x,1,A,73,6'; write 73.6"),
        ("algorithm,run,dataset,accuracy\nx,1.5,A,0.5\n", "run '1.5' in line 2 is not a whole number"),
        ("algorithm,run,dataset,accuracy\n,1,A,0.5\n", "algorithm is empty in line 2"),
        ("algorithm,run,dataset,accuracy\n", "contains no scores"),
        ("", "the file is empty"),
        ("algorithm,run,dataset,accuracy,role\nx,1,A,0.5,train\n", "role 'train' in line 2 is not one of val, test, ood"),
        ("algorithm,run,dataset,accuracy,status\nx,1,A,0.5,dead\n", "status 'dead' in line 2 is not one of ok, diverged"),
        ("algorithm,run,dataset,metric,value,role\nx,1,A,a,1,val\nx,1,A,b,1,ood\n", "data set 'A' of 'x' run 1 has two roles"),
        ("algorithm,run,dataset,accuracy,epoch\nx,1,A,1,3\nx,1,B,1,\n", "'x' run 1 has rows with and without epoch"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        records.load([path])
    assert str(path) in str(caught.value)


def test_csv_layouts(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffalgorithm, run,dataset,accuracy,std\nNA, 1,A,0.5,0.1\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("algorithm,run,dataset,metric,value,epoch,role\nx,1,A,ac_score,0.25,7,val\n")
    frame = records.load([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert list(frame.columns) == list(records.COLUMNS)
    assert frame["algorithm"].tolist() == ["NA", "x"] and frame["value"].tolist() == [0.5, 0.25]
    assert frame["role"].tolist() == ["test", "val"] and frame["metric"].tolist() == ["accuracy", "ac_score"]
    assert math.isnan(frame["epoch"][0]) and frame["epoch"][1] == 7
    assert frame.attrs["unused_columns"] == [f"{tmp_path / 'a.csv'}: std"]
    with pytest.raises(ValueError, match="repeated row"):
        records.load([tmp_path / "b.csv", tmp_path / "b.csv"])
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv: no such file"):
        records.load([tmp_path / "nowhere.csv"])


def workdirs(tmp_path, monkeypatch, frames: dict[str, pd.DataFrame]) -> list[str]:
    fake = types.ModuleType("jaxbed.evaluation.metrics")
    fake.scores = lambda path: frames[path.name]
    fake.confusions = lambda path, chosen: chosen.loc[
        chosen["algorithm"].isin(frames[Path(path).name]["algorithm"]), ["algorithm", "run", "dataset", "epoch"]
    ]
    monkeypatch.setitem(sys.modules, "jaxbed.evaluation.metrics", fake)
    monkeypatch.setattr(jaxbed.evaluation, "metrics", fake, raising=False)
    for name in frames:
        (tmp_path / name).mkdir()
    return [str(tmp_path / name) for name in frames]


def test_workdirs_end_to_end(tmp_path, monkeypatch, capsys):
    def records_of(name, lift):
        rows = []
        for run in range(2):
            for epoch, bump in ((1, 0.0), (2, 0.2), (3, 0.2)):
                rows.append((name, run, "held_out", epoch, "val", "accuracy", 0.5 + bump))
                rows += [(name, run, f"s{d}", epoch, "ood", "accuracy", 0.1 * d + lift + (epoch == 2) * 0.05) for d in range(6)]
        return tidy(rows)

    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    paths = workdirs(tmp_path, monkeypatch, {"one": records_of("erm", 0.0), "two": records_of("sagnet", 0.01)})
    out = tmp_path / "out"
    assert main.main([*paths, "--out", str(out)]) == 0
    found, text = json.loads((out / "stats.json").read_text()), capsys.readouterr().out
    assert found["datasets"] == [f"s{d}" for d in range(6)] and found["baseline"] is None
    assert found["scores"]["cells"][0]["mean"] == pytest.approx(0.025)  # mean of the tied epochs 2 and 3
    assert found["selection"]["tied_choices"] == 4 and {run["epoch"] for run in found["selection"]["runs"]} == {2}
    assert "TIED_SELECTION: 4 of 4" in text and "in percent" in text
    assert "They differ: sagnet better than erm (p = 0.031)." in text
    counted = pd.read_csv(out / "confusions.csv")  # of both workdirs, at the first of the tied epochs
    assert counted.groupby("algorithm", sort=False).size().to_dict() == {"erm": 12, "sagnet": 12} and set(counted["epoch"]) == {2}
    assert main.main([*paths, "--select", "oracle", "--out", str(out)]) == 0
    assert "CHERRY-PICKED" in capsys.readouterr().out and not (out / "pairs.csv").exists()
    assert json.loads((out / "stats.json").read_text())["nemenyi"] is None
    assert main.main([*paths, "--metric", "shape_bias"]) == 2
    assert "--metric shape_bias: not recorded; available: accuracy" in capsys.readouterr().err


def test_two_workdirs_may_not_share_a_run(tmp_path, monkeypatch):
    first, second = tidy(curves(1, [0.5], [0.1])), tidy(curves(1, [0.5], [0.1]) + curves(2, [0.5], [0.1]))
    paths = workdirs(tmp_path, monkeypatch, {"one": first, "two": second})
    with pytest.raises(ValueError, match=r"two: run 1 of 'erm' is also in .*one; a run may come from one workdir only"):
        records.load(paths)


# ---- tables


def test_summary_and_latex():
    frame = tidy(
        [("a_b&c", run, "A%", np.nan, "test", "accuracy", value) for run, value in ((2, 0.2), (1, 0.4))]
        + [("x^2", 1, "A%", np.nan, "test", "accuracy", 0.30004)]
    )
    scores = tables.summary(frame)
    assert scores["mean"].tolist() == pytest.approx([0.3, 0.30004]) and scores["n"].tolist() == [2, 1]
    assert scores["std"][0] == pytest.approx(math.sqrt(0.02)) and math.isnan(scores["std"][1])  # ddof 1
    assert scores["runs"].tolist() == ["1 2", "1"]
    latex = tables.to_latex(scores)
    assert (
        r"a\_b\&c & \textbf{30.0} $\pm$ 14.1 \\" in latex and r"x\textasciicircum{}2 & \textbf{30.0} \\" in latex
    )  # print alike: both bold
    assert r"Algorithm & A\% \\" in latex and latex.startswith("\\begin{tabular}{lc}\n\\toprule")
    assert tables.escape("\\{}~<$#") == r"\textbackslash{}\{\}\textasciitilde{}\textless{}\$\#"
    points = tables.to_latex(scores.assign(mean=[30, 45.25], std=[1.0, 2.0]))  # percent already: not scaled
    assert r" & 30.0 $\pm$ 1.0 \\" in points and r"\textbf{45.2} $\pm$ 2.0" in points
    with pytest.raises(ValueError, match="several values; select one epoch"):
        tables.summary(tidy(curves(1, [0.1, 0.2], [0.1, 0.2])))
    assert [tables.format_p(p) for p in (0.97398, 0.00152, 2.17e-6, 0.0, math.nan)] == ["0.974", "0.0015", "2.2e-06", "<1e-12", "n/a"]


def test_a_metric_that_is_no_share_has_as_many_digits_as_its_spread():
    """Means of 0.854, 0.899 and 0.840 with a std of 0.05 are not 0.9, 0.9* and 0.8, of which two would be best."""
    rows = [("ERM", 0.81, 0.9), ("AugMix", 0.85, 0.95), ("SagNet", 0.8, 0.88)]
    frame = tidy([(name, run, "A", np.nan, "test", "low_freq", value) for name, *values in rows for run, value in enumerate(values)])
    scores = tables.summary(frame)
    scores.attrs["metric"] = "low_freq"
    printed = {name: of_row["A"] for name, of_row in tables.cells(scores).items()}
    assert printed == {"ERM": ("0.855 ± 0.064", False), "AugMix": ("0.900 ± 0.071", True), "SagNet": ("0.840 ± 0.057", False)}
    assert r"\textbf{0.900} $\pm$ 0.071" in tables.to_latex(scores)
    for factor, decimals in ((1e-9, tables.MOST_DECIMALS), (1, 3), (10, 2), (1e4, 1)):
        assert tables.decimals(scores.assign(std=scores["std"] * factor)) == decimals
    assert tables.decimals(scores.assign(std=np.nan)) == 3 and tables.decimals(scores.assign(std=0.0, mean=1.0)) == 1
    scores.attrs["metric"] = "accuracy"
    assert tables.decimals(scores) == 1


# ---- the command


@functools.cache
def published_runs(datasets: str) -> Analysis:
    return analyse(records.load([C2]), Options(exclude=("pAdaIN:2,5",), datasets=datasets, baseline="ERM", permutations=2000))


@pytest.mark.parametrize(("datasets", "f", "p", "rank_sum"), [("all", 7.463415, 2.173585e-6, 53), (STRICT, 4.985765, 4.56654e-4, 37)])
def test_biasbed_from_the_runs(datasets, f, p, rank_sum):
    found = published_runs(datasets).results
    assert found["friedman"]["f"] == pytest.approx(f, abs=1e-6)
    assert found["friedman"]["p_f_moment"] == pytest.approx(p, rel=1e-5)
    m = found["friedman"]["m_datasets"]
    assert round(m * found["friedman"]["mean_ranks"]["ERM"], 6) == rank_sum  # all: 54 in the paper, a rounding-level swap with InfoDrop
    against = "One algorithm is better than ERM (7 comparisons" if datasets == "all" else "No algorithm differs from ERM (7 comparisons"
    assert found["verdict"][2].startswith(against)
    unequal = next(w["text"] for w in found["warnings"] if w["code"] == "UNEQUAL_RUNS")
    assert "DeepAugCAE_ERM 9" in unequal and "pAdaIN 8" in unequal


def test_table_2_of_biasbed():
    scores = published_runs("all").scores
    printed = pd.read_csv(published.biasbed() / "table2_best_validation_mean_std.csv")
    both = scores.merge(printed, on=["algorithm", "dataset"], suffixes=("", "_printed"))
    both = both[both["algorithm"] != "DeepAugCAE_ERM"]  # Table 2 averages a tenth run of it that is listed nowhere
    assert len(both) == 70
    np.testing.assert_allclose(both["mean"], both["mean_printed"], atol=0.1)
    np.testing.assert_allclose(both["std"], both["std_printed"], atol=0.1)


def test_command_writes_the_same_bytes_whatever_the_order_of_rows(tmp_path, capsys, monkeypatch):
    path, save = write_csv(tmp_path / "in.csv", three_algorithms()), style.save

    def in_one_format(figure, where, name):
        """Of one figure all formats are compared, of the others the cheapest: they have the same content."""
        if name == "critical_difference":
            return save(figure, where, name)
        with style.style():
            figure.savefig(where / f"{name}.svg", metadata={"Date": None, "Creator": None})
        return [where / f"{name}.svg"], ""

    monkeypatch.setattr(style, "save", in_one_format)
    for name in ("one", "two"):
        assert main.main([path, "--out", str(tmp_path / name)]) == 0
    files = sorted(file.relative_to(tmp_path / "one") for file in (tmp_path / "one").rglob("*") if file.is_file())
    assert {"pairs.csv", "report.html", "scores.csv", "stats.json", "tables/pairs.tex", "tables/scores.tex"} < set(map(str, files))
    assert {"critical_difference.pdf", "critical_difference.png", "forest.svg", "iqm.svg", "profile.svg"} < {file.name for file in files}
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    text = capsys.readouterr().out
    assert "Of all 3 pairs, adjusted for all, 2 differ: best better than ERM (p = 0.0067)" in text
    assert r"\textbf{0.0067}" in (tmp_path / "one" / "tables" / "pairs.tex").read_text()
    lines = Path(path).read_text().splitlines()
    Path(path).write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    assert main.main([path, "--out", str(tmp_path / "three")]) == 0
    for name, keys in (("scores.csv", ["algorithm", "dataset"]), ("pairs.csv", None)):
        first, third = (pd.read_csv(tmp_path / folder / name) for folder in ("one", "three"))
        if keys:
            assert first.sort_values(keys, ignore_index=True).equals(third.sort_values(keys, ignore_index=True))
        else:
            assert sorted(first["p_nemenyi"]) == sorted(third["p_nemenyi"])


@pytest.mark.parametrize(
    ("scores", "arguments", "sentence"),
    [
        (three_algorithms(2), [], "No conclusion: with 2 data sets and 3 algorithms no pair can differ at alpha = 0.05"),
        (three_algorithms(1), [], "No conclusion: one data set is one block"),
        ({"a": [[1, 2] * 4], "b": [[2, 1] * 4]}, [], "The two algorithms are not shown to differ (p = 1.000, alpha = 0.05)."),
        (three_algorithms(4), ["--baseline", "tw_in"], "No algorithm differs from tw_in (2 comparisons, alpha = 0.05, smallest p = 0.0"),
        (three_algorithms(4), [], "A difference that is not shown does not mean equality. 4 data sets are too few"),
        ({"a": [[2] * 7 + [1]], "b": [[1] * 7 + [2]]}, [], "The two algorithms are not shown to differ (p = 0.070, alpha = 0.05)."),
        ({"a": [[2] * 5], "b": [[1] * 5]}, [], "No conclusion: with 5 data sets and 2 algorithms no pair can differ at alpha = 0.05"),
        (three_algorithms(), ["--alpha", "0.001"], "No pair differs at alpha = 0.001."),
        (three_algorithms(runs=1), [], "warning ONE_RUN: only one run, so no std: ERM, tw_in, best"),
    ],
)
def test_verdicts(tmp_path, capsys, scores, arguments, sentence):
    assert main.main([write_csv(tmp_path / "in.csv", scores), *arguments]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exclude", "lff:1"], "--exclude lff:1: no algorithm 'lff'; available: ERM, tw_in, best"),
        (["--exclude", "ERM:9"], "'ERM' has no run 9; it has 1, 2, 3"),
        (["--exclude", "ERM:a"], "'a' is not a list of run numbers; write e.g. ERM:1,3"),
        (["--datasets", "A,Z"], "no accuracy on 'Z'; available: A, B"),
        (["--baseline", "lff"], "--baseline lff: no such algorithm; available: ERM, tw_in, best"),
        (["--select", "best"], "unknown selection rule 'best'; allowed are"),
        (["--alpha", "5"], "--alpha 5: must be between 0 and 1"),
    ],
)
def test_command_refuses_with_code_2(tmp_path, capsys, arguments, message):
    assert main.main([write_csv(tmp_path / "in.csv", three_algorithms()), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and not captured.out


def test_missing_cells_and_overwriting_are_refused(tmp_path, capsys):
    path = write_csv(tmp_path / "scores.csv", {"a": [[1, 2, 3]], "b": [[1, 2]]})
    assert main.main([path]) == 2
    assert "no run has accuracy for b on C. Evaluate it; or --datasets A,B keeps those that all algorithms have" in capsys.readouterr().err
    apart = pd.read_csv(path).assign(dataset=lambda table: table["algorithm"] + table["dataset"])
    apart.to_csv(tmp_path / "apart.csv", index=False)
    assert main.main([str(tmp_path / "apart.csv")]) == 2
    assert (
        "no data set has accuracy of all algorithms: a on aA, aB, aC; b on bA, bB. Evaluate them on the same sets"
        in capsys.readouterr().err
    )
    assert main.main([path, "--datasets", "A,B"]) == 0
    assert main.main([path, "--datasets", "A,B", "--out", str(tmp_path)]) == 2
    assert "would overwrite the input" in capsys.readouterr().err and "algorithm,run" in Path(path).read_text()


def test_a_validation_split_is_no_test_set_though_it_is_one_for_another_algorithm():
    rows = curves(1, [0.5, 0.6], [0.1, 0.2]) + [
        ("sin", 1, name, epoch, role, "accuracy", 0.1 * epoch)
        for name, role in (("held_out", "ood"), ("shifted", "ood"), ("own", "val"))
        for epoch in (1, 2)
    ]
    with pytest.raises(ValueError, match=r"no run has accuracy for erm on held_out.*--datasets shifted keeps those"):
        analyse(tidy(rows))
    assert analyse(tidy(rows), Options(datasets="shifted")).results["datasets"] == ["shifted"]


def test_never_imports_jax_nor_what_is_slow_to_import(tmp_path):
    path = write_csv(tmp_path / "in.csv", three_algorithms(3, 2))
    code = (
        "import sys; from jaxbed.stats import main\n"
        f"assert main.main([{path!r}]) == 0\n"
        "assert not {'jax', 'matplotlib', 'scikit_posthocs', 'statsmodels'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
