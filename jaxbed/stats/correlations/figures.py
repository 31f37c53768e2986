"""Figures of correlations: matrices on colours, models as points in the plane of two properties, and what each property ranges over."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxbed.stats.correlations import models as tables_of_models
from jaxbed.stats.correlations.models import Models
from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 100.0  # octaves: a critical band that is said to be wider is a fit that did not end
OVERLAID = "0.8"  # grey of models that are shown for comparison only
TITLES = {**tables_of_models.BIASES, **tables_of_models.BENCHMARKS}


def matrices(wide: Mapping[str, pd.DataFrame]) -> "Figure":
    """A panel for each group {name: rho}: numbers on colours, blue for positive, orange for negative, blank where undefined."""
    from matplotlib import colors
    from matplotlib.figure import Figure

    colours = colors.LinearSegmentedColormap.from_list("rho", [style.ORANGE, "white", style.BLUE])
    rows, columns = next(iter(wide.values())).shape
    with style.style():
        figure = Figure(figsize=(0.5 * columns * len(wide) + 1.9, 0.3 * rows + 1.2), layout="constrained")
        panels = figure.subplots(1, len(wide), squeeze=False, sharey=True).ravel()
        for axes, (name, rho) in zip(panels, wide.items(), strict=True):
            axes.pcolormesh(np.ma.masked_invalid(rho), cmap=colours, vmin=-1, vmax=1, edgecolor="white", linewidth=0.8)
            for (row, column), value in np.ndenumerate(rho.to_numpy()):
                text = "n/a" if np.isnan(value) else f"{value:.2f}" if value else "0"
                axes.text(column + 0.5, row + 0.5, text.replace("-", "−"), ha="center", va="center", fontsize=6.5,
                          color="white" if abs(value) > 0.75 else "black")  # fmt: skip
            axes.set(xticks=np.arange(columns) + 0.5, yticks=np.arange(rows) + 0.5, ylim=(rows, 0), title=name.replace("_", " "))
            axes.set_xticklabels([TITLES.get(name, name) for name in rho.columns], rotation=40, ha="right", rotation_mode="anchor")
            axes.set_yticklabels([TITLES.get(name, name) for name in rho.index])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
    return figure


def planes(models: Models, bias: str, shown: Collection[str] = ()) -> "Figure":
    """A panel for each benchmark: each model a point, its category by colour and marker. shown: categories; all others are grey."""
    with style.style():
        figure, panels = style.grid([TITLES.get(name, name) for name in models.benchmarks], columns=4, height=1.7)
        for benchmark, axes in zip(models.benchmarks, panels.values(), strict=True):
            _points(axes, models, bias, benchmark, shown)
            axes.set(title=TITLES.get(benchmark, benchmark), xlabel=TITLES.get(bias, bias))
        _legend(figure, axes, models)
    return figure


def pairs(models: Models) -> "Figure":
    """Each benchmark against each other, below the diagonal."""
    from matplotlib.figure import Figure

    names = models.benchmarks
    with style.style():
        figure = Figure(figsize=(style.WIDTH, style.WIDTH * 0.9), layout="constrained")
        panels = figure.subplots(len(names) - 1, len(names) - 1, squeeze=False, sharex="col", sharey="row")
        for (row, column), axes in np.ndenumerate(panels):
            if column > row:
                axes.remove()
                continue
            _points(axes, models, names[column], names[row + 1], size=5)
            axes.set_xlabel(_short(names[column]) if row == len(names) - 2 else "")
            axes.set_ylabel(_short(names[row + 1]) if column == 0 else "")
        _legend(figure, panels[0, 0], models)
    return figure


def ranges(models: Models) -> "Figure":
    """A row for each benchmark: all models, their category by colour, and the median."""
    from matplotlib.figure import Figure

    kinds, rows = list(dict.fromkeys(models.category)), len(models.benchmarks)
    with style.style():
        figure = Figure(figsize=(style.WIDTH, 0.3 * rows + 1.1), layout="constrained")
        axes = figure.subplots()
        for row, name in enumerate(models.benchmarks):
            values = models.properties[name]
            for index, kind in enumerate(kinds):
                look, place = style.look(index), row + 0.5 * ((index + 0.5) / len(kinds) - 0.5)
                chosen = values[models.category == kind]
                axes.scatter(chosen, np.full(len(chosen), place), s=9, color=look["color"], marker=look["marker"], linewidth=0,
                             label=kind.replace("_", " "))  # fmt: skip
            axes.plot([values.median()] * 2, [row - 0.32, row + 0.32], color=style.INK, linewidth=1)
        axes.set(yticks=range(rows), ylim=(rows - 0.5, -0.5), xlabel="each model; the line is the median")
        axes.set_yticklabels([TITLES.get(name, name) for name in models.benchmarks])
        axes.grid(True, axis="x")
        _legend(figure, axes, models)
    return figure


def curves(models: Models) -> "Figure":
    """A panel for each filter: the share of the clean accuracy that is left at each cut-off, a line for each model."""
    kinds = list(dict.fromkeys(models.category))
    with style.style():
        figure, panels = style.grid(list(models.curves), columns=2, height=2.4)
        for (name, wide), axes in zip(models.curves.items(), panels.values(), strict=True):
            drawn = set()
            for model, shares in wide.iterrows():
                kind = models.category.get(model, "")
                label = {} if kind in drawn else {"label": kind.replace("_", " ")}
                color = style.look(kinds.index(kind))["color"] if kind in kinds else style.LINE
                axes.plot(100 * wide.columns.to_numpy(float), shares, color=color, linewidth=0.8, alpha=0.7, **label)
                drawn.add(kind)
            axes.set(title=name, xlabel="cut-off, % of the highest frequency", ylabel="share of clean accuracy", ylim=(0, 1.05))
            axes.grid(True)
        _legend(figure, axes, models)
    return figure


def _points(axes: "Axes", models: Models, x: str, y: str, shown: Collection[str] = (), size: float = 12) -> None:
    """Models in the plane of two properties, grey ones first."""
    kinds = list(dict.fromkeys(models.category))
    for index, kind in sorted(enumerate(kinds), key=lambda each: not shown or each[1] in shown):
        look, chosen = style.look(index), models.properties[models.category == kind]
        chosen = chosen[chosen[x] < WIDEST] if x.startswith("bandwidth") else chosen
        color = look["color"] if not shown or kind in shown else OVERLAID
        axes.scatter(chosen[x], chosen[y], s=size, color=color, marker=look["marker"], linewidth=0, label=kind.replace("_", " "))
    axes.grid(True)


def _legend(figure: "Figure", axes: "Axes", models: Models) -> None:
    """Once for all panels, where there are kinds to be told apart."""
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if models.category.nunique() > 1:
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(len(named), 4))


def _short(name: str) -> str:
    return TITLES.get(name, name.removeprefix("top1_acc/"))
