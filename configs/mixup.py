"""Mixup with alpha = 0.2, the paper's for ImageNet.

python -m jaxbed.main --config=mixup
python -m jaxbed.main --config=mixup:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import mixing
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("Mixup", mixing.Mixup(), dataset)
