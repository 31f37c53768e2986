"""LfF with q = 0.7 and alpha = 0.7.

python -m jaxbed.main --config=lff
python -m jaxbed.main --config=lff:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import lff
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("LfF", lff.Config(), dataset)
