"""The 51 spectral and critical-band stimuli of each image by SciPy and pyrtools, in many processes, for a ResNet-50 in PyTorch.

`python -m peers.bands SETTINGS` (JSON), then a line `STEPS` per block on stdin. A step is all stimuli of `batch` images. Settings:
processes, batch, side_px. Images of one step are made while the network answers those before. Answers as `process.Workers` says.
"""

import json
import multiprocessing
import os
import resource
import sys

import numpy as np

from peers.images import smooth

CUTOFFS = (0.01, *(tenth / 10 for tenth in range(1, 10)), 0.99)
SIGMAS = (0.0, 0.02, 0.04, 0.08, 0.16)
BANDS = 7


def spectral(image: np.ndarray, cutoff: float, high: bool) -> np.ndarray:
    """[H, W, 3] in [0, 1]: the square of low frequencies kept, or removed."""
    from scipy import fft

    shifted = fft.fftshift(fft.fft2(image, axes=(0, 1)), axes=(0, 1))
    centre, radius = image.shape[0] // 2, int((1 - cutoff if high else cutoff) * (image.shape[0] // 2))
    square = (slice(centre - radius, centre + radius),) * 2
    kept = shifted if high else np.zeros_like(shifted)
    kept[square] = 0 if high else shifted[square]
    return np.clip(fft.ifft2(fft.ifftshift(kept, axes=(0, 1)), axes=(0, 1)).real, 0, 1)


def stimulus(image: np.ndarray, sigma: float, band: int, rng: np.random.Generator) -> np.ndarray:
    """[H, W, 3]: faint grey with noise of one octave."""
    grey = image @ np.array([0.299, 0.587, 0.114], np.float32)
    grey = 0.2 * (grey - grey.mean()) + 0.449
    if sigma:
        from pyrtools.pyramids import LaplacianPyramid

        pyramid = LaplacianPyramid(rng.normal(0, sigma, grey.shape))
        highest, noise = (pyramid.recon_pyr(levels=[level]) for level in (0, BANDS - 1 - band))
        noise *= np.sqrt((highest**2).mean() / (noise**2).mean())
        grey = grey + noise
        grey = np.where(grey < 0, 0.1, np.where(grey > 1, 0.9, grey))
    return np.repeat(grey[..., None], 3, -1)


def stimuli(image: np.ndarray) -> np.ndarray:
    """float32 [51, H, W, 3] of one image, uint8 [H, W, 3]."""
    scaled, rng = image.astype(np.float32) / 255, np.random.default_rng(0)
    filtered = [spectral(scaled, cutoff, high) for high in (False, True) for cutoff in CUTOFFS]
    cells = [(0.0, 0), *((sigma, band) for sigma in SIGMAS if sigma for band in range(BANDS))]
    return np.stack([*filtered, *(stimulus(scaled, sigma, band, rng) for sigma, band in cells)]).astype(np.float32)


def main() -> None:
    import torch
    import torchvision

    settings = json.loads(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = torchvision.models.resnet50().to(device, memory_format=torch.channels_last).eval()
    net = torch.compile(net) if device.type == "cuda" else net
    every = smooth(settings["batch"], settings["side_px"])

    @torch.no_grad()
    def answer(made: np.ndarray) -> torch.Tensor:
        image = torch.from_numpy(made).to(device).permute(0, 3, 1, 2)
        with torch.autocast(device.type, torch.bfloat16):
            return net(2 * image - 1).argmax(-1)

    with multiprocessing.get_context("spawn").Pool(settings["processes"]) as pool:
        for line in sys.stdin:
            answered = [answer(made) for _ in range(int(line)) for made in pool.imap(stimuli, every)]
            mean = torch.cat(answered).float().mean().item()  # waits for the device
            memory = (
                torch.cuda.max_memory_allocated() if device.type == "cuda" else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            )
            print("bench " + json.dumps({"loss": mean, "peak_memory_bytes": memory}), flush=True)


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # each process is one thread
    main()
