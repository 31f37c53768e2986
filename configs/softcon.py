"""SoftCon: the biased network first, then batches of which a third, but at most 64 images, are for the contrast.

python -m jaxbed.main --config=softcon
python -m jaxbed.main --config=softcon:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import softcon
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.build("SoftCon", softcon.Config(), dataset)
    return dataclasses.replace(cfg, method=dataclasses.replace(cfg.method, contrastive=min(64, cfg.batch_size // 3)))  # 64 beside 128 there
