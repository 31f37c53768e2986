"""How often the statistics are wrong where the truth is known, by simulation.

    python scripts/stats_calibration.py claims [--tables 1000]      tables without any difference: how many get a claim
    python scripts/stats_calibration.py coverage [--tables 250]     intervals over runs: how many hold the true value where 95 % should
    python scripts/stats_calibration.py pairs [--tables 400]        of jaxbed evidence: intervals of single pairs
    python scripts/stats_calibration.py means [--tables 20000]      ... of the mean of several pairs
    python scripts/stats_calibration.py line [--tables 1000]        ... of effective effects, where controls scatter about the line

claims: the verdict's procedure for other data sets (`claims`), without and with a baseline, and, for comparison, a claim by any of the
overall test, all pairs and the comparisons with a baseline, each at 0.05. Scores are normal, one per algorithm and data set.
coverage: 8 algorithms on 10 data sets; effects and interactions have a standard deviation of 1, runs of 0.36.
pairs: two algorithms without a difference, 2,000 images of different difficulty, seeds with a standard deviation of 2 points; and, with a
plain bootstrap beside it, seeds that vary on images that do not.
means: pairs with a shared control and equal errors, and true effects that differ by tau, of 0 to 10 errors: least and most over tau.
line: five controls with in-distribution scores of 60 to 84 %; treated and control lie 6 points apart in between, on the true line.
"""

import argparse

import numpy as np
import pandas as pd
from scipy import stats

from jaxbed.stats import claims
from jaxbed.stats.comparisons import pairwise, permutation
from jaxbed.stats.evidence import effects, line, resampling
from jaxbed.stats.sensitivity import bootstrap

ALPHA = 0.05
SIZES = [(algorithms, datasets) for algorithms in (3, 5, 8) for datasets in (6, 10, 20)]
RUNS, ALGORITHMS, DATASETS, STD = (3, 5, 10, 20), 8, 10, 0.36
IMAGES, OF_SEEDS = 2000, 2.0  # of pairs: images, and points between seeds
TAUS = (0, 0.5, 1, 2, 3, 5, 10)
CONTROLS, SCATTERS = np.array([60.0, 66, 72, 78, 84]), (0, 0.05, 0.1, 0.2)  # in points; in logits


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


def rate_pairs(tables: int) -> None:
    rng = np.random.default_rng(2)
    for seeds in (2, 3, 5, 10):
        held = {"seeds and images": [], "seeds alone": [], "seeds alone, plain bootstrap": []}
        for table in range(tables):
            hard = rng.normal(70, 20, IMAGES)
            chance = np.clip((hard + rng.normal(0, OF_SEEDS, (2, seeds, 1))) / 100, 0, 1)
            answers = dict(zip("ab", 100.0 * (rng.random(chance.shape) < chance), strict=True))
            alone = dict(zip("ab", 70 + rng.normal(0, OF_SEEDS, (2, seeds, 1)), strict=True))
            for kind, sampled in (
                ("seeds and images", resampling.sample(f"set {table}", answers)),
                ("seeds alone", resampling.sample(f"set {table}", alone, has_images=False)),
            ):
                found = effects.of_draws(sampled.draws["a"] - sampled.draws["b"], seeds=sampled.part_of_seeds([("a", "b")]))
                held[kind].append(found.low <= 0 <= found.high)
            plain = np.subtract(*(values[rng.integers(seeds, size=(2000, seeds)), 0].mean(1) for values in alone.values()))
            held["seeds alone, plain bootstrap"].append(np.prod(np.quantile(plain, [0.025, 0.975])) <= 0)
        print(f"{seeds} seeds, {tables} pairs: " + "  ".join(f"{name} {np.mean(found):.1%}" for name, found in held.items()), flush=True)


def rate_means(tables: int) -> None:
    rng = np.random.default_rng(3)
    for pairs in (2, 3, 5, 10):
        covariance, shares = 0.5 * np.eye(pairs) + 0.5, []
        for tau in TAUS:
            drawn = rng.multivariate_normal(np.zeros(pairs), covariance + tau**2 * np.eye(pairs), tables)
            found = np.array([effects.random_effects(values, covariance) for values in drawn])
            away = np.abs(found[:, 0]) / found[:, 1]
            shares.append([(away <= stats.t.ppf(0.975, found[:, 3])).mean(), (away <= stats.norm.ppf(0.975)).mean()])
        least, most = np.min(shares, axis=0), np.max(shares, axis=0)
        shown = "  ".join(
            f"{name} {low:.1%} to {high:.1%}" for name, low, high in zip(("t", "normal distribution"), least, most, strict=True)
        )
        print(f"{pairs} pairs, {tables} sets at each tau: {shown}", flush=True)


def rate_line(tables: int) -> None:
    rng = np.random.default_rng(4)
    iid = dict(zip("vwxyz", CONTROLS, strict=True)) | {"treated": 75.0, "control": 69.0}
    true = {name: 100 / (1 + np.exp(1.5 - 0.8 * line.logit(np.array(score)))) for name, score in iid.items()}
    for scatter in SCATTERS:
        held = []
        for _ in range(tables):
            shifted = {name: 100 / (1 + np.exp(-line.logit(score) - rng.normal(0, scatter))) for name, score in true.items()}
            expected = shifted["treated"] - shifted["control"] - (true["treated"] - true["control"])
            errors = {name: 100 * np.sqrt(score / 100 * (1 - score / 100) / IMAGES) for name, score in iid.items()}
            drawn = resampling.normal(
                {
                    name: {which: (rng.normal(score, errors[which]), errors[which]) for which, score in scores.items()}
                    for name, scores in (("iid", iid), ("shifted", shifted))
                }
            )
            fitted = line.fit(drawn["iid"].draws, drawn["shifted"].draws, list("vwxyz"))
            both = ((of_set.draws["treated"], of_set.draws["control"]) for of_set in (drawn["iid"], drawn["shifted"]))
            found = effects.of_draws(line.effective(fitted, *both), normal=True)
            held.append(found.low <= expected <= found.high)
        print(f"scatter of {scatter} logits, {tables} pairs: {np.mean(held):.1%}", flush=True)


RATES = {  # and how many tables, pairs or sets by default
    "claims": (rate_claims, 1000),
    "coverage": (rate_coverage, 250),
    "pairs": (rate_pairs, 400),
    "means": (rate_means, 20_000),
    "line": (rate_line, 1000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=RATES)
    parser.add_argument("--tables", type=int)
    asked = parser.parse_args()
    rate, usual = RATES[asked.what]
    rate(asked.tables or usual)


if __name__ == "__main__":
    main()
