"""Variants: runs that differ in a few numbers or in their training images alone, and so train as members of one array.

`--config.grid='("data.conflicting_percent=0.5,1,2,5,20",)'` runs all seeds at all five ratios in one process, compiled once; several
entries are combined, each value with each. Every grid point has a folder of its own in the workdir, with configuration and responses,
which is to statistics what the workdir of a single run is.

What changes the compiled program (width, batch size, method) cannot be swept: such runs go one by one.
"""

import ast
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxbed import config, parallel
from jaxbed.config import Train
from jaxbed.data.source import Source
from jaxbed.system import processes
from jaxbed.values import look_up, with_field


class GridPoint(NamedTuple):
    name: str  # of its folder: "conflicting_percent=1,lr=0.01"; empty where a run has one grid point
    cfg: Train  # what is trained of it, with no grid
    source: Source
    hparams: dict[str, float]  # that take the place of those the method starts with
    given: Train  # its own configuration, of which cfg may be a stage


def one(cfg: Train, source: Source) -> list[GridPoint]:
    return [GridPoint("", cfg, source, {}, cfg)]


def combine(cfg: Train) -> list[tuple[str, Train, dict[str, Any]]]:
    """Name, configuration and {field: value} of each grid point of a run; nothing is opened. ValueError for an impossible grid."""
    parsed = [_parse(entry, cfg) for entry in cfg.grid]
    paths = [path for path, _ in parsed]
    if len(set(paths)) < len(paths):
        raise ValueError(f"grid: one of {', '.join(paths)} is there twice; write all its values in one entry")
    combinations = []
    for values in itertools.product(*(options for _, options in parsed)):
        combined, names = dataclasses.replace(cfg, grid=()), []
        for path, value in zip(paths, values, strict=True):
            part, _, field = path.partition(".")
            combined = with_field(combined, path, value)
            names.append(f"{field}={value}")
            if part != "data":
                combined = dataclasses.replace(combined, name=f"{combined.name} {field}={value}")
        combinations.append((",".join(names), combined, dict(zip(paths, values, strict=True))))
    return combinations


def open_all(cfg: Train, opened: Sequence[GridPoint] = (), trained: Callable[[Train], Train] = lambda cfg: cfg) -> list[GridPoint]:
    """The grid points of a run, each data set opened once, or taken from `opened`. ValueError for an impossible grid.

    trained: what is trained of a grid point's configuration, where that is one stage of it.
    """
    points: list[GridPoint] = []
    for name, given, values in combine(cfg):
        stage_cfg = trained(given)
        source = next((v.source for v in (*opened, *points) if v.cfg.data == stage_cfg.data), None) or stage_cfg.data.open()
        hparams = {path.partition(".")[2]: look_up(stage_cfg, path, path) for path in values if not path.startswith("data.")}
        points.append(GridPoint(name, stage_cfg, source, hparams, given))
    _check_sources(points)
    return points


def _parse(entry: str, cfg: Train) -> tuple[str, list[Any]]:
    """'optim.lr=0.1,0.01' -> ('optim.lr', [0.1, 0.01])."""
    path, equals, text = entry.partition("=")
    part, _, field = path.partition(".")
    holder = getattr(cfg, part) if part in ("data", "optim", "method") else None
    if not equals or holder is None or field not in {f.name for f in dataclasses.fields(holder)}:
        raise ValueError(f"grid {entry!r}: write FIELD=VALUE,VALUE with a field of data, optim or method, e.g. 'optim.lr=0.1,0.01'")
    allowed = getattr(holder, "varies", ())
    if part == "data" and field not in allowed:
        raise ValueError(
            f"grid {entry!r}: of this data set, {', '.join(allowed) or 'nothing'} can vary in one array; run the others one by one"
        )
    values = [_value(word) for word in text.split(",")]
    if len(set(values)) < len(values) or "" in values:
        raise ValueError(f"grid {entry!r}: each value once, separated by commas")
    if part != "data":
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (getattr(holder, field), *values)):
            raise ValueError(f"grid {entry!r}: of optim and method, only numbers can vary in one array; run the others one by one")
        if len(np.unique(np.array(values, np.float32))) < len(values):
            raise ValueError(f"grid {entry!r}: two of these values are one number in 32 bits")
    for word in text.split(","):
        config.from_word(cfg, path, word, f"grid {entry!r}")
    return path, values


def _value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _check_sources(points: list[GridPoint]) -> None:
    first = points[0].source
    for name, _, source, *_ in points[1:]:
        if source.components or source.train.image.shape != first.train.image.shape or source.class_names != first.class_names:
            raise ValueError(
                f"grid: {points[0].name} trains on {list(first.train.image.shape)} and {name} on {list(source.train.image.shape)}, of "
                f"{len(first.class_names)} and {len(source.class_names)} classes: one array needs equal ones, so run them one by one"
            )


def hparams(points: list[GridPoint], known: set[str], seeds: int) -> dict[str, np.ndarray]:
    """{name: value of every member [S]}, members running through the seeds of one grid point, then of the next."""
    strange = sorted(set(points[0].hparams) - known)
    if strange:
        raise ValueError(f"grid: {', '.join(strange)} is compiled into the step; in one array can vary {', '.join(sorted(known))}")
    return {name: np.repeat(np.array([point.hparams[name] for point in points], np.float32), seeds) for name in points[0].hparams}


def seeds_of_point(cfg: Train, whole: parallel.Seeds) -> parallel.Seeds:
    """The seeds of one grid point, laid over the same devices as all."""
    if whole.size == cfg.seeds:
        return whole
    rows = math.gcd(cfg.seeds, whole.rows)
    columns = whole.columns if processes.count() == 1 else whole.rows * whole.columns // rows  # each process has its part
    mesh = dataclasses.replace(cfg.mesh, seed=rows, data=columns)
    return parallel.Seeds(cfg.seeds, cfg.first_seed, mesh)
