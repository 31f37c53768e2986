"""How likely is it that A beats B on another data set? Bayesian signed-rank test with a region of practical equivalence.

A matrix is algorithms x data sets, higher is better. `rope` is a difference that does not matter, in the unit of the scores: one point is
1.0 in percent and 0.01 in fractions. Differences are rounded to 1e-12, so that .80 - .78 and .62 - .60 are equal.

Sources: Benavoli et al., "A Bayesian Wilcoxon signed-rank test based on the Dirichlet process", ICML 2014, and "Time for a change",
JMLR 2017.
"""

import math
from itertools import combinations

import numpy as np
import pandas as pd

from jaxbed.stats.comparisons import ranks

DECIMALS = 12
PRIOR_STRENGTH = 0.5  # weight of a pseudo-observation of difference 0
DRAWS, FEWEST_DRAWS = 50_000, 5000
WORK = 20_000_000_000  # most multiplications, some seconds: fewer draws for many algorithms and data sets
CHUNK = 1_000_000  # most products of two weights in memory


def signed_rank(matrix: pd.DataFrame, rope: float, draws: int | None = None, seed: int = 0) -> pd.DataFrame:
    """Every pair once: the probabilities of "i better", "equal within rope" and "j better" given the data sets.

    With d_0 = 0 (weight 0.5) and the m differences d = i - j (weight 1 each) as atoms, w ~ Dirichlet(weights),

        theta_i = sum_kl w_k w_l [d_k + d_l > 2 rope],  theta_j likewise below -2 rope,  theta_rope the rest;

    a sum exactly on a boundary counts half on either side. Columns algorithm_i, algorithm_j; p_i, p_rope, p_j: the share of draws in
    which that theta is largest (shared among equal ones); theta_i, theta_rope, theta_j: posterior means in closed form.
    `draws`: default `most_draws`. Raises ValueError for a negative rope, and what `ranks.rank` raises.
    """
    refuse_negative(rope)
    ranks.rank(matrix)  # raises an error for what cannot be compared
    scores = matrix[sorted(matrix.columns, key=str)].to_numpy(float)  # sorted: the same draws whatever the order of columns
    first, second = np.array(list(combinations(range(len(scores)), 2))).T
    kinds = _kinds(scores[first] - scores[second], rope)  # [P, 3, K], a row for every pair of atoms
    weights = np.array([PRIOR_STRENGTH, *np.ones(matrix.shape[1])])
    one, other = np.triu_indices(len(weights))
    times = np.where(one == other, 1, 2)
    total = weights.sum()
    expected = times * weights[one] * (weights[other] + (one == other)) / (total * (total + 1))  # of w_k w_l
    theta = kinds @ expected  # [P, 3]
    draws = draws or most_draws(*matrix.shape)
    rng = np.random.default_rng(seed)
    shares = np.zeros_like(theta)
    chunk = max(1, CHUNK // len(one))
    for start in range(0, draws, chunk):
        w = rng.dirichlet(weights, min(chunk, draws - start))
        drawn = ((w[:, one] * w[:, other] * times) @ kinds.reshape(-1, len(one)).T).reshape(len(w), *theta.shape)
        largest = drawn >= drawn.max(axis=2, keepdims=True) - 10.0**-DECIMALS  # equal except for rounding
        shares += (largest / largest.sum(axis=2, keepdims=True)).sum(axis=0)
    names = {"algorithm_i": matrix.index[first], "algorithm_j": matrix.index[second]}
    numbers = np.hstack([shares / draws, theta])
    columns = [f"{kind}_{side}" for kind in ("p", "theta") for side in ("i", "rope", "j")]
    return pd.DataFrame(names).assign(**dict(zip(columns, numbers.T, strict=True)))


def most_draws(n: int, m: int) -> int:
    """DRAWS, or fewer where these would take more than WORK multiplications for n algorithms on m data sets."""
    return min(DRAWS, max(FEWEST_DRAWS, WORK // (3 * math.comb(n, 2) * math.comb(m + 2, 2))))


def refuse_negative(rope: float) -> None:
    """Raises ValueError for a rope below 0 or NaN."""
    if not rope >= 0:
        raise ValueError(f"rope {rope:g}: must be 0 or more, a difference that does not matter, e.g. 1 point")


def _kinds(differences: np.ndarray, rope: float) -> np.ndarray:
    """Differences [P, m] -> [P, 3, K]: better, within the rope, or worse, for each of the K pairs of atoms; 1/2 on a boundary."""
    atoms = np.hstack([np.zeros((len(differences), 1)), differences.round(DECIMALS)])
    one, other = np.triu_indices(atoms.shape[1])
    sums = (atoms[:, one] + atoms[:, other]).round(DECIMALS)
    edge = round(2 * rope, DECIMALS)
    better, worse = ((sign * sums > edge) + 0.5 * (sign * sums == edge) for sign in (1, -1))
    return np.stack([better, 1 - better - worse, worse], axis=1)
