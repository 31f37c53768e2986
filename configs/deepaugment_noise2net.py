"""DeepAugment with Noise2Net (Hendrycks et al., 2021): the row "all three" of their ablation, with Noise2Net on half of every batch.

python -m jaxbed.main --config=deepaugment_noise2net --config.data.train=IMAGENET/train --config.data.more='("CAE","EDSR")' \
    --config.data.val=DIR --config.init_from=resnet50.pth ...
python -m jaxbed.main --config=deepaugment_noise2net:folder --config.data.train=DIR --config.data.table=TABLE.csv

After the colon as in deepaugment_erm: cae, edsr, cae_edsr (the default), one of them with _biasbed, or folder. ImageNet, CAE and EDSR are
shuffled together, as in the authors' code, so that Noise2Net also changes redrawn images; with data.shares the first half of a batch would
never hold an image of the last set. Schedule and Noise2Net's settings are those of the authors' code (30 epochs from torchvision's weights,
batch 1024, learning rate 0.1, weight decay 1e-4, Nesterov, cosine; eps up to 0.75, half of the batch). Expected in the paper: 56.0 % error
on ImageNet-R, and 7.4 % on ImageNet-val's images of its 200 classes.
"""

from jaxbed.config import Train
from jaxbed.methods import noise2net
from jaxbed.presets import deepaugment


def get_config(which: str = "cae_edsr") -> Train:
    return deepaugment.build("DeepAugment + Noise2Net", noise2net.Config(), which, shuffled=True)
