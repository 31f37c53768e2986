"""Methods that train in several stages: first-stage networks, fine-tuning, phases.

The Config of such a method has a function

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]

which names its runs in order, the run itself last. Each is made from the run's own configuration by `dataclasses.replace`. One command
trains all of them, with the seeds and grid points of the run, and resumes at any point (`training.staged`); the trainer sees one at a time.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from jaxbed.config import Train, is_weights
from jaxbed.method import Method

PyTree = Any
Outputs = Callable[[Method, PyTree, PyTree, jax.Array, jax.Array], dict[str, jax.Array]]
Columns = Callable[[dict[str, np.ndarray], np.ndarray, Callable[[str], None]], dict[str, np.ndarray]]


class Stage(NamedTuple):
    """One run of those that a method consists of.

    A stage before the last lives in WORKDIR/stages/NAME like any run and is not evaluated. Its networks are those of the run's seeds and
    grid points, but that values of the method itself do not vary between them. Its images are in the order of the last stage's.
    """

    name: str  # of its folder and in messages: "biased networks"; of the last stage empty
    cfg: Train  # what is trained; of the stages before the last, seeds, name and grid are filled in
    networks: int = 1  # for each seed of the run
    start: str = ""  # the earlier stage whose parameters and statistics it takes, member by member; empty: afresh, or from cfg.init_from
    outputs: Outputs | None = None  # (method, params, stats, image, label), of one network and batch -> {name: [B, ...]} that are kept
    columns: Columns | None = None  # of one seed: ({name: [networks, N, ...]} kept, label [N], say) -> {name: [N, ...]} for batches


@runtime_checkable
class Staged(Protocol):
    """The Config of a method that trains in several stages."""

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]: ...


def of(cfg: Train) -> tuple[Stage, ...]:
    """The stages of a run, itself last. Raises ValueError for stages that do not fit each other."""
    if not isinstance(cfg.method, Staged):
        return (Stage("", cfg),)
    stages = cfg.method.training_stages(cfg)
    for number, stage in enumerate(stages):
        earlier = {each.name: each for each in stages[:number]}
        if (number == len(stages) - 1) == bool(stage.name) or stage.name in earlier:
            raise ValueError(f"{cfg.name}: stage {number + 1} is named {stage.name!r}: all but the last need names, each its own")
        warmup, epochs = stage.cfg.optim.warmup_epochs, stage.cfg.epochs
        if stage.name and warmup >= epochs:
            field = "method.epochs_before" if getattr(cfg.method, "epochs_before", 0) else "epochs"
            raise ValueError(
                f"{field} = {epochs}: optim.warmup_epochs = {warmup} leaves nothing of these epochs of the stage {stage.name!r}: "
                f"set {field} to {math.floor(warmup) + 1} or more, or shorten the warm-up"
            )
        if stage.start and stage.cfg.init_from and not is_weights(stage.cfg.init_from):
            raise ValueError(
                f"init_from = {stage.cfg.init_from}: {cfg.name} trains in {len(stages)} stages, the last from the one before: no "
                "network would start from that run. Name a file of weights, or choose settings with one stage"
            )
        if stage.start and (stage.start not in earlier or earlier[stage.start].networks != stage.networks):
            raise ValueError(
                f"{cfg.name}: stage {number + 1} starts from {stage.start!r}: name an earlier one with as many networks for each seed, "
                f"of {', '.join(earlier) or 'none'}"
            )
    return stages
