"""AugMix with the authors' code's settings for CIFAR: severity 3, width 3, depth 1 to 3, alpha 1, nine operations, weight 12.

On ImageNet their severity is 1, and so it is in augmix:imagenet. Without the Jensen-Shannon divergence: method.consistency=False.

python -m jaxbed.main --config=augmix
python -m jaxbed.main --config=augmix --config.method.consistency=False
"""

from jaxbed.config import Train
from jaxbed.methods import augmix
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("AugMix", augmix.Config(), dataset)
