"""DSU: Li, Dai, Ge, Liu, Shan, Duan, "Uncertainty Modeling for Out-of-Distribution Generalization" (2022).

At six places (after the stem's convolution and before its BatchNorm, after the stem, after each stage), with probability p, Gaussian
noise is added to every image's channel means and deviations, as large as these spread over the batch (`style.perturbed`). Gradients
pass everywhere. Off at evaluation. Coin and noise are drawn for each place and step. The first place is part of its BatchNorm and
costs nothing beyond it.

Differs from the authors' code: the spread is the global batch's, and a map of a single pixel is left alone (there NaN).
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxbed.method import Info, Method, from_net
from jaxbed.models import style
from jaxbed.models.capabilities import AFTER, MAPS, NORM, HookedNormalized, require
from jaxbed.models.norm import BatchNorm
from jaxbed.optim import Optim
from jaxbed.values import Share


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    p: Share = 0.5  # probability of noise, per place and step; 0 is ERM

    def make(self, info: Info, net: HookedNormalized, optim: Optim) -> Method:
        require(net, "DSU perturbs statistics of maps", AFTER, MAPS, NORM)
        if not self.p:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())

        def norm(name: str) -> nn.Module:
            return BatchNorm(Perturb(self.p) if name == "stem_norm" else None, name=name)

        network = net.make(info.classes, norm=norm, after=lambda part: style.Restyle(Perturb(self.p)))
        return from_net(network, optim.transform(info), optim.hparams())


class Perturb(nn.Module):
    """For `style.restyle` and `norm.BatchNorm`: (mean, variance) -> (factor, new mean), all [N, 1, 1, C]."""

    p: float

    @nn.compact
    def __call__(self, mean: jax.Array, var: jax.Array) -> tuple[jax.Array, jax.Array]:
        if len(mean) < 2:
            raise ValueError(f"batch_size = {len(mean)} has no spread between images: take 2 or more")
        coin_key, noise_key = jax.random.split(self.make_rng("noise"))
        noise = jax.random.normal(noise_key, (2, *mean.shape))
        return style.perturbed(mean, var, jnp.where(jax.random.bernoulli(coin_key, self.p), noise, 0.0))
