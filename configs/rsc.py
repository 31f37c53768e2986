"""RSC as in DomainBed; --config.method.variant=spatial_channel or imagenet for the authors' two.

python -m jaxbed.main --config=configs/rsc.py
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import rsc


def get_config(dataset: str = "shapes") -> Train:
    return common.build("RSC", rsc.Config(), dataset)
