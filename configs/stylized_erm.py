"""Stylized ERM: ERM on images whose texture says nothing. On ImageNet these are Stylized-ImageNet's (data_prep/stylized_imagenet.py).

python -m jaxbed.main --config=stylized_erm
python -m jaxbed.main --config=stylized_erm:imagenet --config.data.train=SIN/train --config.init_from=resnet50.pth ...
python -m jaxbed.main --config=stylized_erm:both --config.data.train=IMAGENET/train --config.data.more='("SIN/train",)' \
    --config.init_from=resnet50.pth ...

On `shapes` every shape wears any texture. `imagenet` and `both` are recipes of Geirhos et al. (2019), as their code's README gives them:
from torchvision's weights, batch 256, SGD at 0.1, weight decay 1e-4.

imagenet            model A: stylised images alone, 60 epochs, the rate divided by 10 every 20; epochs are selected on stylised images held
                    out of the training set
both                model B, "SIN + IN": ImageNet and stylised images shuffled together, 45 epochs of both, the rate divided by 10 every 15;
                    epochs are selected on images of ImageNet, of which training sees no stylised version either. It is the row "style
                    transfer" of Hendrycks et al. (2021); expected there: 25.4 % error on ImageNet, 58.5 % on ImageNet-R, 69.3 % mCE
imagenet_biasbed    BiasBed's: stylised images alone, from scratch, 100 epochs
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import datasets

STYLIZED = ("SIN/train",)  # the set next to ImageNet, where data.more names no other one


def get_config(dataset: str = "shapes") -> Train:
    if dataset == "both":
        cfg = datasets.build("Stylized ERM (SIN + IN)", erm.Config(), "imagenet")
        cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, more=STYLIZED))
        return dataclasses.replace(cfg, epochs=45, optim=dataclasses.replace(cfg.optim, milestones_epochs=(15, 30)))
    cfg = datasets.build("Stylized ERM", erm.Config(), dataset)
    if dataset == "shapes":
        return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, texture_correlation=1 / 16))
    if dataset == "imagenet":
        return dataclasses.replace(cfg, epochs=60, optim=dataclasses.replace(cfg.optim, milestones_epochs=(20, 40)))
    if dataset == "imagenet_biasbed":
        return cfg
    raise ValueError(f"there is no stylised {dataset!r}: after the colon comes shapes, imagenet, both or imagenet_biasbed")
