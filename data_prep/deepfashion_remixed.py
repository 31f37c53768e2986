"""Writes the table of DeepFashion Remixed: which images of DeepFashion2 are trained and tested on, with which garments.

    python data_prep/deepfashion_remixed.py DEEPFASHION2 OUT.csv [--splits validation|concatenated]
    python -m jaxbed.main --config=erm:deepfashion_remixed --config.data.train=DEEPFASHION2 --config.data.table=OUT.csv \
        --config.init_from=resnet50.pth

After Hendrycks et al., "The Many Faces of Robustness" (2021), and their code, which filters garments: an image is in a set if one of its
garments has exactly the set's four codes (`jaxbed.data.deepfashion`), and its classes there are those of such garments alone. What else it
shows counts as absent, and it may be in several test sets. DEEPFASHION2 holds train/image, train/annos, validation/image and
validation/annos, as published; no image is copied.

The column pair_id says which images show one item, by the annotations: `jaxbed evidence` draws these together.

train       images of train/
test        images of validation/ with the same codes
others      one code differs: images of validation/ alone (--splits validation, the default), or of both (concatenated)

The published concatenated sets hold images that were trained on, because of another garment. Here such sets take no image, of train/ or
validation/, with a garment that has the training codes. Other photos of items that are trained on stay in them; the command says how many.
Table 11 of the paper counts batches: its sizes, printed beside, are rounded up.
"""

import argparse
import collections
import csv
import io
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed.data import deepfashion
from jaxbed.evaluation.label_lists import BETWEEN
from jaxbed.stats import names
from jaxbed.system import ending, files

PARTS = ("train", "validation")
SPLITS = ("validation", "concatenated")
IMAGE, ANNOTATION = ".jpg", ".json"
CURE = "extract the archives of DeepFashion2 again"


class Item(NamedTuple):
    """A garment: the number of its class from 0 on, and its codes."""

    category: int
    codes: Mapping[str, int]
    pair: str = ""  # pair_id of its image; "" without


Images = dict[str, list[Item]]  # {file, relative to DEEPFASHION2: its garments}
Rows = dict[str, list[str]]  # {file: its classes}


def read(root: pathlib.Path, part: str) -> Images:
    """The garments of all images of a part, sorted by file.

    Raises FileNotFoundError for a folder that is missing; ValueError, with file and cure, for an image without annotation and the reverse,
    and for an annotation with another content than published.
    """
    stems = []
    for folder, suffix in (("image", IMAGE), ("annos", ANNOTATION)):
        path = root / part / folder
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is missing: name the folder that holds train and validation of DeepFashion2, or {CURE}")
        stems.append({os.path.splitext(name)[0] for name in os.listdir(path) if name.endswith(suffix) and not name.startswith(".")})
    images, annotations = stems
    if not images | annotations:
        raise ValueError(f"{root / part} holds no images ({IMAGE}) and no annotations ({ANNOTATION}): {CURE}")
    if lone := sorted(images - annotations):
        path = root / part / "annos" / f"{lone[0]}{ANNOTATION}"
        raise ValueError(f"{len(lone)} images of {root / part} have no annotation, {path} among the missing: {CURE}, or delete the images")
    if lone := sorted(annotations - images):
        path = root / part / "image" / f"{lone[0]}{IMAGE}"
        raise ValueError(f"{len(lone)} annotations of {root / part} have no image, {path} among the missing: {CURE}, or delete them")
    return {f"{part}/image/{stem}{IMAGE}": items(root / part / "annos" / f"{stem}{ANNOTATION}") for stem in sorted(images)}


def items(path: pathlib.Path) -> list[Item]:
    """The garments of an annotation. Raises ValueError, which names the file, for one without any, and for codes that do not exist."""
    content = files.read_object(path, CURE)
    found = [_item(path, name, content[name]) for name in content if name.startswith("item")]
    if not found:
        raise ValueError(f"{path} describes no garment (item1, item2, ...): {CURE}, or delete it and its image")
    pair = content.get("pair_id")
    return [item._replace(pair=str(pair)) for item in found] if type(pair) is int else found


def _item(path: pathlib.Path, name: str, given: Any) -> Item:
    allowed = {"category_id": range(1, len(deepfashion.CLASSES) + 1), **dict.fromkeys(deepfashion.TRAINING, deepfashion.CODES)}
    for field, numbers in allowed.items():
        value = given.get(field) if isinstance(given, dict) else None
        if type(value) is not int or value not in numbers:
            raise ValueError(f"{path}: {field} of {name} is {value!r}, and must be from {min(numbers)} to {max(numbers)}: {CURE}")
    return Item(given["category_id"] - 1, {field: given[field] for field in deepfashion.TRAINING})


def chosen(images: Images, of_set: str) -> Rows:
    """The images with a garment that has the codes of a set, and the classes of such garments, in the order of CLASSES."""
    wanted, rows = deepfashion.codes(of_set), {}
    for file, garments in images.items():
        if numbers := sorted({item.category for item in garments if item.codes == wanted}):
            rows[file] = [deepfashion.CLASSES[number] for number in numbers]
    return rows


def divide(train: Images, validation: Images, splits: str) -> dict[str, Rows]:
    """{set: its rows}. Raises ValueError for a set without images."""
    sets = {"train": chosen(train, "train"), "test": chosen(validation, "test")}
    others = validation if splits == "validation" else train | validation
    if splits == "concatenated":
        others = {file: garments for file, garments in others.items() if file not in sets["train"] | sets["test"]}
    sets |= {name: chosen(others, name) for name in deepfashion.SHIFTS}
    if empty := [name for name, rows in sets.items() if not rows]:
        codes = ", ".join(f"{field} {code}" for field, code in deepfashion.codes(empty[0]).items())
        cure = CURE if splits == "concatenated" or empty[0] in ("train", "test") else f"{CURE}, or take --splits concatenated"
        raise ValueError(f"set {empty[0]} is empty: no garment has {codes}: {cure}")
    return sets


def table(sets: Mapping[str, Rows], images: Images) -> str:
    """The table, as CSV; images: all garments. Numbers of pairs begin anew in each part."""
    pair = {file: f"{file.partition('/')[0]}/{garments[0].pair}" if garments[0].pair else "" for file, garments in images.items()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "label", "split", "pair_id"])
    for name, rows in sets.items():
        writer.writerows([file, BETWEEN.join(classes), name, pair[file]] for file, classes in rows.items())
    return text.getvalue()


def sizes(sets: Mapping[str, Rows]) -> str:
    """Images of each set, beside those of the paper, and the classes that none of them has."""
    lines = [f"{'set':20}{'images':>9}{'Table 11':>10}"]
    for name, rows in sets.items():
        present = collections.Counter(each for classes in rows.values() for each in classes)
        absent = [each for each in deepfashion.CLASSES if each not in present]
        published = deepfashion.PUBLISHED.get(name)
        without = f"  without {names.listed(absent)}" if absent else ""
        lines.append(f"{name:20}{len(rows):9,}{'-' if published is None else f'{published:,}':>10}{without}")
    return "\n".join(lines)


def known_items(sets: Mapping[str, Rows], images: Images) -> str:
    """How many images of the shifted sets show an item of which other photos are trained on, by their pair_id; "" for none."""
    trained = {images[file][0].pair for file in sets["train"]} - {""}
    of_train = [file for name in deepfashion.SHIFTS for file in sets[name] if file.startswith(PARTS[0])]
    if not (known := {file for file in of_train if images[file][0].pair in trained}):
        return ""
    return (
        f"\nof {len(set(of_train)):,} images of train/ in the shifted sets, {len(known):,} show an item of which other photos are trained "
        "on (the same pair_id); --splits validation has none"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path, metavar="DEEPFASHION2")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT.csv")
    parser.add_argument("--splits", choices=SPLITS, default=SPLITS[0], help="where the images of the OOD sets are from")
    asked = parser.parse_args(argv)
    try:
        train, validation = (read(asked.root, part) for part in PARTS)
        sets = divide(train, validation, asked.splits)
        files.write(asked.out, table(sets, train | validation))
    except (ValueError, OSError) as error:
        ending.tell("deepfashion_remixed", error)
        return 2
    print(f"{sizes(sets)}{known_items(sets, train | validation)}")
    print(f"{len(train):,} images in train/, {len(validation):,} in validation/; written: {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
