"""Weights of DeepAugment's autoencoder: files of them, and their distortions against the paper's table."""

import math
import re

import numpy as np
import pytest
import safetensors.numpy
from test_weights import Tensor, save

from jaxbed.data.deepaugment import cae_weights
from jaxbed.data.deepaugment.cae_weights import OPTIONS, Draw
from jaxbed.models import cae

WIDTH = 8
WEIGHTS = cae.draw(np.random.default_rng(0), WIDTH)
for _array in WEIGHTS.values():
    _array.setflags(write=False)
BOTH = ("faithful", "intended")
LATENT, TRANSPOSED, BLOCK = "e_conv_3.0", "d_up_conv_1.3", "d_block_2.1"  # layers 8, 10 and 13


def changed(function, layer=BLOCK, second=None, mode="faithful", seed=0, weights=WEIGHTS):
    """(weight, bias) of the layer afterwards, and of what they consist; a bias is None if nothing touches it."""
    arrays = function(np.random.default_rng(seed), Draw(weights, layer, second or layer, mode))
    assert {*arrays} <= {f"{each}.{kind}" for each in (layer, second or layer) for kind in ("weight", "bias")}
    for name, array in arrays.items():
        assert array.dtype == np.float32 and array.shape == weights[name].shape
    return arrays[f"{layer}.weight"], arrays.get(f"{layer}.bias")


def before(layer=BLOCK):
    return WEIGHTS[f"{layer}.weight"], WEIGHTS[f"{layer}.bias"]


def in_order(draws, change, layer):
    """Weight and bias after one change after another of the rows drawn."""
    rows = len(before(layer)[0])
    expected = [array.astype(np.float64) for array in before(layer)]
    drawn = np.random.default_rng(0).integers(rows, size=min(draws, rows))
    assert len({*drawn}) < len(drawn), "a row that is drawn twice belongs to the test"
    for row in drawn:
        for array in expected:
            array[row] = change(array[row])
    return expected


@np.vectorize
def bent(x):
    return -x * (1 + math.erf(x / math.sqrt(2))) / 2


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("layer", [LATENT, TRANSPOSED, BLOCK])
def test_rows_change_one_after_the_other(layer, mode):
    for function, draws, change in (
        (cae_weights.negate_rows, 12, lambda row: -row),
        (cae_weights.zero_rows, 25, lambda row: 0 * row),
        (cae_weights.bend_rows, 25, bent),
    ):
        for array, expected in zip(changed(function, layer, mode=mode), in_order(draws, change, layer), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-9)


def test_published_counts_of_rows():
    weights = {f"{BLOCK}.weight": np.ones((128, 1, 3, 3), np.float32), f"{BLOCK}.bias": np.ones(128, np.float32)}
    once = 128 * (1 - (1 - 1 / 128) ** 25)  # rows that at least one of 25 draws hits
    odd = 64 * (1 - (1 - 2 / 128) ** 12)  # rows that an odd number of 12 draws hits: about eleven
    for function, expected in ((cae_weights.negate_rows, odd), (cae_weights.zero_rows, once), (cae_weights.bend_rows, once)):
        counts = []
        for seed in range(300):
            weight, bias = changed(function, seed=seed, weights=weights)
            assert (weight == bias[:, None, None, None]).all()
            counts.append((bias != 1).sum())
        assert abs(np.mean(counts) - expected) < 0.3


def test_one_layer_is_reversed_and_two_if_intended():
    other = "d_block_3.4"
    for second in (other, BLOCK):
        for mode in BOTH:
            arrays = cae_weights.reverse_rows(np.random.default_rng(0), Draw(WEIGHTS, BLOCK, second, mode))
            layers = {BLOCK, second} if mode == "intended" else {BLOCK}
            assert {*arrays} == {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, np.flip(WEIGHTS[name], 0))


def test_factors_are_at_least_one_and_centred_there_if_intended():
    ranges = {"faithful": [], "intended": []}
    for mode, found in ranges.items():
        for seed in range(60):
            arrays = cae_weights.amplify(np.random.default_rng(seed), Draw(WEIGHTS, BLOCK, TRANSPOSED, mode))
            assert {*arrays} == {f"{BLOCK}.weight", f"{TRANSPOSED}.weight"}
            found.append([f(array / WEIGHTS[name]) for name, array in arrays.items() for f in (np.min, np.max)])
    low, high, other_low, other_high = np.array(ranges["faithful"]).T
    assert 1 - 1e-6 < low.min() and low.max() < 1.1 and 8 < high.max() < 9 + 1e-5 and high.min() < 2
    assert abs(np.corrcoef(high, other_high)[0, 1]) < 0.5 and abs(other_low - 1).max() < 0.1  # each layer has a u
    low, high, *_ = np.array(ranges["intended"]).T
    np.testing.assert_allclose(low + high, 2, atol=0.1)
    assert -3 - 1e-5 < low.min() < -2 and 4 < high.max() < 5 + 1e-5
    twice = [np.max(changed(cae_weights.amplify, seed=seed)[0] / before()[0]) for seed in range(60)]
    assert 20 < max(twice) < 81  # the same layer drawn twice


@pytest.mark.parametrize("mode", BOTH)
def test_masks_are_of_zeros_or_of_signs(mode):
    kinds = []
    for seed in range(20):
        weight, bias = changed(cae_weights.mask, TRANSPOSED, mode=mode, seed=seed)
        factor = weight / before(TRANSPOSED)[0]
        assert bias is None and {*np.unique(factor)} in ({0, 1}, {-1, 1})
        assert abs((factor == 1).mean() - 0.5) < 4 * 0.5 * factor.size**-0.5
        kinds.append(factor.min())
    assert {*kinds} == {0, -1}


def test_all_kernels_turn_alike():
    weights = {f"{BLOCK}.weight": np.tile(np.arange(1, 10, dtype=np.float32).reshape(3, 3), (4, 2, 1, 1))}
    turned = {changed(cae_weights.rotate_kernels, seed=seed, weights=weights)[0].astype(int).tobytes() for seed in range(30)}
    quarter, half, other = ((3, 6, 9, 2, 5, 8, 1, 4, 7), (9, 8, 7, 6, 5, 4, 3, 2, 1), (7, 4, 1, 8, 5, 2, 9, 6, 3))
    assert turned == {np.tile(kernel, 8).tobytes() for kernel in (quarter, half, other)}


def test_a_fifth_of_the_filters_is_drawn_and_negated_once():
    counts = []
    for seed in range(30):
        weight, bias = changed(cae_weights.negate_filters, seed=seed)
        signs = (weight / before()[0]).reshape(len(weight), -1)
        assert bias is None and (signs == signs[:, :1]).all() and {*np.unique(signs)} == {-1, 1}
        counts.append((signs[:, 0] < 0).sum())
    assert {2, 3} <= {*counts} <= {1, 2, 3}  # of 16; with replacement, so three draws may be of fewer


def test_the_largest_tap_stays():
    kernels = np.float32([[[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[-3, -9, -2], [-4, -1, -5], [-8, -7, -6]]])[None]
    weight, bias = changed(cae_weights.keep_largest_tap, weights={f"{BLOCK}.weight": kernels})
    assert bias is None
    np.testing.assert_array_equal(weight[0], [[[0, 0, 0], [0, 0, 0], [0, 0, 9]], [[0, 0, 0], [0, -1, 0], [0, 0, 0]]])


@pytest.mark.parametrize("mode", BOTH)
def test_options_stay_in_their_layers_and_leave_the_rest_alone(mode):
    ranges = ((11, 15), (8, 13), (8, 13), (10, 13), (8, 13), (8, 13), (8, 13), (8, 13), (8, 13))  # first and last
    numbers = {layer.name: number for number, layer in enumerate(cae.layers())}
    for option, (first, last) in zip(OPTIONS, ranges, strict=True):
        touched = set()
        for seed in range(60):
            after = OPTIONS[option](np.random.default_rng(seed), WEIGHTS, mode)
            different = {name.rpartition(".")[0] for name in after if after[name] is not WEIGHTS[name]}
            assert list(after) == list(WEIGHTS)
            assert len(different) <= (2 if option == "amplify" or (option == "reverse_rows" and mode == "intended") else 1)
            touched |= {numbers[name] for name in different}
        assert touched == {*range(first, last + 1)}


def test_options_are_equally_likely_and_the_ninth_is_only_intended():
    for mode, count in (("faithful", 8), ("intended", 9)):
        rng = np.random.default_rng(0)
        drawn = [cae_weights.distort(rng, WEIGHTS, mode)[1] for _ in range(100 * count)]
        assert all(len(names) == 1 for names in drawn)
        expected = list(OPTIONS)[:count]
        assert {name for (name,) in drawn} == {*expected}
        assert all(abs(drawn.count((name,)) - 100) < 4 * 10 for name in expected)
    with pytest.raises(ValueError, match=r"mode = 'real' of DeepAugment must be faithful \(as published\) or intended"):
        cae_weights.distort(np.random.default_rng(0), WEIGHTS, "real")


def test_the_same_generator_gives_the_same_weights():
    for mode in BOTH:
        (one, names), (other, same_names) = (cae_weights.distort(np.random.default_rng(3), WEIGHTS, mode) for _ in range(2))
        assert names == same_names
        for name in WEIGHTS:
            np.testing.assert_array_equal(one[name], other[name])


def test_parameters_become_weights_again():
    restored = cae.restore(cae.prepare(WEIGHTS))
    assert list(restored) == list(cae.shapes(WIDTH))
    for name, array in restored.items():
        np.testing.assert_array_equal(array, WEIGHTS[name])


def test_files_are_read_with_any_prefix(tmp_path):
    safe, published = tmp_path / "own.safetensors", tmp_path / "model_final.state"
    safetensors.numpy.save_file({f"module.{name}": array for name, array in WEIGHTS.items()}, safe)
    save(published, {name: Tensor(array) for name, array in WEIGHTS.items()}, legacy=True)
    for path in (safe, published):
        loaded = cae.load(path)
        assert list(loaded) == list(cae.shapes(WIDTH))
        for name, array in loaded.items():
            np.testing.assert_array_equal(array, WEIGHTS[name])
            assert array.dtype == np.float32 and array.flags.writeable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("d_block_2.4.bias"), "lacks d_block_2.4.bias: name a state dict of cae_32x32x32_zero_pad_bin"),
        (lambda arrays: arrays.update({"d_up_conv_4.0.bias": np.zeros(3)}), "also holds d_up_conv_4.0.bias, so it is another network's"),
        (lambda arrays: arrays.update({"e_block_3.1.bias": np.zeros(4)}), "e_block_3.1.bias has shape (4,), and (16,) fits a width of 8"),
        (lambda arrays: arrays.update({"e_conv_1.1.weight": np.zeros(())}), "has shape (), and a width of 0 does not fit"),
    ],
)
def test_other_networks_files_are_refused(tmp_path, change, message):
    arrays = dict(WEIGHTS)
    change(arrays)
    safetensors.numpy.save_file(arrays, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=re.escape(message)):
        cae.load(tmp_path / "other.safetensors")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "damaged.state"
    save(path, {name: Tensor(array) for name, array in WEIGHTS.items()}, legacy=True)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged"):
        cae.load(path)
