"""From the bytes of a image to a square of pixels: shorter side to resize_px, then the central square of side_px.

Two ways. "exact" is Pillow's antialiased bilinear filter, with torchvision's rounding (Resize, CenterCrop): evaluation, where numbers are
compared with the literature. "fast" lets libjpeg decode at a half or less where that suffices and averages the rest (OpenCV's area
filter): about 1.4 times as fast at 500 x 375 (scripts/bench_pipeline.py, 2 CPU cores), and not the same pixels: training.

Transparent pixels are shown on white, which torchvision does not do: there they have the colour that is stored, as a rule black. As there,
EXIF's orientation is ignored, and of an animation the first frame counts.
"""

import functools
import io
import types
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

WAYS = ("exact", "fast")
JPEG = b"\xff\xd8"
SAME = ("YCbCr", "Gray", "RGB")  # kinds of JPEG that simplejpeg and Pillow turn into the same pixels; not so CMYK and YCCK
BACKGROUND = "white"  # behind what is transparent: what is stored there is arbitrary, as a rule black
BIT_DEPTH = 24  # where a PNG file tells it
MOST = 178_956_970  # pixels that Pillow decodes; a damaged header may tell of more, and memory for them would be taken first


def square(content: bytes, side_px: int, resize_px: int, way: str = "exact") -> np.ndarray:
    """uint8 [side_px, side_px, 3], RGB. resize_px 0: not resized. Raises ValueError for what is no image or too small."""
    if way not in WAYS:
        raise ValueError(f"{way!r} is no way of decoding: {', '.join(WAYS)}")
    if way == "fast" and content[:2] == JPEG and resize_px:
        try:
            return _fast(content, side_px, resize_px)
        except ValueError:  # small, huge or damaged, of which Pillow tells more
            pass
    return _exact(content, side_px, resize_px)


def _exact(content: bytes, side_px: int, resize_px: int) -> np.ndarray:
    from PIL import Image

    loaded = image(content)
    if resize_px and min(loaded.size) != resize_px:
        shorter = min(loaded.size)
        loaded = loaded.resize([int(resize_px * side / shorter) for side in loaded.size], Image.Resampling.BILINEAR)
    width, height = loaded.size
    if min(width, height) < side_px:
        raise ValueError(f"{height} x {width} pixels hold no square of {side_px}")
    left, top = round((width - side_px) / 2), round((height - side_px) / 2)
    return np.asarray(loaded.crop((left, top, left + side_px, top + side_px)))


def image(content: bytes) -> "Image.Image":
    """Pillow's RGB image, transparent parts on BACKGROUND. Raises ValueError for what is none.

    Most JPEG go through simplejpeg, which gives the same pixels and lets threads work side by side.
    """
    import simplejpeg
    from PIL import Image, UnidentifiedImageError

    if content[:2] == JPEG:
        try:
            if _colours(content) in SAME:
                return Image.fromarray(simplejpeg.decode_jpeg(content, "RGB", fastdct=False, fastupsample=False))
        except ValueError:  # huge or damaged, of which Pillow tells more
            pass
    try:
        with Image.open(io.BytesIO(content)) as opened:
            return _rgb(opened, content[BIT_DEPTH] if opened.format == "PNG" else 8)
    except UnidentifiedImageError:  # its message has an address in memory, and no more than this
        raise ValueError(f"its {len(content)} bytes are no image that Pillow knows") from None
    except (ValueError, MemoryError):  # the latter is of the machine, not of the image
        raise
    except Exception as error:  # of many kinds: SyntaxError, struct.error, DecompressionBombError, ...
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _colours(content: bytes) -> str:
    """What a JPEG file's pixels are, in simplejpeg's words. Raises ValueError for too many of them."""
    import simplejpeg

    height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    if height * width > MOST:
        raise ValueError(f"{height} x {width} pixels are more than {MOST}")
    return colours


def _rgb(image: "Image.Image", bits: int) -> "Image.Image":
    from PIL import Image

    clear = image.info.get("transparency")  # in a PNG file without palette one colour, in numbers of `bits` bits
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # 16 bits in both: versions of Pillow differ
        array = np.asarray(image).astype(np.int64)
        grey = ((array + 128) // 257).astype(np.uint8)  # convert alone would clip at 255
        return Image.fromarray(grey if clear is None else np.where(array == clear, np.uint8(255), grey)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of 32 bits (mode {image.mode}), and nothing says which value is white: store it with 8 or 16")
    if image.mode == "L" and bits < 8 and clear is not None:  # Pillow has pixels of 8 bits by now, but not this
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

    cv2.setNumThreads(1)  # images are many already: threads of its own within each only get in the way
    return cv2


def _fast(content: bytes, side_px: int, resize_px: int) -> np.ndarray:
    import simplejpeg

    _colours(content)
    smaller = {"min_height": resize_px, "min_width": resize_px, "min_factor": 2}  # a half or less: fractions between take longer than all
    image = simplejpeg.decode_jpeg(content, "RGB", fastdct=True, fastupsample=True, **smaller)
    height, width, _ = image.shape
    if min(height, width) < resize_px:
        raise ValueError("nothing is gained where a image is enlarged")
    wanted = round(min(height, width) * side_px / resize_px)  # the square's side before it is resized
    top, left = (height - wanted) // 2, (width - wanted) // 2
    cut = image[top : top + wanted, left : left + wanted]
    cv2 = _opencv()
    return cut if wanted == side_px else cv2.resize(cut, (side_px, side_px), interpolation=cv2.INTER_AREA)
