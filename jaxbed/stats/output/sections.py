"""What the sections of the page share: tables with readable heads, long ones folded."""

import pandas as pd

from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import headings
from jaxbed.stats.output.html import Section

LONG = 12  # most rows of a table that is not folded
MOST_ROWS = 1000  # most rows of a table, for browsers


def presented(captioned: list[tuple[str, pd.DataFrame]], alpha: float) -> list[tuple[str, pd.DataFrame]]:
    """Tables with their captions, with readable heads."""
    return [(caption, headings.present(table, alpha)) for caption, table in captioned]


def section(title: str, text: list[str], captioned: list[tuple[str, pd.DataFrame]], drawn: list[Figure]) -> Section:
    """A section with long tables folded, and very long ones cut, as their captions then say."""
    cut = " (first {} of {} rows; all are in stats.json)"
    captioned = [
        (caption + cut.format(MOST_ROWS, len(table)) * (len(table) > MOST_ROWS), table[:MOST_ROWS]) for caption, table in captioned
    ]
    shown, folded = ([part for part in captioned if (len(part[1]) > LONG) == long] for long in (False, True))
    return Section(title, text, shown, drawn, folded)


def of(figures: dict[str, Figure], *names: str) -> list[Figure]:
    """The figures with these names, as far as they were drawn."""
    return [figures[name] for name in names if name in figures]
