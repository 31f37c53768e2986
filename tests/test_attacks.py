"""Attacks against values computed by hand, and against transcriptions in NumPy with gradients derived by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbed.measures import attacks, balls

SHAPE, CLASSES, HIDDEN = (2, 3, 2), 5, 8
PIXELS = int(np.prod(SHAPE))
PGD, PGD_L2 = attacks.pgd_linf(), attacks.pgd_l2()
APGD, APGD_L2 = attacks.apgd_ce(steps=40), attacks.apgd_ce("l2", steps=40)
DLR = attacks.apgd_targeted_dlr(CLASSES, "l2", steps=12)


def weights(seed, scale=1):
    rng = np.random.default_rng(seed)
    shapes = {"inner": (PIXELS, HIDDEN), "shift": (HIDDEN,), "outer": (HIDDEN, CLASSES)}
    return {name: scale * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@jax.jit
def mlp(params, image):
    flat = image.reshape(len(image), -1) - 0.5
    return jnp.tanh(flat @ params["inner"] + params["shift"]) @ params["outer"]


def data(seed, number):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 0.9, (number, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, number)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def draw(one, number, shape, seed):
    return jax.vmap(lambda key: one(key, shape))(jax.random.split(jax.random.key(seed), number))


def drawn_for(attack, number, shape=SHAPE, seed=0):
    return np.asarray(draw(attack.draw, number, shape, seed))


@functools.cache
def compiled(attack, network):
    def of(function):
        return jax.jit(lambda params, *rest: function(functools.partial(network, params), *rest))

    return of(attack.start), of(attack.step), of(attack.end)


def attacked(attack, network, params, image, label, radius, drawn=None, run=0):
    """(last, best, all iterates, last state)"""
    start, step, end = compiled(attack, network)
    drawn = drawn_for(attack, len(image), image.shape[1:]) if drawn is None else drawn
    label = np.asarray(label, np.int32)
    states = [start(params, image, label, drawn, radius, run)]
    for number in range(attack.steps):
        states.append(step(params, states[-1], image, label, number, radius))
    last, best = end(params, states[-1], image, label, radius)
    return np.asarray(last), np.asarray(best), np.stack([state.point for state in states]), states[-1]


def cross_entropy(params, point, label):
    """Loss [B] and gradient [B, H, W, C] of the network, in double precision."""
    hidden = np.tanh((point.reshape(len(point), -1) - 0.5) @ params["inner"].astype(float) + params["shift"])
    logits = hidden @ params["outer"].astype(float)
    log_sum = np.log(np.exp(logits).sum(1))
    at_logits = np.exp(logits - log_sum[:, None]) - np.eye(CLASSES)[label]
    gradient = (at_logits @ params["outer"].T * (1 - hidden**2)) @ params["inner"].T
    return log_sum - logits[np.arange(len(label)), label], gradient.reshape(point.shape)


def length(change):
    return np.sqrt((change.astype(float) ** 2).sum((1, 2, 3), keepdims=True))


def stepped(norm, image, point, gradient, size, radius):
    """One step of a length, projected; a gradient too near 0 for its sign to be sure is a mistake of the test."""
    if norm == "linf":
        assert np.abs(gradient).min() > 1e-4 * np.abs(gradient).max()
        return projected(norm, image, point + size * np.sign(gradient), radius)
    return projected(norm, image, point + size * gradient / length(gradient), radius)


def projected(norm, image, point, radius):
    if norm == "linf":
        return np.clip(np.clip(point, image - radius, image + radius), 0, 1)
    return np.clip(image + (point - image) * np.minimum(1, radius / length(point - image)), 0, 1)


@pytest.mark.parametrize(("pixel", "label", "expected"), [(0.5, 0, 0.4980392), (0.5, 1, 0.5019608), (0.001, 0, 0.0), (0.999, 1, 1.0)])
def test_one_pixel_by_hand(pixel, label, expected):
    image = np.full((1, 1, 1, 1), pixel, np.float32)
    last, best, iterates, _ = attacked(PGD, one_pixel, None, image, [label], np.float32(0.5 / 255))
    np.testing.assert_allclose([last.item(), best.item(), *iterates[1:].ravel()], expected, atol=1e-6)


def one_pixel(params, image):
    return jnp.concatenate([image[:, 0, 0], 0 * image[:, 0, 0]], -1)


@pytest.mark.parametrize(("norm", "attack", "radius", "size"), [("linf", PGD, 8 / 255, 2 / 255), ("l2", PGD_L2, 0.5, 0.0125)])
def test_pgd_as_transcribed(norm, attack, radius, size):
    params, (image, label) = weights(3), data(3, 3)
    drawn = drawn_for(attack, 3)
    points = [np.clip(image + radius * drawn, 0, 1).astype(float)]
    for _ in range(attack.steps):
        _, gradient = cross_entropy(params, points[-1], label)
        points.append(stepped(norm, image, points[-1], gradient, size, radius))
    _, _, iterates, _ = attacked(attack, mlp, params, image, label, np.float32(radius), drawn)
    np.testing.assert_allclose(iterates, np.stack(points), atol=1e-4)
    assert np.abs(points[-1] - points[0]).max() > radius / 10


def apgd(norm, params, image, label, start, radius, steps, checks):
    """All points and step sizes of one image, as in the paper's algorithm 1. Comparisons too close to call are mistakes of the test."""
    loss_of = functools.partial(cross_entropy, params, label=label)

    def higher(loss, other):
        assert abs(loss - other) > 1e-4
        return loss > other

    point, previous, size, rises, halved, checked = start, start, 2 * radius, 0, False, None
    (loss,), gradient = loss_of(point)
    best, points, sizes = (loss, point, gradient), [start], []
    for number in range(1, steps + 1):
        ahead = stepped(norm, image, point, gradient, size, radius)
        share = 0.75 if number > 1 else 1.0
        moved = point + share * (ahead - point) + (1 - share) * (point - previous)
        before, previous, point = loss, point, projected(norm, image, moved, radius)
        points.append(point)
        sizes.append(size)
        (loss,), gradient = loss_of(point)
        rises += higher(loss, before)
        best = (loss, point, gradient) if higher(loss, best[0]) else best
        if number in checks:
            since = number - max((each for each in checks if each < number), default=0)
            halved = rises < 0.75 * since or (not halved and checked is not None and best[0] <= checked)
            rises, checked = 0, best[0]
            if halved:
                size, (loss, point, gradient) = size / 2, best
    return points, sizes


@pytest.mark.parametrize(  # no comparison and no sign is close; seeds 96 and 300 depend on every rule of a checkpoint
    ("norm", "attack", "radius", "seed", "scale"), [("linf", APGD, 0.3, 96, 2), ("linf", APGD, 0.5, 300, 2), ("l2", APGD_L2, 1.2, 1, 1)]
)
def test_apgd_as_transcribed(norm, attack, radius, seed, scale):
    params, (image, label) = weights(seed, scale), data(seed, 2)
    drawn = drawn_for(attack, 2)
    _, _, iterates, state = attacked(attack, mlp, params, image, label, np.float32(radius), drawn)
    for row in range(2):
        one = slice(row, row + 1)
        start = np.clip(image[one] + radius * drawn[one], 0, 1).astype(float)
        points, sizes = apgd(norm, params, image[one], label[one], start, radius, attack.steps, (9, 17, 23, 28, 32, 35, 38))
        np.testing.assert_allclose(iterates[:, one], np.stack(points), atol=1e-4)
        assert state.size[row] == pytest.approx(sizes[-1]) and sizes[-1] < 2 * radius  # halved at least once


def test_checkpoints_are_those_of_the_paper():
    assert attacks.checkpoints(100) == (22, 41, 57, 70, 80, 87, 93, 99)
    assert attacks.checkpoints(1) == ()


@pytest.mark.parametrize("attack", [PGD, PGD_L2, APGD, APGD_L2, DLR], ids=["pgd_linf", "pgd_l2", "apgd_linf", "apgd_l2", "dlr_l2"])
def test_iterates_stay_in_the_ball_and_radius_0_leaves_images_alone(attack):
    params, (image, label) = weights(4, 2), data(4, 6)
    image[0], image[1] = 0, 1  # black and white
    measure = (lambda change: np.abs(change).max()) if attack in (PGD, APGD) else (lambda change: length(change).max())
    for radius in (0.1, 0.8):
        last, best, iterates, _ = attacked(attack, mlp, params, image, label, np.float32(radius))
        for point in (*iterates, last, best):
            assert measure(point - image) <= radius + 1e-6 and point.min() >= 0 and point.max() <= 1
        assert measure(last - image) > 0.5 * radius
    for unchanged in attacked(attack, mlp, params, image, label, np.float32(0))[:3]:
        assert (unchanged == image).all()


def right(params, image, label):
    return np.asarray(mlp(params, image)).argmax(1) == label


def test_more_radius_is_not_less_harm_and_best_is_the_worst_of_all_iterates():
    params, (image, _) = weights(5), data(5, 32)
    label = np.asarray(mlp(params, image)).argmax(1)
    accuracy = []
    for radius in (0, 0.01, 0.05, 0.1, 0.2, 0.5):
        last, best, iterates, _ = attacked(PGD, mlp, params, image, label, np.float32(radius))
        never_wrong = np.all([right(params, point, label) for point in iterates], 0)
        assert (right(params, best, label) == never_wrong).all()
        assert not (right(params, best, label) & ~right(params, last, label)).any()
        wrongs = np.stack([cross_entropy(params, point, label)[0] + 1e3 * ~right(params, point, label) for point in iterates])
        np.testing.assert_allclose(cross_entropy(params, best, label)[0], wrongs.max(0) % 1e3, atol=1e-4)
        accuracy.append(right(params, best, label).mean())
    assert accuracy[0] == 1 and accuracy[-1] < 0.5
    assert accuracy == sorted(accuracy, reverse=True)


def test_wrong_comes_before_the_highest_loss_and_madry_has_the_highest_loss():
    def crossing(params, image):  # wrong at 0.5; a step later right, by a little, with a higher loss
        way = (image[:, 0, 0] - 0.5) * 255 / 2
        return jnp.concatenate([0 * way, 0.1 - 0.2 * way, -1.5 + 1.4 * way], -1)

    image, radius = np.full((1, 1, 1, 1), 0.5, np.float32), np.float32(2 / 255)
    for variant, expected in (("foolbox", 0.5), ("madry", 0.5 + 2 / 255)):
        attack = attacks.pgd_linf(1, variant=variant, random_start=False)
        last, best, _, _ = attacked(attack, crossing, None, image, [0], radius)
        assert last.item() == pytest.approx(0.5 + 2 / 255) and best.item() == pytest.approx(expected)


def test_auto_pgd_is_stronger_where_steps_of_pgd_are_too_long():
    params, (image, _) = weights(6, 3), data(6, 64)
    label = np.asarray(mlp(params, image)).argmax(1)
    radius = np.float32(0.05)
    long = attacks.pgd_linf(40, 4 * 0.05)  # as published: four times the radius
    by_pgd, by_apgd = (attacked(attack, mlp, params, image, label, radius) for attack in (long, APGD))
    assert right(params, by_apgd[1], label).sum() < right(params, by_pgd[1], label).sum()


def test_targeted_dlr_by_hand():
    logits, label, target = np.float32([[4, 1, 3, 0], [5, 1, 3, 2]]), np.array([0, 2]), np.array([1, 0])
    targeted_dlr = jax.jit(attacks.targeted_dlr)
    expected = [-(4 - 1) / (4 - 0.5), -(3 - 5) / (5 - 1.5)]
    np.testing.assert_allclose(targeted_dlr(logits, label, target), expected, atol=1e-6)
    np.testing.assert_allclose(targeted_dlr(7 * logits + 5, label, target), expected, atol=1e-5)


def test_targets_are_the_nearest_classes_but_the_label():
    attack = attacks.apgd_targeted_dlr(4)
    assert attack.runs == 3 and attacks.apgd_targeted_dlr(1000).runs == 9
    start, _, _ = compiled(attack, lambda params, image: jnp.array([[5.0, 1, 3, 2]] * 2))
    image = np.zeros((2, 1, 1, 1), np.float32)
    targets = [start(None, image, jnp.array([0, 2]), image, 0.1, run).target.tolist() for run in range(3)]
    assert targets == [[2, 0], [3, 3], [1, 1]]
    with pytest.raises(ValueError, match="use apgd_ce for fewer"):
        attacks.apgd_targeted_dlr(3)
    with pytest.raises(ValueError, match="classes = 4, and the network has 5"):
        attack.start(lambda image: jnp.zeros((2, 5)), image, jnp.array([0, 2]), image, 0.1)


def test_two_networks_at_once_as_each_alone():
    image, label = data(7, 4)
    each = [weights(7), weights(8)]
    drawn, radius = drawn_for(DLR, 4), np.float32(0.3)
    apart = [attacked(DLR, mlp, params, image, label, radius, drawn, run=1) for params in each]
    start, step, end = (jax.jit(jax.vmap(function, (0, *rest))) for function, rest in batched(DLR))
    params = jax.tree.map(lambda *arrays: np.stack(arrays), *each)
    state = start(params, image, label, drawn, radius, 1)
    for number in range(DLR.steps):
        state = step(params, state, image, label, number, radius)
    last, best = end(params, state, image, label, radius)
    for row in range(2):
        np.testing.assert_allclose(last[row], apart[row][0], atol=1e-4)
        np.testing.assert_allclose(best[row], apart[row][1], atol=1e-4)
        assert (state.target[row] == apart[row][3].target).all()
    assert (state.target[0] != state.target[1]).any()


def batched(attack):
    def of(function):
        return lambda params, *rest: function(functools.partial(mlp, params), *rest)

    return (of(attack.start), [None] * 5), (of(attack.step), (0, *[None] * 4)), (of(attack.end), (0, *[None] * 3))


@pytest.mark.parametrize("attack", [PGD, PGD_L2, APGD_L2], ids=["pgd_linf", "pgd_l2", "apgd_l2"])
def test_vanished_gradients_are_reported(attack):
    def half_dead(params, image):  # the first image is too dark for the only unit, the third overflows
        lit = jax.nn.relu(image.mean((1, 2)) - 0.5)
        overflown = jnp.where(image.mean((1, 2)) > 0.85, jnp.inf, 1.0)
        return jnp.concatenate([lit * overflown, 0.01 * (1 - lit)], -1)

    image = np.stack([np.full((2, 2, 1), value, np.float32) for value in (0.1, 0.7, 0.95)])
    _, _, iterates, state = attacked(attack, half_dead, None, image, [0, 0, 0], np.float32(0.05))
    assert state.zero_gradient.tolist() == [True, False, True]
    assert np.isfinite(iterates).all() and (iterates[-1, 1] < image[1]).all()


def test_starts_fill_the_ball_or_its_surface():
    ball = drawn_for(PGD_L2, 4000).reshape(4000, -1).astype(float)
    radii = np.linalg.norm(ball, axis=1)
    assert radii.max() <= 1 and abs((radii**PIXELS).mean() - 0.5) < 0.03 and np.abs(ball.mean(0)).max() < 0.03
    cube = drawn_for(PGD, 4000)
    assert np.abs(cube).max() <= 1 and abs((cube**2).mean() - 1 / 3) < 0.01
    np.testing.assert_allclose(np.abs(drawn_for(APGD, 9)).max((1, 2, 3)), 1)
    for on_sphere in (APGD_L2, attacks.pgd_l2(variant="madry", random_start=True)):
        np.testing.assert_allclose(length(drawn_for(on_sphere, 9)), 1, atol=1e-5)
    assert attacks.pgd_l2(variant="madry").draw is attacks.pgd_linf(variant="madry").draw is balls.draw_nothing
    assert not drawn_for(attacks.pgd_l2(variant="madry"), 2).any()


def test_right_under_all_runs():
    found = attacks.right_under_all([np.array([True, True, False]), jnp.array([True, False, True])])
    assert found.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="no run"):
        attacks.right_under_all([])


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="norm = 'l1': choose one of linf, l2"):
        attacks.apgd_ce("l1")
    for attack in (attacks.pgd_linf, attacks.pgd_l2):
        with pytest.raises(ValueError, match="variant = 'torch': choose one of foolbox, madry"):
            attack(variant="torch")
