"""JTT: a short ERM, then its errors drawn many times as often; how short and how many is published for Waterbirds alone, see `published`.

python -m jaxbed.main --config=jtt
python -m jaxbed.main --config=jtt:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import jtt
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("JTT", jtt.Config(), dataset)
