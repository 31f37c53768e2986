"""DFR as published: ERM on the training images, then a new head on half of the validation images; the other half selects epochs.

python -m jaxbed.main --config=dfr_val
python -m jaxbed.main --config=dfr_val:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import dfr
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("DFR, held out", dfr.Config(held_out=0.5), dataset)
