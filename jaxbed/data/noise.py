"""Random images with random labels, to measure speed and memory without a real data set. There is nothing to learn."""

import dataclasses
from typing import Annotated

import numpy as np

from jaxbed.data import augment
from jaxbed.data.augment import Config as Augment
from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split
from jaxbed.system import memory
from jaxbed.values import Count, Range, Whole


@dataclasses.dataclass
class Config:
    side_px: Count = 224
    classes: Annotated[int, Range(2, 2**15)] = 1000
    train_images: Count = 5120
    val_images: Count = 512
    seed: Whole = 0
    augment: Augment = dataclasses.field(default_factory=Augment)

    def open(self) -> Source:
        images = self.train_images + self.val_images
        memory.check(images * 3 * self.side_px**2, memory.total(), f"{images:,} images of {self.side_px} px")
        rng = np.random.default_rng(self.seed)
        train, val = (_draw(rng, size, self.side_px, self.classes) for size in (self.train_images, self.val_images))
        return Source(
            name="noise",
            class_names=tuple(f"class{i}" for i in range(self.classes)),
            train=train,
            sets={"val": EvaluationSet(val, "val"), "test": EvaluationSet(val, "test")},
            scale=lambda image: augment.make_evaluation(self.augment, image.shape[1:])(image),
            facts={"side_px": self.side_px, "data_seed": self.seed},
            augment=augment.make(self.augment, train.image.shape[1:]),
        )


def _draw(rng: np.random.Generator, size: int, side_px: int, classes: int) -> Split:
    image = rng.integers(0, 256, (size, side_px, side_px, 3), np.uint8)
    label = rng.integers(0, classes, size, np.int32)
    return Split(image, label, np.full(size, -1, np.int32), np.array([f"noise-{i:06d}" for i in range(size)]))
