"""The evaluation sets that `imagenet.Config` names: how each is read, labelled and decided."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxbed.data import image_files, imagenet_classes, imagenet_real, model_vs_human, stream
from jaxbed.data.image_files import ImageFiles, Size
from jaxbed.data.source import EvaluationSet
from jaxbed.data.split import Split, in_memory, pick
from jaxbed.data.stream import Images
from jaxbed.evaluation import decision_rules

if TYPE_CHECKING:
    from jaxbed.data.imagenet import Config

THOUSAND = ("val", "imagenet_v2", "imagenet_v2_threshold", "imagenet_v2_top", "imagenet_sketch", "stylized", "cae", "edsr")
SIXTEEN = ("edge", "silhouette", "cue_conflict", "sketch", "stylized_16")
NAMES = (*THOUSAND, *imagenet_classes.SUBSETS, "blurry", *SIXTEEN, "model_vs_human")
FLAT = ("sketch", "stylized_16")  # may be flat folders
ZOOM_PX = 256  # BiasBed resizes 224-px stimuli to this before the centre crop
PUBLISHED = {  # images
    "val": 50_000,
    **dict.fromkeys(("imagenet_v2", "imagenet_v2_threshold", "imagenet_v2_top"), 10_000),
    "imagenet_sketch": 50_889,  # of the archive; its README says 50,000
    "imagenet_a": 7_500,
    "imagenet_o": 2_000,
    "imagenet_r": 30_000,
    "blurry": 1_000,
}


def open_sets(cfg: "Config", classes: tuple[str, ...]) -> dict[str, EvaluationSet]:
    """All sets that are named, for a network with these classes.

    Raises FileNotFoundError or ValueError, which name the field and the cure, for a set that does not exist or has other classes.
    """
    sets = _thousand(cfg, classes)
    return sets | _of_val(cfg, classes, sets) | _two_hundred(cfg) | _blurry(cfg) | _sixteen(cfg) | _model_vs_human(cfg)


def _thousand(cfg: "Config", classes: tuple[str, ...]) -> dict[str, EvaluationSet]:
    sets = {}
    for name in THOUSAND:
        if location := getattr(cfg, name):
            size = Size(cfg.side_px, 0, "unchanged") if name == "stylized" else Size(cfg.side_px, cfg.resize_px)
            opened = image_files.open_location(location, size, threads=cfg.threads)
            if classes == imagenet_classes.WNIDS:
                opened = imagenet_classes.thousand(f"data.{name}: {location}", opened, cfg.class_index)
            check_classes(f"data.{name}: {location}", opened.classes, classes)
            _check_count(name, location, opened)
            sets["imagenet" if name == "val" else name] = EvaluationSet(split(cfg, opened), "test" if name == "val" else "ood")
    if cfg.real:
        shown = sets["imagenet"].split
        sets["imagenet"] = sets["imagenet"]._replace(real=imagenet_real.of_images(pathlib.Path(cfg.real), shown.name, shown.label))
    return sets


def _of_val(cfg: "Config", classes: tuple[str, ...], sets: dict[str, EvaluationSet]) -> dict[str, EvaluationSet]:
    """Sets that are images of ImageNet-val, or need some."""
    wanted = [name for name in ("sixteen_of_val", "two_hundred_of_val", "imagenet_o") if getattr(cfg, name)]
    if not wanted:
        return {}
    if "imagenet" not in sets or classes != imagenet_classes.WNIDS:
        raise ValueError(f"data.{wanted[0]} takes images of ImageNet-val: name it with --config.data.val=FOLDER, for ImageNet's classes")
    shown, made = sets["imagenet"].split, {}
    if cfg.sixteen_of_val:
        made["imagenet_16"] = EvaluationSet(_of_groups(shown), "ood", cfg.decision)
    if cfg.two_hundred_of_val:
        made["imagenet_200"] = EvaluationSet(_of_classes(shown, decision_rules.IMAGENET_R), "test", "imagenet_r")
    if cfg.imagenet_o:
        both = (split(cfg, _of_subset(cfg, "imagenet_o")), _of_classes(shown, decision_rules.IMAGENET_O))
        anomaly = np.arange(sum(len(each.label) for each in both)) < len(both[0].label)
        made["imagenet_o"] = EvaluationSet(_joined(both, ("imagenet_o", "val")), "ood", "imagenet_o", anomaly=anomaly)
    return made


def _of_classes(shown: Split, members: np.ndarray) -> Split:
    return pick(shown, np.flatnonzero(np.isin(shown.label, members)))


def _joined(splits: Sequence[Split], prefixes: Sequence[str]) -> Split:
    """The images of several splits, whose names get a prefix: in memory if those of all are."""
    label, bias = (np.concatenate([getattr(split, field) for split in splits]) for field in ("label", "bias"))
    name = np.concatenate([np.char.add(f"{prefix}/", split.name.astype(str)) for split, prefix in zip(splits, prefixes, strict=True)])
    resident = [split.image for split in splits if isinstance(split.image, np.ndarray)]
    if len(resident) == len(splits):
        return Split(np.concatenate(resident), label, bias, name)
    read = [
        split.image if isinstance(split.image, Images) else Images(split.image.__getitem__, split.name, split.image.shape[1:3])
        for split in splits
    ]
    return Split(dataclasses.replace(stream.join(read), names=name), label, bias, name)


def _of_groups(shown: Split) -> Split:
    """The images whose class is in one of the 16 groups, with those as labels."""
    group_of = np.full(len(imagenet_classes.WNIDS), -1, np.int32)
    for number, members in enumerate(decision_rules.SIXTEEN.values()):
        group_of[members] = number
    rows = np.flatnonzero(group_of[shown.label] >= 0)
    picked = pick(shown, rows)
    return picked._replace(label=group_of[picked.label])


def _two_hundred(cfg: "Config") -> dict[str, EvaluationSet]:
    """Sets with folders for 200 classes, as in the archives, or for all 1000 of which 200 occur, as in TFDS."""
    sets: dict[str, EvaluationSet] = {}
    for name in ("imagenet_a", "imagenet_r"):
        if getattr(cfg, name):
            shown = split(cfg, _of_subset(cfg, name))
            sets |= {name: EvaluationSet(shown, "ood", name), f"{name}_unmasked": EvaluationSet(shown, "ood")}
    return sets


def _of_subset(cfg: "Config", name: str) -> ImageFiles:
    location = getattr(cfg, name)
    opened = image_files.open_location(location, Size(cfg.side_px, cfg.resize_px), threads=cfg.threads)
    opened = imagenet_classes.two_hundred(f"data.{name}: {location}", opened, name, cfg.class_index)
    _check_count(name, location, opened)
    return opened


def _blurry(cfg: "Config") -> dict[str, EvaluationSet]:
    """Real Blurry Images, among all classes and among those that occur: which of them the published numbers are is not known."""
    if not cfg.blurry:
        return {}
    opened = image_files.open_location(cfg.blurry, Size(cfg.side_px, cfg.resize_px), threads=cfg.threads)
    opened = imagenet_classes.some(f"data.blurry: {cfg.blurry}", opened, cfg.class_index)
    _check_count("blurry", cfg.blurry, opened)
    shown = split(cfg, opened)
    return {"blurry": EvaluationSet(shown, "ood"), "blurry_present": EvaluationSet(shown, "ood", decision_rules.among(shown.label))}


def _sixteen(cfg: "Config") -> dict[str, EvaluationSet]:
    sets, groups = {}, decision_rules.NAMES
    for name in SIXTEEN:
        if not (location := getattr(cfg, name)):
            continue
        zoomed = cfg.zoom and name != "stylized_16"  # which BiasBed does not have
        size = Size(cfg.side_px, ZOOM_PX) if zoomed else Size(cfg.side_px, 0, "unchanged")
        folder = pathlib.Path(location)
        if name in FLAT and folder.is_dir() and not (folder / groups[0]).is_dir() and not (folder / "manifest.json").is_file():
            opened = image_files.open_flat(folder, size, lambda file: file.split("_")[4], groups, cfg.threads)
        else:
            opened = image_files.open_location(location, size, threads=cfg.threads)
        check_classes(f"data.{name}: {location}", opened.classes, groups)
        shown = split(cfg, opened)
        sets[name] = EvaluationSet(shown._replace(bias=textures(shown.name)) if name == "cue_conflict" else shown, "ood", cfg.decision)
    return sets


def _model_vs_human(cfg: "Config") -> dict[str, EvaluationSet]:
    sets, groups = {}, decision_rules.NAMES
    opened_sets = model_vs_human.open_sets(cfg.model_vs_human, cfg.side_px, groups, cfg.threads) if cfg.model_vs_human else {}
    for name, opened in opened_sets.items():
        check_classes(f"data.model_vs_human: {name}", opened.classes, groups)
        shown = split(cfg, opened)
        if name == "mvh_cue_conflict":
            shown = shown._replace(bias=textures(np.array([model_vs_human.image_id(image) for image in shown.name])))
        sets[name] = EvaluationSet(shown, "ood", cfg.decision)
    return sets


def split(cfg: "Config", opened: ImageFiles) -> Split:
    """In memory if small, without the images that cannot be read; a streamed set discovers them later."""
    none = np.full(len(opened.labels), -1, np.int32)
    return in_memory(Split(opened.images, opened.labels, none, opened.images.names), cfg.resident_gib, False)


def textures(names: np.ndarray) -> np.ndarray:
    """Texture class [n] int32 of cue-conflict file names, .../<shape><i>-<texture><j>.png. Raises ValueError for other names."""
    labels, groups = [], decision_rules.NAMES
    for name in names:
        match = re.fullmatch(r"[a-z]+\d+-([a-z]+)\d+", pathlib.PurePath(str(name)).stem)
        if not match or match[1] not in groups:
            raise ValueError(f"cue-conflict image {name}: the name must be <shape><i>-<texture><j>.png, both of {', '.join(groups)}")
        labels.append(groups.index(match[1]))
    return np.array(labels, np.int32)


def check_classes(location: str, classes: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Raises ValueError for other classes than are wanted, or in another order."""
    missing, strange = sorted(set(wanted) - set(classes)), sorted(set(classes) - set(wanted))
    if missing or strange:
        words = ([f"lacks {missing[0]}"] if missing else []) + ([f"has {strange[0]}"] if strange else [])
        counted = f"{len(missing)} missing, {len(strange)} unknown"
        raise ValueError(f"{location} has the wrong classes: it {' and '.join(words)} ({counted}). Is it another set?")
    if classes != wanted:
        first = next(one for one, other in zip(classes, wanted, strict=True) if one != other)
        raise ValueError(f"{location} has its classes in the wrong order, from {first} on: rebuild it with classes sorted by name")


def _check_count(name: str, location: str, opened: ImageFiles) -> None:
    """Reports another number of images than was published: part of a set is evaluated as any other."""
    images, published = len(opened.labels), PUBLISHED.get(name, len(opened.labels))
    if images != published:
        compared = "its scores are not those of the published set"
        image_files.tell_once(f"data.{name}: {location} has {images:,} images, but {published:,} are published: {compared}")
