"""ERM, the baseline.

python -m jaxbed.main --config=erm
python -m jaxbed.main --config=erm:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("ERM", erm.Config(), dataset)
