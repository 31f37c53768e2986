"""Speckle noise (Rusak et al., 2020, "A Simple Way to Make Neural Networks Robust Against Diverse Image Corruptions").

python -m jaxbed.main --config=speckle
python -m jaxbed.main --config=speckle:imagenet --config.data.train=DIR --config.data.val=DIR --config.init_from=resnet50.pth ...

ERM of which half of every batch gets noise in proportion to its pixels, of one of five strengths. These are the five severities of
ImageNet-C's speckle_noise, so do not count that corruption. On `imagenet` with the authors' settings: torchvision's weights, 120 epochs,
batch 70, learning rate 1e-3, divided by 10 after 60, no weight decay; expected 68.3 % mCE. Elsewhere with what all methods have there.
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.augmented("Speckle noise", erm.Config(), dataset, noise="speckle")
    if dataset == "imagenet":
        optim = dataclasses.replace(cfg.optim, lr=1e-3, weight_decay=0.0, milestones_epochs=(60,))
        cfg = dataclasses.replace(cfg, optim=optim, epochs=120, batch_size=70)
    return cfg
