"""The figures: cliques by brute force, what is drawn against the frames, files and their bytes, awkward input."""

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats import main, tables
from jaxbed.stats.comparisons import cliques, ranks
from jaxbed.stats.figures import drawing, style

LETTERS = "abcdefghij"


def random_p(n: int, seed: int) -> tuple[pd.Series, pd.DataFrame]:
    """Mean ranks and p-values that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    names = list(LETTERS[:n])
    p = rng.choice([0.01, 0.5], size=(n, n), p=[0.3, 0.7])
    p = np.triu(p, 1) + np.triu(p, 1).T + np.eye(n)
    return pd.Series(rng.permutation(n) + 1.0, names), pd.DataFrame(p, names, names)


def brute_force(means: pd.Series, p: pd.DataFrame) -> list[list[str]]:
    order = list(means.sort_values().index)
    stretches = [order[first:last] for first, last in itertools.combinations(range(len(order) + 1), 2) if last - first > 1]
    p = p.to_dict()  # looked up soon
    alike = [group for group in stretches if all(p[i][j] >= 0.05 for i, j in itertools.combinations(group, 2))]
    return [group for group in alike if not any(set(group) < set(other) for other in alike)]


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_cliques_are_the_maximal_stretches_without_a_difference(n):
    for seed in range(60):
        means, p = random_p(n, seed)
        found = cliques.cliques(means, p, 0.05)
        assert found == brute_force(means, p)
        mixed = list(np.random.default_rng(seed).permutation(means.index))
        assert cliques.cliques(means[mixed], p.loc[mixed, mixed[::-1]], 0.05) == found
        held = {frozenset(pair) for group in found for pair in itertools.combinations(group, 2)}
        values = p.to_dict()
        alike = {frozenset((i, j)) for i, j in itertools.combinations(means.index, 2) if values[i][j] >= 0.05}
        assert {frozenset(pair) for pair in cliques.unjoined(means, p, 0.05)} == alike - held


def test_cliques_of_the_ends_and_of_equal_ranks():
    means = pd.Series([2.0, 2.0, 2.0], list("bca"))
    one = pd.DataFrame(1.0, means.index, means.index)
    assert cliques.cliques(means, one, 0.05) == [["a", "b", "c"]]
    assert cliques.cliques(means, one * 0.05, 0.05) == [["a", "b", "c"]]  # p = alpha is no difference
    assert cliques.cliques(means, one * 0.049, 0.05) == []


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in [*axes.texts, axes.title, axes._left_title]]


@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_critical_difference_names_all_and_no_labels_overlap(n):
    rng = np.random.default_rng(n)
    names = [f"algorithm_{place}_with_${place}$" for place in range(n)]
    matrix = pd.DataFrame(rng.normal(size=(n, 12)) + np.linspace(0, 3, n)[:, None], names)
    means, p = ranks.mean_ranks(matrix), ranks.nemenyi(matrix)
    figure = drawing.critical_difference(means, p, 0.01, "Nemenyi")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for name in names:
        assert sum(name in text and f"{means[name]:.2f}" in text for text in texts(figure)) == 1
    assert any("Nemenyi" in text and "0.01" in text for text in texts(figure))
    assert not any(text.get_parse_math() for text in axes.texts)  # names may hold $
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    bars = [line.get_xdata() for line in axes.lines if line.get_linewidth() > 3]
    spans = [(means[group[0]], means[group[-1]]) for group in cliques.cliques(means, p, 0.01)]
    np.testing.assert_allclose(np.reshape(bars, (-1, 2)), np.add(np.reshape(spans, (-1, 2)), 0.008 * (n - 1) * np.array([-1, 1])))
    heights = [(*line.get_xdata(), line.get_ydata()[0]) for line in axes.lines if line.get_linewidth() > 3]
    assert not any(a[2] == b[2] and a[0] < b[1] and b[0] < a[1] for a, b in itertools.combinations(heights, 2))


def test_p_values_show_every_pair_and_mark_the_small_ones():
    p = pd.DataFrame([[1, 0.001, 0.05], [0.001, 1, 1e-14], [0.05, 1e-14, 1]], list("abc"), list("abc"))
    figure = drawing.p_values(p, 0.05, "a test")
    found = {tuple(text.get_position()): (text.get_text(), text.get_fontweight()) for text in figure.axes[0].texts}
    assert len(found) == 6  # the diagonal is blank
    assert found[(1.5, 0.5)] == found[(0.5, 1.5)] == ("0.0010", "bold")
    assert found[(2.5, 0.5)] == ("0.050", "normal")
    assert found[(2.5, 1.5)] == ("<1e-12", "bold")
    assert "a test" in "".join(texts(figure))


def curves() -> pd.DataFrame:
    """Three runs of a to epochs 6, 6, 4, of which none is finite at epoch 3; one run of b; validation on v."""
    rows = [
        (name, run, dataset, epoch, "val" if dataset == "v" else "ood", "accuracy", 0.1 * epoch + 0.01 * run, "ok")
        for name, lasts in (("a", (6, 6, 4)), ("b", (5,)))
        for run, last in enumerate(lasts)
        for dataset in ("d", "v")
        for epoch in range(1, last + 1)
    ]
    frame = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "epoch", "role", "metric", "value", "status"])
    frame.loc[(frame["algorithm"] == "a") & (frame["epoch"] == 3), "status"] = "diverged"
    return frame


def test_epoch_curves_break_where_no_run_is_finite_and_say_how_many_runs_there_are():
    chosen = pd.DataFrame({"algorithm": ["a", "a", "a", "b"], "run": [0, 1, 2, 0], "epoch": [2, 6, 4, 5]})
    figure = drawing.epochs(curves(), "accuracy (%)", 100, chosen)
    assert [axes._left_title.get_text() for axes in figure.axes] == ["v (validation)", "d"]
    for axes in figure.axes:
        a, a_marks, b, b_marks = axes.lines
        np.testing.assert_allclose(a.get_ydata(), [11, 21, np.nan, 41, 50.5, 60.5])
        np.testing.assert_allclose(a_marks.get_xydata(), [[2, 20], [6, 61], [4, 42]])
        np.testing.assert_allclose(b.get_xdata(), [1, 2, 3, 4, 5])
        np.testing.assert_allclose(b_marks.get_xydata(), [[5, 50]])
        assert [(text.get_position()[0], text.get_text()) for text in axes.texts] == [(4, "3"), (5, "2")]
        band = np.concatenate([path.vertices for path in axes.collections[1].get_paths()])
        assert {round(y, 6) for x, y in band if x == 1} == {10, 12}  # 11 ± std of 10, 11, 12
        assert not (band[:, 0] == 3).any()
    looks = {(line.get_color(), str(line.get_linestyle())) for line in figure.legends[0].get_lines()}
    assert len(looks) == 2


def test_an_epoch_between_gaps_is_drawn_as_a_point():
    frame = curves().query("algorithm == 'a' and dataset == 'd'")
    frame.loc[frame["epoch"].isin([1, 3]), "status"] = "diverged"
    axes = drawing.epochs(frame, "accuracy").axes[0]
    np.testing.assert_allclose(axes.collections[0].get_offsets(), [[2, 0.21]])


def test_epoch_curves_stop_at_a_dozen_panels_and_the_caption_names_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(style, "save", lambda figure, folder, name: ([], ""))
    frame = pd.concat([curves().query("dataset == 'd'").assign(dataset=f"set{place}") for place in range(14)])
    assert len(drawing.epochs(frame, "accuracy").axes) == drawing.MOST_PANELS
    analysis = bare(frame[frame["epoch"] == 2])
    analysis.frame = frame
    analysis.p = None
    caption = next(figure.caption for figure in drawing.draw(tmp_path, analysis) if figure.name == "epochs")
    assert caption.endswith("Not shown: set12, set13.")


def test_looks_of_twenty_algorithms_differ():
    looks = [style.look(place) for place in range(32)]
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == 32


def scores(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [(a, run, d, value) for a in ("erm", "x_$1$") for run in (1, 2, 3) for d, value in zip("def", rng.random(3), strict=True)]
    frame = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"])
    return frame.assign(metric="accuracy", epoch=np.nan, role="ood", status="ok")


def test_runs_shows_every_run_and_the_means():
    frame = scores()
    figure = drawing.runs(frame.drop(index=frame.index[-1]), "accuracy (%)", 100, "erm", [("x_$1$", "e")])
    assert [axes._left_title.get_text() for axes in figure.axes] == ["d", "e", "f"]
    for axes, count in zip(figure.axes, (6, 6, 5), strict=True):
        rows = frame.drop(index=frame.index[-1]).query("dataset == @axes._left_title.get_text()")
        points = axes.collections[0].get_offsets()
        assert len(points) == count
        np.testing.assert_allclose(np.sort(points[:, 0]), np.sort(rows["value"] * 100))
        means = [path.vertices[0, 0] for path in axes.collections[1].get_paths()]
        own = rows.groupby("algorithm")["value"].mean() * 100
        np.testing.assert_allclose(means, own[["erm", "x_$1$"]])
        assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx([own["erm"]])
    assert [len(axes.patches) for axes in figure.axes] == [0, 1, 0]


def bare(selected: pd.DataFrame) -> SimpleNamespace:
    """An analysis of scores alone, with tests where there are two algorithms or more."""
    table = tables.summary(selected)
    matrix = tables.matrix(table)
    return SimpleNamespace(
        results={"metric": "accuracy", "in_distribution": [["erm", "d"]]},
        scores=table,
        selected=selected,
        frame=selected,
        p=ranks.nemenyi(matrix),
        p_least=ranks.nemenyi(matrix) * 0,
        mean_ranks=ranks.mean_ranks(matrix),
        alpha=0.05,
        p_name="Nemenyi",
        chosen=None,
        stability=None,
    )


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """(folder, the figures of scores() drawn in it)."""
    folder = tmp_path_factory.mktemp("drawn")
    return folder, drawing.draw(folder, bare(scores()))


def test_draw_writes_what_there_are_data_for_and_the_same_bytes_again(drawn, tmp_path):
    folder, first = drawn
    again = drawing.draw(tmp_path, bare(scores().sample(frac=1, random_state=0).sort_values(["algorithm", "dataset"], kind="stable")))
    assert [figure.name for figure in first] == ["critical_difference", "p_values", "runs"]
    for one, other in zip(first, again, strict=True):
        assert one.svg == other.svg and one.caption == other.caption
        assert [path.read_bytes() for path in one.files] == [path.read_bytes() for path in other.files]
        assert one.files[0].read_bytes().startswith(b"%PDF") and one.files[1].read_bytes().startswith(b"\x89PNG")
        assert b"CreationDate" not in one.files[0].read_bytes()
    assert sorted(path.name for path in (folder / "figures").iterdir()) == sorted(
        ["critical_difference.tex", *(f"{figure.name}.{kind}" for figure in first for kind in ("pdf", "png", "svg"))]
    )
    alone = bare(scores())
    alone.p = alone.mean_ranks = None
    drawing.draw(tmp_path, alone)
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["runs.pdf", "runs.png", "runs.svg"]


def test_svg_can_stand_in_a_page(drawn):
    _, figures = drawn
    ids = [name for figure in figures for name in re.findall(r'\bid="([^"]*)"', figure.svg)]
    assert len(ids) == len(set(ids))
    for figure in figures:
        assert figure.svg.startswith("<svg ") and figure.svg.endswith("</svg>")
        used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', figure.svg)
        assert {a or b for a, b in used} <= set(ids)
        assert not re.search(r"<style|<metadata|<!--|<image|<script", figure.svg)
        assert "var(--ink, #1c2128)" in figure.svg


# ---- figures of a real report


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Every figure of one call of the command, with the results in stats.json: name -> matplotlib figure, results."""
    folder = tmp_path_factory.mktemp("reported")
    rng = np.random.default_rng(5)
    rows = [
        (name, run, epoch, dataset, role, round(60 + 4 * place + 3 * column + epoch + rng.normal(), 4))
        for place, name in enumerate(("alpha", "beta", "gamma", "delta"))
        for run in (1, 2, 3)
        for epoch in (1, 2, 3)
        for column, (dataset, role) in enumerate([("held_out", "val"), *((f"d{number}", "ood") for number in range(8))])
    ]
    columns = ["algorithm", "run", "epoch", "dataset", "role", "accuracy"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "scores.csv", index=False)
    drawn = {}

    def keep(figure, where, name):
        """Writes one that no other test writes, in one format."""
        drawn[name] = figure
        if name == "epochs":
            with style.style():
                figure.savefig(where / "epochs.png", metadata={"Software": None})
        return [], ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", keep)
        call = [str(folder / "scores.csv"), "--baseline", "gamma", "--permutations", "2000", "--out", str(folder / "out")]
        assert main.main(call) == 0
    return drawn, json.loads((folder / "out" / "stats.json").read_text())


def labels(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_every_figure_of_a_report_is_checked_below(reported):
    assert set(reported[0]) == set(drawing.NAMES)


def test_reported_mean_ranks_are_those_of_the_intervals(reported):
    drawn, results = reported
    rows = pd.DataFrame(results["stability"]["runs_resampled"]).query("quantity == 'mean_rank'").sort_values(["value", "name"])
    assert len(rows) == 4 and rows.set_index("name")["value"].to_dict() == pytest.approx(results["friedman"]["mean_ranks"])
    (axes,) = drawn["rank_stability"].axes
    assert labels(axes) == rows["name"].tolist()
    np.testing.assert_allclose(axes.lines[0].get_xydata(), list(zip(rows["value"], range(4), strict=True)))
    np.testing.assert_allclose([path.vertices[:, 0] for path in axes.collections[0].get_paths()], rows[["low", "high"]].astype(float))
    assert axes.get_xlim() == pytest.approx((0.8, 4.2)) and "mean rank" in axes.get_xlabel()
    low, high = axes.get_xlim()
    assert rows["low"].min() >= low and rows["high"].max() <= high


def test_reported_critical_difference_diagram_has_ranks_and_bars(reported):
    drawn, results = reported
    axes, means = drawn["critical_difference"].axes[0], results["friedman"]["mean_ranks"]
    stems = {round(line.get_xdata()[0], 9) for line in axes.lines if line.get_ydata()[0] == 0}
    assert stems == {round(rank, 9) for rank in means.values()} and axes.get_xlim() == (1, 4)
    p = {frozenset((row["algorithm_i"], row["algorithm_j"])): row["p_permutation"] for row in results["pairs"]}
    order = sorted(means, key=means.get)
    bars = [tuple(line.get_xdata()) for line in axes.lines if line.get_linewidth() > 3]
    for first, second in itertools.pairwise(order):
        joined = any(low <= means[first] and means[second] <= high for low, high in bars)
        assert joined == (p[frozenset((first, second))] >= 0.05)


def test_reported_p_values_are_those_of_the_pairs(reported):
    drawn, results = reported
    axes = drawn["p_values"].axes[0]
    order = labels(axes)
    assert order == sorted(order, key=results["friedman"]["mean_ranks"].get)
    found = {(order[int(text.get_position()[1])], order[int(text.get_position()[0])]): text.get_text() for text in axes.texts}
    assert len(found) == 12
    for row in results["pairs"]:
        text = tables.format_p(row["p_permutation"])
        assert found[row["algorithm_i"], row["algorithm_j"]] == found[row["algorithm_j"], row["algorithm_i"]] == text


def test_reported_runs_are_all_scores_at_the_chosen_epoch(reported):
    drawn, results = reported
    cells = pd.DataFrame(results["scores"]["cells"]).set_index(["algorithm", "dataset"])
    panels = drawn["runs"].axes
    assert [axes._left_title.get_text() for axes in panels] == [f"d{number}" for number in range(8)]
    for axes in panels:
        dataset, points = axes._left_title.get_text(), axes.collections[0].get_offsets()
        assert len(points) == 12
        bars = [path.vertices for path in axes.collections[1].get_paths()]
        for row, name in enumerate(labels(panels[0])):
            own = points[np.abs(points[:, 1] - row) < 0.4][:, 0]
            assert np.mean(own) == pytest.approx(cells.loc[(name, dataset), "mean"]) == bars[row][0, 0]
            assert np.std(own, ddof=1) == pytest.approx(cells.loc[(name, dataset), "std"])
        (baseline,) = [line.get_xdata()[0] for line in axes.lines]
        assert baseline == pytest.approx(cells.loc[("gamma", dataset), "mean"])
        low, high = axes.get_xlim()
        assert low <= points[:, 0].min() and points[:, 0].max() <= high


def test_reported_epochs_show_means_over_runs_and_the_chosen_epochs(reported):
    drawn, results = reported
    panels = drawn["epochs"].axes
    assert [axes._left_title.get_text() for axes in panels] == ["held_out (validation)", *(f"d{number}" for number in range(8))]
    means = pd.DataFrame(results["scores"]["cells"]).set_index(["algorithm", "dataset"])["mean"]
    for axes in panels[1:]:
        for place, name in enumerate(("alpha", "beta", "gamma", "delta")):
            marks = axes.lines[2 * place + 1].get_xydata()
            chosen = [row["epoch"] for row in results["selection"]["runs"] if row["algorithm"] == name]
            assert sorted(marks[:, 0]) == sorted(chosen)
            assert marks[:, 1].mean() == pytest.approx(means[name, axes._left_title.get_text()])
    assert [text.get_text() for text in drawn["epochs"].legends[0].get_texts()] == ["alpha", "beta", "gamma", "delta"]


def test_reported_forest_shows_the_shifts_from_the_baseline_with_their_intervals(reported):
    drawn, results = reported
    rows = pd.DataFrame(results["baseline_comparisons"]).sort_values("hodges_lehmann", ascending=False)
    (axes,) = drawn["forest"].axes
    assert labels(axes) == [f"{name} – gamma" for name in rows["algorithm_i"]]
    np.testing.assert_allclose(
        [path.vertices[:, 0] for path in axes.collections[0].get_paths()], rows.filter(regex="_(low|high)$").iloc[:, :2]
    )
    filled, hollow = (line.get_xydata() for line in axes.lines[:2])
    sure = (rows["p_permutation"] < 0.05).to_numpy()
    np.testing.assert_allclose(filled[:, 0], rows["hodges_lehmann"][sure])
    np.testing.assert_allclose(hollow[:, 0], rows["hodges_lehmann"][~sure])
    assert [line.get_xdata()[0] for line in axes.lines[2:]] == [0]
    low, high = axes.get_xlim()
    assert low < rows["hodges_lehmann_low"].min() and rows["hodges_lehmann_high"].max() < high and "accuracy" in axes.get_xlabel()


def test_reported_iqm_is_that_of_all_scores(reported):
    drawn, results = reported
    rows = pd.DataFrame(results["stability"]["runs_resampled"]).query("quantity == 'iqm'").sort_values("value", ascending=False)
    (axes,) = drawn["iqm"].axes
    assert labels(axes) == rows["name"].tolist() and "IQM of accuracy" in axes.get_xlabel()
    np.testing.assert_allclose(axes.lines[0].get_xydata(), list(zip(rows["value"], range(4), strict=True)))
    np.testing.assert_allclose([path.vertices[:, 0] for path in axes.collections[0].get_paths()], rows[["low", "high"]].astype(float))


def test_reported_profile_counts_the_scores_above(reported):
    drawn, _ = reported
    (axes,) = drawn["profile"].axes
    points = np.concatenate([panel.collections[0].get_offsets() for panel in drawn["runs"].axes])
    for place, line in enumerate(axes.lines):
        own = points[np.abs(points[:, 1] - place) < 0.4][:, 0]
        scores, shares = line.get_xydata().T
        np.testing.assert_allclose(shares, [(own > score).mean() for score in scores])
    assert axes.get_ylim() == (0, 1) and drawn["profile"].legends[0].get_texts()[0].get_text() == "alpha"


def test_letters_are_shared_by_those_that_do_not_differ_and_by_no_others():
    for n in (2, 3, 5, 8):
        for seed in range(40):
            means, p = random_p(n, seed)
            found = cliques.letters(means, p, 0.05)
            for i, j in itertools.combinations(means.index, 2):
                assert bool(set(found[i]) & set(found[j])) == (p.loc[i, j] >= 0.05)
            best = means.idxmin()
            assert "a" in found[best]


def test_many_algorithms_and_datasets_give_few_artists(tmp_path):
    """Figures end: no text per pair and no artist per cell where there are too many to see."""
    rng = np.random.default_rng(0)
    names = [f"a{place}" for place in range(40)]
    p = pd.DataFrame(rng.random((40, 40)), names, names)
    assert not drawing.p_values(p, 0.05, "a test").axes[0].texts
    rows = [(name, run, f"d{column}", rng.random()) for name in names for run in (1, 2) for column in range(60)]
    selected = pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"])
    shown, left_out = drawing.datasets_of_runs(selected)
    assert len(shown) == 15 and shown + left_out == [f"d{column}" for column in range(60)]
    figure = drawing.runs(selected[selected["dataset"].isin(shown)], "accuracy")
    assert max(len(axes.collections) + len(axes.lines) + len(axes.texts) for axes in figure.axes) < 8


def test_a_forest_of_many_pairs_shows_those_with_the_best_which_comes_first():
    names = [f"a{place}" for place in range(10)]
    rows = [(i, j, 1.0 + place, 0.5 + place, 2.0 + place) for place, (i, j) in enumerate(itertools.combinations(names, 2))]
    pairs = pd.DataFrame(rows, columns=["algorithm_i", "algorithm_j", "hodges_lehmann", "hodges_lehmann_low", "hodges_lehmann_high"])
    means = {name: abs(place - 4) + 1.0 for place, name in enumerate(names)}
    found, which = drawing._compared({"baseline_comparisons": None, "pairs": pairs, "friedman": {"mean_ranks": means}})
    assert set(found["algorithm_i"]) == {"a4"} and set(found["algorithm_j"]) == set(names) - {"a4"} and "a4" in which
    assert (found["hodges_lehmann_low"] < found["hodges_lehmann"]).all() and (found["hodges_lehmann"] < found["hodges_lehmann_high"]).all()
    given = pairs.set_index(["algorithm_i", "algorithm_j"])["hodges_lehmann"]
    for row in found.itertuples():
        assert row.hodges_lehmann == (
            given[("a4", row.algorithm_j)] if ("a4", row.algorithm_j) in given else -given[(row.algorithm_j, "a4")]
        )


def test_figures_of_scores_where_lower_is_better(tmp_path, monkeypatch):
    """The best stays on top, a profile counts what is below, and a shift to the right is still an advantage."""
    rng, drawn = np.random.default_rng(1), {}
    rows = [
        (name, run, f"d{column}", 1.0 + place + 0.1 * rng.random())
        for place, name in enumerate("abc")
        for run in (1, 2, 3)
        for column in range(6)
    ]
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "value"]).assign(metric="loss").to_csv(tmp_path / "scores.csv", index=False)

    def keep(figure, where, name):
        drawn[name] = figure
        return [], ""

    monkeypatch.setattr(style, "save", keep)
    call = [str(tmp_path / "scores.csv"), "--metric", "loss", "--lower", "--permutations", "500", "--out", str(tmp_path / "out")]
    assert main.main(call) == 0
    assert labels(drawn["iqm"].axes[0]) == labels(drawn["rank_stability"].axes[0]) == ["a", "b", "c"]
    assert all(value > 0 for value in drawn["iqm"].axes[0].lines[0].get_xdata())
    best = drawn["profile"].axes[0].lines[0].get_xydata()
    assert best[0, 1] == 0 and best[-1, 1] == 1 and "below" in drawn["profile"].axes[0].get_ylabel()
    assert labels(drawn["forest"].axes[0])[0] == "a – c" and drawn["forest"].axes[0].get_xlim()[1] > 1.9


def test_letters_that_the_font_lacks_are_reported_once(tmp_path, capsys, monkeypatch):
    lines = [f"{name},{run},{dataset},{50 + run + 9 * (name == 'x')}" for name in ("x", "名前é") for run in (1, 2) for dataset in "ABC"]
    (tmp_path / "scores.csv").write_text("\n".join(["algorithm,run,dataset,accuracy", *lines]), encoding="utf-8")
    call = [str(tmp_path / "scores.csv"), "--permutations", "100", "--out", str(tmp_path / "out")]
    save = style.save
    monkeypatch.setattr(style, "save", lambda figure, where, name: save(figure, where, name) if name == "p_values" else ([], ""))
    assert main.main(call) == 0
    captured = capsys.readouterr()
    assert captured.out.count("warning LETTERS: figures show boxes for 前, 名, since their font lacks them. Use --rename.") == 1
    assert "Glyph" not in captured.err
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    assert main.main([*call, "--rename", "名前é=é"]) == 0
    assert "LETTERS" not in capsys.readouterr().out
