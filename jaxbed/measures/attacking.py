"""Runs attacks on the networks of all seeds, each on its own images, and asks what the networks answer to these.

Networks compute in float32 whatever they were trained in: rounded gradients would weaken an attack. Steps are compiled one by one, not in a
loop primitive, which would make gradients of convolutions 30 to 50 times slower on the CPU.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import config, parallel
from jaxbed.evaluation import decision_rules
from jaxbed.measures import attacks, conditions
from jaxbed.measures.attacks import Attack
from jaxbed.measures.conditions import Attacked

PyTree = Any
LogitsOf = Callable[[PyTree, PyTree, jax.Array], jax.Array]  # (params, stats, image [B, H, W, C] in [0, 1]) -> logits [B, classes]
BATCH = 128  # images at once, at most: gradients take memory

KINDS: dict[str, Callable[[int], Attack]] = {  # made for a number of classes
    "pgd_linf": lambda classes: attacks.pgd_linf(),
    "pgd_l2": lambda classes: attacks.pgd_l2(),
    "apgd_ce": lambda classes: attacks.apgd_ce(),
    "apgd_dlr": attacks.apgd_targeted_dlr,
}


class Compiled(NamedTuple):
    """One kind of attack on all seeds; radius and number of the step are arguments."""

    attack: Attack
    start: parallel.ForAllSeeds
    step: parallel.ForAllSeeds
    end: parallel.ForAllSeeds  # -> answers to the last and to the worst iterate, [S, B] int32 each


class Attacker:
    """The networks of all seeds, ready to be attacked."""

    def __init__(self, seeds: parallel.Seeds, logits_of: LogitsOf, classes: int, params: PyTree, stats: PyTree):
        self._seeds, self._logits_of, self._classes, self._networks = seeds, logits_of, classes, (params, stats)
        self._compiled = functools.cache(self._compile)

    def answers(self, attacked: Attacked, image: jax.Array, words: jax.Array, label: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        """([answers [S, B] for each of attacked.answers], whether an image's gradient was exactly zero at the start [S, B]).

        image uint8 [B, H, W, C], words of their names [B, 2], label [B]. Of several runs, the first wrong answer counts.
        """
        compiled = self._compiled(attacked.kind)
        radius, scaled = np.float32(attacked.radius), _scaled(image)
        last = best = zero = None
        with jax.default_matmul_precision("float32"):
            for run in range(compiled.attack.runs):
                drawn = _drawn(compiled.attack.draw, conditions.key(attacked.name), np.int32(run), words, image.shape[1:])
                state = compiled.start(*self._networks, scaled, label, drawn, radius, np.int32(run))
                for number in range(compiled.attack.steps):
                    state = compiled.step(*self._networks, state, scaled, label, np.int32(number), radius)
                zero = state.zero_gradient if zero is None else zero & state.zero_gradient
                last, of_run = compiled.end(*self._networks, state, scaled, label, radius)
                best = of_run if best is None else jnp.where(best == label, of_run, best)
                jax.block_until_ready(best)  # the host is at most one run ahead
        assert last is not None and best is not None and zero is not None
        return ([last, best] if len(attacked.answers) > 1 else [best]), zero

    def _compile(self, kind: str) -> Compiled:
        attack, decide = KINDS[kind](self._classes), decision_rules.named("argmax").decide

        def logits(params: PyTree, stats: PyTree) -> Callable[[jax.Array], jax.Array]:
            return functools.partial(self._logits_of, params, stats)

        def answer(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
            each = self._logits_of(params, stats, image)
            return jnp.where(jnp.isfinite(each).all(-1), decide(each), -1)

        def start(params: PyTree, stats: PyTree, *given: jax.Array) -> Any:  # image, label, drawn, radius, run
            return attack.start(logits(params, stats), *given)

        def step(params: PyTree, stats: PyTree, state: Any, *given: jax.Array) -> Any:  # image, label, number, radius
            return attack.step(logits(params, stats), state, *given)

        def end(params: PyTree, stats: PyTree, state: Any, *given: jax.Array) -> tuple[jax.Array, ...]:  # image, label, radius
            return tuple(answer(params, stats, image) for image in attack.end(logits(params, stats), state, *given))

        over = self._seeds.over
        return Compiled(attack, over(start, (2, 3, 4, 5, 6)), over(step, (3, 4, 5, 6), donate=(2,)), over(end, (3, 4, 5)))


def in_float32(cfg: config.Train) -> config.Train:
    """The configuration with a network that computes in float32."""
    return dataclasses.replace(cfg, net=dataclasses.replace(cfg.net, dtype="float32")) if hasattr(cfg.net, "dtype") else cfg


@jax.jit
def _scaled(image: jax.Array) -> jax.Array:
    return image.astype(jnp.float32) / 255


@functools.partial(jax.jit, static_argnums=(0, 4))
def _drawn(draw: Callable, key: jax.Array, run: jax.Array, words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """What is random of each image [B, H, W, C]: it follows from the names of the image and of the condition, and the run."""
    of_run = jax.random.fold_in(key, run)
    return jax.vmap(lambda pair: draw(jax.random.fold_in(jax.random.fold_in(of_run, pair[0]), pair[1]), shape))(words)
