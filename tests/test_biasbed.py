"""The script that runs a whole protocol: which runs it makes, with which settings, and what it leaves out."""

import importlib.util
import pathlib
import re

import pytest
from test_config import parse

from jaxbed import config

ROOT = pathlib.Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("biasbed", ROOT / "scripts" / "biasbed.py")
biasbed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(biasbed)


@pytest.fixture
def ran(monkeypatch):
    """The arguments of the Python processes that the script starts; none is."""
    calls = []

    def side_by_side(commands, jobs, cwd):
        calls.extend(commands.values())
        yield from ((name, 0, 0.0) for name in commands)

    monkeypatch.setattr(biasbed.launch, "side_by_side", side_by_side)
    return calls


@pytest.fixture
def parsed(monkeypatch):
    """A call's arguments -> (name of its workdir, configuration)."""

    def of(words: list[str]) -> tuple[str, config.Train]:
        *others, workdir = words
        assert words[:2] == ["-m", "jaxbed.main"] and workdir.startswith("--workdir=")
        cfg = parse(monkeypatch, *others[2:])
        config.check(cfg)
        return pathlib.Path(workdir).name, cfg

    return of


def test_all_methods_run_on_shapes_but_those_of_other_images(ran, parsed, tmp_path, capsys):
    assert biasbed.main(["--out", str(tmp_path), "--seeds", "4", "--config.epochs=3"]) == 0
    *runs, stats = ran
    assert runs.pop([words[1] for words in runs].index("train"))[0] == "data_prep/style_network.py"
    found = dict(map(parsed, runs))
    assert list(found) == [name for name in biasbed.METHODS if not name.startswith("deepaugment")]
    assert all((cfg.seeds, cfg.epochs) == (4, 3) for cfg in found.values()) and len({cfg.name for cfg in found.values()}) == len(found)
    assert found["infodrop_finetune"].method.finetune_epochs > 0
    assert found["debiased"].method.style.weights == str(tmp_path / "style.safetensors")
    assert stats[:3] == ["-m", "jaxbed.cli", "stats"] and stats[3 : 3 + len(found)] == [str(tmp_path / name) for name in found]
    assert "not run: deepaugment_cae, which needs ImageNet, --cae" in capsys.readouterr().out


@pytest.mark.parametrize(("files", "trains"), [([], True), ([""], False), (["", ".state.npz"], True)], ids=["none", "whole", "unfinished"])
def test_a_style_network_is_trained_until_it_is_complete(ran, tmp_path, files, trains):
    for ending in files:
        (tmp_path / f"style.safetensors{ending}").touch()
    assert biasbed.main(["--out", str(tmp_path), "--methods", "debiased"]) == 0
    assert (ran[0][0] == "data_prep/style_network.py") == trains


def test_on_imagenet_each_method_gets_its_images(ran, parsed, tmp_path, capsys):
    given = {"--stylized": "SIN", "--cae": "CAE", "--edsr": "EDSR", "--style": "style.safetensors"}
    words = ["imagenet_biasbed", "--out", str(tmp_path), *(word for pair in given.items() for word in pair), "--config.data.train=IN"]
    assert biasbed.main(words) == 0
    found = dict(map(parsed, ran[:-1]))
    assert tuple(found) == biasbed.METHODS and "not run" not in capsys.readouterr().out
    assert {cfg.data.decision for cfg in found.values()} == {"sixteen_mean_logit"}
    assert {name: (cfg.data.train, cfg.data.more) for name, cfg in found.items() if (cfg.data.train, cfg.data.more) != ("IN", ())} == {
        "stylized_erm": ("SIN", ()),
        "deepaugment_cae": ("IN", ("CAE",)),
        "deepaugment_edsr": ("IN", ("EDSR",)),
        "deepaugment_cae_edsr": ("IN", ("CAE", "EDSR")),
    }
    assert found["debiased"].method.style.weights == "style.safetensors"


def test_without_their_files_methods_are_left_out_and_named(ran, parsed, tmp_path, capsys):
    assert biasbed.main(["imagenet", "--out", str(tmp_path), "--edsr", "EDSR", "--methods", "erm,debiased,deepaugment_cae_edsr,lff"]) == 0
    assert [parsed(words)[0] for words in ran[:-1]] == ["erm", "lff"]
    said = capsys.readouterr().out
    assert "not run: debiased, which needs --style" in said and "not run: deepaugment_cae_edsr, which needs --cae\n" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "erm,nothing"], "--methods nothing: choose from erm, "),
        (["--epochs=3"], "--epochs=3 is unknown; settings of all runs are given as --config.NAME=VALUE"),
    ],
)
def test_wrong_calls_are_refused_before_anything_runs(ran, capsys, words, message):
    with pytest.raises(SystemExit):
        biasbed.main(words)
    assert re.search(message, capsys.readouterr().err) and not ran


def test_a_run_that_fails_ends_the_protocol_with_its_code(monkeypatch, tmp_path):
    monkeypatch.setattr(biasbed.launch, "side_by_side", lambda commands, jobs, cwd: iter([("", 130, 0.0)]))
    with pytest.raises(SystemExit) as ended:
        biasbed.main(["--out", str(tmp_path), "--methods", "erm,padain"])
    assert ended.value.code == 130


@pytest.mark.slow
def test_a_small_protocol_from_start_to_report(tmp_path):
    small = [f"--config.data.{name}_images=64" for name in ("train", "val", "test")]
    words = ["--out", str(tmp_path), "--methods", "erm,infodrop,infodrop_finetune", "--seeds", "2", "--config.epochs=1", *small]
    for _ in range(2):  # the second time nothing is left to train
        assert biasbed.main(words) == 0
    assert (tmp_path / "stats" / "report.html").is_file() and (tmp_path / "stats" / "confusions.csv").is_file()
