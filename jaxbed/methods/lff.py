"""LfF: Nam, Cha, Ahn, Lee, Shin, "Learning from Failure: De-biasing Classifier from Biased Classifier" (2020).

Two networks of one shape. f_B is trained by the surrogate of generalised cross-entropy and so on what is easy; f_D by
cross-entropy weighted with the relative difficulty of each sample, w = e_B / (e_B + e_D): e is an exponential average of the
sample's loss, kept in a table over the training set and divided by the largest entry of the sample's class.

Differs from the authors' code: both class maxima have 1e-8 added (there 0/0 gives NaN once all losses of a class are exactly
0); both networks are trained whole (their ResNets are frozen but for the last layer). As there, and unlike the paper's
equations, losses are averaged over time and normalised by class, and the surrogate's gradient is q times that of the true loss.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxbed import losses
from jaxbed.method import Batch, Info, Method, PyTree, State, apply_net, from_loss, init_net
from jaxbed.optim import Optim

NETS = ("biased", "debiased")
EPSILON = 1e-8


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    q: float = 0.7  # of the generalised cross-entropy
    alpha: float = 0.7  # weight of the old value in the averages

    def make(self, info: Info, net: Any, optim: Optim) -> Method:
        for name, value in (("q", self.q), ("alpha", self.alpha)):
            if not 0 <= value < 1:
                raise ValueError(f"method.{name} = {value} is outside [0, 1); the paper has 0.7")
        return _make(self, info, net.make(info.classes), optim)


def update_average(table: dict[str, jax.Array], index: jax.Array, value: jax.Array, alpha: float) -> dict[str, jax.Array]:
    """The averages {"average": [N], "seen": [N]} after the losses value [B] of the rows index [B]; a first visit stores its value."""
    old, seen = table["average"][index], table["seen"][index]
    return {
        "average": table["average"].at[index].set(alpha * old + (1 - alpha * seen) * value),
        "seen": table["seen"].at[index].set(1.0),
    }


def relative_loss(average: jax.Array, class_of: jax.Array, index: jax.Array, label: jax.Array, classes: int) -> jax.Array:
    """Averages of the rows index [B], each divided by the largest of its class over the whole table."""
    largest = jax.ops.segment_max(average, class_of, classes)
    return average[index] / (largest[label] + EPSILON)


def difficulty(biased: jax.Array, debiased: jax.Array) -> jax.Array:
    """w in [0, 1]: large where the biased network fails and the other does not."""
    return biased / (biased + debiased + EPSILON)


def _make(config: Config, info: Info, net: Any, optim: Optim) -> Method:
    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        both = [init_net(net, k, batch["image"]) for k in jax.random.split(key)]
        return {n: p for n, (p, _) in zip(NETS, both, strict=True)}, {n: s for n, (_, s) in zip(NETS, both, strict=True)}

    def memory() -> PyTree:
        rows = info.train_size
        tables = {name: {"average": jnp.zeros(rows), "seen": jnp.zeros(rows)} for name in NETS}
        return {**tables, "class_of": jnp.zeros(rows, jnp.int32)}  # rows not seen yet have average 0, whatever their class

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array):
        index, label = batch["index"], batch["label"]
        class_of = state.memory["class_of"].at[index].set(label)
        new_memory, stats, logits, relative = {"class_of": class_of}, {}, {}, {}
        for name, dropout_key in zip(NETS, jax.random.split(key), strict=True):
            rngs = {"dropout": dropout_key}
            logits[name], stats[name] = apply_net(net, params[name], state.stats[name], batch["image"], True, rngs)
            sample_loss = jax.lax.stop_gradient(losses.cross_entropy(logits[name], label))
            new_memory[name] = update_average(state.memory[name], index, sample_loss, config.alpha)
            relative[name] = relative_loss(new_memory[name]["average"], class_of, index, label, info.classes)
        weight = difficulty(relative["biased"], relative["debiased"])
        loss_biased = losses.generalized_cross_entropy(logits["biased"], label, config.q).mean()
        loss_debiased = (weight * losses.cross_entropy(logits["debiased"], label)).mean()
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

    return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict, memory)
