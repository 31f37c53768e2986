"""Are printed numbers possible? Compares means and std with the runs that they summarise, and scores with the number of images.

Findings as in `checks`. `selected`: one value for every (algorithm, run, dataset) of one metric; `table`: algorithm, dataset, mean and,
if printed, std, all with the same number of decimals.

Source: Brown and Heathers, "The GRIM test", 2017 (a mean of N whole numbers is a multiple of 1/N).
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from jaxbed.stats import names

CELL = ["algorithm", "dataset"]


def table_mismatch(selected: pd.DataFrame, table: pd.DataFrame, decimals: int = 1) -> list[dict]:
    """TABLE_MISMATCH: algorithms whose mean or std (ddof 1) over runs differs from the printed one beyond the rounding of both.

    `decimals` are those of the table; the scores of runs are assumed to be rounded in the same way.
    """
    half, findings = 0.5 * 10.0**-decimals, []
    for algorithm, rows in _side_by_side(selected, table).groupby("algorithm", sort=False):
        off = {name: (rows[name] - rows[f"{name}_printed"]).abs() for name in ("mean", "std")}
        # rounded runs move their mean by at most half a digit, and their std by sqrt(r / (r-1)) times that
        wrong = (off["mean"] > 2 * half + 1e-9) | (off["std"] > half * (1 + (rows["n"] / (rows["n"] - 1)) ** 0.5) + 1e-9)
        if wrong.any():
            bad, worst = rows[wrong], rows.loc[(off["mean"] + off["std"].fillna(0))[wrong].idxmax()]
            text = (
                f"{algorithm}: the printed mean or std does not match its {worst['n']} runs on {names.first_few(bad['dataset'])}; "
                f"{worst['dataset']}: printed {worst['mean_printed']:g} ± {worst['std_printed']:g}, "
                f"computed {worst['mean']:.{decimals + 1}f} ± {worst['std']:.{decimals + 1}f}"
            )
            cells = bad.drop(columns="algorithm").to_dict("records")
            findings.append({"code": "TABLE_MISMATCH", "text": text, "algorithm": algorithm, "cells": cells})
    return findings


def hidden_runs(selected: pd.DataFrame, table: pd.DataFrame, decimals: int = 1) -> list[dict]:
    """HIDDEN_RUN: algorithms found by `table_mismatch` whose printed table results from one more run, and the scores of that run.

    With r known runs its score is (r+1) printed mean - sum of the runs, plus or minus (r+1) half digits. Reported if, with this run, every
    printed std is matched within two digits, and all together better than without. `nearest`: the algorithm whose medians are nearest.
    """
    scores, half = grid(selected), 0.5 * 10.0**-decimals
    medians, spread = scores.groupby("algorithm").median(), scores.groupby("algorithm").std().median()
    cells, findings = _side_by_side(selected, table), []
    for algorithm in [finding["algorithm"] for finding in table_mismatch(selected, table, decimals)]:
        rows = cells[cells["algorithm"] == algorithm].set_index("dataset")
        runs = scores.loc[algorithm, rows.index]
        implied = (len(runs) + 1) * rows["mean_printed"] - runs.sum()
        off = np.abs(np.std(np.vstack([runs, implied]), axis=0, ddof=1) - rows["std_printed"])
        if (off <= 4 * half + 1e-9).all() and off.sum() < (rows["std"] - rows["std_printed"]).abs().sum():
            uncertainty = (len(runs) + 1) * half
            owner = nearest(implied, medians[rows.index], spread[rows.index] + uncertainty)
            values = {name: round(float(value), decimals) for name, value in implied.items()}
            text = f"{algorithm}: the printed means and std result from one more run, which is not among the {len(runs)}: "
            text += ", ".join(f"{name} {value:g}" for name, value in values.items()) + f" (± {uncertainty:g}); nearest to {owner}"
            facts = {"algorithm": algorithm, "scores": values, "uncertainty": uncertainty, "nearest": owner}
            findings.append({"code": "HIDDEN_RUN", "text": text, **facts})
    return findings


def granularity(selected: pd.DataFrame, sizes: Mapping[str, int]) -> list[dict]:
    """GRANULARITY (GRIM): scores that no number of correct predictions gives on n_total images or, if unknown, on `sizes`[dataset]."""
    if "metric" in selected:
        selected = selected[selected["metric"] == "accuracy"]  # other metrics do not count correct predictions
    size = selected["n_total"].fillna(selected["dataset"].map(dict(sizes)))
    scale = 100.0 if (selected["value"] > 1).any() else 1.0
    findings = []
    for (dataset, images), rows in selected.assign(size=size)[size.notna()].groupby(["dataset", "size"], sort=False):
        decimals = _decimals(rows["value"].to_numpy())
        possible = np.rint(rows["value"] * images / scale) * scale / images
        bad = rows[(possible - rows["value"]).abs() > _half(decimals, scale)]
        if len(bad):
            fits = smallest_denominator(rows["value"], decimals, scale)
            example = float(bad["value"].iloc[0])
            text = f"{dataset}: {len(bad)} of {len(rows)} scores, such as {example:g}, are impossible with {images:g} images; "
            text += f"the smallest number of images that fits all scores is {fits}" if fits else "no tried number of images fits all scores"
            facts = {"dataset": dataset, "size": int(images), "scores": len(bad), "fits": fits}
            findings.append({"code": "GRANULARITY", "text": text, **facts})
    return findings


def smallest_denominator(values: Iterable[float], decimals: int, scale: float = 100.0, largest: int = 10_000) -> int | None:
    """The smallest N for which every value, rounded to `decimals`, is scale k / N with a whole k; None above `largest`.

    scale: 100 for percent, 1 for fractions. From N = 0.8 scale 10^decimals on (800 for percent with one decimal) every value fits: only
    a smaller N is informative.
    """
    distinct = np.unique(np.asarray(list(values), dtype=float))
    for sizes in np.array_split(np.arange(1, largest + 1), max(1, largest // 500)):
        possible = np.rint(distinct[:, None] * sizes / scale) * scale / sizes
        fits = (np.abs(possible - distinct[:, None]) <= _half(decimals, scale)).all(axis=0)
        if fits.any():
            return int(sizes[fits.argmax()])
    return None


def grid(selected: pd.DataFrame) -> pd.DataFrame:
    """(algorithm, run) x data set, data sets in order of first appearance; NaN where there is no score."""
    return selected.pivot(index=["algorithm", "run"], columns="dataset", values="value")[selected["dataset"].unique()]


def nearest(scores: pd.Series, centres: pd.DataFrame, unit: pd.Series) -> str:
    """The row of `centres` with the smallest root mean square distance to `scores` over data sets, each in its `unit`."""
    return (((centres - scores) / unit) ** 2).mean(axis=1).idxmin()


def _side_by_side(selected: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """mean, std, n of every cell next to mean_printed, std_printed (NaN if the table has none)."""
    cells = selected.groupby(CELL, sort=False)["value"].agg(mean="mean", std="std", n="size").reset_index()
    return cells.merge(table.reindex(columns=[*CELL, "mean", "std"]), on=CELL, suffixes=("", "_printed"))


def _decimals(values: np.ndarray) -> int:
    """The number of decimals of the values, at most 9."""
    return next((digits for digits in range(9) if (np.abs(np.round(values, digits) - values) < 1e-9).all()), 9)


def _half(decimals: int, scale: float) -> float:
    """Half of the last decimal, at least the rounding error of float32."""
    return max(0.5 * 10.0**-decimals + 1e-9, 1e-7 * scale)
