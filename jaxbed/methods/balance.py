"""Mean cross-entropy with the same say for all groups of images: each image weighted, or drawn, by 1 / n_g.

Reweight: L = mean w_i·CE_i with w = N / (G·n_g), for n_g of the N training images in the image's group and G groups that have any. The
    mean weight is 1. (SubpopBench's weights add up to G instead, which changes the learning rate.)
Resample: batches are drawn with replacement, each group as often as any other; an epoch is as long as without.

With groups = "classes" neither knows of a bias.
"""

import dataclasses

import jax
import numpy as np

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, from_net, single
from jaxbed.methods.parts import losses
from jaxbed.methods.parts.groups import Groups, Kind, reads_bias
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim


@dataclasses.dataclass
class Resample:
    groups: Kind = "aligned"  # see `jaxbed.methods.parts.groups`

    @property
    def reads_bias(self) -> bool | str:
        return reads_bias(self.groups)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        groups = Groups(self.groups, info.classes)
        return from_net(net.make(info.classes), optim.transform(info), optim.hparams())._replace(sampling=groups.sampling())


@dataclasses.dataclass
class Reweight:
    groups: Kind = "aligned"  # see `jaxbed.methods.parts.groups`

    @property
    def reads_bias(self) -> bool | str:
        return reads_bias(self.groups)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        groups, network = Groups(self.groups, info.classes), net.make(info.classes)
        init_nets, predict = single(network)

        def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
            rngs = dict(zip(("dropout", "noise"), jax.random.split(key), strict=True))
            logits, stats = apply_net(network, params["net"], state.stats["net"], batch["image"], True, rngs)
            value = (batch["group_weight"] * losses.cross_entropy(logits, batch["label"])).mean()
            metrics = {"loss": value, "accuracy": losses.accuracy(logits, batch["label"])}
            return value, ({"net": stats}, state.memory, metrics)

        def rows(label: np.ndarray, bias: np.ndarray | None) -> dict[str, np.ndarray]:
            return {"group_weight": groups.weights(label, bias)}

        return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)._replace(rows=rows)
