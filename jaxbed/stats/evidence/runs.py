"""Reads what `jaxbed evidence` compares: workdirs, the table of pairs and the table of margins."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxbed.data import deepfashion
from jaxbed.stats import names
from jaxbed.stats.evidence import blocks, chosen, families, line, scores, study, tags
from jaxbed.stats.evidence.blocks import Blocks
from jaxbed.stats.evidence.study import MCE, Given, Pair
from jaxbed.stats.reading import delimited, numbers, workdirs
from jaxbed.stats.selection import rules

SHAPE_BIAS = "shape_bias"
PAIR_COLUMNS = ("hypothesis", "treated", "control")
MORE_COLUMNS = ("synthetic", "overlaps", "differs")


class Found(NamedTuple):
    """What runs contribute, before anything is resampled."""

    of_sets: dict[str, Blocks]  # {"test" or "ood": blocks}
    mce: Blocks
    left_out: dict[str, dict[str, list[str]]]  # {"test" or "ood": {set: why runs cannot be scored on it}}

    def role(self, role: str) -> tuple[Blocks, dict[str, str]]:
        """(sets that can be scored, {set: why it cannot})."""
        why = {name: "; ".join(dict.fromkeys(reasons)) for name, reasons in self.left_out[role].items()}
        return {name: of_set for name, of_set in self.of_sets[role].items() if name not in why}, why


def read(
    paths: Sequence[Path],
    pairs: Path,
    controls: Sequence[str] = (),
    margins: Path | None = None,
    rule: str = "last",
    iid: str = "",
    real: Sequence[str] = (),
    corruptions: bool = False,
    sets: Sequence[str] = (),
    rename: Sequence[str] = (),
) -> Given:
    """Scores of all runs, resampled.

    rule: which epoch of each seed counts; iid: SET,SET:SHIFTED,... as of `chosen.parse`, needed if there are several in-distribution sets;
    corruptions: the families of ImageNet-C's corruptions of that set are shifted sets too; sets: the shifted sets that count, by default
    all but other forms of one (`chosen.OTHER_FORMS`); rename: WORKDIR=NAME, the name of the algorithm of a workdir.

    Raises ValueError or FileNotFoundError, with the cure, for what cannot be used.
    """
    notes: list[str] = []
    new = names.renames(rename, {**dict.fromkeys(names.KINDS, ()), "workdir": [form for path in paths for form in workdirs.forms(path)]})
    found = Found({"test": {}, "ood": {}}, {}, {"test": {}, "ood": {}})
    sources: list[dict] = []
    seeds: dict[tuple[str, int], Path] = {}
    read_runs: list[families.Run] = []
    trained_with: dict[str, set[str]] = {}
    shape_bias: dict[str, list[float]] = {}
    provenance: dict[str, list[str]] = {}
    for path in paths:
        frame, source = workdirs.read(path)
        given = [new["workdir"][form] for form in workdirs.forms(path) if form in new["workdir"]]
        source["algorithm"] = algorithm = (given or [source["algorithm"]])[0]
        notes += source["notes"]
        epochs = _epochs(frame, rule)
        for seed in epochs:
            if (algorithm, seed) in seeds:
                cure = f"leave one out; or, if they are two algorithms, --rename {names.word(str(path), 'NAME')}"
                raise ValueError(f"seed {seed} of {algorithm} is in both {seeds[algorithm, seed]} and {path}: {cure}")
            seeds[algorithm, seed] = path
        if lost := sorted({*frame["run"].astype(int)} - set(epochs)):
            notes.append(f"{path}: seeds {names.listed(lost)} have no epoch that --select {rule} can choose and are left out")
        _add(found, path, source, frame, epochs, notes)
        of_shape = frame[(frame["epoch"] == frame["run"].map(epochs)) & (frame["metric"] == SHAPE_BIAS)]
        shape_bias.setdefault(algorithm, []).extend(of_shape.groupby("run")["value"].mean())
        sources.append(source)
        read_runs.append(families.Run(algorithm, path, epochs))
        trained_with.setdefault(algorithm, set()).update(families.trained_with(source["settings"]))
        provenance.setdefault(algorithm, []).extend(f"{path}: seed {seed}, epoch {epoch}" for seed, epoch in epochs.items())
    workdirs.refuse_other_settings(sources)
    _whole(found, Counter(source["algorithm"] for source in sources))
    algorithms = list(dict.fromkeys(source["algorithm"] for source in sources))
    fingerprints = {source["algorithm"]: {tags.TRAINING_SET: source["data"].get(tags.TRAINING_SET)} for source in sources}
    settings_of = {source["algorithm"]: source["settings"] | fingerprints[source["algorithm"]] for source in sources if source["settings"]}
    listed = read_pairs(pairs, algorithms, trained_with, settings_of)
    for differs in dict.fromkeys(pair.differs for pair in listed if len(pair.differs) > 1):
        of_these = names.listed([f"{pair.treated} / {pair.control}" for pair in listed if pair.differs == differs])
        notes.append(f"pairs that differ in {', '.join(differs)}, as {pairs.name} says: {of_these}")
    (tests, lost_tests), (shifted, lost_shifted) = found.role("test"), found.role("ood")
    default, of_shifted = chosen.parse(iid, tests, lost_tests)
    about_mce: list[str] = []
    shifted |= {MCE: of_mce} if (of_mce := scores.of_mce(found.mce, algorithms, about_mce)) else {}
    shifted |= _families(read_runs, default, tests, notes) if corruptions else {}
    if sets and MCE not in shifted:
        lost_shifted[MCE] = "not all runs have it at the epochs that count; run: jaxbed measure WORKDIR --measures imagenet_c"
    counted = chosen.counted(shifted, sets, lost_shifted, notes)
    belongs = chosen.in_distribution(default, of_shifted, counted, tests)
    notes += about_mce if MCE in counted or not sets else []
    notes += [f"{name} is left out: {why}" for name, why in lost_tests.items()]
    notes += _about(tests, {name: shifted[name] for name in counted}, belongs)
    drawn = {name: scores.sample(name, shifted[name]) for name in counted}
    drawn_tests = {name: scores.sample(name, tests[name]) for name in dict.fromkeys(belongs.values())}
    bias = {algorithm: float(np.mean(values)) for algorithm, values in shape_bias.items() if values}
    precise = [name for name in shifted if scores.measure(shifted[name]) == blocks.SEVERAL_CLASSES]
    return Given(
        listed, drawn, {name: drawn_tests[test] for name, test in belongs.items()}, read_controls(controls, algorithms),
        {name: margin for name, margin in read_margins(margins, list(shifted), precise).items() if name in counted}, notes, bias,
        names.find_each(real, counted, "--real: there is no shifted set") if real else [], provenance,
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
    columns = _columns(path, table, PAIR_COLUMNS, MORE_COLUMNS)
    if table.empty:
        raise ValueError(f"{path} has no pairs: write a line hypothesis,treated,control for each")
    synthetic, overlaps, differs = (columns[name] for name in MORE_COLUMNS)
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


def _columns(path: Path, table: pd.DataFrame, needed: Sequence[str], more: Sequence[str] = ()) -> dict[str, str | None]:
    """{name: column of the table, None for one of `more` that it lacks}. Raises ValueError for columns that are missing or unknown."""
    columns = {name: names.find(name, table.columns) for name in (*needed, *more)}
    if lost := [name for name in needed if columns[name] is None]:
        raise ValueError(f"{path}: column {', '.join(map(repr, lost))} is missing, found {names.listed(table.columns)}")
    if unknown := [name for name in table.columns if name not in columns.values()]:
        raise ValueError(f"{path}: column {names.quoted(unknown[0])} is not known; {names.choice(unknown[0], columns)}")
    return columns


def read_controls(wanted: Sequence[str], algorithms: Sequence[str]) -> list[str]:
    """Raises ValueError for fewer than line.FEWEST, and for unknown names."""
    if not wanted:
        return []
    controls = names.find_each(wanted, list(algorithms), "--line: no run is of")
    if len(controls) < line.FEWEST:
        raise ValueError(f"--line names {len(controls)} controls, {names.listed(controls)}: name at least {line.FEWEST}, or leave it out")
    return controls


def read_margins(path: Path | None, datasets: Sequence[str], precise: Collection[str] = ()) -> dict[str, float]:
    """{set: smallest effect of interest in points}: the defaults, replaced by the rows set,margin of a table.

    precise: those that are scored by mean average precision.
    """
    margins = {name: study.margin_of(name, name in precise) for name in datasets}
    if path is None:
        return margins
    table = delimited.read(path)
    columns = _columns(path, table, ("set", "margin"))
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


def _add(found: Found, path: Path, source: dict, frame: pd.DataFrame, epochs: Mapping[int, int], notes: list[str]) -> None:
    """Adds the blocks of a run."""
    algorithm, diverged = source["algorithm"], set()
    for name, facts in source["sets"].items():
        if facts["role"] not in found.of_sets:
            continue
        try:
            block, ended = blocks.of_set(path, name, epochs)
        except blocks.LeftOut as reason:
            found.left_out[facts["role"]].setdefault(name, []).append(str(reason))
            continue
        found.of_sets[facts["role"]].setdefault(name, {}).setdefault(algorithm, []).append(block)
        diverged |= ended
    if diverged:
        listed = names.listed(sorted(diverged))
        notes.append(f"{path}: seeds {listed} diverged: their answers are those of their last finite state")
    for name, block in blocks.of_mce(path, frame, epochs).items():
        found.mce.setdefault(name, {}).setdefault(algorithm, []).append(block)


def _whole(found: Found, runs_of: Mapping[str, int]) -> None:
    """Takes out what some of several workdirs of an algorithm lack: its scores would be of other seeds than on other sets."""
    for role, of_sets in found.of_sets.items():
        for name, of_algorithms in of_sets.items():
            for algorithm, each in of_algorithms.items():
                if len(each) < runs_of[algorithm]:
                    reason = f"{len(each)} of {runs_of[algorithm]} workdirs of {algorithm} have it: evaluate all on it, or name no others"
                    found.left_out[role].setdefault(name, []).append(reason)
    for name, of_mce in found.mce.items():
        found.mce[name] = {algorithm: each for algorithm, each in of_mce.items() if len(each) == runs_of[algorithm]}


def _families(given: Sequence[families.Run], default: str, tests: Blocks, notes: list[str]) -> Blocks:
    """{family: blocks} of the corrupted in-distribution set."""
    if not tests:
        raise ValueError("--corruptions: no set has the role test, which corruptions would change: leave it out")
    if not default:
        raise ValueError(f"--corruptions: there are several in-distribution sets, {names.listed(tests)}: choose one with --iid")
    return scores.of_families(given, default, notes)


def _about(tests: Blocks, counted: Blocks, belongs: Mapping[str, str]) -> list[str]:
    """Notes: which in-distribution set belongs to which sets; measures other than accuracy; images that are drawn in place of items."""
    notes = [] if tests else ["no set has the role test: there are no effective effects"]
    for test in dict.fromkeys(belongs.values()) if len({*belongs.values()}) > 1 else ():
        notes.append(f"{test} is the in-distribution set of {', '.join(name for name in belongs if belongs[name] == test)}")
    for measure, words in blocks.IN_WORDS.items():
        if scored := [name for name, of_set in (counted | tests).items() if scores.measure(of_set) == measure]:
            notes.append(f"{', '.join(scored)}: the score is {measure}, {words}")
    if apart := [name for name in deepfashion.SHIFTS if name in counted and not scores.has_items(counted[name])]:
        cure = "make the table again with data_prep/deepfashion_remixed.py, then: jaxbed eval WORKDIR"
        notes.append(f"{', '.join(apart)}: images are drawn and not items, since images.csv has no column pair_id: {cure}")
    return notes
