"""DeepAugment's autoencoder against PyTorch's definition in NumPy, one image at a time, and what distorts its signal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal as filters

from jaxbed.data.deepaugment import cae_signals
from jaxbed.models import cae, positional

WIDTH, CHANNELS = 8, 4
SIZES_PX = ((13, 18), (16, 12), (21, 15))
CANVAS_PX = (22, 19)
OPTIONS = tuple(cae_signals.OPTIONS)
RNG = np.random.default_rng(0)
# Weights twice as large as those drawn: the bits then matter to the images
WEIGHTS = {name: 2 * array for name, array in cae.draw(RNG, WIDTH).items()}
run, distort = jax.jit(cae.reconstruct), jax.jit(cae.distorted)
uniform = jax.jit(positional.uniform, static_argnums=(1, 2))


@functools.cache
def prepared():
    return jax.jit(cae.prepare)(WEIGHTS)


def stacked(signals):
    return jax.tree.map(lambda *fields: np.stack(fields), *signals)


@functools.cache
def batch():
    """Every option with every size: canvases full of noise, sizes, seeds, signals, outputs."""
    rng = np.random.default_rng(1)
    sizes = np.repeat(SIZES_PX, len(OPTIONS), axis=0)
    images = rng.random((len(sizes), *CANVAS_PX, 3), np.float32)
    signals = stacked([cae_signals.draw_signal(rng, width=WIDTH, option=option)[0] for _ in SIZES_PX for option in OPTIONS])
    seeds = np.arange(len(sizes), dtype=np.uint32)
    return images, sizes, seeds, signals, np.asarray(run(prepared(), images, sizes, seeds, signals))


# PyTorch's definition, in float64 and for one image [C, H, W]


def convolved(name, x, stride=1):
    weight, bias = (WEIGHTS[f"{name}.{kind}"].astype(np.float64) for kind in ("weight", "bias"))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(1, 2))[:, ::stride, ::stride]
    return np.tensordot(weight, windows, ((1, 2, 3), (0, 3, 4))) + bias[:, None, None]


def transposed(name, x):
    weight, bias = (WEIGHTS[f"{name}.{kind}"].astype(np.float64) for kind in ("weight", "bias"))
    out = np.zeros((weight.shape[1], 2 * x.shape[1], 2 * x.shape[2])) + bias[:, None, None]
    for row in range(2):
        for column in range(2):
            out[:, row::2, column::2] += np.tensordot(weight[:, :, row, column], x, (0, 0))
    return out


def padded(x, before, after, mode="constant"):
    return np.pad(x, ((0, 0), (before, after), (before, after)), mode=mode)


def rectified(x):
    return np.where(x > 0, x, 0.01 * x)


def residual(block, x):
    inner = rectified(convolved(f"{block}.1", padded(x, 1, 1)))
    return x + convolved(f"{block}.4", padded(inner, 1, 1))


def latent_of(image):
    x = image.astype(np.float64).transpose(2, 0, 1)
    for name in ("e_conv_1.1", "e_conv_2.1"):
        x = rectified(convolved(name, padded(x, 1, 2), 2))
    for block in (1, 2, 3):
        x = residual(f"e_block_{block}", x)
    return np.tanh(convolved("e_conv_3.0", padded(x, 2, 2)))


def image_of(code):
    x = transposed("d_up_conv_1.3", padded(rectified(convolved("d_up_conv_1.0", code)), 1, 1))
    for block in (1, 2, 3):
        x = residual(f"d_block_{block}", x)
    x = transposed("d_up_conv_2.3", padded(rectified(convolved("d_up_conv_2.0", x)), 1, 1))
    x = padded(rectified(convolved("d_up_conv_3.0", x)), 2, 2, "reflect")
    return np.tanh(convolved("d_up_conv_3.3", x)).transpose(1, 2, 0)


def noise(seed, stream, shape):
    """[C, H, W], for shape [H, W, C]: a corner of what is drawn for the largest latent, as random numbers belong to positions."""
    height, width, channels = shape
    return np.asarray(uniform(np.array([seed]), (6, 6, CHANNELS), stream))[0, :height, :width, :channels].transpose(2, 0, 1)


def distorted(latent, signal, option):
    """By the option's meaning."""
    kernel = signal.kernel.transpose(3, 2, 0, 1)
    if option in (1, 2):
        stream, rate, factor = ((cae.ZEROED, 0.2, 0), (cae.NEGATED, 0.1, -1))[option - 1]
        return np.where(noise(signal.seed, stream, (*latent.shape[1:], 1)) < np.float32(rate), factor * latent, latent)
    if option == 3:
        return latent[[int(np.flatnonzero(of_output[:, 1, 1]).item()) for of_output in kernel]]
    if option in (4, 5):
        turned = [plane[::-1] if rows else plane for plane, rows in zip(latent, signal.flip_rows, strict=True)]
        return np.stack([plane[:, ::-1] if columns else plane for plane, columns in zip(turned, signal.flip_columns, strict=True)])
    if option in (6, 7):
        return np.stack([sum(map(lambda x, k: filters.correlate2d(x, k, "same"), latent, of_output)) for of_output in kernel])
    if option == 8:
        shifts = [np.argwhere(kernel[channel, channel])[0] for channel in range(CHANNELS)]
        height, width = latent.shape[1:]
        return np.stack([np.pad(x, 1)[row:, column:][:height, :width] for x, (row, column) in zip(latent, shifts, strict=True)])
    return latent


def reference(image, seed, signal, option):
    latent = distorted(latent_of(image), signal, option)
    shape = (*latent.shape[1:], CHANNELS)
    probability, drawn = (1 + latent) / 2, noise(seed, cae.BITS, shape)
    assert np.abs(drawn - probability).min() > 1e-6, "another seed is needed: rounding may decide a bit"
    bits = (drawn <= probability).astype(np.float64)
    if option == 0:
        bits *= signal.gain[0] + signal.gain[1] * noise(signal.seed, cae.GAIN, shape)
    return image_of(2 * bits - 1)


def test_every_image_on_the_canvas_is_what_pytorch_gives_it_alone():
    images, sizes, seeds, signals, out = batch()
    assert out.shape == (len(images), 20, 16, 3) and out.std() > 0.1
    for index, (height, width) in enumerate(sizes):
        of_image = jax.tree.map(lambda field, index=index: field[index], signals)
        expected = reference(images[index, :height, :width], seeds[index], of_image, index % len(OPTIONS))
        assert expected.shape == (*cae.output_sizes(sizes[index]), 3)
        rows, columns = expected.shape[:2]
        np.testing.assert_allclose(out[index, :rows, :columns], expected, rtol=0, atol=1e-5)
        assert not out[index, rows:].any() and not out[index, :, columns:].any()


@pytest.mark.parametrize("place", [0, 2])
def test_no_image_depends_on_the_canvas_or_on_the_batch(place):
    images, sizes, seeds, signals, out = batch()
    height, width = SIZES_PX[place]
    chosen = np.flatnonzero((sizes == SIZES_PX[place]).all(1))[::-1]
    of_chosen = jax.tree.map(lambda field: field[chosen], signals)
    alone = np.asarray(run(prepared(), images[chosen, :height, :width], sizes[chosen], seeds[chosen], of_chosen))
    np.testing.assert_allclose(alone, out[chosen, : alone.shape[1], : alone.shape[2]], rtol=0, atol=2e-6)


def test_published_network():
    assert sum(map(np.prod, cae.shapes().values())) == 2_241_859
    assert [cae.layers()[number].name for number in (8, 10, 13, 20)] == ["e_conv_3.0", "d_up_conv_1.3", "d_block_2.1", "d_up_conv_3.3"]
    assert cae.shapes()["d_up_conv_1.3.weight"] == (64, 128, 2, 2) and cae.shapes()["d_up_conv_2.3.bias"] == (256,)
    np.testing.assert_array_equal(cae.output_sizes(np.array([512, 513, 683, 767])), [512, 512, 680, 764])
    with pytest.raises(ValueError, match="a side of 11 px is too short for this network: resize images to 12 px or more"):
        cae.output_sizes(np.array([[512, 11]]))
    with pytest.raises(ValueError, match="a width of 6 does not fit: it must be a multiple of 4"):
        cae.shapes(6)


def test_drawn_weights_fill_pytorchs_range():
    weights = cae.draw(np.random.default_rng(0), 16)
    assert {name: array.shape for name, array in weights.items()} == cae.shapes(16)
    for name, fan_in in (("e_block_1.1", 9 * 32), ("d_up_conv_1.3", 4 * 32)):  # of transposed convolutions, PyTorch counts the outputs
        for array in (weights[f"{name}.weight"], weights[f"{name}.bias"]):
            assert array.dtype == np.float32 and 0.8 * fan_in**-0.5 < np.abs(array).max() <= fan_in**-0.5


def test_bits():
    latent, drawn = np.float32([0.2, 0.2, -0.9, -0.9]), np.float32([0.55, 0.61, 0.04, 0.06])
    weights = np.float32([1, 2, 3, 4])

    @jax.jit
    def bits_and_slope(latent):
        bits, pull_back = jax.vjp(lambda latent: cae.binarized(latent, drawn), latent)
        return bits, pull_back(weights)[0]

    bits, slope = bits_and_slope(latent)
    np.testing.assert_array_equal(bits, [1, 0, 1, 0])
    np.testing.assert_array_equal(slope, weights / 2)


def test_training_reaches_every_weight():
    weights, image = cae.draw(np.random.default_rng(0), 4), RNG.random((2, 12, 12, 3), np.float32)

    def loss(weights):
        return jnp.mean((cae.reconstruct(cae.prepare(weights), image, np.full((2, 2), 12), np.arange(2)) - image) ** 2)

    slopes = jax.device_get(jax.jit(jax.grad(loss))(weights))
    assert {name: slope.shape for name, slope in slopes.items()} == cae.shapes(4)
    assert all(np.isfinite(slope).all() and np.any(slope) for slope in slopes.values())


def test_half_precision_and_clipping():
    image = RNG.random((2, 14, 17, 3)).astype(jnp.bfloat16)
    out = jax.jit(cae.apply)(prepared(), image, np.array([[14, 17], [12, 13]]), np.arange(2))
    assert out.dtype == jnp.bfloat16 and out.shape == (2, 12, 16, 3)
    out = np.asarray(out, np.float32)
    assert out.min() == 0 and 0.1 < out.max() <= 1 and not out[1, :, 12:].any()


def test_random_numbers_belong_to_positions():
    large = np.asarray(uniform(np.arange(4), (60, 50, 8)))
    np.testing.assert_array_equal(uniform(np.array([2, 1]), (9, 50, 3)), large[[2, 1], :9, :, :3])
    counts = np.bincount((16 * large).astype(int).ravel(), minlength=16)
    assert len(counts) == 16 and ((counts - large.size / 16) ** 2).sum() / (large.size / 16) < 38  # chi-squared, p = 0.001
    other_stream = np.asarray(uniform(np.arange(4), large.shape[1:], 1))
    neighbours = [(large[1:], large[:-1]), (large, other_stream)]
    neighbours += [(np.delete(large, 0, axis), np.delete(large, -1, axis)) for axis in (1, 2, 3)]
    for one, other in neighbours:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 * one.size**-0.5


@pytest.mark.parametrize(("option", "rate", "value"), [(1, 0.2, 0), (2, 0.1, -1)])
def test_masks_change_whole_pixels_at_their_rate(option, rate, value):
    signals = stacked([cae_signals.draw_signal(RNG, width=WIDTH, option=OPTIONS[option])[0] for _ in range(2)])
    out = np.asarray(distort(np.ones((2, 80, 80, CHANNELS), np.float32), np.full((2, 2), 80), signals))
    assert set(np.unique(out)) == {value, 1} and (out == out[..., :1]).all()
    shares = (out[..., 0] == value).mean((1, 2))
    assert (np.abs(shares - rate) < 4 * (rate * (1 - rate) / 80**2) ** 0.5).all() and (out[0] != out[1]).any()


def test_signals_of_other_networks_are_refused():
    signals = stacked([cae_signals.draw_signal(RNG)[0]])
    with pytest.raises(ValueError, match=r"signals of shape \(1, 32\) do not fit 1 latents of 4 channels: draw .* width=8"):
        cae.distorted(jnp.ones((1, 3, 3, 4)), np.array([[3, 3]]), signals)


def drawn_signals(option, mode="faithful", count=200):
    rng = np.random.default_rng(option)
    return stacked([cae_signals.draw_signal(rng, mode, option=OPTIONS[option])[0] for _ in range(count)])


def test_options_are_equally_likely_and_none_is_clean():
    rng = np.random.default_rng(0)
    options = [cae_signals.draw_signal(rng, width=4)[1] for _ in range(1800)]
    assert max(abs(options.count((option,)) - 200) for option in OPTIONS) < 4 * (1800 * 8 / 81) ** 0.5
    identity = np.zeros((3, 3, 32, 32))
    identity[1, 1] = np.eye(32)
    changes = {
        "gain": lambda s: (s.gain != [1, 0]).any(1),
        "zero_rate": lambda s: s.zero_rate == np.float32(0.2),
        "negate_rate": lambda s: s.negate_rate == np.float32(0.1),
        "flips": lambda s: s.flip_rows.any(1) | s.flip_columns.any(1),
        "kernel": lambda s: (s.kernel != identity).any((1, 2, 3, 4)),
    }
    fields = ("gain", "zero_rate", "negate_rate", "kernel", "flips", "flips", "kernel", "kernel", "kernel")
    for option, field in enumerate(fields):
        for name, changed in changes.items():
            assert changed(drawn_signals(option, count=20)).all() == (name == field)
            assert changed(drawn_signals(option, count=20)).any() == (name == field)


def test_kernels_and_flips_are_those_of_the_paper():
    permuted = drawn_signals(3).kernel[:, 1, 1].transpose(0, 2, 1)  # [N, out, in]
    sources = permuted.argmax(2)
    assert (np.sort(sources[:, :10]) == np.arange(10)).all() and (sources[:, 10:] == np.arange(10, 32)).all()
    assert (np.ptp(sources[:, :10], axis=0) == 9).all()  # each comes from anywhere among the ten
    assert (permuted.sum(1) == 1).all() and (drawn_signals(3).kernel.sum((1, 2, 3)) == 1).all()

    some, whole = drawn_signals(4), drawn_signals(5)
    counts = (some.flip_rows | some.flip_columns).sum(1)
    assert set(counts) == {1, 3, 5}  # of five draws, pairs cancel
    kinds = whole.flip_rows[:, 0] + 2 * whole.flip_columns[:, 0]
    assert np.abs(np.bincount(kinds, minlength=4)[1:] - 200 / 3).max() < 4 * (200 * 2 / 9) ** 0.5
    assert (whole.flip_rows == whole.flip_rows[:, :1]).all() and (whole.flip_columns == whole.flip_columns[:, :1]).all()

    identity = np.zeros((3, 3, 32, 32))
    identity[1, 1] = np.eye(32)
    jitter = drawn_signals(6, count=20).kernel - identity
    assert -0.1 <= jitter.min() < -0.0999 and 0.0999 < jitter.max() <= 0.1 + 1e-7
    added = drawn_signals(7).kernel - identity
    assert set(np.unique(added)) == {0, 1} and added.sum((1, 2, 3)).max() == 1
    assert abs(added.sum() / (200 * 32) - 0.5) < 4 * 0.5 * (200 * 32) ** -0.5
    assert (added.sum((0, 3, 4)) > 0).all() and (added.sum((0, 1, 2, 4)) > 0).all()

    shifts = drawn_signals(8).kernel
    places = np.diagonal(shifts, axis1=3, axis2=4).reshape(200, 9, 32)
    assert shifts.sum() == 200 * 32 and (places.sum(1) == 1).all() and (places.sum((0, 2)) > 0).all()
    moved = (np.diff(places.argmax(1), axis=1) != 0).mean()
    assert abs(moved - 0.2 * 8 / 9) < 4 * (0.18 * 0.82 / (200 * 31)) ** 0.5


def test_gain_of_bits():
    low, span = drawn_signals(0).gain.T
    assert (low == 3).all() and 0 <= span.min() < 0.1 and 3.9 < span.max() < 4
    low, span = drawn_signals(0, "intended").gain.T
    np.testing.assert_allclose(low + span / 2, 3, rtol=1e-6)
    assert 0 <= span.min() < 0.1 and 3.9 < span.max() < 4
    with pytest.raises(ValueError, match=r"mode = 'real' of DeepAugment must be faithful \(as published\) or intended"):
        cae_signals.draw_signal(RNG, "real")
    with pytest.raises(ValueError, match="option 'blur' of a signal does not exist: choose amplify_bits, "):
        cae_signals.draw_signal(RNG, option="blur")
