"""JTT: Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang, Finn, "Just Train Twice" (2021).

ERM for a few epochs; then ERM from the start, with `upweight` further copies of every training image that the first network got wrong.

Differs from the authors' code: copies are drawn, each image with a weight of 1 + upweight if it was wrong and else 1, with replacement, in
epochs of the usual length; the errors are those of one pass after training (there: of the last epoch's batches, while it trains).
The defaults are those of CelebA (1 of 50 epochs); for Waterbirds see jaxbed/presets/published.py.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from jaxbed.config import Train
from jaxbed.method import Info, Method, PyTree, Sampling, apply_net
from jaxbed.methods import erm
from jaxbed.optim import Optim
from jaxbed.training.before import Before
from jaxbed.values import Count, NotNegative


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    epochs_before: Count = 1  # of the network whose errors count
    upweight: NotNegative = 50.0  # copies of an error, beside itself; the authors search 20, 50, 100

    def before(self, cfg: Train, classes: int) -> Before:
        network = cfg.net.make(classes)

        def ask(params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
            return {"wrong": apply_net(network, params["net"], stats["net"], image, False)[0].argmax(-1) != label}

        def tables(said: dict[str, np.ndarray], label: np.ndarray, say: Callable[[str], None]) -> dict[str, np.ndarray]:
            return {"wrong": said["wrong"][0]}

        return Before("first network", erm.Config(), self.epochs_before, ask, tables)

    def make(self, info: Info, net: Any, optim: Optim) -> Method:
        def weights(label: np.ndarray, cue: np.ndarray | None, tables: dict[str, np.ndarray]) -> np.ndarray:
            return 1 + self.upweight * tables["wrong"]

        return erm.Config().make(info, net, optim)._replace(sampling=Sampling(weights))
