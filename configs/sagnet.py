"""SagNet, cut before stage 3, adversary weight and clipping 0.1 as in the paper; --config.method.variant=biasbed for BiasBed's.

python -m jaxbed.main --config=sagnet
"""

from jaxbed.config import Train
from jaxbed.methods import sagnet
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("SagNet", sagnet.Config(), dataset)
