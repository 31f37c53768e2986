"""Debiased with the paper's alpha = 0.5 and gamma = 0.8. It needs a file with a style network:

python data_prep/style_network.py train shapes shapes STYLE.safetensors \\
    --width 32 --stages 2 --steps 800 --batch 16 --lr 3e-3 --style-weight 1
python -m jaxbed.main --config=debiased --config.method.style.weights=STYLE.safetensors

python data_prep/style_network.py convert vgg_normalised.pth decoder.pth STYLE.safetensors
python -m jaxbed.main --config=debiased:imagenet --config.method.style.weights=STYLE.safetensors --config.data.train=FOLDER

On images of 32 px the style network is a small one, which exchanges colours and contrasts but leaves most of a pattern; grid is "full". On
ImageNet the paper has 512 images a batch, learning rate 0.2 and five epochs of warm-up; here it has the setting of all methods.
"""

from jaxbed.config import Train
from jaxbed.methods import debiased
from jaxbed.models import style_network
from jaxbed.presets import datasets


def get_config(dataset: str = "shapes") -> Train:
    if dataset == "noise" or dataset.startswith("imagenet"):
        weights = "random" if dataset == "noise" else ""
        method = debiased.Config(style=style_network.Config(weights, dtype="bfloat16"))
    else:
        method = debiased.Config(grid="full", style=style_network.Config(width=32, stages=2))
    return datasets.build("Debiased", method, dataset)
