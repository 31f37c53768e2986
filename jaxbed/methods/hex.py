"""HEX: Wang, He, Lipton, Xing, "Learning Robust Representations by Projecting Superficial Statistics Out" (2019).

Beside the features h of the network stand those h_G of a branch that sees only which grey levels lie side by side (`Cooccurrence`). Both
are brought to one scale (`scaled`) and read by one linear layer, W1 for h and W2 for h_G, with bias c:

    F_A = h W1 + h_G W2 + c     F_G = h_G W2 + c     F_L = F_A - F_G (F_Gᵀ F_G + ridge)⁻¹ F_Gᵀ F_A     L = mean CE(F_L, y)

F_L is what the batch's F_A has beyond what the superficial statistics alone can say; prediction is F_P = h W1 + c. The projection takes
as many directions out of a batch as F_G has, min(classes, units + 1): a batch must be larger. What F_P has in those directions no loss
sees, so that accuracies of seeds lie far apart, as published ones do.

Differs from the authors' code: it is each image's features that are scaled (there each feature over the batch, so that predictions depend
on the other test images); a ridge of 1e-5 of the trace keeps F_Gᵀ F_G regular (there it is NaN once h_G dies); W1 and W2 are initialised
as two layers; images above 56 px are averaged down to 56 to 111 px; grey is 0.299 R + 0.587 G + 0.114 B. To grey levels many colours
are the same: HEX knows textures, not hues.
"""

import dataclasses
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.method import Batch, Info, Loss, Method, PyTree, State, apply_net, from_loss, init_net
from jaxbed.methods.parts import losses
from jaxbed.models import features
from jaxbed.models.capabilities import CUT, Cuttable, require
from jaxbed.models.linear import Linear
from jaxbed.optim import Optim
from jaxbed.values import Count, Range

GREY = (0.299, 0.587, 0.114)
SIDE_PX = 56  # from twice this, images are averaged down
LEAST = 1e-5  # of what a pixel counts
ROUNDING = 1e-5  # of the brightest pixel: a compiler may divide by multiplying with a reciprocal, and 0.9999999 is the last level, too
RIDGE = 1e-5  # of the trace
HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass
class Config:
    reads_bias: ClassVar[bool] = False

    levels: Annotated[int, Range(2, 256)] = 16  # of grey; 16 on MNIST, 128 in the authors' ImageNet demonstration
    units: Count = 32  # of the superficial branch

    def make(self, info: Info, net: Cuttable, optim: Optim) -> Method:
        require(net, "HEX projects features", CUT)
        return _make(self, info, net, optim)


def grey_levels(image: jax.Array, black: np.ndarray, white: np.ndarray, levels: int) -> jax.Array:
    """Grey levels [B, H, W], or of averaged pixels, of images [B, H, W, 3] in which black and white pixels have these values."""
    grey = jnp.dot((image.astype(jnp.float32) - black) / (white - black), np.array(GREY, np.float32), precision=HIGHEST)
    factor = max(min(grey.shape[1:]) // SIDE_PX, 1)
    height, width = (side // factor for side in grey.shape[1:])
    grey = grey[:, : height * factor, : width * factor].reshape(-1, height, factor, width, factor).mean((2, 4))
    return quantized(grey, levels)


def quantized(grey: jax.Array, levels: int) -> jax.Array:
    """Grey levels 0 to levels - 1, int32, of images [B, H, W]: the brightest pixel of each image has the last one."""
    largest = grey.max((1, 2), keepdims=True)
    level = jnp.floor((grey / jnp.where(largest > 0, largest, 1.0) + ROUNDING) * (levels - 1))
    return jnp.maximum(level, 0).astype(jnp.int32)  # a black pixel may be less than 0 by rounding


def shift_difference(level: jax.Array) -> jax.Array:
    """Left neighbour minus pixel, [B, H, W]; 0 in the first column."""
    return jnp.pad(level[:, :, :-1] - level[:, :, 1:], ((0, 0), (0, 0), (1, 0)))


def histogram(level: jax.Array, levels: int) -> jax.Array:
    """How many pixels of each image have each (difference, level): [B, 2·levels - 1, levels], all that h_G knows of it."""
    images, cells = len(level), (2 * levels - 1) * levels
    cell = (shift_difference(level) + levels - 1) * levels + level
    bins = cell.reshape(images, -1) + cells * jnp.arange(images)[:, None]
    return jnp.zeros(images * cells).at[bins.ravel()].add(1.0).reshape(images, 2 * levels - 1, levels)


def scaled(vectors: jax.Array) -> jax.Array:
    """Features [B, F], each image's at a root mean square of 1."""
    return features.unit(vectors) * vectors.shape[-1] ** 0.5


def project(f_all: jax.Array, f_superficial: jax.Array, ridge: float = RIDGE) -> jax.Array:
    """F_L [B, C] of F_A and F_G; where F_G is 0, F_A."""
    gram = jnp.dot(f_superficial.T, f_superficial, precision=HIGHEST)
    regular = gram + (ridge * jnp.trace(gram) + 1e-20) * jnp.eye(len(gram))
    onto = jax.scipy.linalg.solve(regular, jnp.dot(f_superficial.T, f_all, precision=HIGHEST), assume_a="pos")
    return f_all - jnp.dot(f_superficial, onto, precision=HIGHEST)


class Cooccurrence(nn.Module):
    """h_G W2 [B, classes] of histograms: a differentiable co-occurrence matrix with learned thresholds, a hidden layer, W2.

    M_ab = Σ_pixels clip(difference - λ_a, 1e-5, 1) · clip(level - θ_b, 1e-5, 1): as both take few values, a product with the histogram.
    """

    levels: int
    units: int
    classes: int

    @nn.compact
    def __call__(self, counts: jax.Array, train: bool) -> jax.Array:
        def threshold(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, shape, maxval=self.levels)

        of_difference, of_level = (self.param(name, threshold, (self.levels,)) for name in ("difference", "level"))
        difference = jnp.clip(jnp.arange(1 - self.levels, self.levels)[:, None] - of_difference, LEAST, 1)
        level = jnp.clip(jnp.arange(self.levels)[:, None] - of_level, LEAST, 1)
        matrix = jnp.einsum("da,ndv,vb->nab", difference, counts, level, precision=HIGHEST)
        hidden = nn.relu(Linear(self.units, name="hidden")(matrix.reshape(len(matrix), -1)))
        bound = self.units**-0.5
        kernel = self.param(
            "kernel", lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound), (self.units, self.classes)
        )
        return jnp.dot(scaled(hidden), kernel, precision=HIGHEST)


def _make(config: Config, info: Info, net: Cuttable, optim: Optim) -> Method:
    parts, superficial = features.cut(net, info.classes), Cooccurrence(config.levels, config.units, info.classes)
    black, white = info.pixel_range()

    def count(image: jax.Array) -> jax.Array:
        """Histograms of a batch of images as the network sees them."""
        return histogram(grey_levels(image, black, white, config.levels), config.levels)

    def init_nets(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, stats = features.init_parts(parts, key, batch["image"])
        params["superficial"], _ = init_net(superficial, jax.random.fold_in(key, 1), count(batch["image"]))
        return params, stats

    def forward(params: PyTree, stats: PyTree, image: jax.Array, train: bool, key: jax.Array | None = None) -> tuple[jax.Array, PyTree]:
        """(F_P, new batch statistics)."""
        (_, logits), new = features.forward(parts, params, stats, image, train, key, scaled)
        return logits, new

    def loss(params: PyTree, state: State, batch: Batch, key: jax.Array) -> Loss:
        image, label = batch["image"], batch["label"]
        taken = min(info.classes, config.units + 1)
        if len(label) <= taken:
            cure = f"take a larger one, or fewer method.units than {config.units}"
            raise ValueError(f"batch_size = {len(label)}: HEX projects {taken} directions out of a batch, which leaves nothing: {cure}")
        logits, stats = forward(params, state.stats, image, True, key)
        of_superficial, _ = apply_net(superficial, params["superficial"], {}, count(image), True)
        value = losses.cross_entropy(project(logits + of_superficial, of_superficial + params["head"]["head"]["bias"]), label).mean()
        return value, (stats, state.memory, {"loss": value, "accuracy": losses.accuracy(logits, label)})

    def predict(params: PyTree, stats: PyTree, image: jax.Array) -> jax.Array:
        return forward(params, stats, image, False)[0]

    return from_loss(init_nets, loss, optim.transform(info), optim.hparams(), predict)
