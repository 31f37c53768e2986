"""MixStyle after stages 1 and 2 with the paper's p = 0.5 and alpha = 0.1.

python -m jaxbed.main --config=configs/mixstyle.py
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import mixstyle


def get_config(dataset: str = "shapes") -> Train:
    return common.build("MixStyle", mixstyle.Config(), dataset)
