"""BiasEnsemble: Lee, Park, Kim, Lee, Choi, Choo, "Revisiting the Importance of Amplifying Bias for Debiasing" (2023).

Before a run of LfF or DisEnt, a few networks are trained a short time by the surrogate of generalised cross-entropy, and so to be biased.
Training images whose class at least `agreement` of them give a probability above `confidence` are kept as bias-aligned. In the run itself
the biased network descends, in place of its generalised cross-entropy, the mean cross-entropy of the kept images of each batch; all else is
as in `methods.lff` or `methods.disent`.

Differs from the authors' code: the throw-away networks are those after `epochs_before` epochs (there the better on validation of those
after 1 and 501 steps: `presets.published` has each data set's epochs); they are asked about images without augmentation; a batch
without kept images has loss 0 (there NaN); where no image at all would be kept, all are.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import values
from jaxbed.config import Train
from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, init_net
from jaxbed.methods import lff
from jaxbed.methods.parts import losses
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.stages import Stage
from jaxbed.values import Count, ShareBelowOne


@dataclasses.dataclass
class Biased:
    """One network trained by the surrogate of generalised cross-entropy."""

    reads_bias: ClassVar[bool] = False

    q: ShareBelowOne = 0.7

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        network = net.make(info.classes)

        def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
            params, stats = init_net(network, key, batch["image"])
            return {"biased": params}, {"biased": stats}

        def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
            rngs = {"dropout": key}
            logits, stats = apply_net(network, params["biased"], state.stats["biased"], batch["image"], True, rngs)
            value = losses.mean_generalized(logits, batch, self.q)
            metrics = {"loss": value, "accuracy": losses.accuracy(logits, batch["label"])}
            return value, ({"biased": stats}, state.memory, metrics)

        def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
            return apply_net(network, params["biased"], stats["biased"], image, False)[0]

        return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    base: Any = dataclasses.field(default_factory=lff.Config)  # whose biased network is changed: LfF's or DisEnt's Config, but for its q
    networks: Count = 5  # throw-away ones
    epochs_before: Count = 3  # that they are trained
    q: ShareBelowOne = 0.7  # of their generalised cross-entropy
    confidence: ShareBelowOne = 0.99  # probability that a network must exceed
    agreement: Count = 3  # networks that must, for an image to be kept

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]:
        if self.agreement > self.networks:
            raise ValueError(f"method.agreement = {self.agreement} of method.networks = {self.networks}: take 1 to as many as there are")

        def probability(method: Method, params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
            return {"probability": jnp.exp(-losses.cross_entropy(method.predict(params, stats, image), label))}

        def columns(outputs: dict[str, np.ndarray], label: np.ndarray, say: Callable[[str], None]) -> dict[str, np.ndarray]:
            keep = (outputs["probability"] > np.float32(self.confidence)).sum(0) >= self.agreement
            if not keep.any():
                agree = f"{self.agreement} of {self.networks} networks are confident above {self.confidence}"
                say(f"of no training image {agree}, so all are kept: train them longer (method.epochs_before), or lower method.confidence")
            return {"kept": keep | ~keep.any()}

        biased = dataclasses.replace(cfg, method=Biased(self.q), epochs=self.epochs_before)
        return Stage("biased networks", biased, self.networks, outputs=probability), Stage("", cfg, columns=columns)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        values.refuse_unused(self.base, ("q",), "BiasEnsemble", "set method.q", "method.base")
        return self.base.make(info, net, optim, kept_loss)


def kept_loss(logits: jax.Array, batch: Batch) -> jax.Array:
    """Mean cross-entropy of the images that batch["kept"] marks; 0 where it marks none."""
    kept = batch["kept"].astype(jnp.float32)
    return (kept * losses.cross_entropy(logits, batch["label"])).sum() / jnp.maximum(kept.sum(), 1)
