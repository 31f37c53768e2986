"""Grids of `jaxbed sweep`: which fields take which values, and how a setting is written down."""

import ast
import re
from typing import Any

from jaxbed import config
from jaxbed.config import Train
from jaxbed.values import look_up

Stage = dict[str, list[str]]  # field -> its values, as written
Setting = dict[str, str]  # field -> value, as written
FIXED = ("name", "seeds", "first_seed", "grid")


def parse(texts: list[str], cfg: Train) -> Stage:
    """['optim.lr=1e-1,1e-2', 'method.q=0.5,0.7'] -> {'optim.lr': ['1e-1', '1e-2'], 'method.q': ['0.5', '0.7']}.

    Raises ValueError for a field that cfg does not have or that is not tuned, and for values of another kind than it holds.
    """
    stage = {}
    for text in texts:
        field, equals, listed = text.partition("=")
        words = re.split(r",(?![^()]*\))", listed)  # not within a tuple
        if not equals or field in stage or "" in words or len({value(word) for word in words}) < len(words):
            raise ValueError(f"--grid {text}: write FIELD=VALUE,VALUE, each field and value once, e.g. optim.lr=1e-1,1e-2")
        refuse_fixed(field, cfg)
        for word in words:
            if isinstance(now := look_up(cfg, field, f"--grid {text}"), tuple) and word[:1] not in ("(", "["):
                raise ValueError(f"--grid {text}: {field} holds several values, now {now}; write each choice in brackets, as (1,),(1,2)")
            config.from_word(cfg, field, word, f"--grid {text}")
        stage[field] = words
    return stage


def refuse_fixed(field: str, cfg: Train) -> None:
    """Raises ValueError for a field that is not tuned."""
    part, _, rest = field.partition(".")
    if field in FIXED:
        raise ValueError(f"--grid {field}: {', '.join(FIXED)} are not tuned; see --seeds and --trials")
    if part == "data" and rest in getattr(cfg.data, "varies", ()):
        raise ValueError(f"--grid {field}: that is the data. To tune on each by itself give --config.grid='(\"{field}=...\",)'")


def value(word: str) -> Any:
    """What a word of the command line means: a number, a tuple, or the word itself."""
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def label(setting: Setting) -> str:
    """The name of a setting's folder, as `members` names it: 'lr=0.01,q=0.5'."""
    name = ",".join(f"{field.partition('.')[2] or field}={value(word)}" for field, word in setting.items())
    return name.replace("/", "_").replace(" ", "")


def write(setting: Setting) -> str:
    return " ".join(f"{field}={word}" for field, word in setting.items())
