"""pAdaIN: Nuriel, Benaim, Wolf, "Permuted AdaIN: Reducing the Bias Towards Global Statistics in Image Classification" (2021).

After every convolution of the main path (stem and blocks, not shortcuts) and before its BatchNorm, with probability p, all
images of the batch swap their channel statistics by one permutation (`style.swap_statistics`). Off at evaluation. Swap and BatchNorm
are one affine map of each image's channels, and computed as one (`norm.BatchNorm`).

Differs from the published code: the coin and the permutation are drawn for the global batch, not for each device's part.
"""

import dataclasses
from typing import ClassVar

import jax

from jaxbed.method import Info, Method, PyTree, from_net
from jaxbed.methods.parts import pairs
from jaxbed.models import style
from jaxbed.models.capabilities import MAPS, NORM, Normalized, require
from jaxbed.optim import Optim
from jaxbed.values import Share


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    p: Share = 0.01  # probability of a swap, per site and step

    def make(self, info: Info, net: Normalized, optim: Optim) -> Method:
        require(net, "pAdaIN swaps statistics of maps", MAPS, NORM)
        if not self.p:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())
        network = net.make(info.classes, norm=style.permuted_norm)

        def draw(key: jax.Array, image: jax.Array) -> dict[str, PyTree]:
            pairs.check_size(len(image))
            return {"swaps": style.draw_swaps(network, self.p, image, key)}

        return from_net(network, optim.transform(info), optim.hparams(), draw)
