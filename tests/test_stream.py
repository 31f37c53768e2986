"""Images on disk: decoding, records, folders, streams; training and evaluation from a stream are those from memory."""

import dataclasses
import functools
import io
import json
import os
import struct
import sys
import time
import types
import zlib

import jax
import numpy as np
import pytest
import simplejpeg
import tiny
from PIL import Image, PngImagePlugin

from jaxbed import parallel
from jaxbed.data import biased_images, decode, image_files, records, shapes, source, stream
from jaxbed.data.image_files import Size
from jaxbed.data.source import Component
from jaxbed.evaluation import evaluate, pools
from jaxbed.models import mlp
from jaxbed.training import members, train
from jaxbed.training.log import Log

RNG = np.random.default_rng(0)


def photo(height=80, width=100, mode="RGB"):
    """Smooth, as photographs are."""
    small = RNG.integers(0, 256, (9, 11, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image, form="JPEG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **({"quality": 95} if form == "JPEG" else {}) | options)
    return buffer.getvalue()


# Decoding


@pytest.mark.parametrize(("height", "width"), [(80, 100), (100, 80), (64, 64), (300, 77)])
def test_exact_squares_are_resize_and_centre_crop(height, width):
    image = photo(height, width)
    found = decode.square(encoded(image, "PNG"), 56, 64)
    short = min(height, width)
    resized = image if short == 64 else image.resize((int(64 * width / short), int(64 * height / short)), Image.Resampling.BILINEAR)
    array = np.asarray(resized)
    top, left = round((array.shape[0] - 56) / 2), round((array.shape[1] - 56) / 2)
    np.testing.assert_array_equal(found, array[top : top + 56, left : left + 56])


def test_images_of_the_right_size_are_left_alone():
    image = photo(48, 48)
    np.testing.assert_array_equal(decode.square(encoded(image, "PNG"), 48, 0), np.asarray(image))


@pytest.mark.parametrize(("height", "width"), [(80, 100), (333, 500), (40, 50), (512, 512)])
def test_fast_squares_are_nearly_the_exact_ones(height, width):
    content = encoded(photo(height, width, "L").convert("RGB"))  # colours are interpolated otherwise
    exact, fast = (decode.square(content, 56, 64, way).astype(float) for way in ("exact", "fast"))
    assert fast.shape == exact.shape == (56, 56, 3)
    shifted = np.abs(exact[1:] - exact[:-1]).mean() + np.abs(exact[:, 1:] - exact[:, :-1]).mean()
    assert np.abs(exact - fast).mean() < shifted / 2  # the centre lies up to half a pixel beside, as torchvision rounds it


@pytest.mark.parametrize("way", decode.WAYS)
@pytest.mark.parametrize(("mode", "form"), [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG")])
def test_other_kinds_of_images_become_rgb(way, mode, form):
    image = photo(64, 64, mode)
    content = encoded(image, form)
    with Image.open(io.BytesIO(content)) as again:
        expected = np.asarray(again.convert("RGB")).astype(float)
    assert np.abs(decode.square(content, 64, 64, way) - expected).mean() < 3


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{"subsampling": 0}, {"subsampling": 2}, {"progressive": True}, {"quality": 30}, {"keep_rgb": True}])
def test_exact_squares_of_jpeg_files_are_pillows(mode, options):
    content = encoded(photo(77, 91, mode), "JPEG", **options)
    with Image.open(io.BytesIO(content)) as again:
        expected = again.convert("RGB").crop((7, 0, 84, 77))
    np.testing.assert_array_equal(decode.square(content, 77, 77), np.asarray(expected))


@pytest.mark.parametrize("subsampling", ["444", "420"])
def test_squares_of_ycck_files_are_pillows(subsampling):
    cmyk = 255 - np.asarray(photo(77, 91, "CMYK"))  # as Adobe stores it
    content = simplejpeg.encode_jpeg(np.ascontiguousarray(cmyk), 95, "CMYK", subsampling)
    assert simplejpeg.decode_jpeg_header(content)[2] == "YCCK"
    with Image.open(io.BytesIO(content)) as again:
        expected = again.convert("RGB").crop((7, 0, 84, 77))
    np.testing.assert_array_equal(decode.square(content, 77, 77), np.asarray(expected))
    if subsampling == "444":  # else colours are interpolated otherwise
        assert np.abs(decode.square(content, 77, 77, "fast").astype(float) - expected).mean() < 3


def see_through(mode):
    """A dark disc; all around it is transparent and, as programs store it, black."""
    disc = np.hypot(*np.mgrid[-32:32, -32:32]) < 20
    grey = Image.fromarray(np.where(disc, 40, 0).astype(np.uint8))
    image = Image.merge("LA", (grey, Image.fromarray(np.where(disc, 255, 0).astype(np.uint8))))
    if mode in ("LA", "RGBA"):
        return image.convert(mode), {}
    return grey.convert(mode), {"transparency": (0, 0, 0) if mode == "RGB" else 0}


@pytest.mark.parametrize("way", decode.WAYS)
@pytest.mark.parametrize(("mode", "form"), [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("L", "PNG"), ("RGB", "PNG"), ("RGBA", "WEBP")])
def test_transparent_pixels_are_white(way, mode, form):
    image, options = see_through(mode)
    file = io.BytesIO()
    image.save(file, form, **options, **({"lossless": True} if form == "WEBP" else {}))
    square = decode.square(file.getvalue(), 64, 0, way)
    assert (square[0, 0] == 255).all() and (square[32, 32] == 40).all()
    half = Image.new("RGBA", (64, 64), (0, 0, 0, 128))
    assert (decode.square(encoded(half, "PNG"), 64, 0, way) == 127).all()


def png(bits, colour, *pixels, clear):
    """A PNG file of one row, grey (colour 0) or RGB (colour 2), with numbers of `bits` bits, of which `clear` are transparent."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = int("".join(f"{number:0{bits}b}" for number in pixels).ljust(-(-bits * len(pixels) // 8) * 8, "0"), 2)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", len(pixels) // (3 if colour else 1), 1, bits, colour, 0, 0, 0),
        b"tRNS": struct.pack(f">{len(clear)}H", *clear),
        b"IDAT": zlib.compress(b"\0" + row.to_bytes(-(-bits * len(pixels) // 8), "big")),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, content) for name, content in parts.items())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (png(1, 0, 0, 0, clear=[0]), [255, 255]),
        (png(2, 0, 1, 2, clear=[1]), [255, 170]),
        (png(4, 0, 2, 1, clear=[2]), [255, 17]),
        (png(16, 0, 0, 16384, clear=[0]), [255, 64]),
        (png(16, 0, 300, 301, clear=[300]), [255, 1]),
        (png(16, 2, 40000, 0, 0, 16384, 16384, 16384, clear=[40000, 0, 0]), [255, 64]),
    ],
    ids=["1 bit", "2 bits", "4 bits", "16 bits, black", "16 bits, close", "16 bits, RGB"],
)
def test_the_transparent_colour_of_a_png_is_white_at_every_depth(content, expected):
    np.testing.assert_array_equal(np.asarray(decode.image(content))[0, :, 0], expected)


@pytest.mark.parametrize("way", decode.WAYS)
@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])  # of a 16-bit PNG, it depends on Pillow's version
def test_images_of_16_bits_keep_their_brightness(way, mode, monkeypatch):
    grey = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16 + 15
    content = encoded(Image.fromarray(grey), "PNG")

    def opened(file):
        image = Image.fromarray(grey.astype({"I;16": "<u2", "I;16B": ">u2", "I": np.int32}[mode]))
        assert image.mode == mode
        image.format = "PNG"
        return image

    expected = np.repeat(np.round(grey / 257).astype(np.uint8)[..., None], 3, 2)
    np.testing.assert_array_equal(decode.square(content, 64, 64, way), expected)
    monkeypatch.setattr(Image, "open", opened)
    np.testing.assert_array_equal(decode.square(content, 64, 64, way), expected)


@pytest.mark.parametrize("way", decode.WAYS)
def test_a_damaged_header_takes_no_memory(way, monkeypatch):
    content = bytearray(encoded(photo()))
    place = content.index(b"\xff\xc0") + 5
    content[place : place + 4] = (65500).to_bytes(2, "big") * 2
    monkeypatch.setattr(simplejpeg, "decode_jpeg", None)
    with pytest.raises(ValueError, match=r"DecompressionBombError: Image size \(4290250000 pixels\) exceeds limit"):
        decode.square(bytes(content), 56, 64, way)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_images_of_32_bits_are_an_error(kind):
    with pytest.raises(ValueError, match=r"pixels have 32 bits \(mode [IF]\), .*: store it with 8 or 16 bits"):
        decode.square(encoded(Image.fromarray(np.ones((64, 64), kind)), "TIFF"), 56, 64)


def damaged(form):
    """Contents with bytes replaced or cut off."""
    rng, whole = np.random.default_rng(0), encoded(photo(), form)
    for i in range(40):
        content = bytearray(whole)
        for place in rng.integers(0, (60, len(whole))[i % 2], 3):
            content[place] = rng.integers(256)
        yield bytes(content)
        yield whole[: rng.integers(len(whole))]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("way", decode.WAYS)
@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP"])
def test_damaged_images_are_an_error_that_tells_why(way, form):
    reasons = []
    for content in [b"", b"\xff\xd8 no image", *damaged(form)]:
        try:
            decode.square(content, 56, 64, way)
        except ValueError as error:
            reasons.append(str(error))
    assert len(reasons) > 20 and all(reasons) and not any(" at 0x" in reason for reason in reasons)
    assert reasons[0] == "its 0 bytes are not an image that Pillow can read"


@pytest.mark.parametrize(
    "kind", [SyntaxError, IndexError, TypeError, KeyError, EOFError, RuntimeError, struct.error, Image.DecompressionBombError]
)
def test_whatever_pillow_raises_is_an_error_that_tells_why(kind, monkeypatch):
    def fails(self):
        raise kind("broken PNG file")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fails)
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: .?broken PNG file"):
        decode.square(encoded(photo(), "PNG"), 56, 64)


def test_too_small_images_and_unknown_ways_are_an_error():
    with pytest.raises(ValueError, match="it has 80 x 100 pixels, too few for a square of 96"):
        decode.square(encoded(photo()), 96, 0)
    with pytest.raises(ValueError, match="way = 'quick' is not one of exact, fast"):
        decode.square(encoded(photo()), 56, 64, "quick")


# Images and streams


def numbered(count=40, bad=(), **options):
    """Image i is full of the number i."""

    def read(row):
        if row in bad:
            raise OSError("bad sectors")
        time.sleep(0.001 * (row % 3))  # so that threads overtake each other
        return np.full((2, 3, 3), row, np.uint8)

    return stream.Images(read, np.array([f"image{i}" for i in range(count)]), (2, 3), **options)


def test_images_look_like_an_array():
    images = numbered()
    assert images.shape == (40, 2, 3, 3) and images.dtype == np.uint8 and images.ndim == 4 and len(images) == 40 and images.nbytes == 720
    found, rows = images.take(np.array([3, 1, 3]))
    assert found[:, 0, 0, 0].tolist() == rows.tolist() == [3, 1, 3]
    found, rows = images.load()
    assert found[:, 1, 2, 2].tolist() == rows.tolist() == list(range(40))


def test_an_unreadable_image_is_named():
    with pytest.raises(stream.Unreadable, match=r"image image5 cannot be read \(bad sectors\): .*data.corrupt=skip"):
        numbered(bad={5}).take(np.array([4, 5]))
    strange = dataclasses.replace(numbered(), read=lambda row: np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(stream.Unreadable, match=r"it is uint8 \[2, 2, 3\], but must be uint8 \[2, 3, 3\]"):
        strange.take(np.array([0]))


def test_a_skipped_image_is_replaced_by_the_next_and_counted():
    images = numbered(bad={5, 6, 39}, corrupt="skip")
    found, rows = images.take(np.array([4, 5, 6, 39]))
    assert rows.tolist() == found[:, 0, 0, 0].tolist() == [4, 7, 7, 0]
    assert images.skipped == dict.fromkeys(("image5", "image6", "image39"), "bad sectors")
    with pytest.raises(stream.Unreadable, match="none of 3 images can be read"):
        numbered(3, bad={0, 1, 2}, corrupt="skip").take(np.array([1]))


def test_joined_images_follow_each_other():
    joined = stream.join([numbered(3), numbered(2), numbered(4)])
    assert joined.take(np.arange(9))[0][:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3] and len(joined.names) == 9
    with pytest.raises(ValueError, match="different sizes cannot be mixed"):
        stream.join([numbered(), dataclasses.replace(numbered(), side_px=(3, 3))])


@pytest.mark.parametrize("threads", [1, 5])
def test_batches_are_the_rows_asked_for_from_any_step_on(threads):
    images = numbered(threads=threads)

    def rows_of(step):
        return np.random.default_rng(step).permutation(40)[:35]

    for first in (0, 7):
        read = stream.batches(images, rows_of, first)
        for step in range(first, first + 4):
            found, rows = next(read)
            np.testing.assert_array_equal(rows, rows_of(step))
            np.testing.assert_array_equal(found[:, 0, 0, 0], rows)


@pytest.mark.parametrize("keep", [lambda found: found, lambda found: found[3:, 1], lambda found: found.reshape(5, -1)[1:], jax.device_put])
def test_batches_that_are_used_are_never_overwritten(keep):
    read = stream.batches(numbered(threads=3), lambda step: np.full(35, step % 40), 0)
    kept = [keep(next(read)[0]) for _ in range(6)]
    for _ in range(12):
        next(read)
    assert [np.unique(part).tolist() for part in kept] == [[step] for step in range(6)]


def test_memory_of_batches_is_used_again(monkeypatch):
    made = []
    monkeypatch.setattr(stream, "bytearray", lambda size: made.append(size) or bytearray(size), raising=False)
    read = stream.batches(numbered(), lambda step: np.arange(35), 0)
    for _ in range(30):
        next(read)
    assert 0 < len(made) <= stream.AHEAD + 3


def test_an_error_in_a_thread_reaches_the_reader():
    read = stream.batches(numbered(bad={9}), lambda step: np.arange(20), 0)
    with pytest.raises(ValueError, match="image9"):
        next(read)


def test_ahead_keeps_the_order_and_ends():
    made = []

    def items():
        for i in range(5):
            made.append(i)
            yield i

    running = stream.ahead(items(), 2)
    assert next(running) == 0
    while len(made) < 3:
        time.sleep(0.01)
    assert made == [0, 1, 2]  # two beyond the one that was asked for
    assert list(running) == [1, 2, 3, 4]


# Shares


def test_shares_decide_what_a_batch_holds():
    components = (Component(100, 0.5), Component(40, 0.25), Component(30, 0.25))
    rows = source.order(170, 8, 3, np.array([0, 1]), False, components)
    assert rows.shape == (2, source.steps(170, 8, components), 8) == (2, 15, 8)
    for start, stop, count in ((0, 100, 4), (100, 140, 2), (140, 170, 2)):
        assert (((rows >= start) & (rows < stop)).sum(2) == count).all()
    assert all(len(np.unique(rows[s])) == rows[s].size for s in range(2)) and (rows[0] != rows[1]).any()
    np.testing.assert_array_equal(source.order(170, 8, 3, np.array([1]), False, components)[0], rows[1])


def test_shares_that_do_not_divide_a_batch_go_to_the_largest_remainders():
    assert source.counts(10, (Component(9, 1), Component(9, 1), Component(9, 1))) == [4, 3, 3]
    assert source.counts(256, (Component(9, 1), Component(9, 2))) == [85, 171]
    with pytest.raises(ValueError, match=r"batch_size = 2 leaves no image for some of the shares \[8, 1\]"):
        source.counts(2, (Component(9, 8), Component(9, 1)))


# Records and folders


@pytest.fixture
def folder(tmp_path):
    for label in ("b", "a", "c"):
        for i in range(5):
            path = tmp_path / "images" / label / f"{label}{i}.jpeg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(photo()))
    return tmp_path / "images"


def stored(folder, target, form, side_px=0):
    """The folder as records in two files."""
    names, labels, classes = image_files.list_folder(folder)
    target.mkdir()
    contents = [(folder / name).read_bytes() for name in names]
    if form == "uint8":
        contents = [decode.square(content, side_px, side_px).tobytes() for content in contents]
    sums = {}
    for part, rows in enumerate((range(7), range(7, 15))):
        path = target / f"part-{part:05d}-of-00002.array_record"
        sums[path.name] = records.write_part(path, (contents[row] for row in rows))
    records.finish(target, form, side_px, names, labels, classes, sums, {})
    return target


def test_a_folder_of_classes_is_read_in_order(folder):
    found = image_files.open_location(str(folder), Size(56, 64))
    assert found.classes == ("a", "b", "c") and found.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert found.images.names[0] == "a/a0.jpeg" and found.images.names[-1] == "c/c4.jpeg"
    image = found.images.take(np.array([6]))[0][0]
    np.testing.assert_array_equal(image, decode.square((folder / "b" / "b1.jpeg").read_bytes(), 56, 64))


@pytest.mark.parametrize("form", records.FORMATS)
def test_records_hold_what_the_folder_holds(folder, tmp_path, form):
    target = stored(folder, tmp_path / form, form, 64 if form == "uint8" else 0)
    plain, found = (image_files.open_location(str(place), Size(56, 64)) for place in (folder, target))
    assert found.classes == plain.classes and found.stored_px == (64 if form == "uint8" else 0)
    np.testing.assert_array_equal(found.labels, plain.labels)
    np.testing.assert_array_equal(found.images.names, plain.images.names)
    np.testing.assert_array_equal(found.images.load()[0], plain.images.load()[0])


def test_squares_are_not_resized_again(folder, tmp_path):
    target = stored(folder, tmp_path / "squares", "uint8", 64)
    for size in (Size(56, 72), Size(72, 0)):
        with pytest.raises(ValueError, match="holds squares of 64 px"):
            image_files.open_location(str(target), size)


def test_unfinished_and_damaged_records_are_an_error(folder, tmp_path):
    target = stored(folder, tmp_path / "records", "jpeg")
    manifest = json.loads((target / "manifest.json").read_text())
    part = next(target.glob("part-00001*"))
    part.rename(target / "away")
    with pytest.raises(FileNotFoundError, match=r"lacks part-00001-of-00002\.array_record"):
        records.open_records(target)
    (target / "away").rename(part)
    (target / "manifest.json").write_text(json.dumps({**manifest, "count": 14}))
    with pytest.raises(ValueError, match="is inconsistent: 15 records, 15 names, 14 in the manifest"):
        records.open_records(target)
    (target / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"manifest.json is missing: the folder is unfinished"):
        records.open_records(target)


FOREIGN = [
    "",
    "[]",
    "null",
    "[1]",
    '"text"',
    "{}",
    '{"name": "an app"}',
    '{"format": "zip", "side_px": 0, "count": 1, "sha256": {}}',
    '{"format": "jpeg", "side_px": 0, "count": 1, "sha256": {"../part.array_record": ""}}',
    "[" * 100_000,
    "\x00",
]


@pytest.mark.parametrize("content", [*FOREIGN, '{"format": "jpeg", "side_px": 0, "count": "1", "sha256": {}}'])
def test_other_manifests_are_an_error_that_names_them(content, folder):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"manifest.json is not a manifest written by data_prep \(.+\): .* in a folder of images, move it away"
    ):
        image_files.open_location(str(folder), Size(56, 64))


def test_a_missing_or_damaged_index_is_an_error_that_names_it(folder, tmp_path):
    target = stored(folder, tmp_path / "records", "jpeg")
    index = target / "index.npz"
    whole = index.read_bytes()
    other = io.BytesIO()
    np.savez(other, name=np.zeros(3))
    for content in (b"", b"no archive", whole[:-30], whole[:60] + bytes(20) + whole[80:], other.getvalue()):
        index.write_bytes(content)
        with pytest.raises(ValueError, match=r"index.npz is damaged \(.+\): copy it again, or run data_prep again"):
            records.open_records(target)
    index.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks index.npz, which its manifest lists: copy the folder again"):
        records.open_records(target)


@pytest.mark.parametrize("form", records.FORMATS)
def test_damaged_files_of_records_are_an_error_that_names_them(form, folder, tmp_path):
    target = stored(folder, tmp_path / "records", form, 64 if form == "uint8" else 0)
    path = target / "part-00001-of-00002.array_record"
    whole = path.read_bytes()
    path.write_bytes(whole[:300] + bytes(64) + whole[364:])  # in the first record of the second file
    found = image_files.open_location(str(target), Size(56, 64), corrupt="skip")
    found.images.take(np.arange(15))
    assert list(found.images.skipped) == ["b/b2.jpeg"] and f"record 0 of {path} is damaged" in found.images.skipped["b/b2.jpeg"]
    with pytest.raises(stream.Unreadable, match=r"image b/b2.jpeg cannot be read \(record 0 of .*part-00001"):
        image_files.open_location(str(target), Size(56, 64)).images.take(np.array([7]))
    for content in (b"", b"cut short", whole[: len(whole) // 2], whole[:-100]):
        path.write_bytes(content)
        with pytest.raises(OSError, match=r"part-00001-of-00002.array_record is damaged \(.*\): copy the file again"):
            image_files.open_location(str(target), Size(56, 64))


def test_classes_of_records_are_sorted(folder, tmp_path):
    target = stored(folder, tmp_path / "records", "jpeg")
    names, labels, classes = image_files.list_folder(folder)
    manifest = json.loads((target / "manifest.json").read_text())
    sums = {name: digest for name, digest in manifest["sha256"].items() if name != "index.npz"}
    records.finish(target, "jpeg", 0, names, 2 - labels, classes[::-1], sums, {})
    found = records.open_records(target)
    assert found.classes == classes and found.labels.tolist() == labels.tolist()


def test_places_that_are_no_data_set_are_an_error(tmp_path, folder):
    size = Size(56, 64)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        image_files.open_location(str(tmp_path / "nowhere"), size)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no class folders"):
        image_files.open_location(str(tmp_path / "empty"), size)
    (folder / "d").mkdir()
    with pytest.raises(ValueError, match="d contains no image"):
        image_files.open_location(str(folder), size)
    with pytest.raises(ValueError, match="tfds:NAME:SPLIT"):
        image_files.open_location("tfds:imagenet2012", size)


@pytest.fixture
def builder(folder, tmp_path, monkeypatch):
    """What TFDS 4.9.10 gives, with the images of the folder; its labels are in the order of `label_names`."""
    names, labels, classes = image_files.list_folder(folder)

    class Builder:
        version, data_path, asked, bad, file_names = "5.1.0", str(tmp_path), [], (), [name.encode() for name in names]
        label_names = classes

        def __init__(self, name, data_dir):
            assert (name, data_dir) == ("imagenet2012", "/data")
            self.info = types.SimpleNamespace(features={"image": None, "label": types.SimpleNamespace(names=self.label_names)})

        def as_data_source(self, split, decoders):
            if split != "train":
                raise ValueError(f"Unknown split {split!r}.\nMore lines.")
            assert decoders == {"image": "skip"}

            class Source:
                def __len__(self):
                    return len(names)

                def __getitem__(self, row):
                    Builder.asked.append(row)
                    if row in Builder.bad:
                        raise RuntimeError("chunk data hash mismatch")
                    name = {"file_name": Builder.file_names[row]} if Builder.file_names else {}
                    label = Builder.label_names.index(classes[labels[row]]) if Builder.label_names else -1
                    return {"image": (folder / str(names[row])).read_bytes(), "label": np.int64(label), **name}

            return Source()

    module = types.ModuleType("tensorflow_datasets")
    module.builder, module.decode = Builder, types.SimpleNamespace(SkipDecoding=lambda: "skip")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Builder


TFDS = "tfds:imagenet2012:train@/data"


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_tfds_is_read_once_for_labels_and_then_image_by_image(order, folder, builder):
    size, builder.label_names = Size(56, 64), tuple(order)
    expected = image_files.open_location(str(folder), size)
    for count in (15, 0):  # the second time labels and names are known
        builder.asked.clear()
        found = image_files.open_location(TFDS, size)
        assert len(builder.asked) == count
        assert found.classes == expected.classes and found.images.names.tolist() == expected.images.names.tolist()
        np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.images.load()[0], expected.images.load()[0])


def test_tfds_names_may_be_missing_or_not_utf8(builder):
    builder.file_names = [b"caf\xe9.jpeg"] * 15
    assert image_files.open_location(TFDS, Size(56, 64)).images.names[0] == "caf\\xe9.jpeg"
    builder.version, builder.file_names = "no names", None
    assert image_files.open_location(TFDS, Size(56, 64)).images.names[0] == "train-0000000"


def test_tfds_that_cannot_be_used_is_an_error(builder, monkeypatch):
    size = Size(56, 64)
    with pytest.raises(
        FileNotFoundError, match=r"TFDS has no such data set ready \(Unknown split 'test'.\); prepare it with download_and_prepare"
    ):
        image_files.open_location("tfds:imagenet2012:test@/data", size)
    found = image_files.open_location(TFDS, size)
    builder.bad = (3,)
    with pytest.raises(stream.Unreadable, match=r"\(record 3 of tfds:imagenet2012:train@/data is damaged \(RuntimeError: chunk data hash"):
        found.images.take(np.array([3]))
    builder.bad, builder.label_names = (), ()
    with pytest.raises(ValueError, match=r"has the features image, label: an image and a label with class names are needed"):
        image_files.open_location(TFDS, size)


@pytest.mark.parametrize(
    "features", [{"image": None, "objects": None}, {"label": types.SimpleNamespace(names=["a"])}, {"image": 0, "label": 0}]
)
def test_missing_tfds_features_are_reported(features, builder, monkeypatch):
    make = builder.__init__
    monkeypatch.setattr(builder, "__init__", lambda self, *args, **kw: make(self, *args, **kw) or setattr(self.info, "features", features))
    with pytest.raises(ValueError, match=f"has the features {', '.join(features)}: an image and a label with class names are needed"):
        image_files.open_location(TFDS, Size(56, 64))


def test_labels_without_a_class_are_an_error():
    with pytest.raises(ValueError, match="tfds:x:test has label -1, but its classes are 0 to 1: use a labelled set"):
        records.in_order("tfds:x:test", np.array([-1, -1]), ("b", "a"))


def test_images_of_one_folder_are_classified_by_their_names(tmp_path):
    for name in ("0001_x_y_z_bear_00.png", "0002_x_y_z_cat_00.png"):
        (tmp_path / name).write_bytes(encoded(photo(), "PNG"))
    found = image_files.open_flat(tmp_path, Size(56, 64), lambda name: name.split("_")[4], ("bear", "cat"))
    assert found.labels.tolist() == [0, 1]
    (tmp_path / "0003.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"0003.png: the file name must contain one of the classes bear, cat"):
        image_files.open_flat(tmp_path, Size(56, 64), lambda name: name.split("_")[4], ("bear", "cat"))


OPEN = {
    "classes": lambda folder: image_files.list_folder(folder)[0],
    "flat": lambda folder: image_files.open_flat(folder, Size(56, 64), lambda name: name[0], ("a", "b", "c")).images.names,
}
each_listing = pytest.mark.parametrize("listing", OPEN.values(), ids=OPEN)


@each_listing
def test_ignored_files_are_reported_once(listing, folder, capsys):
    names = listing(folder).tolist()
    for name in ("a/.hidden.jpeg", "b/notes.txt", "labels.csv", "c/Thumbs.db"):
        (folder / name).write_bytes(b"")
    assert listing(folder).tolist() == names and not capsys.readouterr().err
    for name in ("a/a7.tif", "a/a8.tif", "b/b9.GIF", "c/c1"):
        (folder / name).write_bytes(b"")
    os.mkfifo(folder / "a" / "pipe.png")
    for _ in range(2):
        assert listing(folder).tolist() == names
    assert capsys.readouterr().err == (
        f"jaxbed: {folder}: ignored 1 .gif, 1 .png, 2 .tif, 1 without extension; image files end in .jpeg, .jpg, .png, .bmp, .webp\n"
    )


@each_listing
@pytest.mark.parametrize("name", ["@eaDir", "__MACOSX", "lost+found", "$RECYCLE.BIN", "$Recycle.Bin", ".thumbnails", "@Recycle"])
def test_folders_of_the_system_are_no_classes_and_hold_no_images(listing, name, folder, capsys):
    names, (_, labels, classes) = listing(folder).tolist(), image_files.list_folder(folder)
    for place in (name, f"a/{name}", f"b/{name}/b0.jpeg"):
        (folder / place).mkdir(parents=True)
        (folder / place / "a0_thumb.jpeg").write_bytes(b"")
    assert listing(folder).tolist() == names
    assert f"{folder}: ignored 3 {name}/; image files end in" in capsys.readouterr().err
    assert image_files.list_folder(folder)[2] == classes and (image_files.list_folder(folder)[1] == labels).all()
    assert len(biased_images.list_images(folder)) == len(names)


def test_images_outside_the_class_folders_are_reported(folder, capsys):
    (folder / "loose.jpeg").write_bytes(b"")
    assert len(image_files.list_folder(folder)[0]) == 15
    assert f"{folder}: ignored 1 .jpeg outside the class folders; image files end in" in capsys.readouterr().err


@each_listing
def test_links_are_followed_and_folders_are_no_images(listing, folder, tmp_path):
    names = listing(folder).tolist()
    (tmp_path / "away" / "x.jpg").mkdir(parents=True)
    (folder / "b").rename(tmp_path / "away" / "b")
    (folder / "b").symlink_to(tmp_path / "away" / "b")
    assert listing(folder).tolist() == names
    (tmp_path / "away" / "x.jpg" / "a9.png").write_bytes(b"")
    (folder / "a" / "more.jpg").symlink_to(tmp_path / "away" / "x.jpg")
    (folder / "a" / "a8.png").symlink_to(tmp_path / "nowhere")  # an image that cannot be read
    assert listing(folder).tolist() == sorted([*names, "a/more.jpg/a9.png", "a/a8.png"])


@each_listing
@pytest.mark.parametrize("target", [".", "..", "../c"])
def test_links_that_lead_back_are_an_error(listing, target, folder):
    (folder / "a" / "link").symlink_to(target)
    (folder / "c" / "back").symlink_to("../a")
    with pytest.raises(ValueError, match=r"is a link to .*, which contains it: remove the link"):
        listing(folder)


@each_listing
@pytest.mark.parametrize("name", [b"caf\xe9.jpeg", b"\xff/a.jpeg"])
def test_names_that_are_not_utf8_are_an_error(listing, name, folder):
    path = os.path.join(os.fsencode(folder), b"a", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb"):
        pass
    with pytest.raises(ValueError, match=r"the name '.*\\udc.*' is not UTF-8: rename the file or its folder"):
        listing(folder)


def test_joined_images_have_names_of_their_own(folder):
    one = image_files.open_location(str(folder), Size(56, 64))
    both = image_files.join([one, image_files.subset(one, np.array([2, 11]))])
    assert len(set(both.images.names)) == 17 and both.labels[-2:].tolist() == [0, 2]
    np.testing.assert_array_equal(both.images.take(np.array([16]))[0], one.images.take(np.array([11]))[0])


# Training and evaluation


@dataclasses.dataclass
class Streamed(shapes.Config):
    """The same shapes, as if they were on disk."""

    bad: tuple[int, ...] = ()

    def open(self):
        whole = super().open()

        def images(split, **options):
            def read(row):
                if row in self.bad:
                    raise OSError("bad sectors")
                return split.image[row]

            return split._replace(image=stream.Images(read, split.name, split.image.shape[1:3], **options))

        sets = {name: s._replace(split=images(s.split)) for name, s in whole.sets.items()}
        return dataclasses.replace(whole, train=images(whole.train, corrupt="skip" if self.bad else "fail"), sets=sets)


SHAPES = {"train_images": 64, "val_images": 16, "test_images": 48}
linear = functools.partial(tiny.mlp_config, net=mlp.Config(()))  # the images pass through it, and it compiles soon


def rows(cfg, calls, step=0):
    """[seeds, calls, batch]: the rows that calls of `advance` from a step on are given."""
    feeds = train.feeds_from(cfg, tiny.program(cfg), step)
    return np.concatenate([np.asarray(next(feeds).row) for _ in range(calls)], axis=1)


def trained(cfg, calls):
    """The state after some calls of `advance`, and the rows it was trained on."""
    program = tiny.program(cfg)
    run, feeds, fed = train.start(cfg, program), train.feeds_from(cfg, program, 0), []
    for _ in range(calls):
        feed = next(feeds)
        fed.append(np.asarray(feed.row))
        run = program.advance(run, program.arrays, feed, program.seeds.array)
    return jax.device_get(run), np.concatenate(fed, axis=1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("seed", "data"), [(1, 1), (2, 2)])
def test_training_from_a_stream_is_training_from_memory(shared, seed, data):
    sgd = tiny.Optim(lr=1e-3, momentum=0.9)  # Adam makes a step of any rounding error
    options = {"shared_order": shared, "mesh": parallel.Mesh(seed=seed, data=data), "optim": sgd}
    results = [trained(linear(data=kind(**SHAPES), **options), 6) for kind in (shapes.Config, Streamed)]  # over an epoch's end
    (run, fed), (streamed, streamed_fed) = results
    np.testing.assert_array_equal(streamed_fed, fed)
    for a, b in zip(*map(jax.tree.leaves, (run, streamed)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # where seeds share images, products are arranged otherwise


def test_a_stream_goes_on_at_any_step(tmp_path):
    cfg = linear(data=Streamed(**SHAPES))
    np.testing.assert_array_equal(rows(cfg, 4, step=3), rows(cfg, 7)[:, 3:])


def test_methods_with_tables_see_the_true_rows():
    results = [trained(linear("lff", data=kind(**SHAPES)), 2) for kind in (shapes.Config, Streamed)]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)


def test_labels_follow_skipped_images():
    cfg = linear(data=Streamed(**SHAPES, bad=(3, 4)))
    fed = rows(cfg, 4)
    assert not np.isin(fed, (3, 4)).any()
    assert (np.bincount(fed[0].ravel(), minlength=64) == np.where(np.arange(64) == 5, 3, 1)).sum() == 62


def test_the_log_names_skipped_images(tmp_path, capsys):
    cfg = linear(data=Streamed(**SHAPES, bad=(3, 4)), epochs=2)
    assert train.train(cfg, members.one(cfg, cfg.data.open()), tmp_path, Log(tmp_path)) == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in lines if line["kind"] == "unreadable"] == ["bad sectors"] * 2  # not again in the second epoch
    assert "cannot be read (bad sectors) and is skipped: 2 so far" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("data", [1, 2])
def test_evaluation_from_a_stream_is_evaluation_from_memory(data, monkeypatch):
    monkeypatch.setattr(pools, "STEPS", 2)  # several blocks, the last not full
    cfg = linear(mesh=parallel.Mesh(seed=1, data=data), eval=dataclasses.replace(linear().eval, batch_size=10))
    found = []
    for kind in (shapes.Config, Streamed):
        whole = dataclasses.replace(cfg, data=kind(**SHAPES))
        opened = whole.data.open()
        program = tiny.program(whole, opened)
        state = train.start(whole, program).state
        pool = pools.pool(program.method.predict, program.seeds, opened, opened.sets, 10)[0]
        answers = [np.asarray(pool.answers(state.params, state.stats, block)["response"]).reshape(2, -1) for block in pool.blocks()]
        assert len(answers) == (1 if kind is shapes.Config else -(-sum(pool.sizes) // 20))
        found.append(np.concatenate(answers, axis=1)[:, : sum(pool.sizes)])
    np.testing.assert_array_equal(*found)


def test_several_epochs_answer_in_one_pass(tmp_path, monkeypatch):
    cfg = linear(data=shapes.Config(**SHAPES), epochs=3)
    log, opened = Log(tmp_path), cfg.data.open()
    assert train.train(cfg, members.one(cfg, opened), tmp_path, log) == 0
    assert evaluate.evaluate(cfg, members.one(cfg, opened), tmp_path, log) == 0
    files = sorted((tmp_path / "responses").glob("*/*.npz"))
    expected, passes, read = {}, [], pools._read
    for file in files:
        with np.load(file) as stored:
            expected[file] = dict(stored)
        file.unlink()
    monkeypatch.setattr(evaluate, "EPOCHS", 2)
    monkeypatch.setattr(pools, "_read", lambda *arguments: passes.append(1) or read(*arguments))
    streamed = dataclasses.replace(cfg, data=Streamed(**SHAPES))
    assert evaluate.evaluate(streamed, members.one(streamed, streamed.data.open()), tmp_path, log) == 0
    assert len(passes) == 2  # two epochs, then the third
    for file, content in expected.items():
        with np.load(file) as stored:
            for name, array in content.items():
                np.testing.assert_array_equal(stored[name], array)


def test_streams_cannot_have_variants_with_other_images():
    cfg = linear(data=Streamed(**SHAPES), grid=("data.seed=0,1",))
    with pytest.raises(ValueError, match="is streamed, and grid points with training sets of their own must be runs of their own"):
        from jaxbed.training.program import assemble

        found = members.open_all(cfg)
        assemble(cfg, found, parallel.Seeds(cfg.seeds, 0, cfg.mesh, len(found)))
