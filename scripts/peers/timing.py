"""How two things are timed in turns, and checked: what all rows of `scripts/bench.py` share."""

import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from jaxbed.training import log


class Arm(NamedTuple):
    """One of the things compared. run(steps) returns when the device has done them, every seed that many."""

    name: str
    run: Callable[[int], None]
    images: int  # per step, of all seeds
    unit: int  # steps come in multiples of it
    losses: Callable[[], list[float]]  # of the first steps, one a seed; empty where there is none
    memory: Callable[[], int] = log.peak_memory_bytes
    ahead: int = 0  # steps whose batches its workers make while other arms run: as many come before each block and are not counted


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
        _empty(arm)
        before = time.perf_counter()
        arm.run(arm.unit)
        wanted = rules.steps or math.ceil(rules.seconds / (time.perf_counter() - before)) * arm.unit
        steps.append(math.ceil(wanted / arm.unit) * arm.unit)
        arm.run(steps[-1])
    times: list[list[float]] = [[] for _ in arms]
    for _ in range(rules.blocks):
        for arm, count, seconds in zip(arms, steps, times, strict=True):
            _empty(arm)
            before = time.perf_counter()
            arm.run(count)
            seconds.append(time.perf_counter() - before)
    return [report(*measured) for measured in zip(arms, steps, times, strict=True)]


def _empty(arm: Arm) -> None:
    """Uses up what is ready, so that what is timed is also made in that time."""
    if arm.ahead:
        arm.run(arm.ahead)


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
    """Measures two arms and prints the line of the table, in the end the peak memory of their processes so far.

    `relative` divides the ratio: the number of devices, for efficiencies.
    """
    first, second = measured = measure(arms, rules)
    ratio = compare(*(arm["images_per_second"]["each"] for arm in measured))
    checks = check(first, second)
    shown = [f"{arm['name']} {arm['images_per_second']['median']:,.0f}" for arm in measured]
    pairs, wrong = ratio["pairs"], [name for name, value in checks.items() if value is False]
    spread = f"({pairs['min'] / relative:.3f}-{pairs['max'] / relative:.3f})"
    memory = [f"{arm['peak_memory_bytes'] / 1e9:.1f}" if arm["peak_memory_bytes"] else "-" for arm in measured]
    faster = f"{ratio['of_medians'] / relative:6.3f}x {spread}"
    print(f"{case:28s} {shown[0]:>34s} {shown[1]:>34s} img/s  {faster}  {' / '.join(memory)} GB", *wrong, flush=True)
    return {"case": case, "arms": measured, "ratio": ratio, "ratio_divided_by": relative, "checks": checks}
