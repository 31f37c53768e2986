"""DeepAugment ERM (Hendrycks et al., 2021): ERM on ImageNet and on ImageNet redrawn by networks with damaged weights, equal shares.

python -m jaxbed.main --config=deepaugment_erm:cae_edsr --config.data.train=IMAGENET/train --config.data.more='("CAE","EDSR")' \
    --config.init_from=resnet50.pth ...
python -m jaxbed.main --config=deepaugment_erm:folder --config.data.train=DIR --config.data.table=TABLE.csv

After the colon: cae, edsr or cae_edsr (the folders that data.more then names), in the authors' schedule: from torchvision's weights, 30
epochs of all images, batch 1024, Nesterov, cosine. With _biasbed appended, BiasBed's: from scratch, 100 epochs, as its other methods. Its
released loader gave ImageNet twice where CAE was asked for. `folder`: your own images, the table listing those of all sets, with what all
methods have there.
"""

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import deepaugment


def get_config(which: str = "cae_edsr") -> Train:
    return deepaugment.build("DeepAugment ERM", erm.Config(), which)
