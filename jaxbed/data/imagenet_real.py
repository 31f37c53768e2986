"""ReaL: for each image of ImageNet-val all classes that people found in it (Beyer et al., 2020, "Are we done with ImageNet?").

real.json (github.com/google-research/reassessed-imagenet) has a list for each file number from 1 to 50000. 3,163 lists are empty, and their
images do not count. The ReaL column of Gavrikov and Keuper (2024) is of 326 images only, so it should not be matched.
"""

import pathlib
import re

import numpy as np

from jaxbed.data import image_files
from jaxbed.evaluation import label_lists
from jaxbed.system import files

IMAGES, CLASSES = 50_000, 1000
CURE = "fetch real.json from github.com/google-research/reassessed-imagenet"
USUAL = 0.5  # share of labels that are in their lists; of all images with a list it is 90 %


def of_images(path: pathlib.Path, names: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Classes [n, most] int32 of the images of these names and labels [n], filled up with -1: see `label_lists`.

    Raises ValueError for a name without file number. If most labels are not in their lists, this is reported.
    """
    lists = read(path)
    real = label_lists.padded([lists[_number(str(name)) - 1] for name in names])
    listed = label_lists.listed(label, real)[(real >= 0).any(1)]
    if len(listed) and listed.mean() < USUAL:
        image_files.tell_once(
            f"data.real: {path} does not list the label of {len(listed) - listed.sum():,} of {len(listed):,} images: are its lists in the "
            "order of file numbers, and are these those of data.val?"
        )
    return real


def read(path: pathlib.Path) -> list[list[int]]:
    """The lists, by file number from 1 on. Raises FileNotFoundError or ValueError, with the cure, for another file."""
    if not path.is_file():
        raise FileNotFoundError(f"data.real = {path} is not a file: {CURE}")
    lists = files.read_json(path, CURE)
    with files.guarded(path, CURE, fault="cannot be data.real"):
        if not isinstance(lists, list) or len(lists) != IMAGES:
            found = f"{len(lists):,} entries" if isinstance(lists, list) else f"a {type(lists).__name__}"
            raise files.Fault(f"it holds {found} and must hold {IMAGES:,} lists of classes")
        for number, classes in enumerate(lists, 1):
            if not isinstance(classes, list) or not all(type(one) is int and 0 <= one < CLASSES for one in classes):
                raise files.Fault(f"list {number} is {str(classes)[:80]} and must hold whole numbers from 0 to {CLASSES - 1}")
    return lists


def _number(name: str) -> int:
    """From 1 to 50000."""
    found = re.search(r"ILSVRC2012_val_(\d{8})(?!\d)[^/]*$", name)
    if not found or not 1 <= int(found[1]) <= IMAGES:
        raise ValueError(
            f"data.real: image {name} of data.val has no file number from 1 to {IMAGES} in its name: "
            "keep the published names, such as ILSVRC2012_val_00000001.JPEG, or leave data.real out"
        )
    return int(found[1])
