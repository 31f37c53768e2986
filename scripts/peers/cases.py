"""What `scripts/bench.py` times: shapes and networks, and jaxbed's side of every comparison as a runnable loop.

Arms are tuples (name, run, images per step, unit of steps, first losses), in the order of `bench.Arm`.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxbed import config, parallel
from jaxbed.data import augment, imagenet, noise, records
from jaxbed.evaluation import pools
from jaxbed.models import mlp, resnet, simple_conv
from jaxbed.optim import Optim
from jaxbed.training import members, plan, program, train
from peers.configs import AUGMENTATIONS, METHODS, TWO_NETWORKS

LEARNING_RATE = 1e-3  # small, so that rounding does not grow between runs whose losses are compared; speed does not depend on it
SCALE = augment.Config(mean=(0.5,), std=(0.5,))  # to ±1, nothing random: as `peers.train.Trainer.scale`
AUGMENT = augment.Config(crop="resized", flip=0.5, mean=(0.5,), std=(0.5,))  # as `peers.train.Trainer.augment`
LOADER_WORKERS = 12  # of the stock PyTorch form on a GPU
MIXING_WORKERS = 16  # of AugMix's, whose workers are what takes the time


class Case(NamedTuple):
    net: Any
    side_px: int
    batch: int
    classes: int = 10
    seeds: tuple[int, ...] = (1, 2, 5, 10)
    rows: int = 0  # images of the training or evaluation set; 0: as many as one dispatch takes
    most_steps: int = 256  # of one dispatch
    per_device: int = 0  # images of a batch on one device; 0: all
    rule: Literal["sgd", "adam"] = "sgd"
    augmented: bool = False  # random resized crops and flips, on the device

    @property
    def half(self) -> bool:
        return getattr(self.net, "dtype", "float32") == "bfloat16"

    @property
    def steps_per_call(self) -> int:
        """As `program.steps_per_call`, but settled before the data are drawn, so that an epoch is a whole number of calls."""
        if jax.default_backend() == "cpu":
            return 1
        pixels = (self.per_device or self.batch) * self.side_px**2
        limit = min(max(program.PIXELS_PER_CALL // pixels, 1), self.most_steps)
        return min(limit, self.rows // self.batch) if self.rows else limit

    @property
    def images(self) -> int:
        return self.rows or self.batch * max(self.steps_per_call, 4 if jax.default_backend() == "cpu" else 1)

    def first_loss(self, method: str) -> float:
        """Mean cross-entropy of an untrained network; relative difficulty is about a half, and of GroupDRO's groups a batch lacks some."""
        weight = {**dict.fromkeys(TWO_NETWORKS, 0.5), "groupdro": 1 - (1 - 1 / self.classes) ** self.batch}
        return math.log(self.classes) * weight.get(method, 1.0)


def step(method: str, small: bool) -> Case:
    """The whole step, augmentation included: ResNet-50 at 224 px, batch 256, bfloat16; methods with two such networks on ResNet-18."""
    if small:
        batch = METHODS["softcon"].contrastive + 16 if method == "softcon" else 16
        return Case(resnet.Config(depth=10, width=4, stem="half"), 32, batch, augmented=True)
    return Case(resnet.Config(depth=18 if method in TWO_NETWORKS else 50, dtype="bfloat16"), 224, 256, classes=1000, augmented=True)


def scaling(small: bool) -> Case:
    """What one device does; where it is joined by others, batch or seeds grow with them."""
    return arrays(True)["mlp"] if small else step("erm", False)


def on_devices(case: Case, count: int, grouped: bool) -> Case:
    """A batch `count` times as large for as many devices; grouped: BatchNorm, where there is any, is over each device's part of it."""
    net = dataclasses.replace(case.net, norm_groups=count) if grouped and isinstance(case.net, resnet.Config) else case.net
    return case._replace(net=net, batch=count * case.batch, per_device=case.batch)


def arrays(small: bool) -> dict[str, Case]:
    if small:
        return {
            "mlp": Case(mlp.Config((100, 100, 16)), 28, 64, seeds=(1, 2)),
            "resnet10_32": Case(resnet.Config(depth=10, width=4, stem="half"), 32, 16, seeds=(2,)),
        }
    half: dict[str, Any] = {"dtype": "bfloat16"}
    return {
        "demo_32": Case(resnet.Config(depth=10, width=16, stem="half"), 32, 64, seeds=(3,)),
        "mlp": Case(mlp.Config((100, 100, 16)), 28, 256, rows=175 * 256, rule="adam"),
        "mlp_bfloat16": Case(mlp.Config((100, 100, 16), **half), 28, 256, rows=175 * 256, rule="adam"),
        "simple_conv_28": Case(simple_conv.Config(), 28, 256, most_steps=8),
        "simple_conv_28_bfloat16": Case(simple_conv.Config(**half), 28, 256, most_steps=8),
        "resnet18_32": Case(resnet.Config(depth=18, stem="small", **half), 32, 128),
        "resnet18_64": Case(resnet.Config(depth=18, **half), 64, 64),
        "resnet18_224": Case(resnet.Config(depth=18, **half), 224, 64, classes=1000),
        "resnet50_224": Case(resnet.Config(depth=50, **half), 224, 64, classes=1000, seeds=(1, 2, 4)),
    }


def sweep(small: bool) -> Case:
    """Colored MNIST's shape: the last 200 of 45,000 images are left out of an epoch, which has whole batches."""
    return Case(mlp.Config((100, 100, 16)), 28, 256, seeds=(3 if small else 10,), rows=(4 if small else 175) * 256, rule="adam")


def evaluations(small: bool) -> dict[str, Case]:
    if small:
        return {"resnet10_32": Case(resnet.Config(depth=10, width=4, stem="half"), 32, 16, seeds=(3,), rows=64)}
    return {
        "mlp": Case(mlp.Config((100, 100, 16)), 28, 256, seeds=(10,), rows=10_240),
        "resnet18_64": Case(resnet.Config(depth=18, dtype="bfloat16"), 64, 256, seeds=(10,), rows=10_240),
        "resnet18_224": Case(resnet.Config(depth=18, dtype="bfloat16"), 224, 256, classes=1000, seeds=(10,), rows=5_120),
        "resnet50_224": Case(resnet.Config(depth=50, dtype="bfloat16"), 224, 256, classes=1000, seeds=(10,), rows=5_120),
    }


class Ready(NamedTuple):
    cfg: config.Train
    source: Any
    program: program.Program
    tables: dict[str, np.ndarray]  # {name: [N, ...]}: what networks that come first might have said, the same for all seeds


def assemble(case: Case, method: str, seeds: int = 1, rows: int = 1, data: int = 1, val_images: int = 8) -> Ready:
    """The product's program of a case: `seeds` on `rows` rows of `data` devices."""
    augmentation = dataclasses.replace(AUGMENT if case.augmented else SCALE, **AUGMENTATIONS.get(method, {}))
    cfg = config.Train(
        name=method,
        method=METHODS[method],
        net=case.net,
        data=noise.Config(case.side_px, case.classes, case.images, val_images, augment=augmentation),
        optim=Optim(rule=case.rule, lr=LEARNING_RATE, weight_decay=1e-4),
        batch_size=case.batch,
        seeds=seeds,
        mesh=parallel.Mesh(seed=rows, data=data, steps_per_call=case.steps_per_call),
    )
    source = cfg.data.open()
    if cfg.method.reads_bias:  # of which noise has none: drawn, as in PyTorch's forms
        bias = np.random.default_rng(0).integers(0, case.classes, case.images, np.int32)
        source = dataclasses.replace(source, train=source.train._replace(bias=bias))
    one = members.one(cfg, source)
    tables = plan.example_columns(cfg, source, rng=np.random.default_rng(0))
    of_seeds = {name: np.broadcast_to(table, (seeds, *table.shape)) for name, table in tables.items()}
    return Ready(cfg, source, program.assemble(cfg, one, parallel.Seeds(seeds, 0, cfg.mesh), of_seeds), tables)


class Track:
    """`train.train`'s inner loop without files: one program with its state and its batches."""

    def __init__(self, cfg: config.Train, made: program.Program):
        self.program = made
        self.feeds = train.feeds_from(cfg, made, 0)
        self.run = train.start(cfg, made)
        self.first: list[float] = []

    def calls(self, count: int) -> None:
        """Dispatches; waits for the device in the very first time only, for the losses."""
        for _ in range(count):
            feed = next(self.feeds)
            self.run = self.program.advance(self.run, self.program.arrays, feed, self.program.seeds.array)
            if not self.first:
                self.first = (np.asarray(self.run.sums["loss"], np.float64) / feed.row.shape[1]).tolist()


def loop(name: str, cfg: config.Train, programs: list[program.Program]) -> tuple:
    """The arm that trains programs one after another."""
    tracks, unit = [Track(cfg, made) for made in programs], cfg.mesh.steps_per_call

    def run(steps: int) -> None:
        for track in tracks:
            track.calls(steps // unit)
        jax.block_until_ready([track.run for track in tracks])

    images = cfg.batch_size * sum(made.seeds.size for made in programs)
    return name, run, images, unit, lambda: [loss for track in tracks for loss in track.first]


def training(name: str, case: Case, method: str, seeds: int = 1, rows: int = 1, data: int = 1) -> tuple:
    """The arm that trains all seeds in one array."""
    ready = assemble(case, method, seeds, rows, data)
    return loop(name, ready.cfg, [ready.program])


def one_after_another(name: str, solo: Ready, seeds: int) -> tuple:
    """The arm that trains as many seeds with the program of a single one, compiled once."""
    each = [parallel.Seeds(1, seed, solo.cfg.mesh) for seed in range(seeds)]
    return loop(name, solo.cfg, [dataclasses.replace(solo.program, seeds=seed) for seed in each])


def passes(case: Case) -> tuple[list[tuple], Callable[[], float]]:
    """Two arms over one set of images, every seed by itself and all in one pass; and the share of equal answers."""
    seeds = case.seeds[0]
    together, alone = (assemble(case._replace(rows=case.batch), "erm", n, val_images=case.rows) for n in (seeds, 1))
    state = train.start(together.cfg, together.program).state
    both = []
    for made, source in ((ready.program, ready.source) for ready in (together, alone)):
        both += pools.pool(made.method.predict, made.seeds, source, {"val": source.sets["val"]}, case.batch)
    singles = [alone.program.seeds.place(jax.tree.map(lambda x, s=s: np.asarray(x[s : s + 1]), state), "seed") for s in range(seeds)]
    answers: dict[str, list] = {}

    def run_together(count: int) -> None:
        for _ in range(count):
            answers["together"] = [both[0].answers(state.params, state.stats, *both[0].blocks())]
        jax.block_until_ready(answers["together"])

    def run_alone(count: int) -> None:
        for _ in range(count):
            answers["alone"] = [both[1].answers(one.params, one.stats, *both[1].blocks()) for one in singles]
        jax.block_until_ready(answers["alone"])

    def share() -> float:
        one, other = (np.concatenate([given["response"] for given in answers[name]]) for name in ("alone", "together"))
        return float((one == other).mean())

    images = case.rows * seeds
    arms = [(f"{seeds} passes", run_alone, images, 1, list), ("one pass", run_together, images, 1, list)]
    return arms, share


def streamed(folder: pathlib.Path, small: bool) -> list[tuple]:
    """Two arms that train on the same 20,000 stored squares: all of them on the device, and read from files in `folder`."""
    side_px, stored_px, batch, count, steps = (32, 40, 16, 80, 2) if small else (224, 256, 256, 20_000, 4)
    held = count % (batch * steps)  # so that an epoch is a whole number of calls
    squares = np.random.default_rng(0).integers(0, 256, (16, stored_px, stored_px, 3), np.uint8)
    part = folder / "part-00000-of-00001.array_record"
    sums = {part.name: records.write_part(part, (squares[i % len(squares)].tobytes() for i in range(count)))}
    classes = tuple(f"class{i}" for i in range(8))
    records.finish(folder, "uint8", stored_px, np.array([f"{i}" for i in range(count)]), np.arange(count) % 8, classes, sums, {})
    arms = []
    for name, resident_gib in (("on the device", 64.0), ("from disk", 0.0)):
        data = imagenet.Config(str(folder), val_from_train=held, side_px=side_px, stored_px=stored_px, resident_gib=resident_gib)
        data.augment.crop_px = side_px
        cfg = config.Train(
            name="erm",
            method=METHODS["erm"],
            net=step("erm", small).net,
            data=data,
            optim=Optim(rule="sgd", lr=LEARNING_RATE),
            batch_size=batch,
            mesh=parallel.Mesh(seed=1, data=1, steps_per_call=steps),
        )
        arms.append(loop(name, cfg, [program.assemble(cfg, members.one(cfg, data.open()), parallel.Seeds(1, 0, cfg.mesh))]))
    return arms


def peer_settings(case: Case, method: str, form: str) -> dict:
    """The same case for `peers.train`."""
    if isinstance(case.net, mlp.Config):
        net = {"kind": "mlp", "widths": list(case.net.widths)}
    else:
        net = {"kind": "resnet", "depth": case.net.depth, "width": case.net.width, "stem": case.net.stem}
    optim = {"rule": case.rule, "lr": LEARNING_RATE, "weight_decay": 1e-4, **({"momentum": 0.9} if case.rule == "sgd" else {})}
    return {
        "method": method,
        "form": form,
        "net": net,
        "classes": case.classes,
        "side_px": case.side_px,
        "batch": case.batch,
        "images": max(case.images, 20 * case.batch) if not case.rows else case.rows,  # more than the processor's caches hold
        "bfloat16": case.half,
        "augmented": case.augmented,
        "optim": optim,
        "workers": 0 if jax.default_backend() == "cpu" else MIXING_WORKERS if method == "augmix" else LOADER_WORKERS,
        "seed": 0,
    }
