"""One trained network of a run, to be used in Python: what it answers to any images, and its weights.

network = trained.load("runs/erm", seed=3)
logits = network.predict(images)  # uint8 [N, H, W, 3] -> float32 [N, classes]
"""

import pathlib
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed import config
from jaxbed.evaluation import metrics
from jaxbed.stats import names
from jaxbed.stats.selection import rules
from jaxbed.training import plan, train
from jaxbed.training.checkpoint import Store
from jaxbed.training.program import make_method

PyTree = Any


class Network(NamedTuple):
    """One seed of a run after one epoch."""

    predict: Callable[[np.ndarray], np.ndarray]  # images uint8 [N, *image_shape], as the run decodes them -> logits float32 [N, classes]
    image_shape: tuple[int, ...]  # (H, W, C)
    classes: tuple[str, ...]  # names, in the order of the logits
    params: PyTree  # {name of a network of the method: its parameters}, NumPy arrays
    stats: PyTree  # {name of a network of the method: its batch statistics}
    epoch: int
    seed: int


def load(
    workdir: pathlib.Path | str, epoch: int | str | None = None, seed: int | None = None, point: str = "", modules: Collection[str] = ()
) -> Network:
    """The network of one seed, by default the first, with the weights after an epoch.

    epoch: a number or "last"; None: the one that counts, which is the first of best validation accuracy where the run has validation
    images and else the last. Of a run with a grid, point is the folder of a grid point. modules: of your own, that the configuration
    names and that may be imported. The data set is opened as for `jaxbed eval`: it has the names of the classes and the scaling of
    pixels.

    Raises ValueError or FileNotFoundError, with what there is instead, for anything that the run does not have.
    """
    workdir = pathlib.Path(workdir)
    cfg = config.load(workdir, modules)
    seeds = range(cfg.first_seed, cfg.first_seed + cfg.seeds)
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ValueError(f"seed = {seed}: {workdir} has the seeds {names.listed(seeds)}")
    points = plan.job(cfg, workdir).points
    number = next((i for i, each in enumerate(points) if each.name == point), None)
    if number is None:
        of_grid = f"the grid points {names.listed(each.name for each in points)}" if cfg.grid else "no grid: leave point out"
        raise ValueError(f"point = {point!r}: {workdir} has {of_grid}")
    store = Store(workdir / "checkpoints" / "epochs", cfg.seeds * len(points), print)
    if not (finished := store.numbers()):
        raise ValueError(f"{store.folder} holds no finished epoch: train first. Of a run with a grid, give the run's workdir, and point")
    chosen = finished[-1] if epoch == "last" else epoch_of_seed(workdir / point)[seed] if epoch is None else epoch
    if chosen not in finished:
        raise ValueError(
            f'epoch = {chosen!r}: {workdir} has checkpoints of the epochs {names.listed(finished)}; "last" is the last of them'
        )
    train.check_images(points, workdir)  # else the logits could be of classes in another order
    row = number * cfg.seeds + seed - cfg.first_seed
    of_seed = jax.tree.map(lambda leaf: np.asarray(leaf[row]), store.load(chosen, store.abstract(chosen)))
    if not of_seed["alive"]:
        raise ValueError(f"seed = {seed} had become non-finite by epoch {chosen} of {workdir}: take an earlier epoch, or another seed")
    params, stats, source = of_seed["params"], of_seed["stats"], points[number].source
    method, shape = make_method(points[number].cfg, source)[1], source.evaluated_shape
    logits_of = jax.jit(lambda params, stats, images: method.predict(params, stats, source.scale(images)).astype(np.float32))

    def predict(images: np.ndarray) -> np.ndarray:
        given = np.asarray(images)
        if given.dtype != np.uint8 or given.ndim != 4 or given.shape[1:] != shape:
            raise ValueError(f"images are {given.dtype} {list(given.shape)}: they must be uint8 [N, {', '.join(map(str, shape))}]")
        return np.asarray(logits_of(params, stats, given))

    return Network(predict, shape, source.class_names, params, stats, chosen, seed)


def epoch_of_seed(workdir: pathlib.Path, rule: str = "", notes: list[str] | None = None) -> dict[int, int]:
    """{seed: the epoch that counts}, best_val or last by what a run answered; by default best_val where it has validation images.

    Of epochs with equal scores it is the first; `notes` gets a sentence where there are any.
    """
    frame = metrics.scores(workdir)
    chosen = rules.choose(frame, rule or ("best_val" if (frame["role"] == "val").any() else "last"), "first")
    if notes is not None and (tied := int((chosen["tied_epochs"] > 1).sum())):
        notes.append(
            f"note: {workdir}: {tied} of {len(chosen)} seeds had several epochs with the best validation score, and the first is taken. "
            "`jaxbed stats` takes their mean: compare its scores with --ties first"
        )
    return {int(seed): int(epoch) for seed, epoch in zip(chosen["run"], chosen["epoch"], strict=True)}
