"""DFR: ERM, then as many epochs for a new head, on batches that hold all groups alike.

python -m jaxbed.main --config=dfr
python -m jaxbed.main --config=dfr:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import dfr
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("DFR", dfr.Config(), dataset)
