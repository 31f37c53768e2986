"""Made-up command lines, of real fields and options with values that nobody means: accepted, or refused in one message."""

import dataclasses
import functools
import importlib
import pathlib
from typing import Any

import numpy as np

from attacks.damage import SCORES
from attacks.processes import GIB, JAXBED, ROOT, TRAIN, rude, unrefused
from attacks.runs import World

CONFIGS = ("erm", "jtt", "lff", "sagnet", "biasensemble", "dfr", "groupdro", "mixup", "disent", "infodrop")
NUMBERS = ("0", "-1", "1", "0.5", "-0.5", "1e308", "1e-320", "4294967296", "9" * 30, "nan", "inf", "-inf", "1e", "0x10", "1_000", "٣")
TEXTS = ("", " ", "x", "None", "True", "maybe", "'", '"', "(", ")", "[1", "{}", "lambda: 1", "__import__('os')", "a,b", "é", "%s", "-")
TEXTS += ("\x1b[31m",)
TUPLES = ("()", "(1,)", "(0,)", "(-3,)", "('a',)", "(1,2", "1,2", "(nan,)", "((1,),)", "(1e400,)", "[8]", "(4294967296,)", "('x')")
VALUES = NUMBERS + TEXTS + TUPLES
SWEPT = ("optim.lr=0.1,0.01", "optim.lr=0.1,0.1", "optim.lr=", "optim.lr", "optim.lr=x,y", "optim.lr=nan,1", "optim.momentum=-1,2")
SWEPT += ("optim.rule='sgd','adam'", "data.texture_correlation=0.5,0.9", "data.train_images=64,128", "method.q=0.1,0.2", "net.depth=10,18")
SWEPT += ("lr=1,2", "=", "a=b=c")
SWEEPS = ("0.5", "(0.5,)", "x", "('", *(f'("{entry}",)' for entry in SWEPT))
FILES = ("erm.py:shaeps", "erm.py:colored_mnist", "erm.py:shapes:5", "erm.py:", "erm.py:shapes:x", "erm.py::", "erm", "erm.py,lff.py")
FILES += ("emr.py", "", ".", "scores.csv", "/dev/null", "empty.py", "broken.py", "dictionary.py", "lacking.py", "lines.txt", "binary.py")
OPTIONS = {
    "--alpha": NUMBERS,
    "--rope": NUMBERS,
    "--permutations": (*NUMBERS, "100"),
    "--seed": NUMBERS,
    "--baseline": ("a", "A", "zzz", "", "a,b", "'"),
    "--select": ("best_val", "last", "last_0", "oracle", "epoch_3", "last_-1", "", "best", "last_nan"),
    "--ties": ("mean", "first", "x", ""),
    "--missing": ("drop", "fail", "floor", "x"),
    "--metric": ("accuracy", "acc", "", "value"),
    "--datasets": ("all", "strict", "0,1", "9", "", "0,,1", "0,0", ","),
    "--exclude": ("a", "a:0", "a:9", "z", ":", "a:0,1,2", "a:x", ""),
    "--rename": ("a=b", "a=", "=", "a", "a=A", "z=y", "a=\x1b"),
    "--columns": ("accuracy=value", "x", "=", "run=run", "value=nothing"),
    "--question": ("these-datasets", "x"),
    "--roles": ("scores.csv", "nothing.csv", "."),
    "--table": ("scores.csv", "nothing.csv", "."),
    "--last-scores": ("scores.csv", "nothing.csv"),
    "--out": ("out", "", " ", "scores.csv", "/dev/null/x", "/proc/x"),
    "--paper-mode": ("biasbed", "x"),
    "--lower": ("",),
    "--paired": ("",),
    "--alhpa": ("0.1",),
}
GRIDS = ("optim.lr=0.1,0.01", "optim.lr=", "optim.lr", "optim.lr=x", "optim.lr=nan,inf", "optim.rl=1,2", "=", "net.widths=(1,),(2")
GRIDS += ("batch_size=16,0", "batch_size=1e3", "seeds=1,2", "optim=1,2", "optim.schedule=cosine,x", "epochs=1,-1", "name=a,b", "method.x=1")
SMALL = tuple(f"--config.data.{name}_images={count}" for name, count in (("train", 64), ("val", 16), ("test", 16)))
SPARE = 2 * GIB  # of memory for one command line


def call(world: World, number: int, rng: np.random.Generator) -> tuple[str, str]:
    """(attack, what went wrong) of one command line, which is shown. Nothing is trained."""
    attack, make = list(KINDS.items())[number % len(KINDS)]
    module, words = make(rng)
    done = world.server.call(_folder(world), module, *words, spare_bytes=SPARE, without_training=True)
    fault = rude(done) if done.code == 0 else unrefused(done)
    return attack, fault and f"{fault}   {module} {words}"


def _folder(world: World) -> pathlib.Path:
    """Where command lines are called: a configuration file of every odd kind, and a table of scores."""
    folder = world.folder / "commands"
    if not folder.is_dir():
        folder.mkdir()
        odd = {
            "scores.csv": SCORES,
            "empty.py": "",
            "broken.py": "def get_config(:\n",
            "dictionary.py": "def get_config():\n    return {'epochs': 1}\n",
            "lacking.py": "epochs = 1\n",
            "lines.txt": "one\ntwo\n",
        }
        for name, text in odd.items():
            (folder / name).write_text(text)
        (folder / "binary.py").write_bytes(bytes(range(256)))
    return folder


def _pick(rng: np.random.Generator, options: Any) -> Any:
    options = tuple(options)
    return options[rng.integers(len(options))]


@functools.cache
def fields(name: str) -> dict[str, Any]:
    """{dotted name: value} of all fields of a configuration."""
    return dict(_leaves(importlib.import_module(f"configs.{name}").get_config(), ""))


def _leaves(cfg: Any, path: str):
    if not dataclasses.is_dataclass(cfg):
        yield path, cfg
        return
    for field in dataclasses.fields(cfg):
        yield from _leaves(getattr(cfg, field.name), f"{path}.{field.name}".lstrip("."))


def _of_field(rng: np.random.Generator) -> tuple[str, list[str]]:
    """One or two real fields with any values, or (one of five) a field misspelt."""
    name = _pick(rng, CONFIGS)
    words = []
    for _ in range(rng.integers(1, 3)):
        field = _pick(rng, fields(name))
        if rng.random() < 0.2:
            place = rng.integers(len(field))
            field = _pick(rng, (field[:place] + field[place + 1 :], field + "x", field.upper(), field.replace(".", "..")))
        words.append(f"--config.{field}={_pick(rng, VALUES)}")
    return TRAIN, [f"--config={ROOT}/configs/{name}.py", *SMALL, *words]


def _of_number(rng: np.random.Generator) -> tuple[str, list[str]]:
    """A field that holds a number, with another number."""
    name = _pick(rng, CONFIGS)
    field = _pick(rng, [field for field, value in fields(name).items() if isinstance(value, int | float) and not isinstance(value, bool)])
    return TRAIN, [f"--config={ROOT}/configs/{name}.py", *SMALL, f"--config.{field}={_pick(rng, NUMBERS)}"]


def _of_file(rng: np.random.Generator) -> tuple[str, list[str]]:
    file = _pick(rng, FILES)
    folder = f"{ROOT}/configs/" if file.startswith("e") and not file.startswith("empty") else ""
    more = [f"--config.{_pick(rng, fields('erm'))}={_pick(rng, VALUES)}"] if rng.random() < 0.5 else []
    return TRAIN, [f"--config={folder}{file}", *more]


def _of_sweep(rng: np.random.Generator) -> tuple[str, list[str]]:
    return TRAIN, [
        f"--config={ROOT}/configs/{_pick(rng, CONFIGS)}.py",
        *SMALL,
        f"--config.grid={_pick(rng, SWEEPS)}",
    ]


def _of_grid(rng: np.random.Generator) -> tuple[str, list[str]]:
    options = {"--seeds": NUMBERS, "--trials": NUMBERS, "--criterion": ("last", "x", "ac_score"), "--launcher": ("x", "submitit")}
    words = ["--criterion", "best_val"]
    for option in rng.choice(list(options), rng.integers(0, 2), replace=False):
        words += [f"{option}={_pick(rng, options[option])}"]
    grids = [word for _ in range(rng.integers(0, 3)) for word in ("--grid", _pick(rng, GRIDS))]
    return JAXBED, ["sweep", f"--config={ROOT}/configs/erm.py", *SMALL, *words, *grids]


def _of_statistics(rng: np.random.Generator) -> tuple[str, list[str]]:
    words = [_pick(rng, ("scores.csv", "scores.csv", "scores.csv", ".", "nothing.csv", "lines.txt", "binary.py", ""))]
    for option in rng.choice(list(OPTIONS), rng.integers(1, 3), replace=False):
        value = _pick(rng, OPTIONS[option])
        words += [f"{option}={value}"] if value or option not in ("--lower", "--paired") else [option]
    return JAXBED, ["stats", *words]


def _of_evaluation(rng: np.random.Generator) -> tuple[str, list[str]]:
    words = [_pick(rng, ("nothing", ".", "", "scores.csv", "/dev/null", "/proc", "a b", "x" * 300))]
    return JAXBED, [
        _pick(rng, ("eval", "eval", "eval", "evla", "train")),
        *words,
        *_pick(rng, ([], ["--watch"], ["--wacth"], ["more"])),
    ]


def _of_flags(rng: np.random.Generator) -> tuple[str, list[str]]:
    flag = _pick(
        rng, ("--workdri=x", "--config", "--config=", "--workdir=", "-x", "words", "--", "--config.", "--config.=1", "--workdir=scores.csv")
    )
    return TRAIN, [*_pick(rng, ([], [f"--config={ROOT}/configs/erm.py"])), flag]


KINDS = {
    "command line: any field, any value": _of_field,
    "command line: a number for a number": _of_number,
    "command line: files and data sets": _of_file,
    "command line: --config.sweep": _of_sweep,
    "command line: jaxbed sweep": _of_grid,
    "command line: jaxbed stats": _of_statistics,
    "command line: jaxbed eval": _of_evaluation,
    "command line: flags": _of_flags,
}
