"""Random images with random labels: for speed and memory, where the real data set is not at hand. Nothing can be learned from it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.data.source import EvaluationSet, Source
from jaxbed.data.split import Split


@dataclasses.dataclass
class Config:
    side_px: int = 224
    classes: int = 1000
    train_images: int = 5120
    val_images: int = 512
    seed: int = 0

    def open(self) -> Source:
        rng = np.random.default_rng(self.seed)
        train, val = (_draw(rng, size, self.side_px, self.classes) for size in (self.train_images, self.val_images))
        names = tuple(f"class{i}" for i in range(self.classes))
        return Source(
            "noise", names, train, {"val": EvaluationSet(val, "val"), "test": EvaluationSet(val, "test")}, scale, {"side_px": self.side_px}
        )


def scale(image: jax.Array) -> jax.Array:
    """uint8 -> float32 in ±1."""
    return (image.astype(jnp.float32) - 127.5) / 127.5


def _draw(rng: np.random.Generator, size: int, side_px: int, classes: int) -> Split:
    image = rng.integers(0, 256, (size, side_px, side_px, 3), np.uint8)
    label = rng.integers(0, classes, size, np.int32)
    return Split(image, label, np.full(size, -1, np.int32), np.array([f"noise-{i:06d}" for i in range(size)]))
