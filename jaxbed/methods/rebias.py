"""ReBias: Bahng, Chun, Yun, Choo, Oh, "Learning De-biased Representations with Biased Representations" (2020).

Beside the network f trains g, which sees too little of an image to know more than its colours and textures: where convolutions can be
replaced, as in a ResNet, the same network with 1x1 convolutions after its stem; beside any other a Simple Conv of 1x1 convolutions. In each
step, g first:

    g descends  L_g = CE(g(x), y) - weight_biased · HSIC(z_g, z_f)
    f descends  L_f = CE(f(x), y) + weight · HSIC(z_f, z_g)             with the z_g that the new g gives

z are the features before the heads, of the other network constant. HSIC is the unbiased estimate (`hsic`) with Gaussian kernels of width
sigma; f alone predicts.

bandwidth: "fixed" is sigma itself, as the authors have it on Biased MNIST; "median" is sigma times the root of the median squared distance
    of the batch at hand, zeros of the diagonal included, after their ImageNet runs.

Differs from the authors' code: f is run once a step, as it does not change in between, so that its running statistics move once (there
twice); medians are of each batch (there of a quarter of the batches of an epoch, and those of f and g swapped in L_g); g beside a
ResNet (there BagNet-18).
"""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxbed.method import Batch, Info, Method, PyTree, State, apply_net, init_net, scalars
from jaxbed.methods.parts import losses
from jaxbed.models import features, simple_conv
from jaxbed.models.capabilities import CONV, CUT, Convolved, Cuttable, offers, require
from jaxbed.models.conv import Conv
from jaxbed.optim import Optim
from jaxbed.values import Count, NotNegative, Positive

LEAST = 1e-12  # median squared distance; of features that are nearly all the same it is 0


@dataclasses.dataclass
class BiasedNet:
    """The network that is biased by design, and what it may cost."""

    stride: Count = 1  # of a Simple Conv: g sees one row and column in so many; 2 costs a quarter
    dtype: Literal["", "float32", "bfloat16"] = ""  # of g's activations; empty: as net.dtype

    def make(self, net: Cuttable, classes: int) -> nn.Module:
        """g beside `net`: image -> (features [B, F], logits [B, classes]). Of the same kind as `net`, it has the strides of `net`."""
        dtype = self.dtype or net.dtype
        if offers(net, CONV):
            same_kind = dataclasses.replace(cast(Convolved, net), dtype=dtype)
            return Biased(same_kind.make(classes, conv=pointwise, last=same_kind.parts - 1), features.cut(same_kind, classes)["head"])
        parts = features.cut(simple_conv.Config(kernel=1, stride=self.stride, dtype=dtype), classes)
        return Biased(parts["trunk"], parts["head"])


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    weight: NotNegative = 1.0  # of the dependence in f's loss
    weight_biased: NotNegative = 1.0  # of the dependence in g's loss
    sigma: Positive = 1.0  # of the kernels
    bandwidth: Literal["fixed", "median"] = "fixed"
    biased: BiasedNet = dataclasses.field(default_factory=BiasedNet)

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        require(net, "ReBias compares features", CUT)
        return _make(self, info, net, optim)


def kernel(x: jax.Array, sigma: jax.Array | float, median: bool = False) -> jax.Array:
    """exp(-|a - b|² / (2·sigma²)) for all pairs of rows of x [m, F], but 0 on the diagonal."""
    x = x - jax.lax.stop_gradient(x.mean(0))  # changes no distance, and loses fewer digits
    square = (x * x).sum(1)
    products = jnp.dot(x, x.T, precision=jax.lax.Precision.HIGHEST)
    others = ~jnp.eye(len(x), dtype=bool)
    distance = jnp.where(others, jnp.maximum(square[:, None] + square[None] - 2 * products, 0.0), 0.0)
    scale = jnp.maximum(jnp.median(jax.lax.stop_gradient(distance)), LEAST) if median else 1.0
    return jnp.where(others, jnp.exp(-distance / (2 * sigma**2 * scale)), 0.0)


def hsic(one: jax.Array, other: jax.Array) -> jax.Array:
    """Song et al.'s unbiased estimate of the dependence of two sets of features, of their kernels [m, m] with zero diagonals.

    It is negative as often as positive where they are independent. Raises ValueError for fewer than 4 images.
    """
    m = len(one)
    if m < 4:
        raise ValueError(f"batch_size = {m}: the unbiased estimate of ReBias's dependence needs 4 images or more")
    of_one, of_other = one.sum(1), other.sum(1)
    sums = of_one.sum() * of_other.sum() / ((m - 1) * (m - 2)) - 2 / (m - 2) * (of_one * of_other).sum()
    return ((one * other).sum() + sums) / (m * (m - 3))


class Biased(nn.Module):
    """g: (features [B, F], logits [B, classes])."""

    trunk: nn.Module
    head: nn.Module

    def __call__(self, image: jax.Array, train: bool) -> tuple[jax.Array, jax.Array]:
        vectors = features.pooled(self.trunk(image, train))
        return vectors, self.head(vectors, train)


def pointwise(width: int, size: int, stride: int, name: str, groups: int = 1) -> nn.Module:
    """A convolution of a ResNet that sees no neighbours, the stem's excepted."""
    return Conv(width, size if name.startswith("stem_conv") else 1, stride, groups, name=name)


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    parts, biased = features.cut(net, info.classes), config.biased.make(net, info.classes)
    transform, median = optim.transform(info), config.bandwidth == "median"

    def owned(params: PyTree) -> dict[str, PyTree]:
        """The parameters of each optimizer."""
        return {"net": {name: params[name] for name in parts}, "biased": params["biased"]}

    def init(key: jax.Array, batch: Batch) -> State:
        params, stats = features.init_parts(parts, key, batch["image"])
        params["biased"], stats["biased"] = init_net(biased, jax.random.fold_in(key, 1), batch["image"])
        weights = {"weight": config.weight, "weight_biased": config.weight_biased}
        hparams = scalars({**optim.hparams(), **weights, "sigma": config.sigma})
        opt = {name: transform(hparams).init(parameters) for name, parameters in owned(params).items()}
        return State(jnp.zeros((), jnp.int32), params, stats, opt, {}, hparams)

    forward = functools.partial(features.forward, parts)  # of f

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        image, label, hparams = batch["image"], batch["label"], state.hparams
        before = owned(state.params)

        def descend(name: str, gradient: PyTree) -> tuple[PyTree, PyTree]:
            """(parameters, optimizer's state) of one network after its step."""
            updates, opt = transform(hparams).update(gradient, state.opt[name], before[name])
            return optax.apply_updates(before[name], updates), opt

        def run_biased(parameters: PyTree, stats: PyTree) -> tuple[Any, PyTree]:
            return apply_net(biased, parameters, stats, image, True, {"dropout": jax.random.fold_in(key, 1)})

        def similarity(vectors: jax.Array) -> jax.Array:
            return kernel(vectors, hparams["sigma"], median)

        def loss_biased(parameters: PyTree) -> tuple[jax.Array, tuple[PyTree, jax.Array, jax.Array]]:
            (vectors, logits), stats = run_biased(parameters, state.stats["biased"])
            value = losses.cross_entropy(logits, label).mean()
            return value - hparams["weight_biased"] * hsic(similarity(vectors), of_net), (stats, value, losses.accuracy(logits, label))

        def loss(vectors: jax.Array, logits: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            value, dependence = losses.cross_entropy(logits, label).mean(), hsic(similarity(vectors), of_biased)
            return value + hparams["weight"] * dependence, (value, dependence)

        def run(parameters: PyTree) -> tuple[tuple[jax.Array, jax.Array], PyTree]:
            return forward(parameters, state.stats, image, True, key)

        (vectors, logits), pull, stats = jax.vjp(run, before["net"], has_aux=True)
        of_net = similarity(vectors)
        gradient, (moved, value_biased, accuracy_biased) = jax.grad(loss_biased, has_aux=True)(before["biased"])
        params_biased, opt_biased = descend("biased", gradient)
        (found_biased, _), moved = run_biased(params_biased, moved)
        of_biased = similarity(found_biased)
        at, (value, dependence) = jax.grad(loss, (0, 1), has_aux=True)(vectors, logits)
        params, opt = descend("net", pull(at)[0])
        metrics = {
            "loss": value,
            "loss/biased": value_biased,
            "dependence": dependence,
            "accuracy": losses.accuracy(logits, label),
            "accuracy/biased": accuracy_biased,
        }
        params, stats, opt = {**params, "biased": params_biased}, {**stats, "biased": moved}, {"net": opt, "biased": opt_biased}
        return state.replace(step=state.step + 1, params=params, stats=stats, opt=opt), metrics

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return forward(params, stats, image, False)[0][1]

    return Method(init, step, predict)
