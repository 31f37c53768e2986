"""CutMix in every step with alpha = 1, the paper's for ImageNet.

python -m jaxbed.main --config=cutmix
python -m jaxbed.main --config=cutmix:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import mixing
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("CutMix", mixing.CutMix(), dataset)
