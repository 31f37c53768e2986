r"""BiasBed's protocol in one command: its methods and newer ones on one data set, same seeds, evaluated after every epoch, compared.

    python scripts/biasbed.py [shapes] [--out DIR] [--methods erm,sagnet] [--seeds 5] [--config.NAME=VALUE ...]
    python scripts/biasbed.py imagenet --config.data.train=DIR --config.data.val=DIR --config.data.edge=DIR ... \
        --style FILE --stylized SIN/train --cae DIR --edsr DIR

Each method is a run of its own, `python -m jaxbed.main`, in DIR/<method>; what starts with --config is handed to all. Stopped, the same
command goes on. In the end come `jaxbed stats` over all runs, DIR/stats/report.html, and how long each method took this time.

Debiased needs a style network: on `shapes` it is trained first (a minute), elsewhere --style names its file. Methods that train on other
images run where these are named: --stylized, --cae, --edsr. DeepAugment's three run on ImageNet alone. What does not run is said.
"""

import argparse
import pathlib
import sys

from jaxbed.system import ending
from jaxbed.tuning import launch

ROOT = pathlib.Path(__file__).resolve().parents[1]
METHODS = (
    "erm",
    "stylized_erm",
    "deepaugment_cae",
    "deepaugment_edsr",
    "deepaugment_cae_edsr",
    "padain",
    "sagnet",
    "infodrop",
    "infodrop_finetune",
    "debiased",
    "mixstyle",
    "dsu",
    "efdmix",
    "rsc",
    "mixup",
    "cutmix",
)
STYLE_OF_SHAPES = "--width 32 --stages 2 --steps 800 --batch 16 --lr 3e-3 --style-weight 1".split()
FOLDERS = {"stylized_erm": ("stylized",), **{f"deepaugment_{sets}": tuple(sets.split("_")) for sets in ("cae", "edsr", "cae_edsr")}}


def needs(method: str, asked: argparse.Namespace) -> list[str]:
    """Options that a method cannot run without and that are not given."""
    if method == "debiased" and asked.dataset != "shapes":
        return [] if asked.style else ["--style"]
    if method == "stylized_erm" and asked.dataset == "shapes":
        return []
    lacking = [f"--{name}" for name in FOLDERS.get(method, ()) if not getattr(asked, name)]
    return ["ImageNet", *lacking] if method.startswith("deepaugment") and not asked.dataset.startswith("imagenet") else lacking


def settings(method: str, asked: argparse.Namespace, out: pathlib.Path) -> list[str]:
    """The arguments of a method's run."""
    config, given = f"{method}.py:{asked.dataset}", []
    if method.startswith("deepaugment"):
        folders = [getattr(asked, name) for name in FOLDERS[method]]
        config = f"deepaugment_erm.py:{method.removeprefix('deepaugment_')}{asked.dataset.removeprefix('imagenet')}"
        given = [f"--config.data.more=({','.join(map(repr, folders))},)"]
    elif method == "stylized_erm" and asked.stylized:
        given = [f"--config.data.train={asked.stylized}"]
    elif method == "debiased":
        given = [f"--config.method.style.weights={asked.style or out / 'style.safetensors'}"]
    return [f"--config={ROOT / 'configs' / config}", f"--config.seeds={asked.seeds}", *asked.rest, *given, f"--workdir={out / method}"]


def run(*command: str) -> float:
    """Runs Python with these arguments and returns its seconds; ends this program with the same code if it fails."""
    _, code, seconds = next(launch.side_by_side({"": list(command)}, 1, ROOT))
    if code:
        print(f"biasbed: stopped with code {code}; run the same command again to resume", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)
    return seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="shapes", help="a setting of jaxbed/presets/datasets.py; default: shapes")
    parser.add_argument("--out", type=pathlib.Path, help="default: runs/biasbed-DATASET")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"default: {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--style", default="", help="safetensors file of the style network, see data_prep/style_network.py")
    parser.add_argument("--stylized", default="", help="Stylized-ImageNet's training images")
    parser.add_argument("--cae", default="", help="DeepAugment's CAE images")
    parser.add_argument("--edsr", default="", help="DeepAugment's EDSR images")
    asked, asked.rest = parser.parse_known_args(argv)
    if strange := [word for word in asked.rest if not word.startswith("--config.")]:
        parser.error(f"{strange[0]} is unknown; settings of all runs are given as --config.NAME=VALUE")
    methods = asked.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS and not (ROOT / "configs" / f"{name}.py").is_file()]:
        parser.error(f"--methods {unknown[0]}: choose from {', '.join(METHODS)}, or any file of configs/")
    out = (asked.out or ROOT / "runs" / f"biasbed-{asked.dataset}").resolve()
    left_out = {name: lacking for name in methods if (lacking := needs(name, asked))}
    seconds = {}
    for method in [name for name in methods if name not in left_out]:
        print(f"\n== {method}", flush=True)
        unfinished = (out / "style.safetensors.state.npz").is_file()
        if method == "debiased" and not asked.style and (unfinished or not (out / "style.safetensors").is_file()):
            out.mkdir(parents=True, exist_ok=True)
            seconds["style network"] = run(
                "data_prep/style_network.py", "train", "shapes", "shapes", f"{out}/style.safetensors", *STYLE_OF_SHAPES
            )
        seconds[method] = run("-m", "jaxbed.main", *settings(method, asked, out))
    print("\n== jaxbed stats", flush=True)
    runs = [str(out / name) for name in methods if name not in left_out]
    baseline = ["--baseline", "ERM"] if "erm" in methods and len(runs) > 1 else []
    seconds["stats"] = run("-m", "jaxbed.cli", "stats", *runs, *baseline, "--out", str(out / "stats"))
    print("\nseconds: " + ", ".join(f"{name} {value:.0f}" for name, value in seconds.items()) + f"; in all {sum(seconds.values()):.0f}")
    for name, lacking in left_out.items():
        print(f"not run: {name}, which needs {', '.join(lacking)}")
    return 0


if __name__ == "__main__":
    ending.process(main)
