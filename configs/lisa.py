"""LISA with p_sel = 0.5 and alpha = 2, the authors' for two classes.

python -m jaxbed.main --config=configs/lisa.py
python -m jaxbed.main --config=configs/lisa.py:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import lisa


def get_config(dataset: str = "shapes") -> Train:
    return common.build("LISA", lisa.Config(), dataset)
