"""How often devices wait for each other in a training step, and a model of what that costs on many devices.

For each number of devices a process of its own simulates them on the CPU, compiles one step of ERM on a narrow ResNet-10 in three layouts,
and counts the collectives of the optimized program. Nothing is run.

    seed    a seed per device (`mesh.seed=N`)
    groups  one batch over all devices, BatchNorm over each device's part of it (`mesh.data=N`, `net.norm_groups=N`)
    whole   one batch over all devices, BatchNorm over all of it (`mesh.data=N`)

The model: ResNet-50 sums its gradients in float32, and its BatchNorm moments, as the narrow network does. A sum of b bytes over n
devices takes 2 (n - 1) / n · b / bandwidth, as in a ring, and a latency; nothing is computed meanwhile. Efficiency is the share of
computing in the time of a step.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

SCRIPTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

import jax  # noqa: E402
import numpy as np  # noqa: E402
from peers import cases  # noqa: E402

from jaxbed.method import init_net  # noqa: E402
from jaxbed.models import resnet  # noqa: E402
from jaxbed.training import train  # noqa: E402

LAYOUTS = ("seed", "groups", "whole")
NARROW, RESNET50 = resnet.Config(10, 4, "half"), resnet.Config(50)
IMAGES_PER_DEVICE = 2  # of what is compiled
KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
MOST_COMBINED = 256  # arrays that XLA sums in one collective
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


class Collective(NamedTuple):
    kind: str
    bytes: int  # of its operands on one device
    summed: list[str]  # operations whose results it takes, as far as the compiler says


def collectives(text: str) -> list[Collective]:
    """Those of an optimized program. Several that the compiler combined are one."""
    types = dict(re.findall(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) [\w-]+\(", text, re.MULTILINE))
    found = []
    for line in text.splitlines():
        if match := re.search(rf" ({KINDS})(?:-start)?\((.*?)\)[,\s]", line + " "):
            operands = re.findall(r"%([\w.-]+)", match[2])
            names = re.search(r'op_name="([^"]*)"', line)
            found.append(Collective(match[1], sum(size(types[operand]) for operand in operands), names[1].split(":") if names else []))
    return found


def size(shapes: str) -> int:
    """Bytes of arrays as the compiler writes their types, "f32[8,4]{1,0}"."""
    arrays = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shapes)
    return sum(ITEM_BYTES[kind] * math.prod(int(side) for side in sides.split(",") if side) for kind, sides in arrays)


def compiled(layout: str, devices: int, net: resnet.Config = NARROW) -> str:
    """The optimized program of one training step on the first `devices` devices of this process."""
    batch = IMAGES_PER_DEVICE * (1 if layout == "seed" else devices)
    net = dataclasses.replace(net, norm_groups=devices if layout == "groups" else 1)
    case = cases.Case(net, side_px=16, batch=batch, classes=4, rows=2 * batch)
    rows, columns = (devices, 1) if layout == "seed" else (1, devices)
    cfg, _, program, _ = cases.assemble(case, "erm", seeds=rows, rows=rows, data=columns)
    feed = next(train.feeds_from(cfg, program, 0))
    return program.advance.lower(program.abstract, program.arrays, feed, program.seeds.array).compile().as_text()


class Waits(NamedTuple):
    """How often a device waits in one step, and how many bytes it has in those sums."""

    count: int
    bytes: int


def counted(layout: str, devices: int, net: resnet.Config = NARROW) -> Waits:
    found = collectives(compiled(layout, devices, net))
    return Waits(len(found), sum(each.bytes for each in found))


def expected(layout: str, net: resnet.Config, classes: int) -> Waits:
    """The rule that what is compiled follows, for a network of any size: nothing is compiled.

    Summed are gradients, two metrics, and two numbers for each feature of a BatchNorm: what moves the running statistics, or over a
    whole batch the moments, whose gradients take the place of those of its parameters. There each BatchNorm waits once in each
    direction, but that of a shortcut together with another. All the rest is summed at once, up to MOST_COMBINED arrays.
    """
    if layout == "seed":
        return Waits(0, 0)
    image = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
    params, stats = jax.eval_shape(lambda image: init_net(net.make(classes), jax.random.key(0), image), image)
    norms = {path[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(stats)}
    total = 4 * (sum(leaf.size for leaf in jax.tree.leaves((params, stats))) + 2)
    if layout == "groups":
        return Waits(math.ceil((len(jax.tree.leaves((params, stats))) + 2) / MOST_COMBINED), total)
    waiting = [path for path in norms if "shortcut" not in jax.tree_util.keystr(path)]
    return Waits(2 * len(waiting) + math.ceil((len(jax.tree.leaves(params)) - 2 * len(norms)) / MOST_COMBINED), total)


class Link(NamedTuple):
    gigabytes_per_second: float
    microseconds: float  # of a sum of nothing


def efficiency(waits: Waits, devices: int, link: Link, compute_ms: float) -> float:
    ring = 2 * (devices - 1) / devices * waits.bytes / (link.gigabytes_per_second * 1e6)
    return compute_ms / (compute_ms + ring + waits.count * link.microseconds / 1e3)


def simulated(devices: int) -> dict[str, list[dict]]:
    """The collectives of every layout, from a process that simulates so many devices."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"} | {"JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    command = [sys.executable, str(SCRIPTS / "collectives.py"), "--compile", str(devices)]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout)


def row(layout: str, devices: int, found: list[dict], arguments: argparse.Namespace) -> dict:
    """A row of the table: what was counted, and what follows for ResNet-50."""
    narrow, resnet50 = Waits(len(found), sum(each["bytes"] for each in found)), expected(layout, RESNET50, 1000)
    if narrow != expected(layout, NARROW, 4):
        raise ValueError(f"{layout} on {devices} devices: {narrow} is not {expected(layout, NARROW, 4)}: `expected` is out of date")
    within, between = (Link(*each) for each in zip(arguments.bandwidth, arguments.latency, strict=True))
    torus = Link(arguments.torus_bandwidth, arguments.torus_latency)
    links = {"gpus": within if devices <= arguments.per_host else between, "torus": torus}
    return {
        "devices": devices,
        "layout": layout,
        **narrow._asdict(),
        "kinds": sorted({each["kind"] for each in found}),
        "resnet50": resnet50._asdict(),
        "efficiency": {name: efficiency(resnet50, devices, link, arguments.compute_ms) for name, link in links.items()},
    }


def numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def main(argv: list[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=lambda text: tuple(map(int, text.split(","))), default=(8, 64, 256), help="numbers of them")
    parser.add_argument("--compute-ms", type=float, default=34.9, help="of a step with 256 images on one device, without sums")
    parser.add_argument("--per-host", type=int, default=8, help="GPUs of a host")
    parser.add_argument("--bandwidth", type=numbers, default=(900.0, 50.0), help="GB/s of a GPU within a host, and between hosts")
    parser.add_argument("--latency", type=numbers, default=(10.0, 20.0), help="us of a sum within a host, and between hosts")
    parser.add_argument("--torus-bandwidth", type=float, default=600.0, help="GB/s of a TPU, all its links in one direction")
    parser.add_argument("--torus-latency", type=float, default=10.0, help="us of a sum on TPUs")
    parser.add_argument("--json", type=pathlib.Path, help="file for every number")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args(argv)
    if arguments.compile:
        print(json.dumps({name: [each._asdict() for each in collectives(compiled(name, arguments.compile))] for name in LAYOUTS}))
        return []
    if len(arguments.bandwidth) != 2 or len(arguments.latency) != 2:
        parser.error("--bandwidth and --latency are two numbers: within a host, and between hosts")
    speeds, latencies = (*arguments.bandwidth, arguments.torus_bandwidth), (*arguments.latency, arguments.torus_latency)
    if min(*speeds, arguments.compute_ms) <= 0 or min(latencies) < 0:
        parser.error("bandwidths and --compute-ms must be above 0, latencies 0 or more")
    if min(arguments.devices) < 2:
        parser.error("--devices must be at least 2")
    print("| devices | layout | collectives | MB per device | of ResNet-50 | MB | efficiency, GPUs | efficiency, 3D torus |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for devices in arguments.devices:
        for layout, found in simulated(devices).items():
            rows.append(made := row(layout, devices, found, arguments))
            shown = [devices, layout, made["count"], f"{made['bytes'] / 1e6:.3f}", made["resnet50"]["count"]]
            shown += [f"{made['resnet50']['bytes'] / 1e6:.1f}", *(f"{value:.3f}" for value in made["efficiency"].values())]
            print(f"| {' | '.join(map(str, shown))} |", flush=True)
            made["collectives"] = found
    if arguments.json:
        settings = {**vars(arguments), "json": str(arguments.json)}
        arguments.json.write_text(json.dumps({"settings": settings, "jax": jax.__version__, "rows": rows}, indent=2) + "\n")
    return rows


if __name__ == "__main__":
    main()
