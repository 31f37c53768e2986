"""DisEnt with the weights of Colored MNIST: lambda_dis = lambda_swap_biased = 10, lambda_swap = 1.

python -m jaxbed.main --config=configs/disent.py
python -m jaxbed.main --config=configs/disent.py:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from configs import common
from jaxbed.config import Train
from jaxbed.methods import disent


def get_config(dataset: str = "shapes") -> Train:
    return common.build("DisEnt", disent.Config(), dataset)
