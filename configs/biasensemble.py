"""BiasEnsemble on LfF: five briefly trained biased networks say which images LfF's biased network is trained on.

python -m jaxbed.main --config=biasensemble
python -m jaxbed.main --config=biasensemble:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import biasensemble
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("BiasEnsemble", biasensemble.Config(), dataset)
