"""From what networks answered under conditions to numbers: one row for each seed and measure, at the epoch that counts for that seed."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.evaluation import answers
from jaxbed.evaluation.measures import Counts, plain, ratio
from jaxbed.measures import conditions, corruption_error, critical_band, spectral
from jaxbed.measures.corruption import SEVERITIES
from jaxbed.measures.critical_band import Channel

Accuracies = Mapping[str, np.ndarray]  # {condition: [S]}
NUMBERS = {"bandwidth": "bandwidth_octaves", "centre": "centre_cycles", "sensitivity": "peak_noise_sensitivity"}  # of a Channel
THRESHOLDS = {"": False, "_norm": True}  # half of all images, or half of the best cell


class Scores(NamedTuple):
    """`table`: run, epoch, metric, value, n_correct, n_total, status; a value is NaN where it is degenerate.

    `channels`, where the critical band was measured: two rows for each seed with all that `critical_band.Channel` has.
    """

    table: pd.DataFrame
    channels: pd.DataFrame


def of_set(
    folder: pathlib.Path,
    label: np.ndarray,
    shape: tuple[int, ...],
    measures: Sequence[str],
    applied: Sequence[str],
    chosen: Mapping[int, int],
    of_imagenet: bool = False,
) -> Scores:
    """Accuracy under each condition, and what measures make of these.

    folder: WORKDIR/measures/<set>; label [n] of its images [H, W, C]; applied: names of conditions; chosen {seed: epoch}. of_imagenet:
    whether answers are among ImageNet's 1000 classes, of which AlexNet's errors are known.
    """
    counts: dict[str, Counts] = {}
    status: dict[int, str] = {}
    for condition in applied:
        counts[condition], status = _counts(folder / condition, label, chosen)
    accuracy = {name: count.value for name, count in counts.items()}
    channels: list[dict] = []
    if "spectral" in measures:
        for kind in ("low", "high"):
            kept = {f: accuracy[f"{kind}_pass_{f:g}"] for f in spectral.CUTOFFS}
            counts[f"{kind}_freq"] = plain(spectral.bias(kept, accuracy["clean"]))
    for benchmark, corruptions in conditions.CORRUPTIONS.items():
        if benchmark in measures:  # not under the benchmark's own name: its files were made by other code, and stored as JPEG
            means = _means([*corruptions, *(["frost"] if "frost_1" in applied else [])], accuracy)
            counts[f"{benchmark}_jax"] = plain(np.mean(list(means.values()), axis=0))
            if benchmark == "imagenet_c" and of_imagenet and set(corruption_error.MAIN) <= set(means):
                counts |= {f"{name}_jax": plain(values) for name, values in _mce(means, accuracy["clean"]).items()}
    if "critical_band" in measures:
        for suffix, normalised in THRESHOLDS.items():
            fitted = _channels(accuracy, min(shape[:2]), normalised)
            counts |= {name + suffix: plain(np.array([getattr(each, field) for each in fitted])) for name, field in NUMBERS.items()}
            for seed, each in zip(chosen, fitted, strict=True):
                text = {"thresholds": "".join(map(str, each.thresholds)), "status": " ".join(each.status) or "ok"}
                channels.append({"run": seed, "normalised": normalised, **each._asdict(), **text})
    rows = [
        {"run": seed, "epoch": epoch, "metric": name, "value": value, "n_correct": correct, "n_total": total, "status": status[seed]}
        for name, count in counts.items()
        for (seed, epoch), value, correct, total in zip(chosen.items(), *count, strict=True)
    ]
    return Scores(pd.DataFrame(rows), pd.DataFrame(channels))


def _counts(folder: pathlib.Path, label: np.ndarray, chosen: Mapping[int, int]) -> tuple[Counts, dict[int, str]]:
    """Right answers of each seed at its epoch, and which seeds had diverged there."""
    right: list[int] = []
    status: dict[int, str] = {}
    read: dict[int, dict[str, np.ndarray]] = {}
    for seed, epoch in chosen.items():
        if epoch not in read:
            read[epoch] = answers.read_answers(folder / f"{epoch}.npz", len(label))
        row = int(np.flatnonzero(read[epoch]["seeds"] == seed)[0])
        right.append(int((read[epoch]["response"][row] == label).sum()))
        status[seed] = "ok" if read[epoch]["alive"][row] else "diverged"
    return ratio(np.array(right, float), len(label)), status


def _means(corruptions: Sequence[str], accuracy: Accuracies) -> dict[str, np.ndarray]:
    """{corruption: mean accuracy over severities [S]}."""
    return {name: np.mean([accuracy[f"{name}_{severity}"] for severity in SEVERITIES], axis=0) for name in corruptions}


def _mce(means: Accuracies, clean: np.ndarray) -> dict[str, np.ndarray]:
    """mce and relative_mce of each seed, in percent."""
    each = [
        corruption_error.corruption_error({name: 1 - float(of_seeds[seed]) for name, of_seeds in means.items()}, 1 - float(clean[seed]))
        for seed in range(len(clean))
    ]
    return {name: np.array([getattr(one, name) for one in each]) for name in ("mce", "relative_mce")}


def _channels(accuracy: Accuracies, side_px: int, normalised: bool) -> list[Channel]:
    """Of each seed."""
    bands = range(critical_band.bands(side_px))
    cells = np.array([[accuracy[conditions.band_name(band, sigma)] for band in bands] for sigma in critical_band.SIGMAS])
    return [critical_band.channel(grid, side_px, normalised) for grid in np.moveaxis(cells, -1, 0)]
