"""Can the scores be what they are said to be? Faults that no test sees: copied, swapped, hidden, frozen runs; selection on test data.

Every function returns findings, a list of {code, text} with the facts as further fields; [] where nothing was found. A finding is a
reason to look, not a proof. `frame`: all records; `selected`: one value for every (algorithm, run, dataset) of one metric, see `select`.

BiasBed's published scores hold one run twice, an algorithm with nine runs instead of ten, a run of another algorithm that entered a
table but is not among the runs, and a test set that served as validation split. All are found here or, of tables, in `printed`.
"""

from collections.abc import Iterable, Mapping

import pandas as pd

from jaxbed.stats import names
from jaxbed.stats.audit import printed_tables, scales
from jaxbed.stats.comparisons import ranks
from jaxbed.stats.selection import failures

RUN = ["algorithm", "run"]
FEWEST_DATASETS = 3  # on which equal scores of two runs are no chance
FEWEST_ALGORITHMS = 5  # with fewer, rank correlations above 0.7 are common by chance
OUTLIER = 10.0  # robust z
HUGE, FEWEST_OTHERS = 2.0, 8  # ranges of all other scores on the dataset, of which a range says something
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
    `training_data`: the datasets each algorithm was trained on; `families`: dataset -> its family; `sizes`: dataset -> images;
    `sources`: as workdirs.read gives them.
    """
    found = [*scales.impossible(frame), *scales.mixed(selected), *training_data.mixed(selected, sources)]
    found += training_data.other_images(selected, sources)
    found += [*run_counts(selected), *duplicate_runs(selected), *outlier_runs(selected)]
    found += [*diverged(frame), *frozen_runs(frame), *small_groups(frame), *validation_is_test(frame)]
    if last is not None:
        found += selected_on_test(selected, last)
    if table is not None:
        found += [*printed_tables.table_mismatch(selected, table), *printed_tables.hidden_runs(selected, table)]
    return [*found, *printed_tables.granularity(selected, sizes or {}), *of_datasets(selected, training_data or {}, families or {})]


def of_datasets(selected: pd.DataFrame, training_data: Mapping[str, Iterable[str]], families: Mapping[str, str]) -> list[dict]:
    """The findings about the datasets compared: OF_DATASETS."""
    return [*in_distribution(selected, training_data), *dependent_blocks(selected, families), *few_blocks(selected, families)]


def duplicate_runs(selected: pd.DataFrame) -> list[dict]:
    """DUPLICATE_RUN: runs, of one algorithm or of several, that are equal on all datasets, three or more."""
    seen = {}
    for name, scores in printed_tables.grid(selected).round(ranks.DECIMALS).iterrows():
        if scores.notna().sum() >= FEWEST_DATASETS:
            seen.setdefault(tuple(scores.fillna(float("inf"))), []).append(name)
    return [
        {
            "code": "DUPLICATE_RUN",
            "text": "equal on all datasets: " + ", ".join(f"{algorithm} run {run}" for algorithm, run in runs),
            "runs": _runs(runs),
        }
        for runs in seen.values()
        if len(runs) > 1
    ]


def outlier_runs(selected: pd.DataFrame) -> list[dict]:
    """OUTLIER_RUN: a run with robust z = 0.6745 |x - median| / MAD > 10 on some dataset, and either at least twice as near to another
    algorithm, or further from its median there than twice the range of all other scores on the dataset, which are 8 or more.

    Median and MAD are over the runs of its algorithm (of two runs none is an outlier); the MAD is not taken below the smallest step
    between two scores on the dataset. The nearest is that with the smallest root mean square over datasets of the distances to its medians,
    in units of the middle MAD of the algorithms; "twice as near" compares the medians of these distances over datasets. z alone says
    little with few runs: the MAD of three is often tiny.
    """
    scores = printed_tables.grid(selected)
    owner = scores.index.get_level_values("algorithm")
    steps = scores.round(ranks.DECIMALS).apply(lambda column: column.drop_duplicates().sort_values().diff().min()).fillna(1.0)
    medians = scores.groupby("algorithm").median()
    deviation = scores - medians.loc[owner].to_numpy()
    mad = deviation.abs().groupby("algorithm").median().clip(lower=steps, axis=1)
    z = 0.6745 * deviation / mad.loc[owner].to_numpy()
    huge = deviation.abs() > HUGE * scores.apply(_range_of_others)
    found = []
    for algorithm, run in z.index[(z.abs() > OUTLIER).any(axis=1)]:
        unit = mad.median()
        nearest = printed_tables.nearest(scores.loc[(algorithm, run)], medians, unit)
        middle = ((medians - scores.loc[(algorithm, run)]) / unit).abs().median(axis=1)
        mislabelled = 2 * middle[nearest] < middle[algorithm]
        own = z.loc[(algorithm, run)]
        own = own if mislabelled else own[huge.loc[(algorithm, run)]]
        if own.abs().max() > OUTLIER:
            dataset = own.abs().idxmax()
            text = f"{algorithm} run {run} is far from its other runs (robust z {own[dataset]:.0f} on {dataset})"
            text += f" and nearest to {nearest}" if mislabelled else f": {scores.loc[(algorithm, run), dataset]:g} is far from all others"
            facts = {"algorithm": algorithm, "run": int(run), "dataset": dataset, "z": float(own[dataset]), "nearest": nearest}
            found.append({"code": "OUTLIER_RUN", "text": text, **facts})
    return found


def run_counts(selected: pd.DataFrame) -> list[dict]:
    """UNEQUAL_RUNS: algorithms differ in their number of runs. MISSING: runs without a score on a dataset that others have."""
    counts = selected.groupby("algorithm", sort=False)["run"].nunique().to_dict()
    found = []
    if len(set(counts.values())) > 1:
        text = "runs: " + ", ".join(f"{name} {count}" for name, count in counts.items())
        found.append({"code": "UNEQUAL_RUNS", "text": text, "runs": counts})
    gaps = printed_tables.grid(selected).isna().stack(future_stack=True)
    lost = [{"algorithm": algorithm, "run": int(run), "dataset": dataset} for algorithm, run, dataset in gaps.index[gaps]]
    if lost:
        text = "no score of " + names.first_few(f"{cell['algorithm']} run {cell['run']} on {cell['dataset']}" for cell in lost)
        found.append({"code": "MISSING", "text": text, "cells": lost})
    return found


def diverged(frame: pd.DataFrame) -> list[dict]:
    """DIVERGED: runs that went non-finite or were cut short, and when."""
    runs = [{"algorithm": row.algorithm, "run": int(row.run), "epoch": row.epoch} for row in failures.find(frame).itertuples()]
    listed = names.first_few(f"{run['algorithm']} run {run['run']}" for run in runs)
    return [{"code": "DIVERGED", "text": f"failed: {listed}", "runs": runs}] if runs else []


def frozen_runs(frame: pd.DataFrame, epochs: int = 20) -> list[dict]:
    """FROZEN_RUN: runs with an accuracy that stays the same over more than `epochs` evaluated epochs in a row."""
    rows, cell = _accuracy(frame), [*RUN, "dataset"]
    rows = rows.sort_values([*cell, "epoch"])
    stretch = rows.groupby(cell)["value"].diff().round(ranks.DECIMALS).ne(0).cumsum().rename("stretch")
    stretches = rows.groupby([*cell, stretch])["epoch"].agg(["size", "min", "max"]).reset_index()
    found = []
    for (algorithm, run), parts in stretches[stretches["size"] > epochs].groupby(RUN, sort=False):
        first, last, datasets = float(parts["min"].min()), float(parts["max"].max()), parts["dataset"].unique().tolist()
        text = f"{algorithm} run {run}: the same score for more than {epochs} epochs between {first:g} and {last:g} on "
        facts = {"algorithm": algorithm, "run": int(run), "datasets": datasets, "first_epoch": first, "last_epoch": last}
        found.append({"code": "FROZEN_RUN", "text": text + names.first_few(datasets), **facts})
    return found


def small_groups(frame: pd.DataFrame, least: int = 30) -> list[dict]:
    """SMALL_GROUP: validation splits with fewer than `least` aligned or conflicting images, on which the AC score is mostly noise."""
    rows = frame[(frame["role"] == "val") & frame["metric"].isin(["aligned", "conflicting"]) & (frame["n_total"] < least)]
    found = []
    for (dataset, group), images in rows.groupby(["dataset", "metric"], sort=False)["n_total"].min().items():
        text = f"{dataset} has {images:g} {group} images: selection by the AC score there is mostly noise"
        found.append({"code": "SMALL_GROUP", "text": text, "dataset": dataset, "group": group, "images": int(images)})
    return found


def validation_is_test(frame: pd.DataFrame) -> list[dict]:
    """VAL_IS_TEST: a test set on which a run scores as on its validation split at all epochs, three or more, not all the same score."""
    good = _accuracy(frame)
    val, test = good[good["role"] == "val"], good[good["role"] != "val"]
    both = test.merge(val[[*RUN, "epoch", "dataset", "value"]], on=[*RUN, "epoch"], suffixes=("", "_val"))
    both["equal"] = (both["value"] - both["value_val"]).round(ranks.DECIMALS) == 0
    curves = both.groupby(["dataset", "dataset_val", *RUN], sort=False).agg(
        equal=("equal", "all"), epochs=("epoch", "size"), levels=("value", "nunique")
    )
    same = curves[curves["equal"] & (curves["epochs"] >= 3) & (curves["levels"] > 1)]
    found = []
    for (dataset, split), rows in same.groupby(["dataset", "dataset_val"], sort=False):
        runs = _runs(name[2:] for name in rows.index)
        text = f"{dataset} scores as the validation split {split} at all epochs of {len(runs)} run(s): epochs were selected on test images"
        found.append({"code": "VAL_IS_TEST", "text": text, "dataset": dataset, "validation": split, "runs": runs})
    return found


def selected_on_test(best: pd.DataFrame, last: pd.DataFrame) -> list[dict]:
    """VAL_IS_TEST from scores alone: datasets on which the selected epoch exceeds the mean of the last ones by more than one std.

    std (ddof 1) is that of the excess over runs. On images that had no part in the selection the excess is small. `best`, `last`:
    scores of the same runs by best_val and by last_n.
    """
    both = best.merge(last, on=[*RUN, "dataset"], suffixes=("", "_last"))
    excess = (both["value"] - both["value_last"]).groupby(both["dataset"], sort=False).agg(["mean", "std"])
    found = []
    for dataset, mean, std in excess[excess["mean"] > excess["std"]].itertuples():
        text = f"{dataset}: selected epochs score {mean:.2g} above the last ones, more than the std of {std:.2g} over runs, "
        text += "as if they had been selected on these images or on images made from them"
        found.append({"code": "VAL_IS_TEST", "text": text, "dataset": dataset, "excess": mean, "std": std})
    return found


def in_distribution(selected: pd.DataFrame, training_data: Mapping[str, Iterable[str]]) -> list[dict]:
    """IN_DISTRIBUTION: datasets that some of the algorithms were trained on, one finding for each dataset."""
    found = []
    for dataset, rows in selected.groupby("dataset", sort=False):
        trained = [name for name in rows["algorithm"].unique() if dataset in training_data.get(name, ())]
        if trained:
            text = f"{dataset} is training data of {names.first_few(trained)}: there it measures no shift"
            found.append({"code": "IN_DISTRIBUTION", "text": text, "dataset": dataset, "algorithms": trained})
    return found


def dependent_blocks(selected: pd.DataFrame, families: Mapping[str, str]) -> list[dict]:
    """DEPENDENT_BLOCKS: datasets of one family, and pairs whose scores over algorithms, five or more, have a Spearman correlation > 0.7.

    `effective` is the number of families. Correlation alone proves nothing: datasets also agree where algorithms really differ.
    """
    means = printed_tables.grid(selected).groupby("algorithm").mean().round(ranks.DECIMALS)
    datasets, members, found = list(means.columns), {}, []
    for dataset in datasets:
        members.setdefault(families.get(dataset, dataset), []).append(dataset)
    shared = {name: group for name, group in members.items() if len(group) > 1}
    if shared:
        listed = "; ".join(f"{name}: {', '.join(group)}" for name, group in shared.items())
        counted = "1 family" if len(members) == 1 else f"{len(members)} families"
        text = f"{len(datasets)} datasets are {counted} ({listed}), the blocks of the test"
        found.append({"code": "DEPENDENT_BLOCKS", "text": text, "families": shared, "effective": len(members)})
    if len(means) < FEWEST_ALGORITHMS:
        return found
    correlation = means.corr("spearman")
    pairs = [
        {"dataset_i": i, "dataset_j": j, "correlation": float(correlation.loc[i, j])}
        for place, i in enumerate(datasets)
        for j in datasets[place + 1 :]
        if correlation.loc[i, j] > CORRELATED
    ]
    if pairs:
        listed = names.first_few(f"{pair['dataset_i']} - {pair['dataset_j']} {pair['correlation']:.2f}" for pair in pairs)
        text = f"order the algorithms alike (Spearman > {CORRELATED:g}): {listed}. If they share images, they are one family"
        found.append({"code": "DEPENDENT_BLOCKS", "text": text, "pairs": pairs})
    return found


def few_blocks(selected: pd.DataFrame, families: Mapping[str, str]) -> list[dict]:
    """FEW_BLOCKS: fewer than 6 datasets, or families of datasets: no two-sided sign-type test can reach 0.05."""
    blocks = len({families.get(dataset, dataset) for dataset in selected["dataset"].unique()})
    if blocks >= ranks.FEW_BLOCKS:
        return []
    one, many = ("family of datasets is", "families of datasets are") if families else ("dataset is", "datasets are")
    text = f"{blocks} {one if blocks == 1 else many} few: approximate p-values are rough, use exact ones"
    return [{"code": "FEW_BLOCKS", "text": text, "blocks": blocks}]


def _range_of_others(scores: pd.Series) -> pd.Series:
    """For each score the range of all others, NaN where they are few."""
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
