"""DSU at all six places with the paper's p = 0.5.

python -m jaxbed.main --config=configs/dsu.py
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import dsu


def get_config(dataset: str = "shapes") -> Train:
    return common.build("DSU", dsu.Config(), dataset)
