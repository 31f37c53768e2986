"""What a method is: three pure functions, written for one seed and one global batch.

How many seeds run, and on which devices, is decided elsewhere (`parallel`). A batch is a dictionary with `image [B,H,W,C]`
float, `label [B]` int32, `index [B]` int32 (row in the training set) and, for methods whose Config says `reads_bias = True`,
`bias [B]` int32 (the class that another attribute votes for). `reads_bias = "agreement"` promises to ask only whether it is the label.
Methods whose Config says `multi_label = True` also take `label [B, classes]` float, of zeros and ones, of images with several classes or
none.
A method's `rows`, and its earlier stages (`jaxbed.stages`), add what they know of each image, under names of their own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxbed.methods.parts import losses

PyTree = Any
Batch = dict[str, jax.Array]
Loss = tuple[jax.Array, tuple[PyTree, PyTree, dict[str, jax.Array]]]  # scalar, (batch statistics, memory, metrics)


class State(flax.struct.PyTreeNode):
    """Arrays only; any leaf may carry a leading seed axis.

    hparams holds the numbers a search may vary, as float32 scalars: they ride on the seed axis like everything else.
    """

    step: jax.Array  # int32 scalar: drives schedules, keys and resume
    params: PyTree  # {network name: parameters}
    stats: PyTree  # {network name: batch statistics}
    opt: PyTree  # one optax state, or {optimizer name: optax state}
    memory: PyTree  # what else must survive a step: per-sample tables, frozen networks, banks
    hparams: dict[str, jax.Array]


class Sampling(NamedTuple):
    """Images that are drawn by weight, with replacement, for every batch; an epoch keeps its number of batches."""

    weights: Callable[[np.ndarray, np.ndarray | None, dict[str, np.ndarray]], np.ndarray]  # (label, bias, columns) -> [N], 0 or more
    draws: int = 0  # the last so many of each batch, the others following the shuffled order; 0: all


class Method(NamedTuple):
    """`sampling` and `rows` are for the host, in NumPy, of the training set's labels and biases [N]; those are None unless `reads_bias`."""

    init: Callable[[jax.Array, Batch], State]  # (key, batch)
    step: Callable[[State, Batch, jax.Array], tuple[State, dict[str, jax.Array]]]  # (state, batch, key) -> state, scalars
    predict: Callable[[PyTree, PyTree, jax.Array], jax.Array]  # (params, stats, image) -> logits [B, classes]; deterministic
    sampling: Sampling | None = None  # None: every image once an epoch
    rows: Callable[[np.ndarray, np.ndarray | None], dict[str, np.ndarray]] | None = None  # (label, bias) -> {name: [N, ...]}, for batches
    features: Callable[[PyTree, PyTree, jax.Array], jax.Array] | None = None  # (params, stats, image) -> [B, F], where a stage needs them
    # (params, stats, image, label [B]) -> images made harder, where validation is to watch what that leaves of accuracy
    attacked: Callable[[PyTree, PyTree, jax.Array, jax.Array], jax.Array] | None = None


class Info(NamedTuple):
    """What a method may know of the run it is part of."""

    classes: int
    train_size: int
    steps_per_epoch: int
    epochs: int
    pixel_range: Callable[[], np.ndarray] = lambda: np.array([[0.0], [1.0]])  # [2, C]: what a black and a white pixel are in a batch


def init_net(net: nn.Module, key: jax.Array, image: jax.Array) -> tuple[PyTree, PyTree]:
    """Fresh (params, batch statistics) of one network; the statistics are {} where it has none."""
    variables = net.init(key, image, train=False)
    return variables["params"], variables.get("batch_stats", {})


def apply_net(
    net: nn.Module,
    params: PyTree,
    stats: PyTree,
    image: jax.Array,
    train: bool,
    rngs: dict[str, jax.Array] | None = None,
    drawn: dict[str, PyTree] | None = None,
) -> tuple[jax.Array, PyTree]:
    """Output and new batch statistics of one network: the only way a method calls a network.

    With train=True batch statistics are those of the (global) batch; with train=False the running ones are used and returned.
    drawn holds further collections of variables, which layers only read.
    """
    variables = {"params": params, "batch_stats": stats, **(drawn or {})}
    if not train:
        return cast(jax.Array, net.apply(variables, image, train=False)), stats
    output, updated = cast(tuple, net.apply(variables, image, train=True, mutable=["batch_stats"], rngs=rngs))
    return output, updated.get("batch_stats", {})


def scalars(numbers: dict[str, float]) -> dict[str, jax.Array]:
    """Hyper-parameters as the float32 scalars that State.hparams holds."""
    return {name: jnp.asarray(value, jnp.float32) for name, value in numbers.items()}


def from_loss(
    init_nets: Callable[[jax.Array, Batch], tuple[PyTree, PyTree]],
    loss: Callable[[PyTree, State, Batch, jax.Array], Loss],
    transform: Callable[[dict[str, jax.Array]], optax.GradientTransformation],
    hparams: dict[str, float],
    predict: Callable[[PyTree, PyTree, jax.Array], jax.Array],
    memory: Callable[[], PyTree] = dict,
) -> Method:
    """The method that descends one loss with one optimizer.

    init_nets(key, batch) -> (params, stats); loss(params, state, batch, key) -> (scalar, (stats, memory, metrics));
    transform(hparams) -> the optimizer, built anew in every step from the hyper-parameters of the state.
    """

    def init(key: jax.Array, batch: Batch) -> State:
        params, stats = init_nets(key, batch)
        numbers = scalars(hparams)
        return State(jnp.zeros((), jnp.int32), params, stats, transform(numbers).init(params), memory(), numbers)

    name = f"{loss.__module__}.{loss.__qualname__}" if hasattr(loss, "__qualname__") else "the loss"

    def formed(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        given = loss(params, state, batch, key)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], tuple) and len(given[1]) == 3):
            kind = "an array" if isinstance(given, jax.Array) else f"a {type(given).__name__}"
            raise ValueError(f"{name} returned {kind}: return (scalar, (batch statistics, memory, metrics))")
        if jnp.shape(given[0]):
            raise ValueError(f"{name} gave a loss of the shape {list(jnp.shape(given[0]))}: it must be a scalar, such as a mean")
        return given

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        grads, (stats, new_memory, metrics) = jax.grad(formed, has_aux=True)(state.params, state, batch, key)
        updates, opt = transform(state.hparams).update(grads, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        return state.replace(step=state.step + 1, params=params, stats=stats, opt=opt, memory=new_memory), metrics

    return Method(init, step, predict)


def single(net: nn.Module) -> tuple[Callable, Callable]:
    """(init_nets, predict) of a method whose only network is "net"."""

    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, stats = init_net(net, key, batch["image"])
        return {"net": params}, {"net": stats}

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return apply_net(net, params["net"], stats["net"], image, False)[0]

    return init_nets, predict


def from_net(
    net: nn.Module,
    transform: Callable[[dict[str, jax.Array]], optax.GradientTransformation],
    hparams: dict[str, float],
    draw: Callable[[jax.Array, jax.Array], dict[str, PyTree]] | None = None,
) -> Method:
    """Mean cross-entropy of one network: the method whose whole idea sits in the network's layers.

    Those layers may ask for random keys (`make_rng("noise")`) in training. draw(key, image) gives collections of random variables that
    they read instead, where many small draws would cost time; they are identities without them.
    """

    init_nets, predict = single(net)

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        dropout_key, draw_key = jax.random.split(key)
        drawn = draw(draw_key, batch["image"]) if draw else None
        rngs = {"dropout": dropout_key, "noise": draw_key}
        logits, stats = apply_net(net, params["net"], state.stats["net"], batch["image"], True, rngs, drawn)
        value = losses.cross_entropy(logits, batch["label"]).mean()
        metrics = {"loss": value, "accuracy": losses.accuracy(logits, batch["label"])}
        return value, ({"net": stats}, state.memory, metrics)

    return from_loss(init_nets, loss, transform, hparams, predict)
