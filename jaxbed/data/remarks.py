"""What a user should know of the sets of a data source before training on them: `of_set` is all of it."""

from collections.abc import Iterator

import numpy as np

from jaxbed.data.source import Source
from jaxbed.data.split import Split

SAMPLE = 64  # images looked at in a streamed split, and at a time of one in memory
FEW = 30  # conflicting validation images


def of_set(split: Split, role: str, source: Source) -> Iterator[str]:
    """Sentences about a set of the source with this role ("train", or as in `jaxbed.data.source`)."""
    remarks = [one_colour(split)]
    if role == "val":
        remarks.append(few_conflicting(split, source.class_names))
    if role != "train":
        remarks.append(odd_classes(split, role, source))
    yield from filter(None, remarks)


def one_colour(split: Split) -> str:
    """About images whose pixels are all equal, among all images in memory or SAMPLE of a streamed split."""
    rows = np.arange(len(split.label))
    if len(rows) < 2:
        return ""
    if not isinstance(split.image, np.ndarray):
        rows = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int))
    flat = []
    for start in range(0, len(rows), SAMPLE):  # in blocks, since comparing takes memory
        block = rows[start : start + SAMPLE]
        images, block = (split.image[block], block) if isinstance(split.image, np.ndarray) else split.image.take(block)
        flat.extend(block[(images == images[:, :1, :1]).all((1, 2, 3))])
    if not flat:
        return ""
    return f"{len(flat)} of {len(rows)} images are of one colour, {split.name[flat[0]]} among them: are they what they should be?"


def few_conflicting(split: Split, class_names: tuple[str, ...]) -> str:
    """About a validation set by whose conflicting images epochs would be chosen, and which has few or, of a class, none."""
    if split.multi_label:
        return ""
    conflicting = split.label[(split.bias >= 0) & (split.bias != split.label)]
    none = [class_names[y] for y in np.setdiff1d(split.label, conflicting)]
    if not len(conflicting) or (len(conflicting) >= FEW and not none):
        return ""
    missing = f", none of {', '.join(none)}" if none else ""
    point = f"one is {100 / len(conflicting):.1f} points of conflicting accuracy, and tied epochs will be common"
    return f"{len(conflicting)} conflicting images{missing}: {point}"


def odd_classes(split: Split, role: str, source: Source) -> str:
    """About classes that no training image has, validation in one class, and classes that a multi-label set lacks."""
    if split.multi_label:
        absent = [name for name, present in zip(source.class_names, split.label.max(0), strict=True) if not present]
        return f"no image has the class {', '.join(absent)}: it has weight 0 in this set's scores" if absent else ""
    classes = np.unique(split.label)
    unseen = np.setdiff1d(classes, source.train.label)
    if len(unseen) and len(source.train.label) > 1:  # one image stands for no training set
        listed = ", ".join(source.class_names[y] for y in unseen[:3]) + (", ..." if len(unseen) > 3 else "")
        return f"{np.isin(split.label, unseen).sum()} images are of classes that no training image has ({listed}): they cannot be learned"
    if role == "val" and len(classes) == 1 and len(source.class_names) > 1:
        return f"all images are of class {source.class_names[classes[0]]}: the epoch is selected that gives this answer most often"
    return ""
