"""The commands, as a user types them: what they print, write and refuse."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

import jax
import numpy as np
import pandas as pd
import pytest
import tiny
from commands import JAXBED, ROOT, TRAIN, assert_refused, command, in_process, options

from jaxbed import cli, command_line, config, main, parallel
from jaxbed.evaluation import evaluate, metrics
from jaxbed.models import resnet
from jaxbed.training import lock, log, members, train
from jaxbed.tuning import launch

SETS = ("val", "in_distribution", "silhouette", "edge", "sketch", "stylised", "cue_conflict")
ERM = ("--config=configs/erm.py", "--config.net.width=4", "--config.data.train_images=64", "--config.data.val_images=16")
ERM += ("--config.data.test_images=16", "--config.epochs=1", "--config.seeds=2", "--config.batch_size=16")
ERM += ("--config.mesh.seed=1", "--config.mesh.data=1", "--config.net.depth=10", "--config.eval.sets=('val', 'edge')")
# The console script does not have the current folder on its path, which -m has
SCRIPT = ("-P", "-c", "import sys; sys.argv[0] = 'jaxbed'; from jaxbed.cli import main; sys.exit(main())")

SHORT = ("--config.epochs=1", "--config.eval.sets=('val', 'edge')", "--config.eval.while_training=False")
EVAL = ("eval", "--allow-module", "own")
OWN = '''
import dataclasses

from jaxbed.methods import erm


@dataclasses.dataclass
class Config(erm.Config):
    """A user's own method, in a module beside the config."""
'''
CONFIG = """
import own

from jaxbed import config, parallel
from jaxbed.data import shapes
from jaxbed.models import mlp
from jaxbed.optim import Optim


def get_config():
    return config.Train(
        name="Own",
        method=own.Config(),
        net=mlp.Config((8,)),
        data=shapes.Config(train_images=64, val_images=16, test_images=16),
        optim=Optim(rule="adam", lr=1e-2),
        epochs=2,
        batch_size=16,
        seeds=2,
        mesh=parallel.Mesh(seed=1, data=1),
    )
"""
STOPPED = f"""
import os

from jaxbed.training import train
{CONFIG}

def feeds_from(*arguments, real=train.feeds_from):
    for step, feed in enumerate(real(*arguments)):
        if step == int(os.environ["SIGNAL_AT_STEP"]):
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        yield feed


train.feeds_from = feeds_from
"""


def with_own(home: pathlib.Path) -> dict[str, str]:
    """The environment in which `jaxbed eval` finds own.py."""
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{home}"}


def jaxbed(words: list[str]) -> int:
    """The command `jaxbed` with these words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["jaxbed", *words])
        return cli.main()


def evaluated(home: pathlib.Path, workdir: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
    """`jaxbed eval` in this process, where it finds own.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        return in_process(home, jaxbed, *EVAL, workdir, *words)


def until(condition, process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def bytes_below(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> pathlib.Path:
    """A user's folder with a config and a method of their own."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "config.py").write_text(CONFIG)
    (folder / "stopped.py").write_text(STOPPED)
    (folder / "own.py").write_text(OWN)
    return folder


@pytest.fixture(scope="module")
def trained(home) -> tuple[pathlib.Path, subprocess.CompletedProcess]:
    """(workdir, the finished command) of the whole protocol without --workdir."""
    done = command(home, *TRAIN, "--config=config.py", XLA_FLAGS=os.environ["XLA_FLAGS"])
    return home / "runs" / "config-shapes", done


@pytest.fixture(scope="module")
def corrected(home) -> tuple[pathlib.Path, subprocess.CompletedProcess, subprocess.CompletedProcess]:
    """(workdir, a refused `jaxbed train`, the same with settings that are possible)."""
    words = ("train", "--config=config.py", "--workdir=corrected")
    return home / "corrected", in_process(home, jaxbed, *words, "--config.batch_size=128"), in_process(home, jaxbed, *words)


@pytest.fixture(scope="module")
def jtt(tmp_path_factory) -> pathlib.Path:
    """The workdir of a run of two stages."""
    folder = tmp_path_factory.mktemp("jtt")
    assert main.run(tiny.mlp_config("jtt"), folder) == 0
    return folder


@pytest.fixture
def workdir(trained, tmp_path) -> pathlib.Path:
    """A copy of a finished run."""
    return shutil.copytree(trained[0], tmp_path / "run")


# The whole protocol


def test_one_command_trains_evaluates_and_prints_the_table(trained):
    workdir, done = trained
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    assert json.loads((workdir / "config.json").read_text())["name"] == "Own"
    kinds = [json.loads(line)["kind"] for line in (workdir / "log.jsonl").read_text().splitlines()]
    assert kinds.count("header") == 1 and kinds.count("epoch") == 2 and kinds.count("evaluation") == 2
    for epoch in (1, 2):
        assert (workdir / "checkpoints" / "epochs" / str(epoch)).is_dir() and (
            workdir / "checkpoints" / "epochs" / f"{epoch}.json"
        ).is_file()
        for name in SETS:
            with np.load(workdir / "responses" / name / f"{epoch}.npz") as stored:
                assert stored["response"].shape == (2, 16) and stored["response"].dtype == np.int16
                assert stored["seeds"].tolist() == [0, 1] and stored["alive"].tolist() == [True, True]
    for name in SETS:
        assert list(pd.read_csv(workdir / "responses" / name / "images.csv")) == ["name", "label", "cue"]
    assert not list(workdir.rglob("*.partial"))


def test_the_printed_table_is_that_of_the_stored_answers(trained):
    workdir, done = trained
    (header,) = [line for line in done.stdout.splitlines() if line.startswith("algorithm")]
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("Own") and "±" in line]
    assert header.split() == ["algorithm", *SETS[1:], "runs"]
    frame = metrics.scores(workdir).query("metric == 'accuracy'")
    best = frame[frame["role"] == "val"].sort_values("epoch").groupby("run")["value"].idxmax()
    chosen = frame.loc[best, ["run", "epoch"]].merge(frame, on=["run", "epoch"]).groupby("dataset")["value"].mean()
    means = [float(part.split()[-1]) for part in row.split("±")[:-1]]
    np.testing.assert_allclose(means, [100 * chosen[name] for name in SETS[1:]], atol=0.051)


def test_the_shipped_config_runs_from_the_repository(tmp_path, monkeypatch):
    monkeypatch.setitem(resnet.BLOCKS, 10, (0, 0, 0, 0))  # less to compile
    done = in_process(ROOT, main.main, *ERM, f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "algorithm" in done.stdout and "ERM" in done.stdout and "Traceback" not in done.stderr
    assert (tmp_path / "run" / "responses" / "edge" / "1.npz").is_file()


def test_the_same_command_again_does_nothing_new(home, trained):
    workdir, first = trained
    before = bytes_below(workdir / "checkpoints") | bytes_below(workdir / "responses")
    done = in_process(home, main.main, "--config=config.py")
    assert done.returncode == 0, done.stderr
    assert bytes_below(workdir / "checkpoints") | bytes_below(workdir / "responses") == before
    assert "resuming after step 8" in done.stdout and "epoch " not in done.stdout
    assert done.stdout[done.stdout.index("algorithm") :] == first.stdout[first.stdout.index("algorithm") :]


def test_jaxbed_train_is_the_same_command(trained, corrected):
    workdir, _, done = corrected
    assert done.returncode == 0, done.stderr
    for name in SETS:
        with np.load(workdir / "responses" / name / "2.npz") as one, np.load(trained[0] / "responses" / name / "2.npz") as other:
            assert (one["response"] == other["response"]).all()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_the_same_command_goes_on(home, tmp_path, monkeypatch, number):
    """SIGTERM stops a process; Ctrl-C, which the same code hears, a training in this one."""
    words = ("--config=stopped.py", f"--workdir={tmp_path / 'run'}", "--config.eval.sets=('val', 'edge')")
    if number == signal.SIGTERM:
        flags = os.environ["XLA_FLAGS"]
        stopped = command(home, *TRAIN, *words, SIGNAL=str(int(number)), SIGNAL_AT_STEP="6", XLA_FLAGS=flags)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(train, "feeds_from", train.feeds_from)  # stopped.py replaces it
            patch.setenv("SIGNAL", str(int(number)))
            patch.setenv("SIGNAL_AT_STEP", "6")
            stopped = in_process(home, main.main, *words)
    assert stopped.returncode == 128 + number, stopped.stderr
    assert f"stopped by signal {number}; run the same command again to resume" in stopped.stdout and "Traceback" not in stopped.stderr
    monkeypatch.setenv("SIGNAL_AT_STEP", "-1")
    monkeypatch.setattr(train, "feeds_from", train.feeds_from)
    done = in_process(home, main.main, *words)
    assert done.returncode == 0 and "resuming after step" in done.stdout, done.stderr
    assert sorted(int(path.stem) for path in (tmp_path / "run" / "responses" / "edge").glob("*.npz")) == [1, 2]


def test_a_config_finds_its_neighbours_from_any_folder(monkeypatch, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "common_to_theirs.py").write_text("VALUE = 3\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "theirs" / "config.py").write_text(
        "import common_to_theirs, theirs.common_to_theirs\n\n\ndef get_config(data):\n    raise ValueError(common_to_theirs.VALUE, data)\n"
    )
    with pytest.raises(ValueError, match=r"theirs/config.py:shapes: \(3, 'shapes'\)"):
        command_line.parse([f"--config={tmp_path}/theirs/config.py:shapes"])


# What is refused


REFUSED = {  # arguments after a working command -> words of the reason, exit code
    "other setting": (
        ("--config.optim.lr=0.5", "--workdir=runs/config-shapes"),
        ("holds a run with other settings", "optim.lr: 0.01 / 0.5"),
        2,
    ),
    "more epochs": (
        ("--config.epochs=4", "--workdir=runs/config-shapes"),
        ("epochs: 2 / 4", "--config.init_from=runs/config-shapes --workdir=ANOTHER"),
        2,
    ),
    "no epochs": (("--config.epochs=0",), ("epochs = 0", "at least 1"), 2),
    "batch over devices": (("--config.mesh.data=3",), ("batch_size = 16", "3 devices"), 2),
    "large batch": (("--config.batch_size=128",), ("batch_size = 128", "64 images"), 2),
    "wrong type": (("--config.seeds=ten",), ("config.seeds=ten", "a whole number"), 2),
    "unknown setting": (("--config.sedds=3",), ("--config.sedds=3", "no field 'sedds' among", "seeds"), 2),
    "workdir is a file": (("--workdir=own.py",), ("--workdir own.py: own.py is a file; name a directory",), 2),
    "workdir in a file": (("--workdir=own.py/run",), ("--workdir own.py/run: ", "own.py is a file; name a directory"), 2),
    "stray word": (("seeds=3",), ("seeds=3 is unknown",), 2),
}


@pytest.fixture(scope="module")
def refusals(home, trained) -> dict[str, subprocess.CompletedProcess]:
    """All refused commands: {name: finished command}. One of each kind is a process, whose exit code is the shell's."""
    calls = {name: (home, "--config=config.py", f"--workdir=refused/{name}", *words) for name, (words, _, _) in REFUSED.items()}
    calls["no config"] = (home,)
    calls["no such config"] = (home, "--config=nowhere.py")
    calls["no such data set"] = (ROOT, "--config=configs/erm.py:cifar")
    done = {name: in_process(folder, main.main, *words) for name, (folder, *words) in calls.items() if name != "stray word"}
    done["stray word"] = command(home, *TRAIN, *calls["stray word"][1:])
    done |= {name: in_process(home, jaxbed, *words) for name, words in CLI.items() if name != "unknown"}
    return {**done, "unknown": command(home, *JAXBED, *CLI["unknown"])}


CLI = {
    "nothing": (),
    "--help": ("--help",),
    "unknown": ("evaluate", "runs"),
    "eval nothing": ("eval",),
    "eval no workdir": ("eval", "."),
    "eval nowhere": ("eval", "nowhere"),
    "stats no workdir": ("stats", "."),
    "stats nowhere": ("stats", "nowhere.csv"),
    "sweep unknown field": ("sweep", "--config=config.py", "--config.speed=1", "--grid", "optim.lr=1,2"),
}


def test_a_refused_command_writes_nothing(home, refusals):
    assert not (home / "refused").exists()


def test_a_command_refused_beside_a_running_one_changes_nothing(home, tmp_path):
    """Before the first checkpoint, too: the other would go on under settings that it does not train with."""
    monkeyed = tiny.mlp_config()
    config.claim(monkeyed, tmp_path / "run")
    with lock.held(tmp_path / "run"):
        before = bytes_below(tmp_path)
        done = in_process(home, main.main, "--config=config.py", "--config.optim.lr=0.5", f"--workdir={tmp_path / 'run'}")
        assert_refused(done, "another process works in", "another --workdir")
        assert bytes_below(tmp_path) == before


def test_a_first_stage_has_its_folder_for_itself(tmp_path):
    folder = tmp_path / "run" / "stages" / "first_network"
    with lock.held(folder), pytest.raises(ValueError, match=r"another process works in .*first_network"):
        main.run(tiny.mlp_config("jtt"), tmp_path / "run")
    assert not list(folder.iterdir())


def test_milestones_that_are_never_reached_are_reported(tmp_path, capsys):
    late = tiny.Optim(schedule="step", milestones_epochs=(2, 0.5, 30))
    assert main.run(tiny.mlp_config(optim=late), tmp_path) == 0
    assert "optim.milestones_epochs [2, 30] lie beyond the 2 epochs and do not lower" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "entry", "message"),
    [
        ("end", "method.alpha=1,-1", "method.alpha = -1"),
        ("softcon", "method.tau=0.07,-1", "method.tau = -1"),
        ("erm", "optim.lr=0.1,-0.1", "optim.lr = -0.1: must be a number, 0 or more"),
        ("erm", "optim.b1=0.9,0.8", "b1 is compiled into the step"),
        ("erm", "optim.milestones_epochs=1,2", "only numbers can vary"),
        ("rebias", "method.bandwidth=1,2", "only numbers can vary"),
        ("erm", "optim.lr=0.1,0.1000000001", "two of these values are one number in 32 bits"),
    ],
)
def test_every_member_of_an_array_is_checked_as_if_it_ran_alone(tmp_path, method, entry, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        main.run(tiny.mlp_config(method, grid=(entry,)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"seeds": 0}, "seeds = 0: must be a whole number, 1 to"),
        ({"first_seed": -1}, "first_seed = -1"),
        ({"name": ""}, "name = '' is empty"),
        ({"eval": config.Eval(batch_size=0)}, "eval.batch_size = 0"),
        ({"mesh": parallel.Mesh(data=9)}, "1 x 9 needs 9 devices and there are 8"),
        ({"mesh": parallel.Mesh(seed=3)}, "seeds = 2 cannot be split over mesh.seed = 3"),
        ({"mesh": parallel.Mesh(seed=-1)}, "mesh.seed = -1"),
        ({"mesh": parallel.Mesh(data=-1)}, "mesh.data = -1"),
        ({"mesh": parallel.Mesh(within="loop")}, "mesh.within = 'loop': must be one of auto, vmap, map"),
        ({"mesh": parallel.Mesh(steps_per_call=-1)}, "mesh.steps_per_call = -1"),
        ({"eval": config.Eval(sets=("val", "skech"))}, "skech"),
        ({"optim": tiny.Optim(warmup_epochs=3)}, "optim.warmup_epochs = 3"),
        ({"data": tiny.shapes.Config(train_images=65)}, "65, allowed are 16, 32"),
        ({"batch_size": 128}, "batch_size = 128 is larger than the training set of shapes (64 images)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_settings_are_refused_before_training(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        main.run(tiny.mlp_config(**changes), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_settings_are_refused_with_a_reason(refusals, name):
    _, words, code = REFUSED[name]
    assert_refused(refusals[name], *words, code=code)


def test_sets_that_no_table_can_be_made_of_are_not_a_success(home, workdir):
    """best_val has nothing to choose by."""
    shutil.rmtree(workdir / "responses")
    done = in_process(home, main.main, "--config=config.py", "--config.eval.sets=('edge',)", f"--workdir={workdir}")
    assert_refused(done, "best_val", "validation")
    assert [path.name for path in (workdir / "responses").glob("*/1.npz")] == ["1.npz"]  # the set was evaluated


def test_sets_that_eval_sets_leaves_out_later_stay_known(home, workdir):
    """Their answers are those of the checkpoints there are, so tables and selection go on."""
    responses = workdir / "responses"
    words, before = ("--config=config.py", f"--workdir={workdir}"), metrics.scores(workdir)
    done = in_process(home, main.main, *words, "--config.eval.sets=edge")
    assert done.returncode == 0 and "best_val" in done.stdout, done.stderr
    columns = ["dataset", "run", "epoch", "metric"]
    pd.testing.assert_frame_equal(*(each.sort_values(columns, ignore_index=True) for each in (metrics.scores(workdir), before)))
    (responses / "sketch" / "1.npz").write_bytes(b"damaged")
    shutil.rmtree(responses / "stylised")
    assert evaluated(home, workdir).returncode == 0
    known = json.loads((responses / "sets.json").read_text())["sets"]
    assert sorted(known) == sorted(set(SETS) - {"sketch", "stylised"})
    assert in_process(home, main.main, *words).returncode == 0
    assert list(json.loads((responses / "sets.json").read_text())["sets"]) == list(SETS)


def test_another_setting_leaves_the_run_as_it_was(refusals, trained):
    assert json.loads((trained[0] / "config.json").read_text())["optim"]["lr"] == 0.01


def test_a_missing_config_is_named(refusals):
    assert_refused(refusals["no config"], "--config=METHOD is missing")


def test_a_config_file_that_does_not_exist_is_named(refusals):
    assert_refused(refusals["no such config"], "nowhere.py")


def test_an_unknown_data_set_of_a_config_is_named(refusals):
    assert_refused(refusals["no such data set"], "cifar", "colored_mnist")


def test_a_refused_setting_can_be_corrected_in_the_same_workdir(corrected):
    """Nothing was trained, so nothing stands in the way."""
    _, refused, done = corrected
    assert_refused(refused, "batch_size = 128")
    assert done.returncode == 0, done.stderr


def test_claiming_names_each_difference_with_both_values(tmp_path):
    cfg = tiny.mlp_config()
    config.claim(cfg, tmp_path)
    (tmp_path / "checkpoints" / "epochs").mkdir(parents=True)
    config.claim(tiny.mlp_config(), tmp_path)
    with pytest.raises(ValueError) as caught:
        config.claim(tiny.mlp_config(seeds=4, net=tiny.mlp.Config((8, 9))), tmp_path)
    assert "seeds: 2 / 4" in str(caught.value) and "[8] / [8, 9]" in str(caught.value) and "lr" not in str(caught.value)


def test_another_method_in_a_claimed_workdir_is_a_difference(tmp_path):
    config.claim(tiny.mlp_config("erm"), tmp_path)
    (tmp_path / "checkpoints" / "epochs").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"methods\.erm:Config / jaxbed\.methods\.lff:Config"):
        config.claim(tiny.mlp_config("lff"), tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3"])
def test_a_damaged_config_of_a_workdir_is_named(tmp_path, content):
    """As a process killed while writing it leaves it."""
    (tmp_path / "config.json").write_text(content)
    for call in (lambda: config.claim(tiny.mlp_config(), tmp_path), lambda: config.check(config.load(tmp_path))):
        with pytest.raises(ValueError, match=r"config\.json"):
            call()


def test_damaged_files_of_a_run_are_named_or_made_again(jtt, tmp_path, capsys):
    shutil.copytree(jtt, tmp_path, dirs_exist_ok=True)
    answers = tmp_path / "responses" / "val" / "1.npz"
    before, content = answers.read_bytes(), bytearray(answers.read_bytes())
    with zipfile.ZipFile(answers) as archive:
        start = archive.getinfo("asked.npy").header_offset + 60
    content[start : start + 30] = b"\xff" * 30
    answers.write_bytes(content)
    assert cli.evaluate([str(tmp_path)]) == 0
    assert answers.read_bytes() == before
    path = tmp_path / "training_set.json"
    path.write_bytes(path.read_bytes()[:20])
    assert cli.evaluate([str(tmp_path)]) == 2
    assert "training_set.json is damaged" in capsys.readouterr().err


def test_a_config_of_a_module_that_is_gone_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="gone"):
        config.from_dict({"is": "gone.method:Config"})


# jaxbed


def test_an_unknown_command_is_named_with_those_there_are(refusals):
    assert_refused(
        refusals["unknown"],
        "'evaluate' is not a command; there are train, eval, measure, sweep, launch, stats, correlate, consistency and evidence",
    )


@pytest.mark.parametrize("name, code", [("nothing", 2), ("--help", 0)])
def test_usage(refusals, name, code):
    done = refusals[name]
    assert done.returncode == code and "Traceback" not in done.stderr
    shown, silent = (done.stdout, done.stderr) if code == 0 else (done.stderr, done.stdout)
    assert not silent and all(word in shown for word in ("usage: jaxbed", "train --config", "eval WORKDIR", "stats WORKDIR"))


def test_eval_without_a_workdir_shows_its_usage(refusals):
    assert_refused(refusals["eval nothing"], "WORKDIR".lower())


def test_eval_of_a_folder_that_is_no_workdir_is_refused_and_leaves_nothing_there(home, refusals):
    assert_refused(refusals["eval no workdir"], "config.json", "is not the workdir of a run")
    assert_refused(refusals["eval nowhere"], "nowhere", "is not the workdir of a run")
    assert not (home / "log.jsonl").exists() and not (home / "nowhere").exists() and not (home / "responses").exists()


def test_stats_of_what_is_no_workdir_is_refused(refusals):
    assert_refused(refusals["stats no workdir"], "jaxbed stats:")
    assert_refused(refusals["stats nowhere"], "nowhere.csv")


def test_sweep_names_the_fields_there_are(refusals):
    assert_refused(refusals["sweep unknown field"], "jaxbed: --config.speed=1: no field 'speed' among name, method")


def test_eval_gives_deleted_answers_again_to_the_last_bit(home, workdir):
    before = bytes_below(workdir / "responses")
    shutil.rmtree(workdir / "responses" / "edge")
    (workdir / "responses" / "val" / "1.npz").unlink()
    (workdir / "responses" / "sets.json").unlink()
    done = evaluated(home, workdir)
    assert done.returncode == 0, done.stderr
    assert bytes_below(workdir / "responses") == before


def test_eval_of_a_run_without_an_epoch_is_refused(home, workdir):
    shutil.rmtree(workdir / "checkpoints")
    assert_refused(evaluated(home, workdir), "no finished epoch", "train first")


@pytest.fixture
def limit_devices(monkeypatch):
    """A function that leaves so many devices of those there are."""
    devices = jax.devices()
    return lambda count: monkeypatch.setattr(jax, "devices", lambda: devices[:count])


def test_any_number_of_devices_will_do_where_the_mesh_is_chosen(home, tmp_path, limit_devices):
    """Three do not divide a batch of 16: two share it, one is idle, and that is said."""
    limit_devices(3)
    automatic = ("--config=config.py", "--config.mesh.seed=0", "--config.mesh.data=0", f"--workdir={tmp_path / 'run'}")
    done = in_process(home, main.main, *automatic, *SHORT)
    assert done.returncode == 0 and "1 of 3 devices stay idle" in done.stdout, done.stderr
    before = bytes_below(tmp_path / "run" / "responses")
    shutil.rmtree(tmp_path / "run" / "responses")
    done = evaluated(home, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert bytes_below(tmp_path / "run" / "responses").keys() == before.keys()


def test_a_run_is_evaluated_on_fewer_devices_than_it_was_trained_on(home, tmp_path, limit_devices):
    workdir = tmp_path / "run"
    words = ("--config=config.py", "--config.mesh.seed=2", "--config.mesh.data=2", *SHORT)
    done = in_process(home, main.main, *words, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    before = bytes_below(workdir / "responses")
    shutil.rmtree(workdir / "responses")
    limit_devices(1)
    done = evaluated(home, workdir)
    assert done.returncode == 0, done.stderr
    assert bytes_below(workdir / "responses").keys() == before.keys()
    assert config.read(workdir / "config.json")["mesh"]["seed"] == 2


def test_a_cut_last_line_of_a_log_is_no_obstacle(home, workdir):
    path = workdir / "log.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1][:20])
    assert not launch.died(workdir)
    assert in_process(home, main.main, "--config=config.py", f"--workdir={workdir}").returncode == 0
    added = path.read_text()[len(whole) + 21 :]
    assert path.read_text()[len(whole) + 20] == "\n" and all(json.loads(line)["kind"] for line in added.splitlines())


def test_eval_of_a_damaged_epoch_is_refused_by_name(home, workdir):
    shutil.rmtree(workdir / "responses")
    path = next((workdir / "checkpoints" / "epochs" / "2" / "state" / "ocdbt.process_0" / "d").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(evaluated(home, workdir), "epochs/2", "missing or changed")


def test_stats_prints_the_table_of_the_protocol_and_does_without_jax(home, trained):
    workdir, first = trained
    program = "import sys; from jaxbed import cli; sys.argv = sys.argv[:1] + sys.argv[2:]; code = cli.main(); "
    program += "sys.exit(code or (3 if 'jax' in sys.modules else 0))"
    done = command(home, "-c", program, "jaxbed", "stats", workdir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == first.stdout[first.stdout.index("accuracy, mean") :].strip()


def test_eval_watch_follows_a_training_to_its_end(home, tmp_path):
    workdir = tmp_path / "run"
    words = (*TRAIN, "--config=config.py", "--config.epochs=6", f"--workdir={workdir}")
    with subprocess.Popen(**options(home, *words, XLA_FLAGS=os.environ["XLA_FLAGS"])) as training:
        until((workdir / "config.json").is_file, training)
        watched = evaluated(home, workdir, "--watch")
        out, err = training.communicate()
    assert training.returncode == 0, out + err
    assert watched.returncode == 0, watched.stderr
    for name in SETS:
        assert sorted(int(path.stem) for path in (workdir / "responses" / name).glob("*.npz")) == [1, 2, 3, 4, 5, 6]
    assert len(metrics.scores(workdir).query("metric == 'accuracy'")) == 6 * 2 * len(SETS)


def test_eval_watch_waits_for_a_first_stage(jtt, tmp_path, monkeypatch):
    """Here the run's own checkpoints appear while the watcher sleeps."""
    shutil.copytree(jtt, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("responses"))
    epochs, aside = tmp_path / "checkpoints" / "epochs", tmp_path / "aside"
    epochs.rename(aside)
    with lock.held(tmp_path):
        monkeypatch.setattr(evaluate.time, "sleep", lambda seconds: shutil.copytree(aside, epochs))
        assert cli.evaluate([str(tmp_path), "--watch"]) == 0
    assert (tmp_path / "responses" / "val" / "2.npz").is_file()


def test_eval_watch_ends_when_every_seed_has_died(tmp_path, capsys):
    with pytest.raises(ValueError, match="every seed of erm became non-finite"):
        main.run(tiny.mlp_config(optim=tiny.Optim(lr=1e38)), tmp_path)
    assert cli.evaluate([str(tmp_path), "--watch"]) == 2
    assert "1 of 2 epochs are there and evaluated. Every seed became non-finite" in capsys.readouterr().err


def test_two_evaluations_at_once_do_not_disturb_each_other(home, workdir, monkeypatch):
    """The watcher and the end of the training meet on the same file."""
    monkeypatch.syspath_prepend(home)  # for own.py
    before = bytes_below(workdir / "responses")
    for path in (workdir / "responses").rglob("2.npz"):
        path.unlink()
    real, first, met = np.savez_compressed, threading.Lock(), []

    def meet(file, **arrays):
        if first.acquire(blocking=False):
            met.append(command(home, *SCRIPT, *EVAL, workdir, **with_own(home), XLA_FLAGS=os.environ["XLA_FLAGS"]))
        real(file, **arrays)

    monkeypatch.setattr(evaluate.np, "savez_compressed", meet)
    cfg = config.load(workdir, ["own"])
    assert evaluate.evaluate(cfg, members.open_all(cfg), workdir, log.Log(workdir)) == 0
    assert met[0].returncode == 0, met[0].stderr
    after = bytes_below(workdir / "responses")
    assert after.keys() == before.keys()
    for name in SETS:
        with np.load(workdir / "responses" / name / "2.npz") as stored:
            assert stored["response"].shape == (2, 16)


def test_a_finished_training_knows_when_its_last_epoch_is_missing(home, workdir, monkeypatch):
    """Without that epoch nothing may look finished."""
    monkeypatch.syspath_prepend(home)
    (workdir / "checkpoints" / "epochs" / "2.json").unlink()
    shutil.rmtree(workdir / "responses")
    cfg = config.load(workdir, ["own"])
    source, record = cfg.data.open(), log.Log(workdir)
    try:
        train.train(cfg, members.one(cfg, source), workdir, record)
        evaluate.evaluate(cfg, members.one(cfg, source), workdir, record)
    except ValueError as error:
        assert "epochs" in str(error) and "2" in str(error)
    else:
        assert (workdir / "responses" / "val" / "2.npz").is_file()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_of_a_checkout_is_known(tmp_path):
    assert log.commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=n@example.org"]
    (tmp_path / "file").write_text("1")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    clean = log.commit(tmp_path)
    (tmp_path / "file").write_text("2")
    assert len(clean) == 40 and log.commit(tmp_path) == f"{clean}-dirty"
