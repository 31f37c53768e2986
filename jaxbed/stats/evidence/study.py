"""Every hypothesis on every shifted set: raw and effective effects of its pairs, pooled, with a decision for each.

Source: Hendrycks et al., "The Many Faces of Robustness: A Critical Analysis of Out-of-Distribution Generalization" (2021). Differs: there a
cell is + or - by one number without an interval, by a rule that changes with the column.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import deepfashion
from jaxbed.stats import names
from jaxbed.stats.comparisons import pairwise
from jaxbed.stats.evidence import effects, families, line, resampling
from jaxbed.stats.evidence.line import Line
from jaxbed.stats.evidence.resampling import Sampled

MCE = "mCE"
PRECISION_MARGIN = 0.5  # smallest effect of interest of mean average precision, in points
MARGINS = {  # smallest effects of interest in points, as the paper and as runs name sets; of every other set MARGIN
    **dict.fromkeys(("Real Blurry Images", "blurry", "blurry_present"), 2.0),
    **dict.fromkeys(("DFR", *deepfashion.SHIFTS), PRECISION_MARGIN),
}
MARGIN = 1.0
ALL = "all"  # pairs of a hypothesis together
EFFECTS = ("raw", "effective")


class Pair(NamedTuple):
    """Two algorithms that differ in what a hypothesis is about."""

    hypothesis: str
    treated: str
    control: str
    synthetic: bool = False  # augmentation with synthetic images
    overlaps: tuple[str, ...] = ()  # ImageNet-C's corruptions that the treated algorithm, and not the control, has trained with
    differs: tuple[str, ...] = ()  # in which tags, see `tags`


class Given(NamedTuple):
    """What is compared."""

    pairs: list[Pair]
    shifted: dict[str, Sampled]  # {set: scores}
    iid: dict[str, Sampled]  # {set: in-distribution scores that belong to it}; empty without
    controls: list[str]  # of the line
    margins: Mapping[str, float]  # {set: points}
    notes: list[str]
    shape_bias: Mapping[str, float] = MappingProxyType({})  # {algorithm: mean over seeds}
    real: Sequence[str] = ()  # sets whose shift is natural
    provenance: Mapping[str, list[str]] = MappingProxyType({})  # {algorithm: its runs, in words}


class Study(NamedTuple):
    """cells: one row per hypothesis and set; pairs: one row per pair and set, both with the columns of `_row`; lines: those used."""

    cells: pd.DataFrame
    pairs: pd.DataFrame
    lines: pd.DataFrame
    gains: dict[str, dict[tuple[str, str], np.ndarray]]  # {set: {(treated, control): draws [1 + R] of the raw effect}}


def margin_of(dataset: str, precise: bool = False) -> float:
    """The default smallest effect of interest in points; precise: the score is a mean average precision."""
    known = names.find(dataset, MARGINS)
    return MARGINS[known] if known else PRECISION_MARGIN if precise else MARGIN


def compare(given: Given) -> Study:
    """Raises ValueError where there is no shifted set."""
    if not given.shifted:
        raise ValueError("no set of role ood, and no mCE: evaluate the runs on a shifted set, then: jaxbed eval WORKDIR")
    cells: list[dict] = []
    pairs: list[dict] = []
    lines: dict[tuple, dict] = {}
    gains: dict[str, dict[tuple[str, str], np.ndarray]] = {name: {} for name in given.shifted}
    for name in given.shifted:
        logging.getLogger(__name__).info("comparing pairs on %s", name)
        for hypothesis in dict.fromkeys(pair.hypothesis for pair in given.pairs):
            tested = [pair for pair in given.pairs if pair.hypothesis == hypothesis and _has(given.shifted[name], pair)]
            of_pairs = []
            for pair in tested:
                row, raw, beyond = _pair(given, name, pair, lines)
                gains[name][pair.treated, pair.control] = raw
                of_pairs.append((row, raw, beyond))
            pairs += [row for row, _, _ in of_pairs]
            cells.append(_cell(given, name, hypothesis, tested, of_pairs))
    order = {hypothesis: number for number, hypothesis in enumerate(dict.fromkeys(pair.hypothesis for pair in given.pairs))}
    table = pd.DataFrame(cells).sort_values("hypothesis", key=lambda column: column.map(order), kind="stable", ignore_index=True)
    table.insert(table.columns.get_loc("raw_p") + 1, "raw_p_holm", _holm(table["raw_p"]))
    return Study(table, pd.DataFrame(pairs, columns=[name for name in table.columns if name != "raw_p_holm"]), _lines(lines), gains)


def _has(scores: Sampled, pair: Pair) -> bool:
    return pair.treated in scores.draws and pair.control in scores.draws


def _pair(given: Given, name: str, pair: Pair, lines: dict[tuple, dict]) -> tuple[dict, np.ndarray, np.ndarray | None]:
    """(row, draws of the raw effect, draws of the effective effect or None)."""
    scores = given.shifted[name]
    raw = scores.draws[pair.treated] - scores.draws[pair.control]
    beyond, reason = _effective(given, name, pair, lines)
    seeds = scores.part_of_seeds([(pair.treated, pair.control)])
    z = resampling.mcnemar(scores.of_image[pair.treated], scores.of_image[pair.control]) if scores.of_image else float("nan")
    row = _row(
        pair.hypothesis, name, treated=pair.treated, control=pair.control, pairs=1, margin=given.margins[name], mcnemar_z=z,
        raw=effects.of_draws(raw, scores.normal, seeds),
        effective=effects.UNKNOWN if beyond is None else effects.of_draws(beyond, scores.normal, seeds),
        positive=int(raw[0] > 0), reason=reason, basis=scores.basis(pair.treated, pair.control), images=scores.images,
        seeds=f"{scores.seeds[pair.treated]} / {scores.seeds[pair.control]}" if not scores.normal else "",
        overlaps=families.tested_by(name, pair.overlaps),
    )  # fmt: skip
    return row, raw, beyond


def _effective(given: Given, name: str, pair: Pair, lines: dict[tuple, dict]) -> tuple[np.ndarray | None, str]:
    """(draws of the effective effect, ""), or (None, why there is none)."""
    if name not in given.iid:
        return None, "no in-distribution set"
    if not given.controls:
        return None, "no line: name controls with --line"
    scores, iid = given.shifted[name].draws, given.iid[name].draws
    if lost := [each for each in (pair.treated, pair.control) if each not in iid]:
        return None, f"{lost[0]} has no in-distribution score"
    try:
        fitted = line.fit(iid, scores, [control for control in given.controls if control != pair.treated])
        lines[name, tuple(fitted.controls)] = _of_line(name, fitted)
        return line.effective(fitted, (iid[pair.treated], iid[pair.control]), (scores[pair.treated], scores[pair.control])), ""
    except ValueError as error:
        return None, str(error)


def _cell(
    given: Given, name: str, hypothesis: str, pairs: Sequence[Pair], of_pairs: list[tuple[dict, np.ndarray, np.ndarray | None]]
) -> dict:
    """The row of a hypothesis: that of its only pair, or of all together."""
    rows = [row for row, _, _ in of_pairs]
    if not rows:
        return _row(hypothesis, name, margin=given.margins[name], reason="no pair has answers")
    if len(rows) == 1:
        return rows[0]
    scores, both = given.shifted[name], [(pair.treated, pair.control) for pair in pairs]
    raw = effects.pool(np.stack([draws for _, draws, _ in of_pairs]), scores.part_of_seeds(both))
    known = {pair: draws for pair, (_, _, draws) in zip(both, of_pairs, strict=True) if draws is not None}
    seeds, beyond = scores.part_of_seeds(list(known)), effects.UNKNOWN
    if len(known) == 1:
        beyond = effects.of_draws(next(iter(known.values())), scores.normal, seeds)
    elif known:
        beyond = effects.pool(np.stack(list(known.values())), seeds).effect
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row["effective_reason"], []).append(row["treated"])
    why = "; ".join(
        reason + (f" ({', '.join(treated)})" if len(treated) < len(rows) else "") for reason, treated in reasons.items() if reason
    )
    return _row(
        hypothesis, name, treated=ALL, control=ALL, pairs=len(rows), raw=raw.effect, effective=beyond, margin=given.margins[name],
        of_pairs=[row["evidence"] for row in rows], effective_of_pairs=[row["evidence_effective"] for row in rows],
        positive=sum(row["positive"] for row in rows), tau=raw.tau, reason=why, images=rows[0]["images"],
        overlaps=", ".join(dict.fromkeys(word for row in rows for word in row["overlaps"].split(", ") if word)),
        basis="; ".join(dict.fromkeys(row["basis"] for row in rows)), seeds=", ".join(row["seeds"] for row in rows if row["seeds"]),
    )  # fmt: skip


def _row(
    hypothesis: str, dataset: str, *, margin: float, treated: str = "", control: str = "", pairs: int = 0,
    raw: effects.Effect = effects.UNKNOWN, effective: effects.Effect = effects.UNKNOWN, positive: int = 0, tau: float = float("nan"),
    mcnemar_z: float = float("nan"), reason: str = "", basis: str = "", images: int = 0, seeds: str = "",
    overlaps: str = "", of_pairs: Sequence[str] = (), effective_of_pairs: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Effects in points, positive is better; effective_reason: why there is no effective effect, of some pairs or all.

    overlaps: corruptions of the set that resemble what the treated algorithm has trained with. of_pairs: of several pairs, what is decided
    about each by its raw effect; effective_of_pairs: likewise, "" where there is none. by_every_pair: the cell has what is decided about
    each, and not about their mean.
    """
    decided = effects.decide_together(raw, of_pairs, margin) if pairs else ""
    known = not np.isnan(effective.value)
    return {
        "hypothesis": hypothesis, "dataset": dataset, "treated": treated, "control": control, "pairs": pairs, "positive": positive,
        "each_pair": "".join(of_pairs), "by_every_pair": decided != "" and decided != effects.decide(raw, margin),
        "evidence": decided, "published_view": effects.published_view(decided),
        "evidence_effective": effects.decide_together(effective, effective_of_pairs, margin) if known else "", "margin": margin,
        **{f"raw_{name}": value for name, value in raw._asdict().items()}, "raw_tau": tau, "mcnemar_z": mcnemar_z,
        **{f"effective_{name}": value for name, value in effective._asdict().items()}, "effective_reason": reason,
        "basis": basis, "images": images, "seeds": seeds, "overlaps": overlaps,
    }  # fmt: skip


def _of_line(name: str, fitted: Line) -> dict[str, Any]:
    return {
        "dataset": name, "intercept": fitted.intercept[0], "slope": fitted.slope[0], "iid_from": fitted.low, "iid_to": fitted.high,
        "scatter_logits": fitted.scatter, "controls": ", ".join(fitted.controls),
    }  # fmt: skip


def _lines(lines: dict[tuple, dict]) -> pd.DataFrame:
    return pd.DataFrame(list(lines.values()), columns=["dataset", "intercept", "slope", "iid_from", "iid_to", "scatter_logits", "controls"])


def _holm(p: pd.Series) -> pd.Series:
    """Over all cells that are tested."""
    adjusted = pd.Series(np.nan, index=p.index)
    known = p.dropna()
    adjusted.loc[known.index] = pairwise.holm(known.to_numpy())
    return adjusted
