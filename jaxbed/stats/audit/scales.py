"""Are the values on one scale? Findings as in `checks`."""

from typing import Any

import pandas as pd

from jaxbed.stats import names

RUN = ["algorithm", "run"]
SHARES = (
    "accuracy",
    "real_accuracy",
    "aligned",
    "conflicting",
    "ac_score",
    "worst_group",
    "group_mean",
    "cue_accuracy",
    "shape_bias",
    "pr_auc_weighted",
    "ap_weighted",
    "ap_macro",
)  # metrics that are shares
FRACTIONS = 0.9  # share of values up to 1 from which a metric counts as fractions, and larger values as impossible
ROUNDING = 1e-6


def impossible(frame: pd.DataFrame) -> list[dict]:
    """IMPOSSIBLE: values, at any epoch, below 0 or above the maximum: 100, or 1 if nearly all values of the metric are fractions.

    Only the metrics SHARES, and accuracy:G of a group, are checked; others may have any value.
    """
    rows = frame[(frame["status"] == "ok") & frame["metric"].str.partition(":")[0].isin(SHARES)]
    findings = []
    for metric, values in rows.groupby("metric", sort=False)["value"]:
        most = 1 if (values <= 1 + ROUNDING).mean() >= FRACTIONS else 100
        bad = rows.loc[values.index[(values < -ROUNDING) | (values > most * (1 + ROUNDING))]]
        if len(bad):
            listed = names.first_few(_named(row) for row in bad.itertuples())
            cells = bad[[*RUN, "dataset", "value"]].to_dict("records")
            text = f"{metric} must be between 0 and {most} here, but is not for {listed}"
            findings.append({"code": "IMPOSSIBLE", "text": text, "metric": metric, "most": most, "cells": cells})
    return findings


def _named(row: Any) -> str:
    """The cell of a row of the records, and its value."""
    epoch = f" at epoch {row.epoch:g}" if row.epoch == row.epoch else ""
    return f"{row.algorithm} run {row.run} on {row.dataset}{epoch} ({row.value:g})"


def mixed(selected: pd.DataFrame) -> list[dict]:
    """MIXED_SCALES: fractions next to percentages. All scores of some runs, or all on some data sets, are at most 1, and others are not; or
    single scores are, while the median of the data set is above 10. Zeros are the same on both scales.
    """
    selected = selected[selected["value"] != 0]
    small = selected.groupby(RUN, sort=False)["value"].max() <= 1
    low, high = (small.index[mask].unique("algorithm").tolist() for mask in (small, ~small))
    if not low or not high:
        return _fractions_among_percent(selected)
    text = f"fractions and percent in one metric? Scores of {names.first_few(low)} are at most 1, those of {names.first_few(high)} are not"
    return [{"code": "MIXED_SCALES", "text": text, "fractions": low, "percent": high}]


def _fractions_among_percent(selected: pd.DataFrame) -> list[dict]:
    by_dataset = selected.groupby("dataset", sort=False)["value"]
    small = by_dataset.max() <= 1
    low, stray = small.index[small].tolist(), selected[(selected["value"] <= 1) & (by_dataset.transform("median") > 10)]
    texts = []
    if low and not small.all():
        texts.append(
            f"all scores on {names.first_few(low)} are at most 1, those on other data sets are not: the rope has a different meaning there"
        )
    if len(stray):
        texts.append(
            "much smaller than the others: " + names.first_few(f"{r.algorithm} run {r.run} on {r.dataset}" for r in stray.itertuples())
        )
    return [{"code": "MIXED_SCALES", "text": f"fractions and percent in one metric? {text}"} for text in texts]
