"""Layers and networks that the methods of `peers.methods` need beyond PyTorch's, from the equations in the docstrings of jaxbed.methods."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from peers.networks import STEMS

EPSILON = 1e-5  # of variances
SMALL_EPSILON = 1e-6  # the same in MixStyle and DSU


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and unbiased variance over the map, [N, C, 1, 1] float32."""
    wide = x.float()
    return wide.mean((2, 3), keepdim=True), wide.var((2, 3), keepdim=True)


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


class Dropped(nn.Module):
    """A network whose stem's output is dropped by InfoDrop: r0 = 1.5, T = 0.03, h = 1, R = 3, M = 9. Not rescaled.

    Fair: offsets are a tensor, and pixels drop independently with the multinomial's probability. Else offsets on the host and
    N = r0·height·width draws for every image and channel.
    """

    def __init__(self, stem: nn.Module, rest: nn.Module, geometry: str, fair: bool):
        super().__init__()
        self.stem, self.rest, self.fair = stem, rest, fair
        (self.kernel, self.stride), self.pooled = STEMS[geometry], geometry == "imagenet"
        self.rate, self.temperature, self.radius, self.offsets = 1.5, 0.03, 3, 9

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.stem(image)
        if self.training:
            kept = self.kept(image, maps) if self.fair else self.undrawn(image, maps)
            maps = maps * kept.to(maps.dtype)
        return self.rest(maps)

    @torch.no_grad()
    def kept(self, image: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        reach, padding = self.radius, self.kernel // 2
        padded = F.pad(image, [padding + reach] * 4)
        height, width = (side + 2 * padding for side in image.shape[2:])
        down, right = torch.randint(0, 2 * reach + 1, (2, self.offsets, 1), device=image.device)
        rows, columns = down + torch.arange(height, device=image.device), right + torch.arange(width, device=image.device)
        moved = padded[:, :, rows[:, :, None], columns[:, None]]  # [N, C, M, height, width]
        still = padded[:, :, None, reach : reach + height, reach : reach + width]
        probability = self.probability((moved - still).square().sum(1))
        keep = torch.exp(self.draws(maps) * torch.log1p(-probability.clamp(max=1)))
        return torch.rand_like(maps, dtype=torch.float32) < keep.view(len(maps), 1, *maps.shape[2:])

    @torch.compiler.disable  # numbers drawn on the host
    @torch.no_grad()
    def undrawn(self, image: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        reach, padding = self.radius, self.kernel // 2
        padded = F.pad(image, [padding + reach] * 4)
        height, width = (side + 2 * padding for side in image.shape[2:])
        still, apart = padded[:, :, reach : reach + height, reach : reach + width], []
        for _ in range(self.offsets):
            down, right = (random.randint(0, 2 * reach) for _ in range(2))
            apart.append((padded[:, :, down : down + height, right : right + width] - still).square().sum(1))
        images, channels, height, width = maps.shape
        probability = self.probability(torch.stack(apart, 1))[:, None].expand(-1, channels, -1).reshape(images * channels, -1)
        drawn = torch.multinomial(probability, self.draws(maps), replacement=True)
        return torch.ones_like(probability).scatter_(1, drawn, 0.0).view(maps.shape)

    def draws(self, maps: torch.Tensor) -> int:
        return int(self.rate * maps.shape[2] * maps.shape[3])

    def probability(self, apart: torch.Tensor) -> torch.Tensor:
        """[N, pixels] of the stem's output, from [N, M, height, width]: squared differences of the padded images."""
        distance = F.avg_pool2d(apart, self.kernel, self.stride, divisor_override=1)  # a sum over each patch
        log_density = torch.logsumexp(-distance / (2 * distance.mean()), 1) - math.log(self.offsets)
        if self.pooled:
            log_density = -F.max_pool2d(-log_density, 3, 2, 1)
        return torch.softmax(log_density.flatten(1) / self.temperature, 1) + 1e-8


def beta(alpha: float, shape: tuple, device: torch.device) -> torch.Tensor:
    """Draws from Beta(alpha, alpha) of two uniform numbers each, as jaxbed.methods.parts.pairs.weights."""
    radius, angle = torch.rand((2, *shape), device=device)
    cosine = torch.cos(2 * math.pi * angle)
    square = torch.expm1(-torch.log(radius) / alpha) * cosine.square()
    return 0.5 + 0.5 * torch.sign(cosine) * torch.rsqrt(1 + 1 / square)


class MixStyle(nn.Module):
    """p = 0.5, alpha = 0.1. Fair: all draws are tensors, tails is weight 1, and the layer is one affine map; else a Python coin."""

    def __init__(self, fair: bool, p: float = 0.5, alpha: float = 0.1):
        super().__init__()
        self.fair, self.p, self.alpha = fair, p, alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        if not self.fair:
            return self.mixed(x, *self.draw_on_host(x)) if random.random() < self.p else x
        coin = torch.rand((), device=x.device) < self.p
        weight = torch.where(coin, beta(self.alpha, (len(x), 1, 1, 1), x.device), 1.0)
        return self.mixed(x, torch.randperm(len(x), device=x.device), weight)

    @torch.compiler.disable
    def draw_on_host(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randperm(len(x)), torch.distributions.Beta(self.alpha, self.alpha).sample((len(x), 1, 1, 1)).to(x.device)

    def mixed(self, x: torch.Tensor, order: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean, var = moments(x.detach())
        deviation = (var + SMALL_EPSILON).sqrt()
        new_mean = weight * mean + (1 - weight) * mean[order]
        new_deviation = weight * deviation + (1 - weight) * deviation[order]
        if not self.fair:
            return ((x - mean) / deviation * new_deviation + new_mean).to(x.dtype)
        slope = new_deviation / deviation
        return (x * slope + (new_mean - slope * mean)).to(x.dtype)


class EFDMix(MixStyle):
    """Fair: ranks are undone by a scatter; else by sorting the places, as is usual."""

    def mixed(self, x: torch.Tensor, order: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        value, place = x.flatten(2).sort(dim=2, stable=True)
        if self.fair:
            matched = torch.empty_like(value).scatter(2, place, value[order])
        else:
            matched = value[order].gather(2, place.argsort(2))
        return (x + (1 - weight) * (matched.reshape(x.shape) - x.detach())).to(x.dtype)


class Dsu(nn.Module):
    """p = 0.5. Fair: all draws are tensors, tails is noise 0, and the layer is one affine map; else a Python coin."""

    def __init__(self, fair: bool, p: float = 0.5):
        super().__init__()
        self.fair, self.p = fair, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or x.shape[2] * x.shape[3] == 1 or (not self.fair and random.random() >= self.p):
            return x
        mean, var = moments(x)
        deviation = (var + SMALL_EPSILON).sqrt()
        spread_of_mean, spread = ((a.var(0, keepdim=True) + SMALL_EPSILON).sqrt() for a in (mean, deviation))
        noise = torch.randn((2, *mean.shape), device=x.device)
        if not self.fair:
            return ((x - mean) / deviation * (deviation + noise[1] * spread) + mean + noise[0] * spread_of_mean).to(x.dtype)
        noise = torch.where(torch.rand((), device=x.device) < self.p, noise, 0.0)
        slope = 1 + noise[1] * spread / deviation
        return (x * slope + (mean + noise[0] * spread_of_mean - slope * mean)).to(x.dtype)
