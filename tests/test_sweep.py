"""Tuning: which runs it makes, what it chooses and by what, and what it refuses."""

import ast
import contextlib
import json
import pathlib
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import tiny
from commands import in_process, options

from jaxbed import cli, command_line, config, main
from jaxbed.system import ending
from jaxbed.training import lock
from jaxbed.tuning import grid, launch, sweep

TESTS = pathlib.Path(__file__).parent
CONFIG = """
import dataclasses

import tiny


def get_config(method="erm"):
    data = dataclasses.replace(tiny.DATA, val_images=64, texture_correlation=0.5)
    return tiny.mlp_config(method, data=data, epochs=2)
"""
STAGES = ("--grid", "optim.lr=1e-1,1e-2,1e-3", "--grid", "net.widths=(8,),(4,8)")


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("config") / "small.py"
    path.write_text(CONFIG)
    return path


def run_here(arguments: list[str]) -> int:
    """What launch.run does in a process of its own."""
    *words, workdir = arguments
    return ending.of(lambda: main.run(command_line.parse(words).cfg, pathlib.Path(workdir.removeprefix("--workdir="))))


def call(words: list, run=run_here) -> tuple[int, list[list[str]]]:
    """(exit code of `jaxbed sweep`, arguments of all its runs)."""
    ran = []

    def recorded(arguments):
        ran.append(arguments)
        return run(arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run", recorded)
        return sweep.main(list(map(str, words))), ran


@pytest.fixture(scope="module")
def swept(file, tmp_path_factory):
    """(workdir, arguments of its runs) of two stages and trials."""
    workdir = tmp_path_factory.mktemp("sweep")
    code, ran = call([f"--config={file}", *STAGES, "--seeds", 2, "--trials", 2, "--workdir", workdir])
    assert code == 0
    return workdir, ran


def best_scores(folder: pathlib.Path) -> np.ndarray:
    """AC score of each seed at its best epoch, from the answers themselves."""
    images = pd.read_csv(folder / "responses" / "val" / "images.csv")
    label, bias = images["label"].to_numpy(), images["cue"].to_numpy()
    found = []
    for path in (folder / "responses" / "val").glob("*.npz"):
        right = np.load(path)["response"] == label
        a, c = right[:, bias == label].mean(1), right[:, bias != label].mean(1)
        found.append(np.where(a + c > 0, 2 * a * c / np.maximum(a + c, 1e-9), 0))
    assert len(found) == 2
    return np.max(found, axis=0)


# The whole protocol


def test_the_best_by_validation_is_chosen_stage_by_stage(swept):
    workdir, _ = swept
    table = pd.read_csv(workdir / "sweep.csv")
    stages = [{word: workdir / "1-optim.lr" / f"lr={float(word)}" for word in ("1e-1", "1e-2", "1e-3")}]
    stages += [{word: workdir / "2-net.widths" / f"widths={word}" for word in ("(8,)", "(4,8)")}]
    chosen = []
    for number, (field, folders) in enumerate(zip(("optim.lr", "net.widths"), stages, strict=True), 1):
        scores = {word: best_scores(folder) for word, folder in folders.items()}
        rows = table[table["stage"] == number]
        assert rows["setting"].tolist() == [f"{field}={word}" for word in scores]
        np.testing.assert_allclose(rows["mean"], [s.mean() for s in scores.values()], atol=1e-6)
        np.testing.assert_allclose(rows["std"], [s.std(ddof=1) for s in scores.values()], atol=1e-6)
        assert (rows["seeds"] == 2).all() and (rows["non_finite"] == 0).all()
        best = max(scores, key=lambda word: scores[word].mean())
        assert len({s.mean() for s in scores.values()}) == len(scores)  # or this test would tell little
        assert rows["chosen"].tolist() == ["yes" if word == best else "no" for word in scores]
        chosen.append(best)
    assert json.loads((workdir / "chosen.json").read_text()) == {
        "optim.lr": float(chosen[0]),
        "net.widths": list(ast.literal_eval(chosen[1])),
    }


def test_numbers_ride_on_one_array_and_all_else_runs_apart_at_what_was_chosen(swept):
    workdir, ran = swept
    chosen = json.loads((workdir / "chosen.json").read_text())
    folders = [pathlib.Path(words[-1].removeprefix("--workdir=")) for words in ran]
    stages = [workdir / "1-optim.lr", workdir / "2-net.widths" / "widths=(8,)", workdir / "2-net.widths" / "widths=(4,8)"]
    assert folders == [*stages, workdir / "trials"]
    array, *apart, trials = map(config.load, folders)
    assert array.grid == ("optim.lr=1e-1,1e-2,1e-3",) and array.net.widths == (8,)
    assert [cfg.net.widths for cfg in apart] == [(8,), (4, 8)] and trials.net.widths == tuple(chosen["net.widths"])
    for cfg in (*apart, trials):
        assert cfg.optim.lr == chosen["optim.lr"] and cfg.grid == () and cfg.name == "erm"
    assert all((cfg.first_seed, cfg.seeds) == (0, 2) for cfg in (array, *apart))
    assert (trials.first_seed, trials.seeds) == (2, 2)  # which tuning has not seen


def test_the_same_command_trains_nothing_anew(swept, file, capsys):
    workdir, first = swept

    def kept():
        paths = [p for p in workdir.rglob("*") if p.is_file() and ("checkpoints" in p.parts or p.suffix == ".npz")]
        return {p: p.stat().st_mtime_ns for p in paths}, (workdir / "sweep.csv").read_bytes(), (workdir / "chosen.json").read_bytes()

    before = kept()
    code, ran = call([f"--config={file}", *STAGES, "--seeds", 2, "--trials", 2, "--workdir", workdir])
    assert code == 0 and ran == first and kept() == before
    logs = [json.loads(line)["kind"] for path in workdir.rglob("log.jsonl") for line in path.read_text().splitlines()]
    assert logs.count("epoch") == 2 * len(ran)
    shown = capsys.readouterr().out
    assert "tuning on seeds 0-1 by validation ac_score, trials on seeds 2-3" in shown and "Epoch selection: ac_score" in shown


def test_tuning_evaluates_validation_images_alone_and_their_answers_choose(swept, tmp_path):
    workdir = shutil.copytree(swept[0], tmp_path / "copy")
    table = pd.read_csv(workdir / "sweep.csv").query("stage == 1")
    folders = [workdir / "1-optim.lr" / f"lr={lr}" for lr in (0.1, 0.01, 0.001)]
    settings = {folder: {"optim.lr": str(place)} for place, folder in enumerate(folders)}
    asked = sweep.Sweep([], 2, 0, "ac_score", workdir, None)

    place = table["chosen"].tolist().index("yes")
    assert all([path.parent.name for path in (folder / "responses").glob("*/images.csv")] == ["val"] for folder in folders)
    assert len(list((workdir / "trials" / "responses").glob("*/images.csv"))) == 7
    part = sweep.Tuning(workdir, [], "val")
    assert sweep.judge(part, 1, settings, asked) == {"optim.lr": str(place)}
    for name in ("mean", "std", "aligned"):
        np.testing.assert_array_equal([row[name] for row in part.rows], table[name])
    for path in (folders[place - 1] / "responses" / "val").glob("*.npz"):  # another one answers everything rightly
        label = pd.read_csv(path.parent / "images.csv")["label"].to_numpy()
        content = {name: array for name, array in np.load(path).items() if name != "digest"}
        np.savez(path, **content | {"response": np.tile(label, (2, 1)).astype(np.int16)})
    assert sweep.judge(sweep.Tuning(workdir, [], "val"), 1, settings, asked) == {"optim.lr": str((place - 1) % 3)}


def test_separate_runs_give_the_numbers_of_the_array(swept, file, tmp_path, monkeypatch):
    real = sweep.prepare
    monkeypatch.setattr(sweep, "prepare", lambda *given: (real(*given)[0], set()))
    words = [f"--config={file}", "--grid", "optim.lr=1e-2,1e-3", "--seeds", 2, "--trials", 0, "--workdir", tmp_path]
    code, ran = call(words)
    assert code == 0 and len(ran) == 2 and not (tmp_path / "trials").exists()
    for name in ("lr=0.01", "lr=0.001"):
        for epoch in (1, 2):
            path = pathlib.Path("1-optim.lr", name, "responses", "val", f"{epoch}.npz")
            alone, member = np.load(tmp_path / path)["response"], np.load(swept[0] / path)["response"]
            assert (alone != member).mean() < 0.02  # rounding may turn a near tie
    table, array = (pd.read_csv(folder / "sweep.csv").query("stage == 1").set_index("setting") for folder in (tmp_path, swept[0]))
    np.testing.assert_allclose(table["mean"], array["mean"][table.index], atol=0.03)


def test_a_command_from_start_to_end(file, tmp_path, monkeypatch):
    """In this process, from which it starts a process for its run."""
    words = ["sweep", f"--config={file}", "--config.epochs=1", "--grid", "optim.lr=1e-1,1e-2", "--seeds", "1", "--trials", "0"]
    for name, value in options(tmp_path, PYTHONPATH=f"{TESTS.parent}:{TESTS}")["env"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["jaxbed", *words])
    done = in_process(tmp_path, lambda _: cli.main())
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "small-shapes,epochs=1-sweep"
    assert len(pd.read_csv(folder / "sweep.csv")) == 2 and f"chosen in {folder.relative_to(tmp_path)}: optim.lr=" in done.stdout


# What is chosen of given answers


def answers(folder: pathlib.Path, *epochs: list[str]) -> pathlib.Path:
    """A run's folder with a validation split of 4 aligned and 4 conflicting images; each seed's answers are written 'RRRR WWWW'."""
    (folder / "responses" / "val").mkdir(parents=True)
    (folder / "config.json").write_text('{"name": "A"}')
    sets = {"val": {"role": "val", "decision": "argmax"}}
    (folder / "responses" / "sets.json").write_text(
        json.dumps({"data": {"name": "d", "cue": "colour"}, "classes": ["0", "1"], "sets": sets})
    )
    frame = pd.DataFrame({"name": range(8), "label": 1, "cue": [1] * 4 + [0] * 4})
    frame.to_csv(folder / "responses" / "val" / "images.csv", index=False)
    for epoch, seeds in enumerate(epochs, 1):
        response = np.array([[letter == "R" for letter in text.replace(" ", "")] for text in seeds], np.int16)
        content = {"response": response, "seeds": np.arange(len(seeds)), "alive": np.ones(len(seeds), bool)}
        np.savez(folder / "responses" / "val" / f"{epoch}.npz", **content)
    return folder


def judged(tmp_path, settings: dict[str, pathlib.Path], criterion: str = "ac_score", seeds: int = 1) -> tuple[str, pd.DataFrame]:
    part = sweep.Tuning(tmp_path, [], "val")
    named = {folder: {"x": name} for name, folder in settings.items()}
    chosen = sweep.judge(part, 1, named, sweep.Sweep([], seeds, 0, criterion, tmp_path, None))
    return chosen["x"], pd.read_csv(tmp_path / "sweep.csv")


def test_each_seed_counts_at_the_epoch_it_selects(tmp_path):
    own = answers(tmp_path / "a", ["RRRR RRWW", "RWWW RWWW"], ["RRRR RWWW", "RRWW RRRR"])
    other = answers(tmp_path / "b", ["RRWW RRWW", "RRRR RRWW"])
    chosen, table = judged(tmp_path, {"own": own, "other": other}, seeds=2)
    two_thirds = 2 * 1 * 0.5 / 1.5
    assert chosen == "own"
    np.testing.assert_allclose(table["mean"], [two_thirds, (0.5 + two_thirds) / 2], atol=1e-8)
    np.testing.assert_allclose(table["std"], [0, (two_thirds - 0.5) / 2**0.5], atol=1e-8)
    np.testing.assert_allclose(table["aligned"], [0.75, 0.75])


def test_of_tied_settings_the_higher_aligned_accuracy_then_the_earlier_is_chosen(tmp_path, capsys):
    conflicting = answers(tmp_path / "c", ["RRWW RRRR"])
    aligned, same = answers(tmp_path / "a", ["RRRR RRWW"]), answers(tmp_path / "s", ["RRRR WWRR"])
    worse = answers(tmp_path / "w", ["RRRR WWWW"])
    chosen, table = judged(tmp_path, {"conflicting": conflicting, "first": aligned, "second": same, "worse": worse})
    assert chosen == "first" and table["tied"].tolist() == [3, 3, 3, 1] and table["chosen"].tolist() == ["no", "yes", "no", "no"]
    assert "x=first  66.7 ± nan  one of 3 tied, chosen" in capsys.readouterr().out
    assert judged(tmp_path, {"second": same, "first": aligned, "conflicting": conflicting})[0] == "second"


def test_another_criterion_chooses_another_setting(tmp_path):
    even, uneven = answers(tmp_path / "e", ["RRRW RRRW"]), answers(tmp_path / "u", ["RRRR RRRW"])
    lopsided = answers(tmp_path / "l", ["RRRR RRWW"])
    settings = {"lopsided": lopsided, "even": even}
    assert judged(tmp_path, settings)[0] == "even"  # 0.75 over 0.667
    assert judged(tmp_path, settings, "best_val")[0] == judged(tmp_path, settings, "avg_acc")[0] == "lopsided"  # equal; more aligned
    assert judged(tmp_path, settings | {"uneven": uneven}, "worst_group")[0] == "uneven"


def test_a_setting_with_a_seed_that_became_non_finite_loses_and_says_so(tmp_path, capsys):
    better = answers(tmp_path / "b", ["RRRR RRRR", "RWWW RWWW"], ["RRRR RRRR", "RWWW RWWW"])
    last = better / "responses" / "val" / "2.npz"
    np.savez(last, **dict(np.load(last)) | {"alive": np.array([True, False])})
    worse = answers(tmp_path / "w", ["RWWW RWWW", "RWWW RWWW"])
    dead = tmp_path / "d"
    dead.mkdir()
    (dead / "log.jsonl").write_text('{"kind": "header"}\n{"kind": "epoch", "alive": [false, false]}\n{"kind": "message"}\n')
    chosen, table = judged(tmp_path, {"better": better, "worse": worse, "dead": dead, "in its array": dead / "lr=1.0"}, seeds=2)
    assert chosen == "worse" and table["seeds"].tolist() == [1, 2, 0, 0] and table["non_finite"].tolist() == [1, 0, 2, 2]
    assert "x=better  100.0 ± nan  1 of 2 seeds became non-finite" in capsys.readouterr().out
    with pytest.raises(ValueError, match="stage 1: every setting has a seed that became non-finite; try lower"):
        judged(tmp_path, {"better": better, "dead": dead}, seeds=2)
    with pytest.raises(FileNotFoundError, match="nowhere"):  # not trained is not dead
        judged(tmp_path, {"nowhere": tmp_path / "nowhere"})


def test_a_run_all_of_whose_seeds_die_does_not_end_the_sweep(file, tmp_path):
    grids = ["--grid", "optim.rule=adam,sgd", "--config.optim.lr=1e30", "--config.optim.momentum=0"]
    code, ran = call([f"--config={file}", "--config.epochs=1", *grids, "--seeds", 1, "--trials", 0, "--workdir", tmp_path])
    assert code == 2 and len(ran) == 2  # every setting lost, after both had run
    assert pd.read_csv(tmp_path / "sweep.csv")["non_finite"].tolist() == [1, 1]


# Which runs


def test_every_ratio_is_tuned_by_itself(file, tmp_path):
    right = {("0.5", "16"): "RRRR RRRR", ("0.25", "32"): "RRRR RRRR"}

    def fake(arguments):
        folder = pathlib.Path(arguments[-1].removeprefix("--workdir="))
        said = dict(word.split("=", 1) for word in arguments)
        key = said["--config.data.texture_correlation"], said["--config.batch_size"]
        shutil.rmtree(folder, ignore_errors=True)
        answers(folder, [right.get(key, "RWWW RWWW")] * 3)
        return 0

    words = [
        f"--config={file}",
        '--config.grid=("data.texture_correlation=0.5,0.25",)',
        "--config.net.widths=(7,)",
        "--config.first_seed=4",
    ]
    _, ran = call([*words, "--grid", "batch_size=16,32", "--grid", "net.widths=(8,),(9,)", "--workdir", tmp_path], fake)
    found = {pathlib.Path(arguments[-1].removeprefix("--workdir=")): arguments[:-1] for arguments in ran}
    assert len(ran) == len(found) == 2 * (2 + 2 + 1)
    for ratio, size in ((0.5, 16), (0.25, 32)):
        part = tmp_path / f"texture_correlation={ratio}"
        assert json.loads((part / "chosen.json").read_text()) == {"batch_size": size, "net.widths": [8]}
        assert len(pd.read_csv(part / "sweep.csv")) == 4
        first, trials = (command_line.parse(found[part / name]).cfg for name in ("1-batch_size/batch_size=32", "trials"))
        assert first.net.widths == (7,) and (first.first_seed, first.seeds, first.batch_size) == (4, 3, 32)
        assert trials.net.widths == (8,) and (trials.first_seed, trials.seeds, trials.batch_size) == (7, 5, size)
        assert first.grid == trials.grid == () and first.data.texture_correlation == trials.data.texture_correlation == ratio


def test_fields_of_one_grid_are_tried_in_all_combinations(tmp_path):
    stage = {"optim.lr": ["1e-1", "1e-2"], "method.variant": ["paper", "biasbed"], "optim.weight_decay": ["0", "1e-4"]}
    runs, settings = sweep.plan(sweep.Tuning(tmp_path, ["--config=c.py"], "val"), 2, stage, {"optim.lr", "optim.weight_decay"}, 3, 10)
    at = tmp_path / "2-optim.lr-method.variant-optim.weight_decay"
    assert list(runs) == [at / "variant=paper", at / "variant=biasbed"]
    entries = "--config.grid=('optim.lr=1e-1,1e-2', 'optim.weight_decay=0,1e-4')"
    assert runs[at / "variant=paper"] == [
        *("--config=c.py", "--config.method.variant=paper", "--config.seeds=3", "--config.first_seed=10", entries),
        "--config.eval.sets=('val',)",
        f"--workdir={at / 'variant=paper'}",
    ]
    assert len(settings) == 8 and list(settings.values())[1] == {
        "optim.lr": "1e-1",
        "method.variant": "paper",
        "optim.weight_decay": "1e-4",
    }
    assert list(settings)[2] == at / "variant=biasbed" / "lr=0.1,weight_decay=0"


@pytest.mark.parametrize(("method", "own"), [("lff", set()), ("end", {"alpha", "beta"})])
def test_what_rides_on_an_array_is_what_the_method_says(file, tmp_path, method, own):
    asked = sweep.Sweep([], 3, 0, "ac_score", tmp_path, None)
    cfg = command_line.parse([f"--config={file}:{method}"]).cfg
    (part,), riding = sweep.prepare(asked, cfg, ["word"])
    assert (part.folder, part.words) == (tmp_path, ["word"])
    assert {name for name in riding if name.startswith("optim.")} == {f"optim.{name}" for name in {"lr", "weight_decay", *own}}
    assert "method.q" not in riding and all(f"method.{name}" in riding for name in own)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--grid optim.lr", "write FIELD=VALUE,VALUE"),
        ("--grid optim.lr=1e-1,0.1", "each field and value once"),
        ("--grid optim.lr=1e-1,", "each field and value once"),
        ("--grid optim.lr=1 optim.lr=2", "each field and value once"),
        ("--grid optim.lr=1 --grid optim.lr=2", "optim.lr is there twice"),
        ("--grid optim.lr=0.1,fast", "optim.lr must be a number, 0 or more, as 0.01"),
        ("--grid optim.speed=1", "no field 'speed' among rule, lr"),
        ("--grid optim=1", "name one of its fields, optim.rule, optim.lr"),
        ("--grid optim.lr.x=1", "optim.lr is a single value, 0.01, and has no field 'x'"),
        ("--grid seeds=1,2", "see --seeds and --trials"),
        ("--grid data.texture_correlation=0.5,0.25", "--config.grid='(\"data.texture_correlation=...\",)'"),
        ("--grid batch_size=16 --config.seeds=4", "seeds to tune on are given as --seeds"),
        ("--grid batch_size=16 --config.grid=('optim.lr=1,2',)", "--grid optim.lr=VALUE,VALUE"),
        ("--grid batch_size=16 --confg.epochs=4", "--confg.epochs=4 is unknown"),
        ("--grid batch_size=16 --seeds 0", "at least one seed"),
        ("--grid batch_size=16 --criterion oracle", "not a score on a validation split: allowed are best_val, ac_score"),
        ("--grid batch_size=16 --criterion best", "unknown selection rule"),
        ("--grid batch_size=16 --config.eval.sets=edge", "0 validation splits"),
        ("--grid batch_size=16 --config.data.texture_correlation=1.0", "64 and 0: take --criterion best_val"),
        ("--grid batch_size=16 --config.batch_size=100", "batch_size = 100 is larger"),
        ("--grid batch_size=16 --slurm nodes=1", "add --launcher submitit"),
        ("--grid batch_size=16 --grid optim.lr=0.1,-1", "optim.lr = -1.0: must be a number, 0 or more"),
        ("--grid batch_size=16 --grid net.dtype=float32,float64", "net.dtype must be one of float32, bfloat16"),
        ("--grid net.widths=4,8", "net.widths holds several values, now (8,); write each choice in brackets"),
        ("--grid optim.milestones_epochs=(1,),2", "optim.milestones_epochs holds several values"),
    ],
)
def test_wrong_calls_are_refused_before_anything_runs(file, tmp_path, capsys, words, message):
    code, ran = call([f"--config={file}", *words.split(" "), "--workdir", tmp_path / "out"])
    assert code == 2 and not ran and not (tmp_path / "out").exists()
    said = capsys.readouterr().err
    assert said.startswith("jaxbed: ") and message in said


def test_a_workdir_that_is_a_file_is_refused(file, capsys):
    code, ran = call([f"--config={file}", "--grid", "batch_size=16", "--workdir", __file__])
    assert code == 2 and not ran and "test_sweep.py is a file; name a directory" in capsys.readouterr().err


def test_with_a_workdir_any_number_of_fields_may_be_given(file, tmp_path, capsys):
    given = [f"--config.data.augment.{name}=0.1" for name in ("flip", "erase", "brightness", "contrast", "saturation", "hue")]
    words = [f"--config={file}", *given, "--config.optim.weight_decay=0.001", "--grid", "batch_size=16", "--trials", "0"]
    code, ran = call(words, lambda arguments: 2)
    assert code == 2 and not ran and "so many fields make no name for a workdir: give --workdir" in capsys.readouterr().err
    with pytest.raises(SystemExit):  # of the run, which fails
        call([*words, "--workdir", tmp_path / "out"], lambda arguments: 2)


def test_numbers_of_a_method_are_checked_before_anything_runs(file, tmp_path, capsys):
    code, ran = call([f"--config={file}:lff", "--grid", "batch_size=16", "--grid", "method.q=0.7,1.5", "--workdir", tmp_path / "out"])
    assert code == 2 and not ran and "method.q = 1.5" in capsys.readouterr().err


def test_a_second_sweep_in_one_workdir_is_refused(file, tmp_path, capsys):
    with lock.held(tmp_path):
        code, ran = call([f"--config={file}", "--grid", "batch_size=16", "--workdir", tmp_path])
    assert code == 2 and not ran and not list(tmp_path.iterdir())
    assert "another process works in" in capsys.readouterr().err


def test_the_command_lists_sweep(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["jaxbed", "--help"])
    assert cli.main() == 0 and "sweep --config=METHOD[:DATA] --grid" in capsys.readouterr().out


def test_values_may_be_tuples_and_folders_have_plain_names():
    assert grid.parse(["net.widths=(8,),(4,8)"], tiny.mlp_config()) == {"net.widths": ["(8,)", "(4,8)"]}
    assert grid.label({"data.train": "/a/b", "data.augment.crop": "padded", "batch_size": "16", "net.widths": "(4, 8)"}) == (
        "train=_a_b,augment.crop=padded,batch_size=16,widths=(4,8)"
    )


# Where runs are executed


def test_a_failed_run_ends_the_sweep_with_its_code(file, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        call([f"--config={file}", "--grid", "batch_size=16,32", "--workdir", tmp_path], lambda arguments: 143)
    assert ended.value.code == 143 and "batch_size=16 ended with code 143; run the same command again to resume" in capsys.readouterr().err


def test_whatever_ends_the_waiting_lets_all_runs_save(tmp_path, monkeypatch):
    """subprocess.run would kill them."""
    script, files = tmp_path / "python", [tmp_path / "one", tmp_path / "other"]
    script.write_text('#!/bin/sh\ntrap "sleep 0.4; touch $1; exit 143" TERM\ntouch $1.ready\nwhile :; do sleep 0.02; done\n')
    script.chmod(0o755)

    def sleep(_seconds):
        if all(file.with_suffix(".ready").exists() for file in files):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(launch.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        list(launch.side_by_side({file.name: [str(file)] for file in files}, 2))
    assert all(file.exists() for file in files)


def test_runs_side_by_side_are_never_more_than_allowed_and_tell_their_codes(tmp_path):
    text = "import os, sys, time; open('{0}', 'w').close(); time.sleep(0.3); os.remove('{0}'); sys.exit({1})"
    commands = {str(code): ["-c", text.format(tmp_path / f"{code}.on", code)] for code in range(4)}
    most, found = 0, []
    for name, code, seconds in launch.side_by_side(commands, 2):
        most = max(most, len(list(tmp_path.glob("*.on"))))
        found.append((name, str(code)))
        assert seconds > 0
    assert sorted(found) == [(name, name) for name in commands] and most <= 2


def test_a_schedulers_jobs_are_sent_at_once_and_cancelled_when_one_fails(tmp_path):
    events = []

    class Job:
        def __init__(self, arguments):
            self.arguments = arguments

        def exception(self):
            return RuntimeError("preempted") if self.arguments == ["b"] else None

        def results(self):
            events.append(("result", *self.arguments))
            return [0, 0]  # of each process

        def done(self):
            return self.arguments == ["a"]

        def cancel(self, check):
            events.append(("cancel", *self.arguments))

    class Executor:
        def batch(self):
            return contextlib.nullcontext()

        def submit(self, function, arguments):
            assert function is launch.run
            events.append(("submit", *arguments))
            return Job(arguments)

    with pytest.raises(SystemExit) as ended:
        launch.submit(Executor(), {tmp_path / name: [name] for name in "abc"})
    assert ended.value.code == 1
    assert events == [*(("submit", name) for name in "abc"), ("result", "a"), ("cancel", "b"), ("cancel", "c")]


def test_each_run_may_spread_over_processes_of_this_machine(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(launch, "side_by_side", lambda commands, jobs: begun.append(commands[""]) or iter([("", 0, 0.0)]))
    launch.choose("local", [], tmp_path, processes=3)({tmp_path: ["--config=erm"]})
    words = ["-m", "jaxbed.cli", "launch", "--processes", "3", "--", sys.executable, "-m", "jaxbed.main", "--config=erm"]
    assert begun == [words]
    with pytest.raises(ValueError, match="--processes 0: must be at least 1"):
        launch.choose("local", [], tmp_path, processes=0)
    with pytest.raises(ValueError, match="--processes 2 are of this machine: for a scheduler, add --slurm nodes=N"):
        launch.choose("submitit", [], tmp_path, processes=2)


def test_submitit_runs_what_it_is_given(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    ran = []
    monkeypatch.setattr(launch, "run", lambda arguments: ran.append(arguments) or 0)
    run = launch.choose("submitit", ["cluster=debug", "timeout_min=5"], tmp_path)
    run({tmp_path / "a": ["1"], tmp_path / "b": ["2"]})
    assert ran == [["1"], ["2"]]
    with pytest.raises(ValueError, match=r"--slurm: .*timeout_min"):
        launch.choose("submitit", ["cluster=debug", "timeout_min=long"], tmp_path)


def test_without_submitit_its_absence_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxbed\[slurm\]'"):
        launch.choose("submitit", [], tmp_path)
    with pytest.raises(ValueError, match="write NAME=VALUE"):
        launch.choose("submitit", ["nodes"], tmp_path)
