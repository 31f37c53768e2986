"""ReBias with weights 1 and kernels of width 1; --config.method.bandwidth=median for widths that follow the features.

python -m jaxbed.main --config=rebias
python -m jaxbed.main --config=rebias:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import rebias
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("ReBias", rebias.Config(), dataset)
