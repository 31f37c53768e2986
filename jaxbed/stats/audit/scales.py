"""Can the values be on the scale that the others are on? Findings as in `audit`."""

import pandas as pd

from jaxbed.stats import names

RUN = ["algorithm", "run"]
SHARES = ("accuracy", "aligned", "conflicting", "ac_score", "worst_group", "group_mean", "cue_accuracy", "shape_bias")  # of a whole
FRACTIONS = 0.9  # of the values of a metric are at most 1 where all are fractions but for some that cannot be
ROUNDING = 1e-6


def impossible(frame: pd.DataFrame) -> list[dict]:
    """IMPOSSIBLE: values, at any epoch, below 0 or above the whole: 100, or 1 where nearly all of the metric are fractions.

    Of the metrics SHARES and accuracy:G of a group alone; others may be anything.
    """
    rows = frame[(frame["status"] == "ok") & frame["metric"].str.partition(":")[0].isin(SHARES)]
    found = []
    for metric, values in rows.groupby("metric", sort=False)["value"]:
        most = 1 if (values <= 1 + ROUNDING).mean() >= FRACTIONS else 100
        bad = rows.loc[values.index[(values < -ROUNDING) | (values > most * (1 + ROUNDING))]]
        if len(bad):
            listed = names.first_few(_named(row) for row in bad.itertuples())
            cells = bad[[*RUN, "dataset", "value"]].to_dict("records")
            text = f"{metric} cannot lie outside 0 to {most} here, as it does for {listed}"
            found.append({"code": "IMPOSSIBLE", "text": text, "metric": metric, "most": most, "cells": cells})
    return found


def _named(row: tuple) -> str:
    epoch = f" at epoch {row.epoch:g}" if row.epoch == row.epoch else ""
    return f"{row.algorithm} run {row.run} on {row.dataset}{epoch} ({row.value:g})"


def mixed(selected: pd.DataFrame) -> list[dict]:
    """MIXED_SCALES: all scores of some runs are at most 1, as fractions are, and others have higher ones, as percent; or all of some
    datasets are; or single ones where the median of the dataset is above 10. Zeros are the same in both.
    """
    selected = selected[selected["value"] != 0]
    small = selected.groupby(RUN, sort=False)["value"].max() <= 1
    low, high = (small.index[mask].unique("algorithm").tolist() for mask in (small, ~small))
    if not low or not high:
        return _fractions_among_percent(selected)
    text = f"fractions and percent in one metric? Scores of {names.first_few(low)} stay within 1, those of {names.first_few(high)} do not"
    return [{"code": "MIXED_SCALES", "text": text, "fractions": low, "percent": high}]


def _fractions_among_percent(selected: pd.DataFrame) -> list[dict]:
    by_dataset = selected.groupby("dataset", sort=False)["value"]
    small = by_dataset.max() <= 1
    low, stray = small.index[small].tolist(), selected[(selected["value"] <= 1) & (by_dataset.transform("median") > 10)]
    texts = []
    if low and not small.all():
        texts.append(
            f"all scores on {names.first_few(low)} stay within 1, those on other datasets do not: the rope means another thing there"
        )
    if len(stray):
        texts.append(
            "too small beside the others: " + names.first_few(f"{r.algorithm} run {r.run} on {r.dataset}" for r in stray.itertuples())
        )
    return [{"code": "MIXED_SCALES", "text": f"fractions and percent in one metric? {text}"} for text in texts]
