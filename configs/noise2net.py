"""Noise2Net (Hendrycks et al., 2021): half of every batch passes through networks of random weights, one for each image.

python -m jaxbed.main --config=noise2net
python -m jaxbed.main --config=noise2net:imagenet --config.data.train=DIR --config.data.val=DIR --config.init_from=resnet50.pth

Noise2Net's settings are those of the authors' code: eps up to 0.75, four blocks of 16 hidden channels, the first half of a batch. On
`imagenet` so is the schedule: from torchvision's weights (which the paper does not say), 30 epochs, batch 1024, learning rate 0.1, weight
decay 1e-4, Nesterov, a cosine per step. Expected in the paper: 57.6 % error on ImageNet-R, and 7.2 % on ImageNet-val's images of its 200
classes. Elsewhere with what all methods have there.

eps is in units of the images that the network sees, whose standard deviation is about 1 where a data set normalises them. Where none does,
as on Colored MNIST, whose images are divided by 255 twice, lower it: --config.method.strength=0.0007.
"""

from jaxbed.config import Train
from jaxbed.methods import noise2net
from jaxbed.presets import datasets, deepaugment


def get_config(dataset: str = "shapes") -> Train:
    cfg = datasets.build("Noise2Net", noise2net.Config(), dataset)
    return deepaugment.schedule(cfg) if dataset == "imagenet" else cfg
