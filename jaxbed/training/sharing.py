"""How a state goes through steps on devices that share a batch: changed, so that these have less to tell each other in every step.

Optimizers see all parameters as one vector, so that gradients are summed in one piece and not in a hundred; BatchNorms over parts of the
batch keep running statistics for each. Neither is ever saved: a state is changed where a call of several steps begins, and changed back
where it ends. On one device vectors would only slow small networks down.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree

from jaxbed.method import Method, State
from jaxbed.models import norm

PyTree = Any


class Sharing(NamedTuple):
    method: Method  # with optimizers on vectors
    groups: int  # parts of a batch that BatchNorms normalise each by itself

    def enter(self, state: State, init: Callable[[], State]) -> State:
        """What `method` can go on with; init() is its own first state, of which only shapes count."""
        opt = jax.tree.map(lambda _, part: _vector(part), jax.eval_shape(init).opt, state.opt)
        return state.replace(opt=opt, stats=norm.apart(state.stats, self.groups))

    def leave(self, state: State, entered: State) -> State:
        """The state after steps, in the form of the one that entered."""
        opt = jax.tree.map(_like, state.opt, entered.opt)
        return state.replace(opt=opt, stats=norm.together(state.stats, self.groups))


def _vector(part: PyTree) -> jax.Array:
    return part if isinstance(part, jax.Array) else ravel_pytree(part)[0]


def _like(vector: jax.Array, part: PyTree) -> PyTree:
    return vector if isinstance(part, jax.Array) else ravel_pytree(part)[1](vector)
