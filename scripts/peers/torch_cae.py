"""DeepAugment's autoencoder with its distortions in stock PyTorch, one image per call: the peer of `generating`."""

import random

import torch
from torch import nn
from torch.nn import functional


def _block(channels: int) -> nn.Sequential:
    layers = (nn.ZeroPad2d(1), nn.Conv2d(channels, channels, 3), nn.LeakyReLU(), nn.ZeroPad2d(1), nn.Conv2d(channels, channels, 3))
    return nn.Sequential(*layers)


def _doubled(inputs: int, inner: int, outputs: int) -> nn.Sequential:
    layers = (nn.Conv2d(inputs, inner, 3), nn.LeakyReLU(), nn.ZeroPad2d(1), nn.ConvTranspose2d(inner, outputs, 2, stride=2))
    return nn.Sequential(*layers)


class Network(nn.Module):
    """Its random choices are made in Python; encoder and decoder are compiled."""

    def __init__(self, width: int, blocks: int, compiled: bool):
        super().__init__()
        inner, latent = 2 * width, width // 2
        self.e_conv_1 = nn.Sequential(nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(3, width, 5, stride=2), nn.LeakyReLU())
        self.e_conv_2 = nn.Sequential(nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(width, inner, 5, stride=2), nn.LeakyReLU())
        self.e_block_1, self.e_block_2, self.e_block_3 = (_block(inner) for _ in range(3))
        self.e_conv_3 = nn.Sequential(nn.Conv2d(inner, latent, 5, padding=2), nn.Tanh())
        self.d_up_conv_1 = _doubled(latent, width, inner)
        self.d_block_1, self.d_block_2, self.d_block_3 = (_block(inner) for _ in range(3))
        self.d_up_conv_2 = _doubled(inner, width // 2, 4 * width)
        last = (nn.Conv2d(4 * width, width // 4, 3), nn.LeakyReLU(), nn.ReflectionPad2d(2), nn.Conv2d(width // 4, 3, 3), nn.Tanh())
        self.d_up_conv_3 = nn.Sequential(*last)
        self.encoded, self.decoded = (torch.compile(part) if compiled else part for part in (self.encode, self.decode))

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        """uint8 [1, H, W, 3] -> uint8 [1, h, w, 3], up to 3 px smaller."""
        option = random.randrange(9)
        latent = distorted(option, self.encoded(levels.permute(0, 3, 1, 2).float() / 255))
        bits = (torch.rand_like(latent) <= (1 + latent) / 2).float()
        if option == 0:
            bits = bits * (3 + 4 * random.random() * torch.rand_like(bits))
        return (255 * self.decoded(2 * bits - 1).clamp(0, 1)).byte().permute(0, 2, 3, 1)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        x = self.e_conv_2(self.e_conv_1(x))
        for block in (self.e_block_1, self.e_block_2, self.e_block_3):
            x = x + block(x)
        return self.e_conv_3(x)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        x = self.d_up_conv_1(x)
        for block in (self.d_block_1, self.d_block_2, self.d_block_3):
            x = x + block(x)
        return self.d_up_conv_3(self.d_up_conv_2(x))


def distorted(option: int, latent: torch.Tensor) -> torch.Tensor:
    channels, device = latent.shape[1], latent.device
    chance = torch.rand(latent.shape[2:], device=device)
    if option == 1:
        return latent * (chance >= 0.2)
    if option == 2:
        return torch.where(chance < 0.1, -latent, latent)
    if option == 3:
        first = min(10, channels)
        return torch.cat((latent[:, torch.randperm(first, device=device)], latent[:, first:]), 1)
    if option == 4:
        axes = random.choice(((2,), (3,), (2, 3)))
        for channel in random.choices(range(channels), k=5):
            latent[:, channel : channel + 1] = latent[:, channel : channel + 1].flip(axes)
    if option == 5:
        return latent.flip(random.choice(((2,), (3,), (2, 3))))
    if option in (6, 7, 8):
        return functional.conv2d(latent, _kernel(option, channels).to(device), padding=1)
    return latent


def _kernel(option: int, channels: int) -> torch.Tensor:
    """[out, in, 3, 3]."""
    kernel = torch.zeros(channels, channels, 3, 3)
    row, column = random.randrange(3), random.randrange(3)
    for channel in range(channels):
        if option == 8 and random.random() < 0.2:
            row, column = random.randrange(3), random.randrange(3)
        kernel[(channel, channel, row, column) if option == 8 else (channel, channel, 1, 1)] = 1
        if option == 7 and random.random() < 0.5:
            kernel[channel, random.randrange(channels), random.randrange(3), random.randrange(3)] = 1
    return kernel + (0.2 * torch.rand_like(kernel) - 0.1) if option == 6 else kernel


def distort(weights: dict[str, torch.Tensor], blocks: int) -> None:
    """One option of eight, in place."""
    option = random.randrange(8)
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    layers = names[{0: 11, 3: 10}.get(option, 8) : 16 if option == 0 else 14]
    layer, other = random.choice(layers), random.choice(layers)
    weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
    rows = len(weight)
    if option == 0:
        for array in (weight, bias):
            array.copy_(array.flip(0))
    elif option in (1, 2, 3):
        for row in random.choices(range(rows), k=min(12 if option == 1 else 25, rows)):
            for array in (weight, bias):
                array[row] = {1: -array[row], 2: 0 * array[row], 3: -functional.gelu(array[row])}[option]
    elif option == 4:
        for array in (weight, weights[f"{other}.weight"]):
            array.mul_(1 + 8 * random.random() * torch.rand_like(array))
    elif option == 5:
        bits = torch.randint_like(weight, 2)
        weight.mul_(bits if random.random() < 0.5 else 2 * bits - 1)
    elif option == 6:
        weight.copy_(torch.rot90(weight, random.randint(1, 3), (2, 3)))
    else:
        drawn = torch.randint(rows, (rows // 5,), device=weight.device)
        weight[drawn] = -weight[drawn]
