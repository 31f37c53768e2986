"""A run small enough for a test: ResNet-10 of width 4 on a few 32-px shapes, or an MLP on the same."""

import dataclasses
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from jaxbed import config, main, parallel
from jaxbed.data import shapes
from jaxbed.data.source import Source
from jaxbed.method import Info, Method, State
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
from jaxbed.models import mlp, resnet, style_network
from jaxbed.optim import Optim
from jaxbed.training import members, plan
from jaxbed.training.program import Program, assemble

METHODS = {
    "erm": erm.Config(),
    "fast_adversarial": fast_adversarial.Config(),
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
    "augmix": augmix.Config(),
    "noise2net": noise2net.Config(),
    "end": end.Config(),
    "lnl": lnl.Config(),
    "rebias": rebias.Config(biased=rebias.BiasedNet(stride=4)),
    "hex": hex.Config(units=4),  # of the 16 images in a batch it takes min(classes, units + 1) directions
    "debiased": debiased.Config(grid="coarse", style=style_network.Config("random", width=4, stages=2)),
    "reweight": balance.Reweight(),
    "resample": balance.Resample(),
    "groupdro": groupdro.Config(),
    "lisa": lisa.Config(),
    "biasensemble": biasensemble.Config(networks=2, agreement=1, epochs_before=1, confidence=0.5),
    "biasensemble_disent": biasensemble.Config(disent.Config(swap_after=0.5), networks=2, agreement=1, epochs_before=1, confidence=0.5),
    "jtt": jtt.Config(upweight=3.0),
    "dfr": dfr.Config(epochs_before=1),
    "softcon": softcon.Config(epochs_before=1, weight=1.0, contrastive=6),
}
resnet.BLOCKS[6] = (1, 0, 1, 0)  # stem, two blocks and a head: for tests of what does not depend on the number of blocks
RESNET_6 = resnet.Config(depth=6, width=4, stem="half")
resnet.BLOCKS[4] = (0, 1, 0, 0)  # one block, with a shortcut: each kind of layer once
RESNET_4 = resnet.Config(depth=4, width=4, stem="half")
resnet.BLOCKS[2] = (0, 0, 0, 0)  # stem and head: for methods that act between parts, whatever is in these
RESNET_2 = resnet.Config(depth=2, width=4, stem="half")
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
        eval=config.Eval(batch_size=48, while_training=False),
        save=config.Save(resume_every_minutes=0),
    )
    return dataclasses.replace(cfg, **changes)


def mlp_config(method: str = "erm", **changes: Any) -> config.Train:
    return train_config(method, **{"net": mlp.Config((8,)), "optim": Optim(rule="adam", lr=1e-2), **changes})


def evaluated(cfg: config.Train, folder: pathlib.Path) -> pathlib.Path:
    """The folder of a finished run, to be copied: without what only training reads."""
    assert main.run(cfg, folder) == 0
    shutil.rmtree(folder / "checkpoints" / "resume")
    return folder


def tables(cfg: config.Train, source: Source) -> dict[str, np.ndarray]:
    """What the networks of earlier stages might have given, made up: {name: [S, N, ...]}."""
    rng = np.random.default_rng(0)
    members = [plan.example_columns(cfg, source, rng=rng) for _ in range(cfg.seeds)]
    return {name: np.stack([member[name] for member in members]) for name in members[0]}


def program(cfg: config.Train, source: Source | None = None, trains: bool = True) -> Program:
    source = source or cfg.data.open()
    seeds = parallel.Seeds(cfg.seeds, cfg.first_seed, cfg.mesh)
    return assemble(cfg, members.one(cfg, source), seeds, tables(cfg, source), trains)


# What data sets, the host and earlier stages tell some methods of the same images
COLUMNS = {
    "bias": np.arange(8, dtype=np.int32) % 3,
    "kept": np.arange(8) < 5,
    "group_weight": np.ones(8, np.float32),
    "group_size": np.ones(8, np.float32),
    "biased_direction": np.eye(8, 4, dtype=np.float32),
}


def _method_and_batch(config: Any) -> tuple[Method, dict[str, np.ndarray]]:
    image = np.random.default_rng(0).random((8, 16, 16, 3), np.float32)
    batch = {"image": image, "label": np.arange(8, dtype=np.int32), "index": np.arange(8, dtype=np.int32), **COLUMNS}
    return config.make(Info(16, 64, 4, 2), RESNET_4, Optim(lr=0.05, momentum=0.9)), batch


def programs(config: Any) -> list[str]:
    """The start and a step of one seed of RESNET_4, lowered: methods of which these are equal compute the same to the last bit."""
    made, batch = _method_and_batch(config)
    key = jax.random.key(0)
    state = jax.eval_shape(made.init, key, batch)
    return [jax.jit(made.init).lower(key, batch).as_text(), jax.jit(made.step).lower(state, batch, key).as_text()]


def take_steps(config: Any, count: int = 2) -> tuple[Method, State, dict[str, np.ndarray]]:
    """(the method, the state after so many steps of one seed of RESNET_4, the metrics of the last step)."""
    made, batch = _method_and_batch(config)
    state, step = jax.jit(made.init)(jax.random.key(0), batch), jax.jit(made.step)
    for number in range(count):
        state, metrics = step(state, batch, jax.random.key(number))
    return made, *jax.device_get((state, metrics))
