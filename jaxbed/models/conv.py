"""The convolution all models use: dense for every seed, whatever maps over it.

Mapped over kernels, XLA's convolution becomes one *grouped* convolution, which is slow on GPUs (13 times at 224 px) and on CPUs,
and which the partitioner answers by gathering every seed's kernels. This one brings its own batching rule, for the output and
for both gradients: one dense convolution per seed; one wide dense convolution where all seeds see the same images; a batched
matrix product for 1x1 kernels and for maps of very few pixels. Differentiable once, in reverse mode.

float32 means float32: XLA's default on GPUs would be TF32, ten bits of mantissa. Who wants speed computes in bfloat16.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

LAYOUT = ("NHWC", "HWIO", "NHWC")
FEW_PIXELS = 4  # of an output map: XLA's CPU convolution is 5 to 8 times slower than a product there (3 x 3, 64 to 128 channels)
kaiming_normal = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # of a ReLU layer, as torchvision's ResNets


def conv(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """Convolution of x [N, H, W, C] with kernel [k, k, C, F]; `padding` zeros on each side, as in PyTorch."""
    size = kernel.shape[0]
    height, width = ((side + 2 * padding - size) // stride + 1 for side in x.shape[1:3])
    if size > 1 and height * width <= FEW_PIXELS:
        return _as_product(x, kernel, stride, padding, height, width)
    return _rules(stride, padding, x.shape, kernel.shape, x.dtype)(x, kernel)


def _as_product(x: jax.Array, kernel: jax.Array, stride: int, padding: int, height: int, width: int) -> jax.Array:
    """The convolution as one matrix product with the patches of all output pixels; mapped over seeds, a batched product."""
    size = kernel.shape[0]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    down, right = stride * (height - 1) + 1, stride * (width - 1) + 1
    shifted = [x[:, i : i + down : stride, j : j + right : stride] for i in range(size) for j in range(size)]
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.dot(jnp.concatenate(shifted, axis=-1), kernel.reshape(-1, kernel.shape[3]), precision=precision)


@functools.cache
def _rules(stride: int, padding: int, x_shape: tuple, kernel_shape: tuple, dtype: Any) -> Callable:
    precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None

    def forward(x, kernel):
        pads = [(padding, padding)] * 2
        return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=LAYOUT, precision=precision)

    # Only where no pixel is skipped: XLA's GPU compiler (jaxlib 0.11.2) aborts on a matrix product fused with a strided slice.
    pointwise = kernel_shape[:2] == (1, 1) and stride == 1

    def to_x(g, kernel):
        x = jax.ShapeDtypeStruct((g.shape[0], *x_shape[1:3], kernel.shape[2]), dtype)
        return jax.linear_transpose(lambda x: forward(x, kernel), x)(g)[0]

    def to_kernel(x, g):
        kernel = jax.ShapeDtypeStruct((*kernel_shape[:3], g.shape[3]), dtype)
        return jax.linear_transpose(lambda kernel: forward(x, kernel), kernel)(g)[0]

    def output_rule(size, batched, x, kernel):
        if batched == [True, True]:
            if pointwise and size > 1:
                return jnp.einsum("snhwc,scf->snhwf", x, kernel[:, 0, 0], precision=precision), True
            return _one_by_one(forward, x, kernel), True
        if batched == [False, True]:  # the same images for all: their kernels side by side
            return _split_features(forward(x, _join_features(kernel)), size), True
        return _fold(lambda x: forward(x, kernel), x), True

    def to_x_rule(size, batched, g, kernel):
        if batched == [True, False]:
            return _fold(lambda g: to_x(g, kernel), g), True
        g, kernel = _all_batched(size, batched, g, kernel)
        if pointwise and size > 1:
            return jnp.einsum("snhwf,scf->snhwc", g, kernel[:, 0, 0], precision=precision), True
        return _one_by_one(to_x, g, kernel), True

    def to_kernel_rule(size, batched, x, g):
        if batched == [False, True]:
            return jnp.moveaxis(to_kernel(x, _join_features(g)).reshape(*kernel_shape[:3], size, -1), 3, 0), True
        x, g = _all_batched(size, batched, x, g)
        if pointwise and size > 1:
            return jnp.einsum("snhwc,snhwf->scf", x, g, precision=precision)[:, None, None], True
        return _one_by_one(to_kernel, x, g), True

    output, x_gradient, kernel_gradient = (
        _with_rule(function, rule) for function, rule in ((forward, output_rule), (to_x, to_x_rule), (to_kernel, to_kernel_rule))
    )
    dense = jax.custom_vjp(output)
    dense.defvjp(
        lambda x, kernel: (output(x, kernel), (x, kernel)),
        lambda saved, g: (x_gradient(g, saved[1]), kernel_gradient(saved[0], g)),
    )
    return dense


def _with_rule(function: Callable, rule: Callable) -> Callable:
    mapped = jax.custom_batching.custom_vmap(function)
    mapped.def_vmap(rule)
    return mapped


def _one_by_one(function: Callable, *stacked: jax.Array) -> jax.Array:
    return jnp.stack([function(*(a[s] for a in stacked)) for s in range(stacked[0].shape[0])])


def _all_batched(size: int, batched: list[bool], *arrays: jax.Array) -> list[jax.Array]:
    return [a if b else jnp.broadcast_to(a, (size, *a.shape)) for a, b in zip(arrays, batched, strict=True)]


def _fold(function: Callable, stacked: jax.Array) -> jax.Array:
    """[S, N, ...] as one batch of S·N."""
    size, images = stacked.shape[:2]
    out = function(stacked.reshape(size * images, *stacked.shape[2:]))
    return out.reshape(size, images, *out.shape[1:])


def _join_features(stacked: jax.Array) -> jax.Array:
    """[S, a, b, c, F] -> [a, b, c, S·F]."""
    return jnp.moveaxis(stacked, 0, 3).reshape(*stacked.shape[1:4], -1)


def _split_features(joined: jax.Array, size: int) -> jax.Array:
    """[a, b, c, S·F] -> [S, a, b, c, F]."""
    return jnp.moveaxis(joined.reshape(*joined.shape[:3], size, -1), 3, 0)


class Conv(nn.Module):
    """Square convolution without bias, torchvision's initialisation, parameters in float32 and arithmetic in the input's type."""

    features: int
    kernel: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [N, H, W, C] -> [N, ceil(H/stride), ceil(W/stride), features]
        kernel = self.param("kernel", kaiming_normal, (self.kernel, self.kernel, x.shape[-1], self.features))
        return conv(x, kernel.astype(x.dtype), self.stride, (self.kernel - 1) // 2)
