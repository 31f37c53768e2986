"""HEX with 16 grey levels.

python -m jaxbed.main --config=hex
python -m jaxbed.main --config=hex:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import hex
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("HEX", hex.Config(), dataset)
