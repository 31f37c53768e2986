"""How commands end: exit codes, and words in place of tracebacks."""

import errno
import os
import shutil
import signal
import subprocess
import sys

import pytest
import tiny
from commands import ROOT

from jaxbed import main
from jaxbed.system import ending
from jaxbed.training import checkpoint, train

CURE = "take fewer seeds, a smaller batch_size or a smaller network"


class JaxRuntimeError(RuntimeError):
    """As JAX's, by name."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("lr = x"), "jaxbed: lr = x"),
        (FileNotFoundError("a.csv is missing"), "jaxbed: a.csv is missing"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/b"),
            "jaxbed: /a/b: no space left on device; free space, and",
        ),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/a/b"), "jaxbed: /a/b: permission denied; see that you may read"),
        (MemoryError(), f"jaxbed: not enough memory: {CURE}"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), f"jaxbed: not enough memory on the device: {CURE}"),
    ],
)
def test_what_a_person_can_mend_is_said_in_one_line(capsys, error, said):
    def command():
        raise error

    assert ending.of(command) == 2
    told = capsys.readouterr().err
    assert told.startswith(said) and told.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("RESOURCE_EXHAUSTED"), JaxRuntimeError("INTERNAL"), KeyError("x")])
def test_a_fault_of_the_program_keeps_its_traceback(error):
    def command():
        raise error

    with pytest.raises(type(error)):
        ending.of(command)


SEND = (
    "import gc, os, signal, sys, time; from jaxbed.system import ending; send = lambda: os.kill(os.getpid(), signal.SIGINT); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "  # also where the tests run in the background
)
WAIT = "time.sleep(60)"
PROCESSES = {
    "while it works": f"{SEND}ending.process(lambda: (send(), {WAIT}))",
    "where exceptions are ignored": f"{SEND}gc.callbacks.append(lambda *told: send()); ending.process(lambda: (gc.collect(), {WAIT}))",
    "while it cleans up": f"{SEND}\ndef command():\n  try:\n    send(); {WAIT}\n  finally:\n    send(); {WAIT}\nending.process(command)",
}


@pytest.mark.parametrize("moment", PROCESSES)
def test_ctrl_c_ends_a_command_at_once_without_a_traceback(moment):
    done = subprocess.run([sys.executable, "-c", PROCESSES[moment]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT and "Traceback" not in done.stderr
    assert done.stderr in ("", f"{ending.MESSAGE}\n")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it():
    code = f"{SEND}signal.signal(signal.SIGINT, signal.SIG_IGN); ending.process(lambda: send() or 3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 3


# Runs


def test_a_run_whose_workdir_is_deleted_stops_and_makes_no_half_of_it(tmp_path, monkeypatch):
    due = train.due

    def delete(*arguments):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return due(*arguments)

    monkeypatch.setattr(train, "due", delete)
    monkeypatch.setattr(train, "LOOK_SECONDS", 0.0)
    with pytest.raises(ValueError, match=r"run was deleted while this command worked in it: give the command again to start over"):
        main.run(tiny.mlp_config(save=tiny.config.Save(60)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("when", "code", "told"),
    [
        ("at once", errno.ENOSPC, "no space left on device. Please free space there"),
        ("later", errno.EACCES, "permission denied. Please see that the folder can be written"),
    ],
)
def test_a_checkpoint_that_the_system_refuses_is_named(tmp_path, monkeypatch, when, code, told):
    failed = ValueError(f"RESOURCE_EXHAUSTED: Failed writing: {os.strerror(code)} [os_error_code='28']\nof many lines")

    class Response:
        def result(self):
            raise failed

    def save(*_arguments, **_more):
        if when == "at once":
            raise failed
        return Response()

    monkeypatch.setattr(checkpoint.ocp, "save_async", save)
    with pytest.raises(ValueError, match=rf"^checkpoint .*epochs/1 cannot be written: {told}; run the same command again to resume$"):
        main.run(tiny.mlp_config(), tmp_path)


def test_a_variant_all_of_whose_seeds_died_is_a_result(tmp_path, capsys):
    assert main.run(tiny.mlp_config(grid=("optim.lr=0.01,1e38",)), tmp_path) == 0
    said = capsys.readouterr()
    assert "seed 1 of lr=1e+38 became non-finite after step" in said.out and said.err == ""
    assert said.out.rstrip().endswith("lr=1e+38\nevery seed became non-finite: no scores")


def test_a_network_of_a_first_stage_that_died_is_called_what_it_is(tmp_path, capsys):
    with pytest.raises(ValueError, match="every seed of jtt: first network became non-finite"):
        main.run(tiny.mlp_config("jtt", optim=tiny.Optim(lr=1e38)), tmp_path)
    assert "network 1 of jtt: first network became non-finite after step" in capsys.readouterr().out
