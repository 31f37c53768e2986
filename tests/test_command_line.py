"""The command line of a run: what it says where it is not understood. What it does where it is: tests/test_config.py."""

import itertools
import random
import sys

import pytest
from commands import ROOT

from jaxbed import command_line, config, values
from jaxbed.training import members

AUGMENTED = ("flip", "erase", "brightness", "contrast", "saturation", "hue", "centre_frac")
ERM = f"--config={ROOT}/configs/erm.py"


def said(*words: object) -> str:
    with pytest.raises(ValueError) as error:
        command_line.parse(list(map(str, words)))
    return str(error.value)


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """What a configuration file imports is forgotten again."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), r"--config=METHOD is missing, for example"),
        (("--config=",), r"--config=METHOD is missing, for example"),
        (("--config",), r"--config lacks its value: write --config=VALUE"),
        ((ERM, "--workdir= "), "--workdir= is empty"),
        ((ERM, "--confg.seeds=3"), "--confg.seeds=3 is unknown: did you mean --config"),
        ((ERM, "seeds=3"), "seeds=3 is unknown: a run is given --config=METHOD, --config.NAME=VALUE and --workdir=DIR"),
        ((ERM, "--workdirs=x"), "--workdirs=x is unknown: did you mean --workdir"),
        ((ERM, "--config..x=1"), "is unknown"),
        ((ERM, *(f"--config.data.augment.{name}=0.5" for name in AUGMENTED)), "so many fields make no name for a workdir: give --workdir"),
        ((f"--config={ROOT}/configs/emr.py", "--config.seeds=3"), r"there is no file .*emr\.py; did you mean .*erm\.py\?"),
        (
            (f"--config={ROOT}/scores.csv",),
            "a Python file, or the name of one that jaxbed has, for example --config=erm",
        ),
        ((f"--config={ROOT}/configs",), "a configuration is a Python file"),
        (("--config=emr:shapes",), "--config=emr:shapes: jaxbed has no configuration emr; did you mean erm"),
        (("--config=nothing",), "jaxbed has no configuration nothing; there are augmix, .* sagnet"),
        ((f"{ERM}:shaeps",), r"erm\.py:shaeps: no setting for data set 'shaeps': .* one of shapes, colored_mnist"),
    ],
)
def test_a_command_line_that_cannot_be_is_told_with_its_cure(words, message):
    with pytest.raises(ValueError, match=message):
        command_line.parse(list(words))


@pytest.mark.parametrize(
    ("content", "data", "message"),
    [
        ("", "", r"has no function get_config\(\), which returns"),
        ("get_config = 3\n", "", "has no function get_config"),
        ("def get_config():\n    return {'seeds': 3}\n", "", r"get_config\(\) returns a dict, and must return a jaxbed\.config\.Train"),
        ("def get_config():\n    pass\n", "", "returns a NoneType"),
        ("def get_config():\n    pass\n", ":shapes", r"get_config\(\) takes no data set: write --config=.*given\.py$"),
        ("def get_config(data):\n    pass\n", "", r"needs a data set: write --config=.*given\.py:DATA"),
        ("def get_config(:\n", "", r"given\.py, line 1, is not Python \(invalid syntax\)"),
        ("\nimport nothing_of_that_name\n", "", r"given\.py, line 2: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def get_config():\n    x = 1\n    return x / 0\n", "", r"given\.py, line 3: ZeroDivisionError: division by zero"),
        ("\0", "", r"given\.py, line 1, is not Python \(.*null bytes"),
        ("raise ValueError('not on this machine')\n", "", r"given\.py: not on this machine"),
    ],
)
def test_a_configuration_file_that_fails_is_named_with_its_line(tmp_path, content, data, message):
    (tmp_path / "given.py").write_text(content)
    with pytest.raises(ValueError, match=message):
        command_line.parse([f"--config={tmp_path}/given.py{data}"])


def test_classes_of_a_file_are_found_again_by_its_name_unless_another_module_has_it(tmp_path):
    for name in ("nowhere_else", "random"):
        (tmp_path / f"{name}.py").write_text("raise ValueError(__name__)\n")
    assert said(f"--config={tmp_path}/nowhere_else.py").endswith(": nowhere_else")
    assert said(f"--config={tmp_path}/random.py").endswith(": random_config") and sys.modules["random"] is random


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep=0.5", "grid '0.5': write FIELD=VALUE,VALUE"),
        ("grid=(0.5,)", "grid '0.5': write FIELD=VALUE,VALUE"),
        ("data.augment.std=x", "data.augment.std must be several values in brackets, each a number, above 0, as \"(0.25,)\""),
        ("optim.rule.x=1", "optim.rule is a single value, 'sgd', and has no field 'x'"),
        ("optim.rule=", "optim.rule must be one of sgd, adam, as 'sgd'"),
        ("seeds=", "seeds must be a whole number, 1 to 1048576, as 3"),
        ("seeds=1e3", "seeds must be a whole number"),
        ("seeds=" + "9" * 400, "seeds = 999"),
        ("seeds=" + "9" * 5000, "seeds must be a whole number"),
        ("optim.lr=0,1", "optim.lr must be a number, 0 or more, as 0.1"),
        ("optim.lr=True", "optim.lr must be a number"),
        ("optim.lr=1e999", "optim.lr = inf: must be a number, 0 or more"),
        ("optim.lr=nan", "optim.lr = nan: must be"),
        ("optim.nesterov=", "optim.nesterov must be true or false, as false"),
        ("optim.milestones_epochs=(", "must be several values in brackets, each a number, 0 or more, as \"(30, 60, 90)\""),
        ("optim.milestones_epochs=" + "(" * 300, "must be several values in brackets"),
        ("optim.milestones_epochs={1: 2}", "must be several values in brackets"),
        ("data.augment.ratio=(1,2,3)", "must be 2 values, each a number, above 0"),
        ("eval.sets=('val'", "eval.sets must be several values in brackets, each text, as \"('one', 'two')\""),
        ("net.dropout=-3", "net.dropout = -3.0: must be a number, 0 to below 1"),
        ("data.train_images=4294967296", "data.train_images = 4294967296: must be a whole number, 16 to 2147483647"),
        ("name=  ", "name = '' is empty; give it a name"),
        ("name=" + "x" * 3000, "has 3,000 characters, at most 200"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_told_with_what_is_allowed(override, message):
    with pytest.raises(ValueError) as error:
        cfg = command_line.parse([ERM, f"--config.{override}", "--workdir=x"]).cfg
        config.check(cfg)
        members.combine(cfg)
    assert message in str(error.value)


def test_help_lists_every_field_with_what_it_holds_and_what_is_allowed(capsys):
    assert command_line.parse(["--help"]) is None
    assert capsys.readouterr().out.startswith("usage: python -m jaxbed.main --config=METHOD")
    assert command_line.parse([ERM, "--config.optim.lr=0.5", "-h"]) is None
    lines = capsys.readouterr().out.splitlines()
    cfg = command_line.load(f"{ROOT}/configs/erm.py")
    for field, _, hint, _ in values.fields(cfg):
        (line,) = [line for line in lines if line.split()[:1] == [f"--config.{field}"]]
        assert line.endswith(values.allowed(hint))
    assert any(line.split()[:2] == ["--config.optim.lr", "0.5"] for line in lines)
    behind, above = "    at the batch size of the run: never rescaled silently", "    Answers also hold the logits of every image"
    below = {line.split()[0]: after for line, after in itertools.pairwise(lines) if line.startswith("--config")}
    assert below["--config.optim.lr"] == behind and below["--config.eval.keep_scores"].startswith(above)


def test_a_configuration_of_jaxbed_is_named_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    named, by_path = (command_line.parse([f"--config={config}:colored_mnist"]) for config in ("sagnet", f"{ROOT}/configs/sagnet.py"))
    assert named == by_path and named.workdir.name == "sagnet-colored_mnist"
    (tmp_path / "mine.py").write_text(
        "from jaxbed.configs import erm\n\ndef get_config(dataset='shapes'):\n    return erm.get_config(dataset)\n"
    )
    assert command_line.parse(["--config=mine.py"]).cfg == command_line.parse(["--config=erm"]).cfg


def test_the_former_name_of_the_grid_is_read_with_a_notice(capsys, tmp_path):
    former, present = (command_line.parse([ERM, f"--config.{name}=data.seed=0,1"]) for name in ("sweep", "grid"))
    assert former.cfg == present.cfg and former.cfg.grid == ("data.seed=0,1",)
    assert capsys.readouterr().err == "jaxbed: --config.sweep is now --config.grid\n"
    assert former.workdir.name == "erm-shapes,sweep=(_data.seed=0,1_,)" and present.workdir.name == "erm-shapes,grid=(_data.seed=0,1_,)"
    config.save(former.cfg, tmp_path / "config.json")
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"grid"', '"sweep"'))
    assert '"grid"' in text and config.to_dict(config.load(tmp_path)) == config.to_dict(former.cfg)
    config.claim(former.cfg, tmp_path)
