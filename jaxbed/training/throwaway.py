"""Trains the networks that come before a run (`before`) and asks them about every training image."""

import pathlib
from typing import Any

import jax
import numpy as np

from jaxbed import config, parallel
from jaxbed.data.source import Source
from jaxbed.evaluation import evaluate, pools
from jaxbed.system import files
from jaxbed.training import before, lock, train
from jaxbed.training.before import FILE, FOLDER, Before, asked, plan
from jaxbed.training.log import Log
from jaxbed.training.program import assemble, make_method, snapshot
from jaxbed.training.variants import Variant, open_all

PyTree = Any


def run(cfg: config.Train, variants: list[Variant], workdir: pathlib.Path, log: Log) -> int:
    """Trains what must come first and keeps what it says, unless that was done. Returns 0, or the number of the signal that ended it.

    Raises ValueError, before any training, for a main run that cannot be.
    """
    first, folder = asked(cfg, variants), workdir / FOLDER
    if first is None:
        return 0
    own = plan(cfg, first)
    with lock.held(folder):  # a run like any other, which `jaxbed eval --watch` may follow
        config.claim(own, folder)
        if not (folder / FILE).is_file() and (status := _train(cfg, first, own, variants, log, folder)):
            return status
    _tell(cfg, before.tables(cfg, variants, workdir, log.say), variants, log)
    return 0


def _train(cfg: config.Train, first: Before, own: config.Train, variants: list[Variant], log: Log, folder: pathlib.Path) -> int:
    rehearse(cfg, first, variants)
    log.say(f"first {own.name}: {first.nets} x {cfg.seeds} seeds, {own.epochs} epochs, in {folder}")
    found, told = open_all(own, variants), Log(folder)
    told.header(own, found)
    status = train.train(own, found, folder, told)
    if not status and not first.start:
        files.write_arrays(folder / FILE, ask(own, first, found, folder, log), compressed=False)
    return status


def rehearse(cfg: config.Train, first: Before, variants: list[Variant]) -> None:
    """Puts the main run together, as if the networks that come first had answered 0 to everything."""
    seeds, tables = (
        parallel.Seeds(cfg.seeds, cfg.first_seed, cfg.mesh, len(variants), cfg.batch_size),
        made_up(cfg, first, variants[0].source),
    )
    assemble(cfg, variants, seeds, {name: np.broadcast_to(table, (seeds.size, *table.shape)) for name, table in tables.items()})


def made_up(cfg: config.Train, first: Before | None, source: Source, rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
    """{name: [N, ...]}: one seed's tables, as if the networks that come first had answered 0 to everything, or with `rng` at random.

    Random numbers are uniform from 0 to 1, and vectors of them scaled to length 1. {} where nothing comes first or nothing is asked.
    """
    if first is None or first.start:
        return {}
    said = {}
    for name, x in answers(cfg, first, source).items():
        if rng is None:
            said[name] = np.zeros(x.shape, x.dtype)
            continue
        drawn = rng.random(x.shape, np.float32)
        if x.ndim == 3:
            drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        said[name] = drawn < 0.5 if x.dtype == bool else drawn.astype(x.dtype)
    return first.tables(said, source.train.label, lambda text: None)


def answers(cfg: config.Train, first: Before, source: Source) -> dict[str, jax.ShapeDtypeStruct]:
    """{name: [nets, N, ...]}: the shapes of what the networks of one seed say."""
    rows, number = len(source.train.label), jax.ShapeDtypeStruct((1,), np.int32)
    _, method = make_method(before.plan(cfg, first), source)
    image = jax.eval_shape(source.scale, jax.ShapeDtypeStruct((1, *source.train.image.shape[1:]), np.uint8))
    state = jax.eval_shape(method.init, jax.random.key(0), {"image": image, "label": number, "index": number})
    said = jax.eval_shape(first.ask, state.params, state.stats, image, number)
    return {name: jax.ShapeDtypeStruct((first.nets, rows, *x.shape[1:]), x.dtype) for name, x in said.items()}


def ask(own: config.Train, first: Before, variants: list[Variant], folder: pathlib.Path, log: Log) -> dict[str, np.ndarray]:
    """{name: [seeds, nets, N, ...]}, the seeds of the main run for one variant of this one after another."""
    whole = train.prepare(own, variants, folder)
    weights = train.stores(folder, whole.seeds.size, log)[1].load(own.epochs, snapshot(whole.abstract))
    if not np.asarray(weights["alive"]).all():
        raise ValueError(f"{own.name}: a network became non-finite: lower optim.lr (now {own.optim.lr}), delete {folder} and start again")
    said, seeds = [], evaluate.of_variant(own, whole.seeds)
    for place, variant in enumerate(variants):
        members = slice(place * own.seeds, (place + 1) * own.seeds)
        mine = seeds.place(jax.tree.map(lambda x, s=members: x[s], weights), "seed")
        said.append(_say(seeds, variant.source, first, mine, own.eval.batch_size))
    return jax.tree.map(lambda *parts: np.concatenate(parts).reshape(-1, first.nets, *parts[0].shape[1:]), *said)


def _say(seeds: parallel.Seeds, source: Source, first: Before, weights: PyTree, batch_size: int) -> dict[str, np.ndarray]:
    """{name: [S, N, ...]}: what every network says of every training image, as it is without augmentation."""
    images, label = source.train.image, source.train.label

    def one(params: PyTree, stats: PyTree, block: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        return jax.lax.map(lambda batch: first.ask(params, stats, source.scale(batch[0]), batch[1]), (block, labels))

    said, row = [], 0
    answer = seeds.over(one, shared=(2, 3))
    for block in pools.blocks(seeds, [images], batch_size)():
        steps, batch = block.shape[:2]
        labels = label[np.arange(row, row + steps * batch) % len(label)].reshape(steps, batch)
        row += steps * batch
        said.append(jax.device_get(answer(weights["params"], weights["stats"], block, seeds.place(labels, None, "data"))))

    def joined(*parts: np.ndarray) -> np.ndarray:
        flat = np.concatenate([part.reshape(part.shape[0], -1, *part.shape[3:]) for part in parts], axis=1)
        return flat[:, : len(label)]

    return jax.tree.map(joined, *said)


def _tell(cfg: config.Train, tables: dict[str, np.ndarray], variants: list[Variant], log: Log) -> None:
    """Says how many images a yes-or-no table holds, and how many conflicting ones: for people, never for the method."""
    for name, of_members in tables.items():
        for member, table in enumerate(of_members if of_members.dtype == bool else ()):
            variant, seed = variants[member // cfg.seeds], cfg.first_seed + member % cfg.seeds
            label, cue = variant.source.train.label, variant.source.train.cue
            conflicting = (cue >= 0) & (cue != label)
            of_conflicting = f", {(table & conflicting).sum()} of {conflicting.sum()} conflicting ones" if conflicting.any() else ""
            log.say(f"{variant.name} seed {seed} {name}: {table.sum()} of {len(table)} training images{of_conflicting}".strip())
