"""Weight distortions of EDSR in DeepAugment: Hendrycks et al., "The Many Faces of Robustness" (2021).

Three of seventeen options, drawn with replacement, act on the residual blocks one after another. Head, tail and the body's last
convolution are never touched. An option draws its blocks from a fixed range, which is cut to the blocks that there are; in the published
network, the last block is in none.

Mode "faithful" reproduces the published data set. Mode "intended" corrects two options: `scale_second` can shrink and negate, and
`convolve_with_taps` draws taps for each pair of channels. The others are the same in both.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from jaxbed.data.deepaugment.mode import Mode, check_mode
from jaxbed.models import edsr
from jaxbed.models.edsr import Weights

DRAWS = 3  # options per network
LAPLACE = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)
EDGES = np.array([[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]], np.float32)
CONCENTRATION = 0.1  # of the Dirichlet distribution of nine taps


class Block(NamedTuple):
    """Both convolutions of a residual block: kernels [O, I, 3, 3], biases [O]."""

    first: np.ndarray
    first_bias: np.ndarray
    second: np.ndarray
    second_bias: np.ndarray


Change = Callable[[np.random.Generator, Block], Block]


def reverse_outputs(rng: np.random.Generator, block: Block) -> Block:
    return Block(*(array[::-1] for array in block))


def negate_first(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=-block.first, first_bias=-block.first_bias)


def zero_first(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=np.zeros_like(block.first), first_bias=np.zeros_like(block.first_bias))


def gelu_and_negate(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=-_gelu(block.first), second=-_gelu(block.second))


def laplace_times_first(rng: np.random.Generator, block: Block) -> Block:
    """A mask, not a convolution."""
    return block._replace(first=block.first * LAPLACE)


def edges_times_first(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=block.first * EDGES)


def amplify_second(rng: np.random.Generator, block: Block) -> Block:
    """Factors in [1, 5)."""
    return block._replace(second=block.second * (1 + 4 * _scalar(rng) * _uniform(rng, block.second)))


def scale_second(rng: np.random.Generator, block: Block) -> Block:
    """What `amplify_second` was meant to be: factors in [-1, 3)."""
    return block._replace(second=block.second * (1 + 2 * _scalar(rng) * (2 * _uniform(rng, block.second) - 1)))


def mirror_first_negate_second(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=block.first[..., ::-1], second=-block.second)


def convolve_with_shared_taps(rng: np.random.Generator, block: Block) -> Block:
    """One tap of +1 or -1 per channel: all of a unit's input channels get the same kernel."""
    taps = _taps(rng, (1, block.first.shape[1]))
    return block._replace(first=_convolved(block.first, np.broadcast_to(taps, block.first.shape)))


def convolve_with_taps(rng: np.random.Generator, block: Block) -> Block:
    """What `convolve_with_shared_taps` was meant to be: one tap per pair of channels."""
    return block._replace(first=_convolved(block.first, _taps(rng, block.first.shape[:2])))


def convolve_with_noise(rng: np.random.Generator, block: Block) -> Block:
    noise = (2 * _scalar(rng) * _uniform(rng, block.first) - 1) / 6
    return block._replace(first=_convolved(block.first, noise))


def convolve_with_blurs(rng: np.random.Generator, block: Block) -> Block:
    """Taps that sum to 1 for each pair of channels."""
    taps = rng.dirichlet(np.full(9, CONCENTRATION), block.second.shape[:2]).astype(np.float32)
    return block._replace(second=_convolved(block.second, taps.reshape(block.second.shape)))


def add_noise_to_second(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(second=block.second + (_uniform(rng, block.second) - np.float32(0.5)))


def rotate(rng: np.random.Generator, block: Block) -> Block:
    """One kernel by 90, 180 or 270 degrees: in space, or in the plane of output and input channels."""
    name, quarters, axes = _first_or_second(rng), int(rng.integers(1, 4)), ((2, 3), (0, 1))[rng.integers(2)]
    return block._replace(**{name: np.rot90(getattr(block, name), quarters, axes)})


def flip_signs_of_first(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=block.first * (2 * _bits(rng, block.first) - 1))


def zero_half_of_first(rng: np.random.Generator, block: Block) -> Block:
    return block._replace(first=block.first * _bits(rng, block.first))


def negate_filters_of_first(rng: np.random.Generator, block: Block) -> Block:
    """As many draws as half the filters (published: 32), with replacement: a filter that is drawn twice is negated once."""
    signs = np.ones((len(block.first), 1, 1, 1), np.float32)
    signs[rng.integers(len(signs), size=len(signs) // 2)] = -1
    return block._replace(first=block.first * signs)


def keep_largest_taps(rng: np.random.Generator, block: Block) -> Block:
    """Of every 3 x 3 kernel of one convolution, the largest tap, not the largest in magnitude; the first of equal ones."""
    name = _first_or_second(rng)
    flat = getattr(block, name).reshape(*block.first.shape[:2], 9)
    kept = np.where(np.arange(9) == flat.argmax(-1)[..., None], flat, 0)
    return block._replace(**{name: kept.reshape(block.first.shape)})


@dataclasses.dataclass(frozen=True)
class Option:
    """A distortion of `draws` blocks, drawn with replacement from `blocks`."""

    blocks: tuple[int, ...]
    change: Change
    intended: Change | None = None  # where the published code does something else
    draws: int = 1

    def __call__(self, rng: np.random.Generator, weights: Weights, mode: Mode = "faithful") -> dict[str, np.ndarray]:
        """New weights. Raises ValueError for an unknown mode, and for a network that has none of the blocks."""
        check_mode(mode)
        _, count = edsr.size(weights)
        candidates = [number for number in self.blocks if number < count]
        if not candidates:
            raise ValueError(f"a network of {count} block has no block {self.blocks[0]} to distort: use at least {self.blocks[0] + 1}")
        change, changed = self.intended if self.intended and mode == "intended" else self.change, dict(weights)
        for number in rng.choice(candidates, self.draws):
            arrays = [f"body.{number}.body.{place}.{kind}" for place in (0, 2) for kind in ("weight", "bias")]
            changed |= zip(arrays, change(rng, Block(*(changed[name] for name in arrays))), strict=True)
        return changed


THIRDS, FOURTHS, ALL = (0, 3, 6, 9), (1, 5, 9), tuple(range(15))
# In the published order
OPTIONS: dict[str, Option] = {
    "reverse_outputs": Option(THIRDS, reverse_outputs),
    "negate_first": Option((1, 4, 7), negate_first),
    "zero_first": Option(THIRDS, zero_first),
    "gelu_and_negate": Option(THIRDS, gelu_and_negate),
    "laplace_times_first": Option(THIRDS, laplace_times_first),
    "edges_times_first": Option(THIRDS, edges_times_first),
    "scale_second": Option(THIRDS, amplify_second, intended=scale_second),
    "mirror_first_negate_second": Option(THIRDS, mirror_first_negate_second),
    "convolve_with_taps": Option(FOURTHS, convolve_with_shared_taps, intended=convolve_with_taps),
    "convolve_with_noise": Option(THIRDS, convolve_with_noise),
    "convolve_with_blurs": Option(FOURTHS, convolve_with_blurs),
    "add_noise_to_second": Option(ALL, add_noise_to_second),
    "rotate": Option(ALL, rotate, draws=5),
    "flip_signs_of_first": Option(ALL, flip_signs_of_first, draws=5),
    "zero_half_of_first": Option(ALL, zero_half_of_first, draws=5),
    "negate_filters_of_first": Option(ALL, negate_filters_of_first, draws=5),
    "keep_largest_taps": Option(ALL, keep_largest_taps, draws=5),
}


def draw_options(rng: np.random.Generator, mode: Mode = "faithful") -> tuple[str, ...]:
    """Names of the options that `distort` applies, which it draws first. Raises ValueError for an unknown mode."""
    check_mode(mode)
    return tuple(rng.choice(list(OPTIONS), DRAWS).tolist())


def distort(rng: np.random.Generator, weights: Weights, mode: Mode = "faithful") -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """(distorted weights, names of the options in the order they acted). `weights` stay as they are; both may share arrays.

    Raises ValueError for an unknown mode, and for a network of fewer than two blocks.
    """
    drawn = draw_options(rng, mode)
    changed = dict(weights)
    for name in drawn:
        changed = OPTIONS[name](rng, changed, mode)
    return changed, drawn


def _scalar(rng: np.random.Generator) -> float:
    return rng.random(dtype=np.float32)


def _uniform(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    return rng.random(like.shape, np.float32)


def _bits(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    return rng.integers(2, size=like.shape).astype(np.float32)


def _first_or_second(rng: np.random.Generator) -> str:
    return ("first", "second")[rng.integers(2)]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * special.ndtr(x)


def _taps(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """[*shape, 3, 3] with one entry of +1 or -1 at a random place of each 3 x 3."""
    place, sign = rng.integers(9, size=shape), 2 * rng.integers(2, size=shape) - 1
    taps = np.where(np.arange(9) == place[..., None], sign[..., None], 0)
    return taps.reshape(*shape, 3, 3).astype(np.float32)


def _convolved(kernel: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """[O, K, 3, 3]: each filter of kernel [O, I, 3, 3], as an image padded with zeros, cross-correlated with taps [K, I, 3, 3]."""
    padded = np.pad(kernel, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # [O, I, y, x, 3, 3]
    return np.einsum("oiyxab,kiab->okyx", windows, taps, optimize=True)
