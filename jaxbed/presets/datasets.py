"""What the configurations of all methods share: a data set's network, schedule and optimizer.

`--config=lff` runs on `shapes`, the data set made by code; `--config=lff:colored_mnist` on another one.
A new data set is one more function here, named in SETTINGS; a method's file never mentions it.
"""

import dataclasses
import re
from typing import Any

from jaxbed.config import MethodConfig, Train
from jaxbed.data import augment, bar, bffhq, colored_mnist, corrupted_cifar10, deepfashion, folder, imagenet, noise, shapes, waterbirds
from jaxbed.methods import erm
from jaxbed.models import mlp, resnet
from jaxbed.optim import Optim
from jaxbed.presets import published
from jaxbed.values import with_field


def _shapes(name: str, method: MethodConfig) -> Train:
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


def _colored_mnist(name: str, method: MethodConfig) -> Train:
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


def _colored_mnist_resnet(name: str, method: MethodConfig) -> Train:
    """The same for methods that work on maps, and for what they are compared with; inputs in [0, 1]. No table of that paper."""
    return dataclasses.replace(
        _colored_mnist(name, method),
        net=resnet.Config(depth=10, width=16, stem="half"),
        data=colored_mnist.Config(input_scale="unit"),
        optim=Optim(rule="adam", lr=1e-3),
    )


def _bffhq(name: str, method: MethodConfig) -> Train:
    """Lee et al. (2022): ResNet-18 from scratch, 224 px, random crop and flip, Adam with its defaults, batch 64, 100 epochs, 5 trials.

    The paper tuned the learning rate by AC score and does not give it; 1e-4 is DisEnt's.
    """
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=18),
        data=bffhq.Config(),
        optim=Optim(rule="adam", lr=1e-4),
        epochs=100,
        batch_size=64,
        seeds=5,
    )


def _waterbirds(name: str, method: MethodConfig) -> Train:
    """The same on Waterbirds; for its learning rate there is no source but BFFHQ's."""
    return dataclasses.replace(_bffhq(name, method), data=waterbirds.Config())


def _bar(name: str, method: MethodConfig) -> Train:
    """The same on BAR, where the paper starts from ImageNet weights: --config.init_from=resnet18.pth. Learning rate BiasEnsemble's."""
    cfg = _bffhq(name, method)
    return dataclasses.replace(cfg, data=bar.Config(), optim=dataclasses.replace(cfg.optim, lr=1e-5))


def _corrupted_cifar10(name: str, method: MethodConfig) -> Train:
    """After LfF and DisEnt: Adam at 1e-3, batch 256, 200 epochs, padded crop and flip; ResNet-18 for 32 px in place of LfF's ResNet-20."""
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=18, stem="small"),
        data=corrupted_cifar10.Config(),
        optim=Optim(rule="adam", lr=1e-3),
        epochs=200,
        batch_size=256,
        seeds=5,
    )


def _noise(name: str, method: MethodConfig) -> Train:
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


def _imagenet(name: str, method: MethodConfig) -> Train:
    """ImageNet-1k from scratch, 100 epochs: learning rate 0.1 at 256 images, divided by 10 at 30, 60 and 90. Name the data:

    --config.data.train=FOLDER --config.data.val=FOLDER --config.data.edge=FOLDER ... (see jaxbed/data/imagenet.py).
    """
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=50, dtype="bfloat16"),
        data=imagenet.Config(),
        optim=Optim(rule="sgd", lr=0.1, weight_decay=1e-4, schedule="step"),
        epochs=100,
        batch_size=256,
        seeds=5,
    )


def _imagenet_biasbed(name: str, method: MethodConfig) -> Train:
    """As BiasBed trained and tested: mild crops at 256 px, learning rate 0.2, selection on ImageNet-val, zoomed stimuli, mean logits."""
    cfg, data = _imagenet(name, method), imagenet.Config()
    crop = dataclasses.replace(data.augment, crop_px=256, scale_frac=(0.5, 1.0), ratio=(0.8, 1.0))
    data = dataclasses.replace(data, val_from_train=0, decision="sixteen_mean_logit", zoom=True, augment=crop)
    return dataclasses.replace(cfg, data=data, optim=dataclasses.replace(cfg.optim, lr=0.2), seeds=10)


def _folder(name: str, method: MethodConfig) -> Train:
    """Images of the user's own: ResNet-18 from scratch at 128 px, padded crop and flip. A choice of ours to start from, not published.

    Name the images, --config.data.train=DIR (see jaxbed/data/folder.py). For weights to start from, --config.init_from=resnet18.pth with
    --config.optim.lr=1e-4; for a CPU, --config.data.size_px=32 --config.net.depth=10 --config.net.width=16 --config.net.stem=half.
    """
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=18),
        data=folder.Config(),
        optim=Optim(rule="adam", lr=1e-3, schedule="cosine"),
        epochs=30,
        batch_size=64,
        seeds=3,
    )


def _deepfashion_remixed(name: str, method: MethodConfig) -> Train:
    """DeepFashion Remixed: ResNet-50 from ImageNet weights, Adam at 1e-5, the head at 1e-4, batch 100, 80 epochs, random boxes and flips.

    Name images and weights: --config.data.train=DEEPFASHION2 --config.data.table=TABLE.csv, from data_prep/deepfashion_remixed.py, and
    --config.init_from=resnet50.pth. Differs from the published code: boxes are cut from squares of 256 px, into which images are stretched
    in training as in testing, not from whole images, and 5 % of the training images are held out to select epochs (data.val_share).
    """
    boxes = augment.Config(crop="resized", scale_frac=(0.5, 2.0), centre_frac=1.0, flip=0.5)
    return Train(
        name=name,
        method=method,
        net=resnet.Config(depth=50),
        data=folder.Config(multi_label=True, classes=deepfashion.CLASSES, size_px=256, fit="stretch", val_share=0.05, augment=boxes),
        optim=Optim(rule="adam", lr=1e-5, head_rate=10.0),
        epochs=80,
        batch_size=100,
        seeds=5,
    )


SETTINGS = {
    "shapes": _shapes,
    "colored_mnist": _colored_mnist,
    "colored_mnist_resnet": _colored_mnist_resnet,
    "corrupted_cifar10": _corrupted_cifar10,
    "bffhq": _bffhq,
    "waterbirds": _waterbirds,
    "bar": _bar,
    "imagenet": _imagenet,
    "imagenet_biasbed": _imagenet_biasbed,
    "folder": _folder,
    "deepfashion_remixed": _deepfashion_remixed,
    "noise": _noise,
}


def published_network(name: str, net: Any, **data: Any) -> Train:
    """A network with published weights, evaluated on ImageNet's sets without training; data: fields of the data set."""
    nothing = imagenet.Config(train="none", val_from_train=0, **data)
    return Train(name=name, method=erm.Config(), net=net, data=nothing, epochs=0, seeds=1)


def augmented(name: str, method: MethodConfig, dataset: str, **changes: Any) -> Train:
    """As `build`, with fields of the data set's augmentation changed. Raises ValueError for a data set without augmentation."""
    cfg = build(name, method, dataset)
    if not hasattr(cfg.data, "augment"):
        raise ValueError(f"{name} is an augmentation, and {dataset} has none: take another data set, such as shapes or folder")
    return dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, augment=dataclasses.replace(cfg.data.augment, **changes)))


def build(name: str, method: MethodConfig, dataset: str) -> Train:
    """The run of one algorithm on one data set of SETTINGS, with the settings published for both.

    DATASET:PERCENT also chooses the ratio of bias-conflicting images, where a data set has several.
    """
    dataset, _, percent = dataset.partition(":")
    if dataset not in SETTINGS:
        raise ValueError(
            f"no setting for data set {dataset!r}: the part after the colon of --config=METHOD:DATASET is one of {', '.join(SETTINGS)}"
        )
    cfg = SETTINGS[dataset](name, method)
    if percent:
        if not hasattr(cfg.data, "conflicting_percent") or not re.fullmatch(r"\d+(\.\d+)?", percent):
            raise ValueError(
                f"{dataset}:{percent}: the part after a second colon is a percentage of conflicting images, for data sets with several"
            )
        cfg = with_field(cfg, "data.conflicting_percent", float(percent))
    return published.apply(cfg, dataset)
