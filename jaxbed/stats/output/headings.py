"""Readable heads for the columns of tables, used on the page and in columns.csv.

In tables of pairs the first algorithm is `algorithm_i`, the second `algorithm_j`; differences are first minus second.
"""

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.output import listing
from jaxbed.stats.output.html import Cell

WORDS = {
    "algorithm_i": "first",
    "algorithm_j": "second",
    "mean_rank_i": "mean rank of the first",
    "mean_rank_j": "mean rank of the second",
    "rank_difference": "difference of mean ranks",
    "rank_difference_low": "difference of mean ranks, 95 % from",
    "rank_difference_high": "difference of mean ranks, 95 % to",
    "hodges_lehmann": "shift of scores (Hodges-Lehmann)",
    "hodges_lehmann_low": "shift, 95 % from",
    "hodges_lehmann_high": "shift, 95 % to",
    "wins_i": "wins of the first",
    "ties": "ties",
    "wins_j": "wins of the second",
    "p_permutation_least": "smallest p possible with the draws of the permutation test (0: exact)",
    "bayes_p_i": "P(the first is better)",
    "bayes_p_rope": "P(difference within the rope)",
    "bayes_p_j": "P(the second is better)",
    "bayes_theta_i": "expected share in which the first is better",
    "bayes_theta_rope": "expected share within the rope",
    "bayes_theta_j": "expected share in which the second is better",
    "bayes_least": "share of one draw, for the P of the signed-rank posterior",
    "win_p": "P(the first wins), maximum likelihood",
    "win_low": "95 % from, data sets resampled",
    "win_high": "95 % to, data sets resampled",
    "bt_p": "P(the first wins)",
    "bt_low": "95 % from",
    "bt_high": "95 % to",
    "bt_p_better": "P(the first has the higher ability)",
    "bt_p_equivalent": "P(probability of a win is .45 to .55)",
    "bt_least": "share of one effective draw, for the Bradley-Terry posterior",
    "stability_share": "share of run resamples in which it is significant",
    "stability_least": "share of one resample",
    "multiverse_specifications": "specifications tried",
    "multiverse_i_better": "specifications in which the first is significantly better",
    "multiverse_j_better": "specifications in which the second is significantly better",
    "specifications": "specifications",
    "i_better": "first significantly better in",
    "j_better": "second significantly better in",
    "p_low": "smallest p",
    "p_high": "largest p",
    "difference": "standardised difference (at most about 2)",
    "cliffs_delta": "Cliff's delta",
    "a12": "P(first beats second)",
    "p_these_datasets_holm": "p on these data sets, runs reassigned, Holm",
    "p": "p",
    "p_least": "smallest p possible with the draws (0: exact)",
    "p_holm": "p, Holm",
    "p_holm_all": "p, Holm over all data sets",
    "p_chi2": "p, chi2 approximation",
    "p_f_moment": "p, F approximation",
    "standard_error": "standard error of p",
    "n_algorithms": "algorithms",
    "n_runs": "runs",
    "degrees_of_freedom": "degrees of freedom",
    "tie_correction": "tie correction",
    "epsilon_squared": "epsilon squared",
    "eta_squared_h": "eta squared",
    "kendall_w": "Kendall's W",
    "f": "F",
    "n": "number of runs",
    "low": "95 % from",
    "high": "95 % to",
    "t_low": "t interval from",
    "t_high": "t interval to",
    "significant": "share of resamples in which it is significant",
    "fragile": "undecided (5 to 95 %)",
    "without": "left out",
    "run_std": "std of runs",
    "valid_epochs": "valid epochs",
    "tied_epochs": "tied epochs",
    "smallest_p": "smallest possible p",
    "quantity": "quantity",
    "name": "algorithm",
    "claimed": "claimed in the verdict",
    "adjustment": "adjustment for multiple comparisons",
    "method": "how p was computed",
    "draws": "random draws (0: none)",
    "statistic": "statistic",
    "scope": "overall, all pairs, or against the baseline",
    "question": "other data sets (new-datasets) or other runs on these (these-datasets)",
    "unit": "what n counts",
    "std": "std over runs (ddof 1)",
    "runs": "which runs",
    "mean": "mean over runs",
}
VALUES = {  # of the columns quantity and test
    "mean_rank": "mean rank",
    "iqm": "IQM",
    "best_share": "share of resamples with the best mean rank",
    "f": "F of Friedman",
    "nemenyi": "Nemenyi, all pairs",
    "friedman": "Friedman, any difference",
    "control_holm": "z test against the baseline, Holm",
}
SHARES = {  # columns with shares of random draws -> the column with the share of one draw
    **dict.fromkeys(("bayes_p_i", "bayes_p_rope", "bayes_p_j"), "bayes_least"),
    **dict.fromkeys(("bt_p_better", "bt_p_equivalent"), "bt_least"),
    "stability_share": "stability_least",
    "significant": "least",
}


def word(name: str) -> str:
    """The head of a column."""
    if name.startswith("detectable_"):
        return f"detectable with {name.removeprefix('detectable_')} runs"
    effects = {effect.name: effect.title for effect in pairwise.EFFECTS}
    if name in (tests := listing.of_pairs()):
        test, adjustment = tests[name]
        return f"p, {test}, {'not adjusted' if adjustment == 'none' else adjustment}"
    return (WORDS | effects).get(name, name.replace("_", " "))


def key(files: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """file, column, meaning of the columns of CSV files."""
    return pd.DataFrame(
        [(file, name, word(name)) for file, names in files.items() for name in names], columns=["file", "column", "meaning"]
    )


def present(table: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """A table for the page: readable heads, one column for each pair, p < alpha in bold, p and shares of draws within their resolution."""
    shown: dict[str, list] = {}
    for name in table:
        values = table[name]
        if name in ("algorithm_j", "least") or name.endswith("_least"):
            continue
        if name == "algorithm_i":
            shown["pair"] = [f"{i} – {j}" if i else "any" for i, j in zip(values, table["algorithm_j"], strict=True)]
        elif name == "p" or name.startswith("p_"):
            bounds = tables.least(table, name)
            shown[word(name)] = [
                Cell(tables.format_p(p, least=least), "significant" if p < alpha else "", p)
                for p, least in zip(values, bounds, strict=True)
            ]
        elif name == "smallest_p":
            shown[word(name)] = [Cell(tables.format_p(p), "", p) for p in values]
        elif name in SHARES and SHARES[name] in table:
            one = table[SHARES[name]]
            shown[word(name)] = [Cell(tables.format_share(share, least), "", share) for share, least in zip(values, one, strict=True)]
        elif name == "value" and "least" in table:  # of several quantities, some of them shares
            rows = zip(values, table["least"], strict=True)
            shown[word(name)] = [Cell(tables.format_share(value, least), "", value) if least else _rounded(value) for value, least in rows]
        elif values.dtype.kind == "f":
            shown[word(name)] = [_rounded(value) for value in values]
        else:
            shown[word(name)] = [VALUES.get(value, value) for value in values] if name in ("quantity", "test") else values.tolist()
    return pd.DataFrame(shown)


def _rounded(value: float) -> float:
    """Rounded to four significant digits."""
    return float(f"{value:.4g}")
