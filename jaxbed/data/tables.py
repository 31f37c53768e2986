"""CSV files that say what images are, as programs and spreadsheets save them."""

import csv
import pathlib
from collections.abc import Iterator, Sequence


def rows(path: pathlib.Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV file, also as spreadsheets save it: a byte-order mark, semicolons or tabs. ValueError names what is wrong."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}): save it as CSV in UTF-8") from None
    header = lines[0] if lines else ""
    reader = csv.DictReader(lines, delimiter=max(",;\t", key=header.count), skipinitialspace=True)
    columns = [name.strip() for name in reader.fieldnames or ()]
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(f"{path} has no column {', '.join(missing)} in its header {header[:80]!r}: it is another table, or is damaged")
    reader.fieldnames = columns
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"{path}, line {reader.line_num}: it has more or fewer fields than the header's {len(columns)}")
        yield reader.line_num, row


def whole(text: str) -> int | None:
    """0 of "0" and, as spreadsheets and pandas write it, "0.0" or "0,0"; None of what is no whole number."""
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
