"""The script that measures a zoo: which runs it makes of a table of networks, and which numbers it joins."""

import importlib.util
import pathlib
import re

import pandas as pd
import pytest

from jaxbed.evaluation import metrics

ROOT = pathlib.Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("bias_zoo", ROOT / "scripts" / "bias_zoo.py")
bias_zoo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bias_zoo)

HEAD = "model,category,file,net,mean,std"
ZOO = f"{HEAD}\nbaseline,baseline,a.pth,resnet50,,\nDINO (ViT),contrastive,b.pth+c.pth,vit_b16,0.5,0.1 0.2 0.3\n"


def table(folder, text=ZOO):
    (folder / "zoo.csv").write_text(text)
    return folder / "zoo.csv"


def scored(dataset, metric, value):
    return {**dict.fromkeys(metrics.COLUMNS, 0), "dataset": dataset, "metric": metric, "value": value}


@pytest.fixture
def ran(monkeypatch):
    """The arguments of the Python processes that the script starts; none is. Evaluation and measures have their answers already."""
    calls = []

    def side_by_side(commands, jobs, cwd):
        for words in commands.values():
            calls.append(words)
            if words[2] == "measure":
                workdir = pathlib.Path(words[3])
                workdir.mkdir(parents=True)
                rows = [("cue_conflict", "shape_bias", 0.25), ("edge", "shape_bias", 0.9), ("imagenet", "low_freq", 0.6)]
                rows += [("imagenet", "pgd_linf_0.5", 0.18), ("imagenet_c", "imagenet_c", 0.3), ("imagenet_c", "mce", 76.4)]
                pd.DataFrame([scored(*row) for row in rows]).to_csv(workdir / "measures.csv", index=False)
        yield from ((name, 0, 0.0) for name in commands)

    evaluated = [scored("imagenet", "accuracy", 0.7), scored("imagenet_v2", "accuracy", 0.6), scored("imagenet", "real_accuracy", 0.8)]
    evaluated += [scored("imagenet_a", "accuracy", 0.1), scored("cue_conflict", "shape_bias", 0.25)]
    monkeypatch.setattr(bias_zoo.metrics, "scores", lambda workdir: pd.DataFrame(evaluated))
    monkeypatch.setattr(bias_zoo.launch, "side_by_side", side_by_side)
    return calls


def test_each_network_is_evaluated_and_measured(ran, tmp_path, capsys):
    words = ["--out", str(tmp_path / "out"), "--imagenet-c", "C", "--measures", "spectral,pgd", "--config.data.val=VAL"]
    assert bias_zoo.main([str(table(tmp_path)), *words]) == 0
    first, measured, second, _ = ran
    assert first[:3] == ["-m", "jaxbed.main", f"--config={ROOT / 'configs' / 'resnet50'}.py"] and "--config.data.val=VAL" in first
    assert f"--config.init_from={tmp_path / 'a.pth'}" in first and not any("augment" in word for word in first)
    assert measured == [
        "-m",
        "jaxbed.cli",
        "measure",
        str(tmp_path / "out" / "baseline"),
        "--measures",
        "spectral,pgd",
        "--imagenet-c",
        "C",
    ]
    assert f"--config.init_from={tmp_path / 'b.pth'}+{tmp_path / 'c.pth'}" in second and f"--workdir={tmp_path}/out/DINO_ViT_" in second
    assert {"--config.data.augment.mean=0.5,0.5,0.5", "--config.data.augment.std=0.1,0.2,0.3"} <= set(second)
    biases, benchmarks = (pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("biases", "benchmarks"))
    assert biases["model"].tolist() == ["baseline", "DINO (ViT)"] and biases["category"].tolist() == ["baseline", "contrastive"]
    assert (biases["shape_bias"] == 0.25).all() and (biases["low_freq"] == 0.6).all() and "high_freq" not in biases
    of_first = benchmarks.iloc[0]
    assert of_first[["imagenet", "adversarial", "mce", "imagenet_c"]].tolist() == pytest.approx([70, 18, 76.4, 30])
    assert of_first["in_distribution"] == pytest.approx(70) and "robustness" not in benchmarks  # C-bar is missing
    assert "biases" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ZOO.replace("resnet50", "resnet"), "line 2: net 'resnet' is no file of configs/"),
        (ZOO.replace("DINO (ViT)", "baseline"), "line 3: model 'baseline' is there already"),
        (ZOO.replace("DINO (ViT)", "DINO").replace("baseline,baseline", "DINO?,baseline").replace("DINO,", "DINO*,"), "folder 'DINO_'"),
        (ZOO.replace("a.pth", ""), "line 2: file is empty"),
        (ZOO.replace("0.1 0.2 0.3", "0.1 0.2"), "line 3: std '0.1 0.2' must be three numbers"),
        (ZOO.replace("category", "kind"), "lacks the column category"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        bias_zoo.read(table(tmp_path, text))
