"""A run small enough for a test: ResNet-10 of width 4 on a few 32-px shapes, or an MLP on the same."""

import dataclasses
from typing import Any

from jaxbed import config, parallel, variants
from jaxbed.data import shapes
from jaxbed.data.source import Source
from jaxbed.methods import debiased, disent, dsu, efdmix, end, erm, hex, infodrop, lff, lnl, mixing, mixstyle, padain, rebias, rsc, sagnet
from jaxbed.models import mlp, resnet, style_network
from jaxbed.optim import Optim
from jaxbed.program import Program, assemble

METHODS = {
    "erm": erm.Config(),
    "padain": padain.Config(p=0.1),
    "sagnet": sagnet.Config(),
    "sagnet_biasbed": sagnet.Config(variant="biasbed"),
    "lff": lff.Config(),
    "disent": disent.Config(swap_after=0.5),
    "infodrop": infodrop.Config(),
    "mixstyle": mixstyle.Config(),
    "dsu": dsu.Config(),
    "efdmix": efdmix.Config(),
    "rsc": rsc.Config(),
    "mixup": mixing.Mixup(),
    "cutmix": mixing.CutMix(p=0.5),
    "end": end.Config(),
    "lnl": lnl.Config(),
    "rebias": rebias.Config(),
    "hex": hex.Config(units=4),  # of the 16 images in a batch it takes min(classes, units + 1) directions
    "debiased": debiased.Config(grid="coarse", style=style_network.Config("random", width=4, stages=2)),
}
DATA = shapes.Config(train_images=64, val_images=16, test_images=16)


def train_config(method: str = "erm", **changes: Any) -> config.Train:
    cfg = config.Train(
        name=method,
        method=METHODS[method],
        net=resnet.Config(depth=10, width=4, stem="half"),
        data=DATA,
        optim=Optim(lr=0.05, momentum=0.9, weight_decay=1e-4),
        epochs=2,
        batch_size=16,
        seeds=2,
        mesh=parallel.Mesh(seed=1, data=1),
        eval=config.Eval(batch_size=48),
        save=config.Save(resume_every_minutes=0),
    )
    return dataclasses.replace(cfg, **changes)


def mlp_config(method: str = "erm", **changes: Any) -> config.Train:
    return train_config(method, **{"net": mlp.Config((8,)), "optim": Optim(rule="adam", lr=1e-2), **changes})


def program(cfg: config.Train, source: Source | None = None) -> Program:
    return assemble(cfg, variants.one(cfg, source or cfg.data.open()), parallel.Seeds(cfg.seeds, cfg.first_seed, cfg.mesh))
