"""Rows of `scripts/bench.py measure` and `attack`."""

import argparse
import concurrent.futures
import functools
import statistics
from collections.abc import Callable, Iterator

from peers import measuring, process
from peers.timing import Arm, Rules, pair

Row = Callable[[argparse.Namespace, Rules], Iterator[dict]]
PACKAGES = {"imagecorruptions": "imagenet_c", "peers.numpy_cbar": "imagenet_cbar"}  # of corruptions on the processor: what they make


def measure(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """Images per second, of all seeds together. Parts that need a package in the Python of --peer-python run where they are named."""
    return _parts(arguments, rules, MEASURE, ("corruptions", "bands", "seeds"))


def attack(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """Images per second under one whole attack of 40 steps, in float32."""
    return _parts(arguments, rules, ATTACK, ("steps",))


def _parts(arguments: argparse.Namespace, rules: Rules, known: dict[str, Row], usual: tuple[str, ...]) -> Iterator[dict]:
    for name in arguments.parts or usual:
        yield from known[name](arguments, rules)


def against_unchanged(name: str, measures: tuple[str, ...], arguments: argparse.Namespace, rules: Rules) -> Iterator[dict]:
    """What it costs to change images: the same network on as many unchanged ones."""
    case = measuring.case("resnet50_224", arguments.small)
    made, shown, _ = measuring.networks(case, 1)
    applied = measuring.changes(measures, case.side_px, arguments.small)
    base = Arm(*measuring.answering(f"{len(applied)} conditions", [made], shown, applied))
    other = Arm(*measuring.answering("unchanged", [made], shown, measuring.unchanged(len(applied))))
    yield pair(f"ResNet-{case.net.depth}, {name}", [base, other], rules, _nothing)


def seeds(arguments: argparse.Namespace, rules: Rules) -> Iterator[dict]:
    """All seeds in one pass over the images against one pass for each, which changes them again."""
    case = measuring.case("resnet18_64", arguments.small)
    made, shown, alone = measuring.networks(case, case.seeds[0])
    applied = measuring.changes(measuring.BENCHMARKS, case.side_px, arguments.small, (measuring.SEVERITY,))
    arms = [Arm(*measuring.answering(f"{len(alone)} passes", alone, shown, applied))]
    arms.append(Arm(*measuring.answering("one pass", [made], shown, applied)))
    yield pair(f"{len(alone)} seeds, corruptions", arms, rules, _nothing)


def corruptions(package: str, arguments: argparse.Namespace, rules: Rules) -> Iterator[dict]:
    """Each corruption of a benchmark on one device, against a package in many processes; and the geometric mean of all."""
    side_px, count = (32, 4) if arguments.small else (224, 256)
    settings = {"package": package, "severity": measuring.SEVERITY, "processes": measuring.PROCESSES, "side_px": side_px}
    applied = measuring.changes([PACKAGES[package]], side_px, False, (measuring.SEVERITY,))
    arms = [Arm(*measuring.changing(condition, count, side_px)) for condition in applied]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(lambda arm: arm.run(1), arms))  # compiles all at once; one by one it takes longer than what is timed
    ratios = []
    with process.Other(arguments.peer_python, "peers.pool", settings, measuring.PROCESSES, package) as pool:
        for condition, ours in zip(applied, arms, strict=True):
            theirs = Arm(*pool.arm(condition.name.rpartition("_")[0]))
            result = pair(condition.name, [theirs, ours], rules, _nothing)
            ratios.append(result["ratio"]["of_medians"])
            yield result
    print(f"{package}: geometric mean {statistics.geometric_mean(ratios):.1f}x, least {min(ratios):.1f}x", flush=True)


def augment(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """AugMix alone, on one device, against Pillow in many processes."""
    side_px, count = (32, 4) if arguments.small else (224, 256)
    settings = {"package": "peers.pillow_augmix", "severity": 1, "processes": measuring.PROCESSES, "side_px": side_px}
    with process.Other(arguments.peer_python, "peers.pool", settings, measuring.PROCESSES, "Pillow") as pool:
        yield pair("AugMix / Pillow", [Arm(*pool.arm("augmix")), Arm(*measuring.mixing(count, side_px))], rules, _nothing)


def pyrtools(arguments: argparse.Namespace, rules: Rules) -> Iterator[dict]:
    """Images and answers, against SciPy and pyrtools in many processes that feed a network in PyTorch."""
    case = measuring.case("resnet50_224", arguments.small)
    made, shown, _ = measuring.networks(case, 1)
    applied = measuring.changes(measuring.BANDS, case.side_px, False)
    settings = {"processes": measuring.PROCESSES, "batch": 4 if arguments.small else 64, "side_px": case.side_px}
    with process.Other(arguments.peer_python, "peers.bands", settings, len(applied) * settings["batch"], "pyrtools") as other:
        ours = Arm(*measuring.answering("jaxbed", [made], shown, applied))
        yield pair("spectral and bands / pyrtools", [Arm(*other.arm()), ours], rules, _nothing)


def steps(arguments: argparse.Namespace, rules: Rules) -> Iterator[dict]:
    """What an attack of 40 steps costs beyond as many forward and backward passes: against a batch of many unchanged images."""
    case = measuring.case("resnet50_float32", arguments.small)
    made, shown, _ = measuring.networks(case, 1)
    base = Arm(*measuring.answering("PGD-40", [made], shown, [measuring.PGD]))
    passes = Arm(*measuring.gradients("40 gradients", case))
    yield pair(f"ResNet-{case.net.depth}, float32", [base, passes], rules, _nothing)


def against(package: str, arguments: argparse.Namespace, rules: Rules) -> Iterator[dict]:
    case = measuring.case("resnet50_float32", arguments.small)
    made, shown, _ = measuring.networks(case, 1)
    settings = {"package": package, "batch": case.batch, "side_px": case.side_px, "attack_steps": 40}
    with process.Other(arguments.peer_python, "peers.attack", settings, case.batch, package) as other:
        ours = Arm(*measuring.answering("jaxbed", [made], shown, [measuring.PGD]))
        yield pair(f"PGD-40 / {package}", [Arm(*other.arm()), ours], rules, _nothing)


def _nothing(*arms: dict) -> dict:
    """Losses are not what is measured here."""
    return {}


MEASURE: dict[str, Row] = {
    "corruptions": functools.partial(against_unchanged, "corruptions", measuring.BENCHMARKS),
    "bands": functools.partial(against_unchanged, "spectral and bands", measuring.BANDS),
    "seeds": seeds,
    **{package: functools.partial(corruptions, package) for package in PACKAGES},
    "pyrtools": pyrtools,
}
ATTACK: dict[str, Row] = {"steps": steps, **{package: functools.partial(against, package) for package in ("torchattacks", "foolbox")}}
PARTS = {"measure": tuple(MEASURE), "attack": tuple(ATTACK)}
