"""Stylized ERM: ERM on images whose texture says nothing. On ImageNet these are Stylized-ImageNet's (data_prep/stylized_imagenet.py).

python -m jaxbed.main --config=stylized_erm
python -m jaxbed.main --config=stylized_erm:imagenet --config.data.train=SIN/train --config.init_from=resnet50.pth ...

On `shapes` every shape wears any texture. `imagenet` is Geirhos et al.'s model A, which starts from torchvision's weights: 60 epochs,
learning rate 0.1, divided by 10 at 20 and 40; epochs are selected on stylised images held out of the training set. `imagenet_biasbed`
starts from scratch, for BiasBed's 100 epochs. Their model B, both sets together: --config.data.more='("IMAGENET/train",)'.
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.build("Stylized ERM", erm.Config(), dataset)
    if dataset == "shapes":
        return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, texture_correlation=1 / 16))
    if dataset == "imagenet":
        return dataclasses.replace(cfg, epochs=60, optim=dataclasses.replace(cfg.optim, milestones_epochs=(20, 40)))
    if dataset == "imagenet_biasbed":
        return cfg
    raise ValueError(f"there is no stylised {dataset!r}: after the colon comes shapes, imagenet or imagenet_biasbed")
