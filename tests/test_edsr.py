"""EDSR and DeepAugment's distortions within it, against their definition in NumPy, and files of its weights."""

import functools

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import special

from jaxbed.models import edsr, positional

WIDTH, BLOCKS = 6, 6


@functools.cache
def weights(width=WIDTH, blocks=BLOCKS):
    """Random ones whose biases are as large as the maps, so that one that leaks over a border is seen. Read only."""
    rng, drawn = np.random.default_rng(0), {}
    for name, shape in edsr.shapes(width, blocks).items():
        scale = 20 if len(shape) == 1 else 0.7 * np.prod(shape[1:]) ** -0.5
        drawn[name] = rng.normal(size=shape, scale=scale).astype(np.float32)
        drawn[name].setflags(write=False)
    return drawn


# The definition, in float64 and for one image [C, H, W]


def convolved(state, name, x):
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    return np.einsum("cyxij,fcij->fyx", windows, state[f"{name}.weight"]) + state[f"{name}.bias"][:, None, None]


def shuffled(x):
    out = np.empty((x.shape[0] // 4, 2 * x.shape[1], 2 * x.shape[2]))
    for channel in range(len(out)):
        for i in range(2):
            for j in range(2):
                out[channel, i::2, j::2] = x[4 * channel + 2 * i + j]
    return out


def uniform(seed, shape):
    """`positional.uniform` of one seed, in NumPy."""

    def mixed(bits):
        bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
        bits = (bits ^ (bits >> 15)) * np.uint32(0x846CA68B)
        return bits ^ (bits >> 16)

    bits = mixed(np.full(1, seed, np.uint32))[0:1]
    for side in shape:
        bits = mixed(bits[..., None] + np.arange(1, side + 1, dtype=np.uint32) * np.uint32(0x9E3779B9))
    return (bits[0] >> 8) / 2**24


MIDDLES = {
    "none": lambda x: x,
    "negate": lambda x: -x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * special.ndtr(x),
    "flip_height": lambda x: x[::-1, ::-1],
    "flip_width": lambda x: x[::-1, :, ::-1],
}


def defined(state, image, signal=None):
    """[H, W, 3] -> [4·H, 4·W, 3] before it is clamped."""
    state = {name: array.astype(np.float64) for name, array in state.items()}
    mean = 255 * np.array([0.4488, 0.4371, 0.4040])
    x = convolved(state, "head.0", (image - mean).transpose(2, 0, 1))
    blocks = edsr.size(state)[1]
    signal = signal or edsr.Signal(np.arange(len(x)), 0, 0, 0, np.ones(blocks + 1, bool))
    x = x[signal.source]
    chance = uniform(signal.seed, (*x.shape[1:], len(x))).transpose(2, 0, 1)
    x = {"none": x, "zeros": np.where(chance < 0.05, 0, x), "signs": np.where(chance < 0.025, -x, x)}[edsr.NOISES[signal.noise]]
    result = x
    for number in range(blocks):
        if signal.kept[number]:
            inner = np.maximum(convolved(state, f"body.{number}.body.0", result), 0)
            result = result + convolved(state, f"body.{number}.body.2", inner)
        if number == min(4, blocks - 1):
            result = MIDDLES[edsr.MIDDLES[signal.middle]](result)
    if signal.kept[blocks]:
        result = convolved(state, f"body.{blocks}", result)
    for place in (0, 2):
        x = shuffled(convolved(state, f"tail.0.{place}", result + x if place == 0 else x))
    return convolved(state, "tail.1", x).transpose(1, 2, 0) + mean


# The network


def test_published_size():
    expected = edsr.shapes()
    assert sum(int(np.prod(shape)) for shape in expected.values()) == 1_517_571
    assert expected["body.15.body.2.weight"] == (64, 64, 3, 3) and expected["tail.0.2.bias"] == (256,)
    drawn = edsr.draw(np.random.default_rng(0), 8, 2)
    assert {name: array.shape for name, array in drawn.items()} == edsr.shapes(8, 2)
    for name, inputs in (("head.0", 3), ("body.1.body.2", 8), ("tail.0.0", 8)):
        for kind in ("weight", "bias"):
            array = drawn[f"{name}.{kind}"]
            assert array.dtype == np.float32 and 0.6 < np.abs(array).max() * (9 * inputs) ** 0.5 <= 1


def test_pixel_shuffle():
    x = np.arange(2 * 3 * 8, dtype=np.float32).reshape(1, 2, 3, 8)
    out = np.asarray(edsr._shuffled(edsr._by_phase(x)))
    np.testing.assert_array_equal(out[0], shuffled(x[0].transpose(2, 0, 1)).transpose(1, 2, 0))
    assert out[0, 3, 4, 1] == x[0, 1, 2, 4 * 1 + 2 * 1 + 0]


def cases():
    """Signals with every option, alone and together; also layers that are skipped one by one."""
    rng = np.random.default_rng(1)
    clean = edsr.Signal(np.arange(WIDTH, dtype=np.int32), np.int32(0), np.uint32(7), np.int32(0), np.ones(BLOCKS + 1, bool))
    only = {number: np.arange(BLOCKS + 1) == number for number in (BLOCKS, BLOCKS - 1, 3)}
    signals = [clean._replace(source=rng.permutation(WIDTH).astype(np.int32)), clean._replace(source=clean.source // 2)]
    signals += [clean._replace(noise=np.int32(noise), seed=np.uint32(2**32 - noise)) for noise in (1, 2)]
    signals += [clean._replace(middle=np.int32(middle)) for middle in range(6)]
    signals += [clean._replace(kept=kept) for kept in only.values()]
    signals += [clean._replace(kept=~only[3], middle=np.int32(5), noise=np.int32(1), source=clean.source[::-1].copy())]
    sizes_px = np.array([(5, 7), (3, 4)] * 7)
    images = rng.uniform(0, 255, (14, 6, 9, 3)).astype(np.float32)  # noise outside the images too
    return signals, sizes_px, images


def stacked(signals):
    return jax.tree.map(lambda *arrays: np.stack(arrays), *signals)


jitted = jax.jit(edsr.apply)


def test_each_image_of_a_canvas_is_the_published_network_alone_with_its_own_distortions():
    signals, sizes_px, images = cases()
    params = edsr.prepare(weights())
    outputs = np.array(jitted(params, images, sizes_px, stacked(signals)))
    assert outputs.shape == (14, 24, 36, 3) and outputs.dtype == np.float32
    seen = []
    for output, image, (height, width), signal in zip(outputs, images, sizes_px, signals, strict=True):
        inside = output[: 4 * height, : 4 * width].copy()
        expected = defined(weights(), image[:height, :width], signal)
        np.testing.assert_allclose(inside, expected.clip(0, 255), rtol=0, atol=3e-4)
        output[: 4 * height, : 4 * width] = 0
        assert not output.any()
        seen.append(expected)
    everything = np.concatenate([expected.ravel() for expected in seen])
    assert (everything < 0).any() and (everything > 255).any() and np.mean((everything > 0) & (everything < 255)) > 0.3
    for one, sizes in zip(seen, sizes_px, strict=True):  # every option does something: signals[4] is undistorted
        assert one is seen[4] or sizes[0] != 5 or np.abs(one - seen[4]).max() > 1


def test_gelu_is_exact():
    x = np.linspace(-4, 4, 81, dtype=np.float32).reshape(1, 9, 9, 1)  # where its usual approximation is off by 5e-4
    out = edsr._distorted_middle(x, np.array([[9, 9]]), np.array([edsr.MIDDLES.index("gelu")]))
    np.testing.assert_allclose(out, x * special.ndtr(x), rtol=0, atol=1e-5)


def test_neither_canvas_nor_batch_changes_an_image():
    signals, sizes_px, images = cases()
    params = edsr.prepare(weights())
    together = np.asarray(jitted(params, images, sizes_px, stacked(signals)))
    for chosen in (slice(0, None, 2), slice(1, None, 2), slice(3, 4), slice(8, 9)):  # of one size, without a canvas; alone
        height, width = sizes_px[chosen][0]
        alone = jitted(params, images[chosen, :height, :width], sizes_px[chosen], stacked(signals[chosen]))
        np.testing.assert_allclose(alone, together[chosen, : 4 * height, : 4 * width], rtol=0, atol=1e-4)  # of 255: 7 ulps


def test_gradients():
    signals, sizes_px, images = (each[3:12:4] for each in cases())
    state = weights(WIDTH, 2)
    signals = [signal._replace(kept=signal.kept[[0, -2, -1]]) for signal in signals]
    probe = np.random.default_rng(2).normal(size=(3, 24, 36, 3)).astype(np.float32)

    def loss(params, image):
        return (probe * edsr.apply(params, image, sizes_px, stacked(signals))).sum()

    to_params, to_image = jax.jit(jax.grad(loss, (0, 1)))(edsr.prepare(state), images)
    found, direction = edsr.restore(to_params), edsr.draw(np.random.default_rng(3), WIDTH, 2)

    def loss_at(step):
        moved = {name: array + step * direction[name].astype(np.float64) for name, array in state.items()}
        total = 0
        for image, (height, width), signal, weight in zip(images, sizes_px, signals, probe, strict=True):
            total += (weight[: 4 * height, : 4 * width] * defined(moved, image[:height, :width], signal).clip(0, 255)).sum()
        return total

    slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6
    np.testing.assert_allclose(sum((found[name] * direction[name]).sum(dtype=np.float64) for name in found), slope, rtol=1e-3)
    for gradient, (height, width) in zip(np.array(to_image), sizes_px, strict=True):
        assert gradient[:height, :width].all(-1).any()
        gradient[:height, :width] = 0
        assert not gradient.any()


def test_bfloat16_rounds_and_nothing_else():
    sizes_px, images = (each[4:6] for each in cases()[1:])
    params = edsr.prepare(weights(WIDTH, 2))
    plain = defined(weights(WIDTH, 2), images[0].astype("bfloat16")[:5, :7].astype(np.float32)).clip(0, 255)
    output = np.asarray(jitted(params, images.astype("bfloat16"), sizes_px))
    assert output.dtype == np.float32 and 0 < np.abs(output[0, :20, :28] - plain).max() < 10
    with pytest.raises(ValueError, match="these are uint8: convert them"):
        edsr.apply(params, images.astype(np.uint8), sizes_px)


def test_signals_of_another_network_are_refused():
    signals, sizes_px, images = cases()
    for state, message in ((weights(4, BLOCKS), "width of 6 and 6 blocks, .* has 4 and 6"), (weights(WIDTH, 2), "has 6 and 2: give")):
        with pytest.raises(ValueError, match=message):
            edsr.apply(edsr.prepare(state), images, sizes_px, stacked(signals))


def test_bytes_are_cut_off():
    np.testing.assert_array_equal(edsr.to_bytes(jax.numpy.array([0, 0.99, 1, 254.99, 255])), np.array([0, 0, 1, 254, 255], np.uint8))
    assert edsr.to_bytes(jax.numpy.zeros(1)).dtype == np.uint8


# Files


def test_files_keep_their_numbers(tmp_path):
    given, path = weights(), tmp_path / "edsr.safetensors"
    for prefix, frozen in (("", edsr.FROZEN), ("module.", edsr.FROZEN), ("model.", {})):
        save_file({f"{prefix}{name}": array for name, array in (frozen | given).items()}, path)
        for read in (edsr.load(path), edsr.restore(edsr.prepare(edsr.load(path)))):
            assert list(read) == list(given)
            for name, array in given.items():
                np.testing.assert_array_equal(read[name], array)


def without(name):
    return {key: array for key, array in weights().items() if key != name}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (without("body.3.body.2.bias"), r"body.3.body.2.bias is missing"),
        (without("head.0.weight"), r"head.0.weight is missing"),
        (without("tail.0.2.weight"), r"tail.0.2.weight is missing"),
        ({**weights(), "tail.1.bias": np.zeros(4, np.float32)}, r"tail.1.bias is \[4\] and should be \[3\]"),
        ({**weights(), "fc.weight": np.zeros((2, 2), np.float32)}, r"fc.weight is unknown"),
        ({**weights(), **edsr.FROZEN, "sub_mean.bias": -edsr.MEAN / 255}, r"sub_mean.bias is not that of RGB in \[0, 255\]"),
        ({"conv1.weight": np.zeros((2, 3, 3, 3), np.float32)}, r"does not hold EDSR baseline x4 .*head.0.weight is missing"),
    ],
)
def test_other_files_are_refused(tmp_path, state, message):
    save_file(state, tmp_path / "edsr.safetensors")
    with pytest.raises(ValueError, match=message):
        edsr.load(tmp_path / "edsr.safetensors")


def test_the_large_network_and_damaged_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "edsr.safetensors"
    large = {name: np.broadcast_to(np.float32(0), shape) for name, shape in edsr.shapes(*edsr.LARGE).items()}
    with monkeypatch.context() as patch:
        patch.setattr(edsr.torch_files, "read", lambda path: large)
        with pytest.raises(ValueError, match="32 blocks of 256 channels"):
            edsr.load(path)
    save_file(weights(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read as weights"):
        edsr.load(path)


def test_noise_belongs_to_seed_and_position():
    seeds = np.array([0, 1, 2**32 - 1], np.uint32)
    drawn = np.asarray(positional.uniform(seeds, (40, 50, 32)))
    assert 0 <= drawn.min() and drawn.max() < 1
    for seed, numbers in zip(seeds, drawn, strict=True):
        np.testing.assert_array_equal(numbers, uniform(seed, (40, 50, 32)))
        for below in (0.05, 0.025, 0.5):
            assert abs(np.mean(numbers < below) - below) < 5 * (below * (1 - below) / numbers.size) ** 0.5
    np.testing.assert_array_equal(positional.uniform(seeds[::-2], (7, 60, 3))[:, :, :50], drawn[::-2, :7, :, :3])
    one = drawn[0]
    for a, b in ((one, drawn[1]), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1]), (one[..., 1:], one[..., :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / a.size**0.5
