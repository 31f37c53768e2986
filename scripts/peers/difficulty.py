"""LfF and DisEnt in PyTorch, which weigh samples by relative difficulty, from the equations in the docstrings of jaxbed.methods."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from peers.debiasing import Pooled, cut

Q = 0.7  # of the generalised cross-entropy


def generalized(loss: torch.Tensor) -> torch.Tensor:
    """Mean surrogate of generalised cross-entropy, from the samples' cross-entropies [B]."""
    return (Q * torch.exp(-Q * loss.detach()) * loss).mean()


class Difficulty:
    """alpha = 0.7; tables [N] on the device, class maxima by a scatter."""

    def __init__(self, settings: dict):
        rows, device = settings["images"], settings["device"]
        self.alpha, self.classes = 0.7, settings["classes"]
        self.average, self.seen = torch.zeros((2, rows), device=device), torch.zeros(rows, device=device)
        self.class_of = torch.zeros(rows, dtype=torch.int64, device=device)

    def relative(self, which: int, loss: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Average loss of each sample [B], divided by the largest of its class over the whole table."""
        table = self.average[which]
        table[index] = self.alpha * table[index] + (1 - self.alpha * self.seen[index]) * loss
        largest = torch.zeros(self.classes, device=loss.device).scatter_reduce(0, self.class_of, table, "amax")
        return table[index] / (largest[label] + 1e-8)

    @torch.no_grad()
    def weigh(self, biased: torch.Tensor, debiased: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """w of each sample [B], after these losses of it."""
        self.class_of[index] = label
        of_biased, of_debiased = self.relative(0, biased, label, index), self.relative(1, debiased, label, index)
        self.seen[index] = 1.0
        return of_biased / (of_biased + of_debiased + 1e-8)


class Lff:
    """Both forms are the same."""

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.nets, self.difficulty, self.fair = [build(), build()], Difficulty(settings), fair
        self.forwards = [compiled(net) for net in self.nets]
        self.optimizer = optimizer([p for net in self.nets for p in net.parameters()])

    def loss_biased(self, loss: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return generalized(loss)

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        biased, debiased = (F.cross_entropy(forward(image).float(), label, reduction="none") for forward in self.forwards)
        loss = (self.difficulty.weigh(biased, debiased, label, index) * debiased).mean()
        self.optimizer.zero_grad(set_to_none=True)
        (self.loss_biased(biased, index) + loss).backward()
        self.optimizer.step()
        return loss.detach()


class DisEnt:
    """lambda_dis = lambda_swap_biased = 10, lambda_swap = 1; swaps in every step.

    Fair: one optimizer, and the others' features drawn on the device; else an optimizer for each encoder with its head, and an order
    drawn on the host.
    """

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        self.dis, self.swap, self.swap_biased, self.pool = 10.0, 1.0, 10.0, Pooled()
        self.encoders, heads = zip(*(cut(build, settings) for _ in range(2)), strict=True)
        self.heads = [nn.Linear(2 * head.in_features, head.out_features).to(settings["device"]) for head in heads]
        self.forwards, self.difficulty, self.fair = [compiled(encoder) for encoder in self.encoders], Difficulty(settings), fair
        owned = [[*encoder.parameters(), *head.parameters()] for encoder, head in zip(self.encoders, self.heads, strict=True)]
        self.optimizers = [optimizer([p for own in owned for p in own])] if fair else [optimizer(own) for own in owned]

    def losses(self, intrinsic: torch.Tensor, bias: torch.Tensor, label: torch.Tensor, of_bias: torch.Tensor) -> list[torch.Tensor]:
        """Cross-entropies [B] of both heads: of C_i with `label` and of C_b with `of_bias`, each training its own features alone."""
        joined = torch.cat([intrinsic, bias.detach()], 1), torch.cat([intrinsic.detach(), bias], 1)
        cases = zip(self.heads, joined, (label, of_bias), strict=True)
        return [F.cross_entropy(head(both), labels, reduction="none") for head, both, labels in cases]

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        intrinsic, bias = (self.pool(forward(image)) for forward in self.forwards)
        debiased, biased = self.losses(intrinsic, bias, label, label)
        weight = self.difficulty.weigh(biased, debiased, label, index)
        order = torch.randperm(len(label), device=label.device if self.fair else "cpu").to(label.device)
        swapped, swapped_biased = self.losses(intrinsic, bias[order], label, label[order])
        loss = (weight * debiased).mean()
        of_swapped = (weight * swapped).mean() + self.swap_biased * generalized(swapped_biased)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        (loss + self.dis * generalized(biased) + self.swap * of_swapped).backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()
