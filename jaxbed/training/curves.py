"""Live curves of a run in TensorBoard and Weights & Biases: one per seed, and their mean. Both are optional packages."""

import dataclasses
import importlib.util
import os
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxbed.system import files, processes

Metrics = Mapping[str, Sequence[float | None]]  # {name: value of each member [S], None where it became non-finite}


@dataclasses.dataclass
class Config:
    tensorboard: bool = False  # event files in WORKDIR/tensorboard, for `tensorboard --logdir`
    wandb: str = ""  # project of Weights & Biases; set WANDB_MODE=offline where there is no network


class Sink(Protocol):
    """Where the metrics of an epoch go. Another tracker is one more of these, opened in `open_all`."""

    def write(self, epoch: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


def check(config: Config) -> None:
    """Raises ValueError where a package that is asked for is not installed, or Weights & Biases has no key."""
    wanted = {"tensorboardX": ("tensorboard", config.tensorboard), "wandb": ("wandb", bool(config.wandb))}
    for package, (field, asked) in wanted.items():
        if asked and importlib.util.find_spec(package) is None:
            raise ValueError(f"curves.{field} needs the package {package}: pip install 'jaxbed[{field}]', or leave curves.{field} out")
    if config.wandb and os.environ.get("WANDB_MODE") not in ("offline", "disabled"):
        processes.first(lambda: _log_in(config.wandb))


def _log_in(project: str) -> None:
    """Looks for a key, and asks a person at a terminal for one; whether it is right is not asked here."""
    import wandb

    try:
        wandb.login(verify=False)
    except wandb.errors.Error as error:
        raise ValueError(f"curves.wandb = {project!r}: {error} Or set WANDB_MODE=offline, or leave curves.wandb out") from error


def open_all(config: Config, workdir: pathlib.Path, run: Mapping[str, Any], members: Sequence[str]) -> list[Sink]:
    """The sinks that are asked for. run: the configuration as it is saved; members: the name of each seed, as "seed 3 of lr=0.1"."""
    sinks: list[Sink] = []
    if config.tensorboard:
        sinks.append(TensorBoard(workdir / "tensorboard", members))
    if config.wandb:
        sinks.append(WeightsAndBiases(config.wandb, workdir, run, members))
    return sinks


def mean(values: Sequence[float | None]) -> float:
    """Mean of the members that are finite; NaN where none is."""
    finite = [value for value in values if value is not None]
    return float(np.mean(finite)) if finite else float("nan")


class TensorBoard:
    """One folder per member and one for their mean, so that a metric's curves share a plot."""

    def __init__(self, folder: pathlib.Path, members: Sequence[str]):
        import tensorboardX

        self._writers = [tensorboardX.SummaryWriter(str(folder / member)) for member in (*members, "mean")]

    def write(self, epoch: int, metrics: Metrics) -> None:
        for name, values in metrics.items():
            for writer, value in zip(self._writers, (*values, mean(values)), strict=True):
                if value is not None:
                    writer.add_scalar(name, value, epoch)
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class WeightsAndBiases:
    """One run per workdir, continued when the workdir's is."""

    def __init__(self, project: str, workdir: pathlib.Path, run: Mapping[str, Any], members: Sequence[str]):
        import wandb

        identity = workdir / "wandb-run.txt"
        if not identity.is_file():
            files.write(identity, secrets.token_hex(8) + "\n")
        self._members = members
        try:
            self._run = wandb.init(
                project=project,
                id=identity.read_text().strip(),
                name=f"{run['name']} {workdir.name}",
                config=dict(run),
                dir=str(workdir),
                resume="allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise ValueError(f"curves.wandb = {project!r}: {error}. Set WANDB_MODE=offline to keep the curves in {workdir}") from error

    def write(self, epoch: int, metrics: Metrics) -> None:
        row = {f"{name}/{member}": value for name, values in metrics.items() for member, value in zip(self._members, values, strict=True)}
        row |= {f"{name}/mean": mean(values) for name, values in metrics.items()}
        self._run.log({name: value for name, value in row.items() if value is not None}, step=epoch)

    def close(self) -> None:
        self._run.finish()
