"""What every seed answers to images under conditions: each image is changed once, and answered with all seeds and epochs.

One pass over the images answers a number of conditions; then the answers are written.

WORKDIR/measures/<set>/<condition>/<epoch>.npz   as WORKDIR/responses/<set>/<epoch>.npz; images are those of responses/<set>/images.csv
WORKDIR/measures/<set>/about.json                size of the images, constants of conditions, decision

Of a run with a grid, each grid point has them in its own folder.
"""

import json
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import config, parallel
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.evaluation import answers, decision_rules, evaluate, pools
from jaxbed.measures import conditions, critical_band, spectral
from jaxbed.measures.conditions import Condition
from jaxbed.system import files, processes
from jaxbed.training import train
from jaxbed.training.checkpoint import Store
from jaxbed.training.log import Log
from jaxbed.training.members import GridPoint, seeds_of_point
from jaxbed.training.preemption import Interrupt
from jaxbed.training.program import Program, find_pixel_range

PyTree = Any
ConditionsOf = Callable[[tuple[int, ...]], list[Condition]]  # of images [H, W, C]
FOLDER = "measures"
THREADS = 8  # that compress and write answers
TOGETHER = 25  # conditions that one pass over the images answers: all that is lost where it is stopped


class Question(NamedTuple):
    """What one grid point is asked about one set."""

    folder: pathlib.Path
    conditions: list[Condition]
    asked: dict[str, str]  # {condition: identity of images and condition}
    epochs: list[int]  # that lack an answer


def answer(
    cfg: config.Train,
    points: list[GridPoint],
    workdir: pathlib.Path,
    conditions_of: ConditionsOf,
    sets: Sequence[str],
    chosen: list[set[int]],
    log: Log,
) -> int:
    """Answers what is not answered yet: the conditions of images of a shape, on sets, with the chosen epochs of each grid point.

    sets: names; without any, those of the distribution that was trained on, or all. Returns 0, or the number of the signal that ended it.
    Raises ValueError for unknown names, and for an epoch whose checkpoint is not there.
    """
    program = train.prepare(cfg, points, workdir, trains=False)
    _, epochs = train.stores(workdir, program.seeds.size, log)
    there = set(epochs.numbers())
    if missing := sorted(set().union(*chosen) - there):
        raise ValueError(f"{epochs.folder} has no checkpoint of epoch {missing[0]}; those of {_spans(there)} are there")
    with Interrupt() as interrupt, ThreadPoolExecutor(THREADS) as threads:
        for number, (point, wanted) in enumerate(zip(points, chosen, strict=True)):
            for name in named(point.source, sets):
                seeds, applied = seeds_of_point(point.cfg, program.seeds), conditions_of(point.source.sets[name].split.image.shape[1:])
                decide = seeds.over(_decide(program, point.source, name), shared=(2,))
                for first in range(0, len(applied), TOGETHER):
                    part = applied[first : first + TOGETHER]
                    question = ask(workdir / point.name, point.source.sets[name], name, part, wanted, epochs)
                    if question.epochs:
                        started = time.monotonic()
                        if not _answer(program, point, number, name, question, epochs, decide, threads, interrupt):
                            return interrupt.signal
                        images = len(point.source.sets[name].split.label) * len(part)
                        log.write("measures", set=name, epochs=question.epochs, images=images, seconds=time.monotonic() - started)
    return 0


def named(source: Source, sets: Sequence[str]) -> list[str]:
    """The sets that are meant. Raises ValueError for an unknown one."""
    if unknown := [name for name in sets if name not in source.sets]:
        raise ValueError(f"--sets {','.join(unknown)}: {source.name} has {', '.join(source.sets)}")
    return list(sets) or [name for name, asked in source.sets.items() if asked.role == "test"] or list(source.sets)


def ask(
    folder: pathlib.Path, evaluation_set: EvaluationSet, name: str, applied: list[Condition], wanted: Collection[int], epochs: Store
) -> Question:
    """What is left to be answered; writes down what the answers will mean."""
    shape, images = evaluation_set.split.image.shape[1:], evaluate.identity(evaluation_set)
    asked = {condition.name: f"{images} {condition.identity}" for condition in applied}
    place = folder / FOLDER / name
    about = _about(evaluation_set, shape)

    def unanswered() -> list[int]:
        place.mkdir(parents=True, exist_ok=True)
        files.write(place / "about.json", json.dumps(about, indent=2) + "\n")
        left, size = [], len(evaluation_set.split.label)
        for epoch in sorted(wanted):
            identity = epochs.identity(epoch)
            given = (evaluate.read(place / condition / f"{epoch}.npz", size) for condition in asked)
            if any(answer != {"checkpoint": identity, "asked": question} for answer, question in zip(given, asked.values(), strict=True)):
                left.append(epoch)
        return left

    return Question(place, applied, asked, processes.first(unanswered))


def _about(evaluation_set: EvaluationSet, shape: tuple[int, ...]) -> dict:
    return {
        "images": {"height": shape[0], "width": shape[1], "channels": shape[2], "number": len(evaluation_set.split.label)},
        "decision": evaluation_set.decision,
        "spectral": {"cutoffs": spectral.CUTOFFS, "scored": spectral.SCORED},
        "critical_band": {"sigmas": critical_band.SIGMAS, "contrast": critical_band.CONTRAST, "grey": critical_band.GREY},
    }


def _answer(
    program: Program,
    point: GridPoint,
    number: int,
    name: str,
    question: Question,
    epochs: Store,
    decide: parallel.ForAllSeeds,
    threads: ThreadPoolExecutor,
    interrupt: Interrupt,
) -> bool:
    """Answers one set and writes what was answered; whether it came to its end."""
    seeds, split = seeds_of_point(point.cfg, program.seeds), point.source.sets[name].split
    rows = slice(number * seeds.size, (number + 1) * seeds.size)
    weights = []
    for epoch in question.epochs:
        loaded = epochs.load(epoch, program.saved)
        part = loaded if seeds is program.seeds else seeds.place(jax.tree.map(lambda x: x[rows], loaded), "seed")
        weights.append((epoch, epochs.identity(epoch), part))
    applied = [condition._replace(arrays=seeds.place(condition.arrays)) for condition in question.conditions]  # once, not for every batch
    answered: dict[tuple[str, int], list[jax.Array]] = {(c.name, epoch): [] for c in question.conditions for epoch in question.epochs}
    for images, words in _batches(seeds, split, point.cfg.eval.batch_size):
        if interrupt.signal:
            return False
        for condition in applied:
            changed = conditions.changed(condition, images, words)
            for epoch, _, part in weights:
                answered[condition.name, epoch].append(decide(part["params"], part["stats"], changed)[:, None])
        jax.block_until_ready(changed)  # the host is at most one batch ahead
    writing = []
    for (condition_name, epoch), parts in answered.items():
        whole = np.concatenate(parallel.gather(parts), axis=1).reshape(seeds.size, -1)
        response = whole[:, : len(split.label)].astype(np.int16)
        _, identity, part = weights[question.epochs.index(epoch)]
        content = {"response": response, "seeds": seeds.numbers, "alive": parallel.gather(part["alive"])}
        content |= {"checkpoint": identity, "asked": question.asked[condition_name]}
        if processes.is_first():
            (question.folder / condition_name).mkdir(parents=True, exist_ok=True)
            writing.append(threads.submit(answers.write, question.folder / condition_name / f"{epoch}.npz", content))
    for file in writing:
        file.result()
    return True


def _batches(seeds: parallel.Seeds, split: Any, batch_size: int) -> Iterator[tuple[jax.Array, jax.Array]]:
    """(images uint8 [B, H, W, C], words of their names [B, 2]); the last batches are filled up with images from the first on."""
    words, first = conditions.words(split.name), 0
    for block in pools.blocks(seeds, [pools.strict(split.image)], batch_size)():
        steps, size = block.shape[:2]
        rows = np.arange(first, first + steps * size).reshape(steps, size) % len(words)
        first += steps * size
        for step in range(steps):
            yield block[step], seeds.place(words[rows[step]], "data")


def _decide(program: Program, source: Source, name: str) -> Callable:
    """(params, stats, image [B, H, W, C] in [0, 1]) -> answers [B] int32 of one seed."""
    decide, (low, high) = decision_rules.named(source.sets[name].decision).decide, _pixel_range(source)

    def answers(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        logits = program.method.predict(params, stats, low + image * (high - low))
        return jnp.where(jnp.isfinite(logits).all(-1), decide(logits), -1)

    return answers


def _pixel_range(source: Source) -> np.ndarray:
    """[2, C]: what black and white become. Raises ValueError where what lies between them is not on the line between."""
    low, high = ends = find_pixel_range(source)
    ramp = np.arange(256, dtype=np.uint8)[None, :, None, None] * np.ones(len(low), np.uint8)
    if not np.allclose(source.scale(jnp.asarray(ramp)), low + ramp / 255 * (high - low), atol=1e-4):
        raise ValueError(
            f"{source.name} scales pixels by more than a shift and a factor for each channel, so floats cannot be scaled alike"
        )
    return ends


def _spans(numbers: Collection[int]) -> str:
    return f"epochs {min(numbers)} to {max(numbers)}" if numbers else "no epoch"
