"""Augmentation: each operation against Pillow, its draws against literal loops, and a sample that depends on nothing but its key."""

import colorsys
import dataclasses
import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from PIL import Image, ImageEnhance
from scipy import stats

from jaxbed import main
from jaxbed.data import augment, boxes
from jaxbed.data.augment import Config
from jaxbed.system import ending

KEY = jax.random.key(3)
PLAIN = {"mean": (0.0,), "std": (1 / 255,)}  # leaves levels as they are
COLOUR = {"brightness": 0.4, "contrast": 0.5, "saturation": 0.6, "hue": 0.2}
EVERYTHING = {"crop": "resized", "crop_px": 12, "flip": 0.5, "erase": 0.5, **COLOUR}
SIDES_PX = (14, 15)  # of the images on which everything is tested, eight at a time, so that it is compiled once
UNLIKELY = 1e-4  # some thirty p-values are compared with it; keys are fixed, so that what passes once passes always


def draw_photos(n, height, width, channels=3, seed=0):
    """Blobs and noise, [n, height, width, channels] uint8, both ends of the range reached."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(-60, 315, (n, -(-height // 5), -(-width // 5), channels)).repeat(5, 1).repeat(5, 2)[:, :height, :width]
    return np.clip(coarse + rng.normal(0, 25, coarse.shape), 0, 255).astype(np.uint8)


def split(key, n):
    return jax.random.split(key, n)


@functools.cache
def compiled(settings, shape):
    return jax.jit(augment.make(Config(**dict(settings)), shape))


def run(cfg, image, key=KEY):
    settings = tuple(dataclasses.asdict(cfg).items())
    return np.asarray(compiled(settings, image.shape[1:])(key, image), np.float32)


# Resampling


@functools.partial(jax.jit, static_argnames=("out_px", "beyond"))
def resample(image, box, out_px, beyond=False):
    return augment.resample(image, box, out_px, beyond)


@pytest.mark.parametrize(("side_px", "out_px"), [((40, 56), (23, 17)), ((21, 30), (48, 64)), ((65, 33), (32, 32))])
def test_fractional_boxes_are_resampled_as_pillow_does(side_px, out_px):
    rng, mean = np.random.default_rng(1), []
    for image in draw_photos(12, *side_px):
        size = rng.uniform(1.2, side_px)
        top, left = rng.uniform(0, side_px - size)
        expected = Image.fromarray(image).resize(out_px[::-1], Image.BILINEAR, box=(left, top, left + size[1], top + size[0]))
        error = np.abs(np.asarray(resample(image, (top, left, *size), out_px, beyond=True)) - np.asarray(expected, float))
        assert error.max() < 1.1, (top, left, size)  # Pillow rounds after each of its two passes
        mean.append(error.mean())
    assert np.mean(mean) < 0.4


@pytest.mark.parametrize(("side_px", "out_px"), [((40, 56), (23, 17)), ((21, 30), (48, 64))])
def test_a_box_of_whole_pixels_is_a_crop_and_a_resize(side_px, out_px):
    rng, leaked = np.random.default_rng(2), []
    for image in draw_photos(12, *side_px):
        size = rng.integers(1, side_px)
        top, left = rng.integers(0, side_px - size + 1)
        expected = Image.fromarray(image[top : top + size[0], left : left + size[1]]).resize(out_px[::-1], Image.BILINEAR)
        box = tuple(np.float32((top, left, *size)))
        assert np.abs(np.asarray(resample(image, box, out_px)) - np.asarray(expected, float)).max() < 1.1, box
        leaked.append(np.abs(np.asarray(resample(image, box, out_px, beyond=True)) - np.asarray(expected, float)).max())
    assert max(leaked) > 10  # what lies around the box would have shown


def test_weights_sum_to_one_and_an_untouched_side_has_the_identity():
    weigh = jax.jit(augment.weigh, static_argnums=(2, 3))
    np.testing.assert_allclose(weigh(0.0, 9.0, 9, 9), np.eye(9), atol=1e-6)
    for start, length, out in ((0.3, 0.2, 5), (8.0, 1.0, 3), (0.0, 9.0, 1), (2.5, 4.1, 4)):
        weight = np.asarray(weigh(start, length, 9, out))
        np.testing.assert_allclose(weight.sum(axis=1), 1, rtol=1e-5)
        assert not weight[:, np.arange(9) >= start + length].any() and not weight[:, np.arange(9) + 1 <= start].any()


# Boxes, windows, flips, erased rectangles


def draw_boxes_in_turn(n, side_px, scale_frac, ratio, rng):
    """RandomResizedCrop's boxes (top, left, height, width), one try after the other."""
    height, width = side_px
    boxes = []
    for _ in range(n):
        for _ in range(10):
            area = height * width * rng.uniform(*scale_frac)
            shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
            h, w = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < h <= height and 0 < w <= width:
                boxes.append((rng.integers(height - h + 1), rng.integers(width - w + 1), h, w))
                break
        else:
            h, w = (height, min(width, round(height * ratio[1]))) if width / height > ratio[0] else (round(width / ratio[0]), width)
            boxes.append(((height - h) // 2, (width - w) // 2, h, w))
    return np.array(boxes, float)


@pytest.mark.parametrize(
    ("side_px", "scale_frac", "ratio"),
    [((32, 32), (0.08, 1.0), (3 / 4, 4 / 3)), ((224, 224), (0.5, 1.0), (0.8, 1.0)), ((20, 60), (0.3, 1.0), (0.5, 2.0))],
)
def test_boxes_are_distributed_as_torchvision_draws_them(side_px, scale_frac, ratio):
    draw = jax.jit(jax.vmap(lambda key: jnp.stack(boxes.draw_box(key, side_px, scale_frac, ratio))))
    n = 12_000
    drawn = np.asarray(draw(split(KEY, n)), float)
    expected = draw_boxes_in_turn(n, side_px, scale_frac, ratio, np.random.default_rng(0))
    assert (drawn == np.round(drawn)).all() and (drawn[:, :2] >= 0).all() and (drawn[:, 2:] >= 1).all()
    assert (drawn[:, :2] + drawn[:, 2:] <= side_px).all()
    measures = {
        **{name: (drawn[:, i], expected[:, i]) for i, name in enumerate(("top", "left", "height", "width"))},
        "area": (drawn[:, 2] * drawn[:, 3], expected[:, 2] * expected[:, 3]),
        "ratio": (drawn[:, 3] / drawn[:, 2], expected[:, 3] / expected[:, 2]),
        "below": (side_px[0] - drawn[:, 0] - drawn[:, 2], side_px[0] - expected[:, 0] - expected[:, 2]),
    }
    for name, (ours, theirs) in measures.items():
        assert stats.ks_2samp(ours, theirs).pvalue > UNLIKELY, name
        np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=5 * theirs.std() * (2 / n) ** 0.5, err_msg=name)


@pytest.mark.parametrize(
    ("side_px", "ratio", "expected"),
    [((10, 100), (3 / 4, 4 / 3), (0, 43, 10, 13)), ((100, 10), (3 / 4, 4 / 3), (43, 0, 13, 10)), ((8, 8), (1.9, 2.0), (2, 0, 4, 8))],
)
def test_where_no_box_fits_the_largest_central_one_is_taken(side_px, ratio, expected):
    draw = jax.jit(jax.vmap(lambda key: jnp.stack(boxes.draw_box(key, side_px, (1.0, 1.0), ratio))))
    assert (np.asarray(draw(split(KEY, 20))) == expected).all()


def test_a_resized_crop_is_the_drawn_box_resampled():
    image = draw_photos(6, 24, 20)
    got = run(Config(crop="resized", crop_px=10, **PLAIN), image)

    @jax.jit
    def box(i):
        key = jax.random.fold_in(jax.random.fold_in(KEY, i), augment.BOX)
        return boxes.draw_box(key, (24, 20), (0.08, 1.0), (3 / 4, 4 / 3))

    for i, photo in enumerate(image):
        top, left, h, w = (int(side) for side in box(i))
        expected = Image.fromarray(photo[top : top + h, left : left + w]).resize((10, 10), Image.BILINEAR)
        assert np.abs(got[i] - np.asarray(expected, float)).max() < 1.1


def test_padded_crops_take_every_window_equally_often():
    n, height, width = 3000, 6, 7
    image = np.zeros((n, height, width, 1), np.uint8)
    image[..., 0] = 1 + np.arange(height * width).reshape(height, width)  # every pixel tells where it stood
    got = run(Config(crop="padded", padding_px=2, **PLAIN), image)[..., 0].round()
    padded = np.pad(image[0, ..., 0], 2)
    windows = [padded[y : y + height, x : x + width] for y in range(5) for x in range(5)]
    which = np.array([[np.array_equal(one, window) for window in windows] for one in got])
    assert (which.sum(axis=1) == 1).all()
    assert stats.chisquare(which.sum(axis=0)).pvalue > UNLIKELY
    assert run(Config(crop="padded", padding_px=0, crop_px=4, **PLAIN), image[:3]).shape == (3, 4, 4, 1)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_flips_mirror_columns_as_often_as_asked(probability):
    image = draw_photos(2000, 3, 4)
    image[:, 0, 0] = image[:, 0, 3] ^ 1  # none is its own mirror image
    got = run(Config(flip=probability, **PLAIN), image)
    flipped = (np.abs(got - image[:, :, ::-1]) < 1e-3).all(axis=(1, 2, 3))
    assert (flipped | (np.abs(got - image) < 1e-3).all(axis=(1, 2, 3))).all()
    assert abs(flipped.mean() - probability) <= 4 * (probability * (1 - probability) / 2000) ** 0.5


def test_erased_rectangles_are_distributed_as_torchvision_draws_them():
    n, side_px, rng = 4000, (30, 40), np.random.default_rng(0)
    expected = []
    while len(expected) < n:
        area, shape = 1200 * rng.uniform(0.02, 0.33), math.exp(rng.uniform(math.log(0.3), math.log(3.3)))
        h, w = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if h < 30 and w < 40:
            expected.append((rng.integers(30 - h + 1), rng.integers(40 - w + 1), h, w))
    expected = np.array(expected, float)
    draw = jax.jit(jax.vmap(lambda key: jnp.stack(boxes.draw_rectangle(key, side_px, 0.4))))
    drawn = np.asarray(draw(split(KEY, int(n / 0.4))), float)
    hit = drawn[:, 2] > 0
    assert abs(hit.mean() - 0.4) < 4 * (0.24 / len(hit)) ** 0.5 and not drawn[~hit, 2:].any()
    for i, name in enumerate(("top", "left", "height", "width")):
        assert stats.ks_2samp(drawn[hit, i], expected[:, i]).pvalue > UNLIKELY, name
    assert stats.ks_2samp(drawn[hit, 2] * drawn[hit, 3], expected[:, 2] * expected[:, 3]).pvalue > UNLIKELY


def test_rectangles_of_the_paper_are_distributed_otherwise():
    """Height over width is uniform, and areas reach 40 %."""
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda key: jnp.stack(boxes.draw_rectangle(key, (256, 256), 1.0, boxes.ERASING["zhong"]))))(split(KEY, 4000))
    )
    height, width = drawn[:, 2:].T
    rng = np.random.default_rng(0)
    area, ratio = 256**2 * rng.uniform(0.02, 0.4, 8000), rng.uniform(0.3, 1 / 0.3, 8000)
    h, w = np.sqrt(area * ratio).round(), np.sqrt(area / ratio).round()
    fits = (h < 256) & (w < 256)
    for name, got, expected in (("height", height, h), ("width", width, w)):
        assert stats.ks_2samp(got, expected[fits]).pvalue > UNLIKELY, name
    assert (round(math.sqrt(0.1 * 256**2 * 2)), round(math.sqrt(0.1 * 256**2 / 2))) == (114, 57)  # published example
    image = draw_photos(40, 16, 18)
    got = run(Config(erase=1.0, erase_form="zhong", **PLAIN), image)
    filled = np.isclose(got, [0.4914, 0.4822, 0.4465]).all(-1)
    assert filled.any((1, 2)).all() and 0.05 < filled.mean() < 0.4


@pytest.mark.parametrize("kind", ["speckle", "gaussian"])
def test_a_share_of_each_batch_gets_noise_of_one_of_the_strengths(kind):
    image = np.full((64, 40, 40, 3), 100, np.uint8)
    got = run(Config(noise=kind, noise_share=0.25, noise_std=(0.05, 0.2), mean=(0.0,), std=(1.0,)), image)
    noisy = np.abs(got - 100 / 255).max((1, 2, 3)) > 1e-6
    assert noisy.sum() == 16 and 4 <= noisy[:32].sum() <= 12  # wherever they are: a batch may hold one training set after another
    unit = 100 / 255 if kind == "speckle" else 1
    strength = (got[noisy] - 100 / 255).std((1, 2, 3)) / unit
    near = [np.isclose(strength, wanted, rtol=0.06) for wanted in (0.05, 0.2)]
    assert (near[0] | near[1]).all() and near[0].any() and near[1].any()
    bright = run(Config(noise=kind, noise_share=1.0, mean=(0.0,), std=(1.0,)), np.full((4, 20, 20, 3), 250, np.uint8))
    assert bright.max() == 1.0 and bright.min() >= 0.0  # clipped


HALVES = {
    "speckle": ("--config=speckle",),
    "gaussian": ("--config=erm", "--config.data.augment.noise=gaussian"),
    "noise2net": ("--config=noise2net",),
    "crossdomain": ("--config=mixstyle", "--config.method.pairing=crossdomain"),
}
SMALL = ("--config.data.train_images=64", "--config.data.val_images=16", "--config.data.test_images=16", "--config.net.width=4")


@pytest.mark.parametrize("kind", HALVES)
def test_an_odd_batch_has_no_half_that_an_augmentation_could_change(kind, tmp_path, capsys):
    words = (*HALVES[kind], *SMALL, "--config.seeds=1", "--config.batch_size=63", f"--workdir={tmp_path / 'run'}")
    assert ending.of(lambda: main.main(words)) == 2
    said = capsys.readouterr().err
    assert "batch_size = 63" in said and "take an even" in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("size", "share", "cure"), [(63, 0.5, "take an even"), (64, 0.3, "noise_share = 0.296875 for 19"), (1, 0.5, "even")]
)
def test_noise_needs_a_whole_number_of_images(size, share, cure):
    with pytest.raises(ValueError, match=rf"batch_size = {size}: data.augment.noise_share = {share} of it is .*{cure}"):
        augment.make(Config(noise="speckle", noise_share=share), (4, 4, 3))(KEY, np.zeros((size, 4, 4, 3), np.uint8))
    assert augment.make(Config(noise="speckle", noise_share=0), (4, 4, 3))(KEY, np.zeros((size, 4, 4, 3), np.uint8)).shape[0] == size
    assert augment.make(Config(noise_share=share), (4, 4, 3))(KEY, np.zeros((size, 4, 4, 3), np.uint8)).shape == (size, 4, 4, 3)


@pytest.mark.parametrize(
    ("kind", "value", "drawn", "expected"),
    [("speckle", 0.5, 1.2 * 0.35, 0.71), ("speckle", 0.9, 0.6, 1.0), ("gaussian", 0.5, 0.21, 0.71), ("gaussian", 0.1, -0.6, 0.0)],
)
def test_noise_by_hand(kind, value, drawn, expected):
    """A pixel of this value in [0, 1], and a draw times its strength."""
    image = np.full((1, 1, 1), 255 * value, np.float32)
    assert augment.add_noise(image, np.full((1, 1, 1), drawn, np.float32), kind == "speckle") / 255 == pytest.approx(expected, abs=1e-6)


def test_an_erased_rectangle_never_reaches_from_edge_to_edge():
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: jnp.stack(boxes.draw_rectangle(key, (6, 30), 1.0))))(split(KEY, 500)))
    assert drawn[:, 2].max() == 5 and (drawn[:, 0] + drawn[:, 2] <= 6).all()


def test_erasing_zeroes_one_rectangle_after_normalisation():
    image = draw_photos(40, 16, 18) | 1
    got, whole = run(Config(erase=1.0, mean=(0.0,), std=(0.5,)), image), run(Config(mean=(0.0,), std=(0.5,)), image)
    for one, before in zip(got, whole, strict=True):
        gone = (one == 0).all(axis=-1)
        rows, columns = gone.any(axis=1), gone.any(axis=0)
        assert 0 < gone.sum() < gone.size and (gone == rows[:, None] & columns).all()
        assert np.ptp(np.flatnonzero(rows)) + 1 == rows.sum() and np.ptp(np.flatnonzero(columns)) + 1 == columns.sum()
        np.testing.assert_array_equal(one[~gone], before[~gone])


# Colours


@functools.partial(jax.jit, static_argnums=0)
def adjust(name, image, factor):
    """As augment.adjust, for image [H, W, C]."""
    return jnp.moveaxis(augment.adjust(name, jnp.moveaxis(image, -1, 0), factor), 0, -1)


@pytest.mark.parametrize(
    ("name", "enhance"), [("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), ("saturation", ImageEnhance.Color)]
)
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_blends_are_pillows(name, enhance, factor):
    for image in draw_photos(3, 20, 26):
        expected = np.asarray(enhance(Image.fromarray(image)).enhance(factor), float)
        error = np.asarray(adjust(name, image.astype(np.float32), factor)) - expected
        # Pillow cuts the result off to a whole level and rounds grey before, and 1.7 takes 0.7 of that
        assert np.abs(error).max() < 1.8 and np.abs(error).mean() < 0.7


@pytest.mark.parametrize("turns", [-0.5, -0.13, 0.0, 0.2, 0.5])
def test_hue_moves_as_in_hsv(turns):
    image = draw_photos(1, 16, 17)[0]
    image[0, :4] = [[0, 0, 0], [255, 255, 255], [90, 90, 90], [255, 0, 0]]  # no hue, no hue, no hue, red
    got = np.asarray(adjust("hue", image.astype(np.float32), turns))
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3) / 255]
    exact = 255 * np.array([colorsys.hsv_to_rgb((h + turns) % 1, s, v) for h, s, v in hsv]).reshape(image.shape)
    np.testing.assert_allclose(got, exact, atol=2e-3)
    hue, saturation, value = Image.fromarray(image).convert("HSV").split()
    hue = Image.fromarray(((np.asarray(hue, int) + int(255 * turns)) % 256).astype(np.uint8))
    error = np.abs(got - np.asarray(Image.merge("HSV", (hue, saturation, value)).convert("RGB"), float))
    assert error.mean() < 2 and error.max() < 18  # 256 hues: a step of 1.4 degrees is six levels of a pure colour


def probe(name, n):
    """Images [n, 2, 2, 3] uint8 that show the factor of one colour operation to the measure below, unclipped."""
    image = np.full((n, 2, 2, 3), 100, np.uint8)
    if name == "contrast":
        image[:, 0] += 40
    if name in ("saturation", "hue"):
        image[..., 1:] -= 50  # red
    return image


def measure_brightness(image):
    return image[:, 0, 0, 0] / 100


def measure_contrast(image):
    return np.ptp(image[..., 0], axis=(1, 2)) / 40


def measure_saturation(image):
    return np.ptp(image[:, 0, 0], axis=-1) / 50


def measure_hue(image):
    return (np.array([colorsys.rgb_to_hsv(*pixel)[0] for pixel in image[:, 0, 0]]) + 0.5) % 1 - 0.5


@pytest.mark.parametrize(
    ("name", "amount", "low", "high", "measure"),
    [
        ("brightness", 0.4, 0.6, 1.4, measure_brightness),
        ("brightness", 1.5, 0.0, 2.5, measure_brightness),
        ("contrast", 0.5, 0.5, 1.5, measure_contrast),
        ("saturation", 0.3, 0.7, 1.3, measure_saturation),
        ("hue", 0.2, -0.2, 0.2, measure_hue),
    ],
)
def test_factors_are_uniform(name, amount, low, high, measure):
    factor = measure(run(Config(**{name: amount}, **PLAIN), probe(name, 3000)))
    assert low - 1e-3 <= factor.min() and factor.max() <= high + 1e-3
    assert stats.kstest(factor, "uniform", (low, high - low)).pvalue > UNLIKELY


def test_colour_operations_act_in_all_orders_equally_often():
    n, names = 960, augment.COLOURS
    amounts = {"brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "hue": 0.4}
    image, keys, factors = draw_photos(1, 3, 4)[0].astype(np.float32), split(KEY, n), {}

    @functools.partial(jax.jit, static_argnums=1)
    def jitter(image, names):
        return jax.vmap(lambda key: augment.jitter(key, image, {name: amounts[name] for name in names}))(keys)

    # A factor does not depend on which other operations are on, so each can be read off an image that shows it alone
    for name, measure in zip(names, (measure_brightness, measure_contrast, measure_saturation, measure_hue), strict=True):
        factors[name] = measure(np.asarray(jitter(probe(name, 1)[0].astype(np.float32), (name,)))).astype(np.float32)

    orders, expected = list(itertools.permutations(names)), []
    in_one_step = {name: jax.jit(jax.vmap(functools.partial(adjust, name))) for name in names}
    for order in orders:
        result = np.broadcast_to(image, (n, *image.shape))
        for name in order:
            result = in_one_step[name](result, factors[name])
        expected.append(result)
    error = np.abs(np.asarray(jitter(image, names)) - np.stack(expected)).max(axis=(2, 3, 4))  # [24, n]
    assert error.min(axis=0).max() < 0.1
    sure = (error < 0.2).sum(axis=0) == 1  # where little is clipped, several orders come to the same
    assert sure.mean() > 0.25
    assert len(np.unique(error[:, sure].argmin(axis=0))) == 24
    # Whether hue came last can be told for most samples, whatever order the three blends had
    last = np.array([order[-1] == "hue" for order in orders])
    known = (error[last].min(axis=0) < 0.1) != (error[~last].min(axis=0) < 0.1)
    assert known.mean() > 0.6
    assert abs((error[last].min(axis=0) < 0.1)[known].mean() - 0.25) < 0.08


# The pipeline


def test_when_all_is_off_there_is_only_normalisation():
    image, cfg = draw_photos(4, 9, 7), Config()
    expected = (image / 255 - np.array(cfg.mean)) / np.array(cfg.std)
    np.testing.assert_allclose(run(cfg, image), expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(jax.jit(augment.make_evaluation(cfg, (9, 7, 3)))(image), run(cfg, image))
    np.testing.assert_allclose(run(Config(mean=(0.5,), std=(0.5,)), image), image / 127.5 - 1, atol=1e-6)


def test_a_sample_depends_on_its_key_and_place_alone():
    image = draw_photos(8, *SIDES_PX)
    whole = run(Config(**EVERYTHING), image)
    np.testing.assert_array_equal(run(Config(**EVERYTHING), image), whole)
    np.testing.assert_allclose(run(Config(**EVERYTHING), image[:2]), whole[:2], atol=1e-4)
    np.testing.assert_allclose(run(Config(**EVERYTHING), np.concatenate([image[:3], 255 - image[3:]]))[:3], whole[:3], atol=1e-4)
    assert (np.abs(run(Config(**EVERYTHING), image, jax.random.key(4)) - whole).max(axis=(1, 2, 3)) > 0.1).all()
    same = run(Config(**EVERYTHING), np.repeat(image[:1], 8, axis=0))
    assert all(np.abs(a - b).max() > 0.1 for a, b in itertools.combinations(same, 2))


def test_turning_one_operation_on_leaves_the_draws_of_the_others():
    image = draw_photos(16, 12, 12)
    flips = {"flip": 0.5, **PLAIN}
    alone, erased = run(Config(**flips), image), run(Config(erase=1.0, **flips), image)
    kept = (erased != 0).any(axis=-1)
    assert kept.mean() > 0.5
    np.testing.assert_allclose(erased[kept], alone[kept], atol=1e-3)
    cropped = run(Config(crop="padded", padding_px=0, **flips), image)
    np.testing.assert_allclose(cropped, alone, atol=1e-3)
    faint = run(Config(brightness=1e-6, **flips), image)
    np.testing.assert_allclose(faint, alone, atol=1e-2)


def test_seeds_outside_and_steps_around_change_nothing():
    cfg, image = Config(**EVERYTHING), draw_photos(32, *SIDES_PX).reshape(2, 2, 8, *SIDES_PX, 3)  # [S, steps, B, H, W, C]
    function = augment.make(cfg, (*SIDES_PX, 3))

    def advance(seed, image):
        def one(step, image):
            return step + 1, function(jax.random.fold_in(jax.random.key(seed), step), image)

        return jax.lax.scan(one, 0, image)[1]

    got = jax.jit(jax.vmap(advance))(jnp.arange(2), image)
    for seed, step in itertools.product(range(2), range(2)):
        expected = run(cfg, image[seed, step], jax.random.fold_in(jax.random.key(seed), step))
        np.testing.assert_allclose(got[seed, step], expected, atol=1e-3)


@pytest.mark.parametrize("changes", [EVERYTHING, {"crop": "padded", "flip": 0.5}])
def test_devices_that_share_a_batch_exchange_nothing(changes):
    if len(jax.devices()) < 4:
        pytest.skip("needs 4 devices")
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    split_batch, copied = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    image = draw_photos(8, *SIDES_PX)
    function = jax.jit(augment.make(Config(**changes), (*SIDES_PX, 3)), in_shardings=(copied, split_batch), out_shardings=split_batch)
    shared = function.lower(KEY, image).compile()
    assert not re.findall(r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|callback", shared.as_text())
    np.testing.assert_allclose(shared(*jax.device_put((KEY, image), (copied, split_batch))), run(Config(**changes), image), atol=1e-3)


def test_bfloat16_is_a_rounded_float32():
    image = draw_photos(8, *SIDES_PX)
    function = jax.jit(augment.make(Config(**EVERYTHING, dtype="bfloat16"), (*SIDES_PX, 3)))
    rounded = np.asarray(function(KEY, image))
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_allclose(rounded.astype(np.float32), run(Config(**EVERYTHING), image), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "crop", "crop_px"),
    [((7, 11, 3), "none", 8), ((7, 11, 3), "padded", 8), ((7, 11, 3), "resized", 0), ((9, 5, 1), "resized", 8), ((1, 1, 3), "resized", 3)],
)
def test_odd_shapes_and_flat_images_stay_finite(shape, crop, crop_px):
    """Colours, which do not know how an image was cut, on each shape once."""
    colours = {"brightness": 0.4, "contrast": 0.4} if shape[2] == 1 else COLOUR
    if shape[:2] == (7, 11) and crop != "none":
        colours = {}
    cfg = Config(crop=crop, crop_px=crop_px, flip=0.5, erase=0.5, mean=(0.5,), std=(0.2,), **colours)
    image = np.concatenate([draw_photos(3, *shape), np.zeros((1, *shape), np.uint8), np.full((1, *shape), 255, np.uint8)])
    in_training, prepare = augment.make(cfg, shape), augment.make_evaluation(cfg, shape)
    got, prepared = jax.device_get(jax.jit(lambda key, image: (in_training(key, image), prepare(image)))(KEY, image))
    for result in (got, prepared):
        assert result.shape == (5, *((crop_px,) * 2 if crop_px else shape[:2]), shape[2])
        assert np.isfinite(result).all() and result.min() > -2.6 and result.max() < 2.6
    assert got.any() and np.ptp(got) > 1


def test_evaluation_takes_the_centre():
    image = draw_photos(2, 30, 41)
    settings = ({"crop": "resized", "crop_px": 20}, {"crop": "resized", "crop_px": 26}, {"crop_px": 20})
    settings += ({"crop": "padded", "crop_px": 32, "padding_px": 4},)
    prepare = [augment.make_evaluation(Config(**each, **PLAIN), (30, 41, 3)) for each in settings]
    resized, kept, whole, window = jax.device_get(jax.jit(lambda image: [function(image) for function in prepare])(image))
    for i, photo in enumerate(image):
        middle = photo[2:28, 7:33]  # ⌊0.875 · 30⌋ = 26
        expected = np.asarray(Image.fromarray(middle).resize((20, 20), Image.BILINEAR), float)
        assert np.abs(resized[i] - expected).max() < 1.1
        np.testing.assert_allclose(kept[i], middle, atol=1e-3)
        assert np.abs(whole[i] - np.asarray(Image.fromarray(photo).resize((20, 20), Image.BILINEAR), float)).max() < 1.1
        np.testing.assert_allclose(window[i], np.pad(photo, ((4, 4), (4, 4), (0, 0)))[3:35, 8:40], atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop": "random"}, "augment.crop = 'random': must be one of none, padded, resized"),
        ({"dtype": "float16"}, "augment.dtype = 'float16': must be one of float32, bfloat16"),
        ({"crop_px": -1}, "augment.crop_px = -1: must be a whole number"),
        ({"crop_px": 8.0}, "augment.crop_px = 8.0: must be a whole number"),
        ({"padding_px": 2}, "augment.padding_px = 2 has no effect with crop = 'none': set crop = 'padded'"),
        ({"crop": "padded", "centre_frac": 1.0}, "augment.centre_frac = 1.0 has no effect with crop = 'padded'"),
        (
            {"crop": "resized", "scale_frac": (0.0, 1.0)},
            "augment.scale_frac = (0.0, 1.0): must be 2 values, each a number, above 0",
        ),
        ({"crop": "resized", "ratio": (2.0, 1.0)}, "augment.ratio = (2.0, 1.0): give (low, high)"),
        ({"crop": "resized", "centre_frac": 0.0}, "augment.centre_frac = 0.0: must be a number, above 0"),
        ({"crop": "padded", "padding_px": 1, "crop_px": 11}, "augment.crop_px = 11: the padded side has only 10 px"),
        ({"flip": 1.5}, "augment.flip = 1.5: must be a number, 0 to 1"),
        ({"hue": 0.6}, "augment.hue = 0.6: must be a number, 0 to 0.5"),
        ({"contrast": -0.1}, "augment.contrast = -0.1: must be a number, 0 or more"),
        ({"erase": float("nan")}, "augment.erase = nan: must be a number, 0 to 1"),
        ({"mean": (0.5, 0.5)}, "augment.mean = (0.5, 0.5): give one number, or one per channel (3)"),
        ({"std": (0.0,)}, "augment.std = (0.0,): must be several values in brackets, each a number, above 0"),
    ],
)
@pytest.mark.parametrize("make", [augment.make, augment.make_evaluation])
def test_impossible_settings_are_refused(make, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make(Config(**changes), (8, 9, 3))


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="need 3 channels, but images have 1: set both to 0"):
        augment.make(Config(hue=0.1, mean=(0.5,), std=(0.5,)), (8, 8, 1))
    with pytest.raises(ValueError, match=re.escape("shape (H, W, C) = (8, 8, 4): allowed are 1 or 3 channels")):
        augment.make(Config(), (8, 8, 4))
    with pytest.raises(ValueError, match=re.escape("images are uint8 [2, 8, 9, 3], not uint8 [B, *[8, 8, 3]]")):
        augment.make(Config(), (8, 8, 3))(KEY, np.zeros((2, 8, 9, 3), np.uint8))
    with pytest.raises(ValueError, match="images are float32"):
        augment.make_evaluation(Config(), (8, 8, 3))(np.zeros((2, 8, 8, 3), np.float32))
