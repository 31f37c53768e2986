"""BFFHQ (Kim et al., 2021; from FFHQ, CC BY-NC-SA 4.0): faces, young or old, where most young ones are women and most old ones men.

Label and bias are numbered as in the archive: 0 young or female, 1 old or male; an image is aligned if they are equal. The archive has 0.5,
1, 2 and 5 % conflicting images, with other counts than the paper's Table 8; `python data_prep/debias_sets.py bffhq DIR` writes tables that
sample the paper's sets from it. Both are read from DIR, see `biased_images`.
"""

import dataclasses
import pathlib

from jaxbed.data import biased_images
from jaxbed.data.source import Source

CLASSES = ("young", "old")
CURE = "Unpack the archive of DisEnt or BiasEnsemble there, or name its folder bffhq with --config.data.dir=FOLDER"


@dataclasses.dataclass
class Config(biased_images.Config):
    dir: str = "data/bffhq"

    def open(self) -> Source:
        """Raises FileNotFoundError, which names what is missing, and ValueError for invalid settings."""
        biased_images.check(self)
        root = pathlib.Path(self.dir)
        table, facts = biased_images.table_path(root, self.conflicting_percent), {}
        if table.is_file():
            listed, facts = biased_images.read_table(table, "bias", len(CLASSES)), biased_images.table_facts(table)
        else:
            listed = biased_images.read_archive(root, self.conflicting_percent, len(CLASSES), CURE)
        splits, read_facts = biased_images.read(self, root, listed)
        return biased_images.make_source(self, "bffhq", CLASSES, "gender", splits, facts | read_facts)
