"""Speed of jaxbed, always as a ratio of two things timed in turns in one run, on random data.

    step     each method's training step against ERM's and against PyTorch's
    array    S seeds in one array against one after another
    scaling  1, 2, 4 devices: a larger batch, or more seeds
    processes  2, 4 processes of one device each against one process with as many devices
    sweep    ten MLPs on 45,000 images of 28 px against a PyTorch loop, per seed
    eval     ten seeds in one pass against ten passes
    augment  AugMix alone against Pillow in many processes
    measure  networks that answer under conditions against unchanged images, and corruptions against packages on the processor
    attack   PGD on one network against torchattacks and Foolbox
    generate DeepAugment's images from both networks, runs in batches, against one image per call in PyTorch
    stream   training images read from disk (stored squares, in the page cache) against the same on the device

What is timed is the product's own loop (`train.feeds_from`, `program.advance`; `pools.pool`). Arms take turns in blocks, A B A B;
the first block of each, with compilation, is not counted; the device is waited for at the end of a block only. Every number is of
counted blocks: median, least and largest; a ratio is how many times faster the second arm is.
PyTorch runs in a process of its own, from the Python named by --peer-python.
"""

import argparse
import datetime
import itertools
import json
import math
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's process needs memory of the same device
SCRIPTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

import jax  # noqa: E402
from peers import cases, configs, generating, measured_rows, process  # noqa: E402
from peers.timing import Arm, Rules, pair, plausible, same_losses  # noqa: E402

from jaxbed import parallel  # noqa: E402
from jaxbed.system import files  # noqa: E402
from jaxbed.training import log  # noqa: E402


def step(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    for method in arguments.methods or tuple(cases.METHODS):
        case = cases.step(method, arguments.small)
        made, loss = Arm(*cases.training(f"jaxbed {method}", case, method)), case.first_loss(method)
        if method != "erm" and not arguments.peer_alone:
            base = Arm(*cases.training("jaxbed erm", case, "erm"))
            yield pair(f"{method} / erm, {case.net.depth}", [base, made], rules, plausible(case.first_loss("erm"), loss))
            del base  # its memory is needed
        if peer and method not in configs.WITHOUT_PEER:
            with process.Peer(arguments.peer_python, cases.peer_settings(case, method, arguments.peer)) as torch:
                yield pair(f"{method} / PyTorch, {case.net.depth}", [Arm(*torch.arm()), made], rules, plausible(loss, loss))


def array(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """On a CPU, where each seed of a run has a device of its own, so has each of an array here."""
    devices = len(jax.devices()) if jax.default_backend() == "cpu" else 1
    for (name, case), method in itertools.product(named(arguments, cases.arrays(arguments.small)), arguments.methods or ("erm",)):
        solo, label = cases.assemble(case, method), name if method == "erm" else f"{method}, {name}"
        for seeds in arguments.seeds or case.seeds:
            one = Arm(*cases.one_after_another("one after another", solo, seeds))
            together = Arm(*cases.training(f"{seeds} in an array", case, method, seeds=seeds, rows=math.gcd(seeds, devices)))
            yield pair(f"{label}, {seeds} seeds", [one, together], rules, same_losses(2e-2 if case.half else 1e-3))
            del one, together


def scaling(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """Ratios are printed divided by the number of devices. groups: data axis with BatchNorm over each device's part of the batch."""
    case = cases.scaling(arguments.small)
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
            yield pair(f"{n} devices, {name} axis", [single, arm], rules, plausible(loss, loss), relative=n)
            del arm


def processes(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """The data axis with BatchNorm in groups, both times; the processes take the devices in turns with this one."""
    case = cases.scaling(arguments.small)
    for n in counts(arguments):
        one = Arm(*cases.training("1 process", cases.on_devices(case, n, grouped=True), "erm", data=n))
        with process.Parts(n, arguments.small) as parts:
            several = one._replace(name=f"{n} processes", run=parts.run, losses=parts.loss, memory=parts.memory)
            yield pair(f"{n} devices", [one, several], rules, same_losses(2e-2 if case.half else 1e-3))
        del one


def counts(arguments: argparse.Namespace) -> list[int]:
    """Numbers of devices to be compared."""
    return [n for n in arguments.devices or (2, 4, 8) if n <= min(len(jax.devices()), 2 if arguments.small else 8)]


def sweep(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """Whole epochs of all seeds; the ratio of img/s of all seeds is the ratio of seconds per seed and epoch."""
    case = cases.sweep(arguments.small)
    seeds, epoch = case.seeds[0], case.images // case.batch
    for method in arguments.methods or ("erm",):
        together = Arm(*cases.training(f"{seeds} {method} in an array", case, method, seeds=seeds))._replace(unit=epoch)
        loss = case.first_loss(method)
        if peer and method not in configs.WITHOUT_PEER:
            with process.Peer(arguments.peer_python, cases.peer_settings(case, method, arguments.peer)) as torch:
                other = Arm(*torch.arm())._replace(unit=epoch)
                yield pair(f"sweep of {method} / PyTorch", [other, together], rules, plausible(loss, loss))
        else:
            one = Arm(*cases.one_after_another("one after another", cases.assemble(case, method), seeds))._replace(unit=epoch)
            yield pair(f"sweep of {method}", [one, together], rules, same_losses(1e-3))


def evaluation(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """A step is a pass over the whole set. Images are on the device already in both arms."""
    for name, case in named(arguments, cases.evaluations(arguments.small)):
        arms, share = cases.passes(case)

        def check(first: dict, second: dict, share: Callable[[], float] = share) -> dict:
            return {"same_answers": share() >= 0.98, "share_of_same_answers": share()}  # rounding may turn a near tie

        yield pair(f"{name}, {case.seeds[0]} seeds", [Arm(*arm) for arm in arms], rules, check)


def streaming(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """A ratio below one is the share of time in which the device computes."""
    with tempfile.TemporaryDirectory() as folder:
        arms = [Arm(*arm) for arm in cases.streamed(pathlib.Path(folder), arguments.small)]
        yield pair("images from disk", arms, rules, same_losses(2e-2))


def named(arguments: argparse.Namespace, table: dict) -> list[tuple]:
    """The rows of a table of cases that --nets asks for."""
    return [(name, case) for name, case in table.items() if not arguments.nets or name in arguments.nets]


NETS = {"array": cases.arrays, "eval": cases.evaluations, "generate": generating.cases}
BENCHMARKS = {
    "step": step,
    "array": array,
    "scaling": scaling,
    "processes": processes,
    "sweep": sweep,
    "eval": evaluation,
    "stream": streaming,
    "augment": measured_rows.augment,
    "measure": measured_rows.measure,
    "attack": measured_rows.attack,
    "generate": generating.generate,
}


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)

    def names(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser.add_argument("--methods", type=names, default=(), help=f"of step, array and sweep: {','.join(cases.METHODS)}")
    parser.add_argument("--nets", type=names, default=(), help="of array, eval and generate: names as in the table, e.g. mlp,resnet18_224")

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    parser.add_argument("--seeds", type=numbers, default=(), help="of array: how many at once, e.g. 1,10")
    parser.add_argument(
        "--parts",
        type=names,
        default=(),
        help=f"of measure and attack: {', '.join(measured_rows.PARTS['measure'])}; {', '.join(measured_rows.PARTS['attack'])}",
    )
    parser.add_argument("--devices", type=numbers, default=(), help="of scaling and processes: how many, e.g. 2,4")
    parser.add_argument("--blocks", type=int, default=5, help="counted blocks of each arm")
    parser.add_argument("--steps", type=int, default=0, help="training steps of a block; default: enough for --seconds")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a block")
    parser.add_argument("--small", action="store_true", help="tiny networks: does it run? Its numbers mean nothing")
    parser.add_argument("--peer", choices=("stock", "fair", "none"), default="stock", help="PyTorch as a user writes it, or like jaxbed")
    parser.add_argument("--peer-alone", action="store_true", help="of step: compare with PyTorch, and not with ERM")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--json", type=pathlib.Path, help="file for every number")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.methods) - set(cases.METHODS)
    if unknown:
        parser.error(f"--methods {', '.join(sorted(unknown))}: choose from {', '.join(cases.METHODS)}")
    parts = measured_rows.PARTS.get(arguments.benchmark, ())
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"--parts {', '.join(sorted(unknown))}: {arguments.benchmark} has {', '.join(parts) or 'none to choose'}")
    nets = NETS[arguments.benchmark](arguments.small) if arguments.benchmark in NETS else ()
    unknown = set(arguments.nets) - set(nets)
    if unknown:
        parser.error(f"--nets {', '.join(sorted(unknown))}: {arguments.benchmark} has {', '.join(nets) or 'none to choose'}")
    if arguments.blocks < 1 or arguments.steps < 0 or arguments.seconds <= 0 or min((*arguments.seeds, *arguments.devices), default=1) < 1:
        parser.error("--blocks, --seeds and --devices must be at least 1, --steps 0 or more, --seconds above 0")
    torch, reason = "", "not part of this benchmark" if arguments.peer != "none" else "not asked for"
    if arguments.benchmark in ("step", "sweep", "generate") and arguments.peer != "none":
        torch, reason = process.version(arguments.peer_python)
    parallel.keep_compilations()  # several arms may run one program
    if arguments.benchmark == "array":
        parallel.use_cores(3, parallel.Mesh())
    rules = Rules(arguments.blocks, arguments.steps, 0.05 if arguments.small else arguments.seconds)
    devices = [f"{d.platform} {d.device_kind}" for d in jax.devices()]
    print(f"{arguments.benchmark} on {len(devices)} x {devices[0]}; PyTorch: {torch or reason}", flush=True)
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
        "results": [],
    }
    for result in BENCHMARKS[arguments.benchmark](arguments, rules, bool(torch)):
        content["results"].append(result)
        content["peak_memory_bytes"] = log.peak_memory_bytes()
        if arguments.json:  # after each row: an interrupted benchmark keeps what it has measured
            files.write(arguments.json, json.dumps(content, indent=2) + "\n")
    if not content["results"]:
        parser.error("there are no two things to compare: ERM needs PyTorch beside it (--peer), several devices more than one")
    return content


if __name__ == "__main__":
    main()
