"""Writes results: stats.json, CSV files (for workdirs also confusions), LaTeX tables, figures, report.html. Same results, same bytes."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.comparisons import published_tables
from jaxbed.stats.figures import drawing
from jaxbed.stats.output import destination, document, headings, html, latex, listing

NAMES = ("stats.json", "scores.csv", "runs.csv", "pairs.csv", "tests.csv", "columns.csv", "confusions.csv", "report.html")
OF_TESTS = ("pairs.csv", "tests.csv", "tables/pairs.tex", "tables/mean_ranks.tex", "tables/effects.tex")
OPTIONAL = tuple(map(Path, (*OF_TESTS, "confusions.csv")))  # removed if not written: files of an earlier call would mislead


def write(analysis: Analysis, out: str | Path, facts: dict) -> list[Path]:
    """Writes everything into `out` and returns the paths. `facts`: options and inputs, for stats.json and the page.

    `out` is not touched before everything is ready. Files of tests that were not made are removed: they would belong to other scores.
    """
    written = destination.fill(out, lambda folder: _make(analysis, folder, facts))
    for path in OPTIONAL:
        if Path(out) / path not in written:
            (Path(out) / path).unlink(missing_ok=True)
    return written


def _make(analysis: Analysis, out: Path, facts: dict) -> list[Path]:
    logging.getLogger(__name__).info("writing files")
    results = analysis.results
    (out / "tables").mkdir(parents=True, exist_ok=True)
    _write_text(out / "stats.json", to_json({**facts, **results}))
    trained = {tuple(cell) for cell in results["in_distribution"]}
    _write_text(out / "tables" / "scores.tex", tables.to_latex(analysis.scores, lower=results["lower_is_better"], in_distribution=trained))
    written = [out / "stats.json", out / "scores.csv", out / "tables" / "scores.tex"]
    csv = {"scores.csv": analysis.scores, "runs.csv": analysis.selected}
    if len(tests := listing.tests(results)):
        csv["tests.csv"] = tests
    if analysis.p is not None:
        csv["pairs.csv"] = analysis.pairs
        decimals = published_tables.DECIMALS if results["paper"] else None
        latex_tables = {"pairs": tables.pairs_to_latex(analysis.p, analysis.alpha, decimals, analysis.p_least)}
        latex_tables["mean_ranks"] = latex.mean_ranks(analysis)
        latex_tables |= {"effects": latex.effects(analysis)} if results["pairs"] is not None else {}
        for name, text in latex_tables.items():
            written.append(out / "tables" / f"{name}.tex")
            _write_text(written[-1], text)
    csv["columns.csv"] = headings.key(csv)
    for name, table in csv.items():
        tables.to_csv(table, out / name)
    written += [out / name for name in csv if name != "scores.csv"]
    workdirs = [file for file in facts.get("files", []) if file["what"] == "workdir"]
    if workdirs and len(confused := _confusions(analysis.selected, workdirs)):  # multi-label sets have none
        tables.to_csv(confused, out / "confusions.csv")
        written.append(out / "confusions.csv")
    drawn = drawing.draw(out, analysis)
    written += [path for figure in drawn for path in figure.files]
    _write_text(out / "report.html", html.page(document.build(analysis, drawn, facts)))
    return [*written, out / "report.html"]


def _confusions(selected: pd.DataFrame, workdirs: list[dict]) -> pd.DataFrame:
    """metrics.confusions of the runs of each workdir, under their names here. `workdirs`: from inputs.read."""
    from jaxbed.evaluation import metrics

    frames = []
    for workdir in workdirs:
        of_workdir = pd.MultiIndex.from_frame(selected[["algorithm", "run"]]).isin([tuple(run) for run in workdir["runs"]])
        rows, former = selected[of_workdir], workdir["renamed"]
        part = metrics.confusions(workdir["path"], rows.assign(**{kind: rows[kind].replace(names) for kind, names in former.items()}))
        frames.append(part.replace({kind: {old: new for new, old in names.items()} for kind, names in former.items()}))
    return pd.concat(frames, ignore_index=True)


def to_json(results: dict) -> str:
    """Strict JSON, the same bytes for the same results; frames become lists of rows; NaN and infinity, which JSON lacks, become strings."""
    return json.dumps(_plain(results), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):  # a frame
        value = value.to_dict("records")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    return value


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
