"""Trains the two image-to-image networks of DeepAugment (Hendrycks et al., 2021), which data_prep/deepaugment.py distorts, on any images.

    python data_prep/image_network.py edsr TRAIN OUT.safetensors
    python data_prep/image_network.py cae TRAIN OUT.safetensors
    python data_prep/image_network.py edsr shapes OUT.safetensors --width 16 --blocks 4 --steps 500 --lr 1e-3   # 15 s on two CPU cores

TRAIN is an image folder, a folder of records or a TFDS data set (jaxbed/data/image_files.py), or `shapes`, the synthetic data set. OUT has
the published names, which the published code and `jaxbed.models.edsr.load` and `cae.load` read.

The defaults are those of the authors of the networks. EDSR (Lim et al., 2017): Adam on the mean absolute error of levels in [0, 255],
squares of 192 px, turned and mirrored at random, and their bicubic quarter as input; the learning rate is halved after two thirds of the
steps. CAE (Theis et al., 2017, as in alexandru-dinu/cae): Adam on the mean squared error in [0, 1], squares of 128 px, weight decay added
to the gradient; the gradient of random bits is that of their probability.

Differences from the published code: squares are cut out of images that are resized to --resize-px first, the quarter is made by JAX's
antialiased bicubic filter instead of MATLAB's, and CAE sees random squares instead of a grid of them.

CAE restores the mean colour at first; small networks (width 16, learning rate 1e-3) left that stage after about 1,000 steps.

If interrupted, rerun the same command to resume: OUT.state.npz holds the state until training is complete, and OUT what is learnt so far.
"""

import argparse
import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep.squares import squares
from jaxbed.models import cae, edsr
from jaxbed.system import ending, files

PyTree = Any
Network = Any  # module edsr or cae
SHAPES_PX = 32  # squares of the synthetic data set
SAVES = 20  # of one training


class Task(NamedTuple):
    """How one network is trained."""

    network: Network
    loss: Callable[[PyTree, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]  # the second: squared error in [0, 1], of which PSNR is
    steps: int
    side_px: int
    decay: float = 0.0
    halved: bool = False  # the learning rate, after two thirds of the steps


def edsr_loss(params: PyTree, levels: jax.Array, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean absolute error of the restored image in levels, and mean squared error in [0, 1]; levels [B, H, W, 3] in [0, 255]."""
    small = (len(levels), levels.shape[1] // edsr.SCALE, levels.shape[2] // edsr.SCALE, 3)
    quarter = jnp.clip(jnp.round(jax.image.resize(levels, small, "cubic")), 0, 255)
    error = edsr.apply(params, quarter, jnp.full((len(levels), 2), small[1])) - levels
    return jnp.abs(error).mean(), jnp.square(error / 255).mean()


def cae_loss(params: PyTree, levels: jax.Array, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean squared error in [0, 1] before and after clipping; levels [B, H, W, 3] in [0, 255], seeds [B] of the random bits."""
    image = levels / 255
    restored = cae.reconstruct(params, image, jnp.full((len(levels), 2), levels.shape[1]), seeds)
    return jnp.square(restored - image).mean(), jnp.square(jnp.clip(restored, 0, 1) - image).mean()


TASKS = {
    "edsr": Task(edsr, edsr_loss, steps=300_000, side_px=192, halved=True),
    "cae": Task(cae, cae_loss, steps=5_800_000, side_px=128, decay=1e-5),
}


def optimizer(asked: argparse.Namespace) -> optax.GradientTransformation:
    halved = {2 * asked.steps // 3: 0.5} if TASKS[asked.task].halved else {}
    rate = optax.piecewise_constant_schedule(asked.lr, halved)
    return optax.chain(optax.add_decayed_weights(asked.decay), optax.adam(rate))


def turned(levels: np.ndarray, seed: int, step: int) -> np.ndarray:
    """Each square [H, W, 3] of a batch in one of its eight orientations, drawn for it."""
    drawn = np.random.default_rng([seed, step, 2]).integers((4, 2), size=(len(levels), 2))
    pairs = zip(levels, drawn, strict=True)
    return np.stack([np.rot90(square, quarters)[:, :: 1 - 2 * mirrored] for square, (quarters, mirrored) in pairs])


def batches(asked: argparse.Namespace, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(levels [B, side, side, 3] uint8, seeds [B] uint32) from step `first` on."""
    for step, levels in enumerate(squares(asked.train, asked.side_px, asked.resize_px, asked.batch, asked.seed, first), first):
        seeds = np.random.default_rng([asked.seed, step, 3]).integers(2**32, size=len(levels), dtype=np.uint32)
        yield turned(levels, asked.seed, step) if asked.task == "edsr" else levels, seeds


def train(asked: argparse.Namespace) -> None:
    """Trains from where an earlier call stopped. Raises ValueError for other settings, and for a loss that is not finite."""
    task, opt_of = TASKS[asked.task], optimizer(asked)
    state_path = asked.out.with_name(f"{asked.out.name}.state.npz")
    settings = json.dumps({key: value for key, value in vars(asked).items() if key != "out"}, sort_keys=True)
    size = {"width": asked.width} | ({"blocks": asked.blocks} if asked.task == "edsr" else {})
    params = task.network.prepare(task.network.draw(np.random.default_rng(asked.seed), **size))
    point = jax.device_put((params, opt_of.init(params))), 0  # state and steps done, in one name: an interruption cannot part them
    if state_path.is_file():
        point = resumed(state_path, point[0], settings)
        print(f"resumed after step {point[1]:,}", flush=True)
    elif asked.out.exists():
        raise ValueError(f"{asked.out} exists, and no training of it is unfinished: delete it, or name another file")

    @jax.jit  # without donation: an interruption would lose the state
    def step(state: PyTree, levels: jax.Array, seeds: jax.Array) -> tuple[PyTree, jax.Array]:
        params, opt = state
        compared = functools.partial(task.loss, levels=levels.astype(jnp.float32), seeds=seeds)
        (loss, squared), grads = jax.value_and_grad(compared, has_aux=True)(params)
        updates, opt = opt_of.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), jnp.stack([loss, squared])

    def save() -> None:
        state, done = point
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        leaves = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
        with files.replacing(asked.out) as file:
            file.write(safetensors.numpy.save(task.network.restore(jax.device_get(state[0]))))
        files.write_arrays(state_path, {"settings": np.array(settings), "done": np.array(done), **leaves}, compressed=False)

    recent, begun = [], time.monotonic()
    try:
        for levels, seeds in itertools.islice(batches(asked, point[1]), asked.steps - point[1]):
            state, terms = step(point[0], levels, seeds)
            point = state, point[1] + 1
            recent.append(terms)
            if point[1] % max(asked.steps // SAVES, 1) == 0 or point[1] == asked.steps:
                report(np.mean(jax.device_get(recent), axis=0), point[1], time.monotonic() - begun, asked)
                recent = []
                save()
    except KeyboardInterrupt:
        if np.isfinite(jax.device_get(recent)).all():
            save()
        raise
    state_path.unlink(missing_ok=True)
    print(f"written: {asked.out}, {asked.out.stat().st_size / 2**20:.1f} MiB")


def report(means: np.ndarray, done: int, seconds: float, asked: argparse.Namespace) -> None:
    """Prints loss and PSNR. Raises ValueError for a loss that is not finite."""
    loss, squared = means
    if not np.isfinite(loss):
        raise ValueError(f"the loss is no longer finite: lower --lr (now {asked.lr})")
    print(f"step {done:,} of {asked.steps:,}: loss {loss:.5f}, PSNR {-10 * np.log10(squared):.2f} dB, {seconds:.0f} s", flush=True)


def resumed(path: pathlib.Path, state: PyTree, settings: str) -> tuple[PyTree, int]:
    """(state, steps done) of an unfinished training. Raises ValueError for one with other settings, and for a damaged file."""
    cure = "delete it to begin again, or name another output"
    arrays = files.read_arrays(path, cure)
    with files.guarded(path, cure):
        before, now = json.loads(str(arrays["settings"])), json.loads(settings)
    if changed := [f"{key} = {before.get(key)}, not {value}" for key, value in now.items() if before.get(key) != value]:
        raise ValueError(f"{path} is of a training with {changed[0]}: use the same settings, {cure}")
    with files.guarded(path, cure):
        leaves, form = jax.tree.flatten(state)
        read = [arrays[str(number)] for number in range(len(leaves))]
        if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in read]:
            raise files.Fault("its arrays are of another network")
        return jax.device_put(jax.tree.unflatten(form, read)), int(arrays["done"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    for name, task in TASKS.items():
        of_task = tasks.add_parser(name, help=f"train {name.upper()}")
        of_task.add_argument("train")
        of_task.add_argument("out", type=pathlib.Path)
        of_task.add_argument("--steps", type=int, default=task.steps)
        of_task.add_argument("--batch", type=int, default=16)
        of_task.add_argument("--lr", type=float, default=1e-4)
        of_task.add_argument("--decay", type=float, default=task.decay, help="of weights, added to the gradient")
        of_task.add_argument("--side-px", type=int, help=f"of training squares; default {task.side_px}, or {SHAPES_PX} for shapes")
        of_task.add_argument("--resize-px", type=int, default=512, help="shorter side of the images from which they are cut")
        of_task.add_argument("--width", type=int, default=64, help="channels")
        if name == "edsr":
            of_task.add_argument("--blocks", type=int, default=16)
        of_task.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    asked.side_px = asked.side_px or (SHAPES_PX if asked.train == "shapes" else TASKS[asked.task].side_px)
    if min(asked.steps, asked.batch, asked.width, getattr(asked, "blocks", 1)) < 1 or not asked.lr > 0 or asked.decay < 0 or asked.seed < 0:
        parser.error("--steps, --batch, --width and --blocks must be at least 1, --lr above 0, --decay and --seed at least 0")
    if asked.side_px < 12 or asked.side_px % 4:
        parser.error(f"--side-px {asked.side_px} must be a multiple of 4 and at least 12")

    def command() -> int:
        train(asked)
        return 0

    return ending.of(command, "image_network")


if __name__ == "__main__":
    sys.exit(main())
