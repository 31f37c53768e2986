"""The benchmark script: its statistics, its report, and that its PyTorch peers compute what jaxbed computes."""

import importlib.util
import itertools
import json
import math
import sys

import jax
import numpy as np
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import bench
import bench_conv
from peers import cases, configs, process, timing

from jaxbed.methods.parts import pairs
from jaxbed.models import cae, edsr


@pytest.fixture(autouse=True)
def shallow(monkeypatch):
    """Its small ResNet has one block: what is timed does not depend on how many there are."""
    monkeypatch.setitem(cases.resnet.BLOCKS, 10, (1, 0, 0, 0))


@pytest.fixture
def narrow(monkeypatch):
    """The small cases of sweeps and of scaling with fewer units, and images of fewer pixels; of sweeps fewer images too."""
    small = {"net": cases.mlp.Config((16,)), "side_px": 14}
    sweep, scaling = cases.sweep(small=True)._replace(**small, batch=64, rows=4 * 64), cases.scaling(small=True)._replace(**small)
    monkeypatch.setattr(cases, "sweep", lambda small_wanted: sweep)
    monkeypatch.setattr(cases, "scaling", lambda small_wanted: scaling)


@pytest.fixture
def bare(monkeypatch):
    """No block at all, where nothing is compared with PyTorch's network."""
    monkeypatch.setitem(cases.resnet.BLOCKS, 10, (0, 0, 0, 0))


SMALL = ["--small", "--blocks", "3", "--steps", "2", "--peer", "none"]


def run(tmp_path, *arguments):
    path = tmp_path / "report.json"
    bench.main([arguments[0], *SMALL, *arguments[1:], "--json", str(path)])
    return json.loads(path.read_text())


def check(report, benchmark, results):
    assert report["benchmark"] == benchmark and len(report["results"]) == results
    assert {"command", "date", "devices", "python", "versions", "settings", "peak_memory_bytes"} <= set(report)
    assert report["versions"]["jax"] == jax.__version__ and report["peak_memory_bytes"] > 0
    assert report["settings"]["small"] and report["devices"][0].startswith("cpu")
    for result in report["results"]:
        rates = []
        for arm in result["arms"]:
            assert len(arm["seconds"]) == 3 and min(arm["seconds"]) > 0 and arm["steps_per_block"] >= 2
            images = arm["images_per_step"] * arm["steps_per_block"]
            np.testing.assert_allclose(arm["images_per_second"]["each"], [images / s for s in arm["seconds"]])
            rates.append(arm["images_per_second"]["each"])
        pairs = [b / a for a, b in zip(*rates, strict=True)]
        np.testing.assert_allclose(result["ratio"]["each"], pairs)
        assert result["ratio"]["pairs"] == pytest.approx({"median": np.median(pairs), "min": min(pairs), "max": max(pairs)})
        assert result["ratio"]["of_medians"] == pytest.approx(np.median(rates[1]) / np.median(rates[0]))
        assert not [name for name, value in result["checks"].items() if value is False], result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["array", "--nets", "mlp,foo"], "--nets foo: array has demo_32, mlp"),
        (["step", "--nets", "mlp"], "--nets mlp: step has none to choose"),
        (["step", "--methods", "foo"], "--methods foo: choose from erm"),
        (["array", "--seeds", "0"], "--seeds and --devices must be at least 1"),
        (["step", "--methods", "erm", *SMALL], "there are no two things to compare"),
        (["step", "--methods", "padain", "--peer-alone", *SMALL], "there are no two things to compare"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys, bare):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert message in capsys.readouterr().err


def test_step(tmp_path, capsys, bare):
    check(run(tmp_path, "step", "--methods", "erm,padain"), "step", 1)
    assert "padain / erm" in capsys.readouterr().out


def test_an_interrupted_benchmark_keeps_the_rows_it_has(tmp_path, monkeypatch, bare):
    measured = iter([{"case": "first"}])
    monkeypatch.setattr(bench, "pair", lambda *arguments: next(measured))
    with pytest.raises(RuntimeError):  # the second row has no result
        run(tmp_path, "step", "--methods", "padain,mixstyle")
    assert json.loads((tmp_path / "report.json").read_text())["results"] == [{"case": "first"}]


@pytest.mark.parametrize(
    "method",  # by default those that refuse images without a bias; to trace all takes 13 s
    [pytest.param(name, marks=() if cfg.reads_bias else pytest.mark.slow) for name, cfg in cases.METHODS.items()],
)
def test_every_method_can_be_timed(method, bare):
    ready = cases.assemble(cases.step(method, small=True), method)  # traces a step, and compiles none
    assert {"loss", "accuracy"} <= set(ready.program.metrics())


@pytest.mark.parametrize(("method", "table"), [("biasensemble", "kept"), ("jtt", "wrong"), ("softcon", "biased_direction")])
def test_outputs_of_earlier_stages_are_made_up(method, table):
    case = cases.step(method, small=True)._replace(net=cases.mlp.Config((8,)))
    tables = cases.assemble(case, method).tables
    assert list(tables) == [table] and len(tables[table]) == case.images
    if table == "biased_direction":
        np.testing.assert_allclose(np.linalg.norm(tables[table], axis=1), 1, rtol=1e-5)
        assert np.ptp(tables[table] @ tables[table].mean(0)) > 0.01  # images differ in how often they are drawn
    else:
        assert 0.25 < tables[table].mean() < 0.75


@pytest.mark.slow
def test_array(tmp_path):
    report = run(tmp_path, "array")
    check(report, "array", 3)
    for result in report["results"]:
        one, together = result["arms"]
        assert one["images_per_step"] == together["images_per_step"]
        assert len(set(together["first_losses"])) == len(together["first_losses"])  # seeds differ


def test_eval(tmp_path, bare):
    check(run(tmp_path, "eval"), "eval", 1)


def test_sweep(tmp_path, narrow):
    report = run(tmp_path, "sweep")
    check(report, "sweep", 1)
    assert all(arm["steps_per_block"] % 4 == 0 for arm in report["results"][0]["arms"])  # whole epochs


def test_scaling_uses_both_axes(tmp_path, narrow):
    report = run(tmp_path, "scaling")
    check(report, "scaling", 2)
    assert [result["ratio_divided_by"] for result in report["results"]] == [2, 2]


def test_generate(tmp_path, capsys):
    report = run(tmp_path, "generate", "--nets", "edsr_bfloat16,cae_tensorfloat32")
    check(report, "generate", 2)
    for result in report["results"]:
        rates = [arm["images_per_second"]["median"] for arm in result["arms"]]
        np.testing.assert_allclose(result["hours"], [1_281_167 / rate / 3600 for rate in rates])
    assert "edsr_bfloat16: hours of this device for 1,281,167 images: one per call" in capsys.readouterr().out


@pytest.mark.slow  # starts processes
def test_several_processes_are_timed_against_one(tmp_path):
    report = run(tmp_path, "processes")
    check(report, "processes", 1)
    assert report["results"][0]["checks"]["losses_agree"]


@pytest.mark.parametrize("function", ["output", "to_x", "to_kernel"])
def test_both_forms_of_a_convolution_are_timed(function):
    layer = bench_conv.Layer(2, 6, 3, 4, 3, 2, "float32")
    args = bench_conv.arguments(layer, 2)[function]
    texts = {form: bench_conv.loop(layer, 2, function, form).lower(*args).as_text() for form in ("dense", "product")}
    assert "convolution" in texts["dense"] and "convolution" not in texts["product"]
    assert bench_conv.measure(bench_conv.loop(layer, 2, function, "product").lower(*args).compile(), *args) > 0


def test_ratios_are_of_medians_and_of_pairs():
    ratio = timing.compare([10.0, 20.0, 40.0], [20.0, 30.0, 40.0])
    assert ratio["of_medians"] == 1.5 and ratio["each"] == [2.0, 1.5, 1.0]
    assert ratio["pairs"] == {"median": 1.5, "min": 1.0, "max": 2.0}
    with pytest.raises(ValueError, match="shorter"):
        timing.compare([1.0, 2.0], [1.0])


def test_arms_take_turns_and_the_first_block_is_not_counted(monkeypatch):
    calls, clock = [], itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    arms = [timing.Arm(name, lambda steps, name=name: calls.append((name, steps)), 8, 2, list, lambda: 1) for name in "AB"]
    first, second = timing.measure(arms, timing.Rules(blocks=5, steps=3))
    assert calls[-10:] == [("A", 4), ("B", 4)] * 5  # 3 steps, rounded up to the unit
    assert len(first["seconds"]) == len(second["seconds"]) == 5
    assert first["images_per_second"]["each"] == [32.0] * 5


def test_what_is_ready_when_a_block_begins_is_used_up_first(monkeypatch):
    calls, clock = [], itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: calls.append("clock") or next(clock))
    arm = timing.Arm("A", calls.append, 8, 2, list, lambda: 1, ahead=6)
    timing.measure([arm], timing.Rules(blocks=2, steps=4))
    assert calls == [2, 2, 6, "clock", 2, 4, *[6, "clock", 4, "clock"] * 2]


def test_a_block_lasts_as_long_as_asked(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) / 4)  # any run takes a quarter of a second
    assert timing.measure([timing.Arm("A", lambda steps: None, 1, 5, list)], timing.Rules(seconds=3.0))[0]["steps_per_block"] == 60


@pytest.mark.parametrize(("losses", "passes"), [([2.2, 2.5], True), ([2.3, math.nan], False), ([2.3, 9.0], False), ([math.inf], False)])
def test_implausible_first_losses_are_found(losses, passes):
    assert timing.plausible(math.log(10))({"first_losses": losses})["losses_plausible"] == passes


def test_other_losses_of_a_seed_are_found():
    first, second = {"first_losses": [2.0, 2.0]}, {"first_losses": [2.0, 2.1]}
    assert timing.same_losses(1e-3)(first, first)["losses_agree"]
    assert not timing.same_losses(1e-3)(first, second)["losses_agree"]


def test_without_torch_the_report_says_so():
    for python in ("/bin/false", "/no/such/python"):
        version, reason = process.version(python)
        assert not version and python in reason and "--peer-python" in reason


torch_absent = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: jaxbed does not need it")


@torch_absent
@pytest.mark.parametrize("form", ["stock", "fair"])
@pytest.mark.parametrize("method", [name for name in cases.METHODS if name not in configs.WITHOUT_PEER])
def test_peers_run(method, form):
    if form == "fair" and method in configs.STOCK_ONLY:
        pytest.skip("it has a stock form alone")
    if method == "augmix":
        pytest.importorskip("torchvision", reason="its PyTorch form crops with torchvision, which is not installed")
    case = cases.step(method, small=True)
    with process.Peer(sys.executable, cases.peer_settings(case, method, form)) as peer:
        arm = timing.Arm(*peer.arm())
        arm.run(2)
        assert timing.plausible(case.first_loss(method))({"first_losses": arm.losses()})["losses_plausible"]
        assert arm.memory() > 0


@torch_absent
@pytest.mark.parametrize("kind", ["mlp", "resnet"])
@pytest.mark.parametrize("method", ["erm", "lff", "biasensemble", "disent", "softcon", "dfr", "reweight"])
def test_a_peer_computes_what_jaxbed_computes(method, kind, monkeypatch):
    import torch
    from peers import networks
    from peers.train import Trainer

    monkeypatch.setitem(cases.resnet.BLOCKS, 10, networks.BLOCKS[10])  # every block, as the peer's network has
    monkeypatch.setattr(pairs, "partners", lambda key, size: jax.numpy.arange(size)[::-1])  # or the two would draw other ones
    monkeypatch.setattr(torch, "randperm", lambda size, device: torch.arange(size, device=device).flip(0))
    case = cases.step(method, small=True)
    if kind == "mlp":
        monkeypatch.setattr(cases, "LEARNING_RATE", 0.03)  # its losses hardly move in four steps otherwise
        case = cases.sweep(small=True)._replace(batch=2 * case.batch, rows=4 * case.batch)
    case = case._replace(rule="sgd", augmented=False)  # the two draw other crops
    ready = cases.assemble(case, method)
    track = cases.Track(ready.cfg, ready.program)
    trainer = Trainer({**cases.peer_settings(case, method, "fair"), "images": case.images})
    torch.set_float32_matmul_precision("highest")  # as jaxbed's; the peers themselves may use TF32
    np.testing.assert_array_equal(trainer.image.permute(0, 2, 3, 1).numpy(), ready.source.train.image)
    for name, table in ready.tables.items():
        table = torch.from_numpy(np.array(table))
        assert getattr(trainer.method, name).shape == table.shape
        setattr(trainer.method, name, table)
    with torch.no_grad():
        for net, params in alike(trainer.method, track.run.state.params):
            for parameter, value in zip(net.parameters(), flat(params), strict=True):
                parameter.copy_(torch.from_numpy(value))
    feeds, rows, ours, theirs = track.feeds, [], [], []
    track.feeds = (rows.append(np.asarray(feed.row[0, 0])) or feed for feed in feeds)
    for _ in range(4):
        before = float(track.run.sums["loss"][0])
        track.calls(1)
        ours.append(float(track.run.sums["loss"][0]) - before)
        index = torch.tensor(rows[-1]).long()
        theirs.append(trainer.method.step(trainer.scale(trainer.image[index]), trainer.label[index], index).item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def alike(method, params):
    """A peer's networks, each with the parameters of jaxbed's."""
    if hasattr(method, "nets"):
        return zip(method.nets, (params["biased"], params["debiased"]), strict=True)
    if hasattr(method, "encoders"):
        names = ("intrinsic", "bias")
        heads = [{"head": {"head": params[f"{name}_head"]}} for name in names]
        return zip([*method.encoders, *method.heads], [*(params[name] for name in names), *heads], strict=True)
    if "retrained" in params:
        trunk = {name: of_part for name, of_part in params["net"].items() if "head" not in name}
        return (method.trunk, trunk), (method.head, {"head": {"head": params["retrained"]["linear"]}})
    if "trunk" in params:
        return (method.trunk, params["trunk"]), (method.head, params["head"])
    return ((method.net, params["net"]),)


def flat(params):
    """One seed's parameters as arrays of PyTorch's layout, in the order of the peers' networks."""

    def order(path):  # blocks in order; within one, the main layers in turn, then the shortcut; the stem first, the head last
        block, layer = path[0].key, path[-2].key
        stage = {"stem": "0", "head": "~"}.get(block.split("_")[0], block)
        number = layer.lstrip("abcdefghijklmnopqrstuvwxyz_") or "0"
        kind = ("conv" in layer, "norm" in layer).index(True) if "head" not in layer and "hidden" not in layer else 0
        return stage, "shortcut" in layer, number, kind, {"kernel": 0, "scale": 0, "bias": 1}[path[-1].key]

    leaves = sorted(jax.tree_util.tree_leaves_with_path(params), key=lambda item: order(item[0]))
    arrays = [np.asarray(leaf)[0] for _, leaf in leaves]
    return [(a.transpose(3, 2, 0, 1) if a.ndim == 4 else a.T).copy() for a in arrays]


@pytest.mark.slow  # compiles AugMix
def test_augmentation_is_timed(tmp_path):
    check(run(tmp_path, "augment"), "augment", 1)


@pytest.mark.slow  # compiles every corruption
def test_measures_and_attacks_are_timed(tmp_path, bare):
    check(run(tmp_path, "measure", "--parts", "bands,seeds"), "measure", 2)
    check(run(tmp_path, "attack"), "attack", 1)


def test_parts_that_do_not_exist_are_refused(capsys):
    with pytest.raises(SystemExit):
        bench.main(["attack", "--parts", "bands"])
    assert "--parts bands: attack has steps, torchattacks, foolbox" in capsys.readouterr().err


@torch_absent
def test_generating_peers_run(tmp_path):
    check(run(tmp_path, "generate", "--peer", "stock"), "generate", 6)


@torch_absent
def test_generating_peers_are_the_networks_and_change_what_is_published():
    import torch
    from peers import torch_cae, torch_edsr

    rng, sizes_px = np.random.default_rng(0), np.array([[16, 20]])
    levels = rng.uniform(0, 255, (1, 16, 20, 3)).astype(np.float32)
    states = {torch_edsr: edsr.draw(rng, 4, 2), torch_cae: cae.draw(rng, 4)}
    nets = {module: module.Network(4, 2, False) for module in states}
    for module, weights in states.items():
        nets[module].load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    image = torch.from_numpy(levels).permute(0, 3, 1, 2)
    with torch.no_grad():
        net = nets[torch_edsr]
        x = net.head(image - net.mean)
        out = (net.tail(x + net.body(x)) + net.mean).clamp(0, 255).permute(0, 2, 3, 1)
        np.testing.assert_allclose(out, edsr.apply(edsr.prepare(states[torch_edsr]), levels, sizes_px), atol=1e-2)
        net, params = nets[torch_cae], cae.prepare(states[torch_cae])
        latent = net.encode(image / 255)
        np.testing.assert_allclose(latent.permute(0, 2, 3, 1), cae.encode(params, levels / 255, sizes_px), atol=1e-5)
        out = net.decode(latent).permute(0, 2, 3, 1)
        np.testing.assert_allclose(out, cae.decode(params, latent.permute(0, 2, 3, 1).numpy(), sizes_px // 4), atol=1e-5)
        for module, net in nets.items():
            before = {name: array.clone() for name, array in net.state_dict().items()}
            for _ in range(200):  # every option
                module.distort(net.state_dict(), 2)
                net.load_state_dict(before)
                made = net((255 * torch.rand(1, 16, 20, 3)).byte())
                assert made.dtype == torch.uint8 and made.shape == ((1, 64, 80, 3) if module is torch_edsr else (1, 16, 20, 3))
