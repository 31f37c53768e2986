"""Converts published weights of the style network of shape-texture debiased training and Stylized-ImageNet, or trains others.

    python data_prep/style_network.py convert vgg_normalised.pth decoder.pth OUT.safetensors
    python data_prep/style_network.py train CONTENT STYLE OUT.safetensors --encoder vgg_normalised.pth --style-weight 10 --steps 160000
    python data_prep/style_network.py train shapes shapes OUT.safetensors \\
        --width 32 --stages 2 --steps 800 --batch 16 --lr 3e-3 --style-weight 1   # a minute on two CPU cores

The two published files are in release v0.0.0 of naoto0804/pytorch-AdaIN. CONTENT and STYLE are image folders, folders of records or TFDS
data sets (jaxbed/data/image_files.py), or `shapes`, the synthetic data set, at 32 px.

Training fits the decoder D to a fixed encoder E. With features T = AdaIN(E(content), E(style)) and their image D(T), Adam minimises the
mean square of E(D(T)) - T, plus style-weight times the mean squared difference between D(T) and the style image in the means and standard
deviations of relu1_1, relu2_1, ... The learning rate is lr / (1 + decay · step). For photographs the encoder is VGG's. On `shapes`, an
untrained encoder of two stages exchanges colours and contrasts and keeps outlines, but patterns stay partly visible; with three stages
outlines are lost.

If interrupted, rerun the same command to resume: OUT.state.npz holds the state until training is complete, and OUT what is learnt so far.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep import training
from data_prep.squares import squares
from jaxbed.models import style, style_network, torch_files
from jaxbed.system import ending

PyTree = Any
SIDE_PX = {"shapes": 32}  # of training squares; all others use 256


def convert(vgg: str, decoder: str, out: pathlib.Path) -> None:
    params = {
        "encoder": style_network.encoder_from_torch(torch_files.read(vgg)),
        "decoder": style_network.decoder_from_torch(torch_files.read(decoder)),
    }
    width = params["encoder"]["conv1_1"]["bias"].shape[0]
    _check(params, width, 4, f"{vgg} and {decoder}")
    training.write(out, flat(params))
    training.tell(out)


def flat(params: PyTree) -> dict[str, np.ndarray]:
    return traverse_util.flatten_dict(params, sep="/")


def scaled(location: str, asked: argparse.Namespace, seed: int, first: int) -> Iterator[np.ndarray]:
    """Batches of random squares from step `first` on, float32 in [0, 1]."""
    return (batch.astype(np.float32) / 255 for batch in squares(location, asked.side_px, asked.resize_px, asked.batch, seed, first))


def losses(network: style_network.Config, params: PyTree, content: jax.Array, styled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(content, style) loss of one batch."""
    of_style = network.maps(params, styled)
    target = style.adain(network.encode(params, content), of_style[-1])
    side = content.shape[1:3]
    of_output = network.maps(params, network.decode(params, target)[:, : side[0], : side[1]])

    def statistics(maps: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, var = style.moments(maps)
        return mean, jnp.sqrt(var + style.EPSILON)

    pairs = [pair for a, b in zip(of_output, of_style, strict=True) for pair in zip(statistics(a), statistics(b), strict=True)]
    return ((of_output[-1] - target) ** 2).mean(), sum(((a - b) ** 2).mean() for a, b in pairs)


def fit(network: style_network.Config, params: PyTree, asked: argparse.Namespace) -> None:
    """Trains the decoder of params, from where an earlier call stopped."""
    optimizer = optax.adam(lambda step: asked.lr / (1 + asked.decay * step))

    @jax.jit
    def step(encoder: PyTree, state: PyTree, content: jax.Array, styled: jax.Array) -> tuple[PyTree, jax.Array]:
        def total(decoder: PyTree) -> tuple:
            terms = losses(network, {"encoder": encoder, "decoder": decoder}, content, styled)
            return terms[0] + asked.style_weight * terms[1], terms

        decoder, opt = state
        grads, terms = jax.grad(total, has_aux=True)(decoder)
        updates, opt = optimizer.update(grads, opt, decoder)
        return (optax.apply_updates(decoder, updates), opt), jnp.stack(terms)

    def batches(first: int) -> Iterator[tuple]:
        return zip(*(scaled(place, asked, 2 * asked.seed + k, first) for k, place in enumerate((asked.content, asked.style))), strict=True)

    training.fit(
        asked,
        (params["decoder"], optimizer.init(params["decoder"])),
        functools.partial(step, jax.device_put(params["encoder"])),
        batches,
        lambda state: flat({"encoder": params["encoder"], "decoder": state[0]}),
        lambda means: f"content {means[0]:.4f}, style {means[1]:.4f}",
    )


def train(asked: argparse.Namespace) -> None:
    network = style_network.Config(width=asked.width, stages=asked.stages)
    params = style_network.draw(asked.width, asked.stages, asked.seed)
    if asked.encoder != "random":
        weights = torch_files.read(asked.encoder)
        if "0.weight" in weights:
            params["encoder"] = style_network.encoder_from_torch(weights, asked.stages)
        else:
            names = [name for name in style_network.shapes(asked.width, asked.stages) if name.startswith("encoder/") and name in weights]
            params["encoder"] = traverse_util.unflatten_dict({name: weights[name] for name in names}, sep="/").get("encoder", {})
        _check(params, asked.width, asked.stages, asked.encoder)
    fit(network, params, asked)


def _check(params: PyTree, width: int, stages: int, origin: str) -> None:
    actual = {name: array.shape for name, array in traverse_util.flatten_dict(params, sep="/").items()}
    wrong = sorted(set(actual.items()) ^ set(style_network.shapes(width, stages).items()))
    if wrong:
        raise ValueError(f"{origin}: {wrong[0][0]} does not fit width {width} and {stages} stages: set --width and --stages")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("convert", help="convert published weights to a file of this project")
    task.add_argument("vgg")
    task.add_argument("decoder")
    task.add_argument("out", type=training.output, help="a file that ends in .safetensors")
    task = tasks.add_parser("train", help="train a decoder for a fixed encoder")
    task.add_argument("content")
    task.add_argument("style")
    task.add_argument("out", type=training.output, help="a file that ends in .safetensors")
    task.add_argument("--encoder", default="random", help="vgg_normalised.pth, a file made by this script, or random")
    task.add_argument("--width", type=int, default=64)
    task.add_argument("--stages", type=int, default=4)
    task.add_argument("--steps", type=int, default=160_000)
    task.add_argument("--batch", type=int, default=8)
    task.add_argument("--lr", type=float, default=1e-4)
    task.add_argument("--decay", type=float, default=5e-5)
    task.add_argument("--style-weight", type=float, default=10.0)
    task.add_argument("--side-px", type=int, help="of training squares; default 256, or 32 for shapes")
    task.add_argument("--resize-px", type=int, default=512, help="shorter side of the images from which they are cut")
    task.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)

    def command() -> int:
        if asked.task == "convert":
            convert(asked.vgg, asked.decoder, asked.out)
        else:
            asked.side_px = asked.side_px or min(SIDE_PX.get(location, 256) for location in (asked.content, asked.style))
            train(asked)
        return 0

    return ending.of(command, "style_network")


if __name__ == "__main__":
    ending.process(main)
