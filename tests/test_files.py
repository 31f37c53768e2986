"""Files of a run that are damaged, edited, cut by a full disk or written by a stranger: through the commands."""

import dataclasses
import errno
import io
import json
import os
import pathlib
import pickle
import platform
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import pandas as pd
import pytest
import tiny
from commands import JAXBED, assert_refused, command

from jaxbed import cli, config, main
from jaxbed.evaluation import answers, metrics
from jaxbed.models import mlp
from jaxbed.stats import main as statistics
from jaxbed.stats import tables
from jaxbed.stats.figures import drawing
from jaxbed.system import cache, files

SETS = ("val", "edge")
SMALL = {"net": mlp.Config(()), "epochs": 1, "eval": config.Eval(sets=SETS)}
CFG, STAGED = tiny.mlp_config(**SMALL), tiny.mlp_config("jtt", **SMALL)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main.run(CFG, folder) == 0
    return folder


@pytest.fixture
def workdir(trained, tmp_path) -> pathlib.Path:
    return shutil.copytree(trained, tmp_path / "run")


def below(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys, code: int, path: pathlib.Path, *words: str) -> None:
    """One message of one line, which names the file and has the words."""
    message = capsys.readouterr().err
    assert code == 2 and message.startswith("jaxbed") and message.count("\n") == 1 and str(path) in message, message
    assert all(word in message for word in words), message


# Writing


def test_a_full_disk_leaves_every_file_as_it_was(workdir, capsys, monkeypatch):
    shutil.rmtree(workdir / "responses" / "edge")
    for name in ("responses/sets.json", "responses/val/images.csv", "training_set.json"):
        (workdir / name).write_text("of another time")
    (workdir / "checkpoints").rename(workdir.parent / "aside")
    before = below(workdir)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        assert cli.evaluate([str(workdir)]) == 2 and "No space left" in capsys.readouterr().err
    after = below(workdir)
    assert after.pop("log.jsonl") and {name: after[name] for name in after} == {name: before[name] for name in after}
    (workdir.parent / "aside").rename(workdir / "checkpoints")
    assert cli.evaluate([str(workdir)]) == 2 and "training_set.json is damaged" in capsys.readouterr().err


def test_what_is_the_same_already_is_not_written_again(workdir):
    paths = [path for path in workdir.rglob("*") if path.is_file() and path.name != "log.jsonl"]
    before = {path: path.stat().st_mtime_ns for path in paths}
    assert cli.evaluate([str(workdir)]) == 0
    assert {path: path.stat().st_mtime_ns for path in paths} == before


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(workdir):
    folder, here = workdir / "responses" / "val", platform.node()
    (folder / "1.npz").unlink()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # until it has ended, and still has its number
    numbers = {"dead": (here, 2**22 + 1), "living": (here, 1), "elsewhere": ("away", 9)}
    if pathlib.Path("/proc/self/stat").is_file():
        numbers["not awaited"] = here, ended.pid
    paths = {name: folder / f".1.npz.{node}-{number}.partial" for name, (node, number) in numbers.items()}
    for path in paths.values():
        path.write_bytes(b"half")
    assert cli.evaluate([str(workdir)]) == 0
    ended.wait()
    assert (folder / "1.npz").exists() and [name for name, path in paths.items() if path.exists()] == ["living", "elsewhere"]


@pytest.mark.parametrize("stem", ["x" * 251, 83 * "あ", "x" * 200])
def test_any_name_that_the_disk_takes_can_be_written_and_what_was_left_of_it_is_removed(tmp_path, monkeypatch, stem):
    path = tmp_path / f"{stem}.csv"
    monkeypatch.setattr(platform, "node", lambda: "machine" * 5)

    def during() -> str:
        with files.replacing(path) as file:
            file.write(b"whole")
            (partial,) = set(tmp_path.iterdir()) - {path}
        assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"whole"
        return partial.name

    name = during()
    left = tmp_path / name.replace(f"-{os.getpid()}.", f"-{2**22 + 1}.")  # no process has such a number
    left.write_bytes(b"half")
    assert during() == name and name.startswith(".") and name.endswith(".partial") and not left.exists()


# Answers


def npy(descr: str, shape: str, content: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + content


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return file.getvalue()


def patched(content: bytes, mark: bytes, offset: int, new: bytes) -> bytes:
    """The content with other bytes at an offset from the first mark."""
    place = content.index(mark) + offset
    return content[:place] + new + content[place + len(new) :]


CENTRAL = b"PK\x01\x02"  # begins an entry of an archive's directory
DAMAGES = {
    "empty": lambda whole: b"",
    "text": lambda whole: b"no archive",
    "cut": lambda whole: whole[:-30],
    "compressed data": lambda whole: patched(whole, b"PK\x03\x04", 60, b"\xff" * 20),
    "method": lambda whole: patched(whole, CENTRAL, 10, b"\x63"),
    "method of lzma": lambda whole: patched(whole, CENTRAL, 10, b"\x0e"),
    "encrypted": lambda whole: patched(whole, CENTRAL, 8, b"\x01"),
    "checksum": lambda whole: patched(whole, CENTRAL, 16, b"\x12\x34"),
    "larger than possible": lambda whole: patched(whole, CENTRAL, 24, b"\xff\xff\xff\x7f"),
    "larger than the file": lambda whole: patched(whole, CENTRAL, 20, b"\xff\xff\xff\x7f"),
    "twice": lambda whole: whole.replace(b"seeds.npy", b"alive.npy"),
    "missing": lambda whole: archive(response=npy("'<i2'", "(1, 1)", b"\0\0")),
    "an absurd shape": lambda whole: archive(response=npy("'<i2'", "(1099511627776, 64)")),
    "a negative shape": lambda whole: archive(response=npy("'<i2'", "(-1, -2)", b"\0" * 4)),
    "numbers of no size": lambda whole: archive(response=npy("'<U0'", "(1099511627776,)")),
    "a type that is none": lambda whole: archive(response=npy("'<q9'", "(1,)", b"\0")),
    "a header that is none": lambda whole: archive(response=npy("[" * 500, "(1,)")),
    "Python objects": lambda whole: archive(response=npy("'|O'", "(1,)", pickle.dumps([1]))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_answers_are_named_by_stats_and_given_again_by_eval(workdir, capsys, damage):
    path = workdir / "responses" / "edge" / "1.npz"
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    refused(capsys, statistics.main([str(workdir)]), path, "is damaged (", f"delete it, then: jaxbed eval {workdir}")
    if damage in ("compressed data", "an absurd shape"):  # an evaluation takes a second
        assert cli.evaluate([str(workdir)]) == 0 and path.read_bytes() == whole


def test_no_random_damage_to_answers_changes_a_score_or_ends_in_a_traceback(workdir, capsys):
    path, rng = workdir / "responses" / "edge" / "1.npz", random.Random(0)
    whole, found = path.read_bytes(), {}
    arrays = files.read_arrays(path)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 1, 5))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content)
        try:
            found = answers.read_answers(path, arrays["response"].shape[1])
        except ValueError as error:
            assert str(error).startswith(f"{path} is damaged (")
        else:
            assert all((found[name] == arrays[name]).all() for name in answers.ANSWERS)


@pytest.mark.parametrize("name", ["seeds", "response", "alive", "checkpoint", "asked"])
def test_edited_answers_are_refused_by_stats_and_given_again_by_eval(workdir, capsys, name):
    path = workdir / "responses" / "edge" / "1.npz"
    whole, content = path.read_bytes(), files.read_arrays(path)
    edited = {"seeds": lambda seeds: seeds + 1, "response": lambda response: response[::-1], "alive": np.logical_not}
    content[name] = edited.get(name, lambda text: np.array("0123456789abcdef"))(content[name])
    files.write_arrays(path, content)
    refused(capsys, statistics.main([str(workdir)]), path, "are not those that were written", f"jaxbed eval {workdir}")
    assert cli.evaluate([str(workdir)]) == 0 and path.read_bytes() == whole


def test_answers_of_former_versions_have_no_digest_and_are_read(workdir, capsys):
    assert statistics.main([str(workdir)]) == 0
    before = capsys.readouterr().out
    for path in (workdir / "responses").rglob("*.npz"):
        content = files.read_arrays(path)
        content.pop("digest")
        files.write_arrays(path, content)
    assert statistics.main([str(workdir)]) == 0 and capsys.readouterr().out == before


IMAGES = {
    "empty": lambda text: b"",
    "binary": lambda text: bytes(range(256)),
    "NUL bytes": lambda text: b"name,label,cue\n\0\0\0",
    "other columns": lambda text: text.replace(b"label", b"class"),
    "half": lambda text: text[: len(text) // 2],
    "header alone": lambda text: b"name,label,cue\n",
    "no header": lambda text: text.partition(b"\n")[2],
    "text for numbers": lambda text: text.replace(b",1,", b",one,"),
    "two labels exchanged": lambda text: re.sub(rb",(\d+),(.*\n[^,]*),(\d+),", rb",\3,\2,\1,", text, count=1),
}


@pytest.mark.parametrize("damage", IMAGES)
def test_a_damaged_or_edited_table_of_images_is_refused_by_stats_and_rebuilt_by_eval(workdir, capsys, damage):
    path = workdir / "responses" / "edge" / "images.csv"
    whole = path.read_bytes()
    path.write_bytes(IMAGES[damage](whole))
    refused(capsys, statistics.main([str(workdir)]), path, f"jaxbed eval {workdir}")
    if damage == "two labels exchanged":
        assert cli.evaluate([str(workdir)]) == 0 and path.read_bytes() == whole


SHAPES = {
    "data": [],
    "data.cue": 3,
    "sets": {"val": 3},
    "sets.val.role": [],
    "sets.edge.images": {},
    "classes": 5,
    "training_cells": [[1, 2]],
}


@pytest.mark.parametrize("place", SHAPES)
def test_a_description_of_sets_of_another_form_is_named(workdir, capsys, place):
    path = workdir / "responses" / "sets.json"
    content = json.loads(path.read_text())
    *above, last = place.split(".")
    inner = content
    for name in above:
        inner = inner[name]
    inner[last] = SHAPES[place]
    path.write_text(json.dumps(content))
    refused(capsys, statistics.main([str(workdir)]), path, f"delete it, then: jaxbed eval {workdir}")


# Configurations


@pytest.mark.parametrize(
    "change", [{"is": 3}, {"is": ""}, {"is": ":"}, {"is": "jaxbed.config:Eval"}, {"method": 3}, {"optim": {"is": []}}, {"net": None}]
)
def test_a_damaged_configuration_is_named_by_eval(workdir, capsys, change):
    path = workdir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refused(capsys, cli.evaluate([str(workdir)]), path, "restore it, or take another workdir")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b'{"name": "x"'])
def test_a_configuration_that_is_no_json_is_named(workdir, capsys, content):
    path = workdir / "config.json"
    path.write_bytes(content)
    refused(capsys, cli.evaluate([str(workdir)]), path, "is damaged (")
    refused(capsys, statistics.main([str(workdir)]), path, "is damaged (")


def test_a_damaged_description_of_the_training_set_is_rebuilt_before_anything_was_trained_and_named_afterwards(workdir, tmp_path, capsys):
    path = tmp_path / "new" / "training_set.json"
    path.parent.mkdir()
    for content in (b"", b"\xff", b"3"):
        path.write_bytes(content)
        assert cli.evaluate([str(shutil.copytree(path.parent, tmp_path / content.hex(), dirs_exist_ok=True))]) == 2  # no workdir at all
        capsys.readouterr()
    assert main.run(CFG, path.parent) == 0
    assert path.read_bytes() == (workdir / path.name).read_bytes()
    for content in (b"", b"\xff", b"3", b'[{"images": 1}, 2]'):
        (workdir / path.name).write_bytes(content)
        capsys.readouterr()
        refused(capsys, cli.evaluate([str(workdir)]), workdir / path.name, "is damaged (", "delete it")


def test_damaged_outputs_of_a_first_stage_are_named(tmp_path):
    assert main.run(STAGED, tmp_path) == 0
    path = tmp_path / "stages" / "first_network" / "outputs.npz"
    whole, content = path.read_bytes(), files.read_arrays(path)
    others = [archive(other=npy("'<i2'", "(1, 1)", b"\0\0")), archive(), archive(response=npy("'|O'", "(1,)", pickle.dumps([1])))]
    for damaged in (b"", whole[:-30], patched(whole, CENTRAL, 10, b"\x63"), *others):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(str(path))) as error:
            main.run(STAGED, tmp_path)
        assert str(error.value).endswith("delete it, and python -m jaxbed.main makes it again")
    files.write_arrays(path, {name: array[:, :, :-1] for name, array in content.items()})
    with pytest.raises(ValueError, match=r"outputs\.npz does not belong to this run"):
        main.run(STAGED, tmp_path)


# Hostile files


def hostile(workdir: pathlib.Path) -> pathlib.Path:
    """The file that appears once a module of the workdir is run."""
    ran = workdir.parent / "ran"
    for name in ("numpy", "jax", "pandas", "evil"):
        (workdir / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})")
    path = workdir / "config.json"
    path.write_text(path.read_text().replace("jaxbed.methods.erm:Config", "evil:Config"))
    return ran


def test_no_command_in_a_folder_runs_its_modules(workdir):
    ran = hostile(workdir)
    done = command(workdir, *JAXBED, "eval", ".")
    words = "names evil:Config", "importing a module runs it", "PYTHONPATH=FOLDER jaxbed eval . --allow-module evil"
    assert_refused(done, *words)
    assert_refused(command(workdir, *JAXBED, "eval", ".", "--allow-module", "evil"), "--allow-module evil: the Python path has no such")
    done = command(workdir, *JAXBED, "stats", ".")
    assert done.returncode == 0 and not ran.exists(), done.stderr


def test_a_module_that_was_allowed_is_imported_and_no_other(workdir, capsys, monkeypatch, tmp_path):
    ran = hostile(workdir)
    (tmp_path / "allowed_here.py").write_text("from jaxbed.methods import erm\n\nConfig = erm.Config\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = workdir / "config.json"
    path.write_text(path.read_text().replace("jaxbed.models.mlp:Config", "allowed_here:Config"))
    refused(
        capsys,
        cli.evaluate([str(workdir), "--allow-module", "allowed_here"]),
        path,
        "--allow-module allowed_here --allow-module evil",
    )
    path.write_text(
        path.read_text().replace("allowed_here:Config", "jaxbed.models.mlp:Config").replace("evil:Config", "allowed_here:Config")
    )
    assert cli.evaluate([str(workdir), "--allow-module", "allowed_here"]) == 0 and not ran.exists()


def test_a_run_starts_from_another_without_its_classes(workdir, tmp_path):
    ran = hostile(workdir)
    assert main.run(dataclasses.replace(CFG, epochs=0, init_from=str(workdir)), tmp_path / "next") == 0
    assert not ran.exists()


def test_hostile_weights_are_named_by_the_command(tmp_path):
    path = tmp_path / "weights.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", b"\x80\x02}.")
        made.writestr("archive/data/0", bytes(10**7))
    with pytest.raises(ValueError, match=rf"{path} cannot be read as weights \(it is compressed.*\): save the network's own state_dict"):
        main.run(tiny.mlp_config(init_from=str(path)), tmp_path / "run")


# Names in CSV files


def test_names_that_spreadsheets_would_run_are_written_as_text_and_read_back(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    known = ['=HYPERLINK("x")', "+1", "-a", "@SUM(A1)", "'=quoted", "plain"]
    rows = [(name, run, f"={place}", 50 + column + run) for column, name in enumerate(known) for run in (1, 2) for place in range(3)]
    pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "accuracy"]).to_csv(tmp_path / "plain.csv", index=False)
    out = tmp_path / "out"
    assert statistics.main([str(tmp_path / "plain.csv"), "--permutations", "100", "--out", str(out)]) == 0
    for path in out.glob("*.csv"):
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        for name in {"algorithm", "algorithm_i", "algorithm_j", "dataset"} & set(table):
            assert not table[name].str.contains(r"^[=+\-@\t\r]").any(), path
    table = pd.read_csv(out / "scores.csv", dtype=str)
    assert set(table["algorithm"]) == {f"'{name}" if name != "plain" else name for name in map(lambda name: name.lstrip("'"), known)}
    capsys.readouterr()
    given = [str(tmp_path / "plain.csv"), "--table", str(out / "scores.csv"), "--permutations", "100"]
    assert statistics.main(given) == 0
    assert "UNKNOWN" not in capsys.readouterr().out


def test_names_of_images_are_no_formulas_and_keep_their_digest(workdir, capsys):
    path = workdir / "responses" / "edge" / "images.csv"
    table = pd.read_csv(path)
    table["name"] = [f"={name}" for name in table["name"]]
    digest = metrics.digest(table["name"], table["label"].to_numpy(), table["cue"].to_numpy())
    path.write_text(tables.csv_text(table))
    assert path.read_text().splitlines()[1].startswith("'=")
    sets = workdir / "responses" / "sets.json"
    content = json.loads(sets.read_text())
    content["sets"]["edge"]["images"] = digest
    sets.write_text(json.dumps(content))
    assert statistics.main([str(workdir)]) == 0
    path.write_text(path.read_text().replace(",", ";"))  # as a spreadsheet saves it again
    assert statistics.main([str(workdir)]) == 0


UNPRINTABLE = [("a\x1b[31m", "invisible character (U+001B"), ("x" * 3000, "3,000 characters"), (" ", "empty")]


@pytest.mark.parametrize(("name", "reason"), UNPRINTABLE)
def test_names_of_runs_that_no_table_can_show_are_refused(workdir, capsys, name, reason):
    path = workdir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": name}))
    refused(capsys, statistics.main([str(workdir)]), workdir, reason)


# The cache


def test_a_user_without_a_home_has_a_cache_of_their_own_among_the_temporary_files(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])  # the system does not know the user
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache._temporary.cache_clear()
    own = tmp_path / f"jaxbed-{os.getuid()}"
    assert cache.folder() == cache.folder() == own and own.stat().st_mode & 0o777 == 0o700
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and str(own) in message and "XDG_CACHE_HOME=FOLDER" in message
    own.chmod(0o777)
    cache._temporary.cache_clear()
    with pytest.raises(ValueError, match=f"{own} is not a folder that user {os.getuid()} alone can access.*XDG_CACHE_HOME"):
        cache.folder()
    own.rmdir()
    (tmp_path / "elsewhere").mkdir()
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="alone can access"):
        cache.folder()
    cache._temporary.cache_clear()
