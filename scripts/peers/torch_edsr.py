"""EDSR with DeepAugment's distortions in stock PyTorch, one image per call: the peer of `generating`."""

import random

import torch
from torch import nn
from torch.nn import functional

MEAN = (114.444, 111.4605, 103.02)  # of DIV2K, in levels
THIRDS, FOURTHS = (0, 3, 6, 9), (1, 5, 9)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Network(nn.Module):
    """Its random choices are made in Python; what lies between them is compiled."""

    def __init__(self, width: int, blocks: int, compiled: bool):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN)[None, :, None, None], persistent=False)
        self.head = nn.Sequential(nn.Conv2d(3, width, 3, padding=1))
        self.body = nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Conv2d(width, width, 3, padding=1))
        twice = [layer for _ in range(2) for layer in (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))]
        self.tail = nn.Sequential(nn.Sequential(*twice), nn.Conv2d(width, 3, 3, padding=1))
        parts = (self.body[:5], self.body[5:], self.body, self.tail)
        self.parts = tuple(torch.compile(part) if compiled else part for part in parts)  # a tuple: none is saved twice

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        """uint8 [1, H, W, 3] -> uint8 [1, 4·H, 4·W, 3]."""
        x = self.distorted_head(self.head(levels.permute(0, 3, 1, 2).float() - self.mean))
        x = self.parts[-1](x + self.distorted_body(x)) + self.mean
        return x.clamp(0, 255).byte().permute(0, 2, 3, 1)

    def distorted_head(self, x: torch.Tensor) -> torch.Tensor:
        option = random.randint(1, 4)
        if option == 1:
            for _ in range(5):
                one, other = random.randrange(x.shape[1]), random.randrange(x.shape[1])
                x[:, one] = x[:, other]
        elif option == 2:
            x = x * (torch.rand_like(x) > 0.05)
        elif option == 3:
            x = torch.where(torch.rand_like(x) < 0.025, -x, x)
        return x

    def distorted_body(self, x: torch.Tensor) -> torch.Tensor:
        before, after, whole, _ = self.parts
        option = random.randint(1, 5)
        if option == 1:
            return after(-before(x))
        if option == 2:
            activation = functional.relu if random.randint(0, 2) == 1 else functional.gelu
            return after(activation(before(x)))
        if option == 3:
            return after(torch.flip(before(x), (1, 2) if random.randint(0, 2) == 1 else (1, 3)))
        if option == 4:
            first = min(2, len(self.body) - 1)
            skipped = {random.randint(first, len(self.body) - 1) for _ in range(3)}
            return self.body[max(layer for layer in range(len(self.body)) if layer not in skipped)](x)
        return whole(x)


def distort(weights: dict[str, torch.Tensor], blocks: int) -> None:
    """Three options of seventeen, in place."""
    for _ in range(3):
        option = random.randrange(17)
        allowed = {1: (1, 4, 7), 8: FOURTHS, 10: FOURTHS}.get(option, THIRDS if option < 11 else range(15))
        for _ in range(5 if option > 11 else 1):
            block = random.choice([number for number in allowed if number < blocks])
            _change(option, *(weights[f"body.{block}.body.{place}.{kind}"] for place in (0, 2) for kind in ("weight", "bias")))


def _change(option: int, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> None:
    either = random.choice((w1, w2))
    if option == 0:
        for array in (w1, b1, w2, b2):
            array.copy_(array.flip(0))
    elif option in (1, 2):
        for array in (w1, b1):
            array.mul_(-1 if option == 1 else 0)
    elif option == 3:
        for array in (w1, w2):
            array.copy_(-functional.gelu(array))
    elif option == 4:
        w1.mul_(torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=w1.device))
    elif option == 5:
        w1.mul_(torch.tensor([[-1.0, -1, -1], [-1, 8, -1], [-1, -1, -1]], device=w1.device))
    elif option == 6:
        w2.mul_(1 + 4 * random.random() * torch.rand_like(w2))
    elif option == 7:
        w1.copy_(w1.flip(-1))
        w2.neg_()
    elif option in (8, 9, 10):
        _convolve(option, w2 if option == 10 else w1)
    elif option == 11:
        w2.add_(torch.rand_like(w2) - 0.5)
    elif option == 12:
        either.copy_(torch.rot90(either, random.randint(1, 3), random.choice(((2, 3), (0, 1)))))
    elif option in (13, 14):
        bits = torch.randint_like(w1, 2)
        w1.mul_(2 * bits - 1 if option == 13 else bits)
    elif option == 15:
        drawn = torch.randint(len(w1), (len(w1) // 2,), device=w1.device)
        w1[drawn] = -w1[drawn]
    else:
        flat = either.flatten(2)
        either.mul_((torch.arange(9, device=flat.device) == flat.argmax(2, keepdim=True)).view_as(either))


def _convolve(option: int, weight: torch.Tensor) -> None:
    """Filters as images, convolved with random kernels."""
    channels = weight.shape[1]
    if option == 8:
        taps = torch.zeros(channels, 9, device=weight.device)
        places = torch.randint(9, (channels, 1), device=weight.device)
        taps.scatter_(1, places, 2.0 * torch.randint(2, places.shape, device=weight.device) - 1)
        kernel = taps.view(1, channels, 3, 3).expand(channels, -1, -1, -1)
    elif option == 9:
        kernel = (2 * random.random() * torch.rand_like(weight) - 1) / 6
    else:
        blurs = torch.distributions.Dirichlet(torch.full((9,), 0.1, device=weight.device))
        kernel = blurs.sample((channels, channels)).view(channels, channels, 3, 3)
    weight.copy_(functional.conv2d(weight, kernel, padding=1))
