"""Noise2Net on the device: Hendrycks et al., "The Many Faces of Robustness" (2021).

An image x passes through a network of random weights, drawn for it alone, and becomes noisy in `blocks` steps:

    x <- x + eps·Block(x)      eps ~ U(strength / 2, strength), one number for all blocks and all images of a batch

A block is a bottleneck of Res2Net: a 1 x 1 convolution makes four slices of `hidden` channels; three of these pass through a convolution,
each added to the result of the one before; a 1 x 1 convolution makes an image of all four. After every convolution, each channel of each
image is normalised over its pixels. So the output of a block has mean 0 and standard deviation 1, and eps is in units of the image: those
of its standard deviation where the data set normalises images. Nothing is clipped.

The size (1 or 3) and dilation (1, 2 or 3) of each of the twelve convolutions within are drawn once per epoch, weights for every batch. The
kind of a convolution is a number that chooses one of four branches of the compiled program, so that an epoch compiles nothing, and the
other three branches are not run. Differs from the published code: no biases, which the normalisation removes.

Within, images lie side by side, [H, W, B, C]: then a convolution with a group for each image needs no other order in memory.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbed import values
from jaxbed.values import Count, NotNegative

SLICES = 4  # of which the last passes through no convolution
DILATIONS = (1, 2, 3)
EPSILON = 1e-5  # of variances


@dataclasses.dataclass
class Settings:
    """The authors' defaults."""

    strength: NotNegative = 0.75  # the largest eps
    hidden: Count = 16  # channels of a slice
    blocks: Count = 4


class Weights(NamedTuple):
    """Of the networks of B images, without biases."""

    first: jax.Array  # [blocks, B, C, 4·hidden]
    middle: jax.Array  # [blocks, B, 3, 3, 3, hidden, hidden]: slice, height, width, input, output; a 1 x 1 kernel is the middle tap
    last: jax.Array  # [blocks, B, 4·hidden, C]


def draw_reaches(key: jax.Array, settings: Settings) -> jax.Array:
    """The kinds of the convolutions of an epoch, [blocks, 3] int32: 0 for a 1 x 1 kernel, of probability 1/2, else the dilation.

    Raises ValueError for settings that are out of range.
    """
    values.check(settings, "noise2net")
    size_key, dilation_key = jax.random.split(key)
    shape = (settings.blocks, SLICES - 1)
    dilation = jax.random.randint(dilation_key, shape, DILATIONS[0], DILATIONS[-1] + 1)
    return jnp.where(jax.random.bernoulli(size_key, 0.5, shape), dilation, 0)


def draw_eps(key: jax.Array, strength: jax.Array | float) -> jax.Array:
    """The eps of a batch, a scalar."""
    return strength * jax.random.uniform(key, minval=0.5)


def draw_weights(key: jax.Array, size: int, channels: int, reaches: jax.Array, settings: Settings) -> Weights:
    """Weights for `size` images with so many channels. Those of an image depend on the key and its index alone.

    PyTorch's default: uniform within ±1 / √(inputs of a sum), which are 9 times as many for a 3 x 3 kernel.
    """
    blocks, hidden = settings.blocks, settings.hidden
    wide = SLICES * hidden

    def draw(key: jax.Array, shape: tuple[int, ...], inputs: jax.Array | int) -> jax.Array:
        return jax.random.uniform(key, (blocks, *shape), minval=-1) / jnp.sqrt(inputs)

    def one(index: jax.Array) -> Weights:
        first, middle, last = jax.random.split(jax.random.fold_in(key, index), 3)
        inputs = hidden * jnp.where(reaches == 0, 1, 9)[..., None, None, None, None]
        return Weights(
            draw(first, (channels, wide), channels),
            draw(middle, (SLICES - 1, 3, 3, hidden, hidden), inputs),
            draw(last, (wide, channels), wide),
        )

    return jax.vmap(one, out_axes=1)(jnp.arange(size))


def changed(image: jax.Array, weights: Weights, reaches: jax.Array, eps: jax.Array | float, dtype: Any = jnp.float32) -> jax.Array:
    """Images [B, H, W, C] as their networks change them: the same shape and type, without gradient.

    dtype: of maps within a block. Normalisation and sums over blocks are float32 whatever it is.
    """
    image = lax.stop_gradient(image)

    def step(x: jax.Array, of_block: tuple[Weights, jax.Array]) -> tuple[jax.Array, None]:
        return x + eps * block(x, *of_block, jnp.dtype(dtype)), None

    start = image.astype(jnp.float32).transpose(1, 2, 0, 3)
    return lax.scan(step, start, (weights, reaches))[0].transpose(2, 0, 1, 3).astype(image.dtype)


def block(x: jax.Array, weights: Weights, reaches: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """One block on images [H, W, B, C] float32, with its own part of the weights, and of reaches [3]: float32, the same shape.

    dtype: of maps within.
    """
    slices = [maps.astype(dtype) for maps in _first_slices(x, weights.first)]
    middle, last = (part.astype(dtype) for part in (weights.middle, weights.last))
    outputs: list[jax.Array] = []
    for number, maps in enumerate(slices[:-1]):
        given = outputs[-1] + maps if outputs else maps
        outputs.append(jax.nn.relu(normalised(_convolution(reaches[number], given, middle[:, number]))).astype(dtype))
    together = jnp.concatenate([*outputs, slices[-1]], -1)
    return normalised(jnp.einsum("hwbc,bcd->hwbd", together, last, precision=_precision(dtype)))


def normalised(maps: jax.Array) -> jax.Array:
    """Maps [H, W, ...] with mean 0 and variance v / (v + 1e-5) over their pixels: float32."""
    maps = maps.astype(jnp.float32)
    centred = maps - maps.mean((0, 1))
    return centred * lax.rsqrt(jnp.square(centred).mean((0, 1)) + EPSILON)


def _first_slices(x: jax.Array, weights: jax.Array) -> list[jax.Array]:
    """The first convolution of images [H, W, B, C] with weights [B, C, 4·hidden], normalised and active: four slices [H, W, B, hidden].

    Its variances follow from the covariance of the image's channels, so that its wide maps need not be read for them.
    """
    centred = x - x.mean((0, 1))
    channels = range(x.shape[-1])
    covariance = jnp.stack([(centred[..., i, None] * centred).mean((0, 1)) for i in channels], -1)
    variance = jnp.einsum("bij,bid,bjd->bd", covariance, weights, weights, precision=lax.Precision.HIGHEST)
    scaled = weights * lax.rsqrt(variance + EPSILON)[:, None]
    # Sums, not a product of matrices: they become part of whatever reads them
    return [jax.nn.relu(sum(centred[..., i, None] * part[:, i] for i in channels)) for part in jnp.split(scaled, SLICES, -1)]


def _precision(dtype: jnp.dtype) -> lax.Precision | None:
    """Of products: accelerators would round float32 to fewer bits."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None


def _side_by_side(dilation: int, maps: jax.Array, kernel: jax.Array) -> jax.Array:
    """As `_convolution` with a 3 x 3 kernel of this dilation; 0: with its middle tap alone."""
    height, width, images, channels = maps.shape
    taps = kernel if dilation else kernel[:, 1:2, 1:2]
    together = lax.conv_general_dilated(
        maps.reshape(1, height, width, -1),
        taps.transpose(1, 2, 3, 0, 4).reshape(*taps.shape[1:3], channels, -1),
        (1, 1),
        [(dilation, dilation)] * 2,
        rhs_dilation=(max(dilation, 1),) * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=images,
        precision=_precision(maps.dtype),
    )
    return together.reshape(height, width, images, -1)


@jax.custom_batching.custom_vmap
def _convolution(reach: jax.Array, maps: jax.Array, kernel: jax.Array) -> jax.Array:
    """Each image of maps [H, W, B, C] with its own kernel [B, 3, 3, C, D], of the kind `reach`, a scalar: [H, W, B, D]."""
    return lax.switch(reach, [functools.partial(_side_by_side, dilation) for dilation in (0, *DILATIONS)], maps, kernel)


@_convolution.def_vmap
def _convolutions_of_seeds(size: int, batched: list[bool], *arguments: jax.Array) -> tuple[jax.Array, bool]:
    """One choice for each seed: JAX's own rule would compute all four branches for all seeds of different kinds."""

    def of_seed(seed: int) -> jax.Array:
        return _convolution(*(argument[seed] if has_seeds else argument for argument, has_seeds in zip(arguments, batched, strict=True)))

    return jnp.stack([of_seed(seed) for seed in range(size)]), True
