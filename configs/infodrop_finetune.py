"""InfoDrop's whole recipe: with dropping, then a fifth as many epochs without it at learning rate 0.001, which are what is evaluated.

python -m jaxbed.main --config=infodrop_finetune
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import infodrop
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.build("InfoDrop, fine-tuned", infodrop.Config(), dataset)
    return dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, finetune_epochs=max(cfg.epochs // 5, 1)))
