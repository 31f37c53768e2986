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
Both are saved every ten minutes or more often, and after Ctrl-C or SIGTERM.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep import training
from data_prep.squares import squares
from jaxbed.models import cae, edsr
from jaxbed.system import ending

PyTree = Any
Network = Any  # module edsr or cae
SHAPES_PX = 32  # squares of the synthetic data set


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
    size = {"width": asked.width} | ({"blocks": asked.blocks} if asked.task == "edsr" else {})
    params = task.network.prepare(task.network.draw(np.random.default_rng(asked.seed), **size))

    @jax.jit  # without donation: an interruption would lose the state
    def step(state: PyTree, levels: jax.Array, seeds: jax.Array) -> tuple[PyTree, jax.Array]:
        params, opt = state
        compared = functools.partial(task.loss, levels=levels.astype(jnp.float32), seeds=seeds)
        (loss, squared), grads = jax.value_and_grad(compared, has_aux=True)(params)
        updates, opt = opt_of.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), jnp.stack([loss, squared])

    def words(means: np.ndarray) -> str:
        return f"loss {means[0]:.5f}, PSNR {-10 * np.log10(means[1]):.2f} dB"

    state, batches_from = (params, opt_of.init(params)), functools.partial(batches, asked)
    training.fit(asked, state, step, batches_from, lambda state: task.network.restore(state[0]), words)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    for name, task in TASKS.items():
        of_task = tasks.add_parser(name, help=f"train {name.upper()}")
        of_task.add_argument("train")
        of_task.add_argument("out", type=training.output, help="a file that ends in .safetensors")
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
    ending.process(main)
