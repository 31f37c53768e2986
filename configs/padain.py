"""pAdaIN with the paper's p = 0.01.

python -m jaxbed.main --config=configs/padain.py
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import padain


def get_config(dataset: str = "shapes") -> Train:
    return common.build("pAdaIN", padain.Config(), dataset)
