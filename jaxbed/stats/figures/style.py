"""Style of figures, and how they are written: PDF, PNG and an svg element for a page, the same bytes for the same figure.

Text in the SVG is drawn as paths and does not depend on installed fonts; ink, lines and blue take the CSS variables --ink, --line
and --blue if a page sets them. Figures are made without pyplot: no backend is chosen and no global state remains.

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
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    INK,
    "#8a8f98",
)  # grey instead of their yellow, which is invisible on white
BLUE, ORANGE = COLOURS[:2]
DASHES = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.2, 1.2)))
MARKERS = "osD^vPX*"
WIDTH = 7.2  # inches
PAGE_SCALE = 1.2  # 8 pt suit print; a page is read from further away
FONT = "DejaVu Sans"  # comes with matplotlib
STYLE = {
    "font.family": FONT,
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
    """The context in which figures are made and written, independent of the user's settings."""
    import matplotlib.style

    with matplotlib.style.context(STYLE, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # reported once, see `lacking`
        yield


def lacking(names: Iterable[str]) -> list[str]:
    """The characters, sorted, that the font of the figures lacks and shows as boxes."""
    from matplotlib import font_manager

    known = font_manager.get_font(font_manager.findfont(FONT)).get_charmap()
    return sorted({letter for name in names for letter in name if ord(letter) not in known})


def single(width: float, height: float) -> "tuple[Figure, Axes]":
    """Figure and axes with a plot area of width x height inches, without the labels."""
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


def look(index: int) -> dict:
    """Colour, dash and marker of the algorithm with this index: 32 combinations, none distinguished by colour only."""
    dash = DASHES[(index + index // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dash, "marker": MARKERS[index % len(MARKERS)]}


def point(index: int) -> dict:
    """The same without a line; hollow where colours begin anew."""
    hollow = {"markerfacecolor": "white"} if index >= len(COLOURS) else {"markeredgewidth": 0}
    return {**look(index), "linestyle": "", **hollow}


def save(figure: "Figure", folder: Path, name: str) -> tuple[list[Path], str]:
    """Writes NAME.pdf, .png and .svg; returns their paths and the figure as an svg element for a page."""
    files = [folder / f"{name}.{kind}" for kind in ("pdf", "png", "svg")]
    with style():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out only once for all formats
        figure.savefig(files[0], metadata={"CreationDate": None})
        figure.savefig(files[1], metadata={"Software": None})
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    files[2].write_text(text.getvalue(), encoding="utf-8", newline="\n")
    return files, _inline(text.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """The bare svg element for a page: unique ids, no comments, metadata or style sheet (it would affect the page), coordinates to 0.01."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'"([\d.]+)pt"', lambda size: f'"{float(size[1]) * PAGE_SCALE:.2f}pt"', svg)  # width and height
    svg = svg.replace("<svg ", '<svg stroke-linejoin="round" ', 1)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    for variable, colour in (("ink", INK), ("line", LINE), ("blue", BLUE)):
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    return re.sub(r"\n\s*", "\n", svg)
