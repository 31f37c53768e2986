"""The critical-difference diagram as TikZ for papers: text in the fonts of the document; include it with \\input.

Source: Demšar, JMLR 2006, figure 1.
"""

import math

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.comparisons.cliques import by_rank, levels

MOST_TICKS = 20
WIDTH = 8.0  # length of the line of ranks in cm


def critical_difference(mean_ranks: pd.Series, groups: list[list[str]], caption: str) -> str:
    """A tikzpicture: algorithms on a line of mean ranks, the best on the left; a bar below the line joins each of `groups`.

    `groups`: from cliques.cliques, the best first. The caption becomes a comment.
    """
    order, n = by_rank(mean_ranks), len(mean_ranks)
    rows, bars = math.ceil(n / 2), levels(mean_ranks, groups)
    top = 0.45 + 0.2 * (1 + max((level for _, _, level in bars), default=-1))  # cm below the line, position of the first name

    def x(rank: float) -> str:
        return f"{WIDTH * (rank - 1) / (n - 1):.3f}"

    lines = [f"% {caption}", r"\begin{tikzpicture}[font=\small]", rf"\draw ({x(1)},0) -- ({x(n)},0);"]
    lines += [rf"\draw ({x(rank)},0) -- ++(0,0.1) node[above] {{{rank}}};" for rank in range(1, n + 1, math.ceil(n / MOST_TICKS))]
    for index, name in enumerate(order):
        left, row = (True, index) if index < rows else (False, n - 1 - index)
        y, rank, text = -top - 0.4 * row, mean_ranks[name], tables.escape(name)
        end, side = (f"{-0.2:.3f}", "left") if left else (f"{WIDTH + 0.2:.3f}", "right")
        label = f"{text}~{rank:.2f}" if left else f"{rank:.2f}~{text}"
        lines.append(rf"\draw ({x(rank)},0) |- ({end},{y:.2f}) node[{side}] {{{label}}};")
    for low, high, level in bars:
        y = -0.3 - 0.2 * level
        lines.append(rf"\draw[line width=2.4pt] ([xshift=-2pt]{x(low)},{y:.2f}) -- ([xshift=2pt]{x(high)},{y:.2f});")
    return "\n".join([*lines, r"\end{tikzpicture}"]) + "\n"
