"""Random squares of any images, on which image networks are trained."""

import itertools
from collections.abc import Iterator

import numpy as np

from jaxbed.data import image_files, shapes, stream
from jaxbed.data.image_files import Size


def squares(location: str, side_px: int, resize_px: int, batch: int, seed: int, first: int = 0) -> Iterator[np.ndarray]:
    """Batches [batch, side_px, side_px, 3] uint8 of random squares of random images, endlessly; they depend on seed and step alone.

    location: an image folder, a folder of records or a TFDS data set, whose images are resized to a shorter side of resize_px and cut to
    the central square first; or `shapes`, the synthetic data set. first: the step to begin with. Images that cannot be read are left out
    and reported. Raises ValueError for squares that are larger than the images.
    """
    if location == "shapes":
        drawn = shapes.Config(side_px=side_px).open().train.image
        for step in itertools.count(first):
            yield drawn[np.random.default_rng([seed, step]).integers(len(drawn), size=batch)]
    if side_px > resize_px:
        raise ValueError(f"squares of {side_px} px cannot be cut out of images of {resize_px} px: lower --side-px, or raise --resize-px")
    images = image_files.open_location(location, Size(resize_px, resize_px, "fast"), "skip").images

    def rows_of(step: int) -> np.ndarray:
        return np.random.default_rng([seed, step]).integers(len(images), size=batch)

    reported: set[str] = set()
    for step, (whole, _) in enumerate(stream.batches(images, rows_of, first), first):
        for name in sorted(set(images.skipped) - reported):
            reported.add(name)
            print(f"left out: {name} of {location} ({images.skipped[name]})", flush=True)
        corners = np.random.default_rng([seed, step, 1]).integers(resize_px - side_px + 1, size=(batch, 2))
        yield np.stack([image[top : top + side_px, left : left + side_px] for image, (top, left) in zip(whole, corners, strict=True)])
