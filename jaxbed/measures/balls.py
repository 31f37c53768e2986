"""Balls around images in the maximum norm ("linf") and in the Euclidean norm ("l2"): random starts, steps and projections of attacks.

A draw is of one image: a displacement [H, W, C] float32, in units of the radius. All else is of images [B, H, W, C] in [0, 1].

Sources: Foolbox 3, MadryLab/robustness and the AutoAttack package, as named.
"""

import math

import jax
import jax.numpy as jnp

Scalar = jax.Array | float


def draw_nothing(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """No displacement."""
    return jnp.zeros(shape, jnp.float32)


def draw_in_cube(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform in the ball of the maximum norm (Foolbox, MadryLab/robustness)."""
    return jax.random.uniform(key, shape, jnp.float32, -1, 1)


def draw_on_cube(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform in the same ball, then stretched to its surface (AutoAttack)."""
    drawn = draw_in_cube(key, shape)
    return drawn / jnp.abs(drawn).max()


def draw_in_ball(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform in the Euclidean ball (Foolbox): the first n coordinates of a point on the sphere in n + 2 dimensions."""
    size = math.prod(shape)
    return draw_on_sphere(key, (size + 2,))[:size].reshape(shape)


def draw_on_sphere(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform on the Euclidean sphere (MadryLab/robustness, AutoAttack)."""
    normal = jax.random.normal(key, shape, jnp.float32)
    return normal / jnp.sqrt(jnp.square(normal).sum())


def clip(image: jax.Array) -> jax.Array:
    """Pixels clipped to [0, 1], which never moves an image out of a ball around another one."""
    return jnp.clip(image, 0, 1)


def project_linf(image: jax.Array, point: jax.Array, radius: Scalar) -> jax.Array:
    """The images of the ball around `image` that are nearest to `point`."""
    return clip(image + jnp.clip(point - image, -radius, radius))


def project_l2(image: jax.Array, point: jax.Array, radius: Scalar) -> jax.Array:
    """`point` pulled into the ball around `image`, then clipped: an image of the ball, not always the nearest."""
    offset = point - image
    return clip(image + offset * jnp.minimum(1, radius / jnp.maximum(_norm(offset), 1e-12)))


def normalize(gradient: jax.Array) -> jax.Array:
    """Gradients of norm 1 (Foolbox), or 0 where they are zero."""
    return gradient / jnp.maximum(_norm(gradient), 1e-12)


def normalize_madry(gradient: jax.Array) -> jax.Array:
    """Gradients of a norm a little below 1 (MadryLab/robustness)."""
    return gradient / (_norm(gradient) + 1e-10)


def _norm(difference: jax.Array) -> jax.Array:
    """[B, 1, 1, 1]. Its derivative at zero is NaN: do not differentiate through it."""
    return jnp.sqrt(jnp.square(difference).sum((1, 2, 3), keepdims=True))
