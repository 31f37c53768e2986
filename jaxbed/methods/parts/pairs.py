"""What methods that mix images draw: each image's partner, and how much of the image stays."""

from typing import Literal

import jax
import jax.numpy as jnp

Pairing = Literal["random", "crossdomain"]


def check_size(size: int, pairing: Pairing = "random") -> None:
    """ValueError for a batch that holds no other image, or for crossdomain no halves."""
    if size < 2:
        raise ValueError(f"batch_size = {size} leaves no other image to mix with: take 2 or more")
    if pairing == "crossdomain" and size % 2:
        raise ValueError(f"batch_size = {size} is odd and has no halves: take an even one, or method.pairing = 'random'")


def partners(key: jax.Array, size: int, pairing: Pairing = "random") -> jax.Array:
    """The partner of each of `size` images: a permutation [size].

    random: any, fixed points included. crossdomain: between the halves of the batch, each half in random order.
    """
    check_size(size, pairing)
    if pairing == "random":
        return jax.random.permutation(key, size)
    first, second = jax.vmap(lambda k: jax.random.permutation(k, size // 2))(jax.random.split(key))
    return jnp.concatenate([first + size // 2, second])


def weights(key: jax.Array, alpha: float, shape: tuple[int, ...]) -> jax.Array:
    """Draws from Beta(alpha, alpha), float32.

    1/2 + T / (2·√(2·alpha + T²)) has this distribution where T is Student's with 2·alpha degrees of freedom, which Bailey's polar method
    (1994) makes of two uniform numbers. `jax.random.beta` draws until it accepts: a loop in which a GPU waits for the host.
    """
    radius, angle = jax.random.uniform(key, (2, *shape))
    cosine = jnp.cos(2 * jnp.pi * angle)
    square = jnp.expm1(-jnp.log(radius) / alpha) * cosine**2  # T² / (2·alpha), which may be infinite
    return 0.5 + 0.5 * jnp.sign(cosine) / jnp.sqrt(1 + 1 / square)


def draw(key: jax.Array, size: int, p: float, alpha: float, pairing: Pairing) -> tuple[jax.Array, jax.Array]:
    """(partners, weights), each [size], of such a layer in one step: one coin decides, and if it shows tails all weights are 1."""
    coin_key, order_key, weight_key = jax.random.split(key, 3)
    weight = jnp.where(jax.random.bernoulli(coin_key, p), weights(weight_key, alpha, (size,)), 1.0)
    return partners(order_key, size, pairing), weight
