"""A data set whose training images are a share of another's validation images, for methods that retrain on held-out images.

The remaining validation images select epochs; all other sets are unchanged. The division is stratified by label and bias; of images with
several classes, it is plainly random. Images of one item (`EvaluationSet.item`) stay together: the first of them counts for all.
"""

import dataclasses
from typing import Annotated, Any

import numpy as np

from jaxbed import values
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split, pick
from jaxbed.values import Range, Whole


@dataclasses.dataclass
class Config:
    of: Any  # Config of a module in jaxbed.data
    share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5  # of the validation images, used for training
    seed: Whole = 0  # of that split

    def open(self) -> Source:
        """Raises ValueError unless there is exactly one validation set with enough images for both purposes."""
        values.check(self, "data")
        source = self.of.open()
        names = [name for name, evaluation_set in source.sets.items() if evaluation_set.role == "val"]
        if len(names) != 1:
            raise ValueError(f"{source.name} has {len(names)} validation sets ({', '.join(names)}), but exactly one can be divided")
        held = source.sets[names[0]]
        chosen = divide(held.split, self.share, self.seed, held.item)
        if chosen.all() or not chosen.any():
            images = f"{len(chosen)} validation images of {source.name}"
            raise ValueError(f"data.share = {self.share} of the {images} leaves none for training or none for epoch selection: change it")
        sets = {**source.sets, names[0]: rest(held, np.flatnonzero(~chosen))}
        facts = {**source.facts, "trained_on_validation_share": self.share, "held_out_seed": self.seed}
        return dataclasses.replace(
            source, train=pick(held.split, np.flatnonzero(chosen)), sets=sets, facts=facts, components=(), shown=None
        )


def rest(held: EvaluationSet, rows: np.ndarray) -> EvaluationSet:
    """Some images of a set, with all that it knows of each."""
    of_images = {field: getattr(held, field) for field in ("real", "item", "anomaly")}
    return held._replace(split=pick(held.split, rows), **{field: each[rows] for field, each in of_images.items() if each is not None})


def divide(split: Split, share: float, seed: int, of_images: np.ndarray | None = None) -> np.ndarray:
    """Which images are chosen, [n] bool: round(share · images) of each label and bias, or of a multi-label split, but at least one.

    of_images: the item of each image, [n] str, or "". Images of one item are chosen together: the first of them counts for all.
    """
    own = np.arange(len(split.label))
    if of_images is not None:
        own = np.where(of_images == "", own, len(own) + np.unique(of_images, return_inverse=True)[1])
    _, first, item = np.unique(own, return_index=True, return_inverse=True)
    rng, chosen, bias = np.random.default_rng(seed), np.zeros(len(first), bool), split.bias[first]
    label = bias if split.multi_label else split.label[first]
    for cell in np.unique(np.stack([label, bias]), axis=1).T:
        rows = rng.permutation(np.flatnonzero((label == cell[0]) & (bias == cell[1])))
        chosen[rows[: max(round(share * len(rows)), 1)]] = True
    return chosen[item]
