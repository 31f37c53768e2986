"""ImageNet-C-bar's ten corruptions on whole arrays of NumPy, drawing included: what a user without an accelerator would write.

corrupt(image uint8 [side, side, 3], name, severity 1 to 5, rng of numpy.random) -> uint8 [side, side, 3]. `jaxbed.measures.imagenet_cbar`
says what each does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import ndimage

LEVELS = {
    "single_frequency_greyscale": (1, 1.5, 2, 4.5, 5),
    "cocentric_sine_waves": (3, 5, 8, 9, 10),
    "plasma_noise": (4.75, 7, 8.5, 9.25, 10),
    "perlin_noise": (4.6, 5.2, 5.8, 7.6, 8.8),
    "blue_noise_sample": (0.8, 1.6, 2.4, 4, 5.6),
    "brownish_noise": (1, 2, 3, 4, 5),
    "checkerboard_cutout": (2, 3, 4, 5, 6),
    "sparkles": (1, 2, 3, 5, 6),
    "inverse_sparkles": (1, 2, 4, 9, 10),
    "caustic_refraction": (2.35, 3.2, 4.9, 6.6, 9.15),
}
TURN = 2 * np.pi


def corrupt(image: np.ndarray, name: str, severity: int, rng: Any) -> np.ndarray:
    changed = globals()[name](image.astype(np.float32), LEVELS[name][severity - 1], rng)
    return np.clip(changed, 0, 255).astype(np.uint8)


def positions(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    side = np.arange(len(image), dtype=np.float32)
    return side[:, None], side[None]


def single_frequency_greyscale(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    row, column = positions(image)
    larger = rng.uniform(-np.pi, np.pi)
    first, second = rng.permutation([larger, rng.uniform(-abs(larger), abs(larger))])
    return image + 19.6 * level * np.sin(column * first + row * second + rng.uniform(0, TURN))[..., None]


def cocentric_sine_waves(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    row, column = positions(image)
    down, across = (position - rng.uniform(0, len(image)) for position in (row, column))
    lobes, (amplitude, width) = rng.uniform(0, 10), rng.uniform(0, 0.1 * len(image), 2)
    phase = (np.hypot(across, down) + amplitude * np.sin(lobes * np.arctan2(across, down))) / width
    return image + 12.8 * level * (phase % 1 - 0.5)[..., None]


def plasma_noise(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    scale, time, sharpness = rng.uniform(0.075, 0.2) * len(image), rng.uniform(0, 3 * TURN), rng.uniform(0.5, 1)
    y, x = (np.broadcast_to(position / scale, image.shape[:2]) for position in positions(image))
    a = b = c = 1.0
    for _ in range(rng.randint(4, 7)):
        first, second = np.cos(y * a + time / b) / c, np.sin(x * a + time / b) / c
        x, y = x + first - 0.3 * second, y + second + 0.3 * first
        a, b, c = a * 1.93, b * 1.15, c * (2.25 - sharpness)
    noise = np.stack([np.sin(x - time), np.sin((x + y + np.sin(time)) / 2), np.sin(y + time)], -1)
    return (1 - 6.4 * level / 255) * image + 6.4 * level * noise


def perlin_noise(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    permutation = np.tile(rng.permutation(256), 2)
    gradients = (rng.randint(0, 512, (256, 2)) - 256) / 256
    gradients = gradients / np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-9)

    def noise(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        left, top = np.floor(x).astype(int), np.floor(y).astype(int)

        def corner(i: int, j: int) -> np.ndarray:
            across, down = np.moveaxis(gradients[permutation[permutation[(left + i) % 256] + (top + j) % 256]], -1, 0)
            return across * (x - left - i) + down * (y - top - j)

        smooth_x, smooth_y = (3 * t**2 - 2 * t**3 for t in (x - left, y - top))
        low, high = (corner(0, j) + smooth_x * (corner(1, j) - corner(0, j)) for j in (0, 1))
        return 1.5 * (low + smooth_y * (high - low))

    row, column = positions(image)
    turbulence = sum(abs(noise(f * column / 32, f * row / 32)) / f for f in (1, 2, 4, 8, 16))
    alpha = 0.05 * level
    return (1 - alpha) * image + 255 * alpha * np.clip(0.5 * turbulence + 0.5, 0, 1)[..., None]


def spectral_noise(image: np.ndarray, amplitude: Callable[[np.ndarray], np.ndarray], rng: Any) -> np.ndarray:
    row, column = (position - len(image) / 2 for position in positions(image))
    left = rng.uniform(0, TURN, (len(image), len(image) // 2))
    phases = np.concatenate([left, np.rot90(left, 2)], 1)
    noise = np.fft.ifft2(np.fft.ifftshift(amplitude(np.hypot(row, column)) * np.exp(1j * phases))).real
    return noise / noise.std()


def blue_noise_sample(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    return image * (spectral_noise(image, lambda radius: radius, rng) > 0.3 * level - 2.5)[..., None]


def brownish_noise(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    return image + 6.4 * level * np.stack([spectral_noise(image, lambda radius: 1 / (radius**2 + 1), rng) for _ in range(3)], -1)


def checkerboard_cutout(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    row, column = positions(image)
    angle, cell = rng.uniform(0, TURN), rng.uniform(0.1, 0.25) * len(image)
    nx, ny = (row * np.cos(angle) + column * np.sin(angle)) / cell, (-row * np.sin(angle) + column * np.cos(angle)) / cell
    chances = rng.uniform(size=(int(4 * len(image) / cell),) * 2)
    cut = (np.floor(nx) % 2 == np.floor(ny) % 2) & (chances[nx.astype(int), ny.astype(int)] < 0.1 * level)
    return np.where(cut[..., None], 128, image)


def rays(image: np.ndarray, radius: float, least: float, centre: np.ndarray, exponent: float, rng: Any) -> np.ndarray:
    """Weight of white of one sparkle."""
    down, across = (position - place for position, place in zip(positions(image), centre, strict=True))
    number = rng.randint(50, 200)
    lengths = np.maximum(radius + 0.25 * radius * rng.normal(size=number), least)
    turn = (np.arctan2(across, down) + np.pi) / TURN * number
    ray = np.floor(turn).astype(int)
    share = turn - ray
    length = (1 - share) * lengths[ray % number] + share * lengths[(ray + 1) % number]
    return np.clip((1 - (share - 0.5) ** 2) * (length**2 / (down**2 + across**2 + 1e-4)) ** exponent, 0, 1)[..., None]


def sparkles(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    for _ in range(5):
        weight = rays(image, 0.01 * level * len(image), 1, rng.uniform(0, len(image), 2), 1, rng)
        image = image + weight * (255 - image)
    return image


def inverse_sparkles(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    weight = rays(image, len(image) / 4, -np.inf, rng.uniform(0.25, 0.75, 2) * len(image), 0.13 * level, rng)
    return 255 + weight * (image - 255)


def caustic_refraction(image: np.ndarray, level: float, rng: Any) -> np.ndarray:
    size, time = rng.uniform(0.75, 1.25) * len(image), rng.uniform(0.5, 2)
    p0, p1 = (np.broadcast_to(position / size % 1 * TURN - 250, image.shape[:2]) for position in positions(image))
    i0, i1, c = p0, p1, 1.0
    for n in range(1, 6):
        t = time * (1 - 3.5 / n)
        i0, i1 = p0 + np.cos(t - i0) + np.sin(t + i1), p1 + np.sin(t - i1) + np.cos(t + i0)
        c = c + 1 / np.hypot(p0 * 0.005 / np.sin(i0 + t), p1 * 0.005 / np.cos(i1 + t))
    height = np.pad(ndimage.gaussian_filter(np.minimum(abs(1.17 - (c / 5) ** 1.4) ** 8, 1), 1), 1)
    down, across = height[2:, 1:-1] - height[:-2, 1:-1], height[1:-1, 2:] - height[1:-1, :-2]
    normal = np.stack([down, across]) / np.sqrt(down**2 + across**2 + 1)
    cosine = 1 / np.sqrt(down**2 + across**2 + 1)
    bent = np.sqrt(1 - (1 - cosine**2) / 16)
    moved = np.round(np.where(cosine < 0.999, 0.05 * level * len(image) * normal * (bent - cosine / 4), 0), 3)
    places = moved + np.indices(image.shape[:2])
    seen = np.stack([ndimage.map_coordinates(image[..., channel], places, order=1, mode="grid-constant") for channel in range(3)], -1)
    return seen + 255 * 0.2 * level * (down - across)[..., None]
