"""Waterbirds (Sagawa et al., 2020): birds of CUB-200-2011 before images of Places, most land birds on land and most water birds on water.

Read is DIR/metadata_<percent>pct.csv, which data_prep writes: debias_sets.py from the published archive, of which it leaves images out, or
waterbirds.py from CUB, its segmentations and Places, with the counts of Lee et al. (2022). Both have a *biased* validation set, as there.
The published set itself is --config.data.table=metadata.csv: 5 % conflicting in training, half of them in its validation set.

Labels are those of the table: the published one calls Eastern Towhee, Western Meadowlark and Western Wood Pewee water birds, since
"tern" is part of their names. The paper's test set has 8,654 images of unknown origin; here it is the published one, of 5,794.
For non-commercial research, as CUB and Places are.
"""

import dataclasses
import pathlib

from jaxbed.data import biased_images
from jaxbed.data.source import Source

CLASSES = ("landbird", "waterbird")  # as the background: 0 land, 1 water
PUBLISHED = "metadata.csv"


@dataclasses.dataclass
class Config(biased_images.Config):
    dir: str = "data/waterbirds"
    table: str = ""  # file in dir; empty: metadata_<conflicting_percent>pct.csv

    def open(self) -> Source:
        """Raises FileNotFoundError, saying what was expected where and how to get it, and ValueError for other settings."""
        biased_images.check(self)
        root = pathlib.Path(self.dir)
        table = root / self.table if self.table else biased_images.table_path(root, self.conflicting_percent)
        if not table.is_file():
            other = f"; the published set as it is: --config.data.table={PUBLISHED}" if (root / PUBLISHED).is_file() else ""
            raise FileNotFoundError(
                f"{table} is missing: python data_prep/debias_sets.py waterbirds {root} makes it from the published archive "
                f"waterbird_complete95_forest2water2, data_prep/waterbirds.py from CUB-200-2011 and Places{other}"
            )
        listed, facts = biased_images.read_table(table, "place", len(CLASSES)), biased_images.table_facts(table)
        if self.table:
            facts["conflicting_percent"] = None  # what the table holds, see counts
        splits, read_facts = biased_images.read(self, root, listed)
        return biased_images.make_source(self, "waterbirds", CLASSES, "background", splits, facts | read_facts)
