"""shapes: a small synthetic cue-conflict benchmark of 16 shapes, each mostly filled with its own of 16 textures.

It needs no files and no network, takes a few seconds, and is determined by a seed. The sets follow Geirhos et al. 2019 (arXiv:1811.12231):
silhouettes, edges, sketches, stylised images and images with conflicting shape and texture. The label is always the shape.

    train, val, in_distribution   textured shape on a quiet background; texture class == label in a fixed share of the images
    silhouette                    black on white
    edge                          dark outline on white
    sketch                        broken double outline with some hatching, grey on paper
    stylised                      figure and background both in foreign textures
    cue_conflict                  as train, but never with the label's own texture
"""

import dataclasses
import numbers
from typing import Annotated, ClassVar, Literal

import numpy as np

from jaxbed.data import augment
from jaxbed.data.augment import Config as Augment
from jaxbed.data.shape_outlines import SHAPES, measure_distance
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split
from jaxbed.data.textures import TEXTURES, draw_noise, weave
from jaxbed.system import memory
from jaxbed.values import LARGEST, Range, Whole

__all__ = ["SETS", "SHAPES", "TEXTURES", "Config", "draw"]

# The index in this tuple seeds a set's random stream: append, never reorder.
SETS: tuple[str, ...] = ("train", "val", "in_distribution", "silhouette", "edge", "sketch", "stylised", "cue_conflict")
CORRELATED = ("train", "val", "in_distribution")
SIDES_PX = (32, 64)
BLOCK_PX = 2**18  # pixels per block: a float32 field of this size fits in the cache

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)  # Rec. 601 weights
LIGHT_FRAC = 0.6  # share of images with a light background
TEXTURE_CONTRAST = (0.52, 0.63)  # luminance difference between a texture's two colours
GROUND_RANGE = 0.1  # luminance difference between the two colours of a quiet background
STYLISED_RANGE = 0.16  # the same for a background in a foreign texture
LINED_FRAC = 0.35  # share of images whose texture and outline are drawn in one colour on the background, instead of a filled figure
LINED_STRENGTH = (0.6, 1.0)  # of the texture inside the outline: weaker favours learning edges, stronger textures
CHROMA = 0.2  # colourfulness; more of it obscures the texture for a small network
LINE_UNITS = 1.5  # width of that outline, in thirty-seconds of the side
FIGURE_GAP = 0.12  # least luminance difference between the background and the nearer colour of the figure

Images = Annotated[int, Range(16, LARGEST)]


@dataclasses.dataclass
class Config:
    """The benchmark as a data set. Image counts are multiples of 16."""

    varies: ClassVar[tuple[str, ...]] = ("texture_correlation", "seed")  # what a grid may vary: only images, labels and biases

    side_px: Literal[32, 64] = 32
    texture_correlation: Annotated[float, Range(1 / 16, 1)] = 0.95  # share of training images with their class's own texture
    train_images: Images = 4096
    val_images: Images = 800
    test_images: Images = 800  # of each of the six test sets
    seed: Whole = 0  # of the images, not of training runs
    # middle grey maps to 0, variance is about 1; texture classes survive a flip, but not a rotation by 90 degrees
    augment: Augment = dataclasses.field(default_factory=lambda: Augment(mean=(0.5,), std=(0.25,)))

    def open(self) -> Source:
        counts = {**dict.fromkeys(SETS, self.test_images), "train": self.train_images, "val": self.val_images}
        splits = draw(self.side_px, counts, self.texture_correlation, self.seed)
        train = splits.pop("train")
        roles = {**dict.fromkeys(splits, "ood"), "val": "val", "in_distribution": "test"}
        return Source(
            name="shapes",
            class_names=SHAPES,
            train=train,
            sets={name: EvaluationSet(split, roles[name]) for name, split in splits.items()},
            scale=lambda image: augment.make_evaluation(self.augment, image.shape[1:])(image),
            facts={"side_px": self.side_px, "texture_correlation": self.texture_correlation, "data_seed": self.seed},
            bias_name="texture",
            augment=augment.make(self.augment, train.image.shape[1:]),
        )


def draw(side_px: int, counts: dict, texture_correlation: float, seed: int) -> dict[str, Split]:
    """Draws all eight sets.

    Args:
        side_px: 32 or 64.
        counts: set name -> number of images, for each name in `SETS`; multiples of 16, at least 16, for exactly balanced classes.
        texture_correlation: share of the images of each class in train, val and in_distribution with the class's own texture, from
            1/16 (texture is independent of shape) to 1; rounded to a whole number of images per class. The other images use the
            15 foreign textures equally often.
        seed: non-negative. A set depends on (seed, its name, its own size, side_px, texture_correlation), not on the other sets' sizes.

    Returns:
        Set name -> Split with image [n, side_px, side_px, 3], in random order. `bias` is the texture class of the figure, -1 in
        silhouette, edge and sketch.

    Raises:
        ValueError: an argument is invalid.
    """
    _validate(side_px, counts, texture_correlation, seed)
    images = sum(counts.values())
    memory.check(images * 3 * side_px**2, memory.total(), f"{images:,} images of {side_px} px")
    splits = {}
    for position, set_name in enumerate(SETS):
        rng = np.random.default_rng([seed, position])
        label, bias = _assign_classes(set_name, int(counts[set_name]), texture_correlation, rng)
        block = BLOCK_PX // side_px**2
        image = np.concatenate(
            [_paint(set_name, label[i : i + block], bias[i : i + block], side_px, rng) for i in range(0, len(label), block)]
        )
        worn = [TEXTURES[k] if k >= 0 else "none" for k in bias]
        name = np.array([f"{SHAPES[k]}-{texture}-{i:05d}" for i, (k, texture) in enumerate(zip(label, worn, strict=True))])
        splits[set_name] = Split(image, label, bias, name)
    return splits


def _validate(side_px: int, counts: dict, texture_correlation: float, seed: int) -> None:
    if side_px not in SIDES_PX:
        raise ValueError(f"side_px is {side_px!r}, allowed are {SIDES_PX}, for which the textures are designed; choose one of them")
    unknown, missing = sorted(set(counts) - set(SETS)), [name for name in SETS if name not in counts]
    if unknown:
        raise ValueError(f"counts names the sets {unknown}, allowed are {SETS}; rename or remove them")
    if missing:
        raise ValueError(f"counts lacks the sets {missing}; give a number of images for each of {SETS}")
    for name, n in counts.items():
        if not isinstance(n, numbers.Integral) or n < 16 or n % 16:
            raise ValueError(f"counts[{name!r}] is {n!r}, allowed are 16, 32, 48, ...; choose a multiple of 16 to balance the 16 classes")
    if not isinstance(texture_correlation, numbers.Real) or not 1 / 16 <= texture_correlation <= 1:
        raise ValueError(
            f"texture_correlation is {texture_correlation!r}, allowed is 1/16 to 1; "
            "use 1/16 for a texture independent of the shape, 1 for one that determines it"
        )
    if not isinstance(seed, numbers.Integral) or seed < 0:
        raise ValueError(f"seed is {seed!r}, allowed are whole numbers from 0")


def _assign_classes(set_name: str, n: int, texture_correlation: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Shape and texture class of each image, [n] int32 each, shuffled; counts are exact, only their order is random."""
    per_class = n // 16
    aligned = int(np.floor(texture_correlation * per_class + 0.5)) if set_name in CORRELATED else 0
    label = np.repeat(np.arange(16, dtype=np.int32), per_class)
    # Cycling through the foreign textures uses them equally often; a random start for each class spreads the remainder.
    step = (rng.integers(15, size=(16, 1)) + np.arange(per_class)) % 15 + 1
    step[:, :aligned] = 0
    bias = ((label + step.ravel()) % 16).astype(np.int32)
    if set_name in ("silhouette", "edge", "sketch"):
        bias[:] = -1
    order = rng.permutation(n)
    return label[order], bias[order]


def _paint(set_name: str, label: np.ndarray, bias: np.ndarray, side_px: int, rng: np.random.Generator) -> np.ndarray:
    """Images [n, side_px, side_px, 3] uint8 for a block of a set."""
    distance_px = measure_distance(label, side_px, rng)
    if set_name == "silhouette":
        level = 1 - _cover(distance_px)
    elif set_name == "edge":
        level = _paint_edge(distance_px, rng)
    elif set_name == "sketch":
        level = _paint_sketch(distance_px, rng)
    else:
        return _quantise(_paint_textured(distance_px, label, bias, set_name == "stylised", rng))
    return np.repeat(_quantise(level)[..., None], 3, axis=-1)


def _cover(distance_px: np.ndarray) -> np.ndarray:
    """Fraction of each pixel inside the shape, for a straight outline at that signed distance from the pixel's centre."""
    return np.clip(0.5 - distance_px, 0, 1)


def _quantise(level: np.ndarray) -> np.ndarray:
    return (np.clip(level, 0, 1) * 255 + 0.5).astype(np.uint8)


def _paint_edge(distance_px: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n, side_px = distance_px.shape[:2]
    width_units, ink = (rng.uniform(low, high, (n, 1, 1)).astype(np.float32) for low, high in ((1.2, 2.0), (0.0, 0.25)))
    return 1 - (1 - ink) * _cover(np.abs(distance_px) - width_units / 2 * np.float32(side_px / 32))


def _paint_sketch(distance_px: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n, side_px = distance_px.shape[:2]
    unit_px = side_px / 32
    paper, ink, angle, gap, phase = (
        rng.uniform(low, high, (n, 1, 1)).astype(np.float32) for low, high in ((0.9, 1.0), (0.1, 0.4), (0, np.pi), (3.0, 4.5), (0, 9.0))
    )
    mark = np.zeros_like(distance_px)
    for shift in (-0.5, 0.5):  # two pencil strokes, each with its own wobble and gaps
        stray = unit_px * (shift + 0.7 * draw_noise(n, side_px, 6, rng))
        pressure = np.clip(1.1 + 0.9 * draw_noise(n, side_px, 7, rng), 0, 1)
        mark = np.maximum(mark, pressure * _cover(np.abs(distance_px + stray) - 0.55 * unit_px))
    grid = (np.arange(side_px, dtype=np.float32) + np.float32(0.5)) / np.float32(unit_px)
    across = np.cos(angle) * grid[None, None, :] + np.sin(angle) * grid[None, :, None] + phase
    hatch = _cover(unit_px * (np.abs(np.mod(across, gap) - gap / 2) - 0.4))
    shaded = np.clip(1.5 * draw_noise(n, side_px, 4, rng), 0, 1)  # part of the inside, slightly across the outline
    mark = np.maximum(mark, 0.6 * hatch * shaded * _cover(distance_px - 0.5 * unit_px))
    return paper - (paper - ink) * mark


def _draw_colour(luminance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Colours [n, 1, 1, 3] of the given luminance [n]: random hue and saturation, pulled towards grey as far as the cube demands."""
    chroma = rng.uniform(-CHROMA, CHROMA, (len(luminance), 3)).astype(np.float32)
    chroma -= (chroma @ LUMINANCE)[:, None]  # the weights sum to 1, so this leaves a chroma without luminance
    grey = luminance[:, None].astype(np.float32)
    room = np.where(chroma > 0, 1 - grey, grey) / np.maximum(np.abs(chroma), 1e-6)
    return (grey + chroma * np.minimum(room.min(1, keepdims=True), 1))[:, None, None, :]


def _paint_textured(distance_px: np.ndarray, label: np.ndarray, bias: np.ndarray, stylised: bool, rng: np.random.Generator) -> np.ndarray:
    """[n, H, W, 3]: the textured figure on a plain, shaded or cloudy background; `stylised`: on a second foreign texture."""
    n, side_px = distance_px.shape[:2]
    light = rng.random(n) < LIGHT_FRAC
    # Luminances are drawn for a light background (with a darker figure) and inverted for dark ones.
    ground = rng.uniform(0.85, 1.0, n)
    contrast = rng.uniform(*TEXTURE_CONTRAST, n)
    figure_tone = np.asarray(rng.uniform(contrast, ground - GROUND_RANGE - FIGURE_GAP))
    tones = np.stack([ground, ground - (STYLISED_RANGE if stylised else GROUND_RANGE), figure_tone, figure_tone - contrast])
    base, other, near, far = (_draw_colour(luminance, rng) for luminance in np.where(light, tones, 1 - tones))

    if stylised:
        step = (bias + 1 + rng.integers(14, size=n)) % 16
        foreign = np.where((step - bias) % 16 >= (label - bias) % 16, (step + 1) % 16, step)  # neither the figure's nor the label's own
        share = weave(foreign, side_px, rng)
    else:
        share = _shade(n, side_px, rng)
    background = base + (other - base) * share[..., None]

    share = weave(bias, side_px, rng)[..., None]
    lined = (rng.random((n, 1, 1, 1)) < LINED_FRAC) & (not stylised)
    near = np.where(lined, background, near)
    strength = np.where(lined, rng.uniform(*LINED_STRENGTH, (n, 1, 1, 1)), 1.0)
    figure = near + (far - near) * (share * strength)
    image = background + (figure - background) * _cover(distance_px)[..., None]
    stroke = lined * _cover(np.abs(distance_px) - LINE_UNITS / 2 * side_px / 32)[..., None]
    return image + (far - image) * stroke


def _shade(n: int, side_px: int, rng: np.random.Generator) -> np.ndarray:
    """Quiet backgrounds as shares [n, side_px, side_px] of a second colour: plain, linear gradient or soft noise, a third each."""
    kind = rng.integers(3, size=(n, 1, 1))
    angle = rng.uniform(0, 2 * np.pi, (n, 1, 1)).astype(np.float32)
    grid = (np.arange(side_px, dtype=np.float32) + np.float32(0.5)) / side_px - np.float32(0.5)
    gradient = 0.5 + 0.7 * (np.cos(angle) * grid[None, None, :] + np.sin(angle) * grid[None, :, None])
    cloud = 0.5 + 0.5 * draw_noise(n, side_px, 5, rng)
    return np.clip(np.where(kind == 0, np.float32(0), np.where(kind == 1, gradient, cloud)), 0, 1)
