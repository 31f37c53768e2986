"""How often the statistics are wrong where the truth is known, by simulation.

    python scripts/stats_calibration.py claims [--tables 1000]      tables without any difference: how many get a claim
    python scripts/stats_calibration.py coverage [--tables 250]     intervals over runs: how many hold the true value where 95 % should

claims: the verdict's procedure for other data sets (`claims`), without and with a baseline, and, for comparison, a claim by any of the
overall test, all pairs and the comparisons with a baseline, each at 0.05. Scores are normal, one per algorithm and data set.
coverage: 8 algorithms on 10 data sets; effects and interactions have a standard deviation of 1, runs of 0.36.
"""

import argparse

import numpy as np
import pandas as pd
from scipy import stats

from jaxbed.stats import claims
from jaxbed.stats.comparisons import pairwise, permutation
from jaxbed.stats.sensitivity import bootstrap

ALPHA = 0.05
SIZES = [(algorithms, datasets) for algorithms in (3, 5, 8) for datasets in (6, 10, 20)]
RUNS, ALGORITHMS, DATASETS, STD = (3, 5, 10, 20), 8, 10, 0.36


def any_claim(scores: pd.DataFrame, draws: int, seed: int) -> dict[str, bool]:
    """Whether a table of scores [algorithms, datasets] gets a claim, by rule."""
    names, baseline = list(scores.index), scores.index[0]
    found = permutation.test(scores, baseline=baseline, draws=draws, seed=seed)
    pairs, against = pairwise.pairs(scores), pairwise.pairs(scores, baseline)
    pairs["p_permutation"] = [found.pairs.loc[i, j] for i, j in zip(pairs["algorithm_i"], pairs["algorithm_j"], strict=True)]
    against["p_permutation"] = against["algorithm_i"].map(found.baseline)
    results = {
        **{"no_test": None, "paper": None, "question": "new-datasets", "alpha": ALPHA, "algorithms": names, "pairs": pairs},
        "friedman": {"p": found.p, "p_method": found.method, "p_least": found.p_least, "families": None},
        "floors": permutation.smallest_p(*scores.shape),
    }
    claimed = {"each at alpha": found.p < ALPHA or bool((found.pairs.to_numpy() < ALPHA).any()) or bool((found.baseline < ALPHA).any())}
    for rule, asked in (("all pairs", None), ("with a baseline", baseline)):
        own = claims.of({**results, "baseline": asked, "baseline_comparisons": against if asked else None})
        claimed[rule] = own["overall"]["differ"] or bool(own["found"])
    return claimed


def rate_claims(tables: int) -> None:
    rng = np.random.default_rng(0)
    for algorithms, datasets in SIZES:
        names = [f"a{i}" for i in range(algorithms)]
        rows = []
        for table in range(tables):
            scores = pd.DataFrame(rng.normal(size=(algorithms, datasets)), names, [f"d{j}" for j in range(datasets)])
            rows.append(any_claim(scores, 2000, table))
        shares = "  ".join(f"{rule} {share:.1%}" for rule, share in pd.DataFrame(rows).mean().items())
        print(f"{algorithms} algorithms, {datasets} datasets, {tables} tables: {shares}", flush=True)


def rate_coverage(tables: int) -> None:
    rng = np.random.default_rng(1)
    for runs in RUNS:
        held = {name: [] for name in ("mean, percentile", "mean, t", "IQM, percentile", "mean rank, percentile")}
        for table in range(tables):
            truth = rng.normal(size=(ALGORITHMS, 1)) + rng.normal(size=(ALGORITHMS, DATASETS))
            scores = truth[:, None] + rng.normal(0, STD, (ALGORITHMS, runs, DATASETS))
            index = pd.MultiIndex.from_product(
                [[f"a{i}" for i in range(ALGORITHMS)], range(runs), [f"d{j}" for j in range(DATASETS)]],
                names=["algorithm", "run", "dataset"],
            )
            rows = pd.Series(scores.ravel(), index, name="value").reset_index()
            found = bootstrap.intervals(rows, bootstrap.resample(rows, 400, table)).set_index(["quantity", "name"])
            ranks, means = bootstrap.rank(truth).mean(axis=1), scores.mean(axis=2)
            half = stats.t.ppf(0.975, runs - 1) * means.std(axis=1, ddof=1) / runs**0.5
            for i in range(ALGORITHMS):
                for name, quantity, value in (
                    ("mean, percentile", "mean", truth[i].mean()),
                    ("IQM, percentile", "iqm", stats.trim_mean(truth[i], 0.25)),
                    ("mean rank, percentile", "mean_rank", ranks[i]),
                ):
                    low, high = found.loc[(quantity, f"a{i}"), ["low", "high"]]
                    held[name].append(low - 1e-9 <= value <= high + 1e-9)
                held["mean, t"].append(abs(means[i].mean() - truth[i].mean()) <= half[i])
        print(f"{runs} runs, {tables} tables: " + "  ".join(f"{name} {np.mean(found):.1%}" for name, found in held.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("claims", "coverage"))
    parser.add_argument("--tables", type=int)
    asked = parser.parse_args()
    if asked.what == "claims":
        rate_claims(asked.tables or 1000)
    else:
        rate_coverage(asked.tables or 250)


if __name__ == "__main__":
    main()
