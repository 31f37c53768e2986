"""Figures of scores: all runs, epoch curves, interquartile means, performance profiles.

Source of the last two: Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021 (rliable).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxbed.stats.figures import style
from jaxbed.stats.figures.style import BLUE, INK, LINE, ORANGE

if TYPE_CHECKING:
    import matplotlib.figure

MOST_PANELS = 12
MOST_ROWS = 600  # most algorithms x data sets whose runs are drawn
RUN_COLUMNS = 5
MOST_PROFILES = 16  # most algorithms with a profile; more curves hide each other


def epochs(frame: pd.DataFrame, unit: str, factor: float = 1.0, chosen: pd.DataFrame | None = None) -> "matplotlib.figure.Figure":
    """A panel per data set, at most MOST_PANELS, validation splits first: mean over runs at each epoch with a band of ± std (ddof 1).

    `frame`: records of one metric; only runs that are finite at an epoch count there, and a line has a gap where there are none.
    `chosen`: algorithm, run, epoch (and data set), one marker each at the score of that run.
    """
    from matplotlib.lines import Line2D

    names, rows = list(frame["algorithm"].unique()), frame[frame["epoch"].notna()]
    rows = rows.assign(value=(rows["value"] * factor).where(rows["status"] == "ok")).sort_values(["algorithm", "run", "dataset", "epoch"])
    curves = rows.groupby(["dataset", "algorithm", "epoch"])["value"].agg(["mean", "std", "count"])
    if chosen is not None:
        keys = [key for key in ("algorithm", "run", "dataset", "epoch") if key in chosen.columns]
        picked = rows.merge(chosen[keys], on=keys)
    with style.style():
        figure, grid = style.grid(panels(frame)[:MOST_PANELS], columns=3, height=1.75)
        for dataset, axes in grid.items():
            height = 0.02  # of the next row of numbers
            for name in (name for name in names if (dataset, name) in curves.index):
                look = style.look(names.index(name))
                curve = curves.loc[(dataset, name)]
                axes.plot(curve.index, curve["mean"], color=look["color"], linestyle=look["linestyle"])
                alone = curve[curve["mean"].notna() & curve["mean"].shift().isna() & curve["mean"].shift(-1).isna()]
                axes.scatter(alone.index, alone["mean"], s=4, color=look["color"])  # points without a line
                low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
                axes.fill_between(curve.index, low, high, color=look["color"], alpha=0.15, linewidth=0)
                changed = curve[(curve["count"].diff().fillna(0) != 0) & (curve["count"] > 0)]
                for epoch, count in changed["count"].items():
                    where = axes.get_xaxis_transform()
                    axes.text(epoch, height, f"{count:.0f}", transform=where, fontsize=6, color=look["color"], ha="center")
                height += 0.07 * bool(len(changed))
                if chosen is not None:
                    points = picked[(picked["dataset"] == dataset) & (picked["algorithm"] == name)]
                    axes.plot(points["epoch"], points["value"], look["marker"], color=look["color"], markersize=3.5, markeredgewidth=0)
            validation = (rows.loc[rows["dataset"] == dataset, "role"] == "val").all()
            axes.set_title(dataset + (" (validation)" if validation else ""))
            axes.grid(True)
        figure.supxlabel("epoch", fontsize=8)
        figure.supylabel(unit, fontsize=8)
        looks = [Line2D([], [], markersize=3.5, markeredgewidth=0, **style.look(index)) for index in range(len(names))]
        figure.legend(looks, names, loc="outside upper left", ncols=min(4, len(names)), handlelength=3.5)
    return figure


def runs(
    selected: pd.DataFrame, unit: str, factor: float = 1.0, baseline: str | None = None, trained: Iterable[tuple[str, str]] = ()
) -> "matplotlib.figure.Figure":
    """A panel per data set, a row per algorithm: a point per run, in the order of their numbers, and a bar at the mean.

    A dotted line marks the mean of `baseline`; rows of the (algorithm, dataset) in `trained` are shaded.
    """
    names, trained = list(selected["algorithm"].unique()), set(trained)
    rows = selected.assign(value=selected["value"] * factor, row=selected["algorithm"].map(names.index)).sort_values(["row", "run"])
    cells = rows.groupby(["dataset", "row"])["value"]
    position, count = cells.cumcount(), cells.transform("size")
    rows["height"] = rows["row"] + np.where(count > 1, 0.54 * position / np.maximum(count - 1, 1) - 0.27, 0.0)
    datasets = list(selected["dataset"].unique())
    with style.style():
        figure, grid = style.grid(datasets, columns=RUN_COLUMNS, height=0.45 + 0.17 * len(names))
        for panel, (dataset, axes) in enumerate(grid.items()):
            points, means = rows[rows["dataset"] == dataset], cells.mean()[dataset]
            axes.scatter(points["value"], points["height"], s=7, color=BLUE, linewidth=0, alpha=0.7)
            axes.vlines(means, means.index - 0.38, means.index + 0.38, color=INK, linewidth=1.4)
            for row, name in enumerate(names):
                if (name, dataset) in trained:
                    axes.axhspan(row - 0.45, row + 0.45, color=ORANGE, alpha=0.18, linewidth=0)
                if name == baseline and row in means:
                    axes.axvline(means[row], color=ORANGE, linewidth=0.8, linestyle=":", zorder=0.5)
            axes.set_title(dataset)
            axes.set(yticks=[], ylim=(len(names) - 0.4, -0.6))
            if panel % min(RUN_COLUMNS, len(datasets)) == 0:
                axes.set_yticks(range(len(names)), names)
                axes.tick_params(axis="y", length=0)
            axes.hlines(range(len(names)), 0, 1, transform=axes.get_yaxis_transform(), color=LINE, linewidth=0.4, zorder=0.4)
            axes.locator_params(axis="x", nbins=3)
        figure.supxlabel(unit, fontsize=8)
    return figure


def datasets_of_runs(selected: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The data sets that `runs` can show on a page or two, and those left out."""
    names, most = list(selected["dataset"].unique()), max(1, MOST_ROWS // selected["algorithm"].nunique())
    return names[:most], names[most:]


def iqm(intervals: pd.DataFrame, unit: str, factor: float = 1.0, lower: bool = False) -> "matplotlib.figure.Figure":
    """A dot and an interval per algorithm, the best on top: the rows `iqm` of bootstrap.intervals."""
    rows = intervals[intervals["quantity"] == "iqm"].sort_values(["value", "name"], ascending=[lower, True], ignore_index=True)
    with style.style():
        figure, axes = style.single(5.2, 0.5 + 0.2 * len(rows))
        axes.hlines(rows.index, rows["low"] * factor, rows["high"] * factor, color=BLUE, linewidth=2, alpha=0.6)
        axes.plot(rows["value"] * factor, rows.index, "o", color=BLUE, markersize=5)
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=f"IQM of {unit}")
        axes.set_yticks(rows.index, rows["name"])
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
    return figure


def profile(profiles: pd.DataFrame, unit: str, factor: float = 1.0, lower: bool = False) -> "matplotlib.figure.Figure":
    """A curve per algorithm from bootstrap.profiles: the share of runs and data sets with a better score; 95 % bands."""
    from matplotlib.lines import Line2D

    names = list(profiles["algorithm"].unique())
    with style.style():
        figure, axes = style.single(5.2, 2.4)
        for index, name in enumerate(names):
            curve, look = profiles[profiles["algorithm"] == name], style.look(index)
            axes.step(curve["score"] * factor, curve["share"], where="post", color=look["color"], linestyle=look["linestyle"])
            axes.fill_between(
                curve["score"] * factor, curve["low"], curve["high"], step="post", color=look["color"], alpha=0.12, linewidth=0
            )
        axes.set(ylim=(0, 1), xlabel=unit, ylabel=f"share {'below' if lower else 'above'}")
        axes.grid(True)
        looks = [Line2D([], [], **{**style.look(index), "marker": ""}) for index in range(len(names))]
        figure.legend(looks, names, loc="upper left", bbox_to_anchor=(1, 1), handlelength=3.5)
    return figure


def panels(frame: pd.DataFrame) -> list[str]:
    """The data sets with epochs, validation splits first."""
    rows = frame[frame["epoch"].notna()]
    val = rows.loc[rows["role"] == "val", "dataset"].unique()
    return list(dict.fromkeys([*val, *rows["dataset"].unique()]))
