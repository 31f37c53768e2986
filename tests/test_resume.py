"""A run that was stopped, killed or poisoned: what goes on from there is, bit for bit, what would have been."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest
import tiny
from commands import TRAIN, command, in_process

from jaxbed import main, parallel
from jaxbed.evaluation import answers, evaluate, metrics
from jaxbed.models import mlp, simple_conv
from jaxbed.stats import main as statistics
from jaxbed.training import lock, log, members, program, train
from jaxbed.training.checkpoint import Store

STEPS = 4  # an epoch
LINEAR = mlp.Config(())
RARELY = tiny.config.Save(resume_every_minutes=60)  # where stopped and at the end
TIMED = ("time", "seconds", "images_per_second", "waited_for_data_seconds", "peak_memory_bytes", "compiles")


def config(method: str, **changes):
    """Two epochs of the tiny net that suits the method and costs least: every array of a checkpoint takes its time."""
    if method in ("erm", "lff"):
        return tiny.mlp_config(method, **{"net": LINEAR, **changes})
    assert method == "sagnet"
    cfg = tiny.train_config(method, **{"net": simple_conv.Config(1, (4, 4), stride=2), "save": RARELY, **changes})
    return dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, style_stage=1))


@functools.cache
def source():
    return tiny.DATA.open()


@pytest.fixture(autouse=True)
def one_compilation(monkeypatch):
    """Every training and evaluation of one configuration shares its compiled functions."""
    monkeypatch.setattr(train, "assemble", lambda cfg, *rest, **_: assembled(repr(cfg))(cfg, *rest))
    monkeypatch.setattr(evaluate.pools, "pool", lambda predict, *rest: pools(predict)(predict, *rest))


def once(function):
    """`function`, run at the first call only."""
    results = []

    def call(*args):
        if not results:
            results.append(function(*args))
        return results[0]

    return call


@functools.cache
def assembled(_key):
    return once(program.assemble)


def ready(cfg):
    """The program of a configuration, whichever test needs it first."""
    return assembled(repr(cfg))(cfg, members.one(cfg, source()), tiny.parallel.Seeds(cfg.seeds, cfg.first_seed, cfg.mesh))


real_pool = evaluate.pools.pool


@functools.cache
def pools(_predict):
    return once(real_pool)


def trained(cfg, workdir: pathlib.Path) -> int:
    return train.train(cfg, members.one(cfg, source()), workdir, log.Log(workdir))


def answered(cfg, workdir: pathlib.Path) -> None:
    assert evaluate.evaluate(cfg, members.one(cfg, source()), workdir, log.Log(workdir)) == 0


@contextlib.contextmanager
def calls_at(step: int, action):
    """While entered, a training calls `action` just after it has taken `step`, once."""
    original, waiting = log.Log.training, [step]

    @contextlib.contextmanager
    def training(self, *given):
        with original(self, *given) as record:
            show = record.progress

            def progress(now):
                show(now)
                if now in waiting:
                    waiting.remove(now)
                    action()

            record.progress = progress
            yield record

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log.Log, "training", training)
        yield
    assert not waiting, f"step {step} was never reached"


def killed_by(number: int):
    return lambda: os.kill(os.getpid(), number)


def lines(workdir: pathlib.Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def epoch_lines(workdir: pathlib.Path) -> dict[int, dict]:
    """What the log says of each epoch but for times; where it says it twice (a killed process), both must agree."""
    found: dict[int, dict] = {}
    for line in lines(workdir, "epoch"):
        kept = {name: value for name, value in line.items() if name not in TIMED}
        assert found.setdefault(line["epoch"], kept) == kept
    return found


def said(workdir: pathlib.Path) -> str:
    return "\n".join(line["text"] for line in lines(workdir, "message"))


def epoch_content(cfg, workdir: pathlib.Path, epoch: int):
    abstract = train.snapshot(ready(cfg).abstract)
    return jax.device_get(train.stores(workdir, cfg.seeds, log.Log(workdir))[1].load(epoch, abstract))


def final(cfg, workdir: pathlib.Path):
    """(step, Run) of the newest resume checkpoint."""
    number, run = train.stores(workdir, cfg.seeds, log.Log(workdir))[0].latest(ready(cfg).abstract)
    return number, jax.device_get(run)


def responses(workdir: pathlib.Path) -> dict[str, dict[str, np.ndarray]]:
    found = {}
    for path in sorted((workdir / "responses").rglob("*.npz")):
        with np.load(path) as stored:
            # checkpoints differ between runs, since orbax names its files by random numbers, and with them the digests
            found[str(path.relative_to(workdir))] = {name: stored[name] for name in stored.files if name not in ("checkpoint", "digest")}
    return found


def assert_same_bits(one, other) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), jax.tree_util.keystr(path)


class Outcome(NamedTuple):
    """What a finished run leaves behind."""

    step: int
    run: program.Run
    epochs: list[dict]  # content of every epoch's checkpoint
    lines: dict[int, dict]  # of the log, by epoch
    responses: dict[str, dict[str, np.ndarray]]


def outcome(cfg, workdir: pathlib.Path) -> Outcome:
    """Final state, all epochs' checkpoints, the log's metrics and every stored answer."""
    answered(cfg, workdir)
    contents = [epoch_content(cfg, workdir, epoch) for epoch in range(1, cfg.epochs + 1)]
    return Outcome(*final(cfg, workdir), contents, epoch_lines(workdir), responses(workdir))


def assert_same_outcome(cfg, one: Outcome, other: Outcome) -> None:
    assert one.step == other.step == cfg.epochs * STEPS
    assert_same_bits(one.run, other.run)
    for content, other_content in zip(one.epochs, other.epochs, strict=True):
        assert_same_bits(content, other_content)
    assert list(one.lines) == list(range(1, cfg.epochs + 1))
    assert one.lines == other.lines
    assert one.responses.keys() == other.responses.keys() and len(one.responses) == cfg.epochs * len(source().sets)
    assert_same_bits(one.responses, other.responses)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


_uninterrupted: dict[str, pathlib.Path] = {}


def uninterrupted(cfg, folders: pathlib.Path) -> pathlib.Path:
    """The workdir of a run that nothing disturbed."""
    key = repr(cfg)
    if key not in _uninterrupted:
        _uninterrupted[key] = folders / f"run{len(_uninterrupted)}"
        assert trained(cfg, _uninterrupted[key]) == 0
    return _uninterrupted[key]


_expected: dict[str, Outcome] = {}


def expected(cfg, folders: pathlib.Path) -> Outcome:
    """What a run that nothing disturbed leaves behind, read once."""
    key = repr(cfg)
    if key not in _expected:
        _expected[key] = outcome(cfg, uninterrupted(cfg, folders))
    return _expected[key]


# Stopped on request


# each with a state of its own kind; the others' are erm's
@pytest.mark.parametrize(("method", "step"), [("erm", STEPS + 2), ("erm", STEPS), ("sagnet", STEPS + 2), ("lff", STEPS)])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(folders, tmp_path, method, step):
    cfg = config(method)
    with calls_at(step, killed_by(signal.SIGTERM)):
        assert trained(cfg, tmp_path) == signal.SIGTERM
    assert final(cfg, tmp_path)[0] == step
    assert train.stores(tmp_path, cfg.seeds, log.Log(tmp_path))[1].numbers() == list(range(1, step // STEPS + 1))
    assert trained(cfg, tmp_path) == 0
    assert f"resuming after step {step}" in said(tmp_path)
    assert_same_outcome(cfg, outcome(cfg, tmp_path), expected(cfg, folders))


def test_a_run_stopped_after_every_step_ends_the_same(folders, tmp_path):
    cfg = config("lff", save=RARELY)
    for step in range(1, cfg.epochs * STEPS):
        number = (signal.SIGINT, signal.SIGTERM)[step % 2]
        with calls_at(step, killed_by(number)):
            assert trained(cfg, tmp_path) == number
        assert final(cfg, tmp_path)[0] == step
    assert trained(cfg, tmp_path) == 0
    assert_same_outcome(cfg, outcome(cfg, tmp_path), expected(cfg, folders))


def test_a_signal_at_the_very_last_step_is_told_and_finds_the_training_finished(folders, tmp_path):
    cfg = config("erm")
    with calls_at(cfg.epochs * STEPS, killed_by(signal.SIGTERM)):
        assert trained(cfg, tmp_path) == signal.SIGTERM  # so that nothing else is started
    assert_same_outcome(cfg, outcome(cfg, tmp_path), expected(cfg, folders))


def test_the_handlers_of_before_come_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with calls_at(1, killed_by(signal.SIGTERM)):
        trained(config("erm"), tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_control_c_interrupts_at_once(tmp_path):
    cfg = config("erm")

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt), calls_at(3, twice):
            trained(cfg, tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_at_the_end_of_the_last_epoch_is_not_lost(tmp_path, monkeypatch):
    cfg, wait = config("erm"), train.checkpoint.Store.wait

    def killed(self):
        os.kill(os.getpid(), signal.SIGTERM)
        wait(self)

    monkeypatch.setattr(train, "due", lambda *_: False)  # saved only at the end
    monkeypatch.setattr(train.checkpoint.Store, "wait", killed)
    assert trained(cfg, tmp_path) == signal.SIGTERM
    monkeypatch.undo()
    assert trained(cfg, tmp_path) == 0


@pytest.mark.parametrize("field", ["name", "label", "bias"])
def test_a_run_does_not_go_on_with_other_images(tmp_path, field):
    cfg = config("erm")
    with calls_at(1, killed_by(signal.SIGTERM)):
        trained(cfg, tmp_path)
    opened = source()
    other = dataclasses.replace(opened, train=opened.train._replace(**{field: getattr(opened.train, field)[::-1]}))
    for stage in (train.train, evaluate.evaluate):
        with pytest.raises(ValueError, match=r"was trained on other images than there are now.*take another --workdir"):
            stage(cfg, members.one(cfg, other), tmp_path, log.Log(tmp_path))
    assert trained(cfg, tmp_path) == 0


def test_two_processes_do_not_train_in_one_workdir(tmp_path):
    code = (
        "import pathlib, sys\nfrom jaxbed.training import lock\n"
        "with lock.held(pathlib.Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(ValueError, match=f"another process works in {tmp_path}: wait"), lock.held(tmp_path):
            pass
        other.kill()
    with lock.held(tmp_path):  # whatever its end
        pass


def test_a_signal_just_after_the_loop_looked_for_one_loses_no_step(tmp_path, monkeypatch):
    """Between the question whether to save and the question whether to stop."""
    cfg = config("erm", save=RARELY)
    clock, asked = time.monotonic, []

    class Clock:
        @staticmethod
        def monotonic():
            asked.append(1)
            if len(asked) == 7:  # once before the loop, then twice a step
                os.kill(os.getpid(), signal.SIGTERM)
            return clock()

    monkeypatch.setattr(train, "time", Clock)
    assert trained(cfg, tmp_path) == signal.SIGTERM
    assert max(train.stores(tmp_path, cfg.seeds, log.Log(tmp_path))[0].numbers(), default=0) >= 3


def test_a_finished_run_does_nothing_new(folders, tmp_path, monkeypatch):
    cfg = config("erm")
    workdir = tmp_path / "copy"
    shutil.copytree(uninterrupted(cfg, folders), workdir)
    answered(cfg, workdir)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in workdir.rglob("*") if path.is_file()}
    before_epochs = epoch_lines(workdir)
    shared = ready(cfg)
    monkeypatch.setattr(train, "assemble", lambda *_, **__: dataclasses.replace(shared, advance=None, init=None))
    monkeypatch.setattr(evaluate, "answer", None)
    assert trained(cfg, workdir) == 0
    answered(cfg, workdir)
    again = ("images.csv", "sets.json")  # written anew with the same bytes
    for path, (changed, content) in before.items():
        if path.name != "log.jsonl":
            assert path.read_bytes() == content and (path.name in again or path.stat().st_mtime_ns == changed), path
    assert epoch_lines(workdir) == before_epochs and len(lines(workdir, "epoch")) == cfg.epochs


# Damaged or missing pieces


def _damage(folder: pathlib.Path) -> None:
    path = next(folder.glob("state/ocdbt.process_0/d/*"))
    path.write_bytes(path.read_bytes()[:-1])


def test_where_the_newest_checkpoint_is_damaged_it_goes_on_from_the_one_before(folders, tmp_path):
    cfg = config("lff")
    with calls_at(STEPS + 2, killed_by(signal.SIGTERM)):
        trained(cfg, tmp_path)
    newest, before = sorted(train.stores(tmp_path, cfg.seeds, log.Log(tmp_path))[0].numbers(), reverse=True)
    _damage(tmp_path / "checkpoints" / "resume" / str(newest))
    assert trained(cfg, tmp_path) == 0
    assert f"resuming after step {before}" in said(tmp_path)
    assert f"resume/{newest} is passed over" in said(tmp_path)
    assert_same_outcome(cfg, outcome(cfg, tmp_path), expected(cfg, folders))


def test_where_all_resume_checkpoints_are_damaged_it_begins_again(folders, tmp_path):
    cfg = config("lff")
    with calls_at(STEPS + 2, killed_by(signal.SIGTERM)):
        trained(cfg, tmp_path)
    for folder in (tmp_path / "checkpoints" / "resume").iterdir():
        if folder.is_dir():
            _damage(folder)
    assert trained(cfg, tmp_path) == 0
    assert "starting from the beginning" in said(tmp_path)
    assert_same_outcome(cfg, outcome(cfg, tmp_path), expected(cfg, folders))


def test_no_resume_checkpoint_is_ahead_of_the_epochs_it_counts_as_done(tmp_path, monkeypatch):
    """Killed between the two, a run would go on behind an epoch that is never written."""
    cfg = config("erm")
    real, ahead = Store._finish, []

    def slow(self, number, response):
        if self.folder.name == "epochs":
            time.sleep(1.0)
        real(self, number, response)
        if self.folder.name == "resume":
            done = [int(path.stem) for path in (self.folder.parent / "epochs").glob("*.json")]
            ahead.extend((number, epoch) for epoch in range(1, number // STEPS + 1) if epoch not in done)

    monkeypatch.setattr(Store, "_finish", slow)
    assert trained(cfg, tmp_path) == 0
    assert not ahead, f"(resume checkpoint, epoch that was not yet on disk): {ahead}"


def test_resume_checkpoints_are_as_rare_as_the_setting_says(tmp_path, monkeypatch):
    """resume_every_minutes = 0: after every epoch; a long time: at the end only."""
    numbers = {0: [], 60: []}
    real = Store.save
    for minutes, found in numbers.items():

        def save(self, number, tree, found=found):
            if self.folder.name == "resume":
                found.append(number)
            real(self, number, tree)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "save", save)
            cfg = config("erm", save=tiny.config.Save(resume_every_minutes=minutes))
            assert trained(cfg, tmp_path / str(minutes)) == 0
    assert numbers[60] == [2 * STEPS]
    assert numbers[0] == [STEPS, 2 * STEPS]


def test_a_damaged_epoch_checkpoint_is_named_and_not_evaluated(folders, tmp_path):
    cfg = config("erm")
    workdir = tmp_path / "copy"
    shutil.copytree(uninterrupted(cfg, folders), workdir, ignore=shutil.ignore_patterns("responses"))
    _damage(workdir / "checkpoints" / "epochs" / "2")
    with pytest.raises(ValueError, match="epochs/2 cannot be used"):
        answered(cfg, workdir)
    assert not list((workdir / "responses").rglob("2.npz"))


def test_answers_of_another_checkpoint_are_given_anew(folders, tmp_path):
    cfg = config("erm")
    workdir = tmp_path / "copy"
    shutil.copytree(uninterrupted(cfg, folders), workdir, ignore=shutil.ignore_patterns("responses"))
    answered(cfg, workdir)
    epochs = workdir / "checkpoints" / "epochs"
    shutil.rmtree(epochs / "1")
    shutil.copytree(epochs / "2", epochs / "1")
    shutil.copyfile(epochs / "2.json", epochs / "1.json")
    answered(cfg, workdir)
    after = responses(workdir)
    for name in source().sets:
        assert (after[f"responses/{name}/1.npz"]["response"] == after[f"responses/{name}/2.npz"]["response"]).all()


# Killed


CONFIG = """
import os
import signal
import time

from jaxbed import config, parallel
from jaxbed.training import train
from jaxbed.data import shapes
from jaxbed.methods import lff
from jaxbed.models import mlp
from jaxbed.optim import Optim


def feeds_from(*arguments, real=train.feeds_from):
    for step, feed in enumerate(real(*arguments)):
        if step == int(os.environ["KILL_AFTER_STEPS"]):
            while not os.path.exists(os.environ["KILL_ONCE_THERE_IS"]):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        yield feed


def get_config():
    train.feeds_from = feeds_from
    return config.Train(
        name="LfF",
        method=lff.Config(),
        net=mlp.Config(()),
        data=shapes.Config(train_images=64, val_images=16, test_images=16),
        optim=Optim(rule="adam", lr=1e-2),
        epochs=3,
        batch_size=16,
        seeds=2,
        mesh=parallel.Mesh(seed=1, data=1),
    )
"""


def test_a_killed_process_goes_on_where_its_last_checkpoint_was(tmp_path, monkeypatch):
    cfg = config("lff", name="LfF", epochs=3)
    (tmp_path / "config.py").write_text(CONFIG)
    words = ("--config=config.py", "--config.save.resume_every_minutes=0")
    # while the checkpoints of the second epoch are being written and those of the first are there
    environment = {"KILL_AFTER_STEPS": str(2 * STEPS + 1), "KILL_ONCE_THERE_IS": f"killed/checkpoints/resume/{STEPS}.json"}
    killed = command(tmp_path, *TRAIN, *words, "--workdir=killed", XLA_FLAGS=os.environ["XLA_FLAGS"], **environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "checkpoints" / "epochs" / "3.json").exists()  # it was in the middle
    monkeypatch.setenv("KILL_AFTER_STEPS", "-1")
    monkeypatch.setattr(evaluate.pools, "pool", real_pool)  # one of validation images, and one of all
    for workdir in ("killed", "whole"):
        with monkeypatch.context() as patch:
            patch.setattr(train, "feeds_from", train.feeds_from)  # config.py replaces it
            done = in_process(tmp_path, main.main, *words, f"--workdir={workdir}")
        assert done.returncode == 0, done.stderr
    assert said(tmp_path / "killed").count("resuming after step") == 1
    assert "resuming" not in said(tmp_path / "whole")
    one, other = tmp_path / "killed", tmp_path / "whole"
    single = ready(cfg)
    for store, snapshot, number in zip(range(2), (lambda x: x, train.snapshot), (3 * STEPS, 3), strict=True):
        loaded = [
            jax.device_get(train.stores(workdir, 2, log.Log(workdir))[store].load(number, snapshot(single.abstract)))
            for workdir in (one, other)
        ]
        assert_same_bits(*loaded)
    assert epoch_lines(one) == epoch_lines(other) and list(epoch_lines(one)) == [1, 2, 3]
    assert len(responses(one)) == 3 * len(source().sets)
    assert_same_bits(responses(one), responses(other))


# Poisoned


@contextlib.contextmanager
def poisoned(*places: int):
    """While entered, trainings that begin have an infinite learning rate in the seeds at these places."""
    real = train.start

    def start(cfg, program, *rest):
        run = real(cfg, program, *rest)
        lr = np.asarray(run.state.hparams["lr"]).copy()
        lr[list(places)] = np.inf
        hparams = {**run.state.hparams, "lr": program.seeds.place(lr, "seed")}
        return run.replace(state=run.state.replace(hparams=hparams))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "start", start)
        yield


@contextlib.contextmanager
def poisoned_at(step: int, place: int):
    """While entered, the seed at `place` gets an infinite learning rate just after `step`."""
    original = train.assemble

    def assemble(*args):
        made = original(*args)

        def advance(run, arrays, rows, seeds):
            if int(run.state.step.max()) == step:
                lr = np.asarray(run.state.hparams["lr"]).copy()
                lr[place] = np.inf
                run = run.replace(state=run.state.replace(hparams={**run.state.hparams, "lr": made.seeds.place(lr, "seed")}))
            return made.advance(run, arrays, rows, seeds)

        return dataclasses.replace(made, advance=advance)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "assemble", assemble)
        yield


SEEDS = {"seeds": 3, "first_seed": 5, "save": RARELY}
POISONED = [config("erm", **SEEDS), config("lff", save=RARELY), config("sagnet")]


def seed(tree, place: int):
    return jax.tree.map(lambda x: np.asarray(x)[place], tree)


@pytest.mark.parametrize("cfg", POISONED, ids=lambda cfg: cfg.name)
def test_a_seed_that_diverges_is_frozen_and_the_others_do_not_notice(folders, tmp_path, cfg):
    healthy = expected(cfg, folders)
    with poisoned_at(STEPS + 2, 1):
        assert trained(cfg, tmp_path) == 0
    (_, run), other = final(cfg, tmp_path), healthy.run
    others = [place for place in range(cfg.seeds) if place != 1]
    assert np.flatnonzero(run.alive).tolist() == others and other.alive.all()
    for place in others:
        assert_same_bits(seed(run, place), seed(other, place))
    assert run.state.step.tolist() == [STEPS + 2 if place == 1 else cfg.epochs * STEPS for place in range(cfg.seeds)]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((run.state.params, run.state.stats)))
    contents = [epoch_content(cfg, tmp_path, epoch) for epoch in range(1, cfg.epochs + 1)]
    for epoch, content in enumerate(contents, 1):
        assert content["alive"].tolist() == [place != 1 or epoch == 1 for place in range(cfg.seeds)]
    assert_same_bits(seed(contents[0], 1), seed(healthy.epochs[0], 1))
    for content in contents[1:]:
        assert_same_bits(seed({name: content[name] for name in ("params", "stats")}, 1), seed(_parts(run.state), 1))
    logged = epoch_lines(tmp_path)
    for epoch in range(1, cfg.epochs + 1):
        alive = logged[epoch]["alive"]
        assert logged[epoch]["seeds"] == [cfg.first_seed + place for place in range(cfg.seeds)]
        assert alive == contents[epoch - 1]["alive"].tolist()
        for name, values in healthy.lines[epoch]["metrics"].items():
            assert logged[epoch]["metrics"][name] == [value if ok else None for value, ok in zip(values, alive, strict=True)]
    (report,) = lines(tmp_path, "diverged")
    assert (report["seed"], report["step"]) == (cfg.first_seed + 1, STEPS + 2)
    assert f"seed {cfg.first_seed + 1} became non-finite after step {STEPS + 2}" in said(tmp_path)


def _parts(state) -> dict:
    return {"params": state.params, "stats": state.stats}


def test_the_frozen_state_is_the_last_finite_one(tmp_path):
    """That is, the state after the step it is reported at."""
    cfg = config("erm", **SEEDS)
    with calls_at(STEPS + 2, killed_by(signal.SIGTERM)):
        trained(cfg, tmp_path / "healthy")
    with poisoned_at(STEPS + 2, 1):
        trained(cfg, tmp_path / "poisoned")
    (_, healthy), (_, frozen) = final(cfg, tmp_path / "healthy"), final(cfg, tmp_path / "poisoned")
    for field in ("step", "params", "stats", "opt", "memory"):
        assert_same_bits(seed(getattr(frozen.state, field), 1), seed(getattr(healthy.state, field), 1))


@pytest.mark.parametrize("cfg", POISONED, ids=lambda cfg: cfg.name)
def test_a_seed_that_never_was_finite_keeps_its_first_state(tmp_path, cfg):
    beginning = jax.device_get(train.start(cfg, ready(cfg)))
    with poisoned(0):
        assert trained(cfg, tmp_path) == 0
    _, run = final(cfg, tmp_path)
    assert run.alive.tolist() == [place > 0 for place in range(cfg.seeds)]
    assert_same_bits(seed(_parts(run.state), 0), seed(_parts(beginning.state), 0))
    assert [(line["seed"], line["step"]) for line in lines(tmp_path, "diverged")] == [(cfg.first_seed, 0)]


def test_resuming_keeps_a_seed_frozen_and_the_others_going(tmp_path):
    cfg = config("erm", **SEEDS)
    with poisoned_at(STEPS - 1, 1):
        assert trained(cfg, tmp_path / "whole") == 0
        with calls_at(STEPS + 2, killed_by(signal.SIGTERM)):
            assert trained(cfg, tmp_path / "stopped") == signal.SIGTERM
    assert trained(cfg, tmp_path / "stopped") == 0  # nothing is poisoned any more
    assert_same_outcome(cfg, outcome(cfg, tmp_path / "stopped"), outcome(cfg, tmp_path / "whole"))


def test_a_divergence_is_reported_once_however_often_the_run_is_resumed(tmp_path):
    cfg = config("erm", **SEEDS)
    with poisoned(1):
        for step in (STEPS + 1, STEPS + 3):
            with calls_at(step, killed_by(signal.SIGTERM)):
                assert trained(cfg, tmp_path) == signal.SIGTERM
    assert trained(cfg, tmp_path) == 0
    assert [(line["seed"], line["step"]) for line in lines(tmp_path, "diverged")] == [(6, 0)]


def test_a_divergence_in_an_epoch_that_was_stopped_is_reported_after_all(tmp_path):
    cfg = config("erm", **SEEDS)
    with poisoned_at(STEPS + 1, 1), calls_at(STEPS + 3, killed_by(signal.SIGTERM)):
        assert trained(cfg, tmp_path) == signal.SIGTERM
    assert trained(cfg, tmp_path) == 0
    assert [(line["seed"], line["step"]) for line in lines(tmp_path, "diverged")] == [(6, STEPS + 1)]


def test_where_all_seeds_die_it_stops_and_names_the_learning_rate(tmp_path):
    cfg = config("erm", **SEEDS)
    with poisoned(0, 1, 2), pytest.raises(ValueError, match=r"every seed of erm .* lower optim\.lr \(now 0\.01\)"):
        trained(cfg, tmp_path)
    assert epoch_lines(tmp_path).keys() == {1}  # no further epoch is trained in vain
    with pytest.raises(ValueError, match=r"optim\.lr"):
        with poisoned(0, 1, 2):
            trained(cfg, tmp_path)


def test_statistics_know_which_runs_diverged(tmp_path, capsys):
    cfg = config("erm", **SEEDS)
    with poisoned_at(STEPS + 2, 1):
        trained(cfg, tmp_path)
    answered(cfg, tmp_path)
    tiny.config.save(cfg, tmp_path / "config.json")
    for path in (tmp_path / "responses").rglob("*.npz"):  # a net this bad may answer neither bias: another test's matter
        with np.load(path) as stored:
            content = dict(stored)
        label = pd.read_csv(path.parent / "images.csv")["label"].to_numpy()
        content["response"][:, :8] = label[:8]
        answers.write(path, content)
    frame = metrics.scores(tmp_path)
    status = frame.groupby(["run", "epoch"])["status"].unique().map(list)
    assert status.to_dict() == {
        (run, epoch): ["diverged" if run == 6 and epoch > 1 else "ok"] for run in (5, 6, 7) for epoch in range(1, cfg.epochs + 1)
    }
    capsys.readouterr()
    assert statistics.main([str(tmp_path)]) == 2
    refused = capsys.readouterr()
    assert "--missing drop" in refused.err and "run 6 at epoch 2" in refused.err and not refused.out
    assert statistics.main([str(tmp_path), "--missing", "drop"]) == 0
    assert "run 6" in capsys.readouterr().out


def test_answers_that_name_neither_cue_leave_the_run_usable(folders, tmp_path, capsys):
    """Early epochs of a small net: shape bias is then no number, and all others are."""
    cfg = config("erm")
    workdir = tmp_path / "copy"
    shutil.copytree(uninterrupted(cfg, folders), workdir)
    tiny.config.save(cfg, workdir / "config.json")
    answered(cfg, workdir)
    for path in (workdir / "responses").rglob("1.npz"):
        with np.load(path) as stored:
            content = dict(stored)
        content["response"][:] = -1
        answers.write(path, content)
    frame = metrics.scores(workdir)
    assert (frame.loc[(frame["metric"] == "accuracy") & (frame["epoch"] == 1), "value"] == 0).all()
    assert statistics.main([str(workdir)]) == 0, capsys.readouterr().err


def test_with_several_steps_a_call_the_frozen_state_is_that_before_the_call():
    """A whole epoch a call: the numbers break within the second, and the whole of it is undone for that seed alone."""
    cfg = config("erm", **SEEDS, mesh=parallel.Mesh(steps_per_call=STEPS))
    program = ready(cfg)
    batches = train.feeds_from(cfg, program, 0)
    first = program.advance(train.start(cfg, program), program.arrays, next(batches), program.seeds.array)
    lr = np.asarray(first.state.hparams["lr"]).copy()
    lr[1] = np.inf
    first = first.replace(state=first.state.replace(hparams={**first.state.hparams, "lr": program.seeds.place(lr, "seed")}))
    before = jax.device_get(first)
    after = jax.device_get(program.advance(first, program.arrays, next(batches), program.seeds.array))
    assert after.alive.tolist() == [True, False, True]
    assert after.state.step.tolist() == [2 * STEPS, STEPS, 2 * STEPS]
    assert_same_bits(seed((after.state, after.sums), 1), seed((before.state, before.sums), 1))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after.state.params, after.sums)))
