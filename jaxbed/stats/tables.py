"""Tables of scores and pairs as frames, CSV, LaTeX (booktabs) and aligned text; how p-values are written."""

import math
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from jaxbed.stats import names

ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
FRACTIONS = (
    "accuracy",
    "real_accuracy",
    "aligned",
    "conflicting",
    "acc_diff",
    "ac_score",
    "worst_group",
    "group_mean",
    "cue_accuracy",
    "shape_bias",
    "pr_auc_weighted",
    "ap_weighted",
    "ap_macro",
    "gap",
    "rms_calibration_error",
    "mad_calibration_error",
    "aurra",
    "error",
)
MOST_DECIMALS = 6
SMALLEST_P = 1e-12  # below, 1 - cdf has no correct digits


def summary(selected: pd.DataFrame) -> pd.DataFrame:
    """Over the runs of each cell: algorithm, dataset, mean, std (ddof 1; NaN for one run), n, runs (their numbers, joined by spaces).

    `selected` holds one value per (algorithm, run, dataset) of one metric. Algorithms and data sets keep the order of their first
    appearance. Raises ValueError for several metrics, and for several values of a run, which would be averaged as if they were runs.
    """
    metrics = selected["metric"].unique()
    if len(metrics) > 1:
        raise ValueError(f"a table shows one metric, got {', '.join(map(str, metrics))}; choose one with --metric")
    again = selected.duplicated(["algorithm", "run", "dataset"])
    if again.any():
        row = selected[again].iloc[0]
        raise ValueError(
            f"{row['algorithm']!r} run {row['run']} on {row['dataset']!r} has several values; select one epoch first (--select)"
        )
    cells = selected.sort_values("run", kind="stable").groupby(["algorithm", "dataset"])  # sorted: the same bytes for any order of rows
    table = cells.agg(mean=("value", "mean"), std=("value", "std"), n=("value", "size"), runs=("run", lambda run: " ".join(map(str, run))))
    order = selected[["algorithm", "dataset"]].drop_duplicates()
    rows = {name: index for index, name in enumerate(order["algorithm"].unique())}
    columns = {name: index for index, name in enumerate(order["dataset"].unique())}
    table = table.reset_index()
    digits = table.assign(row=table["algorithm"].map(rows), column=table["dataset"].map(columns))
    return digits.sort_values(["row", "column"], ignore_index=True)[table.columns]


def matrix(scores: pd.DataFrame) -> pd.DataFrame:
    """The means of a summary as algorithms x data sets, in the order of the summary; NaN where a cell has no run."""
    return _grid(scores, "mean")


def scale(scores: pd.DataFrame) -> float:
    """100 for fractions, which are printed in percent: a metric of FRACTIONS (in `scores.attrs`) with all means in [0, 1]; else 1.

    accuracy_GROUP and calibration errors as_released are such metrics too.
    """
    return 100.0 if is_share(scores) and scores["mean"].between(0, 1).all() else 1.0


def is_share(scores: pd.DataFrame) -> bool:
    """Whether the metric is one of FRACTIONS, given as such or in percent, so that its points are percentage points."""
    metric = scores.attrs.get("metric", "accuracy")
    return metric.removesuffix("_as_released") in FRACTIONS or metric.startswith("accuracy_")


def decimals(scores: pd.DataFrame) -> int:
    """How many are printed: of shares in percent one; of any other metric so many that the typical std has two significant digits.

    The typical std is the median of those above 0; where there is none, the range of the means takes its place.
    """
    if is_share(scores):
        return 1
    spreads = scores["std"][scores["std"] > 0]
    typical = spreads.median() if len(spreads) else scores["mean"].max() - scores["mean"].min()
    return min(max(1, 1 - math.floor(math.log10(typical))), MOST_DECIMALS) if 0 < typical < math.inf else 1


def to_csv(frame: pd.DataFrame, path: str | Path) -> None:
    """Writes the frame as `csv_text`."""
    Path(path).write_text(csv_text(frame), encoding="utf-8", newline="")


def csv_text(frame: pd.DataFrame) -> str:
    """Full precision, no index, LF line ends on every system; no cell that a spreadsheet would execute, see `names.as_cell`."""
    texts = {name: column.map(_cell) for name, column in frame.items() if column.dtype.kind not in "iufb"}
    return frame.assign(**texts).to_csv(index=False, lineterminator="\n")


def _cell(value: object) -> object:
    return names.as_cell(value) if isinstance(value, str) else value


def escape(text: object) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(ESCAPES.get(letter, letter) for letter in str(text))


def cells(
    scores: pd.DataFrame, lower: bool = False, in_distribution: Collection[tuple[str, str]] = ()
) -> dict[str, dict[str, tuple[str, bool]]]:
    """algorithm -> dataset -> ('73.8 ± 0.2', is best); '-' where there is no run. The best are those of `to_text`."""
    means, spreads, best = _printed(scores, "mean"), _printed(scores, "std"), _best(scores, lower, in_distribution)
    texts = means.where(spreads == "", means + " ± " + spreads).replace("", "-")
    return {row: {name: (texts.loc[row, name], bool(best.loc[row, name])) for name in texts} for row in texts.index}


def to_text(scores: pd.DataFrame, lower: bool = False, in_distribution: Collection[tuple[str, str]] = ()) -> str:
    """mean ± std for a terminal, algorithms in rows; '*' marks the best of each data set and all that print the same.

    Cells (algorithm, dataset) that are `in_distribution` are marked '_' and are never the best; `lower`: lower is better.
    """
    printed, counts = cells(scores, lower, in_distribution), _grid(scores, "n")
    body = []
    for row, of_row in printed.items():
        marks = ["_" if (row, column) in in_distribution else "*" if best else " " for column, (_, best) in of_row.items()]
        texts = [text if text == "-" else text + mark for (text, _), mark in zip(of_row.values(), marks, strict=True)]
        body.append([str(row), *texts, _count_text(counts.loc[row])])
    return align([["algorithm", *map(str, counts.columns), "runs"], *body])


def counts_to_text(scores: pd.DataFrame) -> str:
    """Runs per cell for a terminal; "-" where there is none."""
    counts = _grid(scores, "n")
    body = [[str(row), *("-" if count != count else str(int(count)) for count in counts.loc[row])] for row in counts.index]
    return align([["runs per cell", *map(str, counts.columns)], *body])


def to_latex(scores: pd.DataFrame, lower: bool = False, in_distribution: Collection[tuple[str, str]] = ()) -> str:
    """A booktabs tabular of mean ± std, algorithms in rows, the best of each data set and all that print the same in bold.

    Fractions are shown in percent (see `scale`), numbers with `decimals`. The std is left out where a cell has one run; a cell without runs
    is a dash.
    Cells (algorithm, dataset) that are `in_distribution` are underlined and never bold, their data sets have a dagger. Rounds half to even.
    """
    means, spreads = _printed(scores, "mean"), _printed(scores, "std")
    best, trained = _best(scores, lower, in_distribution), {dataset for _, dataset in in_distribution}
    heads = [escape(name) + (r"$^\dagger$" if name in trained else "") for name in means.columns]
    lines = [r"\begin{tabular}{l" + "c" * len(means.columns) + "}", r"\toprule"]
    lines += [" & ".join(["Algorithm", *heads]) + r" \\", r"\midrule"]
    for row in means.index:
        cells = [escape(row)]
        for column in means.columns:
            text = means.loc[row, column] or "--"
            text = rf"\textbf{{{text}}}" if best.loc[row, column] else text
            text += rf" $\pm$ {spreads.loc[row, column]}" if spreads.loc[row, column] else ""
            cells.append(rf"\underline{{{text}}}" if text != "--" and (row, column) in in_distribution else text)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def pairs_to_latex(p: pd.DataFrame, alpha: float, decimals: int | None = None, least: pd.DataFrame | None = None) -> str:
    """A booktabs tabular of the p-values [n, n], upper triangle; p < alpha in bold. `decimals`: as a paper prints them; `least` [n, n]:
    see `format_p`.
    """
    lines = [r"\begin{tabular}{l" + "c" * (len(p) - 1) + "}", r"\toprule"]
    lines += [" & ".join(["", *map(escape, p.columns[1:])]) + r" \\", r"\midrule"]
    for index, row in enumerate(p.index[:-1]):
        cells = [escape(row), *[""] * index]
        for column in p.columns[index + 1 :]:
            value = p.loc[row, column]
            cells.append(p_to_latex(value, alpha, decimals, 0.0 if least is None else least.loc[row, column]))
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def p_to_latex(p: float, alpha: float, decimals: int | None = None, least: float = 0.0) -> str:
    """As `format_p`; bold below alpha."""
    text = format_p(p, decimals, least).replace("<", "$<$").replace("≤", r"$\leq$")
    return rf"\textbf{{{text}}}" if p < alpha else text


def pairs_to_text(p: pd.DataFrame, alpha: float, decimals: int | None = None, least: pd.DataFrame | None = None) -> str:
    """The p-values [n, n] for a terminal, upper triangle; '*' marks p < alpha. `decimals` and `least` as in `pairs_to_latex`."""
    body = []
    for index, row in enumerate(p.index[:-1]):
        cells = [
            format_p(p.loc[row, column], decimals, 0.0 if least is None else least.loc[row, column])
            + ("*" if p.loc[row, column] < alpha else " ")
            for column in p.columns[index + 1 :]
        ]
        body.append([str(row), *[""] * index, *cells])
    return align([["p", *map(str, p.columns[1:])], *body])


def format_p(p: float, decimals: int | None = None, least: float = 0.0) -> str:
    """0.053, 0.0015, 2.2e-06, '<1e-12': at least two significant digits; or the given number of decimals.

    `least`: the smallest p that the random draws can give; a p that is not larger is a bound and prints as '≤1e-05'.
    """
    if p != p:
        return "n/a"
    if decimals is not None:
        return f"{p:.{decimals}f}"
    if 0 < p <= least:
        return f"≤{p:.2g}"
    if p < SMALLEST_P:
        return "<1e-12"
    if p < 0.001:
        return f"{p:.1e}"
    return f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def least(table: pd.DataFrame, column: str) -> pd.Series:
    """For each row of a table of tests the smallest p possible in `column`, for `format_p`; 0 where p is exact or in closed form.

    Column NAME_least holds it for NAME. An adjusted p is a bound itself where the p before adjustment is at its smallest.
    """
    before = column.removesuffix("_holm")
    if f"{before}_least" not in table:
        return table[column] * 0.0
    known = table[f"{before}_least"]
    return known if before == column else table[column].where(table[before] <= known, 0.0)


def p_equals(p: float, least: float = 0.0) -> str:
    """'p = 0.020', 'p ≤1e-05' or 'p <1e-12', as part of a sentence."""
    text = format_p(p, least=least)
    return f"p {text}" if text[0] in "<≤" else f"p = {text}"


def format_share(share: float, least: float = 0.0) -> str:
    """0.984, 0.9996, 2.0e-04: a share of random draws, one draw being `least` of them; '<2e-05' for none, '>0.99998' for all."""
    if share != share:
        return "n/a"
    if share == 0 and least:
        return f"<{least:.1g}"
    if share == 1 and least:
        return f">{1 - float(f'{least:.1g}'):.10g}"
    if 0 < share < 0.001:
        return f"{share:.1e}"
    return f"{share:.5f}" if 0.9995 <= share < 1 else f"{share:.3f}"


def align(rows: list[list[str]]) -> str:
    """Rows of cells as lines, the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _grid(scores: pd.DataFrame, column: str) -> pd.DataFrame:
    grid = scores.pivot(index="algorithm", columns="dataset", values=column)
    return grid.loc[scores["algorithm"].unique(), scores["dataset"].unique()].rename_axis(index=None, columns=None)


def _printed(scores: pd.DataFrame, column: str) -> pd.DataFrame:
    factor, digits = scale(scores), decimals(scores)
    return _grid(scores, column).map(lambda value: "" if value != value else f"{value * factor:.{digits}f}")


def _best(scores: pd.DataFrame, lower: bool = False, in_distribution: Collection[tuple[str, str]] = ()) -> pd.DataFrame:
    """[algorithms, datasets] of bool, none for a single algorithm. Compared as printed: numbers that look equal are marked alike."""
    means, printed = matrix(scores), _printed(scores, "mean")
    if len(means) == 1:
        return printed != printed
    for row, column in in_distribution:
        if row in means.index and column in means.columns:
            means.loc[row, column] = float("nan")
    best = means.min() if lower else means.max()
    factor, digits = scale(scores), decimals(scores)
    return printed.apply(lambda column: (column == f"{best[column.name] * factor:.{digits}f}") & means[column.name].notna())


def _count_text(counts: pd.Series) -> str:
    """'10', or '9-10' where the cells of an algorithm differ."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low}-{high}"
