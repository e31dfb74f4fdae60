"""Parallel text in records that hold a sentence in several languages: .tsv and .jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

from magneto.data.counts import Counts
from magneto.data.files import unpacked_name
from magneto.data.problems import BadRecord
from magneto.data.records import read_lines, read_objects, read_rows
from magneto.data.splits import SPLITS
from magneto.translation.config import LACKING, Texts

LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
SPLIT = re.compile(rf"(?:^|[._-])({'|'.join(SPLITS)})(?=$|[._\d-])")
RECORD_ENDINGS = (".tsv", ".jsonl")

Record = dict[str, str]
"""Sentences by language."""


class RecordFiles:
    """Files of records. They are read through once to find which languages each has.

    Args:
        files: The files.
        wanted: Languages to use; None for all that there are.
    """

    def __init__(self, files: list[Path], wanted: tuple[str, ...] | None) -> None:
        self.files, self.wanted = files, wanted

    @cached_property
    def _languages(self) -> dict[Path, set[str]]:
        return {path: file_languages(path) for path in self.files}

    @property
    def languages(self) -> list[str]:
        """Codes of the languages there are, sorted."""
        return sorted(set().union(*self._languages.values()))

    def pairs(self, split: str) -> set[tuple[str, str]]:
        """Return the pairs of languages that a split has."""
        found: set[tuple[str, str]] = set()
        for path in self._of(split):
            names = self._languages[path]
            names = names if self.wanted is None else names & set(self.wanted)
            found |= set(combinations(sorted(names), 2))
        return found

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the sentences of a pair; records without both are counted."""
        for path in self._of(split):
            if {first, second} <= self._languages[path]:
                for record in records(path, counts):
                    if first in record and second in record:
                        yield record[first], record[second]
                    else:
                        counts[LACKING] += 1

    def _of(self, split: str) -> list[Path]:
        return [path for path in self.files if split_of(stem(path)) == split]


def file_languages(path: Path) -> set[str]:
    """Return the languages of a file; all rows of a table have the same."""
    found = islice(records(path, Counts()), 1 if is_table(path) else None)
    return {code for record in found for code in record}


def is_table(path: Path) -> bool:
    """Return whether a file of records is a .tsv."""
    return unpacked_name(path).endswith(".tsv")


def records(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield a file's records.

    Raises:
        ValueError: If a .tsv does not say its languages, or one is damaged.
    """
    yield from (_tsv if is_table(path) else _jsonl)(path, counts)


def _tsv(path: Path, counts: Counts) -> Iterator[Record]:
    rows = (bare(line).split("\t") for line in read_lines(path, counts))
    names = next(rows, [])
    if not (all(LANGUAGE.fullmatch(cell) for cell in names) and len(set(names)) > 1):
        named = re.search(r"(?:^|[._-])([a-z]{2,3})-([a-z]{2,3})(?=[._-])", path.name)
        if not named:
            raise ValueError(
                f"{path} does not say its languages: begin it with a line en<TAB>de, "
                "or name it like train.en-de.tsv"
            )
        names, rows = list(named.groups()), chain([names] if names else [], rows)
    yield from read_rows(path, rows, names, counts)


def _jsonl(path: Path, counts: Counts) -> Iterator[Record]:
    return read_objects(path, counts, several)


def several(record: Any) -> Record:
    """Return the sentences of a record.

    Raises:
        BadRecord: If it has less than two.
    """
    found = sentences(record)
    if len(found) < 2:
        raise BadRecord("no sentences in two languages")
    return found


def sentences(record: Any) -> Record:
    """Return what a record has by language: of its "translation", else of itself."""
    inner = record.get("translation", record)
    if not isinstance(inner, dict):
        return {}
    return {k: v for k, v in inner.items() if LANGUAGE.fullmatch(k) and isinstance(v, str)}


def split_of(stem: str) -> str:
    """Return "train", "validation" or "test" for the name of a file."""
    found = SPLIT.search(stem.rpartition("/")[2])
    return SPLITS[found[1]] if found else "train"


def stem(path: Path) -> str:
    """Return a file's name without its endings."""
    return unpacked_name(path).rpartition(".")[0]


def bare(line: str) -> str:
    """Return a line without its end."""
    return line.removesuffix("\n").removesuffix("\r")
