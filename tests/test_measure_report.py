"""`jaxbed measure --report`: what each figure shows, of workdirs made of files; and where no report is written."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from jaxbed.evaluation.answers import write
from jaxbed.evaluation.measures import Answers
from jaxbed.measures import figures, main, protocol, report, robustness_figures, scores, shape_votes, table
from jaxbed.measures.conditions import attack_name, band_name, corruption_name
from jaxbed.measures.critical_band import SIGMAS
from jaxbed.measures.spectral import CUTOFFS
from jaxbed.stats import tables
from jaxbed.stats.reading import records

CLASSES = ["bear", "cat", "dog", "a very long name of a class & <more>"]
IMAGES, SHAPE = 40, (224, 224, 3)
MEASURES = ("shape_bias", "spectral", "critical_band", "imagenet_c", "apgd")
BANDS = [band_name(band, sigma) for sigma in SIGMAS if sigma for band in range(7)]
CORRUPTED = [corruption_name(name, severity) for name in ("gaussian_noise", "fog", "blue_noise_sample") for severity in range(1, 6)]
EPSILONS = (0.25, 0.5)
ATTACKED = [f"{attack_name(kind, e)}{end}" for kind, end in (("pgd_linf", ""), ("pgd_linf", "_best"), ("apgd_ce", ""), ("apgd_dlr", ""))
            for e in EPSILONS]  # fmt: skip
FILTERS = [f"{kind}_pass_{f:g}" for kind in ("low", "high") for f in CUTOFFS]


def answer(path, response, alive):
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, {"response": response.astype(np.int16), "seeds": np.arange(len(response)), "alive": alive, "checkpoint": "", "asked": ""})


def make(workdir, name, seeds=2, measures=MEASURES, strength=0.8, diverged=()):
    """A workdir that was measured at epoch 3; strength: the clean accuracy. Returns the rows that `jaxbed measure` has of it."""
    rng, alive = np.random.default_rng(len(name)), ~np.isin(np.arange(seeds), diverged)
    label, texture = np.repeat(np.arange(4), IMAGES // 4), np.tile(np.arange(4), IMAGES // 4)
    sets = {"test": {"role": "test", "decision": "argmax"}, "cue": {"role": "ood", "decision": "argmax"}}
    about = {"data": {"name": "toy", "cue": "texture"}, "classes": CLASSES, "sets": sets}
    for dataset in sets:
        (workdir / "responses" / dataset).mkdir(parents=True)
        images = pd.DataFrame({"name": [f"i{i}" for i in range(IMAGES)], "label": label, "cue": texture if dataset == "cue" else -1})
        images.to_csv(workdir / "responses" / dataset / "images.csv", index=False)
        answered = np.where(rng.random((seeds, IMAGES)) < strength / 2, label, np.where(rng.random(IMAGES) < 0.7, texture, 3))
        answer(workdir / "responses" / dataset / "3.npz", answered, alive)
    (workdir / "config.json").write_text(json.dumps({"name": name}))
    (workdir / "responses" / "sets.json").write_text(json.dumps(about))
    epoch_of = dict.fromkeys(range(seeds), 3)
    parts = [table.shape_bias(workdir, epoch_of)] if "shape_bias" in measures else []
    of_measure = {"spectral": FILTERS, "critical_band": ["grey", *BANDS], "imagenet_c": CORRUPTED, "apgd": ATTACKED}
    applied = ["clean", *(condition for measure in measures for condition in of_measure.get(measure, []))]
    if len(applied) > 1:
        folder = workdir / table.FOLDER / "test"
        for condition in applied:
            right = np.linspace(0.9, 1, seeds)[:, None] * (strength if condition == "clean" else share(condition) * strength)
            answer(folder / condition / "3.npz", np.where(np.arange(IMAGES) < IMAGES * right, label, -1), alive)
        size = {"height": 224, "width": 224, "channels": 3, "number": IMAGES}
        (folder / "about.json").write_text(json.dumps({"images": size, "decision": "argmax"}))
        found = scores.of_set(folder, label, SHAPE, measures, applied, epoch_of, epsilons=EPSILONS)
        if len(found.channels):
            (folder / "critical_band.csv").write_text(tables.csv_text(found.channels))
        parts.append(found.table.assign(algorithm=name, dataset="test", role="test"))
    return table.write(workdir, parts)


def share(condition):
    """Of the clean accuracy, made up."""
    if condition == "grey":
        return 0.97
    kind, *_, last = condition.removesuffix("_best").split("_")
    if kind == "band":
        return 0.95 * np.exp(-float(last) * 20 * np.exp(-((int(condition[5]) - 3) ** 2) / 4))
    if kind in ("low", "high"):
        return float(last) if kind == "low" else float(last) ** 3
    if kind in ("pgd", "apgd"):
        return 0.9 - float(last) - 0.1 * condition.endswith("_best") - 0.05 * ("dlr" in condition)
    return 0.9 - 0.1 * int(last) - 0.01 * (len(condition) % 9)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    """Of three models: one with a name of odd characters and a seed that diverged, one of a single seed that is often wrong."""
    folder = tmp_path_factory.mktemp("runs")
    made = {"erm": {}, "Sag $x$ <b>": {"strength": 0.95, "diverged": (1,)}, "_weak": {"strength": 0.45, "seeds": 1}}
    measured = {folder / f"run{i}": make(folder / f"run{i}", name, **given) for i, (name, given) in enumerate(made.items())}
    return table.summarise(measured, ["note: of the command"])


def of_set(summary, *models):
    """The rows of the set whose images were changed."""
    rows = summary.rows[summary.rows["dataset"] == "test"]
    return rows[rows["model"].isin(models)] if models else rows


def values(summary, model):
    """[seeds, 1] of each metric."""
    return of_set(summary, model).pivot(index="run", columns="metric", values="value")


def channels_of(folder):
    return pd.read_csv(folder / table.FOLDER / "test" / "critical_band.csv", dtype={"thresholds": str})


def many(rows, number):
    """The rows of so many models."""
    one = rows[rows["model"] == "erm"]
    return pd.concat([one.assign(model=f"model {i}") for i in range(number)])


def texts(axes):
    return [text.get_text() for text in axes.texts]


# Shape bias


def test_votes_of_a_hand_counted_case():
    """(cat, elephant, cat) (cat, elephant, elephant) (cat, cat, cat) (dog, clock, bear) (car, clock, car) (bird, bird, dog)."""
    bear, bird, car, cat, clock, dog, elephant = range(7)
    label, texture = np.array([cat, cat, cat, dog, car, bird]), np.array([elephant, elephant, cat, clock, clock, bird])
    response = np.array([[cat, elephant, cat, bear, car, dog]])
    counts = shape_votes.count(Answers(response, label, texture, "texture"))
    assert counts.to_dict("list") == {"label": [car, cat, dog], "shape": [1, 1, 0], "texture": [0, 1, 0], "images": [1, 2, 1]}
    twice = shape_votes.count(Answers(response.repeat(2, 0), label, texture, "texture"))
    assert (twice[["shape", "texture", "images"]] == 2 * counts[["shape", "texture", "images"]]).all(axis=None)


def test_the_interval_is_that_of_one_seed():
    low, high = shape_votes.interval(162, 572, 1)
    assert (low, high) == (pytest.approx(0.1922, abs=1e-4), pytest.approx(0.2522, abs=1e-4))  # Wilson's formula
    assert shape_votes.interval(2 * 162, 2 * 572, 2) == (low, high)


def test_shape_bias_of_classes_and_of_all():
    first = pd.DataFrame({"label": ["a", "b", "c"], "shape": [1, 3, 0], "texture": [3, 1, 0], "images": 9})
    second = pd.DataFrame({"label": ["a", "b", "c"], "shape": [2, 0, 1], "texture": [0, 2, 1], "images": 9})
    figure = figures.shape_bias({"x": figures.Votes(first, 0.2, 0.8), "_y": figures.Votes(second, 0.3, 0.7)})
    (axes,) = figure.axes
    assert axes.get_xlim() == (1, 0) and [label.get_text() for label in axes.get_yticklabels()] == ["b", "a", "c", "all"]
    points = [np.asarray(collection.get_offsets())[:, 0] for collection in axes.collections]
    np.testing.assert_allclose(points, [[0.75, 0.25, np.nan, 0.5], [0, 1, 0.5, 0.5]])
    vertical = [line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1]
    assert vertical == [0.5, 0.5] and texts(axes) == ["n", "4", "4", "0", "8", "n", "2", "2", "2", "6"]
    named = [text.get_text().replace("\u00a0", " ") for text in figure.legends[0].get_texts()]
    assert named == ["x: 0.500 (0.200 to 0.800)", "_y: 0.500 (0.300 to 0.700)"]


def test_votes_are_those_of_the_printed_line(summary):
    votes = report._votes(summary)
    assert list(votes) == ["cue"] and list(votes["cue"]) == list(summary.folders)
    for line, (model, each) in zip(summary.shape_bias, votes["cue"].items(), strict=True):
        shape, texture, images = each.counts[["shape", "texture", "images"]].sum()
        assert line.startswith(f"{model}, cue: {shape} answers name the shape, {texture} the texture, of {images} to images")
        assert line.endswith(f"shape bias {each.pooled:.3f} ({each.low:.3f} to {each.high:.3f})")
        assert set(each.counts["label"]) <= set(CLASSES)


# Figures


def test_filters_show_shares_of_the_clean_accuracy(summary):
    low, high = figures.filters(of_set(summary)).axes
    for axes, kind in ((low, "low"), (high, "high")):
        assert axes.get_title("left") == f"{kind}-pass filter" and len(axes.lines) == 3
        assert len(axes.collections) == 2  # of one seed there is no band
        for model, line in zip(summary.folders, axes.lines, strict=True):
            value = values(summary, model)
            shares = [(value[f"{kind}_pass_{f:g}"] / value["clean"]).mean() for f in CUTOFFS]
            np.testing.assert_allclose(line.get_xydata(), np.column_stack([100 * np.array(CUTOFFS), shares]))


def test_a_network_that_is_never_right_has_no_line(summary):
    rows = of_set(summary, "erm")
    for axes in figures.filters(rows.assign(value=0.0)).axes:
        assert np.isnan(axes.lines[0].get_ydata()).all()


def test_critical_band_shows_mean_cells_and_each_seeds_thresholds(summary):
    rows, folders = of_set(summary), summary.folders
    channels = {model: channels_of(folder) for model, folder in folders.items()}
    panels = figures.critical_band(rows, channels, dict.fromkeys(folders, 224)).axes
    for (model, axes), seeds in zip(zip(folders, panels, strict=True), (2, 2, 1), strict=True):
        value = values(summary, model)
        noisy = [[value[band_name(band, sigma)].mean() for band in range(7)] for sigma in sorted(SIGMAS, reverse=True)]
        np.testing.assert_allclose(axes.collections[0].get_array(), noisy)
        assert texts(axes) == [f"{100 * cell:.1f}" for row in noisy for cell in row]
        drawn = [np.asarray(patch.get_data().values).round().astype(int) for patch in axes.patches]
        assert ["".join(map(str, steps)) for steps in drawn] == channels[model].sort_values("normalised")["thresholds"].tolist()
        assert len(drawn) == 2 * seeds
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1.75", "3.5", "7", "14", "28", "56", "112"]
    assert "half of all images: none (clean below threshold, flat)" in panels[2].get_title("left")
    assert panels[1].get_title("left").startswith("Sag $x$ <b>\nhalf of all images: ")
    width = values(summary, "erm")["bandwidth"].mean()
    assert f"half of all images: {width:.3g} octaves" in panels[0].get_title("left")


def test_images_of_another_size_have_other_bands(summary):
    rows, channels = of_set(summary, "erm", "_weak"), {model: channels_of(summary.folders[model]) for model in ("erm", "_weak")}
    rows = rows[(rows["model"] == "erm") | ~rows["metric"].str.match("band_[4-6]")]
    channels["_weak"]["thresholds"] = channels["_weak"]["thresholds"].str[:4]
    panels = figures.critical_band(rows, channels, {"erm": 224, "_weak": 32}).axes
    assert [label.get_text() for label in panels[1].get_xticklabels()] == ["2", "4", "8", "16"] and len(panels[0].get_xticklabels()) == 7


def test_a_status_that_seeds_do_not_share_is_counted():
    numbers = {"bandwidth_octaves": [np.nan, 2.0], "centre_cycles": [np.nan, 9.0], "peak_noise_sensitivity": [np.nan, 0.5]}
    channels = pd.DataFrame({**numbers, "status": ["flat empty", "ok"]})
    assert figures._channel(channels) == "2 octaves, 9 cycles, sensitivity 0.5 (flat, empty [1]; ok [1])"


def test_continuous_thresholds_are_in_the_table(summary):
    for folder in summary.folders.values():
        channels = channels_of(folder)
        for steps, exact in zip(channels["thresholds"], channels["continuous_thresholds"], strict=True):
            below = np.array([int(step) for step in steps]) - np.array(exact.split(), float)
            assert len(below) == 7 and (below >= 0).all() and (below <= 1).all()


def test_corruptions_have_their_mean_in_the_last_column(summary):
    cells = figures.cells(of_set(summary, "erm", "_weak"), figures.CORRUPTION)
    cells = cells[cells["corruption"].isin(["gaussian_noise", "fog"])]
    panels, value = figures.corruptions(cells).axes, values(summary, "erm")
    expected = np.array([[value[f"{name}_{severity}"].mean() for severity in range(1, 6)] for name in ("gaussian_noise", "fog")])
    np.testing.assert_allclose(panels[0].collections[0].get_array(), np.column_stack([expected, expected.mean(1)]))
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["gaussian noise", "fog"]
    means = figures.corruption_means(cells).axes[0].collections[0].get_array()
    np.testing.assert_allclose(means[0], [*expected.mean(1), expected.mean()])
    assert means.shape == (2, 3)


def test_without_a_severity_there_is_no_mean(summary):
    cells = figures.cells(of_set(summary, "erm"), figures.CORRUPTION)
    cells = cells[cells["corruption"].isin(["gaussian_noise", "fog"]) & (cells["metric"] != "fog_3")]
    (axes,) = figures.corruptions(cells).axes
    shown = axes.collections[0].get_array()
    assert np.ma.getmaskarray(shown).tolist() == [[False] * 6, [False, False, True, False, False, True]] and len(texts(axes)) == 10
    one = figures.corruptions(cells[cells["severity"] == "1"]).axes[0]
    assert [label.get_text() for label in one.get_xticklabels()] == ["1"]


def test_attacks_show_last_and_worst_iterates_and_unchanged_images(summary):
    panels = {axes.get_title("left"): axes for axes in figures.attacks(of_set(summary, "erm")).axes}
    assert list(panels) == ["PGD, largest norm", "Auto-PGD, largest norm"]
    value = values(summary, "erm").mean()
    for axes, names in zip(panels.values(), (("pgd_linf_{}", "pgd_linf_{}_best"), ("apgd_{}", "apgd_ce_{}", "apgd_dlr_{}")), strict=True):
        *curves, level = axes.lines
        found = [[value["clean"], *(value[name.format(e)] for e in EPSILONS)] for name in names]
        np.testing.assert_allclose([line.get_ydata() for line in curves], found)
        assert all(line.get_xdata().tolist() == [0, *EPSILONS] for line in curves) and set(level.get_ydata()) == {value["clean"]}


def test_an_attack_of_which_one_part_was_measured_is_drawn(summary):
    rows = of_set(summary, "erm")
    parts = rows[rows["metric"].str.startswith("apgd_ce") | (rows["metric"] == "clean")]
    (axes,) = figures.attacks(parts).axes
    assert axes.get_title("left") == "Auto-PGD, largest norm" and len(axes.lines) == 2


def test_of_many_models_the_first_are_drawn_and_the_rest_is_counted(summary):
    rows = many(of_set(summary), 11)
    cells = figures.cells(rows, figures.CORRUPTION)
    cells = cells[cells["corruption"] == "fog"]
    assert len(figures.corruptions(cells).axes) == 8 and figures.corruption_means(cells).axes[0].collections[0].get_array().shape == (8, 2)
    assert len(figures.filters(rows).axes[0].lines) == 11
    drawn = list(report._of_corruptions("test", rows))
    captions = [each.caption for each in drawn]
    assert report._left_out(many(of_set(summary), 8)) == "" and all("test, made here" in caption for caption in captions)
    more = {each.name for each in drawn if "3 more are left out, their numbers are in measures.csv" in each.caption}
    assert len(drawn) == 8 and {each.name for each in drawn} - more == {
        "imagenet_c_test_clean",
        "imagenet_cbar_test_clean",
    }  # all are drawn


def test_published_files_are_named_so(summary):
    rows = of_set(summary, "erm")
    drawn = list(report._of_corruptions("imagenet_c", rows[rows["metric"].str.startswith("fog_")]))
    assert [(each.name, each.caption) for each in drawn] == [
        ("imagenet_c", "ImageNet-C, the published files: accuracy in %, mean over seeds.")
    ]


# The page and its folder


def test_a_report_has_all_that_was_measured(summary, tmp_path):
    summary = summary._replace(rows=summary.rows[~summary.rows["metric"].str.startswith("blue_noise")])  # one benchmark will do
    written = report.write(str(tmp_path / "out"), summary, ["run 0", "--measures", "all"])
    drawn = ["attacks_test", "critical_band_test", "filters_test", "shape_bias_cue"]
    drawn += ["imagenet_c_test", *(f"imagenet_c_test_{name}" for name in ("means", "severities", "clean"))]
    figure_files = [path for path in written if path.parent.name == "figures"]
    assert sorted(path.name for path in figure_files) == sorted(f"{name}.{kind}" for name in drawn for kind in ("pdf", "png", "svg"))
    assert all(path.is_file() for path in written)
    page = (tmp_path / "out" / "report.html").read_text()
    for said in (
        "jaxbed measure &#x27;run 0&#x27; --measures all",
        "of the command",
        "Sag $x$ &lt;b&gt;: seed 1 diverged",
        "<dt>epoch of _weak</dt><dd>3</dd>",
        "40 images of 224 × 224 × 3, decision: argmax",
        "a very long name of a class &amp; &lt;more&gt;",
        *(line.partition(": ")[2] for line in summary.shape_bias),
    ):
        assert said in page, said
    assert "<b>" not in page and "jaxbed correlate" not in page and page.count("<svg") == len(drawn)
    rows = records.load([tmp_path / "out" / "measures.csv"])
    assert len(rows) == summary.rows["value"].notna().sum() and rows["algorithm"].unique().tolist() == list(summary.folders)


def test_only_what_was_measured_is_drawn_and_the_same_input_gives_the_same_bytes(tmp_path):
    measured = {tmp_path / f"run{i}": make(tmp_path / f"run{i}", "erm", measures=("shape_bias",), seeds=1) for i in range(4)}
    summary = table.summarise(measured, [])
    for out in ("one", "two"):
        report.write(str(tmp_path / out), summary, ["runs"])
    paths = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert [path.name for path in paths] == [*(f"shape_bias_cue.{kind}" for kind in ("pdf", "png", "svg")), "measures.csv", "report.html"]
    assert all((tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes() for path in paths)
    page = (tmp_path / "one" / "report.html").read_text()
    assert "jaxbed correlate" in page and "Filters" not in page and "decision: argmax" in page  # of four models
    assert list(summary.folders) == [f"erm ({folder})" for folder in measured]  # one algorithm in several runs


def test_files_of_sets_with_odd_names_do_not_collide(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(report.style, "save", lambda figure, folder, name: (saved.append(name), ([], ""))[1])
    report._draw(tmp_path / "figures", [report.Drawing("Filters", f"filters_{name}", "", lambda: None) for name in ("a b", "a_b", "ä/@x")])
    assert saved == ["filters_a_b", "filters_a_b_2", "filters____x"]


def command(monkeypatch, capsys, measured, *words):
    monkeypatch.setattr(main, "_measure", lambda workdir, asked, notes: (0, {workdir: measured[workdir]}))
    code = main.main([*map(str, measured), *map(str, words)])
    return code, capsys.readouterr().out


def test_the_command_prints_the_same_with_a_report_and_names_it(tmp_path, monkeypatch, capsys):
    workdir = tmp_path / "run"
    rows = make(workdir, "erm", measures=("shape_bias",))
    code, plain = command(monkeypatch, capsys, {workdir: rows})
    mean, deviation = (rows.loc[rows["metric"] == "shape_bias", "value"].agg(how) for how in ("mean", "std"))
    shape, texture = (int(rows.loc[rows["metric"] == metric, "n_correct"].sum()) for metric in ("conflicting", "cue_accuracy"))
    low, high = shape_votes.interval(shape, texture, 2)
    assert code == 0 and plain == (
        f"{table.HEAD}\n\ncue (n = 30; seeds)     shape_bias\nerm (2)              {mean:.3f} ± {deviation:.3f}\n\n"
        f"erm, cue: {shape} answers name the shape, {texture} the texture, of 60 to images with conflicting cues "
        f"({(shape + texture) / 60:.1%} usable): shape bias {shape / (shape + texture):.3f} ({low:.3f} to {high:.3f})\n"
    )
    code, said = command(monkeypatch, capsys, {workdir: rows}, "--report", tmp_path / "out")
    assert code == 0 and said == f"{plain}\nwrote 5 files: {tmp_path}/out/report.html, measures.csv, figures\n"
    assert command(monkeypatch, capsys, {workdir: rows}, "--report", tmp_path / "out")[0] == 0  # a report may be written again


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("run", "would overwrite the input"),
        ("other", "has a report.html that is not of `jaxbed measure`; name another directory"),
        ("file", "is a file; name a directory"),
        ("", "--report is empty; name a directory"),
    ],
)
def test_folders_of_something_else_are_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys, out, reason):
    (tmp_path / "run" / "responses").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").write_text("of jaxbed stats")
    (tmp_path / "file").touch()
    monkeypatch.setattr(main, "_measure", None)
    code = main.main([str(tmp_path / "run"), "--report", str(tmp_path / out) if out else out])
    said = capsys.readouterr().err
    assert code == 2 and "--report" in said and reason in said
    assert (tmp_path / "other" / "report.html").read_text() == "of jaxbed stats"


def test_reports_do_not_need_jax():
    program = "import sys, jaxbed.measures.report; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_severities_clean_errors_and_sizes_of_networks():
    rows = pd.DataFrame(
        [("erm", "fog", "1", 0.6), ("erm", "fog", "3", 0.4), ("wide", "fog", "1", 0.8), ("wide", "fog", "3", 0.6)],
        columns=["model", "corruption", "severity", "value"],
    )
    clean = pd.Series({"erm": 0.9, "wide": 0.95})
    (axes,) = robustness_figures.severities(rows, clean).axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 90], [1, 60], [3, 40]], [[0, 95], [1, 80], [3, 60]]]
    (axes,) = robustness_figures.clean_against_corrupted(rows, clean).axes
    np.testing.assert_allclose([line.get_xydata()[0] for line in axes.lines[:2]], [[10, 50], [5, 30]])
    scores = pd.DataFrame({"test": [90.0, 80.0]}, index=["erm", "narrow"])
    figure = robustness_figures.size(pd.Series({"erm": 1000, "narrow": 100}), scores)
    (axes,) = figure.axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1000, 90]], [[100, 80]]] and axes.get_xscale() == "log"
    assert [text.get_text() for text in figure.legends[0].texts] == ["erm", "narrow"]


# What the tables say beside the numbers


def test_numbers_over_what_was_trained_with_are_marked_and_the_protocol_is_told(summary, tmp_path):
    augment = {"mean": [0.5], "std": [0.25], "noise": "speckle"}
    settings = {"erm": {"data": {"side_px": 224, "resize_px": 256, "augment": augment | {"noise": "none"}}}, "noisy": {"data": {}}}
    settings["noisy"]["data"] = settings["erm"]["data"] | {"augment": augment}
    one = of_set(summary, "erm")
    one = one[one["metric"].isin(["clean", "fog_1"])]
    numbers = ("mce_jax", "relative_mce_jax", "imagenet_c_jax", "imagenet_cbar_jax")
    means = [one.drop_duplicates("run").assign(metric=name, value=0.5, n_correct=np.nan, n_total=np.nan) for name in numbers]
    one = pd.concat([one, *means])
    measured = {}
    for name, content in settings.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
        measured[tmp_path / name] = one.drop(columns="model").assign(algorithm=name)
    found = table.summarise(measured, [])
    heads, *lines = found.cells("test")
    for line in lines:
        marked = {head for head, cell in zip(heads, line, strict=True) if cell.endswith(" †")}
        assert marked == (set(numbers[:3]) if line[0].startswith("noisy") else set())
    assert set(numbers) < set(heads)
    assert [note for note in found.notes if note.startswith("protocol: erm")] == [
        "protocol: erm, noisy: shorter side resized to 256 px, central 224 px; pixels in [0, 1] less (0.5), over (0.25)"
    ]
    assert not found._replace(trained_with={"noisy": ["saturate"]}).is_marked("noisy", "mce_jax")  # of 15 corruptions
    assert found._replace(trained_with={"noisy": ["saturate"]}).is_marked("noisy", "imagenet_c_jax")  # of all 19
    assert "note: † noisy has trained with changes like gaussian_noise, impulse_noise, shot_noise, speckle_noise" in table.text(found)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"size_px": 64, "fit": "crop"}, "shorter side resized to 64 px, central 64 px"),
        ({"size_px": 64, "fit": "stretch"}, "both sides stretched to 64 px"),
        ({"side_px": 224, "resize_px": 0}, "central 224 px"),
        ({"side_px": 224}, "images of 224 px"),
        ({"of": {"side_px": 224}}, "images of 224 px"),
        ({}, ""),
    ],
)
def test_protocols_in_words(data, words):
    assert protocol.of_settings({"data": data}) == words


def test_accuracy_is_drawn_over_size_where_sizes_differ(summary, tmp_path):
    def drawn(*parameters):
        folders = {}
        for model, number in zip(("erm", "_weak"), parameters, strict=True):
            folders[model] = tmp_path / model
            path = folders[model] / table.FOLDER / "test" / "about.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"parameters": number} if number else {}))
        return list(report._of_sizes(summary._replace(folders=folders), "test", of_set(summary, *folders)))

    assert drawn(100, 100) == drawn(100, 0) == []
    (one,) = drawn(1000, 10)
    assert one.name == "imagenet_c_test_size" and one.caption.endswith("_weak 10, erm 1,000.")
    panels = {axes.get_title("left"): [line.get_xdata().tolist() for line in axes.lines] for axes in one.make().axes if axes.lines}
    assert panels == {name: [[10], [1000]] for name in ("noise", "weather")}
