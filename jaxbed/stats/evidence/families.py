"""Families of ImageNet-C's corruptions as shifted sets, and which corruptions a network has trained with.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (2019): 15 corruptions in
four families. The answers are those of `jaxbed measure --measures imagenet_c` to the in-distribution set. A score is the accuracy over the
corruptions and severities that were measured for all runs: unlike mCE, it is not divided by another network's errors and needs no frost.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbed import settings
from jaxbed.evaluation import metrics
from jaxbed.measures import overlaps
from jaxbed.measures.corruption_error import EXTRA, FAMILIES, MAIN
from jaxbed.stats import names

SETS = {f"ImageNet-C {family}": members for family, members in FAMILIES.items()}
CELL = re.compile(rf"({'|'.join(MAIN)})_([1-5])")


class Run(NamedTuple):
    """A run whose answers count."""

    algorithm: str
    path: Path
    epochs: Mapping[int, int]  # {seed: epoch}


def trained_with(config: Mapping[str, Any]) -> set[str]:
    """The corruptions that the augmentation of a saved configuration resembles; those saved by former versions do not tell."""
    told = config.get(settings.OVERLAPS)
    return set(told) if isinstance(told, list) else set(overlaps.of_settings(config))


def named(text: str) -> set[str]:
    """The corruptions that a text names, itself or by their family. Raises ValueError for other words."""
    found: set[str] = set()
    for word in text.replace(",", " ").replace(";", " ").split():
        if word not in FAMILIES and word not in (*MAIN, *EXTRA):
            raise ValueError(f"overlaps {names.quoted(word)}: write families, {', '.join(FAMILIES)}, or corruptions such as contrast")
        found |= set(FAMILIES.get(word, (word,)))
    return found


def tested_by(dataset: str, overlaps: Collection[str]) -> str:
    """Those of `overlaps` that a shifted set tests, in words; "" for sets other than mCE and the families."""
    members = MAIN if dataset == "mCE" else SETS.get(dataset, ())
    return ", ".join(corruption for corruption in members if corruption in overlaps)


def scores(runs: Sequence[Run], dataset: str, notes: list[str]) -> dict[str, list[tuple[Run, np.ndarray, np.ndarray]]]:
    """{family: [(run, names of images [n], share of corrupted versions that are right [S, n], in points)]}, of the cells all runs have.

    A family without such cells is left out. Raises ValueError where the runs have no cell in common.
    """
    from jaxbed.evaluation.answers import read_answers
    from jaxbed.measures.table import FOLDER

    cells = [{path.name for path in (run.path / FOLDER / dataset).glob("*_[1-5]") if CELL.fullmatch(path.name)} for run in runs]
    shared = set.intersection(*cells)
    if not shared:
        lacking = next((run.path for run, of_run in zip(runs, cells, strict=True) if not of_run), runs[0].path)
        raise ValueError(
            f"--corruptions: the runs have no measured corruption of {dataset} in common: run: jaxbed measure {lacking} "
            "--measures imagenet_c --select last, and all others alike"
        )
    found: dict[str, list[tuple[Run, np.ndarray, np.ndarray]]] = {}
    for name, members in SETS.items():
        of_family = sorted(cell for cell in shared if cell.rpartition("_")[0] in members)
        if not of_family:
            notes.append(f"{name} is left out: not all runs have measured one of {', '.join(members)}")
            continue
        known = [corruption for corruption in members if any(cell.rpartition("_")[0] == corruption for cell in of_family)]
        severities = "".join(sorted({cell[-1] for cell in of_family}))
        notes.append(f"{name} is the accuracy under {', '.join(known)}, severities {', '.join(severities)}")
        for run in runs:
            right, images = [], np.array([])
            for seed, epoch in run.epochs.items():
                trials, of_seed = metrics.trials(run.path, dataset, epoch), []
                cure = f"run: jaxbed measure {run.path} --measures imagenet_c --select {epoch}"
                for cell in of_family:
                    stored = read_answers(run.path / FOLDER / dataset / cell / f"{epoch}.npz", len(trials.label), cure)
                    if seed not in (there := stored["seeds"].tolist()):
                        raise ValueError(f"{run.path}: seed {seed} has no answers to {cell} at epoch {epoch}: {cure}")
                    of_seed.append(stored["response"][there.index(seed)] == trials.label)
                right.append(100 * np.mean(of_seed, 0))
                images = trials.name
            found.setdefault(name, []).append((run, images, np.stack(right)))
    return found
