"""HEX with 16 grey levels.

python -m jaxbed.main --config=configs/hex.py
python -m jaxbed.main --config=configs/hex.py:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import hex


def get_config(dataset: str = "shapes") -> Train:
    return common.build("HEX", hex.Config(), dataset)
