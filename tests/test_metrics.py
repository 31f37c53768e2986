"""From logits to answers and from answers to numbers, on cases that can be checked by hand."""

import functools
import hashlib
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxbed.evaluation import decision_rules, measures, metrics
from jaxbed.evaluation.measures import Answers, harmonic_mean
from jaxbed.evaluation.metrics import scores

LABEL = np.array([0, 0, 0, 0, 1, 1, 1, 2])
CUE = np.array([0, 0, 1, 2, 1, 0, 0, 2])
RESPONSE = np.array(
    [
        [0, 1, 1, 0, 1, 1, 2, 2],  # right at 0, 3, 4, 5, 7; answers the bias of the conflicting images at 2
        [0, 0, 1, 2, 1, 0, 0, 2],  # always the bias
        [1, 1, 2, 1, 0, 2, 2, 0],  # never right, never the bias of a conflicting image
    ]
)


def measure(*given):
    return measures.measure(Answers(*given))


def numbers(response, label, bias, bias_name="texture") -> dict[str, list[tuple]]:
    """{metric: [(value, n_correct, n_total) of each seed]}"""
    result = measure(np.array(response), np.array(label), np.array(bias), bias_name)
    return {metric: list(zip(*(x.tolist() for x in triple), strict=True)) for metric, triple in result.items()}


def values(response, label, bias, bias_name="texture") -> dict[str, list[float]]:
    return {metric: [value for value, _, _ in triples] for metric, triples in numbers(response, label, bias, bias_name).items()}


# measure


def test_ratios_of_a_hand_counted_case():
    found = numbers(RESPONSE, LABEL, CUE)
    assert found["accuracy"] == [(5 / 8, 5, 8), (4 / 8, 4, 8), (0, 0, 8)]
    assert found["aligned"] == [(3 / 4, 3, 4), (1, 4, 4), (0, 0, 4)]
    assert found["conflicting"] == [(2 / 4, 2, 4), (0, 0, 4), (0, 0, 4)]
    assert found["cue_accuracy"] == [(1 / 4, 1, 4), (1, 4, 4), (0, 0, 4)]


def test_shape_bias_is_pooled_over_answers_to_label_or_cue():
    found = numbers(RESPONSE, LABEL, CUE)["shape_bias"]
    assert found[:2] == [(2 / 3, 2, 3), (0, 0, 4)]
    assert np.isnan(found[2][0]) and found[2][1:] == (0, 0)  # no such answer: undefined, not 0


def test_differences_and_means_have_no_counts():
    found = numbers(RESPONSE, LABEL, CUE)
    assert [v for v, _, _ in found["acc_diff"]] == [0.25, 1, 0]
    np.testing.assert_allclose([v for v, _, _ in found["ac_score"]], [0.6, 0, 0])
    # cells (0,0) (0,1) (0,2) (1,0) (1,1) (2,2)
    np.testing.assert_allclose([v for v, _, _ in found["group_mean"]], [(0.5 + 0 + 1 + 0.5 + 1 + 1) / 6, 0.5, 0])
    for metric in ("acc_diff", "ac_score", "group_mean"):
        assert all(np.isnan(n) for _, *counts in found[metric] for n in counts)


def test_worst_group_tells_its_value_and_size():
    found = numbers(RESPONSE, LABEL, CUE)["worst_group"]
    assert found[0] == (0, 0, 1)  # cell (0, 1) has one image
    assert found[1] == (0, 0, 1)  # (0, 1), (0, 2) and (1, 0) tie
    assert found[2] == (0, 0, 2)  # all tie: the first, (0, 0)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ([0, 0, 1, 1, 1, 1, 1, 1, 9], (1 / 4, 1, 4)),  # (0, 0) 1 of 1, (0, 1) 1 of 4, (1, 1) 3 of 4
        ([0, 0, 0, 0, 0, 0, 0, 1, 9], (1 / 4, 1, 4)),
        ([1, 0, 0, 0, 0, 1, 1, 1, 9], (0, 0, 1)),
    ],
)
def test_worst_group_is_the_cell_of_lowest_share_not_of_fewest_hits(response, expected):
    label, bias = [0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert numbers([response], label, bias)["worst_group"] == [expected]


def test_worst_group_may_differ_between_seeds():
    label, bias = [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]
    assert numbers([[0, 0, 1, 0, 0], [1, 1, 1, 1, 0]], label, bias)["worst_group"] == [(0, 0, 2), (0, 0, 3)]


@pytest.mark.parametrize(("aligned", "conflicting", "expected"), [(0.9, 0.5, 0.642857), (1, 0.27, 0.425197), (0.8, 0, 0), (0, 0, 0)])
def test_ac_score_of_the_reference(aligned, conflicting, expected):
    assert harmonic_mean(np.array([aligned]), np.array([conflicting]))[0] == pytest.approx(expected, abs=1e-6)
    response = np.r_[np.arange(100) >= round(100 * aligned), np.arange(100) >= round(100 * conflicting)].astype(int)
    found = values([response], np.zeros(200, int), np.r_[np.zeros(100, int), np.full(100, 5)])
    assert found["ac_score"][0] == pytest.approx(expected, abs=1e-6)
    assert found["acc_diff"][0] == pytest.approx(aligned - conflicting)


@pytest.mark.parametrize(
    ("aligned", "conflicting", "pooled", "macro", "pos"),
    [  # right answers of four in each class
        ([4, 4], [2, 4], 0.75, 0.75, 1.0),
        ([2, 4], [4, 1], 5 / 6, (0.5 + 0.25) / 2, 0.25),  # ratios above 1 are folded
        ([0, 4], [2, 2], 1.0, 0.25, 0.5),
        ([0, 4], [0, 2], 0.5, None, 0.5),  # a class that is never right
        ([4, 0], [2, 1], 0.75, 0.25, None),
        ([0, 0], [0, 0], None, None, None),
    ],
)
def test_equality_of_opportunity(aligned, conflicting, pooled, macro, pos):
    label = np.repeat([0, 1], 8)
    bias = np.tile([0, 0, 0, 0, 1, 1, 1, 1], 2) ^ label
    right = np.concatenate([np.arange(4) < n for pair in zip(aligned, conflicting, strict=True) for n in pair])
    found = measure(np.where(right, label, -1)[None], label, bias, "colour")
    for name, expected in (("eo_pooled", pooled), ("eo_macro", macro), ("eo_pos", pos)):
        value, *counts = found[name]
        np.testing.assert_allclose(value, [np.nan if expected is None else expected], err_msg=name)
        assert np.isnan(counts).all()


def test_opportunity_merges_all_other_cues_and_needs_both_groups_of_a_class():
    label, bias = np.array([0, 0, 0, 1, 1, 1, 2, 2]), np.array([0, 1, 2, 1, 0, 2, 2, 2])
    response = np.array([[0, 0, 9, 1, 9, 9, 2, 9]])
    found = measure(response, label, bias, "colour")
    assert "eo_pos" not in found  # three classes
    np.testing.assert_allclose(found["eo_macro"][0], [(0.5 + 0) / 2])  # class 2 has no conflicting image
    np.testing.assert_allclose(found["eo_pooled"][0], [(1 / 4) / (3 / 4)])


def test_acc_diff_keeps_its_sign():
    assert values([[1, 0]], [0, 0], [0, 1])["acc_diff"] == [-1]


@pytest.mark.parametrize(
    ("bias", "present"),
    [
        ([-1, -1], {"accuracy"}),
        ([0, 1], {"accuracy", "aligned", "worst_group", "group_mean"}),
        ([1, 0], {"accuracy", "conflicting", "cue_accuracy", "shape_bias", "worst_group", "group_mean"}),
        (
            [0, 0],
            {*"accuracy aligned conflicting cue_accuracy shape_bias acc_diff ac_score worst_group group_mean eo_pooled eo_macro".split()},
        ),
        ([0, -1], {"accuracy", "aligned", "worst_group", "group_mean"}),
    ],
    ids=["no bias", "all aligned", "all conflicting", "both", "aligned and unknown"],
)
def test_a_metric_without_images_is_absent(bias, present):
    assert set(measure(np.array([[0, 1]]), np.array([0, 1]), np.array(bias), "texture")) == present
    assert set(measure(np.array([[0, 1]]), np.array([0, 1]), np.array(bias), "colour")) == present - {"shape_bias"}


def test_images_without_a_cue_are_neither_aligned_nor_conflicting():
    found = numbers([[0, 1, 1, 0]], [0, 1, 1, 1], [0, -1, 0, -1])
    assert found["accuracy"] == [(3 / 4, 3, 4)]
    assert found["aligned"] == [(1, 1, 1)] and found["conflicting"] == [(1, 1, 1)] and found["cue_accuracy"] == [(0, 0, 1)]


def test_an_answer_from_non_finite_logits_is_wrong_and_no_cue():
    found = numbers([[-1, -1, -1, -1]], [0, 0, 1, 1], [0, 1, -1, -1])
    assert found["accuracy"] == [(0, 0, 4)] and found["cue_accuracy"] == [(0, 0, 1)] and found["aligned"] == [(0, 0, 1)]
    assert found["shape_bias"][0][1:] == (0, 0)


@pytest.mark.parametrize(
    ("shape", "texture", "percent"),  # ResNet-50 and SIN-ResNet-50, decisions published with texture-vs-shape
    [(162, 572, 22.07), (586, 141, 80.61), (182, 537, 25.31), (84, 828, 9.21), (196, 569, 25.62)],
)
def test_shape_bias_of_published_decisions(shape, texture, percent):
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(16), 80)
    bias = (label + np.tile(np.repeat(np.arange(16), 5), 16)) % 16  # 1280 images, 80 of them in their own texture
    conflict = rng.permutation(np.flatnonzero(bias != label))
    assert len(conflict) == 1200
    response = label.copy()  # the 80 are right, and must not count
    response[conflict] = np.array([next(c for c in range(16) if c not in pair) for pair in zip(label, bias, strict=True)])[conflict]
    response[conflict[:shape]] = label[conflict[:shape]]
    response[conflict[shape : shape + texture]] = bias[conflict[shape : shape + texture]]
    found = numbers([response], label, bias)
    assert found["shape_bias"][0][1:] == (shape, shape + texture)
    assert 100 * found["shape_bias"][0][0] == pytest.approx(percent, abs=0.005)
    assert found["conflicting"] == [(shape / 1200, shape, 1200)] and found["cue_accuracy"] == [(texture / 1200, texture, 1200)]
    assert found["accuracy"] == [((shape + 80) / 1280, shape + 80, 1280)]


def test_many_seeds_are_measured_as_each_alone():
    rng = np.random.default_rng(1)
    label, bias, response = rng.integers(0, 4, 60), rng.integers(-1, 4, 60), rng.integers(-1, 4, (5, 60))
    together = measure(response, label, bias, "texture")
    for seed in range(5):
        for metric, triple in measure(response[seed : seed + 1], label, bias, "texture").items():
            for a, b in zip(together[metric], triple, strict=True):
                assert a.shape == (5,)
                np.testing.assert_array_equal(a[seed], b[0])


# scores


def write_run(workdir: pathlib.Path, epochs=(1, 2, 10)) -> pathlib.Path:
    """Two sets and two seeds (7 and 8); seed 8 diverges in epoch 2."""
    (workdir / "responses").mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps({"is": "jaxbed.config:Train", "name": "LfF"}))
    about = {
        "data": {"name": "shapes", "cue": "texture"},
        "classes": ["a", "b"],
        "sets": {"val": {"role": "val", "decision": "argmax"}, "edge": {"role": "ood", "decision": "argmax"}},
    }
    (workdir / "responses" / "sets.json").write_text(json.dumps(about))
    for name, label, bias in (("val", [0, 1, 1], [0, 1, 0]), ("edge", [1, 0], [-1, -1])):
        folder = workdir / "responses" / name
        folder.mkdir()
        pd.DataFrame({"name": [f"n{i}" for i in label], "label": label, "cue": bias}).to_csv(folder / "images.csv", index=False)
        for epoch in epochs:
            answers = np.array([label, [0] * len(label)], np.int16)
            np.savez(folder / f"{epoch}.npz", response=answers, seeds=[7, 8], alive=[True, epoch < 2], checkpoint="x")
    return workdir


def test_scores_has_one_row_a_seed_set_epoch_and_metric(tmp_path):
    frame = scores(write_run(tmp_path))
    assert list(frame.columns) == metrics.COLUMNS
    key = ["algorithm", "run", "dataset", "epoch", "metric"]
    assert not frame.duplicated(key).any()
    of_val = {"accuracy", "aligned", "conflicting", "cue_accuracy", "shape_bias", "acc_diff", "ac_score", "worst_group", "group_mean"}
    of_val |= {"eo_pooled", "eo_macro", "eo_pos"}
    never_right = {"eo_macro", "eo_pos"}  # of seed 8 in class 1
    for (dataset, run, epoch), rows in frame.groupby(["dataset", "run", "epoch"]):
        expected = of_val - (never_right if run == 8 else set()) if dataset == "val" else {"accuracy"}
        assert set(rows["metric"]) == expected, (dataset, run, epoch)
    assert set(frame["run"]) == {7, 8} and set(frame["epoch"]) == {1, 2, 10} and set(frame["algorithm"]) == {"LfF"}
    assert dict(zip(frame["dataset"], frame["role"], strict=True)) == {"val": "val", "edge": "ood"}


def test_adjusted_accuracy_weighs_cells_as_the_training_set_has_them():
    label, bias = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 0, 1, 1])
    response = np.array([[0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]])  # right: (0,0) 1/2, (0,1) 1, (1,0) 1, (1,1) 1/2; and 1, 1, 0, 1
    waterbirds = [(0, 0, 3498), (0, 1, 184), (1, 0, 56), (1, 1, 1057)]
    value, _, _ = measure(response, label, bias, "background", waterbirds)["adjusted"]
    np.testing.assert_allclose(value, [(3498 / 2 + 184 + 56 + 1057 / 2) / 4795, (3498 + 184 + 1057) / 4795])
    assert "adjusted" not in measure(response, label, bias, "background")
    assert "adjusted" not in measure(response, label, bias, "background", [*waterbirds, (0, -1, 5)])  # a cell that nobody was asked about
    (value,), _, _ = measure(response[:1], label, bias, "background", [(0, 0, 10)])["adjusted"]
    assert value == 0.5


def test_scores_are_those_of_measure(tmp_path):
    frame = scores(write_run(tmp_path)).set_index(["dataset", "run", "epoch", "metric"])
    assert frame.loc[("val", 7, 10, "accuracy"), ["value", "n_correct", "n_total"]].tolist() == [1, 3, 3]
    assert frame.loc[("val", 8, 1, "accuracy"), ["value", "n_correct", "n_total"]].tolist() == [1 / 3, 1, 3]
    assert frame.loc[("val", 8, 1, "cue_accuracy"), "value"] == 1
    assert frame.loc[("edge", 8, 2, "accuracy"), ["value", "n_correct", "n_total"]].tolist() == [1 / 2, 1, 2]


def test_scores_come_in_the_order_of_sets_and_epochs(tmp_path):
    frame = scores(write_run(tmp_path))
    assert frame["dataset"].drop_duplicates().tolist() == ["val", "edge"]
    for _, rows in frame.groupby("dataset"):
        assert rows["epoch"].drop_duplicates().tolist() == [1, 2, 10]  # as numbers, not as text


def test_a_seed_is_diverged_from_the_epoch_on_in_which_it_was(tmp_path):
    frame = scores(write_run(tmp_path))
    found = {(run, epoch): set(rows["status"]) for (run, epoch), rows in frame.groupby(["run", "epoch"])}
    assert found == {(7, 1): {"ok"}, (7, 2): {"ok"}, (7, 10): {"ok"}, (8, 1): {"ok"}, (8, 2): {"diverged"}, (8, 10): {"diverged"}}


def test_scores_take_a_path_as_text(tmp_path):
    pd.testing.assert_frame_equal(scores(str(write_run(tmp_path))), scores(tmp_path))


def test_confusions_count_every_answer_of_the_chosen_epochs(tmp_path):
    workdir = write_run(tmp_path)
    frame = scores(workdir)
    chosen = frame[(frame["metric"] == "accuracy") & (frame["epoch"] == 2) & ((frame["dataset"] == "val") | (frame["run"] == 7))]
    found = metrics.confusions(workdir, pd.concat([chosen, chosen.assign(algorithm="another")]))
    assert found.to_csv(index=False).splitlines() == [
        "algorithm,run,dataset,epoch,label,answer,images",
        "LfF,7,val,2,a,a,1",
        "LfF,7,val,2,b,b,2",
        "LfF,8,val,2,a,a,1",
        "LfF,8,val,2,b,a,2",
        "LfF,7,edge,2,a,a,1",
        "LfF,7,edge,2,b,b,1",
    ]
    assert metrics.confusions(workdir, chosen.assign(algorithm="another")).empty


def test_confusions_name_the_classes_of_their_set(tmp_path):
    workdir = write_run(tmp_path)
    path = workdir / "responses" / "sets.json"
    about = json.loads(path.read_text())
    about["sets"]["edge"]["classes"] = ["bear", "cat"]
    path.write_text(json.dumps(about))
    np.savez(workdir / "responses" / "edge" / "2.npz", response=np.array([[0, -1]], np.int16), seeds=[7], alive=[True], checkpoint="x")
    found = metrics.confusions(workdir, scores(workdir).query("dataset == 'edge' and epoch == 2"))
    assert found[["label", "answer", "images"]].to_numpy().tolist() == [["bear", "none", 1], ["cat", "bear", 1]]


def test_half_written_answers_do_not_count(tmp_path):
    write_run(tmp_path)
    (tmp_path / "responses" / "val" / "11.partial").write_bytes(b"PK")
    assert scores(tmp_path)["epoch"].max() == 10


@pytest.mark.parametrize(
    ("missing", "cure"),
    [
        ("config.json", "python -m jaxbed.main"),
        ("responses/sets.json", "jaxbed eval"),
        ("responses/edge/images.csv", "jaxbed eval"),
        ("responses/val/*.npz", "jaxbed eval"),
    ],
)
def test_missing_files_are_named_with_the_cure(tmp_path, missing, cure):
    for path in write_run(tmp_path).glob(missing):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=cure) as error:
        scores(tmp_path)
    assert str(tmp_path / missing.replace("/*.npz", "")) in str(error.value)


def test_answers_to_another_number_of_images_are_refused(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "responses" / "edge" / "2.npz"
    np.savez(path, response=np.zeros((2, 3), np.int16), seeds=[7, 8], alive=[True, True], checkpoint="x")
    with pytest.raises(ValueError, match=f"{path} answers 3 images, and images.csv lists 2: delete .*edge, then: jaxbed eval"):
        scores(tmp_path)


@pytest.mark.parametrize("left_bytes", [0, 100])
def test_damaged_answers_are_named_with_the_cure(tmp_path, left_bytes):
    path = write_run(tmp_path) / "responses" / "edge" / "2.npz"
    path.write_bytes(path.read_bytes()[:left_bytes])
    with pytest.raises(ValueError, match=f"{path}.*jaxbed eval"):
        scores(tmp_path)


OWN = '''
import numpy as np

from jaxbed.evaluation.measures import Answers, Counts, ratio


def second_class(answers: Answers) -> Counts | None:
    """Accuracy on the images of class 1."""
    images = answers.label == 1
    return ratio(answers.correct[:, images].sum(1), images.sum()) if images.any() else None


def wrong_shape(answers):
    return ratio(answers.correct, 1)


NUMBER = 3
'''


def test_a_measure_of_ones_own_is_compared_by_its_name(tmp_path, monkeypatch, capsys):
    from jaxbed.stats import main as statistics

    (tmp_path / "measures_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(measures, "MEASURES", dict(measures.MEASURES))
    workdir = write_run(tmp_path / "run")  # one seed of two dies
    out = tmp_path / "out"
    assert statistics.main([str(workdir), "--metric", "measures_of_mine:second_class", "--missing", "drop", "--out", str(out)]) == 0
    frame = scores(workdir).query("metric == 'measures_of_mine:second_class'")
    assert len(frame) and "measures_of_mine:second_class" in (out / "stats.json").read_text()
    for metric, message in (
        ("measures_of_mine:nothing", "measures_of_mine has no function 'nothing'"),
        ("measures_of_mine:NUMBER", "measures_of_mine has no function 'NUMBER'"),
        ("no_such_module:x", "the module cannot be imported (No module named 'no_such_module'). If it lies in FOLDER: PYTHONPATH=FOLDER"),
        ("measures_of_mine:wrong_shape", "measure measures_of_mine:wrong_shape gives [2, 3], [2, 3], [2, 3], and must give"),
    ):
        assert statistics.main([str(workdir), "--metric", metric]) == 2
        assert message in capsys.readouterr().err


def test_scores_do_not_import_jax(tmp_path):
    code = (
        "import sys; from jaxbed.evaluation import metrics; frame = metrics.scores(sys.argv[1]); assert len(frame) == 72, len(frame); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'jax', 'jaxlib', 'flax', 'optax', 'orbax'}))"
    )
    root = pathlib.Path(__file__).resolve().parents[1]
    command = [sys.executable, "-W", "error", "-c", code, str(write_run(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr


# decisions


NAMES = "airplane bear bicycle bird boat bottle car cat chair clock dog elephant keyboard knife oven truck".split()


def logits(**at: float) -> jnp.ndarray:
    z = np.zeros(1000, np.float32)
    for index, value in at.items():
        z[int(index[1:])] = value
    return jnp.array(z)


def test_sixteen_groups_are_those_of_the_reference():
    assert list(decision_rules.SIXTEEN) == NAMES
    assert [len(members) for members in decision_rules.SIXTEEN.values()] == [1, 4, 2, 49, 5, 7, 3, 6, 4, 3, 109, 2, 2, 1, 1, 8]
    text = ";".join(",".join(map(str, members)) for members in decision_rules.SIXTEEN.values())
    assert hashlib.sha256(text.encode()).hexdigest() == "0b23dbf2ebc2c3dce89334f8ccf5bc410b6087548235459d3d79f506dd6a74be"


@functools.cache
def compiled(rule):
    return jax.jit(decision_rules.named(rule).decide)


@pytest.mark.parametrize(
    ("z", "rule", "expected"),
    [
        (logits(i404=3, i8=8), "sixteen_mean_prob", "bird"),
        (logits(i404=3, i8=8), "sixteen_sum_prob", "bird"),
        (logits(i404=3, i8=8), "sixteen_max_prob", "bird"),
        (logits(i404=3, i8=8), "sixteen_mean_logit", "airplane"),
        (logits(i404=2, i152=6), "sixteen_mean_prob", "airplane"),
        (logits(i404=2, i152=6), "sixteen_sum_prob", "dog"),
        (logits(i404=2, i152=6), "sixteen_max_prob", "dog"),
        (logits(i404=2, i152=6), "sixteen_mean_logit", "airplane"),
    ],
)
def test_rules_answer_the_vectors_of_the_reference(z, rule, expected):
    answer = compiled(rule)(z[None])
    assert answer.shape == (1,) and answer.dtype == jnp.int32
    assert NAMES[int(answer[0])] == expected


@pytest.mark.parametrize("rule", [name for name in decision_rules.RULES if name.startswith("sixteen")])
def test_each_group_wins_where_its_members_stand_out(rule):
    z = np.zeros((16, 1000), np.float32)
    for row, members in zip(z, decision_rules.SIXTEEN.values(), strict=True):
        row[members] = 5
    np.testing.assert_array_equal(compiled(rule)(z), np.arange(16))


@pytest.mark.parametrize("rule", decision_rules.RULES)
def test_a_batch_is_answered_as_each_image_alone(rule):
    z = np.random.default_rng(2).normal(0, 1, (15, 1000)).astype(np.float32)
    for row, members in zip(z, decision_rules.SIXTEEN.values(), strict=False):
        row[members] += 6
    z = z.reshape(3, 5, 1000)
    answers = np.asarray(compiled(rule)(z))
    assert answers.shape == (3, 5) and answers.dtype == np.int32 and len(np.unique(answers)) > 3
    for i in range(3):
        for j in range(5):
            assert np.asarray(compiled(rule)(z[i, j])) == answers[i, j]


def test_half_precision_logits_are_decided_in_single():
    z = logits(i404=1, i444=1, i671=1.0078125).astype(jnp.bfloat16)  # the mean of the bicycles rounds to 1 in half precision
    assert NAMES[int(compiled("sixteen_mean_logit")(z))] == "bicycle"


def test_many_middling_members_win_by_sum_alone():
    z = logits(i499=3, **{f"i{i}": 1 for i in decision_rules.SIXTEEN["dog"]})
    answers = {rule: NAMES[int(compiled(rule)(z))] for rule in decision_rules.RULES if rule.startswith("sixteen")}
    assert answers == {**dict.fromkeys(answers, "knife"), "sixteen_sum_prob": "dog"}


def test_argmax_takes_the_first_of_equals():
    assert decision_rules.named("argmax").decide(jnp.array([[1.0, 3, 3], [0, 0, 0]])).tolist() == [1, 0]


@pytest.mark.parametrize("classes", [16, 200, 999, 1001])
@pytest.mark.parametrize("rule", [name for name in decision_rules.RULES if name.startswith("sixteen")])
def test_sixteen_classes_need_the_thousand_logits(rule, classes):
    with pytest.raises(ValueError, match=f"needs the 1000 ImageNet logits, and the network has {classes}"):
        decision_rules.named(rule).decide(jnp.zeros((2, classes)))


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="'sixteen' is not one of argmax, sixteen_mean_prob, sixteen_mean_logit"):
        decision_rules.named("sixteen")
