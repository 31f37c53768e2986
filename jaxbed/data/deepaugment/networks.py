"""Both networks of DeepAugment (Hendrycks et al., 2021) in one form: what makes images out of images, and what is drawn for it.

Outputs become bytes as in the published data set: fractions are cut off, not rounded.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbed.data.deepaugment import cae_signals, cae_weights, edsr_signals, edsr_weights
from jaxbed.data.deepaugment.mode import Mode
from jaxbed.models import cae, edsr

PyTree = Any
# {arithmetic: (type of the maps, precision of products)}. tensorfloat32 is how PyTorch convolves on GPUs unless told otherwise: float32, of
# which 10 bits of the mantissa enter a product. On CPUs it is float32.
DTYPES = {"float32": ("float32", "float32"), "tensorfloat32": ("float32", "tensorfloat32"), "bfloat16": ("bfloat16", None)}
Weights = dict[str, np.ndarray]
Names = tuple[str, ...]  # of options


class Drawn(NamedTuple):
    """What is random about the pass of one image; of a batch, with a leading axis."""

    signal: Any  # of the network
    seed: Any  # uint32, of the bits of CAE; EDSR has none


class Network(NamedTuple):
    """One of the two networks. Weights are under their published names."""

    side_px: int  # shorter side of the images that the published network is given
    shortest_px: int  # that it can be given
    load: Callable[[pathlib.Path | str], Weights]
    draw_options: Callable[[np.random.Generator, Mode], Names]
    distort: Callable[[np.random.Generator, Weights, Mode], tuple[Weights, Names]]
    draw_signal: Callable[[np.random.Generator, Mode, Weights], tuple[Any, Names]]
    prepare: Callable[[Weights], PyTree]
    output_sizes: Callable[[np.ndarray], np.ndarray]  # sides of images -> sides of outputs, px
    images: Callable[..., jax.Array]  # see `outputs`

    def draw(self, rng: np.random.Generator, mode: Mode, weights: Weights) -> tuple[Drawn, Names]:
        """(what is random about one image, names of the signal options). Raises ValueError for an unknown mode."""
        signal, names = self.draw_signal(rng, mode, weights)
        return Drawn(signal, rng.integers(2**32, dtype=np.uint32)), names

    def preparing(self, weights: Weights) -> Callable[[Weights], PyTree]:
        """Prepares distorted weights on the device, to which it sends only the arrays that are not those of `weights`."""
        there = jax.device_put(weights)

        def prepared(distorted: Weights) -> PyTree:
            changed = {name: array for name, array in distorted.items() if array is not weights[name]}
            return self.prepare({**there, **jax.device_put(changed)})

        return prepared

    def outputs(self, params: PyTree, levels: Any, sizes_px: Any, drawn: Drawn, dtype: str = "float32") -> jax.Array:
        """uint8 [N, h, w, 3], zeros outside each image's `output_sizes`, for canvases [N, H, W, 3] uint8 with images of sizes_px [N, 2].

        dtype: in DTYPES.
        """
        of_maps, precision = DTYPES[dtype]
        with jax.default_matmul_precision(precision):
            return self.images(params, levels, sizes_px, drawn, dtype=of_maps)


@functools.partial(jax.jit, static_argnames="dtype")
def _edsr_images(params: PyTree, levels: jax.Array, sizes_px: jax.Array, drawn: Drawn, dtype: str) -> jax.Array:
    return edsr.to_bytes(edsr.apply(params, levels.astype(dtype), sizes_px, drawn.signal))


@functools.partial(jax.jit, static_argnames="dtype")
def _cae_images(params: PyTree, levels: jax.Array, sizes_px: jax.Array, drawn: Drawn, dtype: str) -> jax.Array:
    image = (levels.astype(jnp.float32) / 255).astype(dtype)
    return (255 * cae.apply(params, image, sizes_px, drawn.seed, drawn.signal).astype(jnp.float32)).astype(jnp.uint8)


def _load_edsr(path: pathlib.Path | str) -> Weights:
    weights = edsr.load(path)
    if edsr.size(weights)[1] < 2:
        raise ValueError(f"{path} holds EDSR with one block, and distortions need two: train a network with --blocks 2 or more")
    return weights


NETWORKS = {
    "edsr": Network(
        side_px=128,
        shortest_px=1,
        load=_load_edsr,
        draw_options=edsr_weights.draw_options,
        distort=edsr_weights.distort,
        draw_signal=lambda rng, mode, weights: edsr_signals.draw_signal(rng, mode, *edsr.size(weights)),
        prepare=jax.jit(edsr.prepare),
        output_sizes=lambda sizes_px: edsr.SCALE * np.asarray(sizes_px),
        images=_edsr_images,
    ),
    "cae": Network(
        side_px=512,
        shortest_px=cae.SHORTEST_PX,
        load=cae.load,
        draw_options=cae_weights.draw_options,
        distort=cae_weights.distort,
        draw_signal=lambda rng, mode, weights: cae_signals.draw_signal(rng, mode, len(weights["e_conv_1.1.weight"])),
        prepare=jax.jit(cae.prepare),
        output_sizes=cae.output_sizes,
        images=_cae_images,
    ),
}
