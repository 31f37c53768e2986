"""What was found, in plain words and in files. Nothing is computed here but words: all numbers come from `ranks` and `tables`."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from jaxbed.stats import ranks, tables

if TYPE_CHECKING:
    import pandas as pd


def to_text(results: dict, scores: "pd.DataFrame", p: "pd.DataFrame | None") -> str:
    """The whole result for a terminal: `results` and `p` as main.analyse returns them."""
    unit = "in percent" if tables.scale(scores) == 100 else "as given"
    parts = [f"{results['metric']}, mean ± std over runs (ddof 1), {unit}; * best of the dataset\n{tables.to_text(scores)}"]
    if results["dropped"] or (scores.groupby("algorithm")["n"].nunique() > 1).any():
        parts.append(tables.counts_to_text(scores))
    parts.append("Epoch selection: " + results["selection"]["text"])
    if results["friedman"]:
        parts.append(friedman_text(results["friedman"], results["alpha"]))
    if results["nemenyi"]:
        parts.append(nemenyi_text(results["friedman"], p, results["nemenyi"]["critical_difference"], results["alpha"]))
    parts.append("\n".join(results["verdict"]))
    if results["warnings"]:
        parts.append("\n".join(f"warning {warning['code']}: {warning['text']}" for warning in results["warnings"]))
    return "\n\n".join(parts)


def friedman_text(result: dict, alpha: float) -> str:
    """The Friedman test in two lines."""
    n, m = result["n_algorithms"], result["m_datasets"]
    head = f"Friedman over {m} dataset{'s' * (m > 1)} and {n} algorithms: "
    if math.isnan(result["p_chi2"]):
        return head + "no test, one dataset is one block."
    if math.isnan(result["chi2"]):
        return head + "all algorithms tie everywhere, p = 1: no difference."
    p = headline_p(result)
    exact = "" if math.isnan(result["p_exact"]) else f" Exact p = {tables.format_p(result['p_exact'])}."
    moment, classic = result["f_degrees_of_freedom_moment"], result["f_degrees_of_freedom_iman_davenport"]
    numbers = (
        f"chi2({n - 1}) = {result['chi2']:.4f}, p = {tables.format_p(result['p_chi2'])}; Kendall's W = {result['kendall_w']:.3f}; "
        f"F = {result['f']:.4f}, p = {tables.format_p(result['p_f_moment'])} (d.o.f. {moment[0]:.2f}, {moment[1]:.2f}), "
        f"p = {tables.format_p(result['p_f_iman_davenport'])} (Iman-Davenport, {classic[0]}, {classic[1]}).{exact}"
    )
    words = "the algorithms do not all perform alike" if p < alpha else "no difference among the algorithms is shown"
    return f"{head}{words} at alpha = {alpha:g}.\n  {numbers}"


def headline_p(result: dict) -> float:
    """The exact p where it is known, else that of F with the moment d.o.f., the closest to it."""
    return result["p_f_moment"] if math.isnan(result["p_exact"]) else result["p_exact"]


def nemenyi_text(result: dict, p: "pd.DataFrame", critical_difference: float, alpha: float) -> str:
    """Mean ranks, critical difference and p-values."""
    order = sorted(result["mean_ranks"].items(), key=lambda item: (item[1], item[0]))
    return "\n".join(
        [
            "Mean ranks (1 = best): " + ", ".join(f"{name} {value:.3f}" for name, value in order),
            f"Nemenyi, p adjusted for all pairs; * p < {alpha:g}, that is mean ranks {critical_difference:.3f} apart:",
            tables.pairs_to_text(p, alpha),
        ]
    )


def verdict(pairs: "pd.DataFrame", baseline: str | None, alpha: float, friedman: dict) -> list[str]:
    """Plain sentences: which pairs differ by Nemenyi, those with the baseline first, and whether the data could have shown anything.

    Two algorithms are one pair, whose exact p is known: it must be below alpha too, because Nemenyi's is too small there.
    """
    n, m = friedman["n_algorithms"], friedman["m_datasets"]
    floor = ranks.smallest_p(n, m)
    if floor >= alpha:
        return [
            f"No conclusion: with {m} dataset{'s' * (m > 1)} and {n} algorithms no pair can differ at alpha = {alpha:g}, whatever the "
            f"scores (smallest possible p = {tables.format_p(floor)}). Add datasets; more runs do not help."
        ]
    found = pairs[pairs["p_nemenyi"] < alpha]
    few = f" {m} datasets are too few to take this for equality." if m < ranks.FEW_BLOCKS else ""
    if n == 2 and len(found) and friedman["p_exact"] >= alpha:
        return [f"No pair differs at alpha = {alpha:g} by the exact sign test (p = {tables.format_p(friedman['p_exact'])}).{few}"]
    if found.empty:
        return [f"No pair differs at alpha = {alpha:g}.{few}"]
    with_baseline = found[(found["algorithm_i"] == baseline) | (found["algorithm_j"] == baseline)]
    sentences = [_against(row, baseline, alpha) for row in with_baseline.itertuples()]
    if baseline is not None and not sentences:
        sentences.append(f"No algorithm differs from {baseline} at alpha = {alpha:g}.{few}")
    others = found.drop(with_baseline.index)
    if len(others):
        listed = "; ".join(_pair(row) for row in others.itertuples())
        sentences.append(
            f"{len(others)} {'other ' * (baseline is not None)}pair{'s' * (len(others) > 1)} differ{'s' * (len(others) == 1)}: {listed}."
        )
    return sentences


def _against(row, baseline: str, alpha: float) -> str:
    first = row.algorithm_i == baseline
    other, rank = (row.algorithm_j, row.mean_rank_j) if first else (row.algorithm_i, row.mean_rank_i)
    own = row.mean_rank_i if first else row.mean_rank_j
    word = "better" if rank < own else "worse"
    where = f"mean rank {rank:.2f} against {own:.2f} (p = {tables.format_p(row.p_nemenyi)})"
    return f"{other} differs from {baseline} at alpha = {alpha:g}: {word}, {where}."


def _pair(row) -> str:
    better, worse = (row.algorithm_i, row.algorithm_j) if row.rank_difference < 0 else (row.algorithm_j, row.algorithm_i)
    return f"{better} better than {worse} (p = {tables.format_p(row.p_nemenyi)})"


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    import platform

    import numpy as np
    import pandas as pd
    import scipy

    import jaxbed

    found = {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__, "pandas": pd.__version__}
    return {"jaxbed": getattr(jaxbed, "__version__", "unknown"), **found}


def to_json(results: dict) -> str:
    """Strict JSON, the same bytes for the same results; NaN and the infinities, which JSON lacks, become strings."""
    return json.dumps(_plain(results), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    return value


def write(results: dict, scores: "pd.DataFrame", pairs: "pd.DataFrame | None", p: "pd.DataFrame | None", out: str | Path) -> list[Path]:
    """Writes stats.json, scores.csv, tables/scores.tex and, where there was a test, pairs.csv and tables/pairs.tex; returns their paths.

    Without a test, files of pairs left by an earlier call are removed: they would belong to other scores.
    """
    out = Path(out)
    (out / "tables").mkdir(parents=True, exist_ok=True)
    _write_text(out / "stats.json", to_json(results))
    tables.to_csv(scores, out / "scores.csv")
    _write_text(out / "tables" / "scores.tex", tables.to_latex(scores))
    written = [out / "stats.json", out / "scores.csv", out / "tables" / "scores.tex"]
    for_pairs = [out / "pairs.csv", out / "tables" / "pairs.tex"]
    if pairs is None:
        for path in for_pairs:
            path.unlink(missing_ok=True)
        return written
    tables.to_csv(pairs, for_pairs[0])
    _write_text(for_pairs[1], tables.pairs_to_latex(p, results["alpha"]))
    return written + for_pairs


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
