"""The whole protocol in one command: train, evaluate every epoch on every set, print the scores.

python -m jaxbed.main --config=configs/sagnet.py [--workdir=DIR] [--config.seeds=10 --config.optim.lr=0.05 ...]
"""

import contextlib
import pathlib
import sys
from collections.abc import Iterator

from absl import app, flags
from ml_collections import config_flags

from jaxbed import config

CONFIG = config_flags.DEFINE_config_file(
    "config", help_string="Python file with get_config(); FILE.py:DATASET picks the data set.", lock_config=True
)
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run is kept. Default: runs/<config file>-<data set>. The same command resumes.")


@contextlib.contextmanager
def named_fields(argv: list[str]) -> Iterator[None]:
    """Within it, parsing a command line with a field that the configuration lacks raises ValueError, which names those that it has.

    A configuration finds modules beside it and beside its folder (`configs.common`), wherever the command is called.
    """
    for word in argv:
        if word.startswith("--config=") and ".py" in word:
            folder = pathlib.Path(word.removeprefix("--config=")).absolute().parent
            sys.path += [str(folder), str(folder.parent)]
    try:
        yield
    except KeyError:  # ml_collections'
        values, alone = flags.FlagValues(), [word for word in argv if not word.startswith("--config.")]
        found = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=alone)
        values(alone, known_only=True)
        for word in argv:
            if word.startswith("--config."):
                config.look_up(found.value, word.removeprefix("--config.").partition("=")[0], word)
        raise


def parse(argv: list[str]) -> list[str]:
    """The command line's flags; returns the other words. What cannot be is told, and ends the program."""
    try:
        with named_fields(argv):
            return app.parse_flags_with_usage(argv)
    except ValueError as error:
        print(f"jaxbed: {error}", file=sys.stderr)
        sys.exit(2)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected {' '.join(argv[1:])}: settings are given as --config.NAME=VALUE")
    if CONFIG.value is None:
        raise app.UsageError("--config=FILE.py is missing, for example --config=configs/erm.py")
    from jaxbed import parallel

    try:
        parallel.use_cores(CONFIG.value.seeds, CONFIG.value.mesh)
        sys.exit(run(CONFIG.value, pathlib.Path(WORKDIR.value or default_workdir(CONFIG.value))))
    except (ValueError, OSError) as error:
        print(f"jaxbed: {error}", file=sys.stderr)
        sys.exit(2)


def default_workdir(cfg: config.Train) -> str:
    stem = pathlib.Path(config_flags.get_config_filename(flags.FLAGS["config"]).split(":")[0]).stem
    return f"runs/{stem}-{type(cfg.data).__module__.rpartition('.')[2]}"


def run(cfg: config.Train, workdir: pathlib.Path) -> int:
    """Train, evaluate, print. Returns the exit code: 0, 128 + the signal that stopped it (the same call then goes on), or 2."""
    from jaxbed import evaluate, lock, parallel, throwaway, train, variants
    from jaxbed.log import Log

    parallel.keep_compilations()
    config.check(cfg)
    found = variants.open_all(cfg)
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
        log.say("only validation images were evaluated: no scores to compare")
        return 0
    from jaxbed.stats import main as statistics

    for variant in found:
        if variant.name:
            log.say(f"\n{workdir / variant.name}")
        select = [] if cfg.epochs else ["--select", "last"]  # one epoch, and perhaps no set to select by
        status = statistics.main([str(workdir / variant.name), "--missing", "drop", *select]) or status  # names the seeds it leaves out
    return status


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
