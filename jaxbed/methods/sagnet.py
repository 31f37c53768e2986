"""SagNet: Nam, Lee, Park, Yoon, Yoo, "Reducing Domain Gap by Reducing Style Bias" (2021).

The network is cut before stage `style_stage`: trunk E, content head C and a style head S of C's shape. With z = E(x):

    content     L_c   = CE(C(SR(z)), y)                                    -> E and C
    style       L_s   = CE(S(CR(z)), y)                                    -> S
    adversary   L_adv = -w_adv · mean_k log(softmax(S(CR(z)))_k + 1e-5)    -> BatchNorm scales and biases of E, norm clipped

SR mixes each image's statistics with another's, CR puts each image's statistics on another's detached content
(`models.style`). Prediction is C(E(x)).

variant "paper": each loss updates what is named above and nothing else; all three gradients belong to the same parameters. E's BatchNorms
    are owned by two optimizers, as in the authors' code: they get weight decay and momentum of the content's and of the adversary's.
    Differs from the authors' code: there the content optimizer owns S too, which so gets weight decay and momentum twice; and it steps
    between backward passes of one graph, which PyTorch has refused since 1.5.
variant "biasbed": what BiasBed's released code computes. CR is the identity (its mixing coefficient is the constant 1), nothing
    is detached, and the gradients of L_s, L_adv (E's BatchNorm part clipped together with L_s's) and L_c add up in shared
    buffers before three optimizers step: E descends the sum of all three, S steps twice with L_s + L_adv, E's BatchNorms step
    twice. Gradient scaling of mixed precision, under which that code clips scaled gradients, is not imitated.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from jaxbed.method import Batch, Info, Method, PyTree, State, apply_net, init_net, scalars
from jaxbed.methods.parts import losses, pairs
from jaxbed.models import style
from jaxbed.models.capabilities import CUT, MAPS, NORMS_BY_NAME, Cuttable, require, require_stages
from jaxbed.optim import Optim, only
from jaxbed.values import NotNegative, Positive, Stage


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    variant: Literal["paper", "biasbed"] = "paper"
    style_stage: Stage = 3  # first stage of the heads
    w_adv: NotNegative = 0.1  # lambda_adv
    clip_adv: Positive = 0.1  # global norm of the adversary's gradient

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        require(net, "SagNet cuts a network between stages", CUT, MAPS)
        require_stages(net, "method.style_stage", self.style_stage)
        return _make(self, info, net, optim)


def in_style(path: str) -> bool:
    return path.startswith("style/")


def in_trunk_norm(path: str) -> bool:
    """Scales and biases of the trunk's BatchNorms, those of shortcuts included, or of its LayerNorms."""
    return path.startswith("trunk/") and "norm" in path


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    parts = {
        "trunk": net.make(info.classes, last=config.style_stage),
        "content": net.make(info.classes, first=config.style_stage),
        "style": net.make(info.classes, first=config.style_stage),
    }
    paper = config.variant == "paper"
    transform = optim.transform(info)

    def optimizers(hparams: dict[str, jax.Array]) -> dict[str, optax.GradientTransformation]:
        """By name, in the order in which they step."""
        step = transform(hparams)
        clipped = optax.chain(optax.clip_by_global_norm(config.clip_adv), step) if paper else step
        return {
            "style": only(step, in_style),
            "adversary": only(clipped, in_trunk_norm),
            "content": only(step, lambda path: not (paper and in_style(path))),
        }

    def init(key: jax.Array, batch: Batch) -> State:
        params, stats, x = {}, {}, batch["image"]
        for name, part_key in zip(parts, jax.random.split(key, len(parts)), strict=True):
            params[name], stats[name] = init_net(parts[name], part_key, x)
            if name == "trunk":
                x, _ = apply_net(parts[name], params[name], stats[name], x, False)
        if not any(in_trunk_norm(f"trunk/{path}") for path in traverse_util.flatten_dict(params["trunk"], sep="/")):
            raise ValueError(
                f"SagNet's adversary trains the normalization layers before method.style_stage, {NORMS_BY_NAME}: take another network"
            )
        hparams = scalars({**optim.hparams(), "w_adv": config.w_adv})
        opt = {name: optimizer.init(params) for name, optimizer in optimizers(hparams).items()}
        return State(jnp.zeros((), jnp.int32), params, stats, opt, {}, hparams)

    def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        style_key, weight_key, content_key, *dropout = jax.random.split(key, 6)
        size = batch["label"].shape[0]
        order, weight = pairs.partners(style_key, size), jax.random.uniform(weight_key, (size,))
        other = pairs.partners(content_key, size)
        mixers = {
            "trunk": lambda image: image,
            "content": lambda maps: style.randomize_style(maps, order, weight),
            "style": (lambda maps: style.randomize_content(maps, other)) if paper else (lambda maps: maps),
        }

        def forward(name: str, x: jax.Array) -> tuple[jax.Array, Callable, PyTree]:
            """(output, its pull-back to (parameters, x), new batch statistics) of one part."""

            def run(params: PyTree, x: jax.Array) -> tuple[jax.Array, PyTree]:
                return apply_net(parts[name], params, state.stats[name], mixers[name](x), True, {"dropout": rngs[name]})

            return jax.vjp(run, state.params[name], x, has_aux=True)

        def content_loss(logits: jax.Array) -> jax.Array:
            return losses.cross_entropy(logits, batch["label"]).mean()

        def adversary_loss(logits: jax.Array) -> jax.Array:
            return state.hparams["w_adv"] * losses.adversarial_uniform(logits).mean()

        rngs, pull, stats = dict(zip(parts, dropout, strict=True)), {}, {}
        maps, pull["trunk"], stats["trunk"] = forward("trunk", batch["image"])
        content, pull["content"], stats["content"] = forward("content", maps)
        styled, pull["style"], stats["style"] = forward("style", maps)
        loss_content, at_content = jax.value_and_grad(content_loss)(content)
        loss_style, at_style = jax.value_and_grad(content_loss)(styled)
        loss_adversary, at_adversary = jax.value_and_grad(adversary_loss)(styled)

        def gradient(head: str, at: jax.Array) -> PyTree:
            """Of a loss with gradient `at` at the logits of `head`, for all parameters."""
            of_head, at_maps = pull[head](at)
            return {**jax.tree.map(jnp.zeros_like, state.params), head: of_head, "trunk": pull["trunk"](at_maps)[0]}

        if paper:  # what an optimizer does not own is never computed: the compiler drops it
            grads = {
                "style": gradient("style", at_style),
                "adversary": gradient("style", at_adversary),
                "content": gradient("content", at_content),
            }
        else:
            shared = _clip_trunk_norms(gradient("style", at_style + at_adversary), config.clip_adv)
            shared = jax.tree.map(jnp.add, shared, gradient("content", at_content))
            grads = dict.fromkeys(("style", "adversary", "content"), shared)

        params, opt = state.params, {}
        for name, optimizer in optimizers(state.hparams).items():
            updates, opt[name] = optimizer.update(grads[name], state.opt[name], params)
            params = optax.apply_updates(params, updates)
        metrics = {
            "loss": loss_content,
            "loss/style": loss_style,
            "loss/adversary": loss_adversary,
            "accuracy": losses.accuracy(content, batch["label"]),
            "accuracy/style": losses.accuracy(styled, batch["label"]),
        }
        return state.replace(step=state.step + 1, params=params, stats=stats, opt=opt), metrics

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        maps, _ = apply_net(parts["trunk"], params["trunk"], stats["trunk"], image, False)
        return apply_net(parts["content"], params["content"], stats["content"], maps, False)[0]

    return Method(init, step, predict)


def _clip_trunk_norms(grads: PyTree, norm: float) -> PyTree:
    """Scales the trunk's BatchNorm gradients, together, to a global norm of at most `norm`; the others pass unchanged."""

    def pick(path: tuple, leaf: jax.Array) -> jax.Array | None:
        return leaf if in_trunk_norm(jax.tree_util.keystr(path, simple=True, separator="/")) else None

    total = optax.tree.norm(jax.tree_util.tree_map_with_path(pick, grads))
    factor = jnp.minimum(1.0, norm / (total + 1e-6))  # PyTorch's clip_grad_norm_

    def scale(path: tuple, leaf: jax.Array) -> jax.Array:
        return leaf * factor if pick(path, leaf) is not None else leaf

    return jax.tree_util.tree_map_with_path(scale, grads)
