r"""The study of "The Many Faces of Robustness" (Hendrycks et al., 2021) in small, on images that anybody has, in one command.

    python scripts/shift_study.py [--data shapes|FOLDER] [--seeds 5] [--out DIR] [--quick | --large] [--jobs 1]

The script writes the images as PNG files, trains EDSR and CAE on them, makes both data sets of DeepAugment with these, trains every method
and seven plain networks of several sizes, measures corruptions and PGD, and asks `jaxbed evidence` which hypotheses hold. Each step is a
command that is printed and that you can type yourself. OUT gets images/, the tables of images, pairs.csv, a workdir for each method in
runs/, measures/report.html, evidence/report.html, results.csv and figures/.

FOLDER has the sub-folders train and test, each with one sub-folder per class, such as Fashion-MNIST written as PNG files; all other
sub-folders are shifted sets. At most as many images of each set are taken as of `shapes`.

DeepAugment triples the images, or doubles them with one network. So its runs have a third, or half, of the epochs: all runs see equally
many images. AugMix sees three views of each, as published. Differs from the paper: networks and images are small, all runs start from
scratch, DeepAugment's images are PNG files, since JPEG would also be an augmentation at 32 px, and without pretraining that hypothesis is
left out. --quick takes few images, seeds and epochs and shows that all steps work; its numbers mean nothing. --large is for a GPU: more
images, of 64 px instead of 32.

--jobs N runs up to N steps side by side, such as several methods on one GPU, which must have memory for them; OUT/logs/ then gets what each
prints. If interrupted, rerun the same command to resume: finished steps are skipped, runs resume by themselves.
"""

import argparse
import json
import pathlib
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pandas as pd

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.stats import tables
from jaxbed.system import ending, files
from jaxbed.tuning import launch
from scripts import shift_images, shift_results

ROOT = pathlib.Path(__file__).resolve().parents[1]
NET = {"depth": "10", "width": "16", "stem": "half"}  # of every run that does not say otherwise
EPSILON = "1"  # of PGD, in 255ths


class Size(NamedTuple):
    """How much is computed. epochs: of the images alone, a multiple of 6, so that halves and thirds are whole."""

    side_px: int
    train: int
    val: int
    test: int  # of each set
    epochs: int
    batch: int
    seeds: int
    edsr_steps: int
    cae_steps: int
    severities: str


FULL = Size(32, train=1536, val=160, test=240, epochs=24, batch=32, seeds=5, edsr_steps=1000, cae_steps=4000, severities="1-5")
QUICK = Size(32, train=512, val=64, test=64, epochs=6, batch=64, seeds=2, edsr_steps=200, cae_steps=600, severities="3")
LARGE = Size(64, train=6144, val=800, test=2000, epochs=24, batch=64, seeds=5, edsr_steps=2000, cae_steps=8000, severities="1-5")


class Method(NamedTuple):
    """A run. It is the treated algorithm of the hypothesis, with ERM as control; without one it is a control of the line."""

    folder: str
    name: str  # of the algorithm
    hypothesis: str = ""
    config: str = "erm:folder"
    net: tuple[tuple[str, str], ...] = ()  # fields that differ from NET
    images: tuple[str, ...] = ()  # DeepAugment's sets

    @property
    def differs(self) -> str:
        """In what it differs from ERM, where that is more than one thing."""
        own = "" if self.config.startswith("deepaugment_erm") else " method"
        return f"images schedule{own}" if self.images else ""

    @property
    def table(self) -> str:
        """Stem of the table of its images."""
        return "_".join(self.images) or "plain"


AUGMENTATION = "diverse data augmentation"
DEEPAUGMENT = "DeepAugment with one network"
PLAIN = (
    Method("erm", "ERM"),
    *(Method(f"width{width}", f"width {width}", net=(("width", str(width)),)) for width in (4, 6, 8, 12)),
    Method("width24", "width 24", "larger models", net=(("width", "24"),)),
    Method("depth18", "depth 18", "larger models", net=(("depth", "18"),)),
)
METHODS = (
    Method("erm_se", "squeeze and excitation", "self-attention", net=(("gate", "se"),)),
    Method("erm_cbam", "CBAM", "self-attention", net=(("gate", "cbam"),)),
    Method("speckle", "speckle noise", "local augmentation", "speckle:folder"),
    Method("random_erasing", "random erasing", "local augmentation", "random_erasing:folder"),
    Method("augmix", "AugMix", AUGMENTATION, "augmix:folder"),
    Method("noise2net", "Noise2Net", AUGMENTATION, "noise2net:folder"),
    Method("deepaugment", "DeepAugment", AUGMENTATION, "deepaugment_erm:folder", images=("cae", "edsr")),
    Method("deepaugment_augmix", "DeepAugment + AugMix", AUGMENTATION, "deepaugment_augmix:folder", images=("cae", "edsr")),
    Method("deepaugment_edsr", "DeepAugment (EDSR)", DEEPAUGMENT, "deepaugment_erm:folder", images=("edsr",)),
    Method("deepaugment_cae", "DeepAugment (CAE)", DEEPAUGMENT, "deepaugment_erm:folder", images=("cae",)),
    Method("fast_adversarial", "fast adversarial training", "adversarial training", "fast_adversarial:folder"),
)
PLAIN_NAMES = [method.name for method in PLAIN]
TABLES = (("cae",), ("edsr",), ("cae", "edsr"))


class Step(NamedTuple):
    """A command, or a function of this process where there is no command."""

    name: str
    words: tuple[str, ...]  # arguments of Python; they also tell whether a finished step is still the same
    function: Callable[[], object] | None = None


class Plan(NamedTuple):
    """All that is run: stages in order, whose steps do not need one another."""

    stages: list[list[Step]]
    methods: list[Method]


def pairs_table(methods: list[Method]) -> pd.DataFrame:
    """The content of pairs.csv: a row for each treated algorithm."""
    treated = [method for method in methods if method.hypothesis]
    synthetic = {AUGMENTATION: "yes", DEEPAUGMENT: "yes"}
    rows = [
        (method.hypothesis, method.name, PLAIN[0].name, synthetic.get(method.hypothesis, "no"), "", method.differs) for method in treated
    ]
    return pd.DataFrame(rows, columns=["hypothesis", "treated", "control", "synthetic", "overlaps", "differs"])


def training(method: Method, size: Size, out: pathlib.Path) -> tuple[str, ...]:
    """The arguments of a method's run."""
    settings = {
        "name": method.name,
        "data.train": out / "images",
        "data.table": out / f"{method.table}.csv",
        "data.size_px": size.side_px,
        **{f"net.{field}": value for field, value in (NET | dict(method.net)).items()},
        "seeds": size.seeds,
        "epochs": size.epochs // (1 + len(method.images)),
        "batch_size": size.batch,
    }
    given = (f"--config.{name}={value}" for name, value in settings.items())
    return ("-m", "jaxbed.main", f"--config={method.config}", *given, f"--workdir={out / 'runs' / method.folder}")


def plan(out: pathlib.Path, data: str, size: Size, jobs: int = 1) -> Plan:
    """The steps of the whole study. Of several jobs, each measures one run before one of them, which finds the answers, measures all."""
    methods = [*PLAIN, *METHODS]
    images, of_train = out / "images", str(out / "images" / "train")
    counts = {"train": size.train, "val": size.val, "test": size.test}
    side_px = str(size.side_px)
    small = ("--width", "16", "--side-px", side_px, "--resize-px", side_px)
    options = {"edsr": ("--blocks", "4", "--steps", str(size.edsr_steps)), "cae": ("--steps", str(size.cae_steps))}
    weights = {net: str(out / f"{net}.safetensors") for net in options}

    def trained(net: str) -> Step:
        return Step(f"train {net}", ("data_prep/image_network.py", net, of_train, weights[net], *small, "--lr", "1e-3", *options[net]))

    def checked(net: str) -> Step:
        return Step(f"check {net}", ("check", weights[net]), lambda: shift_images.check(net, out, size.side_px))

    def made(net: str) -> Step:
        given = ("--train", of_train, "--net", net, "--weights", weights[net], "--side-px", side_px, "--format", "png")
        return Step(f"images of {net}", ("data_prep/deepaugment.py", str(images / net), *given))

    def folders(chosen: Iterable[Method]) -> list[str]:
        return [str(out / "runs" / method.folder) for method in chosen]

    written = ("images", data, side_px, *map(str, counts.values()))
    runs = folders(sorted(methods, key=lambda method: method in PLAIN[1:]))  # figures of many runs show the first ones
    measure = ("-m", "jaxbed.cli", "measure")
    asked = ("--measures", "imagenet_c,pgd", "--severities", size.severities, "--epsilons", EPSILON, "--select", "last")
    alone = [Step(f"measure {method.name}", (*measure, *folders([method]), *asked)) for method in methods] if jobs > 1 else []
    controls = ",".join(method.name for method in PLAIN)
    wanted = ("--pairs", str(out / "pairs.csv"), "--line", controls, "--corruptions", "--out", str(out / "evidence"))
    stages = [
        [Step("images", written, lambda: shift_images.write(data, out, counts, size.side_px))],
        *([kind(net) for net in options] for kind in (trained, checked, made)),
        [Step("tables", ("tables", data), lambda: [shift_images.join(out, sets) for sets in TABLES])],
        [Step(method.name, training(method, size, out)) for method in methods],
        alone,
        [Step("measure", (*measure, *runs, *asked, "--report", str(out / "measures")))],
        [Step("evidence", ("-m", "jaxbed.cli", "evidence", *runs, *wanted))],
    ]
    return Plan(stages, methods)


def execute(stages: list[list[Step]], out: pathlib.Path, jobs: int = 1) -> dict[str, float]:
    """Runs the steps that are not finished, of each stage up to `jobs` side by side. Ends the program where one fails.

    Returns {step: seconds of the call that finished it}: an interrupted step also took time before.
    """
    path = out / "steps.json"
    done = files.read_object(path, "delete it to run all steps again") if path.is_file() else {}
    for stage in stages:
        pending = [step for step in stage if done.get(step.name, {}).get("words") != list(step.words)]
        for step, seconds in _run(pending, out, jobs):
            done[step.name] = {"words": list(step.words), "seconds": round(seconds, 1)}
            files.write(path, json.dumps(done, indent=1))
    return {step.name: done[step.name]["seconds"] for stage in stages for step in stage}


def _run(steps: list[Step], out: pathlib.Path, jobs: int) -> Iterator[tuple[Step, float]]:
    """Yields each step with its seconds as it ends."""
    commands = [step for step in steps if not step.function]
    for step in steps:
        if step.function:
            print(f"\n== {step.name}", flush=True)
            begun = time.monotonic()
            step.function()
            yield step, time.monotonic() - begun
    if jobs > 1 and len(commands) > 1:
        logs = out / "logs"
        logs.mkdir(exist_ok=True)
        yield from _started(commands, jobs, logs, {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})  # or the first takes most of a GPU's memory
    else:
        for step in commands:
            yield from _started([step], 1, None, {})


def _started(steps: list[Step], jobs: int, logs: pathlib.Path | None, environment: dict[str, str]) -> Iterator[tuple[Step, float]]:
    """Runs commands; ends the program where one fails."""
    of_name = {step.name: step for step in steps}
    for step in steps:
        print(f"\n== {step.name}: python {shlex.join(step.words)}", flush=True)
    words = {name: list(step.words) for name, step in of_name.items()}
    for name, code, seconds in launch.side_by_side(words, jobs, ROOT, environments=dict.fromkeys(words, environment), logs=logs):
        if code:
            where = f" (see {logs / f'{name}.log'})" if logs else ""
            print(f"shift_study: {name} ended with code {code}{where}; run the same command again to resume", file=sys.stderr)
            sys.exit(code if code > 0 else 128 - code)
        if logs:
            print(f"== {name} ended after {seconds:.0f} s", flush=True)
        yield of_name[name], seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="shapes", metavar="FOLDER", help="shapes, or a folder with the sub-folders train and test")
    parser.add_argument("--seeds", type=int, help=f"default {FULL.seeds}, or {QUICK.seeds} with --quick")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "shift-study", metavar="DIR")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="few images, seeds and epochs")
    sizes.add_argument("--large", action="store_true", help=f"{LARGE.train:,} images of {LARGE.side_px} px, for a GPU")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many steps run side by side")
    asked = parser.parse_args(argv)
    if asked.seeds is not None and asked.seeds < 1:
        parser.error(f"--seeds {asked.seeds} must be at least 1")
    if asked.jobs < 1:
        parser.error(f"--jobs {asked.jobs} must be at least 1")
    if asked.data != "shapes" and (absent := [name for name in ("train", "test") if not (pathlib.Path(asked.data) / name).is_dir()]):
        parser.error(f"--data {asked.data} has no sub-folder {absent[0]}: it must have train and test, or write --data shapes")
    size = QUICK if asked.quick else LARGE if asked.large else FULL
    size = size._replace(seeds=asked.seeds or size.seeds)
    data = asked.data if asked.data == "shapes" else str(pathlib.Path(asked.data).resolve())
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    planned = plan(out, data, size, asked.jobs)
    files.write(out / "pairs.csv", tables.csv_text(pairs_table(planned.methods)))
    seconds = execute(planned.stages, out, asked.jobs)
    print("\n" + shift_results.write(out, [(method.folder, method.name) for method in planned.methods], seconds, PLAIN_NAMES))
    print(f"seconds: {', '.join(f'{name} {value:.0f}' for name, value in seconds.items())}; sum {sum(seconds.values()):.0f}")
    return 0


if __name__ == "__main__":
    ending.process(main)
