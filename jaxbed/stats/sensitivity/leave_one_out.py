"""Would the conclusion hold without one algorithm or one data set, or with other algorithms in the table?

A test is a function: matrix (algorithms x data sets, higher is better) -> DataFrame of p-values [n, n]. A pair is "significant" where
p < alpha; the mean ranks decide which of the two is better.

Source: Benavoli, Corani and Mangili, "Should we really use post-hoc tests based on mean-ranks?", JMLR 2016 (the p of a pair depends on
which other algorithms are in the table).
"""

from collections.abc import Callable
from itertools import chain, combinations

import numpy as np
import pandas as pd

from jaxbed.stats.comparisons import ranks
from jaxbed.stats.sensitivity import bootstrap

Test = Callable[[pd.DataFrame], pd.DataFrame]
PAIR = ["algorithm_i", "algorithm_j"]
MOST_OTHERS = 12  # 2^12 = 4096 pools


def pools(matrix: pd.DataFrame, test: Test, first: str, second: str) -> pd.DataFrame:
    """p of one pair for every set of other algorithms in the table, from one other to all: columns others (names joined by ' '), size, p.

    Raises ValueError for an unknown algorithm, no other algorithm, or more than MOST_OTHERS others.
    """
    for name in (first, second):
        if name not in matrix.index:
            raise ValueError(f"no algorithm {name!r}; available: {', '.join(map(str, matrix.index))}")
    others = [name for name in matrix.index if name not in (first, second)]
    if not 1 <= len(others) <= MOST_OTHERS:
        raise ValueError(
            f"pools of {len(others)} other algorithms: must be 1 to {MOST_OTHERS}; pass fewer rows, or use `without_each_algorithm`"
        )
    subsets = chain.from_iterable(combinations(others, size) for size in range(1, len(others) + 1))
    rows = [(" ".join(map(str, pool)), len(pool), test(matrix.loc[[first, second, *pool]]).loc[first, second]) for pool in subsets]
    return pd.DataFrame(rows, columns=["others", "size", "p"])


def without_each_algorithm(matrix: pd.DataFrame, test: Test, alpha: float = 0.05) -> pd.DataFrame:
    """Every pair with one of the other algorithms left out at a time, `without` naming it ('' for the whole matrix).

    Columns without, algorithm_i, algorithm_j, rank_difference, p, significant.
    """
    return _without_each(matrix, test, alpha, axis=0)


def without_each_dataset(matrix: pd.DataFrame, test: Test, alpha: float = 0.05) -> pd.DataFrame:
    """Every pair with one data set left out at a time; columns as in `without_each_algorithm`."""
    return _without_each(matrix, test, alpha, axis=1)


def omnibus_without_each_dataset(matrix: pd.DataFrame) -> pd.DataFrame:
    """Friedman with one data set left out at a time: columns without ('' for none), f, p_f_moment, kendall_w."""
    rows = []
    for name, rest in _parts(matrix, axis=1):
        tested = ranks.friedman(rest)
        rows.append((name, tested["f"], tested["p_f_moment"], tested["kendall_w"]))
    return pd.DataFrame(rows, columns=["without", "f", "p_f_moment", "kendall_w"])


def findings(algorithms_out: pd.DataFrame, datasets_out: pd.DataFrame) -> list[dict]:
    """POOL: pairs whose decision changes if some other algorithm is left out. FRAGILE: pairs that are significant in 5 to 95 % of the
    tables with one data set left out. One finding {code, text, algorithm_i, algorithm_j, without} for every pair; `without` names what
    changes the decision. The arguments are results of `without_each_algorithm` and `without_each_dataset`.
    """
    warnings = []
    for (i, j), rows in algorithms_out.groupby(PAIR, sort=False):
        whole, rest = _split(rows)
        names = [name for name, significant in rest.items() if significant != whole]
        if names:
            text = f"{i} - {j} is {_word(whole)} with all algorithms and {_word(not whole)} without {_any(names)}"
            warnings.append({"code": "POOL", "text": text, "algorithm_i": i, "algorithm_j": j, "without": names})
    for (i, j), rows in datasets_out.groupby(PAIR, sort=False):
        whole, rest = _split(rows)
        if rest and bootstrap.FRAGILE[0] <= sum(rest.values()) / len(rest) <= bootstrap.FRAGILE[1]:
            names = [name for name, significant in rest.items() if significant != whole]
            text = f"{i} - {j} is {_word(whole)} with all data sets and {_word(not whole)} without {_any(names)}"
            warnings.append({"code": "FRAGILE", "text": text, "algorithm_i": i, "algorithm_j": j, "without": names})
    return warnings


def _parts(matrix: pd.DataFrame, axis: int) -> list[tuple[str, pd.DataFrame]]:
    return [("", matrix), *((name, matrix.drop(name, axis=axis)) for name in matrix.axes[axis])]


def _without_each(matrix: pd.DataFrame, test: Test, alpha: float, axis: int) -> pd.DataFrame:
    decided = [{"without": name, **_decide(part, test, alpha)} for name, part in _parts(matrix, axis) if min(part.shape) > 1]
    without = [part["without"] for part in decided for _ in part["p"]]
    columns = {name: np.concatenate([part[name] for part in decided]) for name in (*PAIR, "rank_difference", "p", "significant")}
    return pd.DataFrame({"without": without, **columns})


def decisions(matrix: pd.DataFrame, test: Test, alpha: float) -> pd.DataFrame:
    """Every pair: algorithm_i, algorithm_j, rank_difference (i - j, negative = i better), p, significant."""
    return pd.DataFrame(_decide(matrix, test, alpha))


def _decide(matrix: pd.DataFrame, test: Test, alpha: float) -> dict[str, np.ndarray]:
    """The columns of `decisions`; frames of a few rows take longer to make than most tests to compute."""
    p, means, names = test(matrix), ranks.mean_ranks(matrix).to_numpy(), matrix.index.to_numpy(object)
    i, j = np.triu_indices(len(matrix), 1)
    values = p.loc[matrix.index, matrix.index].to_numpy()[i, j]
    of_pair = dict(zip(PAIR, (names[i], names[j]), strict=True))
    return {**of_pair, "rank_difference": means[i] - means[j], "p": values, "significant": values < alpha}


def _split(rows: pd.DataFrame) -> tuple[bool, dict[str, bool]]:
    """Whether a pair is significant in the whole matrix, and {what is left out: whether it then is}."""
    decisions = dict(zip(rows["without"], rows["significant"].tolist(), strict=True))
    return decisions.pop(""), decisions


def _any(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"any one of {', '.join(names)}"


def _word(significant: bool) -> str:
    return "significant" if significant else "not significant"
