"""DeepAugment ERM (Hendrycks et al., 2021): ERM on ImageNet and on ImageNet redrawn by networks with damaged weights, equal shares.

python -m jaxbed.main --config=deepaugment_erm:cae_edsr --config.data.train=IMAGENET/train --config.data.more='("CAE","EDSR")' \
    --config.init_from=resnet50.pth ...

After the colon: cae, edsr or cae_edsr (the folders that data.more then names), in the authors' schedule: from torchvision's weights, 30
epochs of all images, batch 1024, Nesterov, cosine. With _biasbed appended, BiasBed's: from scratch, 100 epochs, as its other methods. Its
released loader gave ImageNet twice where CAE was asked for.
"""

import dataclasses

from jaxbed.config import Train
from jaxbed.methods import erm
from jaxbed.presets import datasets

SETS = {"cae": 1, "edsr": 1, "cae_edsr": 2}  # folders beside ImageNet


def get_config(which: str = "cae_edsr") -> Train:
    sets = which.removesuffix("_biasbed")
    if sets not in SETS:
        raise ValueError(f"DeepAugment has no images {which!r}: after the colon comes {', '.join(SETS)}, or one of them with _biasbed")
    cfg = datasets.build(f"DeepAugment ERM ({sets.upper().replace('_', ' + ')})", erm.Config(), "imagenet" + which.removeprefix(sets))
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, shares=(1.0,) * (1 + SETS[sets])))
    if which == sets:
        optim = dataclasses.replace(cfg.optim, schedule="cosine", nesterov=True)
        cfg = dataclasses.replace(cfg, optim=optim, epochs=30, batch_size=1024)
    return cfg
