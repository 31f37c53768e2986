"""Groups of algorithms without a significant difference, as bars under a line of ranks or as letters.

Sources: Demšar, JMLR 2006, figure 1 (bars); Piepho, "An algorithm for a letter-based representation of all-pairwise comparisons", 2004.
"""

import pandas as pd

MOST_LETTERED = 20  # algorithms: with more there can be too many groups


def by_rank(mean_ranks: pd.Series) -> list[str]:
    """The algorithms, best first; equal ranks by name, whatever the order of rows."""
    return sorted(mean_ranks.index, key=lambda name: (round(mean_ranks[name], 9), name))


def cliques(mean_ranks: pd.Series, p: pd.DataFrame, alpha: float) -> list[list[str]]:
    """The maximal groups, of two or more, of algorithms adjacent in mean rank without a pair with p < alpha; best first.

    p [n, n] need not increase as ranks approach: two algorithms that do not differ stay apart if one between them differs from either.
    """
    order = by_rank(mean_ranks)
    differ = p.loc[order, order].to_numpy() < alpha
    groups, reached = [], 0
    for first in range(len(order)):
        last = first + 1
        while last < len(order) and not differ[first : last + 1, last].any():
            last += 1
        if last > max(reached, first + 1):
            groups.append(order[first:last])
            reached = last
    return groups


def unjoined(mean_ranks: pd.Series, p: pd.DataFrame, alpha: float) -> list[tuple[str, str]]:
    """The pairs with p >= alpha that are in no clique."""
    order, groups = by_rank(mean_ranks), cliques(mean_ranks, p, alpha)
    alike = [(i, j) for index, i in enumerate(order) for j in order[index + 1 :] if p.loc[i, j] >= alpha]
    return [(i, j) for i, j in alike if not any(i in group and j in group for group in groups)]


def levels(mean_ranks: pd.Series, groups: list[list[str]]) -> list[tuple[float, float, int]]:
    """First rank, last rank and level of a bar for each of the `cliques`: bars on one level do not touch; few levels."""
    bars: list[tuple[float, float, int]] = []
    ends: list[float] = []  # of the last bar on each level
    for group in groups:
        low, high = float(mean_ranks[group[0]]), float(mean_ranks[group[-1]])
        level = next((level for level, end in enumerate(ends) if end < low - 0.03 * (len(mean_ranks) - 1)), len(ends))
        ends[level : level + 1] = [high]
        bars.append((low, high, level))
    return bars


def letters(mean_ranks: pd.Series, p: pd.DataFrame, alpha: float) -> pd.Series | None:
    """Compact letter display: two algorithms share a letter if and only if p >= alpha for them; 'a' begins with the best mean rank.

    None for more than MOST_LETTERED algorithms, or if more than 52 letters are needed.
    """
    from scikit_posthocs import compact_letter_display  # takes seconds to import

    order = by_rank(mean_ranks)
    if len(order) > MOST_LETTERED:
        return None
    try:
        letter_of = compact_letter_display(p.loc[order, order], alpha, maxiter=10_000)
    except ValueError:
        return None
    return letter_of.str.replace(" ", "").loc[list(mean_ranks.index)]
