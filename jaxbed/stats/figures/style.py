"""How figures look and how they are written: PDF, PNG and an svg element for a page, the same bytes for the same figure.

Text in the SVG is drawn as paths, so that it looks alike without the fonts; ink, lines and blue take the CSS variables --ink, --line
and --blue where a page sets them. Figures are made without pyplot: no backend is chosen and nothing global is left behind.

Source of the colours: Okabe and Ito, "Color universal design", 2008.
"""

import contextlib
import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE = "#1c2128", "#c4c9d1"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#8a8f98")  # grey for their yellow, lost on white
BLUE, ORANGE = COLOURS[:2]
DASHES = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)))
MARKERS = "osD^vPX*"
WIDTH = 7.2  # inches
PAGE_SCALE = 1.2  # 8 pt are for print; a page is read from further away
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8,
    "text.color": INK,
    "text.parse_math": False,  # names may hold $
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "grid.color": LINE,
    "grid.linewidth": 0.4,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "svg.fonttype": "path",
    "svg.hashsalt": "jaxbed",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.05,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """In which figures are made and written; the reader's own settings do not matter."""
    import matplotlib.style

    with matplotlib.style.context(STYLE, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # told once, see `lacking`
        yield


def lacking(names: Iterable[str]) -> list[str]:
    """The letters, sorted, that the font of the figures does not have and shows as boxes."""
    from matplotlib import font_manager

    known = font_manager.get_font(font_manager.findfont(STYLE["font.family"])).get_charmap()
    return sorted({letter for name in names for letter in name if ord(letter) not in known})


def single(width: float, height: float) -> "tuple[Figure, Axes]":
    """Figure and axes whose plot area is width x height inches; labels add to it when saved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.add_axes((0, 0, 1, 1))


def grid(names: Sequence[str], columns: int, height: float) -> "tuple[Figure, dict[str, Axes]]":
    """Figure, and a panel of `height` inches for each name."""
    from matplotlib.figure import Figure

    columns = min(columns, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(WIDTH if columns > 1 else WIDTH / 2, height * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(names) :]:
        axes.remove()
    return figure, dict(zip(names, panels, strict=False))


def look(place: int) -> dict:
    """Colour, dash and marker of the algorithm at this place: 32 that differ, none by colour alone."""
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash, "marker": MARKERS[place % len(MARKERS)]}


def save(figure: "Figure", folder: Path, name: str) -> tuple[list[Path], str]:
    """Writes NAME.pdf, .png and .svg; returns their paths and the figure as an svg element for a page."""

    files = [folder / f"{name}.{kind}" for kind in ("pdf", "png", "svg")]
    with style():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not for each format
        figure.savefig(files[0], metadata={"CreationDate": None})
        figure.savefig(files[1], metadata={"Software": None})
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    files[2].write_text(text.getvalue(), encoding="utf-8", newline="\n")
    return files, _inline(text.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """The bare svg element for a page: own ids, no comments, metadata or style sheet (it would style the page), coordinates to 0.01."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'"([\d.]+)pt"', lambda size: f'"{float(size[1]) * PAGE_SCALE:.2f}pt"', svg)  # width and height
    svg = svg.replace("<svg ", '<svg stroke-linejoin="round" ', 1)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    for variable, colour in (("ink", INK), ("line", LINE), ("blue", BLUE)):
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    return re.sub(r"\n\s*", "\n", svg)
