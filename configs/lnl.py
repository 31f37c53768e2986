"""LNL with the authors' entropy = 0.01 and reversal = 0.1; --config.method.variant=paper for one update a batch.

python -m jaxbed.main --config=lnl
python -m jaxbed.main --config=lnl:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import lnl
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("LNL", lnl.Config(), dataset)
