"""The data sets of DeepAugment (Hendrycks et al., "The Many Faces of Robustness", 2021): every image of a training set, distorted once.

    python data_prep/deepaugment.py TARGET --train DIR --net edsr --weights FILE [--shard 3/8] [--verify]
    python data_prep/deepaugment.py TARGET --train DIR --net cae --weights FILE [--mode intended]

DIR is a folder of images with or without one sub-folder per class, a folder of records or a TFDS data set, as `jaxbed.data.image_files`
reads it. --weights are the published ones (edsr_baseline_x4; model_final.state of alexandru-dinu/cae), or a file that
data_prep/image_network.py writes. TARGET gets one image for each image of DIR. As published, it is a JPEG file of quality 75 by Pillow,
with the same name, also where the extension is another kind's. With --format png, the extension becomes .png. To train on both, give
--config.data.more='("TARGET",)'.

The published recipe is followed: the shorter side is resized to 128 px for EDSR, whose output is four times as large, and to 512 px for
CAE, whose output is up to 3 px smaller. Weights are distorted at the first image of a class and at every other one with probability
--refresh, signals for each image (jaxbed/data/deepaugment).

Differences from the published code: draws have a seed, and runs of images that share weights end with their class
(jaxbed/data/deepaugment/runs.py). Images of a run share batches of 1, 2, 4, ... --batch images on canvases of a few sizes. Neither shards
nor interruptions change a batch. Another --batch changes no byte on CPUs. A GPU may round sums differently in other batches: then an image
may differ by a level in rare places, and one of CAE, where a sum decides a bit, in a few pixels around it.

For several GPUs or machines, run --shard 1/8 to 8/8 on one TARGET, also concurrently. If interrupted, rerun the same command to resume.
TARGET/recipe.json records inputs and settings, and how they differ from the published ones; shard-<k>-of-<n>.json records what a shard
wrote, and drawn-<k>-of-<n>.csv the options that were drawn for each of its images.
"""

import argparse
import collections
import contextlib
import csv
import io
import os
import pathlib
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep import deepaugment_images as making
from data_prep import recipes
from data_prep.deepaugment_images import Job, Work
from jaxbed.data import records
from jaxbed.data.deepaugment.networks import DTYPES, NETWORKS
from jaxbed.system import ending, files

PUBLISHED = {"mode": "faithful", "refresh": 0.05, "format": "jpeg", "images": 1_281_167}
REPORT_S = 10.0
QUEUE = 4  # batches of images that wait to be written
VERIFIED = 16  # images that --verify recomputes


def begin(asked: argparse.Namespace) -> tuple[Work, Job]:
    """The images to make, and how. Raises ValueError or OSError before anything is written if something is missing or contradictory."""
    network = NETWORKS[asked.net]
    if asked.side_px < network.shortest_px:
        raise ValueError(f"--side-px {asked.side_px} is too small for {asked.net}: at least {network.shortest_px}")
    making.check_target(asked.target, asked.train)
    weights = network.load(asked.weights)
    work = making.open_work(asked.train, asked.format, asked.seed, asked.net, asked.refresh)
    recipe = {"net": asked.net, **{key: getattr(asked, key) for key in ("mode", "seed", "refresh", "side_px", "format", "dtype")}}
    recipe |= {"weights_sha256": records.checksum(pathlib.Path(asked.weights)), "images": len(work.outputs)}
    recipe |= {"images_sha256": recipes.digest(work.outputs)}
    if not asked.verify:
        asked.target.mkdir(parents=True, exist_ok=True)
    recipes.keep(asked.target / "recipe.json", recipe, {**PUBLISHED, "side_px": network.side_px}, asked.verify)
    return work, Job(network, asked.net, weights, asked.mode, asked.seed, asked.side_px, asked.batch, asked.dtype, asked.format)


def render(work: Work, job: Job, asked: argparse.Namespace, shard: tuple[int, int]) -> None:
    """Makes the missing images of one shard, every n-th run, and writes its summary."""
    number, count = shard
    of_shard = work.runs[number - 1 :: count]
    rows = np.concatenate([*of_shard, np.zeros(0, int)])
    for folder in {(asked.target / work.outputs[row]).parent for row in rows}:
        folder.mkdir(parents=True, exist_ok=True)
    missing = {int(row) for row in rows if not (asked.target / work.outputs[row]).is_file()}
    skipped: dict[str, str] = {}
    done, begun = 0, time.monotonic()
    reported, pending = begun, collections.deque[Future]()
    with ThreadPoolExecutor(asked.threads) as pool:
        made = making.made(work, job, of_shard, missing, pool, skipped if asked.corrupt == "skip" else None)
        with contextlib.closing(made):
            for row, image in made:
                pending.append(pool.submit(making.write, asked.target / work.outputs[row], image, asked.format))
                while len(pending) > QUEUE * asked.batch:
                    pending.popleft().result()
                done += 1
                if (now := time.monotonic()) - reported > REPORT_S:
                    reported, rate = now, done / (now - begun)
                    minutes = (len(missing) - done - len(skipped)) / rate / 60
                    left = f"{done + len(rows) - len(missing):,} of {len(rows):,} images, {rate:,.1f} per second, {minutes:,.0f} min left"
                    print(left, flush=True)
        for future in pending:
            future.result()
    before = len(rows) - len(missing)
    facts = {"images": len(rows), "written": done, "there before": before, "skipped": dict(sorted(skipped.items()))}
    tell_options(work, job, of_shard, skipped, asked.target / f"drawn-{number}-of-{count}.csv")
    recipes.save(asked.target / f"shard-{number}-of-{count}.json", facts)
    for name, reason in sorted(skipped.items()):
        print(f"left out: {name} ({reason})")
    rate = f", {done / (time.monotonic() - begun):,.1f} per second" if done else ""
    print(f"{asked.target}: {done:,} images written{rate}, {before:,} already existed, {len(skipped)} left out")


def tell_options(work: Work, job: Job, of_shard: Iterable[np.ndarray], skipped: Iterable[str], path: pathlib.Path) -> None:
    """Writes a CSV table: file, the file at which weights were distorted, names of the options of weights, names of those of the signal."""
    with files.replacing(path) as binary:
        text = io.TextIOWrapper(binary, "utf-8", newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("file", "distorted_at", "weights", "signal"))
        for run in of_shard:
            first = work.outputs[run[0]]
            of_weights = " ".join(job.network.draw_options(job.generator(work, run[0], "weights"), job.mode))
            for row in run:
                if work.outputs[row] not in skipped:
                    table.writerow((work.outputs[row], first, of_weights, " ".join(job.draw(work, row)[1])))
        text.flush()
        text.detach()


def verify(work: Work, job: Job, asked: argparse.Namespace) -> None:
    """Raises ValueError unless all images exist, can be decoded and have the right size, and a sample of them is reproduced."""
    cure = "run that shard again without --verify"
    skipped = {name for path in asked.target.glob("shard-*.json") for name in files.read_object(path, cure).get("skipped", ())}
    rows = [row for row, name in enumerate(work.outputs) if (asked.target / name).is_file() or name not in skipped]
    if not rows:
        raise ValueError(f"{asked.target} contains no image to verify, since all were left out: restore them and run without --verify")
    with ThreadPoolExecutor(asked.threads) as pool:
        faults = pool.map(lambda row: making.fault(work, job, row, asked.target, asked.format), rows)
        wrong = [f"{work.outputs[row]} ({words})" for row, words in zip(rows, faults, strict=True) if words]
        sample = {rows[place] for place in np.linspace(0, len(rows) - 1, VERIFIED).astype(int)}
        for row, image in making.made(work, job, work.runs, sample, pool, None) if not wrong else ():
            again = making.decoded(making.encoded(image, asked.format))
            apart = np.abs(again.astype(int) - making.decoded((asked.target / work.outputs[row]).read_bytes())).mean()
            if apart > 3:  # other devices round differently
                wrong.append(f"{work.outputs[row]} (it differs from the recomputed image by {apart:.1f} levels of 255 on average)")
    if wrong:
        more = f" and {len(wrong) - 5:,} more" if len(wrong) > 5 else ""
        cure = "Delete damaged files and run again without --verify"
        raise ValueError(f"{asked.target} is incomplete or damaged: {'; '.join(wrong[:5])}{more}. {cure}")
    print(f"{asked.target}: {len(rows):,} images can be read, {len(sample)} were recomputed and match, {len(skipped)} were left out")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--train", required=True, help="the images")
    parser.add_argument("--net", choices=tuple(NETWORKS), required=True)
    parser.add_argument("--weights", required=True, help="file of the network")
    parser.add_argument(
        "--mode", choices=("faithful", "intended"), default="faithful", help="as published, or without the accidents of its code"
    )
    parser.add_argument("--side-px", type=int, help="shorter side of the network's input; default 128 for edsr, 512 for cae")
    parser.add_argument(
        "--refresh", type=float, default=PUBLISHED["refresh"], help="probability that an image gets weights that are distorted anew"
    )
    parser.add_argument("--format", choices=tuple(making.FORMATS), default="jpeg")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="tensorfloat32", help="see jaxbed/data/deepaugment/networks.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corrupt", choices=("fail", "skip"), default="fail", help="what to do with images that cannot be read")
    parser.add_argument("--batch", type=int, default=16, help="most images in one pass, a power of two")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 16), help="to read and write")
    parser.add_argument("--shard", default="1/1", help="k/n: every n-th run, from the k-th on")
    parser.add_argument("--verify", action="store_true", help="only check the existing images, write none")
    asked = parser.parse_args(argv)
    shard = recipes.shard(parser, asked.shard)
    asked.side_px = NETWORKS[asked.net].side_px if asked.side_px is None else asked.side_px
    if asked.threads < 1 or asked.seed < 0 or not 0 <= asked.refresh <= 1:
        parser.error("--threads must be at least 1, --seed at least 0, --refresh from 0 to 1")
    if asked.batch < 1 or asked.batch & (asked.batch - 1):
        parser.error(f"--batch {asked.batch} must be a power of two, such as 8")

    def command() -> int:
        work, job = begin(asked)
        if asked.verify:
            verify(work, job, asked)
        else:
            render(work, job, asked, shard)
        return 0

    return ending.of(command, "deepaugment")


if __name__ == "__main__":
    sys.exit(main())
