"""DisEnt. Its weights and the decay of its learning rate are those published for each data set, see `published`.

python -m jaxbed.main --config=disent
python -m jaxbed.main --config=disent:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import disent
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("DisEnt", disent.Config(), dataset)
