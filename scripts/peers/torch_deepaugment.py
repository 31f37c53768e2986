"""DeepAugment's images from PyTorch: `python -m peers.torch_deepaugment SETTINGS` (JSON), then a line `STEPS` per block on stdin.

A step is one image, as in the published code: with the probability `refresh`, the clean weights are loaded and distorted again, then the
image passes through the network alone. Settings: `generating.Case`, refresh, and tf32, PyTorch's default. What has no random choice is
compiled where there is a GPU. Answers each block as `process.Workers` says.
"""

import json
import random
import resource
import sys

import torch

from peers import torch_cae, torch_edsr
from peers.images import smooth

NETWORKS = {"edsr": torch_edsr, "cae": torch_cae}
WARM_UP = 200  # images, among which every option is drawn that must be compiled


def main() -> None:
    settings = json.loads(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    random.seed(0)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = settings["tf32"]
    module = NETWORKS[settings["net"]]
    net = module.Network(settings["width"], settings["blocks"], cuda).to(device).eval()
    clean = {name: array.clone() for name, array in net.state_dict().items()}
    side = settings["side_px"]
    every = torch.from_numpy(smooth(settings["run"], 4 * side // 3)[:, :side].copy())

    def renew() -> None:
        net.load_state_dict(clean)
        module.distort(net.state_dict(), settings["blocks"])

    with torch.no_grad():
        renew()
        for _ in range(WARM_UP if cuda else 1):
            net(every[:1].to(device))
        for line in sys.stdin:
            for step in range(int(line)):
                if random.random() < settings["refresh"]:
                    renew()
                image = every[step % len(every)][None].to(device)
                last = net(image).cpu()  # waits for the device, as saving does
            memory = torch.cuda.max_memory_allocated() if cuda else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print("bench " + json.dumps({"loss": last.float().mean().item(), "peak_memory_bytes": memory}), flush=True)


if __name__ == "__main__":
    main()
