"""DeepAugment with AugMix (Hendrycks et al., 2021): AugMix whose images, clean views included, may be redrawn ones.

python -m jaxbed.main --config=deepaugment_augmix --config.data.train=IMAGENET/train --config.data.more='("CAE","EDSR")' \
    --config.data.val=DIR --config.init_from=resnet50.pth ...
python -m jaxbed.main --config=deepaugment_augmix:folder --config.data.train=DIR --config.data.table=TABLE.csv

After the colon as in deepaugment_erm: cae, edsr, cae_edsr (the default), one of them with _biasbed, or folder.

The training script was not released with the paper. The authors have shown parts of it: the views and the loss, the nine operations, a fill
of 128, which Pillow takes for (128, 0, 0), 30 epochs, SGD with Nesterov momentum, a cosine per step. Known from a public copy of it alone:
weight 12 of the divergence, width 3, alpha 1, severity 1, AugMix after the sets are joined, a start from torchvision's weights. Batch and
learning rate could not be recovered: they are deepaugment_erm's, 1024 and 0.1, as are weight decay and equal shares of the sets. A network
sees each image of a batch three times: with less memory, lower batch_size and optim.lr together. Expected in the paper: 53.2 % error on
ImageNet-R, 53.6 % mCE.
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import augmix
from jaxbed.presets import deepaugment

SOURCE = "augmix: the authors' script and a public copy of it (method.severity = 1.0, method.weight = 12.0, method.fill = dark_red)"


def get_config(which: str = "cae_edsr") -> Train:
    cfg = deepaugment.build("DeepAugment + AugMix", augmix.Config(), which)
    settings = augmix.Config(severity=1.0, width=3, alpha=1.0, operations=9, fill="dark_red", weight=12.0)
    return dataclasses.replace(cfg, method=settings, published=SOURCE)
