"""Speed of jaxbed, always as a ratio of two things timed in turns in one run, on random data.

    step     each method's training step against ERM's and against PyTorch's
    array    S seeds in one array against one after another
    scaling  1, 2, 4 devices: a larger batch, or more seeds
    processes  2, 4 processes of one device each against one process with as many devices
    sweep    ten MLPs on 45,000 images of 28 px against a PyTorch loop, per seed
    eval     ten seeds in one pass against ten passes
    stream   training images read from disk (stored squares, in the page cache) against the same on the device

What is timed is the product's own loop (`train.feeds_from`, `program.advance`; `pools.pool`). Arms take turns in blocks, A B A B;
the first block of each, with compilation, is not counted; the device is waited for at the end of a block only. Every number is of
counted blocks: median, least and largest; a ratio is how many times faster the second arm is.
PyTorch runs in a process of its own, from the Python named by --peer-python.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's process needs memory of the same device
SCRIPTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

import jax  # noqa: E402
from peers import cases, process  # noqa: E402

from jaxbed import parallel  # noqa: E402
from jaxbed.training import log  # noqa: E402


class Arm(NamedTuple):
    """One of the things compared. run(steps) returns when the device has done them, every seed that many."""

    name: str
    run: Callable[[int], None]
    images: int  # per step, of all seeds
    unit: int  # steps come in multiples of it
    losses: Callable[[], list[float]]  # of the first steps, one a seed; empty where there is none
    memory: Callable[[], int] = log.peak_memory_bytes


class Rules(NamedTuple):
    blocks: int = 5
    steps: int = 0  # a block; 0: so many that a block lasts `seconds`
    seconds: float = 3.0


def summarise(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(base: list[float], other: list[float]) -> dict:
    """How many times faster `other` is than `base`, from their rates in the same blocks: by medians, and block by block."""
    pairs = [b / a for a, b in zip(base, other, strict=True)]
    return {"of_medians": statistics.median(other) / statistics.median(base), "pairs": summarise(pairs), "each": pairs}


def measure(arms: list[Arm], rules: Rules) -> list[dict]:
    """Times every arm in turns. The first of `rules.blocks + 1` blocks compiles, warms up and settles the length; it is not counted."""
    steps = []
    for arm in arms:
        for _ in range(2):  # a second compilation may follow once the state comes from the step itself
            arm.run(arm.unit)
        before = time.perf_counter()
        arm.run(arm.unit)
        wanted = rules.steps or math.ceil(rules.seconds / (time.perf_counter() - before)) * arm.unit
        steps.append(math.ceil(wanted / arm.unit) * arm.unit)
        arm.run(steps[-1])
    times = [[] for _ in arms]
    for _ in range(rules.blocks):
        for arm, count, seconds in zip(arms, steps, times, strict=True):
            before = time.perf_counter()
            arm.run(count)
            seconds.append(time.perf_counter() - before)
    return [report(*measured) for measured in zip(arms, steps, times, strict=True)]


def report(arm: Arm, steps: int, seconds: list[float]) -> dict:
    rates = [steps * arm.images / s for s in seconds]
    return {
        "name": arm.name,
        "images_per_step": arm.images,
        "steps_per_block": steps,
        "seconds": seconds,
        "images_per_second": {**summarise(rates), "each": rates},
        "first_losses": arm.losses(),
        "peak_memory_bytes": arm.memory(),  # of its process so far, not of this arm alone
    }


def same_losses(tolerance: float) -> Callable[[dict, dict], dict]:
    """The check that the same seeds have the same first losses in both arms."""

    def check(first: dict, second: dict) -> dict:
        pairs = zip(first["first_losses"], second["first_losses"], strict=True)
        worst = max(abs(a - b) / max(abs(a), 1e-9) for a, b in pairs)
        return {"losses_agree": worst <= tolerance, "largest_relative_difference": worst, "tolerance": tolerance}

    return check


def plausible(*expected: float) -> Callable[[dict, dict], dict]:
    """The check that each arm's first losses are finite and within half of what its untrained network has."""

    def check(*arms: dict) -> dict:
        within = [abs(x / wanted - 1) < 0.5 for arm, wanted in zip(arms, expected, strict=True) for x in arm["first_losses"]]
        return {"losses_plausible": all(within), "expected": expected}  # a comparison with NaN is false

    return check


def pair(case: str, arms: list[Arm], rules: Rules, check: Callable[[dict, dict], dict], relative: float = 1.0) -> dict:
    """Measures two arms and prints the line of the table. `relative` divides the ratio: the number of devices, for efficiencies."""
    first, second = measured = measure(arms, rules)
    ratio = compare(*(arm["images_per_second"]["each"] for arm in measured))
    checks = check(first, second)
    shown = [f"{arm['name']} {arm['images_per_second']['median']:,.0f}" for arm in measured]
    pairs, wrong = ratio["pairs"], [name for name, value in checks.items() if value is False]
    spread = f"({pairs['min'] / relative:.3f}-{pairs['max'] / relative:.3f})"
    print(f"{case:28s} {shown[0]:>34s} {shown[1]:>34s} img/s  {ratio['of_medians'] / relative:6.3f}x {spread}", *wrong, flush=True)
    return {"case": case, "arms": measured, "ratio": ratio, "ratio_divided_by": relative, "checks": checks}


def step(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    results = []
    for method in arguments.methods or tuple(cases.METHODS):
        case = cases.step(method, arguments.small)
        made, loss = Arm(*cases.training(f"jaxbed {method}", case, method)), case.first_loss(method)
        if method != "erm":
            base = Arm(*cases.training("jaxbed erm", case, "erm"))
            results.append(pair(f"{method} / erm, {case.net.depth}", [base, made], rules, plausible(case.first_loss("erm"), loss)))
            del base  # its memory is needed
        if peer:
            with process.Peer(arguments.peer_python, cases.peer_settings(case, method, arguments.peer)) as torch:
                results.append(pair(f"{method} / PyTorch, {case.net.depth}", [Arm(*torch.arm()), made], rules, plausible(loss, loss)))
    return results


def array(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    """On a CPU, where each seed of a run has a device of its own, so has each of an array here."""
    results, devices = [], len(jax.devices()) if jax.default_backend() == "cpu" else 1
    for name, case in named(arguments, cases.arrays(arguments.small)):
        solo = cases.assemble(case, "erm")
        for seeds in arguments.seeds or case.seeds:
            one = Arm(*cases.one_after_another("one after another", solo, seeds))
            together = Arm(*cases.training(f"{seeds} in an array", case, "erm", seeds=seeds, rows=math.gcd(seeds, devices)))
            results.append(pair(f"{name}, {seeds} seeds", [one, together], rules, same_losses(2e-2 if case.half else 1e-3)))
            del one, together
    return results


def scaling(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    """Ratios are printed divided by the number of devices. groups: data axis with BatchNorm over each device's part of the batch."""
    results, case = [], cases.scaling(arguments.small)
    single, loss = Arm(*cases.training("1 device", case, "erm")), case.first_loss("erm")
    for n in counts(arguments):
        axes = {
            "groups": {"case": cases.on_devices(case, n, grouped=True), "data": n},
            "data": {"case": cases.on_devices(case, n, grouped=False), "data": n},
            "seed": {"case": case, "seeds": n, "rows": n},
        }
        if arguments.small:  # whose network has no BatchNorm
            del axes["groups"]
        for name, options in axes.items():
            arm = Arm(*cases.training(f"{n} devices", method="erm", **options))
            results.append(pair(f"{n} devices, {name} axis", [single, arm], rules, plausible(loss, loss), relative=n))
            del arm
    return results


def processes(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    """The data axis with BatchNorm in groups, both times; the processes take the devices in turns with this one."""
    results, case = [], cases.scaling(arguments.small)
    for n in counts(arguments):
        one = Arm(*cases.training("1 process", cases.on_devices(case, n, grouped=True), "erm", data=n))
        with process.Parts(n, arguments.small) as parts:
            several = one._replace(name=f"{n} processes", run=parts.run, losses=parts.loss, memory=parts.memory)
            results.append(pair(f"{n} devices", [one, several], rules, same_losses(2e-2 if case.half else 1e-3)))
        del one
    return results


def counts(arguments: argparse.Namespace) -> list[int]:
    """Numbers of devices to be compared."""
    return [n for n in arguments.devices or (2, 4, 8) if n <= min(len(jax.devices()), 2 if arguments.small else 8)]


def sweep(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    """Whole epochs of all seeds; the ratio of img/s of all seeds is the ratio of seconds per seed and epoch."""
    case, results = cases.sweep(arguments.small), []
    seeds, epoch = case.seeds[0], case.images // case.batch
    for method in arguments.methods or ("erm",):
        together = Arm(*cases.training(f"{seeds} {method} in an array", case, method, seeds=seeds))._replace(unit=epoch)
        loss = case.first_loss(method)
        if peer:
            with process.Peer(arguments.peer_python, cases.peer_settings(case, method, arguments.peer)) as torch:
                other = Arm(*torch.arm())._replace(unit=epoch)
                results.append(pair(f"sweep of {method} / PyTorch", [other, together], rules, plausible(loss, loss)))
        else:
            one = Arm(*cases.one_after_another("one after another", cases.assemble(case, method), seeds))._replace(unit=epoch)
            results.append(pair(f"sweep of {method}", [one, together], rules, same_losses(1e-3)))
    return results


def evaluation(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    """A step is a pass over the whole set. Images are on the device already in both arms."""
    results = []
    for name, case in named(arguments, cases.evaluations(arguments.small)):
        arms, share = cases.passes(case)

        def check(first: dict, second: dict, share: Callable[[], float] = share) -> dict:
            return {"same_answers": share() >= 0.98, "share_of_same_answers": share()}  # rounding may turn a near tie

        results.append(pair(f"{name}, {case.seeds[0]} seeds", [Arm(*arm) for arm in arms], rules, check))
    return results


def streaming(arguments: argparse.Namespace, rules: Rules, peer: bool) -> list[dict]:
    """A ratio below one is the share of time in which the device computes."""
    with tempfile.TemporaryDirectory() as folder:
        arms = [Arm(*arm) for arm in cases.streamed(pathlib.Path(folder), arguments.small)]
        return [pair("images from disk", arms, rules, same_losses(2e-2))]


def named(arguments: argparse.Namespace, table: dict) -> list[tuple]:
    """The rows of a table of cases that --nets asks for."""
    return [(name, case) for name, case in table.items() if not arguments.nets or name in arguments.nets]


NETS = {"array": cases.arrays, "eval": cases.evaluations}
BENCHMARKS = {
    "step": step,
    "array": array,
    "scaling": scaling,
    "processes": processes,
    "sweep": sweep,
    "eval": evaluation,
    "stream": streaming,
}


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)

    def names(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser.add_argument("--methods", type=names, default=(), help=f"of step and sweep: {','.join(cases.METHODS)}")
    parser.add_argument("--nets", type=names, default=(), help="of array and eval: names as in the table, e.g. mlp,resnet18_224")

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    parser.add_argument("--seeds", type=numbers, default=(), help="of array: how many at once, e.g. 1,10")
    parser.add_argument("--devices", type=numbers, default=(), help="of scaling and processes: how many, e.g. 2,4")
    parser.add_argument("--blocks", type=int, default=5, help="counted blocks of each arm")
    parser.add_argument("--steps", type=int, default=0, help="training steps of a block; default: enough for --seconds")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a block")
    parser.add_argument("--small", action="store_true", help="tiny networks: does it run? Its numbers mean nothing")
    parser.add_argument("--peer", choices=("stock", "fair", "none"), default="stock", help="PyTorch as a user writes it, or like jaxbed")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--json", type=pathlib.Path, help="file for every number")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.methods) - set(cases.METHODS)
    if unknown:
        parser.error(f"--methods {', '.join(sorted(unknown))}: choose from {', '.join(cases.METHODS)}")
    nets = NETS[arguments.benchmark](arguments.small) if arguments.benchmark in NETS else ()
    unknown = set(arguments.nets) - set(nets)
    if unknown:
        parser.error(f"--nets {', '.join(sorted(unknown))}: {arguments.benchmark} has {', '.join(nets) or 'none to choose'}")
    if arguments.blocks < 1 or arguments.steps < 0 or arguments.seconds <= 0 or min((*arguments.seeds, *arguments.devices), default=1) < 1:
        parser.error("--blocks, --seeds and --devices must be at least 1, --steps 0 or more, --seconds above 0")
    torch, reason = "", "not part of this benchmark" if arguments.peer != "none" else "not asked for"
    if arguments.benchmark in ("step", "sweep") and arguments.peer != "none":
        torch, reason = process.version(arguments.peer_python)
    parallel.keep_compilations()  # several arms may run one program
    if arguments.benchmark == "array":
        parallel.use_cores(3, parallel.Mesh())
    rules = Rules(arguments.blocks, arguments.steps, 0.05 if arguments.small else arguments.seconds)
    devices = [f"{d.platform} {d.device_kind}" for d in jax.devices()]
    print(f"{arguments.benchmark} on {len(devices)} x {devices[0]}; PyTorch: {torch or reason}", flush=True)
    results = BENCHMARKS[arguments.benchmark](arguments, rules, bool(torch))
    if not results:
        parser.error("there are no two things to compare: ERM needs PyTorch beside it (--peer), several devices more than one")
    content = {
        "benchmark": arguments.benchmark,
        "command": sys.argv if argv is None else [str(SCRIPTS / "bench.py"), *argv],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "devices": devices,
        "python": sys.version.split()[0],
        "versions": {**{name: log.version(name) for name in log.PACKAGES}, "torch": torch or None},
        "source": log.source_hash(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "settings": {**vars(arguments), "json": str(arguments.json), "seconds": rules.seconds},
        "peer_absent_because": reason,
        "peak_memory_bytes": log.peak_memory_bytes(),
        "results": results,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    return content


if __name__ == "__main__":
    main()
