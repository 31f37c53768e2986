"""Figure of shifted scores against in-distribution ones, with the line through the controls and its range."""

import math
from typing import TYPE_CHECKING

import numpy as np

from jaxbed.stats.evidence import line
from jaxbed.stats.evidence.study import Given
from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 24  # algorithms whose points are numbered
KINDS = ("control of the line", "treated", "other")
COLUMNS = 4  # of the legend


def planes(given: Given) -> "Figure | None":
    """A panel for each shifted set, a point for each algorithm, with its number; None without in-distribution scores.

    The line is straight in logits.
    """
    from matplotlib.lines import Line2D

    shown = {name: scores.draws for name, scores in given.shifted.items() if name in given.iid}
    if not shown:
        return None
    models = dict.fromkeys(model for name, scores in shown.items() for model in scores if model in given.iid[name].draws)
    kinds = {model: _kind(model, given) for model in models}
    looks = {kind: style.point(index) for index, kind in enumerate(KINDS)}
    numbers = {model: number for number, model in enumerate(models, 1)} if len(models) <= MOST else {}
    with style.style():
        figure, panels = style.grid(list(shown), columns=3, height=2.1)
        for (name, scores), axes in zip(shown.items(), panels.values(), strict=True):
            iid = given.iid[name].draws
            for model in (model for model in models if model in scores and model in iid):
                place = (iid[model][0], scores[model][0])
                axes.plot(*place, markersize=3.5, zorder=3, **looks[kinds[model]])
                if model in numbers:
                    axes.annotate(str(numbers[model]), place, (2, 2), textcoords="offset points", fontsize=5)
            try:
                fitted = line.fit(iid, scores, given.controls)
                x = np.linspace(fitted.low, fitted.high, 50)
                as_measured = fitted._replace(intercept=fitted.intercept[:1], slope=fitted.slope[:1])
                axes.plot(x, as_measured.at(x), color=style.INK, linewidth=1)
                axes.axvspan(fitted.low, fitted.high, color=style.LINE, alpha=0.25, linewidth=0)
            except ValueError:  # the cells say why there is no line
                pass
            axes.set(title=name, xlabel="in-distribution, %", ylabel="shifted, %")
            axes.grid(True)
        entries = {kind: looks[kind] for kind in KINDS if kind in kinds.values()}
        entries |= {f"{number} {model}": looks[kinds[model]] for model, number in numbers.items()}
        figure.set_figheight(figure.get_figheight() + 0.14 * math.ceil(len(entries) / COLUMNS))
        points = [Line2D([], [], markersize=3.5, **look) for look in entries.values()]
        figure.legend(points, list(entries), loc="outside lower center", ncols=COLUMNS)
    return figure


def _kind(model: str, given: Given) -> str:
    control, treated, other = KINDS
    return control if model in given.controls else treated if any(model == pair.treated for pair in given.pairs) else other
