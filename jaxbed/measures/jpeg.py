"""JPEG compression on the device: images as they look when read back from a JPEG file.

Source: ITU-T T.81 (1992), with the choices of libjpeg-turbo as Pillow runs it: chroma at half the resolution in both directions, the
standard tables scaled by the quality, the accurate integer transform (after Loeffler, Ligtenberg and Moschytz, 1989) and triangle
("fancy") upsampling. Entropy coding loses nothing and is left out.

Differences from Pillow with libjpeg-turbo: none, at all qualities, for images at least 5 px wide (libjpeg upsamples narrower ones in
another way). Measured in 8-bit levels with Pillow 13.0, on smooth images and on uniform noise of 224 x 224 and of 45 x 67 px:

    quality                  7     10     15     18     25     85
    smooth: mean, largest  0, 0   0, 0   0, 0   0, 0   0, 0   0, 0
    noise: mean, largest   0, 0   0, 0   0, 0   0, 0   0, 0   0, 0

All arithmetic is in 32-bit integers: results are the same on every device. Other libraries, such as libjpeg 9, give other levels.
"""

import jax
import jax.numpy as jnp
import numpy as np

# of quality 50; rows are vertical frequencies
LUMA = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
CHROMA = np.full((8, 8), 99)
CHROMA[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]

# Rows are frequencies, columns pixels: 8192 √2 cos(...). Some entries are a unit off, as libjpeg's sums of rounded constants are
EVEN = np.array([[8192, 8192, 8192, 8192], [10703, 4433, -4433, -10703], [8192, -8192, -8192, 8192], [4433, -10704, 10704, -4433]])
ODD = np.array([[11363, 9633, 6437, 2260], [9633, -2259, -11362, -6436], [6437, -11362, 2261, 9633], [2260, -6436, 9633, -11363]])
TRANSFORM = np.stack([np.hstack([EVEN, EVEN[:, ::-1]]), np.hstack([ODD, -ODD[:, ::-1]])], axis=1).reshape(8, 8).astype(np.int32)

# of 65536
TO_YCC = np.array([[19595, 38470, 7471], [-11059, -21709, 32768], [32768, -27439, -5329]], np.int32)
RED_OF_CR, GREEN_OF_CB, GREEN_OF_CR, BLUE_OF_CB = 91881, -22554, -46802, 116130


def tables(quality: int) -> np.ndarray:
    """Steps [2, 8, 8] int32 that coefficients of luma and of chroma are rounded to. Raises ValueError for a quality outside 1 to 100."""
    if not 1 <= quality <= 100:
        raise ValueError(f"quality = {quality}: the quality of a JPEG image is from 1 to 100")
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((np.stack([LUMA, CHROMA]) * percent + 50) // 100, 1, 255).astype(np.int32)


def compressed(image: jax.Array, steps: jax.Array | np.ndarray) -> jax.Array:
    """Images [B, H, W, 3] float32 in [0, 1], of any side, as they are after compression with the steps [2, 8, 8] of `tables`.

    Pixels are rounded to 8 bits first. The result is float32 in [0, 1], of 8 bits as well. Raises ValueError for other than 3 channels.
    """
    _, height, width, channels = image.shape
    if channels != 3:
        raise ValueError(f"images have {channels} channel(s): JPEG compression is for the 3 of RGB")
    level = jnp.round(jnp.clip(image, 0, 1) * 255).astype(jnp.int32)
    offset = jnp.array([32768, (128 << 16) + 32767, (128 << 16) + 32767], jnp.int32)
    ycc = (jnp.einsum("oi,bhwi->obhw", TO_YCC, level) + offset[:, None, None, None]) >> 16
    luma = _coded(_padded(ycc[0], 8, 8), steps[0])[:, :height, :width]
    # Columns are repeated before pairs are averaged, rows (but for one that makes their number even) after it, as libjpeg does
    small = _padded(_halved(_padded(ycc[1:].reshape(-1, height, width), 2, 16)), 8, 8)
    small = _coded(small, steps[1])[:, : (height + 1) // 2, : (width + 1) // 2]
    cb, cr = _doubled(small)[:, :height, :width].reshape(2, -1, height, width) - 128
    red = luma + ((RED_OF_CR * cr + 32768) >> 16)
    green = luma + ((GREEN_OF_CB * cb + GREEN_OF_CR * cr + 32768) >> 16)
    blue = luma + ((BLUE_OF_CB * cb + 32768) >> 16)
    return jnp.clip(jnp.stack([red, green, blue], -1), 0, 255).astype(jnp.float32) / 255


def _padded(plane: jax.Array, rows: int, columns: int) -> jax.Array:
    """Planes [B, H, W] whose last rows and columns are repeated to multiples."""
    _, height, width = plane.shape
    return jnp.pad(plane, ((0, 0), (0, -height % rows), (0, -width % columns)), mode="edge")


def _coded(plane: jax.Array, steps: jax.Array | np.ndarray) -> jax.Array:
    """Planes [B, 8m, 8n] in 0 to 255 after their coefficients were rounded to steps [8, 8]."""
    batch, height, width = plane.shape
    block = (plane - 128).reshape(batch, height // 8, 8, width // 8, 8)
    coefficient = _shifted(jnp.einsum("kj,bminj->bmink", TRANSFORM, block), 11)
    coefficient = _shifted(jnp.einsum("ki,bminj->bmknj", TRANSFORM, coefficient), 15)  # 8 times the orthonormal transform
    step = jnp.asarray(steps)[:, None, :]
    rounded = jnp.sign(coefficient) * ((jnp.abs(coefficient) + 4 * step) // (8 * step)) * step
    block = _shifted(jnp.einsum("ki,bmknj->bminj", TRANSFORM, rounded), 11)
    block = _shifted(jnp.einsum("kj,bmink->bminj", TRANSFORM, block), 18)
    return jnp.clip(block + 128, 0, 255).reshape(plane.shape)


def _shifted(value: jax.Array, bits: int) -> jax.Array:
    """value / 2^bits, rounded; halves up."""
    return (value + (1 << (bits - 1))) >> bits


def _halved(plane: jax.Array) -> jax.Array:
    """Means of 2 x 2 pixels of planes [B, 2m, 2n]. Halves are rounded down and up in turn, column by column."""
    batch, height, width = plane.shape
    total = plane.reshape(batch, height // 2, 2, width // 2, 2).sum((2, 4))
    return (total + 1 + jnp.arange(width // 2) % 2) >> 2


def _doubled(plane: jax.Array) -> jax.Array:
    """Planes [B, 2m, 2n] of [B, m, n]: each pixel is 3/4 of the nearest and 1/4 of the next one, along both axes."""
    batch, height, width = plane.shape
    wide = jnp.pad(plane, ((0, 0), (1, 1), (1, 1)), mode="edge")
    near = 3 * wide[:, 1:-1]
    tall = jnp.stack([near + wide[:, :-2], near + wide[:, 2:]], axis=2).reshape(batch, 2 * height, width + 2)
    near = 3 * tall[..., 1:-1]
    return jnp.stack([near + tall[..., :-2] + 8, near + tall[..., 2:] + 7], axis=-1).reshape(batch, 2 * height, 2 * width) >> 4
