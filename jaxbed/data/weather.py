"""The weather among the corruptions of CIFAR-10-C: snow, frost, fog and spatter, see `corruptions`."""

import pathlib

import numpy as np

from jaxbed.data.corruptions import LUMA, SIDE, gaussian, move, zoom_matrix

MUD = np.array([63, 42, 20]) / 255


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
    """uint8 [H, W, 3] each: the first five images, by name, at a fifth of their size. The published code never uses its sixth."""
    import cv2

    from jaxbed.data import decode, image_files

    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in image_files.ENDINGS)[:5] if folder.is_dir() else []
    if not paths:
        raise FileNotFoundError(f"{folder} has no frost images: name the folder of frost1.png to frost6.jpg, or none for synthetic")
    textures = []
    for path in paths:
        textures.append(cv2.resize(np.asarray(decode.image(path.read_bytes())), (0, 0), fx=0.2, fy=0.2))
        if min(textures[-1].shape[:2]) <= SIDE:
            raise ValueError(
                f"{path} has sides of {textures[-1].shape[:2]} px at a fifth of its size, and each must exceed {SIDE}: use a larger one"
            )
    return tuple(textures)


def fog(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    brightest = image.max((1, 2, 3), keepdims=True)
    return (image + 1.5 * plasma(len(image), 1.75, rng)[..., None]) * brightest / (brightest + 1.5)


def plasma(count: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """[count, 32, 32] in [0, 1]: fractal height maps on a torus, by diamond-square; each halving divides the noise by decay²."""
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
    """Spatters of mud."""
    liquid = gaussian(rng.normal(0.65, 0.1, image.shape[:3]), 0.5)
    mud = gaussian((liquid > 0.68).astype(float), 0.6)
    mud = np.where(mud < 0.8, 0, mud)[..., None]
    return (1 - mud) * image + mud * MUD
