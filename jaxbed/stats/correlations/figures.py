"""Figures of correlations: matrices on colours, and models as points in the plane of a bias and a benchmark."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxbed.stats.correlations import models as tables_of_models
from jaxbed.stats.correlations.models import Models
from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def planes(models: Models, bias: str) -> "Figure":
    """A panel for each benchmark: each model a point, its category by colour and marker."""
    kinds = list(dict.fromkeys(models.category))
    with style.style():
        figure, panels = style.grid([TITLES.get(name, name) for name in models.benchmarks], columns=4, height=1.7)
        for benchmark, axes in zip(models.benchmarks, panels.values(), strict=True):
            for index, kind in enumerate(kinds):
                look, chosen = style.look(index), models.properties[models.category == kind]
                axes.scatter(chosen[bias], chosen[benchmark], s=12, color=look["color"], marker=look["marker"], linewidth=0,
                             label=kind.replace("_", " "))  # fmt: skip
            axes.set(title=TITLES.get(benchmark, benchmark), xlabel=TITLES.get(bias, bias))
            axes.grid(True)
        if len(kinds) > 1:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(kinds), 4))
    return figure
