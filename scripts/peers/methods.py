"""The methods of jaxbed in PyTorch, from the equations in the docstrings of jaxbed.methods.

Each is a class with `step(image, label, index) -> loss`, a detached scalar on the device: one update of all its parameters.
`fair` asks for the same optimised algorithm as jaxbed's; without it, what the published descriptions suggest. `build` makes the
network or parts of it, `optimizer` an optimizer of parameters, `compiled` is torch.compile or the identity. Of a method with `weights` [N]
the last `count` images of every batch, without `count` all, are drawn by them.
"""

import math
import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from peers.augmix import AugMix
from peers.debiased import Debiased, DebiasedFine
from peers.debiasing import End, Hex, Lnl, Rebias
from peers.difficulty import DisEnt, Lff
from peers.erm import Erm
from peers.groups import GroupDro, Lisa, Resample, Reweight
from peers.layers import EPSILON, Dropped, Dsu, EFDMix, MixStyle, Swap, beta, moments
from peers.noise2net import Noise2Net
from peers.phased import BiasEnsemble, Dfr, Jtt, SoftCon


class Padain(Erm):
    def changes(self, fair: bool) -> dict:
        return {"site": lambda: Swap(fair)}


class Sagnet:
    """GridPoint "paper". Fair: each loss is differentiated for what it updates alone; else three whole backward passes."""

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


class Infodrop(Erm):
    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        def whole() -> nn.Module:
            return Dropped(build(last=1), build(first=1), settings["net"]["stem"], fair)

        super().__init__(whole, optimizer, compiled, fair, settings)


class Layered(Erm):
    """A network with `layer` after stages 1 and 2."""

    layer: type

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        def whole() -> nn.Module:
            parts = build(last=2), build(first=2, last=3), build(first=3)
            return nn.Sequential(parts[0], self.layer(fair), parts[1], self.layer(fair), parts[2])

        super().__init__(whole, optimizer, compiled, fair, settings)


class LayeredMixStyle(Layered):
    layer = MixStyle


class LayeredEFDMix(Layered):
    layer = EFDMix


class LayeredDsu(Erm):
    """Before the stem's BatchNorm, after the stem and after every stage."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        def whole() -> nn.Module:
            layers = [build(last=1, site=lambda: Dsu(fair))]
            for part in range(1, 6):
                layers += [Dsu(fair), build(first=part, last=part + 1)]
            return nn.Sequential(*layers)

        super().__init__(whole, optimizer, compiled, fair, settings)


class Rsc:
    """GridPoint "domainbed". Fair: quantiles on the device; else NumPy's, on the host, as there."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.trunk, self.head, self.fair = build(last=5), build(first=5), fair
        self.forward = compiled(self.trunk)
        self.optimizer = optimizer([*self.trunk.parameters(), *self.head.parameters()])

    def upper_third(self, x: torch.Tensor) -> torch.Tensor:
        if self.fair:
            return x >= torch.quantile(x, 2 / 3, dim=-1, keepdim=True)
        return x >= torch.from_numpy(np.percentile(x.cpu().numpy(), 200 / 3, axis=-1, keepdims=True)).to(x)

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        features = self.forward(image).float().mean((2, 3), keepdim=True)
        probed, of_label = features.detach().requires_grad_(), label[:, None]
        logits = self.head(probed)
        gradient = torch.autograd.grad(logits.gather(1, of_label).sum(), probed)[0]
        with torch.no_grad():
            masked = self.upper_third(gradient.flatten(1))[..., None, None]
            before, after = (torch.softmax(z, 1).gather(1, of_label)[:, 0] for z in (logits, self.head(features * ~masked)))
            masked &= self.upper_third(before - after)[:, None, None, None]
        loss = F.cross_entropy(self.head(features * ~masked), label)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Mixup(Erm):
    """alpha = 0.2. Fair: λ is a tensor; else a number of the host's."""

    alpha = 0.2

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        super().__init__(build, optimizer, compiled, fair, settings)
        self.fair = fair

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(image), device=image.device)
        weight = beta(self.alpha, (), image.device) if self.fair else float(np.random.beta(self.alpha, self.alpha))
        image, weight = self.mixed(image, image[order], weight)
        logits = self.forward(image).float()
        loss = weight * F.cross_entropy(logits, label) + (1 - weight) * F.cross_entropy(logits, label[order])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def mixed(self, image: torch.Tensor, other: torch.Tensor, weight: torch.Tensor | float) -> tuple:
        return weight * image + (1 - weight) * other, weight


class CutMix(Mixup):
    """In every step, alpha = 1. Fair: the box is a mask; else a slice."""

    alpha = 1.0

    def mixed(self, image: torch.Tensor, other: torch.Tensor, weight: torch.Tensor | float) -> tuple:
        sides = image.shape[2:]
        if self.fair:
            inside = []
            for side, at in zip(sides, torch.rand(2, device=image.device), strict=True):
                half = torch.floor(side * torch.sqrt(1 - weight)) // 2
                distance = torch.arange(side, device=image.device) - torch.floor(side * at)
                inside.append((distance >= -half) & (distance < half))
            pasted = inside[0][:, None] & inside[1]
            return torch.where(pasted, other, image), 1 - pasted.float().mean()
        bounds = []
        for side in sides:
            half, centre = int(side * math.sqrt(1 - weight)) // 2, random.randrange(side)
            bounds.append(slice(max(centre - half, 0), min(centre + half, side)))
        image[:, :, bounds[0], bounds[1]] = other[:, :, bounds[0], bounds[1]]
        area = math.prod(bound.stop - bound.start for bound in bounds)
        return image, 1 - area / math.prod(sides)


METHODS: dict[str, type] = {
    "erm": Erm,
    "padain": Padain,
    "sagnet": Sagnet,
    "lff": Lff,
    "infodrop": Infodrop,
    "mixstyle": LayeredMixStyle,
    "dsu": LayeredDsu,
    "efdmix": LayeredEFDMix,
    "rsc": Rsc,
    "mixup": Mixup,
    "cutmix": CutMix,
    "augmix": AugMix,
    "noise2net": Noise2Net,
    "end": End,
    "lnl": Lnl,
    "rebias": Rebias,
    "hex": Hex,
    "debiased": Debiased,
    "debiased_fine": DebiasedFine,
    "groupdro": GroupDro,
    "lisa": Lisa,
    "reweight": Reweight,
    "resample": Resample,
    "disent": DisEnt,
    "biasensemble": BiasEnsemble,
    "softcon": SoftCon,
    "jtt": Jtt,
    "dfr": Dfr,
}
