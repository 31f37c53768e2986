"""EnD with alpha = beta = 0.1, the defaults of the authors' code; --config.method.variant=published for what that code computes.

Results depend much on both weights, and a sweep trains many values in one array.

python -m jaxbed.main --config=end
python -m jaxbed.main --config=end:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
python -m jaxbed.main --config=end '--config.sweep=("method.alpha=0.1,0.5,1,5,10","method.beta=0.1,0.5,1,5,10")'
"""

from jaxbed.config import Train
from jaxbed.methods import end
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("EnD", end.Config(), dataset)
