"""The report of `jaxbed measure`: a page and figures of what was measured, and one table of all runs. Does not import JAX."""

import functools
import pathlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from jaxbed.evaluation import metrics
from jaxbed.evaluation.answers import read_sets
from jaxbed.measures import corruption_error, figures, options, robustness_figures, shape_votes, table
from jaxbed.stats import names, tables
from jaxbed.stats.figures import style
from jaxbed.stats.figures.drawing import Figure
from jaxbed.stats.output import destination, html
from jaxbed.stats.reading import workdirs
from jaxbed.system import files

if TYPE_CHECKING:
    import matplotlib.figure

NAMES = ("report.html", "measures.csv")
OPTION = "--report"
FEWEST = 4  # models whose measures can be correlated
BENCHMARKS = {"imagenet_c": "ImageNet-C", "imagenet_cbar": "ImageNet-C-bar"}
OF_CLASSES = "S answers name the shape, T the texture, of n to images with conflicting cues; usable: (S + T) / n"
SECTIONS = ("Shape bias", "Filters", "Critical band", "Corruptions", "Attacks")


class Drawing(NamedTuple):
    """A figure that can be drawn."""

    section: str
    name: str  # of its files, if no other has it
    caption: str
    make: "Callable[[], matplotlib.figure.Figure]"


Votes = dict[str, dict[str, figures.Votes]]  # of each set and model


def check(out: str, runs: Sequence[pathlib.Path]) -> None:
    """Checks before anything is measured that the folder can take a report. Raises ValueError, also for files of something else."""
    points = [responses.parent for run in runs for responses in (run / "responses", *run.glob("*/responses"))]
    destination.check(out, [str(point / workdirs.MEASURES) for point in points], NAMES, OPTION, "jaxbed measure")


def write(out: str, summary: table.Summary, argv: Sequence[str]) -> list[pathlib.Path]:
    """Writes the folder; returns the paths of its files. argv: the command's, for the page. Raises ValueError for damaged files."""
    votes = _votes(summary)
    notes = [*summary.notes, *_notes(summary, votes)]
    planned = [*_of_votes(votes), *_of_answers(summary)]  # read before the folder is filled, whose errors are of writing
    facts = {"command": shlex.join(["jaxbed", "measure", *argv]), **_facts(summary)}

    def make(folder: pathlib.Path) -> list[pathlib.Path]:
        drawn = _draw(folder / "figures", planned)
        document = _document(summary, votes, drawn, notes, facts)
        (folder / NAMES[0]).write_text(html.page(document), encoding="utf-8", newline="\n")
        rows = summary.rows.assign(algorithm=summary.rows["model"])
        tables.to_csv(rows.loc[rows["value"].notna(), metrics.COLUMNS], folder / NAMES[1])
        return [*(folder / name for name in NAMES), *(path for of_section in drawn.values() for each in of_section for path in each.files)]

    return destination.fill(out, make, OPTION)


def _of_votes(votes: Votes) -> Iterator[Drawing]:
    for dataset, of_set in votes.items():
        caption = (
            f"{dataset}: share of shape among the answers that name shape or texture, of each class and of all (lines; last row, "
            "with Wilson's 95 % interval), answers of all seeds together. Classes are in the order of the first model. n: these answers."
        )
        yield Drawing("Shape bias", f"shape_bias_{dataset}", caption, functools.partial(figures.shape_bias, of_set))


def _of_answers(summary: table.Summary) -> Iterator[Drawing]:
    for dataset, rows in summary.rows.groupby("dataset", sort=False):
        if len(found := figures.cells(rows, figures.FILTER)):
            caption = (
                f"{dataset}: share of the clean accuracy that is left at each cut-off, mean over seeds; the band is from the least to the "
                "most of them. A high-pass filter at f removes the lowest 1 − f of the frequencies."
            )
            yield Drawing("Filters", f"filters_{dataset}", caption, functools.partial(figures.filters, _of_models(rows, found)))
        if len(found := figures.cells(rows, figures.BAND)):
            yield _of_channels(summary, str(dataset), _of_models(rows, found))
        yield from _of_corruptions(str(dataset), rows)
        yield from _of_sizes(summary, str(dataset), rows)
        if len(found := figures.cells(rows, figures.ATTACK)):
            caption = f"{dataset}: accuracy under attacks, mean over seeds. Dotted: unchanged images.{_left_out(found)}"
            yield Drawing("Attacks", f"attacks_{dataset}", caption, functools.partial(figures.attacks, _of_models(rows, found)))


def _of_channels(summary: table.Summary, dataset: str, rows: pd.DataFrame) -> Drawing:
    folders = {model: summary.folders[model] / table.FOLDER / dataset for model in rows["model"].unique()}
    texts = {"thresholds": str, "status": str, "continuous_thresholds": str}
    channels = {model: pd.read_csv(folder / "critical_band.csv", dtype=texts) for model, folder in folders.items()}
    images = {model: files.read_object(folder / "about.json")["images"] for model, folder in folders.items()}
    caption = (
        f"{dataset}: accuracy in % on faint grey images with noise of one octave, mean over seeds. Steps: below them more "
        "than half is right, a line for each seed; its numbers (means over the seeds that have them) are in the titles." + _left_out(rows)
    )
    side_px = {model: min(size["height"], size["width"]) for model, size in images.items()}
    return Drawing("Critical band", f"critical_band_{dataset}", caption, functools.partial(figures.critical_band, rows, channels, side_px))


def _of_corruptions(dataset: str, rows: pd.DataFrame) -> Iterator[Drawing]:
    found = figures.cells(rows, figures.CORRUPTION)
    found = found[~found["metric"].str.split("_").str[0].isin(table.ATTACKS)]
    main = found["corruption"].isin((*corruption_error.MAIN, *corruption_error.EXTRA))
    for benchmark, of_benchmark in (("imagenet_c", found[main]), ("imagenet_cbar", found[~main])):
        if len(of_benchmark):
            published = dataset in options.PUBLISHED
            source = "the published files" if published else f"{dataset}, made here"
            name = dataset if published else f"{benchmark}_{dataset}"
            caption = f"{BENCHMARKS[benchmark]}, {source}: accuracy in %, mean over seeds.{_left_out(of_benchmark)}"
            yield Drawing("Corruptions", name, caption, functools.partial(figures.corruptions, of_benchmark))
            if of_benchmark["model"].nunique() > 1:
                caption = caption.replace("mean over seeds", "mean over severities and seeds")
                yield Drawing("Corruptions", f"{name}_means", caption, functools.partial(figures.corruption_means, of_benchmark))
                yield from _of_severities(f"{BENCHMARKS[benchmark]}, {source}", name, rows, of_benchmark)


def _of_severities(heading: str, name: str, rows: pd.DataFrame, cells: pd.DataFrame) -> Iterator[Drawing]:
    """Of several models with scores on unchanged images, which published files have not."""
    clean = rows[rows["metric"] == "clean"].groupby("model")["value"].mean()
    if not set(cells["model"]) <= set(clean.index):
        return
    caption = f"{heading}: accuracy by severity, mean over seeds; severity 0: unchanged images.{_left_out(cells)}"
    yield Drawing("Corruptions", f"{name}_severities", caption, functools.partial(robustness_figures.severities, cells, clean))
    caption = f"{heading}: clean error, and mean error over corruptions and severities, not divided by AlexNet's; mean over seeds."
    yield Drawing("Corruptions", f"{name}_clean", caption, functools.partial(robustness_figures.clean_against_corrupted, cells, clean))


def _of_sizes(summary: table.Summary, dataset: str, rows: pd.DataFrame) -> Iterator[Drawing]:
    """Of models with different numbers of parameters, which were measured under ImageNet-C's corruptions."""
    cells = figures.cells(rows, figures.CORRUPTION)
    means = cells.groupby(["model", "corruption"])["value"].mean().unstack()
    known = {family: [member for member in members if member in means] for family, members in corruption_error.FAMILIES.items()}
    scores = pd.DataFrame({family: 100 * means[members].mean(axis=1) for family, members in known.items() if members})
    if scores.empty or len(scores) < 2:
        return
    about = (summary.folders[model] / table.FOLDER / dataset / "about.json" for model in scores.index)
    parameters = pd.Series([files.read_object(path).get("parameters", 0) for path in about], scores.index)
    if parameters.all() and parameters.nunique() > 1:
        listed = ", ".join(f"{model} {number:,}" for model, number in parameters.sort_values().items())
        caption = f"{dataset}: accuracy in % over the number of parameters, mean over corruptions, severities and seeds. {listed}."
        yield Drawing("Corruptions", f"imagenet_c_{dataset}_size", caption, functools.partial(robustness_figures.size, parameters, scores))


def _of_models(rows: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """The rows of models that have such cells."""
    return rows[rows["model"].isin(found["model"])]


def _left_out(rows: pd.DataFrame) -> str:
    more = rows["model"].nunique() - figures.MOST
    return f" The first {figures.MOST} models; {more} more are left out, their numbers are in measures.csv." if more > 0 else ""


def _votes(summary: table.Summary) -> Votes:
    """Of the sets whose shape bias was asked for, and of the models that name any cue there."""
    votes: Votes = {}
    asked = summary.rows[summary.rows["metric"].isin(table.OF_SHAPE_BIAS)]
    for (dataset, model), rows in asked.groupby(["dataset", "model"], sort=False):
        epoch_of = dict(zip(rows["run"].tolist(), rows["epoch"].tolist(), strict=True))
        counts = shape_votes.of_run(summary.folders[model], dataset, epoch_of)
        shape, texture = int(counts["shape"].sum()), int(counts["texture"].sum())
        if shape + texture:
            interval = shape_votes.interval(shape, texture, len(epoch_of))
            votes.setdefault(dataset, {})[model] = figures.Votes(counts, *interval)
    return votes


def _notes(summary: table.Summary, votes: Votes) -> list[str]:
    """What the page has to say beyond what is printed."""
    diverged = summary.rows[summary.rows["status"] == "diverged"].groupby("model", sort=False)["run"].unique()
    notes = [
        f"warning: {model}: seed {names.listed(sorted(seeds))} diverged: its answers are those of its last finite weights, and count"
        for model, seeds in diverged.items()
    ]
    classes = (str(label) for of_set in votes.values() for each in of_set.values() for label in each.counts["label"])
    if letters := style.lacking([*summary.folders, *classes]):
        notes.append(f"note: the font of the figures lacks {' '.join(letters)}: they are shown as boxes")
    return notes


def _facts(summary: table.Summary) -> dict[str, str]:
    """Epochs of each model; size and decision of each set."""
    facts = {}
    for model, rows in summary.rows.groupby("model", sort=False):
        epochs = rows.drop_duplicates("run").set_index("run")["epoch"]
        same = f"{epochs.iloc[0]}" if epochs.nunique() == 1 else ", ".join(f"{epoch} of seed {seed}" for seed, epoch in epochs.items())
        facts[f"epoch of {model}"] = same
    for dataset, rows in summary.rows.groupby("dataset", sort=False):
        folder = summary.folders[rows["model"].iloc[0]]
        about = folder / table.FOLDER / str(dataset) / "about.json"
        if about.is_file():
            content = files.read_object(about)
            images, decision = content["images"], content["decision"]
            size = f"{images['number']:,} images of {images['height']} × {images['width']} × {images['channels']}, "
        else:
            sets = read_sets(folder / "responses" / "sets.json")["sets"]
            size, decision = "", sets.get(dataset, {}).get("decision", "unknown")
        facts[f"set {dataset}"] = f"{size}decision: {decision}"
    return facts


def _draw(folder: pathlib.Path, planned: Sequence[Drawing]) -> dict[str, list[Figure]]:
    """{section: figures}."""
    folder.mkdir()
    drawn: dict[str, list[Figure]] = {section: [] for section in SECTIONS}
    taken: set[str] = set()
    for each in planned:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", each.name)
        name = next(name for name in (plain, *(f"{plain}_{number}" for number in range(2, len(planned) + 2))) if name not in taken)
        taken.add(name)
        written, svg = style.save(each.make(), folder, name)
        drawn[each.section].append(Figure(name, each.caption, svg, written))
    return drawn


def _document(
    summary: table.Summary, votes: Votes, drawn: Mapping[str, list[Figure]], notes: Sequence[str], facts: dict[str, str]
) -> html.Document:
    scores = [(dataset, pd.DataFrame(lines, columns=heads)) for dataset, (heads, *lines) in _cells(summary)]
    sections = [html.Section("Scores", [f"{table.HEAD}. All numbers are in measures.csv."], scores, [])]
    by_class = [(f"{dataset}: {OF_CLASSES}", _by_class(of_set)) for dataset, of_set in votes.items()]
    text = {"Shape bias": summary.shape_bias}
    for section, of_section in drawn.items():
        if of_section:
            sections.append(html.Section(section, text.get(section, []), [], of_section, by_class if section == "Shape bias" else []))
    models = len(summary.folders)
    if models >= FEWEST:
        words = "Do these numbers go with how well models generalise? jaxbed measure ... --out models.csv, then"
        sections.append(html.Section("Correlations", [f"{words} jaxbed correlate models.csv BENCHMARKS.csv --out DIR"], [], []))
    warnings = [
        {"code": code.upper(), "text": said, "cure": ""} for code, said in (note.split(": ", 1) for note in notes)
    ]  # "note: ...", "warning: ..."
    sets = summary.rows["dataset"].unique()
    title = f"What {models} model{'s' * (models > 1)} lean{'s' * (models == 1)} on"
    return html.Document(title, [f"Measured on {', '.join(sets)}."], sections, warnings, facts)


def _cells(summary: table.Summary) -> Iterator[tuple[str, list[list[str]]]]:
    return ((dataset, summary.cells(dataset)) for dataset in summary.wide)


def _by_class(votes: Mapping[str, figures.Votes]) -> pd.DataFrame:
    """Classes of each model: answers that name the shape (S), the texture (T), and images with conflicting cues (n)."""
    parts = []
    for model, (counts, *_) in votes.items():
        named = counts["shape"] + counts["texture"]
        usable = (100 * named / counts["images"]).map("{:.1f} %".format)
        share = (counts["shape"] / named.where(named > 0)).map(lambda value: "n/a" if value != value else f"{value:.3f}")
        columns = {"class": counts["label"], "S": counts["shape"], "T": counts["texture"], "n": counts["images"]}
        parts.append(pd.DataFrame({"model": model, **columns, "usable": usable, "share of shape": share}))
    return pd.concat(parts, ignore_index=True)
