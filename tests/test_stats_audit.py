"""Run audit: every fault is found where it was planted, none where it was not, and those of the published tables by name."""

import numpy as np
import pandas as pd
import published
import pytest

from jaxbed.stats.audit import checks, printed_tables, scales
from jaxbed.stats.reading import records

DATASETS = ["A", "B", "C", "D", "E", "F"]


def selected_scores(seed: int = 0, runs: int = 6) -> pd.DataFrame:
    """Three algorithms 5 points apart on six data sets, runs 1 point apart: nothing to find."""
    rng = np.random.default_rng(seed)
    rows = [
        (name, run, dataset, 40 + 5 * place + 3 * column + rng.normal())
        for place, name in enumerate(("erm", "sagnet", "lff"))
        for run in range(1, runs + 1)
        for column, dataset in enumerate(DATASETS)
    ]
    return tidy(rows)


def tidy(rows: list[tuple], **same) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"])
    return records.check(frame.assign(**{"metric": "accuracy", **same}), "hand")


def curves(run: int = 1, epochs: int = 30, algorithm: str = "erm") -> pd.DataFrame:
    """One run: a validation split and two test sets, all different at every epoch."""
    frame = pd.DataFrame({"epoch": np.tile(np.arange(1, epochs + 1), 3), "dataset": np.repeat(["held_out", "A", "B"], epochs)})
    values = np.random.default_rng(run).random(len(frame))
    roles = frame["dataset"].map({"held_out": "val", "A": "ood", "B": "ood"})
    return records.check(frame.assign(algorithm=algorithm, run=run, metric="accuracy", value=values, role=roles), "hand")


def codes(findings: list[dict]) -> list[str]:
    return [finding["code"] for finding in findings]


def is_cell(frame: pd.DataFrame, algorithm: str, run: int | None = None, dataset: str | None = None) -> pd.Series:
    mask = frame["algorithm"] == algorithm
    mask &= True if run is None else frame["run"] == run
    return mask & (True if dataset is None else frame["dataset"] == dataset)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_in_good_scores(seed):
    selected = selected_scores(seed)
    assert checks.audit(selected, selected, last=selected) == []
    assert checks.audit(curves(), selected) == []


def test_findings_do_not_depend_on_the_order_of_rows():
    selected = selected_scores()
    selected.loc[is_cell(selected, "lff", 2), "value"] = selected.loc[is_cell(selected, "erm", 2), "value"].to_numpy()
    shuffled = selected.sample(frac=1, random_state=1)

    def texts(frame):
        return sorted(set(codes(checks.audit(frame, frame))))

    assert texts(selected) == texts(shuffled) == ["DUPLICATE_RUN", "OUTLIER_RUN"]


# ---- runs


def test_equal_runs():
    selected = selected_scores()
    own = is_cell(selected, "erm", 1)
    selected.loc[is_cell(selected, "erm", 4), "value"] = selected.loc[own, "value"].to_numpy() + 1e-12
    (finding,) = checks.duplicate_runs(selected)
    assert finding["runs"] == [{"algorithm": "erm", "run": 1}, {"algorithm": "erm", "run": 4}]
    assert finding["text"] == "equal scores on all data sets: erm run 1, erm run 4"
    assert checks.duplicate_runs(selected[selected["dataset"].isin(["A", "B"])]) == []  # two data sets may agree by chance
    selected.loc[own & (selected["dataset"] == "F"), "value"] += 0.1
    assert checks.duplicate_runs(selected) == []


def test_a_run_of_another_algorithm():
    selected = selected_scores()
    strange = is_cell(selected, "erm", 3)
    selected.loc[strange, "value"] = selected.loc[is_cell(selected, "lff", 3), "value"].to_numpy() + 0.3
    selected.loc[strange & (selected["dataset"] == "F"), "value"] += 60  # far out, and still nearest to lff
    (finding,) = checks.outlier_runs(selected)
    assert [finding[key] for key in ("algorithm", "run", "dataset", "nearest")] == ["erm", 3, "F", "lff"] and finding["z"] > 10
    own = selected.loc[is_cell(selected, "erm", dataset="F"), "value"]
    mad = (own - own.median()).abs().median()
    assert finding["z"] == pytest.approx(0.6745 * (own.max() - own.median()) / mad)
    assert checks.outlier_runs(selected[selected["run"].isin([3, 4])]) == []  # two runs: nobody knows which is strange


def test_an_outlier_that_is_nearest_to_its_own_algorithm_is_left_alone():
    selected = selected_scores()
    selected.loc[is_cell(selected, "erm", 3, "A"), "value"] -= 20
    assert checks.outlier_runs(selected) == []


@pytest.mark.parametrize("change", [-400, -40, 90, 4000])
@pytest.mark.parametrize("datasets", [["C"], DATASETS])
def test_an_outlier_that_is_far_from_everything_is_reported_whatever_it_is_near(change, datasets):
    selected = selected_scores()
    strange = is_cell(selected, "erm", 3) & selected["dataset"].isin(datasets)
    selected.loc[strange, "value"] += change
    (finding,) = checks.outlier_runs(selected)
    assert [finding["algorithm"], finding["run"]] == ["erm", 3] and finding["dataset"] in datasets
    assert checks.outlier_runs(selected[~(strange & (selected["dataset"] != "C"))]) != []  # also where it has no other scores
    few = selected[selected["run"].isin([2, 3, 4]) & selected["algorithm"].isin(["erm", "sagnet"])]
    if len(datasets) == 1:
        assert checks.outlier_runs(few) == []  # with six scores nobody knows what is far


def test_chance_makes_no_outliers():
    rng, found = np.random.default_rng(0), 0
    for _ in range(40):
        rows = [(name, run, dataset, rng.normal()) for name in ("erm", "sagnet", "lff") for run in range(3) for dataset in DATASETS]
        found += len(checks.outlier_runs(tidy(rows)))
    assert found <= 2  # of 40 tables


def test_the_spread_is_not_taken_below_the_step_of_the_scores():
    rows = [("erm", run, name, 50 + 0.1 * (run == 5)) for run in range(1, 6) for name in DATASETS]
    rows += [("lff", run, name, 50.2 + 0.1 * (run == 1)) for run in range(1, 6) for name in DATASETS]
    assert checks.outlier_runs(tidy(rows)) == []  # MAD 0, and one step of 0.1 away


def test_counts_of_runs():
    selected = selected_scores()
    (finding,) = checks.run_counts(selected[~is_cell(selected, "lff", 6)])
    assert finding["code"] == "UNEQUAL_RUNS" and finding["runs"] == {"erm": 6, "sagnet": 6, "lff": 5}
    (finding,) = checks.run_counts(selected[~is_cell(selected, "lff", 6, "C")])
    assert finding["code"] == "MISSING" and finding["cells"] == [{"algorithm": "lff", "run": 6, "dataset": "C"}]


@pytest.mark.parametrize(
    ("value", "scale", "most"),
    [(150, 1, 100), (100.1, 1, 100), (-0.5, 1, 100), (1.5, 100, 1), (55, 100, 1), (-0.01, 100, 1)],
)
@pytest.mark.parametrize("metric", ["accuracy", "ac_score", "accuracy:blond"])
def test_values_that_cannot_be(value, scale, most, metric):
    selected = selected_scores().assign(metric=metric)
    selected["value"] /= scale
    assert scales.impossible(selected) == []
    selected.loc[is_cell(selected, "erm", 3, "A"), "value"] = value
    (finding,) = scales.impossible(selected)
    assert finding["code"] == "IMPOSSIBLE" and finding["most"] == most
    assert finding["cells"] == [{"algorithm": "erm", "run": 3, "dataset": "A", "value": value}]
    assert finding["text"] == f"{metric} must be between 0 and {most} here, but is not for erm run 3 on A ({value:g})"
    assert "IMPOSSIBLE" in codes(checks.audit(selected, selected))
    assert "erm run 3 on A at epoch 7 (" in scales.impossible(selected.assign(epoch=7.0))[0]["text"]
    assert scales.impossible(selected.assign(metric="acc_diff")) == []  # may be negative, a loss above 1
    assert scales.impossible(selected.assign(status="diverged")) == []


def test_values_at_the_ends_of_the_scale_can_be():
    for ends in ((0.0, 100.0), (0.0, 1.0 + 1e-9)):
        rows = [("erm", run, dataset, ends[run]) for run in (0, 1) for dataset in DATASETS]
        assert scales.impossible(tidy(rows)) == []


def test_mixed_scales():
    selected = selected_scores()
    selected.loc[is_cell(selected, "lff", 2), "value"] /= 100
    (finding,) = scales.mixed(selected)
    assert finding["fractions"] == ["lff"] and finding["percent"] == ["erm", "sagnet", "lff"]
    assert scales.mixed(selected.assign(value=selected["value"] / 100)) == []


# ---- epochs


def test_diverged_and_frozen_runs():
    frame = curves()
    frozen = frame["dataset"].eq("A") & frame["epoch"].between(8, 28)
    frame.loc[frozen, "value"] = 0.25
    (finding,) = checks.frozen_runs(frame)  # 21 epochs
    assert [finding[key] for key in ("run", "datasets", "first_epoch", "last_epoch")] == [1, ["A"], 8, 28]
    assert checks.frozen_runs(frame[~(frozen & (frame["epoch"] == 15))]) == []  # 20 epochs
    assert checks.frozen_runs(frame.sample(frac=1, random_state=0)) == [finding]
    frame.loc[frame["epoch"] >= 25, "status"] = "diverged"
    assert checks.frozen_runs(frame) == []
    (finding,) = checks.diverged(frame)
    assert finding["runs"] == [{"algorithm": "erm", "run": 1, "epoch": 25}]


def test_small_groups():
    frame = curves().assign(metric="conflicting", n_total=29.0)
    (finding,) = checks.small_groups(frame)  # test sets do not select
    assert [finding[key] for key in ("dataset", "group", "images")] == ["held_out", "conflicting", 29]
    assert checks.small_groups(frame.assign(n_total=30.0)) == [] and checks.small_groups(frame.assign(metric="accuracy")) == []


def test_validation_that_is_a_test_set():
    frame = pd.concat([curves(1), curves(2)], ignore_index=True)
    copy = frame["dataset"].eq("B") & frame["run"].eq(2)
    frame.loc[copy, "value"] = frame.loc[frame["dataset"].eq("held_out") & frame["run"].eq(2), "value"].to_numpy()
    (finding,) = checks.validation_is_test(frame.sample(frac=1, random_state=0))
    assert [finding[key] for key in ("dataset", "validation", "runs")] == ["B", "held_out", [{"algorithm": "erm", "run": 2}]]
    assert checks.validation_is_test(frame[frame["epoch"] <= 2]) == []  # two epochs may agree by chance
    assert checks.validation_is_test(frame.assign(value=0.1)) == []  # all at chance level
    frame.loc[copy & (frame["epoch"] == 9), "value"] += 0.01
    assert checks.validation_is_test(frame) == []


def test_selection_on_test_images_from_scores_alone():
    last = selected_scores(1)
    noise = np.random.default_rng(2).normal(size=len(last))
    best = last.assign(value=last["value"] + noise + 2 * (last["dataset"] == "D"))
    (finding,) = checks.selected_on_test(best, last.sample(frac=1, random_state=0))
    excess = (best["value"] - last["value"])[last["dataset"] == "D"]
    assert finding["dataset"] == "D" and [finding["excess"], finding["std"]] == pytest.approx([excess.mean(), excess.std()])


# ---- data sets


def test_training_data():
    found = checks.in_distribution(selected_scores(), {"lff": ["B", "Z"], "erm": ["B", "C"], "other": ["A"]})
    assert [(finding["dataset"], finding["algorithms"]) for finding in found] == [("B", ["erm", "lff"]), ("C", ["erm"])]


def test_dependent_and_few_blocks():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(8, 6))
    scores[:, 1] = np.exp(scores[:, 0])  # the same order
    selected = tidy([(f"a{i}", 1, name, scores[i, j]) for i in range(8) for j, name in enumerate(DATASETS)])
    families = {"C": "photos", "D": "photos"}
    by_family, by_correlation = checks.dependent_blocks(selected, families)
    assert by_family["families"] == {"photos": ["C", "D"]} and by_family["effective"] == 5
    expected = {(DATASETS[i], DATASETS[j]) for i in range(6) for j in range(i) if spearman(scores[:, i], scores[:, j]) > 0.7}
    assert {(pair["dataset_j"], pair["dataset_i"]) for pair in by_correlation["pairs"]} == expected >= {("B", "A")}
    assert codes(checks.dependent_blocks(selected[selected["algorithm"] < "a4"], {})) == []  # four algorithms: chance
    assert checks.few_blocks(selected, {}) == [] and checks.few_blocks(selected, families)[0]["blocks"] == 5
    assert "only 5 data sets" in checks.few_blocks(selected[selected["dataset"] != "A"], {})[0]["text"]


def spearman(x, y) -> float:
    from scipy import stats

    return stats.spearmanr(x, y).statistic


# ---- printed numbers


def printed_table(selected: pd.DataFrame) -> pd.DataFrame:
    return selected.groupby(["algorithm", "dataset"])["value"].agg(mean="mean", std="std").round(1).reset_index()


def test_a_table_that_is_not_of_these_runs():
    selected = selected_scores()
    selected["value"] = selected["value"].round(1)
    table = printed_table(selected)
    assert printed_tables.table_mismatch(selected, table) == [] and printed_tables.table_mismatch(selected, table.drop(columns="std")) == []
    table.loc[is_cell(table, "lff", dataset="C"), "mean"] += 0.2
    table.loc[is_cell(table, "erm", dataset="A"), "std"] -= 0.3
    assert [(f["algorithm"], [cell["dataset"] for cell in f["cells"]]) for f in printed_tables.table_mismatch(selected, table)] == [
        ("erm", ["A"]),
        ("lff", ["C"]),
    ]
    assert printed_tables.hidden_runs(selected, table) == []  # one more run would need another std


def test_a_run_that_is_in_the_table_alone():
    selected = selected_scores()
    selected["value"] = selected["value"].round(1)
    strange = is_cell(selected, "lff", 6)
    selected.loc[strange, "value"] = selected.loc[is_cell(selected, "erm", 6), "value"].to_numpy() + 0.4
    table = printed_table(selected)
    (finding,) = printed_tables.hidden_runs(selected[~strange], table)
    assert finding["algorithm"] == "lff" and finding["nearest"] == "erm" and finding["uncertainty"] == pytest.approx(0.3)
    hidden = dict(zip(selected["dataset"][strange], selected["value"][strange], strict=True))
    assert finding["scores"] == pytest.approx(hidden, abs=0.3 + 1e-9)


def test_scores_that_the_number_of_images_forbids():
    counts = np.random.default_rng(0).integers(0, 161, 18)
    selected = tidy([("erm", run, "A", round(100 * count / 160, 2)) for run, count in enumerate(counts)], n_total=160.0)
    assert printed_tables.granularity(selected, {}) == []
    assert printed_tables.granularity(selected.assign(n_total=np.nan), {"A": 320}) == []
    (finding,) = printed_tables.granularity(selected, {}) + printed_tables.granularity(selected.assign(n_total=np.nan), {"A": 159})
    assert finding["dataset"] == "A" and finding["size"] == 159 and finding["fits"] == 160
    single = selected.assign(value=(counts / 160).astype("float32").astype(float))
    assert printed_tables.granularity(single, {}) == []  # float32 holds no 9 decimals
    assert printed_tables.granularity(single.assign(value=single["value"] + 0.001), {})[0]["scores"] == 18


@pytest.mark.parametrize(("size", "decimals", "scale"), [(7, 1, 100), (160, 1, 100), (326, 2, 100), (97, 4, 1), (1, 0, 1)])
def test_smallest_denominator(size, decimals, scale):
    values = [round(scale * k / size, decimals) for k in range(size + 1)]
    assert printed_tables.smallest_denominator(values, decimals, scale) == size
    assert (
        printed_tables.smallest_denominator([33.33, 14.29], 2) == 21
        and printed_tables.smallest_denominator([33.33, 14.29], 2, largest=20) is None
    )


# ---- the published tables


@pytest.fixture(scope="module")
def biasbed():
    folder = published.biasbed()
    roles = pd.read_csv(folder / "datasets.csv")
    best, last = (records.load([folder / f"{name}.csv"]) for name in ("best_validation", "last_30_epochs"))
    training_data = {name: ["ImageNet1k"] for name in best["algorithm"].unique() if name != "Stylized_ERM"}
    for row in roles[roles["marked_in_paper"] == 1].itertuples():
        training_data.setdefault(row.training_data_of, []).append(row.dataset)
    sizes = roles.dropna().set_index("dataset")["images_implied_by_granularity"].to_dict()
    return best, last, pd.read_csv(folder / "table2_best_validation_mean_std.csv"), training_data, sizes


HIDDEN = {
    "ImageNet1k": 74.3, "Silhouette": 45.5, "Edge": 18.3, "Sketch": 57.9, "CueConflict": 23.6, "ImageNetStylized": 7.2,
    "ImageNetA": 2.5, "ImageNetR": 23.1, "DeepAugCAE": 45.2, "DeepAugEDSR": 47.7,
}  # fmt: skip


def test_biasbed_tables(biasbed):
    best, last, table, training_data, sizes = biasbed
    found = checks.audit(best, best, last=last, table=table, training_data=training_data, sizes=sizes)
    by_code = {code: [finding for finding in found if finding["code"] == code] for code in codes(found)}
    expected = ["UNEQUAL_RUNS", "DUPLICATE_RUN", "VAL_IS_TEST", "TABLE_MISMATCH", "HIDDEN_RUN", "IN_DISTRIBUTION", "DEPENDENT_BLOCKS"]
    assert list(by_code) == expected
    counts = by_code["UNEQUAL_RUNS"][0]["runs"]
    assert counts.pop("DeepAugCAE_ERM") == 9 and set(counts.values()) == {10}
    assert [f["runs"] for f in by_code["DUPLICATE_RUN"]] == [[{"algorithm": "pAdaIN", "run": run} for run in (1, 4)]]
    # ImageNet's validation images, and the two sets that were made from them
    assert [f["dataset"] for f in by_code["VAL_IS_TEST"]] == ["ImageNet1k", "DeepAugCAE", "DeepAugEDSR"]
    assert by_code["VAL_IS_TEST"][0]["excess"] == pytest.approx(0.53, abs=0.01)
    assert [f["algorithm"] for f in by_code["TABLE_MISMATCH"]] == ["DeepAugCAE_ERM", "pAdaIN"]
    (hidden,) = by_code["HIDDEN_RUN"]
    assert hidden["algorithm"] == "DeepAugCAE_ERM" and hidden["nearest"] in ("ERM", "InfoDrop") and hidden["uncertainty"] == 0.5
    assert hidden["scores"] == pytest.approx(HIDDEN)
    assert sum(len(f["algorithms"]) for f in by_code["IN_DISTRIBUTION"]) == 10
    correlated = {(pair["dataset_i"], pair["dataset_j"]): pair["correlation"] for pair in by_code["DEPENDENT_BLOCKS"][0]["pairs"]}
    assert [correlated["Edge", "Sketch"], correlated["Edge", "CueConflict"]] == pytest.approx([0.93, 0.76], abs=0.005)


def test_the_hidden_run_is_an_outlier_once_it_is_listed(biasbed):
    best, last, *_ = biasbed
    listed = pd.concat([best, tidy([("DeepAugCAE_ERM", 10, name, value) for name, value in HIDDEN.items()])], ignore_index=True)
    (finding,) = checks.outlier_runs(listed)
    assert (finding["algorithm"], finding["run"], finding["dataset"]) == ("DeepAugCAE_ERM", 10, "DeepAugCAE")
    assert finding["nearest"] in ("ERM", "InfoDrop") and finding["z"] < -90
    assert checks.outlier_runs(best) == checks.outlier_runs(last) == []


def test_pAdaIN_of_table_2_has_eight_runs(biasbed):
    best, _, table, *_ = biasbed
    eight, _ = records.exclude(best, ["pAdaIN:2,5"])
    assert [finding["algorithm"] for finding in printed_tables.table_mismatch(eight, table)] == ["DeepAugCAE_ERM"]


def test_images_implied_by_published_scores(biasbed, shared_data):
    best = biasbed[0]
    for dataset, size in (("Silhouette", 160), ("Edge", 160), ("Sketch", 800)):
        assert printed_tables.smallest_denominator(best.loc[best["dataset"] == dataset, "value"], 1) == size
    table = pd.read_csv(shared_data / "biases_tables" / "table1_benchmarks.csv").groupby("benchmark")["accuracy"]
    sizes = {name: printed_tables.smallest_denominator(values, 2) for name, values in table}
    assert sizes["IN-ReaL"] == 326 and sizes["SIN"] == 800 and sizes["IN-A"] == 7500
    real = tidy([("zoo", run, "IN-ReaL", value) for run, value in enumerate(table.get_group("IN-ReaL"))])
    (finding,) = printed_tables.granularity(real, {"IN-ReaL": 5000})
    assert finding["fits"] == 326 and finding["scores"] == 14
