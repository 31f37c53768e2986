"""The command `jaxbed`: train, eval, measure, sweep, launch, stats, correlate, consistency, evidence. Each imports only what it needs."""

import argparse
import dataclasses
import pathlib
import sys
from typing import NoReturn

from jaxbed.system import ending

USAGE = """usage: jaxbed COMMAND ...

  train --config=METHOD[:DATA] [--workdir=DIR] [--config.NAME=VALUE ...]   train, evaluate, print scores (= python -m jaxbed.main)
  eval WORKDIR [--watch] [--allow-module NAME ...]                         evaluate the epochs that have no answers yet
  measure WORKDIR... [--measures spectral,critical_band]                   what networks lean on (jaxbed measure --help)
  sweep --config=METHOD[:DATA] --grid FIELD=VALUE,VALUE ...                tune by validation, then train afresh (jaxbed sweep --help)
  launch --processes N -- python -m jaxbed.main ...                        several processes of one run on this machine
  stats WORKDIR... | SCORES.csv                                            compare algorithms (jaxbed stats --help)
  correlate TABLE.csv...                                                   biases of models and how they generalise (... --help)
  consistency PATH...                                                      do networks and humans err on the same images (... --help)
  evidence RUN... --pairs PAIRS.csv                                        which hypotheses about shift do answers support (... --help)
"""


def main() -> int:
    command, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if command in ("train", "sweep"):
        sys.path.insert(0, "")  # as `python -m` does: configs import their neighbours. The others read what strangers may have written
    if command == "train":
        from jaxbed import main as whole

        return ending.of(lambda: whole.main(rest))
    if command == "eval":
        return evaluate(rest)
    if command == "measure":
        from jaxbed.measures import main as measures

        return measures.main(rest)
    if command == "sweep":
        from jaxbed.tuning import sweep

        return sweep.main(rest)
    if command == "stats":
        from jaxbed.stats import main as statistics

        return statistics.main(rest)
    if command == "correlate":
        from jaxbed.stats.correlations import main as correlations

        return correlations.main(rest)
    if command == "consistency":
        from jaxbed.stats.consistency import main as consistency

        return consistency.main(rest)
    if command == "evidence":
        from jaxbed.stats.evidence import main as evidence

        return evidence.main(rest)
    if command == "launch":
        from jaxbed.system import starter

        return ending.of(lambda: starter.main(rest))
    if command in ("-h", "--help"):
        print(USAGE)
        return 0
    if command:
        known = "train, eval, measure, sweep, launch, stats, correlate, consistency and evidence"
        ending.tell("jaxbed", f"{command!r} is not a command; there are {known}, see jaxbed --help")
    else:
        print(USAGE, file=sys.stderr)
    return 2


def evaluate(argv: list[str]) -> int:
    """Runs `jaxbed eval` with the given arguments; returns the exit code."""
    return ending.of(lambda: _evaluate(argv))


def _evaluate(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="jaxbed eval", description="Evaluate the epochs of a run that have no answers yet.")
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--watch", action="store_true", help="wait for further epochs until the last is done")
    allowed = "module of your own that the run's classes are from; it is imported, and found on the Python path. May be repeated"
    parser.add_argument("--allow-module", action="append", default=[], metavar="NAME", help=allowed)
    from jaxbed.system import processes

    arguments = parser.parse_args(processes.join(argv))
    with processes.together():
        return _answer(arguments)


def _answer(arguments: argparse.Namespace) -> int:
    from jaxbed import config, parallel

    cfg = config.load(arguments.workdir, arguments.allow_module)
    from jaxbed.evaluation import evaluate
    from jaxbed.training import plan
    from jaxbed.training.log import Log

    parallel.keep_compilations()
    parallel.use_cores(cfg.seeds, cfg.mesh)
    _, last, points, workdir = plan.saved_job(cfg, arguments.workdir)
    fitted, columns = dataclasses.replace(last, mesh=parallel.fitting(last.mesh)), plan.example_columns(cfg, points[0].source)
    status = evaluate.evaluate(fitted, points, workdir, Log(workdir), arguments.watch, columns)
    return 128 + status if status else 0


def command() -> NoReturn:
    """The console's `jaxbed`."""
    ending.process(main)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder that `python -m` was called in
    command()
