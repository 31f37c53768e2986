"""Groups of images, which some methods balance or compare: by label and bias, or by label alone."""

import dataclasses
from typing import Any, Literal

import numpy as np

from jaxbed.method import Sampling

Kind = Literal["aligned", "cells", "classes"]
KINDS = {"aligned": lambda classes: 2 * classes, "cells": lambda classes: classes**2, "classes": lambda classes: classes}


def reads_bias(kind: Kind) -> bool | str:
    """What a method with groups of this kind reads of the bias, see `jaxbed.method`."""
    return "agreement" if kind == "aligned" else kind != "classes"


@dataclasses.dataclass(frozen=True)
class Groups:
    """kind is one of

    aligned: each label's aligned images, and its conflicting ones.
    cells: each (label, bias). With two classes these are the same groups; with ten, cells may hold two images.
    classes: each label, whatever the bias.
    """

    kind: Kind
    classes: int

    @property
    def number(self) -> int:
        """Of groups, those without images included."""
        return KINDS[self.kind](self.classes)

    def of(self, label: Any, bias: Any) -> Any:
        """The group of each image, [N] of NumPy or JAX; -1 where it has no bias label."""
        if self.kind == "classes":
            return label
        group = 2 * label + (label != bias) if self.kind == "aligned" else self.classes * label + bias
        return (group + 1) * (bias >= 0) - 1

    def sizes(self, label: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """How many images are in each image's group, [N] float32. Raises ValueError where one has no bias label."""
        group = self.of(label, bias)
        if unknown := int((group < 0).sum()):
            raise ValueError(
                f"method.groups = {self.kind!r} needs the bias label of every training image, and {unknown} of {len(group)} have none: "
                "take another data set or, where the method has it, 'classes'"
            )
        return np.bincount(group)[group].astype(np.float32)

    def weights(self, label: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
        """N / (G·n_g) of each image, [N] float32, G counting groups that have images: equal sums in all groups, and mean 1."""
        sizes, occupied = self.sizes(label, bias), len(np.unique(self.of(label, bias)))
        return len(sizes) / (occupied * sizes)

    def sampling(self) -> Sampling:
        """All rows of a batch from all groups alike."""
        return Sampling(lambda label, bias, tables: self.weights(label, bias))
