"""What `scripts/bench.py measure` and `attack` time: jaxbed's side, and settings of its peers. Arms are tuples as in `cases`."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed.data import augmix
from jaxbed.measures import conditions
from jaxbed.measures.conditions import Attacked, Condition
from jaxbed.measures.networks import Networks
from jaxbed.methods.parts import losses
from jaxbed.models import resnet
from jaxbed.training import members, train
from peers import cases, images

SEVERITY = 3  # of corruptions that are timed one by one
BENCHMARKS = ("imagenet_c", "imagenet_cbar")
BANDS = ("spectral", "critical_band")
STEPS = 40  # of PGD
PGD = conditions.of(["pgd"], (224, 224, 3))[1]
PROCESSES = min(16, os.cpu_count() or 1)  # of a peer


class Measured(NamedTuple):
    """One batch of images, on the devices."""

    image: jax.Array  # [B, H, W, 3] uint8
    words: jax.Array  # [B, 2]
    label: jax.Array  # [B]


def measured(seeds: Any, count: int, side_px: int, classes: int) -> Measured:
    names = conditions.words([f"image {number}" for number in range(count)])
    label = (np.arange(count) % classes).astype(np.int32)
    return Measured(*(seeds.place(array, "data") for array in (images.smooth(count, side_px), names, label)))


def case(name: str, small: bool) -> cases.Case:
    """resnet50_224 in bfloat16; resnet50_float32 for attacks; resnet18_64 for many seeds."""
    if small:
        return cases.Case(resnet.Config(depth=10, width=4, stem="half"), 32, 4, classes=10, seeds=(2,))
    return {
        "resnet50_224": cases.Case(resnet.Config(depth=50, dtype="bfloat16"), 224, 256, classes=1000),
        "resnet50_float32": cases.Case(resnet.Config(depth=50), 224, 128, classes=1000),
        "resnet18_64": cases.Case(resnet.Config(depth=18, dtype="bfloat16"), 64, 256, classes=1000, seeds=(10,)),
    }[name]


def networks(case: cases.Case, seeds: int) -> tuple[Networks, Measured, list[Networks]]:
    """Networks as they start, images for them, and each network by itself."""
    together, solo = (cases.assemble(case._replace(rows=case.batch), "erm", number) for number in (seeds, 1))
    state, point = train.start(together.cfg, together.program).state, members.one(together.cfg, together.source)[0]
    weights = {"params": state.params, "stats": state.stats, "alive": together.program.seeds.array >= 0}
    alone = []
    for seed in range(seeds):
        of_seed = jax.tree.map(lambda x, seed=seed: np.asarray(x[seed : seed + 1]), weights)
        alone.append(Networks(solo.program, members.one(solo.cfg, solo.source)[0], solo.program.seeds, of_seed))
    shown = measured(together.program.seeds, case.batch, case.side_px, case.classes)
    return Networks(together.program, point, together.program.seeds, weights), shown, alone


def answering(name: str, each: Sequence[Networks], shown: Measured, applied: Sequence[Condition | Attacked]) -> tuple:
    """The arm in which networks, one after another, answer a batch under conditions; a step is all of them."""
    placed = [each[0].place(condition) for condition in applied]
    given: list = []

    def run(steps: int) -> None:
        for _ in range(steps):
            given[:] = [made.answers(condition, "argmax", *shown)[0] for made in each for condition in placed]
        jax.block_until_ready(given)

    return name, run, len(shown.label) * len(placed) * sum(made.seeds.size for made in each), 1, list


def gradients(name: str, case: cases.Case) -> tuple:
    """The arm that computes as many gradients of a loss by the pixels as an attack has steps, and nothing else."""
    ready = cases.assemble(case._replace(rows=case.batch), "erm", 1)
    state = jax.tree.map(lambda x: x[0], jax.device_get(train.start(ready.cfg, ready.program).state))
    predict, image = ready.program.method.predict, images.smooth(case.batch, case.side_px) / np.float32(255)
    label = jax.numpy.arange(case.batch) % case.classes

    @jax.jit
    def of_pixels(image: jax.Array) -> jax.Array:
        summed = lambda x: losses.cross_entropy(predict(state.params, state.stats, 2 * x - 1), label).sum()  # noqa: E731
        return jax.grad(summed)(image)

    last: list = [jax.device_put(image)]

    def run(steps: int) -> None:
        for _ in range(steps * STEPS):
            last[:] = [of_pixels(last[0])]
        jax.block_until_ready(last)

    return name, run, case.batch, 1, list


def unchanged(count: int) -> list[Condition]:
    return [conditions.CLEAN] * count


def changes(measures: Sequence[str], side_px: int, small: bool, severities: tuple[int, ...] = (1, 2, 3, 4, 5)) -> list[Condition]:
    """Conditions but for unchanged images, with frost on made-up glass."""
    glass = tuple(image / np.float32(255) for image in images.smooth(5, 2 * side_px))
    every = conditions.of(measures, (side_px, side_px, 3), conditions.Settings((1,) if small else severities, glass))
    return [each for each in every if isinstance(each, Condition) and each.name != "clean"]


def mixing(count: int, side_px: int) -> tuple:
    """The arm in which one device mixes images with AugMix, as on ImageNet."""
    device, settings = jax.devices()[0], augmix.Settings(severity=1.0)
    image = jax.device_put(images.smooth(count, side_px), device)

    @jax.jit
    def mix(key: jax.Array, image: jax.Array) -> jax.Array:
        return augmix.mixed(image / np.float32(255), augmix.draw_batch(key, count, settings), settings)

    last: list = []

    def run(steps: int) -> None:
        for step in range(steps):
            last[:] = [mix(jax.random.key(step), image)]
        jax.block_until_ready(last)

    return "jaxbed", run, count, 1, list


def changing(condition: Condition, count: int, side_px: int) -> tuple:
    """The arm that changes images on one device and asks no network."""
    device = jax.devices()[0]
    image, words = jax.device_put((images.smooth(count, side_px), conditions.words([f"image {i}" for i in range(count)])), device)
    placed = condition._replace(arrays=jax.device_put(condition.arrays, device))
    last: list = []

    def run(steps: int) -> None:
        for _ in range(steps):
            last[:] = [conditions.changed(placed, image, words)]
        jax.block_until_ready(last)

    return "jaxbed", run, count, 1, list
