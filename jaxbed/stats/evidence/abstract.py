"""Abstract hypotheses about distribution shift: only IID accuracy matters, synthetic images do not transfer, texture bias, one dimension.

Each row says of how many models or pairs it is, and has a reason where there are too few. Source: Hendrycks et al. (2021), section 3, which
argues about them in words only. Intervals are of seeds and images, not of other pairs.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
import scipy

from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.evidence import effects, line
from jaxbed.stats.evidence.study import MCE, Given, Pair, Study

FEWEST_MODELS, FEWEST_PAIRS, FEWEST_FLIPPED = 5, 4, 6  # with five pairs, no two-sided p of sign flips is below 0.05
MOST_FLIPPED = 12  # pairs whose sign flips are all listed
RANDOM_FLIPS = 4_096
COLUMNS = ["claim", "dataset", "quantity", "value", "low", "high", "p", "p_holm", "n", "of", "reason"]
ONLY_IID, NO_TRANSFER, TEXTURE, ONE_DIMENSION = (
    "only IID accuracy matters", "synthetic images do not transfer", "texture bias", "one dimension of robustness"
)  # fmt: skip


def test(given: Given, study: Study) -> pd.DataFrame:
    """Columns COLUMNS, a row for each quantity; p_holm is over the sets of one quantity."""
    rows = [*_only_iid(given), *_no_transfer(given, study), *_texture(given, study), *_dimensions(study)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    for _, p in table["p"].dropna().groupby([table["claim"], table["quantity"]]):
        table.loc[p.index, "p_holm"] = pairwise.holm(p.to_numpy())
    return table


def _only_iid(given: Given) -> Iterator[dict]:
    for name, scores in given.shifted.items():
        if name not in given.iid:
            yield _row(ONLY_IID, name, "R2 of IID alone", of="models", reason="no in-distribution set")
            continue
        iid = given.iid[name].draws
        points = {model: (iid[model][0], draws[0]) for model, draws in scores.draws.items() if model in iid}
        logits = {model: line.logit(np.array(both)) for model, both in points.items() if all(0 < score < 100 for score in both)}
        x, y = np.array(list(logits.values())).reshape(-1, 2).T
        if len(logits) < FEWEST_MODELS or not np.ptp(x) > 1e-9 or not np.ptp(y) > 1e-9:
            yield _row(ONLY_IID, name, "R2 of IID alone", n=len(logits), of="models", reason=f"needs {FEWEST_MODELS} models that differ")
            continue
        yield _row(ONLY_IID, name, "R2 of IID alone", np.corrcoef(x, y)[0, 1] ** 2, n=len(logits), of="models")
        slope = np.polyfit(x, y, 1)[0]
        both = list(dict.fromkeys((pair.treated, pair.control) for pair in given.pairs if {pair.treated, pair.control} <= set(logits)))
        beyond = np.array([np.dot(logits[treated] - logits[control], (-slope, 1)) for treated, control in both])
        quantity = "mean gain beyond IID, logits"
        if len(both) < FEWEST_FLIPPED:
            yield _row(ONLY_IID, name, quantity, n=len(both), of="pairs", reason=f"sign flips need {FEWEST_FLIPPED} pairs")
        else:
            yield _row(ONLY_IID, name, quantity, beyond.mean(), p=flips(beyond), n=len(both), of="pairs")


def flips(differences: np.ndarray) -> float:
    """Two-sided p of a mean difference under all exchanges of treated and control within pairs; of random ones with many pairs."""
    k = len(differences)
    if k <= MOST_FLIPPED:
        signs = np.array(list(itertools.product((1, -1), repeat=k)))
    else:
        signs = np.vstack([np.ones(k), np.random.default_rng(0).choice((1, -1), (RANDOM_FLIPS - 1, k))])
    return float((np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean())


def _no_transfer(given: Given, study: Study) -> Iterator[dict]:
    pairs = [pair for pair in given.pairs if pair.synthetic]
    lacking = "no pair is marked as synthetic" if not pairs else "" if given.real else "no set is named as a real shift (--real)"
    if lacking:
        yield _row(NO_TRANSFER, "", "mean gain above the margin", of="pairs", reason=lacking)
        return
    for name in given.real:
        gains, scores = study.gains[name], given.shifted[name]
        both = _known(pairs, gains)
        if not both:
            yield _row(NO_TRANSFER, name, "mean gain above the margin", of="pairs", reason="no synthetic pair has a standard error here")
        else:
            known, seeds = np.array([gains[pair] for pair in both]), scores.part_of_seeds(both)
            effect, shifted = effects.pool(known, seeds).effect, effects.pool(known - given.margins[name], seeds).effect
            yield _row(NO_TRANSFER, name, "mean gain above the margin", *effect[:3], shifted.p, len(known), "pairs")
        yield _correlation(NO_TRANSFER, name, "Spearman's rho with the gain on mCE", pairs, gains, _mce_gains(study))


def _mce_gains(study: Study) -> dict[tuple[str, str], np.ndarray]:
    return study.gains.get(MCE) or study.gains.get("ImageNet-C") or {}


def _texture(given: Given, study: Study) -> Iterator[dict]:
    bias = given.shape_bias
    changes = {
        (pair.treated, pair.control): np.full(1, bias[pair.treated] - bias[pair.control])
        for pair in given.pairs
        if pair.treated in bias and pair.control in bias
    }
    if not changes:
        yield _row(TEXTURE, "", "Spearman's rho with the change of shape bias", of="pairs", reason="no pair has a shape bias")
        return
    for name in given.real or study.gains:
        yield _correlation(TEXTURE, name, "Spearman's rho with the change of shape bias", given.pairs, study.gains[name], changes)


def _dimensions(study: Study) -> Iterator[dict]:
    """Of the matrix of gains [pairs, sets], columns standardised; sets with the fewest pairs are dropped until enough pairs have all."""
    sets = sorted(study.gains, key=lambda name: -len(study.gains[name]))

    def complete() -> list[tuple[str, str]]:
        return [pair for pair in study.gains[sets[0]] if all(pair in study.gains[name] for name in sets)]

    while len(sets) > 2 and len(complete()) < FEWEST_PAIRS:
        sets.pop()
    gains = np.array([[study.gains[name][pair] for name in sets] for pair in complete()])  # [pairs, sets, 1 + R]
    named, quantities = ", ".join(sets), ("share of the first component", "participation ratio")
    usable = len(sets) > 1 and len(gains) >= FEWEST_PAIRS and (gains[:, :, 0].std(0) > 1e-9).all()
    for quantity, values in zip(quantities, _spectrum(gains) if usable else (None, None), strict=True):
        if values is None:
            reason = f"needs 2 sets with {FEWEST_PAIRS} pairs in common whose gains differ"
            yield _row(ONE_DIMENSION, named, quantity, n=len(gains), of="pairs", reason=reason)
        else:
            yield _row(ONE_DIMENSION, named, quantity, *effects.of_draws(values)[:3], n=len(gains), of="pairs")


def _spectrum(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(share of the first component, participation ratio) of each of 1 + R draws; NaN where gains do not differ."""
    centred = np.moveaxis(gains - gains.mean(0), -1, 0)  # [1 + R, pairs, sets]
    spread = np.sqrt((centred**2).sum(1, keepdims=True))
    unit = np.divide(centred, spread, out=np.full(centred.shape, np.nan), where=spread > 1e-12)
    known = ~np.isnan(unit).any((1, 2))
    share, ratio = np.full((2, len(unit)), np.nan)
    values = np.linalg.svd(unit[known], compute_uv=False) ** 2
    share[known], ratio[known] = values.max(1) / values.sum(1), values.sum(1) ** 2 / (values**2).sum(1)
    return share, ratio


def _known(pairs: list[Pair], gains: dict[tuple[str, str], np.ndarray]) -> list[tuple[str, str]]:
    """The pairs, each once, whose gain has resampled values."""
    both = dict.fromkeys((pair.treated, pair.control) for pair in pairs)
    return [pair for pair in both if pair in gains and not np.isnan(gains[pair][1:]).all()]


def _correlation(claim: str, name: str, quantity: str, pairs: list[Pair], gains: dict, others: dict) -> dict:
    both = dict.fromkeys((pair.treated, pair.control) for pair in pairs)
    shared = [pair for pair in both if pair in gains and pair in others]
    if len(shared) < FEWEST_PAIRS:
        return _row(claim, name, quantity, n=len(shared), of="pairs", reason=f"a rank correlation needs {FEWEST_PAIRS} pairs")
    x, y = (np.stack(np.broadcast_arrays(*(of[pair] for pair in shared))) for of in (gains, others))
    ranked = [scipy.stats.rankdata(values, axis=0) - (len(shared) + 1) / 2 for values in np.broadcast_arrays(x, y)]
    length = np.sqrt((ranked[0] ** 2).sum(0) * (ranked[1] ** 2).sum(0))
    rho = np.divide((ranked[0] * ranked[1]).sum(0), length, out=np.full(len(length), np.nan), where=length > 0)
    rho[np.isnan(x).any(0) | np.isnan(y).any(0)] = np.nan
    reason = "all values are equal" if np.isnan(rho[0]) else ""
    return _row(claim, name, quantity, *effects.of_draws(rho)[:3], n=len(shared), of="pairs", reason=reason)


def _row(
    claim: str, dataset: str, quantity: str, value: float = np.nan, low: float = np.nan, high: float = np.nan, p: float = np.nan,
    n: int = 0, of: str = "", reason: str = "",
) -> dict:  # fmt: skip
    return dict(zip(COLUMNS, (claim, dataset, quantity, value, low, high, p, np.nan, n, of, reason), strict=True))
