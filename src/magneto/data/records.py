"""Records in files of text: lines, objects of JSON, tables. What is odd is counted.

A line ends at a line feed and nowhere else; a carriage return before it belongs to the end.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from magneto.data.counts import HALF_CHARACTERS, INVALID_UTF8, LONG_LINES, MALFORMED, Counts
from magneto.data.files import open_text

# A longer line would fill the memory.
LINE_BYTES = 1 << 26
# How JSON spells the half of a character, and the half itself.
SPELT_HALF = re.compile(r"\\u[dD][89a-fA-F]")
HALF = re.compile("[\ud800-\udfff]")

Record = dict[str, Any]


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


def read_objects(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield the JSON objects of a file that has one per line; blank lines are nothing.

    Halves of a character, which no tokenizer takes, become U+FFFD.
    """
    for number, line in enumerate(read_lines(path, counts), 1):
        if not line.strip():
            continue
        why = "not a JSON object"
        try:
            value = json.loads(line)
        except ValueError as error:
            value, why = None, f"not JSON ({str(error).partition(':')[0]})"
        except RecursionError:
            value, why = None, "nested too deeply"
        if not isinstance(value, dict):
            counts.met(MALFORMED, f"{path}, line {number}", why)
            continue
        if SPELT_HALF.search(line):
            whole = _whole(value)
            counts[HALF_CHARACTERS] += whole != value
            value = whole
        yield value


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
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    rows = found
    if key is not None:
        rows = found.get(key) if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path} has no list" + (f' of "{key}"' if key else ""))
    if SPELT_HALF.search(raw.decode(errors="ignore")):
        whole = [_whole(row) for row in rows]
        counts[HALF_CHARACTERS] += sum(a != b for a, b in zip(whole, rows, strict=True))
        return whole
    return rows


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
