"""Losses, per sample unless said otherwise: pure functions of logits [B, C] and labels [B].

`cross_entropy` and `accuracy` also take targets [B, C] of zeros and ones, as batches of multi-label data sets carry them.
"""

import jax
import jax.numpy as jnp
import optax


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-log softmax(logits)[label], shape [B]; of targets, the mean over classes of the binary cross-entropy of sigmoid(logits)."""
    if label.ndim == logits.ndim:
        return optax.sigmoid_binary_cross_entropy(logits, label).mean(-1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def accuracy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Fraction of the batch whose largest logit is the label's: a scalar. Of targets, the share of all classes of all images that are
    decided rightly, a class being present where its logit is above 0.
    """
    if label.ndim == logits.ndim:
        return ((logits > 0) == (label > 0)).mean()
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
