"""What is trained for a run: itself, and the stages that come before it, each with its configuration, grid points and folder.

WORKDIR/stages/NAME/outputs.npz   {name: [members, networks, N, ...]}: what the networks of a stage gave for every training image

Runs that were made before stages had names keep their first one in WORKDIR/before, and its outputs in said.npz.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed import config, stages
from jaxbed.config import Train
from jaxbed.data.source import Source
from jaxbed.stages import Stage
from jaxbed.system import files
from jaxbed.training.members import GridPoint, combine, hparams, open_all
from jaxbed.training.program import hparams_of, make_method
from jaxbed.training.rng import FIRST_OF_STAGES
from jaxbed.tuning import launch

PyTree = Any
FOLDER, FILE = "stages", "outputs.npz"
FORMER_FOLDER, FORMER_FILE = "before", "said.npz"
CURE = "delete it, and python -m jaxbed.main makes it again"


class Job(NamedTuple):
    """One stage of a run, ready to be trained."""

    stage: Stage
    cfg: Train  # what is trained; the configuration of its folder, but for the last stage
    points: list[GridPoint]
    folder: pathlib.Path


def job(cfg: Train, workdir: pathlib.Path, number: int = -1, opened: Sequence[GridPoint] = ()) -> Job:
    """One stage of a run, by default the run itself. Data sets that are in `opened` are not opened again."""
    workdir, all_stages = pathlib.Path(workdir), stages.of(cfg)
    number %= len(all_stages)
    stage = all_stages[number]
    if number == len(all_stages) - 1:
        return Job(stage, stage.cfg, open_all(cfg, opened, lambda point_cfg: stages.of(point_cfg)[-1].cfg), workdir)
    shared = dataclasses.replace(cfg, grid=tuple(entry for entry in cfg.grid if not entry.startswith("method.")))
    points = open_all(shared, opened, lambda point_cfg: _earlier(point_cfg, number))
    former = workdir / FORMER_FOLDER
    folder = former if not number and former.is_dir() else workdir / FOLDER / stage.name.replace(" ", "_")
    return Job(stage, _earlier(shared, number), points, folder)


def saved_job(cfg: Train, workdir: pathlib.Path) -> Job:
    """The run itself of a workdir that was trained before. FileNotFoundError says where its relative paths are to be found."""
    try:
        return job(cfg, workdir)
    except FileNotFoundError as error:
        folder = (launch.logged(pathlib.Path(workdir), "header", "folder") or [""])[-1]
        if error.errno is not None or folder == str(pathlib.Path.cwd()):
            raise
        where = folder or "its log does not name it"
        cure = f"If the path is relative, run this command in the folder in which the run was started ({where})"
        raise FileNotFoundError(f"{error}. {cure}") from error


def jobs(cfg: Train, workdir: pathlib.Path, opened: Sequence[GridPoint] = ()) -> list[Job]:
    """All stages of a run, itself last; each data set is opened once."""
    planned: list[Job] = []
    for number in range(len(stages.of(cfg))):
        planned.append(job(cfg, workdir, number, [*opened, *(point for each in planned for point in each.points)]))
    return planned


def _earlier(cfg: Train, number: int) -> Train:
    """The configuration of a stage that comes before the run itself."""
    stage = stages.of(cfg)[number]
    return dataclasses.replace(
        stage.cfg,
        name=f"{cfg.name}: {stage.name}",
        published="",
        seeds=cfg.seeds * stage.networks,  # those of the run's first seed first
        first_seed=(number + 1) * FIRST_OF_STAGES + cfg.first_seed * stage.networks,
        init_from=stage.cfg.init_from if config.is_weights(stage.cfg.init_from) else "",
    )


def members(cfg: Train) -> np.ndarray:
    """Which member of an earlier stage each member of the run itself belongs to, [S].

    Counted in groups of `networks`. Members that differ in values of the method alone belong to the same.
    """
    shared = [{path: value for path, value in values.items() if not path.startswith("method.")} for _, _, values in combine(cfg)]
    distinct = [values for i, values in enumerate(shared) if values not in shared[:i]]
    return np.concatenate([distinct.index(values) * cfg.seeds + np.arange(cfg.seeds) for values in shared])


def outputs_file(folder: pathlib.Path) -> pathlib.Path:
    """Where the outputs of a stage's networks are, or will be."""
    former = folder / FORMER_FILE
    return former if former.is_file() else folder / FILE


def columns(cfg: Train, planned: list[Job], number: int, say: Callable[[str], None] = lambda text: None) -> dict[str, np.ndarray]:
    """{name: [S, N, ...]}: what the batches of one stage of a run carry of its training images; {} for most.

    cfg is the run's. Raises ValueError for outputs that are damaged or of another run, FileNotFoundError where they are missing.
    """
    this = planned[number]
    if not this.stage.columns:
        return {}
    last = number == len(planned) - 1
    member = members(cfg) if last else np.arange(len(this.points) * this.cfg.seeds)
    labels = [point.source.train.label for point in this.points for _ in range(this.cfg.seeds)]
    given: dict[str, np.ndarray] = {}
    for earlier in planned[:number]:
        if earlier.stage.outputs:
            networks = earlier.stage.networks
            given |= _read(outputs_file(earlier.folder), (len(earlier.points) * earlier.cfg.seeds // networks, networks, len(labels[0])))
    try:
        made = [
            this.stage.columns({name: array[row] for name, array in given.items()}, label, say)
            for row, label in zip(member, labels, strict=True)
        ]
    except KeyError as error:
        files_read = " or ".join(str(outputs_file(each.folder)) for each in planned[:number] if each.stage.outputs)
        raise ValueError(f"{files_read} is damaged ({error} is missing): {CURE}") from error
    return {name: np.stack([of_member[name] for of_member in made]) for name in made[0]}


def _read(path: pathlib.Path, shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: python -m jaxbed.main makes it")
    given = files.read_arrays(path, CURE)
    for name, array in given.items():
        if array.shape[:3] != shape:
            raise ValueError(f"{path} does not belong to this run ({name} is {list(array.shape)}, not {list(shape)}): {CURE}")
    return given


def example_columns(cfg: Train, source: Source, number: int = -1, rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
    """{name: [N, ...]}: columns of one member, as if the networks of earlier stages had given 0 for everything, or with `rng` at random.

    Random numbers are uniform from 0 to 1, and vectors of them scaled to length 1.
    """
    all_stages = stages.of(cfg)
    number %= len(all_stages)
    if not (make := all_stages[number].columns):
        return {}
    shapes = {name: shape for stage in all_stages[:number] if stage.outputs for name, shape in output_shapes(stage, source).items()}
    return make({name: _drawn(shape, rng) for name, shape in shapes.items()}, source.train.label, lambda text: None)


def _drawn(shape: jax.ShapeDtypeStruct, rng: np.random.Generator | None) -> np.ndarray:
    if rng is None:
        return np.zeros(shape.shape, shape.dtype)
    drawn = rng.random(shape.shape, np.float32)
    if drawn.ndim == 3:
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    return drawn < 0.5 if shape.dtype == bool else drawn.astype(shape.dtype)


def output_shapes(stage: Stage, source: Source) -> dict[str, jax.ShapeDtypeStruct]:
    """{name: [networks, N, ...]}: the shapes of what a stage's networks of one seed give."""
    assert stage.outputs
    give, rows, number = stage.outputs, len(source.train.label), jax.ShapeDtypeStruct((1,), np.int32)
    _, method = make_method(stage.cfg, source)
    image = jax.eval_shape(source.as_evaluated, jax.ShapeDtypeStruct((1, *source.train.image.shape[1:]), np.uint8))
    state = jax.eval_shape(method.init, jax.random.key(0), {"image": image, "label": number, "index": number})

    def one(params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
        return give(method, params, stats, image, label)

    given = jax.eval_shape(one, state.params, state.stats, image, number)
    return {name: jax.ShapeDtypeStruct((stage.networks, rows, *x.shape[1:]), x.dtype) for name, x in given.items()}


def check(points: list[GridPoint]) -> None:
    """Raises ValueError where a stage of a grid point could not be trained if it ran alone. Nothing is compiled or written."""
    for point in points:
        for stage in stages.of(point.given):
            config.check(stage.cfg)
            for part in (stage.cfg.method, stage.cfg.data):
                _check_batch(part, stage.cfg.batch_size)
            make_method(stage.cfg, point.source)
    if points[0].hparams:
        hparams(points, hparams_of(points[0].cfg, points[0].source), 1)


def _check_batch(part: Any, batch_size: int) -> None:
    """Asks each part of a configuration that has a rule for the number of images of a batch."""
    if rule := getattr(part, "check_batch", None):
        rule(batch_size)
    for field in dataclasses.fields(part) if dataclasses.is_dataclass(part) else ():
        _check_batch(getattr(part, field.name), batch_size)
