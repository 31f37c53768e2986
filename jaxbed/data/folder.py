"""A user's own images: a folder with one sub-folder per class, or a folder and a table that lists its images.

    python -m jaxbed.main --config=erm:folder --config.data.train=DIR [--config.data.table=TABLE.csv]
        [--config.data.val=DIR] [--config.data.test=DIR] [--config.data.ood=NAME=DIR]

Without a table, the sub-folders of `train` are the classes, and their sorted names give the order of the classes in all sets. With a table,
images may be anywhere below `train`, and the table gives the label and the set of each (`folder_table`). The other folders always have one
sub-folder per class: `val` and `test` all classes of the training set, OOD sets some of them. Instead of a folder of images, each may be a
folder of records that `data_prep` wrote, or tfds:NAME:SPLIT (`image_files.open_location`).

With data.multi_label=True, an image has several classes or none, which the table lists ("shorts|vest"); all sets are then in the table.

If no validation set is named, a share of the training images of each label and bias is held out. A run needs no other set, but then its
only scores are those of the validation images, which also select the epoch.

Images become squares of size_px: the shorter side is resized and the centre is cut out, or, with data.fit=stretch, both sides are resized
(`decode`: grey images become RGB, transparent pixels white, EXIF orientation is ignored). Training and evaluation see the same squares,
training after augmentation.
"""

import dataclasses
import hashlib
import os
import pathlib
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from jaxbed import values
from jaxbed.data import augment, duplicates, folder_table, image_files
from jaxbed.data.augment import Config as Augment
from jaxbed.data.folder_table import shown
from jaxbed.data.held_out import divide
from jaxbed.data.image_files import Size
from jaxbed.data.source import MANY_CLASSES, EvaluationSet, Source
from jaxbed.data.split import Split, in_memory, pick
from jaxbed.data.stream import Corrupt, Images, Unreadable
from jaxbed.stats import names
from jaxbed.values import Count, NotNegative, Range, Whole

COMMAND = "python -m jaxbed.main --config=erm:folder --config.data.train=DIR"
TRAINING_WORDS, OTHER_WORDS = {"train", "training"}, {"val", "valid", "validation", "test", "testing"}
ROLES = {"val": "val", "test": "test"}  # all others are OOD sets


class Listed(NamedTuple):
    """The images of one set, not yet read."""

    origin: str  # its name in messages
    images: Images
    label: np.ndarray  # [n] int, in `classes`; or [n, classes] uint8, see `Split`
    classes: tuple[str, ...]  # in the order of those of the training set
    bias: np.ndarray  # [n] str: the class it votes for; "" if unknown
    item: np.ndarray | None = None  # [n] str, as of `EvaluationSet`


@dataclasses.dataclass
class Config:
    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("train", "table", "val", "test", "ood", "resident_gib", "threads")  # where the images are

    train: str = ""  # folder of the training images
    table: str = ""  # CSV file with the columns file,label[,bias][,split], see `folder_table`
    multi_label: bool = False  # labels of the table are lists of classes: "shorts|vest"
    classes: tuple[str, ...] = ()  # those of the table, in this order; empty: those of its training images, sorted by name
    val: str = ""  # folder of images for epoch selection; empty: some training images are held out
    test: str = ""
    ood: tuple[str, ...] = ()  # e.g. ("sketches=DIR", "night=DIR"); the option may also be repeated
    val_share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.1  # of the training images, held out for validation
    split_seed: Whole = 0  # of that split
    size_px: Count = 128
    fit: Literal["crop", "stretch"] = "crop"  # how an image becomes a square: its central square, or all of it, whatever its shape
    corrupt: Corrupt = "fail"  # for unreadable images; skip: they are left out, in a stream the next image replaces them
    resident_gib: NotNegative = 4.0  # sets up to this size are read once and kept in memory, the training set on the device
    threads: Whole = 0  # to read and decode; 0: one per core, at most 16, or 4 for stored squares
    augment: Augment = dataclasses.field(default_factory=lambda: Augment(crop="padded", padding_px=4, flip=0.5))

    def open(self) -> Source:
        """Raises FileNotFoundError or ValueError, which name the setting, file or line, and the cure."""
        values.check(self, "data")
        locations = _locations(self)
        listed, notes = _tabled(self, locations) if self.table else ({"train": _foldered(self, "train", self.train)}, [])
        for name, location in locations.items():
            if alike := [other for other in listed if names.key(other) == names.key(name)]:
                raise ValueError(f"{_field(name)} = {location}: {self.table} also lists images of the set {alike[0]}: name it only once")
            listed[name] = _foldered(self, name, location)
        classes = listed["train"].classes
        notes += _check_classes(listed)
        splits = {name: _read(self, name, one, classes) for name, one in listed.items()}
        lost = {f"{name}/{image}" for name, one in listed.items() for image in set(one.images.names) - set(splits[name].name)}
        known = splits["train"].label.max(0).nonzero()[0] if self.multi_label else splits["train"].label
        if len(empty := np.setdiff1d(np.arange(len(classes)), known)):
            if not (self.multi_label and self.classes):
                raise ValueError(f"no training image of class {classes[empty[0]]!r} can be read: restore them, or remove the class")
            notes.append(f"classes that no training image has, so that they cannot be learned: {shown([classes[y] for y in empty], 10)}")
        if "val" not in splits:
            splits["train"], splits["val"], note = _hold_out(self, splits["train"])
            notes.append(note)
        train, others = splits.pop("train"), {name: splits[name] for name in sorted(splits, key=lambda name: (*ROLES, name).index(name))}
        notes += duplicates.notes(train, others)
        shape = train.image.shape[1:]
        return Source(
            name="folder",
            class_names=classes,
            train=train,
            sets={name: _evaluation_set(name, split, listed.get(name)) for name, split in others.items()},
            scale=lambda image: augment.make_evaluation(self.augment, image.shape[1:])(image),
            facts={
                **{"size_px": self.size_px, "training_set": _digest(train), "unreadable": sorted(lost)},
                **({"multi_label": True} if self.multi_label else {}),
            },
            bias_name="bias",
            augment=augment.make(self.augment, shape),
            notes=(card({"train": train, **others}, classes), *notes),
        )


def _field(name: str) -> str:
    """The setting that names a set's folder."""
    return f"data.{name}" if name in ("train", *ROLES) else f"data.ood: {name}"


def _locations(cfg: Config) -> dict[str, str]:
    """The locations of all sets except the training set, by name. Raises ValueError for contradictory settings."""
    if not cfg.train:
        raise ValueError(f"data.train is empty: name the folder of your training images, which has one sub-folder per class: {COMMAND}")
    locations = {name: location for name in ROLES if (location := getattr(cfg, name))}
    if (cfg.multi_label or cfg.classes) and not cfg.table:
        field = "multi_label" if cfg.multi_label else "classes"
        raise ValueError(f"data.{field} = {getattr(cfg, field)} is for images that a table lists: add --config.data.table=TABLE.csv")
    if cfg.multi_label and (locations or cfg.ood):
        field = next(iter(locations), "ood")
        raise ValueError(f"data.{field} = {getattr(cfg, field)}: sub-folders give one class per image, so list all sets in data.table")
    for entry in cfg.ood:
        name, equals, location = entry.partition("=")
        if not (equals and name and location):
            raise ValueError(f"data.ood = {entry!r} must be NAME=DIR, as in --config.data.ood=sketches=DIR; the option may be repeated")
        if (fault := folder_table.split_fault(name)) or name in ("train", *ROLES):
            raise ValueError(f"data.ood: the name {name!r} {fault or 'is that of another set: choose another name'}")
        if alike := [other for other in locations if names.key(other) == names.key(name)]:
            raise ValueError(f"data.ood names {alike[0]} and {name}: give each set a different name")
        locations[name] = location
    paths = {"train": os.path.realpath(cfg.train)}
    for name, location in locations.items():
        path = os.path.realpath(location)
        for other, known in paths.items():
            if path == known:
                trouble = "its images are used for training" if other == "train" else "one set cannot have two purposes"
                raise ValueError(f"{_field(name)} = {location} is also {_field(other)}: {trouble}. Name another folder, or leave it out")
        if not cfg.table and path.startswith(os.path.join(paths["train"], "")):
            raise ValueError(f"{_field(name)} = {location} is inside data.train = {cfg.train}, whose sub-folders are classes: move it")
        paths[name] = path
    return locations


def _foldered(cfg: Config, name: str, location: str) -> Listed:
    """A set with one sub-folder per class, of records or of TFDS."""
    field, folder = f"{_field(name)} = {location}", pathlib.Path(location)
    if folder.is_dir() and not (folder / "manifest.json").is_file():
        inside = sorted(path.name for path in folder.iterdir() if path.is_dir() and not image_files.is_system(path.name))
        if (words := {each.lower() for each in inside}) & TRAINING_WORDS and words & OTHER_WORDS:  # a single such name may be a class
            listed = shown([each for each in inside if each.lower() in TRAINING_WORDS | OTHER_WORDS])
            meant = f"--config.data.train={folder / next(each for each in inside if each.lower() in TRAINING_WORDS)}"
            raise ValueError(
                f"{field} has the sub-folders {listed}, which are sets, not classes: give each by its own option, as in {meant}"
            )
        if not inside:
            table = ", or list them in a table, --config.data.table=TABLE.csv" if name == "train" else ""
            raise ValueError(f"{field} has no sub-folders: put the images of each class into one sub-folder{table}")
    elif not folder.exists() and not location.startswith("tfds:"):
        raise FileNotFoundError(_absent(field, location, "name a folder with one sub-folder per class"))
    try:
        opened = image_files.open_location(location, _size(cfg), cfg.corrupt, cfg.threads)
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(f"{_field(name)}: {error}") from error
    return Listed(field, opened.images, opened.labels, opened.classes, np.full(len(opened.labels), ""))


def _size(cfg: Config) -> Size:
    return Size(cfg.size_px, cfg.size_px, {"crop": "exact", "stretch": "stretched"}[cfg.fit])


def _absent(field: str, folder: str, cure: str) -> str:
    """The message for a missing folder. Shells do not expand a ~ after an equals sign."""
    home = ", and write its full path instead of ~" if folder.startswith("~") else ""
    return f"{field} is not a folder (working directory {pathlib.Path.cwd()}): {cure}{home}"


def _tabled(cfg: Config, locations: dict[str, str]) -> tuple[dict[str, Listed], list[str]]:
    """The sets that the table lists, and notes for the log."""
    path, folder = pathlib.Path(cfg.table), pathlib.Path(cfg.train)
    if not folder.is_dir():
        raise FileNotFoundError(_absent(f"data.train = {cfg.train}", cfg.train, "name the folder that contains the files of the table"))
    rows, notes = folder_table.read(path, folder, cfg.multi_label)
    classes = folder_table.classes_of(path, rows, cfg.classes, cfg.multi_label)
    if not cfg.multi_label and (lists := [name for name in classes if "|" in name and set(name.split("|")) <= set(classes)]):
        notes.append(f"the class {lists[0]!r} reads like a list of classes: if it is one, set --config.data.multi_label=True")
    if missing := folder_table.without_row(folder, rows, list(locations.values())):
        notes.append(f"{len(missing)} images in {folder} have no row in {path} and are left out: {shown(missing, 3)}")
    votes, vote_notes = folder_table.votes(path, rows, classes)
    listed: dict[str, Listed] = {}
    for name in dict.fromkeys(row.split for row in rows):
        if alike := [other for other in listed if names.key(other) == names.key(name)]:
            raise ValueError(f"{path} has the sets {alike[0]} and {name}: give each set a different name")
        of_split = [row for row in rows if row.split == name]
        files, present = np.array([row.file for row in of_split]), {row.label for row in of_split}
        labels = classes if cfg.multi_label else tuple(each for each in classes if each in present)
        listed[name] = Listed(
            f"{path}, split {name}",
            image_files.decoded(image_files.files(folder, files), files, _size(cfg), cfg.corrupt, cfg.threads),
            folder_table.targets(of_split, classes) if cfg.multi_label else np.array([labels.index(row.label) for row in of_split]),
            labels,
            np.array([votes.get(row.bias, "") for row in of_split]),
            np.array([row.pair_id for row in of_split]) if any(row.pair_id for row in of_split) else None,
        )
    return listed, notes + vote_notes


def _check_classes(listed: dict[str, Listed]) -> list[str]:
    """Raises ValueError for a set whose classes differ from the training set's; returns notes for the log on similar class names."""
    wanted = listed["train"].classes
    for name, (origin, _, _, classes, *_) in listed.items():
        if strange := [each for each in classes if each not in wanted]:
            allowed = shown(wanted, 10)
            raise ValueError(f"{origin} has the class {strange[0]!r}, which is not in the training set ({allowed}): rename or remove it")
        if name in ROLES and (missing := [each for each in wanted if each not in classes]):
            cure = "Only an OOD set may lack classes"
            raise ValueError(f"{origin} lacks the class {missing[0]!r}, but must have all classes of the training set. {cure}")
    known: dict[str, str] = {}
    pairs = [(other, name) for name in wanted if (other := known.setdefault(names.key(name), name)) != name]
    return [f"the classes {other!r} and {name!r} differ only in spelling: are they the same class?" for other, name in pairs]


def _evaluation_set(name: str, split: Split, listed: Listed | None) -> EvaluationSet:
    """A set with the items of those images that could be read; listed: None of images that were held out."""
    known = None if listed is None or listed.item is None else dict(zip(listed.images.names.tolist(), listed.item, strict=True))
    item = None if known is None else np.array([known[image] for image in split.name.tolist()])
    return EvaluationSet(split, ROLES.get(name, "ood"), item=item)


def _read(cfg: Config, name: str, listed: Listed, classes: tuple[str, ...]) -> Split:
    """The images of a set, in memory if small, with label and bias as class numbers."""
    label = listed.label if cfg.multi_label else np.array([classes.index(each) for each in listed.classes], np.int32)[listed.label]
    numbers = {"": -1, **{each: i for i, each in enumerate(classes)}}
    bias = np.array([numbers[each] for each in listed.bias.tolist()], np.int32)
    try:
        return in_memory(Split(listed.images, label, bias, listed.images.names), cfg.resident_gib, name != "train")
    except Unreadable as error:
        raise Unreadable(f"{listed.origin}: {error}") from error


def _hold_out(cfg: Config, train: Split) -> tuple[Split, Split, str]:
    """(training set, validation set, note for the log): a share of each label and bias; the only image of a group stays in training."""
    _, kind, sizes = np.unique(np.stack([train.class_of_image, train.bias]), axis=1, return_inverse=True, return_counts=True)
    chosen = divide(train, cfg.val_share, cfg.split_seed) & (sizes[kind] > 1)
    counted = f"data.val_share = {cfg.val_share} of {len(chosen)} training images"
    if not chosen.any():
        cure = "add images, or name a validation set with --config.data.val=DIR"
        raise ValueError(f"{counted} holds out none, since no class has two images: {cure}")
    held = in_memory(pick(train, np.flatnonzero(chosen)), cfg.resident_gib, True)
    how = "at random" if train.multi_label else "stratified by label and bias"
    note = f"val: {chosen.sum()} images are held out, {how} ({counted}, data.split_seed = {cfg.split_seed})"
    return pick(train, np.flatnonzero(~chosen)), held, note


def _digest(split: Split) -> str:
    """Hash of the names and labels of the training images; statistics compare it between runs."""
    digest = hashlib.sha256("\n".join(split.name).encode())
    digest.update(split.label.tobytes())
    return digest.hexdigest()[:16]


def card(splits: dict[str, Split], classes: tuple[str, ...]) -> str:
    """Table of images per class and set, for the log; with many classes, only the total per set."""
    counts = {
        name: split.label.sum(0) if split.multi_label else np.bincount(split.label, minlength=len(classes))
        for name, split in splits.items()
    }
    rows = [("all", [len(split.label) for split in splits.values()])]
    if len(classes) <= MANY_CLASSES:
        rows = [(name, [count[i] for count in counts.values()]) for i, name in enumerate(classes)] + rows
    wide, widths = max(len("class"), *(len(name) for name, _ in rows)), [max(len(name), 6) for name in counts]
    lines = [f"  {'class':{wide}}" + "".join(f"  {name:>{width}}" for name, width in zip(counts, widths, strict=True))]
    lines += [f"  {name:{wide}}" + "".join(f"  {n:{width}d}" for n, width in zip(row, widths, strict=True)) for name, row in rows]
    several = ", several classes per image" if any(split.multi_label for split in splits.values()) else ""
    return "\n".join([f"images per class and set{several}:", *lines])
