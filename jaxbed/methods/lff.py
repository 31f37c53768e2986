"""LfF: Nam, Cha, Ahn, Lee, Shin, "Learning from Failure: De-biasing Classifier from Biased Classifier" (2020).

Two networks of one shape. f_B is trained by the surrogate of generalised cross-entropy and so on what is easy; f_D by
cross-entropy weighted with the relative difficulty of each sample, w = e_B / (e_B + e_D) (`jaxbed.methods.parts.relative_difficulty`).

Differs from the authors' code: both class maxima have 1e-8 added (there 0/0 gives NaN once all losses of a class are exactly
0); both networks are trained whole (their ResNets are frozen but for the last layer). As there, and unlike the paper's
equations, losses are averaged over time and normalised by class, and the surrogate's gradient is q times that of the true loss.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, init_net
from jaxbed.methods.parts import losses, relative_difficulty
from jaxbed.methods.parts.relative_difficulty import NETS
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.values import ShareBelowOne


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    q: ShareBelowOne = 0.7  # of the generalised cross-entropy
    alpha: ShareBelowOne = 0.7  # weight of the old value in the averages

    def make(self, info: Info, net: Network, optim: Optim, loss_biased: Callable | None = None) -> Method:
        """loss_biased(logits of f_B, batch) -> scalar takes the place of the generalised cross-entropy."""
        return _make(self, info, net.make(info.classes), optim, loss_biased or functools.partial(losses.mean_generalized, q=self.q))


def _make(config: Config, info: Info, net: nn.Module, optim: Optim, descended: Callable) -> Method:
    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        both = [init_net(net, k, batch["image"]) for k in jax.random.split(key)]
        return {n: p for n, (p, _) in zip(NETS, both, strict=True)}, {n: s for n, (_, s) in zip(NETS, both, strict=True)}

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        label, stats, logits = batch["label"], {}, {}
        for name, dropout_key in zip(NETS, jax.random.split(key), strict=True):
            rngs = {"dropout": dropout_key}
            logits[name], stats[name] = apply_net(net, params[name], state.stats[name], batch["image"], True, rngs)
        sample_losses = {name: losses.cross_entropy(logits[name], label) for name in NETS}
        weight, new_memory = relative_difficulty.weigh(state.memory, sample_losses, batch["index"], label, info.classes, config.alpha)
        loss_biased = descended(logits["biased"], batch)
        loss_debiased = (weight * sample_losses["debiased"]).mean()
        metrics = {
            "loss": loss_debiased,
            "loss/biased": loss_biased,
            "accuracy": losses.accuracy(logits["debiased"], label),
            "accuracy/biased": losses.accuracy(logits["biased"], label),
            "weight": weight.mean(),
        }
        return loss_biased + loss_debiased, (stats, new_memory, metrics)

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return apply_net(net, params["debiased"], stats["debiased"], image, False)[0]

    return from_loss(
        init_nets, loss, optim.transform(info), optim.hparams(), predict, functools.partial(relative_difficulty.tables, info.train_size)
    )
