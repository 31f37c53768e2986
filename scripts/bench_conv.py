"""Where is a matrix product with patches faster than one dense convolution a seed? The measurements behind `models.conv`'s rule.

    python scripts/bench_conv.py [--seeds 10] [--nets resnet18_32,...] [--json FILE]

For every kind of layer of a network: microseconds for all seeds, of the output and of both gradients, in both forms. Each number is
the least of `REPEATS` dispatches of a loop of `LOOP` calls; the argument changes from call to call, so that none is left out.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbed.models import conv

LOOP, REPEATS = 20, 4
LARGEST_BYTES = 4 * 2**30  # of the patches of all seeds: beyond, the product is not tried


class Layer(NamedTuple):
    """Its padding keeps the side where the stride is 1. The 7x7 stem is the 4x4 convolution over blocks of pixels that it becomes."""

    batch: int
    side: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    dtype: str = "bfloat16"

    @property
    def pads(self) -> tuple[int, int]:
        return self.kernel // 2, (self.kernel - 1) // 2


def _stages(batch: int, side: int) -> list[Layer]:
    """The 3x3 and shortcut layers of a ResNet-18 whose first stage has maps of `side` pixels."""
    layers = [Layer(batch, side, 64, 64, 3, 1)]
    for inputs in (64, 128, 256):
        layers += [Layer(batch, side, inputs, 2 * inputs, k, 2) for k in (3, 1)]
        side //= 2
        layers.append(Layer(batch, side, 2 * inputs, 2 * inputs, 3, 1))
    return layers


NETS = {
    "resnet18_64": [Layer(64, 32, 12, 64, 4, 1), *_stages(64, 16)],
    "resnet18_32": [Layer(128, 32, 3, 64, 3, 1), *_stages(128, 32)],
    "resnet18_224": [Layer(64, 112, 12, 64, 4, 1), *_stages(64, 56)],
    "simple_conv_28": [Layer(256, 28, i, o, 7, 1, "float32") for i, o in ((3, 16), (16, 32), (32, 64), (64, 128))],
}


def arguments(layer: Layer, seeds: int) -> dict[str, tuple[jax.Array, jax.Array]]:
    """For the three functions of `conv.Forms`, stacked over seeds."""
    side = (layer.side + sum(layer.pads) - layer.kernel) // layer.stride + 1
    shapes = {
        "x": (layer.batch, layer.side, layer.side, layer.inputs),
        "kernel": (layer.kernel, layer.kernel, layer.inputs, layer.outputs),
        "g": (layer.batch, side, side, layer.outputs),
    }
    x, kernel, g = (jax.random.normal(jax.random.key(i), (seeds, *s), layer.dtype) for i, s in enumerate(shapes.values()))
    return {"output": (x, kernel), "to_x": (g, kernel), "to_kernel": (x, g)}


def loop(layer: Layer, seeds: int, function: str, form: str) -> Callable:
    """A compiled function of the stacked arguments that runs LOOP calls."""
    x_shape = (layer.batch, layer.side, layer.side, layer.inputs)
    kernel_shape = (layer.kernel, layer.kernel, layer.inputs, layer.outputs)
    dense, product = conv.forms(layer.stride, layer.pads, x_shape, kernel_shape, jnp.dtype(layer.dtype))
    one = getattr(dense if form == "dense" else product, function)

    def all_seeds(a, b):
        return jnp.stack([one(a[s], b[s]) for s in range(seeds)]) if form == "dense" else jax.vmap(one)(a, b)

    def body(small, _, a, b):
        out = jax.lax.optimization_barrier(all_seeds(a + small.astype(a.dtype), b))  # or only what is used would be computed
        return out[(0,) * out.ndim].astype(jnp.float32) * 1e-30, None

    return jax.jit(lambda a, b: jax.lax.scan(lambda c, x: body(c, x, a, b), jnp.float32(0), None, length=LOOP)[0])


def measure(compiled, a: jax.Array, b: jax.Array) -> float:
    """Microseconds a call."""
    jax.block_until_ready(compiled(a, b))
    best = float("inf")
    for _ in range(REPEATS):
        before = time.perf_counter()
        jax.block_until_ready(compiled(a, b))
        best = min(best, time.perf_counter() - before)
    return best / LOOP * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--nets", default=",".join(NETS), help=f"of {', '.join(NETS)}")
    parser.add_argument("--json", type=pathlib.Path, help="file for every number")
    options = parser.parse_args()
    layers = list(dict.fromkeys(layer for name in options.nets.split(",") for layer in NETS[name]))
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {options.seeds} seeds; microseconds, dense / product", flush=True)
    results = []
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for layer in layers:
            inputs = arguments(layer, options.seeds)
            pixels = inputs["output"][0].size // layer.inputs // layer.stride**2
            fits = pixels * layer.kernel**2 * layer.inputs * jnp.dtype(layer.dtype).itemsize <= LARGEST_BYTES
            cases = [(name, form) for name in inputs for form in ("dense", "product") if fits or form == "dense"]
            jobs = {
                case: pool.submit(lambda f, *args: f.lower(*args).compile(), loop(layer, options.seeds, *case), *inputs[case[0]])
                for case in cases
            }
            found = {" ".join(case): measure(job.result(), *inputs[case[0]]) for case, job in jobs.items()}
            results.append({**layer._asdict(), "seeds": options.seeds, **found})
            shown = "  ".join(f"{n} {found[f'{n} dense']:7.0f} /{found.get(f'{n} product', math.nan):7.0f}" for n in inputs)
            print(" ".join(map(str, layer)), shown, sep="   ", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
