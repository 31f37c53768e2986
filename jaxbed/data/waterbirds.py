"""Waterbirds (Sagawa et al., 2020): birds of CUB-200-2011 on backgrounds of Places, most land birds on land and most water birds on water.

It reads DIR/metadata_<percent>pct.csv. data_prep/debias_sets.py writes it for a subset of the published archive, data_prep/waterbirds.py
generates images from CUB, its segmentations and Places with the counts of Lee et al. (2022). Both have a *biased* validation set, as in
that paper. For the published set itself use --config.data.table=metadata.csv: 5 % of its training and half of its validation images
conflict.

Labels are those of the table: the published table calls Eastern Towhee, Western Meadowlark and Western Wood Pewee water birds, since "tern"
is part of their names. The paper's test set has 8,654 images of unknown origin; here it is the published one with 5,794. For non-commercial
research only, like CUB and Places.
"""

import dataclasses
import pathlib

from jaxbed.data import biased_images
from jaxbed.data.source import Source

CLASSES = ("landbird", "waterbird")  # numbered like the background: 0 land, 1 water
PUBLISHED = "metadata.csv"


@dataclasses.dataclass
class Config(biased_images.Config):
    dir: str = "data/waterbirds"
    table: str = ""  # file in dir; empty: metadata_<conflicting_percent>pct.csv

    def open(self) -> Source:
        """Raises FileNotFoundError, which names what is missing and how to get it, and ValueError for invalid settings."""
        biased_images.check(self)
        root = pathlib.Path(self.dir)
        table = root / self.table if self.table else biased_images.table_path(root, self.conflicting_percent)
        if not table.is_file():
            other = f"; for the published set itself use --config.data.table={PUBLISHED}" if (root / PUBLISHED).is_file() else ""
            raise FileNotFoundError(
                f"{table} is missing: python data_prep/debias_sets.py waterbirds {root} writes it from the published archive "
                f"waterbird_complete95_forest2water2, data_prep/waterbirds.py from CUB-200-2011 and Places{other}"
            )
        listed, facts = biased_images.read_table(table, "place", len(CLASSES)), biased_images.table_facts(table)
        if self.table:
            facts["conflicting_percent"] = None  # whatever the table has, see counts
        splits, read_facts = biased_images.read(self, root, listed)
        return biased_images.make_source(self, "waterbirds", CLASSES, "background", splits, facts | read_facts)
