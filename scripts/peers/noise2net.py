"""Noise2Net in PyTorch, from the equations in jaxbed.data.noise2net: half of every batch passes through networks of random weights.

Kinds of convolutions are drawn once, in the proportions of their law: half of them 1 x 1, and a sixth 3 x 3 with each dilation. So no epoch
compiles anything.
"""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from peers.erm import Erm
from peers.layers import EPSILON

BLOCKS, SLICES, HIDDEN, STRENGTH = 4, 4, 16, 0.75
KINDS = [0] * 6 + [1, 1, 2, 2, 3, 3]  # 0: 1 x 1, else the dilation of a 3 x 3 kernel


class Stock(nn.Module):
    """The batch folded into channels, [1, B·C, H, W]: convolutions of B groups, and BatchNorm in training mode is instance norm."""

    def __init__(self, seed: int):
        super().__init__()
        kinds = random.Random(seed).sample(KINDS, len(KINDS))
        self.kinds = [kinds[i : i + SLICES - 1] for i in range(0, len(kinds), SLICES - 1)]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x, eps = self.enter(image), STRENGTH * (0.5 + 0.5 * torch.rand((), device=image.device))
        for kinds in self.kinds:
            x = x + eps * self.block(x, len(image), kinds).to(x.dtype)
        return x.reshape(image.shape)

    def enter(self, image: torch.Tensor) -> torch.Tensor:
        return image.reshape(1, -1, *image.shape[2:])

    def block(self, x: torch.Tensor, images: int, kinds: list[int]) -> torch.Tensor:
        sides = x.shape[2:]
        maps = self.active(self.convolved(x, images, 3, SLICES * HIDDEN, 0)).reshape(images, SLICES, HIDDEN, *sides)
        outputs: list[torch.Tensor] = []
        for number, kind in enumerate(kinds):
            given = maps[:, number] + outputs[-1] if outputs else maps[:, number]
            given = self.active(self.convolved(self.enter(given), images, HIDDEN, HIDDEN, kind))
            outputs.append(given.reshape(images, HIDDEN, *sides))
        joined = self.enter(torch.cat([*outputs, maps[:, -1]], 1))
        return self.normalised(self.convolved(joined, images, SLICES * HIDDEN, 3, 0))

    def active(self, maps: torch.Tensor) -> torch.Tensor:
        return F.relu(self.normalised(maps))

    def normalised(self, maps: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(maps, None, None, training=True, eps=EPSILON)

    def convolved(self, x: torch.Tensor, images: int, inputs: int, outputs: int, kind: int) -> torch.Tensor:
        size = 3 if kind else 1
        bound = (inputs * size**2) ** -0.5
        weight = torch.empty((images * outputs, inputs, size, size), device=x.device).uniform_(-bound, bound)
        return F.conv2d(x, weight, padding=kind, dilation=max(kind, 1), groups=images)


class Fair(Stock):
    """The batch as it is, [B, C, H, W]: each tap of a kernel is a product of batched matrices."""

    def enter(self, image: torch.Tensor) -> torch.Tensor:
        return image

    def normalised(self, maps: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(maps.float(), eps=EPSILON)

    def convolved(self, x: torch.Tensor, images: int, inputs: int, outputs: int, kind: int) -> torch.Tensor:
        size, (height, width) = 3 if kind else 1, x.shape[2:]
        bound = (inputs * size**2) ** -0.5
        weight = torch.empty((size, size, images, outputs, inputs), device=x.device).uniform_(-bound, bound)
        padded = F.pad(x, [kind] * 4)
        total: Any = 0
        for i in range(size):
            for j in range(size):
                seen = padded[:, :, i * kind : i * kind + height, j * kind : j * kind + width]
                total = total + torch.bmm(weight[i, j], seen.flatten(2))
        return total.view(images, outputs, height, width)


class Noise2Net(Erm):
    """Half of the batch, its first images."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        super().__init__(build, optimizer, compiled, fair, settings)
        self.noisy = compiled((Fair if fair else Stock)(settings["seed"]))

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        half = len(image) // 2
        with torch.no_grad():
            changed = self.noisy(image[:half].contiguous())
        changed = changed.contiguous(memory_format=torch.channels_last)
        return super().step(torch.cat([changed, image[half:]]), label, index)
