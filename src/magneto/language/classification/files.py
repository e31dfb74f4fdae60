"""Labelled texts from files: rows in, what is odd counted, nothing dropped in silence.

.tsv (and .txt) is split at tabs and has no quotes, as GLUE's files; .csv is quoted as spreadsheets
do it; .jsonl has an object per line. Each may be .gz.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from magneto.data.files import open_bytes
from magneto.data.sources import SURROGATES
from magneto.language.classification.glue import Columns

ENDINGS = (".tsv", ".csv", ".jsonl", ".txt")
# What GLUE's files and the hub write where a label is not known; the first, what all files write.
UNKNOWN = ("", "-", "-1")


@dataclass(frozen=True)
class Row:
    """One text, or two, and the label as it was written."""

    text: str
    pair: str | None
    label: str


@dataclass
class RowCounts:
    """What was met while reading.

    Attributes:
        rows: Rows given out.
        malformed: Rows with columns missing, or that can't be parsed; left out.
        empty: Rows without a visible character in a text; left out.
        unlabelled: Rows without a label, or with one that is no number where one is asked for;
            left out.
        invalid_utf8: Lines with bytes that are not UTF-8, and rows with halves of a character,
            which became U+FFFD.
    """

    rows: int = 0
    malformed: int = 0
    empty: int = 0
    unlabelled: int = 0
    invalid_utf8: int = 0

    def describe(self) -> str:
        """Say in words what was odd."""
        odd = {
            "malformed rows left out": self.malformed,
            "rows with an empty text left out": self.empty,
            "rows without a label left out": self.unlabelled,
            "lines with invalid UTF-8 replaced": self.invalid_utf8,
        }
        words = [f"{count} {what}" for what, count in odd.items() if count]
        return f"{self.rows} rows" + (f" ({', '.join(words)})" if words else "")


def read_file(
    path: Path,
    columns: Columns,
    number: bool,
    counts: RowCounts,
    unknown: Sequence[str] = UNKNOWN,
) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        path: .tsv, .csv, .jsonl or .txt, maybe with .gz.
        columns: Where text, pair and label are.
        number: Whether labels must be finite numbers.
        counts: Filled while reading.
        unknown: Words that stand for a label that is not known.

    Raises:
        ValueError: If the file has no such column; names those it has.
    """
    with open_bytes(path) as file:
        lines = _decoded(file, counts)
        if ".jsonl" in path.suffixes:
            records = _objects(lines, columns, path, counts)
        else:
            cells = csv.reader(lines) if ".csv" in path.suffixes else _cut(lines)
            records = _cells(cells, columns, path, counts)
        yield from checked(records, number, counts, unknown)


def checked(
    records: Iterable[Sequence[Any]],
    number: bool,
    counts: RowCounts,
    unknown: Sequence[str] = UNKNOWN,
) -> Iterator[Row]:
    """Yield (text, pair or None, label) triples that are whole, as rows; count the others."""
    for text, pair, label in records:
        if not all(isinstance(part, str) for part in (text, "" if pair is None else pair)):
            counts.malformed += 1
        elif not text.strip() or (pair is not None and not pair.strip()):
            counts.empty += 1
        elif _is_unknown(label, number, unknown):
            counts.unlabelled += 1
        else:
            counts.rows += 1
            parts = (text, pair, str(label).strip())
            whole: Any = tuple(part and SURROGATES.sub("\ufffd", part) for part in parts)
            counts.invalid_utf8 += whole != parts
            yield Row(*whole)


def _is_unknown(label: Any, number: bool, unknown: Sequence[str]) -> bool:
    word = "" if label is None else str(label).strip()
    if not number:
        return word in unknown
    try:
        return not math.isfinite(float(word))
    except ValueError:
        return True


def pick(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the first of the wanted names that is there."""
    return next((name for name in wanted if name in names), None)


def pick_columns(names: Sequence[str], columns: Columns, where: str) -> tuple[str, str | None, str]:
    """Return the names of text, pair (or None) and label among a table's.

    Raises:
        ValueError: If one is not there; names those that are.
    """
    found = []
    for role in ("text", "pair", "label"):
        wanted = getattr(columns, role)
        name = pick(names, wanted)
        if wanted and name is None:
            near = get_close_matches(wanted[0], names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{where} has no column {wanted[0]!r} for data.{role}_column{hint} "
                f"(it has {', '.join(map(str, names)) or 'none'})"
            )
        found.append(name)
    return found[0], found[1], found[2]


def _decoded(file: Iterable[bytes], counts: RowCounts) -> Iterator[str]:
    for raw in file:
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            counts.invalid_utf8 += 1
            yield raw.decode("utf-8", errors="replace")


def _cut(lines: Iterable[str]) -> Iterator[list[str]]:
    for line in lines:
        yield line.rstrip("\r\n").split("\t")


def _objects(
    lines: Iterable[str], columns: Columns, path: Path, counts: RowCounts
) -> Iterator[tuple[Any, Any, Any]]:
    names: tuple[str, str | None, str] | None = None
    for line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, Mapping):
            counts.malformed += 1
            continue
        names = names or pick_columns(list(value), columns, str(path))
        text, pair, label = names
        yield value.get(text), value.get(pair, 0) if pair else None, value.get(label)


def _cells(
    rows: Iterator[list[str]], columns: Columns, path: Path, counts: RowCounts
) -> Iterator[tuple[Any, Any, Any]]:
    first = next(rows, [])
    headed = pick(first, columns.text) and pick(first, columns.label)
    if columns.places is not None and not headed:
        text, pair, label = columns.places
        least = max(columns.places) + 1
        rows = chain([first], rows)
    else:
        names = pick_columns(first, columns, str(path))
        text, label = first.index(names[0]), first.index(names[2])
        pair = -1 if names[1] is None else first.index(names[1])
        least = len(first)
    for row in _parsed(rows, counts):
        if not any(row):
            continue
        if len(row) < least:
            counts.malformed += 1
            continue
        yield row[text], row[pair] if pair >= 0 else None, row[label]


def _parsed(rows: Iterator[list[str]], counts: RowCounts) -> Iterator[list[str]]:
    """Yield rows; one that csv can't parse is counted, and the next is read."""
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:
            counts.malformed += 1
