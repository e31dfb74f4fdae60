"""One table for every field: named columns, rows by number, what is held out, a digest.

How a field uses it::

    there = read_source("photos/", counts)           # magneto.data.formats: tables by split
    train, validation = divide(there, None, 0.2, "image", counts)
    train[3]["image"].read(), train[3]["label"]      # a row by its number

A column is any sequence. One of media (`magneto.data.media`) gives what can be read, one of
`Classes` the name of a class. Rows are chosen by number: columns are shared, never copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from magneto.config import nearest, shown
from magneto.data.cache import content_digest
from magneto.data.media import MediaColumn
from magneto.data.problems import OTHER_SPLITS, BadRecord, Counts, counted, guarded, listed
from magneto.data.sources import SPLIT_NAMES, SPLITS, VALIDATED, hash_of, held_below

# What columns are usually called, best first.
USUAL = {
    "image": ("image", "img", "image_path", "image_file", "path", "file_name", "filename", "file",
              "filepath"),
    "mask": ("mask", "annotation", "segmentation", "segmentation_mask", "label_map", "mask_path"),
    "audio": ("audio", "audio_filepath", "audio_path", "path", "file", "wav", "file_name",
              "filename"),
    "text": ("text", "caption", "captions", "texts", "sentence", "sentences", "transcript",
             "transcription", "normalized_text", "raw", "title", "txt"),
    "label": ("label", "labels", "class", "category", "target", "fine_label", "cls"),
    "question": ("question",),
    "answer": ("answer", "answers", "multiple_choice_answer"),
    "id": ("id", "utterance_id", "utt_id", "key"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk_id"),
    # Of a recording, in seconds; and which channel of several.
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
FROM_TEST = "to validate on, from its test split"
TEST_UNUSED = "of its test split, not used"
# Media of which the digest takes the bytes, spread over the table; of all others it takes name and
# size.
SAMPLED = 256
NO_CLASS = -1
# Of the rows that are to be held out; where there would be fewer, further values are.
LEAST_SHARE = 0.5
# Of the same rows, where one value has so many that others would hold out too few: that is said.
MOST_SHARE = 2.0


class Classes(Sequence[str | None]):
    """A column of classes that are known by name.

    Args:
        numbers: Of the class of each row, int64; `NO_CLASS` where there is none.
        names: Of the classes, in the order of their numbers.
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
    """Rows by number, from 0.

    Attributes:
        columns: By name, each of all rows of the source.
        rows: Numbers in the columns of the rows that the table has, int64.
        where: The source, for messages.
        root: Folder that paths in the columns are relative to.
        separator: What is between cells, of a table that has its names in the first line.
    """

    columns: Mapping[str, Any]
    rows: np.ndarray
    where: str = ""
    root: Path = field(default_factory=Path)
    separator: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.rows[index])
        return {name: column[number] for name, column in self.columns.items()}

    def values(self, name: str) -> Any:
        """Return what a column has in each row."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column[self.rows]
        return [column[number] for number in self.rows.tolist()]

    def take(self, indices: np.ndarray) -> Table:
        """Return some rows, by number or as a mask."""
        return replace(self, rows=self.rows[indices])

    def find(self, what: str, given: str | None = None, among: Iterable[str] = ()) -> str | None:
        """Return the name of a column; None if there is none.

        Args:
            what: It has: one of `USUAL`, whose first name that is there is taken.
            given: The name in the recipe, data.WHAT_column; "" for no column.
            among: Names that it may have; all, by default.

        Raises:
            ValueError: If the column that is given is not there.
        """
        if given is not None:
            if given and given not in self.columns:
                raise ValueError(f"{self.where} has no column {given!r} (data.{what}_column)"
                                 f"{nearest(given, list(self.columns))}")  # fmt: skip
            return given or None
        plain = {name.strip().lower(): name for name in reversed(list(among or self.columns))}
        return next((plain[name] for name in USUAL[what] if name in plain), None)

    def no_column(self, *wanted: str) -> ValueError:
        """Return the error that the first of the wanted columns is not there; says what helps."""
        names = listed([shown(name) for name in self.columns]) or "none"
        line = f"{self.where} has no column {wanted[0]!r} among {names}: name it, "
        line += f"data.{wanted[0]}_column"
        if self.separator:
            header = self.separator.join(wanted).replace("\t", "<TAB>")
            line += f"; if its first line names no columns, write one above it: {header}"
        return ValueError(line)

    @cached_property
    def digest(self) -> str:
        """A short name for the content: all values, names and sizes of media, bytes of some."""
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
        sampled = (content_of(column, int(n)) for n in self.rows[spread(len(self), SAMPLED)])
        yield from (keys.encode(errors="surrogatepass"), column.sizes()[self.rows], *sampled)


def spread(count: int, most: int) -> np.ndarray:
    """Return the numbers of some of `count` rows, spread over all of them; all of a few."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def content_of(column: MediaColumn, number: int) -> bytes:
    """Return the bytes of a medium; none where it can't be read."""
    try:
        with guarded():
            return column.read(number)
    except BadRecord:
        return b""


def whole_table(
    columns: Mapping[str, Any], where: str = "", root: Path | None = None, separator: str = ""
) -> Table:
    """Return a table with all rows of its columns."""
    count = len(next(iter(columns.values()), ()))
    return Table(columns, np.arange(count), where, root or Path(), separator)


def table_of(
    records: Sequence[Mapping[str, Any]], where: str = "", root: Path | None = None
) -> Table:
    """Return records as a table; a field that a record has not is None."""
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    return whole_table(columns, where, root)


def by_split(table: Table, counts: Counts) -> dict[str, Table]:
    """Return the parts of a table by its column "split"; all as "train" where none says "train"."""
    name = next((name for name in table.columns if name.strip().lower() == "split"), None)
    words = [] if name is None else [str(word).strip().lower() for word in table.values(name)]
    splits = np.array([SPLITS.get(word, "") for word in words])
    if "train" not in splits:
        return {"train": table}
    counts[OTHER_SPLITS] += int((splits == "").sum())
    return {split: table.take(splits == split) for split in SPLIT_NAMES if split in splits}


def divide(
    there: Mapping[str, Table],
    other: Mapping[str, Table] | None,
    fraction: float,
    key: str,
    counts: Counts,
) -> tuple[Table, Table]:
    """Return what is trained on, and what is validated on.

    Args:
        there: Tables of the source, by split.
        other: Of another source to validate on: its validation split, else its test split, else
            all of it. None validates on the source's own validation split, or on rows held out.
        fraction: Of the rows that are held out where a source has no validation split.
        key: Column by whose values rows are held out; see `hold_out`.
        counts: Told of splits for testing.

    Raises:
        ValueError: If no row is left to train or to validate on.
    """
    train = there.get("train") or next(iter(there.values()))
    if other is not None:
        used = next((split for split in VALIDATED if split in other), next(iter(other)))
        counts[FROM_TEST] += len(other[used]) if used == "test" else 0
        return train, other[used]
    if "validation" in there and "train" in there:
        return train, there["validation"]
    counts[TEST_UNUSED] += len(there["test"]) if {"train", "test"} <= {*there} else 0
    return hold_out(train, fraction, key, counts)


def hold_out(
    table: Table, fraction: float, key: str, counts: Counts | None = None
) -> tuple[Table, Table]:
    """Cut a table in rows to train and to validate on, by the hash of a column.

    Rows of one value stay together, and stay where they are when others are added, unless one side
    would have none: then the value nearest to it goes there. Where less than half of the rows that
    are asked for would be held out, as of few values, further values are, in the order of their
    hashes, that bring the share nearer to it.

    Args:
        table: To cut.
        fraction: Of the values, and so about of the rows, that are held out.
        key: The column. Media are known by their keys.
        counts: Of what was left out, for messages.

    Raises:
        ValueError: If the column has fewer than two values.
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
        said = f"{counted(different, 'values')} of {key!r}"
        said += counts.describe() if counts else ""
        said = f"{counted(len(numbers), 'rows')} with {said}"
        raise ValueError(f"{table.where} has {said}: none can be held out, set "
                         "data.validation_source")  # fmt: skip
    chosen = keys < np.uint64(held_below(words, fraction))
    wanted = fraction * len(numbers)
    for number in np.flatnonzero(~chosen):
        found = rows[chosen].sum()
        if found >= wanted * LEAST_SHARE:
            break
        if abs(found + rows[number] - wanted) < wanted - found and (~chosen).sum() > 1:
            chosen[number] = True
    held = chosen[kind]
    if counts is not None and held.sum() > max(MOST_SHARE * wanted, 1):
        counts[f"rows held out where about {wanted:,.0f} were asked for, as few values of {key!r} "
               "have most rows"] += int(held.sum())  # fmt: skip
    return table.take(~held), table.take(held)
