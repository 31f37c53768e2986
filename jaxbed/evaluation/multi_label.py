"""Measures of images that have several classes, or none: areas under the precision-recall curve of each class. NumPy alone.

pr_auc_weighted  area by the trapezoidal rule, mean over classes, each weighted by its number of positives: the score of DeepFashion Remixed
                 (Hendrycks et al., "The Many Faces of Robustness", 2021), whose text calls it mAP
ap_weighted      average precision, Σ (R_k - R_{k-1}) P_k over falling thresholds k, weighted in the same way
ap_macro         its plain mean over classes

Curves are those that scikit-learn publishes (`precision_recall_curve`): one point for each score that occurs, so equal scores share a
point, and an end point of precision 1 at recall 0. A class without positives has weight 0, and `ap_macro` leaves it out. Scores are logits
in 16 bits, which rank as their sigmoids do; scores that differ by less than a thousandth of themselves may count as equal.
"""

from collections.abc import Callable

import numpy as np

from jaxbed.evaluation.calibration import by_threshold
from jaxbed.evaluation.given import Answers, Counts, plain


def pr_auc_weighted(answers: Answers) -> Counts | None:
    return _measured(answers, pr_auc, weighted=True)


def ap_weighted(answers: Answers) -> Counts | None:
    return _measured(answers, average_precision, weighted=True)


def ap_macro(answers: Answers) -> Counts | None:
    return _measured(answers, average_precision, weighted=False)


def _measured(answers: Answers, of_class: Callable[[np.ndarray, np.ndarray], float], weighted: bool) -> Counts | None:
    if answers.scores is None or answers.targets is None or not answers.targets.any():
        return None
    return plain(over_classes(answers.scores, answers.targets, of_class, weighted))


def over_classes(
    scores: np.ndarray, targets: np.ndarray, of_class: Callable[[np.ndarray, np.ndarray], float], weighted: bool = True
) -> np.ndarray:
    """The mean of a number over the classes that have positives, [S]; NaN for a seed that did not answer every image.

    scores [S, n, classes]; targets [n, classes] of zeros and ones, not all 0; weighted: by the number of positives.
    """
    positives = targets.sum(0)
    present = np.flatnonzero(positives)
    values = np.full((len(scores), len(present)), np.nan)
    for row, of_seed in zip(values, scores.astype(np.float32), strict=True):
        if np.isfinite(of_seed).all():
            row[:] = [of_class(of_seed[:, y], targets[:, y] == 1) for y in present]
    return np.average(values, axis=1, weights=positives[present] if weighted else None)


def pr_auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Area under the precision-recall curve by the trapezoidal rule; score [n], positive [n] bool with at least one True."""
    precision, recall = _curve(score, positive)
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())


def average_precision(score: np.ndarray, positive: np.ndarray) -> float:
    """Precision at each threshold, weighted by the recall that it adds; arguments as of `pr_auc`."""
    precision, recall = _curve(score, positive)
    return float((np.diff(recall) * precision[1:]).sum())


def _curve(score: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(precision, recall), from recall 0 on."""
    hits, shown = by_threshold(score, positive)
    return np.append(1.0, hits / shown), np.append(0.0, hits / positive.sum())
