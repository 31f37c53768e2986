"""What `jaxbed evidence` prints and writes: tables in words, CSV, JSON, LaTeX and a page. Computes nothing."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from jaxbed.measures import overlaps
from jaxbed.stats import tables
from jaxbed.stats.evidence import effects, figures, printed, resampling
from jaxbed.stats.evidence.study import Given, Study
from jaxbed.stats.figures import drawing, style
from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import files, html

NAMES = ("evidence.csv", "pairs.csv", "abstract.csv", "evidence.json", "report.html")
OPTIONAL = (  # removed if not written: files of an earlier call would mislead
    *(f"figures/planes.{kind}" for kind in drawing.KINDS),
    *(f"tables/table_{number}.tex" for number in printed.NUMBERS),
)
BLANK = "·"  # an untested cell in the terminal
KEY = "; ".join(f"{symbol or BLANK} {words}" for symbol, words in effects.SYMBOLS.items())
OF_SYMBOLS = {"+": "for", "o": "no effect", "-": "against", "?": "undecided", "": ""}
WORDS = {  # in CSV files, where a cell that begins with + or - may be taken for a formula
    "evidence": OF_SYMBOLS,
    "evidence_effective": OF_SYMBOLS,
    "published_view": {"+": "for", "-": "not for", "": ""},
    "each_pair": lambda symbols: ", ".join(OF_SYMBOLS[symbol] for symbol in symbols),
}
ALONE = "‡"
OF_ALONE = f"{ALONE} every pair by itself, while their mean is undecided"
OF_OVERLAP = f"{overlaps.MARK} the treated algorithm has trained with changes like those of the set"
MINUS = re.compile(r"(?<![\w-])-(?=[\d\s]|$)")  # a sign, not a hyphen
CAPTION = "Raw effect D and effective effect ER in points with 95 % intervals, positive is better"


class Result(NamedTuple):
    """All that is shown."""

    given: Given
    study: Study
    abstract: pd.DataFrame
    misprints: Sequence[str] = ()
    views: Mapping[str, pd.DataFrame] = MappingProxyType({})  # {"Table 4": the paper's cells beside ours}
    printed: Mapping[str, pd.DataFrame] = MappingProxyType({})  # {"Table 1": the paper's numbers}


def text(result: Result) -> str:
    """What is shown in the terminal."""
    cells = result.study.cells
    parts = [f"Evidence for each hypothesis: {_key(cells)}", tables.align(_lines(_symbols(cells).replace("", BLANK)))]
    parts.append(f"{CAPTION}; p of D > 0 after Holm over all {cells['raw_p'].notna().sum()} cells")
    parts.append(tables.align(_lines(_described(cells[cells["pairs"] > 0]))))
    if reasons := _reasons(cells):
        parts.append("\n".join(["no effective effect:", *reasons]))
    parts += ["Abstract hypotheses", tables.align(_lines(_claims(result.abstract)))]
    for title, view in result.views.items():
        parts += [f"{title}: paper / ours", tables.align(_lines(_compared(view)))]
    notes = [*(f"misprint: {line}" for line in result.misprints), *(f"note: {note}" for note in result.given.notes)]
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def write(folder: Path, result: Result, argv: Sequence[str]) -> list[Path]:
    """Writes all files; returns their paths."""
    written = [folder / name for name in NAMES]
    for path, table in zip(written, (result.study.cells, result.study.pairs, result.abstract), strict=False):
        tables.to_csv(table.assign(**{name: table[name].map(words) for name, words in WORDS.items() if name in table}), path)
    (folder / NAMES[3]).write_text(files.to_json(_content(result, argv)), encoding="utf-8", newline="\n")
    drawn = []
    if figure := figures.planes(result.given):
        (folder / "figures").mkdir()
        paths, svg = style.save(figure, folder / "figures", "planes")
        caption = "Shifted against in-distribution scores: each algorithm as measured, and the line through the controls with its range."
        drawn, written = [Figure("planes", caption, svg, paths)], [*written, *paths]
    (folder / NAMES[4]).write_text(html.page(_document(result, drawn, argv)), encoding="utf-8", newline="\n")
    (folder / "tables").mkdir()
    latex = {"evidence": _latex(f"Evidence. {_key(result.study.cells)}.", _symbols(result.study.cells))}
    latex["effects"] = _latex(f"{CAPTION}.", _described(result.study.cells[result.study.cells["pairs"] > 0]))
    latex |= {title.lower().replace(" ", "_"): _latex(f"{title}: paper / ours.", _compared(view)) for title, view in result.views.items()}
    latex |= {title.lower().replace(" ", "_"): _latex(f"{title} as printed.", rows) for title, rows in result.printed.items()}
    for name, content in latex.items():
        written.append(folder / "tables" / f"{name}.tex")
        written[-1].write_text(content, encoding="utf-8", newline="\n")
    return written


def _content(result: Result, argv: Sequence[str]) -> dict:
    given, study = result.given, result.study
    return {
        "command": shlex.join(["jaxbed", "evidence", *argv]), "seed": resampling.SEED, "resamples": resampling.RESAMPLES,
        "margins": dict(given.margins), "cells": study.cells, "pairs": study.pairs, "lines": study.lines, "abstract": result.abstract,
        "family": "Holm over the raw p of all tested cells", "runs": dict(given.provenance), "misprints": list(result.misprints),
        "published": dict(result.views), "notes": given.notes,
    }  # fmt: skip


def _key(cells: pd.DataFrame) -> str:
    parts = {KEY: True, OF_ALONE: cells["by_every_pair"].any(), OF_OVERLAP: (cells["overlaps"] != "").any()}
    return "; ".join(part for part, needed in parts.items() if needed)


def _symbols(cells: pd.DataFrame) -> pd.DataFrame:
    """Hypotheses in rows, sets in columns, after the raw effects."""
    marks = {"by_every_pair": ALONE, "overlaps": overlaps.MARK}
    marked = cells["evidence"].str.cat([cells[name].map(bool).map({True: f" {mark}", False: ""}) for name, mark in marks.items()])
    wide = cells.assign(marked=marked).pivot(index="hypothesis", columns="dataset", values="marked")
    wide = wide.loc[cells["hypothesis"].unique(), cells["dataset"].unique()]
    return wide.rename_axis(columns=None).reset_index()


def _described(rows: pd.DataFrame) -> pd.DataFrame:
    """Numbers as texts."""
    several = (rows["treated"] == "all").any()
    described = pd.DataFrame({"hypothesis": rows["hypothesis"], "set": rows["dataset"]})
    if not several and len(rows):
        described["pair"] = rows["treated"] + " / " + rows["control"]
    described["D"] = [_interval(*row) for row in rows[["raw_value", "raw_low", "raw_high"]].to_numpy()]
    described["evidence"], described["as published"] = rows["evidence"], rows["published_view"]
    described["ER"] = [_interval(*row) for row in rows[["effective_value", "effective_low", "effective_high"]].to_numpy()]
    described["by ER"] = rows["evidence_effective"]
    described["margin"] = [f"{margin:g}" for margin in rows["margin"]]
    if "raw_p_holm" in rows:
        described["p, Holm"] = ["n/a" if p != p else tables.format_p(p) for p in rows["raw_p_holm"]]
    described["positive"] = [f"{k} of {n}" for k, n in zip(rows["positive"], rows["pairs"], strict=True)]
    if several:
        described["each pair"] = rows["each_pair"]
    described["tau"] = [_number(tau) for tau in rows["raw_tau"]]
    described["z, images"] = [_number(z) for z in rows["mcnemar_z"]]
    described["seeds"], described["basis"] = rows["seeds"], rows["basis"]
    if (rows["overlaps"] != "").any():
        described["trained with"] = rows["overlaps"]
    return described.reset_index(drop=True)


def _claims(abstract: pd.DataFrame) -> pd.DataFrame:
    shown = abstract[["claim", "dataset", "quantity"]].copy()
    shown["value"] = [
        f"n/a: {reason}" if value != value else f"{value:.2f}" + f" [{low:.2f}, {high:.2f}]" * (low == low) + f" ({reason})" * bool(reason)
        for value, low, high, reason in abstract[["value", "low", "high", "reason"]].itertuples(index=False)
    ]
    shown["p, Holm"] = ["n/a" if p != p else tables.format_p(p) for p in abstract["p_holm"]]
    shown["n"] = [f"{n} {of}" for n, of in zip(abstract["n"], abstract["of"], strict=True)]
    return shown


def _compared(view: pd.DataFrame) -> pd.DataFrame:
    """The paper's symbol and ours; a star where ours, in the paper's view, is another."""
    cells = view.assign(
        text=[
            f"{paper or BLANK} / {ours or BLANK}" + " *" * (agrees is False)
            for paper, ours, agrees in zip(view["paper"], view["ours"], view["agrees"], strict=True)
        ]
    )
    wide = cells.pivot(index="hypothesis", columns="benchmark", values="text")
    return wide.loc[view["hypothesis"].unique(), view["benchmark"].unique()].rename_axis(columns=None).reset_index()


def _reasons(cells: pd.DataFrame) -> list[str]:
    lacking = cells[(cells["pairs"] > 0) & (cells["effective_reason"] != "")]
    return [f"  {row.hypothesis}, {row.dataset}: {row.effective_reason}" for row in lacking.itertuples()]


def _document(result: Result, drawn: list[Figure], argv: Sequence[str]) -> html.Document:
    cells, study = result.study.cells, result.study
    tested = cells[cells["pairs"] > 0]
    counts = tested["evidence"].value_counts()
    listed = ", ".join(f"{counts.get(symbol, 0)} {symbol}" for symbol in effects.SYMBOLS if symbol)
    verdict = [f"{len(tested)} of {len(cells)} cells are tested: {listed}."]
    about = [f"{_key(cells)}.", "The margin is the smallest effect of interest. ER: D less what the change of the IID score predicts."]
    claims = _claims(result.abstract).rename(columns={"claim": "hypothesis"})
    folded = [("Pairs", _with_reasons(study.pairs)), ("Lines: logit of shifted on logit of IID scores", study.lines)]
    sections = [
        html.Section("Evidence", about, [("After the raw effects", _symbols(cells)), (CAPTION, _with_reasons(tested))], drawn, folded),
        html.Section(
            "Abstract hypotheses",
            ["Intervals are of seeds and images, p of correlations and components from permutations of pairs."],
            [("Quantities", claims)],
            [],
        ),
    ]
    if result.views:
        shown = [(f"{title}: paper / ours", _compared(view)) for title, view in result.views.items()]
        sections.append(html.Section("Published tables", ["* ours, where o, - and ? count as -, differs from the paper."], shown, []))
    notes = [{"code": "MISPRINT", "text": line, "cure": "the value is not used"} for line in result.misprints]
    notes += [{"code": "NOTE", "text": note, "cure": ""} for note in result.given.notes]
    facts = {"command": shlex.join(["jaxbed", "evidence", *argv]), "seed": str(resampling.SEED), "resamples": f"{resampling.RESAMPLES:,}"}
    facts |= {f"runs of {algorithm}": "; ".join(runs) for algorithm, runs in result.given.provenance.items()}
    hypotheses, sets = cells["hypothesis"].nunique(), cells["dataset"].nunique()
    title = f"{hypotheses} hypothes{'es' if hypotheses > 1 else 'is'} on {sets} shifted set{'s' * (sets > 1)}"
    return html.Document(title, verdict, sections, notes, facts)


def _with_reasons(rows: pd.DataFrame) -> pd.DataFrame:
    described = _described(rows).assign(**{"why no ER": rows["effective_reason"].to_list()})
    if "pair" not in described and len(rows):
        described.insert(2, "pair", ["all" if t == "all" else f"{t} / {c}" for t, c in zip(rows["treated"], rows["control"], strict=True)])
    return described


def _latex(caption: str, frame: pd.DataFrame) -> str:
    lines = [f"% {caption}", r"% Needs \usepackage{booktabs}.", r"\begin{tabular}{" + "l" * len(frame.columns) + "}", r"\toprule"]
    cells = [" & ".join(MINUS.sub("$-$", tables.escape(text.replace(BLANK, ""))) for text in row) + r" \\" for row in _lines(frame)]
    return "\n".join([*lines, cells[0], r"\midrule", *cells[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def _lines(frame: pd.DataFrame) -> list[list[str]]:
    return [[str(name) for name in frame.columns], *([str(cell) for cell in row] for row in frame.itertuples(index=False))]


def _interval(value: float, low: float, high: float) -> str:
    if value != value:
        return "n/a"
    return _number(value) if low != low else f"{_number(value)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    return "n/a" if value != value else f"{value:.1f}"
