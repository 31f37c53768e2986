"""What the configurations of all methods share: a data set's network, schedule and optimizer.

`--config=configs/lff.py` runs on `shapes`, the data set made by code; `--config=configs/lff.py:colored_mnist` on another one.
A new data set is one more function here, named in SETTINGS; a method's file never mentions it.
"""

import dataclasses
from typing import Any

from jaxbed.config import Train
from jaxbed.data import augment, colored_mnist, noise, shapes
from jaxbed.models import mlp, resnet
from jaxbed.optim import Optim


def _shapes(name: str, method: Any) -> Train:
    """A quarter-width ResNet-10 on 32-px shapes: minutes on two CPU cores."""
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=10, width=16, stem="half"),
        data=shapes.Config(),
        optim=Optim(rule="sgd", lr=0.1, weight_decay=5e-4, schedule="cosine", warmup_epochs=0.5),
        epochs=10,
        batch_size=64,
        seeds=3,
    )


def _colored_mnist(name: str, method: Any) -> Train:
    """Lee et al. (2022): 3-layer MLP, Adam with PyTorch's defaults, batch 256, 200 epochs, 5 trials, no augmentation.

    Learning rate 1e-2 is DisEnt's; with inputs divided by 255 twice it gives the paper's Vanilla and LfF rows.
    """
    return Train(
        name=name,
        method=method,
        net=mlp.Config((100, 100, 16)),
        data=colored_mnist.Config(),
        optim=Optim(rule="adam", lr=1e-2),
        epochs=200,
        batch_size=256,
        seeds=5,
    )


def _colored_mnist_resnet(name: str, method: Any) -> Train:
    """The same for methods that work on maps, and for what they are compared with; inputs in [0, 1]. No table of that paper."""
    return dataclasses.replace(
        _colored_mnist(name, method),
        net=resnet.Config(depth=10, width=16, stem="half"),
        data=colored_mnist.Config(input_scale="unit"),
        optim=Optim(rule="adam", lr=1e-3),
    )


def _noise(name: str, method: Any) -> Train:
    """ResNet-50 at 224 px in bfloat16 on random images, augmented as usual: how fast, and does it fit? Read img/s from epoch 2."""
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=50, dtype="bfloat16"),
        data=noise.Config(augment=augment.Config(crop="resized", flip=0.5, dtype="bfloat16")),
        optim=Optim(rule="sgd", lr=0.1, weight_decay=1e-4),
        epochs=3,
        batch_size=256,
        seeds=1,
    )


SETTINGS = {"shapes": _shapes, "colored_mnist": _colored_mnist, "colored_mnist_resnet": _colored_mnist_resnet, "noise": _noise}


def build(name: str, method: Any, dataset: str) -> Train:
    """The run of one algorithm on one data set of SETTINGS."""
    if dataset not in SETTINGS:
        raise ValueError(
            f"no setting for data set {dataset!r}: after the colon of --config=FILE.py:DATASET comes one of {', '.join(SETTINGS)}"
        )
    return SETTINGS[dataset](name, method)
