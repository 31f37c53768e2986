"""The corruptions of CIFAR-10-C (Hendrycks and Dietterich, 2019) at level 5, of many images at once, in NumPy.

Each takes images [n, 32, 32, 3], float64 in [0, 1], and a generator, and gives the same; `corrupt` does so to bytes, cut off and not
rounded, as published. Parameters are those of LfF's "Severity4", which is level 5.

Differs from the published code: draws come from one generator, a call drawing for all images; motion blur is ImageMagick's by its
description (a one-sided Gaussian along a line, at whole pixels, edges repeated), not by itself; elastic's affine warp interpolates at exact
positions, OpenCV's at 1/32 of a pixel; frost takes its textures from a folder, and where none is given has made-up ones. Kept, since
released arrays have them: glass copies pixels where its text swaps them, saturation turns grey pixels reddish.
"""

import functools
import io
import pathlib
from collections.abc import Callable

import numpy as np

SIDE = 32
LUMA = np.array([0.299, 0.587, 0.114])
MUD = np.array([63, 42, 20]) / 255
CHUNK = 1000  # images at a time, for memory


def corrupt(function: Callable, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """uint8 [n, 32, 32, 3] by one of the functions below."""
    out = np.empty_like(image)
    for first in range(0, len(image), CHUNK):
        part = slice(first, first + CHUNK)
        out[part] = np.clip(function(image[part] / 255, rng), 0, 1) * 255
    return out


def gaussian(image: np.ndarray, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> np.ndarray:
    """Blurs the axes 1 and 2."""
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
    """A disk of radius 1.5 is all of 3 x 3 pixels, and its antialiasing of 0.1 pixel nothing."""
    from scipy import ndimage

    return ndimage.uniform_filter(image, 3, mode="mirror", axes=(1, 2))


def glass_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Twice, each pixel takes the colour of itself or a neighbour above or to the left, which has not been changed yet."""
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
    """[32, 32]: the central part of a side, enlarged so that its ends stay ends (SciPy's zoom of order 1), and the centre of that."""
    kept = int(np.ceil(SIDE / factor))
    size = round(kept * factor)
    position = (SIDE - kept) // 2 + (np.arange(SIDE) + (size - SIDE) // 2) * (kept - 1) / (size - 1)
    return np.maximum(1 - np.abs(position[:, None] - np.arange(SIDE)), 0)


@functools.cache
def zooms() -> np.ndarray:
    """[1024, 1024]: the mean of an image and its enlargements by 1 to 1.25, as one product."""
    matrices = [zoom_matrix(factor) for factor in np.arange(1, 1.26, 0.01)]
    return (np.eye(SIDE**2) + sum(np.kron(matrix, matrix) for matrix in matrices)) / (len(matrices) + 1)


def zoom_blur(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    planes = np.moveaxis(image, 3, 1).reshape(-1, SIDE**2) @ zooms().T
    return np.moveaxis(planes.reshape(-1, 3, SIDE, SIDE), 1, 3)


def original(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image + 0.5 / 255  # so that what is cut off brings back the same bytes


# Weather


def snow(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    layer, across = rng.normal(0.3, 0.3, image.shape[:3]), zoom_matrix(1.25)
    layer = across @ layer @ across.T
    layer = np.where(layer < 0.65, 0, np.minimum(layer, 1))
    layer = move(np.floor(layer * 255)[..., None], 14, 12, rng.uniform(-135, -45, len(image)))
    layer = np.rint(layer) / 255
    whiter = np.maximum(image, (image @ LUMA)[..., None] * 1.5 + 0.5)
    return 0.8 * image + 0.2 * whiter + layer + layer[:, ::-1, ::-1]


def frost(image: np.ndarray, rng: np.random.Generator, textures: tuple[np.ndarray, ...] = ()) -> np.ndarray:
    if textures:
        layer, side = np.empty_like(image), np.arange(SIDE)
        which, down, across = rng.integers(len(textures), size=len(image)), *rng.random((2, len(image), 1, 1))
        for number, texture in enumerate(textures):
            chosen = which == number
            top, left = ((share[chosen] * (size - SIDE)).astype(int) for share, size in zip((down, across), texture.shape, strict=False))
            layer[chosen] = texture[top + side[:, None], left + side] / 255
    else:
        ridges = (1 - np.abs(2 * plasma(len(image), 1.4, rng) - 1)) ** 2
        layer = (0.3 + 0.7 * ridges)[..., None] * np.array([0.85, 0.95, 1.0])
    return 0.75 * image + 0.45 * layer


def read_textures(folder: pathlib.Path) -> tuple[np.ndarray, ...]:
    """uint8 [H, W, 3] each: the first five images, by name, at a fifth of their size. The published code never takes its sixth."""
    import cv2

    from jaxbed.data import decode, image_files

    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in image_files.ENDINGS)[:5] if folder.is_dir() else []
    if not paths:
        raise FileNotFoundError(f"{folder} holds no images of frost: name the folder of frost1.png to frost6.jpg, or none for made-up ones")
    textures = []
    for path in paths:
        textures.append(cv2.resize(np.asarray(decode.image(path.read_bytes())), (0, 0), fx=0.2, fy=0.2))
        if min(textures[-1].shape[:2]) <= SIDE:
            raise ValueError(f"{path} has sides of {textures[-1].shape[:2]} px at a fifth of its size, and each must be above {SIDE}")
    return tuple(textures)


def fog(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    brightest = image.max((1, 2, 3), keepdims=True)
    return (image + 1.5 * plasma(len(image), 1.75, rng)[..., None]) * brightest / (brightest + 1.5)


def plasma(count: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """[count, 32, 32] in [0, 1]: fractal height maps on a torus, by the diamond-square rule; each halving divides the noise by decay²."""
    height, step, noise = np.zeros((count, SIDE, SIDE)), SIDE, 1.0

    def fill(y: slice, x: slice, sides: list[np.ndarray]) -> None:
        height[:, y, x] = sum(sides) / 4 + rng.uniform(-noise, noise, sides[0].shape)

    while step > 1:
        corner, centre = slice(0, SIDE, step), slice(step // 2, SIDE, step)
        known = height[:, corner, corner]
        lower = np.roll(known, -1, 1)
        fill(centre, centre, [known, lower, np.roll(known, -1, 2), np.roll(lower, -1, 2)])
        middle = height[:, centre, centre]
        fill(corner, centre, [middle, np.roll(middle, 1, 1), known, np.roll(known, -1, 2)])
        fill(centre, corner, [middle, np.roll(middle, 1, 2), known, np.roll(known, -1, 1)])
        step, noise = step // 2, noise / decay**2
    height -= height.min((1, 2), keepdims=True)
    return height / height.max((1, 2), keepdims=True)


def spatter(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mud."""
    liquid = gaussian(rng.normal(0.65, 0.1, image.shape[:3]), 0.5)
    mud = gaussian((liquid > 0.68).astype(float), 0.6)
    mud = np.where(mud < 0.8, 0, mud)[..., None]
    return (1 - mud) * image + mud * MUD


# Colour


def brightness(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """HSV's value up by 0.3; hue and saturation stay."""
    value = image.max(3, keepdims=True)
    brighter = np.minimum(value + 0.3, 1)
    return np.where(value > 0, image * brighter / np.where(value > 0, value, 1), brighter)


def contrast(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mean = image.mean((1, 2), keepdims=True)
    return (image - mean) * 0.15 + mean


def saturate(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """HSV's saturation becomes 2.5 times itself and 0.2 more; grey counts as red."""
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
    """Bilinear, [n, 32, 32, C] at positions y and x [n, 32, 32]. Beyond the edges, reflected; mirrored: edge pixels not twice."""
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
    """Quality 40."""
    from PIL import Image

    def one(pixels: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=40)
        with Image.open(file) as compressed:
            return np.asarray(compressed)

    return _through_bytes(one, image)


def pixelate(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """To 20 pixels a side and back, by Pillow's box filter."""
    from PIL import Image

    small = int(SIDE * 0.65)

    def one(pixels: np.ndarray) -> np.ndarray:
        reduced = Image.fromarray(pixels).resize((small, small), Image.Resampling.BOX)
        return np.asarray(reduced.resize((SIDE, SIDE), Image.Resampling.BOX))

    return _through_bytes(one, image)


def _through_bytes(one: Callable, image: np.ndarray) -> np.ndarray:
    pixels = np.rint(image * 255).astype(np.uint8)
    return (np.stack([one(p) for p in pixels]) + 0.5) / 255


TYPES = {  # LfF's two lists: the one at place c is aligned with class c
    0: (snow, frost, fog, brightness, contrast, spatter, elastic, jpeg, pixelate, saturate),
    1: (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        speckle_noise,
        gaussian_blur,
        defocus_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        original,
    ),
}
