"""Reads what `jaxbed evidence` compares: workdirs, the table of pairs and the table of margins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import model_vs_human
from jaxbed.evaluation import metrics
from jaxbed.stats import names
from jaxbed.stats.evidence import families, line, resampling, study, tags
from jaxbed.stats.evidence.resampling import Sampled
from jaxbed.stats.evidence.study import MCE, Given, Pair
from jaxbed.stats.reading import delimited, numbers, workdirs
from jaxbed.stats.selection import rules

MCE_METRICS = ("mce", "mce_jax")  # of published files, and of corruptions made here
SHAPE_BIAS = "shape_bias"
BY_CLASS = ("imagenet_a", "imagenet_r")  # first words of sets of which classes are drawn
PAIR_COLUMNS = ("hypothesis", "treated", "control")


class Block(NamedTuple):
    """What the seeds of one run contribute to the score on one set, in points."""

    source: str
    image: np.ndarray  # [n] names; empty where only seeds are known, whose scores are then [S, 1]
    scores: np.ndarray  # [S, n]
    label: np.ndarray | None = None  # [n]


Blocks = dict[str, dict[str, list[Block]]]  # {set: {algorithm: blocks}}


def read(
    paths: Sequence[Path],
    pairs: Path,
    controls: Sequence[str] = (),
    margins: Path | None = None,
    rule: str = "last",
    iid: str = "",
    real: Sequence[str] = (),
    corruptions: bool = False,
) -> Given:
    """Scores of all runs, resampled. rule: which epoch of each seed counts; iid: the in-distribution set, needed if there are several;
    corruptions: the families of ImageNet-C's corruptions of that set are shifted sets too.

    Raises ValueError or FileNotFoundError, with the cure, for what cannot be used.
    """
    notes: list[str] = []
    found: dict[str, Blocks] = {"test": {}, "ood": {}, MCE: {}}
    sources: list[dict] = []
    seeds: dict[tuple[str, int], Path] = {}
    read_runs: list[families.Run] = []
    trained_with: dict[str, set[str]] = {}
    shape_bias: dict[str, list[float]] = {}
    provenance: dict[str, list[str]] = {}
    for path in paths:
        frame, source = workdirs.read(path)
        algorithm = source["algorithm"]
        epochs = _epochs(frame, rule)
        for seed in epochs:
            if (algorithm, seed) in seeds:
                raise ValueError(f"seed {seed} of {algorithm} is in both {seeds[algorithm, seed]} and {path}: leave one out")
            seeds[algorithm, seed] = path
        if lost := sorted({*frame["run"].astype(int)} - set(epochs)):
            notes.append(f"{path}: seeds {names.listed(lost)} have no epoch that --select {rule} can choose and are left out")
        _add(found, path, source, frame, epochs, notes)
        chosen = frame[(frame["epoch"] == frame["run"].map(epochs)) & (frame["metric"] == SHAPE_BIAS)]
        shape_bias.setdefault(algorithm, []).extend(chosen.groupby("run")["value"].mean())
        sources.append(source)
        read_runs.append(families.Run(algorithm, path, epochs))
        trained_with.setdefault(algorithm, set()).update(families.trained_with(source["settings"]))
        provenance.setdefault(algorithm, []).extend(f"{path}: seed {seed}, epoch {epoch}" for seed, epoch in epochs.items())
    workdirs.refuse_other_settings(sources)
    algorithms = list(dict.fromkeys(source["algorithm"] for source in sources))
    fingerprints = {source["algorithm"]: {tags.TRAINING_SET: source["data"].get(tags.TRAINING_SET)} for source in sources}
    settings_of = {source["algorithm"]: source["settings"] | fingerprints[source["algorithm"]] for source in sources if source["settings"]}
    listed = read_pairs(pairs, algorithms, trained_with, settings_of)
    for differs in dict.fromkeys(pair.differs for pair in listed if len(pair.differs) > 1):
        of_these = names.listed([f"{pair.treated} / {pair.control}" for pair in listed if pair.differs == differs])
        notes.append(f"pairs that differ in {', '.join(differs)}, as {pairs.name} says: {of_these}")
    shifted = {name: _sample(name, blocks) for name, blocks in found["ood"].items()}
    shifted |= _mce(found[MCE], algorithms, notes)
    in_distribution = _iid(found["test"], iid, notes)
    shifted |= _families(read_runs, found["test"], iid, notes) if corruptions else {}
    real = names.find_each(real, list(shifted), "--real: there is no shifted set") if real else []
    bias = {algorithm: float(np.mean(values)) for algorithm, values in shape_bias.items() if values}
    line_of = read_controls(controls, algorithms)
    return Given(
        listed, shifted, dict.fromkeys(shifted, in_distribution) if in_distribution else {}, line_of, read_margins(margins, list(shifted)),
        notes, bias, real, provenance,
    )  # fmt: skip


def read_pairs(
    path: Path,
    algorithms: Sequence[str],
    trained_with: Mapping[str, set[str]] = MappingProxyType({}),
    settings_of: Mapping[str, Mapping] = MappingProxyType({}),
) -> list[Pair]:
    """The rows hypothesis,treated,control of a table.

    An optional column `synthetic` says yes for augmentation with synthetic images. `overlaps` names families or corruptions of ImageNet-C
    that the treated algorithm has trained with, in addition to those of trained_with {algorithm: corruptions}, by its configuration.
    `differs` names the tags of a pair that differs in more than one, by settings_of {algorithm: configuration}; see `tags`.
    Raises ValueError, with the line, for what cannot be used.
    """
    table = delimited.read(path)
    columns = {name: names.find(name, table.columns) for name in PAIR_COLUMNS}
    if lost := [name for name, column in columns.items() if column is None]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(table.columns)}")
    if table.empty:
        raise ValueError(f"{path} has no pairs: write a line hypothesis,treated,control for each")
    synthetic, overlaps, differs = (names.find(name, table.columns) for name in ("synthetic", "overlaps", "differs"))
    pairs = []
    for number, row in table.iterrows():
        hypothesis, *both = (names.clean(row[columns[name]]) for name in PAIR_COLUMNS)
        if not hypothesis:
            raise ValueError(f"{path}: line {number} names no hypothesis")
        for role, name in zip(PAIR_COLUMNS[1:], both, strict=True):
            if names.find(name, algorithms) is None:
                raise ValueError(f"{path}: line {number}: no run is of the {role} {names.quoted(name)}; {names.choice(name, algorithms)}")
        treated, control = (str(names.find(name, algorithms)) for name in both)
        if treated == control:
            raise ValueError(f"{path}: line {number}: treated and control are both {names.quoted(treated)}; a pair has two algorithms")
        text = row[synthetic].strip().lower() if synthetic else ""
        if text not in ("", "yes", "no"):
            raise ValueError(f"{path}: line {number}: synthetic is {names.quoted(text)}; write yes, no or nothing")
        try:
            told = families.named(row[overlaps]) if overlaps else set()
            given = tags.named(row[differs]) if differs else ()
            known = treated in settings_of and control in settings_of
            found = tags.check(settings_of[treated], settings_of[control], given) if known else given
        except ValueError as error:
            raise ValueError(f"{path}: line {number}: {error}") from error
        alike = told | (trained_with.get(treated, set()) - trained_with.get(control, set()))
        pairs.append(Pair(hypothesis, treated, control, text == "yes", tuple(sorted(alike)), found))
        if pairs[-1][:3] in [pair[:3] for pair in pairs[:-1]]:
            raise ValueError(f"{path}: line {number} repeats the pair {treated}, {control} of {names.quoted(hypothesis)}: delete it")
    return pairs


def read_controls(wanted: Sequence[str], algorithms: Sequence[str]) -> list[str]:
    """Raises ValueError for fewer than line.FEWEST, and for unknown names."""
    if not wanted:
        return []
    controls = names.find_each(wanted, list(algorithms), "--line: no run is of")
    if len(controls) < line.FEWEST:
        raise ValueError(f"--line names {len(controls)} controls, {names.listed(controls)}: name at least {line.FEWEST}, or leave it out")
    return controls


def read_margins(path: Path | None, datasets: Sequence[str]) -> dict[str, float]:
    """{set: smallest effect of interest in points}: the defaults, replaced by the rows set,margin of a table."""
    margins = {name: study.margin_of(name) for name in datasets}
    if path is None:
        return margins
    table = delimited.read(path)
    columns = {name: names.find(name, table.columns) for name in ("set", "margin")}
    if lost := [name for name, column in columns.items() if column is None]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(table.columns)}")
    values = numbers.read(table[columns["margin"]], "margin", str(path), [], separator=table.attrs["separator"])
    for number, (text, value) in zip(table.index, zip(table[columns["set"]], values, strict=True), strict=True):
        known = names.find(text, datasets)
        if known is None:
            raise ValueError(f"{path}: line {number}: there is no shifted set {names.quoted(text)}; {names.choice(text, datasets)}")
        if not 0 <= value < float("inf"):
            raise ValueError(f"{path}: line {number}: margin {value:g} of {known}; it must be 0 or more, in points")
        margins[known] = float(value)
    return margins


def _epochs(frame: pd.DataFrame, rule: str) -> dict[int, int]:
    """{seed: epoch}; the last also of a seed that diverged."""
    if rule.isdecimal():
        return {int(seed): int(rule) for seed in frame["run"].unique()}
    if rule == "last":
        return {int(seed): int(epoch) for seed, epoch in frame.groupby("run", sort=False)["epoch"].max().items()}
    if rules.parse(rule)[1] or rules.rule_of(rule).cherry_picked:
        raise ValueError(f"--select {rule}: it must be last, the number of an epoch, or a rule that chooses one epoch without test scores")
    chosen = rules.choose(frame, rule)
    return {int(seed): int(epoch) for seed, epoch in zip(chosen["run"], chosen["epoch"], strict=True)}


def _add(found: dict[str, Blocks], path: Path, source: dict, frame: pd.DataFrame, epochs: dict[int, int], notes: list[str]) -> None:
    """Adds the blocks of a run."""
    algorithm, diverged = source["algorithm"], set()
    for name, facts in source["sets"].items():
        if facts["role"] not in ("test", "ood"):
            continue
        rows = {}
        for epoch in sorted(set(epochs.values())):
            trials = metrics.trials(path, name, epoch)
            kept = model_vs_human.kept(name, trials.name)
            counted = slice(None) if kept is None else kept
            for seed, response, alive in zip(trials.seeds, trials.response, trials.alive, strict=True):
                if epochs.get(int(seed)) == epoch:
                    rows[int(seed)] = 100.0 * (response == trials.label)[counted]
                    diverged |= set() if alive else {int(seed)}
        if rows and not next(iter(rows.values())).size:
            notes.append(f"{path}: no image of {name} has a condition that counts: it is left out")
            continue
        if len(rows) < len(epochs):
            raise ValueError(f"{path}: {name} has answers of {len(rows)} of {len(epochs)} seeds at their epochs: run: jaxbed eval {path}")
        block = Block(str(path), trials.name[counted], np.stack([rows[seed] for seed in epochs]), trials.label[counted])
        found[facts["role"]].setdefault(name, {}).setdefault(algorithm, []).append(block)
    if diverged:
        listed = names.listed(sorted(diverged))
        notes.append(f"{path}: seeds {listed} diverged: their answers are those of their last finite state")
    for (dataset, metric), rows_of in frame[frame["metric"].isin(MCE_METRICS)].groupby(["dataset", "metric"], sort=False):
        value = rows_of[rows_of["epoch"] == rows_of["run"].map(epochs)].set_index("run")["value"]
        if set(epochs) <= set(value.index):
            of_seeds = Block(str(path), np.array([]), 100 - value[list(epochs)].to_numpy()[:, None])
            block = _corrupted(path, str(dataset), epochs, value) or of_seeds
            found[MCE].setdefault(f"{metric} of {dataset}", {}).setdefault(algorithm, []).append(block)


def _corrupted(path: Path, dataset: str, epochs: dict[int, int], value: pd.Series) -> Block | None:
    """What each image contributes to 100 - mCE, a mean over images as AlexNet's errors are constants. None without all answers."""
    from jaxbed.evaluation.answers import read_answers
    from jaxbed.measures import corruption_error
    from jaxbed.measures.table import FOLDER

    folder = path / FOLDER / dataset
    cells = [folder / f"{name}_{severity}" for name in corruption_error.MAIN for severity in range(1, 6)]
    if not (path / "responses" / dataset / "images.csv").is_file() or not all(cell.is_dir() for cell in cells):
        return None
    rows = []
    for seed, epoch in epochs.items():
        trials, wrong = metrics.trials(path, dataset, epoch), []
        for cell in cells:
            stored = read_answers(cell / f"{epoch}.npz", len(trials.label), f"run: jaxbed measure {path} --measures imagenet_c")
            if seed not in (there := stored["seeds"].tolist()):
                return None
            wrong.append(stored["response"][there.index(seed)] != trials.label)
        of_corruption = np.reshape(wrong, (len(corruption_error.MAIN), 5, -1)).mean(1)
        alexnet = np.array([corruption_error.ALEXNET[name] for name in corruption_error.MAIN])
        rows.append(100 - 100 * (of_corruption / alexnet[:, None]).mean(0))
    agrees = np.allclose(np.mean(rows, 1), 100 - value[list(epochs)], atol=1e-6)
    return Block(str(path), trials.name, np.stack(rows)) if agrees else None  # else measures.csv is about other answers


def _families(given: Sequence[families.Run], tests: Blocks, iid: str, notes: list[str]) -> dict[str, Sampled]:
    """{family: scores} of the corrupted in-distribution set."""
    if not tests:
        raise ValueError("--corruptions: no set has the role test, which corruptions would change: leave it out")
    dataset = str(names.find(iid, tests)) if iid else next(iter(tests))
    found: dict[str, Sampled] = {}
    for name, of_runs in families.scores(given, dataset, notes).items():
        blocks: dict[str, list[Block]] = {}
        for run, images, right in of_runs:
            blocks.setdefault(run.algorithm, []).append(Block(str(run.path), images, right))
        found[name] = _sample(name, blocks)
    return found


def _sample(name: str, blocks: dict[str, list[Block]]) -> Sampled:
    """Of the images that all runs share. Raises ValueError where they share none."""
    every = [block for of_algorithm in blocks.values() for block in of_algorithm]
    if any(not len(block.image) for block in every):
        seeds = {algorithm: np.concatenate([block.scores.mean(1, keepdims=True) for block in each]) for algorithm, each in blocks.items()}
        return resampling.sample(name, seeds, has_images=False)
    shared, label = pd.Index(every[0].image), every[0].label
    if any(not np.array_equal(block.image, every[0].image) for block in every):
        for block in every:
            if not (images := pd.Index(block.image)).is_unique:
                repeated = names.quoted(images[images.duplicated()][0])
                raise ValueError(f"{block.source}: {name} has several images named {repeated}, so runs cannot be matched: rename them")
            if not len(both := shared[shared.isin(images)]):
                raise ValueError(
                    f"{every[0].source} and {block.source} have no common image of {name}, e.g. {names.quoted(shared[0])} and "
                    f"{names.quoted(images[0])}: evaluate all runs on the same images"
                )
            shared = both
        label = None if label is None else label[pd.Index(every[0].image).get_indexer(shared)]
        aligned = {
            algorithm: np.concatenate([block.scores[:, pd.Index(block.image).get_indexer(shared)] for block in each])
            for algorithm, each in blocks.items()
        }
    else:
        aligned = {algorithm: np.concatenate([block.scores for block in each]) for algorithm, each in blocks.items()}
    return resampling.sample(name, aligned, cluster=label if name.startswith(BY_CLASS) else None)


def _mce(found: Blocks, algorithms: list[str], notes: list[str]) -> dict[str, Sampled]:
    """{MCE: scores 100 - mCE} of the first set on which all algorithms have it, published files first."""
    whole = sorted((name for name, blocks in found.items() if set(algorithms) <= set(blocks)), key=lambda name: name.startswith("mce_jax"))
    if found and not whole:
        lacking = [name for name in algorithms if name not in next(iter(found.values()))]
        notes.append(f"mCE is left out: {names.listed(lacking)} lack it at the epochs that count; run: jaxbed measure WORKDIR")
    if whole:
        notes.append(f"mCE is {whole[0]}; its score is 100 - mCE")
    return {MCE: _sample(MCE, found[whole[0]])} if whole else {}


def _iid(found: Blocks, wanted: str, notes: list[str]) -> Sampled | None:
    if wanted and names.find(wanted, found) is None:
        raise ValueError(f"--iid {wanted}: there is no set of role test with this name; {names.choice(wanted, found)}")
    if len(found) > 1 and not wanted:
        raise ValueError(f"there are several in-distribution sets, {names.listed(found)}: choose one with --iid")
    if not found:
        notes.append("no set has the role test: there are no effective effects")
        return None
    name = str(names.find(wanted, found)) if wanted else next(iter(found))
    return _sample(name, found[name])
