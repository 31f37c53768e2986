"""Adversarial attacks: for each image, a nearby one in the maximum or the Euclidean norm that a network gets as wrong as possible.

An attack is a set of pure functions for one network and one batch. The caller compiles them and loops in Python, for each of `runs`:

    state = attack.start(logits_of, image, label, drawn, radius, run)
    for number in range(attack.steps):
        state = attack.step(logits_of, state, image, label, number, radius)
    last, best = attack.end(logits_of, state, image, label, radius)

`logits_of` maps images [B, H, W, C] in [0, 1] to logits [B, classes]. It scales the pixels itself, computes in float32 (lower precision
changes the signs of gradients) and treats images independently: gradients are those of the loss summed over the batch. Images are
float32, labels are integers [B], and `radius` is in the unit of pixels. `radius`, `number` and `run` may be traced, so that all radii,
steps and targets share one program. Only `step` has a gradient. It belongs in no loop primitive, where the gradients of convolutions are
30 to 50 times slower on the CPU.

Sources: Madry et al., "Towards Deep Learning Models Resistant to Adversarial Attacks" (2018), as in Foolbox 3 and in MadryLab/robustness;
Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free attacks" (2020). Differences:
`best` (Foolbox returns the last iterate), and gradients that are not finite count as zero, also in `zero_gradient`. `apgd_ce` lists what
differs from the AutoAttack package.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.measures import balls
from jaxbed.methods.parts import losses

Scalar = jax.Array | float
LogitsOf = Callable[[jax.Array], jax.Array]
Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # (logits [B, classes], label [B], target [B]) -> [B], to be raised
PGD_STEP = 2 / 255  # in the unit of pixels, whatever the radius
PGD_L2_STEP = 0.025  # as a share of the radius
MOMENTUM = 0.75  # share of the new step in APGD's move
RHO = 0.75  # share of APGD's steps that have to raise the loss
TARGETS = 9
DLR_CLASSES = 4  # the fewest: so many logits does the targeted loss compare
STEPS, L2_STEPS, APGD_STEPS = 40, 50, 100
CONSTANTS = {  # what answers to attacks depend on
    "pgd_linf": {"steps": STEPS, "step": PGD_STEP},
    "pgd_l2": {"steps": L2_STEPS, "step_of_radius": PGD_L2_STEP},
    **{kind: {"steps": APGD_STEPS, "momentum": MOMENTUM, "rho": RHO} for kind in ("apgd_ce", "apgd_dlr")},
}
CONSTANTS["apgd_dlr"]["targets"] = TARGETS
VARIANTS = ("foolbox", "madry")


class Attack(NamedTuple):
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array]  # (key, [H, W, C]) -> displacement of one image, in units of the radius
    start: Callable[..., Any]  # (logits_of, image, label, drawn [B, H, W, C], radius, run=0) -> state
    step: Callable[..., Any]  # (logits_of, state, image, label, number, radius) -> state
    end: Callable[..., tuple[jax.Array, jax.Array]]  # (logits_of, state, image, label, radius) -> (last, best) [B, H, W, C]
    steps: int
    runs: int = 1  # number of targets; each run has a random start of its own


class Worst(NamedTuple):
    """The worst iterate of each image: a misclassified one before others (except in "madry"), then the one of the highest loss."""

    image: jax.Array  # [B, H, W, C]
    loss: jax.Array  # [B]
    wrong: jax.Array  # [B] bool


class PGDState(NamedTuple):
    point: jax.Array  # [B, H, W, C]: the iterate
    worst: Worst
    zero_gradient: jax.Array  # [B] bool: all of it exactly 0 at the start, so that robustness may be an artefact


class Ascent(NamedTuple):
    """A point from which the loss can be raised."""

    point: jax.Array  # [B, H, W, C]
    loss: jax.Array  # [B]
    gradient: jax.Array  # [B, H, W, C]


class APGDState(NamedTuple):
    point: jax.Array  # [B, H, W, C]: the iterate
    worst: Worst
    zero_gradient: jax.Array  # [B] bool, as in PGDState
    target: jax.Array  # [B] int32
    left: jax.Array  # [B, H, W, C]: the point that the last step left
    left_loss: jax.Array  # [B]
    best: Ascent  # highest loss so far, right or wrong
    size: jax.Array  # [B]: length of steps
    rises: jax.Array  # [B] int32: steps since the last checkpoint that raised the loss
    checked_loss: jax.Array  # [B]: best loss at the last checkpoint
    halved: jax.Array  # [B] bool: the last checkpoint halved the steps


def pgd_linf(steps: int = STEPS, step_size: float = PGD_STEP, variant: str = "foolbox", random_start: bool | None = None) -> Attack:
    """Projected gradient ascent on the cross-entropy in the maximum norm: steps along the sign of the gradient, in the unit of pixels.

    "foolbox" starts uniformly in the ball unless random_start is False; "madry" does so only if it is True, and its `best` is the
    iterate of the highest loss, right or wrong. Raises ValueError for another variant.
    """
    draw = balls.draw_in_cube if _starts_at_random(variant, random_start) else balls.draw_nothing
    return _pgd(draw, jnp.sign, balls.project_linf, lambda radius: step_size, steps, variant)


def pgd_l2(steps: int = L2_STEPS, relative_step: float = PGD_L2_STEP, variant: str = "foolbox", random_start: bool | None = None) -> Attack:
    """Projected gradient ascent on the cross-entropy in the Euclidean norm: steps along the normalized gradient, in units of the radius.

    As `pgd_linf`, except that "madry" starts on the surface of the ball if random_start is True, and divides gradients by norms to which
    1e-10 is added instead of norms of at least 1e-12.
    """
    draw, direction = (balls.draw_on_sphere, balls.normalize_madry) if variant == "madry" else (balls.draw_in_ball, balls.normalize)
    draw = draw if _starts_at_random(variant, random_start) else balls.draw_nothing
    return _pgd(draw, direction, balls.project_l2, lambda radius: relative_step * radius, steps, variant)


def apgd_ce(norm: str = "linf", steps: int = APGD_STEPS) -> Attack:
    """Auto-PGD on the cross-entropy: momentum, and steps that are halved where the loss does not rise. Raises ValueError for a norm.

    norm: "linf" or "l2". Differences from the AutoAttack package, the first two being the paper's: steps are halved if fewer than RHO of
    them raised the loss (there, if no more than RHO); checkpoints are rounded up (for 100 steps they are the same); the step after a
    restart is compared with the point it left (there, with the discarded one); the first step counts as a rise only if it is one (there,
    if its loss is positive); `best` is the misclassified iterate of the highest loss (there, the last one); images that are wrong
    already are attacked too.
    """
    return _apgd(norm, steps, _cross_entropy)


def apgd_targeted_dlr(classes: int, norm: str = "linf", steps: int = APGD_STEPS, targets: int = TARGETS) -> Attack:
    """Auto-PGD on the targeted difference-of-logits ratio: run r, from 0, aims at the r-th highest other class.

    Classes except the label are ranked on the clean image. Where it is right, targets are those from 2nd to 10th, as in the AutoAttack
    package, which attacks no others. Networks of fewer classes have fewer targets. `apgd_ce` lists the other differences. Raises ValueError
    for fewer than 4 classes, and when a network with another number of classes is attacked.
    """
    if classes < DLR_CLASSES:
        raise ValueError(f"classes = {classes}: the targeted DLR loss compares {DLR_CLASSES} logits; use apgd_ce for fewer classes")

    def ranked(logits: jax.Array, label: jax.Array, run: jax.Array) -> jax.Array:
        if logits.shape[-1] != classes:
            raise ValueError(f"classes = {classes}, and the network has {logits.shape[-1]}: give the number of its logits")
        others = jnp.where(jnp.arange(classes) == label[:, None], -jnp.inf, logits)
        return jnp.take(jnp.argsort(-others, axis=-1), run, axis=-1).astype(jnp.int32)

    return _apgd(norm, steps, targeted_dlr, min(targets, classes - 1), ranked)


def targeted_dlr(logits: jax.Array, label: jax.Array, target: jax.Array) -> jax.Array:
    """-(z_y - z_t) / (z_1 - (z_3 + z_4)/2), shape [B], of logits z [B, at least 4] that are ranked in the denominator.

    As in the AutoAttack package, 1e-12 is added to the denominator. Source: Croce and Hein (2020), equation 7.
    """
    ranked = jax.lax.top_k(logits, 4)[0]
    own, aimed = jnp.take_along_axis(logits, jnp.stack([label, target], -1), -1).T
    return (aimed - own) / (ranked[:, 0] - (ranked[:, 2] + ranked[:, 3]) / 2 + 1e-12)


def right_under_all(right: Sequence[jax.Array | np.ndarray]) -> np.ndarray:
    """Which images [..., B] are right in every run of every attack: right [..., B] of each run. Add the clean answers for them to count.

    Raises ValueError for no run at all.
    """
    if not right:
        raise ValueError("no run is given, under which all images would be right: give the answers to at least one")
    return np.logical_and.reduce([np.asarray(each, bool) for each in right])


def checkpoints(steps: int) -> tuple[int, ...]:
    """Numbers of steps after which APGD checks its progress: ceil(p_j · steps), as the paper has it."""
    before, percent, found = 0, 22, []  # integers: a binary fraction a little too large would be rounded up
    while percent <= 100:
        found.append(-(-percent * steps // 100))
        before, percent = percent, percent + max(percent - before - 3, 6)
    return tuple(sorted({each for each in found if each < steps}))


def _pgd(draw: Callable, direction: Callable, project: Callable, size: Callable, steps: int, variant: str) -> Attack:
    worse = functools.partial(_worse, wrong_first=variant == "foolbox")

    def start(logits_of: LogitsOf, image: jax.Array, label: jax.Array, drawn: jax.Array, radius: Scalar, run: Scalar = 0) -> PGDState:
        point = balls.clip(image + radius * drawn)
        return PGDState(point, _none_yet(point), jnp.zeros(label.shape, bool))

    def step(logits_of: LogitsOf, state: PGDState, image: jax.Array, label: jax.Array, number: Scalar, radius: Scalar) -> PGDState:
        here, wrong = _ascent(_cross_entropy, logits_of, state.point, label, label)
        point = project(image, here.point + size(radius) * direction(here.gradient), radius)
        zero = jnp.where(number == 0, _is_zero(here.gradient), state.zero_gradient)
        return PGDState(point, worse(state.worst, here.point, here.loss, wrong), zero)

    def end(logits_of: LogitsOf, state: PGDState, image: jax.Array, label: jax.Array, radius: Scalar) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(state.point)
        worst = worse(state.worst, state.point, _cross_entropy(logits, label, label), _is_wrong(logits, label))
        return state.point, worst.image

    return Attack(draw, start, step, end, steps)


def _apgd(norm: str, steps: int, loss: Loss, runs: int = 1, target_of: Callable | None = None) -> Attack:
    if norm not in _APGD_NORMS:
        raise ValueError(f"norm = {norm!r}: choose one of {', '.join(_APGD_NORMS)}")
    draw, direction, project = _APGD_NORMS[norm]
    windows = np.zeros(steps, np.int32)  # steps since the checkpoint before, where there is one
    windows[list(checkpoints(steps))] = np.diff((0, *checkpoints(steps)))

    def start(logits_of: LogitsOf, image: jax.Array, label: jax.Array, drawn: jax.Array, radius: Scalar, run: Scalar = 0) -> APGDState:
        point = balls.clip(image + radius * drawn)
        lowest, no = jnp.full(label.shape, -jnp.inf, jnp.float32), jnp.zeros(label.shape, bool)
        return APGDState(
            point=point,
            worst=_none_yet(point),
            zero_gradient=no,
            target=target_of(logits_of(image), label, run) if target_of else label,
            left=point,
            left_loss=-lowest,  # the start is no rise
            best=Ascent(point, lowest, jnp.zeros_like(point)),
            size=jnp.full(label.shape, 2 * radius, jnp.float32),
            rises=jnp.zeros(label.shape, jnp.int32),
            checked_loss=lowest,  # the first checkpoint always finds a better one, as in the AutoAttack package
            halved=no,
        )

    def step(logits_of: LogitsOf, state: APGDState, image: jax.Array, label: jax.Array, number: Scalar, radius: Scalar) -> APGDState:
        here, wrong = _ascent(loss, logits_of, state.point, label, state.target)
        best = _select(here.loss > state.best.loss, here, state.best)
        rises = state.rises + (here.loss > state.left_loss)
        window = jnp.asarray(windows)[number]
        check = window > 0
        stuck = ~state.halved & (best.loss <= state.checked_loss)
        halve = check & ((rises < RHO * window) | stuck)
        base = _select(halve, best, here)
        size = jnp.where(halve, state.size / 2, state.size)
        ahead = project(image, base.point + size[:, None, None, None] * direction(base.gradient), radius)
        share = jnp.where(number == 0, 1, MOMENTUM)
        moved = base.point + share * (ahead - base.point) + (1 - share) * (base.point - state.left)
        return APGDState(
            point=project(image, moved, radius),
            worst=_worse(state.worst, here.point, here.loss, wrong),
            zero_gradient=jnp.where(number == 0, _is_zero(here.gradient), state.zero_gradient),
            target=state.target,
            left=base.point,
            left_loss=base.loss,
            best=best,
            size=size,
            rises=jnp.where(check, 0, rises),
            checked_loss=jnp.where(check, best.loss, state.checked_loss),
            halved=jnp.where(check, halve, state.halved),
        )

    def end(logits_of: LogitsOf, state: APGDState, image: jax.Array, label: jax.Array, radius: Scalar) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(state.point)
        worst = _worse(state.worst, state.point, loss(logits, label, state.target), _is_wrong(logits, label))
        return state.point, worst.image

    return Attack(draw, start, step, end, steps, runs)


def _starts_at_random(variant: str, random_start: bool | None) -> bool:
    if variant not in VARIANTS:
        raise ValueError(f"variant = {variant!r}: choose one of {', '.join(VARIANTS)}")
    return variant == "foolbox" if random_start is None else random_start


def _cross_entropy(logits: jax.Array, label: jax.Array, target: jax.Array) -> jax.Array:
    return losses.cross_entropy(logits, label)


def _ascent(loss: Loss, logits_of: LogitsOf, point: jax.Array, label: jax.Array, target: jax.Array) -> tuple[Ascent, jax.Array]:
    """Loss and gradient at a point, and which images [B] are wrong there."""

    def summed(point: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits = logits_of(point)
        each = loss(logits, label, target)
        return each.sum(), (each, _is_wrong(logits, label))

    gradient, (each, wrong) = jax.grad(summed, has_aux=True)(point)
    return Ascent(point, each, jnp.where(jnp.isfinite(gradient), gradient, 0)), wrong


def _is_wrong(logits: jax.Array, label: jax.Array) -> jax.Array:
    return jnp.argmax(logits, -1) != label


def _is_zero(gradient: jax.Array) -> jax.Array:
    return (gradient == 0).all((1, 2, 3))


def _none_yet(point: jax.Array) -> Worst:
    return Worst(point, jnp.full(len(point), -jnp.inf, jnp.float32), jnp.zeros(len(point), bool))


def _worse(worst: Worst, point: jax.Array, loss: jax.Array, wrong: jax.Array, wrong_first: bool = True) -> Worst:
    higher = loss > worst.loss
    if wrong_first:
        higher = (wrong & ~worst.wrong) | (wrong == worst.wrong) & higher
    return _select(higher, Worst(point, loss, wrong), worst)


def _select(chosen: jax.Array, new: Any, old: Any) -> Any:
    """Of two trees of arrays [B, ...], the first where chosen [B]."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(chosen.shape + (1,) * (a.ndim - 1)), a, b), new, old)


_APGD_NORMS = {  # start on the surface, as in the AutoAttack package; direction of steps; projection
    "linf": (balls.draw_on_cube, jnp.sign, balls.project_linf),
    "l2": (balls.draw_on_sphere, balls.normalize, balls.project_l2),
}
