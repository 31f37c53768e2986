"""Parameters of layers, without tracing how they are initialized whenever a network is applied."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax import errors


@nn.nowrap
def parameter(module: nn.Module, name: str, init: Callable[..., jax.Array], shape: Sequence[int], *dtype: Any) -> jax.Array:
    """`module.param(name, init, shape)`, which traces `init` to learn the shape that a parameter must have: here it is `shape`."""
    if not module.has_variable("params", name):
        return nn.Module.param(module, name, init, shape, *dtype)
    value: jax.Array = module.get_variable("params", name)
    if value.shape != tuple(shape):
        raise errors.ScopeParamShapeError(name, "/" + "/".join(module.path), value.shape, tuple(shape))
    return value


class Dense(nn.Dense):
    param = parameter  # type: ignore[assignment]


class LayerNorm(nn.LayerNorm):
    param = parameter  # type: ignore[assignment]
