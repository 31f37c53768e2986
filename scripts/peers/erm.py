"""Mean cross-entropy of one network in PyTorch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F


class Erm:
    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.net = build(**self.changes(fair))
        self.forward = compiled(self.net)
        self.optimizer = optimizer(self.net.parameters())

    def changes(self, fair: bool) -> dict:
        return {}

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.update(F.cross_entropy(self.forward(image).float(), label))

    def update(self, loss: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
