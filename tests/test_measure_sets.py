"""Which images `jaxbed measure` shows: those of a list, of some severities, of published files; and what mCE is relative to."""

import shutil

import numpy as np
import pandas as pd
import pytest
import tiny
from PIL import Image

from jaxbed.data import shapes
from jaxbed.evaluation.answers import read_answers
from jaxbed.measures import conditions, corruption_error, imagenet_c, main
from jaxbed.stats.reading import records

DATA = shapes.Config(train_images=64, val_images=16, test_images=48)
SET = "in_distribution"
FEW = ("brightness", "contrast")


@pytest.fixture(scope="module", autouse=True)
def two_corruptions():
    """Instead of nineteen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(conditions.CORRUPTIONS, "imagenet_c", {name: imagenet_c.CORRUPTIONS[name] for name in FEW})
        patch.setitem(conditions.COMPLETE, "imagenet_c", FEW)
        patch.setattr(corruption_error, "MAIN", FEW)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tiny.evaluated(tiny.mlp_config(data=DATA, epochs=2), tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Files of the benchmark, in groups as ImageNet-C's archives are: one severity is as good as the images unchanged."""
    folder, source = tmp_path_factory.mktemp("files"), DATA.open()
    split = source.sets[SET].split
    for corruption in FEW:
        for severity in (1, 2, 3, 4, 5):
            for image, label, number in zip(split.image, split.label, range(len(split.label)), strict=True):
                place = folder / "group" / corruption / str(severity) / source.class_names[label]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image // severity).save(place / f"{number}.png")
    return folder


def measure(capsys, *words):
    try:
        code = main.main([str(word) for word in words])
    except SystemExit as error:  # of argparse
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def copied(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def rows(workdir):
    return pd.read_csv(workdir / "measures.csv").set_index(["dataset", "metric", "run"])


def test_a_list_of_images_has_answers_of_its_own(trained, tmp_path, capsys):
    workdir = copied(trained, tmp_path)
    images = pd.read_csv(workdir / "responses" / SET / "images.csv")
    (tmp_path / "few.txt").write_text("\n".join([*images["name"][10:20], ""]))
    words = (workdir, "--select", "last", "--measures", "imagenet_c", "--severities", "2", "--images", tmp_path / "few.txt")
    assert measure(capsys, *words)[0] == 0
    part = read_answers(workdir / "measures" / f"{SET}@few" / "clean" / "2.npz", 10)["response"]
    with np.load(workdir / "responses" / SET / "2.npz") as evaluated:
        np.testing.assert_array_equal(part, evaluated["response"][:, 10:20])
    assert rows(workdir).loc[(f"{SET}@few", "clean", 0), "n_total"] == 10
    assert {path.name for path in (workdir / "measures" / f"{SET}@few").iterdir() if path.is_dir()} == {
        "clean",
        "brightness_2",
        "contrast_2",
    }
    assert not any("imagenet_c" in metric for _, metric, _ in rows(workdir).index)  # means need all severities


def test_published_files_are_answered_as_they_are(trained, published, tmp_path, capsys):
    workdir = copied(trained, tmp_path)
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "shape_bias", "--imagenet-c", published)
    assert code == 0, said
    table = rows(workdir)
    accuracy = table["value"]["imagenet_c"]
    with np.load(workdir / "responses" / SET / "2.npz") as unchanged:
        label = pd.read_csv(workdir / "responses" / SET / "images.csv")["label"].to_numpy()
        expected = (unchanged["response"] == label).mean(1)
    for seed in (0, 1):
        assert accuracy["brightness_1", seed] == accuracy["clean", seed] == pytest.approx(expected[seed])
        cells = [accuracy[f"{name}_{severity}", seed] for name in FEW for severity in (1, 2, 3, 4, 5)]
        assert accuracy["imagenet_c", seed] == pytest.approx(np.mean(cells))
    images = pd.read_csv(workdir / "measures" / "imagenet_c" / "images.csv")  # which the answers are about
    label = images["name"].str.partition("/")[0].map(list(DATA.open().class_names).index)
    assert len(images) == 48 and images["name"].is_unique and images["label"].tolist() == label.tolist()
    response = read_answers(workdir / "measures" / "imagenet_c" / "brightness_1" / "2.npz", 48)["response"]
    assert (response == images["label"].to_numpy()).mean(1) == pytest.approx(expected)
    assert not any(metric.startswith("mce") for _, metric, _ in table.index)  # AlexNet has errors on ImageNet alone
    frame = records.load([workdir])  # jaxbed stats reads them with the run
    assert frame.loc[(frame["metric"] == "imagenet_c") & (frame["run"] == 1), "value"].tolist() == [
        pytest.approx(accuracy["imagenet_c", 1])
    ]


@pytest.mark.parametrize("given", [("--mce-baseline", "nothing"), ("--out", "."), ("--out", "nothing/models.csv")])
def test_what_cannot_be_read_or_written_is_refused_before_anything_is_answered(given, trained, tmp_path, monkeypatch, capsys):
    workdir = copied(trained, tmp_path)
    monkeypatch.chdir(tmp_path)
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "imagenet_c", *given)
    assert code == 2 and " ".join(given) in said and not (workdir / "measures").exists()


def test_mce_relative_to_another_run(trained, published, tmp_path, capsys):
    """Relative to itself it is 100 %, for a run of one seed; here it is that of two seeds relative to their mean."""
    workdir = copied(trained, tmp_path)
    words = (workdir, "--select", "last", "--measures", "imagenet_c", "--imagenet-c", published)
    assert measure(capsys, *words)[0] == 0
    assert measure(capsys, *words, "--mce-baseline", workdir)[0] == 0
    value = rows(workdir)["value"]
    for dataset, suffix in ((SET, "_jax"), ("imagenet_c", "")):
        error = {
            (name, seed): 1 - np.mean([value[dataset, f"{name}_{severity}", seed] for severity in (1, 2, 3, 4, 5)])
            for name in FEW
            for seed in (0, 1)
        }
        ratios = [error[name, 0] / np.mean([error[name, 0], error[name, 1]]) for name in FEW]
        assert value[dataset, f"mce{suffix}_of_baseline", 0] == pytest.approx(100 * np.mean(ratios))
        assert (dataset, f"relative_mce{suffix}_of_baseline", 1) in value.index


def made_up(folder, accuracy):
    """A run that was measured so, of two corruptions alike."""
    of_metric = {"clean": 0.7} | {f"{name}_{severity}": accuracy for name in FEW for severity in (1, 2, 3, 4, 5)}
    of_metric |= {f"{FEW[1]}_{severity}": 0.5 for severity in (1, 2, 3, 4, 5)}
    folder.mkdir()
    pd.DataFrame({"dataset": SET, "metric": of_metric.keys(), "value": of_metric.values()}).to_csv(folder / "measures.csv")
    return folder


def test_a_baseline_that_errs_on_nothing_is_refused_before_anything_is_answered(trained, tmp_path, capsys):
    workdir, perfect = copied(trained, tmp_path), made_up(tmp_path / "perfect", 1.0)
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "imagenet_c", "--mce-baseline", perfect)
    assert code == 2 and not (workdir / "measures").exists()
    assert f"--mce-baseline {perfect} has an error of 0 on {FEW[0]} of {SET}: mCE cannot be divided by it" in said, said


def test_a_baseline_that_a_corruption_leaves_as_it_is_gives_no_relative_mce(trained, tmp_path, capsys):
    workdir, same = copied(trained, tmp_path), made_up(tmp_path / "same", 0.7)
    words = ("--select", "last", "--measures", "imagenet_c", "--mce-baseline", same, "--report", tmp_path / "report")
    code, said = measure(capsys, workdir, *words)
    assert code == 0 and said.count(f"errs on {FEW[0]} of {SET} as often as on unchanged images (0.3): relative mCE cannot be divided") == 1
    value = rows(workdir)["value"]
    errors = [np.mean([1 - value[SET, f"{name}_{severity}", 0] for severity in (1, 2, 3, 4, 5)]) for name in FEW]
    assert value[SET, "mce_jax_of_baseline", 0] == pytest.approx(100 * np.mean([errors[0] / 0.3, errors[1] / 0.5]))
    assert (SET, "relative_mce_jax_of_baseline", 0) not in value.index


def test_a_benchmark_that_is_not_whole_has_no_means(trained, published, tmp_path, capsys):
    workdir, part = copied(trained, tmp_path), tmp_path / "part"
    shutil.copytree(published, part)
    shutil.rmtree(part / "group" / "contrast" / "4")
    next((part / "group" / "brightness" / "2").rglob("*.png")).unlink()
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "shape_bias", "--imagenet-c", part)
    assert code == 0 and "imagenet_c is not whole, so there are no means and no mCE: contrast_4 is missing" in said
    assert "brightness_2 has 47 images, which are not the 48 of most" in said
    assert not (workdir / "measures" / "imagenet_c" / "images.csv").exists()
    metrics = set(rows(workdir).loc["imagenet_c"].index.get_level_values("metric"))
    assert metrics == {"clean", *(f"{name}_{severity}" for name in FEW for severity in (1, 2, 3, 4, 5))} - {"contrast_4"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--severities", "0-3"), "'0-3' is not a severity: they are 1 to 5"),
        (("--severities", "6"), "'6' is not a severity"),
        (("--images", "nowhere.txt"), "--images nowhere.txt is not a file"),
        (("--imagenet-c", "."), "has no corruption of imagenet_c, such as brightness"),
        (("--mce-baseline", "nowhere"), "--mce-baseline nowhere has no measures.csv"),
    ],
)
def test_what_cannot_be_shown_is_refused(trained, capsys, tmp_path, monkeypatch, words, reason):
    workdir = copied(trained, tmp_path)
    monkeypatch.chdir(tmp_path)
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "imagenet_c", "--severities", "1", *words)
    assert code == 2 and reason in said, said


def test_images_of_another_size_or_name_are_refused(trained, published, tmp_path, capsys):
    workdir, other = copied(trained, tmp_path), tmp_path / "other"
    shutil.copytree(published, other)
    path = next((other / "group" / "brightness" / "1").rglob("*.png"))
    Image.open(path).resize((40, 40)).save(path)
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "shape_bias", "--imagenet-c", other)
    assert code == 2 and "it has 40 x 40 pixels: images of this set must have 32 x 32, for they are not resized" in said
    (tmp_path / "list").write_text("no such\u2028image\n", encoding="utf-8")  # a name of one line
    code, said = measure(capsys, workdir, "--select", "last", "--measures", "spectral", "--images", tmp_path / "list")
    assert code == 2 and f"set {SET} of shapes has no image 'no such\\u2028image' (1 missing)" in said
