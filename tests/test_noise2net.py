"""Noise2Net: its networks against their definition in NumPy, what is drawn when, and what the network that trains sees."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import tiny
from test_augmix import assert_distributed, assert_frequent
from test_config import of_file

from jaxbed import config, parallel, stages, values
from jaxbed.data import noise2net
from jaxbed.data.noise2net import Settings
from jaxbed.method import Info
from jaxbed.methods import noise2net as method
from jaxbed.models import mlp
from jaxbed.optim import Optim

SMALL = Settings(hidden=4)
REACHES = np.int32([[0, 1, 2], [3, 0, 1], [2, 3, 0], [1, 2, 3]])  # each kind at each place
IMAGES = np.random.default_rng(0).normal(0.3, 1, (5, 6, 9, 3)).astype(np.float32)  # a dilation of 3 reaches beyond half of the height


@functools.partial(jax.jit, static_argnames="dtype")
def change(image, key, reaches, eps, dtype="float32"):
    weights = noise2net.draw_weights(key, len(image), 3, reaches, SMALL)
    return noise2net.changed(image, weights, reaches, eps, dtype), weights


changes = functools.cache(lambda: jax.device_get(change(IMAGES, jax.random.key(1), REACHES, 0.5)))


# Networks


def normalised(maps):
    return (maps - maps.mean((0, 1))) / np.sqrt(maps.var((0, 1)) + 1e-5)


def convolved(maps, kernel, reach):
    """A convolution of maps [H, W, C], pixel by pixel; of a 1 x 1 kernel with the middle tap alone."""
    height, width, _ = maps.shape
    result = np.zeros((height, width, kernel.shape[-1]))
    for y, x, i, j in np.ndindex(height, width, 3, 3):
        row, column = y + (i - 1) * reach, x + (j - 1) * reach
        if 0 <= row < height and 0 <= column < width and (reach or i == j == 1):
            result[y, x] += maps[row, column] @ kernel[i, j]
    return result


def transcribed(image, first, middle, last, reaches, eps):
    x = np.float64(image)
    for block, kinds in enumerate(reaches):
        slices = np.split(np.maximum(normalised(x @ first[block]), 0), 4, -1)
        outputs = []
        for i, reach in enumerate(kinds):
            given = slices[i] if i == 0 else outputs[-1] + slices[i]
            outputs.append(np.maximum(normalised(convolved(given, middle[block, i], reach)), 0))
        x += eps * normalised(np.concatenate([*outputs, slices[3]], -1) @ last[block])
    return x


def test_networks_are_those_of_a_transcription_in_numpy():
    found, weights = changes()
    for number in range(2):
        of_image = (np.float64(part[:, number]) for part in weights)
        np.testing.assert_allclose(found[number], transcribed(IMAGES[number], *of_image, REACHES, 0.5), atol=1e-3)


@functools.partial(jax.jit, static_argnames="dtype")
def one_block(image, weights, reaches, dtype):
    return noise2net.block(image.transpose(1, 2, 0, 3), weights, reaches, jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_block_adds_no_mean_and_a_variance_of_one(dtype):
    """Also in bfloat16, because statistics are float32: with 8 bits, means would be off by thousandths."""
    weights = jax.tree.map(lambda part: part[0], changes()[1])
    output = np.float64(one_block(IMAGES, weights, REACHES[0], dtype))
    assert (np.abs(output.mean((0, 1))) < 1e-5).all() and (np.abs(output.var((0, 1)) - 1) < 1e-2).all()


def test_variances_are_those_of_the_definition():
    maps = np.float32([1e-4, 1e-3, 1e-2, 1]) * np.random.default_rng(0).normal(3, 1, (6, 9, 2, 4)).astype(np.float32)
    variance = np.float64(maps).var((0, 1))
    found = np.float64(jax.jit(noise2net.normalised)(maps))
    np.testing.assert_allclose(found.var((0, 1)), variance / (variance + 1e-5), rtol=1e-3)
    np.testing.assert_allclose(found.mean((0, 1)), 0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_keep_their_type_and_come_out_alike_where_maps_have_16_bits(dtype):
    found, _ = change(jnp.asarray(IMAGES, dtype), jax.random.key(1), REACHES, 0.5, "bfloat16")
    assert found.dtype == dtype and (found != changes()[0]).any()
    difference = np.abs(np.float32(found) - changes()[0])
    assert difference.mean() < 0.05 and np.abs(changes()[0] - IMAGES).mean() > 0.5


def test_each_image_has_its_own_network_whatever_the_others_are():
    again, _ = change(IMAGES, jax.random.key(1), REACHES, 0.5)
    np.testing.assert_array_equal(again, changes()[0])
    among_others, _ = change(np.concatenate([IMAGES[:1], IMAGES[:1], -IMAGES[2:]]), jax.random.key(1), REACHES, 0.5)
    np.testing.assert_array_equal(among_others[0], again[0])
    assert np.abs(among_others[1] - among_others[0]).mean() > 0.1  # the same image, another network
    other_key, _ = change(IMAGES, jax.random.key(2), REACHES, 0.5)
    assert (np.abs(other_key - again).mean((1, 2, 3)) > 0.1).all()


def test_no_gradient_passes():
    gradient = jax.jit(jax.grad(lambda image: (image * change(image, jax.random.key(1), REACHES, 0.5)[0]).sum()))(IMAGES)
    np.testing.assert_array_equal(gradient, changes()[0])  # as of a constant


def test_seeds_of_different_kinds_compute_what_they_drew_alone():
    """One choice for each convolution and seed; JAX's own rule would compute all branches and select."""
    mapped = jax.jit(jax.vmap(change, (0, 0, 0, None)))
    keys, reaches = jax.random.split(jax.random.key(3)), np.stack([REACHES, REACHES[::-1]])
    lowered = mapped.lower(np.stack([IMAGES, IMAGES]), keys, reaches, 0.5)
    text = lowered.as_text()
    assert text.count("stablehlo.case") == 2 * 3 and "stablehlo.gather" not in text
    (found, _) = lowered.compile()(np.stack([IMAGES, IMAGES]), keys, reaches, 0.5)
    for seed in range(2):
        np.testing.assert_allclose(found[seed], change(IMAGES, keys[seed], reaches[seed], 0.5)[0], atol=1e-4)


@pytest.mark.parametrize("count", [4, 5])
def test_devices_that_share_a_batch_change_what_one_device_does(count):
    """Also where the images are not a multiple of the devices. Two seeds, two devices for each."""

    def of_seed(key, image):
        weights = noise2net.draw_weights(key, count, 3, REACHES, SMALL)
        return parallel.on_own_images(noise2net.changed, (0, 1, None, None))(image[:count], weights, REACHES, 0.5)

    seeds = parallel.Seeds(2, 0, parallel.Mesh(seed=2, data=2))
    keys = jax.random.split(jax.random.key(1), 2)
    image = np.concatenate([IMAGES, IMAGES[:1]])
    found = seeds.over(of_seed)(seeds.place(keys, "seed"), seeds.place(np.stack([image, -image]), "seed", "data"))
    assert found.shape == (2, count, *IMAGES.shape[1:])
    for key, images, of_devices in zip(keys, (image, -image), found, strict=True):
        np.testing.assert_allclose(of_devices, change(images[:count], key, REACHES, 0.5)[0], atol=1e-4)


# Draws


def test_kinds_and_eps():
    def draw(key):
        return noise2net.draw_reaches(key, Settings()), noise2net.draw_eps(key, 0.75)

    reaches, eps = jax.device_get(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(5), 2000)))
    assert reaches.shape == (2000, 4, 3) and reaches.dtype == np.int32
    assert_frequent(reaches, (1 / 2, 1 / 6, 1 / 6, 1 / 6))
    assert_distributed(eps, scipy.stats.uniform(0.375, 0.375))


def test_weights_are_uniform_within_pytorchs_bounds():
    _, weights = changes()
    assert_distributed(weights.first, scipy.stats.uniform(-(3**-0.5), 2 * 3**-0.5))
    assert_distributed(weights.last, scipy.stats.uniform(-1 / 4, 1 / 2))  # of 16 channels
    narrow, wide = (np.moveaxis(weights.middle, 2, 1)[where] for where in (REACHES == 0, REACHES > 0))
    assert_distributed(narrow, scipy.stats.uniform(-1 / 2, 1))  # of 4
    assert_distributed(wide, scipy.stats.uniform(-1 / 6, 1 / 3))  # of 4 channels and 9 taps


@pytest.mark.parametrize(("name", "value"), [("strength", -0.1), ("hidden", 0), ("blocks", 0), ("share", 0.0)])
def test_settings_out_of_range_are_refused(name, value):
    if name != "share":
        with pytest.raises(ValueError, match=rf"noise2net\.{name} = .*: must be "):
            noise2net.draw_reaches(jax.random.key(0), Settings(**{name: value}))
    with pytest.raises(ValueError, match=rf"method\.{name} = .*: must be "):
        config.check(dataclasses.replace(tiny.mlp_config("noise2net"), method=method.Config(**{name: value})))


# The method

INFO = Info(classes=4, train_size=16, steps_per_epoch=2, epochs=3)
BATCH = {"image": np.random.default_rng(1).normal(0, 1, (8, 6, 6, 3)).astype(np.float32), "label": np.arange(8) % 4}


@pytest.fixture(scope="module")
def recorded():
    """(init, step, traces) of a linear network; a step also returns kinds, eps and the images that the network saw."""
    drawn, seen, traces = [], [], []
    real_change, real_apply = noise2net.changed, method.apply_net

    def changed(image, weights, reaches, eps, dtype):
        drawn.append((reaches, eps))
        return real_change(image, weights, reaches, eps, dtype)

    def apply_net(net, params, stats, image, *given):
        seen.append(image)
        return real_apply(net, params, stats, image, *given)

    made = method.Config(hidden=2).make(INFO, mlp.Config(()), Optim(lr=0.1))

    def step(state, key):
        traces.append("step")
        state, metrics = made.step(state, BATCH, key)
        return state, metrics, *drawn[-1], seen[-1]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(noise2net, "changed", changed)
        monkeypatch.setattr(method, "apply_net", apply_net)
        yield jax.jit(lambda seed: made.init(jax.random.key(seed), BATCH)), jax.jit(step), traces


def run(step, state, count):
    """[(state, metrics, kinds, eps, images)] after each of so many steps; keys are those of the steps, as in a run."""
    steps = []
    for _ in range(count):
        steps.append(jax.device_get(step(state, jax.random.fold_in(jax.random.key(9), state.step))))
        state = steps[-1][0]
    return steps


def test_kinds_change_with_the_epoch_without_compilation_and_a_resumed_run_goes_on_with_them(recorded):
    init, step, traces = recorded
    steps = run(step, init(0), 6)
    kinds = [kinds.tolist() for _, _, kinds, _, _ in steps]
    assert kinds[0::2] == kinds[1::2] and len({str(each) for each in kinds}) == 3  # of two steps and three epochs
    assert len({float(eps) for _, _, _, eps, _ in steps}) == 6
    resumed = run(step, steps[2][0], 3)  # in the middle of the second epoch
    jax.tree.map(np.testing.assert_array_equal, resumed, steps[3:])
    (other_seed,) = run(step, init(1), 1)
    assert (other_seed[2] != steps[0][2]).any() and len(traces) == 1


def test_half_of_the_batch_is_changed_and_the_rest_is_what_it_was(recorded):
    init, step, _ = recorded
    ((_, metrics, _, eps, image),) = run(step, init(0), 1)
    np.testing.assert_array_equal(image[4:], BATCH["image"][4:])
    assert (np.abs(image[:4] - BATCH["image"][:4]).mean((1, 2, 3)) > 0.3).all() and 0.375 <= eps <= 0.75
    before = jax.device_get(init(0).params["net"])
    logits = np.asarray(mlp.Config(()).make(4).apply({"params": before}, image, train=False))
    entropy = -np.mean(np.log(scipy.special.softmax(logits, 1))[np.arange(8), BATCH["label"]])
    np.testing.assert_allclose(metrics["loss"], entropy, rtol=1e-4)
    assert metrics["accuracy"] == (logits.argmax(1) == BATCH["label"]).mean()


@pytest.mark.parametrize(("size", "share", "count"), [(8, 0.5, 4), (2, 0.5, 1), (10, 0.3, 3), (256, 77 / 256, 77), (7, 1.0, 7)])
def test_a_share_is_a_whole_number_of_images(size, share, count):
    assert values.images_of(size, share, "method.share") == count


@pytest.mark.parametrize(
    ("size", "share", "message"),
    [
        (15, 0.5, "batch_size = 15: method.share = 0.5 of it is 7.5 images: take an even batch_size"),
        (1, 0.5, "batch_size = 1: .* take an even batch_size"),
        (64, 0.3, "is 19.2 images: take method.share = 0.296875 for 19 of them"),
        (64, 1e-9, "take method.share = 0.015625 for 1 of them"),
    ],
)
def test_a_batch_without_such_a_share_is_refused(size, share, message):
    with pytest.raises(ValueError, match=message):
        values.images_of(size, share, "method.share")


def test_an_odd_batch_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match=r"batch_size = 15: .* take an even batch_size"):
        tiny.program(tiny.mlp_config("noise2net", batch_size=15))


# Configurations


def test_batches_in_parts_are_refused():
    cfg = of_file("deepaugment_noise2net").get_config()
    assert stages.of(cfg)[0].cfg == cfg
    parts = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, shares=(1.0, 1.0, 1.0)))
    with pytest.raises(ValueError, match=r"data.shares = \(1.0, 1.0, 1.0\): .* leave it empty"):
        stages.of(parts)


def test_on_imagenet_it_has_the_authors_schedule():
    for cfg in (of_file("noise2net").get_config("imagenet"), of_file("deepaugment_noise2net").get_config()):
        assert (cfg.epochs, cfg.batch_size, cfg.method) == (30, 1024, method.Config(strength=0.75, hidden=16, blocks=4, share=0.5))
        expected = Optim(lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True, schedule="cosine")
        assert cfg.optim == expected and "noise2net on imagenet: authors' code" in cfg.published
    assert of_file("noise2net").get_config("imagenet_biasbed").optim == of_file("erm").get_config("imagenet_biasbed").optim


def test_deepaugment_with_others_has_its_sets():
    noisy, mixed, plain = (of_file(f"deepaugment_{name}").get_config for name in ("noise2net", "augmix", "erm"))
    assert noisy().data.more == ("CAE", "EDSR") and noisy("edsr").data.more == ("EDSR",) and noisy().data.shares == ()
    assert noisy().name == "DeepAugment + Noise2Net (CAE + EDSR)" and mixed("cae").name == "DeepAugment + AugMix (CAE)"
    cfg = mixed()
    assert dataclasses.replace(cfg, name="", method=None, published="") == dataclasses.replace(plain(), name="", method=None)
    settings = cfg.method
    assert (settings.weight, settings.width, settings.alpha, settings.severity, settings.operations) == (12, 3, 1, 1, 9)
    assert settings.fill == "dark_red" and settings.depth == 0 and settings.consistency
    assert config.overridden(cfg) == config.overridden(noisy()) == []
    assert config.overridden(dataclasses.replace(cfg, method=dataclasses.replace(settings, fill="black"))) == ["method.fill = black"]
    for get_config in (noisy, mixed, plain):
        config.check(config.from_dict(config.to_dict(get_config("cae_edsr_biasbed"))))
        own = get_config("folder")
        assert own.data == of_file("erm").get_config("folder").data and own.optim == of_file("erm").get_config("folder").optim
        with pytest.raises(ValueError, match="DeepAugment has no images 'shapes': after the colon comes cae, edsr, cae_edsr"):
            get_config("shapes")
