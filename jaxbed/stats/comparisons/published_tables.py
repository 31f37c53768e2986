"""BiasBed's numbers as published: to check its tables, not for new results.

Its tests are Friedman's F with the d.o.f. that match the moments of W (the paper states others), and Nemenyi's p interpolated from tables
that end at 0.001 and 0.9 and are wrong by up to 0.03 between 0.1 and 0.9. Its Table 2 shows the std over runs; the "±" of its Table 3 is
a different quantity, the std over all epochs of all runs. Blocks are data sets, cells are means over runs.

Source: Kalischek et al., "BiasBed: rigorous texture bias evaluation", tables 2-5; its released code (pingouin, scikit-posthocs).
"""

import math

import numpy as np
import pandas as pd

from jaxbed.stats.comparisons import ranks

CELL = ["algorithm", "dataset"]
DECIMALS = 3  # of its printed p-values


def friedman(matrix: pd.DataFrame) -> dict:
    """f, degrees_of_freedom [nu1, nu2] with nu1 = n-1-2/m and nu2 = (m-1) nu1, p, and the warning PAPER_DF.

    Raises what `ranks.rank` raises.
    """
    tested = ranks.friedman(matrix)
    used, stated = tested["f_degrees_of_freedom_moment"], tested["f_degrees_of_freedom_iman_davenport"]
    text = f"as published: d.o.f. {used[0]:.2f}, {used[1]:.2f}, not the {stated[0]}, {stated[1]} that the paper states"
    return {"f": tested["f"], "degrees_of_freedom": used, "p": tested["p_f_moment"], "warnings": [{"code": "PAPER_DF", "text": text}]}


def nemenyi(matrix: pd.DataFrame) -> pd.DataFrame:
    """Nemenyi's p [n, n] by interpolation as in old versions of scikit-posthocs, within [0.001, 0.9]; diagonal 1.

    Raises what `ranks.rank` raises.
    """
    from statsmodels.stats.libqsturng import psturng

    means = ranks.mean_ranks(matrix)
    n, m = matrix.shape
    differences = np.abs(means.to_numpy()[:, None] - means.to_numpy()[None, :])
    q = math.sqrt(2) * differences / math.sqrt(n * (n + 1) / (6 * m))
    p = np.asarray(psturng(q.ravel(), n, np.inf)).reshape(n, n)
    np.fill_diagonal(p, 1.0)
    return pd.DataFrame(p, index=matrix.index, columns=matrix.index)


def run_spread(frame: pd.DataFrame, last_epochs: int) -> pd.DataFrame:
    """algorithm, run, dataset, value, std (ddof 0) over the last evaluated epochs of each run, from records of one metric with epochs."""
    ordered = frame[frame["status"] == "ok"].sort_values("epoch").groupby(["algorithm", "run", "dataset"])
    window = ordered.tail(last_epochs).groupby(["algorithm", "run", "dataset"])["value"]
    return window.agg(value="mean", std=lambda values: values.std(ddof=0)).reset_index()


def pooled(spread: pd.DataFrame) -> pd.DataFrame:
    """algorithm, dataset, mean, std as in Table 3: std = sqrt(mean of the variances within runs + variance between runs, both ddof 0).

    `spread` has the columns algorithm, run, dataset, value, std. This is the std over all epochs of all runs: neither that between
    runs nor that between epochs.
    """
    cells = spread.assign(variance=spread["std"] ** 2).groupby(CELL, sort=False)
    table = cells.agg(mean=("value", "mean"), within=("variance", "mean"))
    table["std"] = (table.pop("within") + cells["value"].var(ddof=0)) ** 0.5
    return table.reset_index()
