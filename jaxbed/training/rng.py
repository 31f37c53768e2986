"""Randomness as a function of (seed, purpose, step): nothing to store, so a resumed run draws what an uninterrupted one drew."""

import jax
import numpy as np

INIT, STEP, LOAD, ORDER, SAMPLE = range(5)
FIRST_OF_STAGES = 2**20  # times the stage: seeds of the networks that come before a run's own


def key(seed: jax.Array | int, purpose: int, step: jax.Array | int = 0) -> jax.Array:
    """JAX key of one seed for one purpose at one step."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), step)


def generator(seed: int, purpose: int, step: int = 0) -> np.random.Generator:
    """The same for the host: a NumPy generator of one seed for one purpose at one step (or epoch)."""
    return np.random.default_rng([seed, purpose, step])
