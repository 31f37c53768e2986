"""pAdaIN with the paper's p = 0.01.

python -m jaxbed.main --config=padain
"""

from jaxbed.config import Train
from jaxbed.methods import padain
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("pAdaIN", padain.Config(), dataset)
