"""`jaxbed measure`: what the networks of a run lean on. Answers are kept; a new score needs no new pass.

    jaxbed measure WORKDIR... [--sets SET,SET] [--measures all|shape_bias,spectral,...] [--select best_val|last|EPOCH]
                   [--frost DIR] [--out TABLE.csv]

Stopped, the same command goes on. Exit code 0; 2 for invalid input, with the reason on stderr; 128 + the signal's number.
"""

import argparse
import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxbed.stats import names
from jaxbed.system import ending, processes

if TYPE_CHECKING:
    from jaxbed.data.source import Source
    from jaxbed.measures.answering import ConditionsOf

NAME = "measures.csv"
SHAPE_BIAS = "shape_bias"  # of answers that evaluation kept: no image is changed for it
OF_SHAPE_BIAS = (SHAPE_BIAS, "conflicting", "cue_accuracy")  # and answers that name the shape, or the texture


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed measure` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed measure")


def run(argv: Sequence[str]) -> int:
    """Runs the command. Raises ValueError or OSError for what cannot be measured."""
    asked = parse(processes.join(list(argv)))
    with processes.together():
        tables: dict[pathlib.Path, pd.DataFrame] = {}
        for workdir in asked.workdirs:
            status, of_points = _measure(workdir, asked)
            if status:
                return 128 + status
            tables |= of_points
        if processes.is_first():
            _show(tables, asked.out)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jaxbed measure", description="What the networks of runs lean on.")
    parser.add_argument("workdirs", nargs="+", type=pathlib.Path, metavar="WORKDIR")
    parser.add_argument(
        "--sets", type=_names, default=(), metavar="A,B", help="evaluation sets; default: those of the training distribution, or all"
    )
    parser.add_argument(
        "--measures",
        type=_names,
        default=("all",),
        metavar="A,B",
        help="of shape_bias, spectral, critical_band, imagenet_c, imagenet_cbar; default: all",
    )
    described = "epoch of each seed: best_val (default where there is a validation set), last, or a number"
    parser.add_argument("--select", default="", metavar="RULE", help=described)
    frost = "photographs of frozen glass, for ImageNet-C's frost; without them it is left out"
    parser.add_argument("--frost", type=pathlib.Path, metavar="DIR", help=frost)
    parser.add_argument("--allow-module", action="append", default=[], metavar="NAME", help="as of jaxbed eval")
    parser.add_argument("--out", type=pathlib.Path, metavar="TABLE.csv", help="a row for each run, for jaxbed correlate")
    return parser.parse_args(list(argv))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _measure(workdir: pathlib.Path, asked: argparse.Namespace) -> tuple[int, dict[pathlib.Path, pd.DataFrame]]:
    """The signal that ended it early or 0, and {folder: table} of the run, or of each of its grid points."""
    from jaxbed import config, parallel
    from jaxbed.measures import answering, conditions
    from jaxbed.training import plan
    from jaxbed.training.log import Log

    cfg = config.load(workdir, asked.allow_module)
    known = (SHAPE_BIAS, *conditions.MEASURES)
    measures = known if asked.measures == ("all",) else tuple(names.find_each(asked.measures, known, "--measures: there is no measure"))
    parallel.keep_compilations()
    parallel.use_cores(cfg.seeds, cfg.mesh)
    _, last, points, folder = plan.job(cfg, workdir)
    fitted = dataclasses.replace(last, mesh=parallel.fitting(last.mesh))
    epochs = [processes.first(functools.partial(_epochs, folder / point.name, asked.select)) for point in points]
    changing = [measure for measure in measures if measure in conditions.MEASURES]
    conditions_of = functools.partial(conditions.of, changing, photographs=_photographs(asked.frost))
    if changing:
        wanted = [{epoch for _, epoch in pairs} for pairs in epochs]
        if status := answering.answer(fitted, points, folder, conditions_of, asked.sets, wanted, Log(folder)):
            return status, {}
    tables = {}
    if processes.is_first():
        for point, pairs in zip(points, epochs, strict=True):
            sets = answering.named(point.source, asked.sets) if changing else []
            place, epoch_of = folder / point.name, {seed: epoch for seed, epoch in pairs}
            tables[place] = _table(place, point.source, sets, measures, conditions_of, epoch_of)
    return 0, tables


def _epochs(workdir: pathlib.Path, rule: str) -> list[list[int]]:
    """[[seed, epoch], ...]: which epoch of each seed counts. Raises ValueError for a rule that is none."""
    from jaxbed.evaluation import metrics
    from jaxbed.stats.selection import rules

    frame = metrics.scores(workdir)
    if rule.isdecimal():
        return [[int(seed), int(rule)] for seed in frame["run"].unique()]
    if rule not in ("", "best_val", "last"):
        raise ValueError(f"--select {rule}: it is best_val, last or the number of an epoch")
    chosen = rules.choose(frame, rule or ("best_val" if (frame["role"] == "val").any() else "last"))
    return [[int(seed), int(epoch)] for seed, epoch in zip(chosen["run"], chosen["epoch"], strict=True)]


def _photographs(folder: pathlib.Path | None) -> list[np.ndarray]:
    """Of frozen glass, in the order of their names: [h, w, 3] in [0, 1]. Raises ValueError for a folder without any."""
    if folder is None:
        return []
    from PIL import Image

    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg")) if folder.is_dir() else []
    if not paths:
        raise ValueError(f"--frost {folder}: there are no photographs (.png, .jpg); ImageNet-C's come with the package imagecorruptions")
    return [np.asarray(Image.open(path).convert("RGB"), np.float32) / 255 for path in paths]


def _table(
    workdir: pathlib.Path,
    source: "Source",
    sets: Sequence[str],
    measures: Sequence[str],
    conditions_of: "ConditionsOf",
    epoch_of: dict[int, int],
) -> pd.DataFrame:
    """Writes WORKDIR/measures.csv, and the channels of the critical band; returns the former."""
    from jaxbed.evaluation import metrics
    from jaxbed.measures import answering, scores
    from jaxbed.stats import tables
    from jaxbed.system import files

    frame, parts = metrics.scores(workdir), []
    if SHAPE_BIAS in measures:
        biased = frame.loc[frame["metric"] == SHAPE_BIAS, "dataset"].unique()
        chosen = frame["epoch"] == frame["run"].map(epoch_of)
        parts.append(frame[chosen & frame["dataset"].isin(biased) & frame["metric"].isin(OF_SHAPE_BIAS)])
    for name in sets:
        split, role, rule = source.sets[name]
        folder, shape = workdir / answering.FOLDER / name, split.image.shape[1:]
        applied = [condition.name for condition in conditions_of(shape)]
        of_imagenet = source.name == "imagenet" and rule == "argmax"
        measured = scores.of_set(folder, split.label, shape, measures, applied, epoch_of, of_imagenet)
        parts.append(measured.table.assign(algorithm=frame["algorithm"].iloc[0], dataset=name, role=role)[metrics.COLUMNS])
        if len(measured.channels):
            files.write(folder / "critical_band.csv", tables.csv_text(measured.channels))
    whole = pd.concat([part for part in parts if len(part)]) if any(map(len, parts)) else frame.iloc[:0]
    files.write(workdir / NAME, tables.csv_text(whole[whole["value"].notna()]))
    return whole


def _show(measured: dict[pathlib.Path, pd.DataFrame], out: pathlib.Path | None) -> None:
    """Prints means over seeds, and writes the table of runs."""
    from jaxbed.stats import tables
    from jaxbed.stats.output import destination
    from jaxbed.system import files

    several = pd.Series([rows["algorithm"].iloc[0] for rows in measured.values() if len(rows)]).duplicated().any()
    rows = pd.concat([rows.assign(model=rows["algorithm"] + (f" ({folder})" if several else "")) for folder, rows in measured.items()])
    if rows.empty:
        raise ValueError("no set has images whose texture votes for another class: there is no shape bias. Take other --measures")
    of_networks = rows[rows["n_total"].isna() | rows["metric"].isin(("clean", SHAPE_BIAS))]
    parts = ["Mean ± standard deviation over seeds; in brackets how many of them have a value, where not all do"]
    wide = {}
    for dataset, of_set in of_networks.groupby("dataset", sort=False):
        wide[dataset] = of_set.pivot(index=["model", "run"], columns="metric", values="value")[of_set["metric"].unique()]
        lines = [[f"{dataset} (seeds)", *wide[dataset].columns]]
        for model, of_model in wide[dataset].groupby(level="model", sort=False):
            lines.append([f"{model} ({len(of_model)})", *(_cell(of_model[name].to_numpy()) for name in of_model.columns)])
        parts.append(tables.align(lines))
    parts += _shape_bias(rows)
    if "imagenet_c_jax" in set(rows["metric"]) and "frost_1" not in set(rows["metric"]):
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
