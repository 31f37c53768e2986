"""`jaxbed measure`: what the networks of a run lean on. Answers are kept; a new score needs no new pass.

    jaxbed measure WORKDIR... [--sets SET,SET] [--measures all|shape_bias,spectral,...] [--select best_val|last|EPOCH]
                   [--severities 1-5] [--frost DIR] [--epsilons 0.5] [--epsilons-l2 0.5] [--images LIST]
                   [--imagenet-c DIR] [--imagenet-cbar DIR] [--mce-baseline RUN] [--out TABLE.csv] [--report DIR]

Stopped, the same command goes on. Exit code 0; 2 for invalid input, with the reason on stderr; 128 + the signal's number.
"""

import argparse
import contextlib
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from jaxbed.measures import options, report, table
from jaxbed.stats import names, progress
from jaxbed.stats.output import destination
from jaxbed.system import ending, processes

if TYPE_CHECKING:
    from jaxbed.data.source import EvaluationSet, Source
    from jaxbed.measures.answering import Exam
    from jaxbed.measures.conditions import Settings
    from jaxbed.measures.published_files import Cells
    from jaxbed.measures.scores import Baseline


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed measure` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv), "jaxbed measure")


def run(argv: Sequence[str]) -> int:
    """Runs the command. Raises ValueError or OSError for what cannot be measured."""
    asked = options.parse(processes.join(list(argv)))
    if asked.report is not None:
        report.check(asked.report, asked.workdirs)
    if asked.out and (asked.out.is_dir() or not asked.out.parent.is_dir()):
        raise ValueError(f"--out {asked.out} cannot be written: name a CSV file in a folder that exists, as models.csv")
    with processes.together(), progress.shown("jaxbed measure", "jaxbed.measures") if processes.is_first() else contextlib.nullcontext():
        tables: dict[pathlib.Path, pd.DataFrame] = {}
        notes: list[str] = []
        for workdir in asked.workdirs:
            logging.getLogger(__name__).info("reading %s", workdir)
            status, of_points = _measure(workdir, asked, notes)
            if status:
                return 128 + status
            tables |= of_points
        if processes.is_first():
            _show(tables, list(dict.fromkeys(notes)), asked, argv)
    return 0


def _show(measured: Mapping[pathlib.Path, pd.DataFrame], notes: Sequence[str], asked: argparse.Namespace, argv: Sequence[str]) -> None:
    """Prints the numbers of runs {folder: rows}, and writes the table of runs and the report."""
    summary = table.summarise(measured, notes)
    parts = [table.text(summary)]
    if asked.out:
        table.write_runs(summary, asked.out)
        parts.append(f"wrote {asked.out}")
    if asked.report is not None:
        written = report.write(asked.report, summary, argv)
        parts.append(f"wrote {len(written)} files: {asked.report}/{', '.join(report.NAMES)}, figures")
    destination.show("\n\n".join(parts))


class _Asked(NamedTuple):
    """What is measured of one data set."""

    changing: list[str]  # measures that show images
    settings: "Settings"
    sets: dict[str, "EvaluationSet"]  # by the name of their folder
    cells: dict[str, "Cells"]  # of published files, by benchmark
    baselines: dict[str, "Baseline | None"]  # of mCE, by the name of a set or benchmark

    def notes(self, source: "Source") -> list[str]:
        """What is measured otherwise than its name says."""
        from jaxbed.measures.attacks import DLR_CLASSES

        if "apgd" not in self.changing or not self.sets or self.settings.classes >= DLR_CLASSES:
            return []
        return [
            f"note: {source.name} has {self.settings.classes} classes, and apgd's difference of logits needs {DLR_CLASSES}: its other "
            "part, apgd_ce, is measured alone, and there is no number apgd of both"
        ]

    def exams(self, source: "Source") -> list["Exam"]:
        """All that networks are asked."""
        from jaxbed.measures import answering, conditions, published_files

        def under(images: "EvaluationSet") -> list:
            return conditions.of(self.changing, images.split.image.shape[1:], self.settings)

        exams = [
            answering.Exam(name, functools.partial(_same, images), under, ", ".join(self.changing)) for name, images in self.sets.items()
        ]
        for benchmark, cells in self.cells.items():
            for name, folder in cells.folders.items():
                opened = functools.partial(published_files.open_cell, folder, source)
                exams.append(answering.Exam(benchmark, opened, functools.partial(_as_published, name), "published files"))
        return exams


def _same(images: "EvaluationSet") -> "EvaluationSet":
    return images


def _as_published(name: str, images: "EvaluationSet") -> list:
    from jaxbed.measures import conditions

    return [conditions.CLEAN._replace(name=name)]


def _measure(workdir: pathlib.Path, asked: argparse.Namespace, notes: list[str]) -> tuple[int, dict[pathlib.Path, pd.DataFrame]]:
    """The signal that ended it early or 0, and {folder: table} of the run, or of each of its grid points."""
    from jaxbed import config, parallel
    from jaxbed.measures import answering, conditions
    from jaxbed.training import plan
    from jaxbed.training.log import Log

    cfg = config.load(workdir, asked.allow_module)
    known = (table.SHAPE_BIAS, *conditions.MEASURES)
    measures = known if asked.measures == ("all",) else tuple(names.find_each(asked.measures, known, "--measures: there is no measure"))
    changing = [measure for measure in measures if measure in conditions.MEASURES]
    settings = conditions.Settings(asked.severities, _photographs(asked.frost), asked.epsilons, asked.epsilons_l2)
    parallel.keep_compilations()
    parallel.use_cores(cfg.seeds, cfg.mesh)
    _, last, points, folder = plan.saved_job(cfg, workdir)
    fitted = dataclasses.replace(last, mesh=parallel.fitting(last.mesh))
    epochs: list[dict[int, int]] = [
        dict(processes.first(functools.partial(_epochs, folder / point.name, asked.select, notes))) for point in points
    ]
    opened: dict[int, _Asked] = {}
    for source in (point.source for point in points):  # grid points may share one
        if id(source) not in opened:
            opened[id(source)] = _open(source, changing, settings._replace(classes=len(source.class_names)), asked, notes)
            notes += opened[id(source)].notes(source)
    if changing or opened[id(points[0].source)].cells:
        asked_of: Callable = lambda source: opened[id(source)].exams(source)  # noqa: E731
        if status := answering.answer(fitted, points, folder, asked_of, epochs, Log(folder)):
            return status, {}
    tables = {}
    if processes.is_first():
        for point, epoch_of in zip(points, epochs, strict=True):
            tables[folder / point.name] = _table(
                folder / point.name, point.source, measures, opened[id(point.source)], epoch_of, asked, notes
            )
    return 0, tables


def _open(source: "Source", changing: list[str], settings: "Settings", asked: argparse.Namespace, notes: list[str]) -> _Asked:
    from jaxbed.data.split import pick
    from jaxbed.measures import baselines, conditions, published_files

    if unknown := [name for name in asked.sets if name not in source.sets]:
        raise ValueError(f"--sets {','.join(unknown)}: {source.name} has {', '.join(source.sets)}")
    if source.multi_label:
        raise ValueError(f"{source.name} is multi-label, and `jaxbed measure` asks which one class an image has: measure another run")
    usual = [name for name, of_set in source.sets.items() if of_set.role == "test"] or list(source.sets)
    sets = {name: source.sets[name] for name in asked.sets or usual} if changing else {}
    for name, images in sets.items():
        if images.decision != "argmax" and (attacks := [measure for measure in changing if measure in conditions.ATTACKS]):
            raise ValueError(
                f"--measures {attacks[0]} attacks the classes that a network has, and {name} is decided by {images.decision}: leave it "
                "out, or name other --sets"
            )
    if asked.images:
        listed = _listed(asked.images)
        for name in list(sets):
            images = sets.pop(name)
            rows = np.flatnonzero(np.isin(images.split.name, listed))
            if len(rows) != len(listed):
                absent = sorted(set(listed) - set(images.split.name.tolist()))
                raise ValueError(
                    f"--images {asked.images}: set {name} of {source.name} has no image {absent[0]!r} ({len(absent)} missing); its names "
                    f"are in responses/{name}/images.csv"
                )
            sets[f"{name}@{asked.images.stem}"] = images._replace(split=pick(images.split, rows), real=None)
    folders = {benchmark: getattr(asked, benchmark) for benchmark in options.PUBLISHED if getattr(asked, benchmark)}
    cells = {benchmark: published_files.look(benchmark, folder, source, asked.severities) for benchmark, folder in folders.items()}
    decisions = {name: images.decision for name, images in sets.items()} | ({"imagenet_c": "argmax"} if "imagenet_c" in cells else {})
    divided_by = {name: baselines.find(asked.mce_baseline, name, source, decision, notes) for name, decision in decisions.items()}
    return _Asked(changing, settings, sets, cells, divided_by)


def _listed(path: pathlib.Path) -> list[str]:
    """Names of images, each once. Raises ValueError for a file without any."""
    if not path.is_file():
        raise FileNotFoundError(f"--images {path} is not a file: it must hold names of images, one per line")
    listed = list(dict.fromkeys(line.strip() for line in path.read_text(encoding="utf-8").split("\n") if line.strip()))
    if not listed:
        raise ValueError(f"--images {path} is empty: it must hold names of images, one per line")
    return listed


def _epochs(workdir: pathlib.Path, rule: str, notes: list[str]) -> list[tuple[int, int]]:
    """[(seed, epoch), ...]: which epoch of each seed counts; adds to the notes. Raises ValueError for a rule that is none."""
    from jaxbed.evaluation import metrics, trained

    if rule.isdecimal():
        return [(int(seed), int(rule)) for seed in metrics.scores(workdir)["run"].unique()]
    if rule not in ("", "best_val", "last"):
        raise ValueError(f"--select {rule}: it is best_val, last or the number of an epoch")
    return list(trained.epoch_of_seed(workdir, rule, notes).items())


def _photographs(folder: pathlib.Path | None) -> tuple[np.ndarray, ...]:
    """Of frozen glass, in the order of their names: [h, w, 3] in [0, 1]. Raises ValueError for a folder without any."""
    if folder is None:
        return ()
    from PIL import Image

    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".png", ".jpg", ".jpeg")) if folder.is_dir() else []
    if not paths:
        raise ValueError(f"--frost {folder}: there are no photographs (.png, .jpg); ImageNet-C's come with the package imagecorruptions")
    return tuple(np.asarray(Image.open(path).convert("RGB"), np.float32) / 255 for path in paths)


def _table(
    workdir: pathlib.Path,
    source: "Source",
    measures: Sequence[str],
    opened: _Asked,
    epoch_of: Mapping[int, int],
    asked: argparse.Namespace,
    notes: list[str],
) -> pd.DataFrame:
    """Writes WORKDIR/measures.csv, and the channels of the critical band; returns the former."""
    from jaxbed.evaluation import metrics
    from jaxbed.measures import published_files, scores
    from jaxbed.stats import tables
    from jaxbed.system import files

    frame = metrics.scores(workdir)
    algorithm = frame["algorithm"].iloc[0]
    parts = [table.shape_bias(workdir, epoch_of)] if table.SHAPE_BIAS in measures else []
    exams = {exam.name: exam for exam in opened.exams(source) if exam.name in opened.sets}
    for name, images in opened.sets.items():
        applied = [answer for condition in exams[name].conditions_of(images) for answer in condition.answers]
        given = (workdir / table.FOLDER / name, images.split.label, images.split.image.shape[1:])
        measured = scores.of_set(*given, measures, applied, epoch_of, opened.baselines[name], opened.settings.epsilons)
        parts.append(measured.table.assign(algorithm=algorithm, dataset=name, role=images.role))
        if (unmoved := max(map(np.max, measured.unmoved.values()), default=0.0)) > 0:
            notes.append(
                f"warning: {algorithm}, {name}: of a seed, {unmoved:.1%} of images have a gradient of exactly zero where an attack starts: "
                "it cannot move them, and accuracy under it says less than it seems"
            )
        if len(measured.channels):
            files.write(workdir / table.FOLDER / name / "critical_band.csv", tables.csv_text(measured.channels))
    tests = [name for name, of_set in source.sets.items() if of_set.role == "test" and of_set.decision == "argmax"]
    for benchmark, cells in opened.cells.items():
        clean = _clean(frame, tests, epoch_of)
        folder = workdir / table.FOLDER / benchmark
        measured_cells = scores.of_files(folder, benchmark, cells.label, not cells.faults, epoch_of, clean, opened.baselines.get(benchmark))
        parts.append(measured_cells.assign(algorithm=algorithm, dataset=benchmark, role="ood"))
        if cells.faults:
            more = f" and {len(cells.faults) - 5} more" if len(cells.faults) > 5 else ""
            notes.append(f"note: {benchmark} is not whole, so there are no means and no mCE: {'; '.join(cells.faults[:5])}{more}")
        else:
            published_files.write_images(folder, cells)
    return table.write(workdir, parts)


def _clean(frame: pd.DataFrame, tests: Sequence[str], epoch_of: Mapping[int, int]) -> np.ndarray | None:
    """Accuracy [S] of each seed at its epoch on the only test set; None without."""
    rows = frame[(frame["dataset"].isin(tests)) & (frame["metric"] == "accuracy") & (frame["epoch"] == frame["run"].map(epoch_of))]
    known = rows.set_index("run")["value"]
    return known.loc[list(epoch_of)].to_numpy() if len(tests) == 1 and set(epoch_of) <= set(known.index) else None
