"""DeepAugment's distortions of EDSR's weights, against the published table."""

import collections
import functools

import numpy as np
import pytest
from scipy import signal, special

from jaxbed.data.deepaugment import edsr_weights
from jaxbed.data.deepaugment.edsr_weights import OPTIONS, Block
from jaxbed.models import edsr

MODES = ("faithful", "intended")
KERNEL = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
THIRDS, FOURTHS, ALL = {0, 3, 6, 9}, {1, 5, 9}, set(range(15))
FIRST, FIRST_BIAS, SECOND, SECOND_BIAS = "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"
# In the published order: blocks, how many of them, what may change in them
PUBLISHED = [
    (THIRDS, 1, {FIRST, FIRST_BIAS, SECOND, SECOND_BIAS}),
    ({1, 4, 7}, 1, {FIRST, FIRST_BIAS}),
    (THIRDS, 1, {FIRST, FIRST_BIAS}),
    (THIRDS, 1, {FIRST, SECOND}),
    (THIRDS, 1, {FIRST}),
    (THIRDS, 1, {FIRST}),
    (THIRDS, 1, {SECOND}),
    (THIRDS, 1, {FIRST, SECOND}),
    (FOURTHS, 1, {FIRST}),
    (THIRDS, 1, {FIRST}),
    (FOURTHS, 1, {SECOND}),
    (ALL, 1, {SECOND}),
    (ALL, 5, {FIRST, SECOND}),
    (ALL, 5, {FIRST}),
    (ALL, 5, {FIRST}),
    (ALL, 5, {FIRST}),
    (ALL, 5, {FIRST, SECOND}),
]
NAMES = list(OPTIONS)


@functools.cache
def weights(width, blocks):
    """Untrained ones, read only: a change in place is an error."""
    drawn = edsr.draw(np.random.default_rng(0), width, blocks)
    for array in drawn.values():
        array.setflags(write=False)
    return drawn


@pytest.mark.parametrize("mode", MODES)
def test_options_change_what_is_published_and_nothing_else(mode):
    rng, clean = np.random.default_rng(0), weights(2, 16)
    assert len(OPTIONS) == len(PUBLISHED) == 17
    for name, (blocks, draws, arrays) in zip(NAMES, PUBLISHED, strict=True):
        reached, touched, most = set(), set(), 0
        for _ in range(25 * len(blocks) // draws):
            new = OPTIONS[name](rng, clean, mode)
            assert list(new) == list(clean)
            assert all(new[key].shape == clean[key].shape and new[key].dtype == np.float32 for key in clean)
            changed = [key.split(".", 2) for key in clean if not np.array_equal(new[key], clean[key])]
            assert all(layer == "body" for layer, *_ in changed)
            now = {int(number) for _, number, _ in changed}
            reached, touched, most = reached | now, touched | {array for *_, array in changed}, max(most, len(now))
        assert (reached, touched) == (blocks, arrays) and (most == 1 if draws == 1 else 3 <= most <= draws), name


def one_changed(name, block, mode="faithful", seed=0):
    """The block after one application of an option."""
    option = OPTIONS[name]
    return (option.intended if mode == "intended" and option.intended else option.change)(np.random.default_rng(seed), block)


def random_block(width, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((width, width, 3, 3), (width,)) * 2
    return Block(*(rng.normal(size=shape).astype(np.float32) for shape in shapes))


@pytest.mark.parametrize("mode", MODES)
def test_options_that_draw_nothing(mode):
    block = random_block(4)
    first, first_bias, second, second_bias = block
    mask = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])

    def gelu(x):
        return x * (1 + special.erf(x / 2**0.5)) / 2

    expected = [
        (first[::-1], first_bias[::-1], second[::-1], second_bias[::-1]),
        (-first, -first_bias, second, second_bias),
        (0 * first, 0 * first_bias, second, second_bias),
        (-gelu(first), first_bias, -gelu(second), second_bias),
        (first * mask, first_bias, second, second_bias),
        (first * (9 * (mask == -4) - 1), first_bias, second, second_bias),
    ]
    for name, arrays in zip(NAMES, expected, strict=False):
        for found, array in zip(one_changed(name, block, mode), arrays, strict=True):
            np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-7)
    mirrored = one_changed(NAMES[7], block, mode)
    for found, array in zip(mirrored, (first[:, :, :, ::-1], first_bias, -second, second_bias), strict=True):
        np.testing.assert_array_equal(found, array)


def test_published_vectors():
    bias = np.ones(1, np.float32)
    block = Block(KERNEL, bias, KERNEL, bias)
    assert one_changed(NAMES[4], block).first[0, 0].tolist() == [[0, 2, 0], [4, -20, 6], [0, 8, 0]]
    assert one_changed(NAMES[5], block).first[0, 0].tolist() == [[-1, -2, -3], [-4, 40, -6], [-7, -8, -9]]
    rotated = {str(a[0, 0].tolist()) for seed in range(40) for a in one_changed(NAMES[12], block, seed=seed)[::2]}
    assert str([[3.0, 6.0, 9.0], [2.0, 5.0, 8.0], [1.0, 4.0, 7.0]]) in rotated
    largest = {str(a[0, 0].tolist()) for seed in range(10) for a in one_changed(NAMES[16], block, seed=seed)[::2]}
    assert largest == {str(KERNEL[0, 0].tolist()), str([[0.0] * 3, [0.0] * 3, [0.0, 0.0, 9.0]])}


def test_factors_of_the_second_convolution():
    block = random_block(16)
    for mode, low, high in (("faithful", 1, 5), ("intended", -1, 3)):
        spans = []
        for seed in range(20):
            factor = one_changed(NAMES[6], block, mode, seed).second / block.second
            assert low - 1e-3 < factor.min() and factor.max() < high + 1e-3
            np.testing.assert_allclose(factor.mean(), (factor.min() + factor.max()) / 2, atol=0.15)  # uniform between both
            centre = 1 if mode == "intended" else factor.min()  # which is where U = 0, or U = 1 / 2
            assert abs(centre - 1) < 0.01
            spans.append(np.ptp(factor))
        assert min(spans) < 1 and max(spans) > 3  # one scale per draw


def taps_of(name, width, mode="faithful", seed=0):
    """[k, i, 3, 3]: what kernels are convolved with, read off from kernels of a single 1."""
    unit = np.zeros((width, width, 3, 3), np.float32)
    unit[np.arange(width), np.arange(width), 1, 1] = 1
    bias = np.zeros(width, np.float32)
    block = one_changed(name, Block(unit, bias, unit, bias), mode, seed)
    changed = block.second if name == NAMES[10] else block.first
    return changed.transpose(1, 0, 2, 3)[..., ::-1, ::-1]


def test_taps():
    for mode in MODES:
        taps = taps_of(NAMES[8], 12, mode)
        assert ((taps != 0).sum((2, 3)) == 1).all() and set(np.unique(taps)) == {-1, 0, 1}
        assert len(np.unique(taps.reshape(12, -1), axis=0)) == (1 if mode == "faithful" else 12)
    assert taps_of(NAMES[8], 64).any((0, 1)).all()  # every position
    noise = np.concatenate([taps_of(NAMES[9], 8, seed=seed).ravel() for seed in range(20)])
    assert -1 / 6 - 1e-6 <= noise.min() < -0.165 and 0.05 < noise.max() < 1 / 6
    blurs = taps_of(NAMES[10], 16)
    assert blurs.min() >= 0 and 0.5 < blurs.max(axis=(2, 3)).mean() < 0.9  # of a Dirichlet distribution of 0.1, mostly one tap
    np.testing.assert_allclose(blurs.sum((2, 3)), 1, rtol=1e-5)


def test_kernels_are_cross_correlated():
    rng = np.random.default_rng(0)
    kernel, taps = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 3, 3, 3), (4, 3, 3, 3)))
    found = edsr_weights._convolved(kernel, taps)
    for o in range(2):
        for k in range(4):
            total = sum(signal.correlate2d(kernel[o, i], taps[k, i], mode="same") for i in range(3))
            np.testing.assert_allclose(found[o, k], total, rtol=1e-4, atol=1e-5)


def test_noise_rotations_and_signs():
    block = random_block(64)
    added = one_changed(NAMES[11], block).second - block.second
    assert np.abs(added).max() < 0.50001 and abs(added.mean()) < 0.01 and abs(added.std() - 12**-0.5) < 0.01
    turns = collections.Counter()
    for seed in range(240):
        turned = one_changed(NAMES[12], block, seed=seed)
        for place in (0, 2):
            for axes in ((2, 3), (0, 1)):
                for quarters in (1, 2, 3):
                    turns[place, axes, quarters] += np.array_equal(turned[place], np.rot90(block[place], quarters, axes))
    assert sum(turns.values()) == 240 and min(turns.values()) > 5 and len(turns) == 12
    for name, values in ((NAMES[13], {-1, 1}), (NAMES[14], {0, 1})):
        factor = one_changed(name, block).first / block.first
        assert set(np.unique(factor)) == values and abs((factor == 1).mean() - 0.5) < 0.02
    distinct = []
    for seed in range(60):
        factor = one_changed(NAMES[15], block, seed=seed).first / block.first
        assert np.ptp(factor, (1, 2, 3)).max() == 0 and set(np.unique(factor)) == {-1, 1}
        distinct.append((factor[:, 0, 0, 0] == -1).sum())
    assert max(distinct) <= 32 and abs(np.mean(distinct) - 25.3) < 1.5
    kept = one_changed(NAMES[16], block)
    changed, before = (kept.first, block.first) if (kept.first != block.first).any() else (kept.second, block.second)
    np.testing.assert_array_equal(changed.sum((2, 3)), before.max((2, 3)))
    assert ((changed != 0).sum((2, 3)) == 1).all()


@pytest.mark.parametrize("mode", MODES)
def test_three_options_are_drawn_with_replacement(mode):
    rng, clean, counts, repeated = np.random.default_rng(0), weights(2, 16), collections.Counter(), 0
    for _ in range(400):
        new, drawn = edsr_weights.distort(rng, clean, mode)
        assert len(drawn) == 3 and all(type(name) is str for name in drawn) and list(new) == list(clean)
        counts.update(drawn)
        repeated += len(set(drawn)) < 3
    assert set(counts) == set(NAMES) and min(counts.values()) > 40 and max(counts.values()) < 105
    assert 40 < repeated < 100  # expected: 1 - 16·15 / 17² of 400, which is 68
    one, other = (edsr_weights.distort(np.random.default_rng(5), clean, mode) for _ in range(2))
    assert one[1] == other[1] and all(np.array_equal(one[0][key], other[0][key]) for key in clean)


def test_small_networks_are_distorted_where_they_can_be():
    rng = np.random.default_rng(0)
    for name in NAMES:
        new = OPTIONS[name](rng, weights(3, 2))
        assert set(new) == set(weights(3, 2)) and np.array_equal(new["body.2.weight"], weights(3, 2)["body.2.weight"])
    with pytest.raises(ValueError, match="a network of 1 block has no block 1 to distort: use at least 2"):
        OPTIONS["negate_first"](rng, weights(3, 1))
    with pytest.raises(ValueError, match="mode = 'fixed'"):
        edsr_weights.distort(rng, weights(3, 2), "fixed")
