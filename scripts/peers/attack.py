"""PGD of a PyTorch package on a ResNet-50 in float32: `python -m peers.attack SETTINGS` (JSON), then a line `STEPS` per block on stdin.

A step attacks one batch. Settings: package (torchattacks or foolbox), batch, side_px, attack_steps. The network is compiled where there is
a GPU. Answers each block as `process.Workers` says.
"""

import json
import sys
from collections.abc import Callable

import torch
import torchvision

from peers.images import smooth

EPSILON, STEP = 0.5 / 255, 2 / 255


def attack(package: str, net: torch.nn.Module, steps: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """(image in [0, 1], label) -> the last iterate."""
    if package == "torchattacks":
        import torchattacks

        return torchattacks.PGD(net, eps=EPSILON, alpha=STEP, steps=steps, random_start=True)
    import foolbox

    made = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=steps, random_start=True)
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device=next(net.parameters()).device)
    return lambda image, label: made(model, image, label, epsilons=EPSILON)[1]


class Scaled(torch.nn.Module):
    """A network whose input is in [0, 1]."""

    def __init__(self, net: torch.nn.Module):
        super().__init__()
        self.net = net

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(2 * image - 1)


def main() -> None:
    settings = json.loads(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # float32 is float32, as in jaxbed
    net = Scaled(torchvision.models.resnet50()).to(device, memory_format=torch.channels_last).eval()
    compiled = torch.compile(net) if device.type == "cuda" else net
    image = torch.from_numpy(smooth(settings["batch"], settings["side_px"])).to(device).permute(0, 3, 1, 2).float() / 255
    label = torch.arange(settings["batch"], device=device) % 1000
    attacked = attack(settings["package"], compiled, settings["attack_steps"])
    for line in sys.stdin:
        for _ in range(int(line)):
            moved = (attacked(image, label) - image).abs().max().item()  # waits for the device
        memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        print("bench " + json.dumps({"loss": moved, "peak_memory_bytes": memory}), flush=True)


if __name__ == "__main__":
    main()
