"""ImageNet-C and ImageNet-C-bar as their authors published them: FOLDER/[GROUP/]CORRUPTION/SEVERITY/CLASS/IMAGE, 224 px, never resized.

ImageNet-C's archives unpack to groups (noise, blur, weather, digital, extra), which may be there or not. All cells hold the same images.
"""

import collections
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import image_files, imagenet_classes
from jaxbed.data.image_files import Size
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split
from jaxbed.measures.conditions import COMPLETE, corruption_name
from jaxbed.measures.corruption import SEVERITIES
from jaxbed.stats import tables
from jaxbed.system import files


class Cells(NamedTuple):
    """One benchmark in a folder."""

    folders: dict[str, pathlib.Path]  # of each corruption at each severity, "fog_3"
    label: dict[str, np.ndarray]  # [n] of each
    faults: list[str]  # in words: cells that are missing, or hold other images than most
    name: np.ndarray  # [n] of the images of most cells


def look(benchmark: str, folder: pathlib.Path, source: Source, severities: Sequence[int] = SEVERITIES) -> Cells:
    """What is there. Raises ValueError where nothing is, and for other classes than the data set's."""
    folders, faults = {}, []
    for corruption in COMPLETE[benchmark]:
        for severity in severities:
            name = corruption_name(corruption, severity)
            if place := next(_places(folder, corruption, severity), None):
                folders[name] = place
            else:
                faults.append(f"{name} is missing")
    if not folders:
        layout = "CORRUPTION/SEVERITY/CLASS/IMAGE, with or without folders of groups above"
        raise ValueError(f"{folder} has no corruption of {benchmark}, such as {COMPLETE[benchmark][0]}: it must hold {layout}")
    digests, label = {}, {}
    named: dict[str, np.ndarray] = {}  # by digest: cells hold the same images, and names of all would fill the memory
    for name, place in folders.items():
        split = open_cell(place, source).split
        digests[name] = hashlib.sha256("\n".join(split.name).encode()).hexdigest()
        named.setdefault(digests[name], split.name)
        label[name] = split.label
    usual = collections.Counter(digests.values()).most_common(1)[0][0]
    images = len(named[usual])
    faults += [f"{name} has {len(label[name])} images, which are not the {images} of most" for name in digests if digests[name] != usual]
    return Cells(folders, label, faults, named[usual])


def write_images(folder: pathlib.Path, cells: Cells) -> None:
    """Writes which images the answers in `folder`, WORKDIR/measures/<benchmark>, are about: images.csv, in the form that evaluation writes.

    All cells must hold the same images.
    """
    label = next(iter(cells.label.values()))
    frame = pd.DataFrame({"name": cells.name, "label": label, "cue": np.full(len(label), -1)})
    files.write(folder / "images.csv", tables.csv_text(frame))


def open_cell(folder: pathlib.Path, source: Source) -> EvaluationSet:
    """The images of one cell. Raises ValueError for other classes than the data set's; reading them, for images of another size."""
    side_px = source.evaluated_shape[0]
    opened = image_files.open_location(str(folder), Size(side_px, 0, "unchanged"))
    if source.class_names == imagenet_classes.WNIDS:
        opened = imagenet_classes.thousand(str(folder), opened)
    if opened.classes != source.class_names:
        raise ValueError(f"{folder} has the classes {', '.join(opened.classes[:3])}, ..., and {source.name} has others: is it another set?")
    none = np.full(len(opened.labels), -1, np.int32)
    return EvaluationSet(Split(opened.images, opened.labels, none, opened.images.names), "ood")


def _places(folder: pathlib.Path, corruption: str, severity: int) -> Iterator[pathlib.Path]:
    for place in (folder / corruption / str(severity), *sorted(folder.glob(f"*/{corruption}/{severity}"))):
        if place.is_dir():
            yield place
