"""The convolution all models use: dense for every seed, whatever maps over it.

Mapped over kernels, XLA's convolution becomes one *grouped* convolution, which is slow on GPUs (13 times at 224 px) and on CPUs,
and which the partitioner answers by gathering every seed's kernels. This one brings its own batching rule, for the output and
for both gradients: one dense convolution per seed where they are large, a batched matrix product with patches where they are small (see
`product_pays`), and one wide dense convolution where all seeds see the same images. Differentiable once, in reverse mode.
Convolutions of groups of channels (ResNeXt) have the same rule; as products, the groups of all seeds are one batch.

float32 means float32: XLA's default on GPUs would be TF32, ten bits of mantissa. Who wants speed computes in bfloat16.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxbed.models.parameter import parameter

LAYOUT = ("NHWC", "HWIO", "NHWC")
FEW_CHANNELS = 4  # of images: convolutions with stride 2 of so few go over blocks of pixels on a GPU
FEW_PIXELS = 4  # of an output map: XLA's CPU convolution is 5 to 8 times slower than a product there (3 x 3, 64 to 128 channels)
# Of one seed's patches: on a GPU the product pays up to here (H200, scripts/bench_conv.py and ResNet-18 at 64 px in arrays of 10)
FEW_ENTRIES = 2**23
kaiming_normal = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # of a ReLU layer, as torchvision's ResNets


def conv(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """Convolution of x [N, H, W, C] with kernel [k, k, C / groups, F]; `padding` zeros on each side, as in PyTorch.

    The shapes give the number of groups. The first C / groups channels lead to the first F / groups features, and so on.
    Raises ValueError where the kernel's channels or features do not divide so.
    """
    pads = (padding, padding)
    groups, rest = divmod(x.shape[-1], kernel.shape[2])
    if rest or kernel.shape[3] % max(groups, 1):
        shapes = f"{x.shape[-1]} channels and a kernel {list(kernel.shape)}"
        raise ValueError(f"{shapes} have no common groups: channels and features must be multiples of their number")
    if groups == 1 and blocks_pay(x.shape, stride, padding, jax.default_backend()):
        x, kernel, stride, pads = blocks(x), kernel_of_blocks(kernel), 1, ((padding + 1) // 2, (padding - 1) // 2)
    return _rules(stride, pads, x.shape, kernel.shape, x.dtype)(x, kernel)


def blocks_pay(x_shape: tuple, stride: int, padding: int, backend: str) -> bool:
    """Whether a convolution with stride 2 is computed as one with stride 1 over blocks of 2 x 2 pixels, with four times the channels.

    Three channels fill no tensor core: cuDNN pads them. Needs blocks that begin where the kernel's support does.
    """
    _, height, width, channels = x_shape
    return backend == "gpu" and stride == 2 and padding % 2 == 1 and channels <= FEW_CHANNELS and height % 2 == width % 2 == 0


def blocks(x: jax.Array) -> jax.Array:
    """[N, H, W, C] -> [N, H/2, W/2, 4·C]."""
    images, height, width, channels = x.shape
    x = x.reshape(images, height // 2, 2, width // 2, 2, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(images, height // 2, width // 2, 4 * channels)


def kernel_of_blocks(kernel: jax.Array) -> jax.Array:
    """[k, k, C, F] -> [(k+1)/2, (k+1)/2, 4·C, F], with a row and a column of zeros before the first."""
    size, _, channels, features = kernel.shape
    half = (size + 1) // 2
    kernel = jnp.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0))).reshape(half, 2, half, 2, channels, features)
    return kernel.transpose(0, 2, 1, 3, 4, 5).reshape(half, half, 4 * channels, features)


class Forms(NamedTuple):
    """One convolution of one seed, in one form: the output, and the gradients of its two arguments."""

    output: Callable  # (x [N, H, W, C], kernel [k, k, C / groups, F]) -> [N, h, w, F]
    to_x: Callable  # (g [N, h, w, F], kernel) -> [N, H, W, C]
    to_kernel: Callable  # (x, g) -> [k, k, C / groups, F]


def forms(stride: int, pads: tuple[int, int], x_shape: tuple, kernel_shape: tuple, dtype: Any) -> tuple[Forms, Forms]:
    """(dense, product): XLA's convolution, and one matrix product with the patches of all output pixels.

    In float32 all digits count, unless jax.default_matmul_precision says otherwise.
    """
    groups = x_shape[3] // kernel_shape[2]

    def precision() -> lax.Precision | None:
        chosen = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # which JAX adds when it runs
        return lax.Precision.HIGHEST if dtype == jnp.float32 and chosen is None else None

    def dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), [pads] * 2, dimension_numbers=LAYOUT, feature_group_count=groups, precision=precision()
        )

    def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
        seen = patches(x, kernel.shape[0], stride, pads)
        if kernel.shape[0] == 1 and stride > 1:  # XLA's GPU compiler (jaxlib 0.11.2) aborts on a product fused with a strided slice
            seen = lax.optimization_barrier(seen)
        if groups == 1:
            return jnp.dot(seen, kernel.reshape(-1, kernel.shape[3]), precision=precision())
        positions = kernel.shape[0] ** 2
        seen = seen.reshape(*seen.shape[:3], positions, groups, -1)
        of_groups = kernel.reshape(positions, kernel.shape[2], groups, -1)
        return jnp.einsum("nhwpgc,pcgf->nhwgf", seen, of_groups, precision=precision()).reshape(*seen.shape[:3], -1)

    def both(output: Callable) -> Forms:
        def to_x(g: jax.Array, kernel: jax.Array) -> jax.Array:
            x = jax.ShapeDtypeStruct((g.shape[0], *x_shape[1:]), dtype)
            return jax.linear_transpose(lambda x: output(x, kernel), x)(g)[0]

        def to_kernel(x: jax.Array, g: jax.Array) -> jax.Array:
            kernel = jax.ShapeDtypeStruct((*kernel_shape[:3], g.shape[3]), dtype)
            return jax.linear_transpose(lambda kernel: output(x, kernel), kernel)(g)[0]

        return Forms(output, to_x, to_kernel)

    return both(dense), both(product)


def patches(x: jax.Array, size: int, stride: int, pads: tuple[int, int]) -> jax.Array:
    """What each output pixel of a size x size convolution sees: [N, H, W, C] -> [N, h, w, size·size·C]."""
    height, width = ((side + sum(pads) - size) // stride + 1 for side in x.shape[1:3])
    x = jnp.pad(x, ((0, 0), pads, pads, (0, 0)))

    def seen(i: int, j: int) -> jax.Array:
        return x[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]

    return jnp.concatenate([seen(i, j) for i in range(size) for j in range(size)], axis=-1)


def product_pays(
    seeds: int, kernel_shape: tuple, stride: int, output_shape: tuple, backend: str, groups: int = 1, gradient: bool = False
) -> bool:
    """Whether the product is the faster form of a convolution to [N, h, w, F] = output_shape, for each of `seeds` seeds."""
    size, _, inputs, _ = kernel_shape
    images, height, width, _ = output_shape
    if groups > 1 and gradient and backend == "cpu":  # XLA's gradient is 20 to 60 times slower there (ResNeXt-50), its output is faster
        return True
    if size == 1:  # nothing to gather
        return seeds > 1 and (stride == 1 or backend == "gpu")
    if height * width <= FEW_PIXELS:
        return True
    return backend == "gpu" and seeds > 1 and images * height * width * size * size * inputs * groups <= FEW_ENTRIES


@functools.cache
def _rules(stride: int, pads: tuple[int, int], x_shape: tuple, kernel_shape: tuple, dtype: Any) -> Callable:
    dense, product = forms(stride, pads, x_shape, kernel_shape, dtype)
    groups = x_shape[3] // kernel_shape[2]
    height, width = ((side + sum(pads) - kernel_shape[0]) // stride + 1 for side in x_shape[1:3])

    def form(seeds: int, gradient: bool = False) -> Forms:
        out = (x_shape[0], height, width, kernel_shape[3])
        return product if product_pays(seeds, kernel_shape, stride, out, jax.default_backend(), groups, gradient) else dense

    def each(function: str, size: int, *stacked: jax.Array) -> jax.Array:
        """Every seed with its own arguments."""
        chosen = form(size, function != "output")
        one = getattr(chosen, function)
        if chosen is product:
            return jax.vmap(one)(*stacked)
        return jnp.stack([one(*(a[s] for a in stacked)) for s in range(size)])

    def output(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return form(1).output(x, kernel)

    def output_rule(size: int, batched: list[bool], x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, bool]:
        if batched == [True, True]:
            return each("output", size, x, kernel), True
        if batched == [False, True]:  # the same images for all: their kernels side by side
            return _split_features(output(x, _join_features(kernel, groups)), size, groups), True
        return _fold(lambda x: output(x, kernel), x), True

    def to_x(g: jax.Array, kernel: jax.Array) -> jax.Array:
        return form(1, True).to_x(g, kernel)

    def to_x_rule(size: int, batched: list[bool], g: jax.Array, kernel: jax.Array) -> tuple[jax.Array, bool]:
        if batched == [True, False]:
            return _fold(lambda g: to_x(g, kernel), g), True
        return each("to_x", size, *_all_batched(size, batched, g, kernel)), True

    def to_kernel(x: jax.Array, g: jax.Array) -> jax.Array:
        return form(1, True).to_kernel(x, g)

    def to_kernel_rule(size: int, batched: list[bool], x: jax.Array, g: jax.Array) -> tuple[jax.Array, bool]:
        if batched == [False, True]:
            return _split_features(to_kernel(x, _join_features(g, groups)), size, groups), True
        return each("to_kernel", size, *_all_batched(size, batched, x, g)), True

    mapped, x_gradient, kernel_gradient = (
        _with_rule(function, rule) for function, rule in ((output, output_rule), (to_x, to_x_rule), (to_kernel, to_kernel_rule))
    )
    whole = jax.custom_vjp(mapped)
    whole.defvjp(
        lambda x, kernel: (mapped(x, kernel), (x, kernel)),
        lambda saved, g: (x_gradient(g, saved[1]), kernel_gradient(saved[0], g)),
    )
    return whole


def _with_rule(function: Callable, rule: Callable) -> Callable:
    mapped = jax.custom_batching.custom_vmap(function)
    mapped.def_vmap(rule)
    return mapped


def _all_batched(size: int, batched: list[bool], *arrays: jax.Array) -> list[jax.Array]:
    return [a if b else jnp.broadcast_to(a, (size, *a.shape)) for a, b in zip(arrays, batched, strict=True)]


def _fold(function: Callable, stacked: jax.Array) -> jax.Array:
    """[S, N, ...] as one batch of S·N."""
    size, images = stacked.shape[:2]
    out = function(stacked.reshape(size * images, *stacked.shape[2:]))
    return out.reshape(size, images, *out.shape[1:])


def _join_features(stacked: jax.Array, groups: int) -> jax.Array:
    """[S, a, b, c, F] -> [a, b, c, S·F]: within each group, the features of the first seed, of the second, and so on."""
    apart = stacked.reshape(*stacked.shape[:4], groups, -1)
    return jnp.moveaxis(apart, 0, 4).reshape(*stacked.shape[1:4], -1)


def _split_features(joined: jax.Array, size: int, groups: int) -> jax.Array:
    """[a, b, c, S·F] -> [S, a, b, c, F], the inverse."""
    apart = jnp.moveaxis(joined.reshape(*joined.shape[:3], groups, size, -1), 4, 0)
    return apart.reshape(size, *joined.shape[:3], -1)


def depthwise_conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """Every channel of x [N, H, W, C] with its own filter, kernel [k, k, 1, C], unpadded: a sum of shifted maps, which XLA makes one loop.

    XLA's own is a grouped convolution, slow on CPUs in arrays of seeds and mostly on GPUs in float32. For large kernels in bfloat16 a GPU
    has fast code for it, also in arrays.
    """
    size = len(kernel)
    if depthwise_is_grouped(size, x.dtype, jax.default_backend()):
        return lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=LAYOUT, feature_group_count=x.shape[-1])
    height, width = ((side - size) // stride + 1 for side in x.shape[1:3])

    def shifted(i: int, j: int) -> jax.Array:
        return x[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride] * kernel[i, j, 0]

    total: Any = sum(shifted(i, j) for i in range(size) for j in range(size))
    return total


def depthwise_is_grouped(size: int, dtype: Any, backend: str) -> bool:
    """Whether a size x size depthwise convolution is XLA's own."""
    return backend == "gpu" and dtype == jnp.bfloat16 and size >= 5


class Conv(nn.Module):
    """Square convolution without bias, torchvision's initialisation, parameters in float32 and arithmetic in the input's type."""

    features: int
    kernel: int
    stride: int = 1
    groups: int = 1  # of channels, each convolved by itself

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [N, H, W, C] -> [N, ceil(H/stride), ceil(W/stride), features]
        kernel = parameter(self, "kernel", kaiming_normal, (self.kernel, self.kernel, x.shape[-1] // self.groups, self.features))
        return conv(x, kernel.astype(x.dtype), self.stride, (self.kernel - 1) // 2)
