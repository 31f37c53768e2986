"""`jaxbed correlate`: coefficients by hand, the published matrices, and tables that cannot be used."""

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats.correlations import coefficients, figures, main, models, study
from jaxbed.stats.figures import style

COLUMNS = ("shape_bias", "low_freq", "high_freq", "bandwidth_norm", "centre_norm", "sensitivity_norm")
PRINTED = dict(zip(("shape_bias", "low_freq", "high_freq", "C-BW_norm", "C-CF_norm", "C-PNS_norm"), COLUMNS, strict=True))
SMALL = "model,category,shape_bias,robustness\na,x,0.1,30\nb,x,0.2,20\nc,y,0.3,50\nd,y,0.4,40\ne,y,0.5,60\nf,y,0.6,55\n"


def firmness(x, y, category=()):
    return coefficients.firmness(np.array(x, float), np.array(y, float), np.array(category or ["all"] * len(x)))


def table(folder, text=SMALL, name="models.csv"):
    (folder / name).write_text(text)
    return folder / name


def command(capsys, *words):
    code = main.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def save_as_png(figure, folder, name):
    """In one format: test_a_table_becomes_a_text_and_files has all."""
    with style.style():
        figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    return [folder / f"{name}.png"], ""


@pytest.mark.parametrize(
    ("x", "y", "rho", "p"),
    [
        ((1, 2, 3, 4, 5), (2, 1, 4, 3, 5), 0.8, 0.104088),
        ((1, 2, 3, 4, 5, 6), (2, 1, 4, 3, 6, 5), 0.828571, 0.041563),
        ((1, 2, 3, 4), (1, 3, 2, 4), 0.8, 0.2),
        ((1, 2, 2, 3, 4), (1, 3, 2, 4, 4), 0.947368, 0.014380),
        ((1, 1 + 1e-9, 2, 3, 4), (1, 1, 2, 3, 4), 1, 0),  # what differs by rounding is a tie
        ((1, 1, 1, 1), (1, 2, 3, 4), np.nan, np.nan),
        ((1, 2, 3), (1, 2, 3), np.nan, np.nan),  # too few
    ],
)
def test_coefficients_by_hand(x, y, rho, p):
    firm = firmness(x, y)
    np.testing.assert_allclose((firm.rho, firm.p), (rho, p), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1e-3, 1, 1e3, 1e8])
@pytest.mark.parametrize("x", [(1, 2, 3, 4, 5), (1, 1 + 4e-16, 2, 3, 4), (-1, -2, 0.5, 3, 0)], ids=("distinct", "tied", "signs"))
def test_the_scale_of_a_property_changes_no_coefficient(x, scale):
    y = (2, 1, 4, 3, 5)
    assert firmness(np.array(x) * scale, y)[:2] == firmness(x, y)[:2] == firmness(y, np.array(x) * scale)[:2]


def test_a_column_of_small_numbers_has_a_correlation(tmp_path, capsys):
    code, text = command(capsys, table(tmp_path, SMALL.replace(",0.", ",0.00000000")))
    assert code == 0 and "n/a" not in text, text


def test_one_huge_value_makes_no_ties_of_the_others():
    assert firmness((1, 1.001, 1.002, 1e9), (1, 2, 3, 4)).rho == 1


def test_the_p_of_permutations_counts_all_orders():
    """Of the 24 orders of four values, two have |rho| = 1, and eight have 0.8 or more."""
    assert firmness((1, 2, 3, 4), (1, 2, 3, 4)).p_permutation == pytest.approx(2 / 24, abs=0.01)
    assert firmness((1, 2, 3, 4), (1, 3, 2, 4)).p_permutation == pytest.approx(8 / 24, abs=0.02)


def test_without_a_model_without_a_category_and_within_categories():
    """Two categories that differ in both properties, and in which these go against each other."""
    x, y, category = (1, 2, 3, 11, 12, 13, 14), (3, 2, 1, 14, 13, 12, 11), ["a"] * 3 + ["b"] * 4
    firm = firmness(x, y, category)
    assert firm.rho > 0 and firm.rho_within == pytest.approx(-1)
    assert firm.most_without_category == firm.least_without_category == -1  # without a; without b three models are too few
    removed = [coefficients.rho(np.delete(x, i), np.delete(y, i)) for i in range(7)]
    assert (firm.least_without_one, firm.most_without_one) == (min(removed), max(removed))
    assert firm.low <= firm.rho <= firm.high


@pytest.fixture(autouse=True)
def few_draws(request, monkeypatch):
    """Only the test of permutations looks at what is drawn."""
    for name in ("PERMUTATIONS", "RESAMPLES") if "permutations" not in request.node.name else ():
        monkeypatch.setattr(coefficients, name, 9)
    for cached in (coefficients._orders, coefficients._resamples):
        cached.cache_clear()
    yield
    for cached in (coefficients._orders, coefficients._resamples):
        cached.cache_clear()


def test_the_published_matrices(shared_data):
    """All 72 + 36 entries of the paper; how many of the 72 hold after adjustment."""
    folder = shared_data / "reference_tables"
    given = study.correlate(models.read([folder / "models48.csv"]), "none", 0.05, as_published=True)
    between = given.set_index(["group", "x", "y"])["masked"]
    for row in pd.read_csv(folder / "published_bias_x_benchmark.csv").itertuples():
        assert between[row.group, PRINTED[row.bias], row.benchmark] == pytest.approx(row.printed_rho, abs=0.00501), row
    among = study.matrix(given, "bias_x_bias", "total", "masked")
    for row in pd.read_csv(folder / "published_bias_x_bias.csv").itertuples():
        assert among.loc[PRINTED[row.bias], PRINTED[row.other_bias]] == pytest.approx(row.printed_rho, abs=0.00501), row
    unmasked = given.set_index(["group", "x", "y"])["rho"]
    for row in pd.read_csv(folder / "rho_unmasked.csv").itertuples():
        assert unmasked[row.group, PRINTED[row.bias], row.benchmark] == pytest.approx(row.rho, abs=1e-4), row
    assert study.significant(given, 0.05).loc["bias_x_benchmark"].tolist() == [72, 40, 22, 36]


def test_tables_of_two_decimals_give_other_correlations(shared_data):
    """19 of the 72, three of which are no longer significant: the biases of high frequencies tie."""
    folder = shared_data / "biases_tables"
    names, benchmarks, biases = (pd.read_csv(folder / f"{name}.csv") for name in ("model_names", "table1_benchmarks", "table2_biases"))
    scored = benchmarks.groupby(["model", "category", "group"], sort=False)["accuracy"].mean().unstack().reset_index(level="category")
    leaned = biases.pivot(index="model", columns="bias", values="value").rename(columns=PRINTED)
    joined = names.join(scored, on="name_in_table1").join(leaned, on="name_in_table2").set_index("name_in_table1")
    category = joined.pop("category")
    rounded = models.Models(joined, category, list(COLUMNS), list(models.BENCHMARKS), [])
    given = study.correlate(rounded, "none", 0.05, as_published=True).set_index(["group", "x", "y"])["masked"]
    printed = pd.read_csv(shared_data / "reference_tables" / "published_bias_x_benchmark.csv")
    printed = pd.Series(
        printed["printed_rho"].to_numpy(), pd.MultiIndex.from_arrays([printed["group"], printed["bias"].map(PRINTED), printed["benchmark"]])
    )
    same_order = given.loc[printed.index]
    assert (same_order.round(2) != printed).sum() == 19
    lost = printed.index[(same_order == 0) != (printed == 0)]
    assert set(lost) == {
        ("other", "high_freq", "in_distribution"),
        ("adversarial_training", "high_freq", "robustness"),
        ("other", "high_freq", "adversarial"),
    }


def test_a_table_becomes_a_text_and_files(tmp_path, capsys):
    out = tmp_path / "out"
    code, text = command(capsys, table(tmp_path), "--out", out)
    assert code == 0 and "Spearman's rho" in text and "all (6 models)" in text and "y (4 models)" in text, text
    assert "1 of 2 have p < 0.05" in text or "0 of 2 have p < 0.05" in text
    written = pd.read_csv(out / "correlations.csv")
    assert written["group"].tolist() == ["all", "y"] and written["models"].tolist() == [6, 4]
    assert (pd.read_csv(out / "models.csv")["robustness"] == [30, 20, 50, 40, 60, 55]).all()
    page = (out / "report.html").read_text()
    assert "1 biases" not in page and page.count("<svg") == 3 and "jaxbed correlate" in page
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"{n}.{k}" for n in ("bias_x_benchmark", "shape_bias", "ranges") for k in ("pdf", "png", "svg")
    }


def test_runs_of_a_model_are_not_models_of_their_own(tmp_path, capsys):
    lines = SMALL.splitlines()
    runs = [f"{lines[0]},run"] + [f"{line},{run}" for line in lines[1:] for run in (0, 1)]
    given = models.read([table(tmp_path, "\n".join(runs))])
    assert len(given.properties) == 6 and given.notes == ["12 rows are runs of 6 models: means of the runs count"]


def test_tables_are_joined_by_model_and_what_is_not_measured_is_left_out(tmp_path, capsys):
    first = table(tmp_path, "model,category,shape_bias\na,x,1\nb,x,2\nc,x,3\nd,x,4\ne,x,5\n")
    second = table(tmp_path, "model;robustness\ne;0,5\nd;0,4\nc;0,3\nb;0,2\na;\n", "second.csv")
    given = study.correlate(models.read([first, second]), "none", 0.05)
    assert given.loc[0, ["models", "rho"]].tolist() == [4, 1.0]


BENCHMARKED = "model,category,concepts\na,x,20\nb,x,32\nc,y,41\nd,y,10\ne,y,49\nf,y,8\n"


def in_runs(text):
    """With two rows for each model."""
    head, *lines = text.splitlines()
    return "\n".join([f"{head},run", *(f"{line},{run}" for run in (0, 1) for line in lines)])


@pytest.mark.parametrize(
    "texts",
    [
        (SMALL, BENCHMARKED.replace("b,x", "b,y")),
        (in_runs(SMALL), BENCHMARKED.replace("b,x", "b,y")),
        (in_runs(SMALL).replace("b,x,0.2,20,1", "b,y,0.2,20,1"),),
        (SMALL.replace("category", "kind"), BENCHMARKED.replace("b,x", "b,y").replace("category", "kind")),
    ],
    ids=("tables", "runs and a table", "runs", "another column"),
)
def test_a_model_in_two_categories_is_refused(tmp_path, capsys, texts):
    column = "kind" if "kind" in texts[0] else "category"
    paths = [table(tmp_path, text, f"{number}.csv") for number, text in enumerate(texts)]
    code, said = command(capsys, *paths, *(("--groups", "kind") if column == "kind" else ()))
    assert code == 2 and f"'b' has two values of {column}, 'x' and 'y'; write the same in all of its rows" in said, said


@pytest.mark.parametrize("change", [("", ""), ("b,x", "b,"), ("b,x", "b, x"), ("b,x,32\n", "")], ids=("alike", "blank", "space", "absent"))
def test_tables_that_agree_on_categories_give_each_model_once(tmp_path, change):
    paths = [table(tmp_path, in_runs(SMALL)), table(tmp_path, BENCHMARKED.replace(*change), "second.csv")]
    given = models.read(paths)
    assert given.category.to_dict() == dict(zip("abcdef", "xxyyyy", strict=True)) and list(given.properties.index) == list("abcdef")
    assert given.notes == ["12 rows are runs of 6 models: means of the runs count"]


def test_columns_of_the_published_table_are_known(tmp_path):
    cutoffs = (0.1, 0.2, 0.3, 0.4, 0.5)
    head = ["model", "shape-bias", *(f"metric/bandpass/LFC/{cutoff}" for cutoff in cutoffs), *models.PUBLISHED["robustness"]]
    rows = [[f"m{i}", i / 10, *(np.array(cutoffs) * i), 10 * i, 20 * i, 30 * i] for i in range(1, 5)]
    text = "\n".join(",".join(map(str, row)) for row in (head, *rows))
    given = models.read([table(tmp_path, text)])
    assert given.biases == ["shape_bias", "low_freq"] and given.benchmarks == ["robustness"]
    np.testing.assert_allclose(given.properties.loc["m2"], [0.2, 0.6, 40])


def test_a_constant_column_has_no_correlation_and_stops_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "save", save_as_png)
    constant = SMALL.replace("0.1,", "0.3,").replace("0.2,", "0.3,").replace("0.4,", "0.3,").replace("0.5,", "0.3,").replace("0.6,", "0.3,")
    code, text = command(capsys, table(tmp_path, constant), "--out", tmp_path / "out")
    assert code == 0 and "n/a" in text


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        (SMALL.replace("b,x", "a,x"), (), "line 3 gives 'a' again; give each model once"),
        (SMALL.replace("model,", "network,"), (), "there is no column `model`"),
        ("\n".join(SMALL.splitlines()[:4]), (), "3 models are too few"),
        (SMALL.replace("shape_bias", "slope"), (), "no column is one of the known biases"),
        (SMALL, ("--biases", "shape"), "--biases: there is no column 'shape'; did you mean shape_bias?"),
        (SMALL, ("--biases", "robustness"), "robustness cannot be a bias and a benchmark at once"),
        (SMALL, ("--groups", "kind"), "--groups kind: no such column"),
        (SMALL, ("--paper-mode", "biases"), "there are 0 of 6: leave the option out"),
        (SMALL, ("--alpha", "5"), "--alpha 5: must be between 0 and 1"),
        (SMALL.replace("a,x", "a,"), (), "models a have no category"),
        (SMALL.replace("0.1,30", "inf,30"), (), "shape_bias of 'a' is infinite"),
        (SMALL.replace("0.1,30", "much,30"), (), "shape_bias 'much' in line 2 is not a number"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, capsys, text, words, reason):
    code, said = command(capsys, table(tmp_path, text), *words)
    assert code == 2 and reason in said, said


BIASES = "0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8".split()
PERCENTS = ((76.1, 40.2, 36.0, 0.1), (79.0, 45.1, 38.5, 2.0), (81.3, 50.0, 44.2, 31.0), (70.2, 33.3, 29.8, 0.0))


def scores(tmp_path, rows, columns=tuple(models.BENCHMARKS)):
    """A table of models with these benchmarks."""
    lines = [",".join(map(str, (f"m{number}", bias, *row))) for number, (bias, row) in enumerate(zip(BIASES, rows, strict=False))]
    return table(tmp_path, "\n".join([",".join(("model", "shape_bias", *columns[: len(rows[0])])), *lines]))


@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("fractions", [1, 2, 4])
def test_fractions_among_percents_are_refused(tmp_path, capsys, columns, fractions):
    """Also a whole table of them below one of percents."""
    rows = [row[:columns] for row in PERCENTS] + [tuple(value / 100 for value in row[:columns]) for row in PERCENTS[:fractions]]
    code, said = command(capsys, scores(tmp_path, rows))
    assert code == 2 and "benchmarks of 'm4' are at most 0.761, others up to 81.3: fractions or percent; write all alike" in said, said


@pytest.mark.parametrize(
    ("rows", "suspect"),
    [
        ([(0.03,), (1.2,), (3.5,), (16.73,), (9.0,)], "m0"),  # ImageNet-A alone, of which the network that chose its images has nothing
        ([(0.03, 0.4), (1.2, 3.0), (3.5, 20.0), (16.73, 44.0)], "m0"),  # two hard benchmarks
        ([(0.1, 0.1), (76.1, 40.2), (79.0, 45.1), (81.3, 50.0)], "m0"),  # a network that guesses
        ([(76.1, 0.03), (79.0, 1.2), (81.3, 3.5), (85.0, 16.73)], ""),
        ([(0.0,), (1.2,), (3.5,), (16.73,)], ""),
        ([(0.761, 0.4), (0.79, 0.45), (0.813, 0.5), (0.7, 0.33)], ""),  # all are fractions
        ([(0.761, 40.2), (0.79, 45.1), (0.813, 50.0), (0.7, 33.3)], ""),  # one column is of fractions: each is ranked by itself
        ([(0.761, ""), (0.79, ""), ("", 45.1), (0.813, 50.0), (0.7, 33.3)], ""),
        ([(50,), (0.5,), (40,), (60,)], "m1"),  # may be either
    ],
)
def test_low_percentages_are_read_and_said_where_they_may_be_fractions(tmp_path, rows, suspect):
    notes = models.read([scores(tmp_path, rows)]).notes
    assert [note.partition(" are at most 1, ")[0] for note in notes] == [f"benchmarks of {suspect}"] * bool(suspect), notes


def points(axes):
    return sum(len(collection.get_offsets()) for collection in axes.collections)


@pytest.fixture
def zoo(tmp_path):
    """Six models of two kinds, with two benchmarks, and filters at two cut-offs."""
    head = "model,category,shape_bias,bandwidth,robustness,concepts,metric/bandpass/LFC/0.1,metric/bandpass/LFC/0.5"
    rows = [f"m{i},{'xy'[i % 2]},{i / 10},{4 + i if i else 11295},{20 + i},{30 - i},{i / 10},{i / 6}" for i in range(6)]
    return table(tmp_path, "\n".join([head, *rows]), "zoo.csv")


def test_figures_show_all_models_but_endless_bands(zoo):
    given = models.read([zoo], ["shape_bias", "bandwidth"])
    planes = {bias: figures.planes(given, bias).axes for bias in given.biases}
    assert [points(axes) for axes in planes["shape_bias"]] == [6, 6] and [points(axes) for axes in planes["bandwidth"]] == [5, 5]
    of_some = figures.planes(given, "shape_bias", ["x"]).axes[0].collections
    grey = [collection.get_offsets() for collection in of_some if str(collection.get_facecolor()[0][0])[:3] == figures.OVERLAID]
    assert len(grey) == 1 and len(grey[0]) == 3  # those of the other kind
    assert [points(axes) for axes in figures.pairs(given).axes] == [6] and points(figures.ranges(given).axes[0]) == 12
    (low,) = figures.curves(given).axes
    assert len(low.lines) == 6 and low.lines[5].get_ydata().tolist() == [0.5, pytest.approx(5 / 6)]


def test_categories_may_be_laid_over_the_others(zoo, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "save", save_as_png)
    code, text = command(capsys, zoo, "--overlay", "x", "--out", tmp_path / "out")
    assert code == 0, text
    assert {"shape_bias_of_some.png", "pairs.png", "curves.png"} <= {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    code, text = command(capsys, zoo, "--overlay", "z")
    assert code == 2 and "--overlay z: there is no such category" in text
