"""The tables of `jaxbed measure`: WORKDIR/measures.csv, what is printed, and the table of runs for `jaxbed correlate`."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.evaluation import metrics
from jaxbed.measures import overlaps, protocol, shape_votes
from jaxbed.measures.corruption_error import EXTRA, MADE_HERE, MAIN
from jaxbed.stats import tables
from jaxbed.stats.reading import workdirs
from jaxbed.system import files

FOLDER = "measures"  # of answers, within a workdir
SHAPE_BIAS = "shape_bias"  # of answers that evaluation kept: no image is changed for it
OF_SHAPE_BIAS = (SHAPE_BIAS, "conflicting", "cue_accuracy")  # and answers that name the shape, or the texture
ATTACKS = ("pgd", "apgd")  # first words of their names
HEAD = (
    "Mean ± standard deviation over seeds; in brackets how many of them have a value, where not all do. "
    "Of n images, the 95 % interval of a share reaches at most 0.98/√n to each side"
)


def shape_bias(workdir: pathlib.Path, epoch_of: Mapping[int, int]) -> pd.DataFrame:
    """From the answers that evaluation kept of each seed {seed: epoch}: rows of the sets whose texture votes."""
    frame = metrics.scores(workdir)
    biased = frame.loc[frame["metric"] == SHAPE_BIAS, "dataset"].unique()
    chosen = frame["epoch"] == frame["run"].map(epoch_of)
    return frame[chosen & frame["dataset"].isin(biased) & frame["metric"].isin(OF_SHAPE_BIAS)]


def write(workdir: pathlib.Path, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Joins tables with the columns metrics.COLUMNS in WORKDIR/measures.csv, degenerate values apart; returns all rows."""
    filled = [part[metrics.COLUMNS] for part in parts if len(part)]
    whole = pd.concat(filled) if filled else pd.DataFrame(columns=metrics.COLUMNS)
    files.write(workdir / workdirs.MEASURES, tables.csv_text(whole[whole["value"].notna()]))
    return whole


class Summary(NamedTuple):
    """What was measured of all runs."""

    rows: pd.DataFrame  # metrics.COLUMNS and model, which is the algorithm, with the folder where several runs have the same
    wide: dict[str, pd.DataFrame]  # {dataset: numbers of networks by (model, run)}: no cells of a benchmark
    shape_bias: list[str]  # in words
    notes: list[str]
    folders: dict[str, pathlib.Path]  # {model: its run, or grid point}
    trained_with: dict[str, list[str]]  # {model: corruptions of ImageNet-C that its augmentation resembles}

    def cells(self, dataset: str) -> list[list[str]]:
        """The table that is printed of a set, a row for each model; heads first."""
        wide, shown = self.wide[dataset], self.rows[(self.rows["dataset"] == dataset) & (self.rows["metric"] != SHAPE_BIAS)]
        images = f"n = {shown['n_total'].max():.0f}; " if shown["n_total"].notna().any() else ""
        lines = [[f"{dataset} ({images}seeds)", *wide.columns]]
        for model, of_model in wide.groupby(level="model", sort=False):
            marks = {name: f" {overlaps.MARK}" if self.is_marked(str(model), str(name)) else "" for name in of_model.columns}
            lines.append([f"{model} ({len(of_model)})", *(_cell(of_model[name].to_numpy()) + mark for name, mark in marks.items())])
        return lines

    def is_marked(self, model: str, metric: str) -> bool:
        """Whether a number of a network is over corruptions some of which it has trained with."""
        of_main = metric.removeprefix("relative_").startswith("mce")
        if not of_main and metric != "imagenet_c" and not metric.startswith("imagenet_c_"):
            return False
        return not set(MAIN if of_main else (*MAIN, *EXTRA)).isdisjoint(self.trained_with[model])


def summarise(measured: Mapping[pathlib.Path, pd.DataFrame], notes: Sequence[str]) -> Summary:
    """Of runs {folder: rows}. Raises ValueError where there is nothing to show."""
    several = pd.Series([rows["algorithm"].iloc[0] for rows in measured.values() if len(rows)]).duplicated().any()
    named = {folder: rows.assign(model=rows["algorithm"] + (f" ({folder})" if several else "")) for folder, rows in measured.items()}
    rows = pd.concat(list(named.values()))
    if rows.empty:
        raise ValueError("no set has images whose texture votes for another class: there is no shape bias. Take other --measures")
    attacked = rows["metric"].str.split("_").str[0].isin(ATTACKS)
    of_networks = rows[rows["n_total"].isna() | rows["metric"].isin(("clean", SHAPE_BIAS)) | attacked]
    wide = {
        str(dataset): of_set.pivot(index=["model", "run"], columns="metric", values="value")[of_set["metric"].unique()]
        for dataset, of_set in of_networks.groupby("dataset", sort=False)
    }
    without_frost = f"imagenet_c{MADE_HERE}_without_frost" in set(rows["metric"])
    frost = ["note: without photographs of frozen glass (--frost DIR) there is no frost, and so no mCE"] if without_frost else []
    folders = {of_run["model"].iloc[0]: folder for folder, of_run in named.items() if len(of_run)}
    settings = {model: files.read_object(folder / "config.json") for model, folder in folders.items() if (folder / "config.json").is_file()}
    trained_with = {model: overlaps.of_settings(settings.get(model, {})) for model in folders}
    summary = Summary(rows, wide, _shape_bias(rows), [*notes, *frost], folders, trained_with)
    return summary._replace(notes=[*summary.notes, *_protocols(settings, rows), *_overlaps(summary)])


def _protocols(settings: Mapping[str, dict], rows: pd.DataFrame) -> list[str]:
    """How images reach the networks: a line for each way, with the models that have it; and what mCE is divided by."""
    models: dict[str, list[str]] = {}
    for model, of_model in settings.items():
        models.setdefault(protocol.of_settings(of_model), []).append(model)
    ways = [f"protocol: {', '.join(of_way)}: {words}" for words, of_way in models.items() if words]
    by_alexnet = any(metric.startswith("mce") and not metric.endswith("_of_baseline") for metric in rows["metric"].unique())
    return ways + ["protocol: mCE is over AlexNet's errors, as published with ImageNet-C"] * by_alexnet


def _overlaps(summary: Summary) -> list[str]:
    metrics_of = {model: {metric for wide in summary.wide.values() for metric in wide.columns} for model in summary.folders}
    marked = [model for model, every in metrics_of.items() if any(summary.is_marked(model, metric) for metric in every)]
    return [
        f"note: {overlaps.MARK} {model} has trained with changes like {', '.join(summary.trained_with[model])}, so these test no shift"
        for model in marked
    ]


def text(summary: Summary) -> str:
    """What is printed."""
    of_sets = (tables.align(summary.cells(dataset)) for dataset in summary.wide)
    shape_bias = ["\n".join(summary.shape_bias)] if summary.shape_bias else []
    return "\n\n".join([HEAD, *of_sets, *shape_bias, *summary.notes])


def write_runs(summary: Summary, out: pathlib.Path) -> None:
    """Writes the table with a row for each run, for `jaxbed correlate`."""
    named = pd.concat(summary.wide, axis=1)
    once = named.columns.get_level_values(1).value_counts()
    named.columns = [name if once[name] == 1 else f"{name}:{dataset}" for dataset, name in named.columns]
    files.write(out, tables.csv_text(named.reset_index()))


def _shape_bias(rows: pd.DataFrame) -> list[str]:
    """Shape bias with all that it is made of: answers of all seeds together, and Wilson's interval."""
    lines = []
    for (model, dataset), each in rows[rows["metric"].isin(OF_SHAPE_BIAS)].groupby(["model", "dataset"], sort=False):
        shape, texture, images = (
            int(each.loc[each["metric"] == metric, column].sum())
            for metric, column in (("conflicting", "n_correct"), ("cue_accuracy", "n_correct"), ("conflicting", "n_total"))
        )
        if shape + texture:
            low, high = shape_votes.interval(shape, texture, each["run"].nunique())
            lines.append(
                f"{model}, {dataset}: {shape} answers name the shape, {texture} the texture, of {images} to images with conflicting cues "
                f"({(shape + texture) / images:.1%} usable): shape bias {shape / (shape + texture):.3f} ({low:.3f} to {high:.3f})"
            )
    return lines


def _cell(values: np.ndarray) -> str:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return "n/a"
    spread = f" ± {defined.std(ddof=1):.3f}" if len(defined) > 1 else ""
    return f"{defined.mean():.3f}{spread}" + (f" [{len(defined)}]" if len(defined) < len(values) else "")
