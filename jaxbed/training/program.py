"""The compiled functions of one run: what `train` and `evaluate` call, for all seeds at once."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import parallel
from jaxbed.config import Train
from jaxbed.data.source import Component, Source, Weighted, require_bias, require_one_class, steps
from jaxbed.data.stream import Images
from jaxbed.method import Info, Method, Sampling, State
from jaxbed.models.capabilities import norm_groups
from jaxbed.training import contract, rng
from jaxbed.training.members import GridPoint
from jaxbed.training.members import hparams as hparams_of_points
from jaxbed.training.sharing import Sharing

PyTree = Any
PIXELS_PER_CALL = 2**27  # of one seed on one device: 256 steps at 28 px and batch 256, 10 at 224 px


class Run(flax.struct.PyTreeNode):
    """A run in progress, stacked over seeds. A seed whose numbers stop being finite keeps the state before that call of `advance`."""

    state: State
    alive: jax.Array  # bool
    sums: dict[str, jax.Array]  # of the metrics over the steps of this epoch


class Feed(NamedTuple):
    """What a call of `advance` trains on."""

    row: jax.Array  # [S, K, B] int32: rows of the training set
    image: jax.Array | None = None  # where it is streamed: [S, K, B, H, W, C] uint8, or [K, B, H, W, C] if all seeds see the same


def snapshot(run: Run) -> dict:
    """What an epoch's checkpoint holds."""
    return {"params": run.state.params, "stats": run.state.stats, "alive": run.alive}


@dataclasses.dataclass(frozen=True)
class Program:
    info: Info
    method: Method
    seeds: parallel.Seeds
    images: Images | None  # the training set's, where they are streamed
    training_set: dict[str, np.ndarray]  # but for what is streamed
    init: Callable  # (arrays, rows [S, B], seeds [S]) -> Run
    advance: "Advance"  # (Run, arrays, Feed of K steps, seeds [S]) -> Run, K steps later; the Run handed in is used up
    state: PyTree  # shapes and placement of a State
    metrics: Callable[[], list[str]]  # names of what a step measures
    steps_per_call: int  # K of `advance`, but for the end of an epoch
    components: tuple[Component, ...]  # of the training set
    weighted: Weighted | None  # what of every batch is drawn by weight
    first_row: np.ndarray  # [S] int32: where each seed's training set begins in `arrays`
    hparams: dict[str, np.ndarray]  # [S] float32: those that vary between grid points

    # Evaluation needs neither the training set nor a step, which takes its time to trace
    @functools.cached_property
    def arrays(self) -> dict[str, jax.Array]:
        """The training set on every device."""
        return self.seeds.place(self.training_set)

    def release(self) -> None:
        """Takes the training set off the devices, until it is asked for again."""
        self.__dict__.pop("arrays", None)

    @functools.cached_property
    def abstract(self) -> Run:
        """Shapes and placement of a Run."""
        return Run(self.state, *jax.tree.map(lambda x: self.seeds.like(x, "seed"), _beginning(self.seeds.size, self.metrics())))

    @property
    def saved(self) -> dict:
        """Shapes and placement of what an epoch's checkpoint holds."""
        alive = self.seeds.like(np.ones(self.seeds.size, bool), "seed")
        return {"params": self.state.params, "stats": self.state.stats, "alive": alive}


def _beginning(seeds: int, metrics: list[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """`alive` and `sums` of a Run before its first step."""
    return np.ones(seeds, bool), {name: np.zeros(seeds, np.float32) for name in metrics}


def steps_per_epoch(cfg: Train, source: Source) -> int:
    if not cfg.epochs:
        return 1
    rows = len(source.train.label)
    if rows < cfg.batch_size:
        raise ValueError(f"batch_size = {cfg.batch_size} is larger than the training set of {source.name} ({rows} images)")
    if (source.train.label == source.train.label[0]).all():
        first = np.flatnonzero(source.train.label[0]) if source.multi_label else [source.train.label[0]]
        only = " and ".join(repr(source.class_names[y]) for y in first) or "none"
        raise ValueError(f"all {rows} training images of {source.name} are of class {only}: nothing can be learned, check the labels")
    return steps(rows, cfg.batch_size, source.components)


def steps_per_call(cfg: Train, source: Source, devices: int = 1) -> int:
    """Training steps per dispatch: many where a step is short, few where it is long, so that a request to stop is soon heard.

    devices: that share a batch.
    """
    if cfg.mesh.steps_per_call:
        return cfg.mesh.steps_per_call
    if jax.default_backend() == "cpu":  # XLA runs the gradient of a convolution inside any loop 30 to 50 times slower there
        return 1
    _, height, width, _ = source.train.image.shape
    return min(max(devices * PIXELS_PER_CALL // (cfg.batch_size * height * width), 1), 256)


def find_pixel_range(source: Source) -> np.ndarray:
    """[2, C]: what the data set makes of a black and of a white pixel."""
    shape = source.train.image.shape[1:]
    images = jnp.stack([jnp.zeros(shape, jnp.uint8), jnp.full(shape, 255, jnp.uint8)])
    scaled = np.asarray(source.scale(images), np.float32)
    return scaled[:, scaled.shape[1] // 2, scaled.shape[2] // 2]  # the centre, since borders may be padding


def make_method(cfg: Train, source: Source) -> tuple[Info, Method]:
    """The method of one run, and what it may know of the run. Raises ValueError for settings or a data set that it cannot have."""
    pixel_range = functools.partial(find_pixel_range, source)  # takes a second, and few methods ask
    require_one_class(cfg.name, cfg.method, source)
    info = Info(len(source.class_names), len(source.train.label), steps_per_epoch(cfg, source), max(cfg.epochs, 1), pixel_range)
    method = contract.checked(cfg.name, cfg.method.make(info, cfg.net, cfg.optim), info.classes)
    if cfg.method.reads_bias and cfg.method.reads_bias != "agreement" and (reason := source.facts.get("bias_label")):
        raise ValueError(f"{cfg.name} needs the class of every image's bias, and {source.name} has {reason}. Take another method")
    require_bias(cfg.name, cfg.method, source)
    return info, method


def hparams_of(cfg: Train, source: Source) -> set[str]:
    """Names of the numbers that can vary between the members of one array. Raises ValueError as `make_method` does."""
    _, method = make_method(cfg, source)

    def start(image: jax.Array, row: jax.Array) -> State:
        image = source.augment(rng.key(0, rng.LOAD), image) if source.augment else source.scale(image)
        return method.init(rng.key(0, rng.INIT), {"image": image, "label": row, "index": row, "bias": row})

    image = jax.ShapeDtypeStruct((cfg.batch_size, *source.train.image.shape[1:]), np.uint8)
    return set(jax.eval_shape(start, image, jax.ShapeDtypeStruct((cfg.batch_size,), np.int32)).hparams)


def weigh(cfg: Train, sampling: Sampling, points: list[GridPoint], columns: Mapping[str, np.ndarray], seeds: int) -> Weighted:
    """What a method draws by weight, for all members; `seeds` of each point. Raises ValueError for what cannot be drawn."""
    draws = sampling.draws or cfg.batch_size
    if draws > cfg.batch_size:
        raise ValueError(f"batch_size = {cfg.batch_size}: {cfg.name} draws {draws} images of every batch by weight, so take more than that")
    if cfg.shared_order or points[0].source.components:
        other = "shared_order" if cfg.shared_order else f"shares of {points[0].source.name}"
        raise ValueError(f"{cfg.name} draws images by weight, and {other} would have no effect: set it off, or take another method")
    cumulative_weights = []
    for member in range(seeds * len(points)):
        train, of_member = points[member // seeds].source.train, {name: column[member] for name, column in columns.items()}
        if member % seeds == 0 or of_member:
            weights = np.asarray(sampling.weights(train.label, train.bias if cfg.method.reads_bias else None, of_member), np.float64)
            if weights.shape != train.label.shape or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
                raise ValueError(f"{cfg.name}: the weights to draw images by must be finite, 0 or more, and not all 0")
            cumulative = np.cumsum(weights)
        cumulative_weights.append(cumulative / cumulative[-1])
    return Weighted(draws, np.stack(cumulative_weights))


class TrainingSets(NamedTuple):
    """The training sets of all grid points, one after another; grid points with the same images share them."""

    arrays: dict[str, np.ndarray]  # {name: [rows, ...]}
    images: Images | None  # where they are streamed
    first_row: np.ndarray  # [points] int32


def gather(cfg: Train, method: Method, points: list[GridPoint]) -> TrainingSets:
    """What the batches of a run are taken from. Raises ValueError for streamed images that differ between grid points."""
    splits = list({id(point.source): point.source.train for point in points}.values())
    images = splits[0].image if isinstance(splits[0].image, Images) else None
    if images is not None and len(splits) > 1:
        name = points[0].source.name
        raise ValueError(f"grid: {name} is streamed, and grid points with training sets of their own must be runs of their own")
    columns: dict[str, list[Any]] = {"label": [split.label for split in splits]}
    if images is None:
        columns["image"] = [split.image for split in splits]
    if cfg.method.reads_bias:  # for all other methods it never reaches the device
        columns["bias"] = [split.bias for split in splits]
    if method.rows:
        made = [method.rows(split.label, split.bias if cfg.method.reads_bias else None) for split in splits]
        columns |= {name: [rows[name] for rows in made] for name in made[0]}
    arrays = {name: np.concatenate(parts) if len(parts) > 1 else parts[0] for name, parts in columns.items()}
    numbers = [next(i for i, split in enumerate(splits) if split is point.source.train) for point in points]
    return TrainingSets(arrays, images, np.array(numbers, np.int32) * np.int32(len(splits[0].label)))


class Steps(NamedTuple):
    """Functions of one seed, to be compiled."""

    init: Callable[..., State]  # (arrays, rows [B], seed, columns)
    metrics: Callable[..., dict[str, jax.Array]]  # (state, arrays, rows [B], seed, columns): what a step measures
    advance: Callable[..., Run]  # (run, arrays, rows [K, B], images [K, B, ...] or None, seed, columns)


def steps_of_seed(info: Info, method: Method, source: Source, images: Images | None, sharing: Sharing | None = None) -> Steps:
    """How one seed starts, and how it goes on for K batches; sharing: on devices that share them."""
    step = jax.jit((sharing.method if sharing else method).step, inline=True)  # traced once for both that call it

    def load(arrays: dict, columns: dict, rows: jax.Array, streamed: jax.Array | None, key: jax.Array) -> dict[str, jax.Array]:
        index = rows % info.train_size
        batch = {name: array[rows] for name, array in arrays.items()} | {name: column[index] for name, column in columns.items()}
        if source.multi_label:
            batch["label"] = batch["label"].astype(jnp.float32)
        if streamed is not None:
            batch["image"] = streamed
        image = source.augment(key, batch["image"]) if source.augment else source.scale(batch["image"])
        return {**batch, "image": image, "index": index}

    def first(arrays: dict, rows: jax.Array, seed: jax.Array, columns: dict) -> dict[str, jax.Array]:
        blank = None if images is None else jnp.zeros((len(rows), *images.shape[1:]), jnp.uint8)  # only its shape counts
        return load(arrays, columns, rows, blank, rng.key(seed, rng.LOAD))

    def init(arrays: dict, rows: jax.Array, seed: jax.Array, columns: dict) -> State:
        return method.init(rng.key(seed, rng.INIT), first(arrays, rows, seed, columns))

    def enter(state: State, arrays: dict, rows: jax.Array, seed: jax.Array, columns: dict) -> State:
        if not sharing:
            return state
        make = sharing.method.init
        return sharing.enter(state, lambda: make(rng.key(seed, rng.INIT), first(arrays, rows, seed, columns)))

    def metrics(state: State, arrays: dict, rows: jax.Array, seed: jax.Array, columns: dict) -> dict[str, jax.Array]:
        state = enter(state, arrays, rows, seed, columns)
        return step(state, first(arrays, rows, seed, columns), rng.key(seed, rng.STEP))[1]

    def advance(run: Run, arrays: dict, rows: jax.Array, streamed: jax.Array | None, seed: jax.Array, columns: dict) -> Run:
        before = (enter(run.state, arrays, rows[0], seed, columns), run.sums)

        def one(carry: tuple, fed: tuple) -> tuple[tuple, None]:
            state, sums = carry
            batch = load(arrays, columns, fed[0], fed[1], rng.key(seed, rng.LOAD, state.step))
            state, measured = step(state, batch, rng.key(seed, rng.STEP, state.step))
            return (state, {name: sums[name] + value for name, value in measured.items()}), None

        if rows.shape[0] == 1:  # a loop of one would still be a loop to the compiler
            state, sums = one(before, (rows[0], None if streamed is None else streamed[0]))[0]
        else:
            state, sums = jax.lax.scan(one, before, (rows, streamed))[0]
        if sharing:
            state = sharing.leave(state, run.state)
        # once a call: in every step it would be a hundred small kernels. What is not finite once, stays so
        alive = run.alive & parallel.finite((state.params, state.stats, sums))
        return jax.tree.map(lambda new, old: jnp.where(alive, new, old), Run(state, alive, sums), run.replace(alive=alive))

    return Steps(init, metrics, advance)


class Advance(NamedTuple):
    """The compiled K steps of all seeds, with the columns that their batches carry."""

    compiled: parallel.ForAllSeeds
    columns: dict[str, jax.Array]  # {name: [S, N, ...]}

    def __call__(self, run: Run, arrays: dict, feed: Feed, numbers: jax.Array) -> Run:
        return self.compiled(run, arrays, *feed, numbers, self.columns)

    def lower(self, run: Run, arrays: dict, feed: Feed, numbers: jax.Array) -> Any:
        """The same call, lowered and not run."""
        return self.compiled.lower(run, arrays, *feed, numbers, self.columns)


def assemble(
    cfg: Train, points: list[GridPoint], seeds: parallel.Seeds, columns: Mapping[str, np.ndarray] | None = None, trains: bool = True
) -> Program:
    """Builds the method and everything that runs it; nothing is compiled yet. Raises ValueError for what cannot run.

    columns, {name: [S, N, ...]}, hold what each seed knows of the images of its training set and batches are to carry. trains: whether a
    step and a prediction are looked at, too.
    """
    source, columns, per_point = points[0].source, dict(columns or {}), seeds.size // len(points)
    info, method = make_method(cfg, source)
    sets = gather(cfg, method, points)
    sharing = None
    if trains and seeds.columns > 1:
        sharing = Sharing(make_method(dataclasses.replace(cfg, optim=cfg.optim.on_vector()), source)[1], norm_groups(cfg.net))
    steps = steps_of_seed(info, method, source, sets.images, sharing)
    init = seeds.over(steps.init, shared=(0,), once=True)
    arrays = {name: seeds.like(array) for name, array in sets.arrays.items()}
    rows = seeds.like(jax.ShapeDtypeStruct((seeds.size, cfg.batch_size), np.int32), "seed", "data")
    given = (rows, seeds.like(seeds.numbers, "seed"), {name: seeds.like(column, "seed") for name, column in columns.items()})
    state = init.abstract(arrays, *given)
    metrics = functools.cache(lambda: list(seeds.over(steps.metrics, shared=(1,)).abstract(state, arrays, *given)))
    if trains:
        metrics()
        of_seed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (state.params, state.stats))
        image = jax.ShapeDtypeStruct((cfg.batch_size, *source.evaluated_shape), np.uint8)
        jax.eval_shape(lambda params, stats, image: method.predict(params, stats, source.scale(image)), *of_seed, image)
    seeds.check_memory(state, f"parameters and optimizer of {seeds.size} networks")
    advance = seeds.over(steps.advance, shared=(1, 3) if sets.images is not None and cfg.shared_order else (1,), donate=(0,))
    weighted = weigh(cfg, method.sampling, points, columns, per_point) if method.sampling else None
    placed = seeds.place(columns, "seed")
    return Program(
        info=info,
        method=method,
        seeds=seeds,
        images=sets.images,
        training_set=sets.arrays,
        init=lambda *given: Run(init(*given, placed), *seeds.place(_beginning(seeds.size, metrics()), "seed")),
        advance=Advance(advance, placed),
        state=state,
        metrics=metrics,
        steps_per_call=steps_per_call(cfg, source, seeds.columns),
        components=source.components,
        weighted=weighted,
        first_row=np.repeat(sets.first_row, per_point),
        hparams=hparams_of_points(points, set(state.hparams), per_point),
    )
