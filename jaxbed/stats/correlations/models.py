"""Tables of models: what each leans on (biases), and how well it does (benchmarks).

A row is a model, or one run of it: runs of one model are not independent of each other, so their mean counts. Columns may have our names,
or those of the published table of the bias paper ("top1_acc/imagenet", "metric/bandpass/LFC/0.1"), of which the paper's means are formed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.correlations import coefficients
from jaxbed.stats.reading import delimited, numbers

BIASES = {
    "shape_bias": "shape bias",
    "low_freq": "low-frequency bias",
    "high_freq": "high-frequency bias",
    "bandwidth_norm": "critical band: bandwidth",
    "centre_norm": "critical band: centre",
    "sensitivity_norm": "critical band: peak noise sensitivity",
}
BENCHMARKS = {"in_distribution": "ID", "robustness": "robustness", "concepts": "concepts", "adversarial": "adversarial"}
PUBLISHED = {  # column: those of the published table whose mean it is
    "shape_bias": ("shape-bias",),
    "low_freq": tuple(f"metric/bandpass/LFC/{cutoff}" for cutoff in (0.1, 0.2, 0.3, 0.4, 0.5)),
    "high_freq": tuple(f"metric/bandpass/HFC/{cutoff}" for cutoff in (0.1, 0.2, 0.3, 0.4, 0.5)),
    "bandwidth_norm": ("metric/criticalband/bw_norm",),
    "centre_norm": ("metric/criticalband/cf_norm",),
    "sensitivity_norm": ("metric/criticalband/pns_norm",),
    "in_distribution": tuple(f"top1_acc/{name}" for name in ("imagenet", "imagenet-v2", "imagenet-real")),
    "robustness": tuple(f"top1_acc/{name}" for name in ("imagenet-a", "imagenet-c", "imagenet-cbar")),
    "concepts": tuple(f"top1_acc/{name}" for name in ("imagenet-sketch", "imagenet-r", "stylized")),
    "adversarial": ("top1_acc/PGD-40/low",),
}
CURVES = {"low-pass": r"metric/bandpass/LFC/(0?\.\d+)", "high-pass": r"metric/bandpass/HFC/(0?\.\d+)"}  # columns, by cut-off
LARGEST_FRACTION, LARGE = 1.5, 10  # what is more is a percentage; percentages that similar models do not have below 1
DESCRIBED = ("model", "run")  # columns that are no property


class Models(NamedTuple):
    """properties [models, columns] of floats, NaN where not measured, indexed by model; category [models]."""

    properties: pd.DataFrame
    category: pd.Series
    biases: list[str]
    benchmarks: list[str]
    notes: list[str]  # what was assumed or left out
    curves: Mapping[str, pd.DataFrame] = MappingProxyType({})  # {"low-pass": share of the clean accuracy [models, cut-offs], "high-pass"}


def read(paths: Sequence[Path], biases: Sequence[str] = (), benchmarks: Sequence[str] = (), groups: str = "") -> Models:
    """The models of tables, joined by their names. Without names of columns, those of BIASES and BENCHMARKS that there are count.

    groups: the column that holds categories; "" for `category` where there is one. Raises ValueError, with the cure, for a table without
    models, a model given twice or in two categories, columns that are not there, fractions among percents, and fewer than 4 models.
    """
    notes: list[str] = []
    tables = [_table(path, notes) for path in paths]
    kinds = _categories(tables, groups)
    joined = tables[0]
    for table, path in zip(tables[1:], paths[1:], strict=True):
        shared = set(joined.columns) & set(table.columns)
        if twice := sorted(shared - {*DESCRIBED, groups or "category"}):
            raise ValueError(f"{path}: columns {names.listed(twice)} are in an earlier table too; keep each in one")
        keys = sorted(shared & set(DESCRIBED))
        joined = joined.merge(table.drop(columns=shared - set(keys)), how="outer", on=keys)
    _derive(joined)
    leaned = _columns(joined, biases, BIASES, "biases")
    scored = _columns(joined, benchmarks, BENCHMARKS, "benchmarks")
    of_sets = [name for name in joined.columns if ":" in name and name.partition(":")[0] in {*BIASES, *BENCHMARKS}]
    if unused := [name for name in of_sets if name not in (*leaned, *scored)]:
        notes.append(f"columns of one set each are left out: {names.listed(unused)}; name them with --biases or --benchmarks")
    if both := sorted(set(leaned) & set(scored)):
        raise ValueError(f"{names.listed(both)} cannot be a bias and a benchmark at once")
    wide = pd.DataFrame({name: _numbers(joined, name, notes) for name in (*leaned, *scored)}).set_axis(joined["model"])
    _check_scale(wide[scored], notes)
    properties = wide.groupby(level=0, sort=False).mean()
    if len(properties) < len(wide):
        notes.append(f"{len(wide)} rows are runs of {len(properties)} models: means of the runs count")
    if len(properties) < coefficients.LEAST:
        raise ValueError(f"{len(properties)} models are too few for a correlation; {coefficients.LEAST} are the least")
    curves = {name: _curve(joined, pattern, notes) for name, pattern in CURVES.items()}
    return Models(properties, pd.Series(kinds).loc[properties.index], leaned, scored, notes, {k: v for k, v in curves.items() if len(v)})


def _table(path: Path, notes: list[str]) -> pd.DataFrame:
    table = delimited.read(path)
    if "model" not in table.columns:
        raise ValueError(f"{path}: there is no column `model`; {names.choice('model', table.columns)}")
    if (table["model"].str.strip() == "").any():
        raise ValueError(f"{path}: line {table.index[table['model'].str.strip() == ''][0]} names no model")
    table["model"] = table["model"].str.strip()
    if table.duplicated([name for name in DESCRIBED if name in table.columns]).any():
        repeated = table["model"][table.duplicated([name for name in DESCRIBED if name in table.columns])]
        cure = "give each model once, or number its runs in a column `run`"
        raise ValueError(f"{path}: line {repeated.index[0]} gives {names.quoted(repeated.iloc[0])} again; {cure}")
    for name in table.columns:
        if name in {*BIASES, *BENCHMARKS} or re.match("(top1_acc|metric)/|shape-bias$", name):
            table[name] = numbers.read(table[name], name, str(path), notes, separator=table.attrs["separator"])
    return table.reset_index(drop=True)


def _categories(tables: Sequence[pd.DataFrame], groups: str) -> dict[str, str]:
    """{model: its category} of all tables, which may each have it; "" for all where there is no such column."""
    column, every = groups or "category", pd.concat([table["model"] for table in tables]).unique()
    there = [table.set_index("model", drop=False)[column].astype(str).str.strip() for table in tables if column in table.columns]
    if not there:
        if groups:
            columns = dict.fromkeys(name for table in tables for name in table.columns)
            raise ValueError(f"--groups {groups}: no such column; {names.choice(groups, columns)}")
        return dict.fromkeys(every, "")
    kinds: dict[str, str] = {}
    for model, kind in pd.concat(there).items():
        if kind and kinds.setdefault(str(model), kind) != kind:
            given = f"{names.quoted(kinds[str(model)])} and {names.quoted(kind)}"
            raise ValueError(f"{names.quoted(model)} has two values of {column}, {given}; write the same in all of its rows and tables")
    if unknown := [model for model in every if model not in kinds]:
        raise ValueError(f"models {names.first_few(unknown)} have no {column}; write one for each")
    return kinds


def _derive(joined: pd.DataFrame) -> None:
    """Adds the means that the paper forms of published columns. One that is missing for a model makes its mean missing."""
    for name, parts in PUBLISHED.items():
        if name not in joined.columns and set(parts) <= set(joined.columns):
            joined[name] = joined[list(parts)].mean(axis=1, skipna=False)


def _curve(joined: pd.DataFrame, pattern: str, notes: list[str]) -> pd.DataFrame:
    """Shares at all cut-offs that there are, of the models that have them all: [models, cut-offs in order]."""
    matched = {name: re.fullmatch(pattern, name) for name in joined.columns}
    cutoffs = sorted((float(match[1]), name) for name, match in matched.items() if match)
    wide = pd.DataFrame({cutoff: _numbers(joined, name, notes) for cutoff, name in cutoffs}).set_axis(joined["model"])
    return wide.groupby(level=0, sort=False).mean().dropna() if len(cutoffs) > 1 else wide.iloc[:0]


def _columns(joined: pd.DataFrame, wanted: Sequence[str], known: dict[str, str], option: str) -> list[str]:
    if wanted:
        return names.find_each(wanted, [name for name in joined.columns if name not in DESCRIBED], f"--{option}: there is no column")
    there = [name for name in known if name in joined.columns]
    if not there:
        raise ValueError(
            f"no column is one of the known {option} ({', '.join(known)}); name columns with --{option}: {names.listed(joined.columns)}"
        )
    return there


def _numbers(joined: pd.DataFrame, name: str, notes: list[str]) -> np.ndarray:
    values = numbers.read(joined[name], name, "the table", notes).to_numpy()
    if np.isinf(values).any():
        raise ValueError(f"{name} of {names.quoted(joined['model'][np.isinf(values)].iloc[0])} is infinite; leave the cell empty")
    return values


def _check_scale(scored: pd.DataFrame, notes: list[str]) -> None:
    """Raises ValueError for a model whose benchmarks can only be fractions among percents; notes those that may be.

    A low percentage looks like a fraction: 0.03 on ImageNet-A. So two columns have to say it, in which all percents are large, and the
    value would be about as large as these.
    """
    percents = scored.where(scored > LARGEST_FRACTION)
    low = (scored > 0) & percents.notna().any()  # where others have more
    surely = low & (percents.min() >= LARGE) & (100 * scored >= percents.min() / 2)
    alike = ~(scored > 1).any(axis=1)  # whatever a model has
    most = f"others up to {scored.max().max():g}"
    if (mixed := alike & (surely.sum(axis=1) > 1)).any():
        name, largest = scored.index[mixed][0], scored[mixed].iloc[0].max()
        raise ValueError(f"benchmarks of {names.quoted(name)} are at most {largest:g}, {most}: fractions or percent; write all alike")
    if (may_be := alike & low.any(axis=1)).any():
        models = names.first_few(scored.index[may_be].unique())
        notes.append(f"benchmarks of {models} are at most 1, {most}: read as percent; if they are fractions, write all alike")
