"""Colored MNIST: digits whose colour reveals the label, except for a known share of the training set.

The foreground is coloured, the background stays black: pixel = floor(grey · clip(colour + N(0, 0.005), 0, 1)), one draw per image and
channel, after LfF (its "severity 4"). Each digit has its own mean colour. Counts are those of Lee et al. (2022), Table 8: 45,000 training
and 5,000 validation images from MNIST's training set, 10,000 test images with colours uniform over all ten. Conflicting images are drawn at
random, stratified by digit; their colour is uniform over the other nine.

It is built from MNIST's IDX files (gzipped or not), from TFDS, or read from the published archive of PNG files.
"""

import dataclasses
import gzip
import math
import pathlib
import struct
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import values
from jaxbed.data import biased_images, decode
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split
from jaxbed.system import files
from jaxbed.values import OneOf, Whole

COLOURS = np.array(  # mean foreground colour of each digit, RGB in [0, 1]
    [
        (0.98368, 0.31252, 0.16858),
        (0.99053, 0.91561, 0.35151),
        (0.67296, 0.46107, 0.57981),
        (0.78325, 0.83156, 0.60133),
        (0.08802, 0.77796, 0.98181),
        (0.32139, 0.96105, 0.44645),
        (0.02462, 0.23565, 0.75867),
        (0.55525, 0.10158, 0.76176),
        (0.20772, 0.39295, 0.01870),
        (0.83366, 0.20241, 0.26694),
    ]
)
DEVIATION = 0.005
TRAIN, VAL = 45_000, 5_000
CONFLICTING = {0.5: (230, 30), 1: (450, 50), 2: (900, 100), 5: (2250, 250), 20: (9000, 1000)}  # percent: (train, validation)
Percent = Annotated[float, OneOf(CONFLICTING)]
CURE = "download MNIST to that folder, name its folder with --config.data.dir=FOLDER, or use TFDS with --config.data.layout=tfds"
SCALES = {"unit": 255.0, "double255": 255.0 * 255.0}


@dataclasses.dataclass
class Config:
    """dir: the folder of the IDX files, of the prepared TFDS data, or of the archive (which contains 0.5pct, 1pct, ... or cmnist)."""

    varies: ClassVar[tuple[str, ...]] = ("conflicting_percent", "seed")  # what a grid may vary: only images, labels and biases

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("dir",)

    dir: str = "data/mnist"
    layout: Literal["idx", "tfds", "png"] = "idx"
    conflicting_percent: Percent = 1.0
    input_scale: Literal["double255", "unit"] = "double255"  # divided by 255 twice, as in the published code; unit: [0, 1]
    seed: Whole = 0  # of the data: choice of images, conflicting images, colours

    def open(self) -> Source:
        """Raises FileNotFoundError, which names what is missing and how to get it, and ValueError for invalid settings."""
        values.check(self, "data")
        if self.layout == "png":
            train, val, test = read_archive(pathlib.Path(self.dir), self.conflicting_percent)
        else:
            image, label, test_image, test_label = read_idx(pathlib.Path(self.dir)) if self.layout == "idx" else read_tfds(self.dir)
            train, val, test = construct(image, label, test_image, test_label, self.conflicting_percent, self.seed)
        divisor = SCALES[self.input_scale]

        def scale(image: jax.Array) -> jax.Array:
            return image.astype(jnp.float32) / divisor

        return Source(
            name="colored_mnist",
            class_names=tuple("0123456789"),
            train=train,
            sets={"val": EvaluationSet(val, "val"), "unbiased": EvaluationSet(test, "test")},
            scale=scale,
            facts={
                "input_scale": self.input_scale,
                "conflicting_percent": self.conflicting_percent,
                "layout": self.layout,
                "data_seed": self.seed,
            },
            bias_name="colour",
        )


def construct(
    train_image: np.ndarray, train_label: np.ndarray, test_image: np.ndarray, test_label: np.ndarray, percent: float, seed: int
) -> tuple[Split, Split, Split]:
    """(train, val, test) from MNIST's images [n, 28, 28] uint8 and labels [n]. The test set is the same for every percent."""
    if len(train_label) < TRAIN + VAL:
        raise ValueError(f"Colored MNIST needs {TRAIN + VAL} training digits, but there are {len(train_label)}: download MNIST again")
    rng = np.random.default_rng([seed, 0])
    picked = rng.permutation(len(train_label))[: TRAIN + VAL]
    splits = []
    for rows, conflicting, name in zip((picked[:TRAIN], picked[TRAIN:]), CONFLICTING[percent], ("train", "val"), strict=True):
        label = train_label[rows]
        bias = label.copy()
        chosen = _stratified(label, conflicting, rng)
        bias[chosen] = (label[chosen] + rng.integers(1, 10, conflicting)) % 10  # uniform over the other nine
        splits.append(_split(train_image[rows], label, bias, rows, name, rng))
    rng = np.random.default_rng([seed, 1])
    bias = rng.integers(0, 10, len(test_label))
    return splits[0], splits[1], _split(test_image, test_label, bias, np.arange(len(test_label)), "test", rng)


def _stratified(label: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """`total` rows without replacement, each class in proportion to its size (largest remainders)."""
    classes, sizes = np.unique(label, return_counts=True)
    exact = total * sizes / len(label)
    quota = np.floor(exact).astype(int)
    quota[np.argsort(quota - exact, kind="stable")[: total - quota.sum()]] += 1
    return np.concatenate([rng.choice(np.flatnonzero(label == c), n, replace=False) for c, n in zip(classes, quota, strict=True)])


def _split(grey: np.ndarray, label: np.ndarray, bias: np.ndarray, rows: np.ndarray, name: str, rng: np.random.Generator) -> Split:
    colour = np.clip(COLOURS[bias] + rng.normal(0, DEVIATION, (len(bias), 3)), 0, 1)
    image = np.stack([np.floor(grey * channel[:, None, None]).astype(np.uint8) for channel in colour.T], axis=-1)
    names = np.array([f"{name}-{row:05d}" for row in rows])
    return Split(image, label.astype(np.int32), bias.astype(np.int32), names)


def read_idx(folder: pathlib.Path, cure: str = CURE) -> list[np.ndarray]:
    """[train images [n, H, W], train labels [n], test images, test labels], uint8, from four IDX files as MNIST has them, gzipped or not.

    Raises FileNotFoundError, which ends with the cure, for a missing file, and ValueError for a damaged one.
    """
    arrays = []
    for stem, dimensions in (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1)):
        paths = [path for path in (folder / f"{stem}-idx{dimensions}-ubyte{end}" for end in (".gz", "")) if path.is_file()]
        if not paths:
            raise FileNotFoundError(
                f"{folder / stem}-idx{dimensions}-ubyte[.gz] is missing. Four IDX files are needed (train-images, train-labels, "
                f"t10k-images, t10k-labels): {cure}"
            )
        path, kind = paths[0], f"is not an IDX file of bytes with {dimensions} dimensions, or is damaged"
        with files.guarded(path, "download it again", kind), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            magic, *shape = struct.unpack(f">{1 + dimensions}i", file.read(4 + 4 * dimensions))
            size = math.prod(shape)
            if magic != 0x800 + dimensions or min(shape) < 0 or size > files.DEFLATED * path.stat().st_size:
                raise files.Fault("its header is invalid")
            content = file.read(size + 1)
            if len(content) != size:
                raise files.Fault("its size differs from the one in its header")
        arrays.append(np.frombuffer(content, np.uint8).reshape(shape))
    for image, label, name in ((arrays[0], arrays[1], "train"), (arrays[2], arrays[3], "t10k")):
        if len(image) != len(label):
            raise ValueError(f"{folder}: {name}-images has {len(image)} images but {name}-labels has {len(label)}: download both again")
    return arrays


def read_tfds(folder: str) -> list[np.ndarray]:
    """The same arrays from TFDS's `mnist`, prepared as array_record (the format that is read without TensorFlow)."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ValueError(
            "data.layout = 'tfds' needs tensorflow-datasets: pip install 'jaxbed[tfds]', or use data.layout = 'idx'"
        ) from error
    arrays = []
    for split in ("train", "test"):
        try:
            source = tfds.data_source("mnist", split=split, data_dir=folder)
        except Exception as error:
            raise FileNotFoundError(
                f"TFDS found no mnist prepared as array_record under {folder}: prepare it with "
                f"tfds.builder('mnist', data_dir={folder!r}, file_format='array_record').download_and_prepare()"
            ) from error
        rows = [source[i] for i in range(len(source))]
        arrays += [np.stack([row["image"][..., 0] for row in rows]), np.array([row["label"] for row in rows])]
    return arrays


def read_archive(folder: pathlib.Path, percent: float) -> tuple[Split, Split, Split]:
    """(train, val, test) from the PNG archive of DisEnt and BiasEnsemble, see `biased_images`; it may be in a sub-folder cmnist."""
    root = biased_images.first_of(folder / "cmnist", folder)
    cure = "--config.data.layout=idx builds the set from MNIST instead"
    train, val, test = biased_images.read_archive(root, percent, 10, cure)
    return _read_pngs(root, train), _read_pngs(root, val), _read_pngs(root, test)


def _read_pngs(root: pathlib.Path, listed: biased_images.Listed) -> Split:
    images = []
    for name in listed.name:
        try:
            images.append(np.asarray(decode.image((root / name).read_bytes())))
        except (OSError, ValueError) as error:
            raise ValueError(f"{root / name} cannot be read as an image ({error}): download the archive again") from error
        if images[-1].shape != (28, 28, 3):
            raise ValueError(
                f"{root / name} is {images[-1].shape[1]} x {images[-1].shape[0]} pixels, not 28 x 28: download the archive again"
            )
    return Split(np.stack(images), listed.label, listed.bias, listed.name)
