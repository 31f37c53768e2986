"""Debiased: Li, Yu, Tan, Mei, Tang, Shen, Yuille, Xie, "Shape-Texture Debiased Neural Network Training" (2021).

Every image x is also seen in the style of another one of its batch, x' = D(α·AdaIN(E(x), E(x_π)) + (1 - α)·E(x)) with the frozen networks E
and D of `models.style_network`, and x' is labelled by both: by the shape with weight γ, by the texture with 1 - γ.

    L = 1/2 mean CE(f(x), y) + 1/2 mean (γ·CE(f'(x'), y) + (1 - γ)·CE(f'(x'), y_π))

f and f' share convolutions and head, and each has all normalization layers, running statistics included, of its own. f alone predicts.

grid: the stylised images, alone, are smaller than the others, by 1, √2 or 2 (nearest neighbour, before stylisation): √2 in every second
    batch, and another √2 in the first half of each stage of the learning rate; without a step schedule stages end after 0.3, 0.6 and 0.9 of
    the run. It is there for speed on accelerators. On a CPU XLA runs convolutions inside a branch ten times slower: take "full" there.

E is applied once: the styles of a batch are those of its images in another order.

Differs from the published code: a stylised image is cut to the size of what it was made from (there 158 px become 160, by the rounding of
VGG's pooling); batches are counted through the whole run and not anew in each epoch.

variant "biasbed": what BiasBed's released code computes. Clean and stylised images alike get y_π with weight (1 - γ)/2; E sees normalised
    images, and f' the output of D as it is; images keep their size, as with grid "full". That it skips batches whose pixels are not all
    finite is not imitated.
"""

import dataclasses
import itertools
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util
from jax import lax

from jaxbed import values
from jaxbed.method import Batch, Info, Method, PyTree, State, apply_net, init_net, scalars
from jaxbed.methods.parts import losses, pairs
from jaxbed.models import style, style_network
from jaxbed.models.capabilities import MAPS, NORMS_BY_NAME, Network, require
from jaxbed.optim import Optim
from jaxbed.values import Share

GRIDS = {"multi": (0, 1, 2), "coarse": (1, 2), "fine": (0, 1), "full": (0,)}  # powers of √2 by which sides are divided
STAGE_ENDS = (0.3, 0.6, 0.9)  # of the run, where the learning rate has no steps


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    alpha: Share = 0.5  # of the other image's style
    gamma: Share = 0.8  # weight of the shape's label; the rest is the texture's
    variant: Literal["paper", "biasbed"] = "paper"
    grid: Literal["multi", "coarse", "fine", "full"] = (
        "multi"  # multi | coarse, fine: as in the first or second half of a stage, always | full: as large as the clean images
    )
    style: style_network.Config = dataclasses.field(default_factory=style_network.Config)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        if self.variant == "biasbed" and self.grid != "full":
            values.refuse_unused(self, ("grid",), "method.variant = 'biasbed', whose images keep their size")
        require(net, "Debiased shows a network images of several sizes", MAPS)
        return _make(self, info, net, optim)


def mixed_cross_entropy(logits: jax.Array, label: jax.Array, other: jax.Array, weight: jax.Array | float) -> jax.Array:
    """(1 - weight)·CE(label) + weight·CE(other), shape [B]; weight [B] or a scalar."""
    return (1 - weight) * losses.cross_entropy(logits, label) + weight * losses.cross_entropy(logits, other)


def stylise(network: style_network.Config, params: PyTree, image: jax.Array, order: jax.Array, alpha: jax.Array | float) -> jax.Array:
    """Images [N, H, W, 3] in [0, 1], image i in the style of image order[i]; same size, values may lie outside [0, 1]."""

    def change(mean: jax.Array, var: jax.Array) -> tuple[jax.Array, jax.Array]:
        deviation = jnp.sqrt(var + style.EPSILON)
        return 1 + alpha * (deviation[order] / deviation - 1), mean + alpha * (mean[order] - mean)

    features = style.restyle(network.encode(params, image), change)
    return network.decode(params, features)[:, : image.shape[1], : image.shape[2]].astype(image.dtype)


def shrink(image: jax.Array, power: int) -> jax.Array:
    """Sides divided by √2 to that power, rounded; of the nearest pixels as PyTorch's `interpolate` takes them, in its float32."""
    if not power:
        return image
    rows_and_columns = []
    for side in image.shape[1:3]:
        wanted = int(side / 2 ** (power / 2) + 0.5)
        rows_and_columns.append((np.arange(wanted, dtype=np.float32) * (np.float32(side) / np.float32(wanted))).astype(np.int32))
    return image[:, rows_and_columns[0]][:, :, rows_and_columns[1]]


def half_ends(info: Info, optim: Optim) -> np.ndarray:
    """Steps at which a half of a learning rate's stage ends, first halves at even places."""
    stages = optim.milestones_epochs if optim.schedule == "step" else [share * info.epochs for share in STAGE_ENDS]
    ends = [0, *(end for end in sorted(stages) if 0 < end < info.epochs), info.epochs]
    halves = [end for first, last in itertools.pairwise(ends) for end in ((first + last) / 2, last)]
    return np.round(np.array(halves) * info.steps_per_epoch).astype(np.int32)


def power_at(step: jax.Array, grid: str, ends: np.ndarray) -> jax.Array:
    """Power of √2 by which the sides of the stylised images are divided in a step."""
    if len(GRIDS[grid]) == 1:
        return jnp.full_like(step, GRIDS[grid][0])
    first_half = ((step >= ends).sum() % 2 == 0).astype(jnp.int32) if grid == "multi" else GRIDS[grid][0]
    return first_half + (step % 2 == 0)


@jax.custom_batching.custom_vmap
def of_all_seeds(step: jax.Array) -> jax.Array:
    """The step, the same number for all seeds that are mapped over: a branch chosen by it is then the only one that is computed.

    Seeds that still train are at the same step; one that became non-finite stays behind, and what is computed for it is thrown away.
    """
    return step


@of_all_seeds.def_vmap
def _largest(size: int, batched: list[bool], step: jax.Array) -> tuple[jax.Array, bool]:
    return step.max(), False


def norms(params: PyTree) -> PyTree:
    """Scales and biases of all BatchNorms, those of shortcuts included."""
    flat = traverse_util.flatten_dict(params)
    layers = {path: leaf for path, leaf in flat.items() if any("norm" in name for name in path[-2:-1])}
    if not layers:
        raise ValueError(f"Debiased doubles the normalization layers, {NORMS_BY_NAME}: take another network")
    return traverse_util.unflatten_dict(layers)


def with_norms(params: PyTree, replaced: PyTree) -> PyTree:
    """params with the BatchNorms `own`."""
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(params) | traverse_util.flatten_dict(replaced))


def _make(config: Config, info: Info, net: Network, optim: Optim) -> Method:
    network, frozen, transform = net.make(info.classes), config.style.load(), optim.transform(info)
    paper = config.variant == "paper"
    black, white = info.pixel_range() if paper else (0, 1)
    grid, ends = config.grid if paper else "full", half_ends(info, optim)

    def init(key: jax.Array, batch: Batch) -> State:
        params, stats = init_net(network, key, batch["image"])
        params, stats = {"net": params, "aux": norms(params)}, {"net": stats, "aux": stats}
        hparams = scalars({**optim.hparams(), "alpha": config.alpha, "gamma": config.gamma})
        return State(jnp.zeros((), jnp.int32), params, stats, transform(hparams).init(params), jax.tree.map(jnp.asarray, frozen), hparams)

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        order_key, clean_key, stylised_key = jax.random.split(key, 3)
        label, texture = batch["label"], 1 - state.hparams["gamma"]
        order = pairs.partners(order_key, len(label))

        def half(name: str, image: jax.Array, weight: jax.Array, dropout_key: jax.Array) -> tuple[tuple, PyTree]:
            """((loss, (batch statistics, accuracy)), gradient) of the clean (net) or the stylised (aux) images."""

            def loss(params: PyTree) -> tuple[jax.Array, tuple[PyTree, jax.Array]]:
                parameters = with_norms(params["net"], params["aux"]) if name == "aux" else params["net"]
                logits, stats = apply_net(network, parameters, state.stats[name], image, True, {"dropout": dropout_key})
                value = mixed_cross_entropy(logits, label, label[order], weight).mean()
                return value / 2, (stats, losses.accuracy(logits, label))

            return jax.value_and_grad(loss, has_aux=True)(state.params)

        def stylised(power: int) -> tuple[tuple, PyTree]:
            image = (shrink(batch["image"], power).astype(jnp.float32) - black) / (white - black)
            image = stylise(config.style, state.memory, image, order, state.hparams["alpha"])
            image = (image * (white - black) + black).astype(batch["image"].dtype)
            return half("aux", image, texture if paper else texture / 2, stylised_key)

        # differentiated inside the branches: a branch that is differentiated would keep the activations of all
        branches = [lambda power=power: stylised(power) for power in GRIDS[grid]]
        branch = power_at(of_all_seeds(state.step), grid, ends) - GRIDS[grid][0]
        (aux_loss, (aux_stats, aux_accuracy)), aux_grads = lax.switch(branch, branches) if len(branches) > 1 else branches[0]()
        (loss, (stats, accuracy)), grads = half("net", batch["image"], 0 * texture if paper else texture / 2, clean_key)
        grads = jax.tree.map(jnp.add, grads, aux_grads)
        updates, opt = transform(state.hparams).update(grads, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {
            "loss": loss + aux_loss,
            "loss/stylised": 2 * aux_loss,
            "accuracy": accuracy,
            "accuracy/stylised": aux_accuracy,
        }
        return state.replace(step=state.step + 1, params=params, stats={"net": stats, "aux": aux_stats}, opt=opt), metrics

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return apply_net(network, params["net"], stats["net"], image, False)[0]

    return Method(init, step, predict)
