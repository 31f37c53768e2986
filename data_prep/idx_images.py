"""Writes a data set of MNIST's layout, such as Fashion-MNIST, as folders of PNG files.

    python data_prep/idx_images.py IDX FOLDER
    python scripts/shift_study.py --data FOLDER --out DIR

IDX holds the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each with or
without .gz: /usr/share/datasets/fashion-mnist of Debian's package dataset-fashion-mnist, or ROOT/FashionMNIST/raw of torchvision. FOLDER
gets train/CLASS/NNNNN.png and test/CLASS/NNNNN.png: CLASS is the label as a number, NNNNN the place in the file, from 0 on. Images are grey
and keep their size. FOLDER/recipe.json records what they were made of. If interrupted, rerun the same command to resume.
"""

import argparse
import hashlib
import pathlib
import sys

import numpy as np
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from data_prep import recipes
from jaxbed.data import colored_mnist
from jaxbed.system import ending, files

CURE = "download them to that folder, or name the folder that has them"


def write(source: pathlib.Path, target: pathlib.Path) -> dict[str, int]:
    """{set: number of images} that are there in the end, from the IDX files of one folder to another folder.

    Raises FileNotFoundError for an IDX file that is missing; ValueError for one that is damaged or empty, for a test image of a class that
    training lacks, and for a target with images of other files.
    """
    train_image, train_label, test_image, test_label = colored_mnist.read_idx(source, CURE)
    sets = {"train": (train_image, train_label), "test": (test_image, test_label)}
    if empty := [name for name, (image, _) in sets.items() if not image.size]:
        raise ValueError(f"{source} has no {empty[0]} images: download the files again")
    if strange := set(test_label.tolist()) - set(train_label.tolist()):
        raise ValueError(f"{source}: test images have the label {min(strange)}, and no training image does: download the files again")
    recipe_path, made = target / "recipe.json", [name for name in sets if (target / name).exists()]
    if made and not recipe_path.is_file():
        raise ValueError(f"{target / made[0]} exists, and this command did not make it: name another folder")
    target.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(b"".join(array.tobytes() for pair in sets.values() for array in pair)).hexdigest()
    recipes.keep(recipe_path, {"images": {name: len(label) for name, (_, label) in sets.items()}, "sha256": digest}, {}, False)
    digits = len(str(train_label.max()))  # so that classes sort as numbers do
    for name, (images, labels) in sets.items():
        for label in np.unique(labels):
            (target / name / f"{label:0{digits}}").mkdir(parents=True, exist_ok=True)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = target / name / f"{label:0{digits}}" / f"{number:05d}.png"
            if not path.is_file():
                with files.replacing(path, lasting=False) as file:
                    Image.fromarray(image).save(file, "PNG")
    return {name: len(labels) for name, (_, labels) in sets.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, metavar="IDX", help="folder of the four files")
    parser.add_argument("target", type=pathlib.Path, metavar="FOLDER")
    asked = parser.parse_args(argv)

    def command() -> int:
        counts = write(asked.source, asked.target)
        print(f"{asked.target}: {', '.join(f'{name} {count:,}' for name, count in counts.items())} images")
        return 0

    return ending.of(command, "idx_images")


if __name__ == "__main__":
    sys.exit(main())
