"""EFDMix: Zhang, Li, Li, Jia, Zhang, "Exact Feature Distribution Matching for Arbitrary Style Transfer and Domain Generalization" (2022).

MixStyle with all of a channel's values instead of their mean and deviation. After stages 1 and 2, with probability p, each image x
becomes λ·x + (1 - λ)·m: m has x's order of pixels and the values of the same channel in another image of the batch, and λ ~
Beta(alpha, alpha) is the image's own. The gradient is that of x + (1 - λ)·m. Off at evaluation. Coin, pairs and weights are drawn for
each layer and step; for pairing "crossdomain" see `mixstyle`.

Differs from the authors' code: what is drawn is drawn for the global batch, and of equal values the upper left comes first (there any).
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxbed.method import Info, Method, from_net
from jaxbed.methods.parts import pairs
from jaxbed.methods.parts.pairs import Pairing
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
        require(net, "EFDMix mixes values of maps", AFTER, MAPS)
        require_stages(net, "method.stages", *self.stages)
        if not self.p:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())

        def after(part: int) -> nn.Module | None:
            return EFDMix(self.p, self.alpha, self.pairing) if part in self.stages else None

        return from_net(net.make(info.classes, after=after), optim.transform(info), optim.hparams())


class EFDMix(nn.Module):
    """x [N, H, W, C] mixed in training."""

    p: float
    alpha: float
    pairing: Pairing

    @nn.compact
    def __call__(self, x: jax.Array, entered: jax.Array, train: bool) -> jax.Array:
        return mixed(x, *pairs.draw(self.make_rng("noise"), len(x), self.p, self.alpha, self.pairing)) if train else x


def mixed(x: jax.Array, order: jax.Array, weight: jax.Array) -> jax.Array:
    """weight·x + (1 - weight)·(x with the values of image order[i]), weight [N]; in the gradient the first term counts as x.

    With weight 1 it is x, and so is its gradient, to the last bit.
    """
    flat = x.reshape(len(x), -1, x.shape[-1])
    change = matched(flat, order).astype(jnp.float32) - lax.stop_gradient(flat)
    return (flat + (1 - weight[:, None, None]) * change).astype(x.dtype).reshape(x.shape)


@jax.custom_vjp
def matched(x: jax.Array, order: jax.Array) -> jax.Array:
    """x [N, pixels, C] with the values of image order[i], its k-th smallest where x has its k-th smallest, channel by channel.

    Its gradient goes to those values. It is a permutation of pixels, and so is the transpose, which is written out: derived, it would
    be sums over colliding indices.
    """
    return _matched(x, order)[0]


def _matched(x: jax.Array, order: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    value, position = lax.sort((x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), dimension=1, num_keys=1, is_stable=True)
    return _at(position, value[order]), (position, order)


def _transposed(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, None]:
    position, order = saved
    return _at(position, jnp.take_along_axis(gradient, position, 1)[jnp.argsort(order)]), None


def _at(position: jax.Array, value: jax.Array) -> jax.Array:
    """The pixels value [N, k, C] at their places."""

    def one(position: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.zeros_like(value).at[position].set(value, unique_indices=True)

    return jax.vmap(jax.vmap(one, (1, 1), 1))(position, value)


matched.defvjp(_matched, _transposed)
