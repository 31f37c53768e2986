"""Noise2Net: Hendrycks et al., "The Many Faces of Robustness: A Critical Analysis of Out-of-Distribution Generalization" (2021).

The first half of every batch passes through networks of random weights, one for each image (`data.noise2net`); the rest stays as it is:

    L = mean CE(f(x'), y)      x' = Noise2Net(x) in the first half, x in the second

Noise2Net follows the augmentation and normalisation of the data set, computes in the type of the network's activations (net.dtype), and is
off at evaluation. Differs from the published code, which
takes the first half of each device's batch, rounded down: half of the whole batch here, and a batch without a half is refused.

The kinds of convolutions are a function of the seed and the epoch, whose number is that of finished steps over the steps of an epoch. A run
that resumes within an epoch goes on with that epoch's kinds.
"""

import dataclasses
import functools
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from jaxbed import parallel, values
from jaxbed.config import Train
from jaxbed.data import noise2net
from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, single
from jaxbed.methods.parts import losses
from jaxbed.models.capabilities import Network, activation_dtype
from jaxbed.optim import Optim
from jaxbed.stages import Stage
from jaxbed.values import Range

KINDS = 1  # what the key of a seed's start is folded with; networks draw their parameters from that key itself, as in other methods


@dataclasses.dataclass
class Config(noise2net.Settings):
    reads_bias: ClassVar[bool] = False
    multi_label: ClassVar[bool] = True

    share: Annotated[float, Range(0, 1, above=True)] = 0.5  # of every batch: its first images

    def check_batch(self, batch_size: int) -> None:
        """Raises ValueError where a part of an image would be changed."""
        values.images_of(batch_size, self.share, "method.share")

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]:
        if shares := getattr(cfg.data, "shares", ()):
            raise ValueError(
                f"data.shares = {shares}: batches then hold one training set after another, and Noise2Net changes their first images: "
                "leave it empty, and all images are shuffled together"
            )
        return (Stage("", cfg),)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        network = net.make(info.classes)
        init_nets, predict = single(network)

        def noisy(image: jax.Array, state: State, key: jax.Array) -> jax.Array:
            """The batch's images, the first of them changed."""
            count = values.images_of(len(image), self.share, "method.share")
            eps_key, weights_key = jax.random.split(key)
            epoch = state.step // info.steps_per_epoch
            reaches = noise2net.draw_reaches(jax.random.fold_in(jax.random.wrap_key_data(state.memory["kinds"]), epoch), self)
            weights = noise2net.draw_weights(weights_key, count, image.shape[-1], reaches, self)
            eps = noise2net.draw_eps(eps_key, state.hparams["strength"])
            changed = parallel.on_own_images(functools.partial(noise2net.changed, dtype=activation_dtype(net)), (0, 1, None, None))
            return jnp.concatenate([changed(image[:count], weights, reaches, eps), image[count:]])

        def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
            dropout_key, noise_key = jax.random.split(key)
            image = noisy(batch["image"], state, noise_key)
            logits, stats = apply_net(network, params["net"], state.stats["net"], image, True, {"dropout": dropout_key})
            value = losses.cross_entropy(logits, batch["label"]).mean()
            metrics = {"loss": value, "accuracy": losses.accuracy(logits, batch["label"])}
            return value, ({"net": stats}, state.memory, metrics)

        made = from_loss(init_nets, loss, optim.transform(info), optim.hparams() | {"strength": self.strength}, predict)

        def init(key: jax.Array, batch: Batch) -> State:
            return made.init(key, batch).replace(memory={"kinds": jax.random.key_data(jax.random.fold_in(key, KINDS))})

        return made._replace(init=init)
