"""EnD, LNL, ReBias and HEX in PyTorch, from the equations in the docstrings of jaxbed.methods.

Bias labels, where a method reads them, are drawn once: the images are noise, and speed does not depend on them.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from peers import networks


class Pooled(nn.Module):
    """Features [N, F] float32, of maps or vectors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().mean((2, 3)) if x.ndim == 4 else x.float()


class Flat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def cut(build: Callable, settings: dict, middle: bool = False) -> tuple[nn.Module, nn.Module]:
    """A network in two: before and after its head, or in the middle; what is before the head gives maps or vectors."""
    if settings["net"]["kind"] == "mlp":
        layers = build().layers
        hidden = len(layers) // 2
        at = 2 * ((hidden + 1) // 2 if middle else hidden)
        return nn.Sequential(Flat(), *layers[:at]), layers[at:] if middle else layers[at]
    parts = networks.PARTS
    at = parts // 2 if middle else parts - 1
    after = build(first=at)
    return build(last=at), after if middle else after[0].linear


def descend(loss: torch.Tensor, optimizers: list, owned: list) -> None:
    """Optimizers step by the gradient of their parameters, and no other parameter gets one."""
    found = torch.autograd.grad(loss, list(itertools.chain(*owned)))
    for parameter, gradient in zip(itertools.chain(*owned), found, strict=True):
        parameter.grad = gradient
    for optimizer in optimizers:
        optimizer.step()


class End:
    """alpha = beta = 0.1. Fair: masks of pairs; else a loop over the values of the bias that occur, as published."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.trunk, self.head = cut(build, settings)
        self.forward, self.pool, self.fair, self.classes = compiled(self.trunk), Pooled(), fair, settings["classes"]
        self.optimizer = optimizer([*self.trunk.parameters(), *self.head.parameters()])
        self.alpha = self.beta = 0.1
        self.bias = torch.randint(self.classes, (settings["images"],), device=settings["device"])

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        features, bias = self.pool(self.forward(image)), self.bias[index]
        loss = F.cross_entropy(self.head(features), label)
        direction = F.normalize(features)
        similarity = (direction @ direction.T).clamp(-1, 1)
        pair = torch.ones_like(similarity, dtype=torch.bool).tril(-1)
        same = pair & (bias[:, None] == bias)
        if self.fair:
            sums = torch.zeros(self.classes, device=image.device).index_add(0, bias, (similarity * same).sum(1))
            apart = sums.abs().sum()
        else:
            apart = sum((similarity * (same & (bias == value)[:, None])).sum().abs() for value in bias.unique())
        other = pair & (bias[:, None] != bias) & (label[:, None] == label)
        together = ((1 - similarity) / 2 * other).sum() / other.sum().clamp(min=1)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + self.alpha * apart / same.sum().clamp(min=1) + self.beta * together).backward()
        self.optimizer.step()
        return loss.detach()


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is multiplied by -0.1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -0.1 * gradient


class Lnl:
    """Entropy weight 0.01. Fair: the second update runs f and h alone; else the whole network, as published."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        device, classes = settings["device"], settings["classes"]
        self.lower, self.upper = cut(build, settings, middle=True)
        with torch.no_grad():
            side = settings["side_px"]
            middle = self.lower.eval()(torch.zeros((1, 3, side, side), device=device))
        self.lower.train()
        size = middle.shape[1]
        hidden = [] if middle.ndim == 4 else [nn.Linear(size, size), nn.ReLU()]
        self.predictor = nn.Sequential(Pooled(), *hidden, nn.Linear(size, classes)).to(device)
        self.forward, self.finish, self.fair, self.weight = compiled(self.lower), compiled(self.upper), fair, 0.01
        self.bias = torch.randint(classes, (settings["images"],), device=device)
        self.owned = [list(part.parameters()) for part in (self.lower, self.upper, self.predictor)]
        self.optimizers = [optimizer(owned) for owned in self.owned]

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        maps = self.forward(image)
        loss = F.cross_entropy(self.finish(maps).float(), label)
        log_q = F.log_softmax(self.predictor(maps), 1)
        undecided = (log_q.exp() * log_q).sum(1).mean()
        descend(loss + self.weight * undecided, self.optimizers[:2], self.owned[:2])
        maps = self.forward(image)
        if not self.fair:
            self.finish(maps)
        of_bias = F.cross_entropy(self.predictor(Reversed.apply(maps)), self.bias[index])
        descend(of_bias, self.optimizers[::2], self.owned[::2])
        return loss.detach()


def kernel(x: torch.Tensor) -> torch.Tensor:
    """Gaussian, of width 1, with zeros on the diagonal."""
    x = x - x.mean(0).detach()
    square = x.square().sum(1)
    return torch.exp(-(square[:, None] + square - 2 * x @ x.T).clamp(min=0) / 2) * (1 - torch.eye(len(x), device=x.device))


def hsic(k: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    m, of_k, of_other = len(k), k.sum(1), other.sum(1)
    pairs = (k * other).sum() + of_k.sum() * of_other.sum() / ((m - 1) * (m - 2)) - 2 / (m - 2) * (of_k * of_other).sum()
    return pairs / (m * (m - 3))


class Rebias:
    """Weights and sigma 1. Fair: f runs once a step; else before either update, as published."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        nets = [cut(build, settings), self.biased(build, settings)]
        self.trunks, self.heads = zip(*nets, strict=True)
        self.forwards, self.pool, self.fair = [compiled(trunk) for trunk in self.trunks], Pooled(), fair
        self.owned = [[*trunk.parameters(), *head.parameters()] for trunk, head in nets]
        self.optimizers = [optimizer(owned) for owned in self.owned]

    @staticmethod
    def biased(build: Callable, settings: dict) -> tuple[nn.Module, nn.Module]:
        if settings["net"]["kind"] != "mlp":
            trunk, head = cut(build, settings)
            for block in trunk.modules():
                if isinstance(block, networks.Block):
                    for i, layer in enumerate(block.main):
                        if isinstance(layer, nn.Conv2d):
                            block.main[i] = networks.conv(layer.in_channels, layer.out_channels, 1, layer.stride[0])
        else:
            layers = []
            for inputs, outputs in itertools.pairwise((3, 16, 32, 64, 128)):
                layers += [networks.conv(inputs, outputs, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            trunk, head = nn.Sequential(*layers), nn.Linear(outputs, settings["classes"])
        return trunk.to(settings["device"], memory_format=torch.channels_last), head.to(settings["device"])

    def run(self, which: int, image: torch.Tensor) -> torch.Tensor:
        return self.pool(self.forwards[which](image))

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        features, biased = self.run(0, image), self.run(1, image)
        dependence = hsic(kernel(biased), kernel(features.detach()))
        descend(F.cross_entropy(self.heads[1](biased), label) - dependence, self.optimizers[1:], self.owned[1:])
        with torch.no_grad():
            of_biased = kernel(self.run(1, image))
        if not self.fair:
            features = self.run(0, image)
        loss = F.cross_entropy(self.heads[0](features), label)
        descend(loss + hsic(kernel(features), of_biased), self.optimizers[:1], self.owned[:1])
        return loss.detach()


class Hex:
    """16 grey levels, 32 units. Fair: co-occurrences are counted, then weighed; else every pixel is, for every threshold, as published."""

    levels, units, side_px = 16, 32, 56

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        device, classes = settings["device"], settings["classes"]
        self.trunk, self.head = cut(build, settings)
        self.forward, self.pool, self.fair = compiled(self.trunk), Pooled(), fair
        self.hidden = nn.Linear(self.levels**2, self.units).to(device)
        self.kernel = nn.Parameter((2 * torch.rand((self.units, classes), device=device) - 1) * self.units**-0.5)
        self.thresholds = nn.Parameter(self.levels * torch.rand((2, self.levels), device=device))
        modules = (self.trunk, self.head, self.hidden)
        self.optimizer = optimizer([*(p for m in modules for p in m.parameters()), self.kernel, self.thresholds])

    def quantized(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(level, its difference to the left neighbour), [N, pixels]."""
        grey = torch.einsum("nchw,c->nhw", image / 2 + 0.5, torch.tensor((0.299, 0.587, 0.114), device=image.device))
        factor = max(grey.shape[1] // self.side_px, 1)
        grey = F.avg_pool2d(grey[:, None], factor)[:, 0]
        level = (grey / grey.amax((1, 2), keepdim=True) * (self.levels - 1)).floor().clamp(min=0)
        return level.flatten(1), F.pad(level[:, :, :-1] - level[:, :, 1:], (1, 0)).flatten(1)

    def matrix(self, image: torch.Tensor) -> torch.Tensor:
        level, difference = self.quantized(image)
        of_difference, of_level = self.thresholds[:, None]
        if not self.fair:
            weighed = (difference[..., None] - of_difference).clamp(1e-5, 1), (level[..., None] - of_level).clamp(1e-5, 1)
            return weighed[0].transpose(1, 2) @ weighed[1]
        values = 2 * self.levels - 1
        place = ((difference + self.levels - 1) * self.levels + level).long()
        counts = torch.zeros((len(image), values * self.levels), device=image.device).scatter_add(1, place, torch.ones_like(level))
        steps = torch.arange(1 - self.levels, self.levels, device=image.device)[:, None]
        left, right = (steps - of_difference).clamp(1e-5, 1), (steps[self.levels - 1 :] - of_level).clamp(1e-5, 1)
        return left.T @ counts.view(-1, values, self.levels) @ right

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.forward(image))
        logits = self.head(F.normalize(features) * features.shape[1] ** 0.5)
        hidden = torch.relu(self.hidden(self.matrix(image).flatten(1)))
        own = F.normalize(hidden) * self.units**0.5 @ self.kernel
        of_all, superficial = logits + own, own + self.head.bias
        gram = superficial.T @ superficial
        regular = gram + 1e-5 * gram.trace() * torch.eye(len(gram), device=image.device)
        projected = of_all - superficial @ torch.linalg.solve(regular, superficial.T @ of_all)
        loss = F.cross_entropy(projected, label)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()
