"""The results as figures: critical-difference diagram, p-values, epoch curves, rank stability, all runs.

Every figure has a function of its own, frames -> matplotlib figure; `draw` makes and writes those for which there are data. Same input,
same bytes.

Source of the critical-difference diagram: Demšar, JMLR 2006, figure 1; here its groups are read from p-values, of whatever test.
"""

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxbed.stats import figure_style, tables
from jaxbed.stats.figure_style import BLUE, INK, ORANGE

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

NAMES = ("critical_difference", "p_values", "rank_stability", "runs", "epochs")
MOST_PANELS = 12


class Figure(NamedTuple):
    """A figure as it was written. `svg`: for inclusion in a page; its ids begin with `name`."""

    name: str
    caption: str
    svg: str
    files: list[Path]


def draw(folder: str | Path, analysis) -> list[Figure]:
    """Writes folder/figures/NAME.pdf and .png for each figure that `analysis` has data for; the functions below say what they read.

    Files of figures that are not made this time are removed: they would belong to other scores.
    """
    results, factor = analysis.results, tables.scale(analysis.scores)
    unit = f"{results['metric']} (%)" if factor == 100 else results["metric"]
    trained = {tuple(cell) for cell in results.get("in_distribution") or ()}
    made = {}
    if analysis.p is not None and analysis.mean_ranks is not None:
        means, p, named = analysis.mean_ranks, analysis.p, f"{analysis.p_name}, alpha = {analysis.alpha:g}"
        apart = [f"{i} – {j}" for i, j in unjoined(means, p, analysis.alpha)]
        caption = f"Mean ranks over datasets, 1 = best. A bar joins algorithms of which no two differ ({named})."
        if apart:
            caption += f" Not joined though they do not differ either, since one between them does: {', '.join(apart)}."
        made["critical_difference"] = caption, critical_difference(means, p, analysis.alpha, analysis.p_name)
        order = by_rank(means)
        caption = f"p of every pair, the best mean rank first ({named}). Bold: p\u00a0<\u00a0alpha."
        made["p_values"] = caption, p_values(p.loc[order, order], analysis.alpha, analysis.p_name, analysis.p_least.loc[order, order])
    if analysis.stability is not None:
        caption = "Mean rank of each algorithm (dot) and its percentile interval over resampled runs: how far other seeds move it."
        made["rank_stability"] = caption, rank_stability(analysis.stability)
    caption = "Every run is one point, the bar is their mean"
    caption += f", the dotted line the mean of {results['baseline']}." if results.get("baseline") else "."
    caption += " Shaded: the algorithm was trained on this dataset." if trained else ""
    made["runs"] = caption, runs(analysis.selected, unit, factor, results.get("baseline"), trained)
    if analysis.frame["epoch"].notna().any():
        left_out = _panels(analysis.frame)[MOST_PANELS:]
        caption = "Mean over runs after each epoch; the band is ± one standard deviation (ddof 1). A small number above the axis:"
        caption += " so many runs from this epoch on." + ("" if analysis.chosen is None else " Markers: each run at its chosen epoch.")
        caption += f" Not shown: {', '.join(left_out)}." if left_out else ""
        made["epochs"] = caption, epochs(analysis.frame, unit, factor, analysis.chosen)
    folder = Path(folder) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        for kind in ("pdf", "png"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    written = []
    for name, (caption, figure) in made.items():
        files, svg = figure_style.save(figure, folder, name)
        written.append(Figure(name, caption, svg, files))
    return written


def by_rank(mean_ranks: "pd.Series") -> list[str]:
    """The algorithms, best first; equal ranks by name, so that the order of rows does not matter."""
    return sorted(mean_ranks.index, key=lambda name: (round(mean_ranks[name], 9), name))


def cliques(mean_ranks: "pd.Series", p: "pd.DataFrame", alpha: float) -> list[list[str]]:
    """The maximal groups, two or more, of algorithms adjacent in mean rank of which no pair has p < alpha; best first.

    p [n, n] need not rise as ranks approach: two algorithms that do not differ stay apart if one between them differs from either.
    """
    order = by_rank(mean_ranks)
    differ = p.loc[order, order].to_numpy() < alpha
    groups, reached = [], 0
    for first in range(len(order)):
        last = first + 1
        while last < len(order) and not differ[first : last + 1, last].any():
            last += 1
        if last > max(reached, first + 1):
            groups.append(order[first:last])
            reached = last
    return groups


def unjoined(mean_ranks: "pd.Series", p: "pd.DataFrame", alpha: float) -> list[tuple[str, str]]:
    """The pairs with p >= alpha that no clique holds."""
    order, groups = by_rank(mean_ranks), cliques(mean_ranks, p, alpha)
    alike = [(i, j) for place, i in enumerate(order) for j in order[place + 1 :] if p.loc[i, j] >= alpha]
    return [(i, j) for i, j in alike if not any(i in group and j in group for group in groups)]


def critical_difference(mean_ranks: "pd.Series", p: "pd.DataFrame", alpha: float, test: str) -> "matplotlib.figure.Figure":
    """Algorithms on a line of mean ranks, the best to the left; a bar under the line joins each of the `cliques`."""
    order, n = by_rank(mean_ranks), len(mean_ranks)
    bars, levels = [], []  # of each level, where its last bar ends
    for group in cliques(mean_ranks, p, alpha):
        low, high = (mean_ranks[group[place]] for place in (0, -1))
        level = next((level for level, end in enumerate(levels) if end < low - 0.03 * (n - 1)), len(levels))
        levels[level : level + 1] = [high]
        bars.append((low, high, level))
    rows, top = math.ceil(n / 2), 0.7 + 0.45 * len(levels)  # in heights of a row, below the line
    with figure_style.style():
        figure, axes = figure_style.single(5.2, 0.2 * (top + rows))
        axes.set(xlim=(1, n), ylim=(top + rows - 0.5, 0))
        axes.xaxis.tick_top()
        axes.set_xticks(range(1, n + 1))
        axes.tick_params(axis="x", color=INK, length=3)
        axes.yaxis.set_visible(False)
        for side, spine in axes.spines.items():
            spine.set(visible=side == "top", edgecolor=INK, linewidth=0.8)
        axes.set_title(_wrapped(f"{test}, α\u00a0=\u00a0{alpha:g}; joined: no two differ", 80), pad=8)
        for place, name in enumerate(order):
            left, row = (True, place) if place < rows else (False, n - 1 - place)
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


def p_values(p: "pd.DataFrame", alpha: float, test: str, least: "pd.DataFrame | None" = None) -> "matplotlib.figure.Figure":
    """All pairs as numbers on colours, darker for smaller p on a log scale; p < alpha in bold, the diagonal blank.

    `least` [n, n]: see tables.format_p.
    """
    import numpy as np
    from matplotlib import colormaps, colors

    n = len(p)
    shown = p.mask(np.eye(n, dtype=bool))
    lowest = min(alpha / 10, max(np.nanmin(shown), 1e-6))
    colours, norm = colormaps["Blues_r"].resampled(40), colors.LogNorm(lowest, 1, clip=True)
    with figure_style.style():
        figure, axes = figure_style.single(0.52 * n + 0.4, max(0.3 * n, 1.3))
        cells = axes.pcolormesh(np.ma.masked_invalid(shown), cmap=colours, norm=norm, edgecolor="white", linewidth=0.8)
        for (row, column), value in np.ndenumerate(shown.to_numpy()):
            if row != column:
                red, green, blue = colours(norm(value))[:3]
                dark = 0.21 * red**2.2 + 0.72 * green**2.2 + 0.07 * blue**2.2 < 0.18  # white text has the better contrast
                text = tables.format_p(value, least=0.0 if least is None else least.iloc[row, column])
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=6.5,
                          color="white" if dark else "black", fontweight="bold" if value < alpha else "normal")  # fmt: skip
        axes.set(ylim=(n, 0), xticks=np.arange(n) + 0.5, yticks=np.arange(n) + 0.5)
        axes.set_xticklabels(p.columns, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticklabels(p.index)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(_wrapped(f"{test}; bold: p\u00a0<\u00a0{alpha:g}", max(40, 9 * n)), pad=8)
        bar = figure.colorbar(cells, ax=axes, fraction=0.05, aspect=25, pad=0.03)
        ticks = sorted({alpha, 1, *(10.0**power for power in range(math.ceil(math.log10(lowest)), 0))})
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
    return figure


def epochs(frame: "pd.DataFrame", unit: str, factor: float = 1.0, chosen: "pd.DataFrame | None" = None) -> "matplotlib.figure.Figure":
    """A panel per dataset, at most MOST_PANELS, validation splits first: mean over runs at each epoch with a band of ± std (ddof 1).

    `frame`: records of one metric; only runs that are finite at an epoch count there, and no line crosses an epoch without any.
    `chosen`: algorithm, run, epoch (and dataset), one marker each at the score of that run.
    """
    from matplotlib.lines import Line2D

    names, rows = list(frame["algorithm"].unique()), frame[frame["epoch"].notna()]
    rows = rows.assign(value=(rows["value"] * factor).where(rows["status"] == "ok")).sort_values(["algorithm", "run", "dataset", "epoch"])
    curves = rows.groupby(["dataset", "algorithm", "epoch"])["value"].agg(["mean", "std", "count"])
    if chosen is not None:
        keys = [key for key in ("algorithm", "run", "dataset", "epoch") if key in chosen.columns]
        picked = rows.merge(chosen[keys], on=keys)
    with figure_style.style():
        figure, panels = figure_style.grid(_panels(frame)[:MOST_PANELS], columns=3, height=1.75)
        for dataset, axes in panels.items():
            height = 0.02  # of the next line of numbers
            for name in (name for name in names if (dataset, name) in curves.index):
                look = figure_style.look(names.index(name))
                curve = curves.loc[(dataset, name)]
                axes.plot(curve.index, curve["mean"], color=look["color"], linestyle=look["linestyle"])
                alone = curve[curve["mean"].notna() & curve["mean"].shift().isna() & curve["mean"].shift(-1).isna()]
                axes.scatter(alone.index, alone["mean"], s=4, color=look["color"])  # no line shows them
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
        looks = [Line2D([], [], markersize=3.5, markeredgewidth=0, **figure_style.look(place)) for place in range(len(names))]
        figure.legend(looks, names, loc="outside upper left", ncols=min(4, len(names)), handlelength=3.5)
    return figure


def rank_stability(intervals: "pd.DataFrame") -> "matplotlib.figure.Figure":
    """A dot and an interval per algorithm, best on top: the rows of `mean_rank` in the table of bootstrap.intervals."""
    rows = intervals[intervals["quantity"] == "mean_rank"].sort_values(["value", "name"], ignore_index=True)
    with figure_style.style():
        figure, axes = figure_style.single(5.2, 0.5 + 0.2 * len(rows))
        axes.hlines(rows.index, rows["low"], rows["high"], color=BLUE, linewidth=2, alpha=0.6)
        axes.plot(rows["value"], rows.index, "o", color=BLUE, markersize=5)
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0.8, len(rows) + 0.2), xlabel="mean rank, 1 = best")
        axes.set_yticks(rows.index, rows["name"])
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
    return figure


def runs(
    selected: "pd.DataFrame", unit: str, factor: float = 1.0, baseline: str | None = None, trained: Iterable[tuple[str, str]] = ()
) -> "matplotlib.figure.Figure":
    """A panel per dataset, a row per algorithm: every run a point, in the order of their numbers, and a bar at the mean.

    A dotted line marks the mean of `baseline`; rows of the (algorithm, dataset) in `trained` are shaded.
    """
    import numpy as np

    names, trained = list(selected["algorithm"].unique()), set(trained)
    rows = selected.assign(value=selected["value"] * factor, row=selected["algorithm"].map(names.index)).sort_values(["row", "run"])
    cells = rows.groupby(["dataset", "row"])["value"]
    place, count = cells.cumcount(), cells.transform("size")
    rows["height"] = rows["row"] + np.where(count > 1, 0.54 * place / np.maximum(count - 1, 1) - 0.27, 0.0)
    with figure_style.style():
        figure, panels = figure_style.grid(list(selected["dataset"].unique()), columns=5, height=0.45 + 0.17 * len(names), sharey=True)
        for dataset, axes in panels.items():
            points, means = rows[rows["dataset"] == dataset], cells.mean()[dataset]
            axes.scatter(points["value"], points["height"], s=7, color=BLUE, linewidth=0, alpha=0.7)
            axes.vlines(means, means.index - 0.38, means.index + 0.38, color=INK, linewidth=1.4)
            for row, name in enumerate(names):
                if (name, dataset) in trained:
                    axes.axhspan(row - 0.45, row + 0.45, color=ORANGE, alpha=0.18, linewidth=0)
                if name == baseline and row in means:
                    axes.axvline(means[row], color=ORANGE, linewidth=0.8, linestyle=":", zorder=0.5)
            axes.set_title(dataset)
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.grid(True, axis="y")
            axes.locator_params(axis="x", nbins=3)
        figure.supxlabel(unit, fontsize=8)
    return figure


def _panels(frame: "pd.DataFrame") -> list[str]:
    rows = frame[frame["epoch"].notna()]
    val = rows.loc[rows["role"] == "val", "dataset"].unique()
    return list(dict.fromkeys([*val, *rows["dataset"].unique()]))


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))
