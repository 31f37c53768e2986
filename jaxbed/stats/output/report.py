"""The results as text for a terminal. Nothing is computed here: all numbers come from `analysis`."""

import shlex
import textwrap

from jaxbed.stats import tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.comparisons import published_tables, ranks
from jaxbed.stats.options import ERRORS, Options

WIDTH = 100
FLAGS = ("lower", "paired")  # options without a value
MOST = 3  # most findings printed for one warning code


def to_text(analysis: Analysis) -> str:
    """Verdict, score table, tests, warnings. One algorithm has no verdict and no tests."""
    results = analysis.results
    verdict = "\n".join(_wrap(line) for line in results["verdict"])
    parts = [*score_text(analysis), *tests_text(analysis)]
    parts = [verdict, *parts] if verdict else parts
    if results["warnings"]:
        parts.append(warnings_text(results["warnings"]))
    return "\n\n".join(parts)


def score_text(analysis: Analysis) -> list[str]:
    """The table of scores, the numbers of runs if they differ, and how epochs were selected."""
    results, scores = analysis.results, analysis.scores
    unit = "in percent" if tables.scale(scores) == 100 else "as given"
    best = "lowest on the data set, lower is better" if results["lower_is_better"] else "best on the data set"
    trained = {tuple(cell) for cell in results["in_distribution"]}
    marks = [f"* {best}"] * (len(results["algorithms"]) > 1) + ["_ trained on this data set"] * bool(trained)
    head = "; ".join([f"{results['metric']}, mean ± std over runs (ddof 1), {unit}", *marks])
    parts = [f"{head}\n{tables.to_text(scores, lower=results['lower_is_better'], in_distribution=trained)}"]
    if results["failed"] or (scores.groupby("algorithm")["n"].nunique() > 1).any():
        parts.append(tables.counts_to_text(scores))
    return [*parts, "Epoch selection: " + results["selection"]["text"]]


def tests_text(analysis: Analysis) -> list[str]:
    """The tests in a few lines; [] if there is none."""
    results, parts = analysis.results, []
    if results["question"] == "these-datasets" and results["these_datasets"]:
        table = results["these_datasets"]["datasets"]
        p = [tables.format_p(p, least=least) for p, least in zip(table["p_holm"], tables.least(table, "p_holm"), strict=True)]
        values = ["all tied" if value != value else f"{value:.1f}" for value in table["statistic"]]
        statistics = [f"{name} {value} ({text})" for name, value, text in zip(table["dataset"], values, p, strict=True)]
        parts.append(_wrap(f"{table['test'].iloc[0]} on each data set (p by permutation, Holm): {', '.join(statistics)}"))
    elif results["friedman"]:
        order = sorted(results["friedman"]["mean_ranks"].items(), key=lambda item: (item[1], item[0]))
        ranked = "Mean ranks (1 = best): " + ", ".join(f"{name} {value:.2f}" for name, value in order)
        parts.append(f"{_wrap(friedman_text(results['friedman']))}\n{_wrap(ranked)}")
    if analysis.p is not None:
        printed = tables.pairs_to_text(
            analysis.p, analysis.alpha, published_tables.DECIMALS if results["paper"] else None, analysis.p_least
        )
        parts.append(f"p of pairs ({analysis.p_name}); * p < {analysis.alpha:g}\n{printed}")
    return parts


def friedman_text(result: dict) -> str:
    """Friedman's test: the headline p, then the approximations, unless there are too few blocks for them."""
    p = f"{tables.p_equals(result['p'], least=result['p_least'])} ({result['p_method']})"
    if result["tie_correction"] == 0:
        return "Friedman: all algorithms tie on all data sets, p = 1: no difference."
    text = f"Friedman over {result['blocks']} block{'s' * (result['blocks'] > 1)}: {p}; Kendall's W = {result['kendall_w']:.3f}."
    if result["families"]:
        return f"{text} Approximate p-values are withheld: they would count the data sets of a family as independent evidence."
    if result["blocks"] < ranks.FEW_BLOCKS:
        return f"{text} Approximate p-values are withheld: there are fewer than {ranks.FEW_BLOCKS} blocks."
    moment, classic = result["f_degrees_of_freedom_moment"], result["f_degrees_of_freedom_iman_davenport"]
    return (
        f"{text} For comparison: F = {result['f']:.4f}, {tables.p_equals(result['p_f_moment'])} (d.o.f. {moment[0]:.2f}, "
        f"{moment[1]:.2f}) or {tables.format_p(result['p_f_iman_davenport'])} (Iman-Davenport, {classic[0]}, {classic[1]}); "
        f"chi2({result['chi2_degrees_of_freedom']}) = {result['chi2']:.4f}, {tables.p_equals(result['p_chi2'])}."
    )


def warnings_text(warnings: list[dict]) -> str:
    """The findings of each code together, and what to do about them."""
    lines = []
    for code in dict.fromkeys(warning["code"] for warning in warnings):
        of_code = [warning for warning in warnings if warning["code"] == code]
        texts = [warning["text"] for warning in of_code[:MOST]] + [f"{len(of_code) - MOST} more, see stats.json"] * (len(of_code) > MOST)
        lines.append(_wrap(f"warning {code}: {'. '.join(texts)}. {of_code[0]['cure']}".rstrip(), "  "))
    return "\n".join(lines)


def command(facts: dict, options: dict) -> str:
    """The command that reproduces these results, without --out."""
    named = [(name, facts[name]) for name in ("roles", "table", "last_scores") if name in facts]
    named += [(name, text) for name in ("columns", "rename") for text in facts.get(name, [])]
    named += [("exclude", runs) for runs in options["exclude"]]
    for name, usual in Options()._asdict().items():
        if name not in ("exclude", *FLAGS) and options[name] not in (usual, None):
            named.append((name, options[name]))
    words = ["jaxbed", "stats", *facts["input"], *(f"--{name}" for name in FLAGS if options[name])]
    words += ["--higher-is-better"] if ERRORS.fullmatch(options["metric"]) and not options["lower"] else []
    words += [word for name, value in named for word in (f"--{name.replace('_', '-')}", str(value))]
    return shlex.join(words)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
