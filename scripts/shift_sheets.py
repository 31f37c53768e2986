r"""Sheets of examples: images next to what augmentations, DeepAugment and an attack make of them, with the drawn options beneath.

    python scripts/shift_sheets.py deepaugment TRAIN --made DIR [DIR ...] --out FILE.png [--count 4] [--seed 0]
    python scripts/shift_sheets.py augmix TRAIN --out FILE.png
    python scripts/shift_sheets.py changed TRAIN [--run WORKDIR] --out FILE.png
    python scripts/shift_sheets.py sets DIR [DIR ...] --out FILE.png

TRAIN and DIR are image folders with one sub-folder per class. `deepaugment` shows each image and its versions in the folders --made, which
data_prep/deepaugment.py wrote with their tables of options. `augmix` shows the chains and the mixture that `jaxbed.data.augmix` draws.
`changed` shows speckle noise, random erasing and Noise2Net, and with --run also what PGD makes of the images against the first seed of a
run; its radius is --epsilon, in 255ths. `sets` shows a row for each folder, with the class beneath. Images of all but `deepaugment` are
squares of --size-px.
"""

import argparse
import pathlib
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxbed import config
from jaxbed.data import augment, augmix, image_files, noise2net
from jaxbed.data.image_files import Size
from jaxbed.measures import attacking
from jaxbed.stats.figures import style
from jaxbed.system import ending
from jaxbed.training import plan, train
from jaxbed.training.log import Log

CELL_INCHES = 1.25  # side of an image
LETTERS = 24  # in a line beneath it
LINE_INCHES = 0.11
DPI = 160


class Cell(NamedTuple):
    """An image [H, W, 3] uint8, and the text beneath it."""

    image: np.ndarray
    text: str


Sheet = list[list[Cell]]


def examples(folder: str, count: int, seed: int, size_px: int) -> tuple[np.ndarray, list[str], list[str]]:
    """(images [count, size_px, size_px, 3] uint8, file names, classes) drawn at random. Raises ValueError for too few images."""
    opened = image_files.open_location(folder, Size(size_px, size_px))
    if len(opened.images) < count:
        raise ValueError(f"{folder} has {len(opened.images)} images, and --count is {count}: lower it")
    rows = np.sort(np.random.default_rng(seed).choice(len(opened.images), count, replace=False))
    images, _ = opened.images.take(rows)
    return images, [opened.images.names[row] for row in rows], [opened.classes[opened.labels[row]] for row in rows]


def deepaugment(folder: str, made: Sequence[str], count: int, seed: int) -> Sheet:
    """An image and its version in each folder of `made`; weights and signal options beneath. Raises ValueError for one without tables."""
    drawn = {}
    for each in made:
        if not (found := sorted(pathlib.Path(each).glob("drawn-*-of-*.csv"))):
            raise ValueError(f"--made {each} has no drawn-*-of-*.csv: name a folder that data_prep/deepaugment.py wrote")
        table = pd.concat([pd.read_csv(path, keep_default_na=False) for path in found])
        drawn[each] = table.assign(image=[str(pathlib.PurePosixPath(file).with_suffix("")) for file in table["file"]]).set_index("image")
    names = image_files.list_folder(pathlib.Path(folder))[0]
    known = [name for name in names if all(str(pathlib.PurePosixPath(name).with_suffix("")) in table.index for table in drawn.values())]
    if len(known) < count:
        raise ValueError(f"{len(known)} images of {folder} are in all of {', '.join(made)}, and --count is {count}: lower it")
    sheet = []
    for row in np.sort(np.random.default_rng(seed).choice(len(known), count, replace=False)):
        image = str(pathlib.PurePosixPath(known[row]).with_suffix(""))
        cells = [Cell(_read(pathlib.Path(folder) / known[row]), pathlib.PurePosixPath(image).parent.name)]
        for each, table in drawn.items():
            options = table.loc[image]
            words = f"{pathlib.Path(each).name}\nweights: {_listed(options['weights'])}\nsignal: {_listed(options['signal'])}"
            cells.append(Cell(_read(pathlib.Path(each) / options["file"]), words))
        sheet.append(cells)
    return sheet


def augmixed(images: np.ndarray, labels: Sequence[str], seed: int, settings: augmix.Settings) -> Sheet:
    """Each image, its chains with their operations, levels and weights, and the mixture."""

    @jax.jit
    def applied(images: jax.Array, key: jax.Array) -> tuple[augmix.Drawn, jax.Array, jax.Array]:
        drawn = augmix.draw_batch(key, len(images), settings)
        unit = images / 255

        def alone(chain: int) -> jax.Array:  # the mixture of one chain of weight 1 and share 1 is the chain
            only = drawn._replace(weights=jnp.zeros_like(drawn.weights).at[:, chain].set(1), share=jnp.ones_like(drawn.share))
            return augmix.mixed(unit, only, settings)

        return drawn, jnp.stack([alone(chain) for chain in range(settings.width)], 1), augmix.mixed(unit, drawn, settings)

    drawn, chains, mixture = jax.device_get(applied(images.astype(np.float32), jax.random.key(seed)))
    sheet = []
    for row, image in enumerate(images):
        cells = [Cell(image, labels[row])]
        for chain in range(settings.width):
            steps = zip(drawn.operation[row, chain], drawn.level[row, chain], strict=True)
            words = [f"{augmix.OPERATIONS[number].replace('_', ' ')} {level:.1f}" for number, level in steps if number != augmix.NOTHING]
            cells.append(Cell(_bytes(chains[row, chain]), "\n".join([f"chain of weight {drawn.weights[row, chain]:.2f}", *words])))
        sheet.append([*cells, Cell(_bytes(mixture[row]), f"mixture, {drawn.share[row]:.2f} of chains")])
    return sheet


def changed(images: np.ndarray, labels: Sequence[str], seed: int, settings: noise2net.Settings) -> Sheet:
    """Each image with speckle noise, a rectangle erased, and passed through Noise2Net as normalised images are."""
    usual = augment.Config()
    mean, std = (np.array(each, np.float32) for each in (usual.mean, usual.std))
    noisy = augment.make(augment.Config(noise="speckle", noise_share=1.0), images.shape[1:])
    erased = augment.make(augment.Config(erase=1.0), images.shape[1:])

    @jax.jit
    def applied(images: jax.Array, key: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        of_augment, of_eps, of_reaches, of_weights = jax.random.split(key, 4)
        eps, reaches = noise2net.draw_eps(of_eps, settings.strength), noise2net.draw_reaches(of_reaches, settings)
        weights = noise2net.draw_weights(of_weights, len(images), images.shape[-1], reaches, settings)
        normalised = augment.normalise(images, usual.mean, usual.std)
        noised = noise2net.changed(normalised, weights, reaches, eps)
        return [each * std + mean for each in (noisy(of_augment, images), erased(of_augment, images), noised)], eps

    shown, eps = jax.device_get(applied(images, jax.random.key(seed)))
    names = ("speckle noise", "random erasing", f"Noise2Net, eps {eps:.2f}")
    columns = {name: _bytes(each) for name, each in zip(names, shown, strict=True)}
    return [[Cell(image, labels[row]), *(Cell(each[row], name) for name, each in columns.items())] for row, image in enumerate(images)]


def attacked(workdir: pathlib.Path, images: np.ndarray, labels: Sequence[str], epsilon: float, seed: int) -> list[list[Cell]]:
    """[adversarial image, difference times ten] of each image by PGD against the first seed of a run at its last epoch."""
    cfg = config.load(workdir)
    _, last, points, folder = plan.job(cfg, workdir)
    program = train.prepare(last, points, folder, trains=False)
    _, epochs = train.stores(folder, program.seeds.size, Log(folder))
    weights = jax.tree.map(lambda leaf: leaf[0], jax.device_get(epochs.load(max(epochs.numbers()), program.saved)))
    source = points[0].source
    black, white = (source.scale(jnp.full((1, *images.shape[1:]), level, jnp.uint8))[0, 0, 0] for level in (0, 255))
    if unknown := sorted(set(labels) - set(source.class_names)):
        raise ValueError(f"{workdir} has no class {unknown[0]}: its classes are {', '.join(source.class_names)}")
    numbers = jnp.array([source.class_names.index(label) for label in labels])

    def logits_of(image: jax.Array) -> jax.Array:
        return program.method.predict(weights["params"], weights["stats"], black + image * (white - black))

    attack, unit, radius = attacking.KINDS["pgd_linf"](len(source.class_names)), jnp.asarray(images, jnp.float32) / 255, epsilon / 255
    draw = jax.vmap(lambda key: attack.draw(key, images.shape[1:]))
    state = attack.start(logits_of, unit, numbers, draw(jax.random.split(jax.random.key(seed), len(images))), radius)
    step = jax.jit(lambda state, number: attack.step(logits_of, state, unit, numbers, number, radius))
    for number in range(attack.steps):
        state = step(state, number)
    answers = [source.class_names[each] for each in np.asarray(jax.jit(logits_of)(state.point).argmax(-1))]
    before = [source.class_names[each] for each in np.asarray(jax.jit(logits_of)(unit).argmax(-1))]
    worst, apart = _bytes(state.point), _bytes(0.5 + 10 * np.asarray(state.point - unit))
    return [
        [Cell(worst[row], f"PGD, {epsilon:g}/255\nanswer: {answers[row]}\nbefore: {before[row]}"), Cell(apart[row], "difference x 10")]
        for row in range(len(images))
    ]


def shifted(folders: Sequence[str], count: int, seed: int, size_px: int) -> Sheet:
    """A row of images of each folder, the class beneath; the first also names the folder."""
    sheet = []
    for folder in folders:
        images, _, labels = examples(folder, count, seed, size_px)
        names = [f"{pathlib.Path(folder).name}: {labels[0]}", *labels[1:]]
        sheet.append([Cell(image, name) for image, name in zip(images, names, strict=True)])
    return sheet


def _read(path: pathlib.Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def _listed(options: str) -> str:
    return ", ".join(word.replace("_", " ") for word in options.split()) or "none"


def _bytes(image: jax.Array | np.ndarray) -> np.ndarray:
    """Images in [0, 1] as bytes."""
    return (np.clip(np.asarray(image), 0, 1) * 255 + 0.5).astype(np.uint8)


def lines(text: str) -> list[str]:
    """The lines in which a text stands beneath its image."""
    return [line for part in text.split("\n") for line in textwrap.wrap(part, LETTERS, subsequent_indent="  ") or [""]]


def draw(sheet: Sheet) -> Figure:
    """The sheet as a figure: all images in equal squares, each row as high as its longest text. Pixels are not smoothed."""
    gap = 0.12
    width = max(len(row) for row in sheet) * (CELL_INCHES + gap) + gap
    below = [0.08 + LINE_INCHES * max(len(lines(cell.text)) for cell in row) for row in sheet]
    height = sum(below) + len(sheet) * (CELL_INCHES + gap) + gap
    with style.style():
        figure, top = Figure(figsize=(width, height)), height - gap
        for row, under in zip(sheet, below, strict=True):
            for column, cell in enumerate(row):
                left, low = gap + column * (CELL_INCHES + gap), top - CELL_INCHES
                axes = figure.add_axes((left / width, low / height, CELL_INCHES / width, CELL_INCHES / height))
                axes.imshow(cell.image, interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set(visible=True, linewidth=0.4)  # where a white image ends
                words = "\n".join(lines(cell.text))
                figure.text(left / width, (low - 0.05) / height, words, fontsize=5.8, va="top", linespacing=1.2)
            top -= CELL_INCHES + under + gap
    return figure


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("deepaugment", "augmix", "changed", "sets"):
        of_kind = kinds.add_parser(kind)
        of_kind.add_argument("folder", nargs="+" if kind == "sets" else None, metavar="DIR")
        of_kind.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE.png")
        of_kind.add_argument("--count", type=int, default=8 if kind == "sets" else 4, help="images; of each folder for sets")
        of_kind.add_argument("--seed", type=int, default=0)
        if kind == "deepaugment":
            of_kind.add_argument("--made", nargs="+", required=True, metavar="DIR", help="folders of data_prep/deepaugment.py")
        else:
            of_kind.add_argument("--size-px", type=int, default=64)
        if kind == "augmix":
            of_kind.add_argument("--severity", type=float, default=augmix.Settings.severity)
        if kind == "changed":
            of_kind.add_argument("--run", type=pathlib.Path, metavar="WORKDIR", help="a run whose first network is attacked")
            of_kind.add_argument("--epsilon", type=float, default=4.0, help="radius of the attack, in 255ths")
    asked = parser.parse_args(argv)
    if asked.count < 1 or asked.seed < 0:
        parser.error(f"--count {asked.count} must be at least 1, --seed {asked.seed} at least 0")
    if asked.out.suffix != ".png":
        parser.error(f"--out {asked.out} must end in .png")
    if asked.kind == "deepaugment":
        sheet = deepaugment(asked.folder, asked.made, asked.count, asked.seed)
    elif asked.kind == "sets":
        sheet = shifted(asked.folder, asked.count, asked.seed, asked.size_px)
    else:
        images, _, labels = examples(asked.folder, asked.count, asked.seed, asked.size_px)
        if asked.kind == "augmix":
            sheet = augmixed(images, labels, asked.seed, augmix.Settings(severity=asked.severity))
        else:
            sheet = changed(images, labels, asked.seed, noise2net.Settings())
            more = attacked(asked.run, images, labels, asked.epsilon, asked.seed) if asked.run else [[] for _ in images]
            sheet = [[*first, *second] for first, second in zip(sheet, more, strict=True)]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    draw(sheet).savefig(asked.out, dpi=DPI, metadata={"Software": None})
    print(f"wrote {asked.out}: {len(sheet)} rows")
    return 0


if __name__ == "__main__":
    ending.process(main)
