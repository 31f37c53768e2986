"""What `jaxbed stats` reads: tables as programs and spreadsheets write them, the columns and names in them, and what it says of inputs."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import analyses
import pytest

from jaxbed.stats import main, names
from jaxbed.stats.figures import drawing, style
from jaxbed.stats.reading import records

HEADER = "algorithm,run,dataset,accuracy"
SETS = ("Kante", "Umriß")
ALONE = ("--exclude", "lff")  # both algorithms of ROWS are read and one is left, so that nothing is compared, which takes its time
ROWS = [(name, run, dataset, 50.25 + run + 3 * (name == "lff")) for name in ("erm", "lff") for run in (1, 2, 3) for dataset in SETS]


@pytest.fixture(autouse=True, scope="module")
def of_few_draws():
    with analyses.of_few_draws():
        yield


def table(separator: str = ",", decimal: str = ".", ending: str = "", header: str = HEADER) -> str:
    """The scores ROWS; `ending` follows every number."""
    lines = [[name, str(run), dataset, f"{value:.2f}".replace(".", decimal) + ending] for name, run, dataset, value in ROWS]
    return "\n".join([header.replace(",", separator), *map(separator.join, lines), ""])


def stats(capsys, *arguments: object) -> tuple[int, str]:
    """Exit code and text, without line breaks, of `jaxbed stats`, which refuses with one message and nothing else."""
    code = main.main([*map(str, arguments), "--permutations", "100"])
    out, err = capsys.readouterr()
    err = "".join(line for line in err.splitlines(keepends=True) if not line.endswith(" ...\n"))  # stages
    assert (code == 0) == bool(out) == (not err) and "Traceback" not in err and code in (0, 2)
    return code, re.sub("[ \n]+", " ", out + err).strip()


@pytest.fixture
def without_figures(monkeypatch):
    """They take longer than the rest of a report, and test_stats_figures looks at them."""
    monkeypatch.setattr(drawing, "draw", lambda folder, analysis: [])


def write(folder: Path, content: str | bytes, name: str = "scores.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(path: Path) -> list[tuple]:
    frame = records.load([path])
    return list(zip(frame["algorithm"], frame["run"], frame["dataset"], frame["value"], strict=True))


def zipped(name: str, text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, text)
    return content.getvalue()


def archived(name: str, text: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        (about := tarfile.TarInfo(name)).size = len(text.encode())
        archive.addfile(about, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (table(), ""),
        (b"\xef\xbb\xbf" + table().replace("\n", "\r\n").encode(), ""),
        (table().replace("\n", "\r"), ""),
        (table(";"), ""),
        (table(";", ","), "commas in accuracy are decimal commas ('51,25' is 51.25)"),
        (table("\t", ","), "commas in accuracy are decimal commas"),
        (table("|"), ""),
        ("sep=;\r\n" + table(";", ","), "commas in accuracy are decimal commas"),
        ("sep=\t\n" + table("\t"), ""),
        (table(";", '","').replace('"', "").replace(";5", ';"5').replace("25\n", '25"\n').replace(";", ","), "are decimal commas"),
        (table().encode("utf-16"), ""),
        (table("\t", ",").encode("utf-16"), "commas in accuracy are decimal commas"),
        (table().encode("utf-32"), ""),
        (gzip.compress(table().encode()), ""),
        (bz2.compress(table().encode()), ""),
        (lzma.compress(table().encode()), ""),
        (gzip.compress(table(";", ",").encode("utf-16")), "commas in accuracy are decimal commas"),
        ("# made by a script\n#\n" + table().replace("lff,1,K", "# half\nlff,1,K"), "3 comment line(s) skipped, the first is line 1"),
        (table(ending=",,", header=f"{HEADER},,") + ",,,,,\n", ""),
        (table(ending=",", header=f"{HEADER},") + ",,,,\n\n", ""),
        (table(ending=",,"), ""),
        (table(ending="%"), "accuracy has percent signs: its numbers are read as percent"),
        (table(ending=" %"), "accuracy has percent signs"),
        (table(ending=" ± 0.3"), "accuracy has values like '51.25 ± 0.3': what follows ± is ignored"),
        (table(";", ",", ending=" +/- 0,3 %"), "what follows ± is ignored"),
        (table().replace("erm,1,K", "erm ,1, K"), ""),
    ],
)
def test_one_table_in_the_forms_that_programs_write(tmp_path, capsys, content, note):
    path = write(tmp_path, content)
    code, text = stats(capsys, path, *ALONE)
    assert code == 0 and note in text and ("READ_AS" in text) == bool(note) and "UNUSED" not in text
    assert rows(path) == ROWS


def test_a_minus_sign_of_unicode_is_one(tmp_path):
    assert [row[3] for row in rows(write(tmp_path, f"{HEADER}\nx,1,A,−0.5\nx,1,B,+0.5\n"))] == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{HEADER}\nx,1,A,0.5\nx,1,B,0.\0005\n", "line 3 contains NUL bytes: it is damaged, or not text"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "the file contains NUL bytes: it is damaged, or not text"),
        (f'{HEADER}\n"x\ny",1,A,0.5\n', "algorithm 'x\\ny' in line 3 holds an invisible character (U+000A"),
        (f"{HEADER}\nx,1,A\u202eB,0.5\n", "dataset 'A\\u202eB' in line 2 holds an invisible character (U+202E, right-to-left override)"),
        (f"{HEADER}\nx\u200b,1,A,0.5\n", "algorithm 'x\\u200b' in line 2 holds an invisible character (U+200B, zero width space)"),
        (f"{HEADER}\nx\x1b[1m,1,A,0.5\n", "invisible character (U+001B"),
        (f"{HEADER}\n{'x' * 3000},1,A,0.5\n", "in line 2 has 3,000 characters, at most 200 are allowed; shorten it"),
        (f'{HEADER}\n"x,1,A,0.5\ny,1,A,0.5\n', "is a quotation mark not closed?"),
        (f"{HEADER}\nx,1,A,{'9' * 200_000}\n", "is a quotation mark not closed?"),
        (f"{HEADER}\nx,1,A,73,6\n", "line 2 has 5 fields, the header 4: 'x,1,A,73,6'; write 73.6, not 73,6"),
        (f"{HEADER},\nx,1,A,73,6\n", "column 5 has no name but holds '6' in line 2; name it in the header"),
        (f"{HEADER},run\nx,1,A,73,6\n", "column name 'run' is repeated"),
        (f'{HEADER}\nx,1,A,"50,250"\nx,2,A,"51,250"\n', "accuracy '50,250' in line 2 is ambiguous: thousands or a decimal comma"),
        (
            f'{HEADER}\nx,1,A,"50,25"\nx,2,A,51.25\n',
            "accuracy '50,25' in line 2 has a comma, other numbers in the column have points (51.25)",
        ),
        ("algorithm;run;dataset;accuracy;n_total\nx;1;A;0,5;50,000\n", "n_total '50,000' in line 2 is ambiguous: thousands"),
        (f"{HEADER}\nx,1,A,50.5%\nx,2,A,0.51\n", "accuracy '0.51' in line 3 has no percent sign, but other numbers in the column do"),
        (f"{HEADER}\nx,1,A,0.4%\nx,2,A,0.5%\n", "accuracy '0.4%' in line 2 and all others in the column are at most 1 %"),
        (f"{HEADER}\nx,1 ± 1,A,0.5\n", "run '1 ± 1' in line 2 is not a number; write it like 1"),
        (f"{HEADER}\nx,1,A,1_000\n", "accuracy '1_000' in line 2 is not a number"),
        (f"# {HEADER}\nx,1,A,0.5\n", f"The comment '# {HEADER}' is skipped: delete its #"),
        (",".join(f"column{place}" for place in range(3000)) + "\n", "column7, column8 and 2991 more; needed are"),
        ("<!DOCTYPE html>\n<html></html>\n", "the file is HTML or XML, perhaps the error page of a failed download"),
        (b"PAR1\x15\x04", "the file is a Parquet file; rename it to end in .parquet"),
        (zipped("[Content_Types].xml", ""), "the file is a spreadsheet workbook; export it as CSV (UTF-8)"),
        (
            table() + table().replace("erm", "jtt"),
            f"line {len(ROWS) + 2} repeats the header; delete it, or pass the joined files one by one",
        ),
        ("dataset,A,B\ns1,1,2\ndataset, A,B\ns2,1,2\n", "line 3 repeats the header"),
        (gzip.compress(gzip.compress(table().encode())), "the file is compressed twice; unpack it once"),
        (gzip.compress(archived("inside.csv", table())), "the file is a tar archive; unpack it and pass the files it contains: tar -xf "),
        (gzip.compress(b"a" * 10_000_001), "line 1 has more than 10,000,000 characters: it is damaged, or not a table of scores"),
        (gzip.compress(table().encode())[:-20], "cannot be decompressed (Compressed file ended before"),
    ],
)
def test_what_is_no_such_table_is_refused_with_a_short_message(tmp_path, capsys, content, message):
    path = write(tmp_path, content)
    code, text = stats(capsys, path)
    assert code == 2 and message in text and f"{path}: " in text
    assert len(text.replace(str(path), "")) < 480


@pytest.mark.parametrize(
    ("name", "content", "made"),
    [
        ("it's 1.csv", table(";", ",").encode("cp1252"), "it's 1-utf8.csv"),
        ("a.csv.gz", gzip.compress(table().encode("cp1252")), "a-utf8.csv"),
        ("a.csv", table().encode("utf-16-le"), "a-utf8.csv"),
        ("a.csv", table().encode("utf-16-be"), "a-utf8.csv"),
        ("a $b.zip", zipped("inside.csv", table()), "a $b-unpacked/inside.csv"),
        ("a.json", json.dumps([dict(zip(HEADER.split(","), row, strict=True)) for row in ROWS]), "scores.csv"),
        ("a.json", json.dumps([dict(zip(HEADER.split(","), row, strict=True)) for row in ROWS], indent=1), "scores.csv"),
        ("a.jsonl", "\n".join(json.dumps(dict(zip(HEADER.split(","), row, strict=True))) for row in ROWS), "scores.csv"),
    ],
)
def test_the_printed_cure_cures_when_pasted(tmp_path, capsys, name, content, made):
    path = write(tmp_path, content, name)
    code, text = stats(capsys, path)
    assert code == 2 and f"{path}: " in text
    shell = text[text.index("python -") :].partition(". If names")[0]
    command = [sys.executable, *shlex.split(shell)[1:]]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert rows(tmp_path / made) == ROWS


def test_a_folder_that_is_no_workdir_is_answered_with_what_is_in_it(tmp_path, capsys):
    path = write(tmp_path, table())
    code, text = stats(capsys, tmp_path)
    assert code == 2 and f"{tmp_path} is not a workdir (config.json is missing): pass what it contains: {path}" in text
    (tmp_path / "run").mkdir()
    assert "pass the folder of a run, or a CSV file of scores" in stats(capsys, tmp_path / "run")[1]
    write(tmp_path / "run", "{}", "config.json")
    assert f"pass what it contains: {tmp_path}/run" in stats(capsys, tmp_path)[1]


# Columns


@pytest.mark.parametrize(
    ("header", "note"),
    [
        ("method,seed,benchmark,Acc", "read column method as algorithm, seed as run, benchmark as dataset, Acc as accuracy"),
        ("Algorithm,RUN,Data Set,Accuracy", ""),
        ("model,trial,data_set,score", "read column model as algorithm, trial as run, score as accuracy"),
    ],
)
def test_synonyms_are_read_and_told(tmp_path, capsys, header, note):
    path = write(tmp_path, table(header=header))
    code, text = stats(capsys, path, *ALONE)
    assert code == 0 and note in text and ("READ_AS" in text) == bool(note) and rows(path) == ROWS


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("algorithm,seed,dataset,accuracy,trial", "columns 'seed', 'trial' could all be the run; choose one: --columns run=seed"),
        ("algorithm,Run,dataset,accuracy,run", "columns 'Run', 'run' could all be the run"),
        ("algorithm,run,dataset,acc,score", "columns 'acc', 'score' could all be the accuracy"),
        ("algorithm,number,dataset,accuracy,x", "column 'run' is missing, found algorithm, number, dataset, accuracy, x; needed are"),
        ("algorithm,seed,dataset,metric,Accuracy", "column 'value' is missing, found algorithm, seed, dataset, metric, Accuracy"),
    ],
)
def test_columns_that_could_be_meant_are_asked_for_by_the_names_of_the_file(tmp_path, capsys, header, message):
    code, text = stats(capsys, write(tmp_path, table(header=header, ending=",7")))
    assert code == 2 and message in text


def test_the_own_names_of_the_file_are_in_messages_about_cells(tmp_path, capsys):
    path = write(tmp_path, "Method,Seed,dataset,Acc\nx,1,A,0.5\ny,1.5,A,high\n")
    assert "Acc 'high' in line 3 is not a number" in stats(capsys, path)[1]
    assert "Seed '1.5' in line 3 is not a whole number" in stats(capsys, write(tmp_path, path.read_text().replace("high", "1")))[1]


@pytest.mark.usefixtures("without_figures")
def test_columns_are_mapped_by_hand(tmp_path, capsys):
    path = write(tmp_path, table(";", header="who,no,where,top-1_ %,accuracy", ending=";1").replace("_", ","))
    code, text = stats(capsys, path, "--columns", "algorithm=who,run=NO,dataset=where,accuracy=top-1, %", "--out", tmp_path / "out")
    assert code == 0 and "read column who as algorithm, no as run, where as dataset, top-1, % as accuracy" in text
    assert "columns that are not used: " in text
    found = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert found["scores"]["cells"][0]["mean"] == 52.25 and found["columns"]
    for asked, message in (
        ("run=nope", "--columns run=nope: no such column; the file has who, no, where, top-1, %, accuracy"),
        ("seed=no", "--columns 'seed=no': write COLUMN=NAME"),
        ("run", "--columns 'run': write COLUMN=NAME"),
        ("run=no,run=who", "run is given twice, 'no' and 'who'"),
    ):
        code, text = stats(capsys, path, "--columns", asked)
        assert code == 2 and message in text


WIDE = "dataset,A,B C\ns1,0.90,0.8\ns2,0.91,0.81\ns3,0.92,\n"


def test_wide_tables_are_read_either_way(tmp_path, capsys):
    path = write(tmp_path, WIDE)
    code, text = stats(capsys, path, "--missing", "drop")
    assert code == 0 and "one row per dataset, one column per algorithm (A, B C); all scores count as run 1" in text
    expected = [("A", 1, "s1", 0.9), ("A", 1, "s2", 0.91), ("A", 1, "s3", 0.92), ("B C", 1, "s1", 0.8), ("B C", 1, "s2", 0.81)]
    assert rows(path) == expected
    turned = write(tmp_path, "Method;s1;s2;s3\nA;0,90 ± 0,1;0,91;0,92\nB C;0,8;0,81;–\n", "turned.csv")
    assert "one row per algorithm, one column per dataset" in stats(capsys, turned, "--missing", "drop")[1]
    assert sorted(rows(turned)) == expected
    runs = write(tmp_path, "dataset,seed,A,B\ns1,3,0.9,0.8\ns1,4,0.7,0.6\n", "runs.csv")
    assert [row[1] for row in rows(runs)] == [3, 4, 3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WIDE + "Average,0.91,0.8\n", "dataset 'Average' looks like a summary of the others"),
        ("method,s1,s2,Avg.\nA,1,2,1.5\n", "dataset 'Avg.' looks like a summary"),
        (WIDE + "s1,0.9,0.8\n", "2 repeated row(s), first accuracy of 'A' run 1 on 's1'"),
        ("dataset,A,comment\ns1,0.5,fine\n", "score 'fine' in line 2 is not a number"),
        ("dataset,size,chance\ns1,100,0.1\n", "column 'algorithm', 'run', 'accuracy' is missing, found dataset, size, chance"),
        (
            WIDE.replace(",B C", ",A std"),
            "column 'A std' looks like the standard deviation of 'A'; delete it, or write the spread after the score",
        ),
        ("method,s1,std_s1\nA,1,2\n", "column 'std_s1' looks like the standard deviation of 's1'"),
        ("method,s1,s2,Mean\nA,1,2,1.5\n", "dataset 'Mean' looks like a summary"),
        ("dataset,A,B\ns1,1,2\ns2,,\n", "dataset 's2' has no score; delete its row, or add the scores"),
        ("dataset,A,B\ns1,1,\ns2,2,-\n", "algorithm 'B' has no score; delete its column, or add the scores"),
        (",s1,s2\nA,1,2\n", "The first column has no name: in a wide table it must be called algorithm or dataset"),
        ("dataset,A,a\ns1,0.5,0.6\n", "algorithms 'A' and 'a' differ only in case"),
    ],
)
def test_wide_tables_that_are_refused(tmp_path, capsys, text, message):
    code, found = stats(capsys, write(tmp_path, text))
    assert code == 2 and message in found


# Names


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ERM", "erm"),
        ("a b", "a_b"),
        ("ResNet-18", "resnet18"),
        ("a\u00a0b", "a b"),
        ("ﬁne", "fine"),
        ("Straße", "STRASSE"),
        ("x–1", "x-1"),
    ],
)
@pytest.mark.parametrize("column", ["algorithm", "dataset"])
def test_names_that_a_reader_takes_for_one_are_refused_or_renamed(tmp_path, capsys, one, other, column):
    lines = [f"{name},{run},d" if column == "algorithm" else f"m,{run},{name}" for run, name in ((1, one), (2, other))]
    path = write(tmp_path, "\n".join([HEADER, *(f"{line},0.5" for line in lines)]))
    code, text = stats(capsys, path)
    assert code == 2 and f"{column}s {one!r} and {other!r} differ only in case, spaces, _, - or Unicode form" in text
    cure = shlex.split(re.search(r"if they are the same, (--rename .*); if not", text)[1])
    assert stats(capsys, path, *cure)[0] == 0
    assert stats(capsys, path, "--rename", f"{other}=another")[0] == 0


@pytest.mark.parametrize(("one", "other"), [("q=1", "q=-1"), ("lr=1e-4", "lr=1e4"), ("v1_0", "v10"), ("a+b", "ab"), ("L1", "L2")])
def test_names_that_say_something_else_are_two(one, other):
    assert names.key(one) != names.key(other)


def test_composed_and_decomposed_accents_are_one_name(tmp_path):
    path = write(tmp_path, f"{HEADER}\nD\u00e9bias\u00e9,1,A,0.5\nDe\u0301biase\u0301,2,A,0.6\n")
    assert {row[0] for row in rows(path)} == {"D\u00e9bias\u00e9"}


CASE = [f"{('ERM', 'erm')[run > 2] if name == 'e' else name},{run},{d},{50 + run + 9 * (name == 'LfF') + ord(d) % 3}" for run in range(6)
        for name in ("e", "LfF") for d in "ABCDEF"]  # fmt: skip


@pytest.mark.usefixtures("without_figures")
def test_with_one_spelling_six_wins_of_six_are_found(tmp_path, capsys):
    path = write(tmp_path, "\n".join([HEADER, *CASE]))
    assert stats(capsys, path)[0] == 2
    code, _ = stats(capsys, path, "--rename", "erm=ERM", "--out", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert code == 0 and found["algorithms"] == ["ERM", "LfF"] and found["friedman"]["p"] == pytest.approx(2 / 64)
    assert "--rename erm=ERM" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope=x"], "--rename nope=x: write OLD=NEW, where OLD is one of the algorithms ERM, LfF, erm; datasets A, B, C, D, E, F"),
        (["erm"], "--rename erm: write OLD=NEW"),
        (["erm="], "the new name is empty"),
        (["erm=x\ny"], "the new name holds an invisible character"),
        (["erm=x", "erm=y"], "'erm' is renamed twice"),
        (["erm=LfF", "ERM=x"], "18 repeated row(s), first accuracy of 'LfF' run 3 on 'A'"),
        (["erm=ERM", "A=b"], "datasets 'b' and 'B' differ only in case"),
    ],
)
def test_renames_that_are_refused(tmp_path, capsys, arguments, message):
    path = write(tmp_path, "\n".join([HEADER, *CASE]))
    code, text = stats(capsys, path, *(word for text in arguments for word in ("--rename", text)))
    assert code == 2 and message in text


@pytest.mark.usefixtures("without_figures")
def test_names_are_one_across_all_inputs(tmp_path, capsys):
    path = write(tmp_path, "\n".join([HEADER, *CASE]).replace("erm", "ERM"))
    second = write(tmp_path, f"{HEADER}\nlff,9,A,0.5\n", "second.csv")
    roles = write(tmp_path, "Dataset;Role;trained_on\na;ood;lff\nB;ood;\n", "roles.csv")
    printed = write(tmp_path, "algorithm,dataset,mean\nErm,A,50\n", "table.csv")
    for arguments, message in (
        ([second], f"{path} and {second}: algorithms 'LfF' and 'lff'"),
        (["--roles", roles], f"{path} and {roles}: algorithms 'LfF' and 'lff'"),
        (["--roles", roles, "--rename", "lff=LfF"], f"{path} and {roles}: datasets 'A' and 'a'"),
        (["--table", printed], f"{path} and {printed}: algorithms 'ERM' and 'Erm'"),
        (["--last-scores", second], f"{path} and {second}: algorithms 'LfF' and 'lff'"),
    ):
        code, text = stats(capsys, path, *arguments)
        assert code == 2 and message in text
    out = tmp_path / "out"
    assert stats(capsys, path, "--roles", roles, "--rename", "lff=LfF", "--rename", "a=A", "--out", out)[0] == 0
    assert json.loads((out / "stats.json").read_text())["in_distribution"] == [["LfF", "A"]]


@pytest.mark.usefixtures("without_figures")
def test_names_on_the_command_line_are_forgiven_or_suggested(tmp_path, capsys):
    path, out = write(tmp_path, "\n".join([HEADER, *CASE]).replace("erm", "ERM")), tmp_path / "out"
    code, _ = stats(capsys, path, "--baseline", "lff", "--datasets", "a,B", "--exclude", "e_r-m:0", "--out", out)
    found = json.loads((out / "stats.json").read_text())
    assert code == 0 and found["baseline"] == "LfF" and found["datasets"] == ["A", "B"]
    assert found["excluded"] == [{"algorithm": "ERM", "runs": [0]}]
    assert "--baseline LfFF: no such algorithm; did you mean LfF? available: ERM, LfF" in stats(capsys, path, "--baseline", "LfFF")[1]


# Cells without runs, files


@pytest.mark.parametrize("question", ["new-datasets", "these-datasets"])
def test_a_cell_without_runs_is_a_dash_in_all_outputs(tmp_path, capsys, monkeypatch, question):
    monkeypatch.setattr(style, "save", lambda figure, *where: ([], figure.draw_without_rendering() or ""))  # drawn, and not written
    lines = [
        f"{name},{run},{d},{50 + run}"
        for name in "xy"
        for run in (1, 2, 3)
        for d in "ABCD"
        if name + d != "yD" and (name, run, d) != ("y", 3, "A")
    ]
    path, out = write(tmp_path, "\n".join([HEADER, *lines])), tmp_path / "out"
    code = main.main([str(path), "--missing", "drop", "--question", question, "--permutations", "100", "--out", str(out)])
    text = capsys.readouterr().out
    assert code == 0 and re.search(r"^y +2 +3 +3 +-$", text, re.MULTILINE) and re.search(r"^y +51.5 ± 0.7 .* - +2-3$", text, re.MULTILINE)
    assert r"& -- \\" in (out / "tables" / "scores.tex").read_text()
    assert "nan" not in (out / "scores.csv").read_text().lower() and ">nan<" not in (out / "report.html").read_text().lower()


def test_nothing_is_written_before_all_is_made(tmp_path, monkeypatch):
    from jaxbed.stats.output import html

    def fail(document):
        raise ValueError("the page cannot be made")

    path, out = write(tmp_path, table()), tmp_path / "out"
    monkeypatch.setattr(html, "page", fail)
    assert main.main([str(path), "--out", str(out), *ALONE]) == 2
    assert not out.exists()


@pytest.mark.usefixtures("without_figures")
def test_inputs_are_identified(tmp_path, capsys):
    path, roles = write(tmp_path, gzip.compress(table().encode()), "a.csv.gz"), write(tmp_path, "dataset,role\nKante,ood\n", "roles.csv")
    out = tmp_path / "out"
    assert stats(capsys, path, "--roles", roles, "--out", out)[0] == 0
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, roles)]
    found = json.loads((out / "stats.json").read_text())["files"]
    assert [(file["path"], file["what"], file["sha256"]) for file in found] == [
        (str(path), "scores", digests[0]),
        (str(roles), "roles", digests[1]),
    ]
    assert all(digest in (out / "report.html").read_text() for digest in digests)
