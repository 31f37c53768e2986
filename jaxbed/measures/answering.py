"""What every seed answers to images under conditions, each with the weights of the epoch that counts for it.

Each image is changed once for all seeds, or attacked for each. One pass over the images answers a number of conditions; then the answers
are written.

WORKDIR/measures/<set>/<condition>/<epoch>.npz   as WORKDIR/responses/<set>/<epoch>.npz, of the seeds that count at that epoch; images are
                                                 those of responses/<set>/images.csv
WORKDIR/measures/<set>/about.json                parameters of a network, size of the images, constants of conditions, decision

Of a run with a grid, each grid point has them in its own folder.
"""

import functools
import json
import logging
import math
import pathlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import config, parallel
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split
from jaxbed.evaluation import answers, evaluate, pools
from jaxbed.measures import attacking, attacks, conditions, critical_band, spectral
from jaxbed.measures.conditions import Attacked, Condition
from jaxbed.measures.networks import Networks
from jaxbed.measures.table import FOLDER
from jaxbed.system import files, processes
from jaxbed.training import train
from jaxbed.training.checkpoint import Store
from jaxbed.training.log import Log
from jaxbed.training.members import GridPoint, seeds_of_point
from jaxbed.training.preemption import Interrupt
from jaxbed.training.program import Program

PyTree = Any
THREADS = 8  # that compress and write answers
TOGETHER = 25  # conditions that one pass over the images answers: all that is lost where it is stopped


class Exam(NamedTuple):
    """Images under conditions."""

    name: str  # of its folder
    opened: Callable[[], EvaluationSet]
    conditions_of: Callable[[EvaluationSet], list[Condition | Attacked]]
    measures: str  # in words


class Question(NamedTuple):
    """What the networks of one grid point are asked."""

    folder: pathlib.Path
    images: EvaluationSet
    conditions: Sequence[Condition | Attacked]
    asked: dict[str, str]  # {folder of answers: identity of images and condition}


def answer(
    cfg: config.Train,
    points: list[GridPoint],
    workdir: pathlib.Path,
    exams_of: Callable[[Source], list[Exam]],
    chosen: Sequence[Mapping[int, int]],
    log: Log,
) -> int:
    """Answers what is not answered yet, of each grid point's exams. chosen: {seed: epoch} of each grid point.

    Returns 0, or the number of the signal that ended it.
    Raises ValueError for unknown names, and for an epoch whose checkpoint is not there.
    """
    program = train.prepare(cfg, points, workdir, trains=False)
    _, epochs = train.stores(workdir, program.seeds.size, log)
    there = set(epochs.numbers())
    epoch_of = np.array(
        [of_point[seed] for of_point, seed in zip(_repeated(chosen, cfg.seeds), program.seeds.numbers.tolist(), strict=True)]
    )
    if missing := sorted(set(epoch_of.tolist()) - there):
        raise ValueError(f"{epochs.folder} has no checkpoint of epoch {missing[0]}; those of {_spans(there)} are there")
    identities = {epoch: epochs.identity(epoch) for epoch in sorted(set(epoch_of.tolist()))}
    weights = functools.cache(lambda: _weights(program, epochs, epoch_of))
    parameters = parameters_read(program, points[0].source)
    with Interrupt() as interrupt, ThreadPoolExecutor(THREADS) as threads:
        for number, point in enumerate(points):
            rows = slice(number * cfg.seeds, (number + 1) * cfg.seeds)
            networks = functools.cache(functools.partial(_networks, program, point, rows, weights))
            exams, told = exams_of(point.source), ""
            for exam in exams:
                images = exam.opened()
                whole = ask(workdir / point.name / FOLDER / exam.name, images, exam.conditions_of(images), parameters)
                looked = functools.partial(_unanswered, whole, epoch_of[rows], program.seeds.numbers[rows], identities)
                left = set(processes.first(looked))
                if left and told != exam.name:  # published files are an exam each
                    told, count = exam.name, sum(other.name == exam.name for other in exams) * len(left)
                    logging.getLogger(__name__).info(
                        f"measuring {cfg.name} {point.name}".rstrip() + f" on {told}: {exam.measures}, {count} condition{'s' * (count > 1)}"
                    )
                blocks = functools.cache(functools.partial(_blocks, networks, images.split))
                for part in _passes([condition for condition in whole.conditions if condition.name in left]):
                    started, question = time.monotonic(), whole._replace(conditions=part)
                    size = min(point.cfg.eval.batch_size, attacking.BATCH if isinstance(part[0], Attacked) else point.cfg.eval.batch_size)
                    if not _answer(networks(), question, blocks(size)(), epoch_of[rows], identities, threads, interrupt):
                        return interrupt.signal
                    log.write(
                        "measures",
                        set=exam.name,
                        epochs=sorted(set(epoch_of[rows].tolist())),
                        images=len(images.split.label) * len(part),
                        seconds=time.monotonic() - started,
                    )
    return 0


def _passes(every: Sequence[Condition | Attacked]) -> list[Sequence[Condition | Attacked]]:
    """What goes through one pass over the images: changes together, each attack alone."""
    changing = [each for each in every if isinstance(each, Condition)]
    together = [changing[first : first + TOGETHER] for first in range(0, len(changing), TOGETHER)]
    return [*together, *([each] for each in every if isinstance(each, Attacked))]


def _repeated(chosen: Sequence[Mapping[int, int]], seeds: int) -> Iterator[Mapping[int, int]]:
    return (of_point for of_point in chosen for _ in range(seeds))


def parameters_read(program: Program, source: Source) -> int:
    """Number of parameters that a prediction of one network reads: without those that only training has, such as SagNet's style head."""
    params, stats = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (program.state.params, program.state.stats))
    image = jax.ShapeDtypeStruct((1, *source.evaluated_shape), np.uint8)

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return program.method.predict(params, stats, source.scale(image))

    traced = jax.make_jaxpr(predict)(params, stats, image).jaxpr
    read = {id(variable) for equation in traced.eqns for variable in equation.invars}
    leaves = jax.tree.leaves(params)
    return sum(math.prod(leaf.shape) for leaf, variable in zip(leaves, traced.invars[: len(leaves)], strict=True) if id(variable) in read)


def ask(folder: pathlib.Path, images: EvaluationSet, applied: Sequence[Condition | Attacked], parameters: int) -> Question:
    """The question whether networks of so many parameters know images under conditions; writes down what the answers will mean."""
    identity = evaluate.identity(images)
    asked = {name: f"{identity} {condition.identity}" for condition in applied for name in condition.answers}

    def note() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / "about.json", json.dumps({"parameters": parameters, **_about(images)}, indent=2) + "\n")

    processes.first(note)
    return Question(folder, images, applied, asked)


def _about(images: EvaluationSet) -> dict:
    height, width, channels = images.split.image.shape[1:]
    return {
        "images": {"height": height, "width": width, "channels": channels, "number": len(images.split.label)},
        "decision": images.decision,
        "attacks": attacks.CONSTANTS,
        "spectral": {"cutoffs": spectral.CUTOFFS, "scored": spectral.SCORED},
        "critical_band": {"sigmas": critical_band.SIGMAS, "contrast": critical_band.CONTRAST, "grey": critical_band.GREY},
    }


def _unanswered(question: Question, epochs: np.ndarray, seeds: np.ndarray, identities: Mapping[int, str]) -> list[str]:
    """Names of the conditions under which any seed lacks an answer at its epoch."""
    size = len(question.images.split.label)

    def is_answered(name: str, epoch: int) -> bool:
        given = _kept(question.folder / name / f"{epoch}.npz", size, identities[epoch], question.asked[name])
        return given is not None and set(seeds[epochs == epoch]) <= set(given["seeds"])

    each = (
        (condition, [(name, epoch) for name in condition.answers for epoch in set(epochs.tolist())]) for condition in question.conditions
    )
    return [condition.name for condition, files_of in each if not all(is_answered(*file) for file in files_of)]


def _kept(path: pathlib.Path, images: int, checkpoint: str, asked: str) -> dict[str, np.ndarray] | None:
    """The answers of a file, where that checkpoint answered exactly that."""
    try:
        stored = answers.read_answers(path, images)
    except (FileNotFoundError, ValueError):
        return None
    same = all(name in stored and str(stored[name]) == value for name, value in (("checkpoint", checkpoint), ("asked", asked)))
    return stored if same else None


def _weights(program: Program, epochs: Store, epoch_of: np.ndarray) -> PyTree:
    """What is saved of all members, each at its own epoch."""
    whole: PyTree = None
    for epoch in sorted(set(epoch_of.tolist())):
        loaded = epochs.load(epoch, program.saved)
        at_it = program.seeds.place(epoch_of == epoch, "seed")
        whole = loaded if whole is None else _taken(whole, loaded, at_it)
    return whole


@functools.partial(jax.jit, donate_argnums=0)
def _taken(whole: PyTree, loaded: PyTree, at_it: jax.Array) -> PyTree:
    return jax.tree.map(lambda old, new: jnp.where(at_it.reshape(-1, *[1] * (new.ndim - 1)), new, old), whole, loaded)


def _networks(program: Program, point: GridPoint, rows: slice, weights: Callable[[], PyTree]) -> Networks:
    seeds = seeds_of_point(point.cfg, program.seeds)
    part = weights() if seeds is program.seeds else seeds.place(jax.tree.map(lambda x: x[rows], weights()), "seed")
    return Networks(program, point, seeds, part)


def _answer(
    networks: Networks,
    question: Question,
    blocks: Iterable[jax.Array],
    epochs: np.ndarray,
    identities: Mapping[int, str],
    threads: ThreadPoolExecutor,
    interrupt: Interrupt,
) -> bool:
    """Answers one set, in blocks of images, each seed at its epoch [S], and writes what was answered; whether it came to its end."""
    seeds, (split, _, rule, *_), applied = networks.seeds, question.images, [networks.place(each) for each in question.conditions]
    given: dict[str, list[jax.Array]] = {name: [] for condition in applied for name in condition.answers}
    unmoved: dict[str, list[jax.Array]] = {name: [] for name in given}
    before: list[jax.Array] = []
    for images, words, label in _batches(seeds, split, blocks):
        if interrupt.signal:
            return False
        if not before and jax.default_backend() != "cpu" and processes.count() == 1:
            conditions.compile_together([each for each in applied if isinstance(each, Condition)], images, words)
        for condition in applied:
            answered, without_gradient = networks.answers(condition, rule, images, words, label)
            for name, of_images in zip(condition.answers, answered, strict=True):
                given[name].append(of_images[:, None])
                unmoved[name] += [] if without_gradient is None else [without_gradient[:, None]]
        jax.block_until_ready(before)  # the host is at most one batch ahead
        before = [of_images[-1] for of_images in given.values()]
    alive, size, writing = parallel.gather(networks.alive), len(split.label), []
    for name in given:
        whole = _joined(given[name], size).astype(np.int16)
        extra = {"without_gradient": _joined(unmoved[name], size)} if unmoved[name] else {}
        for epoch in sorted(set(epochs.tolist())):
            at_it = epochs == epoch
            content = {"response": whole[at_it], "seeds": seeds.numbers[at_it], "alive": alive[at_it]}
            content |= {each: array[at_it] for each, array in extra.items()}
            if processes.is_first():
                path, identity, asked = question.folder / name / f"{epoch}.npz", identities[epoch], question.asked[name]
                writing.append(threads.submit(_write, path, content, size, identity, asked))
    for file in writing:
        file.result()
    return True


def _joined(parts: list[jax.Array], images: int) -> np.ndarray:
    """[S, images] of batches [S, 1, B]; the last batch was filled up."""
    whole = np.concatenate(parallel.gather(parts), axis=1)
    return whole.reshape(len(whole), -1)[:, :images]


def _write(path: pathlib.Path, content: dict[str, np.ndarray], images: int, checkpoint: str, asked: str) -> None:
    """Writes answers beside those that other seeds gave to the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if (kept := _kept(path, images, checkpoint, asked)) is not None and set(kept) >= set(content):
        others = ~np.isin(kept["seeds"], content["seeds"])
        content = {name: np.concatenate([kept[name][others], array]) for name, array in content.items()}
    answers.write(path, {**content, "checkpoint": checkpoint, "asked": asked})


def _blocks(networks: Callable[[], Networks], split: Split, batch_size: int) -> Callable[[], Iterable[jax.Array]]:
    """Reads the images in blocks of batches of that size: for each pass, or once where they are in memory."""
    return pools.blocks(networks().seeds, [pools.strict(split.image)], batch_size)


def _batches(seeds: parallel.Seeds, split: Split, blocks: Iterable[jax.Array]) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
    """(images uint8 [B, H, W, C], words of their names [B, 2], labels [B]); the last batches are filled up, with the first images."""
    words, first = conditions.words(split.name.tolist()), 0
    for block in blocks:
        steps, size = block.shape[:2]
        rows = np.arange(first, first + steps * size).reshape(steps, size) % len(words)
        first += steps * size
        for step in range(steps):
            yield block[step], seeds.place(words[rows[step]], "data"), seeds.place(split.label[rows[step]], "data")


def _spans(numbers: Collection[int]) -> str:
    return f"epochs {min(numbers)} to {max(numbers)}" if numbers else "no epoch"
