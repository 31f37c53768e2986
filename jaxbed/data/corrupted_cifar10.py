"""Corrupted CIFAR-10 (Nam et al., 2020, LfF): images of CIFAR-10, most of each class with the corruption of that class.

Its ten corruptions are "type 0" (snow, frost, fog, ...) or "type 1" (noise and blur), at LfF's Severity 4, see `corruptions`. It has three
layouts:

    cifar    CIFAR-10's own files, python version (cifar-10-batches-py) or binary (cifar-10-batches-bin), and data.seed
    lff      LfF's folder CorruptedCIFAR10-Type0-Skewed0.01-Severity4, with train/ and valid/, each images.npy and attrs.npy
    archive  DisEnt's: DIR/1pct/{align,conflict}/**, DIR/1pct/valid/**, DIR/test/**, files named .._<y>_<b>.png. Corruptions may differ

Built from CIFAR-10, the training set has 4,500 and the validation set 500 images of each class. In both, round(ratio · size) images of each
class conflict, with a corruption uniform over the other nine. Each cell (class, corruption) of the 10,000 test images has 100. An image is
the same at all ratios, except where it becomes conflicting. LfF's arrays differ: they train on all 50,000 images and "validate" on the test
set, assign corruptions in file order, and come from another generator. Here 10 % of lff's training images are held out for validation,
stratified by class and alignment.
"""

import dataclasses
import functools
import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from jaxbed import values
from jaxbed.data import biased_images, corruptions, weather
from jaxbed.data.augment import Config as Augment
from jaxbed.data.source import Source
from jaxbed.data.split import Split
from jaxbed.stats import names
from jaxbed.system import files, pickles
from jaxbed.values import Whole

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE, VAL_SHARE = corruptions.SIDE, 0.1
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
TRAIN_FILES, TEST_FILE = tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch"
HELD, TRAIN, VAL, TEST = range(4)  # streams of random numbers
# LfF's two lists: the corruption at index c is aligned with class c
TYPES = {
    0: (
        weather.snow,
        weather.frost,
        weather.fog,
        corruptions.brightness,
        corruptions.contrast,
        weather.spatter,
        corruptions.elastic,
        corruptions.jpeg,
        corruptions.pixelate,
        corruptions.saturate,
    ),
    1: (
        corruptions.gaussian_noise,
        corruptions.shot_noise,
        corruptions.impulse_noise,
        corruptions.speckle_noise,
        corruptions.gaussian_blur,
        corruptions.defocus_blur,
        corruptions.glass_blur,
        corruptions.motion_blur,
        corruptions.zoom_blur,
        corruptions.original,
    ),
}


@dataclasses.dataclass
class Config:
    varies: ClassVar[tuple[str, ...]] = ("conflicting_percent", "seed")

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("dir",)

    dir: str = "data/cifar10"  # the folder named above, or its parent
    layout: Literal["cifar", "lff", "archive"] = "cifar"
    conflicting_percent: biased_images.Percent = 1.0
    type: Literal[0, 1] = 0  # cifar, lff: LfF's list of corruptions
    frost: str = ""  # cifar, type 0: folder of CIFAR-10-C's frost images; empty: synthetic frost
    seed: Whole = 0  # cifar: of all draws; lff: of the validation split
    augment: Augment = dataclasses.field(
        default_factory=lambda: Augment(crop="padded", crop_px=SIDE, padding_px=4, flip=0.5, mean=MEAN, std=STD)
    )

    def open(self) -> Source:
        """Raises FileNotFoundError, which names what is missing, and ValueError for invalid settings."""
        images = biased_images.Config(self.dir, self.conflicting_percent, SIDE)
        biased_images.check(images)
        values.check(self, "data")
        if self.frost and (self.layout, self.type) != ("cifar", 0):
            raise ValueError(f"data.frost = {self.frost!r} has no effect with layout = {self.layout!r} and type = {self.type}: remove it")
        root = pathlib.Path(self.dir)
        facts: dict[str, Any] = {"layout": self.layout, "data_seed": self.seed}
        if self.layout == "cifar":
            train, label, test, test_label = read_cifar(root)
            functions = list_corruptions(self.type, self.frost)
            splits = construct(train, label, test, test_label, self.conflicting_percent, functions, self.seed)
        elif self.layout == "lff":
            splits = read_lff(root, self.type, self.conflicting_percent, self.seed)
        else:
            root = biased_images.first_of(root / "cifar10c", root)
            listed = biased_images.read_archive(root, self.conflicting_percent, len(CLASSES), "Other layouts: cifar, lff")
            splits, read_facts = biased_images.read(images, root, listed)
            facts |= read_facts
        if self.layout != "archive":
            facts["corruptions"] = [function.__name__ for function in TYPES[self.type]]
        if (self.layout, self.type) == ("cifar", 0):
            facts["frost"] = self.frost or "made up"
        return biased_images.make_source(self, "corrupted_cifar10", CLASSES, "corruption", splits, facts)


def list_corruptions(kind: int, frost: str) -> list[Callable]:
    """The ten corruptions, by class; frost with its textures, if any."""
    functions = list(TYPES[kind])
    if frost:
        textures = weather.read_textures(pathlib.Path(frost))
        functions[functions.index(weather.frost)] = functools.partial(weather.frost, textures=textures)
    return functions


def construct(
    train_image: np.ndarray,
    train_label: np.ndarray,
    test_image: np.ndarray,
    test_label: np.ndarray,
    percent: float,
    functions: Sequence[Callable],
    seed: int,
) -> list[Split]:
    """[train, val, test] from CIFAR-10's images [n, 32, 32, 3] uint8 and labels [n]; functions: the corruption of each class."""
    rank, size = _ranks(train_label, np.random.default_rng([seed, HELD]))
    held, splits = rank < np.round(VAL_SHARE * size), []
    for name, rows, stream in (("train", np.flatnonzero(~held), TRAIN), ("val", np.flatnonzero(held), VAL)):
        rng = np.random.default_rng([seed, stream])
        image, label = train_image[rows], train_label[rows]
        rank, size = _ranks(label, rng)
        now, ever = (rank < np.round(size * share / 100) for share in (percent, max(biased_images.PERCENTS)))
        other = (label + rng.integers(1, len(CLASSES), len(label))) % len(CLASSES)
        spoilt = _corrupt(image, label, functions, rng)
        spoilt[now] = _corrupt(image[ever], other[ever], functions, rng)[
            now[ever]
        ]  # all that conflict at any ratio: no draw depends on the ratio
        splits.append(_split(spoilt, label, np.where(now, other, label), name, rows))
    rng = np.random.default_rng([seed, TEST])
    bias = _ranks(test_label, rng)[0] % len(CLASSES)
    return [*splits, _split(_corrupt(test_image, bias, functions, rng), test_label, bias, "test", np.arange(len(bias)))]


def _ranks(label: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """For each image [n], its rank in a random order of its class, from 0, and the size of its class."""
    rank, size = np.empty((2, len(label)), int)
    for y in np.unique(label):
        of_class = label == y
        rank[of_class], size[of_class] = rng.permutation(of_class.sum()), of_class.sum()
    return rank, size


def _corrupt(image: np.ndarray, bias: np.ndarray, functions: Sequence[Callable], rng: np.random.Generator) -> np.ndarray:
    spoilt = np.empty_like(image)
    for c, function in enumerate(functions):
        spoilt[bias == c] = corruptions.corrupt(function, image[bias == c], rng)
    return spoilt


def _split(image: np.ndarray, label: np.ndarray, bias: np.ndarray, name: str, rows: np.ndarray) -> Split:
    return Split(image, label.astype(np.int32), bias.astype(np.int32), np.array([f"{name}-{row:05d}" for row in rows]))


# Files


def read_cifar(folder: pathlib.Path) -> list[np.ndarray]:
    """[train images, train labels, test images, test labels] of CIFAR-10, in either version."""
    for root in (folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"):
        for ending, read in ((".bin", _read_binary), ("", _read_pickle)):
            if not (root / f"{TEST_FILE}{ending}").is_file():
                continue
            paths = [root / f"{name}{ending}" for name in (*TRAIN_FILES, TEST_FILE)]
            if missing := [path.name for path in paths if not path.is_file()]:
                raise FileNotFoundError(f"{root} has {TEST_FILE}{ending} but lacks {', '.join(missing)}: unpack CIFAR-10 again")
            *batches, test = [read(path) for path in paths]
            train = [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]
            return [*train, *test]
    raise FileNotFoundError(
        f"{folder} contains neither cifar-10-batches-py nor cifar-10-batches-bin: unpack CIFAR-10 there, python or binary version, "
        f"or name another folder with --config.data.dir=FOLDER"
    )


def _read_binary(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.frombuffer(path.read_bytes(), np.uint8)
    size = 1 + 3 * SIDE**2
    if len(content) % size:
        raise ValueError(f"{path} has {len(content)} bytes, not a multiple of the {size} of an image: unpack CIFAR-10 again")
    rows = content.reshape(-1, size)
    return _images(path, rows[:, 1:], rows[:, 0])


def _allowed(module: str, name: str) -> Any:
    """What a pickle may call: only functions that rebuild an array."""
    if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
        return getattr(np, name)
    if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
        return lambda kind, shape, code: np.ndarray((0,), np.uint8)  # arrays are created empty, then filled
    raise files.Fault(f"it asks for {names.cut(f'{module}.{name}')}, but only arrays are allowed")


def _read_pickle(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    with files.guarded(path, "unpack it again", "is not a file of CIFAR-10's python version, or is damaged"):
        content = pickles.load(io.BytesIO(path.read_bytes()), _allowed, encoding="bytes")
        planes, label = np.asarray(content[b"data"]), np.asarray(content[b"labels"])
    return _images(path, planes, label)


def _images(path: pathlib.Path, planes: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(images [n, 32, 32, 3], labels [n]) from colour planes [n, 3072]."""
    label = label.reshape(-1)
    if (
        planes.dtype != np.uint8
        or planes.shape != (len(label), 3 * SIDE**2)
        or not len(label)
        or not set(label) <= set(range(len(CLASSES)))
    ):
        raise ValueError(
            f"{path} holds {planes.dtype} {list(planes.shape)} and {len(label)} labels, not images of CIFAR-10: unpack it again"
        )
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), label.astype(np.int32)


def read_lff(folder: pathlib.Path, kind: int, percent: float, seed: int) -> list[Split]:
    """[train, val, test] of LfF's arrays, whose `valid` is CIFAR-10's test set."""
    name = f"CorruptedCIFAR10-Type{kind}-Skewed{percent / 100:g}-Severity4"
    root = biased_images.first_of(folder / name, folder)
    (train, label, bias), (test, test_label, test_bias) = (_read_arrays(root / split, name) for split in ("train", "valid"))
    held = np.zeros(len(label), bool)
    rng = np.random.default_rng([seed, HELD])
    for conflicting in (False, True):
        rows = np.flatnonzero((label != bias) == conflicting)
        rank, size = _ranks(label[rows], rng)
        held[rows] = rank < np.round(VAL_SHARE * size)
    splits = [
        _split(train[rows], label[rows], bias[rows], split, rows)
        for split, rows in (("train", np.flatnonzero(~held)), ("val", np.flatnonzero(held)))
    ]
    return [*splits, _split(test, test_label, test_bias, "test", np.arange(len(test)))]


def _read_arrays(folder: pathlib.Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(images, labels, biases)."""
    arrays = []
    for path in (folder / "images.npy", folder / "attrs.npy"):
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: LfF's folder {name} is needed, with images.npy and attrs.npy in train/ and in valid/"
            )
        arrays.append(files.read_array(path, "generate it again"))
    image, pair = arrays
    if image.shape != (len(image), SIDE, SIDE, 3) or image.dtype != np.uint8 or pair.shape != (len(image), 2):
        raise ValueError(
            f"{folder}: images.npy is {image.dtype} {list(image.shape)} and attrs.npy {list(pair.shape)}, not "
            f"uint8 [n, 32, 32, 3] and [n, 2]: generate them again"
        )
    return image, pair[:, 0], pair[:, 1]
