"""Mean ranks and effect sizes as LaTeX tables (booktabs), each with its caption as a comment."""

from jaxbed.stats import tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.comparisons import cliques


def mean_ranks(analysis: Analysis) -> str:
    """Algorithm, mean rank, its interval over resampled runs if known, letters; the best first and in bold."""
    means, p, results = analysis.mean_ranks, analysis.p, analysis.results
    assert means is not None and p is not None  # of every analysis with pairs
    letters = cliques.letters(means, p, analysis.alpha)
    heads, columns = ["Algorithm", "Mean rank"], {name: [f"{means[name]:.2f}"] for name in cliques.by_rank(means)}
    caption = f"Mean ranks over {len(results['datasets'])} data sets, 1 = best."
    if analysis.stability is not None:
        heads.append(r"95\,\% over runs")
        rows = analysis.stability[analysis.stability["quantity"] == "mean_rank"].set_index("name")
        for name, cells in columns.items():
            cells.append(f"[{rows.loc[name, 'low']:.2f}, {rows.loc[name, 'high']:.2f}]")
        caption += " Intervals are percentiles over resampled runs."
    if letters is not None:
        heads.append("Letters")
        for name, cells in columns.items():
            cells.append(letters[name])
        caption += f" Algorithms that share a letter do not differ significantly ({analysis.p_name}, alpha = {analysis.alpha:g})."
    best = min(means.round(9))
    for name, cells in columns.items():
        cells[0] = rf"\textbf{{{cells[0]}}}" if round(means[name], 9) == best else cells[0]
    return _tabular(caption, heads, [[tables.escape(name), *cells] for name, cells in columns.items()])


def effects(analysis: Analysis) -> str:
    """A row per comparison with the baseline, else per pair: difference of ranks, shift with its interval, rank-biserial, wins, p."""
    results, factor, digits = analysis.results, tables.scale(analysis.scores), 1 + tables.decimals(analysis.scores)
    against = results["baseline_comparisons"]
    table = results["pairs"] if against is None else against
    heads = ["Comparison", "Ranks", "Shift", r"95\,\%", r"$r_\mathrm{rb}$", "Wins/ties/losses", "$p$"]
    rows = []
    for row in table.to_dict("records"):
        p = tables.p_to_latex(row["p_permutation"], analysis.alpha, least=row["p_permutation_least"])
        low, high = factor * row["hodges_lehmann_low"], factor * row["hodges_lehmann_high"]
        counts = f"{row['wins_i']}/{row['ties']}/{row['wins_j']}"
        rows.append([
            f"{tables.escape(row['algorithm_i'])} -- {tables.escape(row['algorithm_j'])}",
            _signed(row["rank_difference"]), _signed(factor * row["hodges_lehmann"], digits),
            f"[{_signed(low, digits)}, {_signed(high, digits)}]" if low == low else "--", _signed(row["rank_biserial"]), counts, p,
        ])  # fmt: skip
    caption = (
        f"Effect sizes over {len(results['datasets'])} data sets, first minus second: mean ranks (negative: the first is better), "
        "Hodges-Lehmann shift of the scores with Wilcoxon's interval (positive: the first is better), rank-biserial correlation; p of the "
        f"permutation test, adjusted for all comparisons, bold below {analysis.alpha:g}."
    )
    return _tabular(caption, heads, rows)


def _signed(value: float, digits: int = 2) -> str:
    return f"${value:.{digits}f}$"


def _tabular(caption: str, heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"% {caption}", r"% Needs \usepackage{booktabs}.", r"\begin{tabular}{l" + "r" * (len(heads) - 1) + "}", r"\toprule"]
    lines += [" & ".join(heads) + r" \\", r"\midrule", *(" & ".join(cells) + r" \\" for cells in rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
