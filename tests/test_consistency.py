"""`jaxbed consistency`: error consistency by hand, the published order of averaging, workdirs and files that say the same, bad input."""

import json

import numpy as np
import pandas as pd
import pytest

from jaxbed.data import model_vs_human
from jaxbed.evaluation import answers, metrics
from jaxbed.stats.consistency import agreement, decisions, figures, main, study

CLASSES = ("bear", "cat", "dog")
HEADER = "subj,Session,trial,RT,object_response,category,condition,imagename"
PAIRED = list(study.PAIRED)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(study, "RESAMPLES", 20)


def image_names(dataset, conditions, images):
    """`images` of each condition, as networks are shown them."""
    names = [
        f"dnn/session-1/{i:04d}_x_dnn_{condition}_{CLASSES[i % 3]}_00_n01_{condition}-{i}.png"
        for condition in conditions
        for i in range(images)
    ]
    return names if model_vs_human.DATASETS[dataset].conditions else [f"{CLASSES[i % 3]}/{i}.png" for i in range(images)]


def workdir(path, sets, name="erm", epochs=(1, 2), alive=(True, True)):
    """A run of two seeds, 3 and 5, that is right where `sets` {dataset: (names, right [2, n])} says so, and at earlier epochs nowhere."""
    (path / "responses").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"name": name}))
    facts = {}
    for dataset, (names, right) in sets.items():
        folder = path / "responses" / model_vs_human.set_name(dataset)
        folder.mkdir()
        label = np.array([next(i for i, one in enumerate(CLASSES) if one in text) for text in names])
        pd.DataFrame({"name": names, "label": label, "cue": -1}).to_csv(folder / "images.csv", index=False, lineterminator="\n")
        facts[folder.name] = {"role": "ood", "decision": "sixteen_mean_prob", "classes": CLASSES}
        facts[folder.name]["images"] = metrics.digest(names, label, np.full(len(label), -1))
        for epoch in epochs:
            response = np.where(np.array(right, bool) & (epoch == epochs[-1]), label, (label + 1) % 3)
            content = {"response": response.astype(np.int16), "seeds": np.array([3, 5]), "alive": np.array(alive)}
            answers.write(folder / f"{epoch}.npz", content | {"checkpoint": "c", "asked": "a"})
    about = {"data": {"name": "imagenet", "cue": "texture"}, "classes": ["n1", "n2"], "sets": facts}
    (path / "responses" / "sets.json").write_text(json.dumps(about))
    return path


def human(folder, dataset, number, names, right, spell=str, header=HEADER):
    """A file of a person's decisions. The images are those of `names`, the trials in another order, and fields of names other ones."""
    folder.mkdir(exist_ok=True)
    lines = [header]
    for trial, i in enumerate(np.argsort([name[::-1] for name in names]), 1):
        fields = names[i].rpartition("/")[2].split("_")
        category = next(one for one in CLASSES if one in names[i])
        condition = fields[3] if len(fields) > 4 else "NaN"
        answer = category if right[i] else "na"
        shown = "_".join([f"{trial:04d}", "x", f"s{number:02d}", condition, category, "77", *fields[-2:]])
        lines.append(f"subject-{number:02d},1,{trial},0.7,{answer},{category},{spell(condition)},{shown}")
    path = folder / f"{dataset}_subject-{number:02d}_session_1.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def right_of(n, share, seed):
    return np.random.default_rng(seed).random(n) < share


def compared(*paths, rule="last"):
    """The study, and the notes."""
    notes = []
    of_workdirs, of_files = decisions.read(paths, rule, notes)
    return study.compare(decisions.join([*of_workdirs, *of_files], notes)), notes


def command(capsys, *words):
    code = main.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def write(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


LINE = "subject-01,1,1,0.7,cat,cat,c50,0001_x_s01_c50_cat_00_1.png\n"


# Agreement


def bits(text):
    return np.array([letter == "1" for letter in text])


@pytest.mark.parametrize(
    ("a", "b", "expected", "observed", "kappa"),
    [
        ("1111110000", "1111001000", 0.5, 0.7, 0.4),
        ("1111111100", "1111110000", 0.56, 0.8, 0.24 / 0.44),
        ("1100", "0011", 0.5, 0, -1),
        ("1111", "1111", 1, 1, 1),
        ("0000", "0000", 1, 1, 1),
        ("1111", "0000", 0, 0, 0),
        ("1111", "1110", 0.75, 0.75, 0),
    ],
)
def test_error_consistency_by_hand(a, b, expected, observed, kappa):
    for one, other in ((a, b), (b, a)):
        found = agreement.error_consistency(bits(one), bits(other))
        difference = (bits(a).mean() - bits(b).mean()) ** 2
        np.testing.assert_allclose(found, (difference, observed, expected, kappa), atol=1e-12)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1, 0], [1]), ([[1]], [[1]])])
def test_error_consistency_of_other_trials_is_an_error(a, b):
    with pytest.raises(ValueError, match=r"both must be \[n\] with n at least 1"):
        agreement.error_consistency(np.array(a), np.array(b))


def test_pairs_count_the_trials_that_they_share():
    """As one by one; weights as if trials were repeated."""
    rng = np.random.default_rng(0)
    correct = np.where(rng.random((12, 3)) < 0.2, np.nan, rng.random((12, 3)) < 0.6)
    weights = np.stack([np.ones(12), rng.integers(0, 3, 12)])
    trials, found = agreement.of_pairs(correct, weights)
    for row, weight in enumerate(weights.astype(int)):
        repeated = np.repeat(correct, weight, 0)
        for i in range(3):
            for j in range(3):
                shared = repeated[~np.isnan(repeated[:, [i, j]]).any(1)]
                assert trials[row, i, j] == len(shared)
                by_hand = agreement.error_consistency(shared[:, i] == 1, shared[:, j] == 1)
                np.testing.assert_allclose([array[row, i, j] for array in found], by_hand, atol=1e-12)
    _, nothing = agreement.of_pairs(np.array([[1, np.nan], [np.nan, 0]]), np.ones((1, 2)))
    assert all(np.isnan(array[0, 0, 1]) for array in nothing)


# The order of averaging


def test_conditions_observers_and_sets_are_averaged_in_the_published_order(tmp_path):
    """Observers of two sets, of which the excluded conditions do not count, against means taken one after another."""
    sets, correct = {}, {}
    for dataset, conditions in (("contrast", ("c100", "c50", "c05")), ("rotation", ("0", "90", "180", "270"))):
        names = image_names(dataset, conditions, 9)
        sets[dataset] = names, [right_of(len(names), 0.7, 1), right_of(len(names), 0.4, 2)]
        kept = model_vs_human.kept(model_vs_human.set_name(dataset), names)
        condition = np.array([model_vs_human.condition_text(dataset, name) for name in names])
        correct[dataset] = [[right[kept & (condition == one)] for one in dict.fromkeys(condition[kept])] for right in sets[dataset][1]]
        for number in (1, 2, 3)[: 3 if dataset == "contrast" else 2]:
            right = right_of(len(names), 0.6 + number / 10, 10 + number)
            human(tmp_path / "humans", dataset, number, names, right)
            correct[dataset].append([right[kept & (condition == one)] for one in dict.fromkeys(condition[kept])])
    found, notes = compared(workdir(tmp_path / "run", sets), tmp_path / "humans")
    assert notes == [] and found.parties == ["erm-3", "erm-5", "humans"]

    def of(dataset, i, j):
        each = [agreement.error_consistency(a, b) for a, b in zip(correct[dataset][i], correct[dataset][j], strict=True)]
        return np.mean([(one.squared_difference, one.observed, one.kappa) for one in each], 0)

    got = found.pairs.set_index(["dataset", "model", "other"])
    for name, of_set in (("erm-3", 0), ("erm-5", 1)):
        with_humans = [np.mean([of("contrast", of_set, j) for j in (2, 3, 4)], 0), np.mean([of("rotation", of_set, j) for j in (2, 3)], 0)]
        np.testing.assert_allclose(got.loc[("contrast", name, "humans"), PAIRED].astype(float), with_humans[0])
        np.testing.assert_allclose(got.loc[("mean", name, "humans"), PAIRED].astype(float), np.mean(with_humans, 0))
    among = [np.mean([of("contrast", *pair) for pair in ((2, 3), (2, 4), (3, 4))], 0), of("rotation", 2, 3)]
    np.testing.assert_allclose(got.loc[("mean", "humans", "humans"), PAIRED].astype(float), np.mean(among, 0))
    np.testing.assert_allclose(got.loc[("rotation", "erm-3", "erm-5"), PAIRED].astype(float), of("rotation", 0, 1))
    accuracy = found.accuracies.set_index(["dataset", "model"])
    pooled = np.concatenate([each for one in correct["contrast"][2:] for each in one])
    assert accuracy.loc[("contrast", "humans"), "accuracy"] == pytest.approx(pooled.mean())
    assert accuracy.loc[("contrast", "humans"), "trials"] == len(pooled) == 3 * 18
    of_sets = [np.concatenate(correct[dataset][0]).mean() for dataset in correct]
    assert accuracy.loc[("mean", "erm-3"), "accuracy"] == pytest.approx(np.mean(of_sets))
    for name in PAIRED:
        assert (got[f"{name}_low"] <= got[f"{name}_high"]).all()
    assert set(found.conditions["condition"]) == {"c50", "c05", "90", "180", "270"}
    again, _ = compared(tmp_path / "humans", tmp_path / "run")
    pd.testing.assert_frame_equal(again.pairs, found.pairs)


def test_kappa_of_pooled_conditions_is_not_the_mean_of_kappas(tmp_path):
    """Both are right on an easy condition and wrong on a hard one but for one trial each, not the same: pooling makes that agreement."""
    names = image_names("contrast", ("c50", "c05"), 10)
    right = np.array([[1] * 9 + [0] + [0] * 9 + [1], [0] + [1] * 9 + [1] + [0] * 9])
    found, _ = compared(workdir(tmp_path, {"contrast": (names, right)}))
    pooled = agreement.error_consistency(*right).kappa
    kappa = found.pairs.set_index("dataset").loc["contrast", "error_consistency"]
    assert pooled == pytest.approx(0.6) and kappa == pytest.approx((0.8 - 0.82) / 0.18)
    np.testing.assert_allclose(found.conditions["error_consistency"], kappa)


def test_intervals_do_not_depend_on_other_sets_and_decision_makers(tmp_path):
    names, other = image_names("contrast", ("c50", "c05"), 30), image_names("edge", (), 30)
    right = [right_of(60, 0.7, 1), right_of(60, 0.6, 2)]
    one = workdir(tmp_path / "one", {"contrast": (names, right)})
    two = workdir(tmp_path / "two", {"edge": (other, [right_of(30, 0.5, 3)] * 2), "contrast": (names, right[::-1])}, "lff")
    alone, together = (compared(*paths)[0].pairs.set_index(["dataset", "model", "other"]) for paths in ((one,), (one, two)))
    key = ("contrast", "erm-3", "erm-5")
    pd.testing.assert_series_equal(alone.loc[key], together.loc[key])
    assert alone.loc[key, "error_consistency_low"] < alone.loc[key, "error_consistency_high"]
    same = together.loc[("contrast", "erm-3", "lff-5")]  # the same answers
    assert same[["error_consistency", "error_consistency_low", "error_consistency_high"]].tolist() == [1, 1, 1]


# Files


@pytest.fixture
def run(tmp_path):
    names = image_names("false-colour", ("True", "False"), 12)
    sets = {
        "false-colour": (names, [right_of(24, 0.7, 1), right_of(24, 0.5, 2)]),
        "edge": (image_names("edge", (), 9), [right_of(9, 0.6, 3), right_of(9, 0.6, 4)]),
    }
    return workdir(tmp_path / "run", sets, "sag_net")


def test_an_export_gives_the_same_numbers(tmp_path, run, capsys):
    out, back = tmp_path / "out", tmp_path / "back"
    code, text = command(capsys, run, "--export", tmp_path / "raw-data", "--out", out)
    assert code == 0 and "exported 4 files" in text and "mean over 2 of 17 sets" in text, text
    files = sorted(path.relative_to(tmp_path / "raw-data").as_posix() for path in (tmp_path / "raw-data").rglob("*.csv"))
    assert files == [f"{name}/{name}_sag-net-{seed}_session-1.csv" for name in ("edge", "false-colour") for seed in (3, 5)]
    lines = (tmp_path / "raw-data" / files[2]).read_text().splitlines()
    assert lines[0] == "subj,session,trial,rt,object_response,category,condition,imagename" and len(lines) == 25
    assert lines[1].startswith("sag_net-3,1,1,NaN,") and lines[1].endswith(",bear,True,0000_x_dnn_True_bear_00_n01_True-0.png")
    assert ",dog,NaN,8.png" in (tmp_path / "raw-data" / files[0]).read_text()
    assert command(capsys, tmp_path / "raw-data", "--out", back)[0] == 0
    for name in main.NAMES:
        assert (out / name).read_text() == (back / name).read_text(), name


def test_conditions_are_matched_however_they_are_spelled(tmp_path, run):
    """People's files say false for False, and have headers with capitals; all 12 trials of the condition that counts are shared."""
    names = image_names("false-colour", ("True", "False"), 12)
    human(tmp_path / "humans", "false-colour", 1, names, right_of(24, 0.9, 5), str.lower)
    found, notes = compared(run, tmp_path / "humans")
    shared = found.pairs.set_index(["dataset", "model", "other"])["trials"]
    assert shared["false-colour", "sag_net-3", "humans"] == 12 and notes == []
    noise = image_names("uniform-noise", ("0.0", "0.1", "0.35", "0.9"), 6)
    human(tmp_path / "noise", "uniform-noise", 1, noise, right_of(24, 0.9, 5), lambda text: f"{float(text):.2f}")
    human(tmp_path / "noise", "uniform-noise", 2, noise, right_of(24, 0.9, 6))
    found, notes = compared(tmp_path / "noise")
    assert notes == [] and found.parties == ["humans"]
    assert found.pairs["trials"].tolist() == [12, 12] and found.conditions["condition"].tolist() == ["0.1", "0.35"]


def test_missing_and_repeated_trials_are_reported_and_the_others_count(tmp_path, capsys):
    names = image_names("contrast", ("c50", "c05"), 10)
    run = workdir(tmp_path / "run", {"contrast": (names, [right_of(20, 0.7, 1)] * 2)})
    path = human(tmp_path / "humans", "contrast", 1, names, right_of(20, 0.9, 2))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], *lines[8:], lines[9]]))
    human(tmp_path / "humans", "edge", 1, image_names("edge", (), 6), [True] * 6)
    (tmp_path / "humans" / "summary.csv").write_text("a,b\n1,2\n")
    code, text = command(capsys, run, tmp_path / "humans", "--per-condition")
    assert code == 0, text
    assert "note: contrast: subject-01 has 1 repeated trials, e.g. of n01_" in text
    assert "contrast: subject-01 lacks 3 of 20 trials, e.g. n01_" in text and "pairs count those they share" in text
    assert "erm-3 has no trials of edge: its means are over the other sets" in text
    assert "not read, since they are of none of the 17 sets: summary.csv" in text
    found, _ = compared(run, tmp_path / "humans")
    pairs = found.pairs.set_index(["dataset", "model", "other"])
    assert pairs.loc[("contrast", "erm-3", "humans"), "trials"] == 17
    assert pairs.loc[("mean", "erm-3", "humans"), PAIRED].equals(pairs.loc[("contrast", "erm-3", "humans"), PAIRED].rename(pairs.index[-3]))


def test_what_is_shown_and_written(tmp_path, capsys, run):
    names = image_names("contrast", ("c50", "c10"), 6)
    one = workdir(tmp_path / "one", {"contrast": (names, [right_of(12, 0.7, 1), right_of(12, 0.6, 2)])})
    human(tmp_path / "humans", "contrast", 1, names, right_of(12, 0.9, 2))
    human(tmp_path / "humans", "contrast", 2, names, right_of(12, 0.8, 3))
    out = tmp_path / "out"
    code, text = command(capsys, one, tmp_path / "humans", "--out", out, "--per-condition")
    assert code == 0 and "mean over" not in text, text  # of one set
    head = next(line for line in text.splitlines() if line.startswith("contrast "))
    assert head.split() == ["contrast", "accuracy", "squared", "difference", "observed", "error", "consistency", "trials"]
    assert "contrast: error consistency" in text and "error consistency  " in text
    table = pd.read_csv(out / "consistency.csv").set_index(["dataset", "model"])
    assert table.loc[("contrast", "humans"), "trials"] == 24 and table.loc[("contrast", "erm-5"), "trials"] == 12
    assert table.index.tolist() == [(dataset, model) for dataset in ("contrast", "mean") for model in ("erm-3", "erm-5", "humans")]
    drawn = {path.name for path in (out / "figures").iterdir()}
    assert drawn == {f"{name}.{kind}" for name in ("error_consistency", "by_condition") for kind in ("pdf", "png", "svg")}
    code, text = command(capsys, one, "--per-condition")
    assert code == 0 and "there are no humans" in text and "observed" not in text
    found, _ = compared(run)
    assert figures.by_condition(found) is None


@pytest.mark.parametrize("subject", ["subject-01", "resnet50"])
def test_a_single_decision_maker_has_an_accuracy(tmp_path, capsys, subject):
    path = write(tmp_path, "contrast_a_1.csv", f"{HEADER}\n{LINE}".replace("subject-01", subject))
    code, text = command(capsys, path, "--out", tmp_path / "out")
    assert code == 0 and "1.000 (1.000 to 1.000)" in text
    assert (tmp_path / "out" / "pairs.csv").read_text().startswith("dataset,model,other,trials,squared_accuracy_difference,")


def test_the_epoch_of_each_seed_is_chosen(tmp_path, capsys, run):
    def accuracy(rule):
        return compared(run, rule=rule)[0].accuracies.set_index(["dataset", "model"])["accuracy"]

    assert accuracy("1").tolist() == [0] * 6 and accuracy("last").equals(accuracy("2")) and (accuracy("last") > 0).all()
    names = image_names("edge", (), 6)
    diverged = workdir(tmp_path / "diverged", {"edge": (names, [[True] * 6] * 2)}, alive=(True, False))
    _, notes = compared(diverged)
    assert notes == ["erm-5 diverged before epoch 2: its answers are those of its last finite state"]
    code, text = command(capsys, run, "--select", "best_val")
    assert code == 2 and "best_val" in text and "validation" in text


# Bad input


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("contrast_a_1.csv", HEADER.replace("condition,", "") + "\n", "column 'condition' is missing, found subj, session"),
        ("contrast_a_1.csv", HEADER + "\n", "contrast_a_1.csv has no trials: leave it out"),
        ("contrast_a_1.csv", "", "the file is empty"),
        ("contrast_a_1.csv", HEADER + ",session\n" + LINE.strip() + ",1\n", "two columns have one name in lower case"),
        ("contrast_a_1.csv", f"{HEADER}\n{LINE}{LINE.replace('c50,', 'c51,')}", "condition 'c51' is not one of contrast's: c100, c50"),
        ("contrast_a_1.csv", f"{HEADER}\n{LINE}{LINE.replace('subject-01', '')}", "line 3 has no subj; write it, or delete the line"),
        ("contrast_a_1.csv", f"{HEADER}\n{LINE}{LINE.replace(',c50,', ',,')}", "line 3 has no condition"),
        ("contrast_a_1.csv", f"{HEADER}\n{LINE.replace('c50', 'c100')}", "there are no trials of conditions that count"),
        ("contrast_a_1.csv", f"{HEADER}\n{LINE}{LINE.replace('subject-01', 'subject_01')}", "differ only in case, spaces, _, -"),
        ("contrast_a_1.csv", f"{HEADER}\n{LINE.replace('subject-01', 'humans')}", "is named 'humans', which stands for all humans"),
        ("original_a_1.csv", f"{HEADER}\n{LINE}", "its name begins with no set of model-vs-human; files are named <dataset>_<subject>"),
    ],
)
def test_files_that_cannot_be_used_are_an_error(tmp_path, capsys, name, text, message):
    code, said = command(capsys, write(tmp_path, name, text))
    assert code == 2 and message in said and "Traceback" not in said, said


def test_paths_and_options_that_cannot_be_used_are_an_error(tmp_path, capsys, run):
    def refused(message, *words):
        code, said = command(capsys, *words)
        assert code == 2 and message in said and "Traceback" not in said, said

    (tmp_path / "empty").mkdir()
    refused("gone.csv does not exist: name workdirs", tmp_path / "gone.csv")
    refused("is neither a workdir nor a folder of decisions: it holds no CSV file", tmp_path / "empty")
    refused("none of its 1 CSV files is of a set of model-vs-human", write(tmp_path, "other/x.csv", "a\n").parent)
    refused("--select first: it must be last, best_val or the number of an epoch", run, "--select", "first")
    refused("9.npz is missing: of mvh_false_colour there are answers of epochs 1, 2; run: jaxbed eval", run, "--select", "9")
    file = write(tmp_path, "contrast_a_1.csv", f"{HEADER}\n{LINE}")
    refused("--select first: it must be last, best_val or the number of an epoch", file, "--select", "first")
    refused("--export writes answers of workdirs, and no PATH is a workdir", file, "--export", tmp_path / "e")
    refused("--export", run, "--export", file)
    refused("is a file; name a directory", run, "--out", file)
    refused("would overwrite the input", write(tmp_path, "contrast/pairs.csv", f"{HEADER}\n{LINE}"), "--out", tmp_path / "contrast")
    names = image_names("edge", (), 6)
    edge = {"edge": (names, [[True] * 6] * 2)}
    refused("sag_net-3 is in both", run, workdir(tmp_path / "same", edge, "sag_net"))
    alike = workdir(tmp_path / "one", edge, "a:b"), workdir(tmp_path / "two", edge, "a;b")
    refused("both make edge/edge_a-b-3_session-1.csv", *alike, "--export", tmp_path / "e")
    person = workdir(tmp_path / "person", edge, "subject-7")
    refused("names that begin with subject- are humans'", person)
    sets = json.loads((person / "responses" / "sets.json").read_text())
    (person / "responses" / "mvh_edge").rename(person / "responses" / "edge")
    sets["sets"] = {"edge": sets["sets"].pop("mvh_edge")}
    (person / "responses" / "sets.json").write_text(json.dumps(sets))
    refused("has answers to no set of model-vs-human, only to edge: evaluate them with --config.data.model_vs_human=DIR", person)
