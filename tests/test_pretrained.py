"""Runs that start from parameters made before: another run's epoch, or a file of weights."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from safetensors.numpy import load_file, save_file

from jaxbed import config, main, parallel
from jaxbed.data import shapes
from jaxbed.methods import dfr
from jaxbed.models import convert, mlp, resnet
from jaxbed.optim import Optim
from jaxbed.training import members, plan, pretrained, train
from jaxbed.training.log import Log
from jaxbed.training.program import Program, Run, snapshot

SMALL = shapes.Config(train_images=32, val_images=16, test_images=16)


_programs: dict[tuple[str, bool], Program] = {}


def small(method="erm", **changes):
    cfg = tiny.train_config(method, **{"net": tiny.RESNET_4, "data": SMALL, "seeds": 2, "epochs": 2, **changes})
    if method == "sagnet":  # the one block is of the content
        cfg = dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, style_stage=1))
    return cfg


def program(cfg, trains=True) -> Program:
    """Compiled once for a configuration, wherever it starts from."""
    key = repr(dataclasses.replace(cfg, init_from="")), trains
    if key not in _programs:
        _programs[key] = tiny.program(cfg, trains=trains)
    return _programs[key]


def from_file(cfg, path):
    """The state that a file starts; of what the file lacks only the shapes, whose initialization would take a second to compile."""
    ready = program(cfg, trains=False)
    return pretrained.load(str(path), ready, Run(ready.state, alive=None, sums={}), print).state


def started(cfg, messages=None):
    return jax.device_get(train.start(cfg, program(cfg), (messages if messages is not None else []).append))


def equal(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir, snapshots of its two epochs)."""
    workdir = tmp_path_factory.mktemp("run")
    cfg = tiny.mlp_config(data=SMALL, epochs=2)
    config.save(cfg, workdir / "config.json")
    log = Log(workdir)
    assert train.train(cfg, members.one(cfg, cfg.data.open()), workdir, log, program=program(cfg)) == 0
    store = train.stores(workdir, 2, log)[1]
    return workdir, [jax.device_get(store.load(epoch, snapshot(program(cfg).abstract))) for epoch in (1, 2)]


@pytest.mark.parametrize(("suffix", "place"), [("", 1), (":1", 0), (":2", 1)])
def test_a_run_starts_from_another_ones_epoch(trained, suffix, place):
    workdir, epochs = trained
    cfg = tiny.mlp_config(data=SMALL, init_from=f"{workdir}{suffix}")
    messages = []
    run, fresh = started(cfg, messages), started(dataclasses.replace(cfg, init_from=""))
    equal(run.state.params, epochs[place]["params"])
    equal((run.state.opt, run.state.step, run.state.memory), (fresh.state.opt, fresh.state.step, fresh.state.memory))
    assert messages == [f"starting from epoch {place + 1} of {workdir}"]


def test_training_goes_on_from_there(trained, tmp_path):
    workdir, epochs = trained
    cfg = tiny.mlp_config(data=SMALL, epochs=1, init_from=f"{workdir}:2", optim=Optim(rule="adam", lr=1e-5))
    assert train.train(cfg, members.one(cfg, cfg.data.open()), tmp_path, Log(tmp_path), program=program(cfg)) == 0
    after = train.stores(tmp_path, 2, Log(tmp_path))[1].load(1, snapshot(program(cfg).abstract))
    for a, b in zip(*map(jax.tree.leaves, (after["params"], epochs[1]["params"])), strict=True):
        assert 0 < np.abs(a - b).max() < 1e-4


def test_runs_that_do_not_fit_are_an_error(trained, tmp_path):
    workdir, _ = trained
    for changes, message in (
        ({"init_from": f"{workdir}:7"}, "has finished epochs 1 to 2; write .*:EPOCH"),
        (
            {"init_from": str(workdir), "net": mlp.Config((9,))},
            r"networks than this run: params/net/head/kernel is \[2, 8, 16\] there and \[2, 9, 16\] here\. Give both the same net",
        ),
        (
            {"init_from": str(workdir), "seeds": 3, "mesh": parallel.Mesh(seed=1, data=1)},
            r"has 2 seeds and this run 3: give --config\.seeds=2",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            started(tiny.mlp_config(data=SMALL, **changes))
    with pytest.raises(FileNotFoundError, match="is not the workdir of a run"):
        started(tiny.mlp_config(data=SMALL, init_from=str(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": "nope.pth"}, "init_from = nope.pth: there is no such file"),
        (
            {"init_from": "nope"},
            r"init_from = nope: nope is not the workdir of a run \(config.json is missing\); name WORKDIR, WORKDIR:EPOCH",
        ),
        ({"init_from": "RUN:7"}, "has finished epochs 1 to 2"),
        ({"init_from": "RUN", "seeds": 3}, r"has 2 seeds and this run 3: give --config\.seeds=2"),
        ({"init_from": "RUN", "grid": ("optim.lr=0.1,0.01",)}, r"has 2 seeds of all grid points and this run 4: give --config\.seeds=1"),
        ({"init_from": "RUN", "net": mlp.Config((9,))}, "has other networks than this run"),
    ],
)
def test_what_a_run_cannot_start_from_is_refused_before_anything_is_written(trained, tmp_path, changes, message):
    changes["init_from"] = changes["init_from"].replace("RUN", str(trained[0]))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        main.run(tiny.mlp_config(data=SMALL, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """(file, params, stats) of one network of small()'s kind."""
    run = started(small())
    params, stats = (jax.tree.map(lambda x: x[0] + 0.25, tree["net"]) for tree in (run.state.params, run.state.stats))
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    save_file(convert.to_torch(params, stats), path)
    return path, params, stats


@pytest.mark.parametrize(("method", "nets"), [("erm", ["net"]), ("lff", ["biased", "debiased"]), ("sagnet", ["trunk", "content", "style"])])
def test_all_networks_of_a_method_start_from_a_file(weights, method, nets):
    path, params, stats = weights
    state = from_file(small(method), path)
    assert sorted(state.params) == sorted(nets)
    for kind, given in (("params", params), ("stats", stats)):
        for net in nets:
            for layer, arrays in getattr(state, kind)[net].items():
                equal(arrays, jax.tree.map(lambda x: np.stack([x, x]), given[layer]))


@pytest.mark.parametrize("method", ["softcon", "dfr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("biasensemble", "jtt"))])
def test_networks_that_come_first_start_from_a_file_that_fits_their_kind(weights, method, tmp_path):
    path, params, _ = weights
    cfg = small(method, init_from=str(path))
    nets = jax.tree.leaves(started(plan.job(cfg, tmp_path, 0).cfg).state.params, is_leaf=lambda tree: "stem_conv" in tree)
    of_file = [np.array_equal(net["stem_conv"]["kernel"][0], params["stem_conv"]["kernel"]) for net in nets if isinstance(net, dict)]
    assert of_file == [method != "softcon"]  # whose networks are biased by design


def test_weights_are_evaluated_without_training(weights, tmp_path, monkeypatch):
    path, params, _ = weights
    monkeypatch.setitem(resnet.BLOCKS, 10, resnet.BLOCKS[4])  # a depth that users have
    ten = dataclasses.replace(tiny.RESNET_4, depth=10)
    cfg = small(net=ten, epochs=0, init_from=str(path), seeds=1, batch_size=64)  # more than there are images
    for _ in range(2):  # the same again: nothing is left to do
        assert main.run(cfg, tmp_path) == 0
    epochs = train.stores(tmp_path, 1, Log(tmp_path))[1]
    assert epochs.numbers() == [0]
    equal(jax.tree.map(lambda x: x[0], epochs.load(0, epochs.abstract(0))["params"]["net"]), params)
    assert {int(path.stem) for path in (tmp_path / "responses").glob("*/*.npz")} == {0}
    with pytest.raises(ValueError, match="epochs = 0: nothing is trained, so init_from must name weights"):
        config.check(dataclasses.replace(cfg, init_from=""))


def test_a_head_of_other_classes_is_drawn_anew(weights, tmp_path):
    _, params, stats = weights
    state = convert.to_torch(params, stats)
    save_file({**state, "fc.weight": state["fc.weight"][:9], "fc.bias": state["fc.bias"][:9]}, tmp_path / "nine.safetensors")
    messages = []
    run, fresh = started(small(init_from=str(tmp_path / "nine.safetensors")), messages), started(small())
    equal(run.state.params["net"]["head"], fresh.state.params["net"]["head"])
    equal(jax.tree.map(lambda x: x[1], run.state.params["net"]["stem_conv"]), params["stem_conv"])
    assert messages[0].endswith("newly initialised: net/head/bias, net/head/kernel")


def nine_classes(state):
    return {name: array[:9] if name.startswith("fc.") else array for name, array in state.items()}


def no_head(state):
    return {name: array for name, array in state.items() if not name.startswith("fc.")}


@pytest.mark.parametrize(("change", "has"), [(nine_classes, r"has \[9\]"), (no_head, "lacks it")])
@pytest.mark.parametrize("method", ["erm", "lff"])
def test_without_training_nothing_of_a_file_may_be_new(weights, tmp_path, monkeypatch, method, change, has):
    monkeypatch.setitem(resnet.BLOCKS, 10, resnet.BLOCKS[4])  # a depth that users have
    path = tmp_path / "weights.safetensors"
    save_file(change(load_file(weights[0])), path)
    cfg = small(method, net=dataclasses.replace(tiny.RESNET_4, depth=10), epochs=0, init_from=str(path))
    message = rf"/head/bias is \[16\] here and the file {has}, and epochs = 0 trains nothing: name a file that fits"
    with pytest.raises(ValueError, match=message):
        main.run(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_training_no_network_may_be_new(trained, tmp_path):
    cfg = tiny.mlp_config("dfr", data=SMALL, epochs=0, init_from=str(trained[0]))
    cfg = dataclasses.replace(cfg, method=dfr.Config())
    with pytest.raises(ValueError, match="has no network retrained, and epochs = 0 trains nothing: take a run of this method, or give"):
        main.run(cfg, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_head_may_be_in_a_second_file(weights, tmp_path):
    """As those of DINO and SwAV. File names may have a "+" too."""
    path, params, stats = weights
    state, messages = convert.to_torch(params, stats), []
    body, head = tmp_path / "body+more.safetensors", tmp_path / "head.safetensors"
    save_file({f"module.{name}": array for name, array in state.items() if not name.startswith("fc")}, body)
    save_file({f"module.linear.{leaf}": state[f"fc.{leaf}"] for leaf in ("weight", "bias")}, head)
    run = started(small(init_from=f"{body}+{head}"), messages)
    equal(jax.tree.map(lambda x: x[1], run.state.params["net"]), params)
    assert messages == [f"starting from {body}+{head}"]
    for source, error, message in (
        (f"{path}+{head}", ValueError, r"there are two heads, fc\.weight of .*resnet.safetensors and that of .*head.safetensors: name the"),
        (f"{head}+{body}", ValueError, r"holds .*, and a file of a head has weight and bias of one layer, fc, linear or head"),
        (f"{tmp_path}/no.pth+{head}", FileNotFoundError, r"there is no file .*/no\.pth$"),
    ):
        with pytest.raises(error, match=message):
            pretrained.load(source, program(small()), program(small()).abstract, messages.append)


def test_files_that_do_not_fit_are_an_error(weights, tmp_path):
    file, fitting = weights[0], small()
    from_file(fitting, file)
    for net, message in (
        (tiny.RESNET_6, r"no network here has|the file lacks it"),
        (dataclasses.replace(tiny.RESNET_4, width=8), r"is \[.*\] here and the file has \[.*\]: another net"),
        (mlp.Config((8,)), "no network here has parameters"),
    ):
        with pytest.raises(ValueError, match=message):
            from_file(small(net=net), file)
    state = {f"ema.{name}": array for name, array in load_file(file).items()}
    save_file({**load_file(file), **state}, tmp_path / "both.safetensors")
    with pytest.raises(ValueError, match=r"both.safetensors: weights: 'ema\..* is no layer .* Save the network's own state_dict"):
        from_file(fitting, tmp_path / "both.safetensors")
    for ending in ("pth", "pth.tar", "ckpt", "PTH"):
        with pytest.raises(FileNotFoundError, match="there is no such file"):
            from_file(fitting, tmp_path / f"nothing.{ending}")
