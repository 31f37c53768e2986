"""GroupDRO: Sagawa, Koh, Hashimoto, Liang, "Distributionally Robust Neural Networks for Group Shifts" (2020).

An adversary's weights q over the groups of images follow their losses, and the network descends the weighted loss. In each step

    l_g = mean CE of the batch's images in group g, 0 if there are none
    q_g <- q_g·exp(η·(l_g + C/√n_g)) / Σ_h q_h·exp(η·(l_h + C/√n_h))        n_g: images of the whole training set
    L   = Σ_g q_g·l_g                                                      no gradient through q

q begins uniform. A group that a batch lacks has loss 0 and so loses weight, as in the authors' code; with C = 0, SubpopBench's rule, that
only q of groups in the batch are multiplied, is the same. Batches are drawn from all groups alike, so that they lack few.

Differs from the authors' code: log q is kept, so that no weight ends at 0. A group has its C/√n_g from the first batch on that holds
one of its images; without any it has none (there it is infinite). The loss reported is L, without the constant that C adds to it there.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, single
from jaxbed.methods.parts import losses
from jaxbed.methods.parts.groups import Groups, Kind, reads_bias
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.values import NotNegative


@dataclasses.dataclass
class Config:
    eta: NotNegative = 0.01  # step size of log q; SubpopBench searches 0.001 to 0.1
    adjustment: NotNegative = 0.0  # C; the paper searches 0 to 5
    groups: Kind = "aligned"  # see `jaxbed.methods.parts.groups`
    balanced: bool = True  # batches are drawn from all groups alike

    @property
    def reads_bias(self) -> bool | str:
        return reads_bias(self.groups)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        return _make(self, Groups(self.groups, info.classes), info, net.make(info.classes), optim)


def means(value: jax.Array, member: jax.Array) -> jax.Array:
    """Mean of value [B] over the images of each group, 0 where there are none: [G], from member [B, G] of 0 and 1."""
    return (member * value[:, None]).sum(0) / jnp.maximum(member.sum(0), 1)


def raised(log_q: jax.Array, loss: jax.Array, size: jax.Array, eta: jax.Array | float, adjustment: jax.Array | float) -> jax.Array:
    """New log q [G] after the groups' losses, for groups of so many training images; groups of size 0 are not adjusted."""
    adjusted = jax.lax.stop_gradient(loss) + adjustment * jnp.where(size > 0, jax.lax.rsqrt(size), 0)
    return jax.nn.log_softmax(log_q + eta * adjusted)


def _make(config: Config, groups: Groups, info: Info, network: nn.Module, optim: Optim) -> Method:
    init_nets, predict = single(network)

    def memory() -> PyTree:
        return {"log_q": jnp.full(groups.number, -math.log(groups.number)), "size": jnp.zeros(groups.number)}

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        rngs = dict(zip(("dropout", "noise"), jax.random.split(key), strict=True))
        logits, stats = apply_net(network, params["net"], state.stats["net"], batch["image"], True, rngs)
        member = jax.nn.one_hot(groups.of(batch["label"], batch.get("bias")), groups.number)
        of_groups = means(losses.cross_entropy(logits, batch["label"]), member)
        size = jnp.maximum(state.memory["size"], (member * batch["group_size"][:, None]).max(0))
        log_q = raised(state.memory["log_q"], of_groups, size, state.hparams["eta"], state.hparams["adjustment"])
        value = (jnp.exp(log_q) * of_groups).sum()
        metrics = {
            "loss": value,
            "loss/worst_group": of_groups.max(),
            "accuracy": losses.accuracy(logits, batch["label"]),
            "largest_q": jnp.exp(log_q.max()),
        }
        return value, ({"net": stats}, {"log_q": log_q, "size": size}, metrics)

    def rows(label: np.ndarray, bias: np.ndarray | None) -> dict[str, np.ndarray]:
        return {"group_size": groups.sizes(label, bias)}

    hparams = {**optim.hparams(), "eta": config.eta, "adjustment": config.adjustment}
    made = from_loss(init_nets, loss, optim.transform(info), hparams, predict, memory)
    return made._replace(rows=rows, sampling=groups.sampling() if config.balanced else None)
