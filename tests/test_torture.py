"""A little of what `scripts/torture.py` does, from a fixed seed; `-m slow` runs all of it."""

import contextlib
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import torture
from attacks import damage, hostile, processes, runs

SEED = 1
DAMAGE = [number for number, (_, command) in enumerate(damage.FILES) if command != damage.SLOW]
COSTLY = ("images of 100 MB in a line", "table of 20,000 columns", *(f"table with {name!r}" for name in hostile.CELLS))
HOSTILE = [number for number, name in enumerate(hostile.FILES) if name not in COSTLY]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torture")
    with processes.server(folder) as serving:
        yield runs.World(folder, serving, quick=True)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("kills", range(2)), ("damage", DAMAGE), ("commands", range(56)), ("hostile", HOSTILE)],
)
def test_a_little_is_survived(world, kind, numbers):
    assert_survived(torture.tried(world, kind, numbers, SEED))


@pytest.mark.slow
@pytest.mark.parametrize("kind", torture.KINDS)
def test_all_is_survived(tmp_path, kind):
    if reason := torture.WHY_NOT.get(kind, str)():
        pytest.skip(reason)
    with processes.server(tmp_path) as serving:
        assert_survived(torture.tried(runs.World(tmp_path, serving), kind, range(torture.KINDS[kind][1]), SEED))


def assert_survived(tries):
    found = list(tries)
    failed = [f"{one.attack}, try {one.number}: {one.fault}" for one in found if one.fault]
    assert not failed, "\n".join([torture.table(found), *failed])


def test_a_failure_is_shown_with_the_command_that_repeats_it(monkeypatch, capsys):
    monkeypatch.setattr(torture.processes, "server", lambda folder: contextlib.nullcontext())
    monkeypatch.setitem(torture.KINDS, "kills", (lambda world, number, rng: ("SIGKILL", "lost all" * (number == 6)), 2))
    assert torture.main(["kills", "--first", "5", "--seed", "3"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "attack   tries  survived",
        "SIGKILL      2         1",
        "all          2         1",
        "SIGKILL: lost all   [python scripts/torture.py kills --seed 3 --first 6 --tries 1]",
    ]
    assert torture.main(["kills", "--tries", "1"]) == 0
