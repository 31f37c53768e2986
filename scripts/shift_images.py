"""The images of scripts/shift_study.py: PNG files, the tables that list them, and whether EDSR and CAE have learnt to restore them.

OUT/images has a folder for each set, with one sub-folder per class; DeepAugment's sets lie next to `train`. OUT/plain.csv lists all images
but DeepAugment's, and OUT/cae.csv, edsr.csv and cae_edsr.csv list them too.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from PIL import Image

from data_prep.image_network import TASKS
from jaxbed.data import image_files, shapes
from jaxbed.data.image_files import Size
from jaxbed.stats import tables
from jaxbed.system import files

OF_SHAPES = {"in_distribution": "test"}  # names of sets that differ in the table
BETTER_DB = 1.0  # than the mean colour of each image, at least
CHECKED = 256  # training images on which that is measured


class Labelled(NamedTuple):
    """An image of a set."""

    split: str
    label: str
    name: str
    image: np.ndarray  # [H, W, 3] uint8
    bias: str = ""


def write(data: str, out: pathlib.Path, counts: Mapping[str, int], side_px: int) -> None:
    """Writes the images and plain.csv. counts {train, val, test: images of such a set}; `test` is also that of shifted sets."""
    drawn = of_shapes(counts, side_px) if data == "shapes" else of_folder(pathlib.Path(data), counts, side_px)
    rows = []
    for each in drawn:
        path = out / "images" / each.split / each.label / f"{each.name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as file:
            Image.fromarray(each.image).save(file, "PNG")
        rows.append((path.relative_to(out / "images").as_posix(), each.label, each.bias, each.split))
    table = pd.DataFrame(rows, columns=["file", "label", "bias", "split"])
    files.write(out / "plain.csv", tables.csv_text(table))
    print(", ".join(f"{name} {count}" for name, count in table["split"].value_counts(sort=False).items()) + " images")


def of_shapes(counts: Mapping[str, int], side_px: int) -> Iterator[Labelled]:
    """All sets of the synthetic data set."""
    wanted = {**dict.fromkeys(shapes.SETS, counts["test"]), "train": counts["train"], "val": counts["val"]}
    for name, split in shapes.draw(side_px, wanted, shapes.Config().texture_correlation, 0).items():
        for image, label, bias, image_name in zip(split.image, split.label, split.bias, split.name, strict=True):
            worn = shapes.SHAPES[bias] if bias >= 0 else ""
            yield Labelled(OF_SHAPES.get(name, name), shapes.SHAPES[label], str(image_name), image, worn)


def of_folder(folder: pathlib.Path, counts: Mapping[str, int], side_px: int) -> Iterator[Labelled]:
    """Images of the sub-folders train (also those for validation) and test, and of shifted sets; in random order, at most `counts`."""
    for location in sorted(path for path in folder.iterdir() if path.is_dir()):
        opened = image_files.open_location(str(location), Size(side_px, side_px))
        order = np.random.default_rng(0).permutation(len(opened.images))
        parts = {"train": counts["train"], "val": counts["val"]} if location.name == "train" else {location.name: counts["test"]}
        if location.name == "train" and len(order) <= counts["val"]:
            raise ValueError(f"{location} has {len(order)} images, of which {counts['val']} are for validation: add images")
        start = 0
        for name, count in reversed(parts.items()):  # validation images first, so that few training images do not take them
            rows = order[start : start + count]
            for row, image in zip(rows, opened.images.take(rows)[0], strict=True):
                yield Labelled(name, opened.classes[opened.labels[row]], f"{location.name}-{row:06d}", image)
            start += count


def join(out: pathlib.Path, sets: Sequence[str]) -> None:
    """Writes the table of the images and of DeepAugment's sets, such as cae_edsr.csv."""
    plain = pd.read_csv(out / "plain.csv", keep_default_na=False)
    train = plain[plain["split"] == "train"]
    more = [train.assign(file=train["file"].str.replace("train/", f"{name}/", n=1)) for name in sets]
    files.write(out / f"{'_'.join(sets)}.csv", tables.csv_text(pd.concat([plain, *more])))


def check(net: str, out: pathlib.Path, side_px: int) -> None:
    """Reports how well a network restores training images. Raises ValueError where it is hardly better than their mean colour."""
    paths = sorted((out / "images" / "train").glob("*/*.png"))
    chosen = np.linspace(0, len(paths) - 1, min(CHECKED, len(paths))).astype(int)
    levels = np.stack([np.asarray(Image.open(paths[row]), np.float32) for row in chosen])
    task = TASKS[net]
    params = task.network.prepare(task.network.load(out / f"{net}.safetensors"))
    _, squared = jax.jit(task.loss)(params, levels, np.arange(len(levels), dtype=np.uint32))
    of_mean = np.square((levels - levels.mean((1, 2), keepdims=True)) / 255).mean()
    reached, mean_colour = (float(-10 * np.log10(error)) for error in (squared, of_mean))
    print(f"{net}: PSNR {reached:.2f} dB on {len(levels)} training images; the mean colour of each gives {mean_colour:.2f} dB", flush=True)
    if not reached >= mean_colour + BETTER_DB:
        raise ValueError(
            f"{net} restores images with {reached:.2f} dB, hardly better than their mean colour ({mean_colour:.2f} dB): raise its steps in "
            f"scripts/shift_study.py, delete {out / f'{net}.safetensors'} and the step in steps.json, and run the same command again"
        )
