"""Training: all seeds of one algorithm, a checkpoint after every epoch. Stops cleanly on request; the same command resumes."""

import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import config, parallel
from jaxbed.data import source as sources
from jaxbed.data import stream
from jaxbed.data.split import Split
from jaxbed.evaluation.validation import Validation
from jaxbed.system import files, processes
from jaxbed.training import checkpoint, pretrained
from jaxbed.training.log import Log, Record
from jaxbed.training.members import GridPoint
from jaxbed.training.preemption import SAVE, Interrupt
from jaxbed.training.program import Feed, Program, Run, assemble, snapshot

PyTree = Any
LOOK_SECONDS = 1.0  # between looks whether the workdir is still there


class Given(NamedTuple):
    """What a run takes from others that were trained for it."""

    columns: Mapping[str, np.ndarray] = MappingProxyType({})  # {name: [S, N, ...]}: what its batches carry of each training image
    folder: pathlib.Path | None = None  # of the run from whose last epoch it starts, in place of cfg.init_from
    members: np.ndarray | None = None  # [S]: which member there each one here starts from, if not its own


NOTHING = Given()


def train(
    cfg: config.Train, points: list[GridPoint], workdir: pathlib.Path, log: Log, given: Given = NOTHING, program: Program | None = None
) -> int:
    """Trains all grid points up to cfg.epochs; of a run of 0 epochs, saves the start as epoch 0.

    program: from `prepare`, where the caller needs it too.
    Returns 0, or the number of the signal that ended it early, with everything saved.
    """
    program = program or prepare(cfg, points, workdir, given.columns)
    program.seeds.check_batch(cfg.batch_size)
    if processes.count() > 1:
        log.say(program.seeds.described())
    idle = len(jax.devices()) - program.seeds.rows * program.seeds.columns
    if idle and not cfg.mesh.seed and not cfg.mesh.data:
        log.say(f"{idle} of {len(jax.devices())} devices stay idle: they divide neither the seeds nor batch_size = {cfg.batch_size}")
    if unreached := cfg.optim.unreached(cfg.epochs):
        log.say(f"optim.milestones_epochs {unreached} lie beyond the {cfg.epochs} epochs and do not lower the learning rate")
    steps, total = program.info.steps_per_epoch, program.info.steps_per_epoch * cfg.epochs
    resume, epochs = stores(workdir, program.seeds.size, log)
    step, run = resume.latest(program.abstract) or (0, start(cfg, program, log.say, given))
    log.resumed(step, steps) if step else log.parameters(run.state.params)
    lost = sorted(set(range(1, step // steps + 1)) - set(epochs.numbers()))
    if not total and not epochs.numbers():
        epochs.save(0, snapshot(run))
    if lost:
        raise ValueError(f"{epochs.folder} has lost epochs {lost} and cannot make them again: delete {epochs.folder.parent} to start over")

    validation = Validation(cfg, points, program.method, program.seeds, log.say) if cfg.eval.while_training else None
    with Interrupt() as interrupt, log.training(cfg, points, program, step) as record:
        alive, saved_at = parallel.gather(run.alive), time.monotonic()
        looked_at = saved_at
        feeds, stop, ended = feeds_from(cfg, program, step), 0, None
        while step < total and alive.any() and not stop:
            feed = record.waiting(next, feeds)
            run = program.advance(run, program.arrays, feed, program.seeds.array)
            step += feed.row.shape[1]
            record.progress(step)
            if ended:  # only now, when the device has its next work already
                alive, ended = finish(ended, record, epochs, steps, validation), None
            if step % steps == 0:
                content, sums, seed_steps = copy((snapshot(run), run.sums, run.state.step))
                ended = Ended(step, content, sums, seed_steps, validation.answers(content) if validation else [])
                run = run.replace(sums=jax.tree.map(jnp.zeros_like, run.sums))
            if time.monotonic() > looked_at + LOOK_SECONDS:
                log.check()
                looked_at = time.monotonic()
            wish = interrupt.wish(SAVE if due(cfg, saved_at) else 0)  # read once: what comes later is for the next step
            stop = 0 if wish == SAVE else wish
            if wish or step == total or (step % steps == 0 and not cfg.save.resume_every_minutes):
                if ended:
                    alive, ended = finish(ended, record, epochs, steps, validation), None
                epochs.wait()  # so that no state is resumed from whose epochs are not all on disk
                resume.save(step, run)
                saved_at = time.monotonic()
        resume.wait()
        epochs.wait()
        stop = interrupt.signal  # also one that came during the last epoch's end
    program.release()
    if not alive.any():
        raise ValueError(f"every seed of {cfg.name} became non-finite by step {step}: lower optim.lr (now {cfg.optim.lr})")
    return stop


def prepare(
    cfg: config.Train,
    points: list[GridPoint],
    workdir: pathlib.Path,
    columns: Mapping[str, np.ndarray] = NOTHING.columns,
    trains: bool = True,
    program: Program | None = None,
) -> Program:
    """Everything that runs all grid points, with columns [S, N, ...] for their batches. Raises ValueError for what cannot run.

    trains: see `assemble`. program: from `assembled`, where it was made already.
    """
    check_images(points, workdir)
    return program or assembled(cfg, points, columns, trains)


def assembled(
    cfg: config.Train, points: list[GridPoint], columns: Mapping[str, np.ndarray] = NOTHING.columns, trains: bool = True
) -> Program:
    """As `prepare`, without a look at the workdir: nothing is written."""
    seeds = parallel.Seeds(cfg.seeds, cfg.first_seed, cfg.mesh, len(points), cfg.batch_size)
    return assemble(cfg, points, seeds, columns, trains)


def check_images(points: list[GridPoint], workdir: pathlib.Path) -> None:
    """Raises ValueError where the training images are not those that were trained on, or not those of the other processes."""
    described = [_described(split) for split in {id(point.source): point.source.train for point in points}.values()]
    processes.check_same(described, "training images")
    processes.first(lambda: same_images(described, pathlib.Path(workdir)))


def same_images(described: list[dict[str, int | str]], workdir: pathlib.Path) -> None:
    """Keeps in WORKDIR/training_set.json which images are trained on; ValueError where something was trained on others.

    Rows would mean other images, and images that were trained on could be among those that are now held out.
    """
    path = workdir / "training_set.json"
    trained, cure = (workdir / "checkpoints").is_dir(), "restore it or, if the training images are the same as before, delete it"
    try:
        former = files.read_json(path, cure) if path.is_file() else None
    except ValueError:
        if trained:
            raise
        former = None
    if former == described:
        return
    if former and trained:
        with files.guarded(path, cure):
            counts = " / ".join(", ".join(str(one["images"]) for one in each) for each in (former, described))
        raise ValueError(
            f"{workdir} was trained on other images than there are now (number there / now: {counts}; or other names, labels or biases): "
            "bring the former ones back, or take another --workdir"
        )
    workdir.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps(described, indent=1) + "\n")


def _described(split: Split) -> dict[str, int | str]:
    digest = hashlib.sha256("\n".join(split.name).encode())
    for array in (split.label, split.bias) if split.multi_label else (np.stack([split.label, split.bias]),):
        digest.update(array.tobytes())
    return {"images": len(split.label), "sha256": digest.hexdigest()}


@jax.jit
def copy(tree: PyTree) -> PyTree:
    """On the devices, so that the original may be overwritten."""
    return jax.tree.map(jnp.copy, tree)


class Ended(NamedTuple):
    """The end of an epoch, of which the device may still be computing: copies, for what comes next overwrites the run."""

    step: int
    content: dict  # of its checkpoint
    sums: dict[str, jax.Array]  # of metrics
    seed_steps: jax.Array  # [S]: where a seed that died stopped
    answers: list  # to the validation images


def finish(ended: Ended, record: Record, epochs: checkpoint.Store, steps: int, validation: Validation | None) -> np.ndarray:
    """Logs and saves an epoch that has ended. Returns which seeds live."""
    accuracies = functools.partial(validation.accuracies, ended.answers) if validation else dict
    alive = record.epoch(ended.step, ended.content["alive"], ended.sums, ended.seed_steps, accuracies)  # waits for the device
    epochs.save(ended.step // steps, ended.content)
    return alive


def due(cfg: config.Train, saved_at: float) -> bool:
    """Whether it is time to save the whole state, `saved_at` the time of the last save."""
    minutes = cfg.save.resume_every_minutes
    return bool(minutes) and time.monotonic() - saved_at >= 60 * minutes


def stores(workdir: pathlib.Path, seeds: int, log: Log) -> tuple[checkpoint.Store, checkpoint.Store]:
    """(resume, epochs): the whole state, latest two, numbered by step; parameters and statistics of every epoch, by epoch."""
    folder = pathlib.Path(workdir) / "checkpoints"
    return checkpoint.Store(folder / "resume", seeds, log.say, keep=2), checkpoint.Store(folder / "epochs", seeds, log.say)


def start(cfg: config.Train, program: Program, say: Callable[[str], None] = print, given: Given = NOTHING) -> Run:
    """The state before the first step."""
    seeds = program.seeds
    rows = order(cfg, program, 0)[:, 0] if cfg.epochs else np.zeros((seeds.size, cfg.batch_size), np.int32)  # only shapes count
    run = program.init(program.arrays, seeds.place(rows, "seed", "data"), seeds.array)
    swept = {name: seeds.place(values, "seed") for name, values in program.hparams.items()}
    run = run.replace(state=run.state.replace(hparams={**run.state.hparams, **swept}))
    origin = str(given.folder) if given.folder else cfg.init_from
    return pretrained.load(origin, program, run, say, given.members, cfg.net, cfg.epochs > 0) if origin else run


def order(cfg: config.Train, program: Program, epoch: int) -> np.ndarray:
    """Rows of `program.arrays` for every batch of an epoch, [S, steps, B] int32."""
    size, numbers = program.info.train_size, program.seeds.numbers
    rows = sources.order(size, cfg.batch_size, epoch, numbers, cfg.shared_order, program.components, program.weighted)
    return rows + program.first_row[:, None, None]


def feeds_from(cfg: config.Train, program: Program, step: int) -> Iterator[Feed]:
    """The batches from `step` on, on the devices, several of one epoch at a time; read ahead where they are streamed."""
    chunks = chunks_from(cfg, program, step)
    if program.images is None:
        return (Feed(program.seeds.place(rows, "seed", None, "data")) for rows in chunks)
    return stream.ahead(_streamed(cfg, program, program.images, step, chunks))


def chunks_from(cfg: config.Train, program: Program, step: int) -> Iterator[np.ndarray]:
    """Rows of the batches from `step` on, [S, K, B], K of one epoch at a time, without end."""
    steps = program.info.steps_per_epoch
    while True:
        epoch, done = divmod(step, steps)
        rows = order(cfg, program, epoch)[:, done:]
        for first in range(0, rows.shape[1], program.steps_per_call):
            yield rows[:, first : first + program.steps_per_call]
        step = (epoch + 1) * steps


def _joined(steps: list[np.ndarray]) -> np.ndarray:
    return steps[0] if len(steps) == 1 else np.concatenate(steps, axis=1)  # a copy of large images takes its time


def _streamed(cfg: config.Train, program: Program, images: stream.Images, step: int, chunks: Iterator[np.ndarray]) -> Iterator[Feed]:
    seeds, steps = program.seeds, program.info.steps_per_epoch
    distinct = 1 if cfg.shared_order else seeds.size  # seeds with images of their own
    of_epoch = functools.lru_cache(2)(lambda epoch: order(cfg, program, epoch)[:distinct])
    here, cut = seeds.here(cfg.batch_size)  # what the devices of this process need
    read_here = slice(0, 1) if cfg.shared_order else here

    def rows_of(step: int) -> np.ndarray:
        epoch, step_of_epoch = divmod(step, steps)
        return of_epoch(epoch)[read_here, step_of_epoch, cut].ravel()

    read = stream.batches(images, rows_of, step)
    for rows in chunks:
        of_steps = zip(*(next(read) for _ in range(rows.shape[1])), strict=True)
        count, part = len(range(*read_here.indices(distinct))), len(range(*cut.indices(cfg.batch_size)))
        pixels, taken = (_joined([array.reshape(count, 1, part, *array.shape[1:]) for array in arrays]) for arrays in of_steps)
        taken = np.broadcast_to(taken, rows[here, :, cut].shape)
        row = seeds.place_part(taken, rows.shape, (here.start, 0, cut.start), "seed", None, "data")
        inner, zeros = images.shape[1:], [0] * len(images.shape[1:])
        if cfg.shared_order:
            image = seeds.place_part(pixels[0], (*rows.shape[1:], *inner), (0, cut.start, *zeros), None, "data")
        else:
            image = seeds.place_part(pixels, (*rows.shape, *inner), (here.start, 0, cut.start, *zeros), "seed", None, "data")
        yield Feed(row, image)
