"""Distortions of the signal within DeepAugment's autoencoder: Hendrycks et al., "The Many Faces of Robustness" (2021).

Every image gets one of nine options, all equally likely. The draw is made here, on the host, and `models.cae` applies it on the device. No
option means to leave the latent as it is: there is no clean pass.

Modes: "faithful" does what the published code does. "intended" differs in option 0 alone: the published factor of the bits is 3 + 4uU,
because 1 is subtracted where only a shape is read; intended is 3 + 2u(2U - 1), a range as wide but centred on 3. If a latent has fewer
channels than an option draws, it draws as many as there are.
"""

from collections.abc import Callable

import numpy as np

from jaxbed.data.deepaugment.mode import Mode, check_mode
from jaxbed.models import cae
from jaxbed.models.cae import Signal

PERMUTED, FLIPPED = 10, 5  # channels that two of the options change
CENTRE = 1  # of a 3 x 3 kernel
# Of rows and of columns. The published code draws two of the axes batch, rows and columns, the first of which has size 1
FLIPS = ((True, False), (False, True), (True, True))


def draw_signal(
    rng: np.random.Generator, mode: Mode = "faithful", width: int = cae.WIDTH, option: str = ""
) -> tuple[Signal, tuple[str, ...]]:
    """(what is done to the latent of one image, name of the one option drawn). `jax.tree.map` over np.stack makes a batch.

    option: a name in OPTIONS; empty: one is drawn. Raises ValueError for a mode, a width or an option that does not exist.
    """
    check_mode(mode)
    channels = cae.latent_channels(width)
    option = option or list(OPTIONS)[rng.integers(len(OPTIONS))]
    if option not in OPTIONS:
        raise ValueError(f"option {option!r} of a signal does not exist: choose {', '.join(OPTIONS)}, or leave it empty to draw one")
    clean = Signal(
        seed=np.array(rng.integers(2**32), np.uint32),
        zero_rate=np.array(0, np.float32),
        negate_rate=np.array(0, np.float32),
        flip_rows=np.zeros(channels, bool),
        flip_columns=np.zeros(channels, bool),
        kernel=_hwio(_identity(channels)),
        gain=np.array([1, 0], np.float32),
    )
    return OPTIONS[option](rng, clean, mode), (option,)


def amplify_bits(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """Bits that are 1 become 3 + 4uU, or as intended 3 + 2u(2U - 1), with a U for each."""
    strength = 2 * rng.random()
    gain = (3, 2 * strength) if mode == "faithful" else (3 - strength, 2 * strength)
    return signal._replace(gain=np.array(gain, np.float32))


def zero_pixels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """20% of the pixels, in all channels."""
    return signal._replace(zero_rate=np.array(0.2, np.float32))


def negate_pixels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """10% of the pixels, in all channels."""
    return signal._replace(negate_rate=np.array(0.1, np.float32))


def permute_channels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """The first ten, at random."""
    kernel = _identity(len(signal.flip_rows))
    permuted = min(PERMUTED, len(kernel))
    kernel[:permuted] = kernel[rng.permutation(permuted)]
    return signal._replace(kernel=_hwio(kernel))


def flip_some_channels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """Five, drawn with replacement and flipped one after the other: a channel that is drawn twice is as before."""
    channels = len(signal.flip_rows)
    drawn = rng.integers(channels, size=min(FLIPPED, channels))
    return _flipped(rng, signal, np.bincount(drawn, minlength=channels) % 2 == 1)


def flip_all_channels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """Vertically, horizontally or both, as for some channels."""
    return _flipped(rng, signal, np.ones(len(signal.flip_rows), bool))


def jitter_kernel(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """A convolution: the identity plus uniform numbers from -0.1 to 0.1 at all taps of all channels."""
    kernel = _identity(len(signal.flip_rows))
    return signal._replace(kernel=_hwio(kernel + rng.uniform(-0.1, 0.1, kernel.shape)))


def mix_channels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """A convolution: the identity, and for half of the outputs also a tap of 1, of a random input at a random position."""
    kernel = _identity(len(signal.flip_rows))
    for of_output in kernel:
        if rng.random() < 0.5:
            of_output[rng.integers(len(kernel)), rng.integers(3), rng.integers(3)] = 1
    return signal._replace(kernel=_hwio(kernel))


def shift_channels(rng: np.random.Generator, signal: Signal, mode: Mode) -> Signal:
    """Each by a pixel or none, in neighbouring channels mostly alike: with probability 0.2, a new shift is drawn, and stays."""
    kernel = np.zeros_like(_identity(len(signal.flip_rows)))
    row, column = rng.integers(3, size=2)
    for channel in range(len(kernel)):
        if rng.random() < 0.2:
            row, column = rng.integers(3, size=2)
        kernel[channel, channel, row, column] = 1
    return signal._replace(kernel=_hwio(kernel))


def _flipped(rng: np.random.Generator, signal: Signal, chosen: np.ndarray) -> Signal:
    rows, columns = FLIPS[rng.integers(len(FLIPS))]
    return signal._replace(flip_rows=chosen & rows, flip_columns=chosen & columns)


def _identity(channels: int) -> np.ndarray:
    """[out, in, 3, 3]."""
    kernel = np.zeros((channels, channels, 3, 3), np.float32)
    kernel[:, :, CENTRE, CENTRE] = np.eye(channels)
    return kernel


def _hwio(kernel: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(kernel.transpose(2, 3, 1, 0), np.float32)


# In the published order
OPTIONS: dict[str, Callable[[np.random.Generator, Signal, Mode], Signal]] = {
    "amplify_bits": amplify_bits,
    "zero_pixels": zero_pixels,
    "negate_pixels": negate_pixels,
    "permute_channels": permute_channels,
    "flip_some_channels": flip_some_channels,
    "flip_all_channels": flip_all_channels,
    "jitter_kernel": jitter_kernel,
    "mix_channels": mix_channels,
    "shift_channels": shift_channels,
}
