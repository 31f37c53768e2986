"""The whole protocol in one command: train, evaluate every epoch on every set, print the scores.

python -m jaxbed.main --config=sagnet [--workdir=DIR] [--config.seeds=10 --config.optim.lr=0.05 ...]
"""

import sys
from typing import TYPE_CHECKING

from jaxbed.system import ending

if TYPE_CHECKING:
    import pathlib

    from jaxbed.config import Train
    from jaxbed.training.log import Log
    from jaxbed.training.members import GridPoint


def main(words: list[str]) -> int:
    """Does what the words of a command line ask for; returns the exit code."""
    from jaxbed import command_line, parallel
    from jaxbed.system import processes
    from jaxbed.tuning import launch

    launch.follow()
    words = processes.join(words)
    with processes.together():
        asked = command_line.parse(words)
        if asked is None:
            return 0
        parallel.use_cores(asked.cfg.seeds, asked.cfg.mesh)
        return run(asked.cfg, asked.workdir)


def run(cfg: "Train", workdir: "pathlib.Path") -> int:
    """Train, evaluate, print. Returns the exit code: 0, 128 + the signal that stopped it (the same call then resumes), or 2."""
    from jaxbed import config, parallel
    from jaxbed.evaluation import evaluate
    from jaxbed.system import processes
    from jaxbed.training import curves, lock, plan, pretrained, staged
    from jaxbed.training.log import Log

    parallel.keep_compilations()
    config.check(cfg)
    lock.check_place(workdir)
    curves.check(cfg.curves)
    if not (workdir / "checkpoints").is_dir():  # what has begun resumes
        pretrained.check_there(cfg.init_from)
    planned = plan.jobs(cfg, workdir)
    last, points = planned[-1].cfg, planned[-1].points
    plan.check(points)
    parallel.Seeds(last.seeds, last.first_seed, last.mesh, len(points), last.batch_size).check_batch(last.batch_size)
    for point in points:
        evaluate.chosen(last, point.source)  # a wrong name shows before the training, not after
    processes.check_same(config.to_dict(cfg), "settings")
    ready = staged.rehearse(cfg, planned)
    with lock.held(workdir):
        lock.check_shared(workdir)
        processes.first(lambda: config.claim(cfg, workdir))  # nothing is written before all that can be refused was looked at
        log = Log(workdir)
        log.header(cfg, points)
        log.data(points)
        log.sets(evaluate.chosen(last, points[0].source))
        signal, program = staged.run(cfg, planned, log, ready)
        status = signal or evaluate.evaluate(last, points, workdir, log, program=program)
    if status:
        log.say(f"stopped by signal {status}; run the same command again to resume")
        return 128 + status
    return processes.first(lambda: report(cfg, last, points, workdir, log))


def report(cfg: "Train", last: "Train", points: "list[GridPoint]", workdir: "pathlib.Path", log: "Log") -> int:
    """Prints the scores of a run, `last` being what was trained of its configuration. Returns the exit code of the statistics."""
    from jaxbed.evaluation import answers, metrics
    from jaxbed.stats import main as statistics
    from jaxbed.tuning import launch

    known = answers.read_sets(workdir / points[0].name / "responses" / "sets.json")["sets"]
    if all(facts["role"] == "val" for facts in known.values()):
        for point in points:
            log.say(f"{point.name} {metrics.validation(workdir / point.name)}".strip())
        cure = "" if last.eval.sets else ". Name a test or OOD set for them"
        log.say(f"only validation images were evaluated, which also select epochs: no scores to compare{cure}")
        return 0
    status, alive = 0, launch.alive(workdir)
    for i, point in enumerate(points):
        if point.name:
            log.say(f"\n{workdir / point.name}")
        if alive and not any(alive[i * cfg.seeds : (i + 1) * cfg.seeds]):
            log.say("every seed became non-finite: no scores")
            continue
        select = [] if last.epochs else ["--select", "last"]  # one epoch, and perhaps no set to select by
        status = statistics.main([str(workdir / point.name), "--missing", "drop", *select]) or status  # names the seeds it leaves out
    return status


if __name__ == "__main__":
    ending.process(lambda: main(sys.argv[1:]))
