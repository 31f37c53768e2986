"""Question 1: would the algorithms differ on another data set of this kind? Blocks are data sets, one mean over runs in each cell.

Applies the tests and posteriors in `comparisons` and `sensitivity` to one matrix, higher is better.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.comparisons import bayes, bradley_terry, pairwise, permutation, ranks, stepwise
from jaxbed.stats.options import Options
from jaxbed.stats.sensitivity import bootstrap, leave_one_out, power

PAIR = ["algorithm_i", "algorithm_j"]
RESAMPLES = 2000  # of runs
FEWER_RESAMPLES = 500  # if a test has to be called for each
FEWER_DRAWS = 20_000  # if many tables are tested
BY_BLOCKS = ("friedman_exact", "permutation_pairs", "permutation_baseline")  # tests whose blocks are families, if these are known
FLOORS = {  # the tests of permutation.smallest_p in words
    "friedman_exact": "Friedman's test",
    "permutation_pairs": "the permutation test of all pairs",
    "permutation_baseline": "the permutation test against the baseline",
    "nemenyi": "Nemenyi",
    "wilcoxon": "Wilcoxon for one pair",
    "wilcoxon_holm_pairs": "Wilcoxon + Holm over all pairs",
    "wilcoxon_holm_baseline": "Wilcoxon + Holm against the baseline",
}
APPROXIMATE = 0.2  # relative difference of two p-values that is worth a warning


class Overall(NamedTuple):
    """A further test of whether the algorithms differ at all, next to Friedman's: listed in stats.json, tests.csv and the report."""

    name: str  # in stats.json
    title: str  # in the report
    compute: Callable[[pd.DataFrame], dict]  # a matrix, higher is better -> numbers by name: at least test, p and the two below
    statistic: str = "f"
    degrees_of_freedom: str = "f_degrees_of_freedom"


OVERALL = (Overall("quade", "Quade, F: data sets on which the scores differ more have more weight", ranks.quade),)


def tests(
    matrix: pd.DataFrame, options: Options, families: Mapping[str, str], rope: float, compared: pd.DataFrame | None = None
) -> tuple[dict, pd.DataFrame, list[dict]]:
    """Results by name, p of all pairs [n, n] (permutation, single step) and warnings.

    `compared` holds the selected scores of the runs: their std defines ties for Bradley-Terry; without it, `rope` does.

    friedman          ranks.friedman with p, the headline, and how it was computed; families of data sets, if any, are the blocks
    NAME              of each test in OVERALL
    floors            smallest attainable p of every test
    pairs             pairwise.pairs with p_permutation, p_nemenyi, bayes' p_i, p_rope, p_j (bayes_*), the probability of a win by maximum
                      likelihood (win_*) and bradley_terry.pairs (bt_*)
    (p_permutation_least, bayes_least, bt_least: the share of one random draw, the resolution of p-values and shares)
    bradley_terry     Wainer's model: abilities, convergence, bradley_terry.predictive
    baseline          pairwise.pairs against the baseline with p_permutation, or None
    nemenyi           critical difference
    """
    logging.getLogger(__name__).info("tests over data sets")
    friedman = ranks.friedman(matrix)
    warnings = friedman.pop("warnings")
    permuted = permutation.test(matrix, baseline=options.baseline, families=families or None, draws=options.permutations, seed=options.seed)
    closed = friedman["p_exact"]
    if families or options.question == "these-datasets":  # these quote a p that counts every data set as independent evidence
        warnings = [warning for warning in warnings if warning["code"] not in ("PERFECT_AGREEMENT", "TWO_ALGORITHMS")]
    if closed == closed and not families:
        friedman |= {"p": closed, "p_method": "exact", "p_standard_error": 0.0, "p_least": 0.0}
    else:
        friedman |= {"p": permuted.p, "p_method": permuted.method, "p_standard_error": permuted.standard_error, "p_least": permuted.p_least}
    friedman |= {"draws": permuted.draws, "seed": permuted.seed, "blocks": permuted.blocks, "families": families or None}
    n, m = matrix.shape
    warnings += _approximate(friedman, n) + _floors(n, m, permuted.blocks, options.alpha, options.baseline is not None)
    std = None if compared is None else compared.groupby(["algorithm", "dataset"])["value"].std().unstack()
    abilities, wins, more = _bradley_terry(matrix, options.seed, rope, std)
    warnings += more
    results = {
        "friedman": friedman,
        **{test.name: test.compute(matrix) for test in OVERALL},
        "floors": _smallest_p(n, m, permuted.blocks),
        "nemenyi": {
            "test": "Nemenyi, all pairs, studentized range with infinite degrees of freedom",
            "critical_difference": ranks.critical_difference(n, m, options.alpha),
            "smallest_possible_p": ranks.smallest_p(n, m),
        },
        "pairs": _pairs(matrix, permuted, options.seed, rope, std).join(wins, on=PAIR).assign(bt_least=1 / abilities["effective_draws"]),
        "bradley_terry": abilities,
        "baseline_comparisons": None,
    }
    if options.baseline is not None:
        against = pairwise.pairs(matrix, options.baseline)
        results["baseline_comparisons"] = against.assign(
            p_permutation=against["algorithm_i"].map(permuted.baseline), p_permutation_least=permuted.p_least
        )
    return results, permuted.pairs, warnings


def firmness(
    matrix: pd.DataFrame, compared: pd.DataFrame, options: Options, complete: bool, families: Mapping[str, str]
) -> tuple[dict, list[dict], pd.DataFrame | None]:
    """Would the answer hold with other runs, or without one algorithm or data set? How many data sets would be needed?

    `compared` holds the selected scores, higher is better. Pairs are tested by Nemenyi here (a single one exactly), comparisons with the
    baseline by z with Holm's adjustment. Both assume independent data sets: with families, pairs are tested by the permutation test over
    families, and no share of run resamples is reported. Returns results by name, the warnings POOL and FRAGILE, and
    bootstrap.intervals (None if a run lacks a data set).
    """
    logging.getLogger(__name__).info("other runs, fewer algorithms and data sets, power")
    results: dict[str, dict | None] = {}
    warnings, intervals = [], None
    test = partial(_by_families, families=families, seed=options.seed) if families else nemenyi
    algorithms_out = leave_one_out.without_each_algorithm(matrix, test, options.alpha)
    datasets_out = leave_one_out.without_each_dataset(matrix, test, options.alpha)
    warnings += leave_one_out.findings(algorithms_out, datasets_out)
    results["sensitivity"] = {
        "test": "permutation, families as blocks" if families else "Nemenyi, of two algorithms exact",
        "without_each_algorithm": algorithms_out,
        "without_each_dataset": datasets_out,
        "friedman_without_each_dataset": leave_one_out.omnibus_without_each_dataset(matrix) if matrix.shape[1] > 2 else None,
    }
    results["stability"] = None
    if complete and compared.groupby("algorithm")["run"].nunique().max() > 1:
        resamples = bootstrap.resample(compared, RESAMPLES, options.seed)
        both = bootstrap.resample(compared, RESAMPLES, options.seed, datasets=True)
        intervals, stability = (
            bootstrap.intervals(compared, resamples),
            bootstrap.stability(resamples, None if len(matrix) > 2 else nemenyi, options.alpha, FEWER_RESAMPLES),
        )
        warnings += [] if families else bootstrap.findings(stability)
        results["stability"] = {
            "resamples": RESAMPLES,
            "seed": options.seed,
            "runs_resampled": intervals,
            "runs_and_datasets_resampled": bootstrap.intervals(compared, both),
            "differences": bootstrap.differences(compared, both),
            "pairs": None if families else stability,
            "pairs_test": power.TESTS["nemenyi"] if len(matrix) > 2 else "exact sign test",
            "baseline_comparisons_test": power.TESTS["control_holm"],
            "baseline_comparisons": None if families else _control_stability(resamples, options),
        }
    results["power"] = _power(compared, options) if (matrix.round(ranks.DECIMALS).std() > 0).sum() > 1 else None
    return results, warnings, intervals


def with_firmness(results: dict) -> pd.DataFrame:
    """The pairs, and how firm each is: rank_difference_low, _high (95 %, data sets and runs resampled), how often it is significant
    (stability_share of run resamples; multiverse_i_better, _j_better of _specifications), and the answer for these data sets.
    """
    pair, table = PAIR, results["pairs"]
    if results["stability"]:
        interval = results["stability"]["differences"].set_index(pair)[["rank_difference_low", "rank_difference_high"]]
        column = list(table).index("rank_difference") + 1
        table = table.join(interval, on=pair)[[*table.columns[:column], *interval.columns, *table.columns[column:]]]
    if results["stability"] and results["stability"]["pairs"] is not None:
        shares = results["stability"]["pairs"].rename(columns={"significant": "stability_share", "least": "stability_least"})
        table = table.join(shares.set_index(pair)[["stability_share", "stability_least"]], on=pair)
    counts = results["multiverse"]["pairs"].set_index(pair)[["specifications", "i_better", "j_better"]]
    table = table.join(counts.add_prefix("multiverse_"), on=pair)
    these = results["these_datasets"]
    if these and these["pairs"] is not None:
        runs = these["pairs"].set_index(pair)[["cliffs_delta", "a12", "p_holm"]].rename(columns={"p_holm": "p_these_datasets_holm"})
        table = table.join(runs, on=pair)
    return table


def nemenyi(matrix: pd.DataFrame) -> pd.DataFrame:
    """p [n, n] of ranks.nemenyi; exact for two algorithms, for which Nemenyi's p is too small."""
    return ranks.nemenyi(matrix) if len(matrix) > 2 else permutation.test(matrix).pairs


def _by_families(matrix: pd.DataFrame, families: Mapping[str, str], seed: int) -> pd.DataFrame:
    return permutation.test(matrix, families=families, draws=FEWER_DRAWS, seed=seed).pairs


def _pairs(matrix: pd.DataFrame, permuted: permutation.Permutation, seed: int, rope: float, std: pd.DataFrame | None) -> pd.DataFrame:
    table = pairwise.pairs(matrix)
    of_nemenyi = ranks.nemenyi(matrix)
    cells = list(table[PAIR].itertuples(index=False, name=None))
    table.insert(5, "p_permutation", [permuted.pairs.loc[cell] for cell in cells])
    table.insert(6, "p_permutation_least", permuted.p_least)
    table.insert(7, "p_nemenyi", [of_nemenyi.loc[cell] for cell in cells])
    column = list(table).index("p_z_holm") + 1
    table.insert(column, "p_z_shaffer", stepwise.shaffer(table["p_z"]))
    if len(matrix) <= stepwise.LARGEST:
        table.insert(column + 1, "p_z_bergmann_hommel", stepwise.bergmann_hommel(table["p_z"]))
    least = 1 / bayes.most_draws(*matrix.shape)
    signed = bayes.signed_rank(matrix, rope, seed=seed).assign(least=least).set_index(PAIR).add_prefix("bayes_")
    wins = bradley_terry.win_probabilities(matrix, rope, std, seed=seed).set_index(PAIR)
    wins = wins.rename(columns={"p": "win_p", "p_low": "win_low", "p_high": "win_high"})
    return table.join(signed, on=PAIR).join(wins, on=PAIR)


def _bradley_terry(matrix: pd.DataFrame, seed: int, rope: float, std: pd.DataFrame | None) -> tuple[dict, pd.DataFrame, list[dict]]:
    """Results of Wainer's model, its pairs as bt_*, warnings."""
    posterior = bradley_terry.posterior(bradley_terry.wins(matrix, rope, std), seed=seed)
    predicted = bradley_terry.predictive(posterior, seed)
    local = std is not None and std.notna().any(axis=None)
    results = {
        "model": "sigma ~ LogNormal(0, 0.5), log-abilities ~ Normal(0, sigma), wins ~ Binomial; of ties half a win each, rounded up",
        "tie": f"{bradley_terry.LOCAL_ROPE} std of the runs of the pair on the data set" if local else f"{rope:g}",
        "log_abilities": posterior.log_abilities.mean().to_dict(),
        "sigma": posterior.sigma.mean(),
        "draws": len(posterior.sigma),
        "effective_draws": posterior.effective_draws,
        "r_hat": posterior.r_hat,
        "seed": seed,
        "intervals_too_narrow": bradley_terry.too_narrow(len(matrix)),
        "predictive": predicted,
        "inside_50": predicted["inside_50"].mean(),
        "inside_90": predicted["inside_90"].mean(),
    }
    return results, bradley_terry.pairs(posterior).set_index(PAIR).add_prefix("bt_"), bradley_terry.findings(posterior, predicted)


def _control_stability(resamples: bootstrap.Resamples, options: Options) -> pd.DataFrame | None:
    """As bootstrap.stability, for the comparisons with the baseline by pairwise.control."""
    n, m = resamples.means.shape[1:]
    if options.baseline is None or n == 2:  # with two algorithms the only pair is tested exactly
        return None
    means, baseline = bootstrap.rank(resamples.means).mean(axis=2), resamples.algorithms.index(options.baseline)
    z = np.abs(np.delete(means, baseline, axis=1) - means[:, [baseline]]) / np.sqrt(n * (n + 1) / (6 * m))
    share = power.holm_rejects(z[:, :, None], options.alpha)[:, :, 0].mean(axis=0)
    others = [name for name in resamples.algorithms if name != options.baseline]
    table = pd.DataFrame({"algorithm_i": others, "algorithm_j": options.baseline, "significant": share, "least": 1 / len(means)})
    return table.assign(fragile=table["significant"].between(*bootstrap.FRAGILE))


def _power(compared: pd.DataFrame, options: Options) -> dict:
    model = power.fit(compared)
    runs = int(compared.groupby(["algorithm", "dataset"]).size().min())
    curves = power.curves(model, runs, options.baseline, alpha=options.alpha, seed=options.seed)
    return {
        "effects": model.effects.to_dict(),
        "unit": "std of the algorithms' means on a data set" + (", root mean square over data sets" if len(model.effects) == 2 else ""),
        "interaction_std": model.interaction,
        "run_std": model.run,
        "runs": runs,
        "datasets_needed": power.datasets_needed(curves),
        "detectable_per_dataset": power.per_dataset(compared, alpha=options.alpha),
        "runs_needed": power.runs_needed(compared, alpha=options.alpha),
    }


def _approximate(friedman: dict, n: int) -> list[dict]:
    p, f = friedman["p"], friedman["p_f_moment"]
    if n == 2 or f != f or friedman["families"] or abs(f - p) <= max(APPROXIMATE * p, 3 * friedman["p_standard_error"]):
        return []
    text = f"the F approximation gives {tables.p_equals(f)}, {friedman['p_method']} {tables.p_equals(p, friedman['p_least'])}"
    return [{"code": "APPROX", "text": text}]


def _smallest_p(n: int, m: int, blocks: int) -> dict[str, float]:
    """permutation.smallest_p; for tests that ignore families, that of m data sets."""
    return permutation.smallest_p(n, m) | {name: p for name, p in permutation.smallest_p(n, blocks).items() if name in BY_BLOCKS}


def _floors(n: int, m: int, blocks: int, alpha: float, with_baseline: bool) -> list[dict]:
    floors = _smallest_p(n, m, blocks)
    high = {FLOORS[name]: p for name, p in floors.items() if p >= alpha and (with_baseline or "baseline" not in name)}
    if not high:
        return []
    listed = "; ".join(f"{name} ({p:.3g})" for name, p in high.items())
    counted = "1 block" if blocks == 1 else f"{blocks} blocks"
    return [
        {"code": "FLOOR", "text": f"tests that cannot give p < {alpha:g} with {counted} and {n} algorithms, whatever the scores: {listed}"}
    ]
