"""LISA: Yao, Wang, Li, Zhang, Liang, Zou, Finn, "Improving Out-of-Distribution Robustness via Selective Augmentation" (2022).

Mixup of selected pairs. In each step a coin says which: with probability p_sel images of one label and another bias, else images of one
bias and another label. Each image x becomes λ·x + (1 - λ)·x', x' being a random such image of its batch, λ ~ Beta(alpha, alpha) its own.

    L = mean λ·CE(f(x), y) + (1 - λ)·CE(f(x), y')

An image without such a partner, or without a bias label, stays as it is; the metric `mixed` is the share of the others. Batches are
drawn from all groups alike, so that most images find one. Off at evaluation.

Differs from the authors' code, made for two classes, which draws as many images from each of the four groups (label, bias), pairs them one
to one, so that half as many come out, and ends an epoch with the smallest group. Its CutMix is left out.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed import values
from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, single
from jaxbed.methods.parts import losses, pairs
from jaxbed.methods.parts.groups import Groups, Kind
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.values import Positive, Share


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = True

    p_sel: Share = 0.5  # probability of mixing within a label, per step; else within a bias
    alpha: Positive = 2.0  # of Beta(alpha, alpha)
    groups: Kind = "aligned"  # see `jaxbed.methods.parts.groups`; for the drawing of batches alone, where balanced is True
    balanced: bool = True  # batches are drawn from all groups alike

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        if not self.balanced:
            values.refuse_unused(self, ("groups",), "method.balanced = false")
        sampling = Groups(self.groups, info.classes).sampling()
        return _make(self, info, net.make(info.classes), optim)._replace(sampling=sampling if self.balanced else None)


def partners(key: jax.Array, label: jax.Array, bias: jax.Array, within_label: jax.Array | bool) -> tuple[jax.Array, jax.Array]:
    """(partner [B], whether there is one [B]): of equal label and other bias, or, not within_label, the other way round.

    All images lie at random on a circle, and each takes the first that fits from a random point on: every one that fits is equally
    likely, for two random numbers an image. Images that choose among the same are not independent of each other.
    """
    same_label, same_bias = label[:, None] == label, bias[:, None] == bias
    fits = (same_label == within_label) & (same_label != same_bias) & (bias[:, None] >= 0) & (bias >= 0)
    position, start = jax.random.uniform(key, (2, len(label)))
    distance = jnp.where(fits, (position - start[:, None]) % 1, jnp.inf)
    return distance.argmin(1), fits.any(1)


def _make(config: Config, info: Info, network: nn.Module, optim: Optim) -> Method:
    init_nets, predict = single(network)

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        coin_key, partner_key, weight_key, dropout_key, noise_key = jax.random.split(key, 5)
        image, label = batch["image"], batch["label"]
        pairs.check_size(len(label))
        partner, paired = partners(partner_key, label, batch["bias"], jax.random.bernoulli(coin_key, config.p_sel))
        weight = jnp.where(paired, pairs.weights(weight_key, config.alpha, paired.shape), 1.0)
        other, of_image = label[partner], weight[:, None, None, None]
        image = (of_image * image + (1 - of_image) * image[partner]).astype(image.dtype)
        rngs = {"dropout": dropout_key, "noise": noise_key}
        logits, stats = apply_net(network, params["net"], state.stats["net"], image, True, rngs)
        value = (weight * losses.cross_entropy(logits, label) + (1 - weight) * losses.cross_entropy(logits, other)).mean()
        answer = logits.argmax(-1)
        accuracy = (weight * (answer == label) + (1 - weight) * (answer == other)).mean()
        return value, ({"net": stats}, state.memory, {"loss": value, "accuracy": accuracy, "mixed": paired.mean()})

    return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)
