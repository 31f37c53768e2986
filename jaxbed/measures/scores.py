"""From what networks answered under conditions to numbers: one row for each seed and measure, at the epoch that counts for that seed."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.evaluation import answers
from jaxbed.evaluation.measures import Counts, plain, ratio
from jaxbed.measures import attacks, conditions, corruption_error, critical_band, spectral
from jaxbed.measures.conditions import COMPLETE, corruption_name
from jaxbed.measures.corruption import SEVERITIES
from jaxbed.measures.corruption_error import MADE_HERE

Accuracies = Mapping[str, np.ndarray]  # {condition: [S]}
NUMBERS = {"bandwidth": "bandwidth_octaves", "centre": "centre_cycles", "sensitivity": "peak_noise_sensitivity"}  # of a Channel
THRESHOLDS = {"": False, "_norm": True}  # half of all images, or half of the best cell


class Baseline(NamedTuple):
    """The network that corruption errors are divided by."""

    name: str  # follows that of the measure
    errors: Mapping[str, float]  # {corruption: mean over severities}
    clean: float


ALEXNET = Baseline("", corruption_error.ALEXNET, corruption_error.CLEAN)


class Scores(NamedTuple):
    """`table`: run, epoch, metric, value, n_correct, n_total, status; a value is NaN where it is degenerate.

    `channels`, where the critical band was measured: two rows for each seed with all that `critical_band.Channel` has, and the
    continuous thresholds. `unmoved`: {attack: share of images whose gradient was exactly zero, of each seed}.
    """

    table: pd.DataFrame
    channels: pd.DataFrame
    unmoved: dict[str, np.ndarray]


class Answered(NamedTuple):
    """What is right under one condition."""

    right: np.ndarray  # [S, n] bool
    diverged: np.ndarray  # [S] bool
    unmoved: np.ndarray | None  # [S]: share of images without a gradient, of an attack

    @property
    def counts(self) -> Counts:
        """Accuracy."""
        return ratio(self.right.sum(1), self.right.shape[1])


def of_set(
    folder: pathlib.Path,
    label: np.ndarray,
    shape: tuple[int, ...],
    measures: Sequence[str],
    applied: Sequence[str],
    chosen: Mapping[int, int],
    baseline: Baseline | None = None,
    epsilons: Sequence[float] = (),
) -> Scores:
    """Accuracy under each condition, and what measures make of these.

    folder: WORKDIR/measures/<set>; label [n] of its images [H, W, C]; applied: names of conditions; chosen {seed: epoch}; baseline: for
    mCE; epsilons: radii of APGD, whose number counts only where both parts were answered.
    """
    answered = {condition: _answered(folder / condition, label, chosen) for condition in applied}
    counts = {condition: each.counts for condition, each in answered.items()}
    accuracy = {name: count.value for name, count in counts.items()}
    channels: list[dict] = []
    if "spectral" in measures:
        for kind in ("low", "high"):
            kept = {f: accuracy[f"{kind}_pass_{f:g}"] for f in spectral.CUTOFFS}
            counts[f"{kind}_freq"] = plain(spectral.bias(kept, accuracy["clean"]))
    for benchmark in conditions.CORRUPTIONS:
        if benchmark in measures:
            counts |= _of_benchmark(benchmark, MADE_HERE, accuracy, accuracy["clean"], baseline)
    if "critical_band" in measures:
        grids = _grids(accuracy, min(shape[:2]))
        for suffix, normalised in THRESHOLDS.items():
            fitted = [critical_band.channel(grid, min(shape[:2]), normalised) for grid in grids]
            counts |= {name + suffix: plain(np.array([getattr(each, field) for each in fitted])) for name, field in NUMBERS.items()}
            for seed, grid, each in zip(chosen, grids, fitted, strict=True):
                continuous = critical_band.continuous_thresholds(grid, normalised)
                text = {
                    "thresholds": "".join(map(str, each.thresholds)),
                    "status": " ".join(each.status) or "ok",
                    "continuous_thresholds": " ".join(f"{step:.4f}" for step in continuous),
                }
                channels.append({"run": seed, "normalised": normalised, **each._asdict(), **text})
    if "apgd" in measures:
        for epsilon in epsilons:
            parts = [conditions.attack_name(kind, epsilon) for kind in conditions.APGD]
            if not set(parts) <= set(answered):
                continue  # one of two attacks is not the whole
            right = [answered[part].right for part in parts]
            counts[conditions.attack_name("apgd", epsilon)] = ratio(
                attacks.right_under_all([answered["clean"].right, *right]).sum(1), len(label)
            )
    unmoved = {name: each.unmoved for name, each in answered.items() if each.unmoved is not None}
    return Scores(_rows(counts, answered, chosen), pd.DataFrame(channels), unmoved)


def of_files(
    folder: pathlib.Path,
    benchmark: str,
    label: Mapping[str, np.ndarray],
    intact: bool,
    chosen: Mapping[int, int],
    clean: np.ndarray | None,
    baseline: Baseline | None = None,
) -> pd.DataFrame:
    """Accuracy in each cell of a benchmark's published files, their means and mCE: the table of `Scores`.

    folder: WORKDIR/measures/<benchmark>; label {cell: [n]}; intact: whether all cells are there and hold the same images, without which
    there are no means; clean [S]: accuracy of each seed on unchanged images, where it is known.
    """
    answered = {cell: _answered(folder / cell, of_cell, chosen) for cell, of_cell in label.items()}
    counts = {cell: each.counts for cell, each in answered.items()}
    if clean is not None:
        counts["clean"] = plain(clean)
    if intact:
        counts |= _of_benchmark(benchmark, "", {cell: count.value for cell, count in counts.items()}, clean, baseline)
    return _rows(counts, answered, chosen)


def _rows(counts: Mapping[str, Counts], answered: Mapping[str, Answered], chosen: Mapping[int, int]) -> pd.DataFrame:
    diverged = np.any([each.diverged for each in answered.values()], axis=0)
    return pd.DataFrame(
        {"run": seed, "epoch": epoch, "metric": name, "value": value, "n_correct": correct, "n_total": total, "status": status}
        for name, count in counts.items()
        for (seed, epoch), value, correct, total, status in zip(
            chosen.items(), *count, np.where(diverged, "diverged", "ok").tolist(), strict=True
        )
    )


def _answered(folder: pathlib.Path, label: np.ndarray, chosen: Mapping[int, int]) -> Answered:
    """Of each seed at its epoch."""
    right, alive, unmoved = [], [], []
    read: dict[int, dict[str, np.ndarray]] = {}
    for seed, epoch in chosen.items():
        if epoch not in read:
            read[epoch] = answers.read_answers(folder / f"{epoch}.npz", len(label))
        row = int(np.flatnonzero(read[epoch]["seeds"] == seed)[0])
        right.append(read[epoch]["response"][row] == label)
        alive.append(bool(read[epoch]["alive"][row]))
        if "without_gradient" in read[epoch]:
            unmoved.append(read[epoch]["without_gradient"][row].mean())
    return Answered(np.array(right), ~np.array(alive), np.array(unmoved) if unmoved else None)


def _of_benchmark(
    benchmark: str, suffix: str, accuracy: Accuracies, clean: np.ndarray | None, baseline: Baseline | None
) -> dict[str, Counts]:
    """Mean accuracies over corruptions, of those of which all severities were answered, and of ImageNet-C mCE."""
    whole = [name for name in COMPLETE[benchmark] if all(corruption_name(name, severity) in accuracy for severity in SEVERITIES)]
    means = {name: np.mean([accuracy[corruption_name(name, severity)] for severity in SEVERITIES], axis=0) for name in whole}
    without = [name for name in COMPLETE[benchmark] if name not in means]
    counts = {}
    if without in ([], ["frost"]):
        named = f"{benchmark}{suffix}" + "".join(f"_without_{name}" for name in without)
        counts[named] = plain(np.mean(list(means.values()), axis=0))
    if benchmark == "imagenet_c" and set(corruption_error.MAIN) <= set(means):
        counts[f"{benchmark}_15{suffix}"] = plain(np.mean([means[name] for name in corruption_error.MAIN], axis=0))
        if baseline is not None:
            counts |= {name + suffix + baseline.name: plain(values) for name, values in _mce(means, clean, baseline).items()}
    return counts


def _mce(means: Accuracies, clean: np.ndarray | None, baseline: Baseline) -> dict[str, np.ndarray]:
    """mce of each seed in percent, and relative_mce where the clean accuracy is known."""
    seeds = range(len(means[corruption_error.MAIN[0]]))
    known = np.zeros(len(seeds)) if clean is None else clean
    each = [
        corruption_error.corruption_error(
            {name: 1 - float(of_seeds[seed]) for name, of_seeds in means.items()}, 1 - float(known[seed]), baseline.errors, baseline.clean
        )
        for seed in seeds
    ]
    names = ("mce",) if clean is None else ("mce", "relative_mce")
    return {name: np.array([getattr(one, name) for one in each]) for name in names}


def _grids(accuracy: Accuracies, side_px: int) -> np.ndarray:
    """Accuracies [S, sigmas, bands] of the critical band."""
    bands = range(critical_band.bands(side_px))
    cells = np.array([[accuracy[conditions.band_name(band, sigma)] for band in bands] for sigma in critical_band.SIGMAS])
    return np.moveaxis(cells, -1, 0)
