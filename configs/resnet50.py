"""A published network, evaluated without training: ResNet-50 (He et al., 2016), from --config.init_from=FILE.

python -m jaxbed.main --config=resnet50 --config.init_from=resnet50-0676ba61.pth --config.data.val=DIR --config.data.cue_conflict=DIR ... \
    --workdir=DIR

Expected of torchvision's first weights (Gavrikov and Keuper, 2024): shape bias .215 (1,280 images), ImageNetV2 63.14 %, ImageNet-A .03 %,
stylized_16 37.125 % (800 images). Inputs have ImageNet's mean and deviation; networks that scale pixels within the model say their own.
Other published ResNets: --config=network:resnext101_32x8d and others.
"""

from jaxbed.config import Train
from jaxbed.models import resnet
from jaxbed.presets import datasets


def get_config() -> Train:
    return datasets.published_network("ResNet-50", resnet.Config())
