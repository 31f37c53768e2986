"""Generates Waterbirds at full size at every ratio of Lee et al. (2022): birds cut out of CUB-200-2011, pasted on images of Places365.

    python data_prep/waterbirds.py TARGET --cub CUB_200_2011 --places PLACES/data_large [--segmentations FOLDER] [--fix-tern] [--workers 8]
    python -m jaxbed.main --config=erm:waterbirds --config.data.dir=TARGET

The segmentations are CUB's separate archive (segmentations.tgz), by default in CUB_200_2011/segmentations. The backgrounds are the folders
b/bamboo_forest and f/forest/broadleaf (land), o/ocean and l/lake/natural (water) of Places365.

As in Sagawa et al. (2020), CUB's test split is the test set, and 20 % of the rest is the validation set. The given share of each class
conflicts in training and, unlike there, in validation; in the test set half of each class conflicts. Each image has a different background.
Counts are those of Table 8, except for the test set (8,654 images of unknown origin there, 5,794 here). Differences from the published
generator: all draws depend on --seed; the five ratios share images, so TARGET/land and TARGET/water hold about 13,000 images instead of
five times 11,788; a background is resampled once, not twice if it is small; the two terms of a pixel are rounded once, so their sum cannot
overflow. With --fix-tern a name must match a whole word of the species' name, which makes Eastern Towhee, Western Meadowlark and Western
Wood Pewee land birds.

If interrupted, rerun the same command to resume: existing images are complete, and tables are written last.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep import debias_sets
from jaxbed.data import biased_images
from jaxbed.system import ending, files

WATER = (  # seabirds, then waterfowl
    "albatross auklet cormorant frigatebird fulmar gull jaeger kittiwake pelican puffin tern "
    "gadwall grebe mallard merganser guillemot pacific_loon"
).split()
KINDS = ("land", "water")
PLACES = (("b/bamboo_forest", "f/forest/broadleaf"), ("o/ocean", "l/lake/natural"))
VAL_SHARE = 0.2
REPORT_S = 10


class Bird(NamedTuple):
    """One image of CUB, and how its class and split rank it for a conflicting background."""

    name: str
    y: int
    split: int
    rank: int  # the lowest conflict first
    size: int  # of its class in its split


class Composite(NamedTuple):
    """One image to make."""

    bird: str
    kind: int  # of its background, in `KINDS`
    background: pathlib.Path

    @property
    def output(self) -> str:
        return f"{KINDS[self.kind]}/{self.bird}"


def is_water(name: str, fix_tern: bool) -> bool:
    """Whether 001.Black_footed_Albatross/... is a water bird: by substrings of the species' name, as published, or by its words."""
    species = name.split("/")[0].partition(".")[2].lower()
    edge = "(?:^|_|$)" if fix_tern else ""
    return bool(re.search(f"{edge}(?:{'|'.join(WATER)}){edge}", species))


def list_birds(cub: pathlib.Path, fix_tern: bool, rng: np.random.Generator) -> list[Bird]:
    names, trains = (dict(line.split() for line in _lines(cub / name)) for name in ("images.txt", "train_test_split.txt"))
    if strange := set(names) ^ set(trains):
        raise ValueError(f"{cub}: images.txt and train_test_split.txt differ in image {min(strange)}: unpack CUB-200-2011 again")
    numbers = sorted(names, key=lambda number: names[number])
    y = np.array([is_water(names[number], fix_tern) for number in numbers], int)
    split = np.array([0 if trains[number] == "1" else 2 for number in numbers])
    train = np.flatnonzero(split == 0)
    split[rng.permutation(train)[: round(VAL_SHARE * len(train))]] = 1
    rank, size = np.empty(len(y), int), np.empty(len(y), int)
    for cell in ((split == s) & (y == k) for s in range(3) for k in (0, 1)):
        rank[cell], size[cell] = rng.permutation(cell.sum()), cell.sum()
    return [Bird(names[number], *map(int, facts)) for number, *facts in zip(numbers, y, split, rank, size, strict=True)]


def _lines(path: pathlib.Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: --cub must name the unpacked folder CUB_200_2011")
    return path.read_text().splitlines()


def conflicts(bird: Bird, percent: float) -> bool:
    """Whether an image conflicts at a ratio: those of the lowest ranks; half of the test set at any ratio."""
    share = 0.5 if bird.split == 2 else 1 - percent / 100
    return bird.rank < bird.size - round(share * bird.size)


def assign(birds: list[Bird], places365: pathlib.Path, rng: np.random.Generator) -> list[Composite]:
    """A different background for each (bird, kind of background) that any ratio needs."""
    made = []
    for kind in (0, 1):
        paths = sorted(path for name in PLACES[kind] for path in (places365 / name).glob("*.jpg"))
        drawn = rng.permutation(len(paths))
        wanted = []
        for bird in birds:
            ever = {conflicts(bird, percent) for percent in biased_images.PERCENTS}
            if (bird.y != kind) in ever:
                wanted.append(bird.name)
        if len(paths) < len(wanted):
            folders = " and ".join(str(places365 / name) for name in PLACES[kind])
            raise ValueError(
                f"{folders} have {len(paths)} images (*.jpg), but {len(wanted)} are needed: --places must name Places365's data_large"
            )
        made += [Composite(name, kind, paths[row]) for name, row in zip(wanted, drawn[: len(wanted)], strict=True)]
    return made


def compose(bird: Any, mask: Any, background: Any) -> np.ndarray:
    """uint8 [H, W, 3] of three Pillow images: the bird where its mask is white, elsewhere the background, fitted to its size."""
    from PIL import Image, ImageOps

    if mask.size != bird.size:
        raise ValueError(f"its segmentation has {mask.size[0]} x {mask.size[1]} pixels, not {bird.size[0]} x {bird.size[1]}")
    behind = ImageOps.fit(background.convert("RGB"), bird.size, Image.Resampling.LANCZOS)
    share = np.asarray(mask.convert("L"), np.float32)[..., None] / 255
    return np.rint(share * np.asarray(bird.convert("RGB")) + (1 - share) * np.asarray(behind)).astype(np.uint8)


def render(composite: Composite, cub: pathlib.Path, segmentations: pathlib.Path, target: pathlib.Path) -> None:
    """Writes one JPEG file, which is renamed last."""
    from PIL import Image

    path = target / composite.output
    bird, mask = cub / "images" / composite.bird, (segmentations / composite.bird).with_suffix(".png")
    try:
        with Image.open(bird) as one, Image.open(mask) as two, Image.open(composite.background) as three:
            image = compose(one, two, three)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{composite.output} cannot be made from {bird}, {mask} and {composite.background} ({error}): restore them"
        ) from error
    with files.replacing(path, lasting=False) as file:
        Image.fromarray(image).save(file, "JPEG")


def make(asked: argparse.Namespace) -> None:
    rng = np.random.default_rng(asked.seed)
    birds = list_birds(asked.cub, asked.fix_tern, rng)
    images = assign(birds, asked.places, rng)
    recipe = {"seed": asked.seed, "fix_tern": asked.fix_tern, "backgrounds": {p.output: p.background.name for p in images}}
    asked.target.mkdir(parents=True, exist_ok=True)
    made = asked.target / "recipe.json"
    if made.is_file() and files.read_object(made, f"delete {asked.target} and run again") != recipe:
        raise ValueError(
            f"{made} was written with another --seed or --fix-tern, or other birds or backgrounds: use another folder, or delete this one"
        )
    files.write(made, json.dumps(recipe, indent=0) + "\n")
    missing = [image for image in images if not (asked.target / image.output).is_file()]
    for folder in {(asked.target / image.output).parent for image in missing}:
        folder.mkdir(parents=True, exist_ok=True)
    segmentations = asked.segmentations or asked.cub / "segmentations"
    begun = reported = time.monotonic()
    with ThreadPoolExecutor(asked.workers) as pool:
        waiting = pool.map(lambda image: render(image, asked.cub, segmentations, asked.target), missing)
        try:
            for done, _ in enumerate(waiting, 1):
                if (now := time.monotonic()) - reported > REPORT_S:
                    reported = now
                    print(f"{done:,} of {len(missing):,} images, {done / (now - begun):,.0f} per second", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    print(f"{asked.target}: {len(missing):,} images made, {len(images) - len(missing):,} already existed")
    tables = {}
    for percent in biased_images.PERCENTS:
        rows = [(bird, bird.y ^ conflicts(bird, percent)) for bird in birds]
        tables[percent] = [(f"{KINDS[kind]}/{bird.name}", bird.y, bird.split, kind) for bird, kind in rows]
    debias_sets.write(asked.target, tables, "place")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--cub", type=pathlib.Path, required=True, help="CUB_200_2011: images, images.txt, train_test_split.txt")
    parser.add_argument("--places", type=pathlib.Path, required=True, help="Places365's folder data_large")
    parser.add_argument("--segmentations", type=pathlib.Path, help="of CUB; default: CUB_200_2011/segmentations")
    parser.add_argument("--fix-tern", action="store_true", help="match whole words: an eastern towhee is not a tern")
    parser.add_argument("--seed", type=int, default=0, help="seed of splits, conflicting images and backgrounds")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 16), help="threads")
    asked = parser.parse_args(argv)
    if asked.seed < 0 or asked.workers < 1:
        parser.error("--seed must be at least 0, --workers at least 1")
    try:
        make(asked)
    except (ValueError, OSError) as error:
        ending.tell("waterbirds", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
