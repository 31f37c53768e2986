"""Abstract hypotheses about distribution shift: only IID accuracy matters, synthetic images do not transfer, texture bias, one dimension.

Each row says of how many models or pairs it is, and has a reason where there are too few. Source: Hendrycks et al. (2021), section 3, which
argues about them in words only. The interval of a mean gain is of seeds and images. Correlations and components have none, since resampling
adds the noise of scores a second time, which takes them towards independence; they have p from permutations.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import scipy

from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.evidence import effects, line
from jaxbed.stats.evidence.study import MCE, Given, Pair, Study

FEWEST_MODELS, FEWEST_PAIRS = 5, 4
PERMUTATIONS = 9_999
LARGEST_P = 0.05  # of the least p that permutations can give
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
        beyond = {model: np.dot(both, (-slope, 1)) for model, both in logits.items()}
        pairs = list(dict.fromkeys((pair.treated, pair.control) for pair in given.pairs if {pair.treated, pair.control} <= set(logits)))
        quantity = "mean gain beyond IID, logits"
        if not pairs:
            yield _row(ONLY_IID, name, quantity, of="pairs", reason="no pair has both scores")
            continue
        p, least = exchanged(beyond, pairs)
        gain = np.mean([beyond[treated] - beyond[control] for treated, control in pairs])
        few = f"exchanging treated and control gives no p below about {least:.2f}" if least > LARGEST_P else ""
        yield _row(ONLY_IID, name, quantity, gain, p=np.nan if few else p, n=len(pairs), of="pairs", reason=few)


def exchanged(values: Mapping[str, float], pairs: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """(two-sided p of the mean difference of pairs (treated, control), the least p there could be) if any algorithm might be the control.

    Algorithms are permuted within groups of pairs that share some: two of a single pair, or a control with all that are compared with it,
    whose gains its own error moves together.
    """
    groups: list[dict[str, int]] = []  # {algorithm: how often it is treated, less how often it is the control}
    for treated, control in pairs:
        joined = {name: sign for group in groups if {treated, control} & set(group) for name, sign in group.items()}
        groups = [group for group in groups if not {treated, control} & set(group)]
        groups.append({**joined, treated: joined.get(treated, 0) + 1, control: joined.get(control, 0) - 1})
    rng, sums, observed = np.random.default_rng(0), np.zeros(PERMUTATIONS), 0.0
    for group in groups:
        of_group, sign = np.array([values[name] for name in group]), np.array(list(group.values()))
        observed += of_group @ sign
        sums += rng.permuted(np.tile(of_group, (PERMUTATIONS, 1)), axis=1) @ sign
    sizes = np.abs([observed, *sums])
    return _p(sizes), float((sizes >= sizes.max() - 1e-12).mean())


def _p(statistics: np.ndarray) -> float:
    """The share of statistics, of which the first is the observed one, that are at least as large as it."""
    return float((statistics >= statistics[0] - 1e-12).mean())


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
            effect, shifted = (effects.pool(gain, seeds).effect for gain in (known, known - given.margins[name]))
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
    gains = np.array([[study.gains[name][pair][0] for name in sets] for pair in complete()])  # [pairs, sets]
    named = ", ".join(sets)
    if len(sets) < 2 or len(gains) < FEWEST_PAIRS or not (gains.std(0) > 1e-9).all():
        reason = f"needs 2 sets with {FEWEST_PAIRS} pairs in common whose gains differ"
        yield _row(ONE_DIMENSION, named, "share of the first component", n=len(gains), of="pairs", reason=reason)
        return
    rng = np.random.default_rng(0)
    share, ratio = _spectrum(np.concatenate([gains[None], rng.permuted(np.tile(gains, (PERMUTATIONS, 1, 1)), axis=1)]))
    independent = " if sets were independent"  # each set's gains permuted among the pairs
    for quantity, value, p in (
        ("share of the first component", share[0], _p(share)),
        (f"share of the first component{independent}", share[1:].mean(), np.nan),
        ("participation ratio", ratio[0], _p(-ratio)),
        (f"participation ratio{independent}", ratio[1:].mean(), np.nan),
    ):
        yield _row(ONE_DIMENSION, named, quantity, value, p=p, n=len(gains), of="pairs")


def _spectrum(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(share of the first component, participation ratio) [N] of standardised gains [N, pairs, sets], which differ in every set."""
    centred = gains - gains.mean(1, keepdims=True)
    values = np.linalg.svd(centred / np.sqrt((centred**2).sum(1, keepdims=True)), compute_uv=False) ** 2
    return values.max(1) / values.sum(1), values.sum(1) ** 2 / (values**2).sum(1)


def _known(pairs: list[Pair], gains: dict[tuple[str, str], np.ndarray]) -> list[tuple[str, str]]:
    """The pairs, each once, whose gain has resampled values."""
    both = dict.fromkeys((pair.treated, pair.control) for pair in pairs)
    return [pair for pair in both if pair in gains and not np.isnan(gains[pair][1:]).all()]


def _correlation(claim: str, name: str, quantity: str, pairs: list[Pair], gains: dict, others: dict) -> dict:
    both = dict.fromkeys((pair.treated, pair.control) for pair in pairs)
    shared = [pair for pair in both if pair in gains and pair in others]
    if len(shared) < FEWEST_PAIRS:
        return _row(claim, name, quantity, n=len(shared), of="pairs", reason=f"a rank correlation needs {FEWEST_PAIRS} pairs")
    x, y = (scipy.stats.rankdata([of[pair][0] for pair in shared]) - (len(shared) + 1) / 2 for of in (gains, others))
    if not (length := np.sqrt((x @ x) * (y @ y))):
        return _row(claim, name, quantity, n=len(shared), of="pairs", reason="all values are equal")
    permuted = np.random.default_rng(0).permuted(np.tile(y, (PERMUTATIONS, 1)), axis=1)
    p = _p(np.abs(np.vstack([y, permuted]) @ x))
    return _row(claim, name, quantity, x @ y / length, p=p, n=len(shared), of="pairs")


def _row(
    claim: str, dataset: str, quantity: str, value: float = np.nan, low: float = np.nan, high: float = np.nan, p: float = np.nan,
    n: int = 0, of: str = "", reason: str = "",
) -> dict:  # fmt: skip
    return dict(zip(COLUMNS, (claim, dataset, quantity, value, low, high, p, np.nan, n, of, reason), strict=True))
