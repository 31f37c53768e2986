"""Signal distortions of EDSR in DeepAugment (Hendrycks et al., 2021), drawn for one image; `jaxbed.models.edsr` applies them.

Two draws per image: one of four options after the head, one of five in the body. With probability 1/20 an image passes undistorted.
"""

from typing import Literal

import numpy as np

from jaxbed.models import edsr
from jaxbed.models.edsr import Signal

Mode = Literal["faithful", "intended"]
PAIRS = 5  # of channels that are swapped
SKIPS = 3  # draws of a layer to skip, with replacement
FIRST_SKIPPED = 2  # the layers before always act


def draw_signal(rng: np.random.Generator, mode: Mode = "faithful", width: int = 64, blocks: int = 16) -> Signal:
    """What is done to the feature maps of one image; its size does not matter. `jax.tree.map` over np.stack makes a batch of several.

    faithful: as in the published code, which overwrites a channel instead of swapping two, and instead of skipping layers applies only the
    last one that is not skipped, to the head's output. intended: swaps, and skips. The odds are the published ones in both.
    """
    check_mode(mode)
    kept = np.ones(blocks + 1, bool)
    source, noise = np.arange(width, dtype=np.int32), "none"
    match rng.integers(4):
        case 0:
            source = _exchanged(source, rng.integers(width, size=(PAIRS, 2)), mode)
        case 1:
            noise = "zeros"
        case 2:
            noise = "signs"
    middle = "none"
    match rng.integers(5):
        case 0:
            middle = "negate"
        case 1:
            middle = "gelu" if rng.integers(3) else "relu"
        case 2:
            middle = "flip_width" if rng.integers(3) else "flip_height"
        case 3:
            kept[rng.integers(min(FIRST_SKIPPED, blocks), blocks + 1, SKIPS)] = False
            if mode == "faithful":
                kept[: np.flatnonzero(kept)[-1]] = False
    return Signal(
        source, np.int32(edsr.NOISES.index(noise)), rng.integers(2**32, dtype=np.uint32), np.int32(edsr.MIDDLES.index(middle)), kept
    )


def check_mode(mode: str) -> None:
    """Raises ValueError for an unknown mode."""
    if mode not in ("faithful", "intended"):
        raise ValueError(f"mode = {mode!r} of DeepAugment must be faithful (as published) or intended")


def _exchanged(source: np.ndarray, pairs: np.ndarray, mode: Mode) -> np.ndarray:
    """Channels after each pair in turn is swapped, or, faithful, its first one overwritten with its second one."""
    source = source.copy()
    for one, other in pairs:
        source[one], source[other] = source[other], source[one if mode == "intended" else other]
    return source
