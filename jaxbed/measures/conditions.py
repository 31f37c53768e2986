"""Conditions: named changes of images on the device, before a network sees them, the same for all seeds and epochs.

A condition is a function of images in [0, 1], of what is drawn at random for each, and of arrays: conditions that differ in these alone
share one compiled function. What is drawn follows from the names of the image and of the condition alone, whatever batch the image is in.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures import attacks, corruption_error, critical_band, imagenet_c, imagenet_cbar, spectral
from jaxbed.measures.corruption import SEVERITIES, Corruption, in_bytes

PyTree = Any
Draw = Callable[[jax.Array, int, int], PyTree]  # (key, height, width) -> what is random, of one image


class Condition(NamedTuple):
    """A change of images."""

    name: str  # also of its folder
    change: Callable[..., jax.Array]  # (image [B, H, W, C] in [0, 1], drawn [B, ...], *arrays) -> images of the same kind
    arrays: tuple[PyTree, ...] = ()
    draw: Draw | None = None  # None: nothing is random

    @property
    def answers(self) -> tuple[str, ...]:
        """Names of the folders of answers."""
        return (self.name,)

    @property
    def identity(self) -> str:
        """Changes where the condition's arrays or functions do."""
        functions = ".".join(f"{each.__module__}:{each.__qualname__}" for each in (self.change, self.draw) if each)
        hashed = hashlib.sha256(f"{VERSION} {self.name} {functions}".encode())
        for array in jax.tree.leaves(self.arrays):
            hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()[:16]


class Attacked(NamedTuple):
    """An attack on each network. What it answers to the last iterate has the attack's name, to the worst `<name>_best`; see `attacking`."""

    name: str
    kind: str  # of attacking.KINDS
    radius: float  # in units of pixels, which are in [0, 1]
    answers: tuple[str, ...]  # names of the folders of answers

    @property
    def identity(self) -> str:
        """Changes where the attack or its constants do."""
        return hashlib.sha256(f"{VERSION} {self.name} {self.kind} {self.radius!r} {attacks.CONSTANTS[self.kind]}".encode()).hexdigest()[:16]


COMPILERS = 4  # threads: each holds a batch of changed images
VERSION = 1  # to be counted up where a change means something else under the same name


class Settings(NamedTuple):
    """What a user may choose of the conditions, and what follows from the data."""

    severities: tuple[int, ...] = SEVERITIES  # of corruptions
    photographs: tuple[np.ndarray, ...] = ()  # of frozen glass, [h, w, 3] in [0, 1]: without them there is no frost
    epsilons: tuple[float, ...] = (0.5,)  # radii of attacks in the largest norm, in 255ths
    epsilons_l2: tuple[float, ...] = (0.5,)  # and in the Euclidean norm
    classes: int = attacks.DLR_CLASSES  # with fewer, Auto-PGD is its cross-entropy part alone


DEFAULT = Settings()


def of(measures: Sequence[str], shape: tuple[int, ...], settings: Settings = DEFAULT) -> list["Condition | Attacked"]:
    """The conditions that measures, of MEASURES, need of images [H, W, C]; unchanged ones first. Raises ValueError for unfit images."""
    found: dict[str, Condition | Attacked] = {"clean": CLEAN}
    for measure in measures:
        found |= {condition.name: condition for condition in MEASURES[measure](shape, settings)}
    return list(found.values())


def words(image_names: Sequence[str]) -> np.ndarray:
    """[n, 2] uint32 that tell images apart by their names, for `key`."""
    digests = b"".join(hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in image_names)
    return np.frombuffer(digests, "<u4").reshape(-1, 2)


def key(name: str) -> jax.Array:
    """The key of a condition, from which those of images follow."""
    return jax.random.key(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little"))


def changed(condition: Condition, image: jax.Array, image_words: jax.Array) -> jax.Array:
    """Images uint8 [B, H, W, C], with words [B, 2] of their names, under a condition: float32 in [0, 1]."""
    return _changed(condition.change, condition.draw, image, image_words, key(condition.name), condition.arrays)


def compile_together(applied: Sequence[Condition], image: jax.Array, image_words: jax.Array) -> None:
    """Compiles what `changed` needs for such images, in threads: a network waits for seconds for each of twenty programs otherwise."""
    programs: dict[tuple, Condition] = {}
    for condition in applied:
        arrays = [(np.shape(array), np.result_type(array)) for array in jax.tree.leaves(condition.arrays)]
        programs.setdefault((condition.change, condition.draw, *arrays), condition)

    def compiled(condition: Condition) -> None:
        jax.block_until_ready(changed(condition, image, image_words))

    with ThreadPoolExecutor(COMPILERS) as threads:
        list(threads.map(compiled, programs.values()))


def _apply(change: Callable, draw: Draw | None, image: jax.Array, words: jax.Array, key: jax.Array, arrays: tuple) -> jax.Array:
    drawn = None
    if draw:
        height, width = image.shape[1:3]
        drawn = jax.vmap(lambda pair: draw(jax.random.fold_in(jax.random.fold_in(key, pair[0]), pair[1]), height, width))(words)
    return change(image.astype(jnp.float32) / 255, drawn, *arrays)


_changed = jax.jit(_apply, static_argnums=(0, 1))


def unchanged(image: jax.Array, drawn: None) -> jax.Array:
    """The image as it is."""
    return image


CLEAN = Condition("clean", unchanged)


def _low_pass(image: jax.Array, drawn: None, square: spectral.Square) -> jax.Array:
    return spectral.low_pass(image, square)


def _high_pass(image: jax.Array, drawn: None, square: spectral.Square) -> jax.Array:
    return spectral.high_pass(image, square)


def _spectral(shape: tuple[int, ...], settings: Settings) -> list[Condition]:
    height, width, _ = shape
    low = [Condition(f"low_pass_{f:g}", _low_pass, (spectral.lowest(height, width, f),)) for f in spectral.CUTOFFS]
    high = [Condition(f"high_pass_{f:g}", _high_pass, (spectral.lowest(height, width, 1 - f),)) for f in spectral.CUTOFFS]
    return low + high


def band_name(number: int, sigma: float) -> str:
    """The name of a cell of the critical band; without noise all bands are one."""
    return f"band_{number}_sigma_{sigma:g}" if sigma else "grey"


def _critical_band(shape: tuple[int, ...], settings: Settings) -> list[Condition]:
    height, width, channels = shape
    if channels != 3:
        raise ValueError(f"--measures critical_band shows colour images in grey, and these have {channels} channel: leave it out")
    number = critical_band.bands(min(height, width))
    each = [critical_band.band(height, width, band) for band in range(number)]
    cells = [(0, 0.0), *((band, sigma) for sigma in critical_band.SIGMAS if sigma for band in range(number))]
    return [
        Condition(band_name(band, sigma), critical_band.stimulus, (np.float32(sigma), each[band], each[-1]), critical_band.draw)
        for band, sigma in cells
    ]


def _corruptions(benchmark: str, shape: tuple[int, ...], settings: Settings) -> list[Condition]:
    height, width, channels = shape
    if channels != 3:
        raise ValueError(f"corruptions are of colour images, and these have {channels} channel: leave them out of --measures")
    frost = {"frost": imagenet_c.weather.frost(settings.photographs)} if benchmark == "imagenet_c" and settings.photographs else {}
    return [
        Condition(corruption_name(name, severity), in_bytes(change), arrays(severity, height, width), draw)
        for name, (change, arrays, draw) in {**CORRUPTIONS[benchmark], **frost}.items()
        for severity in settings.severities
    ]


def corruption_name(corruption: str, severity: int) -> str:
    """The name of a condition."""
    return f"{corruption}_{severity}"


def _pgd(shape: tuple[int, ...], settings: Settings) -> list[Attacked]:
    return [_attacked("pgd_linf", epsilon, epsilon / 255, "_best") for epsilon in settings.epsilons]


def _pgd_l2(shape: tuple[int, ...], settings: Settings) -> list[Attacked]:
    return [_attacked("pgd_l2", epsilon, epsilon, "_best") for epsilon in settings.epsilons_l2]


def _apgd(shape: tuple[int, ...], settings: Settings) -> list[Attacked]:
    kinds = APGD if settings.classes >= attacks.DLR_CLASSES else APGD[:1]
    return [_attacked(kind, epsilon, epsilon / 255) for epsilon in settings.epsilons for kind in kinds]


def _attacked(kind: str, epsilon: float, radius: float, *others: str) -> Attacked:
    name = attack_name(kind, epsilon)
    return Attacked(name, kind, radius, (name, *(name + other for other in others)))


def attack_name(kind: str, epsilon: float) -> str:
    """The name of a condition."""
    return f"{kind}_{epsilon:g}"


ATTACKS = {"pgd": _pgd, "pgd_l2": _pgd_l2, "apgd": _apgd}
APGD = ("apgd_ce", "apgd_dlr")  # of which an image must survive both
CORRUPTIONS: dict[str, Mapping[str, Corruption]] = {"imagenet_c": imagenet_c.CORRUPTIONS, "imagenet_cbar": imagenet_cbar.CORRUPTIONS}
COMPLETE = {  # names of all corruptions of a benchmark, in the published order
    "imagenet_c": (*corruption_error.MAIN, *corruption_error.EXTRA),
    "imagenet_cbar": tuple(imagenet_cbar.CORRUPTIONS),
}
MEASURES: dict[str, Callable[[tuple[int, ...], Settings], Sequence[Condition | Attacked]]] = {
    "spectral": _spectral,
    "critical_band": _critical_band,
    **{benchmark: functools.partial(_corruptions, benchmark) for benchmark in CORRUPTIONS},
    **ATTACKS,
}
