"""Columns of text as numbers, also as people write them: 50.5%, 50.5 ± 0.3, −3, 51,25."""

import math
import re

import numpy as np
import pandas as pd

from jaxbed.stats import names

MISSING = ("", "nan", "none", "<na>", "na", "n/a", "null", "-", "–", "—")
COUNTS = ("run", "epoch", "n_correct", "n_total", "size")
EXAMPLES = {"run": "1", "epoch": "90", "size": "160"}
SPREAD = re.compile(r"\s*(?:±|\+/-|\+-|\\pm)\s*")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def read(given: pd.Series, name: str, source: str, notes: list[str], label: str = "", separator: str = ",") -> pd.Series:
    """float64; missing values, as texts MISSING, are NaN. `notes` gets what was left out of the texts or taken for granted.

    name       of the column in records; counts (COUNTS) have no percent signs, spreads or thousands
    label      the file's own name of the column
    separator  of the file: where it is no comma, 51,250 is a decimal number

    Raises ValueError, with the line, for any other text, and for a column whose numbers could be read in two ways.
    """

    if pd.api.types.is_numeric_dtype(given.dtype):
        return given.astype("float64")
    places, texts = pd.factorize(given)
    texts = [str(text).strip() for text in texts]
    values, label = [_number(text) for text in texts], label or name
    if None in values:
        values, problem = _as_people_write(texts, name, label, separator, notes)
        if problem is not None:
            bad, text = problem
            line = f"{given.index.name} {given.index[(places == bad).argmax()]}"
            raise ValueError(f"{source}: {label} {names.quoted(texts[bad])} in {line} {text}")
    return pd.Series(np.array([*values, math.nan])[places], index=given.index)  # place -1: missing


def _number(text: str) -> float | None:
    """The number, NaN where it is missing, None for any other text."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return math.nan if text.lower() in MISSING else None


def _as_people_write(
    texts: list[str], name: str, label: str, separator: str, notes: list[str]
) -> tuple[list[float], tuple[int, str] | None]:
    """The numbers, and the place of the first text that is none with what is wrong."""
    plain = [text.replace("−", "-").strip("$ \t\xa0") for text in texts]
    known = [place for place, text in enumerate(plain) if text.lower() not in MISSING]
    spread, percent = [], []
    if name not in COUNTS:
        for place in known:
            parts = SPREAD.split(plain[place], maxsplit=1)
            spread += [place] * (len(parts) == 2 and _number(_point(parts[1].rstrip("%\\ "))) is not None)
            plain[place] = parts[0].strip() if place in spread[-1:] else plain[place]
            percent += [place] * plain[place].endswith("%")
            plain[place] = plain[place].rstrip("%\\ ")
    commas = [place for place in known if "," in plain[place]]
    thousands = [place for place in commas if THOUSANDS.fullmatch(plain[place])]
    points = next((plain[place] for place in known if "." in plain[place]), None)
    values = [_number(_point(text)) for text in plain]
    if None in values:
        return [], (values.index(None), f"is not a number; write it like {EXAMPLES.get(name, '0.736')}")
    if commas and points:
        return [], (commas[0], f"has a comma, others of the column have points ({points}); write all numbers like 1234.5")
    if thousands and len(thousands) == len(commas) and (separator == "," or name in COUNTS):
        return [], (commas[0], "may be thousands or a decimal number; write 1234.5 without marks of thousands")
    if percent and len(percent) < len(known):
        without = next(place for place in known if place not in set(percent))
        return [], (without, "has no percent sign, others of the column have; write all numbers alike")
    if percent and all(abs(values[place]) <= 1 for place in known):
        return [], (percent[0], "and all others are at most 1 %, which tables would take for fractions; write 0.004 for 0.4 %")
    if percent:
        notes.append(f"{label} has percent signs; its numbers are read as percent")
    if commas:
        notes.append(f"commas in {label} are decimal commas ({names.quoted(texts[commas[0]])} is {values[commas[0]]:g})")
    if spread:
        notes.append(f"{label} has texts like {names.quoted(texts[spread[0]])}; what follows ± is not used")
    return values, None


def _point(text: str) -> str:
    return text.replace(",", ".") if text.count(",") == 1 else text
