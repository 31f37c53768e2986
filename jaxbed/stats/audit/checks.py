"""Are the scores plausible? Faults that no test detects: copied, mislabelled, hidden and frozen runs; selection on test data.

Every function returns findings, a list of {code, text} with the facts as further fields; [] if there is none. A finding is a
reason to look, not a proof. `frame`: all records; `selected`: one value for every (algorithm, run, dataset) of one metric.

BiasBed's published scores hold one run twice, an algorithm with nine runs instead of ten, a run of another algorithm that entered a
table but is not among the runs, and a test set that served as validation split. All are detected here or, for tables, in `printed_tables`.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.audit import printed_tables, provenance, scales
from jaxbed.stats.comparisons import ranks
from jaxbed.stats.selection import failures

RUN = ["algorithm", "run"]
FEWEST_DATASETS = 3  # on which equal scores of two runs are not a coincidence
FEWEST_ALGORITHMS = 5  # with fewer, rank correlations above 0.7 are common by chance
OUTLIER = 10.0  # robust z
HUGE, FEWEST_OTHERS = 2.0, 8  # in ranges of all other scores on the data set; fewest scores for which a range is meaningful
CORRELATED = 0.7
OF_DATASETS = ("IN_DISTRIBUTION", "DEPENDENT_BLOCKS", "FEW_BLOCKS")


def audit(
    frame: pd.DataFrame,
    selected: pd.DataFrame,
    *,
    last: pd.DataFrame | None = None,
    table: pd.DataFrame | None = None,
    training_data: Mapping[str, Iterable[str]] | None = None,
    families: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    sources: Iterable[Mapping] = (),
) -> list[dict]:
    """All findings. `last`: scores as `selected`, but means of the last epochs; `table`: printed algorithm, dataset, mean, std;
    `training_data`: the data sets each algorithm was trained on; `families`: dataset -> its family; `sizes`: dataset -> number of
    images; `sources`: from workdirs.read.
    """
    findings = [*scales.impossible(frame), *scales.mixed(selected), *provenance.mixed_training_data(selected, sources)]
    findings += provenance.mixed_test_images(selected, sources)
    findings += [*run_counts(selected), *duplicate_runs(selected), *outlier_runs(selected)]
    findings += [*diverged(frame), *frozen_runs(frame), *small_groups(frame), *validation_is_test(frame)]
    if last is not None:
        findings += selected_on_test(selected, last)
    if table is not None:
        findings += [*printed_tables.table_mismatch(selected, table), *printed_tables.hidden_runs(selected, table)]
    return [*findings, *printed_tables.granularity(selected, sizes or {}), *of_datasets(selected, training_data or {}, families or {})]


def of_datasets(selected: pd.DataFrame, training_data: Mapping[str, Iterable[str]], families: Mapping[str, str]) -> list[dict]:
    """The findings about the data sets compared: OF_DATASETS."""
    return [*in_distribution(selected, training_data), *dependent_blocks(selected, families), *few_blocks(selected, families)]


def duplicate_runs(selected: pd.DataFrame) -> list[dict]:
    """DUPLICATE_RUN: runs, of one or several algorithms, with equal scores on all data sets, three or more."""
    seen: dict[tuple, list[tuple]] = {}
    for name, scores in printed_tables.grid(selected).round(ranks.DECIMALS).iterrows():
        if scores.notna().sum() >= FEWEST_DATASETS:
            seen.setdefault(tuple(scores.fillna(float("inf"))), []).append(name)
    return [
        {
            "code": "DUPLICATE_RUN",
            "text": "equal scores on all data sets: " + ", ".join(f"{algorithm} run {run}" for algorithm, run in runs),
            "runs": _runs(runs),
        }
        for runs in seen.values()
        if len(runs) > 1
    ]


def outlier_runs(selected: pd.DataFrame) -> list[dict]:
    """OUTLIER_RUN: a run with robust z = 0.6745 |x - median| / MAD > 10 on some data set that is also at least twice as near to another
    algorithm, or further from its median there than twice the range of all other scores on the data set, 8 or more.

    Median and MAD are over the runs of its algorithm (with two runs neither is an outlier); the MAD is at least the smallest step
    between two scores on the data set. The nearest algorithm has the smallest root mean square distance between its medians and the run,
    in units of the median MAD of the algorithms; "twice as near" compares the medians of these distances over data sets. z alone is not
    enough: with few runs the MAD is often tiny.
    """
    scores = printed_tables.grid(selected)
    owner = scores.index.get_level_values("algorithm")
    steps = scores.round(ranks.DECIMALS).apply(_smallest_step)
    medians = scores.groupby("algorithm").median()
    deviation = scores - medians.loc[owner].to_numpy()
    mad = deviation.abs().groupby("algorithm").median().clip(lower=steps, axis=1)
    z = 0.6745 * deviation / mad.loc[owner].to_numpy()
    doubted = z.index[(z.abs() > OUTLIER).any(axis=1)]
    if doubted.empty:
        return []
    huge, unit = deviation.abs() > HUGE * scores.apply(_range_of_others), mad.median()
    findings = []
    for algorithm, run in doubted:
        nearest = printed_tables.nearest(scores.loc[(algorithm, run)], medians, unit)
        middle = ((medians - scores.loc[(algorithm, run)]) / unit).abs().median(axis=1)
        mislabelled = 2 * middle[nearest] < middle[algorithm]
        z_scores = z.loc[(algorithm, run)]
        z_scores = z_scores if mislabelled else z_scores[huge.loc[(algorithm, run)]]
        if z_scores.abs().max() > OUTLIER:
            dataset = z_scores.abs().idxmax()
            text = f"{algorithm} run {run} is far from its other runs (robust z {z_scores[dataset]:.0f} on {dataset})"
            text += f" and nearest to {nearest}" if mislabelled else f": {scores.loc[(algorithm, run), dataset]:g} is far from all others"
            facts = {"algorithm": algorithm, "run": int(run), "dataset": dataset, "z": float(z_scores[dataset]), "nearest": nearest}
            findings.append({"code": "OUTLIER_RUN", "text": text, **facts})
    return findings


def run_counts(selected: pd.DataFrame) -> list[dict]:
    """UNEQUAL_RUNS: algorithms with different numbers of runs. MISSING: runs without a score on a data set that other runs have."""
    counts = selected.groupby("algorithm", sort=False)["run"].nunique().to_dict()
    findings = []
    if len(set(counts.values())) > 1:
        text = "number of runs: " + ", ".join(f"{name} {count}" for name, count in counts.items())
        findings.append({"code": "UNEQUAL_RUNS", "text": text, "runs": counts})
    gaps = printed_tables.grid(selected).isna().stack(future_stack=True)
    lost = [{"algorithm": algorithm, "run": int(run), "dataset": dataset} for algorithm, run, dataset in gaps.index[gaps]]
    if lost:
        text = "no score of " + names.first_few(f"{cell['algorithm']} run {cell['run']} on {cell['dataset']}" for cell in lost)
        findings.append({"code": "MISSING", "text": text, "cells": lost})
    return findings


def diverged(frame: pd.DataFrame) -> list[dict]:
    """DIVERGED: runs that became non-finite or were truncated, and when."""
    runs = [{"algorithm": row.algorithm, "run": int(row.run), "epoch": row.epoch} for row in failures.find(frame).itertuples()]
    listed = names.first_few(f"{run['algorithm']} run {run['run']}" for run in runs)
    return [{"code": "DIVERGED", "text": f"failed runs: {listed}", "runs": runs}] if runs else []


def frozen_runs(frame: pd.DataFrame, epochs: int = 20) -> list[dict]:
    """FROZEN_RUN: runs with the same accuracy for more than `epochs` evaluated epochs in a row."""
    rows, cell = _accuracy(frame), [*RUN, "dataset"]
    if rows.empty:
        return []
    rows = rows.sort_values([*cell, "epoch"])
    stretch = rows.groupby(cell)["value"].diff().round(ranks.DECIMALS).ne(0).cumsum().rename("stretch")
    stretches = rows.groupby([*cell, stretch])["epoch"].agg(["size", "min", "max"]).reset_index()
    findings = []
    for (algorithm, run), parts in stretches[stretches["size"] > epochs].groupby(RUN, sort=False):
        first, last, datasets = float(parts["min"].min()), float(parts["max"].max()), parts["dataset"].unique().tolist()
        text = f"{algorithm} run {run}: the same score for more than {epochs} epochs between {first:g} and {last:g} on "
        facts = {"algorithm": algorithm, "run": int(run), "datasets": datasets, "first_epoch": first, "last_epoch": last}
        findings.append({"code": "FROZEN_RUN", "text": text + names.first_few(datasets), **facts})
    return findings


def small_groups(frame: pd.DataFrame, least: int = 30) -> list[dict]:
    """SMALL_GROUP: validation splits with fewer than `least` aligned or conflicting images, on which the AC score is mostly noise."""
    rows = frame[(frame["role"] == "val") & frame["metric"].isin(["aligned", "conflicting"]) & (frame["n_total"] < least)]
    findings = []
    for (dataset, group), images in rows.groupby(["dataset", "metric"], sort=False)["n_total"].min().items():
        text = f"{dataset} has {images:g} {group} images: selection by the AC score there is mostly noise"
        findings.append({"code": "SMALL_GROUP", "text": text, "dataset": dataset, "group": group, "images": int(images)})
    return findings


def validation_is_test(frame: pd.DataFrame) -> list[dict]:
    """VAL_IS_TEST: a test set on which a run scores as on its validation split at all epochs, three or more, with varying scores."""
    good = _accuracy(frame)
    val, test = good[good["role"] == "val"], good[good["role"] != "val"]
    if val.empty:
        return []
    both = test.merge(val[[*RUN, "epoch", "dataset", "value"]], on=[*RUN, "epoch"], suffixes=("", "_val"))
    both["equal"] = (both["value"] - both["value_val"]).round(ranks.DECIMALS) == 0
    curves = both.groupby(["dataset", "dataset_val", *RUN], sort=False).agg(
        equal=("equal", "all"), epochs=("epoch", "size"), levels=("value", "nunique")
    )
    same = curves[curves["equal"] & (curves["epochs"] >= 3) & (curves["levels"] > 1)]
    findings = []
    for (dataset, split), rows in same.groupby(["dataset", "dataset_val"], sort=False):
        runs = _runs(name[2:] for name in rows.index)
        text = f"the scores on {dataset} equal those on the validation split {split} at all epochs of {len(runs)} run(s): "
        text += "epochs were selected on test images"
        findings.append({"code": "VAL_IS_TEST", "text": text, "dataset": dataset, "validation": split, "runs": runs})
    return findings


def selected_on_test(best: pd.DataFrame, last: pd.DataFrame) -> list[dict]:
    """VAL_IS_TEST from scores alone: data sets on which the selected epochs exceed the mean of the last ones by more than one std.

    std (ddof 1) is that of the excess over runs. On images that were not used for selection the excess is small. `best`, `last`:
    scores of the same runs by best_val and by last_n.
    """
    both = best.merge(last, on=[*RUN, "dataset"], suffixes=("", "_last"))
    excess = (both["value"] - both["value_last"]).groupby(both["dataset"], sort=False).agg(["mean", "std"])
    findings = []
    for dataset, mean, std in excess[excess["mean"] > excess["std"]].itertuples():
        text = f"{dataset}: selected epochs score {mean:.2g} above the last ones, more than the std of {std:.2g} over runs, "
        text += "as if epochs had been selected on these images or on images made from them"
        findings.append({"code": "VAL_IS_TEST", "text": text, "dataset": dataset, "excess": mean, "std": std})
    return findings


def in_distribution(selected: pd.DataFrame, training_data: Mapping[str, Iterable[str]]) -> list[dict]:
    """IN_DISTRIBUTION: data sets that some of the algorithms were trained on, one finding for each."""
    findings = []
    for dataset, rows in selected.groupby("dataset", sort=False):
        trained = [name for name in rows["algorithm"].unique() if dataset in training_data.get(name, ())]
        if trained:
            text = f"{dataset} is training data of {names.first_few(trained)}: their scores on it do not measure a shift"
            findings.append({"code": "IN_DISTRIBUTION", "text": text, "dataset": dataset, "algorithms": trained})
    return findings


def dependent_blocks(selected: pd.DataFrame, families: Mapping[str, str]) -> list[dict]:
    """DEPENDENT_BLOCKS: data sets of one family, and pairs whose scores over algorithms, five or more, have a Spearman correlation > 0.7.

    `effective` is the number of families. Correlation alone is no proof: data sets also agree where algorithms really differ.
    """
    means = printed_tables.grid(selected).groupby("algorithm").mean().round(ranks.DECIMALS)
    datasets, findings = list(means.columns), []
    members: dict[str, list[str]] = {}
    for dataset in datasets:
        members.setdefault(families.get(dataset, dataset), []).append(dataset)
    shared = {name: group for name, group in members.items() if len(group) > 1}
    if shared:
        listed = "; ".join(f"{name}: {', '.join(group)}" for name, group in shared.items())
        counted = "1 family" if len(members) == 1 else f"{len(members)} families"
        text = f"{len(datasets)} data sets form {counted} ({listed}), which are the blocks of the test"
        findings.append({"code": "DEPENDENT_BLOCKS", "text": text, "families": shared, "effective": len(members)})
    if len(means) < FEWEST_ALGORITHMS:
        return findings
    correlation = means.corr("spearman")
    pairs = [
        {"dataset_i": i, "dataset_j": j, "correlation": float(correlation.loc[i, j])}
        for index, i in enumerate(datasets)
        for j in datasets[index + 1 :]
        if correlation.loc[i, j] > CORRELATED
    ]
    if pairs:
        listed = names.first_few(f"{pair['dataset_i']} - {pair['dataset_j']} {pair['correlation']:.2f}" for pair in pairs)
        text = (
            f"pairs of data sets rank the algorithms alike (Spearman > {CORRELATED:g}): {listed}. If they share images, they are one family"
        )
        findings.append({"code": "DEPENDENT_BLOCKS", "text": text, "pairs": pairs})
    return findings


def few_blocks(selected: pd.DataFrame, families: Mapping[str, str]) -> list[dict]:
    """FEW_BLOCKS: fewer than 6 data sets, or families of data sets: no two-sided test of sign type can reach 0.05."""
    blocks = len({families.get(dataset, dataset) for dataset in selected["dataset"].unique()})
    if blocks >= ranks.FEW_BLOCKS:
        return []
    one, many = ("family of data sets", "families of data sets") if families else ("data set", "data sets")
    text = f"only {blocks} {one if blocks == 1 else many}: approximate p-values are rough, use exact ones"
    return [{"code": "FEW_BLOCKS", "text": text, "blocks": blocks}]


def _smallest_step(scores: pd.Series) -> float:
    """Between two different scores; 1 if all are equal."""
    steps = np.diff(np.unique(scores.dropna()))
    return float(steps.min()) if len(steps) else 1.0


def _range_of_others(scores: pd.Series) -> pd.Series:
    """For each score the range of all others; NaN if there are few."""
    known = scores.sort_values().dropna()
    if len(known) <= FEWEST_OTHERS:
        return scores * float("nan")
    whole = scores.where(scores.isna(), known.iloc[-1] - known.iloc[0])
    whole[known.index[0]], whole[known.index[-1]] = known.iloc[-1] - known.iloc[1], known.iloc[-2] - known.iloc[0]
    return whole


def _accuracy(frame: pd.DataFrame) -> pd.DataFrame:
    """The finite accuracies that have an epoch."""
    return frame[(frame["status"] == "ok") & frame["epoch"].notna() & (frame["metric"] == "accuracy")]


def _runs(names: Iterable[tuple]) -> list[dict]:
    return [{"algorithm": algorithm, "run": int(run)} for algorithm, run in names]
