"""The options of `jaxbed measure`."""

import argparse
import pathlib
import re
from collections.abc import Sequence

PUBLISHED = ("imagenet_c", "imagenet_cbar")  # benchmarks of which a folder may be named
LARGEST_EPSILON = 255.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; ends the program with a message for what is none."""
    parser = argparse.ArgumentParser(prog="jaxbed measure", description="What the networks of runs lean on.")
    add = parser.add_argument
    add("workdirs", nargs="+", type=pathlib.Path, metavar="WORKDIR")
    add("--sets", type=_names, default=(), metavar="A,B", help="evaluation sets; default: those of the training distribution, or all")
    listed = "shape_bias, spectral, critical_band, imagenet_c, imagenet_cbar, pgd, pgd_l2, apgd"
    add("--measures", type=_names, default=("all",), metavar="A,B", help=f"of {listed}; default: all")
    add("--images", type=pathlib.Path, metavar="LIST", help="a file with names of images, one per line: no others are measured")
    described = "epoch of each seed: best_val (default where there is a validation set), last, or a number"
    add("--select", default="", metavar="RULE", help=described)
    add("--severities", type=_severities, default=(1, 2, 3, 4, 5), metavar="1-5", help="of corruptions; means need all five")
    frost = "photographs of frozen glass, for ImageNet-C's frost; without them it is left out"
    add("--frost", type=pathlib.Path, metavar="DIR", help=frost)
    add("--epsilons", type=_epsilons, default=(0.5,), metavar="X,Y", help="radii of attacks, in 255ths of the range; default: 0.5")
    add("--epsilons-l2", type=_epsilons, default=(0.5,), metavar="X,Y", help="of pgd_l2: Euclidean norms; default: 0.5")
    for benchmark in PUBLISHED:
        option, described = f"--{benchmark.replace('_', '-')}", f"the published files of {benchmark}, measured beside --measures"
        add(option, type=pathlib.Path, metavar="DIR", help=described)
    add("--mce-baseline", type=pathlib.Path, metavar="RUN", help="a measured run whose errors take the place of AlexNet's in mCE")
    add("--allow-module", action="append", default=[], metavar="NAME", help="as of jaxbed eval")
    add("--out", type=pathlib.Path, metavar="TABLE.csv", help="a row for each run, for jaxbed correlate")
    add("--report", metavar="DIR", help="folder for report.html, measures.csv of all runs, and figures")
    return parser.parse_args(list(argv))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _severities(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in _names(text):
        if not (bounds := re.fullmatch(r"([1-5])(?:-([1-5]))?", part)):
            raise argparse.ArgumentTypeError(f"{part!r} is not a severity: they are 1 to 5, written 1-5 or 1,3,5")
        found |= set(range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1))
    return tuple(sorted(found))


def _epsilons(text: str) -> tuple[float, ...]:
    try:
        radii = tuple(sorted({float(f"{float(part):g}") for part in _names(text)}))  # as names of conditions have them
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: radii are numbers, separated by commas: 0,0.5,1") from None
    if not radii or not all(0 <= radius <= LARGEST_EPSILON for radius in radii):
        raise argparse.ArgumentTypeError(f"{text!r}: radii are 0 to {LARGEST_EPSILON:g}")
    return radii
