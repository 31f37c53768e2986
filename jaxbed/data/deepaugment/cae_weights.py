"""Distortions of the weights of DeepAugment's autoencoder: Hendrycks et al., "The Many Faces of Robustness" (2021).

`distort` draws one option and applies it to a random layer from the option's range. Layers are numbered as in `cae.layers`, and rows run
along the first axis of a weight. Layer 10 is transposed: its rows are inputs, but the entries of its bias are outputs. Row k of the weight
and entry k of the bias change together all the same, as in the published code.

Modes: "faithful" does what the published code does. "intended" repairs three accidents and keeps the rest. Option 0 also reverses a second
layer, whose weight the published code reverses twice; if both draws give the same layer, it is reversed once. Option 4 multiplies by
1 + 4u(2U - 1) instead of 1 + 8uU, a range as wide but centred on 1: the published code subtracts 1 where only a shape is read. Option 8,
which the published code contains but never draws, is drawn as well.

In networks narrower than the published one, the numbers of rows drawn stay the same, but never exceed the number of rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from jaxbed.data.deepaugment.mode import Mode, check_mode
from jaxbed.models import cae
from jaxbed.models.cae import Weights

NAMES = tuple(layer.name for layer in cae.layers())


class Draw(NamedTuple):
    """What an option acts on."""

    weights: Weights
    first: str  # name of a layer
    second: str  # name of another layer or the same one; two of the options use it
    mode: Mode

    def arrays(self) -> Weights:
        """Copies of the first layer's weight and bias, by their names."""
        return {name: self.weights[name].copy() for name in _arrays_of(self.first)}

    @property
    def weight(self) -> np.ndarray:
        """The first layer's, not a copy."""
        return self.weights[f"{self.first}.weight"]


class Option(NamedTuple):
    """A distortion of a layer that is drawn from `layers`."""

    layers: range
    change: Callable[[np.random.Generator, Draw], Weights]  # gives the arrays that change

    def __call__(self, rng: np.random.Generator, weights: Weights, mode: Mode = "faithful") -> Weights:
        """New weights. Raises ValueError for an unknown mode."""
        check_mode(mode)
        first, second = (NAMES[number] for number in rng.choice(self.layers, 2))
        return weights | self.change(rng, Draw(weights, first, second, mode))


def reverse_rows(rng: np.random.Generator, draw: Draw) -> Weights:
    """Of weights and biases."""
    layers = (draw.first,) if draw.mode == "faithful" else (draw.first, draw.second)
    return {name: draw.weights[name][::-1].copy() for layer in layers for name in _arrays_of(layer)}


def negate_rows(rng: np.random.Generator, draw: Draw) -> Weights:
    """12 of weight and bias, with replacement: a row that is drawn twice is as before."""
    return _row_by_row(rng, draw, 12, np.negative)


def zero_rows(rng: np.random.Generator, draw: Draw) -> Weights:
    """25 of weight and bias, with replacement."""
    return _row_by_row(rng, draw, 25, np.zeros_like)


def bend_rows(rng: np.random.Generator, draw: Draw) -> Weights:
    """25 of weight and bias, with replacement, become -GELU of themselves, again whenever they are drawn again."""
    return _row_by_row(rng, draw, 25, lambda row: -row * special.ndtr(row))


def amplify(rng: np.random.Generator, draw: Draw) -> Weights:
    """The weights of two layers times 1 + 8uU, or as intended 1 + 4u(2U - 1), with a u for each layer and a U for each number.

    One layer that is drawn twice is multiplied twice.
    """
    changed: Weights = {}
    for layer in (draw.first, draw.second):
        name = f"{layer}.weight"
        strength, uniform = np.float32(4 * rng.random()), rng.random(draw.weights[name].shape, np.float32)
        factor = 1 + strength * (2 * uniform if draw.mode == "faithful" else 2 * uniform - 1)
        changed[name] = changed.get(name, draw.weights[name]) * factor
    return changed


def mask(rng: np.random.Generator, draw: Draw) -> Weights:
    """Half of a layer's weights become 0; or, equally likely, half change sign."""
    weight = draw.weight
    other = rng.choice(np.array([0, -1], np.float32))
    return {f"{draw.first}.weight": np.where(rng.random(weight.shape) < 0.5, other * weight, weight)}


def rotate_kernels(rng: np.random.Generator, draw: Draw) -> Weights:
    """All kernels of a layer by the same 90, 180 or 270 degrees, counterclockwise."""
    return {f"{draw.first}.weight": np.rot90(draw.weight, int(rng.integers(1, 4)), axes=(2, 3)).copy()}


def negate_filters(rng: np.random.Generator, draw: Draw) -> Weights:
    """A fifth of the rows, drawn with replacement and negated once, in the weight alone."""
    weight = draw.weight.copy()
    drawn = rng.integers(len(weight), size=len(weight) // 5)
    weight[drawn] = -weight[drawn]  # all at once, so a row that is drawn twice is negated, too
    return {f"{draw.first}.weight": weight}


def keep_largest_tap(rng: np.random.Generator, draw: Draw) -> Weights:
    """All other taps of each kernel become 0; largest with its sign, so the least negative one where all are below 0."""
    weight = draw.weight
    taps = weight.reshape(*weight.shape[:2], -1)
    largest = taps.argmax(2, keepdims=True)
    return {f"{draw.first}.weight": np.where(np.arange(taps.shape[2]) == largest, taps, 0).reshape(weight.shape)}


# In the published order
OPTIONS: dict[str, Option] = {
    "reverse_rows": Option(range(11, 16), reverse_rows),
    "negate_rows": Option(range(8, 14), negate_rows),
    "zero_rows": Option(range(8, 14), zero_rows),
    "bend_rows": Option(range(10, 14), bend_rows),
    "amplify": Option(range(8, 14), amplify),
    "mask": Option(range(8, 14), mask),
    "rotate_kernels": Option(range(8, 14), rotate_kernels),
    "negate_filters": Option(range(8, 14), negate_filters),
    "keep_largest_tap": Option(range(8, 14), keep_largest_tap),
}
PUBLISHED_OPTIONS = 8  # that the published code draws from


def draw_options(rng: np.random.Generator, mode: Mode = "faithful") -> tuple[str, ...]:
    """Name of the one option that `distort` applies, which it draws first. Raises ValueError for an unknown mode."""
    check_mode(mode)
    return (list(OPTIONS)[rng.integers(len(OPTIONS) if mode == "intended" else PUBLISHED_OPTIONS)],)


def distort(rng: np.random.Generator, weights: Weights, mode: Mode = "faithful") -> tuple[Weights, tuple[str, ...]]:
    """(distorted weights, names of the options drawn: one). `weights` stay as they are; both may share arrays.

    Raises ValueError for an unknown mode.
    """
    drawn = draw_options(rng, mode)
    return OPTIONS[drawn[0]](rng, weights, mode), drawn


def _arrays_of(layer: str) -> tuple[str, str]:
    return f"{layer}.weight", f"{layer}.bias"


def _row_by_row(rng: np.random.Generator, draw: Draw, count: int, changed: Callable[[np.ndarray], np.ndarray]) -> Weights:
    arrays = draw.arrays()
    rows = len(draw.weight)
    for row in rng.integers(rows, size=min(count, rows)):
        for array in arrays.values():
            array[row] = changed(array[row])
    return arrays
