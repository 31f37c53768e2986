"""How likely is i to beat j on a new data set, if every algorithm has one ability? Bradley-Terry, by maximum likelihood and Bayes.

Only wins count, not their margins. P(i beats j) = 1 / (1 + exp(b_j - b_i)), b log-abilities. A matrix is algorithms x data sets,
higher is better.

Sources: Bradley and Terry 1952; Hunter, "MM algorithms for generalized Bradley-Terry models", 2004; Wainer, "A Bayesian Bradley-Terry
model to compare multiple ML algorithms on multiple data sets", JMLR 2023 (`posterior` and everything based on it, local regions of
equivalence); Neal, "MCMC using Hamiltonian dynamics", 2011.
"""

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.stats.comparisons import bayes, ranks

LOCAL_ROPE = 0.4  # Wainer's; in std of the runs
EQUIVALENT = (0.45, 0.55)  # Wainer's; of the probability that i beats j
INTERVAL = 0.95  # of that probability
LARGEST_R_HAT, FEWEST_DRAWS = 1.1, 1000  # short chains have sqrt(1 + autocorrelation time / length) even if all is well
PREDICTED = 4000  # draws for the predictive check


class Posterior(NamedTuple):
    """Draws of `posterior`, and their convergence."""

    wins: pd.DataFrame  # [n, n] as used by the model, whole numbers
    log_abilities: pd.DataFrame  # [draws, n], mean 0 in every draw
    sigma: np.ndarray  # [draws]
    r_hat: float  # split; the largest of all abilities and log sigma
    effective_draws: float  # the smallest; an estimated probability p has standard error sqrt(p (1-p) / effective_draws)


def wins(matrix: pd.DataFrame, rope: float = 0.0, std: pd.DataFrame | None = None) -> pd.DataFrame:
    """[n, n]: the number of data sets on which the row beats the column; a tie counts half for both. Diagonal 0.

    A tie is a difference of at most `rope`, in the unit of the scores. With `std` of the runs, as `matrix` and NaN for a single run, the
    region is local: at most 0.4 sqrt((std_i² + std_j²) / 2) on that data set (Cohen's d of 0.4), and `rope` only where one is NaN.
    Raises ValueError for a negative rope, and what `ranks.rank` raises.
    """
    return pd.DataFrame(_wins(matrix, rope, std).sum(axis=0), index=matrix.index, columns=matrix.index)


def abilities(wins: pd.DataFrame) -> pd.Series:
    """Log-abilities with mean 0 by maximum likelihood.

    A finite maximum exists only if every algorithm can be reached from every other along wins; otherwise half a win is first added to
    every cell of `wins`.
    """
    return pd.Series(_abilities(wins.to_numpy(float)), index=wins.index, name="log_ability")


def win_probabilities(
    matrix: pd.DataFrame,
    rope: float = 0.0,
    std: pd.DataFrame | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Every pair once: p, the probability by maximum likelihood that i beats j on a new data set, and an interval p_low, p_high.

    The interval contains the middle `level` of `draws` resamples of the data sets. Ties and errors as in `wins`.
    """
    in_order = matrix[sorted(matrix.columns, key=str)]  # the same draws whatever the order of columns
    by_dataset = _wins(in_order, rope, std)
    m, n = by_dataset.shape[:2]
    counts = np.random.default_rng(seed).multinomial(m, np.full(m, 1 / m), size=draws)
    abilities_drawn = _abilities(np.tensordot(np.vstack([np.ones(m), counts]), by_dataset, axes=1))
    first, second = np.array(list(combinations(range(n), 2))).T
    p = 1 / (1 + np.exp(abilities_drawn[:, second] - abilities_drawn[:, first]))
    low, high = np.quantile(p[1:], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return pd.DataFrame({"algorithm_i": matrix.index[first], "algorithm_j": matrix.index[second], "p": p[0], "p_low": low, "p_high": high})


def posterior(wins: pd.DataFrame, chains: int = 128, warm_up: int = 60, length: int = 300, seed: int = 0) -> Posterior:
    """Draws [length * chains] of Wainer's model given `wins` [n, n].

        sigma ~ LogNormal(0, 0.5), b_i ~ Normal(0, sigma), wins_ij ~ Binomial(games_ij, 1 / (1 + exp(b_j - b_i)))

    Half wins are rounded up, as Wainer spreads ties: with m data sets and an odd number of ties a pair has m + 1 games, else m.
    All comparisons are treated as independent, although n scores on a data set make n (n-1) / 2 of them. If the algorithms are alike, the
    difference of two rank sums has variance m n (n+1) / 6, but m n / 2 in the model: its intervals are `too_narrow` by the root of that
    ratio. The predictive check does not detect this; the resamples of `win_probabilities` are not affected.
    """
    order = sorted(wins.index, key=str)  # the same draws whatever the order of rows
    whole = np.ceil(wins.loc[order, order])
    first, second = np.triu_indices(len(order), 1)
    won, lost = whole.to_numpy()[first, second], whole.to_numpy()[second, first]
    basis = _contrasts(len(order))
    draws = _hamiltonian(won, won + lost, basis[first] - basis[second], chains, warm_up, length, seed)  # [length, chains, n]
    log_abilities, log_sigma = draws[..., :-1] @ basis.T, draws[..., -1:]
    r_hat, effective = _convergence(np.concatenate([log_abilities, log_sigma], axis=2))
    table = pd.DataFrame(log_abilities.reshape(-1, len(order)), columns=order)[list(wins.index)]
    return Posterior(whole.loc[wins.index, wins.index], table, np.exp(log_sigma).ravel(), r_hat, effective)


def pairs(posterior: Posterior) -> pd.DataFrame:
    """Every pair once, of P, the probability that i beats j on a new data set: its posterior mean p and 95 % interval low, high;

    p_better      probability that i has the higher ability, P > 0.5
    p_equivalent  probability that 0.45 < P < 0.55
    """
    rows = []
    for i, j in combinations(posterior.wins.index, 2):
        p = _logistic(posterior.log_abilities[i].to_numpy() - posterior.log_abilities[j].to_numpy())
        low, high = np.quantile(p, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
        rows.append((i, j, p.mean(), low, high, (p > 0.5).mean(), ((p > EQUIVALENT[0]) & (p < EQUIVALENT[1])).mean()))
    return pd.DataFrame(rows, columns=["algorithm_i", "algorithm_j", "p", "low", "high", "p_better", "p_equivalent"])


def predictive(posterior: Posterior, seed: int = 0) -> pd.DataFrame:
    """Every pair once: does the model predict the wins it was fitted to? Number of `games` won by i, observed and predicted.

    wins, games; predicted: mean; low, high: 90 % interval; inside_50, inside_90: are the wins in the 50 %, 90 % interval? The intervals
    consist of whole numbers and cover at least that much. If the model is right, inside_90 is true for about 90 % of the pairs or more.
    """
    order = {name: index for index, name in enumerate(sorted(posterior.wins.index, key=str))}
    rows = []
    for i, j in combinations(posterior.wins.index, 2):
        a, b = sorted((i, j), key=str)  # the same draws for any order of rows
        p = _logistic((posterior.log_abilities[a] - posterior.log_abilities[b]).to_numpy()[-PREDICTED:])
        won, games = posterior.wins.loc[i, j], posterior.wins.loc[i, j] + posterior.wins.loc[j, i]
        drawn = np.random.default_rng([seed, order[a], order[b]]).binomial(int(games), p)
        drawn = drawn if a == i else games - drawn
        low, low_50 = np.quantile(drawn, [0.05, 0.25], method="lower")
        high_50, high = np.quantile(drawn, [0.75, 0.95], method="higher")
        rows.append((i, j, int(won), int(games), drawn.mean(), int(low), int(high), low_50 <= won <= high_50, low <= won <= high))
    return pd.DataFrame(rows, columns=["algorithm_i", "algorithm_j", "wins", "games", "predicted", "low", "high", "inside_50", "inside_90"])


def too_narrow(n: int) -> float:
    """How many times too narrow intervals of `posterior` are for n equally good algorithms with independent ranks."""
    return math.sqrt((n + 1) / 3)


def findings(posterior: Posterior, predicted: pd.DataFrame) -> list[dict]:
    """Warnings NOT_CONVERGED and MISFIT, [{code, text}]; `predicted` from `predictive`."""
    warnings = []
    if not (posterior.r_hat <= LARGEST_R_HAT and posterior.effective_draws >= FEWEST_DRAWS):
        text = f"the chains have R-hat {posterior.r_hat:.3f} and {posterior.effective_draws:.0f} effective draws"
        warnings.append({"code": "NOT_CONVERGED", "text": f"Bradley-Terry: {text}"})
    share = predicted["inside_90"].mean()
    if share < 0.9:
        text = f"only {share:.0%} of the pairs have wins in the 90 % interval of the model; one ability per algorithm does not explain them"
        warnings.append({"code": "MISFIT", "text": f"Bradley-Terry: {text}"})
    return warnings


def _wins(matrix: pd.DataFrame, rope: float, std: pd.DataFrame | None) -> np.ndarray:
    """[m, n, n] of 0, 1/2, 1."""
    bayes.refuse_negative(rope)
    ranks.rank(matrix)
    scores = matrix.to_numpy(float).T
    difference = (scores[:, :, None] - scores[:, None, :]).round(bayes.DECIMALS)
    region = np.full(difference.shape, float(rope))
    if std is not None:
        variance = std.loc[matrix.index, matrix.columns].to_numpy(float).T ** 2
        local = LOCAL_ROPE * np.sqrt((variance[:, :, None] + variance[:, None, :]) / 2)
        region = np.where(np.isnan(local), region, local)
    result = np.where(np.abs(difference) <= region.round(bayes.DECIMALS), 0.5, difference > 0)
    result[:, range(len(matrix)), range(len(matrix))] = 0
    return result


def _abilities(wins: np.ndarray) -> np.ndarray:
    """Wins [..., n, n] -> log-abilities [..., n], by minorization-maximization: p_i <- wins of i / sum_j games_ij / (p_i + p_j)."""
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
    while len(moving):  # terminates: the maximum is finite, and every step increases the likelihood
        p = np.exp(result[moving])
        new = np.log(won[moving]) - np.log((games[moving] / (p[:, :, None] + p[:, None, :])).sum(axis=2))
        new -= new.mean(axis=1, keepdims=True)
        step = np.abs(new - result[moving]).max(axis=1)
        result[moving] = new
        moving = moving[step > 1e-10]
    return result.reshape(wins.shape[:-1])


def _contrasts(n: int) -> np.ndarray:
    """[n, n-1]: orthonormal columns of sum 0 (Helmert). No game depends on the mean ability, so it is not drawn."""
    row, column = np.arange(n)[:, None], np.arange(1, n)
    return np.where(row < column, 1.0, np.where(row == column, -column, 0.0)) / np.sqrt(column * (column + 1.0))


def _hamiltonian(won: np.ndarray, games: np.ndarray, design: np.ndarray, chains: int, warm_up: int, length: int, seed: int) -> np.ndarray:
    """[length, chains, n]: draws of the n-1 contrasts of the abilities and of log sigma. design [P, n-1] makes differences of contrasts.

    Hamiltonian Monte Carlo, all chains at once. Given sigma the density is log-concave and almost isotropic: one step size, tuned during
    warm-up, and the scales below are enough. Chains start from the prior.
    """

    def log_density(x: np.ndarray) -> np.ndarray:
        """[chains]"""
        contrasts, log_sigma = x[:, :-1], x[:, -1:]
        difference = contrasts @ design.T
        squares = (contrasts**2).sum(axis=1, keepdims=True) * np.exp(-2 * log_sigma)
        likelihood = difference @ won - np.logaddexp(0, difference) @ games
        return likelihood - (wide * log_sigma + squares / 2 + 2 * log_sigma**2)[:, 0]

    def slope(x: np.ndarray) -> np.ndarray:
        """The gradient of the log density, [chains, n]."""
        contrasts, log_sigma = x[:, :-1], x[:, -1:]
        precision = np.exp(-2 * log_sigma)
        squares = (contrasts**2).sum(axis=1, keepdims=True) * precision
        gradient = (won - games * _logistic(contrasts @ design.T)) @ design - contrasts * precision
        return np.hstack([gradient, squares - wide - 4 * log_sigma])

    rng = np.random.default_rng(seed)
    wide = design.shape[1]
    known = games.sum() / wide / 2  # information on a contrast if all have the same ability
    scale = np.append(np.full(wide, 1 / np.sqrt(1 + known)), 1 / np.sqrt(4 + 2 * wide * known / (1 + known)))
    log_sigma = rng.normal(0, 0.5, (chains, 1))
    x = np.hstack([rng.standard_normal((chains, wide)) * np.exp(log_sigma), log_sigma])
    value, gradient = log_density(x), slope(x)
    step, kept = 0.3, []
    for turn in range(warm_up + length):
        momentum = rng.standard_normal(x.shape)
        energy = (momentum**2).sum(axis=1) / 2 - value
        new, new_gradient = x, gradient
        with np.errstate(over="ignore", invalid="ignore"):  # a step that is too long ends in infinity or NaN and is rejected
            for _ in range(rng.integers(1, 6)):
                momentum = momentum + step / 2 * scale * new_gradient
                new = new + step * scale * momentum
                new_gradient = slope(new)
                momentum = momentum + step / 2 * scale * new_gradient
            new_value = log_density(new)
            accepted = np.exp(np.minimum(0, energy + new_value - (momentum**2).sum(axis=1) / 2))
        accepted = np.nan_to_num(accepted)
        taken = rng.random(chains) < accepted
        x, gradient = (np.where(taken[:, None], after, before) for after, before in ((new, x), (new_gradient, gradient)))
        value = np.where(taken, new_value, value)
        if turn < warm_up:
            step *= np.exp((accepted.mean() - 0.8) / np.sqrt(1 + turn))
        else:
            kept.append(x)
    return np.array(kept)


def _convergence(draws: np.ndarray) -> tuple[float, float]:
    """[length, chains, k] -> the largest split R-hat and the smallest effective number of draws of the k parameters.

    The chains are independent and many: the spread of their means gives the error of the overall mean without an autocorrelation.
    """
    half = len(draws) // 2
    halves = np.concatenate([draws[:half], draws[half : 2 * half]], axis=1)
    within, between = halves.var(axis=0, ddof=1).mean(axis=0), halves.mean(axis=0).var(axis=0, ddof=1)
    effective = draws.shape[1] * draws.var(axis=(0, 1)) / draws.mean(axis=0).var(axis=0, ddof=1)
    return float(np.sqrt(1 - 1 / half + between / within).max()), float(effective.min())


def _logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return (1 + np.tanh(x / 2)) / 2
