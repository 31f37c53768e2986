"""InfoDrop: Shi, Zhang, Dai, Zhu, Mu, Wang, "Informative Dropout for Robust Representation Learning: A Shape-bias Perspective" (2020).

In training, the stem's output loses pixels where the image looks like its neighbourhood, as texture does. With D_m(a) the squared
distance between the patch that pixel a of the stem's convolution sees and the patch at random offset m from it, and D̄ the mean of D
over batch, offsets and pixels:

    q(a) = mean_m exp(-D_m(a) / (2 h² D̄))        density of the patch among its neighbours; -log q is its self-information
    π(a) = q(a)^(1/T) / Σ q^(1/T)                 over one image's pixels; q is min-pooled first where the stem max-pools

For every image and channel, N = ⌊r0·height·width⌋ pixels are drawn from π with replacement and set to 0. What is left is not rescaled,
so that BatchNorm's running statistics are those of dropped maps. The published recipe therefore ends without InfoDrop: 100 epochs
with it, then 20 from there with drop_rate = 0, which is ERM to the last bit, at a learning rate of 0.001: `finetune_epochs`.

variant "paper": off at evaluation.
variant "biasbed": what BiasBed reports. Dropping goes on at evaluation, and no epochs without it follow. Differs from its code: there
    every batch of an evaluation has new draws and a D̄ of its own; here one fixed draw serves all images, and D̄ is a running mean over
    training, moved as BatchNorm's, so that an answer depends on the image alone.

mode "multinomial": those draws.
mode "poisson", the default: every pixel of every channel is dropped by itself, with the probability that it has there, 1 - (1 - π)^N:
    one random number a pixel instead of r0 and a scatter. Only the numbers of dropped pixels spread more.

Differs from the authors' code: the default mode (theirs is "multinomial"). Powers are taken as logarithms (theirs underflow, at worst to
0/0), and a batch of constant images is dropped uniformly (there 0/0). Sites inside blocks, which the authors' code can add to the stem's,
are left out.
"""

import dataclasses
import math
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxbed import values
from jaxbed.config import Train, is_weights
from jaxbed.method import Info, Method, from_net
from jaxbed.models.capabilities import AFTER, STEM, FirstConv, Stemmed, require
from jaxbed.models.norm import MOMENTUM
from jaxbed.models.pool import max_pool, max_pool_inside
from jaxbed.optim import Optim
from jaxbed.stages import Stage
from jaxbed.values import Count, NotNegative, Positive, Whole

FLOOR = 1e-8  # added to π


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    variant: Literal["paper", "biasbed"] = "paper"
    mode: Literal["poisson", "multinomial"] = "poisson"
    drop_rate: NotNegative = 1.5  # r0: draws per pixel of the map; 0 is ERM
    temperature: Positive = 0.03  # T: the smaller, the more all draws go to the likeliest pixels
    bandwidth: Positive = 1.0  # h: of the density, in units of D̄'s root
    radius_px: Count = 3  # R: offsets are -R to R, down and to the right
    offsets: Count = 9  # M: newly initialised in every step, for all images together
    finetune_epochs: Whole = 0  # without dropping, after the run's epochs; it is these that are evaluated. The paper has 20 after 100
    finetune_lr: Positive = 0.001  # divided by 10 for the last fifth of them

    def training_stages(self, cfg: Train) -> tuple[Stage, ...]:
        if not self.finetune_epochs:
            values.refuse_unused(self, ("finetune_lr",), "method.finetune_epochs = 0", "remove it, or set finetune_epochs")
            return (Stage("", cfg),)
        if self.variant == "biasbed":
            raise ValueError(f"finetune_epochs = {self.finetune_epochs}: BiasBed's variant drops to the end. Take 0, or variant=paper")
        decay = (0.8 * self.finetune_epochs,)
        optim = dataclasses.replace(cfg.optim, lr=self.finetune_lr, schedule="step", milestones_epochs=decay, gamma=0.1, warmup_epochs=0.0)
        untuned = dataclasses.replace(self, finetune_epochs=0, finetune_lr=Config.finetune_lr)
        plain = dataclasses.replace(untuned, drop_rate=0.0)
        tuned = dataclasses.replace(cfg, method=plain, optim=optim, epochs=self.finetune_epochs)
        if cfg.init_from and not is_weights(cfg.init_from):
            return (Stage("", tuned),)
        dropping = dataclasses.replace(cfg, method=untuned)
        return Stage("dropping", dropping), Stage("", tuned, start="dropping")

    def make(self, info: Info, net: Stemmed, optim: Optim) -> Method:
        require(net, "InfoDrop drops pixels of maps", AFTER, STEM)
        if not self.drop_rate:  # to the last bit
            return from_net(net.make(info.classes), optim.transform(info), optim.hparams())
        network = net.make(info.classes, after=lambda part: None if part else InfoDrop(self, net.first_conv, name="infodrop"))
        return from_net(network, optim.transform(info), optim.hparams())


class InfoDrop(nn.Module):
    """The stem's output x [N, h, w, C] without the pixels that are drawn for what entered the stem, [N, H, W, c]."""

    config: Config
    stem: FirstConv

    @nn.compact
    def __call__(self, x: jax.Array, entered: jax.Array, train: bool) -> jax.Array:
        config, biasbed = self.config, self.config.variant == "biasbed"
        if biasbed:
            running = self.variable("batch_stats", "distance", jnp.ones, ())
        elif not train:
            return x
        draws = math.floor(config.drop_rate * x.shape[1] * x.shape[2])
        if not draws:
            return x
        offset_key, drop_key = jax.random.split(self.make_rng("noise") if train else jax.random.key(0))
        offsets = jax.random.randint(offset_key, (config.offsets, 2), -config.radius_px, config.radius_px + 1)
        distance = patch_distance(lax.stop_gradient(entered), offsets, config.radius_px, self.stem.kernel, self.stem.stride)
        mean = distance.mean() if train else running.value
        if biasbed and train:
            running.value = MOMENTUM * running.value + (1 - MOMENTUM) * mean
        log_density = parzen(distance, mean, config.bandwidth)
        probability = normalise(log_density, config.temperature, self.stem.pooled, self.stem.inside)
        keep = {"poisson": keep_independently, "multinomial": keep_undrawn}[config.mode]
        kept = keep(drop_key, probability, draws, (x.shape[0] if train else 1, x.shape[3]))
        kept = lax.optimization_barrier(kept)  # or the backward pass would draw it again
        return jnp.where(kept, x, 0)


def patch_distance(x: jax.Array, offsets: jax.Array, radius_px: int, kernel: int, stride: int) -> jax.Array:
    """D [M, N, h, w] float32 of x [N, H, W, C]: Σ over patch and channels of (x - x moved by offsets[m] = (down, right))².

    Patches are what a convolution with padding (kernel - 1) / 2 sees; x is 0 outside.
    """
    padding = (kernel - 1) // 2
    around = padding + radius_px
    padded = jnp.pad(x, ((0, 0), (around, around), (around, around), (0, 0)))
    planes = [padded[..., channel] for channel in range(x.shape[3])]  # an axis of three would be a slow reduction of its own
    size = (x.shape[0], x.shape[1] + 2 * padding, x.shape[2] + 2 * padding)

    def moved(plane: jax.Array, down: jax.Array | int, right: jax.Array | int) -> jax.Array:
        return lax.dynamic_slice(plane, (0, radius_px + down, radius_px + right), size).astype(jnp.float32)

    def square_distance(offset: jax.Array) -> Any:
        return sum(jnp.square(moved(plane, *offset) - moved(plane, 0, 0)) for plane in planes)

    total = jax.vmap(square_distance)(offsets)
    for axis in (2, 3):  # one after the other: 2·kernel terms a sum, not kernel²
        window, strides = ([length if a == axis else 1 for a in range(4)] for length in (kernel, stride))
        total = lax.reduce_window(total, 0.0, lax.add, window, strides, "VALID")
    return total


def parzen(distance: jax.Array, mean: jax.Array, bandwidth: float) -> jax.Array:
    """log q [N, h, w] of distance [M, N, h, w]; 0 where all distances are."""
    unit = jnp.maximum(2 * bandwidth**2 * mean, jnp.finfo(jnp.float32).tiny)
    return jax.nn.logsumexp(-distance / unit, axis=0) - math.log(len(distance))


def normalise(log_density: jax.Array, temperature: float, pooled: bool, inside: bool = False) -> jax.Array:
    """π [N, h, w] of log q [N, H, W], with the floor that keeps every pixel possible; each image sums to 1."""
    if pooled:
        pool = max_pool_inside if inside else max_pool
        log_density = -pool(-log_density[..., None])[..., 0]
    probability = jax.nn.softmax(log_density / temperature, axis=(1, 2))
    return (probability + FLOOR) / (1 + FLOOR * probability[0].size)


def keep_independently(key: jax.Array, probability: jax.Array, draws: int, shape: tuple[int, int]) -> jax.Array:
    """Whether each pixel is kept, [N, h, w, C]: by itself, with the probability that `draws` draws from π miss it.

    shape is (N, C), or (1, C) for the same random numbers in all images.
    """
    keep = jnp.exp(draws * jnp.log1p(-jnp.minimum(probability, 1)))  # division on a GPU may exceed 1
    keep = lax.optimization_barrier(keep)[..., None]  # or every channel would compute it again
    return jax.random.uniform(key, (shape[0], *probability.shape[1:], shape[1])) < keep


def keep_undrawn(key: jax.Array, probability: jax.Array, draws: int, shape: tuple[int, int]) -> jax.Array:
    """The same where exactly `draws` draws are made, with replacement, for each image and channel."""
    images, height, width = probability.shape
    below = jnp.cumsum(probability.reshape(images, -1), axis=1)
    point = jax.random.uniform(key, (shape[0], draws, shape[1])) * below[:, -1:, None]  # rounding may leave the sum off 1
    drawn = jax.vmap(lambda edges, point: jnp.searchsorted(edges, point, method="scan_unrolled"))(below, point)
    everything = jnp.ones((height * width, shape[1]), bool)
    kept = jax.vmap(lambda drawn: everything.at[drawn, jnp.arange(shape[1])].set(False))(drawn)
    return kept.reshape(images, height, width, shape[1])
