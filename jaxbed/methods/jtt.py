"""JTT: Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang, Finn, "Just Train Twice" (2021).

ERM for a few epochs; then ERM from the start, with `upweight` further copies of every training image that the first network got wrong.

Differs from the authors' code: copies are drawn, each image with a weight of 1 + upweight if it was wrong and else 1, with replacement, in
epochs of the usual length; the errors are those of one pass after training (there: of the last epoch's batches, while it trains).
The defaults are those of CelebA (1 of 50 epochs); for Waterbirds see jaxbed/presets/published.py.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import numpy as np

from jaxbed.config import Train
from jaxbed.method import Info, Method, PyTree, Sampling
from jaxbed.methods import erm
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.stages import Stage
from jaxbed.values import Count, NotNegative


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    epochs_before: Count = 1  # of the network whose errors count
    upweight: NotNegative = 50.0  # copies of an error, beside itself; the authors search 20, 50, 100

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]:
        def errors(method: Method, params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
            return {"wrong": method.predict(params, stats, image).argmax(-1) != label}

        def columns(outputs: dict[str, np.ndarray], label: np.ndarray, say: Callable[[str], None]) -> dict[str, np.ndarray]:
            return {"wrong": outputs["wrong"][0]}

        first = dataclasses.replace(cfg, method=erm.Config(), epochs=self.epochs_before)
        return Stage("first network", first, outputs=errors), Stage("", cfg, columns=columns)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        def weights(label: np.ndarray, bias: np.ndarray | None, tables: dict[str, np.ndarray]) -> np.ndarray:
            return 1 + self.upweight * tables["wrong"]

        return erm.Config().make(info, net, optim)._replace(sampling=Sampling(weights))
