"""RSC as in DomainBed; --config.method.variant=spatial_channel or imagenet for the authors' two.

python -m jaxbed.main --config=rsc
"""

from jaxbed.config import Train
from jaxbed.methods import rsc
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("RSC", rsc.Config(), dataset)
