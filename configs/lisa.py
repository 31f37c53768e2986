"""LISA with p_sel = 0.5 and alpha = 2, the authors' for two classes.

python -m jaxbed.main --config=lisa
python -m jaxbed.main --config=lisa:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import lisa
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("LISA", lisa.Config(), dataset)
