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
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbed import values
from jaxbed.values import Count, NotNegative

SLICES = 4  # of which the last passes through no convolution
DILATIONS = (1, 2, 3)
EPSILON = 1e-5  # of variances
Form = Literal["taps", "grouped"]


@dataclasses.dataclass
class Settings:
    """The authors' defaults."""

    strength: NotNegative = 0.75  # the largest eps
    hidden: Count = 16  # channels of a slice
    blocks: Count = 4
    # of 3 x 3 convolutions. taps: nine batched matrix products; grouped: one convolution with a group for each image. Untimed on GPUs
    form: Form = "taps"


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


def changed(image: jax.Array, weights: Weights, reaches: jax.Array, eps: jax.Array | float, form: Form = "taps") -> jax.Array:
    """Images [B, H, W, C] as their networks change them: the same shape and type, without gradient.

    Maps within a block have the type of the image; normalisation and sums over blocks are float32.
    """
    image = lax.stop_gradient(image)

    def step(x: jax.Array, of_block: tuple[Weights, jax.Array]) -> tuple[jax.Array, None]:
        return x + eps * block(x.astype(image.dtype), *of_block, form), None

    return lax.scan(step, image.astype(jnp.float32), (weights, reaches))[0].astype(image.dtype)


def block(x: jax.Array, weights: Weights, reaches: jax.Array, form: Form = "taps") -> jax.Array:
    """One block on images [B, H, W, C], with its own part of the weights, and of reaches [3]: float32 [B, H, W, C]."""
    first, middle, last = (part.astype(x.dtype) for part in weights)

    def active(maps: jax.Array) -> jax.Array:
        return jax.nn.relu(normalised(maps)).astype(x.dtype)

    *slices, untouched = jnp.split(active(_pointwise(x, first)), SLICES, -1)
    outputs: list[jax.Array] = []
    for number, maps in enumerate(slices):
        given = outputs[-1] + maps if outputs else maps
        outputs.append(active(_convolution(form)(reaches[number], given, middle[:, number])))
    return normalised(_pointwise(jnp.concatenate([*outputs, untouched], -1), last))


def normalised(maps: jax.Array) -> jax.Array:
    """Maps [B, H, W, C] with mean 0 and variance v / (v + 1e-5) in each channel of each image: float32."""
    maps = maps.astype(jnp.float32)
    centred = maps - maps.mean((1, 2), keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean((1, 2), keepdims=True) + EPSILON)


@functools.cache
def _convolution(form: Form) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """(reach, maps [B, H, W, C], kernel [B, 3, 3, C, D]) -> [B, H, W, D]: each image with its own kernel."""
    wide = {"taps": _taps, "grouped": _grouped}[form]

    def narrow(maps: jax.Array, kernel: jax.Array) -> jax.Array:
        return _pointwise(maps, kernel[:, 1, 1])

    branches: list[Callable] = [narrow, *(functools.partial(wide, dilation) for dilation in DILATIONS)]

    @jax.custom_batching.custom_vmap
    def convolve(reach: jax.Array, maps: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.switch(reach, branches, maps, kernel)

    # Without this rule, seeds of different kinds would all compute all four branches
    @convolve.def_vmap
    def of_seeds(size: int, batched: list[bool], *arguments: jax.Array) -> tuple[jax.Array, bool]:
        def of_seed(seed: int) -> jax.Array:
            return convolve(*(argument[seed] if has_seeds else argument for argument, has_seeds in zip(arguments, batched, strict=True)))

        return jnp.stack([of_seed(seed) for seed in range(size)]), True

    return convolve


def _pointwise(maps: jax.Array, kernel: jax.Array) -> jax.Array:
    """1 x 1 convolution of maps [B, H, W, C] with kernel [B, C, D]."""
    precision = lax.Precision.HIGHEST if maps.dtype == jnp.float32 else None
    return jnp.einsum("bhwc,bcd->bhwd", maps, kernel, precision=precision)


def _taps(dilation: int, maps: jax.Array, kernel: jax.Array) -> jax.Array:
    _, height, width, _ = maps.shape
    padded = jnp.pad(maps, ((0, 0), (dilation, dilation), (dilation, dilation), (0, 0)))

    def tap(i: int, j: int) -> jax.Array:
        top, left = i * dilation, j * dilation
        return _pointwise(padded[:, top : top + height, left : left + width], kernel[:, i, j])

    return functools.reduce(jnp.add, (tap(i, j) for i in range(3) for j in range(3)))


def _grouped(dilation: int, maps: jax.Array, kernel: jax.Array) -> jax.Array:
    images, height, width, _ = maps.shape
    side_by_side = maps.transpose(1, 2, 0, 3).reshape(1, height, width, -1)
    together = lax.conv_general_dilated(
        side_by_side,
        kernel.transpose(1, 2, 3, 0, 4).reshape(3, 3, kernel.shape[3], -1),
        (1, 1),
        [(dilation, dilation)] * 2,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=images,
        precision=lax.Precision.HIGHEST if maps.dtype == jnp.float32 else None,
    )
    return together.reshape(height, width, images, -1).transpose(2, 0, 1, 3)
