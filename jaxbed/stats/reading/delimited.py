"""Reads text files of rows and columns, as programs and spreadsheets write them, cell by cell as text.

UTF-8, or UTF-16 and UTF-32 with a byte-order mark; gzip, bzip2 and xz are unpacked. Columns are separated by commas, semicolons, tabs or
bars, whichever splits the header into most names, or as a first line `sep=;` says. Lines that begin with # are comments.
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
from typing import Any, TextIO

import pandas as pd

from jaxbed.stats import names

SEPARATORS = ",;\t|"  # the first of those that split equally well
LONGEST_LINE = 10_000_000  # characters; a small compressed file may expand until memory is full
UNNAMED = "(unnamed)"
COMPRESSED = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\x00": lzma}
MARKS = {  # longer ones first: the mark of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
FOREIGN = {  # first bytes of other formats
    b"PAR1": "a Parquet file; rename it to end in .parquet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet workbook; export it as CSV (UTF-8)",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it: zstd -d {path}",
    b"%PDF": "a PDF file; pass the scores as CSV",
    b"\x93NUMPY": "a NumPy array; pass the scores as CSV",
    b"<": "HTML or XML, perhaps the error page of a failed download; pass the scores as CSV",
}


def read(path: Path) -> pd.DataFrame:
    """All cells as text, indexed by line; equal texts are stored once (a million rows take 0.4 GB).

    Empty rows and empty trailing columns are left out. `attrs`: `separator`, `comments` (lines that were skipped), `comment` (the last
    one before the header). pandas would guess types, read an algorithm named 'NA' as missing, and shift rows that are too long.

    Raises ValueError, with the cure, for other encodings and formats, rows of a different length, repeated column names, and
    cells in a column without a name.
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
        raise ValueError(f"{path}: cannot be read as CSV ({error}); is a quotation mark not closed?") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {_not_text(path, error)}") from error
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # of the file itself: its own message is clear
            raise
        raise ValueError(f"{path}: cannot be decompressed ({error}): it is damaged or truncated; copy it again") from error
    named = _named(header, columns, numbers, path)
    frame = pd.DataFrame(named, index=pd.Index(numbers, name="line"))
    frame.attrs = {"separator": separator, "comments": list(comments), "comment": comment}
    return frame


def _columns(reader: Any, header: list[str], path: Path) -> tuple[list[int], list[list[str]]]:
    """The line numbers, and the cells of each column; `reader` is a csv.reader."""
    width, lines, seen = len(header), [], {}
    columns: list[list[str]] = [[] for _ in header]
    for row in reader:
        if not any(row):
            continue
        if row[0].strip() == header[0] and [name.strip() for name in row] == header:
            raise ValueError(f"{path}: line {reader.line_num} repeats the header; delete it, or pass the joined files one by one")
        if len(row) != width:
            if len(row) < width or any(row[width:]):
                text = ",".join(row)
                hint = "write 73.6, not 73,6, and quote names that contain the separator"
                hint = "is a quotation mark not closed?" if "\n" in text else hint if len(row) > width else "add the missing ones"
                raise ValueError(f"{path}: line {reader.line_num} has {len(row)} fields, the header {width}: {names.quoted(text)}; {hint}")
            row = row[:width]
        lines.append(reader.line_num)
        for column, text in zip(columns, row, strict=True):
            if text not in seen:
                seen[text] = names.from_cell(text)
            column.append(seen[text])
    return lines, columns


def _named(header: list[str], columns: list[list[str]], lines: list[int], path: Path) -> dict[str, list[str]]:
    """{name: cells}. Columns without a name must be empty, except the first: programs write row numbers there."""
    cells_of = {}
    for index, (name, cells) in enumerate(zip(header, columns, strict=True)):
        if not name:
            held = next((row for row, text in enumerate(cells) if text.strip()), None)
            if held is None:
                continue
            if index:
                raise ValueError(
                    f"{path}: column {index + 1} has no name but holds {names.quoted(cells[held])} in line {lines[held]}; name it in the "
                    "header, or write 73.6 where the line has 73,6"
                )
        if name in cells_of:
            raise ValueError(f"{path}: column name {names.quoted(name)} is repeated; column names must be unique")
        cells_of[names.from_cell(name) or UNNAMED] = cells
    return cells_of


def _open(path: Path) -> TextIO:
    """The text of the file. Raises ValueError for a format that is not text."""
    opener = _opener(path)
    with opener.open(path, "rb") as file:
        start = file.read(1000)
    if start.startswith(b"PK"):
        raise ValueError(f"{path}: {_packed(path, start)}")
    if any(start.startswith(mark) for mark in COMPRESSED):
        raise ValueError(f"{path}: the file is compressed twice; unpack it once")
    if start[257:262] == b"ustar":
        raise ValueError(f"{path}: the file is a tar archive; unpack it and pass the files it contains: tar -xf {shlex.quote(str(path))}")
    for mark, what in FOREIGN.items():
        if start.lstrip().startswith(mark):
            raise ValueError(f"{path}: the file is {what.format(path=shlex.quote(str(path)))}")
    encoding = next((name for mark, name in MARKS.items() if start.startswith(mark)), "utf-8")
    return opener.open(path, "rt", newline="", encoding=encoding)


def _opener(path: Path) -> Any:
    """The module whose `open` decompresses the file."""
    with open(path, "rb") as file:
        start = file.read(8)
    return next((module for mark, module in COMPRESSED.items() if start.startswith(mark)), io)


def _packed(path: Path, start: bytes) -> str:
    if b"[Content_Types]" in start or b"mimetype" in start:
        return "the file is a spreadsheet workbook; export it as CSV (UTF-8)"
    folder = shlex.quote(f"{path.stem}-unpacked")
    return f"the file is a zip archive; unpack it and pass the files it contains: python -m zipfile -e {shlex.quote(str(path))} {folder}"


def _lines(file: TextIO, path: Path, comments: dict[int, str]) -> Iterator[str]:
    """The lines, with empty ones in place of comments, which are added to `comments` by line number."""
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path}: line {number} has more than {LONGEST_LINE:,} characters: it is damaged, or not a table of scores")
        if "\0" in line:
            raise ValueError(f"{path}: line {number} contains NUL bytes: {_with_nul_bytes(path)}")
        if line.lstrip()[:1] == "#":
            comments[number] = names.cut(line.strip())
            yield "\n"
        else:
            yield line


def _begin(lines: Iterator[str], path: Path) -> tuple[int, str, str]:
    """The number of lines before the header, the separator, and the header line."""
    declared = ""
    for before, line in enumerate(lines):
        text = line.strip()
        if text.lower().startswith("sep=") and len(text) <= 5 and not declared:
            declared = line.rstrip("\r\n")[4:5] or ","
        elif text:
            _refuse_json(line, lines, path)
            counts = {sign: len(next(csv.reader([line], delimiter=sign))) for sign in SEPARATORS}
            return before, declared or max(counts, key=counts.__getitem__), line
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
    raise ValueError(f"{path}: the file is JSON; pass a CSV file or the workdir of a run. To convert a list of records: {cure}")


def _not_text(path: Path, error: UnicodeDecodeError) -> str:
    with _opener(path).open(path, "rb") as file:
        content = file.read(LONGEST_LINE)
    if b"\0" in content:
        return f"the file contains NUL bytes: {_with_nul_bytes(path)}"
    encoding = next((name for name in ("cp1252", "latin-1") if _decodes(content, name)), "latin-1")
    byte = f"byte 0x{error.object[error.start]:02x}"
    return (
        f"the file is not UTF-8 ({byte}); spreadsheets on Windows write {encoding}. Save it as UTF-8, or convert it: "
        f"{_conversion(path, encoding)}. If names then look wrong, the encoding was a different one"
    )


def _with_nul_bytes(path: Path) -> str:
    with _opener(path).open(path, "rb") as file:
        start = file.read(1000)
    for encoding, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if zeros.count(0) > len(zeros) / 2:
            return f"it is UTF-16 without a byte-order mark. Save it as UTF-8, or convert it: {_conversion(path, encoding)}"
    return "it is damaged, or not text; write it again as CSV in UTF-8"


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _conversion(path: Path, encoding: str) -> str:
    """A shell command that writes the file as UTF-8 into the working directory."""
    module, new = _opener(path).__name__, f"{path.name.partition('.')[0]}-utf8.csv"
    text = f'{module}.open({_literal(path)}, "rt", encoding="{encoding}").read()'
    return _command(f'import {module}, pathlib; pathlib.Path({_literal(new)}).write_text({text}, encoding="utf-8")')


def _literal(text: str | Path) -> str:
    """The text in double quotes, since commands are in single quotes."""
    return json.dumps(str(text), ensure_ascii=False)


def _command(code: str) -> str:
    return f"python -c {shlex.quote(code)}"
