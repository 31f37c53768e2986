"""The script that reproduces the Colored MNIST section: what it runs, and what it makes of the answers."""

import importlib.util
import pathlib

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_config import parse

from jaxbed import config

ROOT = pathlib.Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("reproduce_debias_cmnist", ROOT / "scripts" / "reproduce_debias_cmnist.py")
reproduce = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reproduce)


def scores(methods=("Vanilla", "LfF", "HEX"), runs=5, seed=0):
    """As `read` gives them."""
    rng, rows = np.random.default_rng(seed), []
    for ratio in reproduce.RATIOS:
        for place, method in enumerate(methods):
            for criterion in reproduce.CRITERIA:
                for metric in reproduce.METRICS:
                    values = 50 + 10 * place + rng.normal(size=runs)
                    rows += [(criterion, metric, run, value, method, float(ratio)) for run, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["criterion", "metric", "run", "value", "method", "ratio_pct"])


def test_all_nine_methods_run_at_all_ratios_in_one_array_each(monkeypatch, tmp_path):
    for method, name in reproduce.METHODS.items():
        words = reproduce.command(method, tmp_path, ["--config.data.dir=mnist"])
        assert words[:2] == ["-m", "jaxbed.main"] and words[-1] == f"--workdir={tmp_path / method}"
        cfg = parse(monkeypatch, *words[2:-1])
        config.check(cfg)
        assert cfg.grid == ("data.conflicting_percent=0.5,1,2,5,20",) and (cfg.epochs, cfg.seeds, cfg.batch_size) == (200, 5, 256)
        assert cfg.data.dir == "mnist" and cfg.name == {"Vanilla": "ERM"}.get(name, name)


def test_what_is_done_is_not_run_again_and_checkpoints_go_only_if_asked(monkeypatch, tmp_path):
    def side_by_side(commands, jobs, cwd):
        for name in commands:
            (tmp_path / name / "checkpoints").mkdir(parents=True, exist_ok=True)
            yield name, 3 if name == "hex" else 0, 1.0

    monkeypatch.setattr(reproduce.launch, "side_by_side", side_by_side)
    assert reproduce.train(["erm"], tmp_path, 1, [], keep=True) == {"erm": 1.0} and (tmp_path / "erm" / "checkpoints").is_dir()
    assert reproduce.train(["erm", "lff"], tmp_path, 1, [], keep=False) == {"lff": 1.0}
    assert not (tmp_path / "lff" / "checkpoints").exists()
    with pytest.raises(SystemExit) as ended:
        reproduce.train(["erm", "hex"], tmp_path, 1, [], keep=True)
    assert ended.value.code == 3 and not (tmp_path / "hex" / "done").exists()


def test_a_mean_agrees_within_two_pooled_standard_deviations():
    found = scores()
    rows = found[(found["criterion"] == "ac_score") & (found["metric"] == "accuracy") & (found["ratio_pct"] == 1)]
    own = rows[rows["method"] == "LfF"]["value"]
    mean, std = own.mean(), own.std(ddof=1)
    for factor, agrees in ((1.9, True), (2.1, False)):
        off = mean + factor * ((std**2 + 2.0**2) / 2) ** 0.5
        ours = {"dataset": "Colored MNIST", "ratio_pct": 1.0, "method": "LFF", "mean": off, "std": 2.0}
        paper = pd.DataFrame([ours, {**ours, "dataset": "BFFHQ", "mean": mean}])
        table = reproduce.accuracies(found, "accuracy", paper)
        row = table[(table["method"] == "LfF") & (table["ratio_pct"] == 1)].iloc[0]
        assert (row["mean"], row["std"], row["count"]) == pytest.approx((mean, std, 5)) and row["stds_apart"] == pytest.approx(factor)
        assert bool(row["agrees"]) is agrees and table["paper_mean"].notna().sum() == 1
        lines = list(reproduce.lines(table, ["Vanilla", "LfF"]))
        assert f"{mean:.1f} ± {std:.1f} ({off:.1f} ± 2.0){' ' if agrees else '!'}" in lines[2] and "(" not in lines[1]


def test_criteria_are_compared_over_all_methods_and_trials():
    found = scores()
    paper = pd.DataFrame(
        {
            "dataset": "Colored MNIST",
            "ratio_pct": 5.0,
            "metric": ["unbiased_accuracy"],
            "criterion": ["average_accuracy"],
            "value": [81.27],
        }
    )
    table = reproduce.criteria(found, paper)
    row = table[(table["ratio_pct"] == 5) & (table["metric"] == "unbiased_accuracy") & (table["criterion"] == "average_accuracy")].iloc[0]
    chosen = found[(found["ratio_pct"] == 5) & (found["metric"] == "accuracy") & (found["criterion"] == "avg_acc")]
    assert row["value"] == pytest.approx(chosen["value"].mean()) and row["paper"] == 81.27
    assert len(table) == 20 and table["paper"].notna().sum() == 1


def test_kruskal_wallis_is_scipys():
    found = scores()
    table = reproduce.kruskal_wallis(found, None)
    for _, row in table.iterrows():
        rows = found[(found["criterion"] == "ac_score") & (found["metric"] == "accuracy") & (found["ratio_pct"] == row["ratio_pct"])]
        expected = stats.kruskal(*(group["value"] for _, group in rows.groupby("method")))
        assert (row["statistic"], row["p_chi2"]) == pytest.approx((expected.statistic, expected.pvalue))
    assert len(table) == 5


@pytest.mark.parametrize("words", [["--methods", "nothing"], ["--epochs=3"]])
def test_unknown_words_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        reproduce.main(words)
    assert words[-1] in capsys.readouterr().err
