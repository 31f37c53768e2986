"""Attacks jaxbed, and shows what it survives.

    python scripts/torture.py [kills|several|signals|disks|damage|commands|hostile|folders|all] [--tries N] [--seed N] [--first N]

kills      SIGKILL at random moments; afterwards the same command must end with the same bits
several    a run in two processes, one of which is killed, hangs or is asked to stop: the other ends too, then as above
signals    SIGTERM and Ctrl-C, once and twice: a clean end, then as above
disks      full disks of several sizes: a clear refusal; with more space the same command ends with the same bits
damage     damaged files of finished and half-finished runs: the same scores as before, or a refusal that names the file
commands   made-up command lines: accepted, or refused in one message
hostile    weights, archives, configurations and tables that try to do harm: read harmlessly, or refused
folders    folders that may no longer be written: as full disks

Prints how many tries of each attack were survived, then one line for each other try, with the command that repeats it; ends with code 1
where there are such. Everything random comes from --seed: try N is the same whichever others there are. Moments of kills and signals are
fractions of measured times, and repeat only about.
"""

import argparse
import collections
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
from attacks import commands, damage, disks, hostile, interruptions, permissions, processes, runs, several

KINDS = {  # attack of one try, tries by default
    "kills": (interruptions.kill, 54),
    "several": (several.strike, 50),
    "signals": (interruptions.interrupt, 36),
    "disks": (disks.fill, 14),
    "damage": (damage.spoil, 162),
    "commands": (commands.call, 400),
    "hostile": (hostile.offer, len(hostile.FILES)),
    "folders": (permissions.lock, 14),
}
WHY_NOT = {"disks": disks.why_not, "folders": permissions.why_not}  # empty where there is no reason


class Try(NamedTuple):
    kind: str
    number: int
    attack: str
    fault: str  # empty: survived


def tried(world: runs.World, kind: str, numbers: range, seed: int) -> Iterator[Try]:
    """The tries of one kind, one after another."""
    for number in numbers:
        rng = np.random.default_rng([seed, list(KINDS).index(kind), number])
        yield Try(kind, number, *KINDS[kind][0](world, number, rng))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", default="all", choices=(*KINDS, "all"))
    parser.add_argument(
        "--tries", type=int, help="of each kind (default: " + ", ".join(f"{kind} {n}" for kind, (_, n) in KINDS.items()) + ")"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first try (default 0)")
    asked = parser.parse_args(argv)
    found, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, processes.server(pathlib.Path(folder)) as serving:
        world = runs.World(pathlib.Path(folder), serving)
        for kind in KINDS if asked.kind == "all" else [asked.kind]:
            if reason := WHY_NOT.get(kind, str)():
                print(f"{kind} are left out: {reason}")
                continue
            count = KINDS[kind][1] if asked.tries is None else asked.tries
            for one in tried(world, kind, range(asked.first, asked.first + count), asked.seed):
                found.append(one)
                print(f"\r{len(found)} tries, {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(found))
    failed = [one for one in found if one.fault]
    for one in failed:
        repeat = f"python scripts/torture.py {one.kind} --seed {asked.seed} --first {one.number} --tries 1"
        print(f"{one.attack}: {one.fault}   [{repeat}]")
    return 1 if failed else 0


def table(found: list[Try]) -> str:
    """Tries and how many were survived, of each attack and in all."""
    tries, survived = collections.Counter(), collections.Counter()
    for one in found:
        tries[one.attack] += 1
        survived[one.attack] += not one.fault
    width = max(map(len, tries), default=6)
    rows = [("attack", "tries", "survived"), *((attack, tries[attack], survived[attack]) for attack in tries)]
    return "\n".join(f"{attack:{width}}  {n:>5}  {m:>8}" for attack, n, m in [*rows, ("all", tries.total(), survived.total())])


if __name__ == "__main__":
    sys.exit(main())
