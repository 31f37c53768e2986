"""ERM, pAdaIN, SagNet and LfF in PyTorch, from the equations in the docstrings of jaxbed.methods.

Each is a class with `step(image, label, index) -> loss`, a detached scalar on the device: one update of all its parameters.
`fair` asks for the same optimised algorithm as jaxbed's; without it, what the published descriptions suggest. `build` makes the
network or parts of it, `optimizer` an optimizer of parameters, `compiled` is torch.compile or the identity.
"""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-5  # of variances


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and unbiased variance over the map, [N, C, 1, 1] float32."""
    wide = x.float()
    return wide.mean((2, 3), keepdim=True), wide.var((2, 3), keepdim=True)


class Erm:
    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.net = build(**self.changes(fair))
        self.forward = compiled(self.net)
        self.optimizer = optimizer(self.net.parameters())

    def changes(self, fair: bool) -> dict:
        return {}

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.forward(image).float(), label)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Swap(nn.Module):
    """pAdaIN's site, p = 0.01. Fair: coin and permutation are tensors, so that nothing depends on the host; else a Python coin."""

    def __init__(self, fair: bool, p: float = 0.01):
        super().__init__()
        self.fair, self.p = fair, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or x.shape[2] * x.shape[3] == 1:
            return x
        if not self.fair:
            return self.swap(x) if random.random() < self.p else x
        return torch.where(torch.rand((), device=x.device) < self.p, self.swap(x), x)

    def swap(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = moments(x)
        deviation = (var + EPSILON).sqrt()
        order = torch.randperm(x.shape[0], device=x.device)
        style_mean, style_deviation = mean[order].detach(), deviation[order].detach()
        return (style_deviation * (x - mean) / (deviation + EPSILON) + style_mean).to(x.dtype)


class Padain(Erm):
    def changes(self, fair: bool) -> dict:
        return {"site": lambda: Swap(fair)}


class Sagnet:
    """Variant "paper". Fair: each loss is differentiated for what it updates alone; else three whole backward passes."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        cut, self.w_adv, self.clip, self.fair = 3, 0.1, 0.1, fair
        self.trunk, self.content, self.style = build(last=cut), build(first=cut), build(first=cut)
        self.parts = [compiled(part) for part in (self.trunk, self.content, self.style)]
        norms = [m for m in self.trunk.modules() if isinstance(m, nn.BatchNorm2d)]
        self.owned = [
            list(self.style.parameters()),
            [p for norm in norms for p in norm.parameters()],
            [*self.trunk.parameters(), *self.content.parameters()],
        ]
        self.all = [*self.trunk.parameters(), *self.content.parameters(), *self.style.parameters()]
        self.optimizers = [optimizer(owned) for owned in self.owned]

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        trunk, content, style = self.parts
        maps = trunk(image)
        size, device = image.shape[0], image.device
        order, other = torch.randperm(size, device=device), torch.randperm(size, device=device)
        weight = torch.rand((size, 1, 1, 1), device=device)
        mean, var = moments(maps)
        normal = (maps - mean) / (var + EPSILON).sqrt()
        new_mean = weight * mean + (1 - weight) * mean[order]
        new_var = weight * var + (1 - weight) * var[order]
        restyled = ((new_var + EPSILON).sqrt() * normal + new_mean).to(maps.dtype)
        recontent = ((var + EPSILON).sqrt() * normal.detach()[other] + mean).to(maps.dtype)
        logits, styled = content(restyled).float(), style(recontent).float()
        losses = [
            F.cross_entropy(styled, label),
            -self.w_adv * torch.log(torch.softmax(styled, 1) + 1e-5).mean(),
            F.cross_entropy(logits, label),
        ]
        grads = []
        for i, (loss, owned) in enumerate(zip(losses, self.owned, strict=True)):
            wanted = owned if self.fair else self.all
            found = torch.autograd.grad(loss, wanted, retain_graph=i < 2, allow_unused=not self.fair)
            by_parameter = dict(zip(wanted, found, strict=True))
            grads.append([by_parameter[p] for p in owned])
        for i, (owned, gradient, optimizer) in enumerate(zip(self.owned, grads, self.optimizers, strict=True)):
            for parameter, g in zip(owned, gradient, strict=True):
                parameter.grad = g
            if i == 1:
                nn.utils.clip_grad_norm_(owned, self.clip)
            optimizer.step()
        return losses[2].detach()


class Lff:
    """q = alpha = 0.7; tables [N] on the device, class maxima by a scatter."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.nets = [build(), build()]
        self.forwards = [compiled(net) for net in self.nets]
        self.optimizer = optimizer([p for net in self.nets for p in net.parameters()])
        self.q, self.alpha, self.classes = 0.7, 0.7, settings["classes"]
        rows, device = settings["images"], settings["device"]
        self.average, self.seen = torch.zeros((2, rows), device=device), torch.zeros(rows, device=device)
        self.class_of = torch.zeros(rows, dtype=torch.int64, device=device)

    def relative(self, which: int, loss: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Average loss of each sample [B], divided by the largest of its class over the whole table."""
        table = self.average[which]
        table[index] = self.alpha * table[index] + (1 - self.alpha * self.seen[index]) * loss
        largest = torch.zeros(self.classes, device=loss.device).scatter_reduce(0, self.class_of, table, "amax")
        return table[index] / (largest[label] + 1e-8)

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        biased, debiased = (F.cross_entropy(forward(image).float(), label, reduction="none") for forward in self.forwards)
        with torch.no_grad():
            self.class_of[index] = label
            of_biased = self.relative(0, biased.detach(), label, index)
            of_debiased = self.relative(1, debiased.detach(), label, index)
            self.seen[index] = 1.0
            weight = of_biased / (of_biased + of_debiased + 1e-8)
        loss_biased = (self.q * torch.exp(-self.q * biased.detach()) * biased).mean()
        loss_debiased = (weight * debiased).mean()
        self.optimizer.zero_grad(set_to_none=True)
        (loss_biased + loss_debiased).backward()
        self.optimizer.step()
        return loss_debiased.detach()


METHODS = {"erm": Erm, "padain": Padain, "sagnet": Sagnet, "lff": Lff}
