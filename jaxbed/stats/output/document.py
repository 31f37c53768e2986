"""The analysis as a document for `html.page`: verdict, sections of text, figures and tables, warnings, facts. Computes nothing."""

from collections.abc import Sequence

import pandas as pd

from jaxbed.stats import tables
from jaxbed.stats.analysis import Analysis
from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import headings, html, report, sections, sections_of_tests
from jaxbed.stats.output.html import Document, Section
from jaxbed.stats.selection import rules


def build(analysis: Analysis, drawn: Sequence[Figure], facts: dict) -> Document:
    """`drawn`: the figures of drawing.draw; `facts`: as in files.write."""
    results, figures = analysis.results, {figure.name: figure for figure in drawn}
    sections = [_scores(analysis, figures)]
    if results["friedman"]:
        sections += [sections_of_tests.on_new_datasets(analysis, figures), sections_of_tests.bradley_terry(results)]
    if results["missing_cells"]:
        sections += [sections_of_tests.missing_cells(results)]
    if results["these_datasets"]:
        sections += [sections_of_tests.on_these_datasets(results)]
    if results["friedman"]:
        sections += [sections_of_tests.firmness(results, figures)]
    if analysis.chosen is not None:
        sections += [_epochs(analysis, figures)]
    if facts.get("files"):
        sections += [_inputs(facts["files"])]
    footer = {"command": report.command(facts, results["options"]), "seed": str(results["seed"])}
    footer |= {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in facts.items() if name != "files"}
    footer["versions"] = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    warnings = [{key: warning[key] for key in ("code", "text", "cure")} for warning in results["warnings"]]
    n, m = len(results["algorithms"]), len(results["datasets"])
    title = f"{results['metric'].capitalize()}: {n} algorithm{'s' * (n != 1)} on {m} data set{'s' * (m != 1)}"
    return html.Document(title, results["verdict"], sections, warnings, footer, _answers(results))


def _answers(results: dict) -> int:
    """The number of lines of the verdict that are the answer: the overall test and the comparisons, or one line."""
    claimed = results["claims"]
    if not claimed or not claimed["overall"] or claimed["smallest_p"] >= results["alpha"]:
        return 1
    return 1 if results["question"] == "new-datasets" and not results["friedman"] else 2  # one data set: no conclusion


def _scores(analysis: Analysis, figures: dict) -> Section:
    results, scores = analysis.results, analysis.scores
    trained, lower = {tuple(cell) for cell in results["in_distribution"]}, results["lower_is_better"]
    grey = ["grey"] * rules.is_cherry_picked(results["selection"]["rule"])
    rows = [
        {
            "algorithm": algorithm,
            **{
                dataset: html.Cell(text, " ".join([*["best"] * best, *["in-distribution"] * ((algorithm, dataset) in trained), *grey]))
                for dataset, (text, best) in cells.items()
            },
        }
        for algorithm, cells in tables.cells(scores, lower, trained).items()
    ]
    counts = (
        scores.pivot(index="algorithm", columns="dataset", values="n")
        .loc[scores["algorithm"].unique(), scores["dataset"].unique()]
        .reset_index()
    )
    text = [
        f"Mean ± std (ddof 1) over runs, {'percent' if tables.scale(scores) == 100 else 'as given'}; "
        f"{'lower' if lower else 'higher'} is better. Epoch selection: {results['selection']['text']}."
    ]
    if trained:
        text.append("Underlined cells: the algorithm was trained on that data set; they are never marked as best.")
    shown = [("Scores", pd.DataFrame(rows))]
    folded = [("Runs", counts)] * (scores["n"].nunique() > 1)
    if results["these_datasets"]:
        cells = results["these_datasets"]["intervals"]
        folded.append((f"t intervals of the means, {1 - results['alpha']:.0%}", headings.present(cells, results["alpha"])))
    return html.Section("Scores", text, shown, sections.of(figures, "runs", "iqm", "profile"), folded)


def _epochs(analysis: Analysis, figures: dict) -> Section:
    text = [f"Epoch selection: {analysis.results['selection']['text']}."]
    chosen = sections.presented([("Chosen epochs", analysis.chosen)], analysis.alpha)
    return sections.section("Epochs", text, chosen, sections.of(figures, "epochs"))


def _inputs(files: list[dict]) -> Section:
    """The input files."""
    rows = [
        {
            "input": file["path"],
            "what": file["what"] + (" (config.json)" if file["what"] == "workdir" else ""),
            "SHA-256": file["sha256"],
            "code": "; ".join(_words(code) for code in file.get("code", [])) or None,
        }
        for file in files
    ]
    text = "The files that were read. For a workdir: the SHA-256 of its config.json, and the code versions in its log."
    return Section("Inputs", [text], [("Inputs", pd.DataFrame(rows))], [])


def _words(code: dict) -> str:
    versions = code["versions"] or {}
    return f"commit {code['commit'] or 'not recorded'}, source {code['source']}, " + ", ".join(
        f"{name} {versions[name]}" for name in ("jaxbed", "jax") if name in versions
    )
