"""All correlations of biases and benchmarks, in all groups of models, as one table."""

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import scipy

from jaxbed.stats import names
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.correlations import coefficients
from jaxbed.stats.correlations.models import Models

MATRICES = {
    "bias_x_benchmark": "Biases and benchmarks",
    "bias_x_bias": "Biases and biases",
    "benchmark_x_benchmark": "Benchmarks and benchmarks",
}
ADJUSTED = {"none": "p", "holm": "p_holm", "bh": "p_bh"}
TRAINED_ADVERSARIALLY = "adversarial_training"


def correlate(models: Models, adjust: str, alpha: float, as_published: bool = False) -> pd.DataFrame:
    """One row for each pair of properties and each group of models.

    Columns: matrix (of MATRICES), group, x, y, models (that have both), those of coefficients.Firmness, p_holm and p_bh (over all groups of
    the matrix), and `masked`: rho, or 0 where the p that `adjust` names, of ADJUSTED, is not below alpha. as_published: the groups of the
    bias paper, which tells adversarially trained models from all others; else all models, and each category that has enough.
    """
    rows = []
    for matrix, group, x, y, chosen in _pairs(models, _groups(models.category, as_published)):
        both = models.properties.loc[chosen, [x, y]].dropna()
        firm = coefficients.firmness(both[x].to_numpy(), both[y].to_numpy(), models.category.loc[both.index].to_numpy())
        rows.append({"matrix": matrix, "group": group, "x": x, "y": y, "models": len(both), **firm._asdict()})
    table = pd.DataFrame(rows)
    table["p_holm"] = _over(table, pairwise.holm)
    table["p_bh"] = _over(table, lambda p: scipy.stats.false_discovery_control(p, method="bh"))
    table["masked"] = table["rho"].where((table[ADJUSTED[adjust]] < alpha) | table["rho"].isna(), 0.0)
    return table


def matrix(table: pd.DataFrame, name: str, group: str, column: str = "rho") -> pd.DataFrame:
    """A matrix of the table, x in rows and y in columns; what is symmetric, whole, with 1 on its diagonal."""
    chosen = table[(table["matrix"] == name) & (table["group"] == group)]
    wide = chosen.pivot(index="x", columns="y", values=column)
    if name == "bias_x_benchmark":
        return wide.loc[chosen["x"].unique(), chosen["y"].unique()]
    order = list(dict.fromkeys([*chosen["x"], *chosen["y"]]))
    whole = wide.reindex(index=order, columns=order)
    whole = whole.fillna(whole.T)
    np.fill_diagonal(values := whole.to_numpy(copy=True), 1.0)
    return pd.DataFrame(values, index=order, columns=order)


def significant(table: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """For each matrix: pairs, and how many have a p below alpha, as it is and adjusted in both ways."""
    groups = table.groupby("matrix", sort=False)
    counts = {"pairs": groups.size()} | {column: groups[column].agg(lambda p: int((p < alpha).sum())) for column in ADJUSTED.values()}
    return pd.DataFrame(counts)


def _groups(category: pd.Series, as_published: bool) -> dict[str, pd.Series]:
    """{name of a group: which models are of it}."""
    everything = pd.Series(True, index=category.index)
    if as_published:
        adversarial = category.map(names.key) == names.key(TRAINED_ADVERSARIALLY)
        if not adversarial.any() or adversarial.all():
            raise ValueError(
                f"--paper-mode biases compares models of the category {TRAINED_ADVERSARIALLY!r} with others, and there are "
                f"{adversarial.sum()} of {len(category)}: leave the option out, or name the column of categories with --groups"
            )
        return {"total": everything, TRAINED_ADVERSARIALLY: adversarial, "other": ~adversarial}
    enough = [kind for kind, count in category.value_counts(sort=False).items() if coefficients.LEAST <= count < len(category)]
    return {"all": everything} | {str(kind): category == kind for kind in enough}


def _pairs(models: Models, groups: dict[str, pd.Series]) -> Iterator[tuple[str, str, str, str, pd.Series]]:
    biases, benchmarks = models.biases, models.benchmarks
    for name in MATRICES:
        logging.getLogger(__name__).info("correlating %s", MATRICES[name].lower())
        first, second = {"bias_x_benchmark": (biases, benchmarks), "bias_x_bias": (biases, biases)}.get(name, (benchmarks, benchmarks))
        for group, chosen in groups.items():
            for row, x in enumerate(first):
                for y in second if first is not second else second[row + 1 :]:
                    yield name, group, x, y, chosen


def _over(table: pd.DataFrame, adjust: Callable[[np.ndarray], np.ndarray]) -> pd.Series:
    """The p of each matrix adjusted together, those that are undefined left out."""
    adjusted = pd.Series(np.nan, index=table.index)
    for _, p in table["p"].dropna().groupby(table["matrix"]):
        adjusted.loc[p.index] = adjust(p.to_numpy())
    return adjusted
