"""The tutorial on own images, run as it is written but for the number of epochs and the depth of the network."""

import os
import pathlib
import re
import subprocess
import sys

import pandas as pd
from commands import ROOT, options

TEXT = (ROOT / "docs" / "tutorial.md").read_text()
TRAIN = "python -m jaxbed.main "
SHORTER = """# trains as TRAIN does, a network without blocks: less to compile
import sys

from jaxbed import main
from jaxbed.models import resnet
from jaxbed.system import ending

resnet.BLOCKS[10] = (0, 0, 0, 0)
ending.process(lambda: main.main(sys.argv[1:]))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs_as_written(tmp_path):
    for code in blocks("python"):
        (tmp_path / re.match(r"# (\S+)\n", code)[1]).write_text(code)
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    (tmp_path / "shorter.py").write_text(SHORTER)
    commands = "".join(blocks("bash"))
    for written, run in (("--config.epochs=10 ", "--config.epochs=2 "), (TRAIN, "python shorter.py ")):  # to see that they run
        assert written in commands
        commands = commands.replace(written, run)
    environment = {"PATH": path}
    done = subprocess.run(**{**options(tmp_path, **environment), "args": ["bash", "-euc", commands]})
    assert done.returncode == 0, done.stdout + done.stderr
    table, card, result = blocks("text")
    assert (tmp_path / "images" / "table.csv").read_text().startswith(table)
    assert all(f"{line}\n" in done.stdout for line in card.splitlines())
    scores = pd.read_csv(tmp_path / "report" / "scores.csv")
    assert set(zip(scores["algorithm"], scores["dataset"], strict=True)) == {(a, d) for a in ("ERM", "Reweight") for d in ("test", "gray")}
    assert (tmp_path / "report" / "report.html").is_file() and list((tmp_path / "report" / "figures").iterdir())
    shown = done.stdout[done.stdout.rindex("Question: ") :]
    heads = [line for line in result.splitlines() if line.startswith(("Question: ", "accuracy, ", "algorithm "))]
    assert len(heads) == 3 and all(line in shown for line in heads)
    for algorithm in ("ERM", "Reweight"):
        assert re.search(rf"^{algorithm} +[\d.]+ ± [\d.]+\*? +[\d.]+ ± [\d.]+\*? +5$", shown, re.MULTILINE)
