"""Lists of classes that all count as correct for an image, next to its label: as an array, and as a column of images.csv."""

import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

BETWEEN = "|"  # spreadsheets take no list with it for a number or a date
CLASS = re.compile(r"(\d{1,9})(?:[.,](?!000$)0+)?")  # also as they save a column of numbers and empty cells; 1,000 may be two


def padded(lists: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """Lists of n images as [n, most] int32, filled up with -1."""
    array = np.full((len(lists), max(map(len, lists), default=0)), -1, np.int32)
    for row, classes in zip(array, lists, strict=True):
        row[: len(classes)] = classes
    return array


def listed(answer: np.ndarray, lists: np.ndarray) -> np.ndarray:
    """Whether each answer [..., n] is in the list of its image, of `padded` lists [n, most]; -1, which is no answer, never is."""
    found = np.zeros(answer.shape, bool)
    for classes in lists.T:  # a comparison with all at once would take as many times the memory
        found |= (answer == classes) & (classes >= 0)
    return found


def of_targets(targets: np.ndarray) -> np.ndarray:
    """The `padded` lists of the classes that are 1 in targets [n, classes]."""
    return padded([np.flatnonzero(row) for row in targets])


def targets(lists: np.ndarray, classes: int) -> np.ndarray:
    """The same as targets [n, classes] uint8. Raises ValueError for a class beyond these."""
    if lists.size and lists.max() >= classes:
        raise ValueError(f"a list names class {lists.max()}, and there are {classes}, from 0 on")
    array = np.zeros((len(lists), classes), np.uint8)
    rows, places = np.nonzero(lists >= 0)
    array[rows, lists[rows, places]] = 1
    return array


def cells(lists: np.ndarray) -> list[str]:
    """Cells of a table: "970|795"; empty for no class."""
    return [BETWEEN.join(map(str, row[row >= 0])) for row in lists]


def from_cells(given: Iterable[str]) -> np.ndarray:
    """What `cells` were made of. Raises ValueError for a cell that is no list of classes."""
    lists = []
    for cell in given:
        found = [CLASS.fullmatch(part.strip()) for part in cell.split(BETWEEN)] if cell.strip() else []
        if not all(found):
            raise ValueError(f"{cell[:80]!r} is not a list of classes, such as 970{BETWEEN}795")
        lists.append([int(one[1]) for one in found if one])
    return padded(lists)


def digest(lists: np.ndarray) -> str:
    """Of the lists of all images, in their order."""
    return hashlib.sha256("\n".join(cells(lists)).encode()).hexdigest()[:16]
