"""A published network, evaluated without training: ViT-B/16 (Dosovitskiy et al., 2021), from --config.init_from=FILE.

python -m jaxbed.main --config=vit_b16 --config.init_from=vit_b_16.pth --config.data.cue_conflict=DIR ... --workdir=DIR

As it stands, for torchvision's and DINO's weights, whose inputs have ImageNet's mean and deviation. DINO's head is in a second file:
--config.init_from=dino_vitbase16_pretrain.pth+HEAD.pth. timm's AugReg and SAM have 0.5: --config.data.augment.mean=0.5,0.5,0.5
--config.data.augment.std=0.5,0.5,0.5. MAE's fine-tuned weights: --config.net.pool=mean. Gavrikov and Keuper (2024) scale MAE's inputs by
0.5 as well, timm's default, and not as it was trained.
"""

from jaxbed.config import Train
from jaxbed.models import vit
from jaxbed.presets import datasets


def get_config() -> Train:
    return datasets.published_network("ViT-B/16", vit.Config())
