"""What the configurations of DeepAugment share: its sets of images, and the schedule of its authors' code.

Hendrycks et al., "The Many Faces of Robustness" (2021). Their code, unlike the paper, says that training starts from torchvision's weights
(--config.init_from=resnet50.pth): 30 epochs of all images, batch 1024, SGD with Nesterov momentum, learning rate 0.1, weight decay 1e-4, a
cosine per step. Differs: the cosine ends at 0, theirs at 2.5e-7.
"""

import dataclasses

from jaxbed.config import MethodConfig, Train
from jaxbed.presets import datasets

BOTH = ("CAE", "EDSR")
SETS = {"cae": ("CAE",), "edsr": ("EDSR",), "cae_edsr": BOTH, "imagenet": BOTH}  # folders next to ImageNet


def schedule(cfg: Train) -> Train:
    """A run on ImageNet, in the authors' schedule."""
    optim = dataclasses.replace(cfg.optim, schedule="cosine", nesterov=True)
    return dataclasses.replace(cfg, optim=optim, epochs=30, batch_size=1024)


def build(name: str, method: MethodConfig, which: str, shuffled: bool = False) -> Train:
    """The run of one method on ImageNet and the sets that `which` names: cae, edsr, or cae_edsr, which `imagenet` also means; with
    _biasbed, on BiasBed's schedule.

    Each batch holds equal shares of all sets. shuffled: all images are shuffled together instead; data.more then names the folders of SETS,
    and where these are not there, the run is refused. `folder`: the user's own images, with a table that lists those of all sets. Raises
    ValueError for other names.
    """
    if which == "folder":
        return datasets.build(name, method, which)
    sets = which.removesuffix("_biasbed")
    if sets not in SETS:
        raise ValueError(
            f"DeepAugment has no images {which!r}: after the colon comes {', '.join(SETS)}, one of them with _biasbed, or folder"
        )
    cfg = datasets.build(f"{name} ({' + '.join(SETS[sets])})", method, "imagenet" + which.removeprefix(sets))
    mixture = {"more": SETS[sets]} if shuffled else {"shares": (1.0,) * (1 + len(SETS[sets]))}
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, **mixture))
    return schedule(cfg) if which == sets else cfg
