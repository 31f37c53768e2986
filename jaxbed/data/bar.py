"""BAR (Nam et al., 2020): six actions, most images in a typical place.

It is only known whether an image is aligned (typical place): there is no bias label. The bias of a conflicting image is therefore a dummy,
the class after its label, as in BiasEnsemble. Aligned and conflicting accuracy are meaningful, but cells (label, bias) and methods that
read bias labels are not. Lee et al. (2022) omit those methods. The photographs have individual licences, the data set has none: do not
redistribute it.

Two layouts are read: a table DIR/metadata_<percent>pct.csv, which `python data_prep/debias_sets.py bar DIR` writes into the folder of the
original set (train/ and test/, flat), with the paper's counts as far as possible; or BiasEnsemble's archive:

    DIR/train/align/**/*_<y>_<b>.*, DIR/train/conflict/{1,5}pct/**/*_<y>_<b>.*, DIR/valid/** (or val), DIR/test/**
"""

import dataclasses
import pathlib

import numpy as np

from jaxbed.data import biased_images
from jaxbed.data.biased_images import Listed
from jaxbed.data.source import Source

CLASSES = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")  # as files are named, with a space
PERCENTS = (1, 5, 20)


@dataclasses.dataclass
class Config(biased_images.Config):
    dir: str = "data/bar"

    def open(self) -> Source:
        """Raises FileNotFoundError, which names what is missing and how to get it, and ValueError for invalid settings."""
        biased_images.check(self, PERCENTS)
        root = pathlib.Path(self.dir)
        table, facts = biased_images.table_path(root, self.conflicting_percent), {}
        if table.is_file():
            listed, facts = biased_images.read_table(table, "bias", len(CLASSES)), biased_images.table_facts(table)
        else:
            listed = read_archive(root, self.conflicting_percent)
        facts["bias_label"] = "none: aligned or conflicting is all that is known"
        splits, read_facts = biased_images.read(self, root, listed)
        return biased_images.make_source(self, "bar", CLASSES, "place", splits, facts | read_facts)


def read_archive(root: pathlib.Path, percent: float) -> list[Listed]:
    """[train, val, test] of BiasEnsemble's archive. Alignment is given by the folder in training, and by the file name elsewhere."""
    align = root / "train" / "align"
    conflict = biased_images.first_of(*(root / "train" / name / f"{percent:g}pct" for name in ("conflict", "conlict")))
    val, test = biased_images.first_of(root / "valid", root / "val"), root / "test"
    for folder in (align, conflict, val, test):
        if not biased_images.list_images(folder):
            raise FileNotFoundError(
                f"no images under {folder}, and no {biased_images.table_path(root, percent).name}: unpack BiasEnsemble's archive there; "
                f"for the original BAR (train/ and test/), python data_prep/debias_sets.py bar {root} writes the table"
            )
    aligned, conflicting, *others = (biased_images.read_names(root, [folder], len(CLASSES)) for folder in (align, conflict, val, test))
    aligned, conflicting = aligned._replace(bias=aligned.label), conflicting._replace(bias=dummy(conflicting.label))
    train = Listed(*(np.concatenate(pair) for pair in zip(aligned, conflicting, strict=True)))
    return [train, *(rows._replace(bias=np.where(rows.bias == rows.label, rows.label, dummy(rows.label))) for rows in others)]


def dummy(label: np.ndarray) -> np.ndarray:
    """The dummy bias of conflicting images, whose place votes for no known class."""
    return (label + 1) % len(CLASSES)
