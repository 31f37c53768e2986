"""InfoDrop's second phase: a fifth as many epochs without dropping, at learning rate 0.001, from the end of the first.

python -m jaxbed.main --config=configs/infodrop_finetune.py --config.init_from=runs/infodrop-shapes
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import infodrop
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.build("InfoDrop, fine-tuned", infodrop.Config(drop_rate=0.0), dataset)
    epochs = max(cfg.epochs // 5, 1)
    optim = dataclasses.replace(cfg.optim, lr=0.001, schedule="step", milestones_epochs=(0.8 * epochs,), warmup_epochs=0.0)
    return dataclasses.replace(cfg, optim=optim, epochs=epochs)
