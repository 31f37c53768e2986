"""How data_prep/deepaugment.py reads images, passes them through a distorted network in batches, and stores them."""

import io
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from data_prep.paintings import UNREADABLE
from jaxbed import parallel
from jaxbed.data import decode, image_files, stream
from jaxbed.data.deepaugment import runs
from jaxbed.data.deepaugment.mode import Mode
from jaxbed.data.deepaugment.networks import Drawn, Network
from jaxbed.system import files

FORMATS = {"jpeg": {"format": "JPEG", "quality": 75}, "png": {"format": "PNG"}}  # as Pillow saves them
LONGEST_PX = {"jpeg": 65_500}  # side that a format can store
READ = 4  # batches of images of a run that are read together, at most


class Work(NamedTuple):
    """All images to make."""

    content: Callable[[int], bytes]  # row -> encoded image
    names: list[str]  # by row: CLASS/FILE, or FILE in a folder without classes; draws depend on it
    outputs: list[str]  # by row: the same, with the extension of the stored image
    runs: list[np.ndarray]  # rows of each


class Job(NamedTuple):
    """How they are made."""

    network: Network
    net: str  # its name
    weights: dict[str, np.ndarray]
    mode: Mode
    seed: int
    side_px: int
    batch: int
    dtype: str
    form: str  # of FORMATS

    def generator(self, work: Work, row: int, purpose: str) -> np.random.Generator:
        return runs.generator(self.seed, self.net, work.names[row], purpose)

    def draw(self, work: Work, row: int) -> tuple[Drawn, tuple[str, ...]]:
        """What is random about the pass of one image, and the names of its options."""
        return self.network.draw(self.generator(work, row, "signal"), self.mode, self.weights)


def check_target(target: pathlib.Path, train: str) -> None:
    """Raises ValueError for a target that is the source or shares a folder with it, and for one with files of something else."""
    if not train.startswith("tfds:"):
        one, other = os.path.realpath(target), os.path.realpath(train)
        if os.path.commonpath([one, other]) in (one, other):
            raise ValueError(f"TARGET = {target} and --train {train} are in one another: name a folder outside of it for the new images")
    if target.exists() and not target.is_dir():
        raise ValueError(f"TARGET = {target} is a file: name a folder")
    if target.is_dir() and not (target / "recipe.json").is_file() and any(not path.name.startswith(".") for path in target.iterdir()):
        raise ValueError(f"TARGET = {target} has files, but no recipe.json of this command: name an empty folder")


def open_work(train: str, form: str, seed: int, net: str, refresh: float) -> Work:
    """The images of a location in their runs. Raises ValueError for images that are not stored whole, and for names that would collide."""
    folder = pathlib.Path(train)
    if folder.is_dir() and not (folder / "manifest.json").is_file() and not _has_folders(folder):
        listed = image_files.list_below(folder)
        if not listed:
            raise ValueError(f"{folder} contains no image ({', '.join(image_files.ENDINGS)})")
        names, labels, content = listed, np.zeros(len(listed), np.int32), image_files.files(folder, np.array(listed))
    else:
        opened = image_files.open_location(train, image_files.Size(1, 0))
        if opened.content is None:
            raise ValueError(f"{train} holds squares of {opened.stored_px} px, which were resized before: name the images themselves")
        names = [_in_class(str(name), opened.classes[label]) for name, label in zip(opened.images.names, opened.labels, strict=True)]
        labels, content = opened.labels, opened.content
    if outside := [name for name in names if name.startswith("/") or ".." in pathlib.PurePath(name).parts]:
        raise ValueError(f"{train} names {outside[0]!r}, which is outside its folder: rename that image")
    outputs = [str(pathlib.PurePosixPath(name).with_suffix(".png")) if form == "png" else name for name in names]
    if len(set(outputs)) < len(outputs):
        rows = sorted(range(len(outputs)), key=outputs.__getitem__)
        one, other = next(pair for pair in itertools.pairwise(rows) if outputs[pair[0]] == outputs[pair[1]])
        cure = "rename one of them" if form == "jpeg" else "rename one of them, or keep the extensions with --format jpeg"
        raise ValueError(f"{names[one]} and {names[other]} of {train} would both be written to {outputs[one]}: {cure}")
    return Work(content, names, outputs, runs.runs(names, labels, seed, net, refresh))


def _has_folders(folder: pathlib.Path) -> bool:
    return any(path.is_dir() and not image_files.is_system(path.name) for path in folder.iterdir())


def _in_class(name: str, folder: str) -> str:
    """CLASS/FILE with an extension of images, which records and TFDS may lack."""
    name = pathlib.PurePath(name).as_posix()
    name = name if name.startswith(f"{folder}/") else f"{folder}/{name}"
    return name if pathlib.PurePath(name).suffix.lower() in image_files.ENDINGS else f"{name}.JPEG"


def made(
    work: Work, job: Job, of_shard: list[np.ndarray], wanted: Set[int], pool: ThreadPoolExecutor, skipped: dict[str, str] | None
) -> Iterator[tuple[int, np.ndarray]]:
    """(row, image uint8 [H, W, 3]) of all wanted rows, while the device computes the next batch. skipped: {name: reason}; None: raise.

    Batches are those of whole runs, whichever of their images are wanted: an interruption changes none.
    """

    def load(row: int) -> np.ndarray | None:
        try:
            image = decode.image(work.content(row))
            longest = job.network.output_sizes(np.array(decode.resized_px(image.size, job.side_px))).max()
            if longest > (most := LONGEST_PX.get(job.form, longest)):
                raise ValueError(f"a result {longest:,} px long does not fit in {job.form.upper()}, which ends at {most:,} px")
            return np.asarray(decode.resized(image, job.side_px))
        except UNREADABLE as error:
            if row not in wanted:
                return None
            if skipped is None:
                cure = "restore it, or leave it out with --corrupt=skip"
                raise ValueError(f"image {work.names[row]} cannot be read ({error}): {cure}") from error
            skipped[work.outputs[row]] = str(error)
            return None

    def prepared() -> Iterator[tuple]:
        on_device = job.network.preparing(job.weights)
        for run in of_shard:
            if wanted.isdisjoint(run.tolist()):
                continue
            distorted, _ = job.network.distort(job.generator(work, run[0], "weights"), job.weights, job.mode)
            params = on_device(distorted)
            for first in range(0, len(run), READ * job.batch):
                group = run[first : first + READ * job.batch].tolist()
                if wanted.isdisjoint(group):
                    continue
                loaded = [(row, image) for row, image in zip(group, pool.map(load, group), strict=True) if image is not None]
                sizes_px = np.array([image.shape[:2] for _, image in loaded], np.int32).reshape(-1, 2)
                for canvas, chosen in runs.batches(sizes_px, job.batch):
                    rows = [loaded[index][0] for index in chosen]
                    if wanted.isdisjoint(rows):
                        continue
                    levels = np.zeros((len(chosen), *canvas, 3), np.uint8)
                    for on_canvas, index in zip(levels, chosen, strict=True):
                        height, width = sizes_px[index]
                        on_canvas[:height, :width] = loaded[index][1]
                    drawn = jax.tree.map(lambda *fields: np.stack(fields), *(job.draw(work, row)[0] for row in rows))
                    yield rows, sizes_px[chosen], params, levels, drawn

    def computed() -> Iterator[tuple[Any, jax.Array]]:
        for rows, sizes_px, params, levels, drawn in stream.ahead(prepared()):
            yield (rows, sizes_px), job.network.outputs(params, levels, sizes_px, drawn, job.dtype)

    for (rows, sizes_px), images in parallel.fetched(computed()):
        for row, image, (height, width) in zip(rows, images, job.network.output_sizes(sizes_px), strict=True):
            if row in wanted:
                yield row, image[:height, :width]


def encoded(image: np.ndarray, form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, **FORMATS[form])
    return file.getvalue()


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(decode.image(content))


def write(path: pathlib.Path, image: np.ndarray, form: str) -> None:
    """Writes one image. An existing file is complete: it is renamed last."""
    with files.replacing(path, lasting=False) as file:
        file.write(encoded(image, form))


def fault(work: Work, job: Job, row: int, target: pathlib.Path, form: str) -> str:
    """What is wrong with a stored image, or nothing."""
    try:
        content = (target / work.outputs[row]).read_bytes()
        height, width, _ = decoded(content).shape
        with Image.open(io.BytesIO(content)) as opened:
            stored = opened.format
        with Image.open(io.BytesIO(work.content(row))) as source:
            sides_px = decode.resized_px(source.size, job.side_px)
    except UNREADABLE as error:
        return str(error)
    if stored != FORMATS[form]["format"]:
        return f"it is {stored}, and must be {FORMATS[form]['format']}"
    expected = job.network.output_sizes(np.array(sides_px[::-1]))
    if [height, width] != expected.tolist():
        return f"it has {height} x {width} pixels, and must have {expected[0]} x {expected[1]}"
    return ""
