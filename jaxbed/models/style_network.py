"""The network of AdaIN: Huang and Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization" (2017).

The encoder is VGG-19 up to relu4_1, in the "normalised" form whose first layer, 1 x 1, turns RGB in [0, 1] into what VGG was trained on.
The decoder mirrors it: convolutions in reverse order, nearest upsampling for pooling, no normalisation, nothing after the last one.
All other convolutions are 3 x 3 on maps padded by reflection; pooling is 2 x 2 and rounds up, so that a side of 158 px becomes 20 and
returns as 160: row i of the output belongs to row i of the input, and callers cut off what is too much.

Weights: `data_prep/style_network.py` converts the published ones and trains others. `models.style.adain` acts between the two halves.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from jaxbed import values
from jaxbed.models import reflect_conv, torch_files
from jaxbed.values import Count, Dtype, Stage

PyTree = Any
CONVOLUTIONS = (2, 2, 4, 4)  # of VGG-19's stages; of the last one that is used, only the first
PREPARE = "python data_prep/style_network.py convert vgg_normalised.pth decoder.pth FILE.safetensors, or train"


class Layer(NamedTuple):
    """A 3 x 3 convolution of the encoder; the decoder's of the same name leads from its outputs to its inputs."""

    name: str  # conv<stage>_<number>
    inputs: int
    outputs: int
    pooled: bool  # its input; the decoder's output is upsampled


@dataclasses.dataclass
class Config:
    weights: str = ""  # a file that data_prep/style_network.py made; random: untrained, to measure speed and for tests
    width: Count = 64  # channels of the first stage; 64 is the published network
    stages: Stage = 4  # features are relu<stages>_1; published: 4
    dtype: Dtype = "float32"  # of activations

    def load(self) -> PyTree:
        """{"encoder": ..., "decoder": ...}, float32. Raises ValueError or FileNotFoundError for what is not there or does not fit."""
        values.check(self, "style")
        if not self.weights:
            raise ValueError(f'style.weights is empty: name a file ({PREPARE} makes one), or "random" to measure speed')
        if self.weights == "random":
            return draw(self.width, self.stages)
        if not pathlib.Path(self.weights).is_file():
            raise FileNotFoundError(f"style.weights = {self.weights}: there is no such file ({PREPARE} makes one)")
        arrays = torch_files.read(self.weights)
        expected = shapes(self.width, self.stages)
        if {name: array.shape for name, array in arrays.items()} != expected:
            have = f"width {arrays['encoder/conv1_1/kernel'].shape[-1]}" if "encoder/conv1_1/kernel" in arrays else "another network"
            raise ValueError(
                f"style.weights = {self.weights} holds {have}, {_stages(arrays)} stages, and style.width = {self.width}, "
                f"style.stages = {self.stages}: set both as the file has them, or make another one ({PREPARE})"
            )
        return traverse_util.unflatten_dict(arrays, sep="/")

    def encode(self, params: PyTree, image: jax.Array) -> jax.Array:
        """image [N, H, W, 3] in [0, 1] -> features [N, h, w, C], sides halved `stages - 1` times and rounded up."""
        return self.maps(params, image)[-1]

    def maps(self, params: PyTree, image: jax.Array) -> list[jax.Array]:
        """relu1_1, relu2_1, ..., relu<stages>_1."""
        if min(image.shape[1:3]) <= 2 ** (self.stages - 1):
            raise ValueError(f"images of {min(image.shape[1:3])} px leave nothing to reflect in stage {self.stages}: lower style.stages")
        x, kept = reflect_conv.whole(jnp.asarray(image, self.dtype)), []
        for layer in layers(self.width, self.stages):
            weights = params["encoder"][layer.name]
            if layer.name == "conv1_1":
                weights = _after(params["encoder"]["colours"], weights)
            x = reflect_conv.convolve(weights, reflect_conv.pool(x) if layer.pooled else x)
            if layer.name.endswith("_1"):
                kept.append(x.pixels())
        return kept

    def decode(self, params: PyTree, features: jax.Array) -> jax.Array:
        """features [N, h, w, C] -> image [N, H, W, 3], sides doubled `stages - 1` times; values may lie outside [0, 1]."""
        x, doubled = reflect_conv.whole(jnp.asarray(features, self.dtype)), False
        *inner, last = reversed(layers(self.width, self.stages))
        for layer in inner:
            x = (reflect_conv.convolve_doubled if doubled else reflect_conv.convolve)(params["decoder"][layer.name], x)
            doubled = layer.pooled
        return reflect_conv.to_few(params["decoder"][last.name], x)


def layers(width: int, stages: int) -> list[Layer]:
    """The encoder's 3 x 3 convolutions, in order."""
    listed, inputs = [], 3
    for stage in range(1, stages + 1):
        for number in range(1, 1 + (CONVOLUTIONS[stage - 1] if stage < stages else 1)):
            outputs = width * 2 ** (stage - 1)
            listed.append(Layer(f"conv{stage}_{number}", inputs, outputs, stage > 1 and number == 1))
            inputs = outputs
    return listed


def shapes(width: int, stages: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by path: encoder/colours/kernel, encoder/conv1_1/bias, ..., decoder/conv1_1/bias."""
    arrays = {"encoder/colours/kernel": (1, 1, 3, 3), "encoder/colours/bias": (3,)}
    for layer in layers(width, stages):
        for half, ends in (("encoder", (layer.inputs, layer.outputs)), ("decoder", (layer.outputs, layer.inputs))):
            arrays |= {f"{half}/{layer.name}/kernel": (3, 3, *ends), f"{half}/{layer.name}/bias": ends[1:]}
    return arrays


def draw(width: int, stages: int, seed: int = 0) -> PyTree:
    """Untrained parameters: He et al.'s normal ones; the first layer only moves grey to 0."""
    rng, drawn = np.random.default_rng(seed), {}
    for name, shape in shapes(width, stages).items():
        deviation = (2 / np.prod(shape[:-1])) ** 0.5 if len(shape) > 1 else 0
        drawn[name] = (deviation * rng.standard_normal(shape)).astype(np.float32)
    drawn |= {"encoder/colours/kernel": np.eye(3, dtype=np.float32)[None, None], "encoder/colours/bias": np.full(3, -0.5, np.float32)}
    return traverse_util.unflatten_dict(drawn, sep="/")


def encoder_from_torch(state: dict[str, np.ndarray], stages: int = 4) -> PyTree:
    """The encoder of vgg_normalised.pth, whose names are places in a list: each convolution has its padding before, its ReLU after it."""
    converted, number = {"colours": _from_torch(state, 0)}, 1
    for layer in layers(1, stages):
        number += layer.pooled
        converted[layer.name] = _from_torch(state, number + 1)
        number += 3
    return converted


def decoder_from_torch(state: dict[str, np.ndarray], stages: int = 4) -> PyTree:
    """The same for decoder.pth."""
    converted, number = {}, 0
    for layer in reversed(layers(1, stages)):
        converted[layer.name] = _from_torch(state, number + 1)
        number += 3 + layer.pooled
    return converted


def _from_torch(state: dict[str, np.ndarray], number: int) -> PyTree:
    for name, axes in (("weight", 4), ("bias", 1)):
        if np.ndim(state.get(f"{number}.{name}", np.float32(0))) != axes:
            raise ValueError(f"the file has no {number}.{name} of {axes} axes: it is not the style network's, or of another depth")
    kernel, bias = (np.asarray(state[f"{number}.{name}"], np.float32) for name in ("weight", "bias"))
    return {"kernel": np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)), "bias": bias}


def _stages(arrays: dict[str, np.ndarray]) -> int:
    return sum(name.startswith("encoder/") and name.endswith("_1/kernel") for name in arrays)


def _after(colours: PyTree, weights: PyTree) -> PyTree:
    """Both layers as one 3 x 3 convolution: of three channels alone, the first would keep a GPU idle."""
    kernel = jnp.einsum("dc,hwcf->hwdf", colours["kernel"][0, 0], weights["kernel"], precision="highest")
    return {"kernel": kernel, "bias": weights["bias"] + jnp.einsum("c,hwcf->f", colours["bias"], weights["kernel"], precision="highest")}
