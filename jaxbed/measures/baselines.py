"""By whose errors mCE divides: AlexNet's, or those of a measured run."""

import pathlib

import pandas as pd

from jaxbed.data.source import Source
from jaxbed.measures import corruption_error, scores
from jaxbed.measures.conditions import corruption_name
from jaxbed.measures.corruption import SEVERITIES
from jaxbed.stats.reading import workdirs


def find(run: pathlib.Path | None, dataset: str, source: Source, decision: str, notes: list[str]) -> scores.Baseline | None:
    """AlexNet where answers are among ImageNet's classes, or a run that was measured on the same set; adds to the notes.

    Raises ValueError for a run by whose errors nothing can be divided.
    """
    if run is None:
        return scores.ALEXNET if source.name == "imagenet" and decision == "argmax" else None
    path = run / workdirs.MEASURES
    if not path.is_file():
        raise FileNotFoundError(f"--mce-baseline {run} has no {workdirs.MEASURES}: run: jaxbed measure {run} --measures imagenet_c")
    frame = pd.read_csv(path)
    mean = frame[frame["dataset"] == dataset].groupby("metric")["value"].mean()
    cells = {name: [corruption_name(name, severity) for severity in SEVERITIES] for name in corruption_error.MAIN}
    lacking = [cell for of_corruption in cells.values() for cell in of_corruption if cell not in mean]
    if lacking or "clean" not in mean:
        raise ValueError(f"--mce-baseline {run}: {path} has no {(lacking or ['clean'])[0]} of {dataset}: measure it as the others")
    errors = {name: _error(mean[of_corruption]) for name, of_corruption in cells.items()}
    clean = _error(mean[["clean"]])
    if none := corruption_error.without_error(errors):
        raise ValueError(
            f"--mce-baseline {run} has an error of 0 on {', '.join(none)} of {dataset}: mCE cannot be divided by it. Name a run that errs "
            "on each corruption, or leave the option out"
        )
    if same := corruption_error.without_rise(errors, clean):
        notes.append(
            f"note: --mce-baseline {run} errs on {', '.join(same)} of {dataset} as often as on unchanged images ({clean:g}): relative mCE "
            "cannot be divided by their difference of 0, so there is none"
        )
    return scores.Baseline("_of_baseline", errors, clean)


def _error(accuracies: pd.Series) -> float:
    """1 less their mean, rounded, so that errors that differ by rounding alone are equal."""
    return round(1 - float(accuracies.mean()), 12)
