"""Extension points of the statistics: one row in a table is all that a rule or a statistic takes."""

import json

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats import main, new_datasets
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.figures import drawing
from jaxbed.stats.selection import criteria, rules

HEADER = ["algorithm", "run", "dataset", "epoch", "role", "accuracy"]


@pytest.fixture(autouse=True)
def without_figures(monkeypatch):
    """They take longer than the rest of a report, and test_stats_figures looks at them."""
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])


def write(path, algorithms: str = "ab", datasets: str = "ABCDEF") -> str:
    rng = np.random.default_rng(0)
    rows = [
        (algorithm, run, name, epoch, "val" if name == "V" else "test", round(0.5 + 0.1 * row + 0.01 * epoch + 0.01 * rng.random(), 4))
        for row, algorithm in enumerate(algorithms) for run in (1, 2) for name in (*datasets, "V") for epoch in (1, 2, 3)
    ]  # fmt: skip
    pd.DataFrame(rows, columns=HEADER).to_csv(path, index=False)
    return str(path)


def test_a_selection_rule_is_one_row(tmp_path, monkeypatch, capsys):
    def earliest(frame: pd.DataFrame, least: int) -> pd.DataFrame:
        scored = criteria.validation(frame, "accuracy", "earliest")
        return scored.assign(score=-(scored["epoch"] - least).abs(), second=0.0)[["algorithm", "run", "epoch", "score", "second"]]

    path = write(tmp_path / "scores.csv")
    assert main.main([path, "--select", "earliest:2"]) == 2
    assert "unknown selection rule 'earliest:2'; allowed are best_val, last, " in capsys.readouterr().err
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, rules.Rule("earliest", earliest, example=2, cherry_picked=True)))
    assert main.main([path, "--select", "earliest:2", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "earliest:2, 4 choices, 0 of them tied (CHERRY-PICKED" in text and text.startswith("No test: epochs were cherry-picked")
    chosen = json.loads((tmp_path / "out" / "stats.json").read_text())["selection"]["runs"]
    assert [row["epoch"] for row in chosen] == [2, 2, 2, 2]
    assert main.main([path, "--select", "earliest"]) == 2 and "oracle_per_dataset, earliest:2" in capsys.readouterr().err


def test_a_test_and_an_effect_size_of_pairs_are_one_row_each(tmp_path, monkeypatch):
    def share(pairs: pairwise.Comparisons) -> np.ndarray:
        return (pairs.differences > 0).mean(axis=1)

    test = pairwise.Test("halves", "test of halves", lambda pairs: np.full(len(pairs.i), 0.25), exact=True)
    monkeypatch.setattr(pairwise, "TESTS", (*pairwise.TESTS, test))
    monkeypatch.setattr(pairwise, "EFFECTS", (*pairwise.EFFECTS, pairwise.Effect("won", "share of data sets won", share)))
    assert main.main([write(tmp_path / "scores.csv", "abc"), "--permutations", "200", "--out", str(tmp_path / "out")]) == 0
    pairs, tests, columns = (pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("pairs", "tests", "columns"))
    assert (pairs["p_halves"] == 0.25).all() and (pairs["p_halves_holm"] == 0.75).all() and (pairs["won"] == 0).all()
    rows = tests[tests["test"] == "test of halves"]
    assert rows["adjustment"].value_counts().to_dict() == {"none": 3, "Holm": 3} and set(rows["method"]) == {"exact"}
    meanings = dict(zip(columns["column"], columns["meaning"], strict=True))
    assert meanings["p_halves_holm"] == "p, test of halves, Holm" and meanings["won"] == "share of data sets won"
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "p, test of halves, Holm" in page and "share of data sets won" in page and "test of halves, not adjusted" not in page


def test_an_overall_test_is_one_row(tmp_path, monkeypatch):
    def largest(matrix: pd.DataFrame) -> dict:
        return {"test": "largest range", "statistic": float(np.ptp(matrix.to_numpy())), "degrees_of_freedom": [7], "p": 0.125}

    row = new_datasets.Overall("largest", "Largest range", largest, "statistic", "degrees_of_freedom")
    monkeypatch.setattr(new_datasets, "OVERALL", (*new_datasets.OVERALL, row))
    assert main.main([write(tmp_path / "scores.csv", "abc"), "--permutations", "200", "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "stats.json").read_text())["largest"]["p"] == 0.125
    tests = pd.read_csv(tmp_path / "out" / "tests.csv")
    assert tests.loc[tests["test"] == "largest range", ["scope", "p", "n"]].to_numpy().tolist() == [["overall", 0.125, 6]]
    assert "Largest range" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
