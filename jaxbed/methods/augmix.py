"""AugMix: Hendrycks, Mu, Cubuk, Zoph, Gilmer, Lakshminarayanan, "AugMix: A Simple Data Processing Method to Improve Robustness and
Uncertainty" (2020).

The network sees each image three times, as it is and twice mixed with distortions of itself (`data.augmix`), and is to answer alike:

    L = mean CE(f(x), y) + weight · mean JS(p, p', p'')      JS = 1/3 Σ_v KL(p_v || M), M = (p + p' + p'') / 3

One pass takes all 3B images, so BatchNorm's statistics are those of all three views. M is clipped to 1e-7 as in the authors' code, and no
gradient is stopped. Mixing follows the crop and flip of the data set, acts on 8 bits (in bfloat16, of images rounded to about a level), and
is off at evaluation.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxbed import values
from jaxbed.data import augmix
from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, single
from jaxbed.methods.parts import losses
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.values import NotNegative

LEAST_MEAN = 1e-7  # probability, of M


@dataclasses.dataclass
class Config(augmix.Settings):
    reads_bias: ClassVar[bool] = False

    consistency: bool = True  # False: cross-entropy of one mixed view of each image, and nothing else
    weight: NotNegative = 12.0  # of the Jensen-Shannon divergence, where consistency is True

    @property
    def multi_label(self) -> bool:
        return not self.consistency  # the divergence is that of answers among all classes

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        if not self.consistency:
            values.refuse_unused(self, ("weight",), "method.consistency = false")
        return _make(self, info, net, optim)


def jensen_shannon(logits: jax.Array) -> jax.Array:
    """The divergence of V answers to each image, [B], in nats, from logits [B, V, classes]: 0 to ln V, or less than 0 by rounding."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    p = jnp.exp(log_p)
    log_mean = jnp.log(jnp.clip(p.mean(1, keepdims=True), LEAST_MEAN, 1))
    return (p * (log_p - log_mean)).sum(-1).mean(1)


def _make(config: Config, info: Info, net: Network, optim: Optim) -> Method:
    network = net.make(info.classes)
    init_nets, predict = single(network)
    black, white = info.pixel_range()

    def mixtures(key: jax.Array, image: jax.Array, count: int) -> jax.Array:
        """`count` mixtures of each image, [B, count, H, W, C], as the network sees them."""
        drawn = augmix.draw_batch(key, len(image) * count, config)
        unit = jnp.clip((image.astype(jnp.float32) - black) / (white - black), 0, 1)
        mixed = augmix.mixed(jnp.repeat(unit, count, 0), drawn, config)
        return (mixed * (white - black) + black).astype(image.dtype).reshape(len(image), count, *image.shape[1:])

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        dropout_key, mix_key = jax.random.split(key)
        image, label = batch["image"], batch["label"]
        # The views of an image side by side, so that devices that share a batch need not exchange them
        if config.consistency:
            views = jnp.concatenate([image[:, None], mixtures(mix_key, image, 2)], 1)
        else:
            views = mixtures(mix_key, image, 1)
        flat = views.reshape(-1, *image.shape[1:])
        logits, stats = apply_net(network, params["net"], state.stats["net"], flat, True, {"dropout": dropout_key})
        logits = logits.reshape(*views.shape[:2], -1)
        value = losses.cross_entropy(logits[:, 0], label).mean()
        metrics = {"accuracy": losses.accuracy(logits[:, 0], label)}
        if config.consistency:
            divergence = jensen_shannon(logits).mean()
            value += state.hparams["weight"] * divergence
            metrics["loss/divergence"] = divergence
        return value, ({"net": stats}, state.memory, {"loss": value, **metrics})

    hparams = optim.hparams() | ({"weight": config.weight} if config.consistency else {})
    return from_loss(init_nets, loss, optim.transform(info), hparams, predict)
