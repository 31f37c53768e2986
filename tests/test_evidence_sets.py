"""How `jaxbed evidence` scores sets that are not scored by accuracy, which sets count, and which in-distribution set belongs to each."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from test_evidence import command, right_of, workdir

from jaxbed.evaluation import answers, calibration, label_lists, metrics, multi_label
from jaxbed.measures import corruption_error
from jaxbed.stats.evidence import precision, resampling, runs, study

SEEDS = (3, 5)
CONTROLS = [f"c{number}" for number in range(5)]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("hypothesis,treated,control\nlarger,big,c1\n")
    return path


def described(path, dataset, column, cells, scores, **facts):
    """Gives a set of a run one more column of images.csv, and answers the arrays `scores` {name: [S, n, ...]}."""
    table, about = path / "responses" / dataset / "images.csv", path / "responses" / "sets.json"
    pd.read_csv(table).assign(**{column: cells}, **facts).to_csv(table, index=False, lineterminator="\n")
    content = json.loads(about.read_text())
    if column == "targets":
        none = np.full(len(cells), -1)
        content["sets"][dataset] |= {
            "targets": label_lists.digest(label_lists.from_cells(cells)),
            "images": metrics.digest(pd.read_csv(table)["name"], none, none),
        }
    about.write_text(json.dumps(content))
    for file in table.parent.glob("*.npz"):
        with np.load(file) as stored:
            kept = {name: stored[name] for name in ("response", "seeds", "alive")}
        answers.write(file, kept | scores | {"checkpoint": "c", "asked": "a"})


# Average precision of resamples


def test_average_precision_of_every_resample_is_that_of_the_images_it_draws():
    """Also with equal scores, and with a class that no image has."""
    rng = np.random.default_rng(0)
    positive = rng.random((60, 4)) < 0.2
    positive[:, 3] = False
    scores = np.round(rng.normal(size=(3, 60, 4)) + positive, 1)
    found = precision.weighted(scores, positive)
    counts = rng.multinomial(60, np.full(60, 1 / 60), 20).astype(float)
    for of_resample, counted in zip(found(counts), counts.astype(int), strict=True):
        drawn = np.repeat(np.arange(60), counted)
        of_images = multi_label.over_classes(scores[:, drawn], positive[drawn].astype(int), multi_label.average_precision)
        np.testing.assert_allclose(of_resample, 100 * of_images, rtol=1e-6)
    one = precision.weighted(scores[..., :1], positive[:, :1])
    np.testing.assert_allclose(one(np.ones((1, 60)))[0], 100 * calibration.aupr(scores[..., 0].astype(float), positive[:, 0]), rtol=1e-6)
    assert np.isnan(one(1.0 * ~positive[:, 0][None])).all()  # no positive is drawn


def test_as_many_images_of_each_kind_are_drawn_as_there_are_in_any_number_of_batches(monkeypatch):
    kind = np.arange(50) < 8

    def first(counts):
        assert (counts[:, kind].sum(1) == 8).all() and (counts.sum(1) == 50).all()
        return counts[:, :1]

    drawn = resampling.sample_statistics("o", {"a": first}, {"a": 1}, 50, kind=kind).draws["a"]
    monkeypatch.setattr(resampling, "AT_ONCE", 7 * 50)
    np.testing.assert_array_equal(resampling.sample_statistics("o", {"a": first}, {"a": 1}, 50, kind=kind).draws["a"], drawn)
    assert drawn[0] == 1 and set(drawn) > {0, 1, 2, 3}


# Anomalies


@pytest.fixture
def with_anomalies(tmp_path):
    """Two runs with a set of which a fifth is of no class; confidence of `big` is lower on it, and that of `c1` says nothing."""
    anomaly, rng = (np.arange(150) < 30).astype(int), np.random.default_rng(0)
    paths, confidence = [], {}
    for name, gap in (("big", 0.3), ("c1", 0.0)):
        right = np.ones((2, 150), bool)
        path = workdir(tmp_path / name, {"imagenet_o": ("ood", right), "art": ("ood", right)}, name)
        confidence[name] = (rng.uniform(0.4, 0.7, (2, 150)) - gap * anomaly * rng.random((2, 150))).astype(np.float32)
        described(path, "imagenet_o", "anomaly", anomaly, {"confidence": confidence[name]})
        paths.append(path)
    return paths, confidence, anomaly == 1


def test_a_set_with_anomalies_is_scored_by_how_well_they_are_told_apart(with_anomalies, pairs, tmp_path, capsys):
    paths, confidence, anomaly = with_anomalies
    given = runs.read(paths, pairs)
    scores = given.shifted["imagenet_o"]
    for name, of_seeds in confidence.items():
        aupr = calibration.aupr(-of_seeds.astype(float), anomaly)
        assert scores.draws[name][0] == pytest.approx(100 * aupr.mean())
        stored = metrics.scores(tmp_path / name)
        rows = stored[(stored["metric"] == "aupr_softmax") & (stored["epoch"] == 2)]
        assert rows["value"].to_numpy() == pytest.approx(aupr)
    row = study.compare(given).cells.set_index("dataset").loc["imagenet_o"]
    assert row["basis"] == "images and seeds" and row["images"] == 150 and row["evidence"] == "+" and row["margin"] == 1
    assert np.isnan(row["mcnemar_z"])  # no image has a score of its own
    code, said = command(capsys, *paths, "--pairs", pairs)
    assert code == 0 and "note: imagenet_o: the score is aupr_softmax" in said


def test_the_interval_of_anomalies_has_the_spread_of_new_images(pairs, tmp_path):
    """The standard deviation of draws against that of AUPR over images that are made again."""
    rng, anomaly = np.random.default_rng(1), np.arange(200) < 60

    def confidence():
        return rng.normal(-1.0 * anomaly, 1).astype(np.float32)

    again = np.std([100 * calibration.aupr(-confidence()[None], anomaly)[0] for _ in range(400)])
    drawn = [
        resampling.sample_statistics(
            "o", {"a": precision.weighted(-confidence()[None, :, None], anomaly[:, None])}, {"a": 1}, 200, kind=anomaly
        )
        for _ in range(5)
    ]
    assert np.mean([each.draws["a"][1:].std() for each in drawn]) == pytest.approx(again, rel=0.15)
    assert drawn[0].basis("a") == "images alone (single seed)"


def test_old_answers_without_confidence_leave_the_set_out_with_its_cure(with_anomalies, pairs, capsys):
    paths, _, _ = with_anomalies
    for file in (paths[1] / "responses" / "imagenet_o").glob("*.npz"):
        with np.load(file) as stored:
            kept = {name: stored[name] for name in ("response", "seeds", "alive")}
        answers.write(file, kept | {"checkpoint": "c", "asked": "a"})
    code, said = command(capsys, *paths, "--pairs", pairs)
    reason = (
        f"{paths[1]}: answers to imagenet_o at epoch 2 have no confidence, which aupr_softmax needs: delete these answers, then: jaxbed"
    )
    assert code == 0 and f"note: imagenet_o is left out: {reason} eval {paths[1]}" in said
    assert list(runs.read(paths, pairs).shifted) == ["art"]
    code, said = command(capsys, *paths, "--pairs", pairs, "--sets", "imagenet_o")
    assert code == 2 and f"--sets imagenet_o: {reason}" in said
    described(paths[0], "imagenet_o", "anomaly", 0, {})
    assert f"imagenet_o is left out: no image of imagenet_o is of no class; {reason}" in " ".join(runs.read(paths, pairs).notes)


# Several classes


def of_several_classes(folder, name, skill, sets=("test", "size_small", "own")):
    """A run whose images have any of three classes, and scores that show them the more, the larger `skill`."""
    none = np.zeros((2, 120), bool)
    path = workdir(folder / name, {each: ("test" if each == "test" else "ood", none) for each in sets}, name)
    truth = {}
    for number, dataset in enumerate(sets):
        rng = np.random.default_rng(number)
        targets = rng.random((120, 3)) < (0.3, 0.1, 0.05)
        noise = rng.normal(size=(2, 120, 3))
        scores = (noise + skill * (1 if dataset == "test" else 0.6) * targets).astype(np.float16)
        cells = label_lists.cells(label_lists.of_targets(targets))
        described(path, dataset, "targets", cells, {"scores": scores}, label=-1, cue=-1)
        truth[dataset] = 100 * multi_label.over_classes(scores, targets.astype(int), multi_label.average_precision).mean()
    return path, truth


def test_sets_of_several_classes_are_scored_by_average_precision_also_in_distribution(pairs, tmp_path, capsys):
    skills = {"big": 1.6, "c1": 0.8, "c0": 0.5, "c2": 1.1, "c3": 1.5, "c4": 1.9}
    made = {name: of_several_classes(tmp_path, name, skill) for name, skill in skills.items()}
    paths = [path for path, _ in made.values()]
    given = runs.read(paths, pairs, CONTROLS)
    assert given.margins == {"size_small": 0.5, "own": 0.5}
    for name, (path, truth) in made.items():
        assert given.shifted["size_small"].draws[name][0] == pytest.approx(truth["size_small"])
        assert given.iid["own"].draws[name][0] == pytest.approx(truth["test"])
        stored = metrics.scores(path).set_index(["dataset", "epoch", "metric"])["value"]
        assert 100 * stored["own", 2, "ap_weighted"].mean() == pytest.approx(truth["own"])
    row = study.compare(given).cells.set_index("dataset").loc["size_small"]
    assert row["raw_value"] == pytest.approx(made["big"][1]["size_small"] - made["c1"][1]["size_small"])
    assert row["basis"] == "images and seeds" and row["images"] == 120 and row["raw_low"] > 0 and np.isfinite(row["effective_low"])
    code, said = command(capsys, *paths, "--pairs", pairs)
    assert "note: size_small: images are drawn and not items, since images.csv has no column pair_id: make the table again" in said
    assert code == 0 and "note: size_small, own, test: the score is ap_weighted, mean average precision" in said


def repeated(path, dataset, times, item):
    """Shows each of the first 30 images of a set so often; item: whether it is known that these show one item."""
    table, rows = path / "responses" / dataset / "images.csv", np.repeat(np.arange(30), times)
    targets = pd.read_csv(table, dtype=str, keep_default_na=False)["targets"][rows].tolist()
    pd.DataFrame({"name": [f"{number}.jpg" for number in range(len(rows))]}).to_csv(table, index=False)
    with np.load(path / "responses" / dataset / "2.npz") as stored:
        content = {"scores": stored["scores"][:, rows], "response": stored["response"][:, rows]}
    described(path, dataset, "targets", targets, content, label=-1, cue=-1)
    if item:
        known = [f"item {row:02}" for row in rows]
        pd.read_csv(table, dtype=str, keep_default_na=False).assign(pair_id=known).to_csv(table, index=False, lineterminator="\n")


def test_images_of_one_item_are_drawn_together(pairs, tmp_path):
    """Items with four images each, all alike, have the draws of as many single images."""
    drawn = {}
    for kind, times, item in (("single", 1, False), ("items", 4, True), ("images", 4, False)):
        paths = [of_several_classes(tmp_path / kind, name, 1, ("own",))[0] for name in ("big", "c1")]
        for path in paths:
            repeated(path, "own", times, item)
        drawn[kind] = runs.read(paths, pairs).shifted["own"]
    np.testing.assert_allclose(drawn["items"].draws["big"], drawn["single"].draws["big"], rtol=1e-6)
    assert drawn["items"].basis("big") == "items and seeds" and drawn["items"].images == drawn["images"].images == 120
    assert drawn["images"].basis("big") == "images and seeds" and drawn["images"].draws["big"].std() < drawn["items"].draws["big"].std()


def test_seeds_of_an_algorithm_may_number_classes_differently_and_lack_images(pairs, tmp_path):
    """A second run of the same scores with its classes in reverse order, and without the last images: those that both have count."""
    path, _ = of_several_classes(tmp_path, "big", 1, ("own",))
    other, _ = of_several_classes(tmp_path, "c1", 1, ("own",))
    table = pd.read_csv(other / "responses" / "own" / "images.csv", dtype=str, keep_default_na=False)
    with np.load(other / "responses" / "own" / "2.npz") as stored:
        scores = stored["scores"][:, :100, ::-1]
    lists = label_lists.targets(label_lists.from_cells(table["targets"]), 3)[:100, ::-1]
    fewer = workdir(tmp_path / "fewer", {"own": ("ood", np.zeros((2, 100), bool))}, "c1")
    described(fewer, "own", "targets", label_lists.cells(label_lists.of_targets(lists)), {"scores": scores}, label=-1, cue=-1)
    sampled = runs.read([path, fewer], pairs).shifted["own"]
    assert sampled.images == 100
    np.testing.assert_allclose(sampled.draws["big"][0], sampled.draws["c1"][0])


def test_a_seed_without_finite_scores_leaves_the_set_out(pairs, tmp_path):
    path, _ = of_several_classes(tmp_path, "big", 1, ("own", "size_small"))
    other, _ = of_several_classes(tmp_path, "c1", 1, ("own", "size_small"))
    file = other / "responses" / "own" / "2.npz"
    with np.load(file) as stored:
        content = dict(stored)
    content["scores"][1, 7] = np.nan
    answers.write(file, {name: array for name, array in content.items() if name != "digest"})
    given = runs.read([path, other], pairs)
    assert list(given.shifted) == ["size_small"]
    assert f"own is left out: {other}: seeds 5 have no finite scores of some images of own: choose an earlier epoch" in " ".join(
        given.notes
    )
    described(other, "own", "targets", [""] * 120, {"scores": content["scores"]}, label=-1, cue=-1)
    assert "own is left out: no image of own has a class" in runs.read([other, path], pairs).notes


def test_a_set_of_two_measures_is_refused(pairs, tmp_path):
    path, _ = of_several_classes(tmp_path, "big", 1, ("own",))
    other = workdir(tmp_path / "c1", {"own": ("ood", right_of(120, 0.5, SEEDS))}, "c1")
    with pytest.raises(
        ValueError, match=r"own is scored in .*big by ap_weighted and .*c1 by accuracy: evaluate all runs on the same images"
    ):
        runs.read([path, other], pairs)


# Which sets count


@pytest.fixture
def imagenets(tmp_path):
    """Two runs with ImageNet's val, its 200 classes, and shifted sets in two forms."""
    shares = {"big": 0.8, "c1": 0.5}
    forms = ("imagenet_r", "imagenet_r_unmasked", "imagenet_a", "imagenet_a_unmasked", "blurry", "blurry_present", "imagenet_sketch")
    paths = []
    for name, share in shares.items():
        sets = {"imagenet": ("test", right_of(60, share, SEEDS)), "imagenet_200": ("test", right_of(40, share + 0.1, SEEDS))}
        paths.append(workdir(tmp_path / name, sets | {form: ("ood", right_of(30, share - 0.2, SEEDS)) for form in forms}, name))
    return paths


def test_forms_of_one_set_count_once(imagenets, pairs, capsys):
    given = runs.read(imagenets, pairs, iid="imagenet")
    assert list(given.shifted) == ["imagenet_r", "imagenet_a", "blurry", "imagenet_sketch"]
    assert "imagenet_r_unmasked has the images of imagenet_r, which counts: it is left out; --sets chooses" in given.notes
    assert study.compare(given).cells["raw_p_holm"].min() == pytest.approx(4 * study.compare(given).cells["raw_p"].min())
    wanted = ("--sets", "blurry_present,imagenet-r,imagenet_r_unmasked")
    code, said = command(capsys, *imagenets, "--pairs", pairs, "--iid", "imagenet", *wanted)
    assert code == 0 and "over all 3 cells" in said and "left out" not in said
    code, said = command(capsys, *imagenets, "--pairs", pairs, "--iid", "imagenet", "--sets", "blury")
    assert code == 2 and "--sets: there is no shifted set 'blury'; did you mean blurry? available: imagenet_r, imagenet_r_unmasked" in said
    for path in imagenets:
        content = json.loads((path / "responses" / "sets.json").read_text())
        del content["sets"]["blurry"]
        (path / "responses" / "sets.json").write_text(json.dumps(content))
    assert "blurry_present" in runs.read(imagenets, pairs, iid="imagenet").shifted  # the only form that is there


def test_each_shifted_set_may_have_its_own_in_distribution_set(imagenets, pairs, capsys):
    given = runs.read(imagenets, pairs, iid="imagenet,imagenet_200:imagenet_r,imagenet_200:imagenet_a")
    images = {name: iid.images for name, iid in given.iid.items()}
    assert images == {"imagenet_r": 40, "imagenet_a": 40, "blurry": 60, "imagenet_sketch": 60}
    assert "imagenet_200 is the in-distribution set of imagenet_r, imagenet_a" in given.notes
    alone = runs.read(imagenets, pairs, iid="imagenet_200:imagenet_r", sets=("imagenet_r",))
    assert alone.iid["imagenet_r"].images == 40 and len(alone.iid) == 1
    for iid, message in (
        ("imagenet,imagenet_200", "write one set for all, and SET:SHIFTED for each shifted set that has another; not imagenet_200 too"),
        ("imagenet,imagenet_200:", "write one set for all, and SET:SHIFTED for each shifted set"),
        (
            "imagenet,imagenet_20:imagenet_r",
            "there is no set of role test with this name; did you mean imagenet_200? available: imagenet, im",
        ),
        (
            "imagenet,imagenet_200:imagenet_c",
            "--iid imagenet_200:imagenet_c: among the sets that count there is no shifted set 'imagenet_c'",
        ),
        ("imagenet,imagenet_200:imagenet_r_unmasked", "available: imagenet_r, imagenet_a, blurry, imagenet_sketch"),
        ("imagenet_200:imagenet_r,imagenet:imagenet-r", "two in-distribution sets of imagenet_r, imagenet_200 and imagenet: keep one"),
        (
            "imagenet_200:imagenet_r",
            "several in-distribution sets, imagenet, imagenet_200: choose one with --iid or, for one alone, --iid ima",
        ),
    ):
        code, said = command(capsys, *imagenets, "--pairs", pairs, "--iid", iid)
        assert code == 2 and message in said, said
    code, said = command(capsys, *imagenets, "--pairs", pairs, "--iid", "imagenet_200:imagenet_r", "--corruptions")
    assert code == 2 and "--corruptions: there are several in-distribution sets, imagenet, imagenet_200: choose one with --iid" in said


def test_margins_hold_for_the_names_of_runs_and_of_the_paper():
    assert [study.margin_of(name) for name in ("blurry", "blurry_present", "Real Blurry Images")] == [2, 2, 2]
    assert [study.margin_of(name) for name in ("DFR", "size_small", "zoom_large")] == [0.5, 0.5, 0.5]
    assert [study.margin_of(name) for name in ("imagenet_r", "imagenet_o", "mCE", "own")] == [1, 1, 1, 1]
    assert study.margin_of("own", precise=True) == 0.5


# mCE of published files


def published_mce(path, right, algorithm, images=True):
    """What `jaxbed measure --imagenet-c` leaves of a run with one seed that is right where `right` [n] says so, in all cells."""
    n = len(right)
    label = np.arange(n) % 3
    for corruption in corruption_error.MAIN:
        for severity in range(1, 6):
            folder = path / "measures" / "imagenet_c" / f"{corruption}_{severity}"
            folder.mkdir(parents=True)
            content = {"response": np.where(right, label, (label + 1) % 3)[None], "seeds": np.array([3]), "alive": np.ones(1, bool)}
            answers.write(folder / "2.npz", content | {"checkpoint": "c", "asked": "a"})
    if images:
        table = pd.DataFrame({"name": [f"x/{number}.JPEG" for number in range(n)], "label": label, "cue": -1})
        table.to_csv(path / "measures" / "imagenet_c" / "images.csv", index=False, lineterminator="\n")
    mce = corruption_error.corruption_error(dict.fromkeys(corruption_error.MAIN, 1 - right.mean()), 0.2).mce
    rows = [(algorithm, 3, "imagenet_c", 2, "mce", mce, np.nan, np.nan, "ood", "ok")]
    pd.DataFrame(rows, columns=metrics.COLUMNS).to_csv(path / "measures.csv", index=False)


def test_mce_of_published_files_is_resampled_over_their_images(pairs, tmp_path, capsys):
    paths = []
    for name, share in (("big", 0.8), ("c1", 0.4)):
        path = workdir(tmp_path / name, {"art": ("ood", right_of(30, 0.5, (3,)))}, name, (3,))
        published_mce(path, right_of(200, share, (3,))[0], name)
        paths.append(path)
    row = study.compare(runs.read(paths, pairs)).cells.set_index("dataset").loc["mCE"]
    assert row["basis"] == "images alone (single seed)" and row["images"] == 200 and row["evidence"] == "+"
    ease = 100 * np.mean([1 / corruption_error.ALEXNET[name] for name in corruption_error.MAIN])  # of a whole image
    difference = right_of(200, 0.8, (3,))[0] * 1.0 - right_of(200, 0.4, (3,))[0]
    assert row["raw_value"] == pytest.approx(ease * difference.mean())
    assert (row["raw_high"] - row["raw_low"]) / 3.92 == pytest.approx(ease * difference.std() / np.sqrt(200), rel=0.1)
    (paths[1] / "measures" / "imagenet_c" / "images.csv").unlink()
    code, said = command(capsys, *paths, "--pairs", pairs)
    table = paths[1] / "measures" / "imagenet_c" / "images.csv"
    assert code == 0 and "no interval: no answers per image, and a single seed of big" in said
    assert f"{table}, which names the images, is missing: run the command again that measured it" in said
    assert f"jaxbed measure {paths[1]} ... --imagenet-c DIR" in said and f"{paths[0]}/measures" not in said.partition("intervals of mCE")[2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "fog_1" / "2.npz").unlink(), r"fog_1/2\.npz is missing: run the command again"),
        (
            lambda folder: pd.read_csv(folder / "images.csv")[:99].to_csv(folder / "images.csv", index=False),
            "to the images of .*images.csv",
        ),
        (
            lambda folder: pd.read_csv(folder / "images.csv").assign(label=0).to_csv(folder / "images.csv", index=False),
            r"measures\.csv has another mCE of imagenet_c than its answers",
        ),
    ],
)
def test_answers_that_do_not_give_the_mce_are_not_resampled_and_say_why(pairs, tmp_path, damage, message):
    paths = [workdir(tmp_path / name, {"art": ("ood", right_of(30, 0.5, (3,)))}, name, (3,)) for name in ("big", "c1")]
    for path in paths:
        published_mce(path, right_of(100, 0.6, (3,))[0], path.name)
    damage(paths[0] / "measures" / "imagenet_c")
    given = runs.read(paths, pairs)
    assert given.shifted["mCE"].images == 0
    assert re.search(message, " ".join(given.notes))


# Which runs and sets count


def of_role(role, share, seeds=SEEDS):
    return role, right_of(60, share, seeds)


def test_what_one_of_several_workdirs_lacks_is_left_out(tmp_path, pairs, capsys):
    """Else the shifted score would be of one seed, and the in-distribution score of two."""
    runs_of = [
        workdir(tmp_path / "first", {"iid": of_role("test", 0.7, (3,)), "art": of_role("ood", 0.5, (3,))}, "big", (3,)),
        workdir(tmp_path / "second", {"iid": of_role("test", 0.8, (5,))}, "big", (5,)),
        workdir(tmp_path / "c1", {"iid": of_role("test", 0.7), "art": of_role("ood", 0.5), "paint": of_role("ood", 0.5)}, "c1"),
    ]
    code, said = command(capsys, *runs_of, "--pairs", pairs)
    assert code == 0 and "note: art is left out: 1 of 2 workdirs of big have it: evaluate all on it, or name no others" in said
    code, said = command(capsys, *runs_of, "--pairs", pairs, "--sets", "art")
    assert code == 2 and "--sets art: 1 of 2 workdirs of big have it" in said
    code, said = command(capsys, *runs_of, "--pairs", pairs, "--sets", "mCE")
    assert code == 2 and "--sets mCE: not all runs have it at the epochs that count; run: jaxbed measure" in said


def test_another_form_counts_where_the_usual_one_lacks_an_algorithm(tmp_path, pairs, capsys):
    unmasked = {"iid": of_role("test", 0.7), "imagenet_r_unmasked": of_role("ood", 0.5)}
    runs_of = [workdir(tmp_path / name, unmasked, name) for name in ("big", "c1")]
    runs_of.append(workdir(tmp_path / "c2", {"iid": of_role("test", 0.7), "imagenet_r": of_role("ood", 0.5)}, "c2"))
    code, said = command(capsys, *runs_of, "--pairs", pairs, "--out", tmp_path / "out")
    cells = pd.read_csv(tmp_path / "out" / "evidence.csv", keep_default_na=False).set_index("dataset")
    assert code == 0 and cells.loc["imagenet_r_unmasked", "pairs"] == 1 and "which counts: it is left out" not in said


def test_margins_may_be_of_sets_that_do_not_count(tmp_path, pairs, capsys):
    sets = {"iid": of_role("test", 0.7), "art": of_role("ood", 0.5), "paint": of_role("ood", 0.5)}
    runs_of = [workdir(tmp_path / name, sets, name) for name in ("big", "c1")]
    (tmp_path / "margins.csv").write_text("set,margin\npaint,3\nart,2\n")
    words = ("--pairs", pairs, "--margins", tmp_path / "margins.csv", "--sets", "art", "--out", tmp_path / "out")
    code, said = command(capsys, *runs_of, *words)
    assert code == 0 and json.loads((tmp_path / "out" / "evidence.json").read_text())["margins"] == {"art": 2.0}, said


def test_an_in_distribution_set_that_cannot_be_scored_says_why(tmp_path, pairs, capsys):
    sets = {"iid": of_role("test", 0.7), "art": of_role("ood", 0.5)}
    runs_of = [workdir(tmp_path / name, sets, name) for name in ("big", "c1")]
    for path in runs_of:
        described(path, "iid", "targets", ["0"] * 30 + [""] * 30, {}, label=-1)
    code, said = command(capsys, *runs_of, "--pairs", pairs, "--iid", "iid")
    assert code == 2 and re.search(r"--iid iid: .*have no scores, which ap_weighted needs: delete these answers", said), said


def test_two_workdirs_with_other_settings_are_refused_with_a_cure_of_this_command(tmp_path, pairs, capsys):
    sets = {"iid": of_role("test", 0.7, (3,)), "art": of_role("ood", 0.5, (3,))}
    runs_of = [workdir(tmp_path / name, sets, "big", (seed,)) for name, seed in (("one", 3), ("two", 5))]
    for path, rate in zip(runs_of, (0.1, 0.2), strict=True):
        (path / "config.json").write_text(json.dumps({"name": "big", "optim": {"lr": rate}}))
    given = [*runs_of, workdir(tmp_path / "c1", sets, "c1", (3,)), "--pairs", pairs]
    code, said = command(capsys, *given)
    assert code == 2 and "or train both with the same settings" in said
    assert f"Rename one of them, --rename '{runs_of[1]}=big lr=0.2'" in said.replace("optim.", "")
    assert command(capsys, *given, "--rename", f"{runs_of[1]}=other")[0] == 0


def test_two_algorithms_of_one_name_are_told_apart_by_rename(tmp_path, pairs, capsys):
    sets = {"iid": of_role("test", 0.7, (3,)), "art": of_role("ood", 0.5, (3,))}
    runs_of = [workdir(tmp_path / name, sets, "c1", (3,)) for name in ("narrow", "wide")]
    code, said = command(capsys, *runs_of, "--pairs", pairs)
    assert code == 2 and f"if they are two algorithms, --rename {runs_of[1]}=NAME" in said
    assert command(capsys, *runs_of, "--pairs", pairs, "--rename", f"{runs_of[1]}=big")[0] == 0
    assert command(capsys, *runs_of, "--pairs", pairs, "--rename", "nothing=big")[0] == 2
