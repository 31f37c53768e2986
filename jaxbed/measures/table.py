"""The tables of `jaxbed measure`: WORKDIR/measures.csv, what is printed, and the table of runs for `jaxbed correlate`."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from jaxbed.evaluation import metrics
from jaxbed.measures.scores import MADE_HERE
from jaxbed.stats import tables
from jaxbed.stats.output import destination
from jaxbed.stats.reading import workdirs
from jaxbed.system import files

SHAPE_BIAS = "shape_bias"  # of answers that evaluation kept: no image is changed for it
OF_SHAPE_BIAS = (SHAPE_BIAS, "conflicting", "cue_accuracy")  # and answers that name the shape, or the texture
ATTACKS = ("pgd", "apgd")  # first words of their names


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


def show(measured: Mapping[pathlib.Path, pd.DataFrame], notes: Sequence[str], out: pathlib.Path | None) -> None:
    """Prints means over seeds of each run {folder: rows}, and writes the table of runs.

    Raises ValueError where there is nothing to show.
    """
    several = pd.Series([rows["algorithm"].iloc[0] for rows in measured.values() if len(rows)]).duplicated().any()
    rows = pd.concat([rows.assign(model=rows["algorithm"] + (f" ({folder})" if several else "")) for folder, rows in measured.items()])
    if rows.empty:
        raise ValueError("no set has images whose texture votes for another class: there is no shape bias. Take other --measures")
    attacked = rows["metric"].str.split("_").str[0].isin(ATTACKS)
    of_networks = rows[rows["n_total"].isna() | rows["metric"].isin(("clean", SHAPE_BIAS)) | attacked]
    parts = ["Mean ± standard deviation over seeds; in brackets how many of them have a value, where not all do"]
    wide = {}
    for dataset, of_set in of_networks.groupby("dataset", sort=False):
        wide[dataset] = of_set.pivot(index=["model", "run"], columns="metric", values="value")[of_set["metric"].unique()]
        lines = [[f"{dataset} (seeds)", *wide[dataset].columns]]
        for model, of_model in wide[dataset].groupby(level="model", sort=False):
            lines.append([f"{model} ({len(of_model)})", *(_cell(of_model[name].to_numpy()) for name in of_model.columns)])
        parts.append(tables.align(lines))
    parts += [*_shape_bias(rows), *notes]
    if f"imagenet_c{MADE_HERE}_without_frost" in set(rows["metric"]):
        parts.append("note: without photographs of frozen glass (--frost DIR) there is no frost, and so no mCE")
    if out:
        named = pd.concat(wide, axis=1)
        once = named.columns.get_level_values(1).value_counts()
        named.columns = [name if once[name] == 1 else f"{name}:{dataset}" for dataset, name in named.columns]
        files.write(out, tables.csv_text(named.reset_index()))
        parts.append(f"wrote {out}")
    destination.show("\n\n".join(parts))


def _shape_bias(rows: pd.DataFrame) -> list[str]:
    """Shape bias with all that it is made of: answers of all seeds together, and Wilson's interval.

    The interval is that of one seed's answers, for seeds answer the same images.
    """
    import scipy

    lines = []
    for (model, dataset), each in rows[rows["metric"].isin(OF_SHAPE_BIAS)].groupby(["model", "dataset"], sort=False):
        shape, texture, images = (
            int(each.loc[each["metric"] == metric, column].sum())
            for metric, column in (("conflicting", "n_correct"), ("cue_accuracy", "n_correct"), ("conflicting", "n_total"))
        )
        if shape + texture:
            seeds = each["run"].nunique()
            of_seed = scipy.stats.binomtest(round(shape / seeds), round((shape + texture) / seeds))
            low, high = of_seed.proportion_ci(method="wilson")
            lines.append(
                f"{model}, {dataset}: {shape} answers name the shape, {texture} the texture, of {images} to images with conflicting cues "
                f"({(shape + texture) / images:.1%} usable): shape bias {shape / (shape + texture):.3f} ({low:.3f} to {high:.3f})"
            )
    return ["\n".join(lines)] if lines else []


def _cell(values: np.ndarray) -> str:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return "n/a"
    spread = f" ± {defined.std(ddof=1):.3f}" if len(defined) > 1 else ""
    return f"{defined.mean():.3f}{spread}" + (f" [{len(defined)}]" if len(defined) < len(values) else "")
