"""`Source`, the interface of every data set to training and evaluation, and the order of training images."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed.data.split import Split
from jaxbed.training import rng

ROLES = ("val", "test", "ood")
MANY_CLASSES = 50  # with more classes, counts per class are not shown


class Component(NamedTuple):
    """Consecutive images of a training set that make up a fixed share of every batch."""

    size: int
    share: float  # of all components' shares


class EvaluationSet(NamedTuple):
    """One set to evaluate. role: val (for selection only), test (distribution of the training set), ood (shifted).

    real: classes that also count as correct, for the measure real_accuracy; it is read with the answers, and no network is asked about it.
    """

    split: Split
    role: str
    decision: str = "argmax"  # a name of `decision_rules.RULES`
    real: np.ndarray | None = None  # [n, most] int32, as of `label_lists.padded`
    item: np.ndarray | None = None  # [n] str, the same for images that are not independent, such as those of one item; "" if unknown
    anomaly: np.ndarray | None = None  # [n] bool: images of no class, which are to be told from the others; their labels count for nothing


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set, on the host.

    scale converts uint8 images [B, H, W, C] to the network's float input, on the device. augment does so with a random key, in training
    only; without it, training uses scale. shown converts uint8 training images to uint8 ones as evaluation shows them, where it does not
    show them as they are stored. facts are stored with every result: preprocessing, the bias ratio, counts. bias_name names the
    bias attribute (texture, colour); empty if there is none. notes are logged after the counts of images.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    sets: dict[str, EvaluationSet]
    scale: Callable[[jax.Array], jax.Array]
    facts: dict[str, Any]
    bias_name: str = ""
    augment: Callable[[jax.Array, jax.Array], jax.Array] | None = None
    components: tuple[Component, ...] = ()  # of the training set, in its order, if batches hold a fixed share of each
    notes: tuple[str, ...] = ()
    shown: Callable[[jax.Array], jax.Array] | None = None

    def __post_init__(self) -> None:
        sizes = [component.size for component in self.components]
        if sizes and sum(sizes) != len(self.train.label):
            raise ValueError(f"{self.name}: components of {sizes} images do not add up to {len(self.train.label)}")
        if other := [name for name, one in self.sets.items() if one.split.multi_label != self.multi_label]:
            forms = "targets [n, classes]", "labels [n]"
            own, needed = forms[:: 1 if self.sets[other[0]].split.multi_label else -1]
            raise ValueError(f"set {other[0]} has {own}, and the training set {needed}: give all sets the same")
        for name, evaluation_set in self.sets.items():
            if evaluation_set.role not in ROLES:
                raise ValueError(f"set {name}: role {evaluation_set.role!r} is not one of {', '.join(ROLES)}")
            asks_more = evaluation_set.real is not None or evaluation_set.anomaly is not None or evaluation_set.decision != "argmax"
            if self.multi_label and asks_more:
                raise ValueError(f"set {name}: a multi-label set has the decision argmax, no lists `real` and no anomalies: leave them out")
            if (real := evaluation_set.real) is not None and len(real) != len(evaluation_set.split.label):
                images = len(evaluation_set.split.label)
                raise ValueError(f"set {name}: real has {len(real)} lists of classes, but must have one for each of {images} images")
            if (anomaly := evaluation_set.anomaly) is not None and (len(anomaly) != len(evaluation_set.split.label) or anomaly.all()):
                images = len(evaluation_set.split.label)
                raise ValueError(f"set {name}: anomaly must say of each of {images} images whether it is one, and not all may be")
            if (item := evaluation_set.item) is not None and len(item) != len(evaluation_set.split.label):
                raise ValueError(
                    f"set {name}: item has {len(item)} texts, but must have one for each of {len(evaluation_set.split.label)} images"
                )
        for name, split in {"train": self.train, **{k: v.split for k, v in self.sets.items()}}.items():
            check(name, split, len(self.class_names))

    @property
    def multi_label(self) -> bool:
        """Whether an image has several classes, or none: see `Split`."""
        return self.train.multi_label

    @property
    def evaluated_shape(self) -> tuple[int, ...]:
        """(H, W, C) of training images as evaluation shows them, which networks are made to answer."""
        stored = jax.ShapeDtypeStruct((1, *self.train.image.shape[1:]), np.uint8)
        return (jax.eval_shape(self.shown, stored) if self.shown else stored).shape[1:]

    def as_evaluated(self, image: jax.Array) -> jax.Array:
        """The network's input for uint8 training images without augmentation."""
        return self.scale(self.shown(image) if self.shown else image)


def check(name: str, split: Split, classes: int) -> None:
    """Raises ValueError if the arrays of a split do not match each other, or its labels the classes."""
    sizes = {field: len(array) for field, array in zip(Split._fields, split, strict=True)}
    if len(set(sizes.values())) != 1 or not sizes["image"]:
        raise ValueError(f"set {name}: its arrays must have one common length above 0, but have {sizes}")
    if split.image.dtype != np.uint8 or split.image.ndim != 4:
        raise ValueError(f"set {name}: images must be uint8 [n, H, W, C], but are {split.image.dtype} {list(split.image.shape)}")
    if len(np.unique(split.name)) != len(split.name):
        raise ValueError(f"set {name}: two images have the same name, so predictions would be ambiguous: rename one")
    if split.multi_label:
        if split.label.dtype != np.uint8 or split.label.shape[1] != classes or split.label.max() > 1:
            given = f"{split.label.dtype} {list(split.label.shape)} up to {split.label.max()}"
            raise ValueError(f"set {name}: targets must be uint8 [n, {classes}] of zeros and ones, but are {given}")
        if split.bias.max() >= 0:
            raise ValueError(f"set {name}: images with several classes have no bias: it must be -1, but {split.bias.max()} occurs")
        return
    for field, array, least in (("label", split.label, 0), ("bias", split.bias, -1)):
        if array.min() < least or array.max() >= classes:
            raise ValueError(f"set {name}: {field} ranges from {array.min()} to {array.max()}, allowed is {least} to {classes - 1}")


def require_one_class(name: str, method: Any, source: Source) -> None:
    """Raises ValueError for a multi-label data set if a method does not say that it takes one (see `jaxbed.method`)."""
    if source.multi_label and not getattr(method, "multi_label", False):
        raise ValueError(
            f"{name} learns one class per image, and {source.name} is multi-label (an image has several classes, or none): take ERM, also "
            "with speckle noise or random erasing, Noise2Net, or AugMix with --config.method.consistency=False"
        )


def require_bias(name: str, method: Any, source: Source) -> None:
    """Raises ValueError if a method that reads the bias (see `jaxbed.method`) lacks it: for all images, or for one that a group needs."""
    unknown, images, grouped = int((source.train.bias < 0).sum()), len(source.train.bias), hasattr(method, "groups")
    if method.reads_bias and (unknown == images or (grouped and unknown)):
        cure = "use a method that does not read it, or provide it (for your own images, in the column bias of data.table)"
        if grouped and not dataclasses.replace(method, groups="classes").reads_bias:
            cure = f"set --config.method.groups=classes, {cure}"
        raise ValueError(f"{name} needs the bias of the training images, but {source.name} lacks it for {unknown} of {images}: {cure}")


def cells(split: Split) -> dict[tuple[int, int], int]:
    """Number of images for each (label, bias) that occurs; {} where images have several classes."""
    if split.multi_label:
        return {}
    pairs, counts = np.unique(np.stack([split.label, split.bias]), axis=1, return_counts=True)
    return {(int(y), int(b)): int(n) for y, b, n in zip(*pairs, counts, strict=True)}


def describe(name: str, split: Split) -> str:
    """Counts per (label, bias) cell, for the log: one row per label, one column per bias; with many classes, only the range of counts."""
    if split.multi_label:
        of_image, of_class = split.label.sum(1), split.label.sum(0)
        shown = " ".join(map(str, of_class)) if len(of_class) <= MANY_CLASSES else f"{of_class.min()} to {of_class.max()}"
        kinds = f"{(of_image > 1).sum()} of several classes, {(of_image == 0).sum()} of none"
        return f"{name}: {len(of_image)} images, {kinds}; images with each class {shown}"
    counts, labels, biases = cells(split), np.unique(split.label), range(split.bias.min(), split.bias.max() + 1)
    if len(labels) > MANY_CLASSES:
        sizes = np.bincount(split.label)[labels]
        return f"{name}: {len(split.label)} images of {len(labels)} classes, {sizes.min()} to {sizes.max()} of each"
    if split.bias.max() < 0:
        return f"{name}: {len(split.label)} images, per label " + " ".join(str(counts[int(y), -1]) for y in labels)
    aligned = int((split.label == split.bias).sum())
    conflicting = int((split.bias >= 0).sum()) - aligned
    head = f"{name}: {len(split.label)} images, {aligned} aligned, {conflicting} conflicting"
    lines = [f"{head}; rows labels, columns biases {biases[0]}-{biases[-1]}"]
    lines += [f"  {y:4d} |" + "".join(f"{counts.get((int(y), int(b)), 0):6d}" for b in biases) for y in labels]
    return "\n".join(lines)


def counts(batch_size: int, components: tuple[Component, ...]) -> list[int]:
    """Images per component in a batch: shares rounded down, the rest by largest remainder. Raises ValueError if a component gets none."""
    shares = [component.share for component in components]
    exact = np.array(shares, float) * batch_size / sum(shares)
    images = np.floor(exact + 1e-9).astype(int)
    for index in np.argsort(images - exact, kind="stable")[: batch_size - images.sum()]:
        images[index] += 1
    if (images < 1).any():
        raise ValueError(f"batch_size = {batch_size} leaves no image for some of the shares {shares}: use a larger batch")
    return images.tolist()


def steps(rows: int, batch_size: int, components: tuple[Component, ...] = ()) -> int:
    """Batches of an epoch; with components it ends when the first of them has no full share left."""
    if not components:
        return rows // batch_size
    return min(component.size // count for component, count in zip(components, counts(batch_size, components), strict=True))


class Weighted(NamedTuple):
    """The last `draws` images of every batch, drawn by weight."""

    draws: int
    cumulative: np.ndarray  # [S, N]: of each seed's weights, from the first image on; ends with 1


def order(
    rows: int,
    batch_size: int,
    epoch: int,
    seeds: np.ndarray,
    shared: bool,
    components: tuple[Component, ...] = (),
    weighted: Weighted | None = None,
) -> np.ndarray:
    """Rows of every batch of an epoch, [S, steps, B] int32: a pure function of its arguments, so there is no position to save.

    Each seed has its own order, unless shared: then all use the first seed's order, which makes seeds dependent. Images that do not
    fill a batch are left out of that epoch. Each component is shuffled by itself.
    """
    sources = seeds[:1] if shared else seeds
    numbers, of_number = np.unique(sources, return_inverse=True)  # variants have the same seeds
    wanted = steps(rows, batch_size, components)
    sizes = [component.size for component in components] or [rows]
    taken = counts(batch_size, components) if components else [batch_size]
    drawn = []
    for seed in numbers:
        generator, first, columns = rng.generator(int(seed), rng.ORDER, epoch), 0, []
        for size, count in zip(sizes, taken, strict=True):
            columns.append(first + generator.permutation(size)[: wanted * count].reshape(wanted, count))
            first += size
        drawn.append(np.concatenate(columns, axis=1))
    stacked = np.stack(drawn).astype(np.int32)[of_number]
    if weighted is None:
        return np.broadcast_to(stacked, (len(seeds), *stacked.shape[1:]))
    for seed, batches, cumulative in zip(seeds, stacked, weighted.cumulative, strict=True):
        positions = rng.generator(int(seed), rng.SAMPLE, epoch).random((len(batches), weighted.draws))
        batches[:, batch_size - weighted.draws :] = np.searchsorted(cumulative, positions, side="right")  # never one of weight 0
    return stacked
