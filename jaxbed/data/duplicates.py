"""Images of other sets that are also training images."""

import hashlib

import numpy as np

from jaxbed.data.folder_table import shown
from jaxbed.data.split import Split
from jaxbed.data.stream import Images


def notes(train: Split, sets: dict[str, Split]) -> list[str]:
    """Notes for the log on images that are identical, pixel by pixel, to a training image; streamed sets are not compared."""
    if isinstance(train.image, Images):
        return ["the training set is streamed (data.resident_gib), so duplicates of its images in other sets were not searched for"]
    known = {_pixels(image): name for image, name in zip(train.image, train.name, strict=True)}
    found = []
    for name, split in sets.items():
        if isinstance(split.image, Images):
            found.append(f"{name} is streamed (data.resident_gib), so duplicates of training images in it were not searched for")
            continue
        pairs = [
            (image_name, known[digest])
            for image_name, image in zip(split.name, split.image, strict=True)
            if (digest := _pixels(image)) in known
        ]
        if pairs:
            cure = "its scores are too high; remove them"
            listed = shown([f"{image_name} = {other}" for image_name, other in pairs], 3)
            found.append(f"{name}: {len(pairs)} of {len(split.name)} images are also training images ({listed}): {cure}")
    return found


def _pixels(image: np.ndarray) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
