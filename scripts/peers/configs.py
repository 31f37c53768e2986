"""The methods of jaxbed that are timed, with their settings."""

from typing import Any

from jaxbed.methods import (
    augmix,
    balance,
    biasensemble,
    debiased,
    dfr,
    disent,
    dsu,
    efdmix,
    end,
    erm,
    fast_adversarial,
    groupdro,
    hex,
    infodrop,
    jtt,
    lff,
    lisa,
    lnl,
    mixing,
    mixstyle,
    noise2net,
    padain,
    rebias,
    rsc,
    sagnet,
    softcon,
)
from jaxbed.models import style_network

METHODS: dict[str, Any] = {
    "erm": erm.Config(),
    "padain": padain.Config(),
    "sagnet": sagnet.Config(),
    "lff": lff.Config(),
    "infodrop": infodrop.Config(),
    "mixstyle": mixstyle.Config(),
    "dsu": dsu.Config(),
    "efdmix": efdmix.Config(),
    "rsc": rsc.Config(),
    "mixup": mixing.Mixup(),
    "cutmix": mixing.CutMix(),
    "augmix": augmix.Config(severity=1.0),  # as on ImageNet
    "noise2net": noise2net.Config(),
    "speckle": erm.Config(),  # on images with noise, see AUGMENTATIONS
    "random_erasing": erm.Config(),
    "fast_adversarial": fast_adversarial.Config(),
    "end": end.Config(),
    "lnl": lnl.Config(),
    "rebias": rebias.Config(),
    "hex": hex.Config(),
    "debiased": debiased.Config(grid="coarse", style=style_network.Config("random", dtype="bfloat16")),
    "debiased_fine": debiased.Config(grid="fine", style=style_network.Config("random", dtype="bfloat16")),
    "groupdro": groupdro.Config(groups="classes"),  # nothing here has a bias label
    "lisa": lisa.Config(balanced=False),
    "reweight": balance.Reweight("classes"),
    "resample": balance.Resample("classes"),
    "disent": disent.Config(swap_after=0.0),  # as after the first fifth of a run
    "biasensemble": biasensemble.Config(confidence=0.5),  # of networks that answer at random, about half of the images are kept
    "softcon": softcon.Config(),
    "jtt": jtt.Config(),
    "dfr": dfr.Config(groups="classes"),
}
# Fields of the data set's augmentation
AUGMENTATIONS: dict[str, dict[str, Any]] = {"speckle": {"noise": "speckle"}, "random_erasing": {"erase": 0.5}}
STOCK_ONLY = {"augmix"}  # whose PyTorch form is that of its users
WITHOUT_PEER = {"speckle", "random_erasing", "fast_adversarial"}  # are compared with ERM alone
TWO_NETWORKS = {"lff", "disent", "biasensemble"}  # on ResNet-18
