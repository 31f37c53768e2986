"""What the command says while it works: a line per stage on stderr, a moving line on a terminal."""

import os
import pty
import subprocess
import sys

import pandas as pd
import pytest

from jaxbed.stats import main
from jaxbed.stats.figures import style


@pytest.fixture
def path(tmp_path):
    rows = [
        (name, run, f"d{column}", place + column + 0.1 * run) for place, name in enumerate("ab") for run in (1, 2) for column in range(6)
    ]
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"]).to_csv(tmp_path / "scores.csv", index=False)
    return str(tmp_path / "scores.csv")


def test_one_line_per_stage_and_none_of_it_in_the_output(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "save", lambda figure, *where: ([], ""))  # it takes its time, and shows no stage
    for _ in range(2):  # nothing is left behind
        assert main.main([path, "--permutations", "200", "--out", str(tmp_path / "out")]) == 0
        captured = capsys.readouterr()
        lines = captured.err.splitlines()
        assert len(lines) == len(set(lines)) == 6 and all(line.startswith("jaxbed stats: ") for line in lines)
        assert lines[-1] == "jaxbed stats: figures ..." and " ..." not in captured.out


def test_a_terminal_shows_the_stages_and_they_vanish(path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "jaxbed.cli", "stats", path, "--permutations", "200"]
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    shown = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while part := _read(ours):
            shown += part
        output = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0 and output.startswith("Question: ")
    assert b"reading" in shown or b"tests" in shown
    assert b"\x1b[2K" in shown  # the line is erased


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_a_reader_that_stops_early_is_no_error(path, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main.main([path, "--permutations", "200"]) == 0
    assert all(line.endswith(" ...") for line in capsys.readouterr().err.splitlines())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
def test_a_full_disk_is_reported(path, monkeypatch, capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main.main([path, "--permutations", "200"]) == 2
    assert "jaxbed stats: stdout cannot be written ([Errno 28]" in capsys.readouterr().err


def test_an_output_that_lacks_letters_and_a_closed_stderr(path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with open(tmp_path / "text", "w", encoding="ascii") as plain:
        monkeypatch.setattr(sys, "stdout", plain)
        assert main.main([path, "--permutations", "200"]) == 0
    text = (tmp_path / "text").read_text()
    assert "mean ? std over runs" in text and " ..." not in text
