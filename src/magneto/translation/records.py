"""Parallel text in records that hold a sentence in several languages: .tsv, .jsonl and .tmx."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from magneto.data.counts import MALFORMED, Counts
from magneto.data.files import open_bytes, unpacked_name
from magneto.data.records import read_lines, read_objects
from magneto.data.splits import SPLITS
from magneto.translation.config import LACKING, Texts

LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
SPLIT = re.compile(rf"(?:^|[._-])({'|'.join(SPLITS)})(?=$|[._\d-])")
RECORD_ENDINGS = (".tsv", ".jsonl", ".tmx")
XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

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
    def _names(self) -> dict[Path, dict[str, str]]:
        return {path: language_names(path) for path in self.files}

    @property
    def languages(self) -> list[str]:
        """Codes of the languages there are, sorted."""
        return sorted({name for names in self._names.values() for name in names.values()})

    def pairs(self, split: str) -> set[tuple[str, str]]:
        """Return the pairs of languages that a split has."""
        found: set[tuple[str, str]] = set()
        for path in self._of(split):
            names = set(self._names[path].values())
            names &= names if self.wanted is None else set(self.wanted)
            found |= set(combinations(sorted(names), 2))
        return found

    def read(self, first: str, second: str, split: str, counts: Counts) -> Iterator[Texts]:
        """Yield the sentences of a pair; records without both are counted."""
        for path in self._of(split):
            names = self._names[path]
            if {first, second} <= set(names.values()):
                for record in records(path, counts):
                    named = {names[code]: text for code, text in record.items()}
                    if first in named and second in named:
                        yield named[first], named[second]
                    else:
                        counts[LACKING] += 1

    def _of(self, split: str) -> list[Path]:
        return [path for path in self.files if split_of(stem(path)) == split]


def language_names(path: Path) -> dict[str, str]:
    """Return the languages of a file by their codes in it.

    They are the same but in a .tmx: "en-US" is en, unless a unit of the file has two variants of a
    language (zh-CN beside zh-TW), whose codes then all stay whole.
    """
    ending = _ending(path)
    codes: set[str] = set()
    twice: set[str] = set()
    # All rows of a table have the same languages.
    for record in islice(records(path, Counts()), 1 if ending == ".tsv" else None):
        codes |= record.keys()
        if ending == ".tmx":
            plain = [_plain(code) for code in record]
            twice |= {code for code in plain if plain.count(code) > 1}
    if ending != ".tmx":
        return {code: code for code in codes}
    return {code: code if _plain(code) in twice else _plain(code) for code in codes}


def _plain(code: str) -> str:
    return re.split("[-_]", code)[0]


def records(path: Path, counts: Counts) -> Iterator[Record]:
    """Yield a file's records, by the codes that are in the file.

    Raises:
        ValueError: If a .tsv does not say its languages, a .tmx is not XML, or one is damaged.
    """
    read: dict[str, Callable[[Path, Counts], Iterator[Record]]] = {
        ".tsv": _tsv, ".jsonl": _jsonl, ".tmx": _tmx,
    }  # fmt: skip
    yield from read[_ending(path)](path, counts)


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
    for cells in rows:
        if len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))
        else:
            counts[MALFORMED] += 1


def _jsonl(path: Path, counts: Counts) -> Iterator[Record]:
    for record in read_objects(path, counts):
        found = sentences(record)
        if len(found) > 1:
            yield found
        else:
            counts[MALFORMED] += 1


def sentences(record: Any) -> Record:
    """Return what a record has by language: of its "translation", else of itself."""
    inner = record.get("translation", record)
    if not isinstance(inner, dict):
        return {}
    return {k: v for k, v in inner.items() if LANGUAGE.fullmatch(k) and isinstance(v, str)}


def _tmx(path: Path, counts: Counts) -> Iterator[Record]:
    with open_bytes(path) as file:
        try:
            for _, element in ElementTree.iterparse(file):
                if element.tag.rpartition("}")[2] != "tu":
                    continue
                found: Record = {}
                for variant in element.iter("tuv"):
                    code = variant.get(XML_LANGUAGE) or variant.get("lang") or ""
                    code = _plain(code).lower() + code[len(_plain(code)) :]
                    segment = variant.find("seg")
                    if segment is not None and LANGUAGE.fullmatch(code):
                        found[code] = "".join(segment.itertext())
                element.clear()
                if len(found) > 1:
                    yield found
                else:
                    counts[MALFORMED] += 1
        except ElementTree.ParseError as error:
            raise ValueError(f"{path} is not TMX: {error}") from error


def split_of(stem: str) -> str:
    """Return "train", "validation" or "test" for the name of a file."""
    found = SPLIT.search(stem.rpartition("/")[2])
    return SPLITS[found[1]] if found else "train"


def stem(path: Path) -> str:
    """Return a file's name without its endings."""
    return unpacked_name(path).rpartition(".")[0]


def _ending(path: Path) -> str:
    name = unpacked_name(path)
    return name[name.rindex(".") :]


def bare(line: str) -> str:
    """Return a line without its end."""
    return line.removesuffix("\n").removesuffix("\r")
