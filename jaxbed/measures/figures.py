"""Figures of what networks lean on: from the rows of measures.csv, of one set and with a column `model`, to what is drawn. No JAX.

Sources: filters, heat maps of noise and of corruptions as in Gavrikov and Keuper, "Can Biases in ImageNet Models Explain Generalization?"
(2024); shape bias of each class as in Geirhos et al., "Partial success in closing the gap between human and machine vision" (2021), whose
axis has the share of texture. What is drawn are means over seeds.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from jaxbed.stats.figures import style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 8  # models with a heat map, and with lines of attacks: the first of them
FILTER = r"(?P<kind>low|high)_pass_(?P<cutoff>[\d.]+)"
BAND = r"band_(?P<band>\d+)_sigma_(?P<sigma>[\d.e+-]+)"
WITHOUT_NOISE = "grey"
CORRUPTION = r"(?P<corruption>\w+)_(?P<severity>[1-5])"
ATTACK = r"(?P<kind>pgd_linf|pgd_l2|apgd|apgd_ce|apgd_dlr)_(?P<epsilon>\d[\d.e+-]*)(?P<worst>(?:_best)?)"
PANELS = {"pgd_linf": "PGD, largest norm", "pgd_l2": "PGD, Euclidean norm", "apgd": "Auto-PGD, largest norm"}
RADIUS = {"pgd_l2": "epsilon"}  # others are in 255ths
LINES = {  # of a panel: [(kind of attack, suffix, words)], drawn with style.DASHES
    **{kind: [(kind, "", "last iterate"), (kind, "_best", "worst iterate")] for kind in ("pgd_linf", "pgd_l2")},
    "apgd": [
        ("apgd", "", "Auto-PGD, both losses"),
        ("apgd_ce", "", "Auto-PGD, cross-entropy"),
        ("apgd_dlr", "", "Auto-PGD, difference of logits"),
    ],
}
LEVEL = style.DASHES[3]  # dots, of unchanged images


class Votes(NamedTuple):
    """Answers of a model to images with conflicting cues."""

    counts: pd.DataFrame  # label, shape, texture, images
    low: float  # Wilson's interval of the pooled ratio
    high: float

    @property
    def pooled(self) -> float:
        """Shape bias."""
        shape, texture = self.counts["shape"].sum(), self.counts["texture"].sum()
        return float(shape / (shape + texture))


def cells(rows: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """The rows whose metric has a pattern, with its named parts as columns."""
    rows = rows.reset_index(drop=True)
    parts = rows["metric"].str.extract(f"^{pattern}$")
    return pd.concat([rows, parts], axis=1)[parts.notna().all(axis=1)]


def filters(rows: pd.DataFrame) -> "Figure":
    """A panel for each kind of filter: share of the clean accuracy at each cut-off, a line for each model, a band from least to most."""
    kept = cells(rows, FILTER)
    clean = rows[rows["metric"] == "clean"].set_index(["model", "run"])["value"]
    share = kept["value"].to_numpy() / clean.loc[pd.MultiIndex.from_frame(kept[["model", "run"]])].replace(0, np.nan).to_numpy()
    kept = kept.assign(share=share, cutoff=100 * kept["cutoff"].astype(float))
    models = list(kept["model"].unique())
    with style.style():
        figure, panels = style.grid(("low-pass filter", "high-pass filter"), columns=2, height=2.4)
        for kind, (title, axes) in zip(("low", "high"), panels.items(), strict=True):
            for index, model in enumerate(models):
                of_model, look = kept[(kept["model"] == model) & (kept["kind"] == kind)], style.look(index)
                curve = of_model.groupby("cutoff")["share"].agg(["mean", "min", "max"])
                axes.plot(curve.index, curve["mean"], color=look["color"], linestyle=look["linestyle"])
                if of_model["run"].nunique() > 1:
                    axes.fill_between(curve.index, curve["min"], curve["max"], color=look["color"], alpha=0.15, linewidth=0)
            most = max(1.0, kept["share"].max())
            axes.set(title=title, xlabel="cut-off, % of the highest frequency", ylabel="share of clean accuracy", ylim=(0, 1.05 * most))
            axes.grid(True)
        legend(figure, [legend_line(index) for index in range(len(models))], models)
    return figure


def critical_band(rows: pd.DataFrame, channels: Mapping[str, pd.DataFrame], side_px: Mapping[str, int]) -> "Figure":
    """A heat map for each model: strengths of noise, the strongest above, x bands. Steps: thresholds of each seed, of both kinds.

    channels {model: critical_band.csv}; side_px {model: shorter side of its images}.
    """
    from matplotlib import patheffects
    from matplotlib.lines import Line2D

    kinds: dict[bool, tuple[str, str, Any]] = {
        False: ("half of all images", style.ORANGE, "-"),
        True: ("half of the best cell", style.INK, style.DASHES[1]),
    }
    noisy, models = cells(rows, BAND), first_models(rows)
    sigmas = sorted(noisy["sigma"].unique(), key=float, reverse=True)
    with style.style():
        figure, panels = style.grid(models, columns=2, height=1.9)
        for model, axes in panels.items():
            of_model = noisy[noisy["model"] == model]
            mean, bands = of_model.groupby(["sigma", "band"])["value"].mean(), of_model["band"].astype(int).max() + 1
            centres = [side_px[model] * 2.0 ** (band - bands) for band in range(bands)]  # critical_band.centre_cycles, which needs JAX
            grey = rows.loc[(rows["model"] == model) & (rows["metric"] == WITHOUT_NOISE), "value"].mean()
            accuracy = [[mean[sigma, str(band)] for band in range(bands)] for sigma in sigmas] + [[grey] * bands]
            _heat_map(axes, np.array(accuracy), [*sigmas, "0"], [f"{centre:.3g}" for centre in centres])
            lines = [_wrapped(model, 64)]
            for normalised, (words, color, dash) in kinds.items():
                of_kind = channels[model][channels[model]["normalised"] == normalised]
                for number, steps in enumerate(of_kind["thresholds"]):
                    apart = min(0.08, 0.7 / len(of_kind)) * (number - (len(of_kind) - 1) / 2)  # equal ones side by side
                    place = np.array([int(step) for step in steps]) + apart
                    drawn = axes.stairs(place, np.arange(bands + 1), baseline=None, color=color, linestyle=dash, linewidth=1)
                    drawn.set(clip_on=False, path_effects=[patheffects.withStroke(linewidth=1.8, foreground="white")])
                lines.append(_wrapped(f"{words}: {_channel(of_kind)}", 70))
            axes.set_title("\n".join(lines), fontsize=6.5)
            axes.set(xlabel="centre of the noise, cycles per image", ylabel="strength of the noise")
        figure.set_figheight(figure.get_figheight() + 0.4 * math.ceil(len(models) / 2))  # titles of several lines
        looks = [Line2D([], [], color=color, linestyle=dash) for _, color, dash in kinds.values()]
        legend(figure, looks, [f"threshold, {words}" for words, *_ in kinds.values()])
    return figure


def _channel(channels: pd.DataFrame) -> str:
    """The numbers of a channel, means over seeds, and its status, with the number of seeds where these differ."""
    width, centre, sensitivity = (channels[name].mean() for name in ("bandwidth_octaves", "centre_cycles", "peak_noise_sensitivity"))
    counts = channels["status"].value_counts(sort=False)
    states = [status.replace(" ", ", ").replace("_", " ") + f" [{n}]" * (len(counts) > 1) for status, n in counts.items()]
    numbers = "none" if np.isnan(width) else f"{width:.3g} octaves, {centre:.3g} cycles, sensitivity {sensitivity:.3g}"
    return f"{numbers} ({'; '.join(states)})"


def corruptions(rows: pd.DataFrame) -> "Figure":
    """A heat map for each model, corruptions x severities, with their mean in the last column. rows: cells of one benchmark."""
    from matplotlib.figure import Figure

    models, severities, names = first_models(rows), sorted(rows["severity"].unique()), list(rows["corruption"].unique())
    means = rows.groupby(["model", "corruption", "severity"])["value"].mean()
    columns = min(3, len(models))
    height = 0.18 * len(names) + 0.6 + 0.15 * max(_wrapped(model, 26).count("\n") for model in models)
    with style.style():
        figure = Figure(figsize=(1.5 + 1.9 * columns, height * math.ceil(len(models) / columns)), layout="constrained")
        panels = figure.subplots(math.ceil(len(models) / columns), columns, squeeze=False, sharey=True).ravel()
        for axes, model in zip(panels, models, strict=False):
            accuracy = means[model].unstack().reindex(index=names, columns=severities).to_numpy()
            last = [] if len(severities) == 1 else ["mean"]
            accuracy = np.column_stack([accuracy, *([accuracy.mean(1)] if last else [])])  # none where a severity is missing
            _heat_map(axes, accuracy, [name.replace("_", " ") for name in names], [*severities, *last])
            axes.set(title=_wrapped(model, 26), xlabel="severity")
        for axes in panels[len(models) :]:
            axes.remove()
    return figure


def corruption_means(rows: pd.DataFrame) -> "Figure":
    """A heat map, models x corruptions, of means over severities; the mean over all corruptions in the last column."""
    from matplotlib.figure import Figure

    models, names, severities = first_models(rows), list(rows["corruption"].unique()), rows["severity"].unique()
    wide = rows.groupby(["model", "corruption", "severity"])["value"].mean().unstack().reindex(columns=severities)
    accuracy = wide.mean(axis=1, skipna=False).unstack().reindex(index=models, columns=names)
    labels = [_wrapped(model, 30) for model in models]
    with style.style():
        height = 1.3 + sum(max(0.22, 0.14 * (label.count("\n") + 1)) for label in labels)
        figure = Figure(figsize=(1.9 + 0.29 * (len(names) + 1), height), layout="constrained")
        axes = figure.subplots()
        values = np.column_stack([accuracy.to_numpy(), accuracy.mean(axis=1, skipna=False)])
        _heat_map(axes, values, labels, [*(name.replace("_", " ") for name in names), "mean"])
        axes.tick_params(axis="x", labelrotation=40)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    return figure


def attacks(rows: pd.DataFrame) -> "Figure":
    """A panel for each kind of attack: accuracy at each radius, colours and markers for models, dots for unchanged images."""
    from matplotlib.lines import Line2D

    attacked, models = cells(rows, ATTACK), first_models(rows)
    attacked = attacked.assign(epsilon=attacked["epsilon"].astype(float))
    kinds = [kind for kind in PANELS if attacked["kind"].isin([attack for attack, *_ in LINES[kind]]).any()]
    clean = rows[rows["metric"] == "clean"].groupby("model")["value"].mean()
    words: dict[int, list[str]] = {}
    with style.style():
        figure, panels = style.grid(kinds, columns=3, height=2.2)
        for kind, axes in panels.items():
            farthest = 0.0
            for index, model in enumerate(models):
                look = style.look(index)
                for number, (attack, suffix, line) in enumerate(LINES[kind]):
                    chosen = (attacked["model"] == model) & (attacked["kind"] == attack) & (attacked["worst"] == suffix)
                    curve = attacked[chosen].groupby("epsilon")["value"].mean()
                    if len(curve):
                        curve = pd.concat([pd.Series({0.0: clean[model]}), curve])
                        dash, farthest = style.DASHES[number], max(farthest, curve.index.max())
                        axes.plot(curve.index, curve, linestyle=dash, color=look["color"], marker=look["marker"], markersize=3.5)
                        words.setdefault(number, [])
                        words[number] += [] if line in words[number] else [line]
                axes.axhline(clean[model], linestyle=LEVEL, color=look["color"], linewidth=1)
            axes.set(title=PANELS[kind], xlabel=RADIUS.get(kind, "epsilon, in 255ths"), xlim=(0, 1.05 * farthest or 1), ylim=(0, 1.02))
            axes.grid(True)
        panels[kinds[0]].set_ylabel("accuracy")
        looks = [Line2D([], [], linestyle="", color=style.look(i)["color"], marker=style.look(i)["marker"]) for i in range(len(models))]
        drawn: list[Any] = [*(style.DASHES[number] for number in words), LEVEL]
        dashes = [Line2D([], [], color=style.INK, linestyle=dash) for dash in drawn]
        legend(figure, [*looks, *dashes], [*models, *(" / ".join(each) for each in words.values()), "unchanged images"])
    return figure


def shape_bias(votes: Mapping[str, Votes]) -> "Figure":
    """A row for each class: the share of shape of each model, to the left, with the number of answers that name a cue (n).

    Vertical lines, and points in the last row: pooled shares, there with Wilson's interval. Classes are in the order of the first model's
    share. votes {model: Votes}.
    """
    from matplotlib.figure import Figure

    shares = pd.DataFrame({model: _shares(each) for model, each in votes.items()})
    order = shares.iloc[:, 0].sort_values(ascending=False, kind="stable").index  # NaN last
    with style.style():
        figure = Figure(figsize=(style.WIDTH * 0.75, 0.2 * len(order) + 1.4), layout="constrained")
        axes, looks, last = figure.subplots(), [], len(order)
        for index, (model, each) in enumerate(votes.items()):
            look, beside = style.look(index), 0.6 * ((index + 0.5) / len(votes) - 0.5)
            color, counts = look["color"], each.counts.set_index("label").reindex(order)
            axes.plot([each.low, each.high], [last + beside] * 2, color=color)
            axes.scatter([*shares.loc[order, model], each.pooled], np.arange(last + 1) + beside, s=14, color=color, marker=look["marker"],
                         linewidth=0, clip_on=False)  # fmt: skip
            axes.axvline(each.pooled, color=color, linestyle=look["linestyle"], linewidth=0.8)
            looks.append(legend_line(index, look["marker"]))
            if len(votes) <= MOST:
                named = (counts["shape"] + counts["texture"]).fillna(0).tolist()
                for row, text in [(-0.7, "n"), *enumerate(f"{n:.0f}" for n in (*named, sum(named)))]:
                    axes.text(1.08 + 0.08 * index, row, text, transform=axes.get_yaxis_transform(), color=color, fontsize=6, ha="right",
                              va="center")  # fmt: skip
        axes.axhline(last - 0.5, color=style.LINE, linewidth=0.8, zorder=1)
        axes.set(xlim=(1, 0), ylim=(last + 0.5, -0.5), yticks=range(last + 1), xlabel="share of shape among answers that name a cue")
        axes.set_yticklabels([*(_wrapped(str(label), 24) for label in order), "all"])
        axes.grid(True)
        bias = (f"{model}: {each.pooled:.3f} ({each.low:.3f}\u00a0to\u00a0{each.high:.3f})" for model, each in votes.items())
        legend(figure, looks, list(bias), 2)
    return figure


def _shares(votes: Votes) -> pd.Series:
    counts = votes.counts.set_index("label")
    return counts["shape"] / (counts["shape"] + counts["texture"]).replace(0, np.nan)


def first_models(rows: pd.DataFrame) -> list[str]:
    """The models that are drawn where all are too many."""
    return list(rows["model"].unique()[:MOST])


def _wrapped(name: str, width: int) -> str:
    """A name in lines of at most `width` characters: nothing of it is lost."""
    return textwrap.fill(name, width)


def legend_line(index: int, marker: str = "") -> "Artist":
    from matplotlib.lines import Line2D

    return Line2D([], [], markersize=3.5, markeredgewidth=0, **{**style.look(index), "marker": marker})


def legend(figure: "Figure", looks: Sequence["Artist"], names: Sequence[str], most_columns: int = 3) -> None:
    """Below all panels, for which the figure grows."""
    labels = [_wrapped(name, 50) for name in names]
    widest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(most_columns, len(labels), int(16 * figure.get_figwidth()) // (widest + 9)))
    lines = max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(figure.get_figheight() + math.ceil(len(labels) / columns) * (0.06 + 0.13 * lines) + 0.1)
    figure.legend(looks, labels, loc="outside lower center", ncols=columns, handlelength=3.5)


def _heat_map(axes: "Axes", accuracy: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Percents on colour; blank where there is none."""
    from matplotlib import colors

    colours = colors.LinearSegmentedColormap.from_list("accuracy", ["white", style.BLUE])
    axes.pcolormesh(np.ma.masked_invalid(accuracy), cmap=colours, vmin=0, vmax=1, edgecolor="white", linewidth=0.6)
    for (row, column), value in np.ndenumerate(accuracy):
        if not np.isnan(value):
            axes.text(column + 0.5, row + 0.5, "100" if value > 0.9995 else f"{100 * value:.1f}", ha="center", va="center", fontsize=6,
                      color="white" if value > 0.7 else "black")  # fmt: skip
    axes.set(xticks=np.arange(len(columns)) + 0.5, yticks=np.arange(len(rows)) + 0.5, ylim=(len(rows), 0))
    axes.set_xticklabels(columns)
    axes.set_yticklabels(rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
