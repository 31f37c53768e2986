"""Figures of robustness to corruptions: by severity, against the clean error, and by size of the network. Does not import JAX.

Sources: accuracy by severity as in Hendrycks et al., "The Many Faces of Robustness" (2021), figure 4, and sizes as in its figure
6. All values are means over seeds. The mean corruption error is that of the accuracies: unlike mCE, it is not divided by another network's.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pandas as pd

from jaxbed.measures.figures import first_models, legend, legend_line
from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 4


def severities(rows: pd.DataFrame, clean: pd.Series) -> "Figure":
    """A panel for each corruption: accuracy at each severity, a line for each of the first models; severity 0 are unchanged images.

    rows: cells of one benchmark, with columns model, corruption, severity, value. clean {model: accuracy}.
    """
    from matplotlib.ticker import MaxNLocator

    models = first_models(rows)
    means = rows.assign(severity=rows["severity"].astype(int)).groupby(["corruption", "model", "severity"])["value"].mean()
    with style.style():
        figure, panels = style.grid(list(rows["corruption"].unique()), columns=COLUMNS, height=1.35)
        for corruption, axes in panels.items():
            for index, model in enumerate(models):
                if (corruption, model) in means.index:
                    curve = pd.concat([pd.Series({0: clean[model]}), means[corruption, model]])
                    axes.plot(curve.index, 100 * curve, **style.look(index), markersize=2.5, markeredgewidth=0, linewidth=0.9)
            axes.set(title=corruption.replace("_", " "), ylim=(0, 100))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(True)
        for axes in list(panels.values())[::COLUMNS]:
            axes.set_ylabel("accuracy, %")
        for axes in list(panels.values())[-COLUMNS:]:
            axes.set_xlabel("severity")
        legend(figure, [legend_line(index, style.look(index)["marker"]) for index in range(len(models))], models)
    return figure


def clean_against_corrupted(rows: pd.DataFrame, clean: pd.Series) -> "Figure":
    """Clean error and mean error over corruptions and severities, a point for each model; above the diagonal, corruptions hurt.

    rows and clean as for `severities`.
    """
    corrupted = rows.groupby(["model", "corruption"], sort=False)["value"].mean().groupby(level="model", sort=False).mean()
    with style.style():
        figure, panels = style.grid(["clean and corrupted images"], columns=1, height=2.8)
        figure.set_figwidth(0.75 * style.WIDTH)
        (axes,) = panels.values()
        for index, (model, accuracy) in enumerate(corrupted.items()):
            axes.plot(100 - 100 * clean[model], 100 - 100 * accuracy, markersize=5, **style.point(index))
        ends = (min(*axes.get_xlim(), *axes.get_ylim()), max(*axes.get_xlim(), *axes.get_ylim()))
        axes.plot(ends, ends, color=style.LINE, linewidth=0.8, zorder=0)
        axes.set(title="", xlabel="clean error, %", ylabel="mean corruption error, %")
        axes.grid(True)
        _legend(figure, corrupted.index, 2)
    return figure


def size(parameters: pd.Series, scores: pd.DataFrame) -> "Figure":
    """A panel for each column of scores, in percent, and in it a point for each model: accuracy over parameters; both indexed by model."""
    ends = [parameters.min(), parameters.max()]
    with style.style():
        figure, panels = style.grid([str(name) for name in scores.columns], columns=COLUMNS, height=1.5)
        for name, axes in panels.items():
            for index, model in enumerate(parameters.index):
                axes.plot(parameters[model], scores.loc[model, name], markersize=3.5, **style.point(index))
            axes.set(title=name, xscale="log")
            axes.minorticks_off()
            axes.set_xticks(ends, [f"{number:,}" for number in ends])  # powers of ten would be written as formulas
            axes.grid(True)
        for axes in list(panels.values())[::COLUMNS]:
            axes.set_ylabel("accuracy, %")
        for axes in list(panels.values())[-COLUMNS:]:
            axes.set_xlabel("parameters")
        _legend(figure, parameters.index)
    return figure


def _legend(figure: "Figure", models: Iterable[str], columns: int = 3) -> None:
    from matplotlib.lines import Line2D

    named = [str(model) for model in models]
    legend(figure, [Line2D([], [], markersize=5, **style.point(index)) for index in range(len(named))], named, columns)
