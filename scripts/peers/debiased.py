"""Shape-texture debiased training in PyTorch, from the equations in the docstring of jaxbed.methods.debiased."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-5  # of variances
CHANNELS = ((64, 64), (128, 128), (256, 256, 256, 256), (512,))  # outputs of VGG-19's convolutions up to relu4_1


def style_network() -> tuple[nn.Module, nn.Module]:
    """(encoder, decoder), untrained: numbers do not matter for their speed."""
    decoder: list[nn.Module] = []
    encoder, inputs = [nn.Conv2d(3, 3, 1)], 3
    for stage, outputs in enumerate(CHANNELS):
        if stage:
            encoder.append(nn.MaxPool2d(2, ceil_mode=True))
        for number, width in enumerate(outputs):
            encoder += [nn.ReflectionPad2d(1), nn.Conv2d(inputs, width, 3), nn.ReLU()]
            mirrored = [nn.ReflectionPad2d(1), nn.Conv2d(width, inputs, 3)]
            if inputs != 3:
                mirrored.append(nn.ReLU())
            if stage and not number:
                mirrored.append(nn.Upsample(scale_factor=2, mode="nearest"))
            decoder, inputs = mirrored + decoder, width
    return nn.Sequential(*encoder), nn.Sequential(*decoder)


class Debiased:
    """alpha = 0.5, gamma = 0.8; all steps are of the first half of a stage, in which stylised images have sides divided by √2 or 2.

    Fair: features of a batch are encoded once and the statistics permuted; else those of the permuted batch are encoded too.
    """

    halvings = 1  # of the area, in odd steps

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.fair, self.alpha, self.gamma, self.steps = fair, 0.5, 0.8, 0
        self.net, self.aux = build(), build()
        for own, shared in zip(self.aux.modules(), self.net.modules(), strict=True):
            if isinstance(own, nn.Conv2d | nn.Linear):
                own.weight, own.bias = shared.weight, shared.bias
        parameters = dict.fromkeys([*self.net.parameters(), *self.aux.parameters()])  # each once
        self.optimizer = optimizer(list(parameters))
        device = settings["device"]
        style = [part.to(device, memory_format=torch.channels_last).requires_grad_(False) for part in style_network()]
        self.forward, self.forward_aux, self.encode, self.decode = (compiled(part) for part in (self.net, self.aux, *style))
        self.adain = self.permuted_adain if fair else self.plain_adain
        if device.type == "cuda":
            torch._dynamo.config.automatic_dynamic_shapes = False  # kernels for each size, not for any
            self.adain = torch.compile(self.adain)

    def statistics(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        var, mean = torch.var_mean(features.float(), (2, 3), keepdim=True)
        return mean, (var + EPSILON).sqrt()

    def plain_adain(self, content: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        mean, deviation = self.statistics(content)
        new_mean, new_deviation = self.statistics(style)
        restyled = (content - mean) / deviation * new_deviation + new_mean
        return (self.alpha * restyled + (1 - self.alpha) * content).to(content.dtype)

    def permuted_adain(self, features: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        mean, deviation = self.statistics(features)
        slope = 1 + self.alpha * (deviation[order] / deviation - 1)
        return (features * slope + (mean + self.alpha * (mean[order] - mean) - slope * mean)).to(features.dtype)

    @torch.no_grad()
    def stylise(self, image: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Images in ±1, and so the result."""
        power = self.halvings + (self.steps % 2 == 0)
        sides = [int(side / math.sqrt(2) ** power + 0.5) for side in image.shape[2:]]
        small = (F.interpolate(image, size=sides, mode="nearest") + 1) / 2
        features = self.encode(small)
        features = self.adain(features, order if self.fair else self.encode(small[order]))
        return 2 * self.decode(features)[:, :, : sides[0], : sides[1]].float() - 1

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(image), device=image.device)
        stylised = self.forward_aux(self.stylise(image, order)).float()
        of_stylised = self.gamma * F.cross_entropy(stylised, label) + (1 - self.gamma) * F.cross_entropy(stylised, label[order])
        loss = (F.cross_entropy(self.forward(image).float(), label) + of_stylised) / 2
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.detach()


class DebiasedFine(Debiased):
    """All steps are of the second half of a stage: stylised images are as large as the others, or sides are divided by √2."""

    halvings = 0
