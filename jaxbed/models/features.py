"""What methods that work on features need: any network in two parts, the trunk that gives features and the head that reads them.

Any Config will do that offers `capabilities.CUT`.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.method import PyTree, apply_net, init_net
from jaxbed.models.capabilities import Cuttable

SHORTEST = 1e-12  # of feature vectors that have a direction


def pooled(x: jax.Array) -> jax.Array:
    """Features [N, F] float32: the mean over maps [N, H, W, F]; vectors stay as they are."""
    x = x.astype(jnp.float32)
    return x.mean((1, 2)) if x.ndim == 4 else x


def unit(features: jax.Array) -> jax.Array:
    """Rows of [N, F] at length 1. A row of zeros, which dead ReLUs give, stays one and passes no gradient; plain division gives NaN."""
    square = (features * features).sum(-1, keepdims=True)
    long = square > SHORTEST**2
    return jnp.where(long, features * jax.lax.rsqrt(jnp.where(long, square, 1.0)), 0.0)


def cut(net: Cuttable, classes: int) -> dict[str, nn.Module]:
    """{"trunk", "head"}: image -> features or maps, and those, or the features pooled of them -> logits [B, classes]."""
    last = net.parts - 1
    head = dataclasses.replace(net, dtype="float32").make(classes, first=last)  # or it would round what is pooled
    return {"trunk": net.make(classes, last=last), "head": head}


def forward(
    parts: dict[str, nn.Module],
    params: PyTree,
    stats: PyTree,
    image: jax.Array,
    train: bool,
    key: jax.Array | None = None,
    change: Callable[[jax.Array], jax.Array] = lambda vectors: vectors,
) -> tuple[tuple[jax.Array, jax.Array], PyTree]:
    """((features [B, F], logits [B, classes]), new batch statistics) of a network that was cut; `change` is done to its features."""
    rngs = None if key is None else {"dropout": key}
    maps, of_trunk = apply_net(parts["trunk"], params["trunk"], stats["trunk"], image, train, rngs)
    vectors = change(pooled(maps))
    logits, of_head = apply_net(parts["head"], params["head"], stats["head"], vectors, train, rngs)
    return (vectors, logits), {"trunk": of_trunk, "head": of_head}


def init_parts(parts: dict[str, nn.Module], key: jax.Array, x: jax.Array) -> tuple[PyTree, PyTree]:
    """Fresh (params, batch statistics) of parts that follow each other: those that the whole network would have with this key."""
    params, stats = {}, {}
    for name, part in parts.items():
        params[name], stats[name] = init_net(part, key, x)
        x, _ = apply_net(part, params[name], stats[name], x, False)
    return params, stats
