"""MixStyle: Zhou, Yang, Qiao, Xiang, "Domain Generalization with MixStyle" (2021).

After stages 1 and 2, with probability p, every image's channel statistics are mixed with those of another image of the batch
(`style.mixed`), by a weight λ ~ Beta(alpha, alpha) of its own; the statistics carry no gradient. Off at evaluation. Coin, pairs and
weights are drawn for each layer and step.

pairing "crossdomain" pairs the halves of the batch with each other, as the authors do where the halves come from two domains. Batches
here come in random order, so that it only excludes that an image is paired with itself.

Differs from the authors' code: what is drawn is drawn for the global batch, and a map of a single pixel is left alone (there NaN).
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax

from jaxbed.method import Info, Method, from_net
from jaxbed.methods.parts import pairs
from jaxbed.methods.parts.pairs import Pairing
from jaxbed.models import style
from jaxbed.models.capabilities import AFTER, MAPS, Hooked, require, require_stages
from jaxbed.optim import Optim
from jaxbed.values import Positive, Share, Stage


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    p: Share = 0.5  # probability of mixing, per layer and step; 0 is ERM
    alpha: Positive = 0.1  # of Beta(alpha, alpha): the smaller, the closer all weights are to 0 or 1
    stages: tuple[Stage, ...] = (1, 2)  # after which
    pairing: Pairing = "random"

    def check_batch(self, batch_size: int) -> None:
        """Raises ValueError for a batch without pairs."""
        if self.p:
            pairs.check_size(batch_size, self.pairing)

    def make(self, info: Info, net: Hooked, optim: Optim) -> Method:
        require(net, "MixStyle mixes statistics of maps", AFTER, MAPS)
        require_stages(net, "method.stages", *self.stages)
        if not self.p:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())

        def after(part: int) -> nn.Module | None:
            return style.Restyle(MixStyle(self.p, self.alpha, self.pairing), detach=True) if part in self.stages else None

        return from_net(net.make(info.classes, after=after), optim.transform(info), optim.hparams())


class MixStyle(nn.Module):
    """For `style.restyle`: (mean, variance) -> (factor, new mean), all [N, 1, 1, C]."""

    p: float
    alpha: float
    pairing: Pairing

    @nn.compact
    def __call__(self, mean: jax.Array, var: jax.Array) -> tuple[jax.Array, jax.Array]:
        return style.mixed(mean, var, *pairs.draw(self.make_rng("noise"), len(mean), self.p, self.alpha, self.pairing))
