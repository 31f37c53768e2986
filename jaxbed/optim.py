"""Optimizers that step exactly as PyTorch's do, and the schedules of the papers.

Weight decay is added to the gradient of *every* parameter, BatchNorm and biases included, before momentum or Adam sees it
(PyTorch's `weight_decay` of SGD and Adam; not AdamW), unless `decay_norms` is off.
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxbed.method import Info, PyTree
from jaxbed.values import NotNegative, Positive, ShareBelowOne


@dataclasses.dataclass
class Optim:
    """One optimizer and its schedule. `lr` and `weight_decay` become hyper-parameters of the state: a search may vary them."""

    rule: Literal["sgd", "adam"] = "sgd"
    lr: NotNegative = 0.1  # at the batch size of the run: never rescaled silently
    weight_decay: NotNegative = 0.0
    momentum: ShareBelowOne = 0.9  # sgd
    nesterov: bool = False  # sgd
    b1: ShareBelowOne = 0.9  # adam
    b2: ShareBelowOne = 0.999  # adam
    eps: Positive = 1e-8  # adam
    decay_norms: bool = True  # False: no weight decay on scales and biases of normalisation layers
    schedule: Literal["constant", "step", "cosine", "linear"] = "constant"
    milestones_epochs: tuple[NotNegative, ...] = (30, 60, 90)  # step: those that fall on one step each count; linear: ends of its pieces
    factors: tuple[NotNegative, ...] = ()  # linear: of lr at each milestone, in a straight line between them
    gamma: NotNegative = 0.1  # step: factor at each milestone
    warmup_epochs: NotNegative = 0.0  # linear from 0, per step
    head_rate: Positive = 1.0  # learning rate of the network's last layer, named "head", over that of all others

    def unreached(self, epochs: int) -> list[float]:
        """Milestones that a run of so many epochs does not reach: it keeps a higher learning rate than was meant."""
        return [epoch for epoch in self.milestones_epochs if epoch >= epochs] if self.schedule == "step" else []

    def hparams(self) -> dict[str, float]:
        return {"lr": self.lr, "weight_decay": self.weight_decay}

    def transform(self, info: Info) -> Callable[[dict[str, jax.Array]], optax.GradientTransformation]:
        """The function hparams -> optimizer. `hparams` needs `lr` and `weight_decay` and may hold traced values."""
        decay = _factor(self, info)

        def build(hparams: dict[str, jax.Array]) -> optax.GradientTransformation:
            if self.rule == "sgd":
                core = optax.trace(decay=self.momentum, nesterov=self.nesterov)
            else:
                core = optax.scale_by_adam(b1=self.b1, b2=self.b2, eps=self.eps)
            decayed = optax.add_decayed_weights(hparams["weight_decay"], mask=None if self.decay_norms else _outside_norms)
            chain = self._chain(decayed, core, optax.scale_by_schedule(lambda count: -hparams["lr"] * decay(count)))
            return chain if self.head_rate == 1 else optax.chain(chain, optax.stateless(self._at_head_rate))

        return build

    def _chain(self, *parts: optax.GradientTransformation) -> optax.GradientTransformation:
        return optax.chain(*parts)

    def _at_head_rate(self, updates: PyTree, _params: PyTree) -> PyTree:
        """Updates, those of the head times `head_rate`. Raises ValueError for a network without a layer of that name."""
        is_head = jax.tree_util.tree_map_with_path(lambda path, _: _layer(path) == "head", updates)
        if not any(jax.tree.leaves(is_head)):
            raise ValueError(f'optim.head_rate = {self.head_rate}: this network has no layer named "head": set it to 1')
        return jax.tree.map(lambda update, faster: update * self.head_rate if faster else update, updates, is_head)

    def on_vector(self) -> "Optim":
        """The same optimizer, which sees all its parameters as one vector: its state has vectors where that of this one has trees."""
        return _OnVector(**vars(self))


class _OnVector(Optim):
    def _chain(self, *parts: optax.GradientTransformation) -> optax.GradientTransformation:
        if self.decay_norms:
            return optax.flatten(optax.chain(*parts))
        decayed, core, scaled = parts  # which parameters are decayed depends on their names
        return optax.chain(decayed, optax.flatten(core), scaled)


def _outside_norms(params: PyTree) -> PyTree:
    """Which parameters are not a normalisation layer's: {..., "norm1": {"scale", "bias"}}."""

    return jax.tree_util.tree_map_with_path(lambda path, _: "norm" not in _layer(path), params)


def _layer(path: tuple) -> str:
    """The name of the layer that a parameter belongs to; empty for a parameter alone."""
    *_, layer, _ = ["", *jax.tree_util.keystr(path, simple=True, separator="/").split("/")]
    return layer


def _factor(optim: Optim, info: Info) -> optax.Schedule:
    """Learning rate at a step, as a fraction of the base one."""
    warmup = round(optim.warmup_epochs * info.steps_per_epoch)
    total = info.epochs * info.steps_per_epoch
    if warmup and warmup >= total:
        raise ValueError(f"optim.warmup_epochs = {optim.warmup_epochs} leaves nothing of {info.epochs} epochs: shorten it")
    if optim.schedule == "step":
        counts = collections.Counter(round(epoch * info.steps_per_epoch) for epoch in optim.milestones_epochs)
        after = optax.piecewise_constant_schedule(1.0, {step: optim.gamma**count for step, count in counts.items()})
    elif optim.schedule == "linear":
        if (
            len(optim.factors) != len(optim.milestones_epochs)
            or len(optim.factors) < 2
            or sorted(optim.milestones_epochs) != list(optim.milestones_epochs)
        ):
            raise ValueError(
                f"optim.factors = {optim.factors}: schedule = linear needs one for each of milestones_epochs = {optim.milestones_epochs}, "
                "which must rise, and two at least"
            )
        if warmup:
            raise ValueError(
                f"optim.warmup_epochs = {optim.warmup_epochs}: schedule = linear has its warm-up in factors, such as 0.0,1.0,0.0 at "
                "milestones_epochs 0,5,15: set warmup_epochs to 0"
            )
        ends = jnp.array(optim.milestones_epochs) * info.steps_per_epoch
        return lambda count: jnp.interp(count, ends, jnp.array(optim.factors))
    elif optim.schedule == "cosine":
        after = optax.cosine_decay_schedule(1.0, total - warmup)
    else:
        after = optax.constant_schedule(1.0)
    if not warmup:
        return after
    # milestones are absolute epochs, whereas a cosine starts where the warm-up ends
    shift = warmup if optim.schedule == "cosine" else 0
    return lambda count: jnp.where(count < warmup, count / warmup, after(jnp.maximum(count - shift, 0)))


def only(transform: optax.GradientTransformation, pick: Callable[[str], bool]) -> optax.GradientTransformation:
    """`transform` for the parameters whose path satisfies `pick`, and a zero update for all others.

    A path reads like "trunk/stem_norm/scale". (`optax.masked` would hand the others their raw gradient as the update.)
    """

    def labels(params: PyTree) -> PyTree:
        def label(path: tuple, _leaf: Any) -> str:
            return "on" if pick(jax.tree_util.keystr(path, simple=True, separator="/")) else "off"

        return jax.tree_util.tree_map_with_path(label, params)

    return optax.partition({"on": transform, "off": optax.set_to_zero()}, labels)
