"""Evaluation: every image answered once, by the right seed of the right epoch, however batches and devices cut the sets."""

import dataclasses
import json
import os
import shutil
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import tiny

from jaxbed import config, parallel
from jaxbed.data.source import EvaluationSet, cells
from jaxbed.data.split import Split
from jaxbed.evaluation import calibration, decision_rules, evaluate, measures, metrics, pools
from jaxbed.models import simple_conv
from jaxbed.training import lock, members, train
from jaxbed.training.log import Log

CONFIG = tiny.mlp_config(optim=tiny.Optim(rule="adam", lr=0.05))  # large steps, so that answers vary
EPOCHS = (1, 2)
IMAGES = 16 * 7


@pytest.fixture(scope="module")
def source():
    return CONFIG.data.open()


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory):
    """The workdir of a run with two seeds and two epochs, not evaluated."""
    workdir = tmp_path_factory.mktemp("trained")
    assert train.train(CONFIG, members.one(CONFIG, source), workdir, Log(workdir)) == 0
    shutil.rmtree(workdir / "checkpoints" / "resume")  # only training reads it, and most tests copy the rest
    return workdir


@pytest.fixture
def workdir(trained, tmp_path):
    """A copy of it to work on."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def evaluated(source, trained, tmp_path_factory):
    """The same workdir with all its answers."""
    workdir = tmp_path_factory.mktemp("evaluated") / "run"
    shutil.copytree(trained, workdir)
    assert run(CONFIG, source, workdir) == 0
    return workdir


@pytest.fixture
def answered(evaluated, tmp_path):
    """A copy of that to work on."""
    shutil.copytree(evaluated, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True, scope="module")
def one_compilation():
    """Evaluations of one configuration share what is made for one data set: programs, and images on the devices with what answers them."""
    programs, pools_of = {}, {}
    assemble, pool = train.assemble, pools.pool

    def assemble_once(cfg, points, *rest, **options):
        key = repr(cfg), id(points[0].source)
        if key not in programs:
            programs[key] = points[0].source, assemble(cfg, points, *rest, **options)  # as long as the source lives, its id is its own
        return programs[key][1]

    def pool_once(predict, seeds, source, sets, *rest):
        key = predict, id(source), tuple(sets), rest
        if key not in pools_of:
            pools_of[key] = source, pool(predict, seeds, source, sets, *rest)
        return pools_of[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "assemble", assemble_once)
        patch.setattr(pools, "pool", pool_once)
        yield


def run(cfg, source, workdir, **options) -> int:
    return evaluate.evaluate(cfg, members.one(cfg, source), workdir, Log(workdir), **options)


_made: dict = {}


def made(cfg, source):
    """(shapes of a checkpoint, every image one at a time -> logits [S, n, classes]) of all runs of one network, data set and mesh."""
    key = repr((cfg.net, cfg.seeds, cfg.mesh, source.name, source.class_names))
    if key not in _made:
        program = tiny.program(cfg, source)

        def ask(params, stats, image):
            return program.method.predict(params, stats, source.scale(image[None]))[0]

        every = jax.jit(jax.vmap(jax.vmap(ask, (None, None, 0)), (0, 0, None)))
        _made[key] = train.snapshot(program.abstract), every
    return _made[key]


def checkpoints(cfg, source, workdir):
    """(epoch store, shapes of a checkpoint)"""
    return train.stores(workdir, cfg.seeds, Log(workdir))[1], made(cfg, source)[0]


_expected: dict = {}


def expected(cfg, source, workdir, epoch: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{set: (answers [S, n], whether they are clear [S, n])}, each seed asked for one image at a time."""
    cfg = dataclasses.replace(cfg, mesh=parallel.Mesh(seed=1, data=1))
    epochs, abstract = checkpoints(cfg, source, workdir)
    key = repr(cfg.net), epochs.identity(epoch), id(source)
    if key not in _expected:
        _expected[key] = source, _asked(cfg, source, epochs.load(epoch, abstract))  # as long as the source lives, its id is its own
    return _expected[key][1]


def _asked(cfg, source, weights) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    weights = jax.device_get(weights)
    result = {}
    for name, (split, _, decision, *_) in source.sets.items():
        logits = np.asarray(made(cfg, source)[1](weights["params"], weights["stats"], split.image))
        best = np.sort(logits, -1)
        result[name] = np.asarray(jax.jit(decision_rules.named(decision).decide)(logits)), best[..., -1] - best[..., -2] > 1e-4
    return result


def answers(workdir, name: str, epoch: int) -> np.ndarray:
    with np.load(workdir / "responses" / name / f"{epoch}.npz") as stored:
        return stored["response"]


def check_answers(cfg, source, workdir, sets=None) -> None:
    """All answers of all epochs are those of each seed to each image alone, but where rounding alone decides."""
    for epoch in train.stores(workdir, cfg.seeds, Log(workdir))[1].numbers():
        for name, (answer, clear) in expected(cfg, source, workdir, epoch).items():
            if sets is None or name in sets:
                found = answers(workdir, name, epoch)
                assert found.dtype == np.int16 and found.shape == (cfg.seeds, len(source.sets[name].split.label))
                assert clear.mean() > 0.9
                np.testing.assert_array_equal(found[clear], answer[clear])


# Every image once


def test_the_answers_of_this_run_tell_mistakes_apart(source, trained):
    """A wrong seed, epoch, set or order must show in the tests below."""
    one, two = (np.concatenate([a for a, _ in expected(CONFIG, source, trained, epoch).values()], 1) for epoch in EPOCHS)
    assert len(np.unique(two)) >= 4
    assert (two[0] != two[1]).mean() > 0.1 and (one != two).mean() > 0.1
    assert (two != np.roll(two, 1, 1)).mean() > 0.2 and (two != np.roll(two, 16, 1)).mean() > 0.1


@pytest.mark.parametrize("batch_size", [1, 16, 48, 56, 300], ids=lambda size: f"batch {size}")
def test_each_image_is_answered_as_if_alone(source, workdir, batch_size):
    cfg = dataclasses.replace(CONFIG, eval=config.Eval(batch_size=batch_size))
    assert run(cfg, source, workdir) == 0
    check_answers(cfg, source, workdir)


def test_scores_are_the_logits_of_each_seed_alone_and_are_added_where_they_are_wanted_later(source, answered, monkeypatch):
    cfg = dataclasses.replace(CONFIG, mesh=parallel.Mesh(2, 2), eval=config.Eval(batch_size=30, keep_scores=True))
    before = answers(answered, "edge", 2)
    assert run(cfg, source, answered) == 0
    check_answers(cfg, source, answered)
    epochs, abstract = checkpoints(CONFIG, source, answered)
    weights = jax.device_get(epochs.load(2, abstract))
    with np.load(answered / "responses" / "edge" / "2.npz") as stored:
        found, response = stored["scores"], stored["response"]
    expected_scores = made(CONFIG, source)[1](weights["params"], weights["stats"], source.sets["edge"].split.image)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected_scores, rtol=2e-3, atol=2e-3)
    assert (response == before).mean() > 0.9  # rounding alone decides a few
    config.save(cfg, answered / "config.json")
    with monkeypatch.context() as patch:
        patch.setattr(measures, "MEASURES", dict(measures.MEASURES))
        for name in ("rms_calibration_error", "rms_calibration_error_at_temperature", "temperature"):
            measures.add(name)
        frame = metrics.scores(answered)
    with np.load(answered / "responses" / "val" / "2.npz") as stored:
        fitted = [calibration.temperature(of_seed, source.sets["val"].split.label) for of_seed in stored["scores"]]
    of_set = frame[(frame["dataset"] == "edge") & (frame["epoch"] == 2)].set_index(["metric", "run"])["value"]
    assert of_set["temperature"].tolist() == fitted
    p = np.exp(found.astype(float) / np.array(fitted)[:, None, None])
    error = calibration.rms_error((p / p.sum(-1, keepdims=True)).max(-1), response == source.sets["edge"].split.label)
    np.testing.assert_allclose(of_set["rms_calibration_error_at_temperature"], error, rtol=1e-4)
    written = (answered / "responses" / "edge" / "2.npz").stat().st_mtime_ns
    assert run(CONFIG, source, answered) == 0  # no longer wanted: what is there stays
    assert (answered / "responses" / "edge" / "2.npz").stat().st_mtime_ns == written


@pytest.mark.parametrize("mesh", [parallel.Mesh(2, 2), parallel.Mesh(1, 4), parallel.Mesh(2, 1, within="map")], ids=str)
def test_answers_do_not_depend_on_the_devices(source, workdir, mesh):
    cfg = dataclasses.replace(CONFIG, mesh=mesh, eval=config.Eval(batch_size=30))
    assert run(cfg, source, workdir) == 0
    check_answers(cfg, source, workdir)


@pytest.mark.parametrize("size", [3, 17])
def test_sets_of_unequal_size_are_split_where_they_end(source, workdir, size):
    cut = {
        name: s._replace(split=Split(*(field[: size if i % 2 else 2 * size] for field in s.split)))
        for i, (name, s) in enumerate(source.sets.items())
    }
    uneven = dataclasses.replace(source, sets=cut)
    assert run(CONFIG, uneven, workdir) == 0
    check_answers(CONFIG, uneven, workdir)


def test_every_epoch_has_answers_with_seeds_and_checkpoint(source, workdir):
    cfg = dataclasses.replace(CONFIG, first_seed=0)
    run(cfg, source, workdir)
    epochs = train.stores(workdir, cfg.seeds, Log(workdir))[1]
    for name in source.sets:
        assert sorted(path.name for path in (workdir / "responses" / name).iterdir()) == ["1.npz", "2.npz", "images.csv"]
        for epoch in EPOCHS:
            with np.load(workdir / "responses" / name / f"{epoch}.npz") as stored:
                assert sorted(stored) == ["alive", "asked", "checkpoint", "confidence", "digest", "response", "seeds"]
                assert stored["confidence"].dtype == np.float32 and stored["confidence"].shape == stored["response"].shape
                assert stored["seeds"].tolist() == [0, 1] and stored["alive"].tolist() == [True, True]
                assert str(stored["checkpoint"]) == epochs.identity(epoch)
    assert epochs.identity(1) != epochs.identity(2)


def test_evaluation_is_logged(source, workdir):
    run(CONFIG, source, workdir)
    lines = [json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines()]
    found = [(line["epoch"], line["images"]) for line in lines if line["kind"] == "evaluation"]
    assert found == [(1, IMAGES), (2, IMAGES)]


# What is answered already


def written(workdir) -> dict[str, int]:
    return {str(path.relative_to(workdir)): path.stat().st_mtime_ns for path in (workdir / "responses").glob("*/*.npz")}


def test_answered_epochs_are_left_alone(source, answered):
    before = written(answered)
    run(CONFIG, source, answered)
    assert written(answered) == before and len(before) == 7 * 2


def test_deleted_answers_are_given_again(source, answered):
    before, lost = written(answered), answers(answered, "edge", 2)
    (answered / "responses" / "edge" / "2.npz").unlink()
    run(CONFIG, source, answered)
    np.testing.assert_array_equal(answers(answered, "edge", 2), lost)
    after = written(answered)
    assert {path for path in before if path.endswith("1.npz") and after[path] != before[path]} == set()


@pytest.mark.parametrize("left_bytes", [0, 100])
def test_damaged_answers_are_given_again(source, answered, left_bytes):
    whole = answers(answered, "val", 1)
    path = answered / "responses" / "val" / "1.npz"
    path.write_bytes(path.read_bytes()[:left_bytes])  # as a power cut may leave it
    run(CONFIG, source, answered)
    np.testing.assert_array_equal(answers(answered, "val", 1), whole)


def poison(cfg, source, workdir, epoch: int, change) -> None:
    """Saves an epoch again with change(path, leaf) applied to its parameters."""
    epochs, abstract = checkpoints(cfg, source, workdir)
    tree = epochs.load(epoch, abstract)
    params = jax.tree_util.tree_map_with_path(lambda path, x: change(jax.tree_util.keystr(path), x), tree["params"])
    epochs.save(epoch, {**tree, "params": params})
    epochs.wait()


def test_a_checkpoint_that_changed_is_answered_again(source, answered):
    before = written(answered)
    poison(CONFIG, source, answered, 2, lambda path, x: -x)
    run(CONFIG, source, answered)
    after = written(answered)
    assert {path for path in before if after[path] != before[path]} == {path for path in before if path.endswith("2.npz")}
    check_answers(CONFIG, source, answered)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_answered_with_minus_one(source, answered, value):
    before = {name: answers(answered, name, 2) for name in source.sets}

    def one_logit_of_the_second_seed(path, x):
        return x.at[1, 3].set(value) if "head" in path and x.ndim == 2 else x

    poison(CONFIG, source, answered, 2, one_logit_of_the_second_seed)
    run(CONFIG, source, answered)
    for name in source.sets:
        found = answers(answered, name, 2)
        assert (found[1] == -1).all() and (before[name] >= 0).all()
        np.testing.assert_array_equal(found[0], before[name][0])


# What cannot be answered


@pytest.mark.parametrize("epoch", EPOCHS)
def test_a_damaged_checkpoint_is_named_and_the_others_answer(source, workdir, epoch):
    folder = workdir / "checkpoints" / "epochs" / str(epoch)
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 255
    largest.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{folder} cannot be used: .*missing or changed.*Restore it"):
        run(CONFIG, source, workdir)
    answered = {int(path.stem) for path in (workdir / "responses" / "val").glob("*.npz")}
    assert answered == set(EPOCHS) - {epoch}


def test_a_half_written_checkpoint_does_not_count(source, workdir):
    (workdir / "checkpoints" / "epochs" / "2.json").unlink()
    assert run(CONFIG, source, workdir) == 0
    assert not (workdir / "responses" / "val" / "2.npz").exists()


def test_nothing_trained_is_said_with_the_cure(source, tmp_path):
    with pytest.raises(ValueError, match=r"holds no finished epoch: train first \(python -m jaxbed.main --config="):
        run(CONFIG, source, tmp_path)


def test_only_the_sets_asked_for_are_answered(source, workdir):
    cfg = dataclasses.replace(CONFIG, eval=config.Eval(batch_size=48, sets=("sketch", "val")))
    run(cfg, source, workdir)
    assert sorted(path.name for path in (workdir / "responses").iterdir()) == ["sets.json", "sketch", "val"]
    assert list(json.loads((workdir / "responses" / "sets.json").read_text())["sets"]) == ["sketch", "val"]
    check_answers(cfg, source, workdir, ("sketch", "val"))


def test_unknown_sets_are_refused_with_the_known_ones(source, workdir):
    cfg = dataclasses.replace(CONFIG, eval=config.Eval(sets=("val", "skech")))
    with pytest.raises(ValueError, match=r"eval\.sets names \['skech'\]; shapes has val, in_distribution, silhouette, edge, sketch"):
        run(cfg, source, workdir)
    assert not (workdir / "responses").exists()


def test_an_unknown_decision_is_refused(source, workdir):
    strange = dataclasses.replace(source, sets={"val": source.sets["val"]._replace(decision="vote")})
    with pytest.raises(ValueError, match="'vote' is not one of argmax"):
        run(CONFIG, strange, workdir)


# What answers mean


def test_images_are_listed_in_the_order_of_the_answers(source, answered):
    for name, (split, *_) in source.sets.items():
        frame = pd.read_csv(answered / "responses" / name / "images.csv")
        assert list(frame.columns) == ["name", "label", "cue"]
        assert frame["name"].tolist() == split.name.tolist()
        assert frame["label"].tolist() == split.label.tolist() and frame["cue"].tolist() == split.bias.tolist()


def other_pixels(asked):
    return asked._replace(split=asked.split._replace(image=255 - asked.split.image))


def other_order(asked):
    return asked._replace(split=asked.split._replace(image=asked.split.image[::-1], name=asked.split.name[::-1]))


def other_labels(asked):
    return asked._replace(split=asked.split._replace(label=asked.split.label[::-1]))


def other_cues(asked):
    return asked._replace(split=asked.split._replace(bias=(asked.split.bias + 1) % 4))


def other_decision(asked):
    return asked._replace(decision="least")


@pytest.fixture
def least(monkeypatch):
    monkeypatch.setitem(decision_rules.RULES, "least", decision_rules.Rule(lambda logits: jnp.argmin(logits, -1).astype(jnp.int32)))


CHANGES = [other_pixels, other_order, other_labels, other_cues, other_decision]


@pytest.mark.parametrize("change", CHANGES)
def test_a_set_that_changed_is_answered_again(source, answered, least, change):
    config.save(CONFIG, answered / "config.json")
    metrics.scores(answered)
    changed = dataclasses.replace(source, sets={**source.sets, "edge": change(source.sets["edge"])})
    evaluate.describe(answered / "responses", changed, changed.sets, {name: evaluate.identity(s) for name, s in changed.sets.items()})
    with pytest.raises(ValueError, match=r"1\.npz answers other images, or by another decision, than .*: jaxbed eval"):
        metrics.scores(answered)  # an evaluation that was stopped before it came to them
    assert run(CONFIG, changed, answered) == 0
    check_answers(CONFIG, changed, answered)
    metrics.scores(answered)


def test_answers_whose_checkpoint_is_gone_do_not_lose_their_meaning(source, answered):
    before = {path: path.read_bytes() for path in (answered / "responses").rglob("*.*")}
    for path in (answered / "checkpoints" / "epochs").glob("1*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    changed = dataclasses.replace(source, sets={**source.sets, "edge": other_order(source.sets["edge"])})
    with pytest.raises(ValueError, match=r"edge/1\.npz answers other .* no checkpoint of that epoch is left: bring the former edge back"):
        run(CONFIG, changed, answered)
    assert run(CONFIG, source, answered) == 0
    assert {path: path.read_bytes() for path in (answered / "responses").rglob("*.*")} == before


def test_sets_are_described_once_and_for_all(source, answered):
    text = (answered / "responses" / "sets.json").read_text()
    about = json.loads(text)
    assert about["data"] == {"name": "shapes", "cue": "texture", **source.facts}
    assert about["classes"] == list(source.class_names)
    what = {name: {"role": s.role, "decision": s.decision, "identity": evaluate.identity(s)} for name, s in source.sets.items()}
    for name, s in source.sets.items():
        what[name]["images"] = metrics.digest(s.split.name, s.split.label, s.split.bias)
    assert about["sets"] == what
    assert {(y, b): n for y, b, n in about["training_cells"]} == cells(source.train)
    run(CONFIG, source, answered)
    assert (answered / "responses" / "sets.json").read_text() == text


# Pools


def untrained(cfg, source, workdir) -> None:
    """One epoch's checkpoint of the initial state."""
    program = tiny.program(cfg, source)
    epochs = train.stores(workdir, cfg.seeds, Log(workdir))[1]
    epochs.save(1, train.snapshot(train.start(cfg, program)))
    epochs.wait()


def pooled(cfg, source) -> list[list[str]]:
    program = tiny.program(cfg, source)
    return [pool.names for pool in pools.pool(program.method.predict, program.seeds, source, source.sets, cfg.eval.batch_size)]


def enlarge(evaluation_set: EvaluationSet) -> EvaluationSet:
    split = evaluation_set.split
    return evaluation_set._replace(split=split._replace(image=np.ascontiguousarray(split.image.repeat(2, 1).repeat(2, 2))))


def test_sets_of_one_shape_and_decision_go_together(source):
    assert pooled(CONFIG, source) == [list(source.sets)]


def test_images_of_two_sizes_are_answered_apart(source, tmp_path):
    cfg = tiny.train_config(net=simple_conv.Config(3, (4,)), eval=config.Eval(batch_size=24))
    sets = {name: enlarge(s) if name in ("in_distribution", "edge") else s for name, s in list(source.sets.items())[:4]}
    two_sizes = dataclasses.replace(source, sets=sets)
    assert pooled(cfg, two_sizes) == [["val", "silhouette"], ["in_distribution", "edge"]]
    untrained(cfg, two_sizes, tmp_path)
    run(cfg, two_sizes, tmp_path)
    check_answers(cfg, two_sizes, tmp_path)


def test_sets_with_two_decisions_are_answered_apart(source, tmp_path):
    rules = dict(zip(source.sets, ("argmax", "sixteen_mean_prob", "argmax", "sixteen_max_prob", "sixteen_mean_prob"), strict=False))
    sets = {name: s._replace(decision=rules.get(name, "argmax")) for name, s in source.sets.items()}
    thousand = dataclasses.replace(source, class_names=tuple(f"class{i}" for i in range(1000)), sets=sets)
    assert pooled(CONFIG, thousand) == [
        ["val", "silhouette", "stylised", "cue_conflict"],
        ["in_distribution", "sketch"],
        ["edge"],
    ]
    untrained(CONFIG, thousand, tmp_path)
    run(CONFIG, thousand, tmp_path)
    check_answers(CONFIG, thousand, tmp_path)
    assert answers(tmp_path, "val", 1).max() > 15 >= answers(tmp_path, "sketch", 1).max()


def test_a_decision_that_does_not_fit_the_network_is_refused(source, workdir):
    sixteen = dataclasses.replace(source, sets={"val": source.sets["val"]._replace(decision="sixteen_mean_prob")})
    with pytest.raises(ValueError, match="needs the 1000 ImageNet logits, and the network has 16"):
        run(CONFIG, sixteen, workdir)


# Waiting and stopping


def test_watching_ends_with_the_last_epoch(source, workdir, monkeypatch):
    epochs = workdir / "checkpoints" / "epochs"
    late = epochs / "2.json"
    listing = late.read_text()
    late.unlink()
    slept = []

    def finish_the_second_epoch(seconds):
        slept.append((workdir / "responses" / "val" / "1.npz").is_file())
        late.write_text(listing)

    monkeypatch.setattr(evaluate, "time", types.SimpleNamespace(monotonic=evaluate.time.monotonic, sleep=finish_the_second_epoch))
    with lock.held(workdir):  # the training's
        assert run(CONFIG, source, workdir, watch=True) == 0
    assert slept == [True]  # it answered what there was before it waited, and waited once
    check_answers(CONFIG, source, workdir)


def test_watching_ends_where_the_training_has_died(source, workdir):
    (workdir / "checkpoints" / "epochs" / "2.json").unlink()
    with pytest.raises(ValueError, match=r"no process trains in .*: 1 of 2 epochs are there and evaluated"):
        run(CONFIG, source, workdir, watch=True)
    assert {path.rpartition("/")[2] for path in written(workdir)} == {"1.npz"}


def test_files_that_are_no_answers_or_checkpoints_are_left_alone(source, answered):
    before = written(answered)
    strange = ("._1.npz", "1 (1).npz", "1.sync-conflict-20261129.npz", "notes.npz")
    epochs = answered / "checkpoints" / "epochs"
    for name in strange:
        (answered / "responses" / "val" / name).write_bytes(b"nothing")
        (epochs / name.replace("npz", "json")).write_bytes(b"nothing")
        (epochs / "1" / name).write_bytes(b"nothing")
    (epochs / "1 (1)").mkdir()
    (answered / "responses" / "val" / "1.npz").unlink()
    assert run(CONFIG, source, answered) == 0
    assert set(before) <= set(written(answered))
    check_answers(CONFIG, source, answered)


@pytest.mark.parametrize(("after", "epochs"), [(0, set()), (1, {"1.npz"})])
def test_a_signal_stops_between_blocks_and_the_next_call_goes_on(source, workdir, monkeypatch, after, epochs):
    answer, answers = evaluate.answer, []

    def answer_and_be_stopped(*args):
        if len(answers) == after:
            os.kill(os.getpid(), signal.SIGTERM)
        answers.append(answer(*args))

    monkeypatch.setattr(evaluate, "answer", answer_and_be_stopped)
    assert run(CONFIG, source, workdir) == signal.SIGTERM
    monkeypatch.undo()
    assert {path.rpartition("/")[2] for path in written(workdir)} == epochs and len(written(workdir)) == 7 * len(epochs)
    assert run(CONFIG, source, workdir) == 0
    check_answers(CONFIG, source, workdir)


def test_a_frozen_seed_is_marked(source, workdir):
    epochs, abstract = checkpoints(CONFIG, source, workdir)
    tree = epochs.load(2, abstract)
    epochs.save(2, {**tree, "alive": jnp.array([True, False])})
    epochs.wait()
    run(CONFIG, source, workdir)
    for epoch, alive in ((1, [True, True]), (2, [True, False])):
        with np.load(workdir / "responses" / "val" / f"{epoch}.npz") as stored:
            assert stored["alive"].tolist() == alive
