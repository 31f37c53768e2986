"""From what runs contribute to a set to its resampled scores, of the images that all runs share."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.evidence import blocks, families, precision, resampling
from jaxbed.stats.evidence.blocks import Block, Blocks
from jaxbed.stats.evidence.resampling import Sampled
from jaxbed.stats.evidence.study import MCE

BY_CLASS = ("imagenet_a", "imagenet_r")  # first words of sets of which classes are drawn


def sample(name: str, of_algorithms: Mapping[str, Sequence[Block]]) -> Sampled:
    """Of blocks {algorithm: its runs}. Raises ValueError where they share no image, or are of several measures."""
    every = [block for of_algorithm in of_algorithms.values() for block in of_algorithm]
    if other := next((block for block in every if block.measure != every[0].measure), None):
        kinds = f"{every[0].source} by {every[0].measure} and {other.source} by {other.measure}"
        raise ValueError(f"{name} is scored in {kinds}: evaluate all runs on the same images")
    if any(not len(block.image) for block in every):
        seeds = {
            algorithm: np.concatenate([block.scores.mean(1, keepdims=True) for block in each]) for algorithm, each in of_algorithms.items()
        }
        return resampling.sample(name, seeds, has_images=False)
    shared = _shared(name, every)
    aligned = {algorithm: [_of_images(block, shared) for block in each] for algorithm, each in of_algorithms.items()}
    first = next(iter(aligned.values()))[0]
    item = next((block.item for each in aligned.values() for block in each if block.item is not None), None)
    unit, cluster = ("images", None) if item is None else ("items", np.where(item == "", np.char.add("\n", shared.astype(str)), item))
    if first.positive is None:
        if name.startswith(BY_CLASS):
            unit, cluster = "classes", first.label
        whole = {algorithm: np.concatenate([block.scores for block in each]) for algorithm, each in aligned.items()}
        return resampling.sample(name, whole, cluster=cluster, unit=unit)
    statistics = {algorithm: _precision(each) for algorithm, each in aligned.items()}
    number = {algorithm: sum(len(block.scores) for block in each) for algorithm, each in aligned.items()}
    if first.measure == blocks.ANOMALIES:
        return resampling.sample_statistics(name, statistics, number, len(shared), kind=first.positive[:, 0])
    return resampling.sample_statistics(name, statistics, number, len(shared), cluster, unit=unit)


def measure(of_algorithms: Mapping[str, Sequence[Block]]) -> str:
    """How a set is scored."""
    return next(iter(of_algorithms.values()))[0].measure


def has_items(of_algorithms: Mapping[str, Sequence[Block]]) -> bool:
    """Whether it is known of a set which images show one item."""
    return any(block.item is not None for each in of_algorithms.values() for block in each)


def _precision(each: Sequence[Block]) -> precision.Statistic:
    """Of all seeds of an algorithm; each run numbers classes in its own order."""
    parts = [precision.weighted(block.scores, block.positive) for block in each if block.positive is not None]
    return lambda counts: np.concatenate([part(counts) for part in parts], 1)


def _shared(name: str, every: Sequence[Block]) -> np.ndarray:
    """Names of the images that all blocks have, in the order of the first."""
    shared = pd.Index(every[0].image)
    if all(np.array_equal(block.image, every[0].image) for block in every):
        return every[0].image
    for block in every:
        if not (images := pd.Index(block.image)).is_unique:
            repeated = names.quoted(images[images.duplicated()][0])
            raise ValueError(f"{block.source}: {name} has several images named {repeated}, so runs cannot be matched: rename them")
        if not len(both := shared[shared.isin(images)]):
            raise ValueError(
                f"{every[0].source} and {block.source} have no common image of {name}, e.g. {names.quoted(shared[0])} and "
                f"{names.quoted(images[0])}: evaluate all runs on the same images"
            )
        shared = both
    return shared.to_numpy()


def _of_images(block: Block, shared: np.ndarray) -> Block:
    if np.array_equal(block.image, shared):
        return block
    rows = pd.Index(block.image).get_indexer(shared)
    label, positive, item = (None if each is None else each[rows] for each in (block.label, block.positive, block.item))
    return block._replace(image=shared, scores=block.scores[:, rows], label=label, positive=positive, item=item)


def of_mce(found: Blocks, algorithms: Sequence[str], notes: list[str]) -> dict[str, list[Block]]:
    """100 - mCE of the first set on which all algorithms have it, published files first; {} if there is none."""
    whole = sorted((name for name, given in found.items() if set(algorithms) <= set(given)), key=lambda name: name.startswith("mce_jax"))
    if found and not whole:
        lacking = [name for name in algorithms if name not in next(iter(found.values()))]
        notes.append(f"{MCE} is left out: {names.listed(lacking)} lack it at the epochs that count; run: jaxbed measure WORKDIR")
    if not whole:
        return {}
    notes.append(f"{MCE} is {whole[0]}; its score is 100 - {MCE}")
    reasons = [block.lacking for each in found[whole[0]].values() for block in each if block.lacking]
    if reasons:
        notes.append(f"intervals of {MCE} are of seeds alone, and of none where a run has one seed: {'; '.join(reasons)}")
    return found[whole[0]]


def of_families(given: Sequence[families.Run], dataset: str, notes: list[str]) -> Blocks:
    """The families of ImageNet-C's corruptions of a set."""
    found: Blocks = {}
    for name, of_runs in families.scores(given, dataset, notes).items():
        for run, images, right in of_runs:
            found.setdefault(name, {}).setdefault(run.algorithm, []).append(Block(str(run.path), images, right))
    return found
