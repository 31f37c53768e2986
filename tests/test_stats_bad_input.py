"""Bad input to `jaxbed stats`: refused by name, with exit code 2 and no traceback, or warned about."""

import os
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from jaxbed.stats import main
from jaxbed.stats.analysis import analyse
from jaxbed.stats.figures import drawing, style
from jaxbed.stats.options import Options, check
from jaxbed.stats.reading import records, roles

HEADER = "algorithm,run,dataset,accuracy\n"
GOOD = HEADER + "".join(f"{name},{run},{dataset},{5 * run + len(dataset)}\n" for name in "xy" for run in (1, 2) for dataset in ("A", "BB"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        (HEADER, "contains no scores"),
        (HEADER + "x,1,A,0.5\n\nx,2,A,high\n", "accuracy 'high' in line 4 is not a number"),
        (HEADER + "x,one,A,0.5\n", "run 'one' in line 2 is not a number"),
        (HEADER + "x,9007199254740993,A,0.5\n", "run '9007199254740993' in line 2 is not a whole number (below 2^53)"),
        (HEADER + "x,1,A,0.5\nx,1,algorithm,0.5\n", "data set 'algorithm' in line 3: output tables have a column of that name"),
        (HEADER + "x,1,A,nan\n", "is nan in line 2; only finite"),
        (HEADER + "x,1,A,0.5\nx,1,A,0.5\n", "1 repeated row(s), first accuracy of 'x' run 1 on 'A'"),
        (HEADER + "x,1,A,0.5\nx,2,A\n", "line 3 has 3 fields, the header 4"),
        ("algorithm,run,dataset,accuracy,run\nx,1,A,0.5,1\n", "column name 'run' is repeated"),
        ("name,score\nx,1\n", "column 'algorithm', 'run', 'dataset' is missing, found name, score"),
        (
            "algorithm,run,dataset,accuracy,status\nx,1,A,0.5,dead\n",
            "status 'dead' in line 2 is not one of ok, diverged, truncated, missing",
        ),
        ("algorithm,run,dataset,accuracy,family\nx,1,A,0.5,f\ny,1,A,0.5,g\n", "data set 'A' is in 2 families; it must belong to one"),
        ("algorithm,run,dataset,accuracy,n_total\nx,1,A,0.5,many\n", "n_total 'many' in line 2 is not a number"),
        ("algorithm,run,dataset,epoch,accuracy\nx,1,A,1,0.5\nx,1,A,-1,0.5\n", "epoch -1 in line 3 must be 0 or more"),
        ("algorithm,run,dataset,epoch,accuracy\nx,1,A,inf,0.5\n", "epoch inf in line 2 must be 0 or more"),
        ("algorithm,run,dataset,accuracy,n_total\nx,1,A,0.5,0\n", "n_total 0 in line 2 must be 1 or more"),
        ("algorithm,run,dataset,accuracy,n_correct,n_total\nx,1,A,0.5,7,5\n", "n_correct 7 in line 2 must be between 0 and n_total"),
        ("algorithm,run,dataset,accuracy,n_correct\nx,1,A,0.5,-7\n", "n_correct -7 in line 2 must be between 0 and n_total"),
        ("\x00\x01\x02", "line 1 contains NUL bytes"),
        ("algorithm,run,dataset,epoch,accuracy\nx,1,A,3,0.5\nx,1,A,3,0.5\n", "run 1 on 'A' at epoch 3; only one row is allowed"),
        (HEADER + "x,1,A,0.5\nx,1,A,0.5\n", "run 1 on 'A'; only one row is allowed"),
    ],
)
def test_files_that_are_refused(tmp_path, capsys, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main.main([str(path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and str(path) in captured.err and not captured.out and "Traceback" not in captured.err


@pytest.mark.parametrize(("lacking", "words"), [(("A",), "1 data set is left out"), (("A", "BB"), "2 data sets are left out")])
def test_datasets_left_out_are_counted_in_words(tmp_path, capsys, lacking, words):
    path, rows = tmp_path / "some.csv", [row for row in GOOD.splitlines() if not (row[0] == "y" and row.split(",")[2] in lacking)]
    path.write_text("\n".join([*rows, *(f"{name},{run},C,{run}" for name in "xy" for run in (1, 2))]))
    assert main.main([str(path), "--missing", "drop"]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rope", "-1"], "--rope -1: must be 0 or more"),
        (["--alpha", "0"], "--alpha 0: must be between 0 and 1"),
        (["--permutations", "10"], "--permutations 10: p could not fall below 1/11"),
        (["--seed", "-1"], "--seed -1: must be 0 or more"),
        (["--select", "ac_smooth"], "unknown selection rule 'ac_smooth'"),
        (["--lower", "--missing", "floor"], "--missing floor needs scores where higher is better"),
        (["--roles", "nowhere.csv"], "nowhere.csv"),
        (["--datasets", ","], "no accuracy on nothing"),
        (["--metric", "f1"], "--metric f1: not recorded; available: accuracy"),
        (["--metric", "acuracy"], "not recorded; did you mean accuracy? available: accuracy"),
        (["--rope", "inf"], "--rope inf: must be 0 or more"),
        (["--exclude", "x", "--exclude", "y"], "--exclude removes all scores"),
        (["--baseline", "z"], "--baseline z: no such algorithm; available: x, y"),
    ],
)
def test_options_that_are_refused(tmp_path, capsys, arguments, message):
    path = tmp_path / "good.csv"
    path.write_text(GOOD)
    assert main.main([str(path), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out


def test_a_dataset_whose_name_holds_a_comma_is_found(tmp_path, capsys):
    path = tmp_path / "good.csv"
    path.write_text(GOOD.replace(",BB,", ',"B, 1",'))
    assert main.main([str(path), "--datasets", "B, 1", "--permutations", "100"]) == 0
    assert "2 algorithms, 1 data set." in capsys.readouterr().out


def test_a_metric_is_found_whatever_its_case(tmp_path, capsys):
    path = tmp_path / "good.csv"
    path.write_text(GOOD)
    assert main.main([str(path), "--metric", "Accuracy", "--permutations", "100"]) == 0
    assert "accuracy, mean ± std" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--question", "all"], ["--ties", "best"], ["--missing", "guess"], ["--paper-mode", "other"], []])
def test_words_that_are_not_known(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(["scores.csv", *arguments] if arguments else [])
    assert caught.value.code == 2 and "usage: jaxbed stats" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--ties best: allowed are mean, first, last"):
        check(Options(ties="best"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("role,size\nood,3\n", "roles need the column dataset"),
        ("dataset\nA\n", "roles need the column dataset and at least one of role"),
        ("dataset,role\nA,shifted\n", "role 'shifted' in line 2 is not one of val, test, ood"),
        ("dataset,size\nA,big\n", "size 'big' in line 2 is not a number"),
        ("dataset,role\nA,ood\nA,test\n", "every line must name a different data set"),
    ],
)
def test_roles_that_are_refused(tmp_path, text, message):
    path = tmp_path / "roles.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        roles.read(path)
    assert str(path) in str(caught.value)


def test_a_printed_table_needs_its_columns(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("algorithm,dataset,score\nx,A,1\n")
    with pytest.raises(
        ValueError, match="column mean is missing; found algorithm, dataset, score; a printed table has algorithm,dataset,mean,std"
    ):
        records.read_table(path)


def test_no_input_is_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    good, table = tmp_path / "good.csv", tmp_path / "pairs.csv"
    good.write_text(GOOD)
    table.write_text("algorithm,dataset,mean\nx,A,1\n")
    assert main.main([str(good), "--table", str(table), "--out", str(tmp_path)]) == 2
    assert "would overwrite the input" in capsys.readouterr().err and table.read_text().startswith("algorithm,dataset,mean\n")
    assert main.main([str(good), "--out", str(good)]) == 2
    assert "is a file; name a directory" in capsys.readouterr().err
    assert main.main([str(good), "--out", str(good / "out")]) == 2
    assert f"{good} is a file; name a directory" in capsys.readouterr().err
    assert main.main([str(good), "--out", ""]) == 2
    assert "--out is empty; name a directory" in capsys.readouterr().err
    (tmp_path / "out" / "tables" / "scores.tex").mkdir(parents=True)
    assert main.main([str(good), "--out", str(tmp_path / "out"), "--permutations", "100"]) == 2
    assert "out cannot be written ([Errno 21] Is a directory: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pairs.csv": "mine"}, "out has a pairs.csv that is not of `jaxbed stats`; name another directory"),
        ({"report.html": "<dd>jaxbed evidence a b</dd>", "evidence.csv": ""}, "out has a report.html that is not of `jaxbed stats`"),
        ({"config.json": "{}"}, "out is the workdir of a run; name another directory"),
    ],
)
def test_files_of_something_else_are_not_overwritten(tmp_path, capsys, monkeypatch, files, message):
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])
    (tmp_path / "good.csv").write_text(GOOD)
    (tmp_path / "out").mkdir()
    for name, content in files.items():
        (tmp_path / "out" / name).write_text(content)
    words = [str(tmp_path / "good.csv"), "--permutations", "100", "--out"]
    assert main.main([*words, str(tmp_path / "out")]) == 2 and message in capsys.readouterr().err
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == files
    assert main.main([*words, str(tmp_path / "new")]) == main.main([*words, str(tmp_path / "new")]) == 0


def test_a_pipe_is_refused_since_it_can_be_read_only_once(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main.main([str(tmp_path / "pipe")]) == 2
    assert "pipe: a pipe or device can be read only once; save its content to a file" in capsys.readouterr().err


def test_two_scales_are_warned_about(tmp_path, capsys):
    path = tmp_path / "mixed.csv"
    path.write_text(HEADER + "".join(f"{name},{run},{d},{v}\n" for name, v in (("x", 55), ("y", 0.6)) for run in (1, 2) for d in "ABC"))
    assert main.main([str(path)]) == 0
    assert "warning MIXED_SCALES" in capsys.readouterr().out


def test_equal_scores_everywhere():
    rows = [(name, run, dataset, "accuracy", 0.5) for name in "xyz" for run in (1, 2) for dataset in "ABCDEFG"]
    frame = records.check(pd.DataFrame(rows, columns=["algorithm", "run", "dataset", "metric", "value"]), "made")
    found = analyse(frame)
    assert found.results["friedman"]["p"] == 1 and (found.p == 1).all(axis=None) and found.results["power"] is None
    assert "No pair differs at alpha = 0.05." in found.results["verdict"]
    assert "ALL_TIED" in {warning["code"] for warning in found.results["warnings"]}


@pytest.mark.parametrize(
    ("n", "m", "r"),
    [(2, 2, 1), (2, 2, 2), (2, 6, 1), (3, 2, 1), (3, 3, 2), (5, 1, 1), (1, 1, 1), pytest.param(10, 3, 2, marks=pytest.mark.slow)],
)
def test_the_smallest_tables_are_answered(tmp_path, capsys, monkeypatch, n, m, r):
    if (n, m, r) != (2, 2, 1):  # of the others all figures are drawn, and not written
        monkeypatch.setattr(style, "save", lambda figure, *where: ([], figure.draw_without_rendering() or ""))
    rng = np.random.default_rng(n + m + r)
    lines = [f"a{a},{run},d{d},{rng.integers(0, 101)}" for a in range(n) for run in range(r) for d in range(m)]
    path, out = tmp_path / "small.csv", tmp_path / "out"
    path.write_text(HEADER + "\n".join(lines))
    assert main.main([str(path), "--permutations", "1000", "--out", str(out)]) == 0
    assert (out / "stats.json").exists() and (out / "report.html").exists()
    assert main.main([str(path), "--permutations", "1000", "--question", "these-datasets"]) == 0
    assert capsys.readouterr().out


def test_many_rows_are_read_in_bounded_memory(tmp_path):
    """A million rows take 6 s and 0.4 GB to read and 20 s to analyse."""
    path, count = tmp_path / "many.csv", 20_000
    lines = [f"algorithm{i % 5},{i // 5 % 4},set{i // 20 % 10},{i // 200},ood,{i % 97 / 97:.4f}\n" for i in range(count)]
    path.write_text("algorithm,run,dataset,epoch,split,accuracy\n" + "".join(lines))
    records.load([path])  # imports are not counted
    tracemalloc.start()
    assert len(records.load([path])) == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1000 * count


def test_parquet_gives_what_csv_gives(tmp_path):
    frame = pd.DataFrame({"algorithm": list("aabb"), "run": [0, 1, 0, 1], "dataset": "d", "accuracy": [0.5, 0.6, 0.7, 0.75], "extra": 1})
    frame.to_csv(tmp_path / "scores.csv", index=False)
    frame.to_parquet(tmp_path / "scores.parquet")
    one, other = (records.load([tmp_path / name]) for name in ("scores.csv", "scores.parquet"))
    pd.testing.assert_frame_equal(one, other, check_dtype=False)
    assert [text.rpartition(": ")[2] for text in other.attrs["unused_columns"]] == ["extra"]
