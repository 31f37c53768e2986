"""RSC: Huang, Wang, Xing, Huang, "Self-Challenging Improves Cross-Domain Generalization" (2020).

The network learns without what it relies on most. With h its last maps, z the logits, p = softmax(z) and y the label, each step

    g = ∂z_y/∂h, averaged over the map          how much each channel speaks for the label
    mask h where g, or Σ_c h·g, is largest
    keep that mask in the images whose p_y it lowers most, and no mask in the others

and descends the cross-entropy of the masked h. Masks carry no gradient. Off at evaluation.

variant "domainbed": DomainBed's. h is averaged over the map first; the third of its channels with the largest g is masked, in the
    third of the images that suffer most (shares are `features` and `samples`). Its quantiles are interpolated, and exclusive.
variant "spatial_channel": the authors' for domain generalisation. For the whole batch a coin decides between masking the pixels in
    the third with the largest Σ_c h·g and masking the channels in the 1/3.2 with the largest g; in 0.3 of the images in the first ten
    epochs, then in 0.5, 0.7 and, from epoch 30, 0.9 (their code ends with an error at epoch 40). Their training images and the mirrored
    ones as a second half of the batch are not imitated.
variant "imagenet": the authors' for ImageNet. A random third of all pixels, drawn from the half with the largest Σ_c h·g, in 1/6 of the
    images, and in 1/5.5, 1/5, 1/4.5 and 1/4 from epochs 19, 39, 59 and 79.

In the authors' variants an image counts as suffering only if it loses more than 1e-4. Shares of images are of the global batch.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxbed import values
from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, init_net
from jaxbed.methods.parts import losses
from jaxbed.models.capabilities import CUT, MAPS, Cuttable, require
from jaxbed.models.features import cut
from jaxbed.optim import Optim
from jaxbed.values import Share

SHARES = {  # of images that are challenged, and the last epochs of all but the last of them
    "spatial_channel": ((0.3, 0.5, 0.7, 0.9), (9, 19, 29)),
    "imagenet": ((1 / 6, 1 / 5.5, 1 / 5, 1 / 4.5, 1 / 4), (18, 38, 58, 78)),
}
LEAST_LOSS = 1e-4  # of probability


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    variant: Literal["domainbed", "spatial_channel", "imagenet"] = "domainbed"
    features: Share = 1 / 3  # domainbed: share of an image's features that is masked; 0 is ERM
    samples: Share = 1 / 3  # domainbed: share of images that is masked; 0 is ERM

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        if self.variant != "domainbed":
            values.refuse_unused(self, ("features", "samples"), f"method.variant = {self.variant!r}", "remove it, or take domainbed")
        require(net, "RSC masks maps", CUT, MAPS)
        return _make(self, info, net, optim)


def above_quantile(x: jax.Array, share: float) -> jax.Array:
    """Which of x [..., n] are not below the quantile 1 - share, interpolated as NumPy does; of share 0, none."""
    if not share:
        return jnp.zeros(x.shape, bool)
    rank = (x.shape[-1] - 1) * (1 - share)
    low, high = math.floor(rank), math.ceil(rank)
    ordered = jnp.sort(x, -1)
    quantile = ordered[..., low] + (rank - low) * (ordered[..., high] - ordered[..., low])
    return x >= quantile[..., None]


def above_rank(x: jax.Array, count: jax.Array | int) -> jax.Array:
    """Which of x [..., n] are its `count` largest, those above the next one: fewer where there are ties."""
    return x > jnp.take(jnp.sort(x, -1), x.shape[-1] - 1 - count, -1)[..., None]


def mask_pixels_or_channels(key: jax.Array, maps: jax.Array, gradient: jax.Array) -> jax.Array:
    """Variant spatial_channel: what to mask of maps [N, H, W, C], with gradient [N, C]."""
    pixels = _relevance(maps, gradient)
    of_pixels = above_rank(pixels, math.ceil(pixels.shape[1] / 3)).reshape(*maps.shape[:3], 1)
    of_channels = above_rank(gradient, math.ceil(gradient.shape[1] / 3.2))[:, None, None]
    return jnp.where(jax.random.bernoulli(key), of_pixels, of_channels)


def mask_some_pixels(key: jax.Array, maps: jax.Array, gradient: jax.Array) -> jax.Array:
    """Variant imagenet: what to mask of maps [N, H, W, C], with gradient [N, C]."""
    pixels = _relevance(maps, gradient)
    count = pixels.shape[1]
    draw = jax.random.uniform(key, pixels.shape) + above_rank(pixels, count // 2)  # those in the upper half first
    return above_rank(draw, count // 3).reshape(*maps.shape[:3], 1)


def _relevance(maps: jax.Array, gradient: jax.Array) -> jax.Array:
    if maps.shape[1] * maps.shape[2] == 1:
        raise ValueError("the network's last maps have one pixel, and this variant masks some of many: take method.variant = 'domainbed'")
    return (maps * gradient[:, None, None]).sum(-1).reshape(len(maps), -1)


MASKS = {"spatial_channel": mask_pixels_or_channels, "imagenet": mask_some_pixels}


def challenged(loss: jax.Array, epoch: jax.Array, variant: str) -> jax.Array:
    """In which images, of their losses of probability [N], the authors' variants keep the mask."""
    shares, ends = SHARES[variant]
    counts = jnp.array([round(share * len(loss)) for share in shares])
    return above_rank(jnp.maximum(loss - LEAST_LOSS, 0), counts[(epoch > jnp.array(ends)).sum()])


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    parts = cut(net, info.classes)
    trunk, head = parts["trunk"], parts["head"]

    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        trunk_key, head_key = jax.random.split(key)
        params, stats = init_net(trunk, trunk_key, batch["image"])
        maps, _ = apply_net(trunk, params, stats, batch["image"], False)
        return {"trunk": params, "head": init_net(head, head_key, maps)[0]}, {"trunk": stats}

    def mask(params: PyTree, features: jax.Array, label: jax.Array, epoch: jax.Array, key: jax.Array) -> jax.Array:
        """What to mask of features [N, H, W, C] float32: of bfloat16 ones too many would tie."""

        def of_label(features: jax.Array) -> tuple[jax.Array, jax.Array]:
            logits, _ = apply_net(head, params, {}, features, False)
            return jnp.take_along_axis(logits, label[:, None], 1).sum(), jnp.exp(-losses.cross_entropy(logits, label))

        gradient, before = jax.grad(of_label, has_aux=True)(features)
        gradient, domainbed = gradient.mean((1, 2)), config.variant == "domainbed"
        masked = above_quantile(gradient, config.features)[:, None, None] if domainbed else MASKS[config.variant](key, features, gradient)
        loss = before - of_label(jnp.where(masked, 0, features))[1]
        kept = above_quantile(loss, config.samples) if domainbed else challenged(loss, epoch, config.variant)
        return masked & kept[:, None, None, None]

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        mask_key, dropout_key = jax.random.split(key)
        rngs = {"dropout": jax.random.fold_in(dropout_key, 1)}
        features, stats = apply_net(trunk, params["trunk"], state.stats["trunk"], batch["image"], True, rngs)
        if config.variant == "domainbed":
            features = features.astype(jnp.float32).mean((1, 2), keepdims=True)
        label, epoch = batch["label"], state.step // info.steps_per_epoch
        masked = mask(*lax.stop_gradient((params["head"], features.astype(jnp.float32))), label, epoch, mask_key)
        logits, _ = apply_net(head, params["head"], {}, jnp.where(masked, 0, features), True, {"dropout": dropout_key})
        value = losses.cross_entropy(logits, label).mean()
        return value, ({"trunk": stats}, state.memory, {"loss": value, "accuracy": losses.accuracy(logits, label)})

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        maps, _ = apply_net(trunk, params["trunk"], stats["trunk"], image, False)
        return apply_net(head, params["head"], {}, maps, False)[0]

    return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)
