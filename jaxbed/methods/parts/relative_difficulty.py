"""Relative difficulty of samples (Nam et al., 2020), for methods that weigh them so: LfF and DisEnt.

A biased and a debiased network each have a table over the training set, of exponential averages of the samples' losses. A sample's weight
is w = e_B / (e_B + e_D), where e is its average divided by the largest of its class. Both class maxima and the sum have EPSILON added: once
all losses of a class are exactly 0, w is 0 and not NaN.
"""

import jax
import jax.numpy as jnp

NETS = ("biased", "debiased")
EPSILON = 1e-8


def tables(rows: int) -> dict:
    """Memory of a method over a training set of so many rows. Rows not seen yet have average 0, whatever their class."""
    of_nets = {name: {"average": jnp.zeros(rows), "seen": jnp.zeros(rows)} for name in NETS}
    return {**of_nets, "class_of": jnp.zeros(rows, jnp.int32)}


def weigh(
    memory: dict, sample_losses: dict[str, jax.Array], index: jax.Array, label: jax.Array, classes: int, alpha: float
) -> tuple[jax.Array, dict]:
    """(weights [B], new memory) after the losses [B] of both networks; neither carries a gradient. alpha: weight of the old average."""
    class_of = memory["class_of"].at[index].set(label)
    new, relative = {"class_of": class_of}, {}
    for name in NETS:
        new[name] = update_average(memory[name], index, jax.lax.stop_gradient(sample_losses[name]), alpha)
        relative[name] = relative_loss(new[name]["average"], class_of, index, label, classes)
    return difficulty(relative["biased"], relative["debiased"]), new


def update_average(table: dict[str, jax.Array], index: jax.Array, value: jax.Array, alpha: float) -> dict[str, jax.Array]:
    """The averages {"average": [N], "seen": [N]} after the losses value [B] of the rows index [B]; a first visit stores its value."""
    old, seen = table["average"][index], table["seen"][index]
    return {
        "average": table["average"].at[index].set(alpha * old + (1 - alpha * seen) * value),
        "seen": table["seen"].at[index].set(1.0),
    }


def relative_loss(average: jax.Array, class_of: jax.Array, index: jax.Array, label: jax.Array, classes: int) -> jax.Array:
    """Averages of the rows index [B], each divided by the largest of its class over the whole table."""
    largest = jax.ops.segment_max(average, class_of, classes)
    return average[index] / (largest[label] + EPSILON)


def difficulty(biased: jax.Array, debiased: jax.Array) -> jax.Array:
    """w in [0, 1]: large where the biased network fails and the other does not."""
    return biased / (biased + debiased + EPSILON)
