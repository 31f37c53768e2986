"""What would more data sets or more runs show? Simulation from a two-way model, and the smallest difference a t-test can detect.

Scores are standardised within each data set (mean 0, std 1 over the algorithms' means) to give data sets equal weight. With two algorithms
this would make all differences equal, so they share one scale over all data sets. Then

    score = effect of the algorithm + algorithm x data set (normal, std `interaction`) + run (normal, std `run`).

All answers assume that the estimated effects are the true ones. The largest of several estimated effects is usually too large, so for
the best pair the numbers are optimistic. With BiasBed's variances three runs are as good as a hundred: more data sets are needed.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

from jaxbed.stats.comparisons import ranks
from jaxbed.stats.sensitivity import bootstrap

LARGEST_RUNS = 200
TESTS = {"friedman": "Friedman's test", "nemenyi": "Nemenyi's test", "control_holm": "z test against the baseline with Holm's adjustment"}


class Model(NamedTuple):
    """The two-way model in standard deviations of a data set's algorithm means; for two algorithms in their root mean square."""

    effects: pd.Series  # of each algorithm, mean 0
    interaction: float  # std of algorithm x data set
    run: float  # std of runs within a cell


def fit(selected: pd.DataFrame) -> Model:
    """The model from one value for every algorithm, run and data set; variances by the method of moments, not below 0.

    A data set on which all algorithms have the same mean has no scale and is left out, unless there are two algorithms. run is NaN if every
    cell has one run: the interaction then contains both. With three or four algorithms the std of a data set is imprecise: run is
    overestimated, interaction underestimated. Raises ValueError for fewer than 2 algorithms or 2 data sets that differ, or a missing cell.
    """
    cells = selected.groupby(["algorithm", "dataset"], sort=False)["value"]
    means, variances, counts = (table.unstack("dataset") for table in (cells.mean(), cells.var(), cells.size()))
    means = means.round(ranks.DECIMALS)
    ranks.rank(means)  # raises an error for what cannot be compared
    spread = means.std()
    useful = spread[spread > 0].index
    n, m = len(means), len(useful)
    if m < 2:
        raise ValueError(f"power needs at least 2 data sets on which the algorithms differ, got {m}; add data sets")
    if n == 2:
        useful, spread = means.columns, spread * 0 + np.sqrt((spread**2).mean())
        m = len(useful)
    standard = (means[useful] - means[useful].mean()) / spread[useful]
    effects = standard.mean(axis=1)
    run = (variances[useful] / spread[useful] ** 2).unstack().mean()  # of the cells with at least two runs
    residual = (standard.sub(effects, axis=0) ** 2).to_numpy().sum() / ((n - 1) * (m - 1))
    noise = run * (1 / counts[useful]).to_numpy().mean() if run == run else 0.0
    return Model(effects, float(np.sqrt(max(residual - noise, 0.0))), float(np.sqrt(run)))


def curves(
    model: Model,
    runs: int,
    baseline: str | None = None,
    largest: int = 60,
    draws: int = 2000,
    alpha: float = 0.05,
    seed: int = 0,
) -> pd.DataFrame:
    """Power with 2 to `largest` data sets: columns test, algorithm_i, algorithm_j, datasets, power.

    test is 'friedman' (any difference; no pair), 'nemenyi' (every pair) or 'control_holm' (every algorithm against `baseline`, z on mean
    ranks with Holm's correction; only where a baseline is given). For two algorithms each is the sign test.
    Only rejections in the true direction count.
    """
    effects = model.effects.sort_index(key=lambda names: names.astype(str))  # the same draws whatever the order of rows
    names, n = list(effects.index), len(effects)
    noise = math.sqrt(model.interaction**2 + (model.run**2 / runs if model.run == model.run else 0.0))
    normal = np.random.default_rng(seed).standard_normal((draws, n, largest))
    ranked = bootstrap.rank(effects.to_numpy()[:, None] + noise * normal)
    sums = ranked.cumsum(axis=2)[:, :, 1:]  # [B, n, largest - 1] with the first 2, 3, ... data sets
    datasets = np.arange(2, largest + 1)
    error = np.sqrt(n * (n + 1) * datasets / 6)  # of a difference of rank sums
    if n > 2:
        critical = scipy.stats.studentized_range.ppf(1 - alpha, n, np.inf) / math.sqrt(2) * error
        power_of = {("friedman", "", ""): _friedman_power(sums, datasets, alpha)}
    else:
        critical = _lead_of_sign_test(datasets, alpha)
        power_of = {("friedman", "", ""): (np.abs(sums[:, 0] - sums[:, 1]) > critical).mean(axis=0)}
    for i, j in combinations(model.effects.index, 2):
        lead = sums[:, names.index(j)] - sums[:, names.index(i)]
        power_of["nemenyi", i, j] = (np.sign(effects[i] - effects[j]) * lead > critical).mean(axis=0)
    if baseline is not None:
        others = [name for name in model.effects.index if name != baseline]
        lead = sums[:, [names.index(baseline)]] - sums[:, [names.index(name) for name in others]]
        truth = np.sign(effects[others].to_numpy() - effects[baseline])[:, None]
        rejected = holm_rejects(np.abs(lead) / error, alpha) if n > 2 else np.abs(lead) > critical
        right = (rejected & (truth * lead > 0)).mean(axis=0)
        power_of |= {("control_holm", name, baseline): power for name, power in zip(others, right, strict=True)}
    frames = [
        pd.DataFrame({"test": test, "algorithm_i": i, "algorithm_j": j, "datasets": datasets, "power": power})
        for (test, i, j), power in power_of.items()
    ]
    return pd.concat(frames, ignore_index=True)


def datasets_needed(curves: pd.DataFrame, power: float = 0.8) -> pd.DataFrame:
    """test, algorithm_i, algorithm_j, datasets: the fewest that reach `power`; NaN if even the largest simulated number does not."""
    keys = ["test", "algorithm_i", "algorithm_j"]
    enough = curves["datasets"].where(curves["power"] >= power)
    return enough.groupby([curves[key] for key in keys], sort=False).min().reset_index()


@lru_cache(maxsize=1000)
def detectable(runs: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The true difference, in std of runs, that a two-sided t-test of two algorithms with `runs` runs each detects with `power`.

    3.07, 2.02, 1.33, 0.91 for 3, 5, 10, 20 runs. Raises ValueError for fewer than 2 runs.
    """
    if runs < 2:
        raise ValueError(f"runs {runs}: the std of runs is unknown with fewer than 2; train at least 2, better 5")
    degrees = 2 * runs - 2
    critical = scipy.stats.t.isf(alpha / 2, degrees)
    # the wrong tail is negligible at such power; SciPy's noncentral t fails for large shifts, so the search is bounded
    shift = scipy.optimize.brentq(lambda shift: scipy.stats.nct.sf(critical, degrees, shift) - power, 0, 3 * critical + 5)
    return float(shift) * math.sqrt(2 / runs)


@lru_cache(maxsize=100)
def _detectable_up_to(largest: int, power: float, alpha: float) -> np.ndarray:
    """`detectable` for 2, 3, ..., `largest` runs, all found at once."""
    from scipy.optimize import elementwise

    runs = np.arange(2, largest + 1)
    degrees = 2.0 * runs - 2
    critical = scipy.stats.t.isf(alpha / 2, degrees)
    root = elementwise.find_root(
        lambda shift, critical, degrees: scipy.stats.nct.sf(critical, degrees, shift) - power,
        (np.zeros(len(runs)), 3 * critical + 5),
        args=(critical, degrees),
    )
    return root.x * np.sqrt(2 / runs)


def per_dataset(selected: pd.DataFrame, runs: Sequence[int] = (3, 5, 10, 20), power: float = 0.8, alpha: float = 0.05) -> pd.DataFrame:
    """dataset, run_std, and detectable_R for every R in `runs`: the smallest difference detected with `power`, in the unit of the scores.

    run_std is the root mean square over algorithms of their std over runs; NaN if every cell has one run.
    """
    cells = selected.groupby(["dataset", "algorithm"], sort=False)["value"].var()
    table = (cells.groupby("dataset", sort=False).mean() ** 0.5).rename("run_std").reset_index()
    return table.assign(**{f"detectable_{r}": table["run_std"] * detectable(r, power, alpha) for r in runs})


def runs_needed(selected: pd.DataFrame, power: float = 0.8, alpha: float = 0.05) -> pd.DataFrame:
    """Every pair on every data set: algorithm_i, algorithm_j, dataset, difference (i - j) of the means, runs.

    runs: the fewest of each algorithm for which `detectable` is at most the difference; NaN if LARGEST_RUNS are too few or the std of
    runs is unknown.
    """
    means = selected.groupby(["algorithm", "dataset"], sort=False)["value"].mean().round(ranks.DECIMALS).unstack("dataset")
    spread = per_dataset(selected, ()).set_index("dataset")["run_std"][means.columns].to_numpy()
    finest = _detectable_up_to(LARGEST_RUNS, power, alpha)
    frames = []
    for i, j in combinations(means.index, 2):
        difference = (means.loc[i] - means.loc[j]).to_numpy()
        enough = finest[:, None] * spread <= np.abs(difference)
        runs = np.where(enough.any(axis=0), enough.argmax(axis=0) + 2.0, np.nan)
        frames.append(pd.DataFrame({"algorithm_i": i, "algorithm_j": j, "dataset": means.columns, "difference": difference, "runs": runs}))
    return pd.concat(frames, ignore_index=True)


def holm_rejects(z: np.ndarray, alpha: float) -> np.ndarray:
    """|z| [B, K, M] -> which of the K hypotheses Holm's step-down procedure rejects."""
    order = np.argsort(-z, axis=1)
    steps = scipy.stats.norm.isf(alpha / 2 / np.arange(z.shape[1], 0, -1))[:, None]
    passed = np.logical_and.accumulate(np.take_along_axis(z, order, axis=1) > steps, axis=1)
    rejected = np.empty_like(passed)
    np.put_along_axis(rejected, order, passed, axis=1)
    return rejected


def _lead_of_sign_test(datasets: np.ndarray, alpha: float) -> np.ndarray:
    """Two algorithms: wins minus losses beyond which the exact sign test is significant [M]; the number of data sets if it cannot be."""
    losses = (2 * scipy.stats.binom.cdf(np.arange(datasets.max())[:, None], datasets, 0.5) < alpha).sum(axis=0)
    return datasets - 2 * losses


def _friedman_power(sums: np.ndarray, datasets: np.ndarray, alpha: float) -> np.ndarray:
    """Rank sums without ties [B, n, M] -> the share of B in which F, with the d.o.f. that match the moments, is significant [M]."""
    n = sums.shape[1]
    spread = (sums**2).sum(axis=1) - n * (datasets * (n + 1) / 2) ** 2
    largest = datasets**2 * n * (n * n - 1) / 12
    degrees = n - 1 - 2 / datasets
    # F = (m-1) W / (1-W) exceeds its quantile f where W exceeds f / (f + m - 1); no d.o.f. are left for n = m = 2, and W is at most 1
    f = np.array([scipy.stats.f.isf(alpha, d, d * (m - 1)) if d > 0 else np.nan for d, m in zip(degrees, datasets, strict=True)])
    return (spread > largest * np.nan_to_num(f / (f + datasets - 1), nan=1.0)).mean(axis=0)
