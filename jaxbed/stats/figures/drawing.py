"""The results as figures: which ones an analysis has, their captions and files. Same input, same bytes."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.comparisons.cliques import by_rank, cliques, unjoined
from jaxbed.stats.figures import style, tikz
from jaxbed.stats.figures.rank_figures import MOST_NUMBERED, critical_difference, forest, p_values, rank_stability
from jaxbed.stats.figures.score_figures import MOST_PANELS, MOST_PROFILES, datasets_of_runs, epochs, iqm, panels, profile, runs
from jaxbed.stats.sensitivity import bootstrap

if TYPE_CHECKING:
    import matplotlib.figure

NAMES = ("critical_difference", "forest", "p_values", "rank_stability", "runs", "iqm", "profile", "epochs")
KINDS = ("pdf", "png", "svg")
MOST_PAIRS = 36  # most pairs in the forest plot
MOST_NAMED = 12  # most pairs in a caption


class Figure(NamedTuple):
    """A figure that was written. `svg`: for inclusion in a page; its ids begin with `name`."""

    name: str
    caption: str
    svg: str
    files: list[Path]


def draw(folder: str | Path, analysis: Analysis) -> list[Figure]:
    """Writes folder/figures/NAME.pdf, .png and .svg for each figure that `analysis` has data for, and the first as TikZ (.tex).

    Files of figures that are not drawn now are removed: they would belong to other scores.
    """
    folder = Path(folder) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        for kind in (*KINDS, "tex"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    logging.getLogger(__name__).info("figures")
    planned, written = _of_ranks(analysis) | _of_scores(analysis), []
    for number, (name, (caption, make)) in enumerate(planned.items(), start=1):
        logging.getLogger(__name__).debug("figure %d of %d: %s", number, len(planned), name.replace("_", " "))
        files, svg = style.save(make(), folder, name)
        if name == "critical_difference":
            text = tikz.critical_difference(analysis.mean_ranks, cliques(analysis.mean_ranks, analysis.p, analysis.alpha), caption)
            files = [*files, folder / f"{name}.tex"]
            files[-1].write_text(text, encoding="utf-8", newline="\n")
        written.append(Figure(name, caption, svg, files))
    return written


def _of_ranks(analysis: Analysis) -> "dict[str, tuple[str, Callable[[], matplotlib.figure.Figure]]]":
    """Name -> caption, and the function that draws it."""
    results = analysis.results
    made: dict[str, tuple[str, Callable[[], matplotlib.figure.Figure]]] = {}
    if analysis.p is not None and analysis.mean_ranks is not None:
        means, p, named = analysis.mean_ranks, analysis.p, f"{analysis.p_name}, alpha = {analysis.alpha:g}"
        apart = [f"{i} – {j}" for i, j in unjoined(means, p, analysis.alpha)]
        caption = f"Mean ranks over data sets, 1 = best. A bar joins algorithms without a significant difference ({named})."
        if apart:
            more = f" and {len(apart) - MOST_NAMED} more" if len(apart) > MOST_NAMED else ""
            listed = ", ".join(apart[:MOST_NAMED]) + more
            caption += f" Not joined, though not significantly different either, because one between them differs: {listed}."
        made["critical_difference"] = caption, partial(critical_difference, means, p, analysis.alpha, analysis.p_name)
        order = by_rank(means)
        marked = "Bold" if len(order) <= MOST_NUMBERED else "Dots"
        caption = f"p of every pair, the best mean rank first ({named}). {marked}: p\u00a0<\u00a0alpha."
        least = None if analysis.p_least is None else analysis.p_least.loc[order, order]
        made["p_values"] = caption, partial(p_values, p.loc[order, order], analysis.alpha, analysis.p_name, least)
    if results.get("pairs") is not None:
        rows, which = _compared(results)
        factor, unit = _unit(analysis)
        shift = [name for name in rows if name.startswith("hodges_lehmann")]
        caption = (
            f"Shift of the scores (Hodges-Lehmann over data sets) in {which}, with its 95 % interval (Wilcoxon; not adjusted, none with "
            f"fewer than 6 data sets). To the right the first is better. Filled: p\u00a0<\u00a0alpha of the permutation test, adjusted."
        )
        made["forest"] = caption, partial(forest, rows.assign(**rows[shift] * factor), f"shift, {unit}", analysis.alpha, "p_permutation")
    if analysis.stability is not None:
        caption = (
            "Mean rank of each algorithm (dot) and its percentile interval over resampled runs: how much it varies with seeds. With few "
            "runs such intervals are too narrow."
        )
        made["rank_stability"] = caption, partial(rank_stability, analysis.stability)
    return made


def _compared(results: dict) -> tuple[pd.DataFrame, str]:
    """The comparisons with the baseline; else all pairs or, if they are many, those with the best mean rank."""
    if results["baseline_comparisons"] is not None:
        return results["baseline_comparisons"], f"the comparisons with {results['baseline']}"
    pairs, means = results["pairs"], results["friedman"]["mean_ranks"]
    if len(pairs) <= MOST_PAIRS:
        return pairs, "all pairs"
    best = min(means, key=lambda name: (round(means[name], 9), name))
    rows = pairs[(pairs["algorithm_i"] == best) | (pairs["algorithm_j"] == best)]
    turned = rows["algorithm_j"] == best  # the best goes first
    swapped = rows.assign(
        algorithm_i=best,
        algorithm_j=rows["algorithm_i"].where(turned, rows["algorithm_j"]),
        hodges_lehmann=rows["hodges_lehmann"].mask(turned, -rows["hodges_lehmann"]),
        hodges_lehmann_low=rows["hodges_lehmann_low"].mask(turned, -rows["hodges_lehmann_high"]),
        hodges_lehmann_high=rows["hodges_lehmann_high"].mask(turned, -rows["hodges_lehmann_low"]),
    )
    return swapped, f"the comparisons with {best}, the best mean rank"


def _of_scores(analysis: Analysis) -> "dict[str, tuple[str, Callable[[], matplotlib.figure.Figure]]]":
    """Name -> caption, and the function that draws it."""
    results, (factor, unit) = analysis.results, _unit(analysis)
    trained = {tuple(cell) for cell in results.get("in_distribution") or ()}
    baseline, lower = results.get("baseline"), results.get("lower_is_better", False)
    caption = "Every point is one run, the bar is their mean" + (f", the dotted line the mean of {baseline}." if baseline else ".")
    caption += " Shaded: the algorithm was trained on this data set." if trained else ""
    shown, left_out = datasets_of_runs(analysis.selected)
    caption += f" Not shown: {', '.join(left_out)}." if left_out else ""
    rows = analysis.selected[analysis.selected["dataset"].isin(shown)]
    made: dict[str, tuple[str, Callable[[], matplotlib.figure.Figure]]] = {}
    made["runs"] = caption, partial(runs, rows, unit, factor, baseline, trained)
    if analysis.stability is not None:
        scale = "Data sets have equal weight, in the unit of the scores: meaningful if a point means the same on all of them."
        caption = "Interquartile mean (IQM) of the scores of all runs on all data sets, with the percentile interval over resampled runs; "
        caption += f"with few runs it is too narrow. {scale}"
        many = len(results["algorithms"]) > MOST_PROFILES
        caption += f" A performance profile is drawn only for up to {MOST_PROFILES} algorithms." * many
        made["iqm"] = caption, partial(iqm, results["stability"]["runs_resampled"], unit, factor, lower)
        if not many:
            caption = f"Performance profile: the share of runs and data sets with a score {'below' if lower else 'above'} that of the axis,"
            caption += f" with pointwise 95 % bands over resampled runs. {scale}"
            of_all = analysis.selected[analysis.selected["dataset"].isin(results["datasets"])]
            profiles = bootstrap.profiles(of_all, lower, seed=results["seed"])
            made["profile"] = caption, partial(profile, profiles, unit, factor, lower)
    if analysis.frame["epoch"].notna().any():
        left_out = panels(analysis.frame)[MOST_PANELS:]
        caption = "Mean over runs after each epoch; the band is ± one standard deviation (ddof 1). A small number above the axis:"
        caption += " the number of runs from this epoch on." + (
            "" if analysis.chosen is None else " Markers: each run at its chosen epoch."
        )
        caption += f" Not shown: {', '.join(left_out)}." if left_out else ""
        made["epochs"] = caption, partial(epochs, analysis.frame, unit, factor, analysis.chosen)
    return made


def _unit(analysis: Analysis) -> tuple[float, str]:
    """The factor that scores are multiplied by for display, and their unit."""
    factor, metric = tables.scale(analysis.scores), analysis.results["metric"]
    return factor, f"{metric} (%)" if factor == 100 else metric
