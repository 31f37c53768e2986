"""The whole protocol in one command: train, evaluate every epoch on every set, print the scores.

python -m jaxbed.main --config=configs/sagnet.py [--workdir=DIR] [--config.seeds=10 --config.optim.lr=0.05 ...]
"""

import sys
from typing import TYPE_CHECKING

from jaxbed.system import ending

if TYPE_CHECKING:
    import pathlib

    from jaxbed.config import Train


def main(words: list[str]) -> int:
    """Does what the words of a command line ask for; returns the exit code."""
    from jaxbed import command_line, parallel
    from jaxbed.tuning import launch

    launch.follow()
    asked = command_line.parse(words)
    if asked is None:
        return 0
    parallel.use_cores(asked.cfg.seeds, asked.cfg.mesh)
    return run(asked.cfg, asked.workdir)


def run(cfg: "Train", workdir: "pathlib.Path") -> int:
    """Train, evaluate, print. Returns the exit code: 0, 128 + the signal that stopped it (the same call then goes on), or 2."""
    from jaxbed import config, parallel
    from jaxbed.data.source import require_bias
    from jaxbed.evaluation import evaluate, metrics
    from jaxbed.training import lock, throwaway, train, variants
    from jaxbed.training.log import Log
    from jaxbed.tuning import launch

    parallel.keep_compilations()
    config.check(cfg)
    found = variants.open_all(cfg)
    for variant in found:
        require_bias(variant.cfg.name, variant.cfg.method, variant.source)
    train.check(found)
    parallel.Seeds(cfg.seeds, cfg.first_seed, cfg.mesh, len(found), cfg.batch_size).check_batch(cfg.batch_size)
    for variant in found:
        evaluate.chosen(cfg, variant.source)  # a wrong name shows before the training, not after
    with lock.held(workdir):
        config.claim(cfg, workdir)  # nothing is written before all that can be refused was looked at
        log = Log(workdir)
        log.header(cfg, found)
        log.data(found)
        stages = throwaway.run, train.train, evaluate.evaluate
        status = next((status for stage in stages if (status := stage(cfg, found, workdir, log))), 0)
    if status:
        log.say(f"stopped by signal {status}; the same command goes on from here")
        return 128 + status
    if all(split.role == "val" for split in evaluate.chosen(cfg, found[0].source).values()):
        for variant in found:
            log.say(f"{variant.name} {metrics.validation(workdir / variant.name)}".strip())
        log.say("only validation images were evaluated, which also select epochs: no scores to compare. Name a test or OOD set for them")
        return 0
    from jaxbed.stats import main as statistics

    alive = launch.alive(workdir)
    for i, variant in enumerate(found):
        if variant.name:
            log.say(f"\n{workdir / variant.name}")
        if alive and not any(alive[i * cfg.seeds : (i + 1) * cfg.seeds]):
            log.say("every seed became non-finite: no scores")
            continue
        select = [] if cfg.epochs else ["--select", "last"]  # one epoch, and perhaps no set to select by
        status = statistics.main([str(workdir / variant.name), "--missing", "drop", *select]) or status  # names the seeds it leaves out
    return status


if __name__ == "__main__":
    ending.process(lambda: main(sys.argv[1:]))
