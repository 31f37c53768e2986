"""Text files of rows and columns as programs and spreadsheets write them, read cell by cell as text.

UTF-8, or UTF-16 and UTF-32 with a byte-order mark; gzip, bzip2 and xz are unpacked. Columns are separated by commas, semicolons, tabs or
bars, whichever splits the header into most names, or by what a first line `sep=;` says. Lines that begin with # are comments.
"""

import bz2
import codecs
import csv
import gzip
import io
import itertools
import json
import lzma
import shlex
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pandas as pd

from jaxbed.stats import names

SEPARATORS = ",;\t|"  # of equal ones the first
LONGEST_LINE = 10_000_000  # characters; a small file that was packed may be unpacked to one that fills the memory
UNNAMED = "(unnamed)"
COMPRESSED = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\x00": lzma}
MARKS = {  # the longer first: that of UTF-32 begins as that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
FOREIGN = {  # what else files begin with
    b"PAR1": "a Parquet file; name it with the ending .parquet",
    b"\xd0\xcf\x11\xe0": "a workbook of a spreadsheet; save it there as CSV (UTF-8)",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it: zstd -d {path}",
    b"%PDF": "a PDF; give the scores as CSV",
    b"\x93NUMPY": "an array of NumPy; give the scores as CSV",
    b"<": "HTML or XML, perhaps a page that says why a download failed; give the scores as CSV",
}


def read(path: Path) -> pd.DataFrame:
    """All cells as text, indexed by line; equal texts are kept once, so that a million rows take 0.4 GB.

    Rows and trailing columns that are empty are left out. `attrs`: `separator`, `comments` (lines that were skipped), `comment` (the last
    one before the header). pandas would guess types, read an algorithm named 'NA' as missing, and shift rows that are too long.

    Raises ValueError, with the cure, for anything else than such a file: other encodings and formats, rows of another length, repeated
    names, cells without a name.
    """

    comments: dict[int, str] = {}
    try:
        with _open(path) as file:
            before, separator, first = _begin(lines := _lines(file, path, comments), path)
            comment = list(comments.values())[-1] if comments else ""
            reader = csv.reader(itertools.chain(itertools.repeat("\n", before), [first], lines), delimiter=separator)
            header = [name.strip() for name in next(row for row in reader if row)]
            numbers, columns = _columns(reader, header, path)
    except csv.Error as error:
        raise ValueError(f"{path}: not readable as CSV ({error}); is a quotation mark open?") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {_not_text(path, error)}") from error
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # of the file itself, which has a message of its own
            raise
        raise ValueError(f"{path}: cannot be unpacked ({error}): it is damaged or cut short; copy it again") from error
    named = _named(header, columns, numbers, path)
    frame = pd.DataFrame(named, index=pd.Index(numbers, name="line"))
    frame.attrs = {"separator": separator, "comments": list(comments), "comment": comment}
    return frame


def _columns(reader: Iterator[list[str]], header: list[str], path: Path) -> tuple[list[int], list[list[str]]]:
    """The numbers of the lines, and the cells of each column."""
    width, lines, seen = len(header), [], {}
    columns: list[list[str]] = [[] for _ in header]
    for row in reader:
        if not any(row):
            continue
        if row[0].strip() == header[0] and [name.strip() for name in row] == header:
            raise ValueError(f"{path}: line {reader.line_num} is the header again; delete it, or give joined files one by one")
        if len(row) != width:
            if len(row) < width or any(row[width:]):
                text = ",".join(row)
                hint = "write 73.6, not 73,6, and put names that hold the separator in quotation marks"
                hint = "is a quotation mark open?" if "\n" in text else hint if len(row) > width else "give all of them"
                raise ValueError(f"{path}: line {reader.line_num} has {len(row)} fields, the header {width}: {names.quoted(text)}; {hint}")
            row = row[:width]
        lines.append(reader.line_num)
        for column, text in zip(columns, row, strict=True):
            if text not in seen:
                seen[text] = names.from_cell(text)
            column.append(seen[text])
    return lines, columns


def _named(header: list[str], columns: list[list[str]], lines: list[int], path: Path) -> dict[str, list[str]]:
    """{name: cells}. Columns without a name must be empty, but for the first: programs write the number of the row there."""
    found = {}
    for place, (name, cells) in enumerate(zip(header, columns, strict=True)):
        if not name:
            held = next((row for row, text in enumerate(cells) if text.strip()), None)
            if held is None:
                continue
            if place:
                raise ValueError(
                    f"{path}: column {place + 1} has no name and holds {names.quoted(cells[held])} in line {lines[held]}; name it in the "
                    "header, or write 73.6 where the line has 73,6"
                )
        if name in found:
            raise ValueError(f"{path}: column name {names.quoted(name)} is repeated; every column needs its own name")
        found[names.from_cell(name) or UNNAMED] = cells
    return found


def _open(path: Path) -> TextIO:
    """The text of the file. Raises ValueError for a format that is no text."""
    opener = _opener(path)
    with opener.open(path, "rb") as file:
        start = file.read(1000)
    if start.startswith(b"PK"):
        raise ValueError(f"{path}: {_packed(path, start)}")
    if any(start.startswith(mark) for mark in COMPRESSED):
        raise ValueError(f"{path}: the file is compressed twice; unpack it once")
    if start[257:262] == b"ustar":
        raise ValueError(f"{path}: the file is a tar archive; unpack it, and give the files in it: tar -xf {shlex.quote(str(path))}")
    for mark, what in FOREIGN.items():
        if start.lstrip().startswith(mark):
            raise ValueError(f"{path}: the file is {what.format(path=shlex.quote(str(path)))}")
    encoding = next((name for mark, name in MARKS.items() if start.startswith(mark)), "utf-8")
    return opener.open(path, "rt", newline="", encoding=encoding)


def _opener(path: Path):
    """The module whose `open` unpacks the file."""
    with open(path, "rb") as file:
        start = file.read(8)
    return next((module for mark, module in COMPRESSED.items() if start.startswith(mark)), io)


def _packed(path: Path, start: bytes) -> str:
    if b"[Content_Types]" in start or b"mimetype" in start:
        return "the file is a workbook of a spreadsheet; save it there as CSV (UTF-8)"
    folder = shlex.quote(f"{path.stem}-unpacked")
    return f"the file is a zip archive; unpack it, and give the files in it: python -m zipfile -e {shlex.quote(str(path))} {folder}"


def _lines(file: TextIO, path: Path, comments: dict[int, str]) -> Iterator[str]:
    """The lines; empty ones in place of comments, which are added to `comments` by number."""
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path}: line {number} has more than {LONGEST_LINE:,} characters: it is damaged, or no table of scores")
        if "\0" in line:
            raise ValueError(f"{path}: line {number} holds NUL bytes: {_with_nul_bytes(path)}")
        if line.lstrip()[:1] == "#":
            comments[number] = names.cut(line.strip())
            yield "\n"
        else:
            yield line


def _begin(lines: Iterator[str], path: Path) -> tuple[int, str, str]:
    """How many lines come before the header, the separator, and the line of the header."""
    said = ""
    for before, line in enumerate(lines):
        text = line.strip()
        if text.lower().startswith("sep=") and len(text) <= 5 and not said:
            said = line.rstrip("\r\n")[4:5] or ","
        elif text:
            _refuse_json(line, lines, path)
            counts = {sign: len(next(csv.reader([line], delimiter=sign))) for sign in SEPARATORS}
            return before, said or max(counts, key=counts.get), line
    raise ValueError(f"{path}: the file is empty; the first line must name the columns, e.g. algorithm,run,dataset,accuracy")


def _refuse_json(line: str, lines: Iterator[str], path: Path) -> None:
    if line.lstrip()[:1] not in "{[":
        return
    try:
        json.loads(line)
        several = next((line for line in lines if line.strip()), "").lstrip()[:1] == "{"
    except ValueError:
        several = False
    made = f"pandas.read_json({_literal(path)}{', lines=True' * several})"
    cure = _command(f'import pandas; {made}.to_csv("scores.csv", index=False)')
    raise ValueError(f"{path}: the file is JSON; give CSV, or a run's workdir. A list of records is converted by: {cure}")


def _not_text(path: Path, error: UnicodeDecodeError) -> str:
    with _opener(path).open(path, "rb") as file:
        content = file.read(LONGEST_LINE)
    if b"\0" in content:
        return f"the file holds NUL bytes: {_with_nul_bytes(path)}"
    encoding = next((name for name in ("cp1252", "latin-1") if _decodes(content, name)), "latin-1")
    byte = f"byte 0x{error.object[error.start]:02x}"
    return (
        f"the file is not UTF-8 ({byte}); spreadsheets on Windows write {encoding}. Save it as UTF-8, or convert it: "
        f"{_conversion(path, encoding)}. If names look wrong then, it was another encoding"
    )


def _with_nul_bytes(path: Path) -> str:
    with _opener(path).open(path, "rb") as file:
        start = file.read(1000)
    for encoding, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if zeros.count(0) > len(zeros) / 2:
            return f"it is UTF-16 without a byte-order mark. Save it as UTF-8, or convert it: {_conversion(path, encoding)}"
    return "it is damaged, or no text; write it again, as CSV in UTF-8"


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _conversion(path: Path, encoding: str) -> str:
    """A command for a shell that writes the file as UTF-8 into the working directory."""
    module, new = _opener(path).__name__, f"{path.name.partition('.')[0]}-utf8.csv"
    text = f'{module}.open({_literal(path)}, "rt", encoding="{encoding}").read()'
    return _command(f'import {module}, pathlib; pathlib.Path({_literal(new)}).write_text({text}, encoding="utf-8")')


def _literal(text: str | Path) -> str:
    """In double quotes: commands are in single ones."""
    return json.dumps(str(text), ensure_ascii=False)


def _command(code: str) -> str:
    return f"python -c {shlex.quote(code)}"
