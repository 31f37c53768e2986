r"""A published network of `jaxbed.presets.published.NETWORKS`, evaluated without training, from --config.init_from=FILE.

python -m jaxbed.main --config=network:resnext101_32x8d --config.init_from=resnext101_32x8d-8ba56ff5.pth --config.data.val=DIR ... \
    --workdir=DIR

Those of "The Many Faces of Robustness" (Hendrycks et al., 2021). Inputs are scaled as each network expects. Expected there of
ResNeXt-101 32x8d: error on ImageNet-R 57.5 %, on ImageNet-200 6.2 %, mCE 66.7 %; docs/methods/published.md lists the networks.
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.data import imagenet
from jaxbed.presets import datasets, published


def get_config(name: str = "") -> Train:
    row = published.network(name)
    scale = dataclasses.replace(imagenet.Config().augment, mean=row.mean, std=row.std)
    return datasets.published_network(name, row.net, augment=scale)
