"""AugMix with Pillow, an image at a time, as a user without an accelerator would write it. `jaxbed.data.augmix` says what it does.

augmix(image uint8 [H, W, 3], severity, rng of NumPy) -> float32 [H, W, 3] in [0, 1]; corrupt(...) is the same for `peers.pool`.
Width 3, depth 1 to 3, alpha 1, nine operations, black outside.
"""

from typing import Any

import numpy as np
from PIL import Image, ImageOps

WIDTH, DEEPEST, LEAST_LEVEL = 3, 3, 0.1


def _warp(image: Image.Image, coefficients: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, resample=Image.Resampling.BILINEAR)


OPERATIONS = (
    lambda image, level, sign: ImageOps.autocontrast(image),
    lambda image, level, sign: ImageOps.equalize(image),
    lambda image, level, sign: ImageOps.posterize(image, 4 - int(0.4 * level)),
    lambda image, level, sign: image.rotate(sign * int(3 * level), resample=Image.Resampling.BILINEAR),
    lambda image, level, sign: ImageOps.solarize(image, 256 - int(25.6 * level)),
    lambda image, level, sign: _warp(image, (1, sign * 0.03 * level, 0, 0, 1, 0)),
    lambda image, level, sign: _warp(image, (1, 0, 0, sign * 0.03 * level, 1, 0)),
    lambda image, level, sign: _warp(image, (1, 0, sign * int(image.size[0] * level / 30), 0, 1, 0)),
    lambda image, level, sign: _warp(image, (1, 0, 0, 0, 1, sign * int(image.size[1] * level / 30))),
)


def augmix(image: np.ndarray, severity: float, rng: np.random.Generator) -> np.ndarray:
    weights, share = rng.dirichlet(np.ones(WIDTH)).astype(np.float32), np.float32(rng.beta(1, 1))
    start = Image.fromarray(image)
    chains = np.zeros(image.shape, np.float32)
    for weight in weights:
        chain = start
        for _ in range(rng.integers(1, DEEPEST + 1)):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            chain = operation(chain, rng.uniform(LEAST_LEVEL, severity), rng.choice((-1, 1)))
        chains += weight * np.asarray(chain, np.float32)
    return ((1 - share) * image + share * chains) / 255


def corrupt(image: np.ndarray, name: str, severity: float, rng: Any) -> np.ndarray:
    """For `peers.pool`, which draws from NumPy's module."""
    return augmix(image, severity, np.random.default_rng(rng.randint(2**31)))
