"""Would the algorithms differ on these data sets with other runs? Runs are random, data sets fixed: nothing follows for new data sets.

Input: `selected`, one row for each algorithm, run and data set with a `value`, higher is better, from rules.apply for one metric.
n algorithms on a data set, N runs of all of them. Rank 1 is the best run.

Runs of different algorithms must be independent. If run k of all algorithms starts from the same seed or weights, the runs are paired:
they are then blocks, which is valid within one data set only.

Few runs cannot give a small p: for two algorithms with 3 runs p is never below 0.1, although chi2 gives 0.0495. Use p, not p_chi2.

Sources: Kruskal and Wallis 1952; Dunn 1964; Tomczak and Tomczak 2014 (effect sizes); Vargha and Delaney 2000 (A12).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats at its first use, which takes half a second

from jaxbed.stats.comparisons import pairwise, permutation, ranks, run_permutations


def test(selected: pd.DataFrame, *, paired: bool = False, draws: int = permutation.DRAWS, seed: int = 0) -> pd.DataFrame:
    """One row per data set: do the algorithms differ? Kruskal-Wallis; paired: Friedman with runs as blocks.

    dataset, test, n_algorithms, n_runs (N; paired: runs of each), statistic (H, chi2; tie-corrected), degrees_of_freedom, p_chi2,
    tie_correction (1 without ties), epsilon_squared H / (N-1) and eta_squared_h (H-n+1) / (N-n), or paired kendall_w,
    p  by permutation, exact up to run_permutations.EXACT (paired: as permutation.test), else (hits + 1) / (draws + 1),
    method, draws, standard_error of p, p_least (permutation.p_value), p_holm over the data sets.

    All values equal: statistic NaN, p = 1. Raises ValueError for a repeated run, a data set with one algorithm and, if paired, a run that
    an algorithm lacks.
    """
    datasets = list(_datasets(selected))
    if paired:
        tested = [_friedman(rows, draws, seed) for _, rows in datasets]
    else:
        facts, questions = zip(*(_kruskal(rows) for _, rows in datasets), strict=True)
        tested = [{**one, **p} for one, p in zip(facts, run_permutations.p_values(questions, draws, seed), strict=True)]
    frame = pd.DataFrame([{"dataset": dataset, **one} for (dataset, _), one in zip(datasets, tested, strict=True)])
    return frame.assign(p_holm=pairwise.holm(frame["p"]))


def kruskal_p(h: float, degrees_of_freedom: int) -> float:
    """P(chi2 >= h), to check a published H; degrees_of_freedom = n - 1."""
    return float(scipy.stats.chi2.sf(h, degrees_of_freedom))


def dunn(selected: pd.DataFrame) -> pd.DataFrame:
    """One row per data set and pair: dataset, algorithm_i, algorithm_j, mean_rank_i, mean_rank_j (of runs), p, p_holm, p_holm_all.

    z = (R_i - R_j) / sqrt(V (1/r_i + 1/r_j)), r runs, V variance of all N ranks, which includes the tie correction; normal, rough for few
    runs. p_holm is adjusted over the pairs of the data set, p_holm_all over all rows. Raises ValueError as `test`.
    """
    frames = []
    for dataset, rows in _datasets(selected):
        ranked = _ranks_by_algorithm(rows)
        i, j = np.triu_indices(len(ranked), 1)
        mean, size, variance = ranked["mean"].to_numpy(), ranked["size"].to_numpy(), ranked["variance"].to_numpy()
        z = (mean[i] - mean[j]) / np.sqrt(np.where(variance[i] > 0, variance[i], 1) * (1 / size[i] + 1 / size[j]))  # no variance: z = 0
        columns = {"algorithm_i": ranked.index[i], "algorithm_j": ranked.index[j], "mean_rank_i": mean[i], "mean_rank_j": mean[j]}
        p = 2 * scipy.stats.norm.sf(np.abs(z))
        frames.append(pd.DataFrame({"dataset": dataset, **columns, "p": p, "p_holm": pairwise.holm(p)}))
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(p_holm_all=pairwise.holm(frame["p"]))


def pairs(selected: pd.DataFrame, baseline: str | None = None, *, draws: int = permutation.DRAWS, seed: int = 0) -> pd.DataFrame:
    """One row per pair, or per algorithm i against the baseline j, over all data sets at once; differences are i - j, positive = i better.

    difference    mean over data sets of (mean_i - mean_j) / s, s the std (ddof 1) over the runs of both algorithms on it; 0 where
                  s = 0. Has no unit. s grows with the difference: even one far larger than the std of runs gives about 2 at most
    cliffs_delta, a12   of `improvement`, averaged over data sets
    p             P(|difference| >= observed) if the runs of both are reassigned at random, each with its values on all data sets as one
                  model; exact up to run_permutations.EXACT, else (hits + 1) / (draws + 1); method, draws, standard_error, p_least;
                  p_holm over the rows

    Raises ValueError for a repeated run, a run without a value on some data set, and an unknown baseline.
    """
    table = _runs_by_datasets(selected)
    names = table.index.unique()
    rows, questions = [], []
    for i, j in pairwise.family(names, baseline):
        values = table.loc[[names[i], names[j]]].to_numpy()
        values = values - values[0]  # if all are equal, the std is now exactly 0
        std = values.std(axis=0, ddof=1)
        score = (values / np.where(std > 0, std, 1)).mean(axis=1)  # the difference is that of the mean scores
        first = int((table.index == names[i]).sum())
        difference, question = _two_samples(score[:first], score[first:])
        rows.append({"algorithm_i": names[i], "algorithm_j": names[j], "difference": difference})
        questions.append(question)
    rows = [{**one, **p} for one, p in zip(rows, run_permutations.p_values(questions, draws, seed), strict=True)]
    effects = improvement(selected, baseline).groupby(["algorithm_i", "algorithm_j"], as_index=False)[["cliffs_delta", "a12"]].mean()
    frame = pd.DataFrame(rows).merge(effects, how="left")
    return frame.assign(p_holm=pairwise.holm(frame["p"]))


def improvement(selected: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """One row per data set and pair, or per data set and algorithm i against the baseline j: how often does a run of i beat a run of j?

    dataset, algorithm_i, algorithm_j, cliffs_delta = P(i > j) - P(i < j), a12 = (cliffs_delta + 1) / 2, the probability of improvement,
    ties counted half. Average over data sets; never pool runs of several data sets, whose scales differ. Raises ValueError as `test`.
    """
    effects = []
    for dataset, rows in _datasets(selected):
        values = {name: group.to_numpy() for name, group in rows.groupby("algorithm", sort=False)["value"]}
        names = pd.Index(values)
        for i, j in pairwise.family(names, baseline):
            delta = pairwise.cliffs_delta(values[names[i]], values[names[j]])
            effects.append((dataset, names[i], names[j], delta, (delta + 1) / 2))
    return pd.DataFrame(effects, columns=["dataset", "algorithm_i", "algorithm_j", "cliffs_delta", "a12"])


def intervals(selected: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """One row per cell: algorithm, dataset, mean, std (ddof 1), n runs, low and high = mean ± t std / sqrt(n); NaN for one run.

    With three runs mean ± std / sqrt(n) covers the true mean in 57 % of cases, a percentile bootstrap in 75 %; this interval keeps its
    level if runs are about normal.
    """
    _refuse_repeats(selected)
    ordered = selected.sort_values("run", kind="stable")  # the same sums whatever the order of rows
    frame = ordered.groupby(["algorithm", "dataset"])["value"].agg(mean="mean", std="std", n="size")
    half = scipy.stats.t.ppf((1 + level) / 2, frame["n"] - 1) * frame["std"] / np.sqrt(frame["n"])
    frame = frame.assign(low=frame["mean"] - half, high=frame["mean"] + half)
    return selected[["algorithm", "dataset"]].drop_duplicates().merge(frame.reset_index(), how="left")


def _kruskal(rows: pd.DataFrame) -> tuple[dict, run_permutations.Question]:
    ranked = _ranks_by_algorithm(rows).sort_index()
    sizes, n = np.sort(ranked["size"].to_numpy()), len(ranked)
    total, variance = int(sizes.sum()), float(ranked["variance"].iloc[0])
    between = float((ranked["size"] * (ranked["mean"] - (total + 1) / 2) ** 2).sum())
    h = between / variance if variance > 0 else float("nan")
    doubled = np.sort(np.rint(2 * _run_ranks(rows).to_numpy()).astype(int))

    def reached(sums: np.ndarray) -> np.ndarray:
        spread = ((sums / 2 - sizes * (total + 1) / 2) ** 2 / sizes).sum(axis=1)
        return spread >= between - 1e-9 * total**2

    facts = {
        "test": "Kruskal-Wallis",
        "n_algorithms": n,
        "n_runs": total,
        "statistic": h,
        "degrees_of_freedom": n - 1,
        "p_chi2": kruskal_p(h, n - 1) if variance > 0 else 1.0,
        "tie_correction": variance / (total * (total + 1) / 12),
        "epsilon_squared": h / (total - 1),
        "eta_squared_h": (h - n + 1) / (total - n) if total > n else float("nan"),
    }
    return facts, run_permutations.Question(doubled, sizes, reached)


def _friedman(rows: pd.DataFrame, draws: int, seed: int) -> dict:
    matrix = rows.pivot(index="algorithm", columns="run", values="value")
    lost = np.argwhere(matrix.isna().to_numpy())
    if len(lost):
        algorithm, run = matrix.index[lost[0, 0]], matrix.columns[lost[0, 1]]
        raise ValueError(
            f"paired runs: {algorithm!r} has no run {run} on {rows['dataset'].iloc[0]!r}; "
            "leave out that run of all algorithms, or compare without --paired"
        )
    tested, permuted = ranks.friedman(matrix), permutation.test(matrix, draws=draws, seed=seed)
    return {
        "test": "Friedman, runs as blocks",
        "n_algorithms": matrix.shape[0],
        "n_runs": matrix.shape[1],
        "statistic": tested["chi2"],
        "degrees_of_freedom": tested["chi2_degrees_of_freedom"],
        "p_chi2": tested["p_chi2"],
        "tie_correction": tested["tie_correction"],
        "kendall_w": tested["kendall_w"],
        "p": permuted.p,
        "method": permuted.method,
        "draws": permuted.draws,
        "standard_error": permuted.standard_error,
        "p_least": permuted.p_least,
    }


def _two_samples(first: np.ndarray, second: np.ndarray) -> tuple[float, run_permutations.Question]:
    """The difference of means, and the question whether another assignment of the values gives one as large, of either sign."""
    difference = float(first.mean() - second.mean())
    values, sizes = np.sort(np.concatenate([first, second])), np.sort([len(first), len(second)])

    def reached(sums: np.ndarray) -> np.ndarray:
        return np.abs(sums[:, 0] / sizes[0] - sums[:, 1] / sizes[1]) >= abs(difference) - 1e-9

    return difference, run_permutations.Question(values, sizes, reached)


def _run_ranks(rows: pd.DataFrame) -> pd.Series:
    return rows["value"].round(ranks.DECIMALS).rank(ascending=False)


def _ranks_by_algorithm(rows: pd.DataFrame) -> pd.DataFrame:
    """Per algorithm the mean and number of its ranks, and the variance (ddof 1) of all ranks."""
    ranked = _run_ranks(rows)
    codes, names = pd.factorize(rows["algorithm"])
    size = np.bincount(codes)
    return pd.DataFrame({"mean": np.bincount(codes, ranked) / size, "size": size, "variance": ranked.var()}, index=names)


def _runs_by_datasets(selected: pd.DataFrame) -> pd.DataFrame:
    """Rounded values, runs of all algorithms x data sets, indexed by algorithm in order of appearance."""
    _refuse_repeats(selected)
    table = selected.pivot(index=["algorithm", "run"], columns="dataset", values="value").round(ranks.DECIMALS)
    lost = table[table.isna().any(axis=1)]
    if len(lost):
        (algorithm, run), row = lost.index[0], lost.iloc[0]
        raise ValueError(
            f"{algorithm!r} run {run} has no value on {row.index[row.isna()][0]!r}, but runs are compared on all data sets; "
            "leave out that data set or that run"
        )
    return table.droplevel("run").loc[selected["algorithm"].unique()]


def _datasets(selected: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each data set with its rows, at least two algorithms, always in the same order: a pair must not be reversed on some data set."""
    _refuse_repeats(selected)
    position = {name: index for index, name in enumerate(selected["algorithm"].unique())}
    ordered = selected.sort_values("algorithm", key=lambda names: names.map(position), kind="stable")
    for dataset in selected["dataset"].unique():
        rows = ordered[ordered["dataset"] == dataset]
        names = rows["algorithm"].unique()
        if len(names) < 2:
            raise ValueError(
                f"{names[0]!r} is the only algorithm on {dataset!r}; leave out the data set, or add scores of another algorithm"
            )
        yield dataset, rows


def _refuse_repeats(selected: pd.DataFrame) -> None:
    again = selected.duplicated(["algorithm", "run", "dataset"])
    if again.any():
        row = selected[again].iloc[0]
        raise ValueError(
            f"{row['algorithm']!r} run {row['run']} on {row['dataset']!r} has several values, which would count as runs; "
            "select one metric and one epoch first"
        )
