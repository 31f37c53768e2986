"""PyTorch networks of the geometry of jaxbed.models: ResNet v1.5 in parts, and the MLP of Colored MNIST."""

import itertools
from collections.abc import Callable

import torch
from torch import nn

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
STEMS = {"imagenet": (7, 2), "small": (3, 1), "half": (3, 2)}  # kernel, stride
PARTS = 6  # the stem, four stages, the head


def conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class Block(nn.Module):
    """Basic (two 3x3) or bottleneck (1x1, 3x3 with the stride, 1x1) residual block; `site` follows each main convolution."""

    def __init__(self, inputs: int, features: int, stride: int, bottleneck: bool, site: Callable[[], nn.Module]):
        super().__init__()
        shapes = (
            [(features, 1, 1), (features, 3, stride), (4 * features, 1, 1)] if bottleneck else [(features, 3, stride), (features, 3, 1)]
        )
        layers, width = [], inputs
        for outputs, kernel, step in shapes:
            layers += [conv(width, outputs, kernel, step), site(), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            width = outputs
        self.main = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


class Head(nn.Module):
    """Mean over the map and one linear layer, in float32 as jaxbed's."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        bound = inputs**-0.5
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.linear(x.float().mean((2, 3)))


def resnet(
    depth: int, width: int, stem: str, classes: int, first: int = 0, last: int = PARTS, site: Callable[[], nn.Module] = nn.Identity
) -> nn.Module:
    """The parts [first, last) of a ResNet on [B, C, H, W]: maps, or logits [B, classes] with the head among them."""
    bottleneck, layers = depth == 50, []
    if first == 0:
        kernel, stride = STEMS[stem]
        layers += [conv(3, width, kernel, stride), site(), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if stem == "imagenet":
            layers.append(nn.MaxPool2d(3, 2, 1))
    for stage in range(1, PARTS - 1):
        features = width * 2 ** (stage - 1)
        growth = 4 if bottleneck else 1
        for i in range(BLOCKS[depth][stage - 1]):
            inputs = growth * features if i else (width if stage == 1 else growth * features // 2)
            if first <= stage < last:
                layers.append(Block(inputs, features, 2 if stage > 1 and i == 0 else 1, bottleneck, site))
    if last == PARTS:
        layers.append(Head((4 if bottleneck else 1) * 8 * width, classes))
    return nn.Sequential(*layers)


class MLP(nn.Module):
    """Flatten in jaxbed's order (pixels, then channels), linear layers with ReLU between."""

    def __init__(self, inputs: int, widths: tuple[int, ...], classes: int):
        super().__init__()
        sizes = [inputs, *widths, classes]
        layers = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
            nn.init.uniform_(layers[-2].weight, -(a**-0.5), a**-0.5)
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.permute(0, 2, 3, 1).flatten(1))
