"""What methods that work on features need: any network in two parts, the trunk that gives features and the head that reads them.

Any Config will do that has `parts` and make(classes, first=, last=): resnet, mlp, simple_conv.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.method import PyTree, apply_net, init_net

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


def require(net: Any, reason: str) -> None:
    """Raises ValueError, with the reason, unless net can be cut."""
    if not hasattr(net, "parts"):
        kinds = "a resnet.Config(), mlp.Config() or simple_conv.Config()"
        raise ValueError(f"{reason} and cannot run on {type(net).__module__}: in the config file, give it {kinds}")
    if net.parts < 2:
        raise ValueError(f"{reason} and net.widths = () leaves only its head: take at least one hidden layer")


def cut(net: Any, classes: int) -> dict[str, nn.Module]:
    """{"trunk", "head"}: image -> features or maps, and those, or the features pooled of them -> logits [B, classes]."""
    last = net.parts - 1
    head = dataclasses.replace(net, dtype="float32").make(classes, first=last)  # or it would round what is pooled
    return {"trunk": net.make(classes, last=last), "head": head}


def init_parts(parts: dict[str, nn.Module], key: jax.Array, x: jax.Array) -> tuple[PyTree, PyTree]:
    """Fresh (params, batch statistics) of parts that follow each other: those that the whole network would have with this key."""
    params, stats = {}, {}
    for name, part in parts.items():
        params[name], stats[name] = init_net(part, key, x)
        x, _ = apply_net(part, params[name], stats[name], x, False)
    return params, stats
