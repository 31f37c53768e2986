"""Data sets: Colored MNIST in its three layouts, noise, and what every Source promises."""

import dataclasses
import functools
import gzip
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy import stats

from jaxbed.data import colored_mnist, noise
from jaxbed.data.colored_mnist import COLOURS, CONFLICTING, construct, read_archive, read_idx, read_tfds
from jaxbed.data.source import EvaluationSet, Source, cells, check, describe, order
from jaxbed.data.split import Split

TABLE_8 = {  # Lee et al. (2022): percent: train aligned, conflicting, validation aligned, conflicting
    0.5: (44_770, 230, 4_970, 30),
    1: (44_550, 450, 4_950, 50),  # the paper prints 44,500, which does not add up
    2: (44_100, 900, 4_900, 100),
    5: (42_750, 2_250, 4_750, 250),
    20: (36_000, 9_000, 4_000, 1_000),
}
STEMS = {"train-images-idx3": 3, "train-labels-idx1": 1, "t10k-images-idx3": 3, "t10k-labels-idx1": 1}
UNLIKELY = 1e-6  # a fixed seed decides; this only says how far from plain luck the result may be


@functools.cache
def fake_digits() -> list[np.ndarray]:
    """As many digits as MNIST has and as unevenly spread over the classes, each of 2 x 2 pixels."""
    rng = np.random.default_rng(5)
    share = np.array([0.0987, 0.1124, 0.0993, 0.1022, 0.0974, 0.0904, 0.0986, 0.1044, 0.0975, 0.0991])
    arrays = []
    for size in (60_000, 10_000):
        label = rng.choice(10, size, p=share / share.sum()).astype(np.uint8)
        arrays += [rng.integers(0, 256, (size, 2, 2), np.uint8), label]
    return arrays


@functools.cache
def real_digits(folder: pathlib.Path) -> list[np.ndarray]:
    return read_idx(folder / "mnist")


@pytest.fixture(params=["fake", "real"])
def digits(request):
    """Four arrays as read_idx gives them; of the real ones four pixels, since what is tested here are labels, colours and names."""
    if request.param == "fake":
        return fake_digits()
    whole = real_digits(request.getfixturevalue("shared_data"))
    return [x[:, 13:15, 13:15] if x.ndim == 3 else x for x in whole]


def rows_of(split: Split) -> np.ndarray:
    """The row in MNIST of each image, which its name tells."""
    return np.array([int(name.rpartition("-")[2]) for name in split.name])


def split_of(label, bias, side_px: int = 4) -> Split:
    n = len(label)
    image = np.random.default_rng(0).integers(0, 256, (n, side_px, side_px, 3), np.uint8)
    return Split(image, np.array(label, np.int32), np.array(bias, np.int32), np.array([f"i{i}" for i in range(n)]))


def source_of(train: Split, **sets: EvaluationSet) -> Source:
    return Source("hand", ("a", "b", "c"), train, sets, lambda image: image / 255, {})


# Colored MNIST: which images, labels and colours


@pytest.mark.parametrize("percent", TABLE_8)
def test_counts_are_those_of_table_8(digits, percent):
    train, val, test = construct(*digits, percent, 0)
    found = [int(n) for split in (train, val) for n in ((split.bias == split.label).sum(), (split.bias != split.label).sum())]
    assert tuple(found) == TABLE_8[percent]
    assert len(test.label) == 10_000


@pytest.mark.parametrize("percent", TABLE_8)
def test_conflicting_images_are_spread_over_the_digits(digits, percent):
    for split in construct(*digits, percent, 0)[:2]:
        conflicting = np.bincount(split.label[split.bias != split.label], minlength=10)
        exact = conflicting.sum() * np.bincount(split.label, minlength=10) / len(split.label)
        assert (np.abs(conflicting - exact) < 1).all()


@pytest.mark.parametrize("percent", [5, 20])
def test_conflicting_colours_are_uniform_over_the_other_nine(digits, percent):
    train = construct(*digits, percent, 0)[0]
    shift = (train.bias - train.label)[train.bias != train.label] % 10
    counts = np.bincount(shift, minlength=10)
    assert counts[0] == 0 and stats.chisquare(counts[1:]).pvalue > UNLIKELY
    colours = np.bincount(train.bias[train.bias != train.label], minlength=10)
    assert colours.min() > 0.7 * colours.mean()


def test_conflicting_images_are_drawn_at_random(digits):
    train = construct(*digits, 20, 0)[0]
    conflicting = train.bias != train.label
    for fifth in np.array_split(conflicting, 5):  # not the first of each class
        assert abs(fifth.mean() - 0.2) < 0.03


def test_test_set_is_the_same_for_all_percents(digits):
    first, *others = [construct(*digits, percent, 3)[2] for percent in CONFLICTING]
    for other in others:
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_test_colours_are_uniform_and_independent_of_the_digit(digits):
    test = construct(*digits, 1, 0)[2]
    assert np.array_equal(test.label, digits[3])
    assert stats.chisquare(np.bincount(test.bias, minlength=10)).pvalue > UNLIKELY
    table = np.histogram2d(test.label, test.bias, bins=(10, 10), range=((0, 10), (0, 10)))[0]
    assert stats.chi2_contingency(table).pvalue > UNLIKELY


def test_train_and_val_share_no_digit(digits):
    train, val, test = construct(*digits, 1, 0)
    rows = np.concatenate([rows_of(train), rows_of(val)])
    assert len(np.unique(rows)) == 50_000 and rows.max() < 60_000
    for split, prefix in ((train, "train-"), (val, "val-"), (test, "test-")):
        assert all(name.startswith(prefix) for name in split.name) and len(set(split.name)) == len(split.name)


def test_labels_are_those_of_the_rows_the_names_tell(digits):
    train, val, test = construct(*digits, 5, 0)
    for split, label in ((train, digits[1]), (val, digits[1]), (test, digits[3])):
        assert np.array_equal(split.label, label[rows_of(split)])
        assert split.label.dtype == split.bias.dtype == np.int32 and split.image.dtype == np.uint8


def test_same_data_seed_same_set_other_seed_another():
    one, again, other = (construct(*fake_digits(), 1, seed) for seed in (0, 0, 1))
    for a, b, c in zip(one, again, other, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        assert not np.array_equal(a.bias, c.bias) and not np.array_equal(a.image, c.image)
    assert not np.array_equal(one[0].name, other[0].name)


def test_percents_share_their_digits():
    """So that two bias ratios differ in the bias alone."""
    one, other = (construct(*fake_digits(), percent, 0) for percent in (0.5, 20))
    assert np.array_equal(one[0].name, other[0].name) and np.array_equal(one[1].name, other[1].name)


def test_fewer_digits_than_the_set_needs_are_refused():
    image, label, *test = fake_digits()
    with pytest.raises(ValueError, match=r"50000|50,000|50_000"):
        construct(image[:48_000], label[:48_000], *test, 1, 0)  # would leave 3,000 for validation


# Colored MNIST: pixels


def colour_bounds(image: np.ndarray, grey: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(lower [n, 3], upper [n, 3]) of the colours c for which every pixel is floor(grey * c)."""
    grey = grey.reshape(len(grey), -1, 1).astype(float)
    value = image.reshape(*grey.shape[:2], 3).astype(float)
    safe = np.maximum(grey, 1)
    lower = np.where(grey > 0, value / safe, 0).max(1)
    upper = np.where(grey > 0, (value + 1) / safe, np.inf).min(1)
    return lower, upper


def check_pixels(split: Split, grey: np.ndarray) -> None:
    assert (split.image[grey == 0] == 0).all()
    lower, upper = colour_bounds(split.image, grey)
    assert (lower < upper + 1e-9).all()  # one colour an image explains all its pixels, as their floor
    mean = COLOURS[split.bias]
    assert (lower < mean + 0.03).all() and (upper > mean - 0.03).all()  # six standard deviations
    assert (split.image.reshape(len(grey), -1, 3).max(1) <= np.minimum(mean + 0.03, 1) * grey.reshape(len(grey), -1).max(1)[:, None]).all()


def test_pixels_are_grey_times_the_colour_of_the_cue(shared_data):
    digits = real_digits(shared_data)
    train_image, train_label, test_image, test_label = [x[:, ::2, ::2] if x.ndim == 3 else x for x in digits]  # a quarter of the time
    train, val, test = construct(train_image, train_label, test_image, test_label, 20, 0)
    assert train.image.shape == (45_000, 14, 14, 3)
    for split, grey in ((train, train_image), (val, train_image), (test, test_image)):
        take = slice(0, 2000)
        check_pixels(Split(*(field[take] for field in split)), grey[rows_of(split)[take]])


def test_pixels_of_synthetic_digits_are_grey_times_the_colour_of_the_cue():
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (2_000, 12, 12), np.uint8) * (rng.random((2_000, 12, 12)) < 0.4)
    image, label, *_ = fake_digits()
    test = construct(image, label, grey, rng.integers(0, 10, 2_000), 1, 0)[2]
    check_pixels(test, grey)


def test_colour_noise_is_one_draw_an_image_and_channel():
    grey = np.full((5_000, 2, 2), 255, np.uint8)
    image, label, *_ = fake_digits()
    test = construct(image, label, grey, np.zeros(5_000, int), 1, 0)[2]
    assert (test.image == test.image[:, :1, :1]).all()
    deviation = (test.image[:, 0, 0] + 0.5) / 255 - COLOURS[test.bias]
    free = (COLOURS > 0.03).all(1) & (COLOURS < 0.97).all(1)  # colours that clipping leaves alone
    deviation = deviation[free[test.bias]]
    assert len(deviation) > 1_000
    np.testing.assert_allclose(deviation.std(0), np.hypot(0.005, 1 / 255 / np.sqrt(12)), rtol=0.08)
    assert np.abs(deviation.mean(0)).max() < 0.0006
    assert np.abs(np.corrcoef(deviation.T) - np.eye(3)).max() < 0.1


def test_colours_are_those_of_lff():
    hundred_thousandths = """98368 31252 16858  99053 91561 35151  67296 46107 57981  78325 83156 60133   8802 77796 98181
                             32139 96105 44645   2462 23565 75867  55525 10158 76176  20772 39295  1870  83366 20241 26694"""
    np.testing.assert_array_equal(np.round(COLOURS * 1e5).astype(int).ravel(), [int(n) for n in hundred_thousandths.split()])


# Colored MNIST: settings and Source


@pytest.fixture
def idx_digits(monkeypatch):
    monkeypatch.setattr(colored_mnist, "read_idx", lambda folder: fake_digits())


def test_source_says_what_it_is(idx_digits):
    source = colored_mnist.Config(conflicting_percent=5, seed=2).open()
    assert source.name == "colored_mnist" and source.bias_name == "colour" and source.class_names == tuple("0123456789")
    assert {name: (s.role, s.decision) for name, s in source.sets.items()} == {"val": ("val", "argmax"), "unbiased": ("test", "argmax")}
    splits = (source.train, source.sets["val"].split, source.sets["unbiased"].split)
    assert [len(split.label) for split in splits] == [45_000, 5_000, 10_000]
    assert source.facts["conflicting_percent"] == 5 and source.facts["input_scale"] == "double255" and source.facts["data_seed"] == 2


@pytest.mark.parametrize(("name", "largest"), [("unit", 1.0), ("double255", 1 / 255)])
def test_input_scale_divides_once_or_twice(idx_digits, name, largest):
    scale = colored_mnist.Config(input_scale=name).open().scale
    result = scale(jnp.array([0, 51, 255], jnp.uint8))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, np.array([0, 0.2, 1]) * largest, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "zip"}, r"data.layout = 'zip': must be one of idx, tfds, png"),
        ({"conflicting_percent": 3.0}, r"data.conflicting_percent = 3.0: must be a number, one of 0.5, 1, 2, 5, 20"),
        ({"input_scale": "255"}, r"data.input_scale = '255': must be one of double255, unit"),
        ({"seed": -1}, r"data.seed = -1"),
    ],
)
def test_bad_settings_are_refused_by_name(idx_digits, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(colored_mnist.Config(), **change).open()


# IDX files


def small_digits() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {stem: rng.integers(0, 10, (7 if "train" in stem else 4, 28, 28)[:n], np.uint8) for stem, n in STEMS.items()}


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def write_idx(folder: pathlib.Path, zipped: bool = False, **changed: bytes) -> pathlib.Path:
    """MNIST's four files with seven and four digits; changed: other content for a file, by stem with underscores."""
    for stem, array in small_digits().items():
        raw = changed.get(stem.replace("-", "_"), idx_bytes(array))
        path = folder / f"{stem}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(raw) if zipped else raw)
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_zipped_or_not(tmp_path, zipped):
    arrays = read_idx(write_idx(tmp_path, zipped))
    for found, expected in zip(arrays, small_digits().values(), strict=True):
        assert found.dtype == np.uint8 and np.array_equal(found, expected)


def test_real_mnist_is_read(shared_data):
    train_image, train_label, test_image, test_label = real_digits(shared_data)
    assert train_image.shape == (60_000, 28, 28) and test_image.shape == (10_000, 28, 28)
    assert train_label[:4].tolist() == [5, 0, 4, 1] and test_label[:4].tolist() == [7, 2, 1, 0]
    assert train_image.mean() == pytest.approx(33.318421, abs=1e-6) and test_image.mean() == pytest.approx(33.791224, abs=1e-6)


@pytest.mark.parametrize("stem", STEMS)
def test_a_missing_idx_file_is_named_with_the_cure(tmp_path, stem):
    write_idx(tmp_path)
    (tmp_path / f"{stem}-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / stem}-ubyte[.gz] is missing")) as error:
        read_idx(tmp_path)
    for part in ("train-images, train-labels, t10k-images, t10k-labels", "--config.data.dir=", "--config.data.layout=tfds"):
        assert part in str(error.value)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("stem", "raw"),
    [
        ("train_labels_idx1", idx_bytes(small_digits()["train-images-idx3"])),  # the images under the labels' name
        ("train_images_idx3", b"\0\0\r\3" + idx_bytes(small_digits()["train-images-idx3"])[4:]),  # of floats
        ("t10k_images_idx3", idx_bytes(small_digits()["t10k-images-idx3"])[:-1]),
        ("t10k_images_idx3", idx_bytes(small_digits()["t10k-images-idx3"]) + b"\0"),
        ("t10k_images_idx3", idx_bytes(small_digits()["t10k-images-idx3"])[:10]),  # cut within the header
        ("t10k_labels_idx1", b""),
        ("train_images_idx3", b"<html>404: not found</html>"),
        ("train_images_idx3", b"\0\0\x08\3" + b"\x7f\xff\xff\xff" * 3),
        ("train_images_idx3", b"\0\0\x08\3" + b"\xff\xff\xff\xff" * 2 + b"\0\0\0\1" + b"\0"),
    ],
    ids=["images for labels", "wrong type", "short", "long", "half a header", "empty", "web page", "absurd size", "negative size"],
)
def test_a_damaged_idx_file_is_named_with_the_cure(tmp_path, zipped, stem, raw):
    write_idx(tmp_path, zipped, **{stem: raw})
    with pytest.raises(ValueError, match=f"{tmp_path}/{stem.replace('_', '-')}-ubyte.*download it again"):
        read_idx(tmp_path)


@pytest.mark.parametrize(
    "content", [gzip.compress(bytes(range(256)) * 9)[:-12], b"<html>404: not found</html>", b""], ids=["cut", "page", "empty"]
)
def test_a_damaged_gzip_file_is_named_with_the_cure(tmp_path, content):
    write_idx(tmp_path, zipped=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path}/train-images-idx3-ubyte.gz.*download it again"):
        read_idx(tmp_path)


def test_images_and_labels_of_different_numbers_are_refused(tmp_path):
    write_idx(tmp_path, train_labels_idx1=idx_bytes(np.zeros(6, np.uint8)))
    with pytest.raises(ValueError, match=r"6.*7|7.*6"):
        read_idx(tmp_path)


# TFDS


def fake_tfds(monkeypatch, data_source) -> None:
    module = types.ModuleType("tensorflow_datasets")
    module.data_source = data_source
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)


def test_tfds_rows_become_the_same_arrays_as_idx(monkeypatch, tmp_path):
    names = list(STEMS)
    digits, calls = small_digits(), []

    def data_source(name, split, data_dir):
        calls.append((name, split, data_dir))
        image, label = (digits[stem] for stem in (names[:2] if split == "train" else names[2:]))
        return [{"image": i[..., None], "label": int(y)} for i, y in zip(image, label, strict=True)]

    fake_tfds(monkeypatch, data_source)
    for found, expected in zip(read_tfds(str(tmp_path)), digits.values(), strict=True):
        assert np.array_equal(found, expected)
    assert calls == [("mnist", split, str(tmp_path)) for split in ("train", "test")]


def test_tfds_layout_gives_the_same_source_as_idx(monkeypatch, idx_digits):
    image, label, test_image, test_label = fake_digits()
    rows = {"train": (image, label), "test": (test_image, test_label)}
    fake_tfds(monkeypatch, lambda name, split, data_dir: [{"image": i[..., None], "label": y} for i, y in zip(*rows[split], strict=True)])
    one, other = (colored_mnist.Config(layout=layout).open() for layout in ("idx", "tfds"))
    assert all(np.array_equal(a, b) for a, b in zip(one.train, other.train, strict=True))
    assert other.facts["layout"] == "tfds"


def test_absent_tfds_is_said_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxbed\[tfds\]'.*data.layout = 'idx'"):
        colored_mnist.Config(layout="tfds").open()


def test_unprepared_tfds_is_said_with_the_cure(monkeypatch, tmp_path):
    def data_source(name, split, data_dir):
        raise NotImplementedError("random access is not supported for tfrecord")

    fake_tfds(monkeypatch, data_source)
    with pytest.raises(FileNotFoundError, match=f"array_record under {tmp_path}.*download_and_prepare"):
        colored_mnist.Config(layout="tfds", dir=str(tmp_path)).open()


# PNG archive


def png(path: pathlib.Path, value: int = 0, side_px: int = 28, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side_px, side_px), (value, 2 * value, 3 * value) if mode == "RGB" else value).save(path)


def write_archive(root: pathlib.Path, share: str = "1pct", conflict: str = "conflict") -> pathlib.Path:
    """Three aligned, two conflicting, two validation and three test images; the red value tells which."""
    for place, (folder, stem) in enumerate(
        [
            ("align/0", "7_0_0"),
            ("align/0", "10_0_0"),
            ("align/3", "1_3_3"),
            (f"{conflict}/2", "5_2_9"),
            (f"{conflict}/4", "5_4_1"),
            ("valid", "9_8_8"),
            ("valid", "4_7_1"),
        ]
    ):
        png(root / share / folder / f"{stem}.png", place)
    for place, stem in enumerate(["0_0_5", "b_extra_1_1", "a_9_9"]):
        png(root / "test" / stem.split("_")[-2] / f"{stem}.png", 20 + place)
    return root


@pytest.mark.parametrize("level", ["", "cmnist"])
@pytest.mark.parametrize("conflict", ["conflict", "conlict"])
def test_archive_is_read_sorted_by_path(tmp_path, level, conflict):
    write_archive(tmp_path / level, conflict=conflict)
    train, val, test = read_archive(tmp_path, 1.0)
    assert train.name.tolist() == [
        "1pct/align/0/10_0_0.png",
        "1pct/align/0/7_0_0.png",
        "1pct/align/3/1_3_3.png",
        f"1pct/{conflict}/2/5_2_9.png",
        f"1pct/{conflict}/4/5_4_1.png",
    ]
    assert train.label.tolist() == [0, 0, 3, 2, 4] and train.bias.tolist() == [0, 0, 3, 9, 1]
    assert train.image[:, 0, 0].tolist() == [[v, 2 * v, 3 * v] for v in (1, 0, 2, 3, 4)]
    assert val.label.tolist() == [7, 8] and val.bias.tolist() == [1, 8] and val.image[:, 5, 5, 0].tolist() == [6, 5]
    assert test.label.tolist() == [0, 1, 9] and test.bias.tolist() == [5, 1, 9] and test.image[:, 0, 0, 0].tolist() == [20, 21, 22]
    for split in (train, val, test):
        check("archive", split, 10)
        assert split.label.dtype == split.bias.dtype == np.int32 and split.image.shape[1:] == (28, 28, 3)


@pytest.mark.parametrize(("percent", "folder"), [(0.5, "0.5pct"), (1.0, "1pct"), (2, "2pct"), (5.0, "5pct")])
def test_archive_folder_of_a_percent(tmp_path, percent, folder):
    write_archive(tmp_path, folder)
    source = colored_mnist.Config(dir=str(tmp_path), layout="png", conflicting_percent=percent).open()
    assert len(source.train.label) == 5 and source.facts["layout"] == "png"
    assert len(source.sets["val"].split.label) == 2 and len(source.sets["unbiased"].split.label) == 3


@pytest.mark.parametrize("validation", ["1pct/valid", "1pct/val", "valid", "val"])
def test_archives_name_their_validation_set_in_four_ways(tmp_path, validation):
    write_archive(tmp_path)
    (tmp_path / "1pct" / "valid").rename(tmp_path / validation)
    (tmp_path / validation / "._9_8_8.png").write_bytes(b"what macOS adds to archives")
    assert read_archive(tmp_path, 1)[1].label.tolist() == [7, 8]


def test_grey_images_of_the_archive_become_colour(tmp_path):
    write_archive(tmp_path)
    png(tmp_path / "1pct" / "align" / "0" / "0_0_0.png", 77, mode="L")
    assert read_archive(tmp_path, 1)[0].image[0, 3, 3].tolist() == [77, 77, 77]


@pytest.mark.parametrize("folder", ["1pct/align", "1pct/conflict", "1pct/valid", "test"])
def test_a_missing_folder_of_the_archive_is_named_with_the_cure(tmp_path, folder):
    write_archive(tmp_path)
    (tmp_path / folder).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=f"under {tmp_path / folder}.*--config.data.layout=idx"):
        read_archive(tmp_path, 1)


def test_a_percent_that_was_never_published_is_named(tmp_path):
    write_archive(tmp_path)
    with pytest.raises(FileNotFoundError, match="20pct"):
        read_archive(tmp_path, 20)


@pytest.mark.parametrize("stem", ["image", "12", "3_4_x", "5_x_2", "5_-1_2", "6_7_"])
def test_a_name_without_digit_and_colour_is_refused(tmp_path, stem):
    path = write_archive(tmp_path) / "1pct" / "align" / "0" / f"{stem}.png"
    png(path)
    with pytest.raises(ValueError, match=re.escape(f"{path}: the name must end in _<label>_<bias>, each from 0 to 9")):
        read_archive(tmp_path, 1)


def cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def broken_chunk(raw: bytes) -> bytes:
    place = raw.index(b"IDAT") + 5
    return raw[:place] + bytes([raw[place] ^ 255]) + raw[place + 1 :]


def broken_name(raw: bytes) -> bytes:
    return raw.replace(b"IDAT", b"\0\1\2\3")


@pytest.mark.parametrize(
    "damage", [cut, broken_chunk, broken_name, lambda raw: b"", lambda raw: b"no image"], ids=["cut", "chunk", "name", "empty", "text"]
)
def test_an_unreadable_image_is_named_with_the_cure(tmp_path, damage):
    path = write_archive(tmp_path) / "1pct" / "valid" / "9_8_8.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28, 3), np.uint8)).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path}.*download the archive again"):
        read_archive(tmp_path, 1)


def test_an_image_of_another_size_is_refused(tmp_path):
    path = write_archive(tmp_path) / "test" / "0" / "0_0_5.png"
    Image.new("RGB", (32, 28)).save(path)
    with pytest.raises(ValueError, match=f"{path} is 32 x 28 pixels, not 28 x 28"):
        read_archive(tmp_path, 1)


def test_a_digit_above_nine_is_refused(tmp_path):
    png(write_archive(tmp_path) / "1pct" / "align" / "0" / "1_10_10.png")
    with pytest.raises(ValueError, match=r"1_10_10.*: the name must end in _<label>_<bias>, each from 0 to 9"):
        colored_mnist.Config(dir=str(tmp_path), layout="png").open()


# Source


GOOD = split_of([0, 1, 2, 2], [0, -1, 1, 2])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (GOOD._replace(image=GOOD.image[:3]), r"set train: its arrays must have one common length.*'image': 3"),
        (GOOD._replace(name=GOOD.name[:2]), r"'name': 2"),
        (GOOD._replace(bias=GOOD.bias[:0]), r"'bias': 0"),
        (Split(*(field[:0] for field in GOOD)), "common length above 0"),
        (GOOD._replace(image=GOOD.image / np.float32(255)), r"images must be uint8 .* are float32 \[4, 4, 4, 3\]"),
        (GOOD._replace(image=GOOD.image[..., 0]), r"images must be uint8 .* are uint8 \[4, 4, 4\]"),
        (GOOD._replace(label=GOOD.label - 1), "label ranges from -1 to 1, allowed is 0 to 2"),
        (GOOD._replace(label=GOOD.label + 1), "label ranges from 1 to 3, allowed is 0 to 2"),
        (GOOD._replace(bias=GOOD.bias - 1), "bias ranges from -2 to 1, allowed is -1 to 2"),
        (GOOD._replace(bias=GOOD.bias + 1), "bias ranges from 0 to 3, allowed is -1 to 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        source_of(bad)
    with pytest.raises(ValueError, match=message.replace("set train", "set shifted")):
        source_of(GOOD, val=EvaluationSet(GOOD, "val"), shifted=EvaluationSet(bad, "ood"))


def test_a_role_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="set held_out: role 'validation' is not one of val, test, ood"):
        source_of(GOOD, held_out=EvaluationSet(GOOD, "validation"))


def test_arrays_that_fit_are_accepted():
    source = source_of(GOOD, a=EvaluationSet(GOOD, "val"), b=EvaluationSet(GOOD, "test"), c=EvaluationSet(GOOD, "ood"))
    assert [s.decision for s in source.sets.values()] == ["argmax"] * 3


def test_cells_count_each_pair_that_occurs():
    assert cells(split_of([0, 1, 1, 2, 1], [0, 2, 2, -1, 1])) == {(0, 0): 1, (1, 2): 2, (2, -1): 1, (1, 1): 1}


def table_of(text: str) -> tuple[int, list[int], dict[tuple[int, int], int]]:
    """(first bias, lengths of rows, cells) of a description, its columns read as its head says."""
    head, *lines = text.split("\n")
    first = int(re.search(r"columns biases (-?\d+)-(\d+)$", head)[1])
    rows = {int(line.partition("|")[0]): [int(n) for n in line.partition("|")[2].split()] for line in lines}
    return first, [len(row) for row in rows.values()], {(y, first + i): n for y, row in rows.items() for i, n in enumerate(row) if n}


@pytest.mark.parametrize(
    "bias", [(0, 1, 2, 1, 0, 0), (0, 2, 2, 2, 0, 0), (-1, 0, 2, 1, 1, -1)], ids=["all biases", "a bias missing", "some without"]
)
def test_description_tells_the_cells(bias):
    split = split_of([0, 1, 2, 0, 0, 2], bias)
    text = describe("train", split)
    aligned = sum(y == b for y, b in zip(split.label, bias, strict=True))
    assert text.startswith(f"train: 6 images, {aligned} aligned, {sum(b >= 0 for b in bias) - aligned} conflicting; ")
    _, lengths, found = table_of(text)
    assert found == cells(split) and set(lengths) == {max(bias) - min(bias) + 1}


def test_description_without_cues_counts_labels():
    assert describe("edge", split_of([0, 2, 2, 0, 2], [-1] * 5)) == "edge: 5 images, per label 2 3"


# Order of the rows


SEEDS = np.array([4, 5, 9], np.int32)


def test_order_visits_each_row_at_most_once_in_whole_batches():
    rows = order(50, 8, 0, SEEDS, shared=False)
    assert rows.shape == (3, 6, 8) and rows.dtype == np.int32
    for seed in rows:
        assert len(np.unique(seed)) == 48 and seed.min() >= 0 and seed.max() < 50


def test_order_is_a_pure_function():
    np.testing.assert_array_equal(order(50, 8, 3, SEEDS, False), order(50, 8, 3, SEEDS, False))
    alone = order(50, 8, 3, SEEDS[1:2], False)
    np.testing.assert_array_equal(order(50, 8, 3, SEEDS, False)[1:2], alone)  # whoever else runs


def test_order_differs_between_seeds_and_epochs():
    first, second = (order(50, 8, epoch, SEEDS, False) for epoch in (0, 1))
    for rows in (first, second):
        assert all((rows[i] != rows[j]).mean() > 0.8 for i, j in ((0, 1), (0, 2), (1, 2)))
    assert (first != second).mean() > 0.8
    assert set(first[0].flat) != set(second[0].flat)  # the remainder is left out of that epoch only


def test_shared_order_is_that_of_the_first_seed():
    shared, own = (order(50, 8, 2, SEEDS, shared) for shared in (True, False))
    assert shared.shape == (3, 6, 8)
    for seed in range(3):
        np.testing.assert_array_equal(shared[seed], own[0])


def test_order_does_not_depend_on_the_batch_size():
    np.testing.assert_array_equal(order(48, 8, 1, SEEDS, False).reshape(3, -1), order(48, 16, 1, SEEDS, False).reshape(3, -1))


# Noise


def test_noise_has_the_shapes_asked_for():
    source = noise.Config(side_px=20, classes=7, train_images=33, val_images=5, seed=1).open()
    assert source.train.image.shape == (33, 20, 20, 3) and source.train.image.dtype == np.uint8
    assert {name: (s.role, s.split.image.shape) for name, s in source.sets.items()} == {
        "val": ("val", (5, 20, 20, 3)),
        "test": ("test", (5, 20, 20, 3)),
    }
    assert len(source.class_names) == 7 and (source.train.bias == -1).all() and source.train.label.dtype == np.int32
    assert len(set(source.train.name)) == 33
    again, other = (noise.Config(side_px=20, classes=7, train_images=33, val_images=5, seed=seed).open() for seed in (1, 2))
    assert np.array_equal(again.train.image, source.train.image) and not np.array_equal(other.train.image, source.train.image)


def test_noise_is_normalised_as_its_settings_say():
    source = noise.Config(side_px=4, train_images=4, val_images=4, augment=noise.Augment(mean=(0.5,), std=(0.25,))).open()
    image = np.zeros((1, 4, 4, 3), np.uint8)
    image[0, 0, 0] = 255
    assert float(source.scale(image)[0, 0, 0, 0]) == 2.0 and float(source.scale(image)[0, 1, 1, 2]) == -2.0
    np.testing.assert_array_equal(source.augment(jax.random.key(0), image), source.scale(image))  # nothing random is on
