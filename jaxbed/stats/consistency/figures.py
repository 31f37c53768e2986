"""Figures of decision makers: error consistency of all pairs as a matrix, and with humans by condition as lines."""

from typing import TYPE_CHECKING

from jaxbed.data import model_vs_human
from jaxbed.data.model_vs_human import DATASETS
from jaxbed.stats.consistency import study
from jaxbed.stats.consistency.study import HUMANS, Study
from jaxbed.stats.correlations import figures as correlation_figures
from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def matrix(given: Study) -> "Figure":
    """Error consistency of each decision maker with each, mean over sets: numbers on colours."""
    wide = study.matrix(given)
    for party in given.parties:
        wide.loc[party, party] = wide.loc[party, party] if party == HUMANS else 1.0  # of the same decisions
    return correlation_figures.matrices({"error_consistency": wide})


def by_condition(given: Study) -> "Figure | None":
    """A panel for each set with several conditions: a line for each model with humans, and one for humans with each other.

    None without humans, and without such a set.
    """
    rows = given.conditions[given.conditions["other"] == HUMANS]
    datasets = [dataset for dataset in rows["dataset"].unique() if rows.loc[rows["dataset"] == dataset, "condition"].nunique() > 1]
    if not datasets:
        return None
    with style.style():
        figure, panels = style.grid(datasets, columns=4, height=1.7)
        for dataset, axes in panels.items():
            conditions = [model_vs_human.spell(condition) for condition in DATASETS[dataset].kept]
            for index, party in enumerate(given.parties):
                look = style.look(index) if party != HUMANS else {"color": style.INK, "linestyle": "-", "marker": "."}
                chosen = rows[(rows["dataset"] == dataset) & (rows["model"] == party)].set_index("condition")["error_consistency"]
                axes.plot(range(len(conditions)), chosen.reindex(conditions), label=party, markersize=3, **look)
            axes.set(title=dataset, ylim=(-0.2, 1), xticks=range(len(conditions)), xticklabels=conditions)
            axes.tick_params(axis="x", labelrotation=40 * (max(map(len, conditions)) > 4))
            axes.grid(True)
        figure.supylabel("error consistency with humans", fontsize="medium")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
