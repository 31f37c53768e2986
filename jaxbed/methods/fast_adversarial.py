"""Fast adversarial training: Wong, Rice, Kolter, "Fast is better than free: Revisiting adversarial training" (2020).

Every batch is attacked with one step from a random start, in the largest norm, and trained on as it then is. With images x in [0, 1]:

    d ~ U(-epsilon, epsilon)     g = grad_d CE(f(clip(x + d, 0, 1)), y)     d <- clip(d + step sign(g), -epsilon, epsilon)
    L = mean CE(f(clip(x + d, 0, 1)), y)

BatchNorms are in training mode in both passes, and both move their running statistics. No clean image is trained on.

One step may stop to be an attack in the middle of training ("catastrophic overfitting"): validation watches an attack of five steps, as the
authors do on CIFAR-10, and a fall of accuracy is reported.

phases "imagenet": the released recipe of 15 epochs in three phases, each from the one before, which grow images and shrink batches and
learning rates. It needs random resized crops. Differs: squares of 352 px stand for whole images in the third phase. float32 or bfloat16
stand for its float16.
"""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxbed import values
from jaxbed.config import Train
from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, single
from jaxbed.methods.parts import losses
from jaxbed.models.capabilities import Network
from jaxbed.optim import Optim
from jaxbed.stages import Stage
from jaxbed.values import NotNegative


class Phase(NamedTuple):
    epochs: int
    crop_px: int
    stored_px: int
    batch_size: int
    milestones_epochs: tuple[float, ...]
    factors: tuple[float, ...]  # of a learning rate of 0.4


PHASES = (
    Phase(6, 128, 160, 512, (0, 1, 6), (0.0, 1.0, 0.1)),
    Phase(6, 224, 352, 224, (0, 6), (0.1, 0.01)),
    Phase(3, 288, 352, 128, (0, 3), (0.01, 0.001)),
)
LR = 0.4
WATCHED_STEPS = 5  # of the attack on validation images, each of a quarter of the radius


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    epsilon: NotNegative = 4.0  # radius, in 255ths of the range of pixels; the authors: 4 on ImageNet (or 2), 8 on CIFAR-10
    step: NotNegative = 5.0  # of the attack, likewise; 1.25 of the radius, as they have it
    phases: Literal["one", "imagenet"] = "one"

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]:
        if self.phases == "one":
            return (Stage("", cfg),)
        augment = getattr(cfg.data, "augment", None)
        if augment is None or augment.crop != "resized" or not hasattr(cfg.data, "stored_px"):
            raise ValueError(
                "method.phases = imagenet crops images of three sizes out of stored squares: it is for imagenet. Take phases=one"
            )
        if cfg.epochs != sum(phase.epochs for phase in PHASES):
            raise ValueError(f"epochs = {cfg.epochs}: method.phases = imagenet has {sum(phase.epochs for phase in PHASES)} in three phases")
        for field, first in fields_of(PHASES[0]).items():
            if (now := values.look_up(cfg, field, field)) != first:
                raise ValueError(f"{field} = {now}: each phase of method.phases = imagenet has its own. Leave it out, or take phases=one")
        stages = []
        for number, phase in enumerate(PHASES, 1):
            made = dataclasses.replace(in_phase(cfg, phase), method=dataclasses.replace(self, phases="one"), epochs=phase.epochs)
            name = f"phase {number}" if number < len(PHASES) else ""
            stages.append(Stage(name, made, start=f"phase {number - 1}" if number > 1 else ""))
        return tuple(stages)

    def make(self, info: Info, net: Network, optim: Optim) -> Method:
        network = net.make(info.classes)
        low, high = info.pixel_range()
        radius, step = self.epsilon / 255, self.step / 255

        def at(image: jax.Array, shift: jax.Array) -> jax.Array:
            """The batch's images with a shift in [0, 1], clipped."""
            return (low + jnp.clip((image - low) / (high - low) + shift, 0, 1) * (high - low)).astype(image.dtype)

        def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
            image, label = batch["image"].astype(jnp.float32), batch["label"]
            start_key, first_key, second_key = jax.random.split(key, 3)
            fixed = jax.lax.stop_gradient(params["net"])

            def of_shift(shift: jax.Array) -> tuple[jax.Array, PyTree]:
                logits, stats = apply_net(network, fixed, state.stats["net"], at(image, shift), True, {"dropout": first_key})
                return losses.cross_entropy(logits, label).sum(), stats

            start = jax.random.uniform(start_key, image.shape, minval=-radius, maxval=radius)
            gradient, stats = jax.grad(of_shift, has_aux=True)(start)
            attacked = at(image, shifted(start, gradient, radius, step))
            logits, stats = apply_net(network, params["net"], stats, jax.lax.stop_gradient(attacked), True, {"dropout": second_key})
            value = losses.cross_entropy(logits, label).mean()
            return value, ({"net": stats}, state.memory, {"loss": value, "accuracy": losses.accuracy(logits, label)})

        init_nets, predict = single(network)

        def attacked(params: PyTree, stats: PyTree, image: jax.Array, label: jax.Array) -> jax.Array:
            image = image.astype(jnp.float32)

            def climb(_: int, shift: jax.Array) -> jax.Array:
                gradient = jax.grad(lambda shift: losses.cross_entropy(predict(params, stats, at(image, shift)), label).sum())(shift)
                return shifted(shift, gradient, radius, radius / 4)

            # The CPU has no fast gradient of a convolution within a loop
            shift = jax.lax.fori_loop(0, WATCHED_STEPS, climb, jnp.zeros_like(image), unroll=jax.default_backend() == "cpu")
            return at(image, shift)

        made = from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)
        return made._replace(attacked=attacked)


def fields_of(phase: Phase) -> dict[str, Any]:
    """What a phase sets in a run, but for its epochs."""
    return {
        "batch_size": phase.batch_size,
        "data.stored_px": phase.stored_px,
        "data.augment.crop_px": phase.crop_px,
        "optim.schedule": "linear",
        "optim.warmup_epochs": 0.0,
        "optim.milestones_epochs": phase.milestones_epochs,
        "optim.factors": phase.factors,
    }


def in_phase(cfg: Train, phase: Phase) -> Train:
    """The run with what a phase sets."""
    for field, value in fields_of(phase).items():
        cfg = values.with_field(cfg, field, value)
    return cfg


def shifted(shift: jax.Array, gradient: jax.Array, radius: float, step: float) -> jax.Array:
    """d after one step along the sign of the gradient, within the radius."""
    return jnp.clip(shift + step * jnp.sign(gradient), -radius, radius)
