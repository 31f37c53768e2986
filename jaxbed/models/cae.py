"""The compressive autoencoder of DeepAugment: Hendrycks et al., "The Many Faces of Robustness" (2021).

The network is `cae_32x32x32_zero_pad_bin` of alexandru-dinu/cae, after Theis et al., "Lossy Image Compression with Compressive
Autoencoders" (2017). A latent of tanh values, a quarter of the image in height and width, becomes random bits, and a decoder restores the
image from these. Weights keep PyTorch's names and axes, because the distortions of `data.deepaugment` are defined on them; `prepare`
makes the parameters of `apply`.

Differences from the published code: images of several sizes share a batch, each with the result that it gets alone. Random numbers are
hashes of an image's seed and a position (`positional`). A `width` other than 64 scales every number of channels, the latent's too: width
at half the size, 2·width in blocks and width / 2 in the latent.
"""

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxbed.models import canvas, conv, positional, torch_files
from jaxbed.stats import names

PyTree = Any
Weights = dict[str, np.ndarray]
WIDTH = 64  # of the published network
BLOCKS = (1, 2, 3)
SHORTEST_PX = 12  # of a side: the decoder's first convolution needs 3 x 3 pixels of the latent
BITS, ZEROED, NEGATED, GAIN = range(4)  # streams of random numbers; the first is of an image's seed, the others of its signal's
# [pixel of a pair, pair, pixel in it, tap] of three taps over pairs of pixels: a pair and the next hold all that both pixels see
TAPS = (np.arange(2)[:, None, None, None] + np.arange(3) == np.arange(4).reshape(2, 2, 1)).astype(np.float32)


class Layer(NamedTuple):
    """A convolution, or a transposed one of stride 2."""

    name: str  # PyTorch's
    inputs: int
    outputs: int
    side_px: int  # of the kernel
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the weight, on PyTorch's axes: (out, in, height, width), of a transposed convolution (in, out, height, width)."""
        channels = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        return (*channels, self.side_px, self.side_px)


class Signal(NamedTuple):
    """How one image's latent is distorted; of a batch, with a leading axis. `data.deepaugment.cae_signals` draws it.

    The fields hold for every option: what an option leaves alone, its fields leave alone too. C is the number of latent channels.
    """

    seed: np.ndarray  # uint32, of the masks and the gain
    zero_rate: np.ndarray  # probability that a pixel of the latent is zeroed, in all channels
    negate_rate: np.ndarray  # the same for a change of sign
    flip_rows: np.ndarray  # [C] bool: channels turned upside down
    flip_columns: np.ndarray  # [C] bool: channels mirrored
    kernel: np.ndarray  # [3, 3, C, C], HWIO: of a convolution of the latent
    gain: np.ndarray  # [2]: each bit is multiplied by gain[0] + gain[1]·U, U uniform in [0, 1)


def layers(width: int = WIDTH) -> list[Layer]:
    """The 21 layers in order; a layer's place in this list is its number in DeepAugment. Raises ValueError for an impossible width."""
    inner, latent = 2 * width, latent_channels(width)

    def blocks(half: str) -> list[Layer]:
        return [Layer(f"{half}_block_{block}.{place}", inner, inner, 3) for block in BLOCKS for place in (1, 4)]

    return [
        Layer("e_conv_1.1", 3, width, 5),
        Layer("e_conv_2.1", width, inner, 5),
        *blocks("e"),
        Layer("e_conv_3.0", inner, latent, 5),
        Layer("d_up_conv_1.0", latent, width, 3),
        Layer("d_up_conv_1.3", width, inner, 2, transposed=True),
        *blocks("d"),
        Layer("d_up_conv_2.0", inner, width // 2, 3),
        Layer("d_up_conv_2.3", width // 2, 4 * width, 2, transposed=True),
        Layer("d_up_conv_3.0", 4 * width, width // 4, 3),
        Layer("d_up_conv_3.3", width // 4, 3, 3),
    ]


def latent_channels(width: int = WIDTH) -> int:
    """Those of the latent, half the width. Raises ValueError for a width that the network cannot have."""
    if width < 4 or width % 4:
        raise ValueError(f"a width of {width} does not fit: it must be a multiple of 4, such as 64, that of the published network")
    return width // 2


def shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights by PyTorch's names, in its order."""
    pairs = ((f"{layer.name}.weight", layer.shape, f"{layer.name}.bias", (layer.outputs,)) for layer in layers(width))
    return {name: shape for weight, of_weight, bias, of_bias in pairs for name, shape in ((weight, of_weight), (bias, of_bias))}


def draw(rng: np.random.Generator, width: int = WIDTH) -> Weights:
    """Untrained weights, in PyTorch's default initialisation: uniform within 1 / sqrt(fan-in)."""
    drawn = {}
    for layer in layers(width):
        bound = np.prod(layer.shape[1:]) ** -0.5  # PyTorch's fan-in is of the second axis, which of transposed ones is the outputs
        for name, shape in (("weight", layer.shape), ("bias", (layer.outputs,))):
            drawn[f"{layer.name}.{name}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return drawn


def load(path: pathlib.Path | str) -> Weights:
    """The weights of a file of any width, float32: the published model_final.state, or one of the same names.

    Raises ValueError, which names the file, for what is missing, is of another shape, or belongs to another network.
    """
    arrays = torch_files.read(path)
    cure = "name a state dict of cae_32x32x32_zero_pad_bin (alexandru-dinu/cae)"
    if missing := [name for name in shapes() if name not in arrays]:
        raise ValueError(f"{path} lacks {names.listed(missing)}: {cure}")
    if others := [name for name in arrays if name not in shapes()]:
        raise ValueError(f"{path} also holds {names.listed(others)}, so it is another network's: {cure}")
    first = arrays["e_conv_1.1.weight"].shape
    try:
        expected = shapes(first[0] if first else 0)
    except ValueError as error:
        raise ValueError(f"{path}: e_conv_1.1.weight has shape {first}, and {error}; {cure}") from None
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {name} has shape {arrays[name].shape}, and {shape} fits a width of {first[0]}: {cure}")
    return {name: np.array(arrays[name], np.float32) for name in expected}


def prepare(weights: Weights) -> PyTree:
    """{layer: {"kernel": HWIO, "bias"}} for `apply`; differentiable, so that weights can be trained under their own names.

    A transposed convolution with kernel and stride 2 becomes a 1 x 1 convolution to the four pixels of each block.
    """
    params = {}
    for layer in layers(len(weights["e_conv_1.1.weight"])):
        weight, bias = (jnp.asarray(weights[f"{layer.name}.{name}"]) for name in ("weight", "bias"))
        if layer.transposed:
            kernel = weight.transpose(0, 2, 3, 1).reshape(1, 1, layer.inputs, -1)
        else:
            kernel = weight.transpose(2, 3, 1, 0)
        params[layer.name] = {"kernel": kernel, "bias": bias}
    return params


def restore(params: PyTree) -> Weights:
    """The weights that `prepare` was given: to save what was trained, or to distort it."""
    weights: Weights = {}
    for layer in layers(len(params["e_conv_1.1"]["bias"])):
        kernel, bias = (np.asarray(params[layer.name][name], np.float32) for name in ("kernel", "bias"))
        if layer.transposed:
            weight = kernel.reshape(layer.inputs, 2, 2, layer.outputs).transpose(0, 3, 1, 2)
        else:
            weight = kernel.transpose(3, 2, 0, 1)
        weights |= {f"{layer.name}.weight": np.ascontiguousarray(weight), f"{layer.name}.bias": bias.copy()}
    return weights


def output_sizes(sizes_px: np.ndarray) -> np.ndarray:
    """Sides of the outputs of images with these sides, up to 3 px smaller. Raises ValueError for sides below SHORTEST_PX."""
    if np.min(sizes_px, initial=SHORTEST_PX) < SHORTEST_PX:
        raise ValueError(f"a side of {np.min(sizes_px)} px is too short for this network: resize images to {SHORTEST_PX} px or more")
    return 4 * (np.asarray(sizes_px) // 4)


def apply(params: PyTree, image: jax.Array, sizes_px: jax.Array, seeds: jax.Array, signal: Signal | None = None) -> jax.Array:
    """Decoded images [N, 4·floor(H / 4), 4·floor(W / 4), 3] in [0, 1], in the type of `image`; zeros outside each one's `output_sizes`.

    image [N, H, W, 3] in [0, 1], each in the top left corner of its canvas; sizes_px [N, 2], heights and widths of SHORTEST_PX or more;
    seeds [N] uint32, of the random bits. A signal, stacked to a leading axis of N, distorts the latents. Raises ValueError for a canvas
    below SHORTEST_PX, or a signal of another number of images or channels.
    """
    return jnp.clip(reconstruct(params, image, sizes_px, seeds, signal), 0, 1)


def reconstruct(params: PyTree, image: jax.Array, sizes_px: jax.Array, seeds: jax.Array, signal: Signal | None = None) -> jax.Array:
    """`apply` before it clips: values in [-1, 1]. This is what training compares with the image, as clipped values have no gradient."""
    output_sizes(np.array(image.shape[1:3]))
    sizes_px = jnp.asarray(sizes_px)
    latent = encode(params, image, sizes_px)
    if signal is not None:
        latent = distorted(latent, sizes_px // 4, signal)
    bits = binarized(latent, positional.uniform(seeds, latent.shape[1:], BITS))
    if signal is not None:
        low, span = (signal.gain[:, end, None, None, None] for end in (0, 1))
        bits = bits * (low + span * positional.uniform(signal.seed, bits.shape[1:], GAIN))
    decoded = decode(params, (2 * bits - 1).astype(image.dtype), sizes_px // 4)
    return decoded[:, : image.shape[1] // 4 * 4, : image.shape[2] // 4 * 4]


def encode(params: PyTree, image: jax.Array, sizes_px: jax.Array) -> jax.Array:
    """The latent before it becomes bits, float32 [N, ceil(H / 4), ceil(W / 4), C] in [-1, 1]; zeros outside floor(sizes_px / 4)."""
    x = jnp.pad(canvas.cut(image, sizes_px), [(0, 0), *((0, -side % 4) for side in image.shape[1:3]), (0, 0)])
    for name in ("e_conv_1.1", "e_conv_2.1"):
        sizes_px = sizes_px // 2
        x = jnp.pad(x, ((0, 0), (0, 2), (0, 2), (0, 0)))  # published are (1, 2): `conv` adds the 1, and a GPU takes blocks of pixels
        x = canvas.cut(_rectified(_convolved(params[name], x, 1, stride=2)), sizes_px)
    x = _residual(params, "e", x, sizes_px)
    return canvas.cut(jnp.tanh(_convolved(params["e_conv_3.0"], x, 2)), sizes_px).astype(jnp.float32)


def distorted(latent: jax.Array, sizes_px: jax.Array, signal: Signal) -> jax.Array:
    """A batch of latents [N, h, w, C] under all that acts before they become bits; sizes_px [N, 2] are of the latents.

    Raises ValueError for a signal of another number of images or channels.
    """
    if signal.flip_rows.shape != (len(latent), latent.shape[-1]):
        raise ValueError(
            f"signals of shape {signal.flip_rows.shape} do not fit {len(latent)} latents of {latent.shape[-1]} channels: "
            f"draw one per image with width={2 * latent.shape[-1]}, and stack them"
        )
    pixels = (*latent.shape[1:3], 1)
    for stream, rate, changed in ((ZEROED, signal.zero_rate, jnp.zeros_like), (NEGATED, signal.negate_rate, jnp.negative)):
        chosen = positional.uniform(signal.seed, pixels, stream) < rate[:, None, None, None]
        latent = jnp.where(chosen, changed(latent), latent)
    for axis, channels in ((canvas.HEIGHT, signal.flip_rows), (canvas.WIDTH, signal.flip_columns)):
        latent = jnp.where(channels[:, None, None], canvas.flip(latent, sizes_px, axis), latent)
    # One product per image: a convolution with a kernel per image is a grouped one, which is slow
    kernel = jnp.asarray(signal.kernel).reshape(len(latent), -1, latent.shape[-1])
    latent = jnp.einsum("nhwi,nio->nhwo", conv.patches(latent, 3, 1, (1, 1)), kernel, precision=lax.Precision.HIGHEST)
    return canvas.cut(latent, sizes_px)


def binarized(latent: jax.Array, uniform: jax.Array) -> jax.Array:
    """Bits, 0 or 1 as floats: 1 where uniform <= (1 + latent) / 2. The gradient passes as if a bit were (1 + latent) / 2 + constant."""
    bits = (uniform <= (1 + latent) / 2).astype(latent.dtype)
    return bits + (latent - lax.stop_gradient(latent)) / 2


def decode(params: PyTree, code: jax.Array, sizes_px: jax.Array) -> jax.Array:
    """Images [N, 4h, 4w, 3] in [-1, 1] from code [N, h, w, C], bits as -1 and 1; sizes_px [N, 2] are of the codes."""
    transposed = params["d_up_conv_1.3"]
    of_blocks = {"kernel": transposed["kernel"], "bias": jnp.tile(transposed["bias"], 4)}
    x = _of_blocks(_convolved(of_blocks, _narrowed(params["d_up_conv_1.0"], code, sizes_px), 0))
    x = _residual(params, "d", canvas.cut(x, 2 * sizes_px), 2 * sizes_px)
    x = _narrowed(params["d_up_conv_2.0"], x, 2 * sizes_px)
    x = _rectified(_of_blocks(_convolved(_joined(params["d_up_conv_2.3"], params["d_up_conv_3.0"]), x, 0)))
    x = canvas.reflect(x, 4 * sizes_px - 2, 2)
    return canvas.cut(jnp.tanh(_convolved(params["d_up_conv_3.3"], x, 0)), 4 * sizes_px)


def _residual(params: PyTree, half: str, x: jax.Array, sizes_px: jax.Array) -> jax.Array:
    for block in BLOCKS:
        inner = canvas.cut(_rectified(_convolved(params[f"{half}_block_{block}.1"], x, 1)), sizes_px)
        x = canvas.cut(x + _convolved(params[f"{half}_block_{block}.4"], inner, 1), sizes_px)
    return x


def _narrowed(weights: PyTree, x: jax.Array, sizes_px: jax.Array) -> jax.Array:
    """A 3 x 3 convolution that loses the outermost pixels, and zeros in their place."""
    x = canvas.cut(_rectified(_convolved(weights, x, 0)), sizes_px - 2)
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


def _of_blocks(x: jax.Array) -> jax.Array:
    """[N, h, w, 4·C], blocks of 2 x 2 pixels -> [N, 2h, 2w, C]."""
    images, height, width, _ = x.shape
    x = x.reshape(images, height, width, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(images, 2 * height, 2 * width, -1)


def _joined(transposed: PyTree, after: PyTree) -> PyTree:
    """A transposed convolution and the 3 x 3 convolution of its output as one of 2 x 2 blocks to blocks.

    Nothing lies between the two, and the map in between has the most channels and pixels of all. Sums are in another order than published.
    """
    of_pixels = transposed["kernel"].reshape(-1, 2, 2, len(transposed["bias"]))
    kernel = jnp.einsum("xrak,yscl,iacm,klmo->rsixyo", TAPS, TAPS, of_pixels, after["kernel"], precision=lax.Precision.HIGHEST)
    bias = after["bias"] + jnp.einsum("m,klmo->o", transposed["bias"], after["kernel"], precision=lax.Precision.HIGHEST)
    return {"kernel": kernel.reshape(2, 2, len(of_pixels), -1), "bias": jnp.tile(bias, 4)}


def _convolved(weights: PyTree, x: jax.Array, padding: int, stride: int = 1) -> jax.Array:
    return conv.conv(x, weights["kernel"].astype(x.dtype), stride, padding) + weights["bias"].astype(x.dtype)


def _rectified(x: jax.Array) -> jax.Array:
    return jax.nn.leaky_relu(x, 0.01)
