"""LNL: Kim, Kim, Kim, Kim, Kim, "Learning Not to Learn: Training Deep Neural Networks with Biased Data" (2019).

The network is cut in the middle, in f and g (an MLP of three hidden layers after the second, a ResNet after stage 2), and h predicts the
bias from what f gives: a vector goes through one hidden layer, of maps the mean is read linearly. With q = softmax(h(f(x))):

    L_y = mean CE(g(f(x)), y) + entropy · mean Σ_k q_k log q_k     f and g learn the label, and f to leave h undecided
    L_b = mean CE(h(f(x)), b)                                      h learns the bias, and f to hide it: f ascends reversal · L_b

Images without a bias label (-1) are left out of L_b.

variant "published": the authors' code's two updates a batch. f and g descend L_y; then f, with a new forward pass and the optimizer it
    had, and h take their step by L_b.
variant "paper": one update of all three, f by both losses, g by L_y and h by L_b.

Differs from the authors' code: h predicts the class of the bias and not colours of pixels; g takes no part in the second update (there it
is run again, which moves its batch statistics, and its optimizer steps with gradients of 0).
"""

import dataclasses
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxbed.method import Batch, Info, Method, PyTree, State, apply_net, init_net, scalars
from jaxbed.methods.parts import losses
from jaxbed.models import features
from jaxbed.models.capabilities import CUT, Cuttable, require
from jaxbed.models.linear import Linear
from jaxbed.optim import Optim
from jaxbed.values import NotNegative


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = True

    entropy: NotNegative = 0.01  # weight of h's negative entropy
    reversal: NotNegative = 0.1  # factor of the gradient that f ascends
    variant: Literal["published", "paper"] = "published"

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        require(net, "LNL predicts the bias from the middle of a network", CUT)
        return _make(self, info, net, optim)


@jax.custom_vjp
def reverse(x: jax.Array, factor: jax.Array) -> jax.Array:
    """x, whose gradient is multiplied by -factor."""
    return x


reverse.defvjp(lambda x, factor: (x, factor), lambda factor, g: ((-factor * g).astype(g.dtype), jnp.zeros_like(factor)))


def negative_entropy(logits: jax.Array) -> jax.Array:
    """Σ_k q_k log q_k, shape [B]: least where all are equally likely."""
    log_q = jax.nn.log_softmax(logits)  # and not the logarithm of a softmax, which may be that of 0
    return (jnp.exp(log_q) * log_q).sum(-1)


def known_mean(value: jax.Array, bias: jax.Array) -> jax.Array:
    """Mean of value [B] over the images whose bias is known; 0 if there are none."""
    known = bias >= 0
    return jnp.where(known, value, 0.0).sum() / jnp.maximum(known.sum(), 1)


class BiasPredictor(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:  # [B, H, W, F] or [B, F] -> [B, classes]
        vectors = features.pooled(x)
        if x.ndim == 2:
            vectors = nn.relu(Linear(vectors.shape[-1], name="hidden")(vectors))
        return Linear(self.classes, name="out")(vectors)


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    middle = net.parts // 2
    parts = {"lower": net.make(info.classes, last=middle), "upper": net.make(info.classes, first=middle)}
    predictor, published = BiasPredictor(info.classes), config.variant == "published"
    transform = optim.transform(info)
    # f steps twice a batch, and its schedule counts steps
    transform_lower = optim.transform(info._replace(steps_per_epoch=2 * info.steps_per_epoch)) if published else transform

    def optimizers(hparams: dict[str, jax.Array]) -> dict[str, optax.GradientTransformation]:
        return {"lower": transform_lower(hparams), "upper": transform(hparams), "bias": transform(hparams)}

    def init(key: jax.Array, batch: Batch) -> State:
        params, stats = features.init_parts(parts, key, batch["image"])
        x, _ = apply_net(parts["lower"], params["lower"], stats["lower"], batch["image"], False)
        params["bias"], _ = init_net(predictor, jax.random.fold_in(key, 1), x)
        hparams = scalars({**optim.hparams(), "entropy": config.entropy, "reversal": config.reversal})
        opt = {name: optimizer.init(params[name]) for name, optimizer in optimizers(hparams).items()}
        return State(jnp.zeros((), jnp.int32), params, stats, opt, {}, hparams)

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        label, bias, hparams = batch["label"], batch["bias"], state.hparams

        def lower(params: PyTree, stats: PyTree, pass_number: int) -> tuple[jax.Array, PyTree]:
            rngs = {"dropout": jax.random.fold_in(key, pass_number)}
            return apply_net(parts["lower"], params["lower"], stats["lower"], batch["image"], True, rngs)

        def classify(params: PyTree, x: jax.Array) -> tuple[jax.Array, PyTree, dict[str, jax.Array]]:
            """L_y, without a gradient for h."""
            logits, of_upper = apply_net(parts["upper"], params["upper"], state.stats["upper"], x, True, {"dropout": key})
            undecided = negative_entropy(apply_net(predictor, state.params["bias"], {}, x, True)[0]).mean()
            value = losses.cross_entropy(logits, label).mean()
            metrics = {"loss": value, "loss/entropy": undecided, "accuracy": losses.accuracy(logits, label)}
            return value + hparams["entropy"] * undecided, of_upper, metrics

        def recognize(params: PyTree, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
            """L_b, whose gradient is turned round on its way to f."""
            logits, _ = apply_net(predictor, params["bias"], {}, reverse(x, hparams["reversal"]), True)
            value = known_mean(losses.cross_entropy(logits, jnp.maximum(bias, 0)), bias)
            right = known_mean((jnp.argmax(logits, -1) == bias).astype(jnp.float32), bias)
            return value, {"loss/bias": value, "accuracy/bias": right}

        def first(params: PyTree) -> tuple[jax.Array, tuple[PyTree, dict[str, jax.Array]]]:
            x, of_lower = lower(params, state.stats, 1)
            value, of_upper, metrics = classify(params, x)
            if not published:
                of_bias, more = recognize(params, x)
                value, metrics = value + of_bias, {**metrics, **more}
            return value, ({"lower": of_lower, "upper": of_upper}, metrics)

        def second(params: PyTree) -> tuple[jax.Array, tuple[PyTree, dict[str, jax.Array]]]:
            x, of_lower = lower(params, stats, 2)
            value, metrics = recognize(params, x)
            return value, (of_lower, metrics)

        def descend(grads: PyTree, state: State) -> State:
            params, opt = {**state.params}, {**state.opt}
            for name, gradient in grads.items():
                updates, opt[name] = optimizers(hparams)[name].update(gradient, opt[name], params[name])
                params[name] = optax.apply_updates(params[name], updates)
            return state.replace(params=params, opt=opt)

        def of(params: PyTree, *names: str) -> PyTree:
            return {name: params[name] for name in names}

        names = ("lower", "upper") if published else ("lower", "upper", "bias")
        grads, (stats, metrics) = jax.grad(first, has_aux=True)(of(state.params, *names))
        after = descend(grads, state)
        if published:
            grads, (stats["lower"], more) = jax.grad(second, has_aux=True)(of(after.params, "lower", "bias"))
            after, metrics = descend(grads, after), {**metrics, **more}
        return after.replace(step=state.step + 1, stats=stats), metrics

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        x, _ = apply_net(parts["lower"], params["lower"], stats["lower"], image, False)
        return apply_net(parts["upper"], params["upper"], stats["upper"], x, False)[0]

    return Method(init, step, predict)
