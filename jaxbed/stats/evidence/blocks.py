"""What the answers of one run contribute to its scores: on each of its sets, and under ImageNet-C's corruptions.

The measure of a set follows from what is stored of its images: accuracy where they have one class; where some are of no class, how well low
confidence tells these; where they have several classes, average precision. Scores are in points, higher is better.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import model_vs_human
from jaxbed.evaluation import image_tables, metrics
from jaxbed.evaluation.answers import read_answers
from jaxbed.measures import corruption_error
from jaxbed.measures.table import FOLDER
from jaxbed.stats import names

ACCURACY, ANOMALIES, SEVERAL_CLASSES = "accuracy", "aupr_softmax", "ap_weighted"  # as `jaxbed stats --metric` names them
IN_WORDS = {
    ANOMALIES: "the area under the precision-recall curve of 1 - confidence as a detector of the images of no class",
    SEVERAL_CLASSES: "mean average precision, each class weighted by its number of images",
}
MCE_METRICS = ("mce", "mce_jax")  # of published files, and of corruptions made here


class Block(NamedTuple):
    """What the seeds of one run contribute to the score on one set, in points."""

    source: str
    image: np.ndarray  # [n] names; empty where only seeds are known, whose scores are then [S, 1]
    scores: np.ndarray  # [S, n]; of average precision [S, n, classes], by which images are ranked
    label: np.ndarray | None = None  # [n]
    positive: np.ndarray | None = None  # [n, classes] bool: what ranks high if it is right, of average precision
    measure: str = ACCURACY
    item: np.ndarray | None = None  # [n] str, the same for images that show one item; "" if unknown
    lacking: str = ""  # why images are not known, with the cure


Blocks = dict[str, dict[str, list[Block]]]  # {set: {algorithm: blocks}}


class LeftOut(ValueError):
    """Why a set cannot be scored, with the cure; other sets can."""


def of_set(path: Path, dataset: str, epochs: Mapping[int, int]) -> tuple[Block, set[int]]:
    """(the block of a set, seeds that diverged), of each seed {seed: epoch} in that order.

    Raises LeftOut for a set that cannot be scored; ValueError or FileNotFoundError, with the cure, where answers are missing.
    """
    rows: dict[int, np.ndarray] = {}
    diverged: set[int] = set()
    for epoch in sorted(set(epochs.values())):
        trials = metrics.all_trials(path, dataset, epoch)
        kept = model_vs_human.kept(dataset, trials.name)
        counted = np.ones(len(trials.name), bool) if kept is None else kept
        measure, positive = _measure(trials, dataset)
        contributions = _contributions(trials, measure, f"{path}: answers to {dataset} at epoch {epoch}", path)
        for seed, values, alive in zip(trials.seeds.tolist(), contributions, trials.alive, strict=True):
            if epochs.get(seed) == epoch:
                rows[seed] = values[counted]
                diverged |= set() if alive else {seed}
    if rows and not counted.any():
        raise LeftOut(f"no image of {dataset} has a condition that counts")
    if len(rows) < len(epochs):
        raise ValueError(f"{path}: {dataset} has answers of {len(rows)} of {len(epochs)} seeds at their epochs: run: jaxbed eval {path}")
    scores = np.stack([rows[seed] for seed in epochs])
    if not np.isfinite(scores).all():
        lost = names.listed(seed for seed, of_seed in zip(epochs, scores, strict=True) if not np.isfinite(of_seed).all())
        raise LeftOut(f"{path}: seeds {lost} have no finite scores of some images of {dataset}: choose an earlier epoch with --select")
    positive = None if positive is None else positive[counted]
    item = None if trials.item is None or not any(trials.item) else trials.item[counted]
    return Block(str(path), trials.name[counted], scores, trials.label[counted], positive, measure, item), diverged


def _measure(trials: metrics.Trials, dataset: str) -> tuple[str, np.ndarray | None]:
    """(measure, positives [n, classes] of average precision). Raises LeftOut where there are none."""
    if trials.targets is not None:
        measure, lacking, positive = SEVERAL_CLASSES, "has a class", trials.targets == 1
    elif trials.anomaly is not None:
        measure, lacking, positive = ANOMALIES, "is of no class", np.reshape(trials.anomaly, (-1, 1))
    else:
        return ACCURACY, None
    if not np.any(positive):
        raise LeftOut(f"no image of {dataset} {lacking}")
    return measure, positive


def _contributions(trials: metrics.Trials, measure: str, which: str, path: Path) -> np.ndarray:
    """[S, n], or [S, n, classes] of average precision. Raises LeftOut for answers without confidence or scores."""
    if measure == ACCURACY:
        return 100.0 * (trials.response == trials.label)
    kept = trials.confidence if measure == ANOMALIES else trials.scores
    if kept is None:
        word = "confidence" if measure == ANOMALIES else "scores"
        raise LeftOut(f"{which} have no {word}, which {measure} needs: delete these answers, then: jaxbed eval {path}")
    return -kept.astype(float)[..., None] if measure == ANOMALIES else kept.astype(np.float32)


def of_mce(path: Path, frame: pd.DataFrame, epochs: Mapping[int, int]) -> dict[str, Block]:
    """{"mce of imagenet_c": block}: 100 - mCE, of each set and kind of corruptions of which all seeds have it; frame as of `workdirs.read`.

    Without answers to all corruptions, or without the names of their images, a block has seeds alone, and says why.
    """
    found = {}
    for (dataset, metric), rows in frame[frame["metric"].isin(MCE_METRICS)].groupby(["dataset", "metric"], sort=False):
        value = rows[rows["epoch"] == rows["run"].map(epochs)].set_index("run")["value"]
        if set(epochs) <= set(value.index):
            score = 100 - value[list(epochs)].to_numpy()
            try:
                block = _of_images(path, str(dataset), epochs, score)
            except LeftOut as reason:
                block = Block(str(path), np.array([]), score[:, None], lacking=str(reason))
            found[f"{metric} of {dataset}"] = block
    return found


def _of_images(path: Path, dataset: str, epochs: Mapping[int, int], score: np.ndarray) -> Block:
    """What each image contributes to 100 - mCE, a mean over images as AlexNet's errors are constants; score [S]: what it must give.

    Raises LeftOut, with the cure, without all answers.
    """
    folder, again = path / FOLDER / dataset, f"run the command again that measured it: jaxbed measure {path} ..."
    table = folder / "images.csv"  # of published files
    if not table.is_file():
        table = path / "responses" / dataset / "images.csv"
    if not table.is_file():
        raise LeftOut(f"{folder / 'images.csv'}, which names the images, is missing: {again} --imagenet-c DIR; it keeps its answers")
    images, rows = image_tables.read(table), []
    alexnet = np.array([[corruption_error.ALEXNET[name]] for name in corruption_error.MAIN])
    for seed, epoch in epochs.items():
        right = []
        for file in (folder / f"{name}_{severity}" / f"{epoch}.npz" for name in corruption_error.MAIN for severity in range(1, 6)):
            if not file.is_file():
                raise LeftOut(f"{file} is missing: {again}")
            stored = read_answers(file, len(images.label), again)
            seeds = stored["seeds"].tolist()
            if seed not in seeds or stored["response"].shape[1] != len(images.label):
                raise LeftOut(f"{file} has no answers of seed {seed} to the images of {table}: {again}")
            right.append(stored["response"][seeds.index(seed)] == images.label)
        errors = 1 - np.reshape(right, (len(alexnet), 5, -1)).mean(1)
        rows.append(100 - 100 * (errors / alexnet).mean(0))
    if not np.allclose(np.mean(rows, 1), score, atol=1e-6):
        raise LeftOut(f"{path / 'measures.csv'} has another mCE of {dataset} than its answers: {again}")
    return Block(str(path), images.name, np.stack(rows))
