"""Writes tables that sample the sets of Lee et al. (2022, Table 8) from the published archives of BFFHQ, Waterbirds and BAR.

    python data_prep/debias_sets.py bffhq DIR        # the archive of DisEnt or BiasEnsemble, with folders 0.5pct, 1pct, ...
    python data_prep/debias_sets.py waterbirds DIR   # waterbird_complete95_forest2water2, with metadata.csv
    python data_prep/debias_sets.py bar DIR          # the original, with train/ and test/

Each writes one table DIR/metadata_<percent>pct.csv per ratio, which jaxbed.data reads; no image is copied. All draws depend on --seed; the
conflicting images of a smaller ratio are a subset of those of a larger one.

bffhq       All distinct images of the archive, by label and bias: 500 per cell for testing, then 18,000 for training and 2,000 for
            validation, each half young and half old. If an archive has too few, --train lowers the number at the same ratios.
waterbirds  Images are only left out: conflicting ones below 5 %, aligned ones at 20 % (1,200 images remain). Half of the published
            validation set conflicts; conflicting images are left out until each class has the training set's ratio. The paper
            generated its sets at full size: data_prep/waterbirds.py.
bar         From the original train/, 280 images for testing, 168 for validation, 1,493 for training; from the original test/, which is all
            conflicting, 280 for testing, 6, 7 or 41 for validation and 13, 76 or 333 for training. At 20 % the paper has 370, more
            than the original contains. All are spread over the classes.
"""

import argparse
import csv
import hashlib
import io
import pathlib
import sys
from collections.abc import Callable, Sequence

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.data import bar as bar_set
from jaxbed.data import biased_images
from jaxbed.system import ending, files

COLUMNS = ("img_filename", "y", "split", "bias")
TRAIN, VAL, TEST = range(3)
BFFHQ_TRAIN, BFFHQ_TEST = 18_000, 500  # the latter per cell
BAR_ALIGNED = {"test": 280, "val": 168}
BAR_CONFLICTING = {1: (13, 6), 5: (76, 7), 20: (333, 41)}  # percent: train, val
BAR_TEST = 280
Row = tuple[str, int, int, int]  # image, label, split, bias


# BFFHQ


def bffhq(folder: pathlib.Path, percents: Sequence[float], seed: int, train: int = BFFHQ_TRAIN) -> dict[float, list[Row]]:
    """{percent: rows}. Raises ValueError if a cell has too few images."""
    pool = _pool(folder)
    rng = np.random.default_rng(seed)
    drawn = {cell: rng.permutation(sorted(pool.get(cell, []))) for cell in ((y, b) for y in (0, 1) for b in (0, 1))}
    tables = {}
    sizes = {percent: _bffhq_sizes(percent, train) for percent in percents}
    for percent, cells in sizes.items():
        rows = []
        for (y, b), names in drawn.items():
            first = BFFHQ_TEST + max(of[y == b, VAL] for of in sizes.values())  # all ratios train on the same images
            needed = first + cells[y == b, TRAIN]
            if len(names) < needed:
                raise ValueError(
                    f"{folder} has {len(names)} images of label {y} and bias {b}, but {percent:g} % conflicting in {train} "
                    f"needs {needed}: lower --train, or name fewer --percents"
                )
            splits = {TRAIN: names[first:needed], VAL: names[BFFHQ_TEST:][: cells[y == b, VAL]], TEST: names[:BFFHQ_TEST]}
            rows += [(str(name), y, split, b) for split, chosen in splits.items() for name in chosen]
        tables[percent] = rows
    return tables


def _bffhq_sizes(percent: float, train: int) -> dict[tuple[bool, int], int]:
    """{(aligned, split): images in each of the two cells}; the validation set has 1/9 of the training set's size."""
    sizes = {}
    for split, total in ((TRAIN, train), (VAL, round(train / 9))):
        conflicting = round(percent / 100 * total / 2)
        sizes[False, split], sizes[True, split] = conflicting, total // 2 - conflicting
    return sizes


def _pool(folder: pathlib.Path) -> dict[tuple[int, int], list[str]]:
    """{(label, bias): one name per image}. Folders of different ratios contain copies of the same images under other numbers."""
    folders = [folder / f"{percent:g}pct" for percent in biased_images.PERCENTS]
    folders = [subfolder for subfolder in (*folders, *(folder / name for name in ("valid", "val", "test"))) if subfolder.is_dir()]
    paths = sorted({path for subfolder in folders for path in biased_images.list_images(subfolder)})
    if not paths:
        raise FileNotFoundError(
            f"{folder} contains no images in folders 0.5pct, 1pct, 2pct, 5pct, valid or test: name the archive's folder bffhq"
        )
    cells: dict[tuple[int, int], dict[bytes, str]] = {}
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).digest()
        cells.setdefault(biased_images.tokens(path, 2), {}).setdefault(digest, path.relative_to(folder).as_posix())
    return {cell: list(names.values()) for cell, names in cells.items()}


# Waterbirds


def waterbirds(folder: pathlib.Path, percents: Sequence[float], seed: int) -> dict[float, list[Row]]:
    path = folder / "metadata.csv"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: name the unpacked folder waterbird_complete95_forest2water2")
    splits = biased_images.read_table(path, "place", 2)
    rng = np.random.default_rng(seed)
    cells = {
        (split, y, b): rng.permutation(rows.name[(rows.label == y) & (rows.bias == b)])
        for split, rows in enumerate(splits)
        for y in (0, 1)
        for b in (0, 1)
    }
    if empty := [cell for cell, names in cells.items() if not len(names)]:
        raise ValueError(f"{path} has no image with (split, label, place) = {empty[0]}: use the published table")
    tables = {}
    for percent in percents:
        kept = {cell: len(names) for cell, names in cells.items()}
        for y in (0, 1):
            share = percent / (100 - percent)
            aligned, conflicting = kept[TRAIN, y, y], kept[TRAIN, y, 1 - y]
            if share * aligned > conflicting + 0.5:
                aligned = round(conflicting / share)
            else:
                conflicting = round(share * aligned)
            kept[TRAIN, y, y], kept[TRAIN, y, 1 - y] = aligned, conflicting
            kept[VAL, y, 1 - y] = min(round(kept[VAL, y, y] * conflicting / aligned), kept[VAL, y, 1 - y])
        tables[percent] = [(str(name), y, split, b) for (split, y, b), names in cells.items() for name in names[: kept[split, y, b]]]
    return tables


# BAR


def bar(folder: pathlib.Path, percents: Sequence[float], seed: int) -> dict[float, list[Row]]:
    rng = np.random.default_rng(seed)
    aligned, conflicting = (_spread(_actions(folder, name), rng) for name in ("train", "test"))
    spare = BAR_TEST + BAR_CONFLICTING[20][1]
    for name, rows, least in (("train", aligned, 1 + sum(BAR_ALIGNED.values())), ("test", conflicting, spare + BAR_CONFLICTING[20][0])):
        if len(rows) < least:
            raise ValueError(f"{folder / name} has {len(rows)} images, but {least} are needed: unpack BAR again")
    test, val = BAR_ALIGNED["test"], BAR_ALIGNED["val"]
    fixed = [(name, y, TEST, y) for name, y in aligned[:test]] + [(name, y, VAL, y) for name, y in aligned[test : test + val]]
    fixed += [(name, y, TRAIN, y) for name, y in aligned[test + val :]]
    fixed += [(name, y, TEST, bar_set.dummy(y)) for name, y in conflicting[:BAR_TEST]]
    tables = {}
    for percent in percents:
        train, val = BAR_CONFLICTING[percent]
        drawn = [(rows, VAL) for rows in conflicting[BAR_TEST:][:val]] + [(rows, TRAIN) for rows in conflicting[spare:][:train]]
        tables[percent] = fixed + [(name, y, split, bar_set.dummy(y)) for (name, y), split in drawn]
    return tables


def _actions(folder: pathlib.Path, name: str) -> list[tuple[str, int]]:
    """(image, label) of a flat folder with files <class>_<number>.<extension>."""
    rows = []
    for path in sorted(biased_images.list_images(folder / name)):
        action, _, number = path.stem.rpartition("_")
        if action not in bar_set.CLASSES or not number.isdigit():
            raise ValueError(f"{path}: the name must be <class>_<number>, with a class of {', '.join(bar_set.CLASSES)}")
        rows.append((path.relative_to(folder).as_posix(), bar_set.CLASSES.index(action)))
    if not rows:
        raise FileNotFoundError(
            f"no images under {folder / name}: name the folder of the original BAR, with train/<class>_<number>.jpg and test/"
        )
    return rows


def _spread(rows: list[tuple[str, int]], rng: np.random.Generator) -> list[tuple[str, int]]:
    """Shuffled, but with the classes roughly in proportion in any stretch."""
    label = np.array([y for _, y in rows])
    position = np.empty(len(rows))
    for y, size in zip(*np.unique(label, return_counts=True), strict=True):
        position[label == y] = (rng.permutation(size) + rng.random()) / size
    return [rows[row] for row in np.argsort(position, kind="stable")]


# Tables


def write(folder: pathlib.Path, tables: dict[float, list[Row]], bias: str) -> None:
    """Writes the tables and prints their counts. Raises ValueError before writing anything if an existing table differs."""
    texts = {}
    for percent, rows in tables.items():
        text = io.StringIO(newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow([*COLUMNS[:-1], bias])
        table.writerows(sorted(rows, key=lambda row: (row[2], row[0])))
        texts[percent] = biased_images.table_path(folder, percent), text.getvalue()
    for path, text in texts.values():
        if path.is_file() and path.read_text() != text:
            raise ValueError(f"{path} already exists with other content (other --seed, --percents or images): delete it to draw again")
    for percent, (path, text) in texts.items():
        files.write(path, text)
        counts = []
        for split, name in enumerate(biased_images.SPLITS):
            aligned = [y == b for _, y, s, b in tables[percent] if s == split]
            counts.append(f"{name} {sum(aligned):,} aligned + {len(aligned) - sum(aligned):,} conflicting")
        print(f"{path}: {', '.join(counts)}")


SETS: dict[str, tuple[Callable, str, Sequence[float]]] = {
    "bffhq": (bffhq, "bias", biased_images.PERCENTS),
    "waterbirds": (waterbirds, "place", biased_images.PERCENTS),
    "bar": (bar, "bias", bar_set.PERCENTS),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--percents", default="", help="of conflicting images, e.g. 0.5,1; default: all of the set")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws")
    parser.add_argument("--train", type=int, default=BFFHQ_TRAIN, help="size of BFFHQ's training set")
    asked = parser.parse_args(argv)
    draw, bias, known = SETS[asked.set]
    percents = [percent for percent in known if f"{percent:g}" in asked.percents.split(",") or not asked.percents]
    if asked.percents and len(percents) < len(asked.percents.split(",")):
        parser.error(f"--percents {asked.percents}: {asked.set} allows {', '.join(map(str, known))}")
    if asked.seed < 0 or asked.train < 18:
        parser.error("--seed must be at least 0, --train at least 18")
    if asked.set != "bffhq" and asked.train != BFFHQ_TRAIN:
        parser.error(f"--train applies only to bffhq, not to {asked.set}: leave it out")
    try:
        more = {"train": asked.train} if asked.set == "bffhq" else {}
        write(asked.folder, draw(asked.folder, percents, asked.seed, **more), bias)
    except (ValueError, OSError) as error:
        ending.tell("debias_sets", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
