"""Mean corruption error (mCE) and relative mCE of ImageNet-C: errors over those of AlexNet, averaged over 15 corruptions.

For each corruption the errors of its five severities are averaged first; ratios of these means are then averaged, not ratios of severities.
Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations" (2019). AlexNet's errors
are those of torchvision's network as published with the benchmark.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

MAIN = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow", "frost", "fog"),
    *("brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # of the benchmark's validation; not part of mCE
MADE_HERE = "_jax"  # follows names of measures: the benchmark's own files were made by other code, and stored as JPEG
CLEAN = 0.435  # AlexNet's error on ImageNet itself
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
    "speckle_noise": 0.845388,
    "gaussian_blur": 0.787108,
    "spatter": 0.717512,
    "saturate": 0.658248,
}


class CorruptionError(NamedTuple):
    """In percent; `of_corruption` {name: CE}."""

    mce: float
    relative_mce: float  # NaN where a corruption adds nothing to the baseline's error
    of_corruption: dict[str, float]


def corruption_error(
    errors: Mapping[str, float], clean: float, baseline: Mapping[str, float] = ALEXNET, clean_of_baseline: float = CLEAN
) -> CorruptionError:
    """From mean errors over severities {corruption: fraction} and the error on unchanged images, of a network and of the baseline.

    Other corruptions than the 15 are left aside. Raises ValueError where one of these is missing, for errors outside [0, 1], and
    where the baseline makes none.
    """
    for whose, given, unchanged in (("the network", errors, clean), ("the baseline", baseline, clean_of_baseline)):
        if missing := [name for name in MAIN if name not in given]:
            raise ValueError(f"mCE is the mean of 15 corruptions, and of {whose} there is no {', '.join(missing)}: measure all severities")
        for name, value in {"clean": unchanged, **{name: given[name] for name in MAIN}}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"error on {name} of {whose} = {value:g}: errors are fractions from 0 to 1")
    if none := without_error(baseline):
        raise ValueError(f"error on {none[0]} of the baseline = 0: nothing can be divided by it; take another baseline")
    percent = {name: 100 * (errors[name] / baseline[name]) for name in MAIN}
    mce = float(np.mean(list(percent.values())))
    if without_rise(baseline, clean_of_baseline):
        return CorruptionError(mce, float("nan"), percent)
    relative = [100 * ((errors[name] - clean) / (baseline[name] - clean_of_baseline)) for name in MAIN]
    return CorruptionError(mce, float(np.mean(relative)), percent)


def without_error(baseline: Mapping[str, float]) -> list[str]:
    """Corruptions under which a baseline makes no error, so that there is no mCE."""
    return [name for name in MAIN if baseline[name] == 0]


def without_rise(baseline: Mapping[str, float], clean: float) -> list[str]:
    """Corruptions under which a baseline errs as often as without, so that there is no relative mCE."""
    return [name for name in MAIN if baseline[name] == clean]
