"""Reads columns of text as numbers, also as people write them: 50.5%, 50.5 ± 0.3, −3, 51,25."""

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
    """The column as float64; missing values, such as the texts MISSING, are NaN. Assumptions and ignored text are appended to `notes`.

    name       of the column in records; counts (COUNTS) may have no percent signs, spreads or thousands separators
    label      name of the column in the file
    separator  of the file: unless it is a comma, 51,250 is a decimal number

    Raises ValueError, with the line, for any other text, and for a column whose numbers are ambiguous.
    """
    if pd.api.types.is_numeric_dtype(given.dtype):
        return given.astype("float64")
    codes, distinct = pd.factorize(given)
    texts, label = [str(text).strip() for text in distinct], label or name
    values = [_number(text) for text in texts]
    if None in values:
        values, problem = _as_people_write(texts, name, label, separator, notes)
        if problem is not None:
            bad, text = problem
            line = f"{given.index.name} {given.index[(codes == bad).argmax()]}"
            raise ValueError(f"{source}: {label} {names.quoted(texts[bad])} in {line} {text}")
    return pd.Series(np.array([*values, math.nan], float)[codes], index=given.index)  # code -1: missing


def _number(text: str) -> float | None:
    """The number, NaN for a missing one, None for any other text."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return math.nan if text.lower() in MISSING else None


def _as_people_write(
    texts: list[str], name: str, label: str, separator: str, notes: list[str]
) -> tuple[list[float | None], tuple[int, str] | None]:
    """The numbers, all known unless there is a problem: the index of the first text that is not a number, and what is wrong with it."""
    plain = [text.replace("−", "-").strip("$ \t\xa0") for text in texts]
    known = [index for index, text in enumerate(plain) if text.lower() not in MISSING]
    spread, percent = [], []
    if name not in COUNTS:
        for index in known:
            parts = SPREAD.split(plain[index], maxsplit=1)
            spread += [index] * (len(parts) == 2 and _number(_point(parts[1].rstrip("%\\ "))) is not None)
            plain[index] = parts[0].strip() if index in spread[-1:] else plain[index]
            percent += [index] * plain[index].endswith("%")
            plain[index] = plain[index].rstrip("%\\ ")
    commas = [index for index in known if "," in plain[index]]
    thousands = [index for index in commas if THOUSANDS.fullmatch(plain[index])]
    points = next((plain[index] for index in known if "." in plain[index]), None)
    values = [_number(_point(text)) for text in plain]
    if None in values:
        return [], (values.index(None), f"is not a number; write it like {EXAMPLES.get(name, '0.736')}")
    if commas and points:
        return [], (commas[0], f"has a comma, other numbers in the column have points ({points}); write all like 1234.5")
    if thousands and len(thousands) == len(commas) and (separator == "," or name in COUNTS):
        return [], (commas[0], "is ambiguous: thousands or a decimal comma; write it like 1234.5")
    if percent and len(percent) < len(known):
        without = next(index for index in known if index not in set(percent))
        return [], (without, "has no percent sign, but other numbers in the column do; write all in the same way")
    if percent and all(abs(value) <= 1 for index in known if (value := values[index]) is not None):
        return [], (percent[0], "and all others in the column are at most 1 %, which would be read as fractions; write 0.004 for 0.4 %")
    if percent:
        notes.append(f"{label} has percent signs: its numbers are read as percent")
    if commas:
        notes.append(f"commas in {label} are decimal commas ({names.quoted(texts[commas[0]])} is {values[commas[0]]:g})")
    if spread:
        notes.append(f"{label} has values like {names.quoted(texts[spread[0]])}: what follows ± is ignored")
    return values, None


def _point(text: str) -> str:
    return text.replace(",", ".") if text.count(",") == 1 else text
