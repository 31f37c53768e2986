"""Signal distortions of EDSR in DeepAugment (Hendrycks et al., 2021), drawn for one image; `jaxbed.models.edsr` applies them.

Two draws per image: one of four options after the head, one of five in the body. With probability 1/20 an image passes undistorted.
"""

import numpy as np

from jaxbed.data.deepaugment.mode import Mode, check_mode
from jaxbed.models import edsr
from jaxbed.models.edsr import Signal

PAIRS = 5  # of channels that are swapped
SKIPS = 3  # draws of a layer to skip, with replacement
FIRST_SKIPPED = 2  # the layers before always act


def draw_signal(rng: np.random.Generator, mode: Mode = "faithful", width: int = 64, blocks: int = 16) -> tuple[Signal, tuple[str, ...]]:
    """(what is done to the feature maps of one image, names of the two options drawn). `jax.tree.map` over np.stack makes a batch.

    faithful: as in the published code, which overwrites a channel instead of swapping two, and instead of skipping layers applies only the
    last one that is not skipped, to the head's output. intended: swaps, and skips. The odds are the published ones in both.
    Raises ValueError for an unknown mode.
    """
    check_mode(mode)
    kept = np.ones(blocks + 1, bool)
    source, noise = np.arange(width, dtype=np.int32), "none"
    match head := rng.integers(4):
        case 0:
            source = _exchanged(source, rng.integers(width, size=(PAIRS, 2)), mode)
        case 1:
            noise = "zeros"
        case 2:
            noise = "signs"
    middle = "none"
    match body := rng.integers(5):
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
    seed = rng.integers(2**32, dtype=np.uint32)
    signal = Signal(source, np.int32(edsr.NOISES.index(noise)), seed, np.int32(edsr.MIDDLES.index(middle)), kept)
    return signal, ("swap" if head == 0 else noise, "skip" if body == 3 else middle)


def _exchanged(source: np.ndarray, pairs: np.ndarray, mode: Mode) -> np.ndarray:
    """Channels after each pair in turn is swapped, or, faithful, its first one overwritten with its second one."""
    source = source.copy()
    for one, other in pairs:
        source[one], source[other] = source[other], source[one if mode == "intended" else other]
    return source
