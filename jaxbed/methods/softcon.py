"""SoftCon: Hong and Yang, "Unbiased Classification through Bias-Contrastive and Bias-Balanced Learning" (2021).

First g, which is biased by design (`methods.rebias`), is trained by cross-entropy alone, and gives every training image i a direction v_i:
its features, scaled to length 1. Then the network f is trained on batches of which the last `contrastive` images are for the contrast, the
others for cross-entropy. With u the directions of f's features, over the images a of the contrast

    W_ap = [y_a = y_p]·(1 - v_a·v_p)                                              images of one class that look unlike to g attract
    l_a  = -Σ_{p≠a} W_ap·log( exp(u_a·u_p/τ) / (exp(1/τ) + 2·Σ_{q≠a} exp(u_a·u_q/τ)) ) / Σ_{p≠a} W_ap
    L    = weight·mean CE + mean l_a

This is the published loss of two equal views of each image, so that all features count twice: an image's own other view has weight 0 and
is no positive, but its exp(1/τ) is most of the denominator.

The images of the contrast are drawn with replacement, by how unlike they are to their class: m_i = mean over its images j of 1 - v_i·v_j,
cut at `ratio` times the least.

Differs from the authors' code: m_i is the mean over the whole class (there over 1,024 random images of it); an image's two views are the
same, with the augmentation of all methods (there two draws of its own augmentation); W below 1e-6 is 0, and an image without positives has
loss 0 (rounding noise there gets a full-size loss); both kinds of images go through the network in one pass. The features of the main
network are those before its head.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.config import Train
from jaxbed.method import Batch, Info, Loss, Method, PyTree, Sampling, State, apply_net, from_loss, init_net
from jaxbed.methods import rebias
from jaxbed.methods.parts import losses
from jaxbed.models import features
from jaxbed.models.capabilities import CUT, Cuttable, require
from jaxbed.optim import Optim
from jaxbed.stages import Stage
from jaxbed.values import LARGEST, Count, NotNegative, Positive, Range

NOISE = 1e-6  # of a weight, by rounding


@dataclasses.dataclass
class BiasedByDesign:
    """g alone, by mean cross-entropy."""

    reads_bias: ClassVar[bool] = False

    biased: rebias.BiasedNet

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        network = self.biased.make(net, info.classes)

        def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
            params, stats = init_net(network, key, batch["image"])
            return {"biased": params}, {"biased": stats}

        def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
            rngs = {"dropout": key}
            (_, logits), stats = apply_net(network, params["biased"], state.stats["biased"], batch["image"], True, rngs)
            value = losses.cross_entropy(logits, batch["label"]).mean()
            metrics = {"loss": value, "accuracy": losses.accuracy(logits, batch["label"])}
            return value, ({"biased": stats}, state.memory, metrics)

        def forward(params: PyTree, stats: PyTree, image: jax.Array) -> Any:  # (features, logits)
            return apply_net(network, params["biased"], stats["biased"], image, False)[0]

        made = from_loss(init_nets, loss, optim.transform(info), optim.hparams(), lambda *given: forward(*given)[1])
        return made._replace(features=lambda *given: forward(*given)[0])


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    epochs_before: Count = 80  # of g
    weight: NotNegative = 0.01  # of the cross-entropy; 1 on ImageNet
    contrastive: Annotated[int, Range(2, LARGEST)] = 64  # images of every batch that are for the contrast
    tau: Positive = 0.07  # temperature
    ratio: NotNegative = 10.0  # where weights of drawing are cut, at least 1; 0: all images alike
    biased: rebias.BiasedNet = dataclasses.field(default_factory=rebias.BiasedNet)

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]:
        require(cfg.net, "SoftCon compares features", CUT)

        def direction(method: Method, params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
            assert method.features
            return {"biased_direction": features.unit(method.features(params, stats, image))}

        def columns(outputs: dict[str, np.ndarray], label: np.ndarray, say: Callable[[str], None]) -> dict[str, np.ndarray]:
            return {"biased_direction": outputs["biased_direction"][0]}

        # g is a network of another kind: weights to start from do not fit it
        biased = dataclasses.replace(cfg, method=BiasedByDesign(self.biased), epochs=self.epochs_before, init_from="")
        return Stage("biased network", biased, outputs=direction), Stage("", cfg, columns=columns)

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        require(net, "SoftCon compares features", CUT)
        if self.ratio != 0 and self.ratio < 1:
            raise ValueError(f"method.ratio = {self.ratio}: take 1 or more, or 0 to draw all images alike; the authors' code has 10")
        return _make(self, info, net, optim)


def contrast(direction: jax.Array, biased_direction: jax.Array, label: jax.Array, tau: jax.Array | float, views: int = 2) -> jax.Array:
    """l_a of each image, [K], from u [K, F], v [K, G] and labels [K]; 0 where an image has no positives. views: how often each counts."""
    exact = jax.lax.Precision.HIGHEST
    others = ~jnp.eye(len(label), dtype=bool)
    unlike = 1 - jnp.dot(biased_direction, biased_direction.T, precision=exact)
    weight = jnp.where(others & (label[:, None] == label[None]) & (unlike > NOISE), unlike, 0.0)
    similarity = jnp.dot(direction, direction.T, precision=exact) / tau
    log_share = similarity - jax.nn.logsumexp(similarity, axis=1, b=views - jnp.eye(len(label)), keepdims=True)
    total = weight.sum(1)
    return -(weight * log_share).sum(1) / jnp.where(total > 0, total, 1.0)


def drawing_weights(biased_direction: np.ndarray, label: np.ndarray, ratio: float) -> np.ndarray:
    """min(m_i, ratio · least m), [N]: how often each image is drawn for the contrast; all alike for ratio 0."""
    if not ratio:
        return np.ones(len(label))
    unlike = np.empty(len(label))
    for y in np.unique(label):
        of_class = biased_direction[label == y]
        unlike[label == y] = np.maximum(1 - of_class @ of_class.mean(0), NOISE)
    return np.minimum(unlike, ratio * unlike.min())


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    parts, count = features.cut(net, info.classes), config.contrastive

    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        if len(batch["label"]) <= count:
            raise ValueError(f"batch_size = {len(batch['label'])}: method.contrastive = {count} of them leave none for cross-entropy")
        return features.init_parts(parts, key, batch["image"])

    forward = functools.partial(features.forward, parts)

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        label = batch["label"]
        (vectors, logits), stats = forward(params, state.stats, batch["image"], True, key)
        value = losses.cross_entropy(logits[:-count], label[:-count]).mean()
        direction, biased = features.unit(vectors[-count:]), batch["biased_direction"][-count:]
        contrasted = contrast(direction, biased, label[-count:], state.hparams["tau"]).mean()
        metrics = {"loss": value, "loss/contrast": contrasted, "accuracy": losses.accuracy(logits[:-count], label[:-count])}
        return state.hparams["weight"] * value + contrasted, (stats, state.memory, metrics)

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return forward(params, stats, image, False)[0][1]

    def weights(label: np.ndarray, bias: np.ndarray | None, tables: dict[str, np.ndarray]) -> np.ndarray:
        return drawing_weights(tables["biased_direction"], label, config.ratio)

    hparams = {**optim.hparams(), "weight": config.weight, "tau": config.tau}
    made = from_loss(init_nets, loss, optim.transform(info), hparams, predict)
    return made._replace(sampling=Sampling(weights, count))
