"""Labelled texts from files: rows in, what is odd counted, nothing dropped in silence.

.tsv (and .txt) is split at tabs and has no quotes, as GLUE's files; .csv is quoted as
spreadsheets do it; .jsonl has an object per line. Each may be packed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from magneto.data.counts import EMPTY, MALFORMED, Counts
from magneto.data.problems import BadRecord, read_each
from magneto.data.records import Record, read_objects, read_quoted, read_tabs
from magneto.language.classification.glue import Columns

ENDINGS = (".tsv", ".csv", ".jsonl", ".txt")
# What GLUE's files and the hub write where a label is not known; the first, what all files write.
UNKNOWN = ("", "-", "-1")

WITHOUT_HEADER = (
    "; without a header line, give columns by number: --data.text_column 2 --data.label_column 1"
)

ROWS = "rows"
UNLABELLED = "rows without a label left out"  # or with one that is no number, where one is asked


@dataclass(frozen=True)
class Row:
    """One text, or two, and the label as it was written."""

    text: str
    pair: str | None
    label: str


def read_file(
    path: Path,
    columns: Columns,
    number: bool,
    counts: Counts,
    unknown: Sequence[str] = UNKNOWN,
) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        path: .tsv, .csv, .jsonl or .txt, maybe packed.
        columns: Where text, pair and label are.
        number: Whether labels must be finite numbers.
        counts: Filled while reading.
        unknown: Words that stand for a label that is not known.

    Raises:
        ValueError: If the file has no such column; names those it has.
    """
    if ".jsonl" in path.suffixes:
        records = _of_objects(read_objects(path, counts), columns, path)
    else:
        csv = ".csv" in path.suffixes
        rows = read_quoted(path, ",", counts) if csv else read_tabs(path, counts)
        records = _of_cells(rows, columns, path, counts)
    yield from checked(records, number, counts, unknown, str(path))


def checked(
    records: Iterable[Sequence[Any]],
    number: bool,
    counts: Counts,
    unknown: Sequence[str] = UNKNOWN,
    where: str = "the source",
) -> Iterator[Row]:
    """Yield (text, pair or None, label) triples that are whole, as rows; count the others."""

    def read(record: Sequence[Any]) -> Row | None:
        text, pair, label = record
        if not all(isinstance(part, str) for part in (text, "" if pair is None else pair)):
            raise BadRecord("no text")
        if not text.strip() or (pair is not None and not pair.strip()):
            counts[EMPTY] += 1
        elif _is_unknown(label, number, unknown):
            counts[UNLABELLED] += 1
        else:
            counts[ROWS] += 1
            return Row(text, pair, str(label).strip())
        return None

    yield from read_each(records, read, counts, f"{where}, row")


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


def pick_columns(
    names: Sequence[str], columns: Columns, where: str, otherwise: str = ""
) -> tuple[str, str | None, str]:
    """Return the names of text, pair (or None) and label among a table's.

    Args:
        names: Of the table's columns.
        columns: Those wanted.
        where: What the table is called.
        otherwise: What else can be done, for the message.

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
                f"{'' if near else otherwise}"
            )
        found.append(name)
    return found[0], found[1], found[2]


def _of_objects(
    objects: Iterable[Record], columns: Columns, path: Path
) -> Iterator[tuple[Any, Any, Any]]:
    names: tuple[str, str | None, str] | None = None
    for value in objects:
        names = names or pick_columns(list(value), columns, str(path))
        text, pair, label = names
        yield value.get(text), value.get(pair, 0) if pair else None, value.get(label)


def _of_cells(
    rows: Iterator[list[str]], columns: Columns, path: Path, counts: Counts
) -> Iterator[tuple[Any, Any, Any]]:
    first = next(rows, [])
    headed = pick(first, columns.text) and pick(first, columns.label)
    if columns.places is not None and not headed:
        text, pair, label = columns.places
        least = max(columns.places) + 1
        rows = chain([first], rows)
    else:
        names = pick_columns(first, columns, str(path), WITHOUT_HEADER)
        text, label = first.index(names[0]), first.index(names[2])
        pair = -1 if names[1] is None else first.index(names[1])
        least = len(first)
    for place, row in enumerate(rows, 2 - (columns.places is not None and not headed)):
        if not any(row):
            continue
        if len(row) < least:
            counts.met(MALFORMED, f"{path}, row {place}", f"{len(row)} cells, not {least}")
            continue
        yield row[text], row[pair] if pair >= 0 else None, row[label]
