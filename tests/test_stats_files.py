"""The files beside the report: all tests as CSV with a key, LaTeX tables that are complete, the diagram as TikZ."""

import itertools
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from jaxbed.stats import main, tables
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.figures import style

NAMES = ["ERM", "b_1", "c%", "d&e", "f"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """What one call writes: five algorithms, eight data sets, four runs."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    rows = [
        (name, run, f"d{column}", round(50 + 2 * place + rng.normal(), 3))
        for place, name in enumerate(NAMES) for column in range(8) for run in range(1, 5)
    ]  # fmt: skip
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"]).to_csv(folder / "scores.csv", index=False)
    call = [str(folder / "scores.csv"), "--baseline", "ERM", "--permutations", "1000", "--out", str(folder / "out")]
    save = style.save
    with pytest.MonkeyPatch.context() as patch:  # of the figures, one is looked at here
        patch.setattr(style, "save", lambda figure, where, name: save(figure, where, name) if name == "critical_difference" else ([], ""))
        assert main.main(call) == 0
    return folder / "out"


def test_every_test_is_a_row(out):
    found, pairs = pd.read_csv(out / "tests.csv"), pd.read_csv(out / "pairs.csv")
    assert found["p"].between(0, 1).all() and found["test"].notna().all() and found["adjustment"].notna().all()
    assert set(found["question"]) == {"new-datasets", "these-datasets"}
    wilcoxon = found.query("test == 'Wilcoxon' and scope == 'pairs' and adjustment == 'Holm'").set_index(["algorithm_i", "algorithm_j"])
    for row in pairs.itertuples():
        assert wilcoxon.loc[(row.algorithm_i, row.algorithm_j), "p"] == row.p_wilcoxon_holm
    assert (wilcoxon["n"] == 8).all() and (wilcoxon["method"] == "exact").all()
    drawn = found[found["method"] == "monte carlo"]
    assert len(drawn) and (drawn["draws"] == 1000).all() and drawn["p_least"].unique() == pytest.approx([1 / 1001])
    claimed = found[found["claimed"]]
    assert set(claimed["scope"]) == {"overall", "baseline"} and set(claimed["question"]) == {"new-datasets"} and (claimed["p"] < 0.05).all()
    per_dataset = found.query("test == 'Kruskal-Wallis' and adjustment == 'none'")
    assert per_dataset["dataset"].tolist() == [f"d{column}" for column in range(8)] and (per_dataset["n"] == 20).all()


def test_every_column_of_the_csv_files_has_a_meaning(out):
    key = pd.read_csv(out / "columns.csv")
    for name in ("scores.csv", "pairs.csv", "tests.csv"):
        assert key.loc[key["file"] == name, "column"].tolist() == list(pd.read_csv(out / name))
    pairs = key[key["file"] == "pairs.csv"].set_index("column")["meaning"]
    assert pairs["p_z_holm"] == "p, z test of mean ranks, Holm" and not pairs.str.contains(r"\b[ij]\b").any() and pairs.is_unique


def rows_of(text: str) -> list[list[str]]:
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", line.rsplit(r" \\", 1)[0])] for line in body.strip().splitlines()]


def test_mean_ranks_and_effects_are_complete_tables(out):
    for name in ("mean_ranks", "effects"):
        text = (out / "tables" / f"{name}.tex").read_text()
        assert text.startswith("% ") and text.endswith("\\end{tabular}\n") and text.count(r"\begin{tabular}") == 1
        columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1])
        assert {len(row) for row in rows_of(text)} == {columns}
    ranks = rows_of((out / "tables" / "mean_ranks.tex").read_text())
    assert [row[0] for row in ranks] == ["f", r"d\&e", r"c\%", r"b\_1", "ERM"] and ranks[0][1].startswith(r"\textbf{1.")
    p = pd.read_csv(out / "pairs.csv").set_index(["algorithm_i", "algorithm_j"])["p_permutation"]
    letters = {tables.escape(name): next(row[-1] for row in ranks if row[0] == tables.escape(name)) for name in NAMES}
    for i, j in itertools.combinations(NAMES, 2):
        assert bool(set(letters[tables.escape(i)]) & set(letters[tables.escape(j)])) == (p[i, j] >= 0.05)
    effects = rows_of((out / "tables" / "effects.tex").read_text())
    assert [row[0] for row in effects] == [f"{tables.escape(name)} -- ERM" for name in NAMES[1:]]
    assert [row[-1].startswith(r"\textbf{") for row in effects] == [
        row.p_permutation < 0.05 for row in pd.read_csv(out / "tests.csv").query("scope == 'baseline' and adjustment == 'single step'")
        .rename(columns={"p": "p_permutation"}).itertuples()
    ]  # fmt: skip


def test_the_diagram_in_tikz_names_all_ranks(out):
    text = (out / "figures" / "critical_difference.tex").read_text()
    ranks = rows_of((out / "tables" / "mean_ranks.tex").read_text())
    for name, rank, *_ in ranks:
        value = re.sub(r"\\textbf\{(.*)\}", r"\1", rank)
        assert f"{name}~{value}" in text or f"{value}~{name}" in text
    assert text.count(r"\begin{tikzpicture}") == text.count(r"\end{tikzpicture}") == 1 and "critical_difference.svg" in {
        path.name for path in (out / "figures").iterdir()
    }


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on this machine")
def test_latex_compiles(out, tmp_path):
    if subprocess.run(["kpsewhich", "tikz.sty"], capture_output=True).returncode:
        pytest.skip("no TikZ on this machine")
    names = [*(f"tables/{name}" for name in ("scores", "pairs", "mean_ranks", "effects")), "figures/critical_difference"]
    inputs = r"\par ".join(rf"\input{{{out / name}.tex}}" for name in names)
    packages = r"\usepackage{booktabs}\usepackage{tikz}"
    (tmp_path / "all.tex").write_text(rf"\documentclass{{article}}{packages}\begin{{document}}\tiny {inputs}\end{{document}}")
    done = subprocess.run(["pdflatex", "-halt-on-error", "all.tex"], cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_interval_of_a_shift_holds_what_wilcoxon_does_not_reject():
    rng = np.random.default_rng(0)
    for m in (6, 7, 10):
        d = rng.normal(1, 1, m)
        low, high = pairwise.shift_interval(d)
        for end, step in ((low, -1), (high, 1)):
            assert stats.wilcoxon(d - end - step * 1e-6, method="exact").pvalue <= 0.05
            assert stats.wilcoxon(d - end + step * 1e-6, method="exact").pvalue > 0.05
        assert low <= pairwise.hodges_lehmann(d) <= high
    assert np.isnan(pairwise.shift_interval(rng.normal(size=5))).all()
