"""What the command says while it works: a line per stage on stderr, a moving line on a terminal."""

import os
import pty
import subprocess
import sys

import pandas as pd
import pytest

from jaxbed.stats import main


@pytest.fixture
def path(tmp_path):
    rows = [
        (name, run, f"d{column}", place + column + 0.1 * run) for place, name in enumerate("ab") for run in (1, 2) for column in range(6)
    ]
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"]).to_csv(tmp_path / "scores.csv", index=False)
    return str(tmp_path / "scores.csv")


def test_one_line_per_stage_and_none_of_it_in_the_output(path, tmp_path, capsys):
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
    assert process.returncode == 0 and output.startswith("Asked: ")
    assert b"reading" in shown or b"tests" in shown
    assert b"\x1b[2K" in shown  # the line is erased


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""
