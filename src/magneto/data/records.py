"""Records in files of text: lines, objects of JSON, tables. What is odd is counted.

A line ends at a line feed and nowhere else; a carriage return before it belongs to the end.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from magneto.config import LARGEST, shown
from magneto.data.counts import HALF_CHARACTERS, INVALID_UTF8, LONG_LINES, MALFORMED, Counts
from magneto.data.files import open_text
from magneto.data.problems import BadRecord, guarded, read_each

# A longer line would fill the memory.
LINE_BYTES = 1 << 26
# How JSON spells the half of a character, and the half itself.
SPELT_HALF = re.compile(r"\\u[dD][89a-fA-F]")
HALF = re.compile("[\ud800-\udfff]")

Record = dict[str, Any]
R = TypeVar("R")


def read_lines(path: Path, counts: Counts) -> Iterator[str]:
    """Yield the lines of a file with their ends; one that is too long is counted, and is empty.

    Raises:
        ValueError: If the file is damaged, or is no text in lines.
    """
    with open_text(path) as file:
        for number, raw in enumerate(iter(partial(file.readline, LINE_BYTES), b""), 1):
            if raw.endswith(b"\n"):
                yield decoded(raw, counts, path, number)
                continue
            if number == 1 and b"\r" in raw.rstrip(b"\r"):
                raise ValueError(f"{path}: its lines end in a carriage return alone; "
                                 "make them end in a line feed")  # fmt: skip
            if len(raw) == LINE_BYTES:
                why = f"longer than {LINE_BYTES:,} bytes"
                counts.met(LONG_LINES, f"{path}, line {number}", why)
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(LINE_BYTES)
                raw = b"\n"
            yield decoded(raw, counts, path, number)


def decoded(raw: bytes, counts: Counts, path: Path, number: int) -> str:
    """Decode a line; what is not UTF-8 becomes U+FFFD and is counted."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        counts.met(INVALID_UTF8, f"{path}, line {number}", f"not UTF-8 ({error.reason})")
        return raw.decode("utf-8", errors="replace")


def read_objects(
    path: Path, counts: Counts, read: Callable[[Record], R | None] = lambda record: record
) -> Iterator[R]:
    """Yield what is read of each JSON object of a file that has one per line.

    Blank lines are nothing. Halves of a character, which no tokenizer takes, become U+FFFD.

    Args:
        path: The file, maybe packed.
        counts: Told of lines that are no objects, and of those that can't be read.
        read: Of an object; see `read_each`. By default the object itself.
    """

    def parse(line: str) -> R | None:
        if not line.strip():
            return None
        value = json.loads(line)
        if not isinstance(value, dict):
            raise BadRecord("not a JSON object")
        if SPELT_HALF.search(line):
            whole = _whole(value)
            counts[HALF_CHARACTERS] += whole != value
            value = whole
        return read(value)

    return read_each(read_lines(path, counts), parse, counts, f"{path}, line")


def read_rows(
    path: Path,
    rows: Iterable[list[str]],
    names: Sequence[str],
    counts: Counts,
    read: Callable[[Record], R | None] = lambda record: record,
) -> Iterator[R]:
    """Yield what is read of each row of a table, as an object with the names of its columns.

    Blank rows are nothing; one with another number of cells is malformed.

    Args:
        path: Of the table.
        rows: Its rows, without the names.
        names: Of its columns.
        counts: Told of malformed rows.
        read: Of an object; see `read_each`. By default the object itself.
    """

    def parse(cells: list[str]) -> R | None:
        if not any(cells):
            return None
        if len(cells) != len(names):
            raise BadRecord(f"{len(cells)} cells, not {len(names)}")
        return read(dict(zip(names, cells, strict=True)))

    return read_each(rows, parse, counts, f"{path}, row", first=2)


def read_list(path: Path, key: str | None, counts: Counts) -> list[Any]:
    """Return the list in a file of JSON; halves of a character in it become U+FFFD.

    Args:
        path: The file, maybe packed.
        key: Of the object that has the list; None where the file is the list.
        counts: Told of halves of a character.

    Raises:
        ValueError: If the file is damaged, or holds no such list.
    """
    with open_text(path) as file:
        raw = file.read()
    with guarded(prefix=f"{path} is not JSON: "):
        found = json.loads(raw)
    rows = found
    if key is not None:
        rows = found.get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path} has no list" + (f' of "{key}"' if key else ""))
    if SPELT_HALF.search(raw.decode(errors="ignore")):
        with guarded(prefix=f"{path}: "):
            whole = [_whole(row) for row in rows]
        counts[HALF_CHARACTERS] += sum(a != b for a, b in zip(whole, rows, strict=True))
        return whole
    return rows


def whole_number(record: Any, key: str) -> int:
    """Return a number of an object, from 0: it is written as such, not as text or a fraction.

    Raises:
        BadRecord: If there is none under the key.
    """
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object")
    value = record.get(key)
    if type(value) is not int or not 0 <= value < LARGEST:
        raise BadRecord(f"its {key} is no whole number: {shown(value)}")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value


def read_tabs(path: Path, counts: Counts) -> Iterator[list[str]]:
    """Yield the rows of a table cut at tabs, where quotes are text, as in GLUE's files."""
    for line in read_lines(path, counts):
        yield line.rstrip("\r\n").split("\t")


def read_quoted(path: Path, separator: str, counts: Counts) -> Iterator[list[str]]:
    """Yield the rows of a table as spreadsheets write it: in quotes, cells may hold line ends.

    A row that can't be parsed is counted, and the next is read. A blank line has no cells.
    """
    rows = csv.reader(read_lines(path, counts), delimiter=separator)
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            counts.met(MALFORMED, f"{path}, line {rows.line_num}", str(error))
