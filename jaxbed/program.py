"""The compiled functions of one run: what `train` and `evaluate` call, for all seeds at once."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import keys, parallel
from jaxbed.config import Train
from jaxbed.data.source import Source
from jaxbed.method import Info, Method, State
from jaxbed.variants import Variant
from jaxbed.variants import hparams as swept_hparams

PyTree = Any
PIXELS_PER_CALL = 2**26  # of one seed: 256 steps at 28 px and batch 256, 5 at 224 px


@flax.struct.dataclass
class Run:
    """A run in progress, stacked over seeds. A seed whose numbers stop being finite keeps the state before that call of `advance`."""

    state: State
    alive: jax.Array  # bool
    sums: dict[str, jax.Array]  # of the metrics over the steps of this epoch


@dataclasses.dataclass(frozen=True)
class Program:
    info: Info
    method: Method
    seeds: parallel.Seeds
    arrays: dict[str, jax.Array]  # the training set, on every device
    init: Callable  # (arrays, rows [S, B], seeds [S]) -> Run
    advance: Callable  # (Run, arrays, rows [S, K, B], seeds [S]) -> Run, K steps later; the Run handed in is used up
    abstract: PyTree  # shapes and placement of a Run
    steps_per_call: int  # K of `advance`, but for the end of an epoch
    first_row: np.ndarray  # [S] int32: where each seed's training set begins in `arrays`
    hparams: dict[str, np.ndarray]  # [S] float32: those that vary between variants


def steps_per_epoch(cfg: Train, source: Source) -> int:
    rows = len(source.train.label)
    if rows < cfg.batch_size:
        raise ValueError(f"batch_size = {cfg.batch_size} is larger than the training set of {source.name} ({rows} images)")
    return rows // cfg.batch_size


def steps_per_call(cfg: Train, source: Source) -> int:
    """Training steps per dispatch: many where a step is short, few where it is long, so that a request to stop is soon heard."""
    if cfg.mesh.steps_per_call:
        return cfg.mesh.steps_per_call
    if jax.default_backend() == "cpu":  # XLA runs the gradient of a convolution inside any loop 30 to 50 times slower there
        return 1
    _, height, width, _ = source.train.image.shape
    return min(max(PIXELS_PER_CALL // (cfg.batch_size * height * width), 1), 256)


def assemble(cfg: Train, variants: list[Variant], seeds: parallel.Seeds) -> Program:
    """Builds the method and everything that runs it; nothing is compiled yet. Raises ValueError for what cannot run."""
    seeds.check_batch(cfg.batch_size)
    source = variants[0].source
    info = Info(len(source.class_names), len(source.train.label), steps_per_epoch(cfg, source), cfg.epochs)
    method = cfg.method.make(info, cfg.net, cfg.optim)
    trains = list({id(v.source): v.source.train for v in variants}.values())
    arrays = {"image": [t.image for t in trains], "label": [t.label for t in trains]}
    if cfg.method.reads_bias:  # for all other methods it never reaches the device
        arrays["bias"] = [t.cue for t in trains]
    arrays = {name: np.concatenate(parts) if len(parts) > 1 else parts[0] for name, parts in arrays.items()}
    places = [next(i for i, t in enumerate(trains) if t is v.source.train) for v in variants]
    first_row = np.repeat(np.int32(places) * np.int32(info.train_size), seeds.size // len(variants))

    def load(arrays: dict, rows: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        batch = {name: array[rows] for name, array in arrays.items()}
        image = source.augment(key, batch["image"]) if source.augment else source.scale(batch["image"])
        return {**batch, "image": image, "index": rows % info.train_size}

    def init(arrays: dict, rows: jax.Array, seed: jax.Array) -> Run:
        batch = load(arrays, rows, keys.of(seed, keys.LOAD))
        state = method.init(keys.of(seed, keys.INIT), batch)
        metrics = jax.eval_shape(method.step, state, batch, keys.of(seed, keys.STEP))[1]
        return Run(state, jnp.array(True), {name: jnp.zeros(()) for name in metrics})

    def advance(run: Run, arrays: dict, rows: jax.Array, seed: jax.Array) -> Run:
        def one(carry: tuple, rows: jax.Array) -> tuple[tuple, None]:
            state, sums = carry
            batch = load(arrays, rows, keys.of(seed, keys.LOAD, state.step))
            state, metrics = method.step(state, batch, keys.of(seed, keys.STEP, state.step))
            return (state, {name: sums[name] + value for name, value in metrics.items()}), None

        before = (run.state, run.sums)
        if rows.shape[0] == 1:  # a loop of one would still be a loop to the compiler
            state, sums = one(before, rows[0])[0]
        else:
            state, sums = jax.lax.scan(one, before, rows)[0]
        # once a call: in every step it would be a hundred small kernels. What is not finite once, stays so
        alive = run.alive & parallel.finite((state.params, state.stats, sums))
        return jax.tree.map(lambda new, old: jnp.where(alive, new, old), Run(state, alive, sums), run.replace(alive=alive))

    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}
    example = jax.ShapeDtypeStruct((cfg.batch_size,), np.int32), jax.ShapeDtypeStruct((), np.int32)
    abstract = seeds.abstract(init, shapes, *example)
    return Program(
        info,
        method,
        seeds,
        seeds.place(arrays),
        seeds.over(init, shared=(0,), once=True),
        seeds.over(advance, shared=(1,), donate=(0,)),
        abstract,
        steps_per_call(cfg, source),
        first_row,
        swept_hparams(variants, set(abstract.state.hparams), seeds.size // len(variants)),
    )
