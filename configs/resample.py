"""Cross-entropy on batches drawn from all groups alike; --config.method.groups=classes to balance the labels alone.

python -m jaxbed.main --config=resample
python -m jaxbed.main --config=resample:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import balance
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("Resample", balance.Resample(), dataset)
