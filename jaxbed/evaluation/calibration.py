"""How far confidence can be believed, and how well a score tells anomalies: of all seeds at once, in NumPy.

Hendrycks et al., "The Many Faces of Robustness" and "Natural Adversarial Examples" (2021). confidence [S, n] is the largest probability of
an answer, correct [S, n] whether that was right. Of equals, the earlier image comes first. A seed without an answer to some image gets NaN.

The published code leaves the last bin, the most confident one, out of the sums of calibration errors, though not out of the number of
images; `drop_last_bin` does so too.
"""

import numpy as np

BIN = 100  # images
RECALL = 0.95
TEMPERATURES = (0.2, 5.0)  # between which one is sought


def rms_error(confidence: np.ndarray, correct: np.ndarray, bin_images: int = BIN, drop_last_bin: bool = False) -> np.ndarray:
    """Root mean square of confidence less accuracy in bins of `bin_images` of like confidence, [S]; the last bin takes the rest."""
    gap, share = _bins(confidence, correct, bin_images, drop_last_bin)
    return np.sqrt((share * gap**2).sum(1))


def mad_error(confidence: np.ndarray, correct: np.ndarray, bin_images: int = BIN, drop_last_bin: bool = False) -> np.ndarray:
    """The mean absolute deviation instead."""
    gap, share = _bins(confidence, correct, bin_images, drop_last_bin)
    return (share * np.abs(gap)).sum(1)


def _bins(confidence: np.ndarray, correct: np.ndarray, bin_images: int, drop_last_bin: bool) -> tuple[np.ndarray, np.ndarray]:
    """(mean confidence less accuracy [S, bins], share of all images [bins]); one bin where there are fewer images than it should have."""
    images = confidence.shape[1]
    starts = np.arange(max(images // bin_images, 1)) * bin_images
    sizes = np.diff([*starts, images])
    order = np.argsort(confidence, axis=1, kind="stable")
    excess = np.take_along_axis(confidence.astype(float) - correct, order, axis=1)
    gap = np.add.reduceat(excess, starts, axis=1) / sizes
    share = sizes / images
    if drop_last_bin:
        share[-1] = 0  # and not cut off: NaN is sorted into it, and 0 · NaN is NaN
    return gap, share


def aurra(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Area under the curve of accuracy by response rate, [S]: the mean over k of the accuracy of the k most confident answers."""
    order = np.argsort(-confidence, axis=1, kind="stable")
    hits = np.take_along_axis(correct, order, axis=1).cumsum(1)
    return np.where(np.isnan(confidence).any(1), np.nan, (hits / np.arange(1, hits.shape[1] + 1)).mean(1))


def soft_f1(confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """F1 of 1 - confidence as a detector of wrong answers, [S]."""
    doubt = 1 - confidence.astype(float)
    return 2 * (doubt * ~correct).sum(1) / (doubt + ~correct).sum(1)


def auroc(score: np.ndarray, anomaly: np.ndarray) -> np.ndarray:
    """Chance that an anomaly scores higher than another image, [S]; score [S, n], anomaly [n]. Ties count half."""
    from scipy import stats  # which takes longer to import than the rest of evaluation

    n = anomaly.sum()
    ranks = stats.rankdata(score, axis=1, nan_policy="propagate")
    return (ranks[:, anomaly].sum(1) - n * (n + 1) / 2) / (n * (~anomaly).sum())


def aupr(score: np.ndarray, anomaly: np.ndarray) -> np.ndarray:
    """Average precision with anomalies as positives, [S]: precision at each threshold, weighted by the recall that it adds."""
    return np.array([_average_precision(of_seed, anomaly) for of_seed in score])


def fpr95(score: np.ndarray, anomaly: np.ndarray) -> np.ndarray:
    """Share of other images at or above the threshold that the highest-scoring 95 % of anomalies reach, [S]."""
    return np.array([_false_positives(of_seed, anomaly) for of_seed in score])


def _average_precision(score: np.ndarray, anomaly: np.ndarray) -> float:
    if np.isnan(score).any():
        return np.nan
    hits, shown = by_threshold(score, anomaly)
    return float((np.diff(hits, prepend=0) / anomaly.sum() * hits / shown).sum())


def _false_positives(score: np.ndarray, anomaly: np.ndarray) -> float:
    if np.isnan(score).any():
        return np.nan
    hits, shown = by_threshold(score, anomaly)
    reached = np.argmax(hits >= RECALL * anomaly.sum())
    return float((shown[reached] - hits[reached]) / (~anomaly).sum())


def by_threshold(score: np.ndarray, anomaly: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(anomalies, images) with at least that score, for every score that occurs, from the highest on."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(order) - 1)  # of each group of equals
    return anomaly[order].cumsum()[last], last + 1


def confidence_at(temperature: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The largest probability of softmax(logits [S, n, C] / temperature [S]), [S, n]; NaN for a seed without temperature."""
    scaled = logits.astype(np.float32) / temperature.astype(np.float32)[:, None, None]
    return 1 / np.exp(scaled - scaled.max(-1, keepdims=True)).sum(-1)


def temperature(logits: np.ndarray, label: np.ndarray) -> float:
    """The temperature in TEMPERATURES at which softmax(logits [n, C] / T) gives labels [n] the largest likelihood, to 1e-4."""
    from scipy import optimize, special

    logits = logits.astype(float)
    right = logits[np.arange(len(label)), label]

    def slope(inverse: float) -> float:  # of the mean negative log-likelihood by 1 / T, which is convex in it
        return float(((special.softmax(inverse * logits, axis=1) * logits).sum(1) - right).mean())

    low, high = (1 / bound for bound in reversed(TEMPERATURES))
    if slope(low) >= 0 or slope(high) <= 0:
        return TEMPERATURES[1] if slope(low) >= 0 else TEMPERATURES[0]
    return 1 / optimize.brentq(slope, low, high, xtol=1e-6)
