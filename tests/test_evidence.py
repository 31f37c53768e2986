"""`jaxbed evidence`: bootstrap, line, pooling and decisions by hand; workdirs; the published tables; bad input."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy
from commands import ROOT

from jaxbed.evaluation import answers, metrics
from jaxbed.measures import corruption_error
from jaxbed.stats.evidence import abstract, blocks, effects, families, line, main, published, report, resampling, runs, scores, study
from jaxbed.stats.evidence.effects import Effect

CONTROLS = [f"c{number}" for number in range(5)]
PAIRS = "hypothesis,treated,control,synthetic\nlarger,big,c1,\naugmented,mix,c1,yes\naugmented,style,c2,yes\n"
SHARES = {"big": (0.72, 0.5), "mix": (0.7, 0.62), "style": (0.74, 0.6)}  # right on test and ood
SHARES |= {name: (0.62 + 0.05 * number, 0.3 + 0.07 * number) for number, name in enumerate(CONTROLS)}


def right_of(n, share, seeds):
    """[2, n] of seeds that are right on a share of images, the same where they can be."""
    ease = np.random.default_rng(0).random(n)
    return np.stack([ease + 0.1 * np.random.default_rng(seed).standard_normal(n) < share for seed in seeds])


def workdir(path, sets, name, seeds=(3, 5), epochs=(1, 2), images=None, shape_bias=None):
    """A run that is right where `sets` {set: (role, right [S, n])} says so, and at earlier epochs nowhere."""
    (path / "responses").mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"name": name}))
    facts = {}
    for dataset, (role, right) in sets.items():
        folder = path / "responses" / dataset
        folder.mkdir()
        named = np.array((images or {}).get(dataset) or [f"{dataset}-{i}" for i in range(right.shape[1])])
        label, cue = np.arange(len(named)) % 3, np.full(len(named), -1)
        pd.DataFrame({"name": named, "label": label, "cue": cue}).to_csv(folder / "images.csv", index=False, lineterminator="\n")
        facts[dataset] = {"role": role, "decision": "argmax", "classes": ["a", "b", "c"], "images": metrics.digest(named, label, cue)}
        for epoch in epochs:
            response = np.where(right & (epoch == epochs[-1]), label, (label + 1) % 3)
            content = {"response": response.astype(np.int16), "seeds": np.array(seeds), "alive": np.ones(len(seeds), bool)}
            answers.write(folder / f"{epoch}.npz", content | {"checkpoint": "c", "asked": "a"})
    about = {"data": {"name": "imagenet", "cue": "texture"}, "classes": ["a", "b", "c"], "sets": facts}
    (path / "responses" / "sets.json").write_text(json.dumps(about))
    if shape_bias is not None:
        rows = [(name, seed, "cue_conflict", epochs[-1], "shape_bias", shape_bias, 1, 2, "ood", "ok") for seed in seeds]
        pd.DataFrame(rows, columns=metrics.COLUMNS).to_csv(path / "measures.csv", index=False)
    return path


def zoo(folder, seeds=(3, 5), n=200):
    """Eight algorithms with a test set, `art` and `paint`."""
    return [
        workdir(
            folder / name,
            {
                "val_iid": ("test", right_of(n, iid, seeds)),
                "art": ("ood", right_of(n, ood, seeds)),
                "paint": ("ood", right_of(n, 0.5, seeds)),
            },
            name,
            seeds,
            shape_bias=ood,
        )
        for name, (iid, ood) in SHARES.items()
    ]


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    return zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS)
    return path


def command(capsys, *words):
    code = main.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


# Bootstrap


def bits(n, share, seed=0):
    return 100.0 * (np.random.default_rng(seed).random((1, n)) < share)


def test_seeds_without_spread_give_the_interval_of_images_alone():
    """Two seeds with the same answers: the standard error of the paired difference, whose z is McNemar's."""
    treated, control = bits(500, 0.7, 1), bits(500, 0.5, 2)
    sampled = resampling.sample("art", {"a": treated.repeat(2, 0), "b": control.repeat(2, 0)})
    drawn = sampled.draws["a"] - sampled.draws["b"]
    difference = (treated - control)[0]
    assert drawn[0] == pytest.approx(difference.mean())
    assert drawn[1:].std() == pytest.approx(difference.std() / np.sqrt(500), rel=0.06)
    alone = resampling.sample("art", {"a": treated, "b": control})
    np.testing.assert_allclose(alone.draws["a"] - alone.draws["b"], drawn)
    assert (sampled.basis("a", "b"), alone.basis("a", "b")) == ("images and seeds", "images alone (single seed)")


def test_images_without_spread_give_the_interval_of_seeds_alone():
    """Every image contributes what its seed scores: the variance of a mean of three seeds, and of a difference the sum of both."""
    of_seeds = np.array([60.0, 64.0, 71.0])
    sampled = resampling.sample("art", {"a": np.tile(of_seeds[:, None], 40), "b": np.tile(of_seeds[:, None] - 5, 40)})
    variance = of_seeds.var(ddof=1) / 3
    assert sampled.of_seeds == pytest.approx({"a": variance, "b": variance})
    assert sampled.draws["a"][1:].var() == pytest.approx(variance, rel=0.1)
    assert (sampled.draws["a"] - sampled.draws["b"])[1:].var() == pytest.approx(2 * variance, rel=0.15)
    alone = resampling.sample("art", {"a": of_seeds[:, None]}, has_images=False)
    np.testing.assert_allclose(alone.draws["a"], sampled.draws["a"])
    assert alone.images == 0 and alone.basis("a") == "seeds alone"
    single = resampling.sample("art", {"a": of_seeds[:1, None]}, has_images=False)
    assert np.isnan(effects.of_draws(single.draws["a"]).low) and single.basis("a").startswith("no interval")


def test_seeds_and_images_add_up_in_any_number_of_batches(monkeypatch):
    """The crossed design: image variance of the mean over seeds, variance of seeds, and the small rest between them."""
    rng = np.random.default_rng(3)
    scores = 100.0 * (rng.random((4, 300)) < np.array([[0.5], [0.6], [0.7], [0.55]]))
    sampled = resampling.sample("art", {"a": scores})
    images, seeds = scores.mean(0).var() / 300, scores.mean(1).var(ddof=1) / 4
    rest = (scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()).var() / (300 * 3)
    assert sampled.draws["a"][1:].var() == pytest.approx(images + seeds + rest, rel=0.12)
    monkeypatch.setattr(resampling, "AT_ONCE", 7 * 300)
    np.testing.assert_allclose(resampling.sample("art", {"b": scores[:1], "a": scores}).draws["a"], sampled.draws["a"])


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_effect_of_a_pair_lies_in_the_interval_of_few_seeds(seeds):
    """Of 400 pairs whose seeds vary and whose images do not, of which a plain bootstrap holds 70, 80 and 90 % with 2, 3 and 5 seeds."""
    rng, within = np.random.default_rng(seeds), 0
    for number in range(400):
        drawn = resampling.sample(f"set {number}", {name: 50 + rng.standard_normal((seeds, 1)) for name in "ab"}, has_images=False)
        effect = effects.of_draws(drawn.draws["a"] - drawn.draws["b"], seeds=drawn.part_of_seeds([("a", "b")]))
        within += effect.low <= 0 <= effect.high
    assert within / 400 > 0.92


def test_how_much_few_seeds_widen_an_interval_by_hand():
    """Two algorithms of S seeds with equal variance have 2 (S - 1) degrees of freedom (Welch)."""
    parts = effects.Seeds(np.array([[1, -1]]), np.array([2.0, 2.0]), np.array([4, 4]))
    draws = np.concatenate([[3.0], 3 + 2 * scipy.stats.norm.ppf((np.arange(2_000) + 0.5) / 2_000)])
    wide, plain = effects.of_draws(draws, seeds=parts), effects.of_draws(draws)
    wider = scipy.stats.t.ppf(0.975, 8) / scipy.stats.norm.ppf(0.975)
    assert (wide.high - 3) / (plain.high - 3) == pytest.approx(wider, rel=1e-3) == pytest.approx((wide.low - 3) / (plain.low - 3), rel=1e-3)
    assert wide.value == plain.value and wide.p > plain.p
    both = effects.Seeds(np.array([[1, 0, -1], [0, 1, -1]]), np.full(3, 2.0), np.full(3, 4))
    assert both.varies(np.full(2, 0.5)) == pytest.approx(2 * (0.5**2 + 0.5**2 + 2**2) / 4)


def test_classes_are_drawn_with_all_their_images():
    """Images of a class are right or wrong together: the standard error is that of as many images as there are classes."""
    of_class = bits(40, 0.6)
    scores, cluster = np.repeat(of_class, 25, axis=1), np.repeat(np.arange(40), 25)
    drawn = resampling.sample("imagenet_r", {"a": scores}, cluster=cluster)
    assert drawn.draws["a"][1:].std() == pytest.approx(of_class.std() / np.sqrt(40), rel=0.06)
    assert drawn.basis("a") == "classes alone (single seed)"
    alone = resampling.sample("imagenet_r", {"a": of_class})
    np.testing.assert_allclose(drawn.draws["a"], alone.draws["a"])
    uneven = resampling.sample("imagenet_r", {"a": np.full((1, 30), 50.0)}, cluster=np.repeat([0, 1, 2], [1, 9, 20]))
    np.testing.assert_allclose(uneven.draws["a"], 50)


def test_sets_whose_classes_were_chosen_with_their_images_draw_classes():
    """Also where two runs answered images in another order."""
    image, label = np.array(["a", "b", "c", "d"]), np.array([0, 0, 1, 1])
    values = np.array([[100.0, 100.0, 0.0, 0.0]])
    one, other = blocks.Block("one", image, values, label), blocks.Block("other", image[::-1], values[:, ::-1], label[::-1])
    for name, expected in (("imagenet_r_unmasked", {0, 50, 100}), ("art", {0, 25, 50, 75, 100})):
        sampled = scores.sample(name, {"a": [one], "b": [other]})
        assert {*sampled.draws["a"]} == {*sampled.draws["b"]} == expected


def test_normal_draws_have_exact_errors_of_sums():
    drawn = resampling.normal({"art": {"a": (50.0, 3.0), "b": (40.0, 4.0)}, "paint": {"a": (1.0, float("nan"))}})
    difference = effects.of_draws(drawn["art"].draws["a"] - drawn["art"].draws["b"], normal=True)
    assert difference[:3] == pytest.approx((10, 10 - 1.959964 * 5, 10 + 1.959964 * 5))
    assert difference.p == pytest.approx(0.02275, abs=1e-5)
    assert np.isnan(effects.of_draws(drawn["paint"].draws["a"], normal=True).low)


def test_mcnemar_by_hand():
    treated, control = np.zeros(5000), np.zeros(5000)
    treated[:1200], control[1200:2100] = 100, 100
    z = resampling.mcnemar(treated, control)
    assert z == pytest.approx(300 / np.sqrt(2100)) == pytest.approx(6.5465, abs=1e-4)
    assert (z * np.sqrt(2100) - 1) ** 2 / 2100 == pytest.approx(42.5719, abs=5e-5)  # with the correction of continuity, which z is without
    assert np.isnan(resampling.mcnemar(control, control))


# Effects


@pytest.mark.parametrize(
    ("low", "high", "margin", "symbol", "view"),
    [
        (1.1, 3, 1, "+", "+"),
        (1, 3, 1, "?", "-"),
        (-0.9, 0.9, 1, "o", "-"),
        (-1, 0.5, 1, "?", "-"),
        (-3, -1.1, 1, "-", "-"),
        (0.5, 2, 0, "+", "+"),
        (float("nan"), float("nan"), 1, "?", "-"),
    ],
)
def test_decisions(low, high, margin, symbol, view):
    assert effects.decide(Effect((low + high) / 2, low, high, 0.5), margin) == symbol
    assert effects.published_view(symbol) == view and effects.published_view("") == ""


def test_der_simonian_laird_by_hand():
    """Effects 1, 3, 8 of variances 1, 1, 4: weights 1, 1, 1/4; mean 8/3; Q = 25/9 + 1/9 + 64/9; C = 2.25 - 2.0625 / 2.25 = 4/3."""
    mean, error, tau, _ = effects.random_effects(np.array([1.0, 3, 8]), np.diag([1.0, 1, 4]))
    assert tau**2 == pytest.approx((10 - 2) / (4 / 3)) == pytest.approx(6)
    weight = np.array([1 / 7, 1 / 7, 1 / 10])
    assert mean == pytest.approx(weight @ [1, 3, 8] / weight.sum()) and error == pytest.approx(weight.sum() ** -0.5)
    assert effects.random_effects(np.array([2.0, 2.1]), np.diag([1.0, 1])) == pytest.approx((2.05, 0.5**0.5, 0, 1))


def test_a_control_that_pairs_share_by_hand():
    """Half of each variance of 1 is the control's, which both pairs have at once: of Q = 2 it leaves (1 - 1/2) to chance, not 1."""
    covariance = np.array([[1, 0.5], [0.5, 1]])
    mean, error, tau, freedom = effects.random_effects(np.array([2.0, 4.0]), covariance)
    assert (mean, tau**2) == pytest.approx((3, 2 - 0.5))
    assert error**2 == pytest.approx((2 * (1 + tau**2) + 2 * 0.5) / 4) == pytest.approx(1.5)
    assert freedom == pytest.approx(error**4 / 1)  # tau's part of the error squared, half of tau^2, varies by 2 * (0.5 + tau^2)^2 / 4
    assert effects.random_effects(np.array([2.0, 2.1]), covariance)[:3] == pytest.approx((2.05, 0.75**0.5, 0))


def test_a_single_pair_has_the_interval_of_its_error():
    assert effects.random_effects(np.array([3.0]), np.array([[4.0]])) == (3, 2, 0, np.inf)
    seeds = effects.Seeds(np.array([[1, -1]]), np.array([2.0, 2.0]), np.array([4, 4]))
    assert effects.random_effects(np.array([3.0]), np.array([[4.0]]), seeds) == pytest.approx((3, 2, 0, 8))


@pytest.mark.parametrize("pairs", [2, 3, 4, 8])
def test_equal_errors_have_the_interval_of_hartung_and_knapp(pairs):
    values = np.arange(pairs) * 10.0
    _, error, _, freedom = effects.random_effects(values, np.eye(pairs))
    assert error == pytest.approx(values.std(ddof=1) / pairs**0.5) and freedom == pytest.approx(pairs - 1)


@pytest.mark.parametrize(("pairs", "tau"), [(3, 0), (3, 1), (3, 3), (4, 3), (6, 3)])
def test_the_mean_of_few_pairs_lies_in_its_interval(pairs, tau):
    """Of 2,000 sets of pairs that share a control; an interval of a normal distribution holds 85 to 95 % of the true means."""
    rng, covariance = np.random.default_rng(0), 0.5 * np.eye(pairs) + 0.5
    within = 0
    for values in rng.multivariate_normal(np.zeros(pairs), covariance + tau**2 * np.eye(pairs), 2_000):
        mean, error, _, freedom = effects.random_effects(values, covariance)
        within += abs(mean) <= error * scipy.stats.t.ppf(0.975, freedom)
    assert 0.92 < within / 2_000 < 0.98


@pytest.mark.parametrize(
    ("mean", "of_pairs", "symbol"),
    [((2, 3), "??", "+"), ((-9, 9), "++", "+"), ((-9, 9), "+?", "?"), ((-9, 9), "--", "-"), ((-0.5, 0.5), "+-", "o")],
)
def test_what_is_decided_about_several_pairs(mean, of_pairs, symbol):
    assert effects.decide_together(Effect(0, *mean, 0.5), list(of_pairs), 1) == symbol


def test_pairs_are_pooled_with_the_covariance_of_their_draws():
    drawn = resampling.normal({"art": {"a": (50.0, 1.0), "b": (51.0, 1.0), "c": (40.0, 1.0)}})["art"].draws
    pooled = effects.pool(np.stack([drawn["a"] - drawn["c"], drawn["b"] - drawn["c"]]))
    assert pooled.effect.value == pytest.approx(10.5) and pooled.tau == 0
    reach = scipy.stats.t.ppf(0.975, 2 * 1.5**2 / (2 * 1 / 2**2)) * 1.5**0.5  # an error of 1.5 and not 1: the control is the same
    assert pooled.effect.high - 10.5 == pytest.approx(reach)
    unknown = effects.pool(np.stack([drawn["a"], np.full(len(drawn["a"]), np.nan)]))
    assert np.isnan([unknown.effect.low, unknown.tau]).all()
    exact = effects.of_draws(np.full(11, 2.0), normal=True)
    assert exact == Effect(2, 2, 2, 0)


def logits(points):
    return np.log(points / (100 - points))


def test_a_logit_line_by_hand():
    """Controls exactly on logit(y) = -1 + 1.5 logit(x): a treated with 5 points more than predicted."""
    x = np.array([60.0, 65, 70, 75, 80])
    y = 100 / (1 + np.exp(1 - 1.5 * logits(x)))
    iid, shifted = ({name: np.full(3, value) for name, value in zip(CONTROLS, of_set, strict=True)} for of_set in (x, y))
    fitted = line.fit(iid, shifted, CONTROLS)
    assert (fitted.intercept[0], fitted.slope[0]) == pytest.approx((-1, 1.5)) and (fitted.low, fitted.high) == (60, 80)
    predicted = 100 / (1 + np.exp(1 - 1.5 * logits(72.0)))
    scores = np.full(3, predicted + 5), shifted["c1"]
    np.testing.assert_allclose(line.effective(fitted, (np.full(3, 72.0), iid["c1"]), scores), 5)
    with pytest.raises(ValueError, match=r"IID score 81\.0 of the treated is outside the line's range, 60\.0 to 80\.0"):
        line.effective(fitted, (np.full(3, 81.0), iid["c1"]), scores)
    with pytest.raises(ValueError, match="needs 5 controls, and has 4"):
        line.fit(iid, shifted, CONTROLS[1:])
    with pytest.raises(ValueError, match="c0 scores 0, which has no logit"):
        line.fit(iid, shifted | {"c0": np.zeros(3)}, CONTROLS)
    with pytest.raises(ValueError, match="all controls have one IID score"):
        line.fit(dict.fromkeys(CONTROLS, np.full(3, 50.0)), shifted, CONTROLS)


# Workdirs


def test_workdirs_give_every_cell_with_both_effects(eight, pairs, tmp_path, capsys):
    out = tmp_path / "out"
    (out / "tables").mkdir(parents=True)
    (out / "tables" / "table_4.tex").write_text("of an earlier call")
    code, said = command(capsys, *eight, "--pairs", pairs, "--line", ",".join(CONTROLS), "--real", "art,paint", "--out", out)
    assert code == 0 and "wrote 10 files" in said, said
    cells = pd.read_csv(out / "evidence.csv", keep_default_na=False).set_index(["hypothesis", "dataset"])
    assert list(cells.index) == [(hypothesis, name) for hypothesis in ("larger", "augmented") for name in ("art", "paint")]
    larger = cells.loc[("larger", "art")]
    right = {name: np.mean([right_of(200, share[1], [seed]).mean() for seed in (3, 5)]) for name, share in SHARES.items()}
    assert larger["raw_value"] == pytest.approx(100 * (right["big"] - right["c1"])) and larger["evidence"] == "for"
    assert larger["basis"] == "images and seeds" and larger["seeds"] == "2 / 2" and larger["pairs"] == 1
    assert larger["effective_value"] < larger["raw_value"]
    augmented = cells.loc[("augmented", "art")]
    assert (augmented["pairs"], augmented["positive"], augmented["treated"]) == (2, 2, "all") and augmented["evidence"] == "for"
    p = cells["raw_p"].astype(float)
    assert cells["raw_p_holm"].astype(float).min() == pytest.approx(min(1, 4 * p.min()))
    content = json.loads((out / "evidence.json").read_text())
    assert content["lines"][0]["controls"] == "c0, c1, c2, c3, c4" and content["margins"] == {"art": 1, "paint": 1}
    assert content["runs"]["big"][0].endswith("big: seed 3, epoch 2")
    claims = {(row["claim"], row["dataset"], row["quantity"]): row for row in content["abstract"]}
    transfer = claims[abstract.NO_TRANSFER, "art", "mean gain above the margin"]
    assert transfer["n"] == 2 and transfer["p"] < 0.1
    assert augmented["each_pair"] == "for, for"
    assert claims[abstract.TEXTURE, "art", "Spearman's rho with the change of shape bias"]["reason"] == "a rank correlation needs 4 pairs"
    assert claims[abstract.ONLY_IID, "art", "R2 of IID alone"]["n"] == 8
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 1 and "Abstract hypotheses" in page
    assert r"\begin{tabular}" in (out / "tables" / "evidence.tex").read_text() and not (out / "tables" / "table_4.tex").exists()


def test_one_seed_is_images_alone_and_options_change_what_counts(tmp_path, pairs, capsys):
    single = zoo(tmp_path / "single", seeds=(3,), n=60)
    given = runs.read(single, pairs)
    found = study.compare(given)
    assert set(found.pairs["basis"]) == {"images alone (single seed)"}
    assert set(found.cells["effective_reason"]) == {"no line: name controls with --line"} and found.lines.empty
    row = found.pairs.iloc[0]
    treated, control = (right_of(60, SHARES[name][1], (3,))[0] for name in ("big", "c1"))
    b, c = (treated & ~control).sum(), (control & ~treated).sum()
    assert row["mcnemar_z"] == pytest.approx((b - c) / np.sqrt(b + c))
    margins = tmp_path / "margins.csv"
    margins.write_text("set,margin\nart,50\n")
    wide = study.compare(runs.read(single, pairs, CONTROLS, margins))
    assert wide.cells.loc[0, "margin"] == 50 and wide.cells.loc[0, "evidence"] == "o"
    code, said = command(capsys, *single, "--pairs", pairs, "--select", "1")
    assert code == 0 and "0.0 [0.0, 0.0]" in said  # nothing is right at epoch 1
    untested = workdir(tmp_path / "new", {"sketch": ("ood", right_of(60, 0.5, (3,)))}, "new", (3,))
    pairs.write_text(f"{PAIRS}new,new,c1,\n")
    cells = study.compare(runs.read([*single, untested], pairs)).cells.set_index(["hypothesis", "dataset"])
    assert cells.loc[("new", "art"), ["evidence", "published_view", "effective_reason"]].tolist() == ["", "", "no pair has answers"]


def test_mce_is_resampled_where_answers_are_there(tmp_path, pairs):
    """From answers to all corruptions; the same numbers alone give seeds alone."""
    pairs.write_text("hypothesis,treated,control\nlarger,big,c1\n")
    paths = []
    for name, share in (("big", 0.6), ("c1", 0.4)):
        seeds, n = (3, 5), 40
        path = workdir(tmp_path / name, {"art": ("ood", right_of(n, 0.5, seeds))}, name)
        right = right_of(n, share, seeds)
        label = np.arange(n) % 3
        for corruption in corruption_error.MAIN:
            for severity in range(1, 6):
                folder = path / "measures" / "art" / f"{corruption}_{severity}"
                folder.mkdir(parents=True)
                content = {"response": np.where(right, label, (label + 1) % 3), "seeds": np.array(seeds), "alive": np.ones(2, bool)}
                answers.write(folder / "2.npz", content | {"checkpoint": "c", "asked": "a"})
        mce = [corruption_error.corruption_error(dict.fromkeys(corruption_error.MAIN, 1 - accuracy), 0.2).mce for accuracy in right.mean(1)]
        rows = [(name, seed, "art", 2, "mce_jax", value, np.nan, np.nan, "ood", "ok") for seed, value in zip(seeds, mce, strict=True)]
        pd.DataFrame(rows, columns=metrics.COLUMNS).to_csv(path / "measures.csv", index=False)
        paths.append((path, np.mean(mce)))
    folders = [path for path, _ in paths]
    given = runs.read(folders, pairs)
    row = study.compare(given).cells.set_index("dataset").loc["mCE"]
    assert row["raw_value"] == pytest.approx(paths[1][1] - paths[0][1]) and row["basis"] == "images and seeds" and row["images"] == 40
    assert "mCE is mce_jax of art; its score is 100 - mCE" in given.notes
    (folders[0] / "measures" / "art" / "fog_1").rename(tmp_path / "gone")
    assert study.compare(runs.read(folders, pairs)).cells.set_index("dataset").loc["mCE", "basis"] == "seeds alone"
    (folders[1] / "measures.csv").unlink()
    given = runs.read(folders, pairs)
    assert list(given.shifted) == ["art"] and "mCE is left out: c1 lack it" in " ".join(given.notes)


def test_common_images_are_matched_by_name(tmp_path, pairs):
    pairs.write_text("hypothesis,treated,control\nlarger,big,c1\n")
    right = {name: right_of(30, share, (3, 5)) for name, share in (("big", 0.7), ("c1", 0.4))}
    order = [f"art-{i}" for i in range(29, -1, -1)]
    one = workdir(tmp_path / "big", {"art": ("ood", right["big"])}, "big")
    two = workdir(tmp_path / "c1", {"art": ("ood", right["c1"][:, ::-1][:, :20])}, "c1", images={"art": order[:20]})
    scores = runs.read([one, two], pairs).shifted["art"]
    assert scores.images == 20 and scores.draws["big"][0] == pytest.approx(100 * right["big"][:, 10:].mean())
    assert scores.draws["c1"][0] == pytest.approx(100 * right["c1"][:, 10:].mean())


def test_it_needs_no_jax():
    code = "import sys, jaxbed.stats.evidence.main, jaxbed.measures.table; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# The published tables


def test_the_published_tables(shared_data, tmp_path, capsys):
    folder, out = shared_data / "shift_tables", tmp_path / "out"
    code, said = command(capsys, "--paper", "shift", "--tables", folder, "--out", out)
    assert code == 0, said
    pairs = pd.read_csv(out / "pairs.csv", keep_default_na=False).set_index(["treated", "dataset"])
    assert pairs.loc[("ResNet-50 + DeepAugment + AugMix", "ImageNet-R"), "evidence"] == "for"
    assert pairs.loc[("ResNet-50 + ImageNet-21K Pretraining", "ImageNet-A"), "evidence"] == "for"
    assert set(pairs.xs("ImageNet-C", level="dataset")["evidence"]) == {"for"}
    blurry = pairs.loc[("ResNet-50 + CBAM", "Real Blurry Images")]
    low, value, high = (float(blurry[f"raw_{name}"]) for name in ("low", "value", "high"))
    assert blurry["evidence"] == "undecided" and blurry["published_view"] == "not for"
    assert value == pytest.approx(2.2) and (high - low) / 2 == pytest.approx(4.33, abs=0.005)
    content = json.loads((out / "evidence.json").read_text())
    assert content["lines"][0]["slope"] == pytest.approx(1.10, abs=0.005)
    assert [line.split(":")[0] for line in content["misprints"]] == [
        "table 13, ResNet-50 + DeepAugment (EDSR)",
        "table 5, ResNet-152",
        "table 11, DFR",
        "table 11, DFR",
        "table 11, SVSF",
    ]
    assert content["misprints"][-3:] == [
        "table 11, DFR: 8 sizes for 9 names of test sets",
        "table 11, DFR: the test set 'viewpoint - frontal' is Viewpoint_SideBack in table 3: "
        "frontal is the viewpoint of the training images, by the authors' code",
        "table 11, SVSF: the test set 'camera system - new' is Hardware_Old in table 2: new is the camera of the training images",
    ]
    assert "the gap is 52.4, printed 55.1" in content["misprints"][0] and "54.9, 66.9, 51.9, 59.1, mean 58.2" in content["misprints"][1]
    assert pairs.loc[("ResNet-50 + Style Transfer", "ImageNet-R"), "effective_reason"].endswith("outside the line's range, 92.1 to 93.8")
    assert "Table 4: paper / ours" in said and "Table 6: paper / ours" in said
    disagreeing = [row["benchmark"] for row in content["published"]["Table 6"] if row["agrees"] is False]
    assert disagreeing == []
    tables = {number: (out / "tables" / f"table_{number}.tex").read_text() for number in range(1, 14)}
    assert r"ResNet-50 & 77.6 & 55.1 & 39.4 & 73.0 & 51.5 & 41.2 & 50.5 & 63.2 & 48.7 & 73.3 \\" in tables[3]  # digits as printed
    assert "paper / ours" in tables[6] and "StreetView StoreFronts & camera, capture year, country" in tables[10]
    assert "SVSF & 200000 & 10000, 10000, 10000, 8195, 9788 & in-distribution, capture year: 2018" in tables[11]


def test_made_up_tables_are_recomputed(tmp_path, capsys):
    """Two models, of which the treated one is 3 points better, and one wrong number of each kind that is recomputed."""
    of_r = {"ImageNet-200": 8, "ImageNet-R": 64, "Gap": 56}
    of_c = {"Clean": 24, "mCE": 60, **dict.fromkeys(published.CORRUPTIONS, 60)}
    wrong = {("1", "Gap"): 60, ("3", "OOD"): 57, ("8", "mCE"): 62, ("5", "ImageNetC_Blur_Mean"): 57}
    of_control: dict[str, dict[str, float]] = {
        **{"1": of_r, "7": of_r, "13": of_r, "8": of_c, "12": of_c},
        "2": {"IID": 30, **dict.fromkeys(published.OF_SVSF, 31)},
        "3": {"IID": 70, "OOD": 50, "Small": 45, "Large": 55},
        "5": {**dict.fromkeys(published.BLUR, 50), "ImageNetC_Blur_Mean": 50, "Real_Blurry_Images": 58},
        "9": {"ImageNet-A": 3},
    }
    for number, name in published.FILES.items():
        lines = ["model,column,value"]
        for model, better in (("ResNet-50", 0), ("ResNet-50 + CBAM", 3)):
            for column, value in of_control[number].items():
                changed = value + better * (1 if number in "39" else -1) * (column != "Gap")
                lines.append(f"{model},{column},{wrong.get((number, column), changed) if better else value}")
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    for name in published.VIEWS.values():
        printed = "Self-Attention,ImageNet-R,-\nSelf-Attention,ImageNet-A,+\nPretraining,SVSF,\n"
        (tmp_path / name).write_text(f"hypothesis,benchmark,evidence\n{printed}")
    found = published.read(tmp_path)
    cells = study.compare(found.given).cells.set_index(["hypothesis", "dataset"])
    row = cells.loc[("Self-Attention", "ImageNet-R")]
    error = np.sqrt((64 * 36 + 61 * 39) / 30_000)
    assert (row["raw_value"], row["raw_low"]) == pytest.approx((3, 3 - scipy.stats.norm.ppf(0.975) * error)) and row["evidence"] == "+"
    assert cells.loc[("Self-Attention", "DFR"), ["raw_value", "evidence"]].tolist() == [3, "?"]
    assert np.isnan(cells.loc[("Self-Attention", "DFR"), "raw_low"]) and cells.loc[("Pretraining", "SVSF"), "evidence"] == ""
    assert found.misprints == [
        "table 1, ResNet-50 + CBAM: the gap is 56.0, printed 60.0 (+4.0)",
        "table 8, ResNet-50 + CBAM: the mean of 15 CEs is 57.0, printed mCE 62.0",
        "table 3, ResNet-50 + CBAM: the mean of the sets is 53.0, printed 57.0",
        "table 5, ResNet-50 + CBAM: the mean of 47, 47, 47, 47 is 47.0, printed 57",
    ]
    names = "dataset,name_in_caption\nDFR,viewpoint - not-worn\nSVSF,camera system - old\nSVSF,camera system - new\n"
    (tmp_path / "table11_names.csv").write_text(names)
    (tmp_path / "table11_sizes.csv").write_text("dataset,split,images\nDFR,train,9\nDFR,test,5\nSVSF,test,7\nSVSF,test,8\n")
    assert published.read(tmp_path).misprints[4:] == [
        "table 11, SVSF: the test set 'camera system - new' is Hardware_Old in table 2: new is the camera of the training images"
    ]
    code, said = command(capsys, "--paper", "shift", "--tables", tmp_path)
    assert code == 0 and "- / + *" in said and "misprint: table 1" in said, said
    assert "note: table 10 is not shown: table10_shifts.csv is missing" in said and "table 11 is not shown" not in said
    (tmp_path / "table10_shifts.csv").write_text("dataset,kind\nDFR,size\n")
    code, said = command(capsys, "--paper", "shift", "--tables", tmp_path)
    assert code == 2 and "table10_shifts.csv: column 'shift' is missing" in said


def test_models_and_views_of_published_tables():
    assert published.canonical("ResNet-50 + DeepAugment+AugMix") == "ResNet-50 + DeepAugment + AugMix"
    assert published.canonical("ResNet-152+Squeeze-and-Excitation") == "ResNet-152 + SE"
    cells = pd.DataFrame({"hypothesis": "h", "dataset": ["a", "b", "c"], "evidence": ["?", "+", ""], "published_view": ["-", "+", ""]})
    view = pd.DataFrame({"hypothesis": "h", "benchmark": ["a", "b", "c"], "evidence": ["+", "+", ""]})
    assert published.beside(cells, view)["agrees"].tolist() == [False, True, None]
    assert report._compared(published.beside(cells, view)).iloc[0].tolist() == ["h", "+ / ? *", "+ / +", "· / ·"]


# Abstract hypotheses


def test_pairs_of_their_own_have_the_p_of_sign_flips():
    """Gains 1, 2 and 3: of eight signs, two are as extreme. Gains 1 and -1: all are."""
    values = {**dict.fromkeys("abc", 0.0), "x": 1.0, "y": 2.0, "z": 3.0}
    assert abstract.exchanged(values, list(zip("xyz", "abc", strict=True))) == pytest.approx((2 / 8, 2 / 8), abs=0.02)
    assert abstract.exchanged(values | {"y": -1.0}, [("x", "a"), ("y", "b")])[0] == 1
    many = {f"t{i}": 1.0 + i for i in range(10)} | {f"c{i}": 0.0 for i in range(10)}
    assert abstract.exchanged(many, [(f"t{i}", f"c{i}") for i in range(10)])[0] < 0.01


def test_a_bad_control_of_many_pairs_is_one_accident():
    """Nine gains of 5 by one control: each of ten algorithms might have been the bad one. Sign flips would give 2 / 512."""
    values = {"c": 0.0, **{f"t{i}": 5.0 + 0.01 * i for i in range(9)}}
    assert abstract.exchanged(values, [(f"t{i}", "c") for i in range(9)]) == pytest.approx((1 / 10, 1 / 10), abs=0.02)


def test_correlations_and_components_have_p_from_permutations():
    rng = np.random.default_rng(0)
    common = rng.standard_normal(12)
    pairs = [study.Pair("h", f"t{i}", f"c{i}") for i in range(12)]
    of = {(pair.treated, pair.control): np.array([value]) for pair, value in zip(pairs, common, strict=True)}
    other = {pair: np.array([value]) for pair, value in zip(of, rng.standard_normal(12), strict=True)}
    same, free = (abstract._correlation("claim", "art", "rho", pairs, of, values) for values in (of, other))
    assert (same["value"], same["p"]) == (pytest.approx(1), 1e-4) and free["p"] > 0.05
    gains = {"art": of, "paint": {pair: 2 * value for pair, value in of.items()}, "sketch": of}
    rows = {row["quantity"]: row for row in abstract._dimensions(study.Study(None, None, None, gains))}
    share, independent = rows["share of the first component"], rows["share of the first component if sets were independent"]
    assert share["value"] == pytest.approx(1) and share["p"] == 1e-4 and 1 / 3 < independent["value"] < 0.6
    rows = {row["quantity"]: row for row in abstract._dimensions(study.Study(None, None, None, {"art": of, "paint": other}))}
    assert rows["participation ratio"]["p"] > 0.05


def test_the_spectrum_of_gains():
    """One direction has share 1 and ratio 1; uncorrelated gains on two sets have 1/2 and 2."""
    together = np.array([[1.0, 2], [2, 4], [3, 6], [4, 8]])
    apart = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    np.testing.assert_allclose(abstract._spectrum(np.stack([together, apart])), [[1, 0.5], [1, 2]])


# Bad input


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("hypothesis,treated,control\nlarger,bgi,c1\n", "line 2: no run is of the treated 'bgi'; did you mean big?"),
        ("hypothesis,treated,control\nlarger,big,big\n", "treated and control are both 'big'; a pair has two algorithms"),
        ("hypothesis,treated\nlarger,big\n", "column 'control' is missing"),
        ("hypothesis,treated,control,sinthetic\nlarger,big,c1,yes\n", "column 'sinthetic' is not known; did you mean synthetic?"),
        ("hypothesis,treated,control\n", "has no pairs"),
        ("hypothesis,treated,control\n,big,c1\n", "line 2 names no hypothesis"),
        ("hypothesis,treated,control\nlarger,big,c1\nlarger,big,c1\n", "line 3 repeats the pair big, c1"),
        ("hypothesis,treated,control,synthetic\nlarger,big,c1,maybe\n", "synthetic is 'maybe'; write yes, no or nothing"),
    ],
)
def test_pairs_that_cannot_be_used_are_an_error(tmp_path, table, message):
    path = tmp_path / "pairs.csv"
    path.write_text(table)
    with pytest.raises(ValueError) as error:
        runs.read_pairs(path, ["big", *CONTROLS])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("set,margin\nart,-1\n", "line 2: margin -1 of art; it must be 0 or more, in points"),
        ("set,margin\narts,1\n", "there is no shifted set 'arts'; did you mean art?"),
        ("set,size\nart,1\n", "column 'margin' is missing"),
        ("set,margin,why\nart,1,small\n", "column 'why' is not known; available: set, margin"),
    ],
)
def test_margins_that_cannot_be_used_are_an_error(tmp_path, table, message):
    path = tmp_path / "margins.csv"
    path.write_text(table)
    with pytest.raises(ValueError) as error:
        runs.read_margins(path, ["art"])
    assert message in str(error.value)
    assert runs.read_margins(None, ["art", "real_blurry_images", "mCE"]) == {"art": 1, "real_blurry_images": 2, "mCE": 1}


def test_runs_and_options_that_cannot_be_used_are_an_error(tmp_path, pairs, capsys):
    def refused(message, *words):
        code, said = command(capsys, *words)
        assert code == 2 and message in said and "Traceback" not in said, said

    pairs.write_text("hypothesis,treated,control\nlarger,big,c1\n")
    right = right_of(9, 0.5, (3, 5))
    one = workdir(tmp_path / "one", {"art": ("ood", right)}, "big")
    other = workdir(tmp_path / "other", {"art": ("ood", right)}, "c1", images={"art": [f"other-{i}" for i in range(9)]})
    refused("have no common image of art, e.g. 'art-0' and 'other-0'", one, other, "--pairs", pairs)
    plain = workdir(tmp_path / "plain", {"art": ("ood", right)}, "c1")
    refused("--line names 2 controls, big, c1: name at least 5, or leave it out", one, plain, "--pairs", pairs, "--line", "big,c1")
    refused("--line: no run is of", one, plain, "--pairs", pairs, "--line", "c7")
    refused("seed 3 of big is in both", one, one, plain, "--pairs", pairs)
    refused("seed 3 of big is in both", one, workdir(tmp_path / "again", {"art": ("ood", right)}, "big"), plain, "--pairs", pairs)
    refused("9.npz is missing: of art there are answers of epochs 1, 2", one, plain, "--pairs", pairs, "--select", "9")
    refused("--select oracle: it must be last", one, plain, "--pairs", pairs, "--select", "oracle")
    refused("there is no set of role test with this name", one, plain, "--pairs", pairs, "--iid", "val")
    no_shift = [workdir(tmp_path / f"iid-{name}", {"val": ("test", right), "more": ("test", right)}, name) for name in ("big", "c1")]
    refused("there are several in-distribution sets, val, more: choose one with --iid", *no_shift, "--pairs", pairs)
    refused("no set of role ood, and no mCE", *no_shift, "--pairs", pairs, "--iid", "more")
    refused("name workdirs and --pairs CSV, or --paper shift --tables DIR", one)
    refused("--paper shift needs --tables DIR", "--paper", "shift")
    refused("leave out RUN, --pairs", one, "--paper", "shift", "--tables", tmp_path, "--pairs", pairs)
    refused("--tables is for --paper shift", one, "--pairs", pairs, "--tables", tmp_path)
    paper = ("--paper", "shift", "--tables", tmp_path)
    refused("table1_imagenet_r_error.csv is missing: --tables needs the published tables", *paper)
    table = tmp_path / "table1_imagenet_r_error.csv"
    for content, message in (
        ("model,error\na,1\n", "column 'column' is missing"),
        ("model,column,x,y\na,b,1,2\n", "one column of numbers is needed"),
        ("model,column,error\na,Gap,1\na,Gap,2\n", "line 3 gives Gap of a again"),
        ("model,column,error\na,Gap,1\n", "there is no value of ImageNet-200, ImageNet-R"),
    ):
        table.write_text(content)
        refused(message, *paper)


# Families of corruptions


@pytest.fixture
def corrupted(tmp_path):
    """Two runs whose test set was measured under fog and contrast, and the first also under snow; `mix` has trained with contrast."""
    paths = []
    for name, share, cells in (
        ("mix", 0.8, ("fog_3", "contrast_1", "contrast_2", "snow_3")),
        ("c1", 0.5, ("fog_3", "contrast_1", "contrast_2")),
    ):
        path = workdir(tmp_path / name, {"val_iid": ("test", right_of(100, 0.7, (3, 5)))}, name, epochs=(1,))
        (path / "config.json").write_text(
            json.dumps({"name": name, "data": {"augment": {"contrast": 0.4 * (name == "mix"), "noise": "none"}}})
        )
        label = pd.read_csv(path / "responses" / "val_iid" / "images.csv")["label"].to_numpy()
        for cell in cells:
            (path / "measures" / "val_iid" / cell).mkdir(parents=True)
            right = np.stack([np.arange(100) < 100 * share] * 2)
            content = {
                "response": np.where(right, label, (label + 1) % 3).astype(np.int16),
                "seeds": np.array([3, 5]),
                "alive": np.ones(2, bool),
            }
            answers.write(path / "measures" / "val_iid" / cell / "1.npz", content | {"checkpoint": "c", "asked": "a"})
        paths.append(path)
    return paths


def test_families_are_shifted_sets_and_cells_of_what_was_trained_with_are_marked(corrupted, tmp_path, capsys):
    (tmp_path / "pairs.csv").write_text("hypothesis,treated,control,overlaps\naugmented,mix,c1,\n")
    words = [*corrupted, "--pairs", tmp_path / "pairs.csv", "--corruptions", "--out", tmp_path / "out"]
    code, said = command(capsys, *words)
    assert code == 0 and "ImageNet-C weather is the accuracy under fog, severities 3\n" in said and "ImageNet-C noise is left out" in said
    assert "+ †" in said and report.OF_OVERLAP in said
    cells = pd.read_csv(tmp_path / "out" / "evidence.csv", keep_default_na=False).set_index("dataset")
    assert cells["overlaps"].to_dict() == {"ImageNet-C weather": "", "ImageNet-C digital": "contrast"}
    assert cells["raw_value"].tolist() == [30, 30] and cells["basis"].unique() == ["images and seeds"]
    (tmp_path / "pairs.csv").write_text("hypothesis,treated,control,overlaps\naugmented,mix,c1,weather\n")
    command(capsys, *words)
    cells = pd.read_csv(tmp_path / "out" / "evidence.csv", keep_default_na=False).set_index("dataset")
    assert cells["overlaps"].to_dict() == {"ImageNet-C weather": "snow, frost, fog, brightness", "ImageNet-C digital": "contrast"}


def test_families_that_cannot_be_read_are_refused(corrupted, tmp_path, capsys):
    (tmp_path / "pairs.csv").write_text("hypothesis,treated,control,overlaps\naugmented,mix,c1,rain\n")
    code, said = command(capsys, *corrupted, "--pairs", tmp_path / "pairs.csv", "--corruptions")
    assert code == 2 and "line 2: overlaps 'rain': write families, noise, blur, weather, digital, or corruptions" in said
    (tmp_path / "pairs.csv").write_text("hypothesis,treated,control\naugmented,mix,c1\n")
    shutil.rmtree(corrupted[1] / "measures")
    code, said = command(capsys, *corrupted, "--pairs", tmp_path / "pairs.csv", "--corruptions")
    assert code == 2 and f"run: jaxbed measure {corrupted[1]} --measures imagenet_c" in said


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"data": {"augment": {"noise": "speckle"}}}, {"gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"}),
        ({"data": {"augment": {"noise": "none", "brightness": 0.4}}}, {"brightness"}),
        ({"data": {}, "method": {"operations": 13}}, {"brightness", "contrast", "saturate"}),
        ({"data": {"augment": None}, "method": {"operations": 9}}, set()),
        ({"data": {"of": {"augment": {"contrast": 0.2}}}}, {"contrast"}),
    ],
)
def test_what_a_configuration_has_trained_with(settings, found):
    assert families.trained_with(settings) == found
    assert sorted(corruption for members in corruption_error.FAMILIES.values() for corruption in members) == sorted(corruption_error.MAIN)
