"""Figures of ranks and pairs: critical-difference diagram, p-values, rank stability, shifts with their intervals.

Source of the critical-difference diagram: Demšar, JMLR 2006, figure 1; here the groups come from p-values of any test.
"""

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.comparisons.cliques import by_rank, cliques, levels
from jaxbed.stats.figures import style
from jaxbed.stats.figures.style import BLUE, INK

if TYPE_CHECKING:
    import matplotlib.figure

MOST_TICKS = 20  # on the line of ranks
MOST_NUMBERED = 20  # most algorithms whose p-values are written into the cells


def critical_difference(mean_ranks: pd.Series, p: pd.DataFrame, alpha: float, test: str) -> "matplotlib.figure.Figure":
    """Algorithms on a line of mean ranks, the best on the left; a bar below the line joins each of the `cliques`."""
    order, n = by_rank(mean_ranks), len(mean_ranks)
    bars = levels(mean_ranks, cliques(mean_ranks, p, alpha))
    rows, top = math.ceil(n / 2), 0.7 + 0.45 * len({level for _, _, level in bars})  # in heights of a row, below the line
    with style.style():
        figure, axes = style.single(5.2, 0.2 * (top + rows))
        axes.set(xlim=(1, n), ylim=(top + rows - 0.5, 0))
        axes.xaxis.tick_top()
        axes.set_xticks(range(1, n + 1, math.ceil(n / MOST_TICKS)))
        axes.tick_params(axis="x", color=INK, length=3)
        axes.yaxis.set_visible(False)
        for side, spine in axes.spines.items():
            spine.set(visible=side == "top", edgecolor=INK, linewidth=0.8)
        axes.set_title(_wrapped(f"{test}, α\u00a0=\u00a0{alpha:g}; joined: no significant difference", 80), pad=8)
        for index, name in enumerate(order):
            left, row = (True, index) if index < rows else (False, n - 1 - index)
            rank, y, edge = mean_ranks[name], top + row, -0.02 if left else 1.02
            axes.plot([rank, rank], [0, y], color=INK, linewidth=0.7, clip_on=False)
            axes.plot([(rank - 1) / (n - 1), edge], [y, y], color=INK, linewidth=0.7, transform=axes.get_yaxis_transform(), clip_on=False)
            text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
            axes.annotate(text, (edge, y), (-4 if left else 4, 0), axes.get_yaxis_transform(), "offset points",
                          ha="right" if left else "left", va="center")  # fmt: skip
        for low, high, level in bars:
            ends = [low - 0.008 * (n - 1), high + 0.008 * (n - 1)]
            axes.plot(ends, [0.5 + 0.45 * level] * 2, color=BLUE, linewidth=3.2, solid_capstyle="butt", clip_on=False, zorder=3)
    return figure


def p_values(p: pd.DataFrame, alpha: float, test: str, least: pd.DataFrame | None = None) -> "matplotlib.figure.Figure":
    """All pairs as numbers on colours, darker for smaller p on a log scale; p < alpha in bold, the diagonal blank. Dots if they are many.

    `least` [n, n]: see tables.format_p.
    """
    from matplotlib import colormaps, colors

    n = len(p)
    shown = p.mask(np.eye(n, dtype=bool))
    lowest = min(alpha / 10, max(np.nanmin(shown), 1e-6))
    colours, norm = colormaps["Blues_r"].resampled(40), colors.LogNorm(lowest, 1, clip=True)
    with style.style():
        numbered = n <= MOST_NUMBERED
        figure, axes = style.single(0.52 * n + 0.4 if numbered else 0.2 * n, max((0.3 if numbered else 0.2) * n, 1.3))
        cells = axes.pcolormesh(np.ma.masked_invalid(shown), cmap=colours, norm=norm, edgecolor="white", linewidth=0.8)
        for (row, column), value in np.ndenumerate(shown.to_numpy() if numbered else np.empty((0, 0))):
            if row != column:
                red, green, blue = colours(norm(value))[:3]
                dark = 0.21 * red**2.2 + 0.72 * green**2.2 + 0.07 * blue**2.2 < 0.18  # white text has more contrast
                text = tables.format_p(value, least=0.0 if least is None else least.iloc[row, column])
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=6.5,
                          color="white" if dark else "black", fontweight="bold" if value < alpha else "normal")  # fmt: skip
        if not numbered:
            small = np.argwhere(shown.to_numpy() < alpha) + 0.5
            axes.scatter(small[:, 1], small[:, 0], s=4, color="white", linewidth=0)
        axes.set(ylim=(n, 0), xticks=np.arange(n) + 0.5, yticks=np.arange(n) + 0.5)
        axes.set_xticklabels(p.columns, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticklabels(p.index)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(_wrapped(f"{test}; {'bold' if numbered else 'dots'}: p\u00a0<\u00a0{alpha:g}", max(40, 9 * n)), pad=8)
        bar = figure.colorbar(cells, ax=axes, fraction=0.05, aspect=25, pad=0.03)
        ticks = sorted({alpha, 1, *(10.0**power for power in range(math.ceil(math.log10(lowest)), 0))})
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
    return figure


def rank_stability(intervals: pd.DataFrame) -> "matplotlib.figure.Figure":
    """A dot and an interval per algorithm, the best on top: the rows `mean_rank` of bootstrap.intervals."""
    rows = intervals[intervals["quantity"] == "mean_rank"].sort_values(["value", "name"], ignore_index=True)
    with style.style():
        figure, axes = style.single(5.2, 0.5 + 0.2 * len(rows))
        axes.hlines(rows.index, rows["low"], rows["high"], color=BLUE, linewidth=2, alpha=0.6)
        axes.plot(rows["value"], rows.index, "o", color=BLUE, markersize=5)
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0.8, len(rows) + 0.2), xlabel="mean rank, 1 = best")
        axes.set_yticks(rows.index, rows["name"])
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
    return figure


def forest(differences: pd.DataFrame, unit: str, alpha: float, column: str) -> "matplotlib.figure.Figure":
    """A row per comparison, the largest shift on top: Hodges-Lehmann shift (dot) and its 95 % interval; filled if p < alpha.

    `differences`: from pairwise.pairs, positive = the first is better; `column` holds p.
    """
    rows = differences.sort_values("hodges_lehmann", ascending=False, kind="stable", ignore_index=True)
    with style.style():
        figure, axes = style.single(5.2, 0.5 + 0.2 * len(rows))
        known = rows.dropna(subset=["hodges_lehmann_low"])
        axes.hlines(known.index, known["hodges_lehmann_low"], known["hodges_lehmann_high"], color=BLUE, linewidth=1.6, alpha=0.6)
        sure = rows[column] < alpha
        for part, face in ((rows[sure], BLUE), (rows[~sure], "white")):
            axes.plot(part["hodges_lehmann"], part.index, "o", markersize=5, markerfacecolor=face, markeredgecolor=BLUE)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=unit)
        axes.set_yticks(rows.index, [f"{i} – {j}" for i, j in zip(rows["algorithm_i"], rows["algorithm_j"], strict=True)])
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
    return figure


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))
