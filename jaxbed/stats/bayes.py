"""How likely is it that A beats B on another dataset? Bayesian signed-rank test with a region of practical equivalence, Bradley-Terry.

A matrix is algorithms x datasets, higher is better. `rope` is a difference that does not matter, in the unit of the scores: one point is
1.0 in percent and 0.01 in fractions. Differences are rounded to 1e-12, so that .80 - .78 and .62 - .60 are equal.

Sources: Benavoli et al., "A Bayesian Wilcoxon signed-rank test based on the Dirichlet process", ICML 2014, and "Time for a change",
JMLR 2017; Bradley and Terry 1952; Hunter, "MM algorithms for generalized Bradley-Terry models", 2004; Wainer, "A Bayesian
Bradley-Terry model to compare multiple ML algorithms on multiple data sets", JMLR 2023 (ties within a region of equivalence).
"""

from itertools import combinations
from typing import TYPE_CHECKING

from jaxbed.stats import ranks

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

DECIMALS = 12
PRIOR_STRENGTH = 0.5  # weight of a pseudo-observation of difference 0
CHUNK = 1_000_000  # products of two weights held at a time


def signed_rank(matrix: "pd.DataFrame", rope: float, draws: int = 50_000, seed: int = 0) -> "pd.DataFrame":
    """Every pair once: which of "i better", "equal within rope", "j better" the datasets speak for.

    With d_0 = 0 (weight 0.5) and the m differences d = i - j (weight 1 each) as atoms, w ~ Dirichlet(weights),

        theta_i = sum_kl w_k w_l [d_k + d_l > 2 rope],  theta_j likewise below -2 rope,  theta_rope the rest;

    a sum exactly on a boundary counts half on either side. Columns algorithm_i, algorithm_j; p_i, p_rope, p_j: the share of draws in
    which that theta is largest (equal ones share); theta_i, theta_rope, theta_j: posterior means in closed form.
    Raises ValueError for a negative rope, and what `ranks.rank` raises.
    """
    import numpy as np
    import pandas as pd

    _refuse_negative(rope)
    ranks.rank(matrix)  # refuses what cannot be compared
    scores = matrix[sorted(matrix.columns, key=str)].to_numpy(float)  # sorted: a dataset meets the same draws wherever its column stands
    first, second = np.array(list(combinations(range(len(scores)), 2))).T
    kinds = _kinds(scores[first] - scores[second], rope)  # [P, 3, K], a row for every pair of atoms
    weights = np.array([PRIOR_STRENGTH, *np.ones(matrix.shape[1])])
    one, other = np.triu_indices(len(weights))
    times = np.where(one == other, 1, 2)
    total = weights.sum()
    expected = times * weights[one] * (weights[other] + (one == other)) / (total * (total + 1))  # of w_k w_l
    theta = kinds @ expected  # [P, 3]
    rng = np.random.default_rng(seed)
    shares = np.zeros_like(theta)
    chunk = max(1, CHUNK // len(one))
    for start in range(0, draws, chunk):
        w = rng.dirichlet(weights, min(chunk, draws - start))
        drawn = ((w[:, one] * w[:, other] * times) @ kinds.reshape(-1, len(one)).T).reshape(len(w), *theta.shape)
        largest = drawn >= drawn.max(axis=2, keepdims=True) - 10.0**-DECIMALS  # equal but for rounding
        shares += (largest / largest.sum(axis=2, keepdims=True)).sum(axis=0)
    names = {"algorithm_i": matrix.index[first], "algorithm_j": matrix.index[second]}
    numbers = np.hstack([shares / draws, theta])
    return pd.DataFrame(names).assign(
        **{f"{kind}_{side}": numbers[:, 3 * a + b] for a, kind in enumerate(("p", "theta")) for b, side in enumerate(("i", "rope", "j"))}
    )


def wins(matrix: "pd.DataFrame", rope: float = 0.0) -> "pd.DataFrame":
    """[n, n]: on how many datasets the row is better than the column by more than `rope`; all else is a tie and counts half for both.

    Diagonal 0. Raises ValueError for a negative rope, and what `ranks.rank` raises.
    """
    import pandas as pd

    return pd.DataFrame(_wins(matrix, rope).sum(axis=0), index=matrix.index, columns=matrix.index)


def bradley_terry(wins: "pd.DataFrame") -> "pd.Series":
    """Log-abilities with mean 0 by maximum likelihood: P(i beats j on a dataset) = 1 / (1 + exp(b_j - b_i)).

    No finite maximum exists unless every algorithm can be reached from every other along wins; then half a win is added to every
    cell of `wins` first.
    """
    import pandas as pd

    return pd.Series(_abilities(wins.to_numpy(float)), index=wins.index, name="log_ability")


def win_probabilities(matrix: "pd.DataFrame", rope: float = 0.0, draws: int = 1000, level: float = 0.95, seed: int = 0) -> "pd.DataFrame":
    """Every pair once: p, how probable it is by Bradley-Terry that i beats j on a new dataset, and an interval p_low, p_high.

    The interval holds the middle `level` of `draws` resamples of the datasets. Raises what `wins` raises.
    """
    import numpy as np
    import pandas as pd

    by_dataset = _wins(matrix[sorted(matrix.columns, key=str)], rope)  # [m, n, n], sorted as above
    m, n = by_dataset.shape[:2]
    counts = np.random.default_rng(seed).multinomial(m, np.full(m, 1 / m), size=draws)
    abilities = _abilities(np.tensordot(np.vstack([np.ones(m), counts]), by_dataset, axes=1))
    first, second = np.array(list(combinations(range(n), 2))).T
    p = 1 / (1 + np.exp(abilities[:, second] - abilities[:, first]))
    low, high = np.quantile(p[1:], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return pd.DataFrame({"algorithm_i": matrix.index[first], "algorithm_j": matrix.index[second], "p": p[0], "p_low": low, "p_high": high})


def _kinds(differences: "np.ndarray", rope: float) -> "np.ndarray":
    """Differences [P, m] -> [P, 3, K]: to which of better, rope, worse a pair of atoms belongs, K = pairs of atoms, 1/2 on a boundary."""
    import numpy as np

    atoms = np.hstack([np.zeros((len(differences), 1)), differences.round(DECIMALS)])
    one, other = np.triu_indices(atoms.shape[1])
    sums = (atoms[:, one] + atoms[:, other]).round(DECIMALS)
    edge = round(2 * rope, DECIMALS)
    better, worse = ((sign * sums > edge) + 0.5 * (sign * sums == edge) for sign in (1, -1))
    return np.stack([better, 1 - better - worse, worse], axis=1)


def _wins(matrix: "pd.DataFrame", rope: float) -> "np.ndarray":
    """[m, n, n] of 0, 1/2, 1."""
    import numpy as np

    _refuse_negative(rope)
    ranks.rank(matrix)
    scores = matrix.to_numpy(float).T
    difference = (scores[:, :, None] - scores[:, None, :]).round(DECIMALS)
    result = np.where(np.abs(difference) <= round(rope, DECIMALS), 0.5, difference > 0)
    result[:, range(len(matrix)), range(len(matrix))] = 0
    return result


def _abilities(wins: "np.ndarray") -> "np.ndarray":
    """Wins [..., n, n] -> log-abilities [..., n], by minorise-maximise: p_i <- wins of i / sum_j games_ij / (p_i + p_j)."""
    import numpy as np

    n = wins.shape[-1]
    flat = wins.reshape(-1, n, n).astype(float)
    reach = (flat > 0) | np.eye(n, dtype=bool)
    for _ in range(n.bit_length()):  # paths of 2, 4, 8, ... steps
        reach = reach @ reach
    flat += 0.5 * ~reach.all(axis=(1, 2), keepdims=True) * (1 - np.eye(n))
    games = flat + flat.swapaxes(1, 2)
    won = flat.sum(axis=2)
    result = np.zeros((len(flat), n))
    moving = np.arange(len(flat))
    while len(moving):  # ends: the maximum is finite, and every step raises the likelihood
        p = np.exp(result[moving])
        new = np.log(won[moving]) - np.log((games[moving] / (p[:, :, None] + p[:, None, :])).sum(axis=2))
        new -= new.mean(axis=1, keepdims=True)
        step = np.abs(new - result[moving]).max(axis=1)
        result[moving] = new
        moving = moving[step > 1e-10]
    return result.reshape(wins.shape[:-1])


def _refuse_negative(rope: float) -> None:
    if not rope >= 0:
        raise ValueError(f"rope {rope:g} is no region of equivalence; give 0 or a difference that does not matter, e.g. 1 point")
