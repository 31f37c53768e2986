"""The methods that train other networks first, in PyTorch, from the equations in the docstrings of jaxbed.methods.

What those networks would have said is drawn once: the images are noise, and speed does not depend on it.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from peers.debiasing import Pooled, cut
from peers.difficulty import Lff
from peers.erm import Erm
from peers.groups import balanced


class BiasEnsemble(Lff):
    """On LfF. Fair: a masked sum; else the kept images are picked, for which the host waits for their number."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        super().__init__(build, optimizer, compiled, fair, settings)
        self.kept = torch.rand(settings["images"], device=settings["device"]) < 0.5

    def loss_biased(self, loss: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        kept = self.kept[index]
        if self.fair:
            return (kept * loss).sum() / kept.sum().clamp(min=1)
        picked = loss[kept]
        return picked.sum() / max(len(picked), 1)


class SoftCon:
    """weight = 0.01, tau = 0.07, ratio = 10, 64 images for the contrast.

    Fair: all images of a batch in one pass; else those for cross-entropy and those for the contrast each in a pass of their own, and
    exponentials are summed before their logarithm is taken.
    """

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        device = settings["device"]
        self.weight, self.tau, self.ratio, self.count, self.fair = 0.01, 0.07, 10.0, 64, fair
        self.trunk, self.head = cut(build, settings)
        self.forward, self.pool = compiled(self.trunk), Pooled()
        self.optimizer = optimizer([*self.trunk.parameters(), *self.head.parameters()])
        of_biased = 128 if settings["net"]["kind"] == "mlp" else self.head.in_features
        self.biased_direction = F.normalize(torch.rand((settings["images"], of_biased), device=device))
        self.weights = self.drawing(settings["label"].to(device), settings["classes"])
        if device.type == "cuda":
            torch._dynamo.config.automatic_dynamic_shapes = False  # kernels for each size of a pass, not for any

    def drawing(self, label: torch.Tensor, classes: int) -> torch.Tensor:
        """How often each image is drawn for the contrast [N]."""
        sums = torch.zeros((classes, self.biased_direction.shape[1]), device=label.device).index_add(0, label, self.biased_direction)
        means = sums / torch.bincount(label, minlength=classes).clamp(min=1)[:, None]
        unlike = (1 - (self.biased_direction * means[label]).sum(1)).clamp(min=1e-6)
        return unlike.clamp(max=self.ratio * unlike.min())

    def contrast(self, features: torch.Tensor, biased: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Mean l_a, a scalar."""
        direction, same = F.normalize(features), torch.eye(len(label), dtype=torch.bool, device=label.device)
        unlike, views = 1 - biased @ biased.T, 2 - same.float()  # each image has two equal views, of which one is itself
        weight = unlike * (~same & (label[:, None] == label) & (unlike > 1e-6))
        similarity = direction @ direction.T / self.tau
        if self.fair:
            log_share = similarity - (similarity + views.log()).logsumexp(1, keepdim=True)
        else:
            similarity = similarity - similarity.amax(1, keepdim=True).detach()
            log_share = similarity - torch.log((similarity.exp() * views).sum(1, keepdim=True))
        total = weight.sum(1)
        return -((weight * log_share).sum(1) / torch.where(total > 0, total, 1.0)).mean()

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sizes = [len(label) - self.count, self.count]
        passes = [image] if self.fair else image.split(sizes)
        features = torch.cat([self.pool(self.forward(images)) for images in passes])
        (plain, contrasted), (of_plain, of_contrasted) = features.split(sizes), label.split(sizes)
        loss = F.cross_entropy(self.head(plain), of_plain)
        contrast = self.contrast(contrasted, self.biased_direction[index[-self.count :]], of_contrasted)
        self.optimizer.zero_grad(set_to_none=True)
        (self.weight * loss + contrast).backward()
        self.optimizer.step()
        return loss.detach()


class Jtt(Erm):
    """Upweight 50, half of the images wrong. Fair: batches are drawn on the device; else by the loader."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        super().__init__(build, optimizer, compiled, fair, settings)
        self.weights = 1 + 50.0 * (torch.rand(settings["images"], device=settings["device"]) < 0.5)


class Dfr:
    """l1 = 0.01, groups are the classes. Fair: batches are drawn on the device; else by the loader."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.trunk, old = cut(build, settings)
        self.trunk.eval().requires_grad_(False)
        self.standard = nn.BatchNorm1d(old.in_features, affine=False).to(settings["device"])
        self.head = nn.Linear(old.in_features, old.out_features).to(settings["device"])
        self.forward, self.pool, self.l1 = compiled(self.trunk), Pooled(), 0.01
        self.optimizer = optimizer(self.head.parameters())
        self.weights = balanced(settings)

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.standard(self.pool(self.forward(image)))
        loss = F.cross_entropy(self.head(features), label)
        self.optimizer.zero_grad(set_to_none=True)
        (loss + self.l1 * self.head.weight.abs().sum()).backward()
        self.optimizer.step()
        return loss.detach()
