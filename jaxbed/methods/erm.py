"""ERM, the baseline: mean cross-entropy, binary on multi-label data sets, nothing else. Called Vanilla in the debiasing literature."""

import dataclasses
from typing import ClassVar

from jaxbed.method import Info, Method, from_net
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False
    multi_label: ClassVar[bool] = True

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        return from_net(net.make(info.classes), optim.transform(info), optim.hparams())
