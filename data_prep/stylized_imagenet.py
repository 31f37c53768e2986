"""Stylized-ImageNet (Geirhos et al., 2019): every image of ImageNet, restyled with AdaIN after one painting.

    python data_prep/stylized_imagenet.py TARGET --styles PAINTINGS --val DIR [--train DIR] --weights FILE [--shard 3/8] [--verify]

PAINTINGS is the unpacked train.zip of Kaggle's painter-by-numbers; --val and --train are ImageNet, as `jaxbed.data.image_files` reads it;
--weights is the style network that data_prep/style_network.py writes. TARGET/val and TARGET/train get one sub-folder per class, with PNG
files of 224 x 224 pixels under the names of the images: --config.data.stylized=TARGET/val, --config.data.train=TARGET/train.

The published recipe is followed. Paintings that are unreadable or have a side below 224 are left out (79,395 must remain); the largest
central square is resized to 224 and stored in TARGET/paintings as the authors did (JPEG with Pillow's defaults). Images are resized to a
shorter side of 256 and cropped to the central 224. Each image gets the painting that NumPy's RandomState(49809) draws for it, ImageNet-val
first, then the training set, in the order of folders and names: the draw does not depend on batches, shards or progress. Both inputs are in
[0, 1], with the full style of the painting (alpha 1).

Differences from the published code: pixels are rounded (torchvision's save_image of that time truncated them: up to one level of 255 less),
and images go through the network in batches, which may round sums differently.

For several GPUs or machines, run --shard 1/8 to 8/8 on one TARGET, also concurrently. If interrupted, rerun the same command to resume.
TARGET/recipe.json records inputs and settings, and how they differ from the published ones; shard-<k>-of-<n>.json records what a shard
wrote.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep import paintings, recipes
from data_prep.paintings import REPORT_S, SEED, SIDE, UNREADABLE, draw
from jaxbed import parallel
from jaxbed.data import decode, image_files, records, stream
from jaxbed.data.stream import Images
from jaxbed.system import ending, files

PUBLISHED = {"styles": 79_395, "val": 50_000, "train": 1_281_167, "seed": SEED, "alpha": 1.0, "width": 64, "stages": 4}
VERIFIED = 16  # images that --verify recomputes


class Work(NamedTuple):
    """All images to make, val first."""

    read: Callable[[int], np.ndarray]  # row -> uint8 [224, 224, 3]
    outputs: list[str]  # by row: val/<class>/<name>.png
    styles: list[pathlib.Path]  # by row: file of a prepared painting


def open_splits(locations: dict[str, str]) -> dict[str, Images]:
    """The images of val, and of train if named, as squares of 224 pixels."""
    for location in locations.values():
        if location.startswith("tfds:"):
            raise ValueError(f"{location}: paintings are drawn in the order of folders and names, which TFDS does not keep: name a folder")
    return {
        split: image_files.open_location(location, image_files.Size(SIDE, 256)).images for split, location in locations.items() if location
    }


def assign(splits: dict[str, Images], styles: list[pathlib.Path], seed: int) -> Work:
    """Every image with its output and its painting. Raises ValueError if two would be written to one file."""
    outputs = [f"{split}/{pathlib.PurePath(name).with_suffix('.png')}" for split, images in splits.items() for name in images.names]
    if len(set(outputs)) < len(outputs):
        twice = next(name for name in outputs if outputs.count(name) > 1)
        raise ValueError(f"two images would be written to {twice}: names must differ in more than their extensions")
    drawn = draw(len(styles), *(len(splits.get(split, ())) for split in ("val", "train")), seed)
    return Work(stream.join(list(splits.values())).read, outputs, [styles[i] for i in np.concatenate(drawn)])


def make_stylize(config: Any, params: Any, alpha: float) -> Callable[[np.ndarray, np.ndarray], Any]:
    """(images, paintings), both uint8 [N, 224, 224, 3] -> stylised images of the same form, on the device."""
    import jax
    import jax.numpy as jnp

    from jaxbed.models import style

    params = jax.device_put(params)

    @jax.jit
    def stylize(params, content, painting):
        content, painting = (config.encode(params, image.astype(jnp.float32) / 255) for image in (content, painting))
        target = alpha * style.adain(content, painting) + (1 - alpha) * content
        image = config.decode(params, target).astype(jnp.float32)
        return jnp.floor(jnp.clip(image, 0, 1) * 255 + 0.5).astype(jnp.uint8)

    return lambda content, painting: stylize(params, content, painting)


def stylized(
    work: Work, rows: np.ndarray, stylize: Callable, batch: int, pool: ThreadPoolExecutor, skipped: dict[str, str] | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows [n], images [n, 224, 224, 3]) of a batch, while the device computes the next. skipped collects {name: reason}; None: raise."""

    def load(row: int) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            content = work.read(row)
        except UNREADABLE as error:
            if skipped is None:
                cure = "restore it, or leave it out with --corrupt=skip"
                raise ValueError(f"the image for {work.outputs[row]} cannot be read ({error}): {cure}") from error
            skipped[work.outputs[row]] = str(error)
            return None
        try:
            return content, decode.square(work.styles[row].read_bytes(), SIDE, 0)
        except UNREADABLE as error:
            raise ValueError(f"{work.styles[row]} cannot be read ({error}): delete it and run again") from error

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for first in range(0, len(rows), batch):
            wanted = rows[first : first + batch]
            loaded = [(row, pair) for row, pair in zip(wanted, pool.map(load, wanted), strict=True) if pair]
            content, painting = np.zeros((2, batch, SIDE, SIDE, 3), np.uint8)  # constant size, so compiled once
            for index, (_, pair) in enumerate(loaded):
                content[index], painting[index] = pair
            yield np.array([row for row, _ in loaded], int), content, painting

    computed = ((made, stylize(content, painting)) for made, content, painting in stream.ahead(batches()))
    for made, images in parallel.fetched(computed):
        yield made, images[: len(made)]


def write(path: pathlib.Path, image: np.ndarray) -> None:
    """Writes a PNG. An existing file is complete: it is renamed last."""
    import cv2

    _, content = cv2.imencode(".png", image[:, :, ::-1])
    with files.replacing(path, lasting=False) as file:
        file.write(content)


def render(work: Work, target: pathlib.Path, stylize: Callable, shard: tuple[int, int], batch: int, threads: int, corrupt: str) -> None:
    """Makes the missing images of one shard, every n-th image, and writes its summary."""
    number, count = shard
    shard_rows = np.arange(number - 1, len(work.outputs), count)
    for folder in {(target / work.outputs[row]).parent for row in shard_rows}:
        folder.mkdir(parents=True, exist_ok=True)
    rows = np.array([row for row in shard_rows if not (target / work.outputs[row]).is_file()], int)
    before, skipped, done, begun = len(shard_rows) - len(rows), {}, 0, time.monotonic()
    reported = begun
    with ThreadPoolExecutor(threads) as pool:
        for made, images in stylized(work, rows, stylize, batch, pool, skipped if corrupt == "skip" else None):
            list(pool.map(write, [target / work.outputs[row] for row in made], images))
            done += len(made)
            if (now := time.monotonic()) - reported > REPORT_S:
                reported = now
                print(f"{before + done:,} of {len(shard_rows):,} images, {done / (now - begun):,.0f} per second", flush=True)
    facts = {"images": len(shard_rows), "written": done, "there before": before, "skipped": dict(sorted(skipped.items()))}
    recipes.save(target / f"shard-{number}-of-{count}.json", facts)
    for name, reason in sorted(skipped.items()):
        print(f"left out: {name} ({reason})")
    rate = f", {done / (time.monotonic() - begun):,.0f} per second" if done else ""
    print(f"{target}: {done:,} images written{rate}, {before:,} already existed, {len(skipped)} left out")


def verify(work: Work, target: pathlib.Path, stylize: Callable, batch: int, threads: int) -> None:
    """Raises ValueError unless all images exist and can be decoded, and a sample of them is reproduced."""
    cure = "run that shard again without --verify"
    skipped = {name for path in target.glob("shard-*.json") for name in files.read_object(path, cure).get("skipped", ())}
    rows = [row for row, name in enumerate(work.outputs) if (target / name).is_file() or name not in skipped]

    def fault(row: int) -> str:
        try:
            _stored(target / work.outputs[row])
        except UNREADABLE as error:
            return f"{work.outputs[row]} ({error})"
        return ""

    if not rows:
        raise ValueError(f"{target} contains no image to verify, since all were left out: restore them and run again without --verify")
    with ThreadPoolExecutor(threads) as pool:
        wrong = [words for words in pool.map(fault, rows) if words]
        if not wrong:
            sample = np.array(rows)[np.unique(np.linspace(0, len(rows) - 1, VERIFIED).astype(int))]
            for made, images in stylized(work, sample, stylize, batch, pool, None):
                for row, image in zip(made, images, strict=True):
                    apart = np.abs(image.astype(int) - _stored(target / work.outputs[row])).mean()
                    if apart > 3:  # other devices round differently, in bfloat16 by up to a level or two
                        wrong.append(f"{work.outputs[row]} (it differs from the recomputed image by {apart:.1f} levels of 255 on average)")
    if wrong:
        more = f" and {len(wrong) - 5:,} more" if len(wrong) > 5 else ""
        raise ValueError(
            f"{target} is incomplete or damaged: {'; '.join(wrong[:5])}{more}. Delete damaged files and run again without --verify"
        )
    print(f"{target}: {len(rows):,} images can be read, {len(sample)} were recomputed and match, {len(skipped)} were left out")


def _stored(path: pathlib.Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as opened:
        image = np.asarray(opened)
    if image.shape != (SIDE, SIDE, 3):
        raise ValueError(f"it is {list(image.shape)}, but must be [{SIDE}, {SIDE}, 3]")
    return image


# The whole


def begin(asked: argparse.Namespace) -> tuple[Work, Callable]:
    """The images to make, and the function that makes them. Raises ValueError or OSError before slow work if something is missing."""
    from jaxbed.models import style_network

    config = style_network.Config(asked.weights, asked.width, asked.stages, asked.dtype)
    stylize = make_stylize(config, config.load(), asked.alpha)
    splits = open_splits({"val": asked.val, "train": asked.train})
    names, excluded = paintings.prepare(asked.styles, asked.target / "paintings", asked.threads)
    for name, reason in excluded.items():
        print(f"painting left out: {name} ({reason})")
    print(f"{len(names):,} paintings, {len(excluded)} left out")
    if asked.expect_styles not in ("any", str(len(names))):
        raise ValueError(
            f"{asked.styles} has {len(names):,} usable paintings, but {int(asked.expect_styles):,} are expected: complete it, "
            f"or give --expect-styles {len(names)} (or any) for other paintings"
        )
    work = assign(splits, [asked.target / "paintings" / name for name in names], asked.seed)
    recipe = {key: getattr(asked, key) for key in ("seed", "alpha", "width", "stages", "dtype")}
    recipe |= {"weights_sha256": "random" if asked.weights == "random" else records.checksum(pathlib.Path(asked.weights))}
    recipe |= {"styles": len(names), "styles_sha256": recipes.digest(names)} | ({"styles_left_out": list(excluded)} if excluded else {})
    for split, images in splits.items():
        recipe |= {split: len(images), f"{split}_sha256": recipes.digest(images.names)}
    recipes.keep(asked.target / "recipe.json", recipe, PUBLISHED, asked.verify)
    return work, stylize


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--styles", type=pathlib.Path, required=True, help="folder of paintings, or TARGET/paintings once it exists")
    parser.add_argument("--val", required=True, help="ImageNet-val, for which paintings are drawn first")
    parser.add_argument("--train", default="", help="ImageNet's training set")
    parser.add_argument("--weights", required=True, help="safetensors file of the style network, or random")
    parser.add_argument("--width", type=int, default=64, help="of the style network")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--alpha", type=float, default=1.0, help="share of the painting's style")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw of paintings")
    parser.add_argument("--expect-styles", default=str(PUBLISHED["styles"]), help="paintings that must remain: a number, or any")
    parser.add_argument("--corrupt", choices=("fail", "skip"), default="fail", help="what to do with images that cannot be read")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 16), help="to read and write")
    parser.add_argument("--shard", default="1/1", help="k/n: every n-th image, from the k-th on")
    parser.add_argument("--verify", action="store_true", help="only check the existing images, write none")
    asked = parser.parse_args(argv)
    shard = recipes.shard(parser, asked.shard)
    if not (asked.expect_styles == "any" or asked.expect_styles.isdigit()):
        parser.error(f"--expect-styles {asked.expect_styles} must be a number or any")
    if min(asked.batch, asked.threads) < 1 or not 0 <= asked.alpha <= 1:
        parser.error("--batch and --threads must be at least 1, --alpha from 0 to 1")
    try:
        work, stylize = begin(asked)
        if asked.verify:
            verify(work, asked.target, stylize, asked.batch, asked.threads)
        else:
            render(work, asked.target, stylize, shard, asked.batch, asked.threads, asked.corrupt)
    except (ValueError, OSError) as error:
        ending.tell("stylized_imagenet", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
