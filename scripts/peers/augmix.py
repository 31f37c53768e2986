"""AugMix in PyTorch, as its users run it: workers of a DataLoader crop, flip and mix with Pillow, and send three views of each image."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from peers.erm import Erm
from peers.pillow_augmix import augmix

SEVERITY, WEIGHT, LEAST_MEAN = 1.0, 12.0, 1e-7


class Views(Dataset):
    """(views [3, C, H, W] float32 to ±1, label, row) of images [N, C, H, W] uint8: as it is, and twice mixed."""

    def __init__(self, image: torch.Tensor, label: torch.Tensor, rows: torch.Tensor):
        from torchvision import transforms  # which no other peer needs

        self.image, self.label, self.rows = image, label, rows
        side = image.shape[-1]
        self.crop = transforms.Compose([transforms.ToPILImage(), transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cropped = np.asarray(self.crop(self.image[row]))
        rng = np.random.default_rng(torch.randint(2**31, ()).item())  # each worker has its own
        views = np.stack([cropped.astype(np.float32) / 255, *(augmix(cropped, SEVERITY, rng) for _ in range(2))])
        return torch.from_numpy(2 * views - 1).permute(0, 3, 1, 2), self.label[row], self.rows[row]


class AugMix(Erm):
    """Cross-entropy of the first view, and the Jensen-Shannon divergence of all three, in one pass."""

    dataset = Views  # whose images are ready for the network

    def __init__(self, build: Callable, optimizer: Callable, compiled: Callable, fair: bool, settings: dict):
        if fair:
            raise ValueError("AugMix has only the stock form: give --peer stock")
        super().__init__(build, optimizer, compiled, fair, settings)

    def step(self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        flat = image.transpose(0, 1).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        logits = self.forward(flat).float()
        log_p = torch.log_softmax(logits, 1).unflatten(0, (3, len(label)))
        log_mean = log_p.exp().mean(0).clamp(LEAST_MEAN, 1).log()
        divergence = (log_p.exp() * (log_p - log_mean)).sum(2).mean()
        return self.update(F.cross_entropy(logits[: len(label)], label) + WEIGHT * divergence)
