"""EDSR, the "baseline" network for four-fold super-resolution, and the signal distortions of DeepAugment within it.

Lim, Son, Kim, Nah, Lee, "Enhanced Deep Residual Networks for Single Image Super-Resolution" (2017); Hendrycks et al., "The Many Faces of
Robustness" (2021). The numbers are the published network's. The published code distorts one image per pass. Here each image of a batch
carries its own distortions as data (`Signal`), and one pass serves all of them.

Weights are a flat dict under the published names, in PyTorch's layout (O, I, kh, kw): DeepAugment's weight distortions are defined on it.
`prepare` makes of them what `apply` takes. The loop over blocks is unrolled: it takes 1.7 s to compile on a CPU, and a scan 0.5 s, but
gradients run 8 times as fast there; on a GPU, both run the same convolutions.
"""

import functools
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.models import canvas, conv, positional, torch_files
from jaxbed.stats import names

PyTree = Any
Array = Any  # NumPy's on the host, JAX's in a program
Weights = Mapping[str, np.ndarray]

SCALE = 4  # sides of the output over sides of the input
MEAN = 255 * np.array([0.4488, 0.4371, 0.4040], np.float32)  # RGB, of DIV2K
FROZEN = {
    **{f"{sign}_mean.weight": np.eye(3, dtype=np.float32)[:, :, None, None] for sign in ("sub", "add")},
    **{"sub_mean.bias": -MEAN, "add_mean.bias": MEAN},
}
LARGE = (256, 32)  # width and blocks of the network that is not "baseline", whose blocks scale their residuals by 0.1

NOISES = ("none", "zeros", "signs")  # elementwise, after the head
NOISE_FRACS = np.array([0, 0.05, 0.025], np.float32)
MIDDLE_BLOCK = 4  # after which MIDDLES act; after the last block of a network with fewer
MIDDLES = ("none", "negate", "relu", "gelu", "flip_height", "flip_width")  # flips also reverse the channels


class Signal(NamedTuple):
    """What is done to the feature maps of one image; of a batch, with a leading axis N. `draw_signal` of edsr_signals draws it."""

    source: Array  # [C] int32: the channel after the head that each channel is replaced with
    noise: Array  # scalar int32, in NOISES
    seed: Array  # scalar uint32, of the noise, which positional.uniform draws for each row, column and channel
    middle: Array  # scalar int32, in MIDDLES
    kept: Array  # [blocks + 1] bool: layers of the body that act; the others pass their input on


def shapes(width: int = 64, blocks: int = 16) -> dict[str, tuple[int, ...]]:
    """Shapes of the trained arrays by published name; published are 64 channels and 16 blocks, 1,517,571 numbers."""
    layers = {"head.0": (width, 3)}
    layers |= {f"body.{block}.body.{place}": (width, width) for block in range(blocks) for place in (0, 2)}
    layers |= {f"body.{blocks}": (width, width), "tail.0.0": (4 * width, width), "tail.0.2": (4 * width, width), "tail.1": (3, width)}
    arrays: dict[str, tuple[int, ...]] = {}
    for name, (outputs, inputs) in layers.items():
        arrays |= {f"{name}.weight": (outputs, inputs, 3, 3), f"{name}.bias": (outputs,)}
    return arrays


def draw(rng: np.random.Generator, width: int = 64, blocks: int = 16) -> dict[str, np.ndarray]:
    """Untrained weights: PyTorch's default, uniform within 1 / sqrt(inputs of a unit) for kernels and biases."""
    expected = shapes(width, blocks)
    weights = {}
    for name, shape in expected.items():
        bound = math.prod(expected[f"{name.rpartition('.')[0]}.weight"][1:]) ** -0.5
        weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def load(path: pathlib.Path | str) -> dict[str, np.ndarray]:
    """Weights of a file of any width and number of blocks, in any format that torch_files.read takes.

    Raises ValueError for a file that cannot be read, or holds another network: the message lists the arrays that do not fit.
    """
    state = torch_files.read(path)
    width, blocks = size(state)
    if (width, blocks) == LARGE:
        raise ValueError(
            f"{path} holds EDSR with 32 blocks of 256 channels, whose residuals are scaled by 0.1; only the baseline network is supported "
            "(published: 16 blocks of 64 channels): name a file of edsr_baseline_x4"
        )
    expected = shapes(width, blocks)
    present = {name: array.shape for name, array in state.items() if name not in FROZEN}
    faults = [f"{name} is missing" for name in expected if name not in present]
    faults += [f"{name} is unknown" for name in present if name not in expected]
    misshapen = [name for name, shape in expected.items() if present.get(name, shape) != shape]
    faults += [f"{name} is {list(present[name])} and should be {list(expected[name])}" for name in misshapen]
    faults += [f"{name} is not that of RGB in [0, 255]" for name in FROZEN if name in state and not _equal(state[name], FROZEN[name])]
    if faults:
        raise ValueError(f"{path} does not hold EDSR baseline x4 ({names.listed(faults)}): name a file of edsr_baseline_x4")
    return {name: np.asarray(state[name], np.float32) for name in expected}


def _equal(given: np.ndarray, expected: np.ndarray) -> bool:
    return given.shape == expected.shape and np.allclose(np.asarray(given, np.float32), expected, rtol=1e-3, atol=1e-3)


def size(weights: Weights) -> tuple[int, int]:
    """(width, blocks) of weights under the published names; (64, 16) where the names do not tell."""
    head = weights.get("head.0.weight")
    return len(head) if head is not None and head.ndim == 4 else 64, _blocks(tuple(weights))


@functools.cache  # the same names are asked about for every image
def _blocks(names_of_arrays: tuple[str, ...]) -> int:
    numbers = [int(match[1]) for name in names_of_arrays if (match := re.fullmatch(r"body\.(\d{1,3})\.body\.[02]\.\w+", name))]
    return max(numbers, default=15) + 1


def prepare(weights: Weights) -> PyTree:
    """Parameters for `apply`: {"kernel": [3, 3, I, O], "bias": [O]} of head, last, tail; stacked: of blocks [blocks, 2, ...], up [2, ...].

    Can be compiled. The outputs of both convolutions before a pixel shuffle, 4·channel + phase, are ordered by phase first: a shuffle then
    moves whole pixels.
    """
    _, blocks = size(weights)
    inner = [[_layer(weights, f"body.{block}.body.{place}") for place in (0, 2)] for block in range(blocks)]
    up = [jax.tree.map(_by_phase, _layer(weights, f"tail.0.{place}")) for place in (0, 2)]
    return {
        "head": _layer(weights, "head.0"),
        "blocks": _stacked([_stacked(pair) for pair in inner]),
        "last": _layer(weights, f"body.{blocks}"),
        "up": _stacked(up),
        "tail": _layer(weights, "tail.1"),
    }


def restore(params: PyTree) -> dict[str, np.ndarray]:
    """The weights that `prepare` was given, float32: to save what was trained, or to distort it."""
    params = jax.tree.map(lambda array: np.asarray(array, np.float32), params)
    blocks = len(params["blocks"]["bias"])
    layers = {"head.0": params["head"], f"body.{blocks}": params["last"], "tail.1": params["tail"]}
    for place in (0, 1):
        layers[f"tail.0.{2 * place}"] = jax.tree.map(_by_channel, _at(params["up"], place))
        for block in range(blocks):
            layers[f"body.{block}.body.{2 * place}"] = _at(params["blocks"], block, place)
    weights = {}
    for name in shapes(params["head"]["bias"].shape[0], blocks):
        layer, _, kind = name.rpartition(".")
        array = layers[layer]["bias"] if kind == "bias" else layers[layer]["kernel"].transpose(3, 2, 0, 1)
        weights[name] = np.ascontiguousarray(array)
    return weights


def _layer(weights: Weights, name: str) -> dict[str, jax.Array]:
    return {"kernel": jnp.asarray(weights[f"{name}.weight"]).transpose(2, 3, 1, 0), "bias": jnp.asarray(weights[f"{name}.bias"])}


def _stacked(layers: list) -> PyTree:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)


def _at(layers: PyTree, *index: int) -> PyTree:
    """One of stacked layers."""
    return jax.tree.map(lambda array: array[index], layers)


def _by_phase(array: jax.Array) -> jax.Array:
    return array.reshape(*array.shape[:-1], -1, 4).swapaxes(-1, -2).reshape(array.shape)


def _by_channel(array: np.ndarray) -> np.ndarray:
    return array.reshape(*array.shape[:-1], 4, -1).swapaxes(-1, -2).reshape(array.shape)


def apply(params: PyTree, image: jax.Array, sizes_px: jax.Array, signal: Signal | None = None) -> jax.Array:
    """image [N, H, W, 3] in [0, 255] -> [N, 4·H, 4·W, 3] float32 in [0, 255], zeros outside 4·sizes_px.

    sizes_px [N, 2]: heights and widths of the images, each in the top left corner of its canvas. Arithmetic is in the image's type, float32
    or bfloat16; the mean is subtracted and added in float32. Raises ValueError for images of whole numbers, and for signals that were drawn
    for another network.
    """
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise ValueError(f"EDSR computes in the type of its images, and these are {image.dtype}: convert them to float32 or bfloat16")
    width, blocks = len(params["head"]["bias"]), len(params["blocks"]["bias"])
    if signal is not None and (drawn_for := (signal.source.shape[1], signal.kept.shape[1] - 1)) != (width, blocks):
        raise ValueError(
            f"signals were drawn for a width of {drawn_for[0]} and {drawn_for[1]} blocks, and the network has {width} and {blocks}: "
            "give draw_signal those"
        )
    x = canvas.cut((image.astype(jnp.float32) - MEAN).astype(image.dtype), sizes_px)
    x = _convolved(params["head"], x, sizes_px)
    if signal is not None:
        x = _distorted_head(x, signal)
    result = x
    for number in range(blocks + 1):
        if number < blocks:
            first, second = (_at(params["blocks"], number, place) for place in (0, 1))
            after = result + _convolved(second, nn.relu(_convolved(first, result, sizes_px)), sizes_px)
        else:
            after = _convolved(params["last"], result, sizes_px)
        result = after if signal is None else jnp.where(signal.kept[:, number, None, None, None], after, result)
        if signal is not None and number == min(MIDDLE_BLOCK, blocks - 1):
            result = _distorted_middle(result, sizes_px, signal.middle)
    x = result + x
    for place in (0, 1):
        x = _shuffled(_convolved(_at(params["up"], place), x, 2**place * sizes_px))
    x = _convolved(params["tail"], x, SCALE * sizes_px).astype(jnp.float32)
    return canvas.cut(jnp.clip(x + MEAN, 0, 255), SCALE * sizes_px)


def to_bytes(output: jax.Array) -> jax.Array:
    """What `apply` returns as uint8. Fractions are cut off, not rounded, as in the published data set."""
    return output.astype(jnp.uint8)


def _convolved(layer: PyTree, x: jax.Array, sizes_px: jax.Array) -> jax.Array:
    out = conv.conv(x, layer["kernel"].astype(x.dtype), 1, 1) + layer["bias"].astype(x.dtype)
    return canvas.cut(out, sizes_px)


def _shuffled(x: jax.Array) -> jax.Array:
    """[N, H, W, 4·C], phases before channels -> [N, 2·H, 2·W, C]."""
    images, height, width, channels = x.shape
    x = x.reshape(images, height, width, 2, 2, channels // 4)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(images, 2 * height, 2 * width, channels // 4)


def _distorted_head(x: jax.Array, signal: Signal) -> jax.Array:
    x = jnp.take_along_axis(x, signal.source[:, None, None], axis=-1, mode="clip")
    noise = signal.noise[:, None, None, None]
    hit = positional.uniform(signal.seed, x.shape[1:]) < jnp.asarray(NOISE_FRACS)[noise]
    return jnp.where(hit, jnp.where(noise == NOISES.index("zeros"), 0, -x), x)


def _distorted_middle(x: jax.Array, sizes_px: jax.Array, middle: jax.Array) -> jax.Array:
    def drawn(name: str) -> jax.Array:
        return (middle == MIDDLES.index(name))[:, None, None, None]

    activated = jnp.select([drawn("negate"), drawn("relu"), drawn("gelu")], [-x, nn.relu(x), nn.gelu(x, approximate=False)], x)
    flipped = jnp.where(drawn("flip_height") | drawn("flip_width"), activated[..., ::-1], activated)
    for name, axis in (("flip_height", canvas.HEIGHT), ("flip_width", canvas.WIDTH)):
        # An image of 0 pixels stays as it is: so only those flip that have drawn it
        flipped = canvas.flip(flipped, jnp.where(drawn(name)[:, :, 0, 0], sizes_px, 0), axis)
    return flipped
