"""The networks of all seeds of a run, and what they answer to one batch of images under one condition."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import parallel
from jaxbed.data.source import Source
from jaxbed.evaluation import decision_rules
from jaxbed.measures import attacking, conditions
from jaxbed.measures.conditions import Attacked, Condition
from jaxbed.training.members import GridPoint
from jaxbed.training.program import Program, find_pixel_range, make_method

PyTree = Any


class Networks:
    """All seeds of one grid point with the given weights (params, stats, alive), stacked over seeds."""

    def __init__(self, program: Program, point: GridPoint, seeds: parallel.Seeds, weights: PyTree):
        self.seeds, self.alive, self._point, self._program = seeds, weights["alive"], point, program
        self._arrays, self._ends = (weights["params"], weights["stats"]), _pixel_range(point.source)
        self._decide = functools.cache(self._compile)
        self._attacker = functools.cache(self._make_attacker)

    def place(self, condition: Condition | Attacked) -> Condition | Attacked:
        """The condition with its arrays on the devices, once for many batches."""
        return condition._replace(arrays=self.seeds.place(condition.arrays)) if isinstance(condition, Condition) else condition

    def answers(
        self, condition: Condition | Attacked, rule: str, image: jax.Array, words: jax.Array, label: jax.Array
    ) -> tuple[list[jax.Array], jax.Array | None]:
        """([answers [S, B] for each of condition.answers], of an attack whether an image has no gradient [S, B]).

        image uint8 [B, H, W, C], words of their names [B, 2], label [B]; an answer is -1 where logits are not finite.
        """
        if isinstance(condition, Attacked):
            return self._attacker().answers(condition, image, words, label)
        return [self._decide(rule)(*self._arrays, conditions.changed(condition, image, words))], None

    def _compile(self, rule: str) -> parallel.ForAllSeeds:
        logits_of, decide = self._logits(self._program.method.predict), decision_rules.named(rule).decide

        def answered(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:  # one seed: [B, H, W, C] -> [B] int32
            logits = logits_of(params, stats, image)
            return jnp.where(jnp.isfinite(logits).all(-1), decide(logits), -1)

        return self.seeds.over(answered, shared=(2,))

    def _make_attacker(self) -> attacking.Attacker:
        cfg, source = self._point.cfg, self._point.source
        exact = attacking.in_float32(cfg)
        method = self._program.method if exact == cfg else make_method(exact, source)[1]
        return attacking.Attacker(self.seeds, self._logits(method.predict), len(source.class_names), *self._arrays)

    def _logits(self, predict: Callable) -> Callable[[PyTree, PyTree, jax.Array], jax.Array]:
        """(params, stats, image [B, H, W, C] in [0, 1]) -> logits [B, classes] of one seed."""
        low, high = self._ends
        return lambda params, stats, image: predict(params, stats, low + image * (high - low))


def _pixel_range(source: Source) -> np.ndarray:
    """[2, C]: what black and white become. Raises ValueError where what lies between them is not on the line between."""
    low, high = ends = find_pixel_range(source)
    ramp = np.arange(256, dtype=np.uint8)[None, :, None, None] * np.ones(len(low), np.uint8)
    if not np.allclose(source.scale(jnp.asarray(ramp)), low + ramp / 255 * (high - low), atol=1e-4):
        raise ValueError(
            f"{source.name} scales pixels by more than a shift and a factor for each channel, so floats cannot be scaled alike"
        )
    return ends
