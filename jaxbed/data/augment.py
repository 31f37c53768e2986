"""Augmentation on the device, inside the compiled step: uint8 images in, normalised floats out, with one key per sample.

`make` builds the augmentation of training batches, `make_evaluation` the preprocessing of evaluation. The order is the usual one: crop,
flip, colour jitter, noise, normalisation, erasing; disabled operations cost nothing. The operations below them are each written for one
image and mapped over the batch: a sample's result depends only on (key of the batch, its index), and none needs the host.

Semantics are torchvision's (RandomResizedCrop, RandomCrop, ColorJitter, RandomErasing), with boxes of whole pixels: at 32 px, continuous
boxes would have another distribution. Differences from torchvision:

* Values stay float32 from the crop on. PIL rounds to 8 bits after each resampling pass, and both PIL and uint8 tensors truncate after
  each colour operation.
* Where torchvision's two paths disagree, this follows the tensor one: grey is 0.2989 R + 0.587 G + 0.114 B (the weights sum to 0.9999;
  PIL's "L" takes 0.299 and rounds), contrast uses the exact mean of grey (PIL: the mean rounded to a whole level), and hue is continuous
  (PIL: 256 steps of 1.4 degrees, its saturation 8 bits as well). But grey is not rounded, whereas torchvision truncates it.
* Single-channel images with saturation or hue raise an error; torchvision leaves them unchanged.
* A rectangle that rounds to no pixel is redrawn; in torchvision it erases nothing (images below 10 px).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed import values
from jaxbed.data.boxes import ERASING, Box, Size, draw_box, draw_rectangle, draw_window
from jaxbed.values import Dtype, NotNegative, Positive, Range, Share, Whole

COLOURS = ("brightness", "contrast", "saturation", "hue")
CROP_FIELDS = {"padding_px": "padded", "scale_frac": "resized", "ratio": "resized", "centre_frac": "resized"}
LUMA = (0.2989, 0.587, 0.114)
# Each operation has its own random stream, so enabling one does not change the draws of the others: append, never reorder.
BOX, WINDOW, FLIP, COLOUR, ERASE, NOISE = range(6)
Area = Annotated[float, Range(0, 1, above=True)]  # over that of the image


@dataclasses.dataclass
class Config:
    """Augmentation settings. By default, only normalisation."""

    crop: Literal["none", "padded", "resized"] = "none"  # padded: zeros around, then a random window; resized: a random box, resampled
    crop_px: Whole = 0  # side of the output; 0: height and width of the image; with crop "none" the whole image is resampled to it
    padding_px: Whole = 4  # padded: zeros on each side; evaluation takes the central window
    # resized: area of the box over that of the image, uniform. Areas above 1 never fit: after ten draws, the central box is taken
    scale_frac: tuple[Positive, Positive] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)  # resized: width over height of the box, log-uniform
    # resized: evaluation crops a central box, this fraction of the largest one with the output's shape
    centre_frac: Area = 0.875
    flip: Share = 0.0  # probability of a horizontal flip
    brightness: NotNegative = 0.0  # factor uniform in [max(0, 1-x), 1+x]; the four colour operations act in random order
    contrast: NotNegative = 0.0  # as brightness
    saturation: NotNegative = 0.0  # as brightness
    hue: Annotated[float, Range(0, 0.5)] = 0.0  # shift uniform in [-x, x], in turns of the colour circle
    noise: Literal["none", "speckle", "gaussian"] = "none"  # in [0, 1] before normalisation; speckle: times the pixel
    noise_share: Share = 0.5  # of every batch, a whole number of images, drawn anew
    noise_std: tuple[Positive, ...] = (0.15, 0.2, 0.35, 0.45, 0.6)  # one of these for each image (Rusak et al., 2020: speckle)
    erase: Share = 0.0  # probability of filling a rectangle after normalisation
    erase_form: Literal["torchvision", "zhong"] = (
        "torchvision"  # which rectangles; filled with 0, which is the mean colour, or CIFAR's mean
    )
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of values in [0, 1]; one per channel, or one for all
    std: tuple[Positive, ...] = (0.229, 0.224, 0.225)  # as mean
    dtype: Dtype = "float32"  # of the result; arithmetic is float32

    def check_batch(self, batch_size: int) -> None:
        """Raises ValueError where noise would change a part of an image."""
        noisy_images(self, batch_size)


def noisy_images(cfg: Config, batch_size: int) -> int:
    """How many images of a batch get noise. Raises ValueError where this is not a whole number."""
    wanted = cfg.noise != "none" and cfg.noise_share > 0
    return values.images_of(batch_size, cfg.noise_share, "data.augment.noise_share") if wanted else 0


def make(cfg: Config, shape: tuple[int, ...]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(key, image [B, H, W, C] uint8) -> [B, h, w, C] of cfg.dtype, for images of `shape` = (H, W, C).

    Raises ValueError for settings that are invalid, or invalid for that shape; the function does for a batch of which noise_share is not a
    whole number of images.
    """
    check(cfg, shape)
    side = (shape[0], shape[1])
    out = (cfg.crop_px, cfg.crop_px) if cfg.crop_px else side
    amounts = {name: getattr(cfg, name) for name in COLOURS if getattr(cfg, name)}

    def one(key: jax.Array, image: jax.Array, noisy: jax.Array) -> jax.Array:
        streams = [
            jax.random.fold_in(key, stream) for stream in (BOX, WINDOW, FLIP, COLOUR, ERASE, NOISE)
        ]  # unused ones are never computed
        if cfg.crop == "resized":
            image = resample(image, draw_box(streams[BOX], side, cfg.scale_frac, cfg.ratio), out)
        elif cfg.crop == "padded":
            image = cut_window(image, draw_window(streams[WINDOW], side, out, cfg.padding_px), out, cfg.padding_px)
        else:
            image = _fit(image, (0, 0, *side), out)
        if cfg.flip:
            image = jnp.where(jax.random.bernoulli(streams[FLIP], cfg.flip), image[:, ::-1], image)
        if amounts:
            image = jitter(streams[COLOUR], image.astype(jnp.float32), amounts)
        if cfg.noise != "none":
            image = add_noise(
                image.astype(jnp.float32), draw_noise(streams[NOISE], image.shape, cfg.noise_std) * noisy, cfg.noise == "speckle"
            )
        image = normalise(image, cfg.mean, cfg.std)
        if cfg.erase:
            form = ERASING[cfg.erase_form]
            image = erase(image, draw_rectangle(streams[ERASE], out, cfg.erase, form), form.fill)
        return image.astype(cfg.dtype)

    def augment(key: jax.Array, image: jax.Array) -> jax.Array:
        _check_image(image, shape)
        size = image.shape[0]
        index = jnp.arange(size)
        sample_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index)
        noisy, count = index < 0, noisy_images(cfg, size)
        if count:  # any of them: a batch may hold one training set after another
            noisy = jax.random.permutation(jax.random.fold_in(key, size), size) < count
        return jax.vmap(one)(sample_keys, image, noisy)

    return augment


def make_evaluation(cfg: Config, shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """image [B, H, W, C] uint8 -> [B, h, w, C] of cfg.dtype: the central crop that matches cfg.crop, normalised; nothing random.

    "resized" crops whole pixels, ⌊centre_frac · side⌋. A set with another image size needs its own function. Raises like `make`.
    """
    check(cfg, shape)
    height, width, _ = shape
    out = (cfg.crop_px, cfg.crop_px) if cfg.crop_px else (height, width)
    zoom = cfg.centre_frac * min(height / out[0], width / out[1])  # of the central box over the output
    h, w = (max(1, math.floor(zoom * side + 1e-6)) for side in out)

    def one(image: jax.Array) -> jax.Array:
        if cfg.crop == "resized":
            image = _fit(image, ((height - h) // 2, (width - w) // 2, h, w), out)
        elif cfg.crop == "padded":
            start = [(side + 2 * cfg.padding_px - size) // 2 for side, size in zip(shape[:2], out, strict=True)]
            image = cut_window(image, jnp.array(start), out, cfg.padding_px)
        else:
            image = _fit(image, (0, 0, height, width), out)
        return normalise(image, cfg.mean, cfg.std).astype(cfg.dtype)

    def prepare(image: jax.Array) -> jax.Array:
        _check_image(image, shape)
        return jax.vmap(one)(image)

    return prepare


def check(cfg: Config, shape: tuple[int, ...]) -> None:
    """Raises ValueError, with the value, what is allowed and the cure, unless cfg is valid for images of `shape` = (H, W, C)."""
    height, width, channels = shape
    if channels not in (1, 3) or height < 1 or width < 1:
        raise ValueError(f"images of shape (H, W, C) = {tuple(shape)}: allowed are 1 or 3 channels and sides of at least 1 px")
    values.check(cfg, "augment")
    for field in dataclasses.fields(cfg):
        needed, value = CROP_FIELDS.get(field.name, cfg.crop), getattr(cfg, field.name)
        if needed != cfg.crop and value != field.default:
            raise ValueError(f"augment.{field.name} = {value} has no effect with crop = {cfg.crop!r}: set crop = {needed!r}, or remove it")
    for name in ("scale_frac", "ratio"):
        low, high = getattr(cfg, name)
        if low > high:
            raise ValueError(f"augment.{name} = {(low, high)}: give (low, high) with low <= high")
    for name in ("mean", "std"):
        if len(getattr(cfg, name)) not in (1, channels):
            raise ValueError(f"augment.{name} = {getattr(cfg, name)}: give one number, or one per channel ({channels})")
    if channels == 1 and (cfg.saturation or cfg.hue):
        raise ValueError(f"augment.saturation = {cfg.saturation} and hue = {cfg.hue} need 3 channels, but images have 1: set both to 0")
    most = min(height, width) + 2 * cfg.padding_px
    if cfg.crop == "padded" and cfg.crop_px > most:
        raise ValueError(f"augment.crop_px = {cfg.crop_px}: the padded side has only {most} px: lower it to that, or increase padding_px")


def _check_image(image: jax.Array, shape: tuple[int, ...]) -> None:
    if image.ndim != 4 or image.shape[1:] != tuple(shape) or image.dtype != jnp.uint8:
        raise ValueError(
            f"images are {image.dtype} {list(image.shape)}, not uint8 [B, *{list(shape)}]: build the augmentation for their shape"
        )


def cut_window(image: jax.Array, start: jax.Array, out_px: Size, padding_px: int) -> jax.Array:
    """The window of out_px = (h, w) at start [2] = (top, left) of image [H, W, C] with padding_px zeros on each side; keeps the dtype."""
    padded = jnp.pad(image, ((padding_px, padding_px), (padding_px, padding_px), (0, 0)))
    return jax.lax.dynamic_slice(padded, (start[0], start[1], 0), (*out_px, image.shape[2]))


def resample(image: jax.Array, box: Box, out_px: Size, beyond: bool = False) -> jax.Array:
    """Crops box (fractions of pixels are allowed) of image [H, W, C] and resamples it to out_px = (h, w): float32 [h, w, C], 0 to 255.

    Two matrix products, batched under vmap. The triangle filter widens when reducing, like Pillow's BILINEAR and torchvision's
    antialias=True. It reads only pixels that the box touches, like a crop followed by a resize; beyond=True: Pillow's resize(box=...).
    """
    top, left, height, width = box
    down = weigh(top, height, image.shape[0], out_px[0], beyond)
    across = weigh(left, width, image.shape[1], out_px[1], beyond)
    # The default precision on a TPU is one pass of bfloat16, with errors of up to one grey level
    rows = jnp.einsum("oh,hwc->owc", down, image.astype(jnp.float32), precision="high")
    return jnp.einsum("pw,owc->opc", across, rows, precision="high")


def weigh(start: jax.Array | float, length: jax.Array | float, side_px: int, out_px: int, beyond: bool = False) -> jax.Array:
    """Weights [out_px, side_px] of a triangle filter over start to start + length, in pixels of a side of side_px; each row sums to 1."""
    step = jnp.asarray(length, jnp.float32) / out_px
    centre = start + (jnp.arange(out_px)[:, None] + 0.5) * step
    pixel = jnp.arange(side_px)
    weight = jnp.maximum(1 - jnp.abs(pixel + 0.5 - centre) / jnp.maximum(step, 1), 0)
    if not beyond:
        weight = jnp.where((pixel + 1 > start) & (pixel < start + length), weight, 0)
    return weight / weight.sum(axis=1, keepdims=True)


def _fit(image: jax.Array, box: tuple[int, int, int, int], out_px: Size) -> jax.Array:
    """`resample` for a fixed box of whole pixels; only a crop if the box has the output's size."""
    top, left, height, width = box
    return image[top : top + height, left : left + width] if (height, width) == out_px else resample(image, box, out_px)


def jitter(key: jax.Array, image: jax.Array, amounts: dict[str, float]) -> jax.Array:
    """Colour jitter of image [H, W, C] float32 in 0 to 255: the operations named in amounts, each once, in random order.

    Orders differ between samples, so each of the n passes computes all n operations and selects one: n² instead of n.
    """
    order_key, factor_key = jax.random.split(key)
    order, factors = jax.random.permutation(order_key, len(amounts)), {}
    uniform = jax.random.uniform(factor_key, (len(COLOURS),))  # drawn for all, so no factor depends on which others are enabled
    for name, amount in amounts.items():
        low, high = (-amount, amount) if name == "hue" else (max(0.0, 1 - amount), 1 + amount)
        factors[name] = low + (high - low) * uniform[COLOURS.index(name)]

    def turn(planes: jax.Array, which: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.select_n(which, *(adjust(name, planes, factor) for name, factor in factors.items())), None

    # A loop prevents fusion of the passes: every channel of the last one would recompute all earlier ones
    return jnp.moveaxis(jax.lax.scan(turn, jnp.moveaxis(image, -1, 0), order)[0], 0, -1)


def adjust(name: str, planes: jax.Array, factor: jax.Array | float) -> jax.Array:
    """One colour operation on planes [C, H, W] float32 in 0 to 255. Factor 1 (for hue, a shift of 0 turns) changes nothing."""
    if name == "hue":
        return shift_hue(planes, factor)
    # Separate channels: a sum over an axis of three would be a slow separate kernel
    grey = planes[0] if len(planes) == 1 else LUMA[0] * planes[0] + LUMA[1] * planes[1] + LUMA[2] * planes[2]
    others: dict[str, jax.Array | float] = {"brightness": 0.0, "contrast": grey.mean(), "saturation": grey}
    return jnp.clip(factor * planes + (1 - factor) * others[name], 0, 255)


def shift_hue(planes: jax.Array, turns: jax.Array | float) -> jax.Array:
    """planes [3, H, W] with their HSV hue shifted by `turns` of the colour circle; the largest and smallest channel values remain."""
    red, green, blue = planes
    high = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = high - jnp.minimum(jnp.minimum(red, green), blue)
    # in sixths of a turn, from red; for grey pixels the value is irrelevant, since their chroma is 0
    top = jnp.where(red == high, green - blue, jnp.where(green == high, blue - red, red - green))
    hue = top / jnp.where(chroma == 0, 1, chroma) + jnp.where(red == high, 0, jnp.where(green == high, 2, 4)) + 6 * turns
    away = hue + jnp.array([5.0, 3.0, 1.0])[:, None, None]
    away -= 6 * jnp.floor(away / 6)
    return high - chroma * jnp.clip(jnp.minimum(away, 4 - away), 0, 1)


def normalise(image: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]) -> jax.Array:
    """(image / 255 - mean) / std in float32, as one multiply-add; mean and std refer to values in [0, 1]."""
    centre, scale = np.array(mean), np.array(std)
    return image.astype(jnp.float32) * (1 / (255 * scale)).astype(np.float32) - (centre / scale).astype(np.float32)


def draw_noise(key: jax.Array, shape: tuple[int, ...], std: tuple[float, ...]) -> jax.Array:
    """Normal noise [H, W, C] with one of the standard deviations."""
    which, key = jax.random.split(key)
    return jax.random.choice(which, jnp.array(std, jnp.float32)) * jax.random.normal(key, shape)


def add_noise(image: jax.Array, noise: jax.Array, speckle: bool) -> jax.Array:
    """image [H, W, C] of 0 to 255 with noise [H, W, C] in units of the whole range, or, for speckle, of the pixel; clipped."""
    return jnp.clip(image + noise * (image if speckle else 255.0), 0, 255)


def erase(image: jax.Array, rectangle: Box, fill: tuple[float, ...] = (0.0,)) -> jax.Array:
    """image [H, W, C] with fill, a number for each channel, inside the rectangle."""
    top, left, height, width = rectangle
    y, x = jnp.arange(image.shape[0])[:, None, None], jnp.arange(image.shape[1])[:, None]
    inside = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    return jnp.where(inside, jnp.array(fill[: image.shape[2]], image.dtype), image)
