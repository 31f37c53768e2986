"""A split: images with their label and, if there is one, the class that a bias votes for."""

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxbed.data.stream import Images


class Split(NamedTuple):
    """n images on the host.

    `bias` is the class that another attribute (texture, colour, background) votes for, in the numbering of the labels; -1 if an
    image has none. An image is *aligned* if bias == label and *conflicting* if it has another bias.

    In a multi-label split an image has several classes, or none: its label is a row of targets, 1 for each class that it has, and no image
    has a bias.
    """

    image: np.ndarray | Images  # [n, H, W, C] uint8, in memory or read on demand
    label: np.ndarray  # [n] int32, or [n, classes] uint8 of zeros and ones: multi-label
    bias: np.ndarray  # [n] int32
    name: np.ndarray  # [n] str, unique within the split

    @property
    def multi_label(self) -> bool:
        return self.label.ndim == 2

    @property
    def class_of_image(self) -> np.ndarray:  # [n] int32: the label; -1 in a multi-label split
        return np.full(len(self.label), -1, np.int32) if self.multi_label else self.label


def pick(split: Split, rows: np.ndarray) -> Split:
    """Some images of a split, read on demand if the split's images are."""
    image = split.image
    if isinstance(image, Images):
        read = image.read
        image = dataclasses.replace(image, read=lambda row: read(int(rows[row])), names=image.names[rows], skipped={})
    else:
        image = image[rows]
    return Split(image, split.label[rows], split.bias[rows], split.name[rows])


def in_memory(split: Split, gib: float, evaluated: bool) -> Split:
    """The split with its images in memory if they take at most `gib` GiB, else unchanged: read on demand.

    Images that cannot be read are left out, or raise `stream.Unreadable`, depending on `Images.corrupt`. A streamed training set keeps
    them: the next image replaces them there, which must not happen in sets whose predictions count (`evaluated`).
    """
    images = split.image
    if not isinstance(images, Images):
        return split
    if images.nbytes > gib * 2**30:
        return pick(split, images.readable()) if evaluated and images.corrupt == "skip" else split
    loaded, taken = images.load()
    readable = taken == np.arange(len(taken))  # the others replaced skipped images
    return Split(loaded[readable], split.label[readable], split.bias[readable], split.name[readable])
