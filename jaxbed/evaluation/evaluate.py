"""Evaluation: what every seed answers to every image of every set, after every epoch. Stores answers, not scores.

WORKDIR/responses/<set>/images.csv   name, label, bias of each image; real, where it has a list of classes that count as correct: 970|795;
                                     anomaly, 1 or 0, where a set has images of no class; targets, where it has several classes or none:
                                     5|7, its label then being -1
WORKDIR/responses/<set>/<epoch>.npz  response [S, n] int16 (-1 where the logits were not finite), seeds [S], alive [S] bool,
                                     confidence [S, n] float32 where the decision rule has one, energy [S, n] of a set with anomalies,
                                     scores [S, n, classes] float16, the logits, of multi-label sets and with eval.keep_scores,
                                     checkpoint: identity of the checkpoint that answered, asked: identity of what it was asked,
                                     digest of all these
WORKDIR/responses/sets.json          role, decision, identity, digest of images.csv, of its lists and, where they are not the network's,
                                     class names of each set; class names; facts of the data; training images per (label, bias)

Of a run with a grid, each grid point has these files in a folder of its own, and its config.json.
"""

import collections
import functools
import json
import pathlib
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from jaxbed import config, parallel
from jaxbed.data.image_files import tell_once
from jaxbed.data.source import EvaluationSet, Source, cells
from jaxbed.evaluation import answers, current, decision_rules, label_lists, metrics, pools
from jaxbed.evaluation.current import identity
from jaxbed.stats import tables
from jaxbed.system import files, processes
from jaxbed.training import lock, train
from jaxbed.training.log import Log
from jaxbed.training.members import GridPoint, seeds_of_point
from jaxbed.training.preemption import Interrupt
from jaxbed.training.program import Program
from jaxbed.tuning import launch

PyTree = Any
THREADS = 8  # that load checkpoints, and compress and write answers
AHEAD = 3  # checkpoints in memory beyond those that answer
EPOCHS = 4  # that answer in one pass over images which are streamed: reading takes longer than answering


class Loaded(NamedTuple):
    """The checkpoint of one epoch."""

    epoch: int
    identity: str
    weights: PyTree


class Evaluation(NamedTuple):
    """What one grid point needs to answer."""

    folder: pathlib.Path  # of its responses
    asked: dict[str, str]  # identity of each set
    seeds: parallel.Seeds  # its own
    pools: list[pools.Pool]


def evaluate(
    cfg: config.Train,
    points: list[GridPoint],
    workdir: pathlib.Path,
    log: Log,
    watch: bool = False,
    columns: dict[str, np.ndarray] | None = None,
    program: Program | None = None,
) -> int:
    """Answers all sets for every epoch's checkpoint that has no (current) answers yet.

    watch waits for further epochs until the last one is done. columns {name: [N, ...]} are like those that batches carry of each image;
    neither is needed where the program is given with which all was trained.
    Returns 0, or the number of the signal that ended it early.
    Raises ValueError for a damaged checkpoint, and where no epoch has been trained or, while it watches, nobody trains the others.
    """
    alone = program is None
    if program is None:
        members = cfg.seeds * len(points)
        of_members = {name: np.broadcast_to(column, (members, *column.shape)) for name, column in (columns or {}).items()}
        program = train.prepare(cfg, points, workdir, of_members, trains=False)
    done = set[tuple[int, str]]()
    _, epochs = train.stores(workdir, program.seeds.size, log)
    trained = {epoch: epochs.identity(epoch) for epoch in epochs.numbers()}
    evaluations = prepare(cfg, points, program, pathlib.Path(workdir), trained)
    together = EPOCHS if any(one_pool.streamed for evaluation in evaluations for one_pool in evaluation.pools) else 1
    if not trained and not watch:
        raise ValueError(f"{epochs.folder} holds no finished epoch: train first (python -m jaxbed.main --config=...)")
    loaders = THREADS if processes.count() == 1 else 1  # several processes load together, and so in one order
    with Interrupt() as interrupt, ThreadPoolExecutor(THREADS) as threads, ThreadPoolExecutor(loaders) as loader:
        while True:
            trained = {epoch: epochs.identity(epoch) for epoch in epochs.numbers()}

            def unanswered(identities: dict[int, str] = trained) -> list[int]:
                runs = [(f"{cfg.name} {point.name}".strip(), evaluation) for point, evaluation in zip(points, evaluations, strict=True)]
                found = {pair: [each for run in runs for each in lacking(*run, *pair)] for pair in identities.items() if pair not in done}
                done.update(pair for pair, lacks in found.items() if not lacks)
                for line in current.told({epoch: lacks for (epoch, _), lacks in found.items()}, len(evaluations[0].asked), alone):
                    log.say(line)
                return [epoch for epoch, checkpoint in identities.items() if (epoch, checkpoint) not in done]

            left = processes.first(unanswered)
            if alone and not left and not watch:
                log.show(f"{cfg.name}: nothing to do: {current.are(evaluations[0].asked)} answered: {current.spans(trained)}")
            loading: collections.deque[Future] = collections.deque()
            damaged = []
            for start in range(0, len(left), together):
                if interrupt.signal:
                    return interrupt.signal
                for following in left[start + len(loading) : start + together + AHEAD]:
                    loading.append(loader.submit(epochs.load, following, program.saved))
                group = []
                for epoch in left[start : start + together]:
                    try:
                        group.append(Loaded(epoch, epochs.identity(epoch), loading.popleft().result()))
                    except ValueError as error:
                        damaged.append(str(error))
                if group:
                    answer(group, evaluations, log, threads, interrupt)
            if damaged:
                raise ValueError(f"{'; '.join(damaged)}. All other epochs are evaluated. Restore it, or train again in another workdir")
            if not watch or cfg.epochs in trained or interrupt.signal:
                return interrupt.signal
            if processes.first(lambda: lock.is_free(workdir)) and epochs.numbers() == list(trained):
                cure = (
                    "Every seed became non-finite"
                    if launch.died(workdir)
                    else "Run the training command again to resume it, then watch again"
                )
                raise ValueError(f"no process trains in {workdir}: {len(trained)} of {cfg.epochs} epochs are there and evaluated. {cure}")
            time.sleep(1.0)


def prepare(
    cfg: config.Train, points: list[GridPoint], program: Program, workdir: pathlib.Path, trained: dict[int, str]
) -> list[Evaluation]:
    """Writes down what the answers will mean, and brings the images to the devices: once where grid points share them.

    trained: {epoch: identity of its checkpoint}.
    """
    seeds, evaluations, ready = seeds_of_point(cfg, program.seeds), [], {}
    for point in points:
        sets, folder = chosen(cfg, point.source), workdir / point.name / "responses"
        asked = {name: identity(evaluation_set) for name, evaluation_set in sets.items()}
        processes.first(functools.partial(note, workdir, point, sets, folder, asked, trained))
        if id(point.source) not in ready:
            asks = (point.source, sets, cfg.eval.batch_size, cfg.eval.keep_scores)
            ready[id(point.source)] = pools.pool(program.method.predict, seeds, *asks)
        evaluations.append(Evaluation(folder, asked, seeds, ready[id(point.source)]))
    return evaluations


def note(
    workdir: pathlib.Path,
    point: GridPoint,
    sets: dict[str, EvaluationSet],
    folder: pathlib.Path,
    asked: dict[str, str],
    trained: dict[int, str],
) -> None:
    """Writes down what the answers of a grid point will mean."""
    current.keep(folder, sets, asked, trained)
    left_out = {name: known for name, known in point.source.sets.items() if name not in sets}
    others = {name: known for name, known in left_out.items() if current.answered_before(folder / name, known, trained)}
    describe(folder, point.source, {**sets, **others}, {**asked, **{name: identity(known) for name, known in others.items()}})
    if point.name:
        config.save(point.given, workdir / point.name / "config.json")


def chosen(cfg: config.Train, source: Source) -> dict[str, EvaluationSet]:
    """The sets to evaluate, by name."""
    unknown = sorted(set(cfg.eval.sets) - set(source.sets))
    if unknown:
        example = tuple(source.sets)[:2]
        raise ValueError(f'eval.sets names {unknown}; {source.name} has {", ".join(source.sets)}. Several are written as "{example}"')
    return {name: source.sets[name] for name in cfg.eval.sets or source.sets}


def describe(folder: pathlib.Path, source: Source, sets: dict[str, EvaluationSet], asked: dict[str, str]) -> None:
    """Writes what the answers mean, where that is not there already."""
    for name, (split, _, _, real, item, anomaly) in sets.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame({"name": split.name, "label": split.class_of_image, "cue": split.bias})
        if real is not None:
            frame["real"] = label_lists.cells(real)
        if anomaly is not None:
            frame["anomaly"] = anomaly.astype(int)
        if split.multi_label:
            frame["targets"] = label_lists.cells(label_lists.of_targets(split.label))
        if item is not None:
            frame["pair_id"] = item
        files.write(folder / name / "images.csv", tables.csv_text(frame))
    content: dict[str, Any] = {
        "data": {"name": source.name, "cue": source.bias_name, **source.facts},
        "classes": list(source.class_names),
        "sets": {
            name: {
                **{"role": role, "decision": rule, "identity": asked[name], **decision_rules.classes(rule)},
                "images": metrics.digest(split.name, split.class_of_image, split.bias),
                **({"targets": label_lists.digest(label_lists.of_targets(split.label))} if split.multi_label else {}),
                **({} if real is None else {"real": label_lists.digest(real)}),
            }
            for name, (split, role, rule, real, *_) in sets.items()
        },
    }
    if (source.train.bias >= 0).any():
        content["training_cells"] = [[*cell, count] for cell, count in cells(source.train).items()]
    _tell_of_other_lists(folder, content["sets"])
    files.write(folder / "sets.json", json.dumps(content, indent=2) + "\n")


def _tell_of_other_lists(folder: pathlib.Path, sets: dict[str, dict]) -> None:
    """Reports lists that changed since the former evaluation: scores do so too, while answers stay."""
    try:
        former = answers.read_sets(folder / "sets.json")["sets"]
    except (FileNotFoundError, ValueError):
        return
    for name, facts in sets.items():
        if (digest := former.get(name, {}).get("real")) and digest != facts.get("real"):
            what = "have changed: real_accuracy changes with them" if "real" in facts else "are gone, and real_accuracy with them"
            tell_once(f"{folder / name}: the lists of correct classes {what}; the answers stay")


def lacking(run: str, evaluation: Evaluation, epoch: int, checkpoint: str) -> list[current.Lacking]:
    """The sets that not exactly this checkpoint answered, or without the scores that are to be kept."""
    sizes = {name: (size, each.scored) for each in evaluation.pools for name, size in zip(each.names, each.sizes, strict=True)}
    found = []
    for name, asked in evaluation.asked.items():
        images, scored = sizes[name]
        why = current.fault(evaluation.folder / name / f"{epoch}.npz", images, checkpoint, asked, scored)
        found += [] if why is None else [(run, name, why)]
    return found


def answer(group: list[Loaded], evaluations: list[Evaluation], log: Log, threads: ThreadPoolExecutor, interrupt: Interrupt) -> None:
    """Writes what all seeds answer with the weights of each epoch's checkpoint; after an interrupt, of sets that are done."""
    started, images, written, whole = time.monotonic(), 0, [], True
    for i, evaluation in enumerate(evaluations):
        seeds, weights_of_epochs = evaluation.seeds, [loaded.weights for loaded in group]
        if len(evaluations) > 1:
            rows = slice(i * seeds.size, (i + 1) * seeds.size)
            weights_of_epochs = [seeds.place(jax.tree.map(lambda x, rows=rows: x[rows], weights), "seed") for weights in weights_of_epochs]
        for each in evaluation.pools:
            images += sum(each.sizes)
            passed = _pass(each, weights_of_epochs, interrupt)
            whole = whole and bool(passed)
            for loaded, weights, answered_images in zip(group, weights_of_epochs, passed, strict=whole):
                alive, starts = parallel.gather(weights["alive"]), np.cumsum(each.sizes) - each.sizes
                for name, start, size in zip(each.names, starts, each.sizes, strict=True):
                    of_set = {kind: array[:, start : start + size] for kind, array in answered_images.items()}
                    content = {**of_set, "response": of_set["response"].astype(np.int16), "seeds": seeds.numbers, "alive": alive}
                    content |= {"checkpoint": loaded.identity, "asked": evaluation.asked[name]}
                    if processes.is_first():
                        written.append(threads.submit(answers.write, evaluation.folder / name / f"{loaded.epoch}.npz", content))
    for file in written:
        try:
            file.result()
        except FileNotFoundError:
            log.check()
            raise
    for loaded in group if whole else ():
        log.write("evaluation", epoch=loaded.epoch, images=images, seconds=(time.monotonic() - started) / len(group))


def _pass(pool: pools.Pool, weights_of_epochs: list[PyTree], interrupt: Interrupt) -> list[dict[str, np.ndarray]]:
    """Answers, and what else is kept [S, images, ...], of each of several epochs' weights, in one pass; [] where it is interrupted."""
    blocks = []
    for block in pool.blocks():
        if interrupt.signal:
            return []
        blocks.append([pool.answers(weights["params"], weights["stats"], block) for weights in weights_of_epochs])
        jax.block_until_ready(blocks[-2:-1])  # the device answers one block while the next is read, and holds no more
    joined = (jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *parallel.gather(given)) for given in zip(*blocks, strict=True))
    flat = ({kind: array.reshape(len(array), -1, *array.shape[3:]) for kind, array in given.items()} for given in joined)
    return [{kind: pools.halved(array) if kind == answers.LOGITS else array for kind, array in given.items()} for given in flat]
