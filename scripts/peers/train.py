"""One PyTorch training in a process of its own: `python -m peers.train SETTINGS` (JSON), then a line `STEPS` per block on stdin.

Answers each block with one line `bench {"loss": ..., "peak_memory_bytes": ...}`, the loss being that of the very first step.
Form "stock" is what a user writes: a DataLoader over the uint8 images, workers on a GPU, torch.compile there. Form "fair" has the
data on the device and indexes it, as jaxbed does. A process of its own, so that the two frameworks share no library and no memory
pool, and so that PyTorch may live in another environment.
"""

import json
import math
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from peers import networks
from peers.methods import METHODS


class Batches:
    """Rows of batches without end, in random order; the last `count` of each batch are drawn by `weights` [N] if there are any.

    Without end, since a `DataLoader` stalls where an epoch ends, and an epoch of a benchmark is short.
    """

    def __init__(self, images: int, size: int, device: torch.device, weights: torch.Tensor | None, count: int):
        self.images, self.size, self.device, self.count = images, size, device, count
        self.weights = None if weights is None else weights.to(device)

    def epoch(self) -> torch.Tensor:
        """[batches, size], each row at most once but for those that are drawn."""
        order = torch.randperm(self.images, device=self.device)[: self.images - self.images % self.size].view(-1, self.size)
        if self.weights is not None:
            drawn = torch.multinomial(self.weights, len(order) * self.count, replacement=True)
            order[:, self.size - self.count :] = drawn.view(-1, self.count)
        return order

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self.epoch().tolist()


class Trainer:
    """settings: method, form, net, classes, side_px, batch, images, bfloat16, augmented, optim, workers, seed."""

    def __init__(self, settings: dict):
        self.settings = settings
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(settings["seed"])
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")  # TF32 where nothing is bfloat16
        rng = np.random.default_rng(0)  # the draws of jaxbed.data.noise
        shape = (settings["images"], settings["side_px"], settings["side_px"], 3)
        self.image = torch.from_numpy(rng.integers(0, 256, shape, np.uint8)).permute(0, 3, 1, 2)  # channels last in memory
        self.label = torch.from_numpy(rng.integers(0, settings["classes"], settings["images"], np.int32)).long()
        self.method = METHODS[settings["method"]](
            self.build, self.optimizer, self.compiled, settings["form"] == "fair", {**settings, "device": self.device, "label": self.label}
        )
        self.prepare = self.augment if settings["augmented"] else self.scale
        self.dataset = getattr(self.method, "dataset", TensorDataset)
        if self.dataset is not TensorDataset:
            self.prepare = torch.nn.Identity()  # its workers have done that
        elif self.device.type == "cuda":
            self.prepare = torch.compile(self.prepare)
        self.first_loss = None
        self.batches = self.resident() if settings["form"] == "fair" else self.loaded()

    def build(self, **changes: Any) -> nn.Module:
        net = dict(self.settings["net"])
        if net.pop("kind") == "mlp":
            made = networks.MLP(3 * self.settings["side_px"] ** 2, tuple(net["widths"]), self.settings["classes"])
        else:
            made = networks.resnet(**net, classes=self.settings["classes"], **changes)
        return made.to(self.device, memory_format=torch.channels_last)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optim = dict(self.settings["optim"])
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optim.pop("rule")]
        return kind(parameters, fused=True if self.device.type == "cuda" else None, **optim)

    def compiled(self, net: nn.Module) -> Callable:
        """The network's forward pass, compiled on a GPU, in bfloat16 where that is asked for: the backward pass follows it."""
        if self.device.type == "cuda":
            if self.settings["method"] == "sagnet":  # its graph is walked three times
                from torch._functorch import config

                config.donated_buffer = False
            net = torch.compile(net)
        if not self.settings["bfloat16"]:
            return net

        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(self.device.type, torch.bfloat16):
                return net(x)

        return forward

    def scale(self, image: torch.Tensor) -> torch.Tensor:
        return (image.to(torch.float32, memory_format=torch.channels_last) - 127.5) / 127.5

    def augment(self, image: torch.Tensor) -> torch.Tensor:
        """Random resized crop (area 0.08 to 1, ratio 3/4 to 4/3) and flip, bilinear, as one affine resampling."""
        area, ratio, right, down = torch.rand(4, len(image), device=self.device)
        area, ratio = 0.08 + 0.92 * area, torch.exp((2 * ratio - 1) * math.log(4 / 3))
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        mirrored = torch.where(torch.rand(len(image), device=self.device) < 0.5, -width, width)
        nothing = torch.zeros_like(width)
        rows = [mirrored, nothing, (2 * right - 1) * (1 - width), nothing, height, (2 * down - 1) * (1 - height)]
        grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), image.shape, align_corners=False)
        return F.grid_sample(self.scale(image), grid, align_corners=False)

    def rows(self, device: torch.device) -> Batches:
        size = self.settings["batch"]
        return Batches(len(self.label), size, device, getattr(self.method, "weights", None), getattr(self.method, "count", size))

    def loaded(self) -> Iterator[tuple]:
        cuda = self.device.type == "cuda"
        loader = DataLoader(
            self.dataset(self.image, self.label, torch.arange(len(self.label))),
            batch_sampler=self.rows(torch.device("cpu")),
            num_workers=self.settings["workers"],
            pin_memory=cuda,
        )
        for batch in loader:
            yield tuple(part.to(self.device, non_blocking=True) for part in batch)

    def resident(self) -> Iterator[tuple]:
        self.image = self.image.to(self.device)
        self.label = self.label.to(self.device)
        batches = self.rows(self.device)
        while True:
            for rows in batches.epoch():
                yield self.image[rows], self.label[rows], rows

    def run(self, steps: int) -> None:
        """That many steps; returns when the device has done them."""
        for _ in range(steps):
            image, label, index = next(self.batches)
            loss = self.method.step(self.prepare(image), label, index)
            if self.first_loss is None:
                self.first_loss = loss.item()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_memory_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    trainer = Trainer(json.loads(sys.argv[1]))
    for line in sys.stdin:
        trainer.run(int(line))
        print("bench", json.dumps({"loss": trainer.first_loss, "peak_memory_bytes": trainer.peak_memory_bytes()}), flush=True)


if __name__ == "__main__":
    main()
