"""`jaxbed launch`: several processes of one run on this machine, each with its share of the GPUs.

    jaxbed launch --processes N -- python -m jaxbed.main --config=METHOD[:DATA] ...

Every process gets --distributed=127.0.0.1:PORT,N,I as its last word, and the GPUs in equal parts. A request to stop this command is passed
on to all of them. It ends when all have ended, with the code of the first that failed.
"""

import argparse
import os
import socket
import subprocess

from jaxbed.tuning.launch import follow, side_by_side


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="jaxbed launch", description="Start several processes of one run on this machine.")
    parser.add_argument("--processes", type=int, required=True, metavar="N")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: python -m jaxbed.main ..., or jaxbed eval WORKDIR")
    arguments = parser.parse_args(argv)
    follow()
    count = arguments.processes
    if count < 1:
        raise ValueError(f"--processes {count}: must be at least 1")
    parts, port = shares(gpus(), count), free_port()
    commands = {str(i): [*arguments.command, f"--distributed=127.0.0.1:{port},{count},{i}"] for i in range(count)}
    environments = {str(i): environment(part) for i, part in enumerate(parts)}
    failed = [code for _, code, _ in side_by_side(commands, count, None, (), environments) if code]
    return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 0


def gpus() -> int:
    """How many GPUs a process of this machine sees, without touching them; 0 where JAX is told to use none."""
    if os.environ.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu"):
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([word for word in visible.split(",") if word.strip()])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def shares(devices: int, count: int) -> list[list[int]]:
    """Numbers of the devices of each process, [] where there are none. Raises ValueError where they cannot be divided."""
    if devices % count:
        raise ValueError(f"--processes {count}: {devices} GPUs cannot be shared equally; take a divisor of {devices}")
    each = devices // count
    return [list(range(i * each, (i + 1) * each)) for i in range(count)]


def environment(devices: list[int]) -> dict[str, str]:
    """What tells a process that these devices are its own."""
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, devices))} if devices else {}


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
