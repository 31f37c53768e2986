"""The corruptions of CIFAR-10-C (Hendrycks and Dietterich, 2019) at level 5, for many images at once, in NumPy.

Each takes images [n, 32, 32, 3], float64 in [0, 1], and a generator, and returns such images; `corrupt` applies it to bytes, truncated and
not rounded, as published. Parameters are those of LfF's "Severity4", which is level 5. Snow, frost, fog and spatter are in `weather`.

Differences from the published code: all draws come from one generator, in one call for all images; motion blur reimplements ImageMagick's
from its description (a one-sided Gaussian along a line, at whole pixels, edges repeated); elastic's affine warp interpolates at exact
positions, OpenCV's at 1/32 of a pixel; frost reads its textures from a folder, or uses synthetic ones. Two properties of the released
arrays are kept: glass copies pixels where the code seems to swap them, and saturation turns grey pixels reddish.
"""

import functools
import io
from collections.abc import Callable

import numpy as np

SIDE = 32
LUMA = np.array([0.299, 0.587, 0.114])
CHUNK = 1000  # images at a time, for memory


def corrupt(function: Callable, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Applies a corruption to images uint8 [n, 32, 32, 3] and returns the same type."""
    out = np.empty_like(image)
    for first in range(0, len(image), CHUNK):
        chunk = slice(first, first + CHUNK)
        out[chunk] = np.clip(function(image[chunk] / 255, rng), 0, 1) * 255
    return out


def gaussian(image: np.ndarray, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Gaussian blur along axes 1 and 2."""
    from scipy import ndimage

    return ndimage.gaussian_filter(image, sigma, mode=mode, truncate=truncate, axes=(1, 2))


# Noise


def gaussian_noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image + rng.normal(0, 0.10, image.shape)


def shot_noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(image * 50) / 50


def impulse_noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    hit, salt = rng.random((2, *image.shape))
    return np.where(hit < 0.07, np.where(salt < 0.5, 1.0, 0.0), image)


def speckle_noise(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image + image * rng.normal(0, 0.2, image.shape)


# Blur


def gaussian_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return gaussian(image, 1.0)


def defocus_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A disk of radius 1.5 covers 3 x 3 pixels, and its antialiasing of 0.1 pixel has no effect."""
    from scipy import ndimage

    return ndimage.uniform_filter(image, 3, mode="mirror", axes=(1, 2))


def glass_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Twice, each pixel takes the colour of itself or of a not yet changed neighbour above or to the left."""
    image = np.floor(gaussian(image, 0.4) * 255) / 255
    inner = np.arange(2, SIDE)
    for _ in range(2):
        down, across = rng.integers(-1, 1, (2, len(image), SIDE - 2, SIDE - 2))
        taken = image[np.arange(len(image))[:, None, None], inner[:, None] + down, inner + across]
        image[:, 2:, 2:] = taken
    return gaussian(image, 0.4)


def motion_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return move(image, 9, 2.5, rng.uniform(-45, 45, len(image)))


def move(image: np.ndarray, radius: int, sigma: float, degrees: np.ndarray) -> np.ndarray:
    """Motion blur of each image [n, 32, 32, C] at its own angle."""
    taps = np.arange(2 * radius + 1)
    weight = np.exp(-(taps**2) / (2 * sigma**2))
    weight /= weight.sum()
    angle = np.deg2rad(degrees)[:, None]
    down, across = (np.ceil(taps * turned - 0.5).astype(int) for turned in (np.sin(angle), np.cos(angle)))  # [n, taps]
    rows, out = np.arange(len(image))[:, None, None], np.zeros_like(image)
    for tap in taps:
        y = np.clip(np.arange(SIDE) + down[:, tap, None], 0, SIDE - 1)
        x = np.clip(np.arange(SIDE) + across[:, tap, None], 0, SIDE - 1)
        out += weight[tap] * image[rows, y[:, :, None], x[:, None, :]]
    return out


def zoom_matrix(factor: float) -> np.ndarray:
    """[32, 32]: enlarges the central part of a side with its ends fixed (SciPy's zoom of order 1) and cuts out the centre."""
    kept = int(np.ceil(SIDE / factor))
    size = round(kept * factor)
    position = (SIDE - kept) // 2 + (np.arange(SIDE) + (size - SIDE) // 2) * (kept - 1) / (size - 1)
    return np.maximum(1 - np.abs(position[:, None] - np.arange(SIDE)), 0)


@functools.cache
def zooms() -> np.ndarray:
    """[1024, 1024]: the mean of an image and its enlargements by 1 to 1.25, as one matrix."""
    matrices = [zoom_matrix(factor) for factor in np.arange(1, 1.26, 0.01)]
    return (np.eye(SIDE**2) + sum(np.kron(matrix, matrix) for matrix in matrices)) / (len(matrices) + 1)


def zoom_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    planes = np.moveaxis(image, 3, 1).reshape(-1, SIDE**2) @ zooms().T
    return np.moveaxis(planes.reshape(-1, 3, SIDE, SIDE), 1, 3)


def original(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image + 0.5 / 255  # truncation then gives back the same bytes


# Colour


def brightness(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Increases HSV's value by 0.3; hue and saturation are unchanged."""
    value = image.max(3, keepdims=True)
    brighter = np.minimum(value + 0.3, 1)
    return np.where(value > 0, image * brighter / np.where(value > 0, value, 1), brighter)


def contrast(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mean = image.mean((1, 2), keepdims=True)
    return (image - mean) * 0.15 + mean


def saturate(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Maps HSV's saturation s to 2.5 s + 0.2; grey counts as red."""
    value = image.max(3, keepdims=True)
    chroma = value - image.min(3, keepdims=True)
    saturation = chroma / np.where(value > 0, value, 1)
    new = np.minimum(2.5 * saturation + 0.2, 1)
    below = np.where(chroma > 0, (value - image) / np.where(chroma > 0, chroma, 1), np.array([0.0, 1.0, 1.0]))  # 0 to 1: of the chroma
    return value - below * new * value


# Digital


def elastic(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n, (alpha, sigma, affine) = len(image), (SIDE * 0.1, SIDE * 0.03, SIDE * 0.03)
    corners = np.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])  # x, y
    moved = corners + rng.uniform(-affine, affine, (n, 3, 2))
    back = np.linalg.solve(np.concatenate([moved, np.ones((n, 3, 1))], axis=2), corners[None])  # [n, 3, 2]: where a pixel comes from
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    source = np.stack([x, y, np.ones_like(x)], axis=-1) @ back[:, None]
    image = sample(image, source[..., 1], source[..., 0], mirrored=True)
    down, across = alpha * gaussian(rng.uniform(-1, 1, (2 * n, SIDE, SIDE)), sigma, "reflect", 3.0).reshape(2, n, SIDE, SIDE)
    return sample(image, y + down, x + across, mirrored=False)


def sample(image: np.ndarray, y: np.ndarray, x: np.ndarray, mirrored: bool) -> np.ndarray:
    """Bilinear, [n, 32, 32, C] at positions y and x [n, 32, 32], reflected at the edges; mirrored: edge pixels not repeated."""
    rows, out = np.arange(len(image))[:, None, None], np.zeros(())

    def inside(index: np.ndarray) -> np.ndarray:
        period = 2 * SIDE - 2 if mirrored else 2 * SIDE
        index = index.astype(int) % period
        return np.minimum(index, period - index - (not mirrored))

    top, left = np.floor(y), np.floor(x)
    for row, tall in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, wide in ((left, 1 - (x - left)), (left + 1, x - left)):
            out = out + (tall * wide)[..., None] * image[rows, inside(row), inside(column)]
    return out


def jpeg(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """JPEG compression at quality 40."""
    from PIL import Image

    def one(pixels: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=40)
        with Image.open(file) as compressed:
            return np.asarray(compressed)

    return _through_bytes(one, image)


def pixelate(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Resizes to 20 x 20 pixels and back with Pillow's box filter."""
    from PIL import Image

    small = int(SIDE * 0.65)

    def one(pixels: np.ndarray) -> np.ndarray:
        reduced = Image.fromarray(pixels).resize((small, small), Image.Resampling.BOX)
        return np.asarray(reduced.resize((SIDE, SIDE), Image.Resampling.BOX))

    return _through_bytes(one, image)


def _through_bytes(one: Callable, image: np.ndarray) -> np.ndarray:
    pixels = np.rint(image * 255).astype(np.uint8)
    return (np.stack([one(p) for p in pixels]) + 0.5) / 255
