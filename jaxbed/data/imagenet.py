"""ImageNet-1k and the shifted test sets of the literature, in the layouts of their archives.

Each set is a folder with one sub-folder per class, a folder of records that `data_prep` wrote, or a TFDS name (`image_files`). Only `train`
is required; every set that is named is evaluated.

    val            ImageNet-val, role test: it is not used for selection, unless val_from_train is 0. With `real` it has one measure more
    imagenet_v2, imagenet_v2_threshold, imagenet_v2_top   ImageNetV2 (Recht et al., 2019): MatchedFrequency, Threshold0.7, TopImages
    imagenet_sketch   ImageNet-Sketch (Wang et al., 2019), 1000 classes
    stylized       Stylized-ImageNet's val: 1000 classes, 224 px
    imagenet_a, imagenet_r   200 classes, predictions among those; <name>_unmasked: the same images, predictions among all 1000
    edge, silhouette, cue_conflict, sketch, stylized_16   16 classes (Geirhos et al.), 224 px, `decision` sets the rule. Cue-conflict's
                   bias is in its file names, <shape><i>-<texture><j>.png; sketch and stylized_16 may be flat folders, as in
                   model-vs-human: the fifth "_" field is the class
    imagenet_o     2,000 anomalies and the images of val of the same 200 classes: how well confidence and energy tell them apart
    imagenet_200   with two_hundred_of_val: the images of val of ImageNet-R's classes, predictions among those. imagenet_r has a
                   measure more then, gap: by how much accuracy is higher there
    blurry, blurry_present   Real Blurry Images (Hendrycks et al., 2021), predictions among all 1000 classes and among those that occur
    imagenet_16    with sixteen_of_val: the images of val whose class is in one of the 16 groups, as Subramanian et al. (2023) show them
    cae, edsr      DeepAugment's images as test sets
    model_vs_human   a folder with a sub-folder for each of Geirhos et al.'s 17 sets; each that is there is evaluated as mvh_<name>

Sets of 224 px are not resized (`zoom` is an exception): images of another size than side_px are refused.

Class folders of ImageNet's sets are wnids, or numbers in wnid order; `class_index` names a file that maps other names (`imagenet_classes`).

Training sees stored_px squares (shorter side resized, centre cut), from which the augmentation crops boxes on the device. Unlike with crops
of whole images, pixels outside the central square are never seen.
"""

import dataclasses
import pathlib
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import values
from jaxbed.data import augment, image_files, imagenet_classes, imagenet_sets
from jaxbed.data.augment import Config as Augment
from jaxbed.data.image_files import ImageFiles, Size
from jaxbed.data.source import Component, EvaluationSet, Source
from jaxbed.data.stream import Corrupt, Images
from jaxbed.evaluation import decision_rules
from jaxbed.values import Count, NotNegative, Positive, Whole

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 1000
NONE = "none"


@dataclasses.dataclass
class Config:
    MAY_CHANGE: ClassVar[tuple[str, ...]] = (  # where the images are, and what is evaluated and how
        *("train", "more", *imagenet_sets.NAMES),
        *("real", "sixteen_of_val", "two_hundred_of_val", "class_index", "decision", "zoom", "resize_px", "resident_gib", "threads"),
    )

    train: str = ""  # "none": no training set, for --config.epochs=0
    more: tuple[str, ...] = ()  # further training sets with the same classes, e.g. DeepAugment's two folders
    shares: tuple[Positive, ...] = ()  # of `train` and each of `more` in every batch; empty: all images are shuffled together
    val_from_train: Whole = 10_000  # images of `train` held out to select epochs on; 0: select on `val`, as BiasBed did
    split_seed: Whole = 0  # of that split
    val: str = ""
    real: str = ""  # ReaL's real.json, whose lists of classes give `val` the measure real_accuracy
    sixteen_of_val: bool = False  # also evaluate `val` among the 16 classes, as imagenet_16
    two_hundred_of_val: bool = False  # also evaluate `val` on ImageNet-R's classes and among those, as imagenet_200
    imagenet_v2: str = ""
    imagenet_v2_threshold: str = ""
    imagenet_v2_top: str = ""
    imagenet_sketch: str = ""
    stylized: str = ""
    imagenet_a: str = ""
    imagenet_o: str = ""  # needs `val`
    imagenet_r: str = ""
    blurry: str = ""
    edge: str = ""
    silhouette: str = ""
    cue_conflict: str = ""
    sketch: str = ""
    stylized_16: str = ""
    class_index: str = ""  # CSV file folder,class: the ImageNet class of each folder, if names do not show it
    cae: str = ""
    edsr: str = ""
    model_vs_human: str = ""
    decision: str = "sixteen_mean_prob"  # of the 16-class sets; BiasBed: sixteen_mean_logit
    zoom: bool = False  # resize 16-class stimuli but stylized_16 to 256 px and crop the central 224, as BiasBed did; else unchanged
    side_px: Count = 224  # of evaluation images
    stored_px: Count = 256  # of training squares
    resize_px: Whole = 256  # shorter side of evaluation images before the crop
    corrupt: Corrupt = "fail"  # for unreadable training images; skip: the next image replaces it, which is logged
    resident_gib: NotNegative = 1.0  # sets up to this size are read once and kept in memory
    threads: Whole = 0  # to read and decode; 0: one per core, at most 16, or 4 for stored squares
    augment: Augment = dataclasses.field(default_factory=lambda: Augment(crop="resized", crop_px=224, flip=0.5, mean=MEAN, std=STD))

    def open(self) -> Source:
        if not self.train:
            raise ValueError("data.train is empty: name ImageNet's training set, --config.data.train=FOLDER (or tfds:imagenet2012:train)")
        _check_values(self)
        train, components, held, also = _training(self) if self.train != NONE else _nothing(self)
        image = imagenet_sets.split(self, train)
        sets = {"val": EvaluationSet(imagenet_sets.split(self, held), "val")} if held else {}
        sets |= imagenet_sets.open_sets(self, train.classes)
        if not held and self.train != NONE:
            if "imagenet" not in sets:
                raise ValueError("data.val_from_train = 0 selects epochs on ImageNet-val: name it with --config.data.val=FOLDER")
            sets["val"] = EvaluationSet(sets["imagenet"].split, "val")
        if len(train.classes) != CLASSES and set(sets) - {"val"}:
            named = ", ".join(sorted(set(sets) - {"val"}))
            trained = f"{self.train} has {len(train.classes)} classes"
            raise ValueError(
                f"{named}: needs a network for the {CLASSES} ImageNet classes, but {trained}: leave it out, or train on ImageNet"
            )
        plain = Augment(mean=self.augment.mean, std=self.augment.std, dtype=self.augment.dtype)
        return Source(
            name="imagenet",
            class_names=train.classes,
            train=image,
            sets=sets,
            scale=lambda image: augment.make_evaluation(plain, image.shape[1:])(image),
            facts={
                "val_from_train": self.val_from_train,
                "decision": self.decision,
                "zoom": self.zoom,
                "unreadable": sorted({*train.images.skipped, *(held.images.skipped if held else ())}),  # known before the first epoch
                **({"held_out_of_more": len(also)} if self.more else {}),
            },
            bias_name="texture",
            augment=augment.make(self.augment, image.image.shape[1:]),
            components=components,
            shown=None if self.train == NONE else self._shown,
        )

    def _shown(self, image: jax.Array) -> jax.Array:
        """The crop that evaluation takes of an image, out of its stored square: uint8 [B, side, side, 3]."""
        central = Augment(
            crop="resized", crop_px=self.side_px, centre_frac=self.side_px / max(self.resize_px, self.side_px), mean=(0.0,), std=(1.0,)
        )
        return jnp.round(255 * augment.make_evaluation(central, image.shape[1:])(image)).astype(jnp.uint8)


def _check_values(cfg: Config) -> None:
    values.check(cfg, "data")
    known = [name for name, rule in decision_rules.RULES.items() if rule.classes == decision_rules.NAMES]
    if cfg.decision not in known:
        raise ValueError(f"data.decision = {cfg.decision!r} is not one of {', '.join(known)}")
    if not all(cfg.more):
        raise ValueError(f"data.more = {cfg.more}: each must name a folder (or tfds:NAME:SPLIT)")
    if cfg.real and not cfg.val:
        raise ValueError(f"data.real = {cfg.real} has further labels of ImageNet-val's images: name these with --config.data.val=FOLDER")
    trained = {_same(location) for location in (cfg.train, *cfg.more)}
    for name in imagenet_sets.NAMES:
        if (location := getattr(cfg, name)) and _same(location) in trained:
            raise ValueError(
                f"data.{name} = {location} is also trained on, so its scores would be meaningless: name another location, or leave it out"
            )


def _same(location: str) -> str:
    """One spelling for all ways to write a location."""
    return location if location.startswith("tfds:") or location == NONE else str(pathlib.Path(location).resolve())


def _training(cfg: Config) -> tuple[ImageFiles, tuple[Component, ...], ImageFiles | None, np.ndarray]:
    """All training images, their components if batches hold fixed shares, the images held out to select epochs on, and the names of the
    images dropped from `more` because they show held-out images.
    """
    locations, held, also = (cfg.train, *cfg.more), None, []
    if cfg.shares and len(cfg.shares) != len(locations):
        raise ValueError(f"data.shares = {cfg.shares}: {len(locations)} training sets need one share each")
    if cfg.shares and cfg.corrupt == "skip":
        cure = "remove unreadable images and set data.corrupt=fail"
        raise ValueError(f"data.shares with data.corrupt=skip: an image of another set could replace an unreadable one; {cure}")
    stored = Size(cfg.stored_px, cfg.stored_px, "fast")
    sets = [_labelled(cfg, location, stored) for location in locations]
    for location, other in zip(locations, sets, strict=True):
        imagenet_sets.check_classes(location, other.classes, sets[0].classes)
    if cfg.val_from_train:
        size = len(sets[0].labels)
        if not 0 < cfg.val_from_train < size:
            raise ValueError(f"data.val_from_train = {cfg.val_from_train}: {cfg.train} has {size} images, so hold out fewer")
        order = np.random.default_rng(cfg.split_seed).permutation(size)
        if sets[0].stored_px:
            again = _labelled(cfg, cfg.train, Size(cfg.side_px, cfg.stored_px))  # as evaluation sees them
        else:
            again = image_files.in_size(sets[0], Size(cfg.side_px, cfg.resize_px), cfg.corrupt, cfg.threads)
        held = image_files.subset(again, np.sort(order[: cfg.val_from_train]))
        sets[0] = image_files.subset(sets[0], np.sort(order[cfg.val_from_train :]))
        shown = set(_what_it_shows(held))
        for i, other in enumerate(sets[1:], 1):
            is_held = np.array([what in shown for what in _what_it_shows(other)])
            also.append(other.images.names[is_held])
            sets[i] = image_files.subset(other, np.flatnonzero(~is_held))
        if cfg.corrupt == "skip" and held.images.nbytes > cfg.resident_gib * 2**30:  # the prediction for a replacement would count
            skipped = held.images.skipped
            held = image_files.subset(held, held.images.readable())
            held.images.skipped.update(skipped)
    components = tuple(Component(len(one.labels), share) for one, share in zip(sets, cfg.shares, strict=True)) if cfg.shares else ()
    return image_files.join(sets), components, held, np.concatenate([*also, np.array([], str)])


def _labelled(cfg: Config, location: str, size: Size) -> ImageFiles:
    """Training images, with ImageNet's labels if they have as many classes as ImageNet."""
    opened = image_files.open_location(location, size, cfg.corrupt, cfg.threads)
    return imagenet_classes.thousand(location, opened, cfg.class_index) if len(opened.classes) == CLASSES else opened


def _what_it_shows(opened: ImageFiles) -> list[tuple[str, str]]:
    """Class and file name without extension, which an image shares with its stylized or otherwise changed versions."""
    names = (str(name).rpartition("/")[2].rpartition(".") for name in opened.images.names)
    return [(opened.classes[label], stem or rest) for label, (stem, _, rest) in zip(opened.labels, names, strict=True)]


def _nothing(cfg: Config) -> tuple[ImageFiles, tuple[Component, ...], None, tuple]:
    """A single black image instead of a training set."""
    black = Images(lambda row: np.zeros((cfg.side_px, cfg.side_px, 3), np.uint8), np.array(["nothing"]), (cfg.side_px,) * 2)
    return ImageFiles(black, np.zeros(1, np.int32), imagenet_classes.WNIDS), (), None, ()
