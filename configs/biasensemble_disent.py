"""BiasEnsemble on DisEnt: five briefly trained biased networks say which images DisEnt's bias branch is trained on.

python -m jaxbed.main --config=biasensemble_disent
python -m jaxbed.main --config=biasensemble_disent:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
"""

from jaxbed.config import Train
from jaxbed.methods import biasensemble, disent
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("BiasEnsemble (DisEnt)", biasensemble.Config(base=disent.Config()), dataset)
