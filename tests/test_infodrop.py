"""InfoDrop: its equations against golden vectors and loops in float64, its draws against their probabilities, its place in a run."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from jaxbed.method import Info
from jaxbed.methods import erm, infodrop
from jaxbed.models import mlp, resnet

TOY = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1]], np.float32)[None, :, :, None]
OFFSETS = np.array([[0, 1], [1, 0]])
KEEPERS = {
    "poisson": jax.jit(infodrop.keep_independently, static_argnums=(2, 3)),
    "multinomial": jax.jit(infodrop.keep_undrawn, static_argnums=(2, 3)),
}
patch_distance = jax.jit(infodrop.patch_distance, static_argnums=(2, 3, 4))
parzen = jax.jit(infodrop.parzen)
normalise = jax.jit(infodrop.normalise, static_argnums=2)


def random(*shape, low=0.0, high=1.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def toy_distance():
    return np.asarray(patch_distance(TOY, OFFSETS, 1, 3, 1))


def test_golden_distance_and_density():
    distance = toy_distance()
    np.testing.assert_array_equal(distance[0, 0], [[1, 2, 2], [2, 4, 3], [2, 4, 3]])
    np.testing.assert_array_equal(distance[1, 0], [[1, 2, 2], [2, 4, 4], [2, 3, 3]])
    np.testing.assert_allclose(distance.mean(), 2.5555556, rtol=1e-7)
    expected = [[0.8222982, 0.67617433, 0.67617433], [0.67617433, 0.45721173, 0.50661433], [0.67617433, 0.50661433, 0.55601694]]
    np.testing.assert_allclose(np.exp(parzen(distance, distance.mean(), 1.0))[0], expected, rtol=1e-6)


def test_golden_probability():
    distance = toy_distance()
    log_density = parzen(distance, distance.mean(), 1.0)
    warm, cold = (np.asarray(normalise(log_density, temperature, False))[0] for temperature in (0.5, 0.03))
    expected = [[0.19119685, 0.12928241, 0.12928241], [0.12928241, 0.05910943, 0.07257332], [0.12928241, 0.07257332, 0.08741744]]
    np.testing.assert_allclose(warm, expected, rtol=1e-6)
    np.testing.assert_allclose(cold[0, 0], 0.99414766, atol=1e-6)
    np.testing.assert_allclose(cold[(0, 0, 1, 2), (1, 2, 0, 0)], 0.0014625, atol=5e-8)


@pytest.mark.parametrize("mode", KEEPERS)
@pytest.mark.parametrize(("side", "draws", "expected"), [(64, 6144, 0.7769107), (56, 4704, 0.7769232)])
def test_golden_dropped_fraction_of_a_uniform_probability(mode, side, draws, expected):
    kept = np.asarray(KEEPERS[mode](jax.random.key(0), np.full((4, side, side), 1 / side**2, np.float32), draws, (4, 8)))
    assert abs(1 - kept.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / kept.size)


def by_loops(x, offsets, kernel, stride, bandwidth, temperature, pooled):
    """(D, π) of x [N, H, W, C] in float64, pixel by pixel."""
    images, height, width, _ = x.shape
    padding = kernel // 2
    pixels = {(n, i, j): x[n, i, j] for n in range(images) for i in range(height) for j in range(width)}

    def at(n, i, j):
        return pixels.get((n, i, j), np.zeros(x.shape[3]))

    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    distance = np.zeros((len(offsets), images, rows, columns))
    for (m, (down, right)), n, a, b in itertools.product(enumerate(offsets), range(images), range(rows), range(columns)):
        for i, j in itertools.product(range(kernel), range(kernel)):
            y, z = a * stride - padding + i, b * stride - padding + j
            distance[m, n, a, b] += ((at(n, y, z) - at(n, y + down, z + right)) ** 2).sum()
    weight = np.exp(-distance / (2 * bandwidth**2 * distance.mean())).mean(0) ** (1 / temperature)
    if pooled:
        windows = [[(2 * a - 1, 2 * b - 1) for b in range((columns + 1) // 2)] for a in range((rows + 1) // 2)]
        weight = np.array([[[w[max(i, 0) : i + 3, max(j, 0) : j + 3].min() for i, j in row] for row in windows] for w in weight])
    return distance, weight / weight.sum((1, 2), keepdims=True)


@pytest.mark.parametrize("stem", resnet.STEMS)
def test_equations_in_float64(stem):
    x = np.random.default_rng(0).normal(size=(2, 9, 8, 3)).astype(np.float32)
    offsets, (kernel, stride), pooled = [(-2, 1), (0, 0), (2, 2)], resnet.STEMS[stem], stem == "imagenet"
    distance = np.asarray(patch_distance(x, np.array(offsets), 2, kernel, stride))
    probability = normalise(parzen(distance, distance.mean(), 0.8), 0.3, pooled)
    expected_distance, expected = by_loops(x.astype(np.float64), offsets, kernel, stride, 0.8, 0.3, pooled)
    assert not distance[1].any()  # no offset, no distance
    np.testing.assert_allclose(distance, expected_distance, rtol=1e-5)
    np.testing.assert_allclose(probability, expected, rtol=1e-5, atol=2e-8)


def test_powers_that_underflow_and_constant_images():
    distance = np.stack([np.full((3, 3), 1e-9, np.float32), np.full((3, 3), 1e6, np.float32)])[None]
    distance[0, 1, 0, 0] = 2e6  # r of the second image is 0/0
    probability = np.asarray(normalise(parzen(distance, np.float32(1), 1.0), 0.03, False))
    np.testing.assert_allclose(probability[0], 1 / 9, rtol=1e-5)
    np.testing.assert_allclose(probability[1], np.where(np.arange(9) == 0, 0, 1 / 8).reshape(3, 3), atol=2e-7)
    flat = normalise(parzen(np.zeros((2, 1, 3, 3), np.float32), np.float32(0), 1.0), 0.03, False)
    np.testing.assert_allclose(flat, 1 / 9, rtol=1e-6)


def test_distances_of_bfloat16_images_are_summed_in_float32():
    x = random(2, 16, 16, 3, low=-2, high=2).astype(jnp.bfloat16)
    half, whole = (patch_distance(a, OFFSETS, 1, 7, 2) for a in (x, x.astype(np.float32)))
    assert half.dtype == jnp.float32
    np.testing.assert_array_equal(half, whole)


PROBABILITY = np.float32([[0.6, 0.25, 0.1], [0.05, 1e-8, 0.0]])[None]


@pytest.mark.parametrize("mode", KEEPERS)
@pytest.mark.parametrize("draws", [1, 5])
def test_both_modes_drop_each_pixel_with_the_probability_of_the_multinomial(mode, draws):
    channels = 20_000
    kept = np.asarray(KEEPERS[mode](jax.random.key(1), PROBABILITY, draws, (1, channels)))
    expected = 1 - (1 - np.asarray(PROBABILITY[0], np.float64)) ** draws
    deviation = np.sqrt(expected * (1 - expected) / channels)
    assert (np.abs(1 - kept[0].mean(-1) - expected) <= 5 * deviation).all()
    halves = kept[0].reshape(2, 3, 2, -1).mean(-1)  # all channels share π
    assert (np.abs(halves[..., 0] - halves[..., 1]) <= 5 * 2 * deviation).all()
    assert (kept[..., :1] != kept).any()  # but not the draws


def test_multinomial_makes_exactly_so_many_draws():
    channels = 20_000
    kept = (KEEPERS["multinomial"](jax.random.key(2), PROBABILITY, draws, (1, channels)) for draws in (1, 2))
    one, two = (np.asarray(each).reshape(6, -1) for each in kept)
    assert ((~one).sum(0) == 1).all() and set(np.unique((~two).sum(0))) == {1, 2}
    pairs = (~two)[:3].T.astype(float)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        expected = 2 * float(PROBABILITY[0, 0, i] * PROBABILITY[0, 0, j])  # of both, in either order
        assert abs((pairs[:, i] * pairs[:, j]).mean() - expected) < 5 * np.sqrt(expected / channels)


def test_poisson_draws_are_independent():
    keep = KEEPERS["poisson"]
    kept = np.asarray(keep(jax.random.key(2), PROBABILITY, 2, (1, 20_000))).reshape(6, -1)
    share = kept.mean(1)
    assert abs((kept[0] & kept[1]).mean() - share[0] * share[1]) < 5 * 0.5 / np.sqrt(20_000)
    certain = np.asarray(keep(jax.random.key(3), np.float32([[[1 + 1e-6, 0.0]]]), 3, (1, 100)))
    assert not certain[0, 0, 0].any() and certain[0, 0, 1].all()


def layer(stem="half", **changes):
    return infodrop.InfoDrop(infodrop.Config(**changes), resnet.Config(stem=stem).first_conv)


def half_flat(side_px=32):
    """Images whose left half is one grey and whose right half is noise."""
    image = np.random.default_rng(4).standard_normal((4, side_px, side_px, 3), np.float32)
    image[:, :, : side_px // 2] = 0.3
    return image


def droppers(module):
    """drop(x, image, key, stats) -> (output, updated statistics) in training, compiled once for all calls."""

    @jax.jit
    def drop(x, image, key=5, stats=None):
        variables = {"batch_stats": stats or {}}
        return module.apply(variables, x, image, True, rngs={"noise": jax.random.key(key)}, mutable=["batch_stats"])

    return drop


@pytest.mark.parametrize(  # each mode in both types; the stem makes the probabilities, from which a mode draws
    ("mode", "stem", "side", "dtype"),
    [
        ("multinomial", "imagenet", 8, "float32"),
        *((mode, "half", 16, "bfloat16") for mode in KEEPERS),
        ("poisson", "small", 32, "float32"),
    ],
)
def test_the_layer_drops_what_is_alike_and_rescales_nothing(mode, stem, side, dtype):
    x, image = (each.astype(jnp.dtype(dtype)) for each in (random(4, side, side, 16, low=1, high=2), half_flat()))
    drop = droppers(layer(stem, mode=mode))
    out, again, other = (np.asarray(drop(x, image, key)[0]) for key in (5, 5, 7))
    assert out.dtype == x.dtype and ((out == x) | (out == 0)).all()
    dropped, margin = out == 0, side // 8  # of the border of the halves
    assert dropped[:, margin:-margin, margin : side // 2 - margin].mean() > 0.9  # r0·2 draws a pixel and more: 1 - e⁻³ = 0.95
    assert dropped[:, margin:-margin, side // 2 + margin : -margin].mean() < 0.01
    assert (again == out).all() and (other != out).any()


@pytest.mark.parametrize("mode", KEEPERS)
def test_gradient_passes_kept_activations_alone(mode):
    x, image, weight, drop = (
        random(4, 16, 16, 8, low=1, high=2),
        half_flat(),
        random(4, 16, 16, 8, low=-1, seed=7),
        droppers(layer(mode=mode)),
    )

    def value(x, image):
        out = drop(x, image)[0]
        return (weight * out).sum(), out

    (to_x, to_image), out = jax.jit(jax.grad(value, (0, 1), has_aux=True))(x, image)
    np.testing.assert_array_equal(to_x, np.where(np.asarray(out) == 0, 0, weight))
    assert not np.any(to_image)


@pytest.mark.parametrize("mode", KEEPERS)
def test_mapped_over_seeds_it_is_each_seed_by_itself(mode):
    x, image, drop = random(2, 4, 16, 16, 8, low=1, high=2), np.stack([half_flat(), half_flat()[:, :, ::-1]]), droppers(layer(mode=mode))
    together = jax.jit(jax.vmap(lambda x, image, key: drop(x, image, key)[0]))(x, image, np.array([5, 7]))
    for seed, key in enumerate((5, 7)):
        np.testing.assert_array_equal(together[seed], drop(x[seed], image[seed], key)[0])


@pytest.mark.parametrize("mode", KEEPERS)
def test_devices_that_share_a_batch_drop_what_one_does(mode):
    drop, stats = droppers(layer(mode=mode, variant="biasbed")), {"distance": np.float32(1)}
    x, image = random(4, 16, 16, 8, low=1, high=2), half_flat()
    data = jax.NamedSharding(jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,)), jax.P("data"))
    shared = drop.lower(*jax.device_put((x, image), data), 5, stats).compile()
    (one, updated), (two, updated_of_two) = drop(x, image, 5, stats), shared(*jax.device_put((x, image), data), 5, stats)
    assert two.sharding.is_equivalent_to(data, 4)
    assert (np.asarray(one) != np.asarray(two)).mean() < 1e-3  # a sum in another order may move a draw over an edge
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), updated, updated_of_two)
    assert "all-gather" not in shared.as_text()


def test_it_is_off_at_evaluation_and_where_nothing_is_to_be_drawn():
    x = np.ones((4, 16, 16, 8), np.float32)
    assert layer().apply({}, x, half_flat(), False) is x
    np.testing.assert_array_equal(droppers(layer(drop_rate=0.003))(x, half_flat())[0], x)  # less than one draw of 256 pixels


def test_biasbed_goes_on_dropping_by_the_image_alone():
    x, image, module = np.ones((4, 16, 16, 8), np.float32), half_flat(), layer(variant="biasbed")

    @jax.jit
    def evaluated(distance, x, image):
        return module.apply({"batch_stats": {"distance": distance}}, x, image, False)

    first, turned, alone, wider = (
        np.asarray(evaluated(np.float32(distance), x[: len(seen)], seen))
        for distance, seen in ((40, image), (40, image[::-1]), (40, image[:1]), (4000, image))
    )
    assert 0.3 < (first == 0).mean() < 0.7
    np.testing.assert_array_equal(first, turned[::-1])  # one draw serves all
    np.testing.assert_array_equal(first[:1], alone)
    assert (wider != first).any()  # the running mean is what counts


def test_biasbed_keeps_a_running_mean_of_the_batchs_distance():
    drop = droppers(layer(variant="biasbed", radius_px=1, offsets=64))
    x, stats, means = np.ones((4, 16, 16, 8), np.float32), {"distance": np.float32(1)}, []
    for key in range(2):
        before, (_, updated) = stats["distance"], drop(x, half_flat(), key, stats)
        stats = jax.device_get(updated["batch_stats"])
        means.append((stats["distance"] - 0.9 * before) / 0.1)
    offsets = np.array(list(itertools.product((-1, 0, 1), repeat=2)))
    expected = np.mean(patch_distance(half_flat(), offsets, 1, 3, 2))
    np.testing.assert_allclose(means, expected, rtol=0.15)  # 64 of the nine offsets
    assert means[0] != means[1]


def test_without_draws_it_is_erm_to_the_last_bit_and_its_state_can_go_on_as_erms():
    configs = (erm.Config(), infodrop.Config(drop_rate=0.0), infodrop.Config())
    (plain, *results), (_, *none), (dropping, *dropped) = (tiny.take_steps(config, 3) for config in configs)
    jax.tree.map(np.testing.assert_array_equal, results, none)
    assert results[1]["loss"] != dropped[1]["loss"]
    assert jax.tree.structure(results[0]) == jax.tree.structure(dropped[0])
    state, image = dropped[0], random(5, 16, 16, 3)
    np.testing.assert_array_equal(*(jax.jit(each.predict)(state.params, state.stats, image) for each in (plain, dropping)))


@pytest.mark.parametrize(
    ("changes", "net", "message"),
    [
        ({}, mlp.Config(), "give it a resnet.Config"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, net, message):
    config = dataclasses.replace(infodrop.Config(), **changes)
    with pytest.raises(ValueError, match=message):
        config.make(Info(classes=16, train_size=64, steps_per_epoch=4, epochs=2), net or resnet.Config(10), tiny.Optim())
