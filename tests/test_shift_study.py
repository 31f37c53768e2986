"""The study in small: what it would run, the images and tables it writes, the pairs that evidence reads; and sheets of examples."""

import pathlib
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from test_config import parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxbed import config  # noqa: E402
from jaxbed.data import augmix, noise2net  # noqa: E402
from jaxbed.measures import options  # noqa: E402
from jaxbed.stats.evidence import families, main, runs  # noqa: E402
from scripts import shift_images, shift_sheets, shift_study  # noqa: E402

COUNTS = {"train": 32, "val": 16, "test": 16}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The study's folder with the smallest images of `shapes`."""
    out = tmp_path_factory.mktemp("study")
    shift_images.write("shapes", out, COUNTS, 32)
    return out


def size_of(path):
    with Image.open(path) as image:
        return image.size


# What is run


def test_the_quick_plan_runs_each_method_once_with_its_control(tmp_path, monkeypatch):
    planned = shift_study.plan(tmp_path, "shapes", shift_study.QUICK)
    steps = [step for stage in planned.stages for step in stage]
    given = {step.name: step.words for step in steps}
    names = [method.name for method in planned.methods]
    assert len(given) == len(steps) and [name for name in given if name in names] == names
    of_method = {}
    for method in planned.methods:
        words = given[method.name]
        assert words[:2] == ("-m", "jaxbed.main") and words[-1] == f"--workdir={tmp_path / 'runs' / method.folder}"
        of_method[method.name] = parse(monkeypatch, *words[2:-1])
        config.check(of_method[method.name])
    assert {name: cfg.name for name, cfg in of_method.items()} == {name: name for name in names}
    assert {cfg.seeds for cfg in of_method.values()} == {shift_study.QUICK.seeds}
    for method in planned.methods:  # the same images seen, of one set more or of two
        assert of_method[method.name].epochs * (1 + len(method.images)) == shift_study.QUICK.epochs
        assert pathlib.Path(of_method[method.name].data.table).stem == method.table
    assert len(shift_study.PLAIN) >= 7 and given["evidence"][given["evidence"].index("--line") + 1].split(",") == shift_study.PLAIN_NAMES
    measured, compared = options.parse(given["measure"][3:]).workdirs, main.parse(given["evidence"][3:]).runs
    assert measured == compared and {path.name for path in measured} == {method.folder for method in planned.methods}
    assert not {path.name for path in measured[1:8]} & {method.folder for method in shift_study.PLAIN}


def test_evidence_reads_the_pairs_and_knows_what_each_has_trained_with(tmp_path, monkeypatch):
    methods = [*shift_study.PLAIN, *shift_study.METHODS]
    path = tmp_path / "pairs.csv"
    shift_study.pairs_table(methods).to_csv(path, index=False)
    trained_with = {
        method.name: families.trained_with(config.to_dict(parse(monkeypatch, f"--config={method.config}"))) for method in methods
    }
    pairs = {pair.treated: pair for pair in runs.read_pairs(path, [method.name for method in methods], trained_with)}
    assert list(pairs) == [method.name for method in methods if method.hypothesis] and {pair.control for pair in pairs.values()} == {"ERM"}
    assert "pretraining" not in {pair.hypothesis for pair in pairs.values()}
    assert {name: pair.overlaps for name, pair in pairs.items() if pair.overlaps} == {
        "speckle noise": ("gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise")
    }
    assert pairs["AugMix"].synthetic and not pairs["depth 18"].synthetic


def test_finished_steps_are_skipped_and_a_failure_ends_the_study(tmp_path, monkeypatch):
    called = []

    def step(name, *words):
        return shift_study.Step(name, words, lambda: called.append(name))

    stages = [[step("a", "1")], [step("b", "2")]]
    assert list(shift_study.execute(stages, tmp_path)) == ["a", "b"] and called == ["a", "b"]
    shift_study.execute([stages[0], [step("b", "3")]], tmp_path)
    assert called == ["a", "b", "b"]
    monkeypatch.setattr(shift_study.launch, "side_by_side", lambda words, *_, **__: iter([(next(iter(words)), 130, 0.0)]))
    with pytest.raises(SystemExit) as ended:
        shift_study.execute([*stages, [shift_study.Step("c", ("nothing.py",))]], tmp_path)
    assert ended.value.code == 130


def test_steps_of_a_stage_run_side_by_side_and_each_has_a_log(tmp_path, capsys):
    meet = f"""
import pathlib, sys, time
folder, me, other = pathlib.Path({str(tmp_path)!r}), *sys.argv[1:]
(folder / me).touch()
while not (folder / other).exists():  # for ever, if they ran one after another
    time.sleep(0.01)
print("met", other)
"""
    stage = [shift_study.Step(f"to {other}", ("-c", meet, me, other)) for me, other in (("a", "b"), ("b", "a"))]
    assert set(shift_study.execute([stage], tmp_path, 2)) == {"to a", "to b"}
    assert (tmp_path / "logs" / "to b.log").read_text() == "met b\n" and "== to a ended after" in capsys.readouterr().out
    failing = [shift_study.Step(name, ("-c", f"raise SystemExit({name})")) for name in "30"]
    with pytest.raises(SystemExit) as ended:
        shift_study.execute([failing], tmp_path, 2)
    assert ended.value.code == 3 and str(tmp_path / "logs" / "3.log") in capsys.readouterr().err


def test_several_jobs_measure_each_run_before_all(tmp_path):
    def measured(jobs):
        stages = shift_study.plan(tmp_path, "shapes", shift_study.QUICK, jobs).stages
        return [[options.parse(step.words[3:]).workdirs for step in stage] for stage in stages if stage and "measure" in stage[0].words]

    (together,), *_ = alone = measured(2)[::-1]
    assert measured(1) == [[together]] and {path for (path,) in alone[1]} == set(together)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0"], "--seeds 0 must be at least 1"),
        (["--jobs", "0"], "--jobs 0 must be at least 1"),
        (["--data", "."], "--data . has no sub-folder train"),
    ],
)
def test_wrong_calls_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        shift_study.main(words)
    assert message in capsys.readouterr().err


# Images and tables


def test_tables_list_all_sets_and_those_of_deepaugment(images):
    plain = pd.read_csv(images / "plain.csv", keep_default_na=False)
    assert plain["split"].value_counts().to_dict() == {
        "train": 32, "val": 16, **dict.fromkeys(("test", "silhouette", "edge", "sketch", "stylised", "cue_conflict"), 16)
    }  # fmt: skip
    assert all((images / "images" / file).is_file() for file in plain["file"])
    shift_images.join(images, ("cae", "edsr"))
    both = pd.read_csv(images / "cae_edsr.csv", keep_default_na=False)
    more = both.iloc[len(plain) :]
    assert len(both) == len(plain) + 64 and set(more["split"]) == {"train"}
    assert more["file"].str.split("/").str[0].unique().tolist() == ["cae", "edsr"]


def test_a_folder_gives_the_same_sets(images, tmp_path):
    shift_images.write(str(images / "images"), tmp_path, {"train": 20, "val": 8, "test": 10}, 16)
    plain = pd.read_csv(tmp_path / "plain.csv", keep_default_na=False)
    counts = plain["split"].value_counts()
    assert (counts["train"], counts["val"], counts["test"], counts["edge"]) == (20, 8 + 10, 10, 10)
    assert size_of(tmp_path / "images" / plain["file"].iloc[0]) == (16, 16)


# Sheets


def test_sheets_show_options_levels_and_classes(images, tmp_path):
    train = images / "images" / "train"
    made = tmp_path / "edsr"
    names = sorted(path.relative_to(train) for path in train.glob("*/*.png"))
    for name in names:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (128, 128), (200, 10, 10)).save(made / name)
    rows = [f"{name.as_posix()},{names[0].as_posix()},zero_first negate,\n" for name in names]
    (made / "drawn-1-of-1.csv").write_text("file,distorted_at,weights,signal\n" + "".join(rows))
    sheet = shift_sheets.deepaugment(str(train), [str(made)], 2, 0)
    assert [[cell.image.shape[0] for cell in row] for row in sheet] == [[32, 128]] * 2
    assert sheet[0][1].text == "edsr\nweights: zero first, negate\nsignal: none" and sheet[0][0].text in shift_images.shapes.SHAPES
    with pytest.raises(ValueError, match=r"has no drawn-\*-of-\*.csv: name a folder that data_prep/deepaugment.py wrote"):
        shift_sheets.deepaugment(str(train), [str(train)], 2, 0)

    shown, _, labels = shift_sheets.examples(str(train), 2, 0, 16)
    mixed = shift_sheets.augmixed(shown, labels, 0, augmix.Settings(width=2, depth=1))
    assert [len(row) for row in mixed] == [4, 4] and mixed[1][3].text.startswith("mixture, 0.")
    operation, level = mixed[0][1].text.split("\n")[1].rsplit(" ", 1)
    assert operation.replace(" ", "_") in augmix.OPERATIONS and 0.1 <= float(level) <= 3
    weights = [float(cell.text.split("\n")[0].rsplit(" ", 1)[1]) for cell in mixed[0][1:3]]
    assert sum(weights) == pytest.approx(1, abs=0.011)

    sets = shift_sheets.shifted([str(images / "images" / "edge")], 3, 0, 32)
    assert sets[0][0].text.startswith("edge: ") and len(sets[0]) == 3
    figure = shift_sheets.draw([*sheet, *sets])
    assert len(figure.axes) == 7 and figure.texts[1].get_text().split("\n") == shift_sheets.lines(sheet[0][1].text)
    figure.savefig(tmp_path / "sheet.png", dpi=50)
    width, height = figure.get_size_inches() * 50
    assert size_of(tmp_path / "sheet.png") == (int(width), int(height))


def test_noise_and_erasing_change_every_image(images):
    shown, _, labels = shift_sheets.examples(str(images / "images" / "train"), 2, 0, 16)
    sheet = shift_sheets.changed(shown, labels, 0, noise2net.Settings(blocks=1, hidden=2))
    for row in sheet:
        assert [cell.text.split(",")[0] for cell in row[1:]] == ["speckle noise", "random erasing", "Noise2Net"]
        assert all((cell.image != row[0].image).any() and cell.image.dtype == np.uint8 for cell in row[1:])


@pytest.mark.slow
def test_the_quick_study_from_start_to_report(tmp_path, capsys):
    for _ in range(2):  # the second time nothing is left to do
        assert shift_study.main(["--quick", "--out", str(tmp_path)]) == 0
    assert "Accuracy in percent" in capsys.readouterr().out
    for name in ("results.csv", "evidence/report.html", "measures/report.html", "figures/size.png"):
        assert (tmp_path / name).is_file()
