"""DisEnt: Lee, Kim, Lee, Lee, Choo, "Learning Debiased Representation via Disentangled Feature Augmentation" (2021).

Two encoders of one shape, E_i (intrinsic) and E_b (bias), and two linear heads on both features together, C_i and C_b; each head trains its
own encoder only. With the weights W of `jaxbed.methods.parts.relative_difficulty`, c_i and c_b being the heads' cross-entropies:

    L = mean W·c_i + λ·mean GCE(C_b) + on·λ_swap·(mean W·c_i' + λ_swap_b·mean GCE(C_b'; the other's label))

The primed heads see, beside an image's z_i, the z_b of another image of the batch: a bias that its class need not have. `on` is 1 after
the first `swap_after` of the run. Prediction is C_i's, with the image's own z_b. GCE is the surrogate of `losses`.

Differs from the authors' code: swapping begins after a share of the run and not at step 10,000 of 50,000, which shorter runs never reach,
and so do the decays of the learning rate; one optimizer instead of one for each encoder with its head, the same for rules that act on each
number by itself, as SGD and Adam do; a batch may hold a single image's features. The defaults are those of Colored MNIST; for other data
sets see jaxbed/presets/published.py.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, init_net
from jaxbed.methods.parts import losses, pairs, relative_difficulty
from jaxbed.models import features
from jaxbed.models.capabilities import CUT, Cuttable, require
from jaxbed.models.linear import Linear
from jaxbed.optim import Optim
from jaxbed.values import NotNegative, Share, ShareBelowOne

ENCODERS = ("intrinsic", "bias")
LAMBDAS = ("lambda_dis", "lambda_swap", "lambda_swap_biased")


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    lambda_dis: NotNegative = 10.0  # of the bias head's loss
    lambda_swap: NotNegative = 1.0  # of both losses on swapped features
    lambda_swap_biased: NotNegative = 10.0  # of the bias head's among them
    swap_after: Share = 0.2  # share of the run without swapping
    q: ShareBelowOne = 0.7  # of the generalised cross-entropy
    alpha: ShareBelowOne = 0.7  # weight of the old value in the averages

    def make(self, info: Info, net: Cuttable, optim: Optim, loss_biased: Callable | None = None) -> Method:
        """loss_biased(logits of C_b, batch) -> scalar takes the place of the generalised cross-entropy."""
        require(net, "DisEnt joins the features of two encoders", CUT)
        return _make(self, info, net, optim, loss_biased or functools.partial(losses.mean_generalized, q=self.q))


def _make(config: Config, info: Info, net: Cuttable, optim: Optim, loss_biased: Callable) -> Method:
    encoder, head = net.make(info.classes, last=net.parts - 1), Linear(info.classes)
    swap_from = config.swap_after * info.epochs * info.steps_per_epoch
    numbers = {**optim.hparams(), **{name: getattr(config, name) for name in LAMBDAS}}

    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, stats = {}, {}
        for name, network_key in zip(ENCODERS, jax.random.split(key), strict=True):
            params[name], stats[name] = init_net(encoder, network_key, batch["image"])
        z, _ = encode(params, stats, batch["image"], False)
        both = jnp.concatenate([z["intrinsic"], z["bias"]], -1)
        keys = jax.random.split(jax.random.fold_in(key, 1))
        heads = {f"{name}_head": head.init(network_key, both)["params"] for name, network_key in zip(ENCODERS, keys, strict=True)}
        return {**params, **heads}, stats

    def encode(params: PyTree, stats: PyTree, image: jax.Array, train: bool, key: jax.Array | None = None) -> tuple[PyTree, PyTree]:
        z, new = {}, {}
        for number, name in enumerate(ENCODERS):
            rngs = {"dropout": jax.random.fold_in(key, number)} if key is not None else None
            maps, new[name] = apply_net(encoder, params[name], stats[name], image, train, rngs)
            z[name] = features.pooled(maps)
        return z, new

    def logits(params: PyTree, name: str, intrinsic: jax.Array, bias: jax.Array) -> jax.Array:
        output: Any = head.apply({"params": params[f"{name}_head"]}, jnp.concatenate([intrinsic, bias], -1))
        return output

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        order_key, dropout_key = jax.random.split(key)
        label, hparams = batch["label"], state.hparams
        z, stats = encode(params, state.stats, batch["image"], True, dropout_key)
        fixed = jax.lax.stop_gradient(z)
        by_shape = logits(params, "intrinsic", z["intrinsic"], fixed["bias"])
        by_bias = logits(params, "bias", fixed["intrinsic"], z["bias"])
        sample_losses = {"debiased": losses.cross_entropy(by_shape, label), "biased": losses.cross_entropy(by_bias, label)}
        weight, memory = relative_difficulty.weigh(state.memory, sample_losses, batch["index"], label, info.classes, config.alpha)
        shown = (weight * sample_losses["debiased"]).mean()
        biased = loss_biased(by_bias, batch)

        order = pairs.partners(order_key, len(label))
        by_shape_swapped = logits(params, "intrinsic", z["intrinsic"], fixed["bias"][order])
        by_bias_swapped = logits(params, "bias", fixed["intrinsic"], z["bias"][order])
        swapped = (weight * losses.cross_entropy(by_shape_swapped, label)).mean()
        others = {name: of_batch[order] for name, of_batch in batch.items() if name != "image"}
        swapped_biased = loss_biased(by_bias_swapped, others)

        on = (state.step >= swap_from).astype(jnp.float32)
        total = shown + hparams["lambda_dis"] * biased
        total += on * hparams["lambda_swap"] * (swapped + hparams["lambda_swap_biased"] * swapped_biased)
        metrics = {
            "loss": shown,
            "loss/biased": biased,
            "loss/swapped": swapped,
            "accuracy": losses.accuracy(by_shape, label),
            "accuracy/biased": losses.accuracy(by_bias, label),
            "weight": weight.mean(),
        }
        return total, (stats, memory, metrics)

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        z, _ = encode(params, stats, image, False)
        return logits(params, "intrinsic", z["intrinsic"], z["bias"])

    return from_loss(
        init_nets, loss, optim.transform(info), numbers, predict, functools.partial(relative_difficulty.tables, info.train_size)
    )
