"""ImageNet-C-bar's corruptions against scalar transcriptions of the published formulas, and against values computed by hand.

Transcriptions are in float64 on [0, 255], as published, with the shorter side in place of 224. They are NaN where a pixel is so close to a
jump that rounding decides.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxbed.measures import corruption
from jaxbed.measures import imagenet_cbar as cbar

SIDE = HEIGHT = 20
WIDTH = 24
IMAGE = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3)).astype(np.float32) / np.float32(255)
JUMP = 1e-4  # closer to a jump than this, float32 may be on its other side
CHANGE = {name: jax.jit(each.change) for name, each in cbar.CORRUPTIONS.items()}
# Elsewhere float32 is exact to 1e-5. Plasma feeds its coordinates back up to six times, and each time rounding errors may grow threefold.
# A sparkle has up to 199 rays: their numbers have rounding errors of 1e-5, and so has the position between two rays.
TOLERANCE = {"plasma_noise": 1e-4, "sparkles": 3e-5, "inverse_sparkles": 3e-5}


@functools.cache
def many_drawn(name):
    """What is random of 256 images."""
    draw = jax.jit(jax.vmap(lambda key: cbar.CORRUPTIONS[name].draw(key, HEIGHT, WIDTH)))
    return jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(7), 256)))


def first_drawn(name, number=2):
    drawn = jax.tree.map(lambda array: array[:number], many_drawn(name))
    if name == "cocentric_sine_waves":  # a ring of 0.01 px asks for more digits than float32 has
        drawn = drawn._replace(width=np.maximum(drawn.width, 1))
    return drawn


def changed(name, severity, image, drawn):
    return np.asarray(CHANGE[name](image, drawn, *cbar.CORRUPTIONS[name].arrays(severity, *image.shape[1:3])))


def of_pixels(function):
    return np.array([[function(row, column) for column in range(WIDTH)] for row in range(HEIGHT)])


def single_frequency_greyscale(image, wave, level):
    return image + 19.6 * level * of_pixels(lambda y, x: math.sin(x * wave.column + y * wave.row + wave.phase))[..., None]


def cocentric_sine_waves(image, rings, level):
    def noise(row, column):
        down, across = row - rings.row, column - rings.column
        wobble = rings.amplitude * math.sin(rings.lobes * math.atan2(across, down))
        phase = (math.hypot(across, down) + wobble) / rings.width
        return phase % 1 - 0.5 if JUMP < phase % 1 < 1 - JUMP else math.nan

    return image + 12.8 * level * of_pixels(noise)[..., None]


def plasma_noise(image, plasma, level):
    def noise(row, column):
        x, y = column / plasma.scale, row / plasma.scale
        a = b = c = 1.0
        for _ in range(plasma.iterations):
            first, second = math.cos(y * a + plasma.time / b) / c, math.sin(x * a + plasma.time / b) / c
            x, y = x + first - 0.3 * second, y + second + 0.3 * first
            a, b, c = a * 1.93, b * 1.15, c * (2.25 - plasma.sharpness)
        return math.sin(x - plasma.time), math.sin((x + y + math.sin(plasma.time)) / 2), math.sin(y + plasma.time)

    intensity = 6.4 * level
    return (1 - intensity / 255) * image + intensity * of_pixels(noise)


def perlin_noise(image, perlin, level):
    permutation = [int(entry) for entry in perlin.permutation] * 2
    gradients = [(across / math.hypot(across, down), down / math.hypot(across, down)) for across, down in perlin.gradients.tolist()]

    def lerp(share, low, high):
        return low + share * (high - low)

    def lattice_noise(x, y):
        left, top = math.floor(x), math.floor(y)

        def corner(i, j):
            across, down = gradients[permutation[permutation[(left + i) % 256] + (top + j) % 256]]
            return across * (x - left - i) + down * (y - top - j)

        smooth_x, smooth_y = (3 * t**2 - 2 * t**3 for t in (x - left, y - top))
        return 1.5 * lerp(smooth_y, lerp(smooth_x, corner(0, 0), corner(1, 0)), lerp(smooth_x, corner(0, 1), corner(1, 1)))

    def turbulence(row, column):
        return sum(abs(lattice_noise(f * column / 32, f * row / 32)) / f for f in (1, 2, 4, 8, 16))

    alpha = 0.05 * level
    return (1 - alpha) * image + 255 * alpha * np.clip(0.5 * of_pixels(turbulence) + 0.5, 0, 1)[..., None]


def spectral_noise(left, amplitude):
    phases = np.concatenate([left, np.rot90(left, 2)], 1)
    radius = of_pixels(lambda row, column: math.hypot(row - HEIGHT / 2, column - WIDTH / 2))
    noise = np.fft.ifft2(np.fft.ifftshift(amplitude(radius) * np.exp(1j * phases))).real
    return noise / noise.std()


def blue_noise_sample(image, phases, level):
    noise, threshold = spectral_noise(phases, lambda radius: radius), 0.3 * level - 2.5
    kept = np.where(noise > threshold, 1.0, 0.0)
    return image * np.where(abs(noise - threshold) < JUMP, math.nan, kept)[..., None]


def brownish_noise(image, phases, level):
    return image + 6.4 * level * np.stack([spectral_noise(each, lambda radius: 1 / (radius**2 + 1)) for each in phases], -1)


def checkerboard_cutout(image, board, level):
    entries = int(4 * SIDE / board.cell)
    half = entries // 2  # the first and the last entries of the drawn table are those that indices around 0 reach
    kept = [*range(half), *range(half - entries, 0)]
    table = board.chances[np.ix_(kept, kept)]

    def cut(row, column):
        nx = (row * math.cos(board.angle) + column * math.sin(board.angle)) / board.cell
        ny = (-row * math.sin(board.angle) + column * math.cos(board.angle)) / board.cell
        if min(abs(nx - round(nx)), abs(ny - round(ny))) < JUMP:
            return math.nan
        return float(math.floor(nx) % 2 == math.floor(ny) % 2 and table[int(nx), int(ny)] < 0.1 * level)

    grey = of_pixels(cut)[..., None]
    return image * (1 - grey) + 128 * grey


def ray_weight(row, column, rays, lengths, exponent):
    down, across = row - rays.row, column - rays.column
    turn = (math.atan2(across, down) + math.pi) / (2 * math.pi) * rays.number
    ray, share = math.floor(turn), turn - math.floor(turn)
    length = (1 - share) * lengths[ray % rays.number] + share * lengths[(ray + 1) % rays.number]
    glow = (length**2 / (down**2 + across**2 + 1e-4)) ** exponent
    return min(max((1 - (share - 0.5) ** 2) * glow, 0), 1)


def sparkles(image, all_rays, level):
    radius = 0.01 * level * SIDE
    for each in range(5):
        rays = jax.tree.map(lambda array, each=each: array[each], all_rays)
        lengths = [max(radius + 0.25 * radius * normal, 1) for normal in rays.lengths.tolist()]
        weight = of_pixels(lambda row, column, rays=rays, lengths=lengths: ray_weight(row, column, rays, lengths, 1))[..., None]
        image = image + weight * (255 - image)
    return image


def inverse_sparkles(image, rays, level):
    lengths = [SIDE / 4 + 0.25 * SIDE / 4 * normal for normal in rays.lengths.tolist()]
    weight = of_pixels(lambda row, column: ray_weight(row, column, rays, lengths, 0.13 * level))[..., None]
    return 255 + weight * (image - 255)


def caustic_refraction(image, caustics, level):
    def height(*position):
        p = np.array([side / caustics.size % 1 * 2 * math.pi - 250 for side in position])
        i, c = p, 1.0
        for n in range(1, 6):
            t = caustics.time * (1 - 3.5 / n)
            i = p + np.array([math.cos(t - i[0]) + math.sin(t + i[1]), math.sin(t - i[1]) + math.cos(t + i[0])])
            c += 1 / math.hypot(p[0] * 0.005 / math.sin(i[0] + t), p[1] * 0.005 / math.cos(i[1] + t))
        return min(abs(1.17 - (c / 5) ** 1.4) ** 8, 1)

    surface = np.pad(ndimage.gaussian_filter(of_pixels(height), 1), 1)  # 0 outside
    down, across = surface[2:, 1:-1] - surface[:-2, 1:-1], surface[1:-1, 2:] - surface[1:-1, :-2]

    def moved(row, column):
        normal = np.array([down[row, column], across[row, column], 1])
        normal /= np.linalg.norm(normal)
        cosine, bent = normal[2], math.cos(math.asin(math.sin(math.acos(normal[2])) / 4))
        exact = 0.05 * level * SIDE * normal[:2] * (bent - cosine / 4) if cosine < 0.999 else np.zeros(2)
        if abs(cosine - 0.999) < 1e-5 or (abs(1000 * exact % 1 - 0.5) < 0.02).any():
            return np.full(2, math.nan)
        return np.round(exact, 3)

    position = np.moveaxis(of_pixels(moved), -1, 0) + np.indices((HEIGHT, WIDTH))
    seen = [ndimage.map_coordinates(image[..., k], np.nan_to_num(position), order=1, mode="grid-constant") for k in range(3)]
    seen = np.where(np.isnan(position[0]), math.nan, seen + 255 * 0.2 * level * (down - across))
    return np.moveaxis(seen, 0, -1)


TRANSCRIBED = {
    "single_frequency_greyscale": (single_frequency_greyscale, (1, 1.5, 2, 4.5, 5)),
    "cocentric_sine_waves": (cocentric_sine_waves, (3, 5, 8, 9, 10)),
    "plasma_noise": (plasma_noise, (4.75, 7, 8.5, 9.25, 10)),
    "perlin_noise": (perlin_noise, (4.6, 5.2, 5.8, 7.6, 8.8)),
    "blue_noise_sample": (blue_noise_sample, (0.8, 1.6, 2.4, 4, 5.6)),
    "brownish_noise": (brownish_noise, (1, 2, 3, 4, 5)),
    "checkerboard_cutout": (checkerboard_cutout, (2, 3, 4, 5, 6)),
    "sparkles": (sparkles, (1, 2, 3, 5, 6)),
    "inverse_sparkles": (inverse_sparkles, (1, 2, 4, 9, 10)),
    "caustic_refraction": (caustic_refraction, (2.35, 3.2, 4.9, 6.6, 9.15)),
}


def transcribed(name, severity, image, drawn):
    function, levels = TRANSCRIBED[name]
    exact = jax.tree.map(lambda array: array.astype(float) if array.dtype == np.float32 else array, drawn)
    each = [jax.tree.map(lambda array, one=one: array[one], exact) for one in range(len(image))]
    return np.stack([function(255.0 * one, random, levels[severity - 1]) / 255 for one, random in zip(image, each, strict=True)])


@pytest.mark.parametrize("name", cbar.CORRUPTIONS)
def test_changes_are_those_of_the_transcription(name):
    drawn = first_drawn(name)
    for severity in range(1, 6):
        expected = transcribed(name, severity, IMAGE, drawn)
        decided = np.isfinite(expected)
        assert decided.mean() > 0.9
        difference = abs(changed(name, severity, IMAGE, drawn) - expected)[decided]
        assert difference.max() < TOLERANCE.get(name, 1e-5), severity


@pytest.mark.parametrize("name", cbar.CORRUPTIONS)
def test_an_image_alone_is_the_same_as_in_a_batch(name):
    together = changed(name, 5, IMAGE, first_drawn(name))
    alone = changed(name, 5, IMAGE[:1], first_drawn(name, 1))
    np.testing.assert_allclose(alone, together[:1], atol=TOLERANCE.get(name, 1e-5))


@pytest.mark.parametrize("name", cbar.CORRUPTIONS)
def test_one_image_changes_differently_under_different_keys(name):
    first, second = changed(name, 5, IMAGE[[0, 0]], first_drawn(name))
    assert (abs(first - second) > 0.01).mean() > 0.02


@pytest.mark.parametrize("name", cbar.CORRUPTIONS)
def test_one_compiled_function_serves_all_severities(name):
    settings = [cbar.CORRUPTIONS[name].arrays(severity, 224, 224) for severity in range(1, 6)]
    assert len({tuple((each.shape, each.dtype) for each in setting) for setting in settings}) == 1
    assert len(set(settings)) == 5


@pytest.mark.parametrize("name", cbar.CORRUPTIONS)
@pytest.mark.parametrize("severity", [0, 6, 2.5])
def test_other_severities_are_refused(name, severity):
    with pytest.raises(ValueError, match="must be 1, 2, 3, 4 or 5"):
        cbar.CORRUPTIONS[name].arrays(severity, 224, 224)


@pytest.mark.parametrize("name", cbar.CORRUPTIONS)
def test_grey_images_and_odd_sides_keep_their_shape(name):
    corruption = cbar.CORRUPTIONS[name]

    def of_odd(key, image):
        drawn = jax.vmap(lambda one: corruption.draw(one, 7, 13))(jax.random.split(key, 4))
        return corruption.change(image, drawn, *corruption.arrays(3, 7, 13))

    result = jax.eval_shape(of_odd, jax.random.key(0), jax.ShapeDtypeStruct((4, 7, 13, 1), jnp.float32))
    assert (result.shape, result.dtype) == ((4, 7, 13, 1), jnp.float32)


@pytest.mark.parametrize(
    ("name", "position", "unit", "published"),
    [
        ("single_frequency_greyscale", 0, 255, (19.6, 29.4, 39.2, 88.2, 98)),
        ("cocentric_sine_waves", 0, 255, (38.4, 64, 102.4, 115.2, 128)),
        ("plasma_noise", 0, 255, (30.4, 44.8, 54.4, 59.2, 64)),
        ("perlin_noise", 0, 1, (0.23, 0.26, 0.29, 0.38, 0.44)),
        ("blue_noise_sample", 0, 1, (-2.26, -2.02, -1.78, -1.3, -0.82)),
        ("brownish_noise", 0, 255, (6.4, 12.8, 19.2, 25.6, 32)),
        ("checkerboard_cutout", 0, 1, (0.2, 0.3, 0.4, 0.5, 0.6)),
        ("sparkles", 0, 1, (2.24, 4.48, 6.72, 11.2, 13.44)),
        ("inverse_sparkles", 0, 1, (56,) * 5),
        ("inverse_sparkles", 1, 1, (0.13, 0.26, 0.52, 1.17, 1.3)),
        ("caustic_refraction", 0, 1, (26.32, 35.84, 54.88, 73.92, 102.48)),
        ("caustic_refraction", 1, 1, (0.47, 0.64, 0.98, 1.32, 1.83)),
    ],
)
def test_constants_at_224_pixels_are_the_published_ones(name, position, unit, published):
    settings = [cbar.CORRUPTIONS[name].arrays(severity, 224, 224)[position] for severity in range(1, 6)]
    np.testing.assert_allclose(np.multiply(settings, unit), published, rtol=1e-6)


def one_pixel(name, severity, value, drawn, row=0, column=0):
    """A pixel of a constant image after a change, with 8 bits."""
    image = np.full((1, HEIGHT, WIDTH, 3), value / 255, np.float32)
    result = changed(name, severity, image, jax.tree.map(lambda array: np.asarray(array)[None], drawn))
    return (np.asarray(corruption.truncated(result))[0, row, column] * 255).round(3).tolist()


def test_values_computed_by_hand():
    zero = np.float32(0)
    crest = cbar.Wave(zero, zero, np.float32(math.pi / 2))
    assert one_pixel("single_frequency_greyscale", 1, 100, crest) == [119] * 3  # 119.6
    still = cbar.Plasma(np.float32(1), zero, np.int32(0), np.float32(0.5))
    assert one_pixel("plasma_noise", 1, 100, still) == [88] * 3  # the noise is 0 at the first pixel
    perlin = jax.tree.map(lambda array: array[0], many_drawn("perlin_noise"))
    assert one_pixel("perlin_noise", 1, 100, perlin) == [106] * 3  # the noise is 0 at lattice points: 77 + 0.23 · 127.5


def test_sparkles_computed_by_hand():
    image = np.full((40, 1, 1), 100 / 255, np.float32)
    rays = cbar.Rays(np.float32(-20), np.float32(0), np.int32(51), np.zeros(199, np.float32))  # straight down is halfway between two rays
    glow = jax.jit(cbar.glow)
    weight = glow(image, rays, np.full(199, 10.0, np.float32), 1)
    np.testing.assert_allclose(weight[0], 0.25, rtol=1e-5)
    assert math.floor(100 + float(weight[0, 0, 0]) * 155) == 138
    weight = glow(image, rays._replace(row=np.float32(-112)), np.full(199, 56.0, np.float32), 0.13)
    np.testing.assert_allclose(weight[0], 0.835088, rtol=1e-5)
    assert math.floor(255 + float(weight[0, 0, 0]) * (100 - 255)) == 125


def test_pixels_in_an_inverse_sparkle_keep_their_levels():
    drawn = first_drawn("inverse_sparkles")
    np.testing.assert_array_equal(CHANGE["inverse_sparkles"](IMAGE, drawn, np.float32(1e6), np.float32(1)), IMAGE)


def test_truncation_keeps_8_bits_and_clips():
    whole = np.arange(256, dtype=np.float32)
    truncated = jax.jit(corruption.truncated)
    for image in (whole / np.float32(255), whole * np.float32(1 / 255)):  # compilers may make the first the second
        np.testing.assert_allclose(truncated(image), image, rtol=1e-6)
    np.testing.assert_allclose(truncated(np.array([-0.5, 0.9999, 1.5], np.float32)), [0, 254 / 255, 1], rtol=1e-6)


def test_between_pixels_images_are_bilinear_and_outside_black():
    image = np.array([[0.2, 0.4], [0.6, 1.0]], np.float32)[..., None]
    row, column = np.array([[0, 0.5, -0.25, 1.5, -1, 9]], np.float32), np.array([[1, 0.5, 0, 1, 0, -9]], np.float32)
    np.testing.assert_allclose(jax.jit(cbar.sampled)(image, row, column)[0, :, 0], [0.4, 0.55, 0.15, 0.5, 0, 0], atol=1e-6)


def test_steep_water_moves_light_and_flat_water_does_not():
    down, across = np.array([[1, 0.04]]), np.zeros((1, 2))  # cosines 0.7071 and 0.9992
    moved = jax.jit(cbar.refraction)(down, across, 100)
    expected = 100 * math.sqrt(0.5) * (math.sqrt(31 / 32) - math.sqrt(0.5) / 4)
    np.testing.assert_allclose(moved, [[[round(expected, 3), 0]], [[0, 0]]], rtol=1e-6)


def test_a_perlin_gradient_of_length_zero_stays_zero():
    drawn = first_drawn("perlin_noise")._replace(gradients=np.zeros((2, 256, 2), np.int32))
    np.testing.assert_allclose(changed("perlin_noise", 5, IMAGE, drawn), 0.56 * IMAGE + 0.44 * 0.5, atol=1e-5)


def assert_uniform(values, low, high):
    """By the largest distance between distribution functions (Kolmogorov and Smirnov), which is below 0.1 in 99 of 100 cases."""
    values = np.sort(np.ravel(values)[:256])
    assert low <= values[0] and values[-1] <= high
    assert abs((values - low) / (high - low) - (np.arange(256) + 0.5) / 256).max() < 0.1


def test_draws_follow_the_published_distributions():
    wave = many_drawn("single_frequency_greyscale")
    higher = np.where(abs(wave.row) > abs(wave.column), wave.row, wave.column)
    lower = np.where(abs(wave.row) > abs(wave.column), wave.column, wave.row)
    assert_uniform(higher, -math.pi, math.pi)
    assert_uniform(lower / higher, -1, 1)
    assert_uniform(wave.phase, 0, 2 * math.pi)
    assert 0.4 < (higher == wave.row).mean() < 0.6

    rings = many_drawn("cocentric_sine_waves")
    for values, most in zip(rings, (HEIGHT, WIDTH, 10, SIDE / 10, SIDE / 10), strict=True):
        assert_uniform(values, 0, most)

    plasma = many_drawn("plasma_noise")
    assert_uniform(plasma.scale / SIDE, 0.075, 0.2)
    assert_uniform(plasma.time, 0, 6 * math.pi)
    assert_uniform(plasma.sharpness, 0.5, 1)
    iterations, counts = np.unique(plasma.iterations, return_counts=True)
    assert iterations.tolist() == [4, 5, 6] and (abs(counts / 256 - 1 / 3) < 0.1).all()

    perlin = many_drawn("perlin_noise")
    assert (np.sort(perlin.permutation, 1) == np.arange(256)).all()
    assert_uniform(perlin.gradients, -256, 255)

    board = many_drawn("checkerboard_cutout")
    assert_uniform(board.angle, 0, 2 * math.pi)
    assert_uniform(board.cell / SIDE, 0.1, 0.25)

    sparkles, inverse = many_drawn("sparkles"), many_drawn("inverse_sparkles")
    for rays, margin in ((sparkles, 0), (inverse, 0.25)):
        assert_uniform(rays.row / HEIGHT, margin, 1 - margin)
        assert_uniform(rays.column / WIDTH, margin, 1 - margin)
        assert_uniform(rays.number, 50, 199)
        assert abs(rays.lengths.mean()) < 0.02 and abs(rays.lengths.std() - 1) < 0.02
    assert (sparkles.number.min(), sparkles.number.max()) == (50, 199)

    caustics = many_drawn("caustic_refraction")
    assert_uniform(caustics.size / SIDE, 0.75, 1.25)
    assert_uniform(caustics.time, 0.5, 2)


@pytest.mark.parametrize(("name", "of_pixel", "share"), [("blue_noise_sample", 0, 0.206), ("checkerboard_cutout", cbar.GREY, 0.3)])
def test_shares_of_cut_pixels_are_the_published_ones(name, of_pixel, share):
    result = changed(name, 5, np.ones((256, HEIGHT, WIDTH, 1), np.float32), many_drawn(name))
    assert abs((abs(result - of_pixel) < 1e-6).mean() - share) < 0.02


def test_noise_of_odd_width_has_its_middle_column_once():
    left = np.arange(12, dtype=np.float32).reshape(3, 4)
    right = left[::-1, 2::-1]
    amplitude = np.hypot(*np.meshgrid([-1, 0, 1], np.arange(-3, 4), indexing="ij"))
    noise = np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * np.concatenate([left, right], 1)))).real
    np.testing.assert_allclose(jax.jit(cbar.spectral_noise)(left, amplitude.astype(np.float32)), noise / noise.std(), atol=1e-5)
