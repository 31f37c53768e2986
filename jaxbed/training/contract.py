"""What the parts of a configuration must be, and what a method must give: looked at before anything is written, and at no cost to a run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxbed.method import Batch, Method, State

PyTree = Any


def check_parts(method: Any, net: Any, data: Any) -> None:
    """Raises ValueError for what cannot be the method, network or data set of a configuration."""
    for part, given, needed in (("method", method, "make"), ("net", net, "make"), ("data", data, "open")):
        if isinstance(given, type):
            raise ValueError(f"{part} is the class {given.__name__}: give {given.__name__}(), an instance of it")
        if not callable(getattr(given, needed, None)):
            raise ValueError(f"{part} is a {type(given).__name__}, which has no {needed}(): give a Config that has one")
    if (reads_bias := getattr(method, "reads_bias", None)) not in (False, True, "agreement"):
        raise ValueError(
            f"method is a {type(method).__name__} with reads_bias = {reads_bias!r}: write `reads_bias: ClassVar[bool] = False` "
            'in it, or True if its batches carry the bias of each image, or "agreement" if it asks only whether that is the label'
        )


def checked(name: str, method: Any, classes: int) -> Method:
    """The same method, of the algorithm `name`, whose functions raise ValueError, while traced, for what has not the form it must have."""
    if not isinstance(method, Method):
        raise ValueError(f"{name}.make() returned {_kind(method)}: return a Method(init, step, predict), as from_loss makes one")

    @functools.wraps(method.init)
    def init(key: jax.Array, batch: Batch) -> State:
        state = method.init(key, batch)
        if not isinstance(state, State):
            raise ValueError(f"{name}.init returned {_kind(state)}: return a State")
        return state

    @functools.wraps(method.step)
    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        given = method.step(state, batch, key)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], State) and isinstance(given[1], dict)):
            raise ValueError(f"{name}.step returned {_kind(given)}: return (State, {{name of a metric: scalar}})")
        if difference := _difference(state, given[0]):
            raise ValueError(
                f"{name}.step changed the form of the state: {difference}. Return it with the structure, shapes and types it had"
            )
        for metric, value in given[1].items():
            if jnp.shape(value):
                raise ValueError(
                    f"{name}.step: metric {metric!r} has the shape {list(jnp.shape(value))}: metrics are scalars, such as a mean"
                )
        return given

    @functools.wraps(method.predict)
    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        logits, wanted = method.predict(params, stats, image), (len(image), classes)
        if not isinstance(logits, jax.Array) or logits.shape != wanted or not jnp.issubdtype(logits.dtype, jnp.floating):
            raise ValueError(f"{name}.predict gave {_kind(logits)}: it must give logits, float {list(wanted)}, one column per class")
        return logits

    return method._replace(init=init, step=step, predict=predict)


def _kind(given: Any) -> str:
    """What a function gave, in words."""
    if isinstance(given, tuple) and type(given) is tuple:
        return f"({', '.join(map(_kind, given))})"
    return (
        f"{given.dtype} {list(given.shape)}" if isinstance(given, jax.Array) else "None" if given is None else f"a {type(given).__name__}"
    )


def _difference(before: State, after: State) -> str:
    """Where one state is not of the form of another; empty if nowhere."""
    had, has = (
        {jax.tree_util.keystr(path): _kind(jnp.asarray(leaf)) for path, leaf in jax.tree.leaves_with_path(s)} for s in (before, after)
    )
    for leaf in sorted(had | has):
        if had.get(leaf) != has.get(leaf):
            return f"state{leaf} was {had.get(leaf, 'absent')} and is {has.get(leaf, 'absent')}"
    for part in ("params", "stats", "opt", "memory", "hparams"):  # with the same leaves
        had_part, has_part = (jax.tree.structure(getattr(state, part)) for state in (before, after))
        if str(had_part) != str(has_part):
            return f"state.{part} had the {had_part} and has the {has_part}"
    return ""
