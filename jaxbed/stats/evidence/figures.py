"""Figure of shifted scores against in-distribution ones, with the line through the controls and its range."""

from typing import TYPE_CHECKING

import numpy as np

from jaxbed.stats.evidence import line
from jaxbed.stats.evidence.study import Given
from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("control of the line", "treated", "other")


def planes(given: Given) -> "Figure | None":
    """A panel for each shifted set, a point for each algorithm; None without in-distribution scores. The line is straight in logits."""
    shown = {name: scores.draws for name, scores in given.shifted.items() if name in given.iid}
    if not shown:
        return None
    placed = {name: [model for model in scores if model in given.iid[name].draws] for name, scores in shown.items()}
    kinds = {model: _kind(model, given) for models in placed.values() for model in models}
    with style.style():
        figure, panels = style.grid(list(shown), columns=3, height=2.1)
        for (name, scores), axes in zip(shown.items(), panels.values(), strict=True):
            iid = given.iid[name].draws
            for index, kind in enumerate(KINDS):
                if kind in kinds.values():
                    points = [(iid[model][0], scores[model][0]) for model in placed[name] if kinds[model] == kind]
                    x, y = np.array(points).reshape(-1, 2).T
                    look = {key: style.look(index)[key] for key in ("color", "marker")}
                    axes.scatter(x, y, s=14, linewidth=0, zorder=3, label=kind, **look)
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
        handles, labels = next(iter(panels.values())).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _kind(model: str, given: Given) -> str:
    control, treated, other = KINDS
    return control if model in given.controls else treated if any(model == pair.treated for pair in given.pairs) else other
