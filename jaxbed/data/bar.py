"""BAR (Nam et al., 2020): six actions, most of them in a typical place.

A picture is aligned (typical place) or not, and no more is known: there is no bias label. The cue of a conflicting picture is therefore a
dummy, the class after its own, as in BiasEnsemble: aligned and conflicting accuracy mean what they say, but cells (label, cue) and methods
that read bias labels have no meaning here. Lee et al. (2022) leave those methods out. The photographs have licences of their own, the
set has none: do not pass it on.

Two forms are read. A table DIR/metadata_<percent>pct.csv, which `python data_prep/debias_sets.py bar DIR` writes into the folder of the
original set (train/ and test/, flat), with the paper's counts as far as they can be had; or BiasEnsemble's archive:

    DIR/train/align/**/*_<y>_<b>.*, DIR/train/conflict/{1,5}pct/**/*_<y>_<b>.*, DIR/valid/** (or val), DIR/test/**
"""

import dataclasses
import pathlib

import numpy as np

from jaxbed.data import biased_pictures
from jaxbed.data.biased_pictures import Listed
from jaxbed.data.source import Source

CLASSES = ("climbing", "diving", "fishing", "pole vaulting", "racing", "throwing")  # as files are named, with a space
PERCENTS = (1, 5, 20)


@dataclasses.dataclass
class Config(biased_pictures.Config):
    dir: str = "data/bar"

    def open(self) -> Source:
        """Raises FileNotFoundError, saying what was expected where and how to get it, and ValueError for other settings."""
        biased_pictures.check(self, PERCENTS)
        root = pathlib.Path(self.dir)
        table, facts = biased_pictures.table_path(root, self.conflicting_percent), {}
        if table.is_file():
            listed, facts = biased_pictures.read_table(table, "bias", len(CLASSES)), biased_pictures.table_facts(table)
        else:
            listed = read_archive(root, self.conflicting_percent)
        facts["bias_label"] = "none: aligned or conflicting is all that is known"
        splits, told = biased_pictures.read(self, root, listed)
        return biased_pictures.make_source(self, "bar", CLASSES, "place", splits, facts | told)


def read_archive(root: pathlib.Path, percent: float) -> list[Listed]:
    """[train, val, test] of BiasEnsemble's archive. In training the folder tells what is aligned, elsewhere the name."""
    align = root / "train" / "align"
    conflict = biased_pictures.first_of(*(root / "train" / name / f"{percent:g}pct" for name in ("conflict", "conlict")))
    val, test = biased_pictures.first_of(root / "valid", root / "val"), root / "test"
    for place in (align, conflict, val, test):
        if not biased_pictures.list_pictures(place):
            raise FileNotFoundError(
                f"no pictures under {place}, and no {biased_pictures.table_path(root, percent).name}: expected is BiasEnsemble's archive; "
                f"of the original BAR (train/ and test/), python data_prep/debias_sets.py bar {root} makes the table"
            )
    aligned, conflicting, *others = (biased_pictures.read_names(root, [place], len(CLASSES)) for place in (align, conflict, val, test))
    aligned, conflicting = aligned._replace(cue=aligned.label), conflicting._replace(cue=dummy(conflicting.label))
    train = Listed(*(np.concatenate(pair) for pair in zip(aligned, conflicting, strict=True)))
    return [train, *(rows._replace(cue=np.where(rows.cue == rows.label, rows.label, dummy(rows.label))) for rows in others)]


def dummy(label: np.ndarray) -> np.ndarray:
    """The cue of conflicting pictures, whose place votes for no known class."""
    return (label + 1) % len(CLASSES)
