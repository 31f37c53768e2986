"""GroupDRO with eta = 0.01 on batches drawn from all groups alike.

The groups are each label's aligned and its conflicting images; --config.method.groups=cells takes all pairs of label and bias, as the paper
does. With two classes these are the same.

python -m jaxbed.main --config=groupdro
python -m jaxbed.main --config=groupdro:colored_mnist --config.data.dir=FOLDER_OF_MNIST_IDX_FILES
python -m jaxbed.main --config=groupdro:waterbirds --config.data.dir=FOLDER '--config.sweep=("method.adjustment=0,1,2,3",)'
"""

from jaxbed.config import Train
from jaxbed.methods import groupdro
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    return datasets.build("GroupDRO", groupdro.Config(), dataset)
