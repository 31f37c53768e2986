r"""`jaxbed sweep`: hyper-parameters chosen as Lee et al. (2022) do, the learning rate first, then the rest, by validation AC score.

    jaxbed sweep --config=lff:colored_mnist --config.data.dir=DIR [--config.NAME=VALUE ...] \
        --grid optim.lr=1e-1,1e-2,1e-3 --grid method.q=0.5,0.7 [--seeds 3] [--trials 5] [--criterion ac_score] [--workdir DIR]

Every --grid is a stage. Its best value is kept for the stages after it; fields of later stages are as in the config. Fields of one --grid,
separated by spaces, are tried in all combinations. What can vary between the members of one array (see `members`) trains as one, all
else as separate runs: here, or with --launcher submitit on a Slurm cluster. Ratios that --config.grid names are tuned each by itself.

A setting's score is the mean over seeds of the criterion on the validation split, each seed at the epoch that the same criterion selects.
Of equal scores the one with the higher aligned accuracy at these epochs is chosen, then the earlier in the grid; never a setting with a
seed that became non-finite. Tuning does not evaluate test images. The trials have seeds that tuning has not seen.

    WORKDIR/1-optim.lr/...      the runs of each stage; run the same command again to resume
    WORKDIR/sweep.csv           every setting with its score
    WORKDIR/chosen.json         {field: value}
    WORKDIR/trials              the final run

Where ratios are swept, these lie in WORKDIR/conflicting_percent=1/ and so on.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxbed.stats import tables
from jaxbed.stats.reading import records
from jaxbed.stats.selection import criteria, rules
from jaxbed.system import ending, files
from jaxbed.training import lock
from jaxbed.tuning import grid, launch
from jaxbed.values import with_field

if TYPE_CHECKING:
    from jaxbed.config import Train
    from jaxbed.data.source import Source

RULES = tuple(rule.name for rule in rules.RULES if rule.criterion and not rule.cherry_picked)  # that select epochs by validation


class Sweep(NamedTuple):
    """What was asked for."""

    stages: list[grid.Stage]
    seeds: int
    trials: int
    criterion: str
    workdir: pathlib.Path
    launch: launch.Launch


@dataclasses.dataclass
class Tuning:
    """What is tuned by itself: the data of one ratio."""

    folder: pathlib.Path
    words: list[str]  # of the command line of each of its runs
    validation: str  # the set by whose answers settings are chosen
    chosen: grid.Setting = dataclasses.field(default_factory=dict)  # so far
    rows: list[dict] = dataclasses.field(default_factory=list)  # of sweep.csv


def main(argv: Sequence[str]) -> int:
    """Runs `jaxbed sweep` with the given arguments; returns the exit code."""
    return ending.of(lambda: run(argv))


def run(argv: Sequence[str]) -> int:
    """The same; raises what is wrong."""
    from jaxbed import command_line

    asked, words = parse(argv)
    given = command_line.parse([*words, *([f"--workdir={asked.workdir}"] if asked.workdir else [])])
    assert given  # help was asked for and given before
    workdir = asked.workdir or given.workdir.with_name(f"{given.workdir.name}-sweep")
    stages = [grid.parse(texts, given.cfg) for texts in asked.grid]
    launcher = launch.choose(asked.launcher, asked.slurm, workdir / "submitit", asked.processes)
    return sweep(Sweep(stages, asked.seeds, asked.trials, asked.criterion, workdir, launcher), given.cfg, words)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the words that are handed to every run."""
    parser = argparse.ArgumentParser(
        prog="jaxbed sweep", allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--grid", nargs="+", action="append", required=True, metavar="FIELD=VALUE,VALUE", help="a stage; repeat for the next")
    add("--seeds", type=int, default=3, help="of each setting (default 3): first_seed of the config and those after it")
    add("--trials", type=int, default=5, help="seeds of the final run (default 5), the next after those of tuning; 0: only choose")
    add("--criterion", default="ac_score", metavar="RULE", help=f"{', '.join(RULES)} (default ac_score)")
    add("--workdir", type=pathlib.Path, help="default: as a run's, with -sweep behind it")
    add("--launcher", default="local", choices=launch.LAUNCHERS, help="local: one run after another (default); submitit: a stage at once")
    add("--slurm", action="append", default=[], metavar="NAME=VALUE", help="parameter of submitit, e.g. slurm_partition=gpu; repeatable")
    add("--processes", type=int, default=1, metavar="N", help="of each run, on this machine (default 1): see jaxbed launch")
    asked, words = parser.parse_known_args(list(argv))
    if strange := [word for word in words if not re.match(r"--config[.=]", word)]:
        raise ValueError(f"{strange[0]} is unknown: settings of all runs are given as --config=METHOD and --config.NAME=VALUE")
    if given := [word for word in words if word.startswith("--config.seeds")]:
        raise ValueError(f"{given[0]}: seeds to tune on are given as --seeds, those of the final run as --trials")
    if asked.seeds < 1 or asked.trials < 0:
        raise ValueError(f"--seeds {asked.seeds} --trials {asked.trials}: at least one seed to tune on, and no negative number of trials")
    if rules.parse(asked.criterion)[0] not in RULES:
        raise ValueError(f"--criterion {asked.criterion} is not a score on a validation split: allowed are {', '.join(RULES)}")
    return asked, words


def sweep(asked: Sweep, cfg: "Train", words: list[str]) -> int:
    """All stages, then the trials. Returns the exit code."""
    lock.check_place(asked.workdir)
    tunings, riding = prepare(asked, cfg, words)
    with lock.held(asked.workdir):
        tune(asked, cfg, tunings, riding)
        return try_out(asked, cfg, tunings) if asked.trials else 0


def tune(asked: Sweep, cfg: "Train", tunings: list[Tuning], riding: set[str]) -> None:
    """Chooses the settings of every tuning, stage by stage, and writes chosen.json."""
    first = cfg.first_seed + asked.seeds
    final = f"trials on seeds {first}-{first + asked.trials - 1}" if asked.trials else "no trials"
    print(f"tuning on seeds {cfg.first_seed}-{first - 1} by validation {asked.criterion}, {final}", flush=True)
    for number, stage in enumerate(asked.stages, 1):
        plans = [plan(tuning, number, stage, riding, asked.seeds, cfg.first_seed) for tuning in tunings]
        asked.launch({folder: run for runs, _ in plans for folder, run in runs.items()})
        for tuning, (_, settings) in zip(tunings, plans, strict=True):
            tuning.chosen |= judge(tuning, number, settings, asked)
    for tuning in tunings:
        values = {field: grid.value(word) for field, word in tuning.chosen.items()}
        files.write(tuning.folder / "chosen.json", json.dumps(values, indent=2) + "\n")
        print(f"\nchosen in {tuning.folder}: {grid.write(tuning.chosen)}", flush=True)


def try_out(asked: Sweep, cfg: "Train", tunings: list[Tuning]) -> int:
    """The final runs and their scores. Returns the exit code."""
    finals = {tuning.folder / "trials": tuning for tuning in tunings}
    first = cfg.first_seed + asked.seeds
    asked.launch({at: command(tuning, tuning.chosen, at, asked.trials, first) for at, tuning in finals.items()})
    from jaxbed.stats import main as statistics

    status = 0
    for at in finals:
        print(f"\n{at}, epochs selected by {asked.criterion}")
        status = statistics.main([str(at), "--missing", "drop", "--select", asked.criterion]) or status
    return status


def prepare(asked: Sweep, cfg: "Train", words: list[str]) -> tuple[list[Tuning], set[str]]:
    """The tunings, and the fields that can vary within one array. ValueError for what no run could do, before any is started."""
    import jax

    from jaxbed import config
    from jaxbed.training import plan as runs
    from jaxbed.training import program

    config.check(cfg)
    fields = [field for stage in asked.stages for field in stage]
    if twice := [field for field in fields if fields.count(field) > 1]:
        raise ValueError(f"--grid {twice[0]} is there twice: write all its values in one")
    paths = [entry.partition("=")[0] for entry in cfg.grid]
    if other := [path for path in paths if not path.startswith("data.")]:
        raise ValueError(f"grid names {other[0]}: what is tuned is given as --grid {other[0]}=VALUE,VALUE")
    jax.config.update("jax_platforms", "cpu")  # nothing is computed here, and the runs need all of the accelerator
    tunings, opened = [], runs.job(cfg, asked.workdir).points
    for stage in asked.stages:
        for values in itertools.product(*stage.values()):
            tried = cfg
            for field, word in zip(stage, values, strict=True):
                tried = with_field(tried, field, config.from_word(cfg, field, word, f"--grid {field}"))
            runs.check([opened[0]._replace(cfg=tried, given=tried)])
    for name, stage_cfg, source, _, given in opened:
        validation = check_criterion(asked.criterion, stage_cfg, source)
        varied = [f"--config.{path}={getattr(given.data, path.removeprefix('data.'))}" for path in paths]
        tunings.append(Tuning(asked.workdir / name, [*words, *varied], validation))
    return tunings, {f"{part}.{name}" for part in ("optim", "method") for name in program.hparams_of(stage_cfg, source)}


def check_criterion(criterion: str, cfg: "Train", source: "Source") -> str:
    """The name of the validation split. Raises ValueError where it lacks what the criterion needs, before hours of training."""
    from jaxbed.evaluation import evaluate

    splits = {name: split for name, (split, role, *_) in evaluate.chosen(cfg, source).items() if role == "val"}
    if len(splits) != 1:
        raise ValueError(f"{source.name} is evaluated on {len(splits)} validation splits, and settings are chosen on one: see eval.sets")
    ((name, split),) = splits.items()
    label, bias = split.class_of_image, split.bias
    aligned, conflicting = (((bias >= 0) & same).sum() for same in (bias == label, bias != label))
    if criterion != "best_val" and not (aligned and conflicting):
        counts = f"{source.name} has {aligned} and {conflicting}"
        raise ValueError(f"--criterion {criterion} needs aligned and conflicting validation images, {counts}: take --criterion best_val")
    return name


def plan(tuning: Tuning, number: int, stage: grid.Stage, riding: set[str], seeds: int, first_seed: int) -> tuple[launch.Runs, dict]:
    """(runs, {folder of a setting's answers: setting}) of a stage, in the order of the grid."""
    runs, settings = {}, {}
    together = {field: words for field, words in stage.items() if field in riding}
    entries = tuple(f"{field}={','.join(words)}" for field, words in together.items())
    for words in itertools.product(*stage.values()):
        setting = dict(zip(stage, words, strict=True))
        apart = {field: word for field, word in setting.items() if field not in together}
        at = tuning.folder / f"{number}-{'-'.join(stage)}" / grid.label(apart)
        runs[at] = command(tuning, tuning.chosen | apart, at, seeds, first_seed, grid=entries, **{"eval.sets": (tuning.validation,)})
        settings[at / grid.label({field: setting[field] for field in together})] = setting
    return runs, settings


def command(tuning: Tuning, setting: grid.Setting, at: pathlib.Path, seeds: int, first_seed: int, **more: tuple) -> list[str]:
    """The arguments of a run's `jaxbed train`."""
    fields = {**setting, "seeds": seeds, "first_seed": first_seed, "grid": (), **more}
    kept = [word for word in tuning.words if word.partition("=")[0].removeprefix("--config.") not in fields]  # or tuples would be joined
    return [*kept, *(f"--config.{field}={word}" for field, word in fields.items()), f"--workdir={at}"]


def judge(tuning: Tuning, number: int, settings: dict[pathlib.Path, grid.Setting], asked: Sweep) -> grid.Setting:
    """The best setting of a stage; prints how all did, and adds them to sweep.csv."""
    import pandas as pd

    rows: list[dict[str, Any]] = [{"stage": number, "setting": grid.write(setting), **score(at, asked)} for at, setting in settings.items()]
    finite = [row for row in rows if not row["non_finite"]]
    best = max(finite, key=lambda row: (row["mean"], row["aligned"]), default=None)  # the first of equal ones
    print(f"\nstage {number} in {tuning.folder}: validation {asked.criterion}, %, mean ± std of seeds")
    for row in rows:
        row["tied"] = sum(row["mean"] == other["mean"] for other in finite)  # settings with this score
        row["chosen"] = "yes" if row is best else "no"
        notes = [f"{row['non_finite']} of {asked.seeds} seeds became non-finite"] if row["non_finite"] else []
        notes += [f"one of {row['tied']} tied"] if row["tied"] > 1 else []
        notes += ["chosen"] if row is best else []
        print(f"  {row['setting']}  {100 * row['mean']:.1f} ± {100 * row['std']:.1f}  {', '.join(notes)}".rstrip(), flush=True)
    tuning.rows += rows
    files.write(tuning.folder / "sweep.csv", tables.csv_text(pd.DataFrame(tuning.rows)))
    if best is None:
        raise ValueError(f"stage {number}: every setting has a seed that became non-finite; try lower values of optim.lr")
    return list(settings.values())[rows.index(best)]


def score(folder: pathlib.Path, asked: Sweep) -> dict[str, float]:
    """Mean and std (ddof 1) of the finite seeds' scores on the validation split, and their mean aligned accuracy there."""
    nothing = {"seeds": 0, "mean": math.nan, "std": math.nan, "aligned": math.nan}
    if launch.died(folder) or launch.died(folder.parent):  # alone, or with all of its array: nothing was evaluated
        return {**nothing, "non_finite": asked.seeds}
    frame = records.load([folder]).query("role == 'val'")
    lost = frame.loc[frame["status"] != "ok", "run"].unique()
    frame = frame[~frame["run"].isin(lost)]
    if frame.empty:
        return {**nothing, "non_finite": len(lost)}
    chosen = rules.choose(frame, asked.criterion)
    aligned = frame[frame["metric"] == "aligned"].merge(chosen[["run", "epoch"]], on=["run", "epoch"])["value"]
    means = {"mean": chosen["score"].mean(), "aligned": aligned.mean() if len(aligned) else 0.0}
    rounded = {name: round(mean, criteria.DECIMALS) for name, mean in means.items()}  # as criteria do, for ties
    return {**nothing, "seeds": len(chosen), **rounded, "std": chosen["score"].std(ddof=1), "non_finite": len(lost)}
