"""A split: images with their label and, where there is one, the class a bias votes for."""

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxbed.data.stream import Images


class Split(NamedTuple):
    """n images on the host.

    `bias` is the class that another attribute (texture, colour, background) votes for, in the label's own numbering; -1 where an
    image has none. An image is *aligned* where bias == label and *conflicting* where it has a bias and that bias differs.
    """

    image: np.ndarray | Images  # [n, H, W, C] uint8, in memory or read when they are asked for
    label: np.ndarray  # [n] int32
    bias: np.ndarray  # [n] int32
    name: np.ndarray  # [n] str, unique within the split


def pick(split: Split, rows: np.ndarray) -> Split:
    """Some images of a split, read when they are asked for where the split's are."""
    image = split.image
    if isinstance(image, Images):
        read = image.read
        image = dataclasses.replace(image, read=lambda row: read(int(rows[row])), names=image.names[rows], skipped={})
    else:
        image = image[rows]
    return Split(image, split.label[rows], split.bias[rows], split.name[rows])


def in_memory(split: Split, gib: float, evaluated: bool) -> Split:
    """The split with its images in memory where they take at most so many GiB, else as it is: read when they are asked for.

    Images that cannot be read are left out, or raise `stream.Unreadable`, as `Images.corrupt` says. A streamed set to train on keeps
    them: there the next image takes the place, which must not happen where answers count (`evaluated`).
    """
    images = split.image
    if not isinstance(images, Images):
        return split
    if images.nbytes > gib * 2**30:
        return pick(split, images.readable()) if evaluated and images.corrupt == "skip" else split
    loaded, taken = images.load()
    readable = taken == np.arange(len(taken))  # the others stand in for what was skipped
    return Split(loaded[readable], split.label[readable], split.bias[readable], split.name[readable])
