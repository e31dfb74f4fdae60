"""Texts to predict labels of: lines, tables, objects of JSON; a label among them is not needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from magneto.data.counts import MALFORMED, Counts
from magneto.data.files import unpacked_name
from magneto.data.records import read_lines, read_objects, read_quoted, read_tabs
from magneto.language.classification.files import Row, pick, pick_columns
from magneto.language.classification.glue import Columns


def read_unlabelled(path: Path, columns: Columns, counts: Counts) -> Iterator[Row]:
    """Yield the texts of a file, with "" as their label; empty ones too, so that lines stay so.

    Args:
        path: .csv, .tsv or .jsonl with the columns, or anything else with a text per line; maybe
            packed.
        columns: Where text and pair are.
        counts: Filled while reading.

    Raises:
        ValueError: If the file has no such column; names those it has.
    """
    name = unpacked_name(path)
    if name.endswith(".jsonl"):
        pairs = _of_objects(read_objects(path, counts), columns, path)
    elif name.endswith(".csv"):
        pairs = _of_cells(read_quoted(path, ",", counts), columns, path)
    elif name.endswith(".tsv"):
        pairs = _of_cells(read_tabs(path, counts), columns, path)
    else:
        yield from line_rows(read_lines(path, counts), columns)
        return
    for number, (text, pair) in enumerate(pairs, 1):
        if isinstance(text, str) and (pair is None or isinstance(pair, str)):
            yield Row(text, pair, "")
        else:
            counts.met(MALFORMED, f"{path}, row {number}", "no text")


def line_rows(lines: Iterable[str], columns: Columns) -> Iterator[Row]:
    """Yield a text per line; a tab is between the two of a pair."""
    for line in lines:
        text, _, pair = line.strip("\r\n").partition("\t" if columns.pair else "\n")
        yield Row(text, pair if columns.pair else None, "")


def _of_objects(
    objects: Iterable[dict[str, Any]], columns: Columns, path: Path
) -> Iterator[tuple[Any, Any]]:
    names: tuple[str, str | None, str] | None = None
    for value in objects:
        names = names or pick_columns(list(value), replace(columns, label=()), str(path))
        text, pair, _ = names
        yield value.get(text), value.get(pair, 0) if pair else None


def _of_cells(rows: Iterator[list[str]], columns: Columns, path: Path) -> Iterator[tuple[Any, Any]]:
    first = next(rows, [])
    text, pair, headed = _places(first, columns, path)
    for row in rows if headed else chain([first], rows):
        if any(row):
            cells = dict(enumerate(row))
            yield cells.get(text), None if pair is None else cells.get(pair, 0)


def _places(first: Sequence[str], columns: Columns, path: Path) -> tuple[int, int | None, bool]:
    """Return the places of text and pair (None if there is none), and whether there is a header."""
    if not pick(first, columns.text):
        if columns.places is not None:
            text, pair, _ = columns.places
            return text, pair if pair >= 0 else None, False
        if len(first) == 1 + bool(columns.pair):
            return 0, 1 if columns.pair else None, False
    numbers = "; without a header line, give numbers: --data.text_column 2 --data.label_column 1"
    text, pair, _ = pick_columns(first, replace(columns, label=()), str(path), numbers)
    return first.index(text), None if pair is None else first.index(pair), True
