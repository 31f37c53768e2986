"""Random erasing (Zhong et al., 2020): ERM on images of which half have a rectangle filled.

python -m jaxbed.main --config=random_erasing
python -m jaxbed.main --config=random_erasing:imagenet --config.data.train=DIR --config.data.val=DIR ...

Rectangles as torchvision draws them, filled with the mean colour, as in "The Many Faces of Robustness" (DeepFashion Remixed); on CIFAR's
images those of the paper, filled with CIFAR's mean: --config.data.augment.erase_form=zhong.
"""

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    form = "zhong" if dataset.partition(":")[0] == "corrupted_cifar10" else "torchvision"
    return datasets.augmented("Random erasing", erm.Config(), dataset, erase=0.5, erase_form=form)
