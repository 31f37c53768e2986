"""InfoDrop after the stem, r0 = 1.5, T = 0.03: the first phase of the paper's recipe; --config.method.variant=biasbed for BiasBed's.

python -m jaxbed.main --config=configs/infodrop.py
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import infodrop


def get_config(dataset: str = "shapes") -> Train:
    return common.build("InfoDrop", infodrop.Config(), dataset)
