"""GroupDRO, LISA, reweighting and resampling in PyTorch, from the equations in the docstrings of jaxbed.methods.

Batches of the first two are drawn as for all methods. Groups are the classes; LISA's bias labels are drawn once: the images are noise, and
speed does not depend on them.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from peers.erm import Erm
from peers.layers import beta


def balanced(settings: dict) -> torch.Tensor:
    """N / (G·n_g) of each image, [N], with the classes as groups, of which G have images."""
    label = settings["label"].to(settings["device"])
    sizes = torch.bincount(label, minlength=settings["classes"])
    return len(label) / ((sizes > 0).sum() * sizes[label])


class GroupDro:
    """eta = 0.01, C = 0. Fair: sums by group; else a loop over the groups, as in SubpopBench."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        net = build()
        self.forward, self.optimizer, self.fair, self.eta = compiled(net), optimizer(net.parameters()), fair, 0.01
        groups = settings["classes"]
        self.log_q = torch.full((groups,), 1 / groups, device=settings["device"]).log()

    def of_groups(self, loss: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        """Mean loss of each group, 0 for those that the batch lacks."""
        zeros = torch.zeros_like(self.log_q)
        if self.fair:
            return zeros.index_add(0, group, loss) / zeros.index_add(0, group, torch.ones_like(loss)).clamp(min=1)
        present = group.unique()
        return zeros.index_put((present,), torch.stack([loss[group == g].mean() for g in present]))

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        found = self.of_groups(F.cross_entropy(self.forward(image).float(), label, reduction="none"), label)
        self.log_q = torch.log_softmax(self.log_q + self.eta * found.detach(), 0)
        loss = (self.log_q.exp() * found).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Lisa:
    """p_sel = 0.5, alpha = 2. Fair: partners of all images at once; else image by image, on the host."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        net = build()
        self.forward, self.optimizer, self.fair, self.p_sel, self.alpha = compiled(net), optimizer(net.parameters()), fair, 0.5, 2.0
        self.bias = torch.randint(settings["classes"], (settings["images"],), device=settings["device"])

    def partners(self, label: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(partner [B], whether there is one [B])."""
        same_label, same_bias = label[:, None] == label, bias[:, None] == bias
        if self.fair:
            fits = (same_label ^ same_bias) & (same_label == (torch.rand((), device=label.device) < self.p_sel))
            place, start = torch.rand((2, len(label)), device=label.device)
            return ((place - start[:, None]) % 1).masked_fill(~fits, 2).argmin(1), fits.any(1)
        fits = same_label & ~same_bias if np.random.rand() < self.p_sel else same_bias & ~same_label
        choices = [np.flatnonzero(row) for row in fits.cpu().numpy()]
        partner = [np.random.choice(row) if len(row) else 0 for row in choices]
        return torch.tensor(partner, device=label.device), torch.tensor([len(row) > 0 for row in choices], device=label.device)

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        partner, found = self.partners(label, self.bias[index])
        weight = torch.where(found, beta(self.alpha, found.shape, image.device), 1.0)
        of_image = weight[:, None, None, None]
        logits = self.forward(of_image * image + (1 - of_image) * image[partner]).float()
        own, other = (F.cross_entropy(logits, labels, reduction="none") for labels in (label, label[partner]))
        loss = (weight * own + (1 - weight) * other).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Reweight(Erm):
    """Fair: each image's weight from a table; else cross-entropy with the weights of the classes."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        super().__init__(build, optimizer, compiled, fair, settings)
        self.of_image, self.fair = balanced(settings), fair
        self.of_class = torch.ones(settings["classes"], device=settings["device"])
        self.of_class[settings["label"].to(settings["device"])] = self.of_image

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        logits = self.forward(image).float()
        if self.fair:
            loss = (self.of_image[index] * F.cross_entropy(logits, label, reduction="none")).mean()
        else:
            loss = F.cross_entropy(logits, label, self.of_class, reduction="sum") / len(label)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Resample(Erm):
    """Fair: batches are drawn on the device; else by the loader."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        super().__init__(build, optimizer, compiled, fair, settings)
        self.weights = balanced(settings)
