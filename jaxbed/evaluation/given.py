"""What a measure is given, and what it gives: the answers of all seeds to one set of images, and one number for each seed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np


class Counts(NamedTuple):
    """A measure of each seed, [S] each."""

    value: np.ndarray  # NaN: absent
    n_correct: np.ndarray  # NaN where the value is not a ratio of counts
    n_total: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answers:
    """What all seeds answered to the images of one set, and what is known of these."""

    response: np.ndarray  # [S, n]: the class answered, -1 for none
    label: np.ndarray  # [n]
    bias: np.ndarray  # [n]: the class that another attribute votes for, -1 where unknown
    bias_name: str = ""  # what that attribute is: "texture"
    training_cells: Sequence[Sequence[int]] = ()  # (label, bias, images) of each cell of the training set
    real: np.ndarray | None = None  # [n, most]: all classes that count as correct, -1 for none: see `label_lists`
    kept: np.ndarray | None = None  # [n] bool: which images count, in a set that says so
    anomaly: np.ndarray | None = None  # [n] bool: images of no class
    groups: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # {name: [n] bool} of images whose accuracy is given too
    confidence: np.ndarray | None = None  # [S, n]: largest probability, NaN for none
    energy: np.ndarray | None = None  # [S, n], of a set with anomalies
    scores: np.ndarray | None = None  # [S, n, classes] float16: logits, where they are kept, NaN for none
    temperature: np.ndarray | None = None  # [S]: that of the same network's scores on the validation images, NaN where it is unknown
    targets: np.ndarray | None = None  # [n, classes] of zeros and ones, of a multi-label set; its labels are -1

    @cached_property
    def correct(self) -> np.ndarray:  # [S, n] bool
        return self.response == self.label

    @cached_property
    def aligned(self) -> np.ndarray:  # [n] bool
        return self.bias == self.label

    @cached_property
    def conflicting(self) -> np.ndarray:  # [n] bool
        return (self.bias >= 0) & ~self.aligned

    @cached_property
    def to_bias(self) -> np.ndarray:  # [S]: answers equal to the bias of conflicting images
        return (self.response == self.bias)[:, self.conflicting].sum(1)

    @cached_property
    def cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(correct answers [S, cells], images [cells], row of an image of each [cells]) of the (label, bias) cells that have images."""
        number = self.label * (self.bias.max() + 2) + self.bias + 1
        first, cell, sizes = np.unique(number, return_index=True, return_inverse=True, return_counts=True)[1:]
        return np.stack([np.bincount(cell, row, len(sizes)) for row in self.correct]), sizes, first


Measure = Callable[[Answers], Counts | None]  # None: absent for all seeds


def ratio(n_correct: np.ndarray, n_total: np.ndarray | int) -> Counts:
    """A ratio of counts, NaN where n_total is 0."""
    total = np.broadcast_to(np.asarray(n_total, float), n_correct.shape)
    return Counts(np.divide(n_correct, total, out=np.full(n_correct.shape, np.nan), where=total > 0), n_correct.astype(float), total)


def plain(value: np.ndarray) -> Counts:
    """A number that is not a ratio of counts."""
    none = np.full(value.shape, np.nan)
    return Counts(value, none, none)
