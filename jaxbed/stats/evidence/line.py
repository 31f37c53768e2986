"""What a change of the in-distribution (IID) score predicts for a shifted set: a line through controls, logit against logit.

An effective effect is a gain beyond this prediction. Source: Taori et al. (2020), "Measuring robustness to natural distribution shifts in
image classification". Differs: the line is never used outside the range of its controls, and has the uncertainty of their scores.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy

FEWEST = 5  # controls
CLIP = 0.01  # points that resampled scores keep from 0 and 100, whose logits are infinite


class Line(NamedTuple):
    """logit(shifted) = intercept + slope logit(IID); [1 + R] each, the first as measured."""

    intercept: np.ndarray
    slope: np.ndarray
    low: float  # IID scores of the controls, in points
    high: float
    controls: list[str]
    scatter: float  # standard deviation of the measured controls about the line, in logits

    def at(self, iid: np.ndarray) -> np.ndarray:
        """Predicted scores in points at IID scores [1 + R]."""
        return 100 * scipy.special.expit(self.intercept + self.slope * logit(iid))


def logit(points: np.ndarray) -> np.ndarray:
    return scipy.special.logit(np.clip(points, CLIP, 100 - CLIP) / 100)


def fit(iid: Mapping[str, np.ndarray], shifted: Mapping[str, np.ndarray], controls: list[str]) -> Line:
    """Of the draws {algorithm: [1 + R]} of the controls that have both. Raises ValueError, with the reason, where there is no line."""
    used = [name for name in controls if name in iid and name in shifted]
    if len(used) < FEWEST:
        raise ValueError(f"the line needs {FEWEST} controls, and has {len(used)} without the treated")
    for name in used:
        for score in (iid[name][0], shifted[name][0]):
            if not 0 < score < 100:
                raise ValueError(f"{name} scores {score:g}, which has no logit")
    x, y = (logit(np.stack([of_set[name] for name in used], 1)) for of_set in (iid, shifted))
    centred = x - x.mean(1, keepdims=True)
    square = (centred**2).sum(1)
    if not square[0] > 1e-12:
        raise ValueError("all controls have one IID score")
    slope = np.divide((centred * y).sum(1), square, out=np.full(len(square), np.nan), where=square > 1e-12)
    measured = [iid[name][0] for name in used]
    beyond = y[0] - y[0].mean() - slope[0] * centred[0]
    scatter = float(np.sqrt((beyond**2).sum() / (len(used) - 2)))
    return Line(y.mean(1) - slope * x.mean(1), slope, float(min(measured)), float(max(measured)), used, scatter)


def effective(line: Line, iid: tuple[np.ndarray, np.ndarray], shifted: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Draws [1 + R] of the gain beyond the prediction, from draws (treated, control) on both sets.

    Raises ValueError, with the range, where either lies outside the line's.
    """
    for whose, of_one in zip(("treated", "control"), iid, strict=True):
        if not line.low - 1e-9 <= of_one[0] <= line.high + 1e-9:
            raise ValueError(f"IID score {of_one[0]:.1f} of the {whose} is outside the line's range, {line.low:.1f} to {line.high:.1f}")
    return (shifted[0] - shifted[1]) - (line.at(iid[0]) - line.at(iid[1]))
