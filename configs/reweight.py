"""Cross-entropy in which all groups weigh the same; --config.method.groups=classes for the labels' alone.

python -m jaxbed.main --config=reweight
python -m jaxbed.main --config=reweight:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import balance
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("Reweight", balance.Reweight(), dataset)
