"""DSU at all six places with the paper's p = 0.5.

python -m jaxbed.main --config=dsu
"""

from jaxbed.config import Train
from jaxbed.methods import dsu
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("DSU", dsu.Config(), dataset)
