"""Parameters of layers, without tracing how they are initialized whenever a network is applied."""

from collections.abc import Callable

import flax.linen as nn
import jax
from flax import errors


def parameter(module: nn.Module, name: str, init: Callable[[jax.Array, tuple[int, ...]], jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """`module.param(name, init, shape)`, which traces `init` to learn the shape that a parameter must have: here it is `shape`."""
    if not module.has_variable("params", name):
        return module.param(name, init, shape)
    value: jax.Array = module.get_variable("params", name)
    if value.shape != shape:
        raise errors.ScopeParamShapeError(name, "/" + "/".join(module.path), value.shape, shape)
    return value
