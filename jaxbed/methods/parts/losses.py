"""Losses, per sample unless said otherwise: pure functions of logits [B, C] and labels [B]."""

import jax
import jax.numpy as jnp
import optax


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-log softmax(logits)[label], shape [B]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def accuracy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Fraction of the batch whose largest logit is the label's: a scalar."""
    return (jnp.argmax(logits, -1) == label).mean()


def generalized_cross_entropy(logits: jax.Array, label: jax.Array, q: float) -> jax.Array:
    """q·sg(p_y^q)·CE, shape [B]: the surrogate that LfF's code descends.

    Its gradient is q times that of the generalised cross-entropy (1 - p_y^q)/q of Zhang and Sabuncu (2018); its value is not
    that loss, and tends to 0, not to CE, as q -> 0.
    """
    value = cross_entropy(logits, label)
    return q * jax.lax.stop_gradient(jnp.exp(-q * value)) * value


def mean_generalized(logits: jax.Array, batch: dict[str, jax.Array], q: float) -> jax.Array:
    """Mean of the same over a batch: a scalar."""
    return generalized_cross_entropy(logits, batch["label"], q).mean()


def adversarial_uniform(logits: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """-mean_k log(softmax(logits)_k + epsilon), shape [B]: least where all classes are equally likely (SagNet's adversary)."""
    return -jnp.log(jax.nn.softmax(logits, -1) + epsilon).mean(-1)
