"""Trains a run: the stages that come before it, then itself. If interrupted at any point, the same command resumes."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed import config, parallel
from jaxbed.config import Train
from jaxbed.data.source import Source
from jaxbed.evaluation import pools
from jaxbed.method import Method
from jaxbed.stages import Outputs
from jaxbed.system import files, processes
from jaxbed.training import lock, plan, pretrained, train
from jaxbed.training.log import Log
from jaxbed.training.members import seeds_of_point
from jaxbed.training.plan import Job
from jaxbed.training.program import Program, Run
from jaxbed.training.train import Given

PyTree = Any


class Trained(NamedTuple):
    signal: int  # that ended a run early, or 0
    program: Program | None = None  # of its last stage, if that was reached


def rehearse(cfg: Train, planned: list[Job]) -> dict[int, Program]:
    """Assembles all stages that are not done, as if the networks of earlier ones had given 0 for everything. Nothing is written.

    Returns the programs, by the number of their stage, that do not depend on what those give. Raises ValueError for what cannot run, and
    for weights that a stage which has not begun cannot start from.
    """
    ready: dict[int, Program] = {}
    for number, job in enumerate(planned):
        if not processes.first(functools.partial(_is_done, job)):
            columns, members = plan.example_columns(cfg, job.points[0].source, number), job.cfg.seeds * len(job.points)
            of_members = {name: np.broadcast_to(column, (members, *column.shape)) for name, column in columns.items()}
            program = train.assembled(job.cfg, job.points, of_members)
            if (start := job.cfg.init_from) and not job.stage.start and not (job.folder / "checkpoints").is_dir():
                run = Run(program.state, alive=program.saved["alive"], sums={})
                pretrained.load(start, program, run, lambda text: None, None, job.cfg.net, job.cfg.epochs > 0)  # into shapes: does it fit?
            ready |= {} if columns else {number: program}
    return ready


def run(cfg: Train, planned: list[Job], log: Log, ready: Mapping[int, Program]) -> Trained:
    """Trains all stages of a run, but for those that are done. ready: from `rehearse`."""
    for number, job in enumerate(planned[:-1]):
        with lock.held(job.folder):  # a run like any other, which `jaxbed eval --watch` may follow
            processes.first(functools.partial(config.claim, job.cfg, job.folder))
            if not processes.first(functools.partial(_is_done, job)) and (signal := _train_stage(cfg, planned, number, log, ready)):
                return Trained(signal)
    last = planned[-1]
    given = _given(cfg, planned, len(planned) - 1, log)
    _count(given.columns, last, log)
    program = train.prepare(last.cfg, last.points, last.folder, given.columns, program=ready.get(len(planned) - 1))
    return Trained(train.train(last.cfg, last.points, last.folder, log, given, program), program)


def _is_done(job: Job) -> bool:
    return job.stage.outputs is not None and plan.outputs_file(job.folder).is_file()  # all else, the trainer sees from its checkpoints


def _train_stage(cfg: Train, planned: list[Job], number: int, log: Log, ready: Mapping[int, Program]) -> int:
    job = planned[number]
    log.say(f"first {job.cfg.name}: {job.stage.networks} x {cfg.seeds} seeds, {job.cfg.epochs} epochs, in {job.folder}")
    own_log = Log(job.folder)
    own_log.header(job.cfg, job.points)
    given = _given(cfg, planned, number, log)
    program = train.prepare(job.cfg, job.points, job.folder, given.columns, program=ready.get(number))
    signal = train.train(job.cfg, job.points, job.folder, own_log, given, program)
    if not signal and job.stage.outputs:
        arrays = outputs(job, program, log)
        processes.first(lambda: files.write_arrays(plan.outputs_file(job.folder), arrays, compressed=False))
    return signal


def _given(cfg: Train, planned: list[Job], number: int, log: Log) -> Given:
    """What a stage takes from the earlier ones."""
    job, last = planned[number], number == len(planned) - 1
    folder = next((each.folder for each in planned[:number] if each.stage.name == job.stage.start), None)
    return Given(plan.columns(cfg, planned, number, log.say), folder, plan.members(cfg) if folder and last else None)


def outputs(job: Job, program: Program, log: Log) -> dict[str, np.ndarray]:
    """{name: [members, networks, N, ...]}: what the trained networks of a stage give for every training image.

    Members are the seeds of the run, for one grid point after another.
    """
    assert job.stage.outputs
    weights = train.stores(job.folder, program.seeds.size, log)[1].load(job.cfg.epochs, program.saved)
    if not parallel.gather(weights["alive"]).all():
        cure = f"lower optim.lr (now {job.cfg.optim.lr}), delete {job.folder} and start again"
        raise ValueError(f"{job.cfg.name}: a network became non-finite: {cure}")
    parts, seeds = [], seeds_of_point(job.cfg, program.seeds)
    for i, point in enumerate(job.points):
        of_point = slice(i * job.cfg.seeds, (i + 1) * job.cfg.seeds)
        placed = seeds.place(jax.tree.map(lambda x, s=of_point: x[s], weights), "seed")
        parts.append(_outputs(seeds, point.source, program.method, job.stage.outputs, placed, job.cfg.eval.batch_size))
    return jax.tree.map(lambda *each: np.concatenate(each).reshape(-1, job.stage.networks, *each[0].shape[1:]), *parts)


def _outputs(
    seeds: parallel.Seeds, source: Source, method: Method, give: Outputs, weights: PyTree, batch_size: int
) -> dict[str, np.ndarray]:
    """{name: [S, N, ...]}: what every network gives for every training image, as evaluation shows it."""
    images, label = source.train.image, source.train.label

    def one(params: PyTree, stats: PyTree, block: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        return jax.lax.map(lambda batch: give(method, params, stats, source.as_evaluated(batch[0]), batch[1]), (block, labels))

    blocks, row = [], 0
    compiled = seeds.over(one, shared=(2, 3))
    for block in pools.blocks(seeds, [images], batch_size)():
        steps, batch = block.shape[:2]
        labels = label[np.arange(row, row + steps * batch) % len(label)].reshape(steps, batch)
        row += steps * batch
        blocks.append(parallel.gather(compiled(weights["params"], weights["stats"], block, seeds.place(labels, None, "data"))))

    def joined(*parts: np.ndarray) -> np.ndarray:
        flat = np.concatenate([part.reshape(part.shape[0], -1, *part.shape[3:]) for part in parts], axis=1)
        return flat[:, : len(label)]

    return jax.tree.map(joined, *blocks)


def _count(columns: Mapping[str, np.ndarray], job: Job, log: Log) -> None:
    """Logs how many images a yes-or-no column marks, and how many conflicting ones: for people, never for the method."""
    for name, of_members in columns.items():
        for member, column in enumerate(of_members if of_members.dtype == bool else ()):
            point, seed = job.points[member // job.cfg.seeds], job.cfg.first_seed + member % job.cfg.seeds
            label, bias = point.source.train.label, point.source.train.bias
            conflicting = (bias >= 0) & (bias != label)
            of_conflicting = f", {(column & conflicting).sum()} of {conflicting.sum()} conflicting ones" if conflicting.any() else ""
            log.say(f"{point.name} seed {seed} {name}: {column.sum()} of {len(column)} training images{of_conflicting}".strip())
