"""Settings of methods that a paper or its authors' code publishes for a data set, and published networks: the one place where they stand.

    python -m jaxbed.presets.published     both tables, as Markdown

A default that was published for one data set is that data set's, not all data sets'. `datasets.build` takes these values and writes their
source into `published` of the configuration. Where none are published, it says so, and the run has the defaults of the method's own file or
those of the data set that is most like it. Each can be overridden as any field can. Settings that depend on the ratio of conflicting images
are those of the ratio that the config names: `--config=disent:corrupted_cifar10:5`.

Network, optimizer and schedule that all methods share on a data set are in `datasets`. Epochs are shares of the run where authors count the
steps of a longer one.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxbed.config import Train
from jaxbed.data.imagenet import MEAN, STD
from jaxbed.methods import (
    augmix,
    biasensemble,
    debiased,
    disent,
    end,
    groupdro,
    hex,
    jtt,
    lff,
    lisa,
    lnl,
    mixing,
    noise2net,
    padain,
    rebias,
    rsc,
    sagnet,
    softcon,
)
from jaxbed.models import bit, dpn, resnet
from jaxbed.values import look_up, with_field


class Settings(NamedTuple):
    source: str
    values: Mapping[str, Any] = MappingProxyType({})  # of fields of the method
    lr: float = 0.0  # 0: that of all methods on the data set
    decay: float = 0.0  # factor of the learning rate after 40, 60 and 80 % of the run; 0: the schedule of all methods
    published: bool = True  # False: not for this data set, and `source` says what is taken instead


def lambdas(dis: float, swap: float, swap_biased: float) -> dict[str, float]:
    return {"lambda_dis": float(dis), "lambda_swap": float(swap), "lambda_swap_biased": float(swap_biased)}


AUTHORS = "authors' code"
STEPS = "rate decays at steps 20,000, 30,000 and 40,000 of 50,000"
DISENT = f"authors' code, Learning-Debiased-Disentangled; {STEPS}"
DISENT_MNIST, DISENT_BFFHQ = Settings(DISENT, lambdas(10, 1, 10), decay=0.5), Settings(DISENT, lambdas(2, 0.1, 2), decay=0.1)
DISENT_CIFAR = {percent: Settings(DISENT, lambdas(own, 1, own), decay=0.5) for percent, own in ((0.5, 1), (1, 5), (2, 5), (5, 1))}
DISENT_CIFAR[0.5] = DISENT_CIFAR[0.5]._replace(lr=5e-4)
UPDATES = "authors' code, which keeps networks of at most 501 updates"
LFF = Settings(AUTHORS, {"q": 0.7, "alpha": 0.7})
LISA = {"p_sel": 0.5, "alpha": 2.0}

# {class of a method's configuration: {data set, or (data set, percent of conflicting images): settings}}
TABLE: dict[type, dict[str | tuple[str, float], Settings]] = {
    disent.Config: {
        "colored_mnist": DISENT_MNIST,
        "colored_mnist_resnet": DISENT_MNIST._replace(source="those of the MLP on the same images", published=False),
        **{("corrupted_cifar10", percent): settings for percent, settings in DISENT_CIFAR.items()},
        ("corrupted_cifar10", 20): DISENT_CIFAR[5]._replace(source="those of 5 %", published=False),
        "bffhq": DISENT_BFFHQ,
        "bar": Settings(f"code of BiasEnsemble, by the same first author; {STEPS}", lambdas(1, 1, 1), decay=0.1),
        "waterbirds": DISENT_BFFHQ._replace(source="those of BFFHQ: two classes, the same network", published=False),
    },
    biasensemble.Config: {
        "colored_mnist": Settings(UPDATES, {"epochs_before": 3}),
        "bffhq": Settings(UPDATES, {"epochs_before": 2}),
        "bar": Settings(UPDATES, {"epochs_before": 20}),
        "waterbirds": Settings("501 updates, as in the authors' code on other data sets", {"epochs_before": 7}, published=False),
        "corrupted_cifar10": Settings("501 updates, as in the authors' code on other data sets", {"epochs_before": 3}, published=False),
    },
    jtt.Config: {
        "waterbirds": Settings("paper: 60 of 300 epochs, SGD at 1e-5 with weight decay 1", {"epochs_before": 60, "upweight": 100.0}),
    },
    softcon.Config: {
        "colored_mnist": Settings(f"{AUTHORS}, Biased MNIST", {"epochs_before": 80, "weight": 0.01, "ratio": 10.0, "tau": 0.07}),
        "imagenet": Settings(AUTHORS, {"epochs_before": 120, "weight": 1.0, "ratio": 0.0, "tau": 0.07}),
    },
    rebias.Config: {
        "colored_mnist": Settings(f"{AUTHORS}, Biased MNIST", {"bandwidth": "fixed", "sigma": 1.0}),
        "imagenet": Settings(AUTHORS, {"bandwidth": "median", "sigma": 1.0}),
    },
    hex.Config: {
        "colored_mnist": Settings(f"{AUTHORS}, MNIST", {"levels": 16, "units": 32}),
        "imagenet": Settings(f"{AUTHORS}, a demonstration", {"levels": 128, "units": 32}),
    },
    end.Config: {"colored_mnist": Settings(f"{AUTHORS}, Biased MNIST", {"alpha": 0.1, "beta": 0.1})},
    lnl.Config: {"colored_mnist": Settings(f"{AUTHORS}, its Colored MNIST", {"entropy": 0.01, "reversal": 0.1})},
    lff.Config: {name: LFF for name in ("colored_mnist", "corrupted_cifar10", "bffhq", "bar")},
    groupdro.Config: {"waterbirds": Settings(AUTHORS, {"eta": 0.01})},
    lisa.Config: {"waterbirds": Settings(AUTHORS, LISA), "colored_mnist": Settings(f"{AUTHORS}, its Colored MNIST", LISA)},
    mixing.Mixup: {
        "imagenet": Settings("paper", {"alpha": 0.2}),
        "corrupted_cifar10": Settings("paper, CIFAR-10", {"alpha": 1.0}),
    },
    mixing.CutMix: {
        "imagenet": Settings(AUTHORS, {"p": 1.0, "alpha": 1.0}),
        "corrupted_cifar10": Settings(f"{AUTHORS}, CIFAR", {"p": 0.5, "alpha": 1.0}),
    },
    augmix.Config: {
        "imagenet": Settings(AUTHORS, {"severity": 1.0, "weight": 12.0}),
        "corrupted_cifar10": Settings(f"{AUTHORS}, CIFAR", {"severity": 3.0, "weight": 12.0}),
        "deepfashion_remixed": Settings(
            f"{AUTHORS}, where every other batch, at random, stays unmixed, and whose fill 128 is dark red to Pillow",
            {"consistency": False, "severity": 10.0, "width": 5, "operations": 13, "fill": "dark_red"},
        ),
    },
    noise2net.Config: {"imagenet": Settings(AUTHORS, {"strength": 0.75, "share": 0.5, "blocks": 4, "hidden": 16})},
    padain.Config: {"imagenet": Settings("paper", {"p": 0.01})},
    sagnet.Config: {"imagenet": Settings(AUTHORS, {"style_stage": 3, "w_adv": 0.1, "clip_adv": 0.1})},
    debiased.Config: {"imagenet": Settings("paper", {"alpha": 0.5, "gamma": 0.8})},
    rsc.Config: {"imagenet": Settings(AUTHORS, {"variant": "imagenet"})},
}
SAME_IMAGES = {"imagenet_biasbed": "imagenet"}  # the same settings of methods, other crops and learning rates
NONE = Settings("the method's own defaults", published=False)


class Network(NamedTuple):
    """A network whose weights are published, and how its input is scaled: (x - mean) / std, of pixels in [0, 1]."""

    net: Any
    source: str  # of the weights, and of their scaling
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD


RESNEXT_4: dict[str, Any] = {"groups": 32, "group_width": 4}
RESNEXT_8: dict[str, Any] = {"groups": 32, "group_width": 8}
SENET: dict[str, Any] = {"gate": "se", "layout": "caffe"}
RES2NET: dict[str, Any] = {"scales": 4, "group_width": 26, "stem": "deep", "shortcut": "mean"}
CADENE, TIMM = "pretrainedmodels", "timm"
BIT = "authors' npz file, which has pixels in [-1, 1]"
DPN_MEAN, DPN_STD = (124 / 255, 117 / 255, 104 / 255), (1 / (0.0167 * 255),) * 3  # in levels: (x - mean) · 0.0167

# Those of "The Many Faces of Robustness" (Hendrycks et al., 2021), and timm's of the same kinds
NETWORKS = {
    "resnet101": Network(resnet.Config(101), "torchvision, timm"),
    "resnet152": Network(resnet.Config(152), "torchvision, timm"),
    "resnext50_32x4d": Network(resnet.Config(50, **RESNEXT_4), "torchvision, timm"),
    "resnext101_32x4d": Network(resnet.Config(101, **RESNEXT_4), TIMM),
    "resnext101_32x8d": Network(resnet.Config(101, **RESNEXT_8), "torchvision, timm, WSL (Mahajan et al., 2018)"),
    "se_resnet50": Network(resnet.Config(50, **SENET), CADENE),
    "se_resnet101": Network(resnet.Config(101, **SENET), CADENE),
    "se_resnet152": Network(resnet.Config(152, **SENET), CADENE),
    "se_resnext101_32x4d": Network(resnet.Config(101, **RESNEXT_4, **SENET), CADENE),
    "seresnet50": Network(resnet.Config(50, gate="se"), TIMM),
    "seresnext50_32x4d": Network(resnet.Config(50, **RESNEXT_4, gate="se"), TIMM),
    "cbam_resnet50": Network(resnet.Config(50, gate="cbam"), AUTHORS),
    "bit_m_r50x1": Network(bit.Config(), BIT, (0.5,) * 3, (0.5,) * 3),
    "res2net50_v1b_26w_4s": Network(resnet.Config(50, **RES2NET), f"{AUTHORS}, timm (res2net50d)"),
    "res2net101_v1b_26w_4s": Network(resnet.Config(101, **RES2NET), f"{AUTHORS}, timm (res2net101d)"),
    "res2net152_v1b_26w_4s": Network(resnet.Config(152, **RES2NET), AUTHORS),
    "dpn68": Network(dpn.Config(68), CADENE, DPN_MEAN, DPN_STD),
    "dpn98": Network(dpn.Config(98), CADENE, DPN_MEAN, DPN_STD),
    "timm_dpn68": Network(dpn.Config(68), TIMM, DPN_MEAN, DPN_STD),
    "timm_dpn98": Network(dpn.Config(98), TIMM, DPN_MEAN, DPN_STD),
}


def network(name: str) -> Network:
    """The row of NETWORKS. Raises ValueError, with the names that there are, for another one."""
    if name not in NETWORKS:
        raise ValueError(f"no published network {name!r}: NAME in --config=network:NAME is one of {', '.join(NETWORKS)}")
    return NETWORKS[name]


def apply(cfg: Train, dataset: str) -> Train:
    """The run with the settings of its method, and of the method within it, for its data set, and with a sentence on each."""
    texts = []
    for path in ("method", "method.base"):  # BiasEnsemble has a base
        if path == "method" or hasattr(cfg.method, "base"):
            cfg, text = _apply(cfg, path, SAME_IMAGES.get(dataset, dataset))
            texts.append(text)
    return dataclasses.replace(cfg, published="; ".join(filter(None, texts)))


def _apply(cfg: Train, path: str, dataset: str) -> tuple[Train, str]:
    method, percent = look_up(cfg, path, path), getattr(cfg.data, "conflicting_percent", None)
    if not dataclasses.fields(method):  # ERM has no settings
        return cfg, ""
    kind = type(method)
    of_ratio = TABLE.get(kind, {}).get((dataset, percent)) if percent is not None else None
    settings = of_ratio or TABLE.get(kind, {}).get(dataset, NONE)
    values = {f"{path}.{name}": value for name, value in settings.values.items()} | optimizer(settings, cfg.epochs)
    for field, value in values.items():
        cfg = with_field(cfg, field, value)
    ratio = {"data.conflicting_percent": percent} if of_ratio else {}
    shown = ", ".join(f"{field} = {value}" for field, value in (ratio | values).items())
    where = f"{kind.__module__.rpartition('.')[2]} on {dataset}" + (f" at {percent:g} %" if of_ratio else "")
    return cfg, f"{where}: {'' if settings.published else 'none published, '}{settings.source}" + (f" ({shown})" if shown else "")


def optimizer(settings: Settings, epochs: int) -> dict[str, Any]:
    """Fields of the optimizer that differ from those of all methods on the data set."""
    fields: dict[str, Any] = {"optim.lr": settings.lr} if settings.lr else {}
    if settings.decay:
        milestones = tuple(share * epochs / 10 for share in (4, 6, 8))
        fields |= {"optim.schedule": "step", "optim.milestones_epochs": milestones, "optim.gamma": settings.decay}
    return fields


def main() -> None:
    print("| method | data set | settings | source |\n|---|---|---|---|")
    for kind, rows in TABLE.items():
        name = f"{kind.__module__.rpartition('.')[2]}{'' if kind.__name__ == 'Config' else '.' + kind.__name__}"
        for dataset_or_ratio, settings in rows.items():
            dataset = dataset_or_ratio if isinstance(dataset_or_ratio, str) else f"{dataset_or_ratio[0]}, {dataset_or_ratio[1]:g} %"
            values = {
                **settings.values,
                **({"lr": settings.lr} if settings.lr else {}),
                **({"decay": settings.decay} if settings.decay else {}),
            }
            listed = ", ".join(f"{field} {value}" for field, value in values.items())
            print(f"| {name} | {dataset} | {listed} | {'' if settings.published else 'none published; '}{settings.source} |")
        print(f"| {name} | all others | the method's own defaults | none published |")
    print("\n| network | settings | weights | mean | deviation |\n|---|---|---|---|---|")
    for name, row in NETWORKS.items():
        fields = [field.name for field in dataclasses.fields(row.net) if getattr(row.net, field.name) != field.default]
        shown = [type(row.net).__module__.rpartition(".")[2], *(f"{field} {getattr(row.net, field)}" for field in fields)]
        mean, std = (" ".join(f"{value:.4g}" for value in values) for values in (row.mean, row.std))
        print(f"| {name} | {', '.join(shown)} | {row.source} | {mean} | {std} |")


if __name__ == "__main__":
    main()
