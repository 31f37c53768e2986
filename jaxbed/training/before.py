"""Runs that come first: throw-away networks of a method, and what they say of every training image.

A method's Config may have `before(cfg, classes) -> Before`. The run that it asks for lives in WORKDIR/before like any other, with its own
configuration, log and checkpoints, but is not evaluated (`throwaway` trains it). What its networks say of the training images goes to
WORKDIR/before/said.npz; what a method makes of that goes into the main run's batches, seed by seed. Stopped at any point, the same command
goes on.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed import config
from jaxbed.data import held_out
from jaxbed.system import files
from jaxbed.training import initial
from jaxbed.training.variants import Variant, combine

PyTree = Any
FOLDER, FILE = "before", "said.npz"
FIRST_SEED = 2**20  # no seed of a main run

Ask = Callable[[PyTree, PyTree, jax.Array, jax.Array], dict[str, jax.Array]]
Tables = Callable[[dict[str, np.ndarray], np.ndarray, Callable[[str], None]], dict[str, np.ndarray]]


class Before(NamedTuple):
    """What a method needs to be trained first, on the same images and with the same network and optimizer."""

    name: str  # what the networks are: "bias models"
    method: Any  # Config
    epochs: int
    ask: Ask | None = None  # (params, stats, image, label) of one network and batch -> {name: [B, ...]}; reads no setting of the method
    tables: Tables | None = None  # of one seed: ({name: [nets, N, ...]} that they said, label [N], say) -> {name: [N, ...]} for its batches
    nets: int = 1  # for every seed of the main run
    start: bool = False  # the main run starts from these networks, and asks them nothing
    other_net: bool = False  # they are networks of another kind, which a file of weights to start from does not fit


def asked(cfg: config.Train, variants: list[Variant]) -> Before | None:
    """What comes before this run, if anything."""
    return cfg.method.before(cfg, len(variants[0].source.class_names)) if hasattr(cfg.method, "before") else None


def plan(cfg: config.Train, first: Before) -> config.Train:
    """The run that comes first: its seeds are nets · seeds, those of the main run's first seed first."""
    return dataclasses.replace(
        cfg,
        data=data_of(cfg, first),
        name=f"{cfg.name}: {first.name}",
        method=first.method,
        published="",
        epochs=first.epochs,
        seeds=cfg.seeds * first.nets,
        first_seed=FIRST_SEED + cfg.first_seed * first.nets,
        sweep=tuple(entry for entry in cfg.sweep if not entry.startswith("method.")),  # for other numbers of the method: the same networks
        init_from=cfg.init_from if initial.is_weights(cfg.init_from) and not first.other_net else "",
    )


def data_of(cfg: config.Train, first: Before) -> Any:
    """What the networks that come first are trained on: of a run that starts from them on held-out images, the data set itself."""
    return cfg.data.of if first.start and isinstance(cfg.data, held_out.Config) else cfg.data


def places(cfg: config.Train, first: Before, variants: list[Variant]) -> np.ndarray:
    """Where each member of the main run finds its networks, counted in nets: members that differ in the method alone have the same."""
    there = [(own.data, own.optim) for _, own, _ in combine(plan(cfg, first))]
    return np.concatenate([there.index((data_of(v.cfg, first), v.cfg.optim)) * cfg.seeds + np.arange(cfg.seeds) for v in variants])


def origin(cfg: config.Train, variants: list[Variant], workdir: pathlib.Path) -> tuple[str, np.ndarray | None]:
    """The run or file that the main run starts from, empty where it starts afresh; and each member's place there, if not its own."""
    first = asked(cfg, variants)
    return (str(pathlib.Path(workdir) / FOLDER), places(cfg, first, variants)) if first and first.start else (cfg.init_from, None)


def is_done(cfg: config.Train, variants: list[Variant], workdir: pathlib.Path) -> bool:
    """Whether the answers of the networks that come first are there, or none are needed."""
    first = asked(cfg, variants)
    return first is None or first.start or (pathlib.Path(workdir) / FOLDER / FILE).is_file()


def tables(
    cfg: config.Train, variants: list[Variant], workdir: pathlib.Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, np.ndarray]:
    """{name: [S, N, ...]} for the members of the main run; {} where nothing comes first. FileNotFoundError before that was trained."""
    first, path = asked(cfg, variants), pathlib.Path(workdir) / FOLDER / FILE
    if not is_done(cfg, variants, workdir):
        raise FileNotFoundError(f"{path} is missing: python -m jaxbed.main trains what comes before {cfg.name}")
    if first is None or first.start:
        return {}
    cure = "delete it, and python -m jaxbed.main makes it again"
    said, at = files.read_arrays(path, cure), places(cfg, first, variants)
    labels = [v.source.train.label for v in variants for _ in range(cfg.seeds)]
    expected = (max(at) + 1, first.nets, len(labels[0]))
    for name, array in said.items():
        if array.shape[:3] != expected:
            raise ValueError(f"{path} does not belong to this run ({name} is {list(array.shape)}, not {list(expected)}): {cure}")
    try:
        found = [
            first.tables({name: array[place] for name, array in said.items()}, label, say) for place, label in zip(at, labels, strict=True)
        ]
    except KeyError as error:
        raise ValueError(f"{path} is damaged ({error} is missing): {cure}") from error
    return {name: np.stack([of_member[name] for of_member in found]) for name in found[0]}
