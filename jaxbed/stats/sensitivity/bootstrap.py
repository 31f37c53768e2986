"""How much do results depend on chance in training? Runs resampled within each algorithm; a run is one model, drawn with all its scores.

With fixed data sets, the answer is for these data sets (would other seeds give the same result?); with `datasets=True` they are resampled
too, for other data sets of this kind. Never resample epochs: those of one run are dependent, and intervals become far too narrow.

Percentile intervals are for ranks, F and IQM. For means use the t interval: with 3 runs a nominal 95 % percentile interval covers the
true mean in 74 % of cases (10 runs: 88 %), because r runs allow only C(2r-1, r) resamples. COVERAGE has the coverage of the others
(`python scripts/stats_calibration.py coverage`).

Sources: Efron 1979; Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021 (IQM).
"""

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

from jaxbed.stats.comparisons import ranks

FRAGILE = (0.05, 0.95)  # a pair that is significant in a share of resamples between these may well not be with other seeds


# Coverage of nominal 95 % percentile intervals by number of runs. Simulated: 8 algorithms on 10 data sets, normal runs with a std of 0.36
# times that of algorithm x data set, 2000 intervals each. With data sets resampled too, by their number, 5 runs, 7000 intervals each.
COVERAGE = {"mean rank": {3: 0.92, 5: 0.95, 10: 0.98}, "IQM": {3: 0.75, 5: 0.82, 10: 0.86}}
COVERAGE_OF_DATASETS = {"mean rank": {6: 0.89, 10: 0.92, 20: 0.95}, "mean": {6: 0.87, 10: 0.91, 20: 0.93}}


class Resamples(NamedTuple):
    """B resamples of n algorithms on m data sets."""

    algorithms: list[str]  # in order of first appearance
    datasets: list[str]  # sorted; if data sets are resampled, the columns of `means` differ between resamples
    means: np.ndarray  # [B, n, m] over the drawn runs, rounded as for ranks
    iqm: np.ndarray  # [B, n] mean of the middle half of the scores of all drawn runs on all data sets
    of_datasets: bool = False  # the data sets are resampled too


def resample(selected: pd.DataFrame, draws: int = 2000, seed: int = 0, datasets: bool = False) -> Resamples:
    """Resamples the r runs of every algorithm, r at a time and jointly over data sets, and optionally the data sets.

    `selected`: one value for every algorithm, run and data set. Raises ValueError if a run lacks a data set.
    """
    grid = _grid(selected)
    algorithms, names = list(selected["algorithm"].unique()), list(grid.columns)
    rng = np.random.default_rng(seed)
    columns = rng.integers(len(names), size=(draws, len(names))) if datasets else np.tile(np.arange(len(names)), (draws, 1))
    means, iqm = np.empty((draws, len(algorithms), len(names))), np.empty((draws, len(algorithms)))
    for name in sorted(algorithms):  # sorted: the same draws whatever the order of rows
        row, scores = algorithms.index(name), grid.loc[name].to_numpy()  # [r, m]
        drawn = rng.integers(len(scores), size=(draws, len(scores)))
        chosen = scores[drawn[:, :, None], columns[:, None, :]]  # [B, r, m]
        means[:, row] = chosen.mean(axis=1).round(ranks.DECIMALS)
        iqm[:, row] = scipy.stats.trim_mean(chosen.reshape(draws, -1), 0.25, axis=1)
    return Resamples(algorithms, names, means, iqm, datasets)


def cells(selected: pd.DataFrame, draws: int = 2000, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """The mean of every cell: algorithm, dataset, runs, mean, t_low, t_high, percentile_low, percentile_high, se, resamples, smallest_p.

    se is that of the bootstrap, std(ddof 0) / sqrt(r); resamples, the number of different ones; smallest_p = r^-r, the probability
    of the most extreme one: above (1 - level) / 2 the percentile interval ends at the extreme runs. The t interval of one run is NaN.
    """
    grid, resamples = _grid(selected), resample(selected, draws, seed)
    tails = [(1 - level) / 2, (1 + level) / 2]
    frames = []
    for row, name in enumerate(resamples.algorithms):
        scores = grid.loc[name].to_numpy()
        r = len(scores)
        low, high = np.quantile(resamples.means[:, row], tails, axis=0)
        mean = scores.mean(axis=0)
        half = scipy.stats.t.ppf(tails[1], r - 1) * scores.std(axis=0, ddof=1) / math.sqrt(r) if r > 1 else np.full(len(mean), np.nan)
        columns = {"algorithm": name, "dataset": resamples.datasets, "runs": r, "mean": mean, "t_low": mean - half, "t_high": mean + half}
        columns |= {"percentile_low": low, "percentile_high": high, "se": scores.std(axis=0) / math.sqrt(r)}
        frames.append(pd.DataFrame({**columns, "resamples": math.comb(2 * r - 1, r), "smallest_p": float(r) ** -r}))
    return pd.concat(frames, ignore_index=True)


def intervals(selected: pd.DataFrame, resamples: Resamples, level: float = 0.95) -> pd.DataFrame:
    """Observed value and percentile interval (value, low, high) of every `quantity` of the algorithm `name`.

    mean_rank, mean (over runs and data sets) and iqm of each algorithm, best_share (how often its mean rank is the lowest; no interval),
    and Friedman's f. least: the share of one resample, if the value is a share. t_low, t_high: if data sets are fixed, the t interval of
    the mean over runs; NaN for a single run and other quantities.
    Mean and IQM mix the scales of the data sets: meaningful only if a point means the same on all of them.
    """
    grid, observed = _grid(selected), _observed(selected)
    middle = [scipy.stats.trim_mean(grid.loc[name].to_numpy().ravel(), 0.25) for name in resamples.algorithms]
    ranked, now = rank(resamples.means), rank(observed)
    mean_ranks = ranked.mean(axis=2)
    best = mean_ranks <= mean_ranks.min(axis=1, keepdims=True) + 1e-9
    tails = [(1 - level) / 2, (1 + level) / 2]
    rows: list[tuple] = []
    for quantity, value, drawn in (
        ("mean_rank", now.mean(axis=2)[0], mean_ranks),
        ("mean", observed.mean(axis=2)[0], resamples.means.mean(axis=2)),
        ("iqm", middle, resamples.iqm),
    ):
        low, high = np.quantile(drawn, tails, axis=0)
        rows += zip([quantity] * len(low), resamples.algorithms, value, low, high, strict=True)
    shares = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
    rows += [("best_share", name, share, np.nan, np.nan) for name, share in zip(resamples.algorithms, shares, strict=True)]
    rows.append(("f", "all", friedman_f(now)[0], *np.quantile(friedman_f(ranked), tails, method="nearest")))  # F may be infinite
    table = pd.DataFrame(rows, columns=["quantity", "name", "value", "low", "high"])
    table["least"] = np.where(table["quantity"] == "best_share", 1 / len(resamples.means), 0.0)
    if resamples.of_datasets:
        return table
    ends = _t_interval([grid.loc[name].mean(axis=1) for name in resamples.algorithms], tails[1])
    table.loc[table["quantity"] == "mean", ["t_low", "t_high"]] = np.transpose(ends)
    return table


def profiles(
    selected: pd.DataFrame, lower: bool = False, draws: int = 1000, level: float = 0.95, seed: int = 0, points: int = 101
) -> pd.DataFrame:
    """Performance profile of each algorithm (Agarwal et al., equation 3): algorithm, score, share, low, high.

    share: the share of its scores, runs x data sets, above `score` (`lower`: below), at `points` scores from the smallest to the largest;
    low, high: percentile interval over `draws` resamples of the runs, jointly over data sets. Raises ValueError if a run lacks a data set.
    """
    grid, rng = _grid(selected), np.random.default_rng(seed)
    scores = np.linspace(grid.min(axis=None), grid.max(axis=None), points)
    profile_of = {}
    for name in sorted(selected["algorithm"].unique()):  # sorted: the same draws whatever the order of rows
        scores_of_runs = grid.loc[name].to_numpy()[:, None, :]  # [r, 1, m]
        shares = (scores_of_runs < scores[:, None] if lower else scores_of_runs > scores[:, None]).mean(axis=2)  # [r, points]
        counts = rng.multinomial(len(scores_of_runs), np.full(len(scores_of_runs), 1 / len(scores_of_runs)), draws) / len(scores_of_runs)
        low, high = np.quantile(counts @ shares, [(1 - level) / 2, (1 + level) / 2], axis=0)
        profile_of[name] = pd.DataFrame({"algorithm": name, "score": scores, "share": shares.mean(axis=0), "low": low, "high": high})
    return pd.concat([profile_of[name] for name in selected["algorithm"].unique()], ignore_index=True)


def negated(intervals: pd.DataFrame) -> pd.DataFrame:
    """Intervals of mean and IQM in the original sign, for scores that were negated for the tests because lower is better."""
    turned, rows = intervals.copy(), intervals["quantity"].isin(["mean", "iqm"])
    for name in ("value", "low", "high", "t_low", "t_high"):
        if name in intervals:
            other = {"low": "high", "high": "low"}.get(name.removeprefix("t_"), name)
            turned.loc[rows, name] = -intervals.loc[rows, f"t_{other}" if name.startswith("t_") else other]
    return turned


def differences(selected: pd.DataFrame, resamples: Resamples, level: float = 0.95) -> pd.DataFrame:
    """Every pair once, i - j, with percentile intervals (_low, _high): mean_difference of the scores over data sets, and rank_difference.

    A negative rank_difference means that i is better.
    """
    first, second, table = _pairs(resamples.algorithms)
    observed, tails = _observed(selected), [(1 - level) / 2, (1 + level) / 2]
    for label, of in (
        ("mean_difference", lambda scores: scores.mean(axis=2)),
        ("rank_difference", lambda scores: rank(scores).mean(axis=2)),
    ):
        now, drawn = (values[:, first] - values[:, second] for values in (of(observed), of(resamples.means)))
        low, high = np.quantile(drawn, tails, axis=0)
        table = table.assign(**{label: now[0], f"{label}_low": low, f"{label}_high": high})
    return table


def stability(
    resamples: Resamples, test: Callable[[pd.DataFrame], pd.DataFrame] | None = None, alpha: float = 0.05, draws: int | None = None
) -> pd.DataFrame:
    """Every pair once: `significant`, the share of resamples in which `test` (matrix -> p [n, n]) gives p < alpha, and `fragile`; `least`
    is the share of one resample.

    The default test is Nemenyi's, computed for all resamples at once; another, of ranks within data sets, is called for the first `draws`
    resamples, once for all that rank alike.
    """
    n, m = resamples.means.shape[1:]
    first, second, table = _pairs(resamples.algorithms)
    if test is None:
        means = rank(resamples.means).mean(axis=2)
        differ = np.abs(means[:, first] - means[:, second]) > ranks.critical_difference(n, m, alpha)
    else:
        # numbered columns: a data set may have been drawn twice, and names must be unique
        names = pd.Index(resamples.algorithms)
        ranked = rank(resamples.means[:draws]).reshape(-1, n * m)
        _, resample_of, where = np.unique(ranked, axis=0, return_index=True, return_inverse=True)
        frames = (pd.DataFrame(resamples.means[index], index=names, columns=range(m)) for index in resample_of)
        differ = np.array([test(frame).to_numpy()[first, second] < alpha for frame in frames])[where.ravel()]
    share = differ.mean(axis=0)
    return table.assign(significant=share, least=1 / len(differ), fragile=(share >= FRAGILE[0]) & (share <= FRAGILE[1]))


def findings(stability: pd.DataFrame) -> list[dict]:
    """FRAGILE: pairs whose result may well change with other seeds, {code, text, algorithm_i, algorithm_j, significant}."""
    return [
        {
            "code": "FRAGILE",
            "text": f"{row.algorithm_i} - {row.algorithm_j} is significant in {row.significant:.0%} of the resamples of runs",
            "algorithm_i": row.algorithm_i,
            "algorithm_j": row.algorithm_j,
            "significant": row.significant,
        }
        for row in stability[stability["fragile"]].itertuples()
    ]


def rank(scores: np.ndarray) -> np.ndarray:
    """Scores [..., n, m] -> ranks within each data set, 1 = best, ties averaged; for many matrices at once."""
    others, each = scores[..., None, :, :], scores[..., :, None, :]
    return 0.5 + (others > each).sum(axis=-2) + 0.5 * (others == each).sum(axis=-2)


def friedman_f(ranked: np.ndarray) -> np.ndarray:
    """Ranks [..., n, m] -> Friedman's F, tie-corrected, as `ranks.friedman` defines it; NaN if all tie or m = 1."""
    n, m = ranked.shape[-2:]
    spread = (ranked.sum(axis=-1) ** 2).sum(axis=-1) - n * (m * (n + 1) / 2) ** 2
    largest = m * ((ranked**2).sum(axis=(-2, -1)) - n * m * ((n + 1) / 2) ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (m - 1) * spread / (largest - spread)


def _t_interval(samples: list[pd.Series], upper: float) -> tuple[np.ndarray, np.ndarray]:
    """The t interval of the mean of each sample, up to the quantile `upper`; NaN for a single value."""
    means = np.array([sample.mean() for sample in samples])
    runs = np.array([len(sample) for sample in samples])
    std = np.array([sample.std() if len(sample) > 1 else np.nan for sample in samples])
    half = scipy.stats.t.ppf(upper, np.maximum(runs - 1, 1)) * std / np.sqrt(runs)
    return means - half, means + half


def _observed(selected: pd.DataFrame) -> np.ndarray:
    """Means over runs as one resample, [1, n, m]."""
    means = _grid(selected).groupby("algorithm").mean().loc[selected["algorithm"].unique()]
    return means.to_numpy()[None].round(ranks.DECIMALS)


def _pairs(names: list[str]) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Row numbers i and j of every pair, and the table algorithm_i, algorithm_j."""
    first, second = np.array(list(combinations(range(len(names)), 2))).T
    labels = pd.Index(names)
    return first, second, pd.DataFrame({"algorithm_i": labels[first], "algorithm_j": labels[second]})


def _grid(selected: pd.DataFrame) -> pd.DataFrame:
    """(algorithm, run) x data set, sorted. Raises ValueError for a missing score."""
    grid = selected.pivot(index=["algorithm", "run"], columns="dataset", values="value").sort_index().sort_index(axis=1)
    if grid.isna().any(axis=None):
        algorithm, run = grid.index[grid.isna().any(axis=1)][0]
        dataset = grid.columns[grid.loc[(algorithm, run)].isna()][0]
        raise ValueError(
            f"{algorithm!r} run {run} has no score on {dataset!r}; a run is resampled with all its scores. "
            f"Measure it, or leave out that data set or --exclude {algorithm}:{run}"
        )
    return grid
