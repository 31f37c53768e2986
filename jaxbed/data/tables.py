"""Reads CSV files that describe images, as programs and spreadsheets save them."""

import csv
import io
import pathlib
import posixpath
import re
from collections.abc import Iterator, Sequence

# A whole number as text, also with the decimals of 2019.0 or 2019,0, but not with exactly three: 1,000 may be a thousand
WHOLE = re.compile(r"(-?\d{1,18})(?:[.,](?!000$)0+)?")


def rows(
    path: pathlib.Path, needed: Sequence[str], optional: Sequence[str] = (), cure: str = "it is another table, or damaged"
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV file, also with what spreadsheets add: a byte-order mark, a first line "sep=;", semicolons or tabs, empty rows.

    The line is the first one of its row, whose quoted fields may hold line breaks. Raises ValueError, which names the fault and the line;
    `cure` ends the message for a missing column.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # with its line breaks as they are
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}): save it as CSV in UTF-8") from None
    lines = list(io.StringIO(text, newline=""))  # whereas str.splitlines also cuts at U+2028 and others, which names may hold
    if nul := [number for number, line in enumerate(lines, 1) if "\0" in line]:
        raise ValueError(f"{path}, line {nul[0]}: it contains a NUL byte, so the file is damaged or not text: save it as CSV in UTF-8")
    skipped = int(bool(lines) and lines[0].startswith("sep="))
    header = lines[skipped].rstrip("\r\n") if lines[skipped:] else ""
    reader = csv.reader(lines[skipped:], delimiter=max(",;\t", key=header.count), skipinitialspace=True)
    try:
        columns = [name.strip() for name in next(reader, ())]
    except csv.Error as error:
        raise ValueError(f"{path}, line {1 + skipped}: {error}. Is a quotation mark not closed?") from None
    shown = f"its header {header[:80]!r}"
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(f"{path} has no column {', '.join(missing)} in {shown}: {cure}")
    if twice := [name for name in (*needed, *optional) if columns.count(name) > 1]:
        raise ValueError(f"{path} has column {twice[0]} more than once in {shown}: delete one of them")
    last = reader.line_num
    try:
        for fields in reader:
            line, last = skipped + last + 1, reader.line_num
            if not any(map(str.strip, fields)):
                continue
            if len(fields) != len(columns):
                counted = f"it has {len(fields)} fields, but the header has {len(columns)}"
                raise ValueError(f"{path}, line {line}: {counted}: correct the line")
            yield line, dict(zip(columns, fields, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {skipped + last + 1}: {error}. Is a quotation mark not closed?") from None


def one_form(file: str) -> str:
    """The path of a file in one of its many forms: "a/b.png" for "./a//b.png" and, as Windows writes it, "a\\b.png"."""
    return posixpath.normpath(file.replace("\\", "/"))


def whole(text: str) -> int | None:
    """0 for "0" and, as spreadsheets and pandas write it, "0.0" or "0,0"; None if it is not a whole number, or may be two, as "1,000"."""
    found = WHOLE.fullmatch(text.strip())
    return int(found[1]) if found else None
