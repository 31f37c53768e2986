"""Mixup and CutMix: images of the batch are mixed in pairs, and so are the losses of their labels.

Mixup: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization" (2018). Each image becomes λ·x + (1 - λ)·x', x'
being another image of the batch and λ ~ Beta(alpha, alpha).

CutMix: Yun, Han, Oh, Chun, Choe, Yoo, "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features" (2019).
With probability p, the pixels of a box are another image's. Its sides are √(1 - λ) times the image's, its centre is anywhere in the
image, and what sticks out is cut off; λ then becomes the share of pixels that stay.

    L = λ·CE(f(x), y) + (1 - λ)·CE(f(x), y')

One λ, one box and one permutation serve the whole (global) batch, as in the authors' code; so does the rounding of a box's sides down
to an even number of pixels. Off at evaluation.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, from_net, single
from jaxbed.methods.parts import losses, pairs
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.values import NotNegative, Positive, Share


@dataclasses.dataclass
class Mixup:
    reads_bias: ClassVar[bool] = False

    alpha: NotNegative = 0.2  # of Beta(alpha, alpha); 0.2 to 0.4 on ImageNet, 1 on CIFAR; 0 is ERM

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        if not self.alpha:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())
        return _make(lambda key, image: blend(image, *_draw(key, image, self.alpha)), info, net, optim)


@dataclasses.dataclass
class CutMix:
    reads_bias: ClassVar[bool] = False

    p: Share = 1.0  # probability of pasting, per step; 1 on ImageNet, 0.5 on CIFAR; 0 is ERM
    alpha: Positive = 1.0  # of Beta(alpha, alpha): 1 is uniform

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        if not self.p:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())

        def mix(key: jax.Array, image: jax.Array) -> Mixed:
            coin_key, centre_key, draw_key = jax.random.split(key, 3)
            order, weight = _draw(draw_key, image, self.alpha)
            weight = jnp.where(jax.random.bernoulli(coin_key, self.p), weight, 1.0)
            return paste(image, order, weight, jax.random.uniform(centre_key, (2,)))

        return _make(mix, info, net, optim)


Mixed = tuple[jax.Array, jax.Array, jax.Array]  # images, partners [B], λ


def blend(image: jax.Array, order: jax.Array, weight: jax.Array) -> Mixed:
    """weight·own + (1 - weight)·that of image order[i]."""
    return (weight * image + (1 - weight) * image[order]).astype(image.dtype), order, weight


def paste(image: jax.Array, order: jax.Array, weight: jax.Array, centre: jax.Array) -> Mixed:
    """A box of image order[i] in each image; centre [2] in [0, 1), from the upper left."""
    inside = []
    for side, at in zip(image.shape[1:3], centre, strict=True):
        half = jnp.floor(side * jnp.sqrt(1 - weight)) // 2
        distance = jnp.arange(side) - jnp.floor(side * at)
        inside.append((distance >= -half) & (distance < half))
    pasted = inside[0][:, None] & inside[1]  # [H, W]
    return jnp.where(pasted[..., None], image[order], image), order, 1 - pasted.mean()


def _draw(key: jax.Array, image: jax.Array, alpha: float) -> tuple[jax.Array, jax.Array]:
    order_key, weight_key = jax.random.split(key)
    return pairs.partners(order_key, len(image)), pairs.weights(weight_key, alpha, ())


def _make(mix: Callable[[jax.Array, jax.Array], Mixed], info: Info, net: Network, optim: Optim) -> Method:
    network = net.make(info.classes)

    init_nets, predict = single(network)

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        dropout_key, mix_key = jax.random.split(key)
        image, order, weight = mix(mix_key, batch["image"])
        logits, stats = apply_net(network, params["net"], state.stats["net"], image, True, {"dropout": dropout_key})
        label, other = batch["label"], batch["label"][order]

        def of_both(score: Callable) -> jax.Array:
            return weight * score(logits, label).mean() + (1 - weight) * score(logits, other).mean()

        value = of_both(losses.cross_entropy)
        return value, ({"net": stats}, state.memory, {"loss": value, "accuracy": of_both(losses.accuracy)})

    return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)
