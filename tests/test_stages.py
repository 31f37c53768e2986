"""Runs of several stages: whose outputs reach which images of which seed, what is interrupted, resumed and refused."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tiny

from jaxbed import cli, config, stages
from jaxbed.data import shapes, stream
from jaxbed.data import source as sources
from jaxbed.data.source import Component, Weighted
from jaxbed.evaluation import evaluate
from jaxbed.method import Method, Sampling, State
from jaxbed.methods import biasensemble, dfr, erm, infodrop, jtt, softcon
from jaxbed.models import mlp, resnet
from jaxbed.training import members, plan, program, staged, train
from jaxbed.training.log import Log

# Of an image's 16 classes, networks of one epoch give its own a probability around 1/16, so that some images pass and some do not
ENSEMBLE = biasensemble.Config(networks=3, agreement=2, epochs_before=1, confidence=0.065)
RARELY = config.Save(resume_every_minutes=60)  # where stopped and at the end
UNWATCHED = config.Eval(20, while_training=False)
LINEAR, HIDDEN = mlp.Config(()), mlp.Config((8,))
SMALL = dataclasses.replace(tiny.DATA, train_images=48, test_images=16, texture_correlation=0.6)


def tiny_run(method, **changes) -> config.Train:
    settings = {"name": "X", "net": LINEAR, "data": SMALL, "epochs": 2, "eval": UNWATCHED, "save": RARELY, **changes}
    return dataclasses.replace(tiny.mlp_config("erm", **settings), method=method)


@pytest.fixture(autouse=True, scope="module")
def one_compilation():
    """Trainings that differ in nothing but their name and where they start from share their compiled functions, and all their images."""
    programs = {}

    def assemble(cfg, points, seeds, columns=None, trains=True):
        cfgs = [dataclasses.replace(each, name="", init_from="") for each in (cfg, *(point.cfg for point in points))]
        kinds = [(type(each.method), type(each.data), repr(each)) for each in cfgs]
        numbers = {name: column.tobytes() for name, column in (columns or {}).items()}
        key = repr((kinds, [point.hparams for point in points], numbers))
        if key not in programs:
            programs[key] = program.assemble(cfg, points, seeds, columns, trains)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "assemble", assemble)
        yield


def run(cfg, workdir):
    """All stages of a run, as `main.run` calls them."""
    planned = plan.jobs(cfg, workdir)
    ready = staged.rehearse(cfg, planned)
    config.claim(cfg, workdir)
    return staged.run(cfg, planned, Log(workdir), ready).signal


def first(cfg, workdir):
    """The stages before the last alone."""
    with pytest.MonkeyPatch.context() as patch:
        real = train.train
        patch.setattr(train, "train", lambda own, *rest: 0 if own == cfg else real(own, *rest))
        return run(cfg, workdir)


def trained(cfg, workdir):
    assert run(cfg, workdir) == 0
    return workdir


def columns(cfg, workdir):
    planned = plan.jobs(cfg, workdir)
    return plan.columns(cfg, planned, len(planned) - 1)


def messages(workdir) -> str:
    lines = (json.loads(line) for line in (workdir / "log.jsonl").read_text().splitlines())
    return "\n".join(line["text"] for line in lines if line["kind"] == "message")


def epoch(cfg, workdir, number=2):
    """The snapshot of all members after an epoch, without a program of theirs."""
    store, place = train.stores(workdir, cfg.seeds, Log(workdir))[1], jax.sharding.SingleDeviceSharding(jax.devices()[0])
    there = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), store._metadata(number))
    return jax.device_get(store.load(number, there))


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


class Stops:
    """In place of `Interrupt`: SIGTERM after so many calls of the device."""

    def __init__(self, calls):
        self.left = calls

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        pass

    @property
    def signal(self):
        return self.wish(0)

    def wish(self, _wish):
        self.left -= 1
        return 15 if self.left < 1 else 0


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    """(configuration, workdir) of BiasEnsemble, trained."""
    cfg = tiny_run(ENSEMBLE, first_seed=1, optim=tiny.Optim(rule="adam", lr=1e-3))
    return cfg, trained(cfg, tmp_path_factory.mktemp("ensemble"))


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """(configuration, workdir) of JTT, trained."""
    cfg = tiny_run(jtt.Config(upweight=4.0))
    return cfg, trained(cfg, tmp_path_factory.mktemp("jtt"))


# What the networks say, and of whom


def probabilities(cfg, params, member):
    """[N, classes] in float64, of one linear network and all training images."""
    source = cfg.data.open()
    x = np.asarray(source.scale(source.train.image), np.float64).reshape(len(source.train.label), -1)
    head = jax.tree.map(lambda leaf: np.float64(leaf[member]), params["head"])
    logits = x @ head["kernel"] + head["bias"]
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True), source.train.label


def test_images_are_kept_by_what_their_seeds_networks_say_of_them(ensemble):
    cfg, workdir = ensemble
    params = epoch(cfg, workdir / "stages" / "biased_networks", 1)["params"]["biased"]
    own = config.load(workdir / "stages" / "biased_networks")
    assert (own.seeds, own.first_seed, own.epochs) == (6, 2**20 + 3, 1) and own.method == biasensemble.Biased()
    with np.load(workdir / "stages" / "biased_networks" / "outputs.npz") as stored:
        probability = stored["probability"]
    expected = np.empty((2, 3, 48))
    for seed in range(2):
        for net in range(3):
            p, label = probabilities(cfg, params, 3 * seed + net)
            expected[seed, net] = p[np.arange(48), label]
    np.testing.assert_allclose(probability, expected, rtol=1e-4)
    kept = columns(cfg, workdir)["kept"]
    np.testing.assert_array_equal(kept, (expected > 0.065).sum(1) >= 2)
    for table in kept:  # these numbers tell rows and seeds apart
        assert 5 < table.sum() < 43 and (table != np.roll(table, 1)).any()
    assert (kept[0] != kept[1]).any()
    bias = SMALL.open().train.bias
    assert 5 < (bias != label).sum() < 40
    for seed, table in zip((1, 2), kept, strict=True):
        conflicting = bias != label
        count = f"seed {seed} kept: {table.sum()} of 48 training images, {(table & conflicting).sum()} of {conflicting.sum()} conflicting"
        assert count in messages(workdir)


def test_errors_are_those_of_the_first_network(twice):
    cfg, workdir = twice
    params, wrong = epoch(cfg, workdir / "stages" / "first_network", 1)["params"]["net"], columns(cfg, workdir)["wrong"]
    for seed in range(2):
        p, label = probabilities(cfg, params, seed)
        np.testing.assert_array_equal(wrong[seed], p.argmax(1) != label)
    assert 0 < wrong.mean() < 1


def test_a_seed_has_the_same_networks_in_any_run(ensemble, tmp_path):
    cfg, workdir = ensemble
    alone = dataclasses.replace(cfg, seeds=1, first_seed=2)
    assert first(alone, tmp_path) == 0
    np.testing.assert_array_equal(columns(alone, tmp_path)["kept"][0], columns(cfg, workdir)["kept"][1])


@dataclasses.dataclass
class Streamed(shapes.Config):
    """The same shapes, as if they were on disk."""

    def open(self):
        whole = super().open()
        image = whole.train.image
        streamed = stream.Images(lambda row: image[row], whole.train.name, image.shape[1:3])
        return dataclasses.replace(whole, train=whole.train._replace(image=streamed))


@pytest.mark.parametrize(("data", "mesh"), [(Streamed(**vars(SMALL)), tiny.parallel.Mesh(1, 1)), (SMALL, tiny.parallel.Mesh(2, 2))])
def test_answers_are_the_same_from_streams_and_on_any_mesh(ensemble, tmp_path, monkeypatch, data, mesh):
    monkeypatch.setattr(evaluate.pools, "STEPS", 2)  # of a stream, several blocks, the last not full
    cfg, workdir = ensemble
    assert first(dataclasses.replace(cfg, data=data, mesh=mesh, eval=dataclasses.replace(UNWATCHED, batch_size=10)), tmp_path) == 0
    found = [np.load(folder / "stages" / "biased_networks" / "outputs.npz")["probability"] for folder in (workdir, tmp_path)]
    np.testing.assert_allclose(*found, rtol=1e-3)


@dataclasses.dataclass
class Reader:
    """Asks one network for its probabilities, trains nothing, and adds up what its batches carry."""

    reads_bias = False
    weight: float = 1.0

    def training_stages(self, cfg):
        def probabilities(method, params, stats, image, label):
            return {"mark": jax.nn.softmax(method.predict(params, stats, image))}

        erm_first = dataclasses.replace(cfg, method=erm.Config(), epochs=1)
        first = stages.Stage("first", erm_first, outputs=probabilities)
        return first, stages.Stage("", cfg, columns=lambda outputs, label, say: {"mark": outputs["mark"][0], "of": label})

    def make(self, info, net, optim):
        def init(key, batch):
            numbers = {name: jnp.zeros(()) for name in ("weight", "lr")}
            return State(jnp.zeros((), jnp.int32), {"net": {"w": jnp.zeros(())}}, {}, {}, {}, numbers)

        def step(state, batch, key):
            found = {"loss": (batch["mark"].T * batch["index"]).sum(), "differ": (batch["of"] != batch["label"]).sum()}
            return state.replace(step=state.step + 1), found

        return Method(init, step, lambda params, stats, image: jnp.zeros((len(image), info.classes)))


@pytest.mark.parametrize("grid", [("method.weight=0.5,1.0", "data.texture_correlation=0.95,0.25"), ("optim.lr=0.01,0.003",)])
def test_every_member_has_the_answers_of_its_own_variant_and_seed(tmp_path, monkeypatch, grid):
    cfg = tiny_run(Reader(), grid=grid)
    assert first(cfg, tmp_path / "swept") == 0
    found = members.open_all(cfg)
    with monkeypatch.context() as patch:
        patch.setattr(type(SMALL), "open", lambda self: pytest.fail("opened once more"))
        planned = plan.jobs(cfg, tmp_path / "swept", found)
        together = plan.columns(cfg, planned, 1)["mark"]
    assert len(together) == 2 * len(found)
    with np.load(tmp_path / "swept" / "stages" / "first" / "outputs.npz") as stored:
        assert len(stored["mark"]) == 4  # values of the method share theirs
    halves = [together[2 * place : 2 * place + 2] for place in range(len(found))]
    if len(found) == 4:
        equal(halves[:2], halves[2:])
    assert (halves[0] != halves[1]).any() and (halves[0][0] != halves[0][1]).any()
    alone = dataclasses.replace(found[1].cfg, name="X")
    assert first(alone, tmp_path / "alone") == 0
    np.testing.assert_allclose(halves[1], columns(alone, tmp_path / "alone")["mark"], atol=1e-5)


def test_batches_carry_the_rows_of_their_own_member():
    cfg = tiny_run(Reader(), grid=("data.seed=0,1",))
    found = members.open_all(cfg)
    mark = np.random.default_rng(0).integers(0, 1000, (4, 48)).astype(np.float32)
    label = np.stack([v.source.train.label for v in found for _ in range(2)])
    made = program.assemble(cfg, found, program.parallel.Seeds(2, 0, cfg.mesh, 2), {"mark": mark, "of": label})
    run = made.advance(train.start(cfg, made), made.arrays, next(train.feeds_from(cfg, made, 0)), made.seeds.array)
    rows = train.order(cfg, made, 0)[:, 0] - made.first_row[:, None]
    np.testing.assert_array_equal(run.sums["loss"], [(mark[member, own] * own).sum() for member, own in enumerate(rows)])
    assert (run.sums["differ"] == 0).all() and (label[0] != label[2]).any()


# Stopping, going on, refusing


def test_a_stopped_first_run_goes_on_and_is_not_trained_again(ensemble, tmp_path, monkeypatch):
    cfg, workdir = ensemble
    with monkeypatch.context() as patch:
        patch.setattr(train, "Interrupt", lambda: Stops(2))
        assert first(cfg, tmp_path) == 15
    assert not (tmp_path / "stages" / "biased_networks" / "outputs.npz").exists()
    assert first(cfg, tmp_path) == 0
    assert "resuming after step 2" in messages(tmp_path / "stages" / "biased_networks")
    equal(columns(cfg, tmp_path), columns(cfg, workdir))
    monkeypatch.setattr(train, "train", lambda *args: pytest.fail("trained again"))
    assert first(cfg, tmp_path) == 0
    # what is made of the answers is the method's; who answers is settled
    strict = dataclasses.replace(cfg, method=dataclasses.replace(ENSEMBLE, confidence=0.999))
    assert first(strict, tmp_path) == 0
    assert columns(strict, tmp_path)["kept"].all()
    assert "of no training image 2 of 3 networks are confident above 0.999" in messages(tmp_path)
    other = dataclasses.replace(cfg, method=dataclasses.replace(ENSEMBLE, networks=2))
    with pytest.raises(ValueError, match=r"biased_networks holds a run with other settings \(there / now\): seeds: 6 / 4"):
        first(other, tmp_path)


def test_a_stopped_main_run_ends_as_if_it_had_not_been(twice, tmp_path, monkeypatch):
    cfg, workdir = twice
    shutil.copytree(workdir / "stages", tmp_path / "stages")
    with monkeypatch.context() as patch:
        patch.setattr(train, "Interrupt", lambda: Stops(4))  # in the second epoch of three steps
        assert run(cfg, tmp_path) == 15
    assert run(cfg, tmp_path) == 0 and "resuming after step 4: 1 epochs are done" in messages(tmp_path)
    equal(epoch(cfg, tmp_path), epoch(cfg, workdir))


def test_a_workdir_is_evaluated_whether_or_not_its_stages_are_kept(ensemble, tmp_path):
    _, workdir = ensemble
    shutil.copytree(workdir, tmp_path / "run")
    assert cli.evaluate([str(tmp_path / "run")]) == 0
    answers = sorted((tmp_path / "run" / "responses").glob("*/*.npz"))
    given = [np.load(path)["response"] for path in answers]
    assert np.load(answers[0])["seeds"].tolist() == [1, 2]
    assert not (tmp_path / "run" / "stages" / "biased_networks" / "responses").exists()
    for folder in ("stages", "responses"):
        shutil.rmtree(tmp_path / "run" / folder)
    assert cli.evaluate([str(tmp_path / "run")]) == 0
    equal(given, [np.load(path)["response"] for path in answers])


def test_outputs_that_are_gone_are_made_again_from_the_checkpoint(twice, tmp_path, monkeypatch):
    cfg, workdir = twice
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "stages" / "first_network" / "outputs.npz"
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"outputs\.npz is missing: python -m jaxbed\.main makes it"):
        columns(cfg, tmp_path)
    assert first(cfg, tmp_path) == 0 and "first: all" not in messages(tmp_path)
    equal(dict(np.load(path)), dict(np.load(workdir / "stages" / "first_network" / "outputs.npz")))


def test_a_run_of_before_stages_had_names_is_resumed_and_evaluated(twice, tmp_path, monkeypatch):
    cfg, workdir = twice
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    (tmp_path / "stages" / "first_network").rename(tmp_path / "before")
    (tmp_path / "before" / "outputs.npz").rename(tmp_path / "before" / "said.npz")
    (tmp_path / "stages").rmdir()
    shutil.rmtree(tmp_path / "checkpoints")
    assert run(cfg, tmp_path) == 0
    equal(epoch(cfg, tmp_path), epoch(cfg, workdir))
    assert cli.evaluate([str(tmp_path)]) == 0 and not (tmp_path / "stages").exists()


def test_variants_are_evaluated_with_their_own_answers(tmp_path):
    cfg = tiny_run(jtt.Config(), epochs=1, grid=("data.texture_correlation=0.95,0.25",))
    trained(cfg, tmp_path)
    assert cli.evaluate([str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.glob("*/responses")) == ["responses"] * 2


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (softcon.Config(contrastive=16), {"net": HIDDEN}, "batch_size = 16: method.contrastive = 16 of them leave none for cross-entropy"),
        (jtt.Config(), {"grid": ("method.upweight=1,2",)}, "upweight is compiled into the step"),
        (jtt.Config(), {"shared_order": True}, "X draws images by weight, and shared_order would have no effect"),
    ],
)
def test_a_main_run_that_cannot_be_is_refused_before_the_first_one(tmp_path, method, changes, message):
    with pytest.raises(ValueError, match=message):
        first(tiny_run(method, **changes), tmp_path)
    assert not list(tmp_path.glob("stages/*/checkpoints"))


def test_networks_that_became_non_finite_are_not_asked(tmp_path):
    cfg = tiny_run(jtt.Config(), net=HIDDEN, seeds=2, optim=tiny.Optim(rule="sgd", lr=1e30))
    with pytest.raises(ValueError, match="non-finite"):
        first(cfg, tmp_path)
    assert not list(tmp_path.glob("stages/*/outputs.npz"))


# Starting from the first run


@pytest.fixture(scope="module")
def retrained(tmp_path_factory):
    """(configuration, workdir) of DFR, swept over what its first run shares and what it does not."""
    optim = tiny.Optim(rule="adam", lr=1e-2, weight_decay=0.1)
    cfg = tiny_run(dfr.Config(), net=HIDDEN, optim=optim, grid=("method.l1=0.0,0.1", "optim.lr=0.01,0.003"))
    return cfg, trained(cfg, tmp_path_factory.mktemp("dfr"))


def test_dfr_starts_from_its_members_erm_and_moves_the_new_head_alone(retrained):
    cfg, workdir = retrained
    own, first, main = config.load(workdir / "stages" / "ERM"), epoch(cfg, workdir / "stages" / "ERM"), epoch(cfg, workdir)
    assert own.method == erm.Config() and own.epochs == 2 and own.grid == ("optim.lr=0.01,0.003",)
    for member in range(8):  # l1, lr, seed
        equal(
            jax.tree.map(lambda x, m=member: x[m], main["params"]["net"]),
            jax.tree.map(lambda x, m=member: x[m % 4], first["params"]["net"]),
        )
    kernel = first["params"]["net"]["head"]["kernel"]
    assert all((kernel[a] != kernel[b]).any() for a in range(4) for b in range(a))
    new = main["params"]["retrained"]
    assert (new["standard"]["scale"] == 1).all() and (new["standard"]["bias"] == 0).all()
    moved = epoch(cfg, workdir, 1)["params"]["retrained"]["linear"]
    assert all((new["linear"][name] != moved[name]).any((1, 2) if name == "kernel" else 1).all() for name in moved)
    weights = np.abs(new["linear"]["kernel"]).sum((1, 2)).reshape(2, 4)
    assert (weights[1] < weights[0]).all()  # the penalty


def test_dfr_starts_from_an_erm_run_and_says_what_is_new(retrained, tmp_path):
    cfg, workdir = retrained
    erm_run = workdir / "stages" / "ERM"
    given = dataclasses.replace(cfg, grid=("optim.lr=0.01,0.003",), init_from=str(erm_run))
    trained(given, tmp_path)
    assert not (tmp_path / "stages").exists()
    assert f"starting from epoch 2 of {erm_run}; newly initialised: retrained" in messages(tmp_path)
    equal(epoch(given, tmp_path)["params"]["net"], epoch(cfg, erm_run)["params"]["net"])
    weights = plan.job(dataclasses.replace(cfg, init_from="resnet18.pth"), tmp_path, 0)
    assert weights.stage.name == "ERM" and weights.cfg.init_from == "resnet18.pth"


@dataclasses.dataclass
class Phases:
    """ERM in three phases, each from the end of the one before; the second sees half of its learning rate."""

    reads_bias = False
    parts: tuple[tuple[str, str], ...] = (("one", ""), ("two", "one"), ("", "two"))
    networks: int = 1

    def training_stages(self, cfg):
        kept = dataclasses.replace(cfg, method=erm.Config(), epochs=1)
        halved = dataclasses.replace(kept, optim=dataclasses.replace(cfg.optim, lr=cfg.optim.lr / 2))
        networks = {"one": self.networks}
        return tuple(stages.Stage(name, halved if name == "two" else kept, networks.get(name, 1), start) for name, start in self.parts)

    def make(self, info, net, optim):
        raise AssertionError


def test_phases_start_from_one_another_and_have_their_own_settings(tmp_path):
    cfg = tiny_run(Phases(), grid=("optim.lr=0.01,0.003",))
    trained(cfg, tmp_path)
    alone = tiny_run(erm.Config(), epochs=1)
    for phase, seed, lr, origin in (("one", 2**20, 0.01, ""), ("two", 2**21, 0.005, "one"), (".", 0, 0.01, "two")):
        folder = tmp_path / "stages" / phase if phase != "." else tmp_path
        by_hand = dataclasses.replace(
            alone,
            first_seed=seed,
            grid=(f"optim.lr={lr},{lr * 0.3}",),
            optim=dataclasses.replace(cfg.optim, lr=lr),
            init_from=str(tmp_path / "stages" / origin) if origin else "",
        )
        trained(by_hand, tmp_path / "alone" / phase)
        equal(epoch(cfg, folder, 1)["params"], epoch(cfg, tmp_path / "alone" / phase, 1)["params"])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Phases((("one", ""), ("one", "one"), ("", "one"))), "X: stage 2 is named 'one': all but the last need names, each its own"),
        (Phases((("one", ""), ("two", "one"))), "X: stage 2 is named 'two': all but the last need names"),
        (Phases((("", ""), ("", ""))), "X: stage 1 is named ''"),
        (Phases((("one", "two"), ("two", ""), ("", "two"))), "X: stage 1 starts from 'two': name an earlier one .*, of none"),
        (Phases(networks=2), "X: stage 2 starts from 'one': name an earlier one with as many networks for each seed, of one"),
    ],
)
def test_stages_that_do_not_fit_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        stages.of(tiny_run(method))


@pytest.mark.parametrize(
    ("method", "field", "stage"),
    [
        (jtt.Config(), "method.epochs_before = 1", "first network"),
        (biasensemble.Config(), "method.epochs_before = 3", "biased networks"),
        (softcon.Config(epochs_before=2), "method.epochs_before = 2", "biased network"),
        (dfr.Config(epochs_before=1), "method.epochs_before = 1", "ERM"),
        (dfr.Config(), "epochs = 3", "ERM"),
        (infodrop.Config(finetune_epochs=5), "epochs = 3", "dropping"),
    ],
)
def test_a_warm_up_that_leaves_nothing_of_a_stage_is_refused_by_the_field_that_sets_its_epochs(method, field, stage):
    name, epochs = field.split(" = ")
    optim = dataclasses.replace(tiny.Optim(schedule="cosine"), warmup_epochs=float(epochs))
    cure = f"set {name} to {int(epochs) + 1} or more, or shorten the warm-up"
    with pytest.raises(ValueError, match=f"^{field}: optim.warmup_epochs = .* of the stage {stage!r}: {cure}"):
        stages.of(tiny_run(method, optim=optim, epochs=3 if name == "epochs" else 50, net=HIDDEN))
    shorter = dataclasses.replace(optim, warmup_epochs=float(epochs) - 0.5)
    assert len(stages.of(tiny_run(method, optim=shorter, epochs=3 if name == "epochs" else 50, net=HIDDEN))) == 2


def test_infodrop_is_fine_tuned_without_dropping_from_its_own_end(tmp_path, monkeypatch):
    monkeypatch.setitem(resnet.BLOCKS, 10, (0, 0, 0, 0))  # stem and head: it drops after the stem
    settings = {"net": tiny.train_config().net, "optim": tiny.Optim(lr=0.05, gamma=0.5), "epochs": 1}
    method = infodrop.Config(finetune_epochs=2, finetune_lr=0.01)
    trained(tiny_run(method, **settings), tmp_path)
    last, dropping = plan.job(tiny_run(method, **settings), tmp_path), config.load(tmp_path / "stages" / "dropping")
    assert (dropping.method, dropping.epochs) == (infodrop.Config(), 1)
    assert (last.cfg.method, last.cfg.epochs) == (infodrop.Config(drop_rate=0.0), 2)
    assert (last.cfg.optim.lr, last.cfg.optim.milestones_epochs, last.cfg.optim.gamma) == (0.01, (1.6,), 0.1)
    by_hand = dataclasses.replace(last.cfg, init_from=str(tmp_path / "stages" / "dropping"))
    trained(by_hand, tmp_path / "by_hand")
    equal(epoch(last.cfg, tmp_path), epoch(last.cfg, tmp_path / "by_hand"))
    given = dataclasses.replace(tiny_run(method, **settings), init_from=str(tmp_path / "stages" / "dropping"))
    assert plan.job(given, tmp_path / "other").cfg == by_hand and len(stages.of(given)) == 1
    with pytest.raises(ValueError, match="finetune_epochs = 2: BiasBed's variant drops to the end"):
        stages.of(tiny_run(dataclasses.replace(method, variant="biasbed")))


def test_networks_that_are_there_and_not_here_are_still_refused(retrained, tmp_path):
    _, workdir = retrained
    with pytest.raises(ValueError, match=r"params/retrained/linear/bias is \[8, 16\] there and absent here"):
        run(tiny_run(erm.Config(), net=HIDDEN, seeds=8, init_from=str(workdir)), tmp_path)


def test_dfr_draws_all_groups_alike():
    cfg = tiny_run(dfr.Config(groups="aligned"), net=HIDDEN)
    source = cfg.data.open()
    share = np.diff(tiny.program(cfg, source).weighted.cumulative, prepend=0)
    group = 2 * source.train.label + (source.train.bias != source.train.label)
    sums = np.bincount(group, share[0])
    assert (share[0] == share[1]).all() and len(set(np.bincount(group)) - {0}) > 1
    np.testing.assert_allclose(sums[sums > 0], 1 / len(np.unique(group)))


# Draws by weight


def weighted(weights, count, seeds=1):
    return Weighted(count, np.tile(np.cumsum(weights) / np.sum(weights), (seeds, 1)))


def test_draws_follow_the_weights_and_nothing_else(twice):
    cfg, workdir = twice
    found = members.open_all(cfg)
    columns_of_run = columns(cfg, workdir)
    made = train.prepare(cfg, found, workdir, columns_of_run)
    wrong = columns_of_run["wrong"]
    assert made.weighted.draws == cfg.batch_size and (wrong[0] != wrong[1]).any()
    drawn = np.concatenate([train.order(cfg, made, number) for number in range(300)], axis=1).reshape(2, -1)
    for member in range(2):
        expected = np.where(wrong[member], 5.0, 1.0)
        counts = np.bincount(drawn[member], minlength=48)
        assert scipy.stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3
    np.testing.assert_array_equal(train.order(cfg, made, 7), train.order(cfg, train.prepare(cfg, found, workdir, columns_of_run), 7))


def test_images_of_weight_zero_are_never_drawn():
    weights = np.array([0, 0, 1, 0, 3, 0.0])
    drawn = np.concatenate([sources.order(6, 6, number, np.array([3]), False, (), weighted(weights, 6)) for number in range(500)])
    assert np.bincount(drawn.ravel(), minlength=6)[[0, 1, 3, 5]].sum() == 0
    assert scipy.stats.chisquare(np.bincount(drawn.ravel(), minlength=6)[[2, 4]], [750, 2250]).pvalue > 1e-3


def test_a_draw_on_the_border_of_two_images_is_of_the_second(monkeypatch):
    """Or one of weight 0 would come first."""
    real = sources.rng.generator

    class Borders:
        def random(self, shape):
            return np.resize([0.0, 0.25, 0.5], shape)

    monkeypatch.setattr(
        sources.rng, "generator", lambda seed, purpose, number: Borders() if purpose == sources.rng.SAMPLE else real(seed, purpose)
    )
    drawn = sources.order(6, 3, 0, np.array([0]), False, (), weighted([0, 1, 1, 0, 2, 0], 3))
    assert drawn.tolist() == [[[1, 2, 4]] * 2]


def test_a_part_of_the_batch_is_drawn_and_the_rest_is_as_ever():
    weights, seeds = np.arange(40.0), np.array([4, 9, 4])
    plain = np.stack([sources.order(40, 8, number, seeds, False) for number in range(200)])
    drawn = np.stack([sources.order(40, 8, number, seeds, False, (), weighted(weights, 3, 3)) for number in range(200)])
    assert drawn.dtype == np.int32 and drawn.shape == plain.shape == (200, 3, 5, 8)
    np.testing.assert_array_equal(drawn[..., :5], plain[..., :5])
    assert (drawn[:, 0] == drawn[:, 2]).all() and (drawn[:, 0, :, 5:] != drawn[:, 1, :, 5:]).any()
    assert (drawn[0, 0, :, 5:] != drawn[1, 0, :, 5:]).any()
    counts = np.bincount(drawn[:, :2, :, 5:].ravel(), minlength=40)
    assert counts[0] == 0
    assert scipy.stats.chisquare(counts[1:], weights[1:] / weights.sum() * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("weights", [np.ones(47), -np.ones(48), np.full(48, np.nan), np.zeros(48), np.full(48, np.inf)])
def test_weights_that_cannot_be_drawn_by_are_refused(weights):
    cfg = tiny_run(erm.Config())
    with pytest.raises(ValueError, match="X: the weights to draw images by must be finite, 0 or more, and not all 0"):
        program.weigh(cfg, Sampling(lambda label, bias, tables: weights), members.open_all(cfg), {}, 2)


def test_draws_that_leave_the_batch_or_meet_fixed_shares_are_refused():
    cfg, sampling = tiny_run(erm.Config()), Sampling(lambda label, bias, tables: np.ones(48), 17)
    with pytest.raises(ValueError, match="batch_size = 16: X draws 17 images of every batch by weight"):
        program.weigh(cfg, sampling, members.open_all(cfg), {}, 2)
    shares = dataclasses.replace(cfg.data.open(), components=(Component(24, 1), Component(24, 1)))
    with pytest.raises(ValueError, match="X draws images by weight, and shares of shapes would have no effect"):
        program.weigh(cfg, sampling._replace(draws=0), members.one(cfg, shares), {}, 2)
