"""Tables of examples: columns, rows, held-out rows, and a digest.

Use::

    splits = read_source("photos/", counts)          # magneto.data.formats: tables by split
    train, validation = divide(splits, None, 0.2, "image", counts)
    train[3]["image"].read(), train[3]["label"]      # a row by number

A column is any sequence. Images and recordings are in a column of media (`magneto.data.media`). A
selection of rows is a new table that shares its columns with the old table, without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from magneto.config import abbreviate, nearest
from magneto.data.cache import content_digest
from magneto.data.media import MediaColumn
from magneto.data.problems import (
    OTHER_SPLITS,
    BadRecord,
    Counts,
    guarded,
    join_words,
    number_each,
    quantity,
)
from magneto.data.sources import (
    SPLIT_NAMES,
    VALIDATION_ORDER,
    hash_of,
    held_out_limit,
    split_field,
    split_of_word,
)

T = TypeVar("T")
R = TypeVar("R")

# Usual names of columns, in order of preference.
COLUMN_ALIASES = {
    "image": ("image", "img", "image_path", "image_file", "path", "file_name", "filename", "file",
              "filepath", "image_name"),
    "mask": ("mask", "annotation", "segmentation", "segmentation_mask", "label_map", "mask_path"),
    "audio": ("audio", "audio_filepath", "audio_path", "path", "file", "wav", "file_name",
              "filename"),
    "text": ("text", "caption", "captions", "texts", "sentence", "sentences", "transcript",
             "transcription", "normalized_text", "raw", "title", "txt", "comment"),
    "label": ("label", "labels", "class", "category", "target", "fine_label", "cls",
              "gold_label"),
    "question": ("question",),
    "answer": ("answer", "answers", "multiple_choice_answer"),
    "id": ("id", "utterance_id", "utt_id", "key"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk_id"),
    # Start, end and length of a recording in seconds, and its channel.
    "start": ("start", "offset", "begin"),
    "stop": ("stop", "end"),
    "duration": ("duration", "seconds"),
    "channel": ("channel",),
    "left": ("left", "left_image", "image_left", "image1", "image_1", "image_a", "first_image"),
    "right": ("right", "right_image", "image_right", "image2", "image_2", "image_b",
              "second_image"),
    "statement": ("statement", "sentence", "text", "caption"),
    "truth": ("truth", "label", "answer", "true", "is_true", "target"),
}  # fmt: skip
FROM_TEST = "rows of the test split used for validation"
TEST_UNUSED = "unused rows of the test split"
# Number of media files whose bytes enter the digest; the others enter by name and size.
SAMPLED_FILES = 256
NO_CLASS = -1
# Least share of the requested rows to hold out; below it, further values are held out.
LOWEST_SHARE = 0.5
# Multiple of the requested rows above which the counts report the held-out rows.
HIGHEST_SHARE = 2.0


class Classes(Sequence[str | None]):
    """Column of named classes.

    Args:
        numbers: Class number of each row, int64. Rows without a class have the number `NO_CLASS`.
        names: Name of each class, in the order of the class numbers.
    """

    def __init__(self, numbers: np.ndarray, names: Sequence[str]) -> None:
        self.numbers, self.names = numbers, list(names)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: Any) -> Any:
        found = int(self.numbers[number])
        return None if found == NO_CLASS else self.names[found]


@dataclass(frozen=True)
class Table:
    """Columns of a source, and a selection of its rows.

    Attributes:
        columns: Columns by name, with all rows of the source.
        rows: Array of the selected row numbers, int64.
        where: Name of the source for messages.
        root: Folder to which relative paths in the columns refer.
        separator: Character between the cells of a .csv or .tsv file, or "" for any other source.
        numbers: For each row of the source, its number in the file; empty if rows are numbered
            1, 2, 3, ...
        unit: What `numbers` counts, such as "line".
    """

    columns: Mapping[str, Any]
    rows: np.ndarray
    where: str = ""
    root: Path = field(default_factory=Path)
    separator: str = ""
    numbers: Sequence[int] | np.ndarray = ()
    unit: str = "record"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.rows[index])
        return {name: column[number] for name, column in self.columns.items()}

    def values(self, name: str) -> Any:
        """Return the values of a column, one per row."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column[self.rows]
        return [column[number] for number in self.rows.tolist()]

    def number(self, row: int) -> int:
        return int(self.numbers[row]) if len(self.numbers) else row + 1

    def place(self, row: int) -> str:
        """Return a row's place in its file, for messages, such as "a.csv, row 3"."""
        return f"{self.where}, {self.unit} {self.number(row)}"

    def read_each(
        self, records: Iterable[T], read: Callable[[T], R | None], counts: Counts
    ) -> Iterator[R]:
        """Yield the result of `read` for each record; `records` has one record per selected row.

        Malformed records are counted, and messages give their place in the file; see `number_each`.
        """
        numbers, where = map(self.number, self.rows.tolist()), f"{self.where}, {self.unit}"
        return (found for _, found in number_each(records, read, counts, where, numbers))

    def take(self, indices: np.ndarray) -> Table:
        """Return a table with the rows `self.rows[indices]`. `indices` may be a boolean mask."""
        return replace(self, rows=self.rows[indices])

    def find(self, what: str, given: str | None = None, among: Iterable[str] = ()) -> str | None:
        """Return the name of the column with the content `what`, or None if there is none.

        Args:
            what: Kind of content, such as "label": a key of `COLUMN_ALIASES`.
            given: Value of the recipe's field data.WHAT_column. "" means no column. None
                searches for the names in `COLUMN_ALIASES[what]`, in their order.
            among: Columns to search (default: all columns).

        Raises:
            ValueError: If the given column does not exist.
        """
        if given is not None:
            if given and given not in self.columns:
                raise ValueError(f"{self.where} has no column {given!r} (data.{what}_column)"
                                 f"{nearest(given, list(self.columns))}")  # fmt: skip
            return given or None
        plain = {name.strip().lower(): name for name in reversed(list(among or self.columns))}
        return next((plain[name] for name in COLUMN_ALIASES[what] if name in plain), None)

    def no_column(self, *wanted: str) -> ValueError:
        """Return the error for a table without the column `wanted[0]`."""
        names = join_words([abbreviate(name) for name in self.columns]) or "none"
        line = f"{self.where} has no column {wanted[0]!r} (columns: {names}). Set "
        line += f"data.{wanted[0]}_column"
        if self.separator:
            header = self.separator.join(wanted).replace("\t", "<TAB>")
            line += f". If the file has no header, add this first line: {header}"
        return ValueError(line)

    def check_one_class(self, name: str) -> None:
        """Raise ValueError if the column `name` has lists, such as several classes of one text."""
        values = [] if isinstance(self.columns[name], Classes) else self.values(name)
        first = next((value for value in values if isinstance(value, list | dict)), None)
        if first is not None:
            raise ValueError(f"{self.where}: {name!r} has lists of classes, such as "
                             f"{abbreviate(first)}. Classifiers predict one class: write one class "
                             "in each row, or omit the column.")  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """Digest of all values, of the names and sizes of media, and of some media bytes."""
        parts: list[bytes | np.ndarray] = []
        for name in sorted(self.columns):
            parts.append(name.encode(errors="surrogatepass"))
            column = self.columns[name]
            if isinstance(column, MediaColumn):
                parts += self._media_parts(column)
            elif isinstance(column, np.ndarray):
                parts.append(column[self.rows])
            else:
                values = json.dumps(self.values(name), default=str)
                parts.append(values.encode(errors="surrogatepass"))
        return content_digest(*parts)

    def _media_parts(self, column: MediaColumn) -> Iterable[bytes | np.ndarray]:
        keys = "\n".join(column.key(number) for number in self.rows.tolist())
        yield from (keys.encode(errors="surrogatepass"), column.sizes()[self.rows])
        rows = self.rows[evenly_spaced(len(self), SAMPLED_FILES)].tolist()
        different = {column.key(number): number for number in rows}  # rows may share a recording
        for number in different.values():
            yield content_digest(content_of(column, number)).encode()


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Return at most `most` row numbers, evenly spaced over `count` rows."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def content_of(column: MediaColumn, number: int) -> bytes:
    try:
        with guarded():
            return column.read(number)
    except BadRecord:
        return b""


def table_of_columns(
    columns: Mapping[str, Any], where: str = "", root: Path | None = None, separator: str = ""
) -> Table:
    count = len(next(iter(columns.values()), ()))
    return Table(columns, np.arange(count), where, root or Path(), separator)


def table_of_records(
    records: Sequence[Mapping[str, Any]], where: str = "", root: Path | None = None
) -> Table:
    """Return a table of records. A field that a record lacks becomes None."""
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    return table_of_columns(columns, where, root)


def by_split(table: Table, counts: Counts) -> dict[str, Table]:
    """Return the parts of a table by the value of the column "split".

    If no row has "train" in this column, all rows belong to the split "train".
    """
    name = split_field(table.columns)
    words = [] if name is None else table.values(name)
    splits = np.array([split_of_word(word) or "" for word in words])
    if "train" not in splits:
        return {"train": table}
    counts[OTHER_SPLITS] += int((splits == "").sum())
    return {split: table.take(splits == split) for split in SPLIT_NAMES if split in splits}


def divide(
    splits: Mapping[str, Table],
    other: Mapping[str, Table] | None,
    fraction: float,
    key: str,
    counts: Counts,
) -> tuple[Table, Table]:
    """Return a training and a validation table.

    Args:
        splits: Tables of the source by split.
        other: Tables of a validation source by split, or None. The validation split of this source
            is used, else the test split, else the training split. If `other` is None, the
            validation split of `splits` is used. If `splits` has no validation split, some training
            rows become validation rows.
        fraction: Share of rows to hold out.
        key: Column for `hold_out`. Rows with the same value in this column stay together.
        counts: Counter that receives the numbers of used and unused rows of test splits.

    Raises:
        ValueError: If the training or validation table would be empty.
    """
    train = splits.get("train") or next(iter(splits.values()))
    if other is not None:
        used = next((split for split in VALIDATION_ORDER if split in other), next(iter(other)))
        counts[FROM_TEST] += len(other[used]) if used == "test" else 0
        return train, other[used]
    if "validation" in splits and "train" in splits:
        return train, splits["validation"]
    counts[TEST_UNUSED] += len(splits["test"]) if {"train", "test"} <= {*splits} else 0
    return hold_out(train, fraction, key, counts)


def hold_out(
    table: Table, fraction: float, key: str, counts: Counts | None = None
) -> tuple[Table, Table]:
    """Divide a table into training and validation rows by the hash of a column.

    Rows with the same value stay together. New rows rarely change whether an old row is held out.
    The division by hash has two exceptions. If one of the two tables would be empty, all rows with
    one value move to this table. If fewer than half of the requested rows would be held out,
    further values are held out, ordered by hash.

    Args:
        table: Table to divide.
        fraction: Approximate share of rows to hold out.
        key: Name of the column. Images and recordings are hashed by name, not by content.
        counts: Counter that receives the number of held-out rows if far more rows are held out than
            requested.

    Raises:
        ValueError: If the column has fewer than two different values.
    """
    column = table.columns[key]
    media = isinstance(column, MediaColumn)
    numbers = table.rows.tolist()
    words = [column.key(n) if media else str(column[n]) for n in numbers]
    keys, kind, rows = np.unique(
        np.array([hash_of(word) for word in words], np.uint64),
        return_inverse=True, return_counts=True,
    )  # fmt: skip
    if (different := len(keys)) < 2:
        values = f"{quantity(different, 'values')} of {key!r}"
        values += counts.describe() if counts else ""
        raise ValueError(f"{table.where} has {quantity(len(numbers), 'rows')} with {values}, too "
                         "few to hold rows out. Set data.validation_source.")  # fmt: skip
    chosen = keys < np.uint64(held_out_limit(words, fraction))
    wanted = fraction * len(numbers)
    for number in np.flatnonzero(~chosen):
        found = rows[chosen].sum()
        if found >= wanted * LOWEST_SHARE:
            break
        if abs(found + rows[number] - wanted) < wanted - found and (~chosen).sum() > 1:
            chosen[number] = True
    held = chosen[kind]
    shared = 2 * different <= len(numbers)
    if counts is not None and shared and held.sum() > max(HIGHEST_SHARE * wanted, 1):
        counts[f"rows held out instead of about {wanted:,.0f}, because most rows share a few "
               f"values of {key!r}"] += int(held.sum())  # fmt: skip
    return table.take(~held), table.take(held)
