"""AugMix: operations against Pillow and by hand, mixtures, draws, the divergence, and what the network sees."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tiny
from PIL import Image, ImageEnhance, ImageOps

from configs import augmix as preset
from jaxbed import config, parallel
from jaxbed.data import augmix
from jaxbed.method import Info
from jaxbed.methods import augmix as method
from jaxbed.models import mlp

ALL = augmix.Settings(operations=13, fill="dark_red")
NINE = augmix.Settings()
FILLS = {"black": 0, "dark_red": 128}


def photo(height, width, channels, seed=0):
    """Waves and noise, uint8, with its values in an interval that differs between channels."""
    rng, (y, x) = np.random.default_rng(seed), np.mgrid[:height, :width]
    planes = [100 + 20 * c + 50 * np.sin(x / (3 + c) + y / 5) + rng.normal(0, 15, x.shape) for c in range(channels)]
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def with_pillow(image, name, level, sign, fill):
    """The authors' operation on an image [H, W, C] uint8, of the level that they draw."""
    level, sign = float(level), int(sign)
    pillow = Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])
    width, height = pillow.size
    warp = {"resample": Image.Resampling.BILINEAR, "fillcolor": FILLS[fill]}

    def affine(*matrix):
        return pillow.transform(pillow.size, Image.Transform.AFFINE, matrix, **warp)

    def enhanced(kind):
        return kind(pillow).enhance(level * 1.8 / 10 + 0.1)

    changed = {
        "autocontrast": lambda: ImageOps.autocontrast(pillow),
        "equalize": lambda: ImageOps.equalize(pillow),
        "posterize": lambda: ImageOps.posterize(pillow, 4 - int(level * 4 / 10)),
        "rotate": lambda: pillow.rotate(sign * int(level * 30 / 10), **warp),
        "solarize": lambda: ImageOps.solarize(pillow, 256 - int(level * 256 / 10)),
        "shear_x": lambda: affine(1, sign * level * 0.3 / 10, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, sign * level * 0.3 / 10, 1, 0),
        "translate_x": lambda: affine(1, 0, sign * int(level * (width / 3) / 10), 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, sign * int(level * (height / 3) / 10)),
        "colour": lambda: enhanced(ImageEnhance.Color),
        "contrast": lambda: enhanced(ImageEnhance.Contrast),
        "brightness": lambda: enhanced(ImageEnhance.Brightness),
        "sharpness": lambda: enhanced(ImageEnhance.Sharpness),
    }[name]()
    return np.asarray(changed).reshape(image.shape)


def distort(image, settings, operation, level, sign):
    """Many operations on one image, [n, H, W, C]."""
    images = np.tile(image, (len(operation), 1, 1, 1))
    each = jax.jit(lambda *step: augmix.distorted(*step, settings))
    return np.asarray(each(images, np.asarray(operation), np.float32(level), np.float32(sign)))


# Operations


@pytest.mark.parametrize(("channels", "fill"), [(3, "dark_red"), (1, "dark_red"), (3, "black")])
def test_operations_are_pillows(channels, fill):
    """To one level, in few pixels; to the last bit where arithmetic is of whole numbers. No level lies where truncation changes."""
    image = photo(24, 30, channels)
    cases = [(name, level, sign) for name in augmix.OPERATIONS for level in (0.173, 1.234, 2.71, 6.283, 9.77) for sign in (1, -1)]
    names, levels, signs = zip(*cases, strict=True)
    settings = dataclasses.replace(ALL, fill=fill)
    found = distort(image, settings, [augmix.OPERATIONS.index(name) for name in names], levels, signs)
    changing = set()
    for (name, level, sign), result in zip(cases, found, strict=True):
        expected = with_pillow(image, name, np.float32(level), sign, fill)
        difference = np.abs(result.astype(int) - expected)
        if name in ("equalize", "posterize", "solarize", "translate_x", "translate_y"):
            assert not difference.any(), (name, level, sign)
        assert difference.max() <= 1 and difference.mean() < 0.05, (name, level, sign)
        if (result != image).any():
            changing.add(name)
    assert changing == set(augmix.OPERATIONS) - ({"colour"} if channels == 1 else set())


ROW = [0, 15, 16, 17, 31, 32, 100, 128, 200, 231, 240, 254, 255]


@pytest.mark.parametrize(
    ("name", "level", "values", "expected"),
    [
        ("posterize", 1.0, ROW, [0, 0, 16, 16, 16, 32, 96, 128, 192, 224, 240, 240, 240]),
        ("posterize", 2.6, ROW, [0, 0, 0, 0, 0, 32, 96, 128, 192, 224, 224, 224, 224]),
        ("solarize", 0.99, ROW, [0, 15, 16, 17, 31, 32, 100, 128, 200, 24, 15, 1, 0]),
        ("autocontrast", 1.0, [50, 100, 150, 200], [0, 85, 170, 255]),
        ("autocontrast", 1.0, [70] * 4, [70] * 4),
        ("equalize", 1.0, [50, 50, 100, 150, 200, 200, 200, 250], [50, 50, 100, 150, 200, 200, 200, 250]),
        ("equalize", 1.0, [70] * 300, [70] * 300),
        ("translate_x", 8.0, range(0, 211, 30), [60, 90, 120, 150, 180, 210, 128, 128]),
    ],
)
def test_rows_by_hand(name, level, values, expected):
    image = np.array(values, np.uint8).reshape(1, -1, 1)
    found = augmix_step(image, augmix.OPERATIONS.index(name), level, 1.0)
    assert found.ravel().tolist() == expected


@jax.jit
def augmix_step(image, operation, level, sign):
    step = (jnp.asarray(value)[None] for value in (image, operation, level, sign))
    return augmix.distorted(*step, dataclasses.replace(ALL, operations=9))[0]


def test_a_shear_by_hand_moves_half_pixels():
    image = np.tile(np.arange(0, 211, 30, dtype=np.uint8)[:, None], (8, 1, 1))
    found = np.asarray(augmix_step(image, augmix.OPERATIONS.index("shear_x"), 10.0, 1.0))[..., 0]
    assert found[0].tolist() == [4, 34, 64, 94, 124, 154, 184, 210]
    assert found[3].tolist() == [31, 61, 91, 121, 151, 181, 210, 128]
    assert found[7].tolist() == [67, 97, 127, 157, 187, 210, 128, 128]


# Mixtures

IMAGES = np.stack([photo(16, 20, 3, seed) for seed in range(12)])
mix = jax.jit(lambda image, drawn: augmix.mixed(image, drawn, NINE))
draw_nine = jax.jit(lambda key: augmix.draw_batch(key, len(IMAGES), NINE))


def test_mixing_by_hand():
    image, chains = np.float32([0.2, 0.6]), np.float32([(0.4, 0.6), (0, 1), (0.8, 0.2)])
    weights, share = np.float32([0.5, 0.3, 0.2]), np.float32(0.4)
    for part, expected in ((share, (0.264, 0.616)), (1 - share, (0.296, 0.624)), (np.float32(1), (0.36, 0.64))):
        np.testing.assert_allclose(augmix.blend(image, chains, weights, part), expected, rtol=1e-6)
    normalised = augmix.blend((image - 0.485) / 0.229, (chains - 0.485) / 0.229, weights, share)
    np.testing.assert_allclose(normalised, (-0.9650655, 0.5720524), rtol=1e-5)


def test_mixtures_are_those_of_a_transcription_in_numpy():
    """Tolerance: one level on average. A chain may amplify a difference of one level."""
    drawn = jax.device_get(draw_nine(jax.random.key(0)))
    found = np.asarray(mix(np.float32(IMAGES) / 255, drawn))
    assert found.dtype == np.float32 and (drawn.operation == augmix.NOTHING).any()
    for image, result, one in zip(IMAGES, found, map(augmix.Drawn, *drawn), strict=True):
        mixture = np.zeros(image.shape)
        for chain, weight in enumerate(one.weights):
            step = image
            for operation, level, sign in zip(one.operation[chain], one.level[chain], one.sign[chain], strict=True):
                if operation != augmix.NOTHING:
                    step = with_pillow(step, augmix.OPERATIONS[operation], level, sign, "black")
            mixture += weight * (step / 255)
        expected = (1 - one.share) * (image / 255) + one.share * mixture
        assert np.abs(result - expected).mean() < 0.1 / 255 and np.abs(result - image / 255).max() > 0.01


def test_mixtures_stay_in_range_and_do_not_depend_on_the_rest_of_the_batch():
    drawn = jax.device_get(draw_nine(jax.random.key(1)))
    image = np.random.default_rng(0).random(IMAGES.shape, np.float32)
    found = np.asarray(mix(image, drawn))
    assert found.min() >= 0 and found.max() <= 1 + 1e-6
    others = drawn._replace(operation=drawn.operation[::-1].copy(), level=drawn.level[::-1].copy())
    others.operation[0], others.level[0] = drawn.operation[0], drawn.level[0]
    among = np.asarray(mix(np.concatenate([image[:1], image[:0:-1]]), others))
    np.testing.assert_array_equal(found[0], among[0])
    assert (found[1:] != among[1:]).any((1, 2, 3)).all()
    fewer = jax.jit(lambda key: augmix.draw_batch(key, 3, NINE))(jax.random.key(1))
    jax.tree.map(lambda all_images, few: np.testing.assert_allclose(few, all_images[:3], rtol=1e-5), drawn, augmix.Drawn(*fewer))


@pytest.mark.parametrize("count", [1, 7, 400])
def test_all_images_that_are_to_be_equalised_are_counted(count):
    """However many they are, and wherever they lie; and each of two seeds as it would be alone."""
    images = np.stack([photo(5, 7, 3, seed) for seed in range(count)])
    wanted = np.stack([np.ones(count, bool), np.arange(count) % 5 == count % 5])
    found = np.asarray(jax.jit(jax.vmap(lambda wanted: augmix.histograms(augmix.packed(images), 3, wanted)))(wanted))
    for of_seed, where in zip(found, wanted, strict=True):
        expected = [[np.bincount(image[..., channel].ravel(), minlength=256) for channel in range(3)] for image in images[where]]
        np.testing.assert_array_equal(of_seed[where], np.reshape(expected, (-1, 3, 256)))


def test_devices_that_share_a_batch_exchange_no_images():
    placed = parallel.Seeds(1, 0, parallel.Mesh(seed=1, data=8)).sharding("data")
    image, drawn = (
        jax.ShapeDtypeStruct((32, 4, 4, 3), np.float32),
        jax.eval_shape(lambda key: augmix.draw_batch(key, 32, NINE), jax.random.key(0)),
    )
    given = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), (image, drawn))
    text = jax.jit(lambda *given: augmix.mixed(*given, NINE), out_shardings=placed).lower(*given).compile().as_text()
    exchanged = re.findall(r"= (\S+) (?:all-|collective-|reduce-scatter)\S*\(", text)
    assert set(exchanged) == {"pred[]"}  # whether any device has images left to count


# Draws


def draws(settings, count=4000):
    return jax.device_get(jax.jit(lambda key: augmix.draw_batch(key, count, settings))(jax.random.key(7)))


def assert_frequent(values, probabilities):
    """The values 0, 1, ... have these probabilities."""
    frequency = np.bincount(values.ravel(), minlength=len(probabilities)) / values.size
    p = np.array(probabilities)
    assert len(frequency) == len(p) and (np.abs(frequency - p) <= 4.5 * np.sqrt(p * (1 - p) / values.size)).all()


def assert_distributed(values, distribution):
    assert scipy.stats.kstest(values.ravel(), distribution.cdf).pvalue > 1e-4


def test_draws():
    drawn = draws(NINE)
    acts = drawn.operation != augmix.NOTHING
    assert (acts == np.sort(acts, 2)[:, :, ::-1]).all()  # chains end once
    assert_frequent(acts.sum(2), (0, 1 / 3, 1 / 3, 1 / 3))
    assert_frequent(drawn.operation[acts], [1 / 9] * 9)
    assert_frequent((drawn.sign > 0).astype(int), (0.5, 0.5))
    assert set(drawn.sign.ravel()) == {-1, 1}
    assert_distributed(drawn.level, scipy.stats.uniform(0.1, 2.9))
    assert_distributed(drawn.share, scipy.stats.beta(1, 1))
    np.testing.assert_allclose(drawn.weights.sum(1), 1, rtol=1e-6)
    for weight in drawn.weights.T:
        assert_distributed(weight, scipy.stats.beta(1, 2))


def test_draws_of_other_settings():
    drawn = draws(augmix.Settings(severity=0.1, width=4, depth=2, alpha=0.4, operations=13))
    assert drawn.operation.shape == drawn.level.shape == (4000, 4, 2)
    assert_frequent(drawn.operation, [1 / 13] * 13)
    np.testing.assert_allclose(drawn.level, 0.1, rtol=1e-6)
    assert_distributed(np.clip(drawn.share, 1e-6, 1 - 1e-6), scipy.stats.beta(0.4, 0.4))
    assert_distributed(drawn.weights[:, 0], scipy.stats.beta(0.4, 1.2))


@pytest.mark.parametrize(("name", "value"), [("severity", 0.09), ("severity", 10.1), ("depth", -1), ("operations", 10), ("alpha", 0.0)])
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"augmix\.{name} = {value}: must be "):
        augmix.draw(jax.random.key(0), augmix.Settings(**{name: value}))
    with pytest.raises(ValueError, match=rf"method\.{name} = {value}: must be "):
        config.check(dataclasses.replace(tiny.mlp_config("augmix"), method=method.Config(**{name: value})))


# The divergence


def of_probabilities(*rows):
    with np.errstate(divide="ignore"):
        return np.log(np.float32(rows))[None]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        (of_probabilities((0.7, 0.2, 0.1), (0.5, 0.3, 0.2), (0.1, 0.6, 0.3)), 0.1423334),
        (np.float32([[(2, 0, -1), (1, 0.5, 0), (0, 1, -1)]]), 0.1494735),
        (np.float32([[(2, 0, -1)] * 3]), 0),
        (1e4 * np.eye(3, dtype=np.float32)[None], np.log(3)),
        (1e4 * np.eye(3, dtype=np.float32)[None, [0, 0, 1]], 0.6365142),
    ],
)
def test_divergence_by_hand_and_its_gradient_where_probabilities_are_0(logits, expected):
    (value, gradient) = divergence(logits)
    np.testing.assert_allclose(value, expected, rtol=2e-6, atol=1e-6)
    assert np.isfinite(gradient).all()


divergence = jax.jit(jax.value_and_grad(lambda logits: method.jensen_shannon(logits).sum()))


@pytest.mark.parametrize(("rare", "each"), [(5e-8, -3.47e-8), (1e-9, -4.605e-9)])
def test_rare_classes_are_clipped(rare, each):
    """100,000 classes below the least probability: each adds p·ln(p / 1e-7), which makes equal answers differ by less than nothing."""
    answer = (1 - 1e5 * rare, *[rare] * 100_000)
    np.testing.assert_allclose(divergence(of_probabilities(answer, answer, answer))[0], 1e5 * each, rtol=2e-3)


@pytest.mark.parametrize(
    ("views", "entropy", "each", "total"),
    [
        (of_probabilities((0.7, 0.2, 0.1), (0.5, 0.3, 0.2), (0.1, 0.6, 0.3)), 0.3566749, (0.1451593, 0.0113492, 0.2704917), 2.0646758),
        (np.float32([[(2, 0, -1), (1, 0.5, 0), (0, 1, -1)]]), 0.1698460, (0.1494735,), 1.9635279),
    ],
)
def test_the_whole_loss_by_hand(views, entropy, each, total, monkeypatch):
    """Of an image of class 0 and the answers to its three views; `each` of these is so far from their mean."""
    batch = {"image": CLEAN[:1], "label": np.zeros(1, int)}
    made = method.Config().make(INFO._replace(classes=3), mlp.Config(()), tiny.Optim())
    state = jax.jit(made.init)(jax.random.key(0), batch)
    monkeypatch.setattr(method, "apply_net", lambda net, params, stats, *given: (jnp.asarray(views[0]), stats))
    _, metrics = jax.jit(made.step)(state, batch, jax.random.key(0))
    np.testing.assert_allclose(metrics["loss/divergence"], np.mean(each), rtol=2e-6)
    np.testing.assert_allclose(metrics["loss"], total, rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"] - 12 * metrics["loss/divergence"], entropy, rtol=1e-5)


# The method


BATCH = {"image": np.float32(IMAGES[:4]) / 255, "label": np.arange(4)}
CLEAN = BATCH["image"]
NORMALISED = {**BATCH, "image": (CLEAN - np.float32(0.5)) / np.float32(0.25)}


def record(monkeypatch, cfg, batch, info):
    """(images that the network saw in its only pass, their logits, metrics) in one step of a linear network."""
    calls, real = [], method.apply_net

    def apply_net(net, params, stats, image, *given):
        calls.append(image)
        return real(net, params, stats, image, *given)

    monkeypatch.setattr(method, "apply_net", apply_net)
    net = mlp.Config(())
    made = cfg.make(info, net, tiny.Optim())

    def step(key):
        state = made.init(jax.random.key(0), batch)
        _, metrics = made.step(state, batch, key)
        (image,) = calls
        return image, net.make(4).apply({"params": state.params["net"]}, image, train=True), metrics

    return jax.device_get(jax.jit(step)(jax.random.key(3)))


INFO = Info(4, 64, 4, 2)


def test_one_pass_sees_each_image_and_two_mixtures(monkeypatch):
    image, logits, metrics = record(monkeypatch, method.Config(severity=10.0, weight=7.0), BATCH, INFO)
    assert image.shape == (12, 16, 20, 3)
    views, logits = image.reshape(4, 3, 16, 20, 3), logits.reshape(4, 3, 4)
    np.testing.assert_array_equal(views[:, 0], CLEAN)
    assert all((np.abs(views[:, a] - views[:, b]).max((1, 2, 3)) > 0.01).all() for a, b in ((0, 1), (0, 2), (1, 2)))
    entropy = -np.mean(np.log(scipy.special.softmax(logits[:, 0], 1))[np.arange(4), np.arange(4)])
    p = scipy.special.softmax(np.float64(logits), 2)
    divergence = (p * np.log(p / p.mean(1, keepdims=True))).sum(2).mean()
    np.testing.assert_allclose(metrics["loss/divergence"], divergence, rtol=1e-4)
    np.testing.assert_allclose(metrics["loss"], entropy + 7 * divergence, rtol=1e-5)
    assert metrics["accuracy"] == (logits[:, 0].argmax(1) == np.arange(4)).mean()

    info = INFO._replace(pixel_range=lambda: np.float32([[-2] * 3, [2] * 3]))
    normalised, *_ = record(monkeypatch, method.Config(severity=10.0), NORMALISED, info)
    np.testing.assert_allclose(normalised * 0.25 + 0.5, image, atol=1e-6)


def test_without_consistency_it_sees_one_mixture(monkeypatch):
    image, logits, metrics = record(monkeypatch, method.Config(severity=10.0, consistency=False), BATCH, INFO)
    assert image.shape == CLEAN.shape and (np.abs(image - CLEAN).max((1, 2, 3)) > 0.01).all()
    entropy = -np.mean(np.log(scipy.special.softmax(logits, 1))[np.arange(4), np.arange(4)])
    np.testing.assert_allclose(metrics["loss"], entropy, rtol=1e-5)
    assert set(metrics) == {"loss", "accuracy"}


def test_it_learns_classes_that_mixing_keeps():
    rng = np.random.default_rng(0)
    label = np.arange(8) % 2
    image = np.where(label[:, None, None, None] == 1, np.float32([0.8, 0.2, 0.2]), np.float32([0.2, 0.2, 0.8]))
    batch = {"image": np.clip(image + rng.normal(0, 0.1, (8, 8, 8, 3)), 0, 1).astype(np.float32), "label": label}
    made = method.Config().make(INFO._replace(classes=2), mlp.Config((8,)), tiny.Optim(rule="adam", lr=0.04))
    state, step = jax.jit(made.init)(jax.random.key(0), batch), jax.jit(made.step)
    values = []
    for number in range(40):
        state, metrics = step(state, batch, jax.random.key(number))
        values.append(float(metrics["loss"]))
    assert np.mean(values[-5:]) < 0.5 * np.mean(values[:5]) and metrics["accuracy"] == 1


@pytest.mark.parametrize(("dataset", "severity"), [("shapes", 3), ("corrupted_cifar10", 3), ("imagenet", 1), ("imagenet_biasbed", 1)])
def test_presets_have_the_published_severity(dataset, severity):
    cfg = preset.get_config(dataset)
    assert (cfg.method.severity, cfg.method.weight, cfg.method.width, cfg.method.alpha) == (severity, 12, 3, 1)
    assert ("none published" in cfg.published) == (dataset == "shapes")
