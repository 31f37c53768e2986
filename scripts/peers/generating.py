"""Rows of `scripts/bench.py generate`: what makes DeepAugment's images, without reading and writing them."""

import argparse
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxbed import parallel
from jaxbed.data import stream
from jaxbed.data.deepaugment import runs
from jaxbed.data.deepaugment.networks import DTYPES, NETWORKS
from jaxbed.models import cae, edsr
from peers import process
from peers.images import smooth
from peers.timing import Arm, Rules, pair

IMAGES = 1_281_167  # of ImageNet's training set
REFRESH = 0.05  # probability of new weights at an image: a run of images has 20 on average


class Case(NamedTuple):
    """One network, and how images pass through it."""

    net: str
    width: int
    blocks: int  # of EDSR
    side_px: int  # shorter side; the longer one is a third longer, as of most of ImageNet's images
    run: int  # images that share weights
    batch: int
    dtype: str  # in DTYPES


def cases(small: bool) -> dict[str, Case]:
    """By names such as edsr_bfloat16."""
    table = {}
    for (net, network), dtype in itertools.product(NETWORKS.items(), DTYPES):
        of_all = {"net": net, "dtype": dtype}
        if small:
            table[f"{net}_{dtype}"] = Case(width=4, blocks=2, side_px=16, run=3, batch=2, **of_all)
        else:
            table[f"{net}_{dtype}"] = Case(width=64, blocks=16, side_px=network.side_px, run=round(1 / REFRESH), batch=16, **of_all)
    return table


def generate(arguments: argparse.Namespace, rules: Rules, peer: bool) -> Iterator[dict]:
    """Images per second with new weights and signals against one image per call: PyTorch's, or jaxbed's without PyTorch.

    PyTorch computes in float32 beside float32, and as it does unless told otherwise, in TF32, beside both others.
    """
    for name, case in cases(arguments.small).items():
        if arguments.nets and name not in arguments.nets:
            continue
        ours = Arm(*generating(f"{case.run} share weights", case))
        if peer:
            settings = {**case._asdict(), "refresh": REFRESH, "tf32": case.dtype != "float32"}
            with process.Other(arguments.peer_python, "peers.torch_deepaugment", settings, 1, "PyTorch") as other:
                result = pair(f"{name} / PyTorch", [Arm(*other.arm()), ours], rules, _nothing)
        else:
            one = Arm(*generating("one per call", case._replace(batch=1)))
            result = pair(name, [one, ours], rules, _nothing)
        hours = {arm["name"]: IMAGES / arm["images_per_second"]["median"] / 3600 for arm in result["arms"]}
        shown = ", ".join(f"{arm} {value:,.2f}" for arm, value in hours.items())
        print(f"{name}: hours of this device for {IMAGES:,} images: {shown}", flush=True)
        yield {**result, "hours": list(hours.values())}


def generating(name: str, case: Case) -> tuple:
    """The arm of data_prep/deepaugment.py; a step is one run of images. Draws and distorted weights are made ahead in a thread."""
    network, rng = NETWORKS[case.net], np.random.default_rng(0)
    weights = edsr.draw(rng, case.width, case.blocks) if case.net == "edsr" else cae.draw(rng, case.width)
    height, width = case.side_px, 4 * case.side_px // 3
    image = smooth(case.run, width)[:, :height]
    sizes_px = np.full((case.run, 2), (height, width), np.int32)

    def prepared() -> Iterator[tuple[Any, list[tuple]]]:
        on_device = network.preparing(weights)
        for number in itertools.count():
            rngs = (runs.generator(number, case.net, str(place), "signal") for place in range(case.run))
            drawn = [network.draw(of_image, "faithful", weights)[0] for of_image in rngs]
            distorted, _ = network.distort(runs.generator(number, case.net, "", "weights"), weights, "faithful")
            params, passes = on_device(distorted), []
            for canvas, chosen in runs.batches(sizes_px, case.batch):
                levels = np.zeros((len(chosen), *canvas, 3), np.uint8)
                levels[:, :height, :width] = image[chosen]
                passes.append((levels, sizes_px[chosen], jax.tree.map(lambda *fields: np.stack(fields), *(drawn[i] for i in chosen))))
            yield params, passes

    ahead = stream.ahead(prepared())

    def run(steps: int) -> None:
        computed = (
            (None, network.outputs(params, levels, shown_px, of_images, case.dtype))
            for params, passes in itertools.islice(ahead, steps)
            for levels, shown_px, of_images in passes
        )
        for _ in parallel.fetched(computed):
            pass

    return name, run, case.run, 1, list


def _nothing(*arms: dict) -> dict:
    """Losses are not what is measured here."""
    return {}
