"""report.html: a self-contained page. Verdict, warnings with cures, sections of tables and figures, facts.

Nothing is loaded from elsewhere, all text is escaped, the same document gives the same bytes. Without scripts only sorting is missing.
"""

import math
import re
from collections.abc import Sequence
from html import escape, unescape
from typing import Any, NamedTuple

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import html_style

KEY = {
    "best": "bold: best in its column",
    "significant": "bold: p < alpha",
    "in-distribution": "underlined: trained on this data set",
    "grey": "grey: not used in any test",
}
MISSING = ("", "-", "–", "n/a", "nan")  # texts that stand for no value
LEADING_NUMBER = re.compile(r"[<>≤≥]? ?([-+−]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?=$|[\s%*†‡±(\[])", re.IGNORECASE)
MOST_TEXTS = 3  # texts of one warning that are not folded
LONG = 60  # characters; longer cells may break into lines


class Cell(NamedTuple):
    """A cell of a table. `classes`: names of KEY, separated by spaces; `value`: sort value, if not the number in the text."""

    text: str
    classes: str = ""
    value: float | None = None


class Section(NamedTuple):
    """A part of the page: paragraphs, then figures, then tables (caption, frame), then folded tables."""

    title: str
    text: list[str]
    tables: list[tuple[str, pd.DataFrame]]
    figures: list[Figure]
    folded: Sequence[tuple[str, pd.DataFrame]] = ()


class Document(NamedTuple):
    """The whole page. `warnings`: dictionaries with code, text and, if there is one, cure; `facts`: command, versions, seed, ..."""

    title: str
    verdict: list[str]
    sections: list[Section]
    warnings: list[dict]
    facts: dict[str, str]
    answers: int = 1  # number of verdict lines that are the answer; the question begins with "Question: "


def page(document: Document) -> str:
    """The document as HTML."""
    names = [(f"section-{number}", section.title) for number, section in enumerate(document.sections, start=1)]
    if document.warnings:
        names.insert(0, ("warnings", "Warnings"))
    names.append(("facts", "Facts"))
    links = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in names)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">",
        '<link rel="icon" href="data:,">',
        f"<title>{escape(document.title)}</title>\n<style>{html_style.CSS}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(document.title)}</h1>",
        f'<div class="verdict">{_verdict(document.verdict, document.answers)}</div>' if document.verdict else "",
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>',
        _warnings(document.warnings),
        *(_section(section, name) for section, (name, _) in zip(document.sections, names[bool(document.warnings) :], strict=False)),
        _facts(document.facts),
        f"</main>\n<script>{html_style.JS}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def table(caption: str, frame: pd.DataFrame) -> str:
    """A frame as a table; an index with names becomes the first column. Cells: numbers, texts, `Cell`s, None or NaN if missing.

    A column is numeric, right-aligned and sorted by number, if every text in it begins with a number ("63.2 ± 0.2", "<1e-12").
    """
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index(names=frame.index.name or "")
    columns = [_column(str(name), frame.iloc[:, column].tolist()) for column, name in enumerate(frame.columns)]
    marks = [' class="number"' if numeric else "" for numeric, _ in columns]
    heads = "".join(f'<th scope="col"{mark}>{_breakable(str(name))}</th>' for name, mark in zip(frame.columns, marks, strict=True))
    lines = ["<tr>" + "".join(cells) + "</tr>" for cells in zip(*(cells for _, cells in columns), strict=True)]
    lines = [re.sub(r"^<tr><td(.*?)>(.*?)</td>", _row_head, line) for line in lines]
    used = {name for cell in frame.to_numpy(dtype=object).ravel() if isinstance(cell, Cell) for name in cell.classes.split()}
    key = "; ".join(text for name, text in KEY.items() if name in used)
    caption = f"<caption><span>{escape(caption)}</span></caption>"
    body = "\n".join([f"<table>{caption}", f"<thead><tr>{heads}</tr></thead>", "<tbody>", *lines, "</tbody></table>"])
    return f'<div class="table"><div class="scroll">{body}</div>' + (f'<p class="key">{escape(key)}</p>' if key else "") + "</div>"


def _column(name: str, values: list) -> tuple[bool, list[str]]:
    """Whether the column is numeric, and its cells."""
    cells = [value if isinstance(value, Cell) else Cell(text) for value, text in zip(values, _texts(name, values), strict=True)]
    missing = [cell.text.strip().lower() in MISSING for cell in cells]
    keys = [_number(cell.value if cell.value is not None else value, cell.text) for value, cell in zip(values, cells, strict=True)]
    numeric = not all(missing) and all(lost or key is not None for lost, key in zip(missing, keys, strict=True))
    written = []
    for (text, classes, _), lost, key in zip(cells, missing, keys, strict=True):
        classes = f"{classes}{' number' * numeric}{' long' * (len(text) > LONG)}".strip()
        marks = f' class="{escape(classes)}"' if classes else ""
        marks += " data-missing" if lost else (f' data-sort="{_script_number(key)}"' if numeric and key is not None else "")
        written.append(f"<td{marks}>{escape(text) or '–'}</td>")
    return numeric, written


def _texts(name: str, values: list) -> list[str]:
    """The texts of a column: numbers with as many decimals as needed, at most four significant digits; p-values as everywhere."""
    numbers = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    largest, least = max(numbers, default=0.0), min(filter(None, numbers), default=1.0)
    decimals = 0
    if largest:
        most = max(0, min(4, 3 - math.floor(math.log10(largest))))
        decimals = next(count for count in range(most + 1) if count == most or all(abs(n - round(n, count)) < 1e-9 for n in numbers))

    def text(value: Any) -> str:
        if value is None or value != value:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if not isinstance(value, float):
            return str(value)
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        if "p" in name.replace("_", " ").split():
            return tables.format_p(value)
        return f"{value:.3g}" if largest >= 1e6 or least < 1e-3 else f"{value:.{decimals}f}"

    return [text(value) for value in values]


def _number(value: Any, text: str) -> float | None:
    """The number that a cell is sorted by; None if it has none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    number = LEADING_NUMBER.match(text.strip())
    return float(number[1].replace("−", "-")) if number else None


def _script_number(value: float) -> str:
    return repr(float(value)).replace("inf", "Infinity")


def _section(section: Section, name: str) -> str:
    parts = [f'<section id="{name}">\n<h2>{escape(section.title)}</h2>', _paragraphs(section.text)]
    parts += [_figure(figure) for figure in section.figures]
    if section.tables:
        parts.append('<p class="hint" hidden>Click a column head to sort the table.</p>')
    parts += [table(caption, frame) for caption, frame in section.tables]
    parts += [f"<details><summary>{escape(caption)}</summary>{table(caption, frame)}</details>" for caption, frame in section.folded]
    return "\n".join([*filter(None, parts), "</section>"])


def _figure(figure: Figure) -> str:
    name = escape(f"figure-{figure.name}")
    svg = figure.svg.replace("<svg ", f'<svg role="img" aria-labelledby="{name}" ', 1)
    return f'<figure><div>{svg}</div>\n<figcaption id="{name}">{escape(figure.caption)}</figcaption></figure>'


def _warnings(warnings: list[dict]) -> str:
    """One entry for each code and cure, in order of first appearance."""
    if not warnings:
        return ""
    groups: dict[tuple[str, str], list[str]] = {}
    for warning in warnings:
        groups.setdefault((warning["code"], warning.get("cure") or ""), []).append(warning["text"])
    entries = []
    for (code, cure), texts in groups.items():
        entry = f'<li><p class="code">{escape(code)}</p>' + _paragraphs(texts[:MOST_TEXTS])
        if len(texts) > MOST_TEXTS:
            entry += f"<details><summary>{len(texts) - MOST_TEXTS} more</summary>{_paragraphs(texts[MOST_TEXTS:])}</details>"
        entries.append(entry + (f'<p class="cure">What to do: {escape(cure)}</p>' if cure else "") + "</li>")
    return '<section id="warnings">\n<h2>Warnings</h2>\n<ul class="warnings">\n' + "\n".join(entries) + "\n</ul>\n</section>"


def _facts(facts: dict[str, str]) -> str:
    items = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    return f'<section id="facts">\n<h2>Facts</h2>\n<dl>\n{items}\n</dl>\n</section>'


def _verdict(lines: Sequence[str], answers: int) -> str:
    """The answer stands out from the question and the rest."""
    asked = int(lines[0].startswith("Question: ")) if lines else 0
    parts = [f'<p class="asked">{escape(line)}</p>' for line in lines[:asked]]
    parts += [f'<div class="answer">{_paragraphs(lines[asked : asked + answers])}</div>', _paragraphs(lines[asked + answers :])]
    return "\n".join(parts)


def _breakable(name: str) -> str:
    """A head that may break within long names: after _ - / and before capitals."""
    return "<wbr>".join(map(escape, re.split(r"(?<=\w[_/-])(?=[^\W\d])|(?<=[a-z])(?=[A-Z0-9])", name)))


def _row_head(cell: re.Match) -> str:
    return f'<tr><th scope="row"{cell[1]}>{_breakable(unescape(cell[2]))}</th>'


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n".join(f"<p>{escape(text)}</p>" for text in texts)
