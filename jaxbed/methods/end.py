"""EnD: Tartaglione, Barbano, Grangetto, "EnD: Entangling and Disentangling Deep Representations for Bias Correction" (2021).

With u the features before the head, scaled to length 1, and G_ij = u_i · u_j over the pairs i > j of a batch:

    R⊥ = Σ_k |Σ_{b_i = b_j = k} G_ij| / (pairs with equal bias)     images with one bias are decorrelated, whatever their labels
    R∥ = 1 - mean (1 + G_ij)/2 where y_i = y_j and b_i ≠ b_j         images with one label and another bias are drawn together
    L  = mean CE + α·R⊥ + β·R∥

A term without pairs is 0; images without a bias label (-1) form none.

variant "paper": the equations.
variant "published": what the authors' code computes. R∥ has only the pairs whose later image has the smaller bias value, and the head
    reads u. The tanh there, in place of the last ReLU, is not imitated.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, from_loss
from jaxbed.methods.parts import losses
from jaxbed.models import features
from jaxbed.models.capabilities import CUT, Cuttable, require
from jaxbed.optim import Optim
from jaxbed.values import NotNegative


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = True

    alpha: NotNegative = 0.1  # of R⊥
    beta: NotNegative = 0.1  # of R∥; the authors advise to raise it first
    variant: Literal["paper", "published"] = "paper"

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        require(net, "EnD compares features", CUT)
        return _make(self, info, net, optim)


def regularizers(direction: jax.Array, label: jax.Array, bias: jax.Array, classes: int, half: bool = False) -> tuple[jax.Array, jax.Array]:
    """(R⊥, R∥) of direction [B, F]; half leaves out of R∥ what the authors' code does."""
    similarity = jnp.clip(jnp.dot(direction, direction.T, precision=jax.lax.Precision.HIGHEST), -1, 1)
    later, earlier = bias[:, None], bias[None]
    pair = jnp.tri(len(bias), k=-1, dtype=bool) & (later >= 0) & (earlier >= 0)
    same = pair & (later == earlier)
    of_image = jnp.where(same, similarity, 0.0).sum(1)
    of_bias = (jax.nn.one_hot(bias, classes) * of_image[:, None]).sum(0)
    disentangled = jnp.abs(of_bias).sum() / jnp.maximum(same.sum(), 1)
    other = pair & (label[:, None] == label[None]) & ((later < earlier) if half else (later != earlier))
    entangled = jnp.where(other, (1 - similarity) / 2, 0.0).sum() / jnp.maximum(other.sum(), 1)
    return disentangled, entangled


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    parts, published = features.cut(net, info.classes), config.variant == "published"

    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        return features.init_parts(parts, key, batch["image"])

    def forward(
        params: PyTree, stats: PyTree, image: jax.Array, train: bool, key: jax.Array | None = None
    ) -> tuple[tuple[jax.Array, jax.Array], PyTree]:
        """((directions, logits), new batch statistics)."""
        change = {"change": features.unit} if published else {}
        (vectors, logits), new = features.forward(parts, params, stats, image, train, key, **change)
        return (vectors if published else features.unit(vectors), logits), new

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        label = batch["label"]
        (direction, logits), stats = forward(params, state.stats, batch["image"], True, key)
        value = losses.cross_entropy(logits, label).mean()
        disentangled, entangled = regularizers(direction, label, batch["bias"], info.classes, half=published)
        metrics = {
            "loss": value,
            "loss/disentangle": disentangled,
            "loss/entangle": entangled,
            "accuracy": losses.accuracy(logits, label),
        }
        total = value + state.hparams["alpha"] * disentangled + state.hparams["beta"] * entangled
        return total, (stats, state.memory, metrics)

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return forward(params, stats, image, False)[0][1]

    hparams = {**optim.hparams(), "alpha": config.alpha, "beta": config.beta}
    return from_loss(init_nets, loss, optim.transform(info), hparams, predict)
