"""What the sections of the page share: tables with readable heads, long ones folded."""

import pandas as pd

from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import headings
from jaxbed.stats.output.html import Section

LONG = 12  # rows, from where a table is folded
MOST_ROWS = 1000  # of a table; a browser shows no more at ease


def presented(found: list[tuple[str, pd.DataFrame]], alpha: float) -> list[tuple[str, pd.DataFrame]]:
    return [(caption, headings.present(table, alpha)) for caption, table in found]


def section(title: str, text: list[str], found: list[tuple[str, pd.DataFrame]], drawn: list[Figure]) -> Section:
    """A section whose long tables are folded, and very long ones cut, which their captions say."""
    cut = " (the first {} of {} rows; all are in stats.json)"
    found = [(caption + cut.format(MOST_ROWS, len(table)) * (len(table) > MOST_ROWS), table[:MOST_ROWS]) for caption, table in found]
    shown, folded = ([part for part in found if (len(part[1]) > LONG) == long] for long in (False, True))
    return Section(title, text, shown, drawn, folded)


def of(figures: dict, *names: str) -> list:
    return [figures[name] for name in names if name in figures]
