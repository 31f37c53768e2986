"""All comparisons of decision makers, in the published order of averaging, with intervals.

Within each condition and pair -> mean over conditions -> mean over observers -> mean over sets (Geirhos et al., 2021). Error consistency of
pooled conditions would be larger: that both are better on easy conditions would count as agreement. Accuracy is pooled over conditions, and
for humans over observers. Differs from the published code: there are intervals, from images resampled within each condition, the same for
all decision makers.
"""

import logging
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import model_vs_human
from jaxbed.data.model_vs_human import DATASETS
from jaxbed.stats.consistency import agreement, decisions
from jaxbed.stats.consistency.decisions import Decisions

HUMANS = "humans"
MEAN = "mean"  # over sets
PAIRED = ("squared_accuracy_difference", "observed_consistency", "error_consistency")
RESAMPLES, SEED = 1_000, 0


class Study(NamedTuple):
    """Tables of numbers, each NAME with NAME_low and NAME_high, the ends of a 95 % interval.

    accuracies  dataset, model, trials, accuracy; dataset also MEAN, model also HUMANS
    pairs       dataset, model, other, trials, and PAIRED; of models with HUMANS, the mean over observers; of HUMANS with HUMANS, the mean
                over pairs of observers
    conditions  dataset, condition, model, other, trials, and PAIRED without intervals
    """

    parties: list[str]  # models, and HUMANS if there are any
    accuracies: pd.DataFrame
    pairs: pd.DataFrame
    conditions: pd.DataFrame


class _Numbers(NamedTuple):
    """Numbers of P parties in one set; the first of R + 1 rows is of the images as they are, the others of resampled ones."""

    accuracy: np.ndarray  # [R + 1, P]
    of_pairs: np.ndarray  # [R + 1, PAIRED, P, P]
    shown: np.ndarray  # [P] trials
    shared: np.ndarray  # [P, P] trials of pairs
    conditions: list[tuple[str, np.ndarray, np.ndarray]]  # (spelling, shared trials [P, P], numbers [PAIRED, P, P]) of each


class _Sum:
    """Of arrays of one shape, and how many of them are defined at each place: all of them at once would take much memory."""

    def __init__(self) -> None:
        self.total: np.ndarray | float = 0.0
        self.known: np.ndarray | int = 0

    def add(self, values: np.ndarray) -> None:
        self.total, self.known = self.total + np.nan_to_num(values), self.known + ~np.isnan(values)

    @property
    def mean(self) -> np.ndarray:
        return agreement.ratio(np.asarray(self.total), np.asarray(self.known))


def compare(given: Decisions, seed: int = SEED) -> Study:
    """Raises ValueError where there are no trials, and for a model that is named as all humans together are."""
    if not given.correct:
        raise ValueError("there are no trials of conditions that count: name workdirs or files with others than the excluded conditions")
    if HUMANS in given.models:
        cure = f"name it otherwise, or {decisions.HUMAN}... if it is a human"
        raise ValueError(f"a decision maker is named {HUMANS!r}, which stands for all humans together: {cure}")
    has_humans = any(map(decisions.is_human, (subject for correct in given.correct.values() for subject in correct)))
    parties = [*given.models, *([HUMANS] if has_humans else [])]
    rows: list[list[dict]] = [[], [], []]
    sums = [_Sum(), _Sum()]
    shown, shared = np.zeros(len(parties)), np.zeros((len(parties),) * 2)
    for dataset, correct in given.correct.items():
        logging.getLogger(__name__).info("comparing decisions on %s", dataset)
        rng = np.random.default_rng([seed, list(DATASETS).index(dataset)])  # the same draws whatever other sets there are
        numbers = _of_dataset(dataset, correct, parties, rng)
        _add_rows(rows, dataset, numbers, parties)
        for total, values in zip(sums, (numbers.accuracy, numbers.of_pairs), strict=True):
            total.add(values)
        shown, shared = shown + numbers.shown, shared + numbers.shared
    _add_rows(rows, MEAN, _Numbers(sums[0].mean, sums[1].mean, shown, shared, []), parties)
    paired = [name + end for name in PAIRED for end in ("", "_low", "_high")]
    heads = ["dataset", "model", "other", "trials", *paired], ["dataset", "condition", "model", "other", "trials", *PAIRED]
    pairs, conditions = (pd.DataFrame(part, columns=head) for part, head in zip(rows[1:], heads, strict=True))
    return Study(parties, pd.DataFrame(rows[0]), pairs, conditions)


def matrix(study: Study, dataset: str = MEAN, measure: str = "error_consistency", end: str = "") -> pd.DataFrame:
    """A measure of all parties, symmetric; NaN where they share no trial, and for a model with itself."""
    chosen = study.pairs[study.pairs["dataset"] == dataset]
    wide = pd.DataFrame(np.nan, index=study.parties, columns=study.parties)
    for one, other, value in zip(chosen["model"], chosen["other"], chosen[measure + end], strict=True):
        wide.loc[one, other] = wide.loc[other, one] = value
    return wide


def against_humans(study: Study) -> pd.DataFrame:
    """accuracies, joined by PAIRED of each model with humans, and of humans with each other; NaN in sets without observers."""
    with_humans = study.pairs[study.pairs["other"] == HUMANS].drop(columns=["other", "trials"])
    return study.accuracies.merge(with_humans, how="left", on=["dataset", "model"])


def _add_rows(rows: list[list[dict]], dataset: str, numbers: _Numbers, parties: list[str]) -> None:
    """Adds those of one set to the rows of accuracies, pairs and conditions."""
    accuracies, pairs, conditions = rows
    for row, name in enumerate(parties):
        if numbers.shown[row]:
            accuracy = _with_interval("accuracy", numbers.accuracy[:, row])
            accuracies.append({"dataset": dataset, "model": name, "trials": int(numbers.shown[row]), **accuracy})
    for (row, name), (column, other) in _ordered(parties):
        pair = {"dataset": dataset, "model": name, "other": other}
        if numbers.shared[row, column]:
            measured = [_with_interval(measure, numbers.of_pairs[:, i, row, column]) for i, measure in enumerate(PAIRED)]
            pairs.append(pair | {"trials": int(numbers.shared[row, column])} | measured[0] | measured[1] | measured[2])
        for spelling, shared, values in numbers.conditions:
            if shared[row, column]:
                of_condition = dict(zip(PAIRED, values[:, row, column].tolist(), strict=True))
                conditions.append(pair | {"condition": spelling, "trials": int(shared[row, column])} | of_condition)


def _ordered(parties: list[str]) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """Pairs of numbered parties, each once; humans also with themselves."""
    numbered = list(enumerate(parties))
    return [(one, other) for one in numbered for other in numbered if one < other or one[1] == other[1] == HUMANS]


def _of_dataset(dataset: str, correct: pd.DataFrame, parties: list[str], rng: np.random.Generator) -> _Numbers:
    subjects = [*(name for name in parties if name != HUMANS), *filter(decisions.is_human, correct.columns)]
    correct, models = correct.reindex(columns=subjects), len(parties) - (HUMANS in parties)
    hits = shown = np.zeros((RESAMPLES + 1, len(subjects)))
    shared, conditions, values = np.zeros((len(subjects),) * 2), [], []
    for condition in DATASETS[dataset].kept:
        cells = correct[correct.index.get_level_values("condition") == condition].to_numpy()
        if not len(cells):
            continue
        drawn = rng.multinomial(len(cells), np.full(len(cells), 1 / len(cells)), RESAMPLES)
        weights = np.concatenate([np.ones((1, len(cells))), drawn])
        trials, agreed = agreement.of_pairs(cells, weights)
        hits, shown = hits + weights @ np.nan_to_num(cells), shown + weights @ ~np.isnan(cells)
        values.append(np.stack([agreed.squared_difference, agreed.observed, agreed.kappa], 1))
        conditions.append((model_vs_human.spell(condition), _sum_of_parties(trials[0], models, parties), values[-1][0]))
        shared += trials[0]
    of_pairs = agreement.mean(np.stack(values), 0)
    hits, shown = (_pool(count, models, parties) for count in (hits, shown))
    of_conditions = [(text, trials, _of_parties(each, models, parties)) for text, trials, each in conditions]
    total = _sum_of_parties(shared, models, parties)
    return _Numbers(agreement.ratio(hits, shown), _of_parties(of_pairs, models, parties), shown[0], total, of_conditions)


def _pool(counts: np.ndarray, models: int, parties: list[str]) -> np.ndarray:
    """[R + 1, M] -> [R + 1, P]: those of observers are added."""
    if HUMANS not in parties:
        return counts
    return np.concatenate([counts[:, :models], counts[:, models:].sum(1, keepdims=True)], 1)


def _of_parties(values: np.ndarray, models: int, parties: list[str]) -> np.ndarray:
    """[..., M, M] -> [..., P, P]: means over observers, and over pairs of them."""
    if HUMANS not in parties:
        return values
    with_humans = agreement.mean(values[..., :models, models:], -1)
    first, second = np.triu_indices(values.shape[-1] - models, 1)
    among = agreement.mean(values[..., models + first, models + second], -1)
    return _block(values[..., :models, :models], with_humans, among)


def _sum_of_parties(trials: np.ndarray, models: int, parties: list[str]) -> np.ndarray:
    """The same of shared trials, which are added."""
    if HUMANS not in parties:
        return trials
    return _block(trials[:models, :models], trials[:models, models:].sum(1), np.triu(trials[models:, models:], 1).sum())


def _block(models: np.ndarray, with_humans: np.ndarray, among: np.ndarray) -> np.ndarray:
    right = np.concatenate([models, with_humans[..., None]], -1)
    below = np.concatenate([with_humans, among[..., None]], -1)
    return np.concatenate([right, below[..., None, :]], -2)


def _with_interval(name: str, values: np.ndarray) -> dict[str, float]:
    """{name: the first of values [R + 1], and the ends of the middle 95 % of the others}."""
    drawn = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return {name: float(values[0]), f"{name}_low": float(low), f"{name}_high": float(high)}
