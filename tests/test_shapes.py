"""The embedded benchmark: what its sets promise about numbers of images, biases and looks."""

import numpy as np
import pytest

from jaxbed.data.shape_outlines import measure_distance
from jaxbed.data.shapes import SETS, SHAPES, TEXTURES, _assign_classes, draw
from jaxbed.data.split import Split
from jaxbed.data.textures import weave

COUNTS = {**dict.fromkeys(SETS, 32), "train": 320, "cue_conflict": 480, "stylised": 240}
UNTEXTURED = ("silhouette", "edge", "sketch")


@pytest.fixture(scope="module")
def splits() -> dict[str, Split]:
    return draw(32, COUNTS, 0.9, 7)


def test_names_are_sixteen_each():
    assert len(set(SHAPES)) == len(set(TEXTURES)) == 16
    assert list(SHAPES) == sorted(SHAPES)
    assert not any("-" in name for name in SHAPES + TEXTURES)  # the hyphen separates the parts of an image's name


def test_every_set_has_its_shape_and_types(splits):
    assert tuple(splits) == SETS
    for set_name, split in splits.items():
        n = COUNTS[set_name]
        assert split.image.shape == (n, 32, 32, 3) and split.image.dtype == np.uint8
        assert split.label.shape == split.bias.shape == split.name.shape == (n,)
        assert split.label.dtype == split.bias.dtype == np.int32
        assert split.name.dtype.kind == "U" and len(set(split.name)) == n
        assert len(np.unique(split.image.reshape(n, -1), axis=0)) == n  # no image twice


def test_names_tell_shape_and_texture(splits):
    for split in splits.values():
        for i, name in enumerate(split.name):
            shape, texture, number = name.split("-")
            assert shape == SHAPES[split.label[i]] and int(number) == i
            assert texture == ("none" if split.bias[i] < 0 else TEXTURES[split.bias[i]])


def test_labels_balance_exactly_in_shuffled_order(splits):
    for set_name, split in splits.items():
        assert np.bincount(split.label, minlength=16).tolist() == [COUNTS[set_name] // 16] * 16
        assert 0.5 < np.mean(np.diff(split.label) != 0)  # sorted labels would change 15 times


@pytest.mark.parametrize(("correlation", "own"), [(1 / 16, 2), (0.5, 15), (0.95, 29), (1.0, 30)])  # 0.95 * 30 = 28.5 goes up
def test_own_textures_are_counted_not_drawn(correlation, own):
    counts = {**dict.fromkeys(SETS, 16), "train": 480, "val": 480, "in_distribution": 480}
    splits = draw(32, counts, correlation, 3)
    for set_name in ("train", "val", "in_distribution"):
        label, bias = splits[set_name].label, splits[set_name].bias
        assert np.bincount(label[bias == label], minlength=16).tolist() == [own] * 16
        foreign = np.array([np.bincount((bias - label)[label == k] % 16, minlength=16)[1:] for k in range(16)])
        assert foreign.max() - foreign.min() <= 1  # evenly over the fifteen others


def test_cues_mean_what_the_set_says(splits):
    for set_name in UNTEXTURED:
        assert (splits[set_name].bias == -1).all()
    for set_name in ("stylised", "cue_conflict"):
        split = splits[set_name]
        assert (split.bias != split.label).all() and split.bias.min() >= 0
        pairs = np.bincount(split.label * 16 + split.bias, minlength=256).reshape(16, 16)
        assert set(pairs[~np.eye(16, dtype=bool)]) == {COUNTS[set_name] // 240}  # each foreign pair equally often


def test_same_seed_same_images_other_seed_others(splits):
    again, other = draw(32, COUNTS, 0.9, 7), draw(32, COUNTS, 0.9, 8)
    for set_name, split in splits.items():
        for field in Split._fields:
            assert np.array_equal(getattr(split, field), getattr(again[set_name], field))
        assert not np.array_equal(split.image, other[set_name].image)
        assert not np.array_equal(split.label, other[set_name].label)


def test_a_set_does_not_depend_on_the_others(splits):
    grown = draw(32, {name: n if name in ("val", "edge", "cue_conflict") else n + 16 for name, n in COUNTS.items()}, 0.9, 7)
    for set_name in ("val", "edge", "cue_conflict"):
        assert np.array_equal(grown[set_name].image, splits[set_name].image)
        assert np.array_equal(grown[set_name].bias, splits[set_name].bias)
    # val and in_distribution have the same size and distribution, yet no common stream
    assert not np.array_equal(splits["val"].image, splits["in_distribution"].image)


def test_silhouette_is_black_on_white(splits):
    image = splits["silhouette"].image
    assert (image == image[..., :1]).all()
    black, white = (image == 0).mean(), (image == 255).mean()
    assert 0.12 < black < 0.5 and white > 0.4
    level = image[..., 0].astype(int)
    between = (level > 0) & (level < 255)
    assert 0 < between.mean() < 0.15  # the anti-aliased border and no more
    padded = np.pad(level, ((0, 0), (1, 1), (1, 1)), mode="edge")
    near = np.stack([padded[:, i : i + 32, j : j + 32] for i in range(3) for j in range(3)])
    assert ((near.min(0) < 128) & (near.max(0) >= 128))[between].mean() > 0.9  # grey lies between black and white


def test_edge_and_sketch_are_lines_on_paper(splits):
    for set_name, darkest in (("edge", 70), ("sketch", 140)):
        image = splits[set_name].image
        assert (image == image[..., :1]).all()
        assert 0.5 < (image > 220).mean() < 0.95  # mostly paper
        assert (image.min((1, 2, 3)) < darkest).all()  # with a line on every sheet
    assert (splits["edge"].image == 255).mean() > 0.5
    assert (splits["sketch"].image == 255).mean() < 0.2  # whitish paper


@pytest.mark.parametrize("set_name", ["train", "stylised", "cue_conflict"])
def test_figures_stand_out_from_their_ground(set_name):
    # The set's stream, run again as far as the poses: a set this small is one block, and poses come first after the classes.
    split = draw(32, {**dict.fromkeys(SETS, 16), set_name: 160}, 0.95, 5)[set_name]
    rng = np.random.default_rng([5, SETS.index(set_name)])
    label, bias = _assign_classes(set_name, 160, 0.95, rng)
    assert np.array_equal(label, split.label) and np.array_equal(bias, split.bias)
    distance = measure_distance(label, 32, rng)
    grey = split.image @ np.array([0.299, 0.587, 0.114]) / 255
    light = 0
    for level, far in zip(grey, distance, strict=True):
        ground, figure = level[far > 2], level[far < -0.5]
        light += np.median(ground) > 0.5
        assert np.quantile(np.abs(figure - np.median(ground)), 0.9) > 0.25  # the figure has a tone far from the ground
        assert np.ptp(ground) < 0.3  # and the ground keeps to one side, whatever is painted on it
    assert 0.4 < light / 160 < 0.8  # light and dark grounds both occur


def test_shapes_differ_in_outline():
    # Upright, centred, middle-sized: what is left is the outline alone.
    inside = measure_distance(np.arange(16), 64, np.random.default_rng(0), pose=0.0) < 0
    flat = inside.reshape(16, -1).astype(float)
    common = flat @ flat.T
    overlap = common / (flat.sum(1)[:, None] + flat.sum(1)[None] - common)
    np.fill_diagonal(overlap, 0)
    assert overlap.max() < 0.85 and overlap.sum() / 240 < 0.5, [(SHAPES[i], SHAPES[j]) for i, j in np.argwhere(overlap >= 0.85)]
    assert (flat.mean(1) > 0.15).all() and (flat.mean(1) < 0.55).all()


def test_distance_is_in_pixels():
    # A disc of middle size in the middle of the image; its true radius follows from its area.
    distance = measure_distance(np.array([SHAPES.index("disc")]), 64, np.random.default_rng(0), pose=0.0)[0]
    place = np.arange(64) - 31.5
    true = np.hypot(place[:, None], place[None]) - np.sqrt((distance < 0).sum() / np.pi)
    close = np.abs(true) < 3
    assert np.abs(distance - true)[close].max() < 0.2


def test_posed_shapes_stay_in_the_image():
    distance = measure_distance(np.tile(np.arange(16), 40), 32, np.random.default_rng(1))
    inside = distance < 0
    rim = inside.sum((1, 2)) - inside[:, 1:-1, 1:-1].sum((1, 2))
    assert (inside.mean((1, 2)) > 0.06).all()
    assert rim.mean() < 6  # pixels of the 124 on the border: corners may be cut, no more


@pytest.mark.parametrize("side_px", [32, 64])
def test_textures_differ_in_their_spectra(side_px):
    # Nearest centroid on the smoothed power spectrum, which phase does not touch: chance is 1/16.
    def measure(rng):
        texture = np.repeat(np.arange(16), 24)
        power = np.abs(np.fft.fft2(weave(texture, side_px, rng) - 0.5)) ** 2
        power[:, 0, 0] = 0
        log = np.log1p(np.fft.fftshift(power, axes=(1, 2)))
        middle = slice(side_px // 2 - 16, side_px // 2 + 16)
        return texture, log[:, middle, middle].reshape(len(texture), 16, 2, 16, 2).mean((2, 4)).reshape(len(texture), -1)

    texture, known = measure(np.random.default_rng(0))
    centroid = np.stack([known[texture == k].mean(0) for k in range(16)])
    texture, fresh = measure(np.random.default_rng(1))
    guess = ((fresh[:, None] - centroid) ** 2).sum(-1).argmin(1)
    recall = np.array([(guess == k)[texture == k].mean() for k in range(16)])
    assert recall.mean() > 0.85 and recall.min() > 0.5, dict(zip(TEXTURES, recall, strict=True))


def test_textures_are_half_and_half_and_use_both_tones():
    share = weave(np.tile(np.arange(16), 8), 32, np.random.default_rng(2))
    assert share.min() == 0 and share.max() == 1
    level = share.reshape(8, 16, -1).mean((0, 2))
    assert (level > 0.2).all() and (level < 0.8).all()


def test_sixty_four_pixels_show_the_same_things():
    splits = draw(64, dict.fromkeys(SETS, 16), 0.95, 0)
    assert all(split.image.shape == (16, 64, 64, 3) for split in splits.values())
    assert 0.12 < (splits["silhouette"].image == 0).mean() < 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"side_px": 48}, "side_px is 48"),
        ({"counts": {**COUNTS, "sketches": 16}}, "sketches"),
        ({"counts": {"train": 16}}, "lacks"),
        ({"counts": {**COUNTS, "val": 0}}, r"counts\['val'\] is 0"),
        ({"counts": {**COUNTS, "val": 40}}, r"counts\['val'\] is 40"),
        ({"counts": {**COUNTS, "val": 32.0}}, r"counts\['val'\] is 32.0"),
        ({"texture_correlation": 0.05}, "texture_correlation is 0.05"),
        ({"texture_correlation": 1.01}, "texture_correlation is 1.01"),
        ({"texture_correlation": float("nan")}, "texture_correlation is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_bad_input_is_named(change, message):
    good = {"side_px": 32, "counts": COUNTS, "texture_correlation": 0.95, "seed": 0}
    with pytest.raises(ValueError, match=message):
        draw(**{**good, **change})
