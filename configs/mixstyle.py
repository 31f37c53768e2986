"""MixStyle after stages 1 and 2 with the paper's p = 0.5 and alpha = 0.1.

python -m jaxbed.main --config=mixstyle
"""

from jaxbed.config import Train
from jaxbed.methods import mixstyle
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("MixStyle", mixstyle.Config(), dataset)
