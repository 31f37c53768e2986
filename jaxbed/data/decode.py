"""Decodes an image to a square: the shorter side is resized to resize_px, then the central square of side_px is cut out.

There are four ways. "exact" is Pillow's antialiased bilinear filter with torchvision's rounding (Resize, CenterCrop), for evaluation,
whose scores are compared with the literature. "fast" lets libjpeg decode at half size or less if that suffices and averages the rest
(OpenCV's area filter), for training: it is about 1.4 times as fast at 500 x 375 (scripts/bench_pipeline.py, 2 CPU cores), but gives other
pixels. "unchanged" takes images that have that size already, and refuses others. "stretched" resizes the whole image to the square,
whatever its shape, with the filter of "exact".

Transparent pixels become white; torchvision keeps their stored colour, usually black. As in torchvision, EXIF orientation is ignored, and
only the first frame of an animation is read.
"""

import functools
import io
import types
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

WAYS = ("exact", "fast", "unchanged", "stretched")
JPEG = b"\xff\xd8"
SAME = ("YCbCr", "Gray", "RGB")  # kinds of JPEG that simplejpeg and Pillow decode to the same pixels, unlike CMYK and YCCK
BACKGROUND = "white"  # behind transparent pixels, whose stored colour is arbitrary, usually black
BIT_DEPTH = 24  # its offset in a PNG file
MOST = 178_956_970  # Pillow's limit on pixels; a damaged header may declare more, and memory for them would be allocated first


def square(content: bytes, side_px: int, resize_px: int, way: str = "exact") -> np.ndarray:
    """uint8 [side_px, side_px, 3], RGB. resize_px 0: not resized. Raises ValueError if it is not an image or too small."""
    if way not in WAYS:
        raise ValueError(f"way = {way!r} is not one of {', '.join(WAYS)}")
    if way == "fast" and content[:2] == JPEG and resize_px:
        try:
            return _fast(content, side_px, resize_px)
        except ValueError:  # small, huge or damaged: Pillow's message says more
            pass
    if way == "unchanged":
        return _unchanged(content, side_px)
    if way == "stretched":
        return _stretched(content, side_px)
    return _exact(content, side_px, resize_px)


def _unchanged(content: bytes, side_px: int) -> np.ndarray:
    loaded = image(content)
    if loaded.size != (side_px, side_px):
        width, height = loaded.size
        raise ValueError(f"it has {height} x {width} pixels: images of this set must have {side_px} x {side_px}, for they are not resized")
    return np.asarray(loaded)


def _stretched(content: bytes, side_px: int) -> np.ndarray:
    from PIL import Image

    return np.asarray(image(content).resize((side_px, side_px), Image.Resampling.BILINEAR))


def _exact(content: bytes, side_px: int, resize_px: int) -> np.ndarray:
    loaded = resized(image(content), resize_px) if resize_px else image(content)
    width, height = loaded.size
    if min(width, height) < side_px:
        raise ValueError(f"it has {height} x {width} pixels, too few for a square of {side_px}")
    left, top = round((width - side_px) / 2), round((height - side_px) / 2)
    return np.asarray(loaded.crop((left, top, left + side_px, top + side_px)))


def resized(loaded: "Image.Image", shorter_px: int) -> "Image.Image":
    """An image of Pillow with a shorter side of shorter_px: its antialiased bilinear filter with torchvision's rounding."""
    from PIL import Image

    if min(loaded.size) == shorter_px:
        return loaded
    return loaded.resize(resized_px(loaded.size, shorter_px), Image.Resampling.BILINEAR)


def resized_px(sides_px: tuple[int, int], shorter_px: int) -> tuple[int, int]:
    """Both sides of an image after its shorter one has become shorter_px."""
    one, other = (int(shorter_px * side / min(sides_px)) for side in sides_px)
    return one, other


def image(content: bytes) -> "Image.Image":
    """Pillow's RGB image, transparent pixels on BACKGROUND. Raises ValueError if it is not an image.

    Most JPEG files are decoded by simplejpeg, which gives the same pixels and lets threads run in parallel.
    """
    import simplejpeg
    from PIL import Image, UnidentifiedImageError

    if content[:2] == JPEG:
        try:
            if _colours(content) in SAME:
                return Image.fromarray(simplejpeg.decode_jpeg(content, "RGB", fastdct=False, fastupsample=False))
        except ValueError:  # huge or damaged: Pillow's message says more
            pass
    try:
        with Image.open(io.BytesIO(content)) as opened:
            return _rgb(opened, content[BIT_DEPTH] if opened.format == "PNG" else 8)
    except UnidentifiedImageError:  # its message adds only a memory address
        raise ValueError(f"its {len(content)} bytes are not an image that Pillow can read") from None
    except (ValueError, MemoryError):  # MemoryError is the machine's fault, not the image's
        raise
    except Exception as error:  # many types are raised: SyntaxError, struct.error, DecompressionBombError, ...
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _colours(content: bytes) -> str:
    """The colour space of a JPEG file, as simplejpeg names it. Raises ValueError for too many pixels."""
    import simplejpeg

    height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    if height * width > MOST:
        raise ValueError(f"{height} x {width} pixels exceed the limit of {MOST}")
    return colours


def _rgb(image: "Image.Image", bits: int) -> "Image.Image":
    from PIL import Image

    clear = image.info.get("transparency")  # in a PNG file without palette: one colour, in values of `bits` bits
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # both have 16 bits: versions of Pillow differ
        array = np.asarray(image).astype(np.int64)
        grey = ((array + 128) // 257).astype(np.uint8)  # convert alone would clip at 255
        return Image.fromarray(grey if clear is None else np.where(array == clear, np.uint8(255), grey)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits (mode {image.mode}), for which white is undefined: store it with 8 or 16 bits")
    if image.mode == "L" and bits < 8 and clear is not None:  # Pillow has expanded the pixels to 8 bits, but not this
        image.info["transparency"] = clear * 255 // (2**bits - 1)
    if image.mode == "RGB" and bits == 16 and clear is not None:
        image.info["transparency"] = tuple(value >> 8 for value in clear)
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, BACKGROUND), image).convert("RGB")
    return image.convert("RGB")


@functools.cache
def _opencv() -> types.ModuleType:
    import cv2

    cv2.setNumThreads(1)  # images are already read in parallel: threads within each would only slow them down
    return cv2


def _fast(content: bytes, side_px: int, resize_px: int) -> np.ndarray:
    import simplejpeg

    _colours(content)
    smaller = {"min_height": resize_px, "min_width": resize_px, "min_factor": 2}  # half or less: fractions above take longer than 1
    image = simplejpeg.decode_jpeg(content, "RGB", fastdct=True, fastupsample=True, **smaller)
    height, width, _ = image.shape
    if min(height, width) < resize_px:
        raise ValueError("enlarging an image this way gains nothing")
    wanted = round(min(height, width) * side_px / resize_px)  # the square's side before it is resized
    top, left = (height - wanted) // 2, (width - wanted) // 2
    cut = image[top : top + wanted, left : left + wanted]
    cv2 = _opencv()
    return cut if wanted == side_px else cv2.resize(cut, (side_px, side_px), interpolation=cv2.INTER_AREA)
