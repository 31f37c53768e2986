"""`jaxbed correlate`: do biases of models go with how well they generalise, and how firm is that? From tables with a row for each model.

    jaxbed correlate TABLE.csv... [--biases shape_bias,low_freq --benchmarks in_distribution,robustness] [--groups category] --out DIR

Exit code 0; 2 for invalid input, with the reason on stderr. Source: Gavrikov and Keuper, "Can Biases in ImageNet Models Explain
Generalization?" (CVPR 2024), whose matrices `--paper-mode biases` gives.
"""

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from jaxbed.stats import names, progress, tables
from jaxbed.stats.correlations import coefficients, figures, models, study
from jaxbed.stats.correlations.models import Models
from jaxbed.stats.figures import style
from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import destination, html
from jaxbed.system import ending

if TYPE_CHECKING:
    import matplotlib.figure

NAMES = ("correlations.csv", "models.csv", "report.html")
WORDS = {"none": "not adjusted", "holm": "adjusted by Holm over all groups of a matrix", "bh": "adjusted by Benjamini and Hochberg"}


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed correlate` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed correlate")


@pd.option_context("mode.string_storage", "python")
def run(argv: Sequence[str]) -> int:
    """Runs the command. Raises ValueError or OSError for input that cannot be used."""
    asked = parse(argv)
    if asked.out is not None:
        destination.check(asked.out, asked.tables, NAMES, command="jaxbed correlate")
    with progress.shown("jaxbed correlate"):
        given = models.read([Path(name) for name in asked.tables], asked.biases, asked.benchmarks, asked.groups)
        if unknown := sorted(set(asked.overlay) - set(given.category)):
            raise ValueError(
                f"--overlay {','.join(unknown)}: there is no such category; {names.choice(unknown[0], given.category.unique())}"
            )
        table = study.correlate(given, asked.adjust, asked.alpha, asked.paper_mode == "biases")
        written = destination.fill(asked.out, lambda folder: _write(folder, given, table, asked, argv)) if asked.out else []
    text = _text(given, table, asked)
    destination.show(text + (f"\n\nwrote {len(written)} files: {asked.out}/report.html, correlations.csv, figures" if written else ""))
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options. Raises ValueError for a value that is out of range."""
    parser = argparse.ArgumentParser(prog="jaxbed correlate", description="Rank correlations of biases and benchmarks over models.")
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="CSV with a row for each model, or each run of it; joined by `model`")
    for option, known in (("biases", models.BIASES), ("benchmarks", models.BENCHMARKS)):
        described = f"columns; default: those of {', '.join(known)} that there are"
        parser.add_argument(f"--{option}", type=_names, default=(), metavar="A,B", help=described)
    parser.add_argument("--groups", default="", metavar="COLUMN", help="column of categories; default: category")
    parser.add_argument("--adjust", choices=tuple(study.ADJUSTED), default="none", help="how p is adjusted for what is shown as 0")
    parser.add_argument("--alpha", type=float, default=0.05, help="correlations with a larger p are shown as 0")
    parser.add_argument("--paper-mode", choices=("biases",), help="groups as the bias paper has them: total, adversarially trained, other")
    parser.add_argument("--overlay", type=_names, default=(), metavar="A,B", help="categories; draws figures in which all others are grey")
    parser.add_argument("--out", metavar="DIR", help="folder for correlations.csv, models.csv, report.html and figures")
    asked = parser.parse_args(list(argv))
    if not 0 < asked.alpha < 1:
        raise ValueError(f"--alpha {asked.alpha:g}: must be between 0 and 1, e.g. 0.05")
    return asked


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _summary(table: pd.DataFrame, asked: argparse.Namespace) -> list[str]:
    """How many correlations there are, and how many hold."""
    lines = []
    for name, row in study.significant(table, asked.alpha).iterrows():
        words = f"{row['p']} of {row['pairs']} have p < {asked.alpha:g}, {row['p_holm']} after Holm, {row['p_bh']} after Benjamini-Hochberg"
        lines.append(f"{study.MATRICES[str(name)]}: {words}.")
    return lines


def _text(given: Models, table: pd.DataFrame, asked: argparse.Namespace) -> str:
    """What is shown in the terminal."""
    parts = [f"Spearman's rho; 0 where p, {WORDS[asked.adjust]}, is not below {asked.alpha:g}"]
    for group in table["group"].unique():
        wide = study.matrix(table, "bias_x_benchmark", group, "masked")
        counts = table[(table["group"] == group) & (table["matrix"] == "bias_x_benchmark")]["models"]
        fewest, most = counts.min(), counts.max()
        head = f"{group} ({most if fewest == most else f'{fewest} to {most}'} models)"
        lines = ([str(name), *map(_number, row)] for name, row in zip(wide.index, wide.to_numpy(), strict=True))
        parts.append(tables.align([[head, *wide.columns], *lines]))
    return "\n\n".join([*parts, "\n".join(_summary(table, asked)), *(f"note: {note}" for note in given.notes)])


def _number(value: float) -> str:
    return "n/a" if value != value else f"{value:.2f}" if value else "0"


def _write(folder: Path, given: Models, table: pd.DataFrame, asked: argparse.Namespace, argv: Sequence[str]) -> list[Path]:
    """Writes all files; returns their paths."""
    tables.to_csv(table, folder / "correlations.csv")
    tables.to_csv(given.properties.assign(category=given.category).reset_index(), folder / "models.csv")
    drawn = _draw(folder / "figures", given, table, asked)
    page = html.page(_document(given, table, asked, drawn, argv))
    (folder / "report.html").write_text(page, encoding="utf-8", newline="\n")
    return [*(folder / name for name in NAMES), *(path for figure in drawn for path in figure.files)]


def _draw(folder: Path, given: Models, table: pd.DataFrame, asked: argparse.Namespace) -> list[Figure]:
    folder.mkdir()
    drawn: list[Figure] = []

    def add(name: str, figure: "matplotlib.figure.Figure", caption: str) -> None:
        files, svg = style.save(figure, folder, name)
        drawn.append(Figure(name, caption, svg, files))

    for name, title in study.MATRICES.items():
        if not (table["matrix"] == name).any():  # one benchmark alone
            continue
        wide = {group: study.matrix(table, name, group, "masked") for group in table["group"].unique()}
        add(name, figures.matrices(wide), f"{title}: Spearman's rho, 0 where it is not significant.")
    only = [study.TRAINED_ADVERSARIALLY] if asked.paper_mode else list(asked.overlay)
    for bias in given.biases:
        title = figures.TITLES.get(bias, bias)
        left_out = f" Fits of {figures.WIDEST:g} octaves or more are left out." if bias.startswith("bandwidth") else ""
        add(_file(bias), figures.planes(given, bias), f"{title} and the benchmarks: a point for each model.{left_out}")
        if only:
            add(
                f"{_file(bias)}_of_some",
                figures.planes(given, bias, only),
                f"{title}: {', '.join(only)}, and all others in grey.{left_out}",
            )
    add("ranges", figures.ranges(given), "What models reach on each benchmark.")
    if len(given.benchmarks) > 1:
        add("pairs", figures.pairs(given), "Each benchmark against each other.")
    if given.curves:
        add("curves", figures.curves(given), "What is left of the accuracy when frequencies are removed.")
    return drawn


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _document(given: Models, table: pd.DataFrame, asked: argparse.Namespace, drawn: list[Figure], argv: Sequence[str]) -> html.Document:
    about = [
        f"Rank correlation of models (Spearman). What is shown as 0 has a p, {WORDS[asked.adjust]}, that is not below {asked.alpha:g}.",
        f"Intervals: the middle 95 % of {coefficients.RESAMPLES:,} resamples of models. p of permutations: of "
        f"{coefficients.PERMUTATIONS:,} random orders.",
        "rho within categories: of ranks less the mean rank of their category.",
    ]
    sections = [html.Section("Matrices", about, [], [figure for figure in drawn if figure.name in study.MATRICES])]
    sections += [html.Section("Models", [], [], [figure for figure in drawn if figure.name not in study.MATRICES])]
    heads = {"x": "first", "y": "second", "low": "95 % from", "high": "95 % to", "p_permutation": "p, permutations", "p_holm": "p, Holm"}
    heads |= {"p_bh": "p, Benjamini-Hochberg", "masked": "shown", "rho_within": "rho within categories", "p_within": "p, within categories"}
    folded = [
        (study.MATRICES[str(name)], rows.drop(columns="matrix").rename(columns=heads).rename(columns=lambda text: text.replace("_", " ")))
        for name, rows in table.groupby("matrix", sort=False)
    ]
    sections += [html.Section("All correlations", [], [], [], [(title, rows.reset_index(drop=True)) for title, rows in folded])]
    notes = [{"code": "NOTE", "text": note, "cure": ""} for note in given.notes]
    biases, benchmarks = len(given.biases), len(given.benchmarks)
    title = f"{biases} bias{'es' * (biases > 1)} and {benchmarks} benchmark{'s' * (benchmarks > 1)} of {len(given.properties)} models"
    facts = {"command": shlex.join(["jaxbed", "correlate", *argv]), "seed": str(coefficients.SEED)}
    return html.Document(title, _summary(table, asked), sections, notes, facts, len(study.MATRICES))
